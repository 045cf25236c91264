//! A server in memory that keeps records, and its client. For the simulation.
//!
//! The server executes the steps of `Records` one at a time, by its own clock, like the scripts of Redis and the
//! statements of PostgreSQL, and under the same conditions. It has the faults of such a server: a failover that loses
//! the latest writes, to a server with another clock; a clock that is set back; and other clients that take a lock whose
//! lease has lapsed.
//!
//! The steps are sent as writes to a [`Register`], so that the testkit's networks can lose, delay and repeat them. The
//! metadata of such a write has the step, and the version that it returns is the response.

mod client;
#[cfg(feature = "mysql")]
mod table;

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::stream::{self, BoxStream, StreamExt};
use serde::{Deserialize, Serialize};

pub use self::client::{leases, leases_of_table};
use crate::clock::{Moment, StoreTime, micros};
use crate::env::Env;
use crate::error::{ErrorKind, Fault, StoreError};
use crate::lease::{Id, MAX_WAITERS, PollInterval, Token};
use crate::protocol::line::{Line, Waiter};
use crate::protocol::record::{Record, RecordState};
use crate::protocol::records::Change;
use crate::register::{
    Body, Deleted, Head, Precondition, Register, RegisterCapabilities, Version, VersionedValue, Write,
};

/// The poll interval of waiters.
const POLL_INTERVAL: PollInterval =
    PollInterval { min: Duration::from_millis(50), max: Duration::from_millis(800) };

/// How long the server remembers its earlier states.
const REMEMBERED: Duration = Duration::from_secs(20);

/// The name of the step in the metadata of a request.
const STEP: &str = "step";

/// Called with the lock's name, the record before, and the record that is written.
type OnCommit = dyn Fn(&str, Option<&[u8]>, &[u8]) + Send + Sync;

/// The server.
pub struct MemoryServer {
    env: Env,
    failover_grace: Duration,
    /// Whether the locks are in the table.
    #[cfg_attr(not(feature = "mysql"), allow(dead_code, reason = "there is no table"))]
    is_table: bool,
    on_commit: Box<OnCommit>,
    live: Mutex<Live>,
}

#[derive(Debug, Default)]
struct Live {
    state: State,
    /// Earlier states, and when they were replaced.
    past: VecDeque<(Moment, State)>,
    /// Which server this is. A promoted one has another identity.
    identity: u64,
    /// How far the clock of this server is ahead of the true time.
    ahead: Duration,
    /// How far the clock was set back.
    behind: Duration,
}

/// What a failover can lose.
#[derive(Clone, Debug, Default)]
struct State {
    rows: BTreeMap<String, Row>,
    #[cfg(feature = "mysql")]
    table: BTreeMap<String, table::Row>,
    /// The identity of the server that wrote this, and since when it has run. Compared and written by each grant.
    epoch: Option<(u64, u64)>,
}

/// A lock.
#[derive(Clone, Debug, Default)]
struct Row {
    record: Option<Record>,
    line: Vec<Waiter>,
    /// The owner of what other clients read, and until when it lasts. The owner is the id of a grant, or another client.
    owner: Option<(String, u64)>,
}

/// A step of a lock, as it is sent.
#[derive(Debug, Serialize, Deserialize)]
enum Step {
    Read,
    /// Writes the record if the stored one has the nonce `expect`.
    Write {
        expect: Option<Id>,
        change: Change,
        limits: Limits,
    },
    /// Writes the record over any free one, if no other claim comes first.
    Claim {
        tokens: u64,
        barges: bool,
        limits: Limits,
    },
    Join {
        waiter: Waiter,
        most_ms: u64,
    },
    Leave {
        claim: Id,
    },
}

/// The limits of a step that makes or prolongs a lease.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Limits {
    /// The time from which on it is too late.
    too_late_us: u64,
    kept_us: u64,
    /// For a renewal, the lease that it prolongs. Once it has lapsed, another client may have held the lock.
    prolonged_us: Option<u64>,
}

