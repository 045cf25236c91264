//! [`Guard`]: a lock that is held.

use std::fmt;
use std::time::Duration;

use super::thread::wait;
use crate::error::{Error, Result};
use crate::lease::{Loss, Released, Token};
use crate::ticket::Ticket;
use crate::types::LockName;

/// A lock that is held, as [`crate::Guard`]. It is renewed in the background for as long as this value lives.
///
/// Dropping a guard releases its lock and waits for the store's response. A store that does not respond delays this for
/// about 10 s, or up to 20 s if a renewal is under way ([`Lock::store_timeout`](super::Lock::store_timeout) does not
/// apply). Prefer [`release`](Self::release), which reports whether the lock was held until the end.
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
    /// `None` once it is released or handed on.
    inner: Option<crate::Guard>,
    name: LockName,
}

impl Guard {
    pub(super) fn new(inner: crate::Guard) -> Self {
        Self { name: inner.name().clone(), inner: Some(inner) }
    }

    /// The name of the lock.
    pub fn name(&self) -> &LockName {
        &self.name
    }

    /// The fencing token of this grant, as [`crate::Guard::token`].
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) if the store's protocol has no tokens.
    pub fn token(&self) -> Result<Token> {
        self.held()?.token()
    }

    /// For how long the lock is certain to be held without another renewal. Zero if it is lost. Local, no I/O.
    pub fn remaining(&self) -> Duration {
        self.inner.as_ref().map_or(Duration::ZERO, crate::Guard::remaining)
    }

    /// Checks that the lock is still held. Local, no I/O.
    ///
    /// # Errors
    /// [`ErrorKind::Lost`](crate::ErrorKind::Lost), with the reason. A loss is final: acquire the lock again.
    pub fn check(&self) -> Result<()> {
        self.held()?.check()
    }

    /// Waits until the lock is lost, no later than its lease ends. For a thread that stops the work of another one.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) in a callback of this module.
    pub fn lost(&self) -> Result<Loss> {
        let held = self.held()?;
        wait(async { Ok(held.lost().await) })
    }

    /// Releases the lock, and reports whether it was held until now. Waits for the store's response.
    ///
    /// # Errors
    /// As [`crate::Guard::release`].
    pub fn release(mut self) -> Result<Released> {
        wait(self.take()?.release())
    }

    /// Releases the lock with a cooldown: no process gets it for `period`, as [`crate::Guard::release_with_cooldown`].
    ///
    /// # Errors
    /// As [`crate::Guard::release_with_cooldown`].
    pub fn release_with_cooldown(mut self, period: Duration) -> Result<Released> {
        wait(self.take()?.release_with_cooldown(period))
    }

    /// Stops the renewals and returns the lock as a [`Ticket`], with which another process can hold it.
    ///
    /// # Errors
    /// As [`crate::Guard::into_ticket`].
    pub fn into_ticket(mut self) -> Result<Ticket> {
        wait(self.take()?.into_ticket())
    }

    pub(super) fn held(&self) -> Result<&crate::Guard> {
        self.inner.as_ref().ok_or_else(released)
    }

    /// The guard, which is then no longer released when `self` is dropped.
    pub(super) fn take(&mut self) -> Result<crate::Guard> {
        self.inner.take().ok_or_else(released)
    }
}

/// Does not happen: what takes the inner guard consumes this one.
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
