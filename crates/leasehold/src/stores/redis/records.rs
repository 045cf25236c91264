//! The records of one database or cluster.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::stream::BoxStream;
use redis::{FromRedisValue, Script, ScriptInvocation, Value};

use super::POLL_INTERVAL;
use super::answer::{Answer, text, unreadable};
use super::config::Location;
use super::connect::Connector;
use super::errors;
use super::link::Vouched;
use super::scripts::Scripts;
use super::server::ServerInfo;
use super::shards::{Shard, Shards};
use super::slots::{Redirect, Slots, beside};
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
use crate::stores::hosts::Host;
use crate::stores::notifications::until_first;
use crate::stores::pages::{self, Page};
use crate::types::LockName;
use crate::worker::OnWorker;

/// How many times a request is sent on to another server, or repeated because a shard has a new primary.
const MOST_HOPS: usize = 2;

/// The end of the key of a record.
pub(super) const RECORD: &str = "//leasehold";

/// The key of the record of a server, after the prefix.
const EPOCH: &str = "//leasehold/epoch";

/// The number of names in a page.
pub(super) const PAGE: usize = 1_000;

/// The longest time to live of a string, so that its end is a time that Redis accepts.
const LONGEST_STRING: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);

/// The version of any free record that no other claim awaits.
const ANY_FREE: &str = "*";

/// The records of one database or cluster. The store's thread drives the connections, so that they do not depend on the
/// runtime of a caller.
#[derive(Debug)]
pub(super) struct RedisRecords {
    worker: OnWorker<Arc<Shards>>,
    scripts: Scripts,
    pub(super) env: Env,
    /// How far the server's clock may be set ahead without ending a lease early.
    pub(super) margin: Duration,
}

impl RedisRecords {
    /// Starts the store's thread. Sends no request.
    pub(super) async fn open(location: Location, env: Env, margin: Duration) -> Result<Self, Error> {
        let own_env = env.clone();
        let connect = move || Ok(Arc::new(Shards::new(Connector::to(location)?, own_env)));
        let worker = OnWorker::open("Redis", connect).await?;
        Ok(Self { worker, scripts: Scripts::new(), env, margin })
    }

    pub(super) fn shards(&self) -> &Shards {
        &self.worker.leases
    }

    /// Returns the shard that has `key`, and connects to it if necessary.
    pub(super) async fn shard(&self, key: &str) -> Result<Shard, StoreError> {
        let Some(shard) = self.shards().opened(key) else {
            let key = key.to_owned();
            return self.worker.run(|shards| async move { shards.shard(&key).await }).await?;
        };
        Ok(shard)
    }

    /// Connects to the shard whose primary is `host`.
    pub(super) async fn shard_at(&self, host: &Host, asks: bool) -> Result<Shard, StoreError> {
        let host = host.clone();
        self.worker.run(|shards| async move { shards.shard_at(Some(&host), asks).await }).await?
    }

    /// Returns the slots of the cluster. Asks for them if they are unknown, or `anew`.
    pub(super) async fn slots(&self, anew: bool) -> Result<Arc<Slots>, StoreError> {
        let seen = if anew { self.shards().latest() } else { Arc::default() };
        self.worker.run(|shards| async move { shards.slots(seen).await }).await?
    }
}

impl Drop for RedisRecords {
    fn drop(&mut self) {
        let shards = self.worker.leases.clone();
        self.worker.finish(async move { shards.close() });
    }
}

