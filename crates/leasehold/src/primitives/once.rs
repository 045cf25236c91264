//! [`OncePer`]: what is to be done once per period, by whichever machine comes first.

use std::time::Duration;

use crate::error::{Error, ErrorKind, Result};
use crate::guard::Guard;
use crate::lease::{Held, Holder, Released, Token};
use crate::lock::Lock;

/// A job that several machines start and that is to run once per period: [`Lock::once_per`].
///
/// The first to be granted the lock runs the job. When that has succeeded, the lock rests until the period is over, and
/// whoever comes meanwhile learns that the job already ran. When it has failed the lock is released, and when its machine
/// dies the lease lapses: another may then run it within the same period.
///
/// The period counts from the grant, on the store's clock: it begins when the job does, and not when that is done. A job
/// that takes longer than its period may run again as soon as it has ended.
///
/// What cannot be promised: that the job *succeeds* only once. One that has done its work and dies, or cannot reach the
/// store, before that is noted runs again.
///
/// ```
/// # use std::time::Duration;
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// use leasehold::{Locker, Once};
///
/// let locker = Locker::open("mem:").await?;
/// let nightly = locker.lock("nightly").once_per(Duration::from_secs(23 * 3600));
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
    rest_after_failure: bool,
}

/// What became of a job that is to run once per period.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "a job that ran may have failed"]
pub enum Once<T, E> {
    /// It ran now, and this is what it said.
    Ran(std::result::Result<T, E>),
    /// It ran before, in this period.
    AlreadyRan(AlreadyRan),
}

/// Whether a job is due.
#[derive(Debug)]
#[must_use = "a guard that is dropped releases its lock"]
pub enum Due {
    /// Now, and by us. To end with [`Guard::rest`] for the period, or with [`Guard::release`] for another try.
    Now(Guard),
    /// Not yet.
    AlreadyRan(AlreadyRan),
}

/// A run that counts for the current period: who, when, and when the next is due, as far as the store tells.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct AlreadyRan {
    /// Who ran it.
    pub by: Option<Holder>,
    /// With which token.
    pub token: Option<Token>,
    /// How long ago it was granted the lock; where the store does not know that, how long ago it ended.
    pub ago: Option<Duration>,
    /// It may run again in so long at the latest.
    pub again_within: Option<Duration>,
}

impl AlreadyRan {
    fn new(held: &Held) -> Self {
        Self {
            by: held.last_holder.clone(),
            token: held.token,
            ago: held.held_for,
            again_within: held.lapses_within,
        }
    }
}

impl Lock {
    /// Something to do once per `period`, from grant to grant: more than zero, at most [`OncePer::LONGEST`]. A bad period is
    /// reported when it is run.
    ///
    /// Only where locks can rest ([`Capabilities::rests`](crate::lease::Capabilities::rests)).
    pub fn once_per(self, period: Duration) -> OncePer {
        OncePer { lock: self, period, rest_after_failure: false }
    }
}

impl OncePer {
    /// The longest period: 366 days.
    pub const LONGEST: Duration = Duration::from_secs(366 * 24 * 60 * 60);

    /// Whether a run that fails counts too: then it is not tried again within its period. Not unless set.
    #[must_use]
    pub fn rest_after_failure(mut self, rests: bool) -> Self {
        self.rest_after_failure = rests;
        self
    }

    /// Runs `body` unless it already ran in this period. Waits while another runs it: when that succeeds, this has
    /// already run; when that fails or dies, it is our turn.
    ///
    /// The body is dropped the moment the lock is lost. An `Err` from it is no error here: see [`Once::Ran`].
    ///
    /// Cancel safe: dropping the future drops the body and releases the lock in the background, so that another may run
    /// it. Dropped after the body is done, it goes on telling the store so in the background.
    ///
    /// # Errors
    /// Before the body ran: [`ErrorKind::Unsupported`] where locks cannot rest, [`ErrorKind::Invalid`] for a bad period,
    /// name or ttl; what the store says. After it: [`ErrorKind::Lost`] when the lock was lost while it ran, and any other
    /// when it succeeded and the store could not be told: the message says that it ran, and may run again.
    pub async fn run<T, E>(
        &self,
        body: impl AsyncFnOnce(&Guard) -> std::result::Result<T, E>,
    ) -> Result<Once<T, E>> {
        self.run_if(self.acquire().await?, body).await
    }

