//! [`OncePer`]: a job that several machines start and one of them runs, once per period.

use std::time::Duration;

use crate::error::{Error, ErrorKind, Result};
use crate::guard::Guard;
use crate::lease::{Holder, HolderInfo, Released, Token};
use crate::lock::Lock;
use crate::types::{MAX_HOLD, set_span};

/// A job that several machines start and that runs once per period. Created by [`Lock::once_per`].
///
/// The first machine that is granted the lock runs the job. If the job succeeds, the lock is released with a cooldown
/// until the period is over, and the other machines learn that the job already ran. If the job fails, the lock is
/// released. If its machine dies, the lease lapses. In both cases, another machine may run the job within the same
/// period.
///
/// The period is measured on the store's clock, from the grant: it begins when the job begins, not when the job ends. A
/// job that takes longer than its period may run again as soon as it has ended.
///
/// A job may *succeed* more than once. If a machine dies or cannot reach the store after the work is done but before
/// the run is recorded, the job runs again.
///
/// ```
/// # use std::time::Duration;
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// use leasehold::{Locker, Once};
///
/// let locker = Locker::open("mem:").await?;
/// let nightly = locker.lock("nightly").once_per(Duration::from_secs(12 * 3600));
/// for _ in 0..2 {
///     match nightly.run(async |_guard| Ok::<_, std::io::Error>("report sent")).await? {
///         Once::Ran(Ok(done)) => println!("{done}"),
///         Once::Ran(Err(error)) => println!("failed, and may be tried again: {error}"),
///         Once::AlreadyRan(ran) => println!("not due for {:?}", ran.again_within),
///     }
/// }
/// # Ok::<_, leasehold::Error>(())
/// # }).unwrap();
/// ```
#[derive(Clone, Debug)]
pub struct OncePer {
    lock: Lock,
    period: Duration,
    cooldown_after_failure: bool,
}

/// The result of a job that runs once per period.
///
/// ```
/// # use std::time::Duration;
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// use leasehold::{Locker, Once};
///
/// let hourly = Locker::open("mem:").await?.lock("hourly").once_per(Duration::from_secs(3600));
/// match hourly.run(async |_guard| Err::<(), _>("the disk is full")).await? {
///     Once::Ran(Ok(())) => println!("done"),
///     Once::Ran(Err(error)) => assert_eq!(error, "the disk is full"), // may run again at once
///     Once::AlreadyRan(ran) => println!("not due for {:?}", ran.again_within),
/// }
/// let second = hourly.run(async |_guard| Ok::<_, std::io::Error>(42)).await?;
/// assert!(matches!(second, Once::Ran(Ok(42))));
/// # Ok::<_, leasehold::Error>(())
/// # }).unwrap();
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "a job that ran may have failed"]
pub enum Once<T, E> {
    /// This call ran the job, with this result.
    Ran(std::result::Result<T, E>),
    /// The job already ran in this period.
    AlreadyRan(AlreadyRan),
}

/// Whether a job is due.
///
/// ```
/// # use std::time::Duration;
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// use leasehold::{Due, Locker};
///
/// let hourly = Locker::open("mem:").await?.lock("hourly").once_per(Duration::from_secs(3600));
/// match hourly.acquire().await? {
///     Due::Now(guard) => {
///         guard.check()?; // ... the work ...
///         guard.release_with_cooldown(Duration::from_secs(3600)).await?;
///     }
///     Due::AlreadyRan(ran) => println!("not due for {:?}", ran.again_within),
/// }
/// assert!(matches!(hourly.acquire().await?, Due::AlreadyRan(_)));
/// # Ok::<_, leasehold::Error>(())
/// # }).unwrap();
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

/// The run of the current period and the time of the next one, as reported by the store.
///
/// ```
/// # use std::time::Duration;
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// use leasehold::{Locker, Once};
///
/// let nightly = Locker::open("mem:").await?.lock("nightly").owner("ci-7");
/// let nightly = nightly.once_per(Duration::from_secs(12 * 3600));
/// let first = nightly.run(async |_guard| Ok::<_, std::io::Error>(())).await?;
/// assert!(matches!(first, Once::Ran(Ok(()))));
///
/// let second = nightly.run(async |_guard| Ok::<_, std::io::Error>(())).await?;
/// let Once::AlreadyRan(ran) = second else { panic!("it ran twice") };
/// println!("it ran {:?} ago, and is due within {:?}", ran.ago, ran.again_within);
/// assert_eq!(ran.by.unwrap().name, "ci-7");
/// # Ok::<_, leasehold::Error>(())
/// # }).unwrap();
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct AlreadyRan {
    /// The process that ran the job.
    pub by: Option<Holder>,
    /// The token of the run.
    pub token: Option<Token>,
    /// The time since the lock was granted for the run. If the store does not record that, the time since the run
    /// ended.
    pub ago: Option<Duration>,
    /// The longest time until the job may run again.
    pub again_within: Option<Duration>,
}

