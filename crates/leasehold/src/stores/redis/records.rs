//! The records of one database.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::stream::{self, BoxStream, StreamExt, TryStreamExt};
use redis::{Script, ScriptInvocation, Value};

use super::POLL_INTERVAL;
use super::answer::{Answer, Fields, text, unreadable};
use super::connect::Connector;
use super::link::Link;
use super::links::Links;
use super::scripts::Scripts;
use super::server::ServerInfo;
use crate::clock::{StoreTime, micros};
use crate::diagnosis::{Examination, Examined};
use crate::env::Env;
use crate::error::{Error, Fault, StoreError};
use crate::lease::{Capabilities, Id, Token, Ttl, attempt_limit};
use crate::protocol::record::{Content, Record, RecordState};
use crate::protocol::records::{Claims, Found, Records, Refusal, Written};
use crate::register::{Precondition, Version};
use crate::retry::{RetryBudget, repeated};
use crate::stores::on_server::grace;
use crate::stores::worker::OnWorker;
use crate::types::LockName;

/// The number of names in a page.
const PAGE: usize = 1_000;

/// The time limit of a page of names.
const LIST_TIMEOUT: Duration = Duration::from_secs(10);

/// The longest time to live of a string, so that its end is a time that Redis accepts.
const LONGEST_STRING: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);

/// The version of any free record that no process awaits.
const ANY_FREE: &str = "*";

/// The records of one database. Each request runs on the store's thread, so that a future that its caller no longer
/// polls does not keep the connection.
#[derive(Debug)]
pub(super) struct RedisRecords {
    database: OnWorker<Database>,
    env: Env,
}

impl RedisRecords {
    /// Starts the store's thread. Sends no request.
    pub(super) async fn open(
        env: Env,
        margin: Duration,
        connect: impl FnOnce() -> Result<Connector, Error> + Send + 'static,
    ) -> Result<Self, Error> {
        let own_env = env.clone();
        let connect = move || Ok(Database::new(connect()?, own_env, margin));
        Ok(Self { database: OnWorker::open("Redis", connect).await?, env })
    }
}

impl Drop for RedisRecords {
    fn drop(&mut self) {
        let database = self.database.leases.clone();
        self.database.finish(async move { database.links.close() });
    }
}

#[async_trait]
impl Records for RedisRecords {
    async fn read(&self, name: &LockName) -> Result<Option<Found>, StoreError> {
        let name = name.clone();
        self.database.run(|database| async move { database.read(&name).await }).await?
    }

    async fn write(
        &self,
        name: &LockName,
        expect: Precondition<'_>,
        before: Option<&Record>,
        record: &Record,
    ) -> Result<Written, StoreError> {
        let expect = match expect {
            Precondition::Absent => Version::new(""),
            Precondition::Version(version) => version.clone(),
        };
        let is_same = |before: &Record| before.grant == record.grant && before.state == RecordState::Held;
        let step = match record.state {
            RecordState::Held if before.is_some_and(is_same) => Step::Renew,
            RecordState::Held => Step::Grant,
            RecordState::Free | RecordState::Cooldown => Step::Free,
        };
        self.written(name, expect, step, before, record, record.token.get()).await
    }

    async fn claim(&self, name: &LockName, record: &Record, tokens: u64) -> Result<Written, StoreError> {
        // The free record keeps its history.
        self.written(name, Version::new(ANY_FREE), Step::Grant, Some(record), record, tokens).await
    }

    fn claims(&self) -> Claims {
        Claims::Always
    }

    /// A failover loses what the new primary did not receive, and a crash what was not on the disk.
    fn loses_writes(&self) -> bool {
        true
    }

    async fn mark_awaited(
        &self,
        name: &LockName,
        version: &Version,
        record: &Record,
    ) -> Result<Written, StoreError> {
        let marked = Record { awaited: true, ..record.clone() };
        self.written(name, version.clone(), Step::Mark, Some(record), &marked, marked.token.get()).await
    }

    async fn freed(&self, name: &LockName, claim: Option<Id>) {
        let Some(claim) = claim else { return std::future::pending().await };
        let name = name.clone();
        let freed = self.database.run(move |database| async move { database.freed(&name, claim).await });
        if freed.await.is_err() {
            std::future::pending().await
        }
    }

    fn calls_the_first(&self) -> bool {
        true
    }

    fn has_lines(&self) -> bool {
        true
    }

