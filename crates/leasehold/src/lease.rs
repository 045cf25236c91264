//! Leases: what every store offers to the layers above, whatever it is made of.
//!
//! [`LeaseStore`] is implemented once for all registers ([`RegisterLeases`](crate::RegisterLeases)) and once for each
//! store with leases of its own. Renewal loops, loss detection and queues are not its business: see
//! [`Lock`](crate::Lock) and [`Guard`](crate::Guard).

mod watch;

use std::any::Any;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::stream::BoxStream;

pub use self::watch::Watch;
use crate::clock::Deadline;
use crate::diagnosis::Diagnose;
use crate::env::Env;
use crate::error::{ErrorKind, Fault, StoreError};
use crate::types::LockName;
pub use crate::types::{
    End, Held, Holder, Id, Loss, LossReason, PastGrant, State, Status, Token, Ttl, attempt_limit, deadline,
    printable,
};

/// A store that grants leases.
///
/// "Held" and "lost" are values, not errors. Every method is given its own limit in time by the store, resolves unknown
/// outcomes itself, and reports [`StoreError::MaybeApplied`] only when it ran out of time doing so.
#[async_trait]
pub trait LeaseStore: Watch + Diagnose + fmt::Debug + Send + Sync + 'static {
    /// Tries once to be granted the lock. Waits for nobody, but settles what was left unknown by a lost answer.
    ///
    /// Idempotent for one claim: called again with the same claim it never deadlocks on its own earlier attempt. A claim is
    /// for one acquisition: once what it was granted was evicted or has lapsed, it may hear [`AcquireOutcome::Lost`].
    /// Not cancel safe: a dropped call may still be granted, and ends by [`release`](Self::release) or by lapsing.
    /// [`Lock`](crate::Lock) never drops it.
    ///
    /// # Errors
    /// When the store could not be reached for as long as the claim's patience, or refuses.
    async fn try_acquire(&self, claim: &Claim) -> Result<AcquireOutcome, StoreError>;

    /// Prolongs `grant`, whose deadline is updated in place; never takes back what another was granted.
    ///
    /// Gives up at the grant's deadline. Safe to call again after an error or after being dropped.
    ///
    /// # Errors
    /// When no answer could be had. The grant's deadline then stands as it was.
    async fn renew(&self, grant: &mut Grant) -> Result<Renewal, StoreError>;

    /// Ends `grant`; with `rest`, the lock is not to be granted for so long. Safe to call again after an error.
    ///
    /// With a grant that has no memo and the id of a claim, it withdraws the claim: ends what it may have been granted
    /// without hearing of it, and gives up its place in line.
    ///
    /// # Errors
    /// When no answer could be had; the lease then lapses by itself.
    async fn release(&self, grant: &mut Grant, rest: Option<Duration>) -> Result<Released, StoreError>;

    /// Makes the grant outlive this process: from now on only its lease ends it, not the end of the process that the
    /// store may be able to see. Before handing a grant to another process.
    ///
    /// # Errors
    /// When no answer could be had.
    async fn detach(&self, grant: &mut Grant) -> Result<(), StoreError> {
        let _ = grant;
        Ok(())
    }

    /// Adds the processes with these ids to the holder of `name`, if that is this process: a store that
    /// [sees dead processes](Capabilities::sees_dead_processes) takes the holder for dead only when all of them have ended.
    /// By default nothing is done: other stores go by the lease alone.
    ///
    /// # Errors
    /// When no answer could be had.
    async fn add_processes(&self, name: &LockName, pids: &[u32]) -> Result<(), StoreError> {
        let _ = (name, pids);
        Ok(())
    }

    /// Ends the grant with `token`, whoever has it: an operator's decision. Compare-and-set, never blind.
    ///
    /// # Errors
    /// When no answer could be had.
    async fn evict(&self, name: &LockName, token: Token) -> Result<Evicted, StoreError>;

    /// The state of one lock, now.
    ///
    /// # Errors
    /// When no answer could be had.
    async fn inspect(&self, name: &LockName) -> Result<Status, StoreError>;

    /// The names of the locks that have a record, those starting with `prefix`, page by page. A page that could not be had for
    /// now is asked for again, for a while.
    fn list(&self, prefix: &str) -> BoxStream<'_, Result<LockName, StoreError>>;

    /// Creates what the store needs: a table, a folder. Does nothing where nothing is needed or all is there.
    ///
    /// # Errors
    /// When it cannot be created.
    async fn init(&self) -> Result<(), StoreError> {
        Ok(())
    }

    /// Deletes the record of `name` if the lock has been free for `older_than`, by the store's own clock, and no rest is left;
    /// with `dry_run`, only finds out whether it would. Tokens go on rising.
    ///
    /// Conditional: who acquires the lock meanwhile has it, and its record stays. A lock whose holder has died is not free.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] where deletes are not conditional, or the store's clock is not
    /// to be used; by default. When no answer could be had.
    async fn sweep(&self, name: &LockName, older_than: Duration, dry_run: bool) -> Result<Swept, StoreError> {
        let _ = (name, older_than, dry_run);
        let message = format!("records in {} cannot be swept", self.capabilities().store);
        Err(Fault::new(ErrorKind::Unsupported, message).not_applied())
    }

    /// What this store can and cannot do.
    fn capabilities(&self) -> Capabilities;

    /// The clock and the randomness that this store runs on.
    fn env(&self) -> &Env;
}

