//! [`Guard`]: a held lock.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use super::thread::wait;
use crate::clock::{Deadline, SystemClock, timeout};
use crate::error::{Error, Result};
use crate::lease::{Loss, Released, Token};
use crate::ticket::Ticket;
use crate::types::LockName;

/// A held lock. See [`crate::Guard`]. Its lease is renewed in the background for as long as this value exists.
///
/// Dropping a guard releases its lock and waits for the store's response. A store that does not respond delays the drop
/// for about 10 s, or for up to 20 s if a renewal is in progress. ([`Lock::store_timeout`](super::Lock::store_timeout)
/// does not apply.) Prefer [`release`](Self::release), which reports whether the lock was held until the end.
///
/// ```
/// let locker = leasehold::blocking::Locker::open("mem:")?;
/// let guard = locker.lock("report").acquire()?;
/// println!("writing with token {}", guard.token()?);
/// guard.check()?; // local, no I/O
/// guard.release()?;
/// # Ok::<_, leasehold::Error>(())
/// ```
#[must_use = "a guard that is dropped releases its lock"]
pub struct Guard {
    /// `None` once the lock is released or handed on.
    inner: Option<crate::Guard>,
    name: LockName,
}

impl Guard {
    pub(super) fn new(inner: crate::Guard) -> Self {
        Self { name: inner.name().clone(), inner: Some(inner) }
    }

    /// Returns the name of the lock.
    pub fn name(&self) -> &LockName {
        &self.name
    }

    /// Returns the names of the locks, in the order in which they were acquired. See [`crate::Guard::names`].
    pub fn names(&self) -> impl Iterator<Item = &LockName> {
        self.inner.iter().flat_map(crate::Guard::names)
    }

    /// Returns the fencing token of this grant. See [`crate::Guard::token`].
    ///
    /// # Errors
    /// Returns the same errors as [`crate::Guard::token`].
    pub fn token(&self) -> Result<Token> {
        self.held()?.token()
    }

    /// Returns the fencing token of each lock, by its name. See [`crate::Guard::tokens`].
    ///
    /// # Errors
    /// Returns [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) if the store's protocol has no tokens.
    pub fn tokens(&self) -> Result<BTreeMap<LockName, Token>> {
        self.held()?.tokens()
    }

    /// Returns how long the lock is certain to be held without another renewal. Returns zero if the lock was lost.
    /// Local, no I/O.
    pub fn remaining(&self) -> Duration {
        self.inner.as_ref().map_or(Duration::ZERO, crate::Guard::remaining)
    }

    /// Returns a function that does what [`remaining`](Self::remaining) does, for threads that do not own the guard.
    /// Once the guard has ended, the function returns zero.
    pub fn monitor(&self) -> impl Fn() -> Duration + Send + Sync + use<> {
        let monitor = self.inner.as_ref().map(crate::Guard::monitor);
        move || monitor.as_ref().map_or(Duration::ZERO, |remaining| remaining())
    }

    /// Returns when the lease ends if it is not renewed. See [`crate::Guard::deadline`].
    ///
    /// # Errors
    /// Returns the same errors as [`check`](Self::check).
    pub fn deadline(&self) -> Result<Deadline> {
        self.held()?.deadline()
    }

    /// Returns when the hold ends, however often its lease is renewed. See [`crate::Guard::limit`].
    pub fn limit(&self) -> Option<Deadline> {
        self.inner.as_ref()?.limit()
    }

    /// Checks that the lock is still held. Local, no I/O.
    ///
    /// # Errors
    /// Returns [`ErrorKind::Lost`](crate::ErrorKind::Lost), with the reason, if the lock was lost. A loss is final:
    /// acquire the lock again.
    pub fn check(&self) -> Result<()> {
        self.held()?.check()
    }

