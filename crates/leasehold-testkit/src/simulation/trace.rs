//! The trace of a history: each write of a lock's record that the store commits, in the order of commits, with what its
//! writer knew when it sent the write. A [`Judge`] decides whether the write is a step that a model of the protocol
//! allows.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use leasehold::clock::{Clock as _, StoreTime, TestClock};
use leasehold::env::Env;
use leasehold::register::Version;
use leasehold::{LockName, Passing, Tap};
use serde::Deserialize;

use super::LOCK;
use super::checker::{self, Checker};
use super::plan::{Fault, Plan, Store};

/// The record of a grant that is more recent is not deleted: tokens may then not rise, as documented.
pub(super) const RECENT: Duration = Duration::from_secs(3);

/// How many kinds of step a [`Judge`] can distinguish.
pub const KINDS: usize = 16;

/// Judges a step of a history. Returns the number of its kind, below [`KINDS`], or why no model allows the step.
pub type Judge = fn(&Step<'_>) -> Result<usize, String>;

/// Returns the lock whose record has this key.
pub(super) fn lock_name(key: &str) -> Option<&str> {
    let name = key.strip_suffix(".lock").unwrap_or(key);
    (name == LOCK || name.strip_prefix(LOCK).is_some_and(|part| part.starts_with('/'))).then_some(name)
}

/// A change of a lock's record.
#[derive(Debug)]
#[non_exhaustive]
pub struct Step<'a> {
    /// Where the record is stored.
    pub store: Store,
    /// The name of the lock.
    pub lock: &'a str,
    /// The record before. `None` if there was none.
    pub before: Option<&'a Record<'a>>,
    /// The record after. `None` if it was deleted.
    pub after: Option<&'a Record<'a>>,
    /// The writer, as it was when it sent the write.
    pub by: Writer,
}

/// A lock's record, without the fields that only people read.
#[derive(Debug, Deserialize)]
#[non_exhaustive]
#[allow(missing_docs, reason = "docs/protocol.md describes the fields")]
pub struct Record<'a> {
    pub state: &'a str,
    /// On a store whose versions are tokens, the record of a create has no token. This is then its version.
    #[serde(default)]
    pub token: u64,
    pub grant: &'a str,
    #[serde(default)]
    pub heartbeat: u64,
    pub nonce: &'a str,
    pub ttl_ms: u64,
    #[serde(default)]
    pub lock_delay_ms: u64,
    pub renewed_at_us: Option<u64>,
    #[serde(default)]
    pub unconfirmed: bool,
    #[serde(default)]
    pub awaited: bool,
    #[serde(default, borrow)]
    pub history: Vec<Past<'a>>,
    #[serde(borrow)]
    pub(super) holder: Holder<'a>,
}

/// An ended grant.
#[derive(Debug, Deserialize)]
#[non_exhaustive]
#[allow(missing_docs, reason = "docs/protocol.md describes the fields")]
pub struct Past<'a> {
    pub grant: &'a str,
    pub end: &'a str,
}

#[derive(Debug, Deserialize)]
pub(super) struct Holder<'a> {
    #[serde(default, borrow)]
    note: Option<Cow<'a, str>>,
    #[serde(default, borrow)]
    value: Option<Cow<'a, str>>,
}

/// What the writer of a record knew when it sent the write. Durations are on the clock of its machine.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct Writer {
    /// Whether it is the operator.
    pub operator: bool,
    /// Whether it was the first process to send a write of the grant in the record before.
    pub owns_before: bool,
    /// Whether it was the first process to send a write of the grant in the record after.
    pub owns_after: bool,
    /// Whether it sent the write that left the record before.
    pub wrote_before: bool,
    /// Whether it got the response to that write.
    pub answered: bool,
    /// How long ago it sent the latest write of the grant in the record before that was committed. That is the write
    /// that left the record before, unless the store has lost later ones.
    pub since_sent: Option<Duration>,
    /// How long ago it got the first response with the state, grant, token and heartbeat of the record before.
    pub watched: Option<Duration>,
    /// The highest lower bound of the store's clock that it has known, in microseconds since the Unix epoch, if that
    /// clock may end leases. The margin is already subtracted.
    pub store_us: Option<u64>,
    /// If the record before is unconfirmed, the lowest token that the store's clock may yield. Otherwise 0.
    pub floor: u64,
}

impl<'a> Record<'a> {
    /// Parses the record in an object with `version`.
    pub(super) fn parse(bytes: &'a [u8], version: Option<&Version>) -> Option<Self> {
        let mut record: Self = serde_json::from_slice(bytes).ok()?;
        version.into_iter().for_each(|version| record.take_token_from(version));
        Some(record)
    }

