//! The leases of one database. All of this runs on the store's thread ([`worker`](crate::native::worker)).

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use redis::{Script, ScriptInvocation, Value};
use serde::Serialize;

use super::POLL_INTERVAL;
use super::answer::{Answer, text};
use super::connect::Connector;
use super::link::Link;
use super::links::Links;
use super::scripts::Scripts;
use super::server::ServerInfo;
use crate::clock::{Deadline, micros};
use crate::diagnosis::{Examination, Examined};
use crate::env::Env;
use crate::error::{ErrorKind, Fault, StoreError};
use crate::lease::MAX_TOKENS;
use crate::lease::{self, Capabilities, Claim, End, Eviction, Grant, Id, Swept, Token, Ttl};
use crate::stores::on_server::grace;
use crate::stores::on_server::notifications::Calls;
use crate::stores::on_server::record::{Record, State};
use crate::stores::on_server::{Changed, Contended, EvictionAnswer, Page, ServerLeases, renewed_until};
use crate::types::LockName;

/// The number of names in a page.
const PAGE: usize = 1_000;

/// The longest cooldown. A longer one would end after the last moment that Lua's numbers can express in microseconds.
const LONGEST_COOLDOWN: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);

/// The leases of one database.
#[derive(Debug)]
pub(super) struct RedisLeases {
    pub(super) links: Arc<Links>,
    scripts: Scripts,
    pub(super) env: Env,
    /// How far the server's clock may be set ahead without ending a lease early.
    margin: Duration,
}

impl RedisLeases {
    pub(super) fn new(connector: Connector, env: Env, margin: Duration) -> Self {
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

    /// Returns the channel for the message of a release, or an empty string if releases send none.
    fn channel(&self) -> String {
        let location = &self.links.connector.location;
        if location.notifies { location.channel() } else { String::new() }
    }

    /// Prepares a script for the lock `name`.
    fn about<'a>(&self, script: &'a Script, name: &LockName) -> ScriptInvocation<'a> {
        let mut invocation = script.prepare_invoke();
        invocation.key(self.lock(name.as_str())).key(self.record_of(name));
        invocation
    }

    async fn asked(&self, link: &Arc<Link>, script: &ScriptInvocation<'_>) -> Result<Answer, StoreError> {
        let answer = Answer::of(self.links.invoke(link, script).await?)?;
        link.note_clock(answer.now_us, self.env.now());
        Ok(answer)
    }

    async fn ask(&self, script: &ScriptInvocation<'_>) -> Result<Answer, StoreError> {
        let link = self.links.link().await?;
        self.asked(&link, script).await
    }

    /// Requests a change. If nothing was changed, returns the record that was found instead.
    async fn change(&self, name: &LockName, script: &ScriptInvocation<'_>) -> Result<Changed, StoreError> {
        let answer = self.ask(script).await?;
        self.changed(&answer, name)
    }

    fn changed(&self, answer: &Answer, name: &LockName) -> Result<Changed, StoreError> {
        match answer.outcome.as_str() {
            "done" => Ok(Changed::Done),
            _ => Ok(Changed::Found(answer.record(&self.record_of(name))?)),
        }
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
}

#[async_trait]
impl ServerLeases for RedisLeases {
    fn env(&self) -> &Env {
        &self.env
    }

    fn capabilities(&self) -> Capabilities {
        let mut capabilities = Capabilities::new("Redis", POLL_INTERVAL);
        capabilities.line = Some("the field `waiters` of the hash NAME//leasehold");
        capabilities.permits_in_order = true;
        capabilities
    }

    async fn contend(&self, claim: &Claim, limit: Duration) -> Result<Contended, StoreError> {
        let span = self.span(claim.ttl, claim.lock_delay);
        let began = self.env.now();
        let link = self.links.link().await?;
        self.check_grace(span, &link.server, link.server.replicas > 0)?;
        let sent = self.env.now();
        let left = limit.saturating_sub(sent.longest_since(began));
        let too_late = link.clock_us(sent).saturating_add(micros(left));
        let mut script = self.about(&self.scripts.acquire, &claim.name);
        let (first, kept) = claim.place.kept_earlier(claim.id).unzip();
        script
            .key(self.lock("//leasehold/epoch"))
            .key(self.names_key())
            .arg(claim.id.to_string())
            .arg(micros(span))
            .arg(claim.tokens.clamp(1, MAX_TOKENS))
            .arg(as_json(&claim.holder)?)
            .arg(as_json(&claim.holder.of_the_past())?)
            .arg(claim.ttl.as_millis())
            .arg(too_late)
            .arg(u8::from(claim.barges))
            .arg(micros(self.links.connector.location.failover_grace))
            .arg(claim.name.as_str())
            .arg(micros(link.server.lag()))
            .arg(first.map(|first: Id| first.to_string()).unwrap_or_default())
            .arg(micros(kept.unwrap_or_default()));
        let answer = self.asked(&link, &script).await?;
        if answer.outcome == "outlasts" {
            self.check_grace(span, &link.server, true)?;
        }
        let is_granted = answer.outcome == "granted";
        // If the record cannot be read, the lock may be granted nevertheless.
        let record =
            answer.record(&self.record_of(&claim.name)).map_err(|error| error.if_maybe(is_granted))?;
        Ok(match (answer.outcome.as_str(), record) {
            ("granted", Some(record)) => Contended::Granted { record, sent, is_late: false },
            ("refused", Some(record)) => Contended::Refused(record),
            ("recovering", _) => Contended::Withheld(grace::withheld("Redis", answer.recovers_within)),
            _ => Contended::Again,
        })
    }

