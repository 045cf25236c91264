//! Events for metrics and logs: the requests of a [`Locker`](crate::Locker) to its store, and the changes of its locks.
//!
//! Implement [`Observer`], and register it with [`Locker::observed_by`](crate::Locker::observed_by). The page
//! `docs/observability.md` describes metrics for Prometheus, and the `tracing` spans that leasehold opens.

mod store;
mod waiting;

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

pub(crate) use self::store::ObservedStore;
pub(crate) use self::waiting::Waiting;
use crate::clock::Moment;
use crate::error::ErrorKind;
use crate::lease::{Eviction, LossReason, Released, Token, Ttl};
use crate::types::LockName;

/// Receives the events of a [`Locker`](crate::Locker).
///
/// leasehold calls the observer mostly in the tasks that renew and release locks. So the observer must return quickly:
/// it may count or send to a channel, but must not block. While it runs, the next renewal of the lock waits. If it
/// blocks for longer than the remaining lease, the lock is lost. The deadline does not depend on observers, because
/// [`Guard::check`](crate::Guard::check) compares it with the clock.
///
/// The guard knows of a loss before the observer: [`Guard::lost`](crate::Guard::lost) may return first.
///
/// A panic in an observer is caught and logged. It has no effect on the lock. (With `panic = "abort"`, it aborts the
/// process.)
///
/// ```
/// use std::sync::Arc;
/// use std::sync::atomic::{AtomicU64, Ordering};
/// use leasehold::observe::{Event, Observer};
///
/// #[derive(Default)]
/// struct Losses(AtomicU64);
///
/// impl Observer for Losses {
///     fn observe(&self, event: &Event<'_>) {
///         if let Event::Lost { .. } = event {
///             self.0.fetch_add(1, Ordering::Relaxed);
///         }
///     }
/// }
///
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// let losses = Arc::new(Losses::default());
/// let locker = leasehold::Locker::open("mem:").await?.observed_by(losses.clone());
/// locker.lock("deploy").acquire().await?.release().await?;
/// assert_eq!(losses.0.load(Ordering::Relaxed), 0);
/// # Ok::<_, leasehold::Error>(()) }).unwrap();
/// ```
pub trait Observer: Send + Sync + 'static {
    /// Handles one event. Must return quickly.
    fn observe(&self, event: &Event<'_>);
}