    /// Sets the token of a grant that created an object, which is the object's generation.
    fn take_token_from(&mut self, version: &Version) {
        if self.token == 0 {
            self.token = version.as_str().parse().unwrap_or(0);
        }
    }

    pub(super) fn is_held(&self) -> bool {
        self.state == "held"
    }

    pub(super) fn write(&self) -> checker::Write<'_> {
        checker::Write {
            token: self.token,
            grant: self.grant,
            nonce: self.nonce,
            ttl_ms: self.ttl_ms,
            unconfirmed: self.unconfirmed,
            note: self.holder.note.as_deref(),
            value: self.holder.value.as_deref(),
        }
    }

    /// Returns what shows whether the lease is alive.
    fn life(&self) -> Life {
        (id(self.grant), self.token, self.heartbeat)
    }
}

/// An id without its letters, because there are thousands.
fn id(id: &str) -> u128 {
    u128::from_str_radix(id, 16).unwrap_or(0)
}

/// A grant, its token and its heartbeat.
type Life = (u128, u64, u64);

/// The number of a process.
type Process = u64;

/// The process of the operator. Other processes have the seeds of their machines.
pub(super) const OPERATOR: Process = 0;

/// Records the trace of a history.
#[derive(Debug)]
pub(super) struct Trace {
    judge: Judge,
    store: Store,
    /// Whether the store may lose writes, so that tokens do not rise.
    forgets: bool,
    /// Whether clocks may stand still, so that a process may know an old time of the store.
    stands_still: bool,
    checker: Arc<Checker>,
    /// True time.
    clock: Arc<TestClock>,
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    /// The first request with each nonce.
    sent: HashMap<u128, Sent>,
    /// The processes that sent a delete of each record, by its nonce.
    deletes: HashMap<u128, Vec<Process>>,
    /// When each process sent its latest committed write of a grant, on its own clock.
    latest: HashMap<(Process, u128), Duration>,
    /// The process that first sent each grant.
    claims: HashMap<u128, Process>,
    /// When each process first got a response with each life, on its own clock.
    seen: HashMap<(Process, Life), Duration>,
    tokens: HashMap<String, Tokens>,
}

#[derive(Clone, Copy, Debug)]
struct Sent {
    process: Process,
    /// On the clock of the process.
    at: Duration,
    store_us: Option<u64>,
    answered: bool,
}

/// The tokens of a lock.
#[derive(Debug, Default)]
struct Tokens {
    /// The tokens that were higher than all before, in order, and the true times of their commits.
    granted: Vec<(Duration, u64)>,
    /// The lowest token above all that were granted well before the latest create.
    floor: u64,
}