    /// [`run`](Self::run) without waiting for another who runs it.
    ///
    /// Cancel safe, as [`run`](Self::run).
    ///
    /// # Errors
    /// [`ErrorKind::Held`] when another runs it now; otherwise as [`run`](Self::run).
    pub async fn try_run<T, E>(
        &self,
        body: impl AsyncFnOnce(&Guard) -> std::result::Result<T, E>,
    ) -> Result<Once<T, E>> {
        self.run_if(self.try_acquire().await?, body).await
    }

    /// [`run`](Self::run), waiting for at most `limit` for another who runs it. The body may take longer.
    ///
    /// Cancel safe, as [`run`](Self::run).
    ///
    /// # Errors
    /// [`ErrorKind::Held`] when another still ran it when the time was up, [`ErrorKind::Unavailable`] when the store had
    /// said nothing until then; otherwise as [`run`](Self::run).
    pub async fn run_within<T, E>(
        &self,
        limit: Duration,
        body: impl AsyncFnOnce(&Guard) -> std::result::Result<T, E>,
    ) -> Result<Once<T, E>> {
        self.run_if(self.acquire_within(limit).await?, body).await
    }

    /// For those who run it themselves, as [`run`](Self::run) does: acquires the lock if it is due, waiting while another
    /// runs it.
    ///
    /// Cancel safe, as [`Lock::acquire`].
    ///
    /// # Errors
    /// As [`run`](Self::run) before the body.
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
    ///     guard.rest(HOUR).await?;
    /// }
    /// assert!(matches!(hourly.acquire().await?, Due::AlreadyRan(_)));
    /// # Ok::<_, leasehold::Error>(())
    /// # }).unwrap();
    /// ```
    pub async fn acquire(&self) -> Result<Due> {
        self.check()?;
        due(self.lock.acquire_unless_it_rests().await)
    }

    /// [`acquire`](Self::acquire) without waiting. Cancel safe.
    ///
    /// # Errors
    /// [`ErrorKind::Held`] when another runs it now; otherwise as [`acquire`](Self::acquire).
    pub async fn try_acquire(&self) -> Result<Due> {
        self.check()?;
        due(self.lock.try_acquire().await)
    }

    /// [`acquire`](Self::acquire), waiting for at most `limit`. Cancel safe.
    ///
    /// # Errors
    /// As [`run_within`](Self::run_within) before the body.
    pub async fn acquire_within(&self, limit: Duration) -> Result<Due> {
        self.check()?;
        due(self.lock.within(limit, |lock| async move { lock.acquire_unless_it_rests().await }).await)
    }

    /// Whether this can be kept at all, before anything is run.
    fn check(&self) -> Result<()> {
        if self.period.is_zero() || self.period > Self::LONGEST {
            return Err(Error::invalid(format!(
                "a period of {:?} is not one of at most 366 days",
                self.period
            ))
            .with_help("it is the shortest time from one run to the next, more than zero"));
        }
        let capabilities = self.lock.locker().capabilities();
        if !capabilities.rests {
            let message = format!(
                "locks in {} cannot rest, so nothing would tell that a job already ran",
                capabilities.store
            );
            return Err(Error::unsupported(message)
                .with_help("nothing was run; use another store, or this one without protocol=existence"));
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
                return Err(Error::lost(loss).with_help("it was stopped in the middle; it may run again at once"));
            }
            output = body(&guard) => output,
        };
        // Work done after the deadline must not look protected.
        guard.check().map_err(|lost| lost.with_help(MAY_RUN_AGAIN))?;
        if output.is_ok() || self.rest_after_failure {
            self.lay_to_rest(guard).await?;
        } else if let Err(error) = guard.release().await {
            tracing::warn!(%error, "the lock of a job that failed was not released");
        }
        Ok(Once::Ran(output))
    }

    async fn lay_to_rest(&self, guard: Guard) -> Result<()> {
        let name = guard.name().clone();
        let (kind, why) = match guard.rest(self.period).await {
            Ok(Released::Released) => return Ok(()),
            Ok(Released::AlreadyLost) => (ErrorKind::Lost, "the lock was lost before".to_owned()),
            Err(error) => (error.kind(), error.to_string()),
        };
        let message = format!("`{name}` ran, but that could not be noted in the store: {why}");
        Err(Error::new(kind, message).with_help(MAY_RUN_AGAIN))
    }
}

const MAY_RUN_AGAIN: &str = "it ran to its end, and may run again within its period";

fn due(acquired: Result<Guard>) -> Result<Due> {
    match acquired {
        Ok(guard) => Ok(Due::Now(guard)),
        Err(error) => match error.holder() {
            Some(held) if held.resting => Ok(Due::AlreadyRan(AlreadyRan::new(held))),
            _ => Err(error),
        },
    }
}
