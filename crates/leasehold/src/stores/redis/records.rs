//! The records of one database.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::stream::BoxStream;
use redis::{Script, ScriptInvocation, Value};

use super::POLL_INTERVAL;
use super::answer::{Answer, text, unreadable};
use super::config::Location;
use super::connect::Connector;
use super::link::Link;
use super::links::Links;
use super::scripts::Scripts;
use super::server::ServerInfo;
use crate::clock::{StoreTime, micros};
use crate::diagnosis::{Examination, Examined};
use crate::env::Env;
use crate::error::{Error, Fault, StoreError};
use crate::lease::{Capabilities, Claim, Id, Token, attempt_limit};
use crate::protocol::line::Waiter;
use crate::protocol::record::{Content, Record, RecordState};
use crate::protocol::records::{Change, Claims, Found, Records, Refusal, Written};
use crate::protocol::rules::{recorded, unseen_grant};
use crate::register::{Precondition, Version};
use crate::stores::columns::Columns;
use crate::stores::grace;
use crate::stores::notifications::until_first;
use crate::stores::pages::{self, Page};
use crate::types::LockName;
use crate::worker::OnWorker;

/// The number of names in a page.
const PAGE: usize = 1_000;

/// The longest time to live of a string, so that its end is a time that Redis accepts.
const LONGEST_STRING: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);

/// The version of any free record that no other claim awaits.
const ANY_FREE: &str = "*";

/// The records of one database. The store's thread drives the connection, so that it does not depend on the runtime of a
/// caller.
#[derive(Debug)]
pub(super) struct RedisRecords {
    worker: OnWorker<Arc<Links>>,
    scripts: Scripts,
    pub(super) env: Env,
    /// How far the server's clock may be set ahead without ending a lease early.
    pub(super) margin: Duration,
}

impl RedisRecords {
    /// Starts the store's thread. Sends no request.
    pub(super) async fn open(location: Location, env: Env, margin: Duration) -> Result<Self, Error> {
        let own_env = env.clone();
        let connect = move || Ok(Arc::new(Links::new(Connector::to(location)?, own_env)));
        let worker = OnWorker::open("Redis", connect).await?;
        Ok(Self { worker, scripts: Scripts::new(), env, margin })
    }

    pub(super) fn links(&self) -> &Links {
        &self.worker.leases
    }

    /// Returns the connection to the primary, and opens it if necessary.
    pub(super) async fn link(&self) -> Result<Arc<Link>, StoreError> {
        match self.links().opened() {
            Some(link) => Ok(link),
            None => self.worker.run(|links| async move { links.link().await }).await?,
        }
    }
}

impl Drop for RedisRecords {
    fn drop(&mut self) {
        let links = self.worker.leases.clone();
        self.worker.finish(async move { links.close() });
    }
}

#[async_trait]
impl Records for RedisRecords {
    async fn read(&self, name: &LockName) -> Result<Option<Found>, StoreError> {
        let answer = self.ask(&self.about(&self.scripts.read, name)).await?;
        answer.found(&self.record_of(name)).map_err(Fault::not_applied)
    }

    async fn write(
        &self,
        name: &LockName,
        expect: Precondition<'_>,
        before: Option<&Record>,
        record: &Record,
    ) -> Result<Written, StoreError> {
        let change = Change::of(before, record);
        self.write_as(change, name, expected(expect), before, record, record.token.get()).await
    }

    async fn claim(
        &self,
        name: &LockName,
        record: &Record,
        tokens: u64,
        barges: bool,
    ) -> Result<Written, StoreError> {
        // The free record keeps its history, and the script takes the flag instead of a number.
        let record = Record { served: u64::from(barges), ..record.clone() };
        self.write_as(Change::Grant, name, ANY_FREE, Some(&record), &record, tokens).await
    }

    fn claims(&self) -> Claims {
        Claims::InTurn
    }

    /// A failover loses what the new primary did not receive, and a crash what was not on the disk.
    fn loses_writes(&self) -> bool {
        true
    }

    fn others_leave_no_trace(&self) -> bool {
        true
    }