impl AlreadyRan {
    fn new(held: &HolderInfo) -> Self {
        Self {
            by: held.last_holder.clone(),
            token: held.token,
            ago: held.held_for,
            again_within: held.lapses_within,
        }
    }
}

impl Lock {
    /// Returns a job that runs once per `period`, measured from grant to grant. The period must be greater than zero
    /// and at most [`OncePer::LONGEST`]. If it is invalid, the job fails when it is run.
    ///
    /// Requires a store with cooldowns ([`Capabilities::cooldowns`](crate::lease::Capabilities::cooldowns)).
    #[must_use]
    pub fn once_per(self, period: Duration) -> OncePer {
        OncePer { lock: self, period, cooldown_after_failure: false }
    }
}

impl OncePer {
    /// The maximum period: 366 days.
    pub const LONGEST: Duration = MAX_HOLD;

    /// Sets whether a failed run also counts, so that the job is not tried again within its period. Defaults to
    /// `false`.
    #[must_use]
    pub fn cooldown_after_failure(mut self, cooldown: bool) -> Self {
        self.cooldown_after_failure = cooldown;
        self
    }

    /// Runs `body` unless the job already ran in this period.
    ///
    /// Waits while another process runs the job. If that run succeeds, returns [`Once::AlreadyRan`]. If it fails or its
    /// process dies, runs the job.
    ///
    /// The body is dropped as soon as the lock is lost. An `Err` from the body is not an error of this method. See
    /// [`Once::Ran`].
    ///
    /// Cancel safe: dropping the future drops the body and releases the lock in the background, so that another process
    /// may run the job. If the future is dropped after the body has ended, the run is still recorded in the background.
    ///
    /// # Errors
    /// Before the body runs:
    ///
    /// - [`ErrorKind::Unsupported`]: the store has no cooldowns.
    /// - [`ErrorKind::Invalid`]: the period, the name or the ttl is invalid.
    /// - Any error from the store.
    ///
    /// After the body has started:
    ///
    /// - [`ErrorKind::Lost`]: the lock was lost while the body ran.
    /// - Any other kind: the body succeeded, but the run could not be recorded in the store. The message says that the
    ///   job ran and may run again.
    pub async fn run<T, E>(
        &self,
        body: impl AsyncFnOnce(&Guard) -> std::result::Result<T, E>,
    ) -> Result<Once<T, E>> {
        self.run_if(self.acquire().await?, body).await
    }

    /// Runs `body` like [`run`](Self::run), but does not wait for another process that runs the job.
    ///
    /// Cancel safe, like [`run`](Self::run).
    ///
    /// # Errors
    /// Returns [`ErrorKind::Held`] if another process is running the job. Otherwise, returns the same errors as
    /// [`run`](Self::run).
    pub async fn try_run<T, E>(
        &self,
        body: impl AsyncFnOnce(&Guard) -> std::result::Result<T, E>,
    ) -> Result<Once<T, E>> {
        self.run_if(self.try_acquire().await?, body).await
    }

    /// Runs `body` like [`run`](Self::run), but waits for another process that runs the job for at most `limit`. The
    /// limit does not apply to the body.
    ///
    /// Cancel safe, like [`run`](Self::run).
    ///
    /// # Errors
    /// - [`ErrorKind::Held`]: another process was still running the job after `limit`.
    /// - [`ErrorKind::Unavailable`]: the store did not respond within `limit`.
    /// - Otherwise, the same errors as [`run`](Self::run).
    pub async fn run_within<T, E>(
        &self,
        limit: Duration,
        body: impl AsyncFnOnce(&Guard) -> std::result::Result<T, E>,
    ) -> Result<Once<T, E>> {
        self.run_if(self.acquire_within(limit).await?, body).await
    }