/// The response to a step.
#[derive(Debug, Serialize, Deserialize)]
struct Answer {
    now_us: u64,
    outcome: Outcome,
    record: Option<Record>,
    line: Vec<Waiter>,
    /// How much longer another client has the lock.
    foreign_us: Option<u64>,
}

#[derive(Debug, Serialize, Deserialize)]
enum Outcome {
    /// Done. For a claim, with the token before.
    Done(Option<Token>),
    Refused,
    Withheld {
        left_us: u64,
    },
}

impl fmt::Debug for MemoryServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryServer").field("live", &*self.live()).finish_non_exhaustive()
    }
}

impl MemoryServer {
    /// Creates a server whose clock is that of `env`. After a failover, it grants nothing for `failover_grace`.
    pub fn new(
        env: Env,
        failover_grace: Duration,
        on_commit: impl Fn(&str, Option<&[u8]>, &[u8]) + Send + Sync + 'static,
    ) -> Self {
        let on_commit = Box::new(on_commit);
        Self { env, failover_grace, is_table: false, on_commit, live: Mutex::default() }
    }

    /// Other clients take locks in the table.
    #[must_use]
    pub fn with_table(self) -> Self {
        Self { is_table: true, ..self }
    }

    /// Promotes a standby that has not received the writes of the last `lost`, and whose clock is `ahead` of the true
    /// time.
    pub fn fail_over(&self, lost: Duration, ahead: Duration) {
        let now = self.env.now();
        let mut live = self.live();
        let is_lost = |(replaced, _): &&(Moment, State)| now.shortest_since(*replaced) < lost;
        if let Some((_, state)) = live.past.iter().find(is_lost).cloned() {
            live.state = state;
        }
        live.past.clear();
        live.identity += 1;
        live.ahead = ahead;
    }

    /// Sets the clock back.
    pub fn set_back(&self, by: Duration) {
        self.live().behind += by;
    }

    /// Takes the lock `name` for another client, if nobody has it.
    pub fn take(&self, name: &str, lasts: Duration) -> bool {
        let mut live = self.live();
        let now_us = self.now_us(&live);
        #[cfg(feature = "mysql")]
        if self.is_table {
            return Self::take_row(&mut live, name, now_us, now_us + micros(lasts));
        }
        let row = live.state.rows.entry(name.to_owned()).or_default();
        let is_free = row.owner_at(now_us).is_none();
        if is_free {
            row.owner = Some(("another client".to_owned(), now_us + micros(lasts)));
        }
        is_free
    }

    /// Returns the longest pause of each waiter in the line of the lock `name`, in milliseconds.
    pub fn pauses(&self, name: &str) -> Vec<u64> {
        let live = self.live();
        #[cfg(feature = "mysql")]
        if let Some(row) = live.state.table.get(name) {
            return row.pauses();
        }
        let row = live.state.rows.get(name);
        row.into_iter().flat_map(|row| &row.line).map(|waiter| waiter.polls_ms).collect()
    }