    async fn renew(&self, grant: &Grant) -> Result<(Changed, Deadline), StoreError> {
        let link = self.links.link().await?;
        let mut script = self.about(&self.scripts.renew, &grant.name);
        script
            .arg(grant.id.to_string())
            .arg(grant.token.get())
            .arg(micros(self.links.connector.location.failover_grace));
        let sent = self.env.now();
        let answer = self.asked(&link, &script).await?;
        Ok((self.changed(&answer, &grant.name)?, renewed_until(grant, answer.ttl_ms(), sent)))
    }

    async fn release(&self, grant: &Grant, cooldown: Duration) -> Result<Changed, StoreError> {
        let token = Some(grant.token.get()).filter(|token| *token > 0).map(|token| token.to_string());
        let mut script = self.about(&self.scripts.release, &grant.name);
        script
            .arg(grant.id.to_string())
            .arg(token.unwrap_or_default())
            .arg(micros(cooldown.min(LONGEST_COOLDOWN)))
            .arg(self.channel());
        self.change(&grant.name, &script).await
    }

    async fn evict(
        &self,
        name: &LockName,
        token: Token,
        why: Option<&Eviction>,
    ) -> Result<EvictionAnswer, StoreError> {
        let mut script = self.about(&self.scripts.evict, name);
        let why = why.map(as_json).transpose()?.unwrap_or_default();
        script.arg(token.get()).arg(self.channel()).arg(why);
        Ok(match self.change(name, &script).await? {
            Changed::Done => EvictionAnswer { is_changed: true, is_over: true },
            Changed::Found(record) => EvictionAnswer {
                is_changed: false,
                is_over: record.is_some_and(|record| {
                    let is_free = matches!(record.state, State::Free { .. }) && record.token == Some(token);
                    is_free || record.past.iter().any(|past| past.token == token && past.end == End::Evicted)
                }),
            },
        })
    }

    async fn read(&self, name: &LockName) -> Result<Option<Record>, StoreError> {
        let answer = self.ask(&self.about(&self.scripts.read, name)).await?;
        answer.record(&self.record_of(name))
    }

    async fn join(&self, claim: &Claim) -> Result<Changed, StoreError> {
        let in_ms = |pause: Duration| u64::try_from(pause.as_millis()).unwrap_or(u64::MAX);
        let mut script = self.about(&self.scripts.join, &claim.name);
        script
            .arg(claim.id.to_string())
            .arg(as_json(&claim.holder.of_the_past())?)
            .arg(in_ms(POLL_INTERVAL.max))
            .arg(in_ms(lease::pause(Duration::MAX, 0, claim.ttl)));
        self.change(&claim.name, &script).await
    }

    async fn leave(&self, name: &LockName, claim: Id) -> Result<(), StoreError> {
        let mut script = self.about(&self.scripts.leave, name);
        script.arg(claim.to_string());
        self.ask(&script).await.map(drop)
    }

    fn calls(&self) -> &Arc<Calls> {
        &self.links.calls
    }

    fn listen(&self) {
        self.links.listen();
    }

    async fn names(&self, prefix: &str, from: Option<String>) -> Result<Page, StoreError> {
        let link = self.links.link().await?;
        let begin = from.map_or_else(|| format!("[{prefix}"), |last| format!("({last}"));
        // No byte of UTF-8 is greater than 0xff.
        let end = [b"[", prefix.as_bytes(), b"\xff"].concat();
        let mut script = self.scripts.names.prepare_invoke();
        script.key(self.names_key()).arg(begin).arg(end).arg(PAGE).arg(self.lock(""));
        let unreadable = || {
            Fault::new(ErrorKind::Corrupt, "the response of a script of leasehold cannot be read")
                .not_applied()
        };
        let Value::Array(mut parts) = self.links.invoke(&link, &script).await? else {
            return Err(unreadable());
        };
        let (Some(last), Some(Value::Array(names))) = (parts.pop(), parts.pop()) else {
            return Err(unreadable());
        };
        Ok((names.into_iter().filter_map(text).collect(), text(last)))
    }

    /// Does nothing, because Redis creates keys when they are written.
    async fn init(&self) -> Result<(), StoreError> {
        Ok(())
    }

    async fn sweep(&self, name: &LockName, older_than: Duration, dry_run: bool) -> Result<Swept, StoreError> {
        let mut script = self.about(&self.scripts.sweep, name);
        script
            .key(self.names_key())
            .arg(micros(older_than.min(LONGEST_COOLDOWN)))
            .arg(u8::from(!dry_run))
            .arg(name.as_str());
        Ok(match self.change(name, &script).await? {
            Changed::Done => Swept::Deleted,
            Changed::Found(_) => Swept::Kept,
        })
    }

    async fn discard(&self, name: &LockName) -> Result<bool, StoreError> {
        let mut script = self.about(&self.scripts.discard, name);
        script.key(self.names_key()).arg(name.as_str());
        Ok(matches!(self.change(name, &script).await?, Changed::Done))
    }

    async fn examine(&self, examination: &Examination) -> Examined {
        self.examined(examination.ttl).await
    }

    fn close(&self) {
        self.links.close();
    }
}

/// Returns text that people wrote, such as a holder with its note, as JSON on one line.
fn as_json(text: &impl Serialize) -> Result<String, StoreError> {
    serde_json::to_string(text).map_err(|error| {
        Fault::new(ErrorKind::Invalid, format!("a text for the record: {error}")).not_applied()
    })
}
