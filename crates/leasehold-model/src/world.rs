//! The state of the world: the store, the network, the clients, and what the properties need to know about the past.

use crate::inline_vec::Few;
use crate::time::{Age, Rate};

/// A fencing token.
pub type Token = u8;
/// The id of a claim; 0 is unused.
pub type Grant = u8;
/// A nonce. A fresh one is the lowest that nothing in the world refers to.
pub type Nonce = u8;
/// The number of a client.
pub type Who = u8;

/// The most clients there can be.
pub const MOST_CLIENTS: usize = 3;

/// A lock's record. Its version is its content, like an ETag: equal content, equal version.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Record {
    /// Held or free.
    pub held: bool,
    /// The token of the current or latest grant.
    pub token: Token,
    /// The claim that was granted.
    pub grant: Grant,
    /// Counts renewals.
    pub heartbeat: u8,
    /// Fresh in every write.
    pub nonce: Nonce,
    /// Whether a create wrote this record and its claim has not renewed it since.
    pub unconfirmed: bool,
    /// When it was written, by the store's clock, in ticks from now (negative: in the past).
    pub stamp: i8,
    /// How many times it was edited since it was written. Each edit gives a new version with the same meaning.
    pub edition: u8,
    /// The history: one bit for each claim whose grant lapsed or was evicted. Unlimited here; the library remembers
    /// the latest eight grants.
    pub ended: u16,
    /// The same for each claim whose grant has ended in any way. Only claims that are repeated at another server need it.
    pub spent: u16,
}

impl Record {
    /// Whether `claim` was granted before and not released.
    pub fn remembers(&self, claim: Grant) -> bool {
        self.ended & (1 << claim) != 0
    }

    /// Whether `claim` had the lock and does not have it any more.
    pub fn has_seen_the_end_of(&self, claim: Grant) -> bool {
        self.spent & (1 << claim) != 0
    }
}

/// A conditional write in the network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Request {
    /// Who sent it.
    pub from: Who,
    /// Whether its sender waits for the response.
    pub awaited: bool,
    /// The expected record; `None` if there must be none.
    pub expect: Option<Record>,
    /// The new record; `None` deletes the record.
    pub write: Option<Record>,
    /// The nonce of the write.
    pub nonce: Nonce,
}

/// What a client knows about a write that it sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Attempt {
    /// The nonce in the write.
    pub nonce: Nonce,
    /// The time since before it was sent.
    pub age: Age,
    /// The token that it grants.
    pub token: Token,
    /// The lowest token that belongs to the same grant.
    pub first: Token,
    /// Whether it creates the record.
    pub created: bool,
    /// Whether its response was lost.
    pub unknown: bool,
}

/// The writes that may still turn out to have landed.
pub type Attempts = Few<Attempt, 6>;

/// What a client waits for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Step {
    /// Nothing.
    #[default]
    Ready,
    /// A read, and the response once there is one.
    Reading {
        /// The time since it was sent; counted only if contenders use it.
        asked: Age,
        /// What was read; `Some(None)`: no record.
        answer: Option<Option<Record>>,
    },
    /// A write of this record (`None`: a deletion), and the response once there is one.
    Writing {
        /// What was sent.
        sent: Option<Record>,
        /// Whether it was committed.
        answer: Option<bool>,
    },
}

/// The record as its holder left it, and the version that the holder's next write replaces.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Memo {
    /// The record from which renewals and releases are made.
    pub record: Record,
    /// The record that they expect.
    pub version: Record,
    /// Whether the response to the grant arrived in time, so that its token is certain.
    pub confirmed: bool,
}

impl Memo {
    /// The memo of a record that was just written or read.
    pub fn of(record: Record, confirmed: bool) -> Self {
        Self { record, version: record, confirmed }
    }
}

