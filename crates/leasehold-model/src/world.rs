//! The state of the world: the store, the network, the clients, and what the properties need to know of the past.

use crate::few::Few;
use crate::time::{Age, Rate};

/// A fencing token.
pub type Token = u8;
/// The id of a claim; 0 is nobody's.
pub type Grant = u8;
/// A nonce. A fresh one is the lowest that nothing in the world refers to any more.
pub type Nonce = u8;
/// Which client.
pub type Who = u8;

/// The most clients there can be.
pub const MOST_CLIENTS: usize = 3;

/// A lock's record. Its version is its content, as an ETag is: equal content, equal version.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Record {
    /// Held or free.
    pub held: bool,
    /// Of the current grant, or the latest one.
    pub token: Token,
    /// The claim that was granted.
    pub grant: Grant,
    /// Counts renewals.
    pub heartbeat: u8,
    /// Fresh in every write.
    pub nonce: Nonce,
    /// Whether a create wrote this, and its claim has shown no sign of life since.
    pub newborn: bool,
    /// When it was written, on the store's clock: so many ticks after now (negative: ago).
    pub stamp: i8,
    /// How often it was edited since it was written: another version that says the same.
    pub edition: u8,
    /// The history: one bit for each claim whose grant lapsed or was evicted. As deep as needed, where the library
    /// remembers the latest eight grants.
    pub ended: u16,
}

impl Record {
    /// Whether `claim` was granted before, and did not release.
    pub fn remembers(&self, claim: Grant) -> bool {
        self.ended & (1 << claim) != 0
    }
}

/// A conditional write on its way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Request {
    /// Who sent it.
    pub from: Who,
    /// Whether its sender waits for the answer.
    pub awaited: bool,
    /// What has to be there; `None`: nothing.
    pub expect: Option<Record>,
    /// What is written; `None`: the record is deleted.
    pub write: Option<Record>,
    /// The nonce of the write.
    pub nonce: Nonce,
}

/// What a client knows of a write that it sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Attempt {
    /// In the bytes that were sent.
    pub nonce: Nonce,
    /// Since before it was sent.
    pub age: Age,
    /// The token that it grants.
    pub token: Token,
    /// The lowest token that belongs to the same grant.
    pub first: Token,
    /// Whether it was to create the record.
    pub created: bool,
    /// Whether its answer was lost.
    pub unknown: bool,
}

/// The writes that may still turn out to have landed.
pub type Attempts = Few<Attempt, 6>;

/// What a client is waiting for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Step {
    /// Nothing.
    #[default]
    Ready,
    /// A read, sent so long ago; the answer is on its way back once there is one.
    Reading {
        /// Counted only where a contender goes by it.
        asked: Age,
        /// What was there; `Some(None)`: nothing.
        answer: Option<Option<Record>>,
    },
    /// A write of this (`None`: a deletion); the answer likewise.
    Writing {
        /// What was sent.
        sent: Option<Record>,
        /// Whether it was committed.
        answer: Option<bool>,
    },
}

/// The record as its holder left it, and the version that its next write is to replace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Memo {
    /// What renewals and releases are made from.
    pub record: Record,
    /// What they expect to find.
    pub version: Record,
    /// Whether its grant was answered in time, so that its token is known to be good.
    pub confirmed: bool,
}

impl Memo {
    /// Of a record that was written or read just now.
    pub fn of(record: Record, confirmed: bool) -> Self {
        Self { record, version: record, confirmed }
    }
}

/// What a client is about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Task {
    /// Nothing. It may ask again with a claim that it gave up.
    #[default]
    Idle,
    /// Acquires. Nothing on its way and no attempts: it was told "held", and waits.
    Acquire {
        /// The id of the claim.
        claim: Grant,
        /// What this call has sent.
        attempts: Attempts,
        /// What it waits for.
        step: Step,
        /// Whether a write of this call has been committed, known or not.
        landed: bool,
        /// Whether one had been when the record was read last.
        had_landed: bool,
    },
    /// Keeps a grant.
    Keep {
        /// The claim that was granted.
        grant: Grant,
        /// The record.
        memo: Memo,
        /// Renewals whose fate is not known.
        attempts: Attempts,
        /// What it waits for.
        step: Step,
    },
    /// Releases a grant, or withdraws a claim of which it does not know whether it was granted (no memo).
    Release {
        /// The claim.
        grant: Grant,
        /// The record, when it is known.
        memo: Option<Memo>,
        /// Writes whose fate is not known.
        attempts: Attempts,
        /// What it waits for.
        step: Step,
    },
}

