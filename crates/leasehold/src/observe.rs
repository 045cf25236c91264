//! Events for metrics and logs: what a [`Locker`](crate::Locker) asks its store, and what happens to its locks.
//!
//! Implement [`Observer`], and set it with [`Locker::observed_by`](crate::Locker::observed_by). The page
//! `docs/observability.md` shows metrics for Prometheus, and the spans that leasehold opens with `tracing`.

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
/// leasehold calls it where something happens, mostly in tasks that renew and release locks. So it must return quickly:
/// count, or send to a channel, and do not block. While it runs, the next renewal of that lock waits: an observer that
/// blocks for longer than the rest of a lease loses the lock. The deadline does not depend on observers:
/// [`Guard::check`](crate::Guard::check) compares it with the clock.
///
/// A panic in an observer is caught and logged, and has no effect on the lock. (With `panic = "abort"`, it ends the
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
    /// Called at each event. Must return quickly.
    fn observe(&self, event: &Event<'_>);
}

/// Something that happened. No event contains a secret: no ticket, no id of an acquisition, no URL.
///
/// A *hold* is a lock that a guard of this process holds. It begins with [`Acquired`](Self::Acquired) or
/// [`Resumed`](Self::Resumed), and ends with exactly one of [`Lost`](Self::Lost), [`Released`](Self::Released) and
/// [`HandedOn`](Self::HandedOn), unless the tokio runtime ends before. Its [`Renewed`](Self::Renewed) come in between.
/// Renewals and releases by a [`Ticket`](crate::Ticket), which is no hold of this process, are reported as requests only.
///
/// A permit of a semaphore is a lock with a separate name, and so is a share of a readers-writer lock.
///
/// The token means nothing on a store [without tokens](crate::lease::Capabilities::tokens). Durations count on the clock
/// that continues while the machine is suspended.
///
/// ```
/// use leasehold::observe::Event;
///
/// /// One line for a log.
/// fn line(event: &Event<'_>) -> Option<String> {
///     Some(match event {
///         Event::Acquired { lock, token, waited, .. } => format!("{lock}: acquired, token {token}, after {waited:.1?}"),
///         Event::Lost { lock, reason, .. } => format!("{lock}: lost: {}", reason.as_str()),
///         Event::Released { lock, held, result, .. } => format!("{lock}: {result} after {held:.1?}"),
///         _ => return None, // also the events of later versions
///     })
/// }
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// A request to the store has ended: one call of [`LeaseStore`](crate::lease::LeaseStore). On some stores, it consists of
    /// several requests over the network, with retries. The polls of a waiting acquisition are not reported.
    #[non_exhaustive]
    Request {
        /// What was asked.
        operation: Operation,
        /// The lock that it was about; `None` for [`Operation::List`] and [`Operation::Init`].
        lock: Option<&'a LockName>,
        /// How long it took.
        took: Duration,
        /// The response.
        outcome: Outcome,
    },
    /// An acquisition begins to wait: another process holds the lock, or another task of this process holds or acquires
    /// it.
    #[non_exhaustive]
    WaitBegan {
        /// The lock.
        lock: &'a LockName,
    },
    /// That wait has ended. If the lock was acquired, this follows [`Acquired`](Self::Acquired).
    #[non_exhaustive]
    WaitEnded {
        /// The lock.
        lock: &'a LockName,
        /// How long the wait was.
        waited: Duration,
        /// Whether the lock was acquired. If not, the acquisition failed, or its caller gave up.
        acquired: bool,
    },
    /// A lock was acquired: from the store, or from another task of this process, which passed it on.
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
    /// A guard was made from a ticket ([`Locker::resume`](crate::Locker::resume)).
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
        /// What was left of the lease when the store's confirmation arrived. `left` divided by `ttl` is the slack: about
        /// two thirds while all goes well. Near zero, the lock was almost lost.
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
        /// How long it was held, to the moment at which the loss was noticed.
        held: Duration,
        /// Why. For a lock that consists of several, which are lost together, that of the first.
        reason: &'a LossReason,
    },
    /// A hold was given up by its guard, which was released or dropped.
    #[non_exhaustive]
    Released {
        /// The lock.
        lock: &'a LockName,
        /// Its fencing token.
        token: Token,
        /// How long it was held, to the moment at which its guard ended.
        held: Duration,
        /// What became of the lock.
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
        /// How long this process held it.
        held: Duration,
    },
    /// This process has evicted the holder of a lock. The holder notices it later, as a loss.
    #[non_exhaustive]
    Evicted {
        /// The lock.
        lock: &'a LockName,
        /// The fencing token of the grant that was ended.
        token: Token,
        /// Who decided it and why, if that was given.
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
    /// Listing locks, from the first page to the last, with the time that the caller takes in between.
    List,
    /// Creating what the store needs.
    Init,
    /// Deleting the record of an unused lock.
    Sweep,
}

impl Operation {
    /// Its name, for labels: `add_processes`.
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

/// The response to a request.
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
    /// The store did what it was asked to do, or returned what was requested.
    Done,
    /// Another holder has the lock.
    Held,
    /// The grant that the request was about has ended.
    Lost,
    /// An error.
    Failed(ErrorKind),
    /// There was no response before the caller gave up: its time was over, or its future was dropped.
    GivenUp,
}

impl Outcome {
    /// One word, for labels: `done`, `held`, `lost`, `given_up`; the kind of an error: `unavailable`.
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

/// What became of a lock whose guard ended.
///
/// ```
/// assert_eq!(leasehold::observe::ReleaseResult::PassedOn.to_string(), "passed_on");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ReleaseResult {
    /// The store has confirmed the release.
    Released,
    /// Another task of this process has it now.
    PassedOn,
    /// The lock had already been lost, which was not known before.
    AlreadyLost,
    /// The store did not confirm the release before the lease ended.
    Unconfirmed,
}

impl ReleaseResult {
    /// Its name, for labels: `already_lost`.
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
    /// These and another one.
    pub(crate) fn with(&self, observer: Arc<dyn Observer>) -> Self {
        Self(self.0.iter().cloned().chain([observer]).collect())
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Reports `event`. Must not be called while a mutex is locked.
    pub(crate) fn tell(&self, event: &Event<'_>) {
        for observer in &*self.0 {
            // It must not end the task that renews a lock.
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| observer.observe(event))) {
                // Dropping it might panic again.
                std::mem::forget(panic);
                tracing::error!("an observer of leasehold panicked; the lock is not affected");
            }
        }
    }
}

/// How long it is since `earlier`, for people: a wall clock that is set does not count.
pub(crate) fn elapsed(earlier: Moment, now: Moment) -> Duration {
    now.since_boot().saturating_sub(earlier.since_boot())
}