/// An event of a [`Locker`](crate::Locker). Events contain no secrets: no tickets, no acquisition ids, and no URLs.
///
/// A *hold* is a lock that a guard of this process holds. It begins with [`Acquired`](Self::Acquired) or
/// [`Resumed`](Self::Resumed), and ends with exactly one of [`Lost`](Self::Lost), [`Released`](Self::Released) and
/// [`HandedOn`](Self::HandedOn), unless the tokio runtime ends earlier. Its [`Renewed`](Self::Renewed) events come in
/// between. A [`Ticket`](crate::Ticket) is not a hold of this process, so renewals and releases by ticket are reported
/// only as requests.
///
/// Each permit of a semaphore, and each share of a readers-writer lock, is reported as a separate lock with its own
/// name.
///
/// On a store [without tokens](crate::lease::Capabilities::tokens), the token has no meaning. Durations include time
/// during which the machine is suspended.
///
/// ```
/// use leasehold::observe::Event;
///
/// /// One line for a log.
/// fn line(event: &Event<'_>) -> Option<String> {
///     Some(match event {
/// Event::Acquired { lock, token, waited, .. } => format!("{lock}: acquired, token {token}, after {waited:.1?}"),
/// Event::Lost { lock, reason, .. } => format!("{lock}: lost: {}", reason.as_str()), Event::Released { lock, held,
/// result, .. } => format!("{lock}: {result} after {held:.1?}"), _ => return None, // also the events of later versions
/// }) }
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// A request to the store has ended. A request is one call of [`LeaseStore`](crate::lease::LeaseStore). On some
    /// stores, it consists of several requests over the network, with retries. The polls of a waiting acquisition are
    /// not reported.
    #[non_exhaustive]
    Request {
        /// The operation.
        operation: Operation,
        /// The lock that the request was about. `None` for [`Operation::List`] and [`Operation::Init`].
        lock: Option<&'a LockName>,
        /// How long the request took.
        took: Duration,
        /// The outcome.
        outcome: Outcome,
    },
    /// An acquisition begins to wait, because another process holds the lock, or another task of this process holds or
    /// is acquiring it.
    #[non_exhaustive]
    WaitBegan {
        /// The lock.
        lock: &'a LockName,
    },
    /// An acquisition has stopped waiting. If the lock was acquired, this event follows [`Acquired`](Self::Acquired).
    #[non_exhaustive]
    WaitEnded {
        /// The lock.
        lock: &'a LockName,
        /// How long the acquisition waited.
        waited: Duration,
        /// Whether the lock was acquired. If not, the acquisition failed, or its caller gave up.
        acquired: bool,
    },
    /// A waiting acquisition is in a cycle of waiters that hold locks. Reported once for each cycle, by each of them.
    /// See [`Lock::while_holding`](crate::Lock::while_holding).
    #[non_exhaustive]
    Deadlock {
        /// The lock that the acquisition waits for.
        lock: &'a LockName,
        /// The waiters and the locks that they hold and wait for, for people.
        cycle: &'a str,
        /// Whether this acquisition fails with [`ErrorKind::Deadlock`], so that the others can go on.
        fails: bool,
    },
    /// A lock was acquired, from the store or from another task of this process that passed it on.
    #[non_exhaustive]
    Acquired {
        /// The lock.
        lock: &'a LockName,
        /// Its fencing token.
        token: Token,
        /// The lease's time to live.
        ttl: Ttl,
        /// The time since the acquisition began.
        waited: Duration,
    },
    /// A guard was created from a ticket ([`Locker::resume`](crate::Locker::resume)).
    #[non_exhaustive]
    Resumed {
        /// The lock.
        lock: &'a LockName,
        /// Its fencing token.
        token: Token,
        /// The lease's time to live.
        ttl: Ttl,
    },
    /// The lease of a hold was renewed.
    #[non_exhaustive]
    Renewed {
        /// The lock.
        lock: &'a LockName,
        /// Its fencing token.
        token: Token,
        /// The remaining time of the lease when the store's confirmation arrived. The slack, `left` divided by `ttl`,
        /// is normally about two thirds. If it is near zero, the lock was almost lost.
        left: Duration,
        /// The lease's time to live.
        ttl: Ttl,
    },
    /// A hold was lost.
    #[non_exhaustive]
    Lost {
        /// The lock.
        lock: &'a LockName,
        /// Its fencing token.
        token: Token,
        /// How long the lock was held, until the loss was noticed.
        held: Duration,
        /// Why the lock was lost. If several locks that form one hold are lost together, this is the reason of the
        /// first loss.
        reason: &'a LossReason,
    },
    /// The guard of a hold was released or dropped.
    #[non_exhaustive]
    Released {
        /// The lock.
        lock: &'a LockName,
        /// Its fencing token.
        token: Token,
        /// How long the lock was held, until its guard ended.
        held: Duration,
        /// The result of the release.
        result: ReleaseResult,
    },
    /// A hold became a ticket: by [`Guard::into_ticket`](crate::Guard::into_ticket), or right after
    /// [`Acquired`](Self::Acquired) by [`Lock::acquire_ticket`](crate::Lock::acquire_ticket).
    #[non_exhaustive]
    HandedOn {
        /// The lock.
        lock: &'a LockName,
        /// Its fencing token.
        token: Token,
        /// How long this process held the lock.
        held: Duration,
    },
    /// This process has evicted the holder of a lock. The holder learns of it later, as a loss.
    #[non_exhaustive]
    Evicted {
        /// The lock.
        lock: &'a LockName,
        /// The fencing token of the evicted grant.
        token: Token,
        /// Who decided the eviction and why, if known.
        why: Option<&'a Eviction>,
    },
}