impl Task {
    /// An acquisition of which nothing was sent.
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

/// What the user holds: the belief in a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Guard {
    /// The token that the user was told.
    pub token: Token,
    /// The token of the grant that it is by: the record's, and the last one that it may be passed on with.
    pub top: Token,
    /// Since the deadline began to count.
    pub age: Age,
    /// Whether the user was told that it is lost.
    pub lost: bool,
    /// Whether another task of the process had the grant before.
    pub passed_on: bool,
}

/// What a client has seen, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Seen {
    /// The record as it was seen last.
    pub record: Record,
    /// For how long it has shown no sign of life, as the client counts.
    pub quiet: Age,
    /// For how long (state, grant, token, heartbeat) has been seen unchanged.
    pub watched: Age,
}

/// One client: a process with one lock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Client {
    /// Its clock.
    pub rate: Rate,
    /// How many ticks its view of the store's clock lags behind what its front end has.
    pub grain: i8,
    /// What it is about.
    pub task: Task,
    /// What its user holds.
    pub guard: Option<Guard>,
    /// What the user before holds, although the grant was passed on. Only where a safeguard is out.
    pub outlived: Option<Guard>,
    /// What it has seen.
    pub seen: Option<Seen>,
    /// How many claims it has made.
    pub claims: u8,
    /// How many more renewals its grant may send.
    pub renewals: u8,
    /// How often it may ask again with the same claim.
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

/// What went wrong on the way to a state, where the state itself would not show it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Wrongs {
    /// A grant was committed whose token is not above those of all before it, though nobody deleted the record.
    pub token_went_back: bool,
    /// Somebody was told a grant whose token was not above those of all that were committed before it.
    pub low_token_told: bool,
    /// A guard that was lost came back.
    pub lost_came_back: bool,
    /// "Held" was said to somebody whose grant had been committed.
    pub held_denied: bool,
    /// Somebody who had watched a dead lease for as long as it can last did not get it.
    pub prolonged_by_others: bool,
    /// A client and its copy have both renewed what they hold.
    pub renewed_by_two: bool,
}

/// A grant that two clients have, since one is a copy of the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Copied {
    /// Of which claim.
    pub grant: Grant,
    /// Its token.
    pub token: Token,
    /// Which of the two has renewed it.
    pub renewed_by: Option<Who>,
}

/// Everything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct World {
    /// What lies in the store.
    pub store: Option<Record>,
    /// Whether it has been there for a tick (told apart only where records are deleted by hand).
    pub settled: bool,
    /// What is on its way to the store, in order of content: the network keeps none.
    pub requests: Few<Request, 6>,
    /// The clients; those beyond the scope do nothing.
    pub clients: [Client; MOST_CLIENTS],
    /// What may still happen.
    pub budget: Budget,
    /// The highest token that was committed, or told.
    pub highest: Token,
    /// The nonces of grants whose token was not above those of all before.
    pub low: Few<Nonce, 4>,
    /// One bit for each token whose grant was evicted or deleted by hand: its holder is not to blame.
    pub pardoned: u32,
    /// What two clients hold.
    pub copied: Option<Copied>,
    /// What went wrong.
    pub wrongs: Wrongs,
}

impl World {
    /// Every record that anything in the world refers to.
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

    /// Every nonce that anything in the world refers to, what clients know first.
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
        let mut used = 1_u64; // 0 is nobody's.
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

    /// The same, to be changed.
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

    /// The same, to be changed.
    pub fn step_mut(&mut self) -> Option<&mut Step> {
        match &mut self.task {
            Task::Idle => None,
            Task::Acquire { step, .. } | Task::Keep { step, .. } | Task::Release { step, .. } => Some(step),
        }
    }
}