/// One acquisition that wants to be granted.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Claim {
    /// Of which lock.
    pub name: LockName,
    /// For how long at a time.
    pub ttl: Ttl,
    /// Names this acquisition; random.
    pub id: Id,
    /// Who wants it.
    pub holder: Holder,
    /// How much longer contenders wait after a lapse, never after a release.
    pub lock_delay: Duration,
    /// Whether it stays in line until it is granted or withdrawn ([`LeaseStore::release`]), where the store keeps a line
    /// ([`Capabilities::fifo`]).
    pub waits: bool,
    /// Whether the grant outlives the process that asks for it (see [`LeaseStore::detach`]).
    pub detached: bool,
    /// How many tokens it can use: its process passes the lock on among so many tasks. A store that can leaves room for
    /// them below the token that it grants ([`Grant::after`]).
    pub tokens: u64,
    /// How long to put up with a store that does not answer before giving up.
    pub patience: Duration,
    /// What keeps the store from answering: a store notes it as soon as it knows, and long before it gives up.
    pub trouble: StoreTrouble,
}

impl Claim {
    /// The patience of a claim that says nothing else.
    pub const DEFAULT_PATIENCE: Duration = Duration::from_secs(15);

    /// A claim with a fresh id.
    pub fn new(env: &Env, name: LockName, ttl: Ttl, holder: Holder) -> Self {
        Self {
            name,
            ttl,
            id: Id::random(&env.random),
            holder,
            lock_delay: Duration::ZERO,
            waits: false,
            detached: false,
            tokens: 1,
            patience: Self::DEFAULT_PATIENCE,
            trouble: StoreTrouble::default(),
        }
    }
}

/// Why the store does not answer a [`Claim`] at present, for messages of an acquisition whose time is up. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct StoreTrouble(Arc<Mutex<Option<String>>>);

impl StoreTrouble {
    /// A request failed with `error`, and will be sent again.
    pub fn note(&self, error: &StoreError) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(error.to_string());
    }

    /// The store has answered.
    pub fn clear(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// What went wrong last; `None` if nothing did since the last answer.
    pub fn cause(&self) -> Option<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// A lease that was granted.
pub struct Grant {
    /// Of which lock.
    pub name: LockName,
    /// Its fencing token.
    pub token: Token,
    /// The token below it up to which earlier grants may have gone: those between belong to this grant and to nobody
    /// else, now and later. `None` where that is not known, or the store has better to do with a waiting task than
    /// to let its process pass the lock on by itself ([`Capabilities::fifo`]).
    pub after: Option<Token>,
    /// The id of the claim it was granted for.
    pub id: Id,
    /// Its time to live.
    pub ttl: Ttl,
    /// When it ends for its holder unless renewed.
    pub deadline: Deadline,
    /// What the store needs to renew and release it; `None` for a grant that comes from a ticket.
    pub memo: Option<Box<dyn Any + Send + Sync>>,
}

impl Grant {
    /// The loss of this grant, if its deadline had passed before anybody could be told of it: for [`AcquireOutcome::Lost`].
    #[must_use]
    pub fn came_too_late(&self) -> Loss {
        Loss::new(self.name.clone(), self.token, LossReason::Expired { last_error: None })
    }
}

impl fmt::Debug for Grant {
    /// Without the id: who knows it can release the lock, as with a ticket.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Grant")
            .field("name", &self.name)
            .field("token", &self.token)
            .field("ttl", &self.ttl)
            .field("deadline", &self.deadline)
            .finish_non_exhaustive()
    }
}

