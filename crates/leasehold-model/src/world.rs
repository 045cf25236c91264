//! The state of the world: the store, the network, the clients, and the facts about the past that the properties need.

use crate::inline_vec::Few;
use crate::time::{Age, Rate};

/// A fencing token.
pub type Token = u8;
/// The id of a claim; 0 is unused.
pub type Grant = u8;
/// A nonce. A fresh nonce is the lowest one to which nothing in the world refers.
pub type Nonce = u8;
/// The number of a client.
pub type Who = u8;

/// The maximum number of clients.
pub const MAX_CLIENTS: usize = 3;

/// A lock's record. Its version is its content, like an ETag, so records with equal content have equal versions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Record {
    /// Whether the lock is held or free.
    pub held: bool,
    /// The token of the current or latest grant.
    pub token: Token,
    /// The claim that was granted.
    pub grant: Grant,
    /// The number of renewals of the grant.
    pub heartbeat: u8,
    /// The nonce, fresh in every write.
    pub nonce: Nonce,
    /// Whether a create wrote this record and its claim has not confirmed it since, by a renewal or a release.
    pub unconfirmed: bool,
    /// The time of the write by the store's clock, in ticks relative to now. Negative in the past.
    pub stamp: i8,
    /// How many times the record was edited since it was written. Each edit creates a new version with the same
    /// meaning.
    pub edition: u8,
    /// The history: one bit for each claim whose grant lapsed or was evicted. It is unlimited here, whereas the library
    /// remembers the latest eight grants.
    pub ended: u16,
    /// One bit for each claim whose grant has ended in any way. Only claims for which two servers act need it.
    pub spent: u16,
}

impl Record {
    /// Returns whether a grant of `claim` lapsed or was evicted.
    pub fn remembers(&self, claim: Grant) -> bool {
        self.ended & (1 << claim) != 0
    }

    /// Returns whether a grant of `claim` has ended in any way.
    pub fn has_seen_the_end_of(&self, claim: Grant) -> bool {
        self.spent & (1 << claim) != 0
    }
}

/// A conditional write in the network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Request {
    /// The sender.
    pub from: Who,
    /// Whether the sender waits for the response.
    pub awaited: bool,
    /// The expected record. `None` if there must be no record.
    pub expect: Option<Record>,
    /// The new record. `None` deletes the record.
    pub write: Option<Record>,
    /// The nonce of the write.
    pub nonce: Nonce,
}

/// A client's knowledge about a write that it sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Attempt {
    /// The nonce in the write.
    pub nonce: Nonce,
    /// The time since before the write was sent.
    pub age: Age,
    /// The token that it grants.
    pub token: Token,
    /// The lowest token that belongs to the same grant.
    pub first: Token,
    /// Whether the write creates the record.
    pub created: bool,
    /// Whether the outcome is unknown.
    pub unknown: bool,
}

/// The writes that may still turn out to have been applied.
pub type Attempts = Few<Attempt, 6>;

/// The event that a client waits for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Step {
    /// Nothing.
    #[default]
    Ready,
    /// The response to a read.
    Reading {
        /// The time since the read was sent. Counted only if contenders use it.
        asked: Age,
        /// The response, once there is one. `Some(None)` means that there is no record.
        answer: Option<Option<Record>>,
    },
    /// The response to a write.
    Writing {
        /// The record that was sent. `None` for a deletion.
        sent: Option<Record>,
        /// Whether the write was committed, once there is a response.
        answer: Option<bool>,
    },
}

/// The record as its holder left it, and the version that the holder's next write will replace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Memo {
    /// The record from which renewals and releases are made.
    pub record: Record,
    /// The record that renewals and releases expect.
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

/// The current task of a client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Task {
    /// Nothing. The client may retry a claim that it gave up.
    #[default]
    Idle,
    /// Acquires. If no request is in progress and there are no attempts, the client has found the lock held and waits.
    Acquire {
        /// The id of the claim.
        claim: Grant,
        /// The writes of this call that may still turn out to have been applied.
        attempts: Attempts,
        /// The event that the client waits for.
        step: Step,
        /// Whether a write of this call has been committed, even if the client does not know it.
        landed: bool,
        /// The value of `landed` at the time of the latest read.
        had_landed: bool,
    },
    /// Keeps a grant.
    Keep {
        /// The claim that was granted.
        grant: Grant,
        /// The record.
        memo: Memo,
        /// The renewals with an unknown outcome.
        attempts: Attempts,
        /// The event that the client waits for.
        step: Step,
    },
    /// Releases a grant. Without a memo, withdraws a claim that may have been granted.
    Release {
        /// The claim.
        grant: Grant,
        /// The record, if it is known.
        memo: Option<Memo>,
        /// The writes with an unknown outcome.
        attempts: Attempts,
        /// The event that the client waits for.
        step: Step,
    },
}

impl Task {
    /// Returns an acquisition that has not sent anything.
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

/// A user's belief in a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Guard {
    /// The token of this guard.
    pub token: Token,
    /// The token of the grant in the record. It is also the last token with which the grant may be passed on.
    pub top: Token,
    /// The time since the moment from which the deadline is counted.
    pub age: Age,
    /// Whether the user has learned of the loss.
    pub lost: bool,
    /// Whether another task of the process held the grant before.
    pub passed_on: bool,
}