#[async_trait]
impl Records for RedisRecords {
    async fn read(&self, name: &LockName) -> Result<Option<Found>, StoreError> {
        let (_, answer) = self.ask(name, &self.scripts.read, None, |_, _| {}).await?;
        answer.found(&self.record_of(name)?).map_err(Fault::not_applied)
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
        let arguments = |_: &Shard, script: &mut ScriptInvocation<'_>| {
            script.arg(waiter.claim.to_string()).arg(waiter.polls_ms).arg(most_ms).arg(&entry);
        };
        let (_, answer) = self.ask(name, &self.scripts.join, None, arguments).await?;
        answer.found(&self.record_of(name)?).map_err(Fault::maybe_applied)
    }

    async fn leave(&self, name: &LockName, claim: Id) -> Result<(), StoreError> {
        let arguments = |_: &Shard, script: &mut ScriptInvocation<'_>| {
            script.arg(claim.to_string());
        };
        self.ask(name, &self.scripts.leave, None, arguments).await.map(drop)
    }

    async fn freed(&self, name: &LockName, claim: Option<Id>) {
        let Some(claim) = claim else { return std::future::pending().await };
        // Registers before the read, so that no call is missed.
        let call = self.shards().calls.expect(claim);
        let key = self.lock(name.as_str());
        let listen = |shard: Shard| shard.links.listen();
        let _ = self.worker.run(|shards| async move { shards.opened(&key).map(listen) }).await;
        until_first(self, name, claim, call, true).await;
    }

    fn calls_the_first(&self) -> bool {
        true
    }

    fn list(&self, prefix: &str) -> BoxStream<'_, Result<LockName, StoreError>> {
        if self.shards().location().cluster {
            return self.scan(prefix);
        }
        let fetch = async |prefix: String, from| self.page(&prefix, from).await;
        pages::lock_names(&self.env, prefix, fetch, || unreadable().not_applied())
    }

    async fn discard(&self, name: &LockName, version: &Version) -> Result<bool, StoreError> {
        let arguments = |_: &Shard, script: &mut ScriptInvocation<'_>| {
            script.arg(version.as_str()).arg(name.as_str());
        };
        let (_, answer) = self.ask(name, &self.scripts.discard, None, arguments).await?;
        Ok(answer.outcome == "done")
    }

    async fn examine(&self, examination: &Examination) -> Examined {
        self.examined(examination.ttl).await
    }

    /// Connects, so that the server's time is known.
    async fn prepare(&self) -> Result<(), StoreError> {
        if self.store_time().is_some() { Ok(()) } else { self.shard("").await.map(drop) }
    }

    /// Succeeds without a check, because a Redis server runs one script at a time.
    async fn trust(&self) -> Result<(), StoreError> {
        Ok(())
    }

    async fn trust_deletes(&self) -> Result<(), StoreError> {
        Ok(())
    }

    fn store_time(&self) -> Option<StoreTime> {
        self.shards().time()
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
    precondition.version().map_or("", Version::as_str)
}

impl RedisRecords {
    /// Returns the key of the string that other clients use too.
    pub(super) fn lock(&self, name: &str) -> String {
        format!("{}{name}", self.shards().location().prefix)
    }

    /// Returns the key of the record. In a cluster, it has the slot of the string.
    pub(super) fn record_of(&self, name: &LockName) -> Result<String, StoreError> {
        let lock = self.lock(name.as_str());
        match self.shards().location().cluster {
            true => beside(&lock, RECORD).ok_or_else(|| errors::braces(&lock).not_applied()),
            false => Ok(lock + RECORD),
        }
    }

    /// Returns the key of the set with the names of all locks with this prefix.
    fn names_key(&self) -> String {
        self.lock("//leasehold/names")
    }