impl Trace {
    pub(super) fn new(plan: &Plan, judge: Judge, checker: Arc<Checker>, clock: Arc<TestClock>) -> Self {
        let (forgets, stands_still) = (plan.has(Fault::Failovers), plan.has(Fault::StandStills));
        let known = Mutex::default();
        Self { judge, store: plan.store, forgets, stands_still, checker, clock, known }
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Duration {
        self.clock.now().since_boot()
    }

    /// Records that the store has committed `after` over `before`.
    pub(super) fn committed(&self, lock: &str, before: Option<&Record<'_>>, after: &Record<'_>) {
        let mut known = self.known();
        let sent = known.sent.get(&id(after.nonce)).copied();
        let by = sent.map_or(Writer::default(), |sent| known.writer(sent, before, after));
        if let Some(sent) = sent {
            let latest = known.latest.entry((sent.process, id(after.grant))).or_default();
            *latest = sent.at.max(*latest);
        }
        let by = Writer { floor: self.floor(&mut known, lock, before, after), ..by };
        drop(known);
        self.judge(&Step { store: self.store, lock, before, after: Some(after), by });
    }

    /// Records that the store has deleted the record `before`.
    pub(super) fn deleted(&self, lock: &str, before: &Record<'_>) {
        let known = self.known();
        let owner = known.claims.get(&id(before.grant)).copied();
        let senders = known.deletes.get(&id(before.nonce)).map_or(&[][..], Vec::as_slice);
        let owns_before = senders.iter().any(|sender| Some(*sender) == owner);
        let by = Writer { operator: senders.contains(&OPERATOR), owns_before, ..Writer::default() };
        drop(known);
        self.judge(&Step { store: self.store, lock, before: Some(before), after: None, by });
    }

    fn judge(&self, step: &Step<'_>) {
        match (self.judge)(step) {
            Ok(kind) => self.checker.lock().history.steps[kind] += 1,
            Err(why) => self.checker.violated("M1", why),
        }
    }

    /// Returns the lowest token that the writer may take from the store's clock.
    fn floor(&self, known: &mut Known, lock: &str, before: Option<&Record<'_>>, after: &Record<'_>) -> u64 {
        let now = self.now();
        let tokens = known.tokens.entry(lock.to_owned()).or_default();
        if before.is_none() {
            let old = tokens.granted.iter().rev().find(|(at, _)| *at + RECENT <= now);
            tokens.floor = old.map_or(0, |(_, token)| token + 1);
        }
        if tokens.granted.last().is_none_or(|(_, highest)| after.token > *highest) {
            tokens.granted.push((now, after.token));
        }
        let applies = before.is_some_and(|before| before.unconfirmed) && !self.forgets && !self.stands_still;
        if applies { tokens.floor } else { 0 }
    }
}

impl Known {
    fn writer(&self, sent: Sent, before: Option<&Record<'_>>, after: &Record<'_>) -> Writer {
        let owns = |record: &Record<'_>| self.claims.get(&id(record.grant)) == Some(&sent.process);
        let written = before.and_then(|before| self.sent.get(&id(before.nonce)));
        let written = written.filter(|written| written.process == sent.process);
        let latest = before.and_then(|before| self.latest.get(&(sent.process, id(before.grant))));
        let seen = before.and_then(|before| self.seen.get(&(sent.process, before.life())));
        Writer {
            operator: sent.process == OPERATOR,
            owns_before: before.is_some_and(owns),
            owns_after: owns(after),
            wrote_before: written.is_some(),
            since_sent: latest.map(|latest| sent.at.saturating_sub(*latest)),
            answered: written.is_some_and(|written| written.answered),
            watched: seen.map(|seen| sent.at.saturating_sub(*seen)),
            store_us: sent.store_us,
            floor: 0,
        }
    }
}

/// What one process sends and sees, which the trace records.
#[derive(Debug)]
pub(super) struct Traced {
    pub(super) trace: Arc<Trace>,
    pub(super) process: Process,
    pub(super) env: Env,
    /// Whether the store's clock may end leases.
    pub(super) store_clock: bool,
    pub(super) margin: Duration,
    /// See [`Writer::store_us`]. The next response may come from a front end whose clock is behind.
    pub(super) store_us: AtomicU64,
}

impl Traced {
    fn now(&self) -> Duration {
        self.env.now().since_boot()
    }

    /// Records that this process sends `record`.
    fn sends(&self, lock: &str, record: &Record<'_>) {
        let store_us = Some(self.store_us.load(Ordering::Relaxed)).filter(|us| *us > 0);
        let sent = Sent { process: self.process, at: self.now(), store_us, answered: false };
        let mut known = self.trace.known();
        known.sent.entry(id(record.nonce)).or_insert(sent);
        if !record.is_held() {
            return;
        }
        known.claims.entry(id(record.grant)).or_insert(self.process);
        drop(known);
        self.trace.checker.sends(lock, &record.write(), self.trace.now());
    }

    /// Records that this process got a response with `record`.
    fn sees(&self, record: &Record<'_>) {
        if record.is_held() {
            let now = self.now();
            self.trace.known().seen.entry((self.process, record.life())).or_insert(now);
        }
    }

    /// Records that the response to the write of `record` shows that it was applied.
    fn answered(&self, record: &Record<'_>) {
        self.sees(record);
        if let Some(sent) = self.trace.known().sent.get_mut(&id(record.nonce)) {
            sent.answered |= sent.process == self.process;
        }
    }
}

impl Tap for Traced {
    fn passes(&self, passing: Passing, name: &LockName, record: &[u8]) {
        let Some((lock, record)) = lock_name(name.as_str()).zip(Record::parse(record, None)) else { return };
        match passing {
            Passing::Sent => self.sends(lock, &record),
            Passing::Deleted => {
                self.trace.known().deletes.entry(id(record.nonce)).or_default().push(self.process);
            }
            Passing::Seen => self.sees(&record),
            Passing::Written => self.answered(&record),
        }
    }

    /// Notes the store's time.
    fn knows(&self, time: StoreTime) {
        if self.store_clock && time.apart <= self.margin {
            let us = time.lo_us.saturating_sub(self.margin.as_micros() as u64);
            self.store_us.fetch_max(us, Ordering::Relaxed);
        }
    }
}