    fn live(&self) -> MutexGuard<'_, Live> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now_us(&self, live: &Live) -> u64 {
        (self.env.now().wall_us() + micros(live.ahead)).saturating_sub(micros(live.behind))
    }

    /// Reports a record that is written.
    fn commits(&self, name: &str, before: Option<&Record>, record: &Record) {
        if let Ok(bytes) = record.to_bytes() {
            let before = before.and_then(|before| before.to_bytes().ok());
            (self.on_commit)(name, before.as_deref(), &bytes);
        }
    }

    /// Executes `step` for the lock `name`, with the record of its request.
    fn execute(&self, name: &str, step: &Step, record: Option<Record>) -> Answer {
        let mut live = self.live();
        let (now_us, now) = (self.now_us(&live), self.env.now());
        let before = live.state.clone();
        let outcome = match (step, record) {
            (Step::Join { waiter, most_ms }, _) => live.row(name).join(waiter, *most_ms),
            (Step::Leave { claim }, _) => {
                live.row(name).line.retain(|waiter| waiter.claim != *claim);
                Outcome::Done(None)
            }
            (Step::Write { expect, change, limits }, Some(record)) => {
                let is_right = live.row(name).record.as_ref().map(|there| there.nonce) == *expect;
                self.write(&mut live, name, *change, *limits, is_right.then_some((record, None)), now_us)
            }
            (Step::Claim { tokens, barges, limits }, Some(record)) => {
                let granted = live.row(name).claimed(record, *tokens, *barges, now_us);
                self.write(&mut live, name, Change::Grant, *limits, granted, now_us)
            }
            (Step::Read | Step::Write { .. } | Step::Claim { .. }, _) => Outcome::Refused,
        };
        if matches!(outcome, Outcome::Done(_)) {
            live.remember(now, before);
        }
        let row = live.row(name);
        let foreign_us = row.foreign_at(now_us).map(|until_us| until_us - now_us);
        Answer { now_us, outcome, record: row.record.clone(), line: row.line.clone(), foreign_us }
    }

    /// Writes a record, or refuses it if there is none.
    fn write(
        &self,
        live: &mut Live,
        name: &str,
        change: Change,
        limits: Limits,
        record: Option<(Record, Option<Token>)>,
        now_us: u64,
    ) -> Outcome {
        let (holds, foreign) = (change != Change::Free, live.row(name).foreign_at(now_us).is_some());
        let written_us = live.row(name).record.as_ref().and_then(|record| record.renewed_at_us).unwrap_or(0);
        let has_lapsed = limits.prolonged_us.is_some_and(|kept_us| now_us >= written_us + kept_us);
        let is_late = has_lapsed || now_us >= limits.too_late_us;
        let Some((record, after)) = record.filter(|_| !(holds && (foreign || is_late))) else {
            return Outcome::Refused;
        };
        // A renewal notices a failover too, so that the grace passes while locks are held.
        let left_us = holds.then(|| live.withholds(micros(self.failover_grace), now_us)).flatten();
        if let Some(left_us) = left_us.filter(|_| change == Change::Grant) {
            return Outcome::Withheld { left_us };
        }
        let record = Record { renewed_at_us: Some(now_us), awaited: false, ..record };
        self.commits(name, live.row(name).record.as_ref(), &record);
        let row = live.row(name);
        if !foreign {
            row.owner = Some((record.grant.to_string(), now_us.saturating_add(limits.kept_us)));
        }
        row.record = Some(record);
        Outcome::Done(after)
    }
}

impl Live {
    /// Remembers the state `before` a change.
    fn remember(&mut self, now: Moment, before: State) {
        self.past.push_back((now, before));
        while self.past.front().is_some_and(|(at, _)| now.shortest_since(*at) > REMEMBERED) {
            self.past.pop_front();
        }
    }

    fn row(&mut self, name: &str) -> &mut Row {
        self.state.rows.entry(name.to_owned()).or_default()
    }

    /// Returns for how long the server grants nothing, because it may have lost grants.
    fn withholds(&mut self, grace_us: u64, now_us: u64) -> Option<u64> {
        let since_us = match self.state.epoch {
            Some((identity, since_us)) if identity == self.identity && since_us <= now_us => since_us,
            // A server without any record of one was never promoted.
            None if self.identity == 0 => 0,
            _ => now_us,
        };
        self.state.epoch = Some((self.identity, since_us));
        (since_us + grace_us).checked_sub(now_us).filter(|left_us| *left_us > 0 && since_us > 0)
    }
}

impl Row {
    /// Returns who has the lock as other clients see it, and until when.
    fn owner_at(&self, now_us: u64) -> Option<&(String, u64)> {
        self.owner.as_ref().filter(|(_, until_us)| *until_us > now_us)
    }