    /// Renews the lease now and returns the new deadline. Success means that the lock was certainly still held after
    /// the call was made. See [`crate::Guard::renew`].
    ///
    /// # Errors
    /// Returns the same errors as [`crate::Guard::renew`].
    pub fn renew(&self) -> Result<Deadline> {
        wait(self.held()?.renew())
    }

    /// Waits until the lock is lost. Returns no later than the end of the lease. Nothing else ends the wait: see
    /// [`lost_within`](Self::lost_within).
    ///
    /// # Errors
    /// Returns [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) if this is called from a callback of this module.
    pub fn lost(&self) -> Result<Loss> {
        let held = self.held()?;
        wait(async { Ok(held.lost().await) })
    }

    /// Waits until the lock is lost, for at most `limit`. Returns `None` if it is still held then. Use this while other
    /// work runs, such as a child process.
    ///
    /// # Errors
    /// Returns the same errors as [`lost`](Self::lost).
    ///
    /// ```
    /// # use std::{process::Command, time::Duration};
    /// let guard = leasehold::blocking::Locker::open("mem:")?.lock("report").acquire()?;
    /// let mut child = Command::new("true").spawn().unwrap();
    /// while child.try_wait().unwrap().is_none() {
    ///     if guard.lost_within(Duration::from_millis(50))?.is_some() {
    ///         child.kill().unwrap();
    ///         break;
    ///     }
    /// }
    /// child.wait().unwrap();
    /// guard.release()?;
    /// # Ok::<_, leasehold::Error>(())
    /// ```
    pub fn lost_within(&self, limit: Duration) -> Result<Option<Loss>> {
        let held = self.held()?;
        wait(async { Ok(timeout(&SystemClock, limit, held.lost()).await) })
    }

    /// Releases the lock and reports whether it was held until now. Waits for the store's response.
    ///
    /// # Errors
    /// Returns the same errors as [`crate::Guard::release`].
    pub fn release(mut self) -> Result<Released> {
        wait(self.take()?.release())
    }

    /// Releases the lock because the work took too long. See [`crate::Guard::release_at_limit`].
    ///
    /// # Errors
    /// Returns the same errors as [`crate::Guard::release`].
    pub fn release_at_limit(mut self) -> Result<Released> {
        wait(self.take()?.release_at_limit())
    }

    /// Releases the lock with a cooldown. See [`crate::Guard::release_with_cooldown`].
    ///
    /// # Errors
    /// Returns the same errors as [`crate::Guard::release_with_cooldown`].
    pub fn release_with_cooldown(mut self, period: Duration) -> Result<Released> {
        wait(self.take()?.release_with_cooldown(period))
    }

    /// Gives up the lock without a release: it is free when its lease ends. See [`crate::Guard::lapse`].
    pub fn lapse(mut self) {
        if let Some(guard) = self.inner.take() {
            guard.lapse();
        }
    }

    /// Stops the renewals and returns the lock as a [`Ticket`], with which another process can renew and release it.
    ///
    /// # Errors
    /// Returns the same errors as [`crate::Guard::into_ticket`].
    pub fn into_ticket(mut self) -> Result<Ticket> {
        wait(self.take()?.into_ticket())
    }

    pub(super) fn held(&self) -> Result<&crate::Guard> {
        self.inner.as_ref().ok_or_else(released)
    }

    /// Takes the inner guard. Dropping `self` then no longer releases the lock.
    pub(super) fn take(&mut self) -> Result<crate::Guard> {
        self.inner.take().ok_or_else(released)
    }
}

/// Returns the error for a guard without an inner guard. This never happens, because every method that takes the inner
/// guard consumes the outer one.
fn released() -> Error {
    Error::invalid("this guard has been released")
}

impl Drop for Guard {
    fn drop(&mut self) {
        let Some(guard) = self.inner.take() else { return };
        if let Err(error) = wait(guard.release()) {
            tracing::warn!(lock = %self.name, %error, "the lock was not released");
        }
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Guard").field(&self.inner).finish()
    }
}
