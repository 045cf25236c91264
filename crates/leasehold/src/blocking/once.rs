//! [`OncePer`]: a job that several machines start and one of them runs, once per period.

use std::time::Duration;

use super::guard::Guard;
use super::thread::wait;
use crate::error::Result;
use crate::primitives::{AlreadyRan, Once};

/// A job that several machines start and that runs once per period. See [`crate::OncePer`].
///
/// ```
/// use std::time::Duration;
/// use leasehold::{Once, blocking::Locker};
///
/// let nightly = Locker::open("mem:")?.lock("nightly").once_per(Duration::from_secs(12 * 3600));
/// for _ in 0..2 {
///     match nightly.run(|_guard| Ok::<_, std::io::Error>("report sent"))? {
///         Once::Ran(Ok(done)) => println!("{done}"),
///         Once::Ran(Err(error)) => println!("failed, and may be tried again: {error}"),
///         Once::AlreadyRan(ran) => println!("not due for {:?}", ran.again_within),
///     }
/// }
/// # Ok::<_, leasehold::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct OncePer(crate::OncePer);

/// Whether a job is due. See [`crate::Due`].
///
/// ```
/// use std::time::Duration;
/// use leasehold::blocking::{Due, Locker};
///
/// const HOUR: Duration = Duration::from_secs(3600);
/// let hourly = Locker::open("mem:")?.lock("hourly").once_per(HOUR);
/// if let Due::Now(guard) = hourly.acquire()? {
///     guard.check()?; // ... the work ...
///     guard.release_with_cooldown(HOUR)?;
/// }
/// assert!(matches!(hourly.acquire()?, Due::AlreadyRan(_)));
/// # Ok::<_, leasehold::Error>(())
/// ```
#[derive(Debug)]
#[must_use = "a guard that is dropped releases its lock"]
pub enum Due {
    /// The job is due, and this process holds the lock. When the work is done, call [`Guard::release_with_cooldown`]
    /// with the period, or [`Guard::release`] to allow another attempt.
    Now(Guard),
    /// The job is not due yet.
    AlreadyRan(AlreadyRan),
}

impl Due {
    fn new(due: crate::Due) -> Self {
        match due {
            crate::Due::Now(guard) => Self::Now(Guard::new(guard)),
            crate::Due::AlreadyRan(ran) => Self::AlreadyRan(ran),
        }
    }
}

impl OncePer {
    /// The maximum period: 366 days.
    pub const LONGEST: Duration = crate::OncePer::LONGEST;

    pub(super) fn new(job: crate::OncePer) -> Self {
        Self(job)
    }

    /// Sets whether a failed run also counts. See [`crate::OncePer::cooldown_after_failure`].
    #[must_use]
    pub fn cooldown_after_failure(self, cooldown: bool) -> Self {
        Self(self.0.cooldown_after_failure(cooldown))
    }

    /// Runs `body` unless the job already ran in this period. Waits while another process runs the job.
    ///
    /// If the lock is lost, the body is not stopped. See [`Guard::check`].
    ///
    /// # Errors
    /// Returns the same errors as [`crate::OncePer::run`].
    pub fn run<T, E>(&self, body: impl FnOnce(&Guard) -> std::result::Result<T, E>) -> Result<Once<T, E>> {
        self.run_if(self.acquire()?, body)
    }

    /// Runs `body` like [`run`](Self::run), but does not wait for another process that runs the job.
    ///
    /// # Errors
    /// Returns the same errors as [`crate::OncePer::try_run`].
    pub fn try_run<T, E>(
        &self,
        body: impl FnOnce(&Guard) -> std::result::Result<T, E>,
    ) -> Result<Once<T, E>> {
        self.run_if(self.try_acquire()?, body)
    }

    /// Runs `body` like [`run`](Self::run), but waits for another process that runs the job for at most `limit`.
    ///
    /// # Errors
    /// Returns the same errors as [`crate::OncePer::run_within`].
    pub fn run_within<T, E>(
        &self,
        limit: Duration,
        body: impl FnOnce(&Guard) -> std::result::Result<T, E>,
    ) -> Result<Once<T, E>> {
        self.run_if(self.acquire_within(limit)?, body)
    }

    /// Acquires the lock if the job is due. Waits while another process runs the job.
    ///
    /// # Errors
    /// Returns the same errors as [`crate::OncePer::acquire`].
    pub fn acquire(&self) -> Result<Due> {
        wait(self.0.acquire()).map(Due::new)
    }

    /// Acquires the lock like [`acquire`](Self::acquire), but without waiting.
    ///
    /// # Errors
    /// Returns the same errors as [`crate::OncePer::try_acquire`].
    pub fn try_acquire(&self) -> Result<Due> {
        wait(self.0.try_acquire()).map(Due::new)
    }

    /// Acquires the lock like [`acquire`](Self::acquire), waiting for at most `limit`.
    ///
    /// # Errors
    /// Returns the same errors as [`crate::OncePer::acquire_within`].
    pub fn acquire_within(&self, limit: Duration) -> Result<Due> {
        wait(self.0.acquire_within(limit)).map(Due::new)
    }

    fn run_if<T, E>(
        &self,
        due: Due,
        body: impl FnOnce(&Guard) -> std::result::Result<T, E>,
    ) -> Result<Once<T, E>> {
        let mut guard = match due {
            Due::Now(guard) => guard,
            Due::AlreadyRan(ran) => return Ok(Once::AlreadyRan(ran)),
        };
        let output = body(&guard);
        let guard = guard.take()?;
        wait(self.0.conclude(guard, output.is_ok()))?;
        Ok(Once::Ran(output))
    }
}