/// What a client is doing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Task {
    /// Nothing. It may ask again with a claim that it gave up.
    #[default]
    Idle,
    /// Acquires. With no request under way and no attempts, it found the lock held and waits.
    Acquire {
        /// The id of the claim.
        claim: Grant,
        /// The writes of this call.
        attempts: Attempts,
        /// What it waits for.
        step: Step,
        /// Whether a write of this call has been committed, whether or not the client knows.
        landed: bool,
        /// The same at the time of the latest read.
        had_landed: bool,
    },
    /// Keeps a grant.
    Keep {
        /// The claim that was granted.
        grant: Grant,
        /// The record.
        memo: Memo,
        /// Renewals with unknown outcome.
        attempts: Attempts,
        /// What it waits for.
        step: Step,
    },
    /// Releases a grant, or withdraws a claim that may have been granted (no memo).
    Release {
        /// The claim.
        grant: Grant,
        /// The record, if it is known.
        memo: Option<Memo>,
        /// Writes with unknown outcome.
        attempts: Attempts,
        /// What it waits for.
        step: Step,
    },
}

impl Task {
    /// An acquisition that has sent nothing.
    pub fn call(claim: Grant) -> Self {
        Task::Acquire {
            claim,
            attempts: Attempts::default(),
            step: Step::Ready,
            landed: false,
            had_landed: false,
        }
    }
}

/// What the user holds: belief in a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Guard {
    /// The token of this guard.
    pub token: Token,
    /// The token of its grant: the record's token, and the last one with which the grant may be passed on.
    pub top: Token,
    /// The time since the deadline began to count.
    pub age: Age,
    /// Whether the user has learned that it is lost.
    pub lost: bool,
    /// Whether another task of the process had the grant before.
    pub passed_on: bool,
}

/// What a client has seen, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Seen {
    /// The record as it was seen last.
    pub record: Record,
    /// How long it has shown no sign of life, as the client counts.
    pub unchanged_for: Age,
    /// How long (state, grant, token, heartbeat) has been unchanged.
    pub watched: Age,
}

/// One client: a process with one lock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Client {
    /// Its clock.
    pub rate: Rate,
    /// How many ticks its view of the store's clock lags behind its front end's clock.
    pub grain: i8,
    /// What it is doing.
    pub task: Task,
    /// What its user holds.
    pub guard: Option<Guard>,
    /// The previous user's guard, although the grant was passed on. Only without a safeguard.
    pub outlived: Option<Guard>,
    /// What it has seen.
    pub seen: Option<Seen>,
    /// How many claims it has made.
    pub claims: u8,
    /// How many more renewals its grant may send.
    pub renewals: u8,
    /// How many times it may ask again with the same claim.
    pub retries: u8,
    /// The claim that it gave up, and may ask again with.
    pub given_up: Option<Grant>,
}

/// What is left of the scope's bounds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "see Scope")]
pub struct Budget {
    pub unanswered: u8,
    pub doubled: u8,
    pub evictions: u8,
    pub edits: u8,
    pub deletions: u8,
    pub copies: u8,
}

/// Violations on the way to a state, where the state itself would not show them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Wrongs {
    /// A grant was committed whose token is not above all earlier ones, although the record was not deleted.
    pub token_went_back: bool,
    /// A grant was reported whose token was not above all those committed before it.
    pub low_token_told: bool,
    /// A guard that was lost came back.
    pub lost_came_back: bool,
    /// A call returned "held" although its grant had been committed.
    pub held_denied: bool,
    /// A client had watched a dead lease for as long as it can last, and did not get it.
    pub prolonged_by_others: bool,
    /// Both a client and its copy have renewed what they hold.
    pub renewed_by_two: bool,
    /// A claim was granted the lock again after its grant had ended.
    pub spent_was_granted: bool,
}

/// A grant that two clients have, because one is a copy of the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Copied {
    /// Its claim.
    pub grant: Grant,
    /// Its token.
    pub token: Token,
    /// The client that has renewed it.
    pub renewed_by: Option<Who>,
}

