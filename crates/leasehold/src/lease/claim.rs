//! [`Claim`]: a request for a lock.

use std::time::Duration;

use super::{Holder, Id, LastError, Nested, PermitQueue, Place, Secret, Ttl};
use crate::env::Env;
use crate::types::LockName;

/// A request for a lock, for one acquisition.
///
/// ```
/// use leasehold::{LockName, env::Env, lease::{Claim, Holder, Ttl}};
///
/// let (name, holder) = (LockName::new("deploy/prod")?, Holder::this_process());
/// let mut claim = Claim::new(&Env::system(), name, Ttl::DEFAULT, holder);
/// claim.waits = true; // keep a place in the line, if the store has one
/// assert!(claim.lock_delay.is_zero() && claim.tokens == 1);
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Claim {
    /// The name of the lock.
    pub name: LockName,
    /// The lease's time to live.
    pub ttl: Ttl,
    /// The id of this acquisition: the digest of a [`Secret`].
    pub id: Id,
    /// The process that wants the lock.
    pub holder: Holder,
    /// How much longer contenders wait after the lease has lapsed. Does not apply after a release.
    pub lock_delay: Duration,
    /// Whether the claim joins the line of waiters, if the store [keeps one](super::Capabilities::fifo), and stays in
    /// it until it is granted or withdrawn ([`LeaseStore::release`](super::LeaseStore::release)).
    pub waits: bool,
    /// Whether the grant outlives the process that asks for it (see [`LeaseStore::detach`](super::LeaseStore::detach)).
    pub detached: bool,
    /// How many tokens the grant can use, because its process passes the lock on among this many tasks. If the store
    /// supports this, it reserves these tokens below the one that it grants ([`Grant::after`](super::Grant::after)).
    pub tokens: u64,
    /// How long to keep trying if the store does not respond.
    pub store_timeout: Duration,
    /// Why the store does not respond. The store records this as soon as it knows, long before it gives up.
    pub last_error: LastError,
    /// Whether the claim ignores the waiters in line: see [`Lock::barge`](crate::Lock::barge).
    pub barges: bool,
    /// Whether the acquisition may be repeated with the same [`id`](Self::id), by this process or by another one: see
    /// [`Lock::acquire_ticket`](crate::Lock::acquire_ticket). If a grant arrives late or its caller is gone, the grant
    /// is not released: a repetition may use it, or it lapses. A claim whose grant has ended is refused
    /// ([`AcquireOutcome::Lost`]), as far back as the lock's history goes.
    ///
    /// Stores without a [history](super::Capabilities::history) ignore this field, so callers must not set it there.
    ///
    /// [`AcquireOutcome::Lost`]: super::AcquireOutcome::Lost
    pub repeatable: bool,
    /// The [size](super::Grant::size) that the grant records if the lock's record has none.
    pub size: Option<u64>,
    /// Whether to read the line even if the lock's record does not show that processes wait.
    pub(crate) reads_line: bool,
    /// The claim's place in the line.
    pub(crate) place: Place,
    /// The [queue](PermitQueue) of the waiters, if this claim is for a permit that has one.
    pub(crate) permit_queue: Option<PermitQueue>,
    /// The locks that the waiter holds while it waits. Only the line shows them.
    pub nested: Option<Box<Nested>>,
}

impl Claim {
    /// How long a wait lasts at least if the store has not responded yet, even if its limit is shorter. A short limit may
    /// be shorter than the time of one request.
    pub const FIRST_RESPONSE: Duration = Duration::from_secs(2);

    /// The default of [`store_timeout`](Self::store_timeout).
    pub const DEFAULT_STORE_TIMEOUT: Duration = Duration::from_secs(15);

    /// Returns how long a poll of a wait keeps trying a store that does not respond.
    pub(crate) fn poll_timeout(&self) -> Duration {
        self.store_timeout.min(Self::POLL_TIMEOUT)
    }

    /// The longest [`poll_timeout`](Self::poll_timeout).
    const POLL_TIMEOUT: Duration = Duration::from_secs(10);

    /// Returns the waiting process as the line shows it.
    pub(crate) fn waiter(&self) -> Holder {
        Holder { nested: self.nested.clone(), ..self.holder.of_the_past() }
    }

    /// Creates a claim with a new random id and default settings.
    pub fn new(env: &Env, name: LockName, ttl: Ttl, holder: Holder) -> Self {
        Self {
            name,
            ttl,
            id: Secret::new(env).id(),
            holder,
            lock_delay: Duration::ZERO,
            waits: false,
            detached: false,
            tokens: 1,
            store_timeout: Self::DEFAULT_STORE_TIMEOUT,
            last_error: LastError::default(),
            barges: false,
            repeatable: false,
            size: None,
            reads_line: false,
            place: Place::default(),
            permit_queue: None,
            nested: None,
        }
    }
}
