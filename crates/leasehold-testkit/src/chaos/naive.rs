//! Incorrect locks of the kinds that people write, and incorrect registers. The checker must find the violations that
//! they cause.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use leasehold::LockName;
use leasehold::clock::{Clock, Moment, SystemClock};
use leasehold::error::StoreError;
use leasehold::lease::Id;
use leasehold::random::Random;
use leasehold::raw::{RawRecord, RawRecords};
use leasehold::url::StoreUrl;
use rusqlite::{Connection, params};

use super::contender::{Attempt, Contender, End, Hold};
use super::registers::Registers;
use crate::http;

/// The polling interval of a waiter.
const ASK_AGAIN: Duration = Duration::from_millis(100);

/// moto requires an identity, but does not check the signature.
const SIGNED: &str = "authorization: AWS4-HMAC-SHA256 Credential=leasehold/20260101/us-east-1/s3/aws4_request, \
                      SignedHeaders=host, Signature=none\r\n";

/// Returns the milliseconds on this machine's wall clock. A correct lock would not rely on them.
fn wall_ms() -> i64 {
    i64::try_from(SystemClock.now().wall_us() / 1_000).unwrap_or(i64::MAX)
}

/// Retries until the lock is granted or `attempt` is over.
async fn insist<F>(attempt: Attempt, mut one: impl FnMut() -> F) -> Result<Option<Box<dyn Hold>>, String>
where
    F: Future<Output = Result<Option<Box<dyn Hold>>, String>>,
{
    let limit = match attempt {
        Attempt::Try => Duration::ZERO,
        Attempt::Wait(limit) | Attempt::Abandon(limit) => limit,
    };
    let start = SystemClock.now();
    loop {
        if let Some(hold) = one().await? {
            return Ok(Some(hold));
        }
        if SystemClock.now().longest_since(start) >= limit {
            return Ok(None);
        }
        SystemClock.sleep(ASK_AGAIN).await;
    }
}

/// An object in a bucket, created with `If-None-Match: *`, that contains its expiry time. A contender that finds it
/// expired by its own clock deletes it; the owner deletes it on release. There is no token and no renewal, and the
/// owner never reads it again.
#[derive(Clone, Debug)]
pub struct PlainObject {
    server: String,
    path: String,
    ttl: Duration,
}

impl PlainObject {
    /// Creates the lock `lock` in the bucket of the store URL `url`.
    ///
    /// # Panics
    /// When the URL names no bucket or no endpoint.
    pub fn new(url: &str, lock: &str, ttl: Duration) -> Self {
        let url = StoreUrl::parse(url).unwrap();
        let endpoint = url.option("endpoint").expect("the store URL names an endpoint");
        let bucket = url.authority().expect("the store URL names a bucket");
        let server = endpoint.trim_start_matches("http://").to_owned();
        Self { server, path: format!("/{bucket}/{lock}"), ttl }
    }

    async fn send(&self, method: &str, headers: &str, body: &str) -> Result<(u16, String), String> {
        let headers = format!("{SIGNED}{headers}");
        let answer = http::exchange(&self.server, method, &self.path, &headers, body.as_bytes());
        let (status, body) = answer.await.map_err(|error| error.to_string())?;
        Ok((status, String::from_utf8_lossy(&body).into_owned()))
    }

    async fn once(&self) -> Result<Option<Box<dyn Hold>>, String> {
        let until = wall_ms() + i64::try_from(self.ttl.as_millis()).unwrap_or(i64::MAX);
        let (status, _) = self.send("PUT", "if-none-match: *\r\n", &until.to_string()).await?;
        if status == 200 {
            return Ok(Some(Box::new(HeldObject(self.clone()))));
        }
        let (status, body) = self.send("GET", "", "").await?;
        if status == 200 && body.trim().parse::<i64>().is_ok_and(|until| until <= wall_ms()) {
            self.send("DELETE", "", "").await?;
        }
        Ok(None)
    }
}

#[async_trait]
impl Contender for PlainObject {
    async fn acquire(&self, attempt: Attempt) -> Result<Option<Box<dyn Hold>>, String> {
        insist(attempt, || self.once()).await
    }
}

struct HeldObject(PlainObject);

#[async_trait]
impl Hold for HeldObject {
    fn token(&self) -> u64 {
        0
    }

    fn check(&self) -> bool {
        true
    }

    async fn lost(&self) {
        std::future::pending().await
    }

    async fn end(self: Box<Self>, end: End) -> String {
        match end {
            End::Drop => "forgotten".to_owned(),
            End::Release => match self.0.send("DELETE", "", "").await {
                Ok((status, _)) => format!("deleted: {status}"),
                Err(error) => format!("delete failed: {error}"),
            },
        }
    }
}

/// A database row with an expiry time and a counter of tokens. The owner stops at the expiry time, but each client
/// uses its own clock.
#[derive(Clone, Debug)]
pub struct ExpiryColumn {
    file: String,
    lock: String,
    ttl: Duration,
}