/// An operation of a store.
///
/// ```
/// use leasehold::observe::Operation;
///
/// assert_eq!(Operation::Acquire.to_string(), "acquire");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Operation {
    /// Trying once to acquire a lock.
    Acquire,
    /// Renewing a lease.
    Renew,
    /// Releasing a lock, or withdrawing an acquisition.
    Release,
    /// Giving up a place in the line of waiters.
    StopWaiting,
    /// Making a grant outlive its process.
    Detach,
    /// Adding processes to a holder.
    AddProcesses,
    /// Ending the grant of another holder.
    Evict,
    /// Reading the state of a lock.
    Inspect,
    /// Listing locks, from the first page to the last. Includes the time that the caller takes in between.
    List,
    /// Creating everything that the store needs.
    Init,
    /// Deleting the record of an unused lock.
    Sweep,
}

impl Operation {
    /// Returns the name of the operation for labels, such as `add_processes`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Acquire => "acquire",
            Self::Renew => "renew",
            Self::Release => "release",
            Self::StopWaiting => "stop_waiting",
            Self::Detach => "detach",
            Self::AddProcesses => "add_processes",
            Self::Evict => "evict",
            Self::Inspect => "inspect",
            Self::List => "list",
            Self::Init => "init",
            Self::Sweep => "sweep",
        }
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The outcome of a request.
///
/// ```
/// use leasehold::{ErrorKind, observe::Outcome};
///
/// assert_eq!(Outcome::Done.to_string(), "done");
/// assert_eq!(Outcome::Failed(ErrorKind::Unavailable).to_string(), "unavailable");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Outcome {
    /// The request succeeded.
    Done,
    /// Another holder has the lock.
    Held,
    /// The grant that the request was about has ended.
    Lost,
    /// The request failed with this kind of error.
    Failed(ErrorKind),
    /// The caller gave up before there was a response: its time was over, or its future was dropped.
    GivenUp,
}

impl Outcome {
    /// Returns the outcome as one word for labels: `done`, `held`, `lost`, `given_up`, or the kind of the error, such
    /// as `unavailable`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Held => "held",
            Self::Lost => "lost",
            Self::Failed(kind) => kind.as_str(),
            Self::GivenUp => "given_up",
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The result of releasing or dropping a guard.
///
/// ```
/// assert_eq!(leasehold::observe::ReleaseResult::PassedOn.to_string(), "passed_on");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ReleaseResult {
    /// The store confirmed the release.
    Released,
    /// The lock was passed on to another task of this process.
    PassedOn,
    /// The lock had already been lost, which was discovered only by the release.
    AlreadyLost,
    /// The store did not confirm the release before the lease ended.
    Unconfirmed,
}

impl ReleaseResult {
    /// Returns the result as one word for labels, such as `already_lost`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Released => "released",
            Self::PassedOn => "passed_on",
            Self::AlreadyLost => "already_lost",
            Self::Unconfirmed => "unconfirmed",
        }
    }
}

impl From<Released> for ReleaseResult {
    fn from(released: Released) -> Self {
        match released {
            Released::Released => Self::Released,
            Released::AlreadyLost => Self::AlreadyLost,
        }
    }
}

impl fmt::Display for ReleaseResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The observers of a locker.
#[derive(Clone, Default)]
pub(crate) struct Observers(Arc<[Arc<dyn Observer>]>);

impl Observers {
    /// Returns these observers and `observer`.
    pub(crate) fn with(&self, observer: Arc<dyn Observer>) -> Self {
        Self(self.0.iter().cloned().chain([observer]).collect())
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Reports `event` to all observers. Must not be called while a mutex is locked.
    pub(crate) fn report(&self, event: &Event<'_>) {
        for observer in &*self.0 {
            // A panic must not end the task that renews a lock.
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| observer.observe(event))) {
                // Dropping the payload might panic again.
                std::mem::forget(panic);
                tracing::error!("an observer of leasehold panicked; the lock is not affected");
            }
        }
    }
}

/// Returns the time since `earlier`, for people. Changes of the wall clock have no effect on it.
pub(crate) fn elapsed(earlier: Moment, now: Moment) -> Duration {
    now.since_boot().saturating_sub(earlier.since_boot())
}