    async fn join(
        &self,
        name: &LockName,
        waiter: &Waiter,
        most_ms: u64,
    ) -> Result<Option<Found>, StoreError> {
        let entry = waiter.to_json().map_err(Fault::not_applied)?;
        let mut script = self.about(&self.scripts.join, name);
        script.arg(waiter.claim.to_string()).arg(waiter.polls_ms).arg(most_ms).arg(entry);
        self.ask(&script).await?.found(&self.record_of(name)).map_err(Fault::maybe_applied)
    }

    async fn leave(&self, name: &LockName, claim: Id) -> Result<(), StoreError> {
        let mut script = self.about(&self.scripts.leave, name);
        script.arg(claim.to_string());
        self.ask(&script).await.map(drop)
    }

    async fn freed(&self, name: &LockName, claim: Option<Id>) {
        let Some(claim) = claim else { return std::future::pending().await };
        // Registers before the read, so that no call is missed.
        let call = self.links().calls.expect(claim);
        let _ = self.worker.run(|links| async move { links.listen() }).await;
        until_first(self, name, claim, call, true).await;
    }

    fn calls_the_first(&self) -> bool {
        true
    }

    fn list(&self, prefix: &str) -> BoxStream<'_, Result<LockName, StoreError>> {
        let fetch = async |prefix: String, from| self.page(&prefix, from).await;
        pages::lock_names(&self.env, prefix, fetch, || unreadable().not_applied())
    }

    async fn discard(&self, name: &LockName, version: &Version) -> Result<bool, StoreError> {
        let mut script = self.about(&self.scripts.discard, name);
        script.arg(version.as_str()).arg(name.as_str());
        Ok(self.ask(&script).await?.outcome == "done")
    }

    async fn examine(&self, examination: &Examination) -> Examined {
        self.examined(examination.ttl).await
    }

    /// Connects, so that the server's time is known.
    async fn prepare(&self) -> Result<(), StoreError> {
        if self.store_time().is_some() { Ok(()) } else { self.link().await.map(drop) }
    }

    /// Succeeds without a check, because a Redis server runs one script at a time.
    async fn trust(&self) -> Result<(), StoreError> {
        Ok(())
    }

    async fn trust_deletes(&self) -> Result<(), StoreError> {
        Ok(())
    }

    fn store_time(&self) -> Option<StoreTime> {
        self.links().clock.bounds(self.env.now())
    }

    fn env(&self) -> &Env {
        &self.env
    }

    fn capabilities(&self) -> Capabilities {
        let mut capabilities = Capabilities::new("Redis", POLL_INTERVAL);
        capabilities.sizes = true;
        capabilities.line = Some("the field `line` of the hash NAME//leasehold");
        capabilities.permits_in_order = true;
        capabilities
    }
}

/// Returns the version that a script expects: nothing if there must be none.
fn expected(precondition: Precondition<'_>) -> &str {
    match precondition {
        Precondition::Absent => "",
        Precondition::Version(version) => version.as_str(),
    }
}

impl RedisRecords {
    /// Returns the key of the string that other clients use too.
    fn lock(&self, name: &str) -> String {
        format!("{}{name}", self.links().connector.location.prefix)
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
        let answer = Answer::of(self.links().invoke(link, script).await?)?;
        self.links().note_clock(answer.now_us, sent);
        Ok(answer)
    }

    async fn ask(&self, script: &ScriptInvocation<'_>) -> Result<Answer, StoreError> {
        let link = self.link().await?;
        self.asked(&link, script).await
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
        grace::check(self.links().connector.location.failover_grace, span, lag)
    }