/// The answer to [`LeaseStore::try_acquire`].
#[derive(Debug)]
pub enum AcquireOutcome {
    /// Yours, until the grant's deadline.
    Granted(Grant),
    /// Somebody has it, or it rests.
    Held(Held),
    /// We may have been granted it without hearing of it in time: it has passed on to another since, or came too late to be used
    /// and was released. Another claim may be granted it at once.
    Lost(Loss),
}

/// The answer to [`LeaseStore::renew`].
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "one at a time, and gone at once")]
pub enum Renewal {
    /// Prolonged: the grant's deadline was moved.
    Renewed,
    /// Gone for good.
    Lost(Loss),
}

/// The answer to [`LeaseStore::release`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Released {
    /// It was ours until now, and is free.
    Released,
    /// It was no longer ours.
    AlreadyLost,
}

/// The answer to [`LeaseStore::evict`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Evicted {
    /// The grant with that token is over.
    Evicted,
    /// It was not held with that token.
    Changed,
}

/// The answer to [`LeaseStore::sweep`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Swept {
    /// The record is deleted, or would be.
    Deleted,
    /// It stays, or there is none: the lock is held, rests, or has not been free for so long, as far as the store's clock
    /// tells.
    Kept,
}

/// How often a waiter may ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PollInterval {
    /// The shortest pause before a question.
    pub min: Duration,
    /// Pauses grow up to this, and no further: whoever leaves a lock free for longer lets all who wait find it so.
    pub max: Duration,
}

/// What a store can and cannot do; shown to people and used to choose conformance cases.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Capabilities {
    /// The store's kind, for people: `S3`, `SQLite`.
    pub store: &'static str,
    /// Whether grants carry fencing tokens.
    pub tokens: bool,
    /// Whether waiters of different processes are served in the order of their arrival.
    pub fifo: bool,
    /// Whether a holder whose process has died on the same machine is succeeded at once.
    pub sees_dead_processes: bool,
    /// Whether waiters are told of a release, rather than asking.
    pub watches: bool,
    /// Whether release can leave the lock resting.
    pub rests: bool,
    /// Whether inspection tells of grants that are over.
    pub history: bool,
    /// How often a waiter asks.
    pub pace: PollInterval,
}

impl Capabilities {
    /// A store with tokens, rests and a history, and nothing else.
    pub const fn new(store: &'static str, pace: PollInterval) -> Self {
        Self {
            store,
            tokens: true,
            fifo: false,
            sees_dead_processes: false,
            watches: false,
            rests: true,
            history: true,
            pace,
        }
    }
}

impl fmt::Display for Capabilities {
    /// What it can, in a line for people: `fencing tokens, rests, history`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let can = [
            (self.tokens, "fencing tokens"),
            (self.rests, "rests"),
            (self.history, "history"),
            (self.sees_dead_processes, "successor at once when a process dies"),
            (self.watches, "waiters told of a release"),
            (self.fifo, "waiters in order of arrival"),
        ];
        let can: Vec<_> = can.iter().filter(|(can, _)| *can).map(|(_, what)| *what).collect();
        f.write_str(&can.join(", "))
    }
}

/// Settings that every store understands, from its URL or from code.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct StoreOptions {
    /// The clock and the randomness to run on.
    pub env: Env,
    /// Whether the store's own clock may end a dead holder's lease (`store_clock=off` says no: observation alone).
    pub store_clock: bool,
    /// How much the store's clock may be off between two of its answers (`margin=5s`).
    pub margin: Duration,
}

impl Default for StoreOptions {
    fn default() -> Self {
        Self { env: Env::system(), store_clock: true, margin: Duration::from_secs(5) }
    }
}