    async fn read_line(&self, name: &LockName) -> Result<Option<(Bytes, Version)>, StoreError> {
        let name = name.clone();
        self.database.run(|database| async move { database.read_line(&name).await }).await?
    }

    async fn write_line(
        &self,
        name: &LockName,
        expect: Precondition<'_>,
        line: Bytes,
    ) -> Result<bool, StoreError> {
        let name = name.clone();
        let expect = match expect {
            Precondition::Absent => Version::new(""),
            Precondition::Version(version) => version.clone(),
        };
        self.database
            .run(move |database| async move { database.write_line(&name, &expect, &line).await })
            .await?
    }

    fn list(&self, prefix: &str) -> BoxStream<'_, Result<LockName, StoreError>> {
        let prefix = prefix.to_owned();
        // Where the next page begins. `None` after the last page.
        let pages = stream::try_unfold(Some(None::<String>), move |from| {
            let prefix = prefix.clone();
            async move {
                let Some(from) = from else { return Ok(None) };
                let page = self.database.run(move |database| async move {
                    let mut budget =
                        RetryBudget::new(&database.env, LIST_TIMEOUT, attempt_limit(Ttl::DEFAULT));
                    repeated(&mut budget, || database.names(&prefix, from.clone())).await
                });
                let (names, next) = page.await??;
                let names = names.into_iter().filter_map(|name| LockName::new(name).ok()).map(Ok);
                Ok(Some((stream::iter(names), next.map(Some))))
            }
        });
        pages.try_flatten().boxed()
    }

    async fn discard(&self, name: &LockName, version: &Version) -> Result<bool, StoreError> {
        let (name, version) = (name.clone(), version.clone());
        self.database.run(|database| async move { database.discard(&name, &version).await }).await?
    }

    async fn examine(&self, examination: &Examination) -> Examined {
        let ttl = examination.ttl;
        let examined = self.database.run(move |database| async move { database.examined(ttl).await });
        examined.await.unwrap_or_default()
    }

    /// Connects, so that the server's time is known.
    async fn prepare(&self) -> Result<(), StoreError> {
        if self.store_time().is_some() {
            return Ok(());
        }
        self.database.run(|database| async move { database.links.link().await.map(drop) }).await?
    }

    /// Succeeds without a check, because a Redis server runs one script at a time.
    async fn trust(&self) -> Result<(), StoreError> {
        Ok(())
    }

    async fn trust_deletes(&self) -> Result<(), StoreError> {
        Ok(())
    }

    fn store_time(&self) -> Option<StoreTime> {
        self.database.leases.links.clock.bounds(self.env.now())
    }

    fn env(&self) -> &Env {
        &self.env
    }

    fn capabilities(&self) -> Capabilities {
        let mut capabilities = Capabilities::new("Redis", POLL_INTERVAL);
        capabilities.line = Some("the field `line` of the hash NAME//leasehold");
        (capabilities.permits_in_order, capabilities.queues_permits) = (true, true);
        capabilities
    }
}

impl RedisRecords {
    async fn written(
        &self,
        name: &LockName,
        expect: Version,
        step: Step,
        before: Option<&Record>,
        record: &Record,
        token: u64,
    ) -> Result<Written, StoreError> {
        let fields = Fields::of(record, before).map_err(Fault::not_applied)?;
        let (name, record) = (name.clone(), record.clone());
        self.database
            .run(move |database| async move {
                database.write(&name, &expect, step, fields, record, token).await
            })
            .await?
    }
}

/// What a write of a record is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Grant,
    Renew,
    Free,
    /// Marks the record as awaited. Not a sign of life.
    Mark,
}

impl Step {
    fn as_str(self) -> &'static str {
        match self {
            Self::Grant => "grant",
            Self::Renew => "renew",
            Self::Free => "free",
            Self::Mark => "mark",
        }
    }
}

/// One database, on the store's thread.
#[derive(Debug)]
pub(super) struct Database {
    pub(super) links: Arc<Links>,
    scripts: Scripts,
    pub(super) env: Env,
    /// How far the server's clock may be set ahead without ending a lease early.
    margin: Duration,
}

impl Database {
    fn new(connector: Connector, env: Env, margin: Duration) -> Self {
        Self { links: Arc::new(Links::new(connector, env.clone())), scripts: Scripts::new(), env, margin }
    }