    /// Writes `record` over the version `expect`. `token` is its token, or how many tokens it gets over any free record.
    async fn write_as(
        &self,
        change: Change,
        name: &LockName,
        expect: &str,
        before: Option<&Record>,
        record: &Record,
        token: u64,
    ) -> Result<Written, StoreError> {
        let began = self.env.now();
        let fields = Columns::of(record, before).map_err(Fault::not_applied)?;
        let link = self.link().await?;
        let kept = record.kept_for(self.margin);
        if change == Change::Grant {
            self.check_grace(kept, &link.server, link.server.replicas > 0)?;
        }
        let location = &self.links().connector.location;
        let calls = change == Change::Free && location.notifies;
        let now = self.env.now();
        let left = attempt_limit(record.ttl()).saturating_sub(now.longest_since(began));
        let too_late = self.links().clock_us(now).saturating_add(micros(left));
        let prolonged = before.filter(|_| change == Change::Renew);
        let prolonged = prolonged.map(|before| micros(before.kept_for(self.margin)).to_string());
        let mut script = self.about(&self.scripts.write, name);
        script
            .arg(expect)
            .arg(change.as_str())
            .arg(fields.version.as_str())
            .arg(record.grant.to_string())
            .arg(token)
            .arg(u8::from(fields.is_open))
            .arg(record.served)
            .arg(fields.record)
            .arg(fields.history.unwrap_or_default())
            .arg(micros(kept.min(LONGEST_STRING)).div_ceil(1_000))
            .arg(too_late)
            .arg(micros(location.failover_grace))
            .arg(micros(kept))
            .arg(micros(link.server.lag()))
            .arg(name.as_str())
            .arg(if calls { location.channel() } else { String::new() })
            .arg(prolonged.unwrap_or_default())
            .arg(recorded(record.size).map(|size| size.to_string()).unwrap_or_default());
        let answer = self.asked(&link, &script).await?;
        let key = self.record_of(name);
        match answer.outcome.as_str() {
            "done" if expect == ANY_FREE => {
                // If the record cannot be read, the lock is granted nevertheless.
                let unknown = || unreadable().maybe_applied();
                let found = answer.found(&key).map_err(Fault::maybe_applied)?.ok_or_else(unknown)?;
                let Content::Record(record) = found.content else { return Err(unknown()) };
                let after = answer.detail().and_then(Token::new);
                Ok(Written::Granted { record, version: found.version, after })
            }
            "done" => {
                let record = Record { renewed_at_us: Some(answer.now_us), ..record.clone() };
                Ok(Written::Committed { record: Box::new(record), version: fields.version })
            }
            "recovering" => {
                let left = Duration::from_micros(answer.detail().unwrap_or(0));
                Ok(Written::Withheld(Box::new(grace::withheld("Redis", left))))
            }
            "outlasts" => {
                self.check_grace(kept, &link.server, true)?;
                Ok(Written::Conflict(Refusal::Unexplained))
            }
            _ => Ok(Written::Conflict(match answer.found(&key).map_err(Fault::not_applied)? {
                Some(found) => Refusal::Found(found),
                None => Refusal::Absent,
            })),
        }
    }

    /// Returns one page of the names that begin with `prefix`, after the name `from`.
    async fn page(&self, prefix: &str, from: Option<String>) -> Result<Page<String, String>, StoreError> {
        let begin = from.map_or_else(|| format!("[{prefix}"), |last| format!("({last}"));
        // No byte of UTF-8 is greater than 0xff.
        let end = [b"[", prefix.as_bytes(), b"\xff"].concat();
        let mut script = self.scripts.names.prepare_invoke();
        script.key(self.names_key()).arg(begin).arg(end).arg(PAGE).arg(self.lock(""));
        let [names, last] = self.parts(&script).await?;
        let Value::Array(names) = names else { return Err(unreadable().not_applied()) };
        Ok(Page { items: names.into_iter().filter_map(text).collect(), next: text(last) })
    }

    /// Returns the two parts of the response to a script that changes nothing.
    async fn parts(&self, script: &ScriptInvocation<'_>) -> Result<[Value; 2], StoreError> {
        let link = self.link().await?;
        match self.links().invoke(&link, script).await? {
            Value::Array(parts) => parts.try_into().map_err(|_| unreadable().not_applied()),
            _ => Err(unreadable().not_applied()),
        }
    }

    /// Grants, frees and deletes the lock of `claim`, which nothing else uses.
    pub(super) async fn try_all(&self, claim: &Claim) -> Result<(), StoreError> {
        let name = &claim.name;
        let record = unseen_grant(claim, None, claim.id);
        let Written::Granted { record, version, .. } = self.claim(name, &record, 1, true).await? else {
            return Ok(());
        };
        let free = Record { state: RecordState::Free, ..(*record).clone() };
        self.write(name, Precondition::Version(&version), Some(&record), &free).await?;
        self.discard(name, &version).await.map(drop)
    }
}