/// The record that a client has seen, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Seen {
    /// The record, as last seen.
    pub record: Record,
    /// How long the record has shown no sign of life, as counted by the client.
    pub unchanged_for: Age,
    /// How long the tuple (state, grant, token, heartbeat) has been unchanged.
    pub watched: Age,
}

/// A client, which is a process that uses one lock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Client {
    /// The rate of the client's clock.
    pub rate: Rate,
    /// How many ticks the client's view of the store's clock lags behind the clock of its front end.
    pub grain: i8,
    /// The current task.
    pub task: Task,
    /// The guard of the client's user.
    pub guard: Option<Guard>,
    /// The previous user's guard, which is still valid although the grant was passed on. Only without a safeguard.
    pub outlived: Option<Guard>,
    /// The record that the client has seen.
    pub seen: Option<Seen>,
    /// How many claims the client has made.
    pub claims: u8,
    /// How many more renewals may be sent for the grant.
    pub renewals: u8,
    /// How many more times the client may retry a claim.
    pub retries: u8,
    /// The claim that the client gave up and may retry.
    pub given_up: Option<Grant>,
}

/// How many steps of each kind the scope still allows.
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

/// Violations on the way to a state that the state itself would not show.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Wrongs {
    /// A grant was committed whose token is not above all earlier tokens, although the record was not deleted.
    pub token_went_back: bool,
    /// A grant was reported whose token was not above all previously committed tokens.
    pub low_token_told: bool,
    /// A lost guard became valid again.
    pub lost_came_back: bool,
    /// A call returned "held" although its grant had been committed.
    pub held_denied: bool,
    /// A client had watched a dead lease for as long as it can last, but could not take it over.
    pub prolonged_by_others: bool,
    /// Both a client and its copy have renewed their grant.
    pub renewed_by_two: bool,
    /// A claim was granted the lock again after its grant had ended.
    pub spent_was_granted: bool,
    /// A record was written, or a write was sent, that trace validation does not explain.
    pub unexplained: bool,
}

/// A grant that two clients hold because one is a copy of the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Copied {
    /// The claim of the grant.
    pub grant: Grant,
    /// The token of the grant.
    pub token: Token,
    /// The client that has renewed the grant.
    pub renewed_by: Option<Who>,
}

/// The state of the model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct World {
    /// The record in the store.
    pub store: Option<Record>,
    /// Whether a grant was committed in this tick. Tracked only if records are deleted by hand.
    pub granted_now: bool,
    /// The highest token that was committed before this tick, if records are deleted by hand.
    pub by_clock: Token,
    /// The requests in the network. Sorted by content, because the network has no order.
    pub requests: Few<Request, 6>,
    /// The clients. Those beyond the scope do nothing.
    pub clients: [Client; MAX_CLIENTS],
    /// The remaining budget of steps.
    pub budget: Budget,
    /// The highest token that was committed or reported.
    pub highest: Token,
    /// The nonces of grants whose token was not above all earlier tokens.
    pub low: Few<Nonce, 4>,
    /// One bit for each token whose grant was evicted, deleted by hand or copied. Exclusion does not apply to its
    /// holder.
    pub pardoned: u32,
    /// The grant that two clients hold because one is a copy of the other.
    pub copied: Option<Copied>,
    /// Whether a grant of the claim for which two servers act has ended.
    pub shared_ended: bool,
    /// Whether the client of that claim has released or withdrawn it. The client then no longer accepts responses.
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

    /// Visits every nonce that the world refers to, beginning with those that clients know.
    pub fn each_nonce(&mut self, mut visit: impl FnMut(&mut Nonce)) {
        for client in &mut self.clients {
            client.attempts_mut().iter_mut().for_each(|attempt| visit(&mut attempt.nonce));
        }
        self.each_record(|record| visit(&mut record.nonce));
        self.requests.all_mut().iter_mut().for_each(|request| visit(&mut request.nonce));
        self.low.all_mut().iter_mut().for_each(visit);
    }

    /// Returns a nonce to which nothing refers.
    pub fn fresh_nonce(&mut self) -> Nonce {
        let mut used = 1_u64; // 0 is unused.
        self.each_nonce(|nonce| used |= 1 << *nonce);
        u8::try_from((!used).trailing_zeros()).unwrap_or(0)
    }
}

impl Client {
    /// Returns the writes that may still turn out to have been applied.
    pub fn attempts(&self) -> &[Attempt] {
        match &self.task {
            Task::Idle => &[],
            Task::Acquire { attempts, .. } | Task::Keep { attempts, .. } | Task::Release { attempts, .. } => {
                attempts.all()
            }
        }
    }

    /// Returns the writes that may still turn out to have been applied, mutably.
    pub fn attempts_mut(&mut self) -> &mut [Attempt] {
        match &mut self.task {
            Task::Idle => &mut [],
            Task::Acquire { attempts, .. } | Task::Keep { attempts, .. } | Task::Release { attempts, .. } => {
                attempts.all_mut()
            }
        }
    }

    /// Returns the event that the client waits for.
    pub fn step(&self) -> Step {
        match self.task {
            Task::Idle => Step::Ready,
            Task::Acquire { step, .. } | Task::Keep { step, .. } | Task::Release { step, .. } => step,
        }
    }

    /// Returns the event that the client waits for, mutably. Returns `None` if the client is idle.
    pub fn step_mut(&mut self) -> Option<&mut Step> {
        match &mut self.task {
            Task::Idle => None,
            Task::Acquire { step, .. } | Task::Keep { step, .. } | Task::Release { step, .. } => Some(step),
        }
    }
}