/// The state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct World {
    /// The record in the store.
    pub store: Option<Record>,
    /// Whether it has existed for a tick (tracked only if records are deleted by hand).
    pub settled: bool,
    /// The requests in the network, sorted by content: the network has no order.
    pub requests: Few<Request, 6>,
    /// The clients; those beyond the scope do nothing.
    pub clients: [Client; MOST_CLIENTS],
    /// The remaining budget of steps.
    pub budget: Budget,
    /// The highest token that was committed or reported.
    pub highest: Token,
    /// The nonces of grants whose token was not above all earlier ones.
    pub low: Few<Nonce, 4>,
    /// One bit for each token whose grant was evicted or deleted by hand: exclusion does not apply to its holder.
    pub pardoned: u32,
    /// The grant that two clients have.
    pub copied: Option<Copied>,
    /// Whether the claim for which two servers act has had a grant that ended.
    pub shared_ended: bool,
    /// Whether the client of that claim has released or withdrawn it. It then accepts no response any more.
    pub client_is_gone: bool,
    /// The violations.
    pub wrongs: Wrongs,
}

impl World {
    /// Visits every record that the world refers to.
    pub fn each_record(&mut self, mut visit: impl FnMut(&mut Record)) {
        self.store.iter_mut().for_each(&mut visit);
        for client in &mut self.clients {
            client.seen.iter_mut().for_each(|seen| visit(&mut seen.record));
            let (memo, step) = match &mut client.task {
                Task::Idle => continue,
                Task::Acquire { step, .. } => (None, step),
                Task::Keep { memo, step, .. } => (Some(memo), step),
                Task::Release { memo, step, .. } => (memo.as_mut(), step),
            };
            if let Some(memo) = memo {
                visit(&mut memo.record);
                visit(&mut memo.version);
            }
            match step {
                Step::Reading { answer: Some(Some(record)), .. } => visit(record),
                Step::Writing { sent: Some(record), .. } => visit(record),
                _ => {}
            }
        }
        for request in self.requests.all_mut() {
            request.expect.iter_mut().for_each(&mut visit);
            request.write.iter_mut().for_each(&mut visit);
        }
    }

    /// Visits every nonce that the world refers to, those that clients know first.
    pub fn each_nonce(&mut self, mut visit: impl FnMut(&mut Nonce)) {
        for client in &mut self.clients {
            client.attempts_mut().iter_mut().for_each(|attempt| visit(&mut attempt.nonce));
        }
        self.each_record(|record| visit(&mut record.nonce));
        self.requests.all_mut().iter_mut().for_each(|request| visit(&mut request.nonce));
        self.low.all_mut().iter_mut().for_each(visit);
    }

    /// A nonce that nothing refers to.
    pub fn fresh_nonce(&mut self) -> Nonce {
        let mut used = 1_u64; // 0 is unused.
        self.each_nonce(|nonce| used |= 1 << *nonce);
        u8::try_from((!used).trailing_zeros()).unwrap_or(0)
    }
}

impl Client {
    /// The writes that may still turn out to have landed.
    pub fn attempts(&self) -> &[Attempt] {
        match &self.task {
            Task::Idle => &[],
            Task::Acquire { attempts, .. } | Task::Keep { attempts, .. } | Task::Release { attempts, .. } => {
                attempts.all()
            }
        }
    }

    /// The same, mutable.
    pub fn attempts_mut(&mut self) -> &mut [Attempt] {
        match &mut self.task {
            Task::Idle => &mut [],
            Task::Acquire { attempts, .. } | Task::Keep { attempts, .. } | Task::Release { attempts, .. } => {
                attempts.all_mut()
            }
        }
    }

    /// What the client waits for.
    pub fn step(&self) -> Step {
        match self.task {
            Task::Idle => Step::Ready,
            Task::Acquire { step, .. } | Task::Keep { step, .. } | Task::Release { step, .. } => step,
        }
    }

    /// The same, mutable.
    pub fn step_mut(&mut self) -> Option<&mut Step> {
        match &mut self.task {
            Task::Idle => None,
            Task::Acquire { step, .. } | Task::Keep { step, .. } | Task::Release { step, .. } => Some(step),
        }
    }
}