    /// Returns until when another client has the lock.
    fn foreign_at(&self, now_us: u64) -> Option<u64> {
        let grant = self.record.as_ref().map(|record| record.grant.to_string());
        self.owner_at(now_us)
            .filter(|(owner, _)| Some(owner) != grant.as_ref())
            .map(|(_, until_us)| *until_us)
    }

    /// Returns the record of a claim over any free record, and the token before.
    fn claimed(
        &self,
        record: Record,
        tokens: u64,
        barges: bool,
        now_us: u64,
    ) -> Option<(Record, Option<Token>)> {
        let line = Line::of(self.line.clone());
        let before = self.record.clone().unwrap_or_else(Record::never_granted);
        let first = line.waiting(&before).next();
        if self.record.is_some()
            && (before.state != RecordState::Free
                || before.unconfirmed
                || before.grant == record.grant
                || before.history.iter().any(|past| past.grant == record.grant))
            || first.is_some_and(|first| first.claim != record.grant && !barges)
        {
            return None;
        }
        let served =
            first.filter(|first| first.claim == record.grant).map_or(before.served, |first| first.number);
        let token = Token::new((before.token.get() + tokens).max(now_us))?;
        let after = self.record.as_ref().map(|before| before.token);
        let size = if before.size == 0 { record.size } else { before.size };
        Some((Record { token, served, size, history: before.history, ..record }, after))
    }

    fn join(&mut self, waiter: &Waiter, most_ms: u64) -> Outcome {
        let served = self.record.as_ref().map_or(0, |record| record.served);
        let last = self.line.last().map_or(0, |last| last.number).max(served);
        let granted = self.record.as_ref().map(|record| record.grant);
        self.line.retain(|waiter| waiter.number > served && Some(waiter.claim) != granted);
        let is_in =
            granted == Some(waiter.claim) || self.line.iter().any(|there| there.claim == waiter.claim);
        if is_in || self.line.len() >= MAX_WAITERS {
            return Outcome::Refused;
        }
        let polls_ms = (self.line.len() as u64 + 1).saturating_mul(waiter.polls_ms).min(most_ms);
        self.line.push(Waiter { number: last + 1, polls_ms, ..waiter.clone() });
        Outcome::Done(None)
    }
}

#[async_trait]
impl Register for MemoryServer {
    async fn read(&self, _key: &str) -> Result<Option<VersionedValue>, StoreError> {
        Err(not_a_step())
    }

    async fn head(&self, _key: &str) -> Result<Option<Head>, StoreError> {
        Err(not_a_step())
    }

    async fn write(&self, key: &str, _expect: Precondition<'_>, body: Body) -> Result<Write, StoreError> {
        #[cfg(feature = "mysql")]
        if let Some(request) = body.metadata.user.get(table::STATEMENT) {
            return Ok(Write::Committed(Version::new(self.answer(key, request)?)));
        }
        let step = body.metadata.user.get(STEP).and_then(|step| serde_json::from_str(step).ok());
        let step: Step = step.ok_or_else(not_a_step)?;
        let answer = self.execute(key, &step, serde_json::from_slice(&body.bytes).ok());
        let answer = serde_json::to_string(&answer).map_err(|_| not_a_step())?;
        Ok(Write::Committed(Version::new(answer)))
    }

    async fn delete(&self, _key: &str, _version: &Version) -> Result<Deleted, StoreError> {
        Err(not_a_step())
    }

    fn list(&self, _prefix: &str) -> BoxStream<'_, Result<String, StoreError>> {
        stream::empty().boxed()
    }

    fn store_time(&self) -> Option<StoreTime> {
        None
    }

    fn env(&self) -> &Env {
        &self.env
    }

    fn capabilities(&self) -> RegisterCapabilities {
        RegisterCapabilities {
            store: "server",
            trusted: true,
            generations: true,
            metadata: None,
            poll_interval: POLL_INTERVAL,
        }
    }
}

fn not_a_step() -> StoreError {
    Fault::new(ErrorKind::Invalid, "not a step of a lock, or its response").not_applied()
}