impl ExpiryColumn {
    /// Creates the lock `lock` in the SQLite database of the store URL `url`.
    ///
    /// # Panics
    /// When the URL is invalid.
    pub fn new(url: &str, lock: String, ttl: Duration) -> Self {
        Self { file: StoreUrl::parse(url).unwrap().path().to_owned(), lock, ttl }
    }

    fn open(&self) -> rusqlite::Result<Connection> {
        let database = Connection::open(&self.file)?;
        database.busy_timeout(Duration::from_secs(5))?;
        database.execute_batch(
            "CREATE TABLE IF NOT EXISTS lock
                 (name TEXT PRIMARY KEY, owner TEXT, token INTEGER NOT NULL, expires_ms INTEGER NOT NULL)",
        )?;
        Ok(database)
    }

    fn once(&self) -> rusqlite::Result<Option<Box<dyn Hold>>> {
        let database = self.open()?;
        let now = wall_ms();
        let expires_ms = now + i64::try_from(self.ttl.as_millis()).unwrap_or(i64::MAX);
        database.execute("INSERT OR IGNORE INTO lock VALUES (?1, NULL, 0, 0)", [&self.lock])?;
        let owner = Id::random(&Random::from_os()).to_string();
        let granted = database.execute(
            "UPDATE lock SET owner = ?2, token = token + 1, expires_ms = ?3
             WHERE name = ?1 AND (owner IS NULL OR expires_ms <= ?4)",
            params![self.lock, owner, expires_ms, now],
        )?;
        if granted == 0 {
            return Ok(None);
        }
        let token = "SELECT token FROM lock WHERE name = ?1 AND owner = ?2";
        let token: Option<i64> = database.query_row(token, [&self.lock, &owner], |row| row.get(0)).ok();
        let held = |token| HeldRow { lock: self.clone(), owner, token, expires_ms };
        Ok(token.and_then(|token| u64::try_from(token).ok()).map(|token| Box::new(held(token)) as _))
    }
}

#[async_trait]
impl Contender for ExpiryColumn {
    async fn acquire(&self, attempt: Attempt) -> Result<Option<Box<dyn Hold>>, String> {
        insist(attempt, || std::future::ready(self.once().map_err(|error| error.to_string()))).await
    }
}

struct HeldRow {
    lock: ExpiryColumn,
    owner: String,
    token: u64,
    expires_ms: i64,
}

#[async_trait]
impl Hold for HeldRow {
    fn token(&self) -> u64 {
        self.token
    }

    fn check(&self) -> bool {
        wall_ms() < self.expires_ms
    }

    async fn lost(&self) {
        while self.check() {
            SystemClock.sleep(ASK_AGAIN / 10).await;
        }
    }

    async fn end(self: Box<Self>, end: End) -> String {
        let released = || {
            let release = "UPDATE lock SET owner = NULL WHERE name = ?1 AND owner = ?2";
            self.lock.open()?.execute(release, [&self.lock.lock, &self.owner])
        };
        match end {
            End::Drop => "forgotten".to_owned(),
            End::Release => format!("released: {:?}", released()),
        }
    }
}

/// How long a copy of a record is used.
const STALE: Duration = Duration::from_secs(1);

/// Registers that answer reads from a copy, like a cache or a replica that lags behind.
#[derive(Debug)]
pub struct LaggingRegister {
    records: RawRecords,
    copies: Mutex<BTreeMap<LockName, (Moment, Option<RawRecord>)>>,
}

impl LaggingRegister {
    /// Puts copies in front of `records`.
    pub const fn new(records: RawRecords) -> Self {
        Self { records, copies: Mutex::new(BTreeMap::new()) }
    }
}

#[async_trait]
impl Registers for LaggingRegister {
    fn records(&self) -> &RawRecords {
        &self.records
    }

    async fn read(&self, name: &LockName) -> Result<Option<RawRecord>, StoreError> {
        let copy = self.copies.lock().unwrap_or_else(PoisonError::into_inner).get(name).cloned();
        let now = SystemClock.now();
        if let Some((_, copy)) = copy.filter(|(at, _)| now.longest_since(*at) < STALE) {
            return Ok(copy);
        }
        let found = self.records.read(name).await?;
        self.copies.lock().unwrap_or_else(PoisonError::into_inner).insert(name.clone(), (now, found.clone()));
        Ok(found)
    }
}

/// Registers that check the condition of a write, and write later, whatever is there then.
#[derive(Debug)]
pub struct TwoStepRegister(pub RawRecords);

#[async_trait]
impl Registers for TwoStepRegister {
    fn records(&self) -> &RawRecords {
        &self.0
    }

    async fn write(
        &self,
        name: &LockName,
        over: Option<&RawRecord>,
        value: Id,
    ) -> Result<Option<RawRecord>, StoreError> {
        let found = self.0.read(name).await?;
        if found.map(|record| record.value()) != over.map(RawRecord::value) {
            return Ok(None);
        }
        SystemClock.sleep(ASK_AGAIN).await;
        loop {
            let found = self.0.read(name).await?;
            if let Some(written) = self.0.write(name, found.as_ref(), value).await? {
                return Ok(Some(written));
            }
        }
    }
}