    /// Runs a script for the lock `name`, with the arguments for the shard that gets it. `grant` is the lease
    /// that it grants, if any. If the shard sends the request
    /// on to another one, or has a new primary since it was asked, it has not run it, and the request is repeated.
    async fn ask(
        &self,
        name: &LockName,
        script: &Script,
        grant: Option<Duration>,
        arguments: impl Fn(&Shard, &mut ScriptInvocation<'_>) + Send + Sync,
    ) -> Result<(Shard, Answer), StoreError> {
        let (lock, record) = (self.lock(name.as_str()), self.record_of(name)?);
        let location = self.shards().location();
        let mut shard = self.shard(&lock).await?;
        let mut hops = 0..MOST_HOPS;
        loop {
            if let Some(lease) = grant {
                let server = &shard.link.server;
                self.check_grace(lease, server, server.replicas > 0)?;
                self.vouch(&shard).await?;
            }
            let mut invocation = script.prepare_invoke();
            invocation.key(&lock).key(&record);
            if !location.cluster {
                invocation.key(self.lock(EPOCH)).key(self.names_key());
            }
            arguments(&shard, &mut invocation);
            let sent = self.env.now();
            let may_repeat = hops.next().is_some();
            match self.shards().invoke(&shard, &invocation).await {
                Ok(answer) => {
                    let answer = Answer::of(answer)?;
                    shard.links.clock.observe_us(answer.now_us, sent, self.env.now());
                    if answer.outcome != "replaced" || !may_repeat {
                        return Ok((shard, answer));
                    }
                    shard.link.vouched().take();
                }
                Err((_, Some(Redirect { host, asks }))) if may_repeat => {
                    shard = self.shard_at(&host, asks).await?;
                }
                Err((error, _)) => return Err(error),
            }
        }
    }

    /// In a cluster, asks the primary of `shard` which server it is, and when its grace is over.
    async fn vouch(&self, shard: &Shard) -> Result<(), StoreError> {
        let location = self.shards().location();
        if !location.cluster || location.failover_grace.is_zero() || shard.link.vouched().is_some() {
            return Ok(());
        }
        let key = self.slots(false).await?.key_at(&shard.link.host, &location.prefix, EPOCH);
        let mut script = self.scripts.epoch.prepare_invoke();
        script.key(key).arg(micros(location.failover_grace));
        let answer = self.shards().invoke(shard, &script).await.map_err(|(error, _)| error);
        let (epoch, over_us) =
            FromRedisValue::from_redis_value(answer?).map_err(|_| unreadable().maybe_applied())?;
        *shard.link.vouched() = Some(Vouched { epoch, over_us });
        Ok(())
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
        grace::check(self.shards().location().failover_grace, span, lag)
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
        let kept = record.kept_for(self.margin);
        let location = self.shards().location();
        let calls = change == Change::Free && location.notifies;
        let prolonged = before.filter(|_| change == Change::Renew);
        let prolonged = prolonged.map(|before| micros(before.kept_for(self.margin)).to_string());
        let arguments = |shard: &Shard, script: &mut ScriptInvocation<'_>| {
            let now = self.env.now();
            let left = attempt_limit(record.ttl()).saturating_sub(now.longest_since(began));
            let too_late = shard.links.clock.lowest_us(now).saturating_add(micros(left));
            script
                .arg(expect)
                .arg(change.as_str())
                .arg(fields.version.as_str())
                .arg(record.grant.to_string())
                .arg(token)
                .arg(u8::from(fields.is_open))
                .arg(record.served)
                .arg(&fields.record)
                .arg(fields.history.as_deref().unwrap_or_default())
                .arg(micros(kept.min(LONGEST_STRING)).div_ceil(1_000))
                .arg(too_late)
                .arg(micros(location.failover_grace))
                .arg(micros(kept))
                .arg(micros(shard.link.server.lag()))
                .arg(name.as_str())
                .arg(if calls { location.channel() } else { String::new() })
                .arg(prolonged.as_deref().unwrap_or_default())
                .arg(recorded(record.size).map(|size| size.to_string()).unwrap_or_default());
            if let Some(Vouched { epoch, over_us }) = &*shard.link.vouched() {
                script.arg(epoch).arg(over_us);
            }
        };
        let kept_before = before.map_or(Duration::ZERO, |before| before.kept_for(self.margin));
        let grant = change.lengthens(kept_before, kept).then_some(kept);
        let (shard, answer) = self.ask(name, &self.scripts.write, grant, arguments).await?;
        let key = self.record_of(name)?;
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
                // Asks for the end again, which moves if the server's clock is set back.
                shard.link.vouched().take();
                let left = Duration::from_micros(answer.detail().unwrap_or(0));
                Ok(Written::Withheld(Box::new(grace::withheld("Redis", left))))
            }
            "outlasts" => {
                self.check_grace(kept, &shard.link.server, true)?;
                Ok(Written::Conflict(Refusal::Unexplained))
            }
            "replaced" => Ok(Written::Conflict(Refusal::Unexplained)),
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
        let shard = self.shard("").await?;
        match self.shards().invoke(&shard, script).await.map_err(|(error, _)| error)? {
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