    /// Returns the key of the string that other clients use too.
    fn lock(&self, name: &str) -> String {
        format!("{}{name}", self.links.connector.location.prefix)
    }

    /// Returns the key of the record.
    fn record_of(&self, name: &LockName) -> String {
        format!("{}//leasehold", self.lock(name.as_str()))
    }

    /// Returns the key of the set with the names of all locks with this prefix.
    fn names_key(&self) -> String {
        self.lock("//leasehold/names")
    }

    /// Prepares a script for the lock `name`.
    fn about<'a>(&self, script: &'a Script, name: &LockName) -> ScriptInvocation<'a> {
        let mut invocation = script.prepare_invoke();
        invocation
            .key(self.lock(name.as_str()))
            .key(self.record_of(name))
            .key(self.lock("//leasehold/epoch"))
            .key(self.names_key());
        invocation
    }

    async fn asked(&self, link: &Arc<Link>, script: &ScriptInvocation<'_>) -> Result<Answer, StoreError> {
        let sent = self.env.now();
        let answer = Answer::of(self.links.invoke(link, script).await?)?;
        self.links.note_clock(answer.now_us, sent);
        Ok(answer)
    }

    async fn ask(&self, script: &ScriptInvocation<'_>) -> Result<Answer, StoreError> {
        let link = self.links.link().await?;
        self.asked(&link, script).await
    }

    /// Returns the lease of a grant with this ttl, on the server's clock.
    pub(super) fn span(&self, ttl: Ttl, lock_delay: Duration) -> Duration {
        ttl.contender_span() + self.margin + lock_delay
    }

    /// Checks that a lease of `span` ends within the failover grace. If the server has replicas, it may renew leases
    /// for a while after it was cut off.
    fn check_grace(
        &self,
        span: Duration,
        server: &ServerInfo,
        with_replicas: bool,
    ) -> Result<(), StoreError> {
        let lag = if with_replicas { server.lag() } else { Duration::ZERO };
        grace::check(self.links.connector.location.failover_grace, span, lag)
    }

    pub(super) async fn read(&self, name: &LockName) -> Result<Option<Found>, StoreError> {
        let answer = self.ask(&self.about(&self.scripts.read, name)).await?;
        answer.found(&self.record_of(name)).map_err(Fault::not_applied)
    }

    /// Writes `record`, as `fields`, over `expect`. `token` is its token, or how many tokens it gets over any free record.
    async fn write(
        &self,
        name: &LockName,
        expect: &Version,
        step: Step,
        fields: Fields,
        mut record: Record,
        token: u64,
    ) -> Result<Written, StoreError> {
        let began = self.env.now();
        let link = self.links.link().await?;
        let span = self.span(record.ttl(), record.lock_delay());
        if step == Step::Grant {
            self.check_grace(span, &link.server, link.server.replicas > 0)?;
        }
        let location = &self.links.connector.location;
        let string = match record.state {
            RecordState::Held => span,
            RecordState::Cooldown => Duration::from_millis(record.rest_ms.unwrap_or(0)),
            RecordState::Free => Duration::ZERO,
        };
        let calls = step == Step::Free && record.awaited && location.notifies;
        let now = self.env.now();
        let left = attempt_limit(record.ttl()).saturating_sub(now.longest_since(began));
        let too_late = self.links.clock_us(now).saturating_add(micros(left));
        let mut script = self.about(&self.scripts.write, name);
        script
            .arg(expect.as_str())
            .arg(step.as_str())
            .arg(fields.version.as_str())
            .arg(record.grant.to_string())
            .arg(token)
            .arg(u8::from(fields.is_open))
            .arg(record.served)
            .arg(fields.record)
            .arg(fields.history)
            .arg(micros(string.min(LONGEST_STRING)).div_ceil(1_000))
            .arg(too_late)
            .arg(micros(location.failover_grace))
            .arg(micros(span))
            .arg(micros(link.server.lag()))
            .arg(name.as_str())
            .arg(if calls { location.channel() } else { String::new() });
        let answer = self.asked(&link, &script).await?;
        let key = self.record_of(name);
        match answer.outcome.as_str() {
            "done" if expect.as_str() == ANY_FREE => {
                // If the record cannot be read, the lock is granted nevertheless.
                let unknown = || unreadable().maybe_applied();
                let found = answer.found(&key).map_err(Fault::maybe_applied)?.ok_or_else(unknown)?;
                let Content::Record(record) = found.content else { return Err(unknown()) };
                let after = answer.detail().and_then(Token::new);
                Ok(Written::Granted { record, version: found.version, after })
            }
            "done" => {
                if step != Step::Mark {
                    record.renewed_at_us = Some(answer.now_us);
                }
                Ok(Written::Committed { record: Box::new(record), version: fields.version })
            }
            "recovering" => {
                let left = Duration::from_micros(answer.detail().unwrap_or(0));
                Ok(Written::Withheld(Box::new(grace::withheld("Redis", left))))
            }
            "outlasts" => {
                self.check_grace(span, &link.server, true)?;
                Ok(Written::Conflict(Refusal::Unexplained))
            }
            _ => Ok(Written::Conflict(match answer.found(&key).map_err(Fault::not_applied)? {
                Some(found) => Refusal::Found(found),
                None => Refusal::Absent,
            })),
        }
    }

    /// Waits until `claim` is called. Completes at once if the lock is free.
    async fn freed(&self, name: &LockName, claim: Id) {
        // Registers before the read, so that no call is missed.
        let call = self.links.calls.expect(claim);
        self.links.listen();
        if let Ok(Some(Found { content: Content::Record(record), .. })) = self.read(name).await
            && record.state == RecordState::Free
        {
            return;
        }
        call.called().await;
    }

    async fn read_line(&self, name: &LockName) -> Result<Option<(Bytes, Version)>, StoreError> {
        let link = self.links.link().await?;
        let mut script = self.scripts.read_line.prepare_invoke();
        script.key(self.record_of(name));
        let Value::Array(parts) = self.links.invoke(&link, &script).await? else {
            return Err(unreadable().not_applied());
        };
        let mut parts = parts.into_iter().filter_map(text);
        Ok(parts.next().zip(parts.next()).map(|(line, digest)| (line.into(), Version::new(digest))))
    }

    async fn write_line(&self, name: &LockName, expect: &Version, line: &[u8]) -> Result<bool, StoreError> {
        let link = self.links.link().await?;
        let mut script = self.scripts.write_line.prepare_invoke();
        script.key(self.record_of(name)).arg(expect.as_str()).arg(line);
        Ok(self.links.invoke(&link, &script).await? == Value::Int(1))
    }

    pub(super) async fn discard(&self, name: &LockName, version: &Version) -> Result<bool, StoreError> {
        let mut script = self.about(&self.scripts.discard, name);
        script.arg(version.as_str()).arg(name.as_str());
        Ok(self.ask(&script).await?.outcome == "done")
    }

    /// Returns one page of the names that begin with `prefix`, and a mark from which the next page continues.
    async fn names(
        &self,
        prefix: &str,
        from: Option<String>,
    ) -> Result<(Vec<String>, Option<String>), StoreError> {
        let link = self.links.link().await?;
        let begin = from.map_or_else(|| format!("[{prefix}"), |last| format!("({last}"));
        // No byte of UTF-8 is greater than 0xff.
        let end = [b"[", prefix.as_bytes(), b"\xff"].concat();
        let mut script = self.scripts.names.prepare_invoke();
        script.key(self.names_key()).arg(begin).arg(end).arg(PAGE).arg(self.lock(""));
        let Value::Array(mut parts) = self.links.invoke(&link, &script).await? else {
            return Err(unreadable().not_applied());
        };
        let (Some(last), Some(Value::Array(names))) = (parts.pop(), parts.pop()) else {
            return Err(unreadable().not_applied());
        };
        Ok((names.into_iter().filter_map(text).collect(), text(last)))
    }

    /// Grants, frees and deletes the lock `name`, which nothing else uses.
    pub(super) async fn try_all(&self, name: &LockName, record: Record) -> Result<(), StoreError> {
        let any = Version::new(ANY_FREE);
        let fields = Fields::of(&record, None).map_err(Fault::not_applied)?;
        let Written::Granted { record, version, .. } =
            self.write(name, &any, Step::Grant, fields, record, 1).await?
        else {
            return Ok(());
        };
        let free = Record { state: RecordState::Free, ..(*record).clone() };
        let fields = Fields::of(&free, Some(&record)).map_err(Fault::not_applied)?;
        self.write(name, &version, Step::Free, fields, free, record.token.get()).await?;
        self.discard(name, &version).await.map(drop)
    }
}