    /// Acquires the lock if the job is due. Waits while another process runs the job. Use this instead of
    /// [`run`](Self::run) if your code cannot be written as a closure.
    ///
    /// Cancel safe, like [`Lock::acquire`].
    ///
    /// # Errors
    /// Returns the same errors as [`run`](Self::run) before the body runs.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// use leasehold::{Due, Locker};
    ///
    /// const HOUR: Duration = Duration::from_secs(3600);
    /// let hourly = Locker::open("mem:").await?.lock("hourly").once_per(HOUR);
    /// if let Due::Now(guard) = hourly.acquire().await? {
    ///     guard.check()?; // ... the work ...
    ///     guard.release_with_cooldown(HOUR).await?;
    /// }
    /// assert!(matches!(hourly.acquire().await?, Due::AlreadyRan(_)));
    /// # Ok::<_, leasehold::Error>(())
    /// # }).unwrap();
    /// ```
    pub async fn acquire(&self) -> Result<Due> {
        self.check()?;
        due(self.lock.acquire_unless_in_cooldown().await)
    }

    /// Acquires the lock like [`acquire`](Self::acquire), but without waiting. Cancel safe.
    ///
    /// # Errors
    /// Returns [`ErrorKind::Held`] if another process is running the job. Otherwise, returns the same errors as
    /// [`acquire`](Self::acquire).
    pub async fn try_acquire(&self) -> Result<Due> {
        self.check()?;
        due(self.lock.try_acquire().await)
    }

    /// Acquires the lock like [`acquire`](Self::acquire), waiting for at most `limit`. Cancel safe.
    ///
    /// # Errors
    /// Returns the same errors as [`run_within`](Self::run_within) before the body runs.
    pub async fn acquire_within(&self, limit: Duration) -> Result<Due> {
        self.check()?;
        due(self.lock.limited(limit).acquire_unless_in_cooldown().await)
    }

    /// Checks the period and the store before anything runs.
    fn check(&self) -> Result<()> {
        if self.period.is_zero() || self.period > Self::LONGEST {
            return Err(Error::invalid(format!(
                "period {} is out of range (more than 0, at most 366 days)",
                set_span(self.period)
            ))
            .with_help("the period is the minimum time between the grants of two runs"));
        }
        let capabilities = self.lock.locker().capabilities();
        if !capabilities.cooldowns {
            let message =
                format!("locks in {} have no cooldown, so a run cannot be recorded", capabilities.store);
            return Err(Error::unsupported(message)
                .with_help("nothing was run; use another store, or remove protocol=existence from the URL"));
        }
        Ok(())
    }

    async fn run_if<T, E>(
        &self,
        due: Due,
        body: impl AsyncFnOnce(&Guard) -> std::result::Result<T, E>,
    ) -> Result<Once<T, E>> {
        let guard = match due {
            Due::Now(guard) => guard,
            Due::AlreadyRan(ran) => return Ok(Once::AlreadyRan(ran)),
        };
        let output = tokio::select! {
            biased;
            loss = guard.lost() => {
                return Err(Error::lost(loss)
                    .with_help("the job was stopped before it finished; it may run again at once"));
            }
            output = body(&guard) => output,
        };
        self.conclude(guard, output.is_ok()).await?;
        Ok(Once::Ran(output))
    }

    /// Records a completed run, or releases the lock for another attempt.
    pub(crate) async fn conclude(&self, guard: Guard, succeeded: bool) -> Result<()> {
        // Work that ended after the deadline must not look protected.
        guard.check().map_err(|lost| lost.with_help(MAY_RUN_AGAIN))?;
        if succeeded || self.cooldown_after_failure {
            self.record_run(guard).await
        } else {
            guard.release_held().await.map_err(|lost| lost.with_help(MAY_RUN_AGAIN))
        }
    }

    async fn record_run(&self, guard: Guard) -> Result<()> {
        let name = guard.name().clone();
        let (kind, why) = match guard.release_with_cooldown(self.period).await {
            Ok(Released::Released) => return Ok(()),
            Ok(Released::AlreadyLost) => (ErrorKind::Lost, "the lock had already been lost".to_owned()),
            Err(error) => (error.kind(), error.to_string()),
        };
        let message = format!("`{name}` ran, but the run could not be recorded in the store: {why}");
        Err(Error::new(kind, message).with_help(MAY_RUN_AGAIN))
    }
}

const MAY_RUN_AGAIN: &str = "the job has ended, but may run again within its period";

fn due(acquired: Result<Guard>) -> Result<Due> {
    match acquired {
        Ok(guard) => Ok(Due::Now(guard)),
        Err(error) => match error.holder() {
            Some(held) if held.in_cooldown => Ok(Due::AlreadyRan(AlreadyRan::new(held))),
            _ => Err(error),
        },
    }
}
