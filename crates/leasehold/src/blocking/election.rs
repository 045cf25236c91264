//! [`Election`]: one of several candidates leads.

use std::time::Duration;

use super::guard::Guard;
use super::thread::{iterate, wait};
use crate::error::Result;
use crate::lease::{HolderInfo, Loss, Released, Token};
use crate::primitives::Leader;
use crate::types::LockName;

/// An election: one of several candidates leads, and every process can find out which. See [`crate::Election`]. Cheap
/// to clone.
///
/// ```
/// let locker = leasehold::blocking::Locker::open("mem:")?;
/// let election = locker.election("scheduler").value("http://10.0.0.7:8080");
/// let leadership = election.campaign()?; // waits until it leads
/// let leader = election.leader()?.expect("there is a leader");
/// assert_eq!(leader.value.as_deref(), Some("http://10.0.0.7:8080"));
/// leadership.check()?; // still leading? local, no I/O
/// leadership.resign()?;
/// # Ok::<_, leasehold::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Election(crate::Election);

impl Election {
    pub(super) fn new(election: crate::Election) -> Self {
        Self(election)
    }

    /// Sets the value that this candidate advertises while it leads. See [`crate::Election::value`].
    #[must_use]
    pub fn value(self, value: impl Into<String>) -> Self {
        Self(self.0.value(value))
    }

    /// Sets the lease's time to live. See [`crate::Election::ttl`].
    #[must_use]
    pub fn ttl(self, ttl: Duration) -> Self {
        Self(self.0.ttl(ttl))
    }

    /// Describes the purpose of the candidate. See [`crate::Election::note`].
    #[must_use]
    pub fn note(self, note: impl Into<String>) -> Self {
        Self(self.0.note(note))
    }

    /// Sets the candidate's name that other processes see. See [`crate::Election::owner`].
    #[must_use]
    pub fn owner(self, name: impl Into<String>) -> Self {
        Self(self.0.owner(name))
    }

    /// Sets how much longer there is no leader after a lease has lapsed. See [`crate::Election::lock_delay`].
    #[must_use]
    pub fn lock_delay(self, delay: Duration) -> Self {
        Self(self.0.lock_delay(delay))
    }

    /// Sets how long to retry while the store does not respond. See [`crate::Election::store_timeout`].
    #[must_use]
    pub fn store_timeout(self, timeout: Duration) -> Self {
        Self(self.0.store_timeout(timeout))
    }

    /// Calls `callback` whenever a waiting campaign learns which process leads. See [`crate::Election::on_wait`].
    #[must_use]
    pub fn on_wait(self, callback: impl Fn(&HolderInfo) + Send + Sync + 'static) -> Self {
        Self(self.0.on_wait(callback))
    }

    /// Waits until this candidate leads, for as long as it takes.
    ///
    /// # Errors
    /// Returns the same errors as [`crate::Election::campaign`].
    pub fn campaign(&self) -> Result<Leadership> {
        wait(self.0.campaign()).map(Leadership::new)
    }

    /// Waits until this candidate leads, for at most `limit`.
    ///
    /// # Errors
    /// Returns the same errors as [`crate::Election::campaign_within`].
    pub fn campaign_within(&self, limit: Duration) -> Result<Leadership> {
        wait(self.0.campaign_within(limit)).map(Leadership::new)
    }

    /// Becomes the leader if there is no other leader now.
    ///
    /// # Errors
    /// Returns the same errors as [`crate::Election::try_campaign`].
    pub fn try_campaign(&self) -> Result<Leadership> {
        wait(self.0.try_campaign()).map(Leadership::new)
    }

    /// Returns the current leader, if there is one.
    ///
    /// # Errors
    /// Returns the same errors as [`crate::Election::leader`].
    pub fn leader(&self) -> Result<Option<Leader>> {
        wait(self.0.leader())
    }

    /// Returns an iterator over the current leader, and then each change. The iterator waits for the next change and
    /// never ends.
    ///
    /// # Errors
    /// The items of the iterator include the errors of [`crate::Election::observe`]. If the name is invalid, the
    /// iterator ends after that error.
    pub fn observe(&self) -> impl Iterator<Item = Result<Option<Leader>>> + use<> {
        iterate(self.0.observe())
    }

    /// Like [`observe`](Self::observe), but yields the leader after each read, and reads again after `pause` at most.
    /// See [`crate::Election::observe_every`].
    ///
    /// # Errors
    /// Returns the same errors as [`observe`](Self::observe).
    pub fn observe_every(&self, pause: Duration) -> impl Iterator<Item = Result<Option<Leader>>> + use<> {
        iterate(self.0.observe_every(pause))
    }
}

/// A term as leader. See [`crate::Leadership`]. Dropping this value resigns and waits for the store's response.
///
/// ```
/// let leadership = leasehold::blocking::Locker::open("mem:")?.election("scheduler").campaign()?;
/// while leadership.check().is_ok() {
///     println!("leading, term {}", leadership.term()?);
///     # break;
/// }
/// leadership.resign()?;
/// # Ok::<_, leasehold::Error>(())
/// ```
#[must_use = "a leadership that is dropped is resigned"]
#[derive(Debug)]
pub struct Leadership(Guard);

impl Leadership {
    fn new(leadership: crate::Leadership) -> Self {
        Self(Guard::new(leadership.into()))
    }

    /// Returns the name of the election.
    pub fn name(&self) -> &LockName {
        self.0.name()
    }

    /// Returns the term, a fencing token that is greater than the term of every earlier leader.
    ///
    /// # Errors
    /// Returns the same errors as [`Guard::token`].
    pub fn term(&self) -> Result<Token> {
        self.0.token()
    }

    /// Checks that this candidate still leads. Local, no I/O.
    ///
    /// # Errors
    /// Returns the same errors as [`Guard::check`].
    pub fn check(&self) -> Result<()> {
        self.0.check()
    }

    /// Returns how long this candidate is certain to lead without another renewal. Local, no I/O.
    pub fn remaining(&self) -> Duration {
        self.0.remaining()
    }

    /// Waits until the leadership is lost. Returns no later than the end of the lease.
    ///
    /// # Errors
    /// Returns the same errors as [`Guard::lost`].
    pub fn lost(&self) -> Result<Loss> {
        self.0.lost()
    }

    /// Waits until the leadership is lost, for at most `limit`. Returns `None` if this candidate still leads then.
    ///
    /// # Errors
    /// Returns the same errors as [`Guard::lost`].
    pub fn lost_within(&self, limit: Duration) -> Result<Option<Loss>> {
        self.0.lost_within(limit)
    }

    /// Resigns, and reports whether the candidate led until now.
    ///
    /// # Errors
    /// Returns the same errors as [`Guard::release`].
    pub fn resign(self) -> Result<Released> {
        self.0.release()
    }

    /// Returns the guard of the lock that the leader holds.
    pub fn guard(&self) -> &Guard {
        &self.0
    }
}

impl From<Leadership> for Guard {
    /// Returns the guard of the lock that the leader holds. Releasing it resigns.
    fn from(leadership: Leadership) -> Self {
        leadership.0
    }
}
