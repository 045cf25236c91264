//! Leases: the interface between the stores and the layers above them.
//!
//! [`LeaseStore`] is implemented once for all registers ([`RegisterLeases`](crate::RegisterLeases)), and once for each
//! store that has its own leases. The renewals, the detection of losses and the queues of tasks are not part of it:
//! [`Lock`](crate::Lock) and [`Guard`](crate::Guard) provide them.

mod claim;
mod last_error;
pub(crate) mod limiter;
pub(crate) mod pacing;
mod pauses;
mod permit_queue;
mod place;
mod verdict;
mod watch;

use std::any::Any;
use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::stream::BoxStream;

pub use self::claim::Claim;
pub use self::last_error::LastError;
pub(crate) use self::pauses::{LONGEST_PAUSE, MAX_WAITERS, pause, reservation};
pub(crate) use self::permit_queue::PermitQueue;
pub(crate) use self::place::{Before, Place, Standing};
pub use self::watch::Watch;
use crate::clock::{Deadline, Moment};
use crate::diagnosis::Diagnose;
use crate::env::Env;
use crate::error::{ErrorKind, Fault, StoreError};
use crate::types::LockName;
pub use crate::types::{
    End, Eviction, HeldLock, Holder, HolderInfo, Id, Loss, LossReason, Nested, PastGrant, Secret, State,
    Status, Token, Ttl, Waiter, attempt_limit, deadline, printable,
};

/// The largest number of tokens of one grant.
pub(crate) const MAX_TOKENS: u64 = 1_024;

/// A store that grants leases. For a store with conditional writes, implement [`Register`](crate::Register) instead,
/// which is much smaller: the rules of the protocol are then not yours to write.
///
/// "Held" and "lost" are values, not errors. The store limits the time of each method. Each method resolves unknown
/// outcomes itself, and returns [`StoreError::MaybeApplied`] only if its time runs out first.
///
/// ```
/// use leasehold::lease::{AcquireOutcome, Claim, Holder, Released, Renewal, Ttl};
///
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// let store = leasehold::Locker::open("mem:").await?.store().clone(); // an Arc<dyn LeaseStore>
/// let claim = Claim::new(store.env(), "deploy".parse()?, Ttl::DEFAULT, Holder::this_process());
/// let AcquireOutcome::Granted(mut grant) = store.try_acquire(&claim).await? else { panic!("held") };
/// assert!(matches!(store.renew(&mut grant).await?, Renewal::Renewed));
/// assert_eq!(store.release(&mut grant, None).await?, Released::Released);
/// # Ok::<_, leasehold::Error>(()) }).unwrap();
/// ```
#[async_trait]
pub trait LeaseStore: Any + Watch + Diagnose + fmt::Debug + Send + Sync {
    /// Tries once to acquire the lock. Does not wait for the holder, but resolves the outcome of an earlier request
    /// whose response was lost.
    ///
    /// Idempotent for one claim: a second call with the same claim never deadlocks on the first one. A claim is for one
    /// acquisition. If its grant was evicted or has lapsed, a further call may return [`AcquireOutcome::Lost`].
    ///
    /// Not cancel safe: a call that is dropped may still be granted. Call [`release`](Self::release) to end that grant.
    /// Otherwise it lapses. [`Lock`](crate::Lock) never drops a call.
    ///
    /// # Errors
    /// Returns an error if the store could not be reached for the claim's [`store_timeout`](Claim::store_timeout), or
    /// if it refused the request.
    async fn try_acquire(&self, claim: &Claim) -> Result<AcquireOutcome, StoreError>;

    /// Renews `grant` and updates its deadline. Never takes the lock back from a later grant. A grant from a ticket is
    /// the store's only if both its id and its token are, because anyone can write a ticket.
    ///
    /// Gives up at the grant's deadline. May be called again after an error, and after a call was dropped.
    ///
    /// # Errors
    /// Returns an error if the store did not respond. The grant's deadline is then unchanged.
    async fn renew(&self, grant: &mut Grant) -> Result<Renewal, StoreError>;

    /// Ends `grant`. With `cooldown`, the lock is not granted for that long. May be called again after an error.
    ///
    /// If the grant has no memo and has the id of a claim, this withdraws the claim: it ends a grant that the claim may
    /// have received unnoticed, and gives up the claim's place in the line.
    ///
    /// # Errors
    /// Returns an error if the store did not respond. The lease then lapses.
    async fn release(&self, grant: &mut Grant, cooldown: Option<Duration>) -> Result<Released, StoreError>;

    /// Returns whether the waiting `claim` may have a place in the line that a [`release`](Self::release) must give up
    /// if the claim is withdrawn. By default, returns `true` if the store [keeps a line](Capabilities::fifo) and the
    /// claim waits.
    fn may_have_place(&self, claim: &Claim) -> bool {
        self.capabilities().fifo() && claim.waits
    }

    /// Gives up the place of `claim` in the line. Unlike [`release`](Self::release), this does not end a grant, because
    /// a repetition of the claim elsewhere may hold it.
    ///
    /// # Errors
    /// Returns an error if the store did not respond. The place is then passed over after a while.
    async fn stop_waiting(&self, claim: &Claim) -> Result<(), StoreError> {
        let _ = claim;
        Ok(())
    }

    /// Makes the grant outlive this process. Some stores detect the death of the process. From now on, that death no
    /// longer ends the grant: it lasts until it is released or evicted, or lapses. Called before a grant is handed to
    /// another process.
    ///
    /// # Errors
    /// Returns an error if the store did not respond.
    async fn detach(&self, grant: &mut Grant) -> Result<(), StoreError> {
        let _ = grant;
        Ok(())
    }

    /// Adds the processes with the ids `pids` to the holder of `name`, if the holder is this process.
    ///
    /// A store that [detects dead processes](Capabilities::sees_dead_processes) then considers the holder dead only
    /// when all of them have ended. Does nothing by default, because only the lease counts on other stores.
    ///
    /// # Errors
    /// Returns an error if the store did not respond.
    async fn add_processes(&self, name: &LockName, pids: &[u32]) -> Result<(), StoreError> {
        let _ = (name, pids);
        Ok(())
    }

    /// Ends the grant with `token` by an operator's decision, whichever process holds it. This is a compare-and-set on
    /// the token. `why` says who decided it and for what reason. Stores whose history has a field for it record it.
    ///
    /// # Errors
    /// Returns an error if the store did not respond.
    async fn evict(
        &self,
        name: &LockName,
        token: Token,
        why: Option<&Eviction>,
    ) -> Result<Evicted, StoreError>;

    /// Returns the current state of one lock.
    ///
    /// # Errors
    /// Returns an error if the store did not respond.
    async fn inspect(&self, name: &LockName) -> Result<Status, StoreError>;

    /// Lists the names of all locks that have a record and whose names start with `prefix`, page by page. Retries a
    /// failed page for a while.
    fn list(&self, prefix: &str) -> BoxStream<'_, Result<LockName, StoreError>>;

    /// Creates what the store needs, such as a table or a folder. Does nothing if nothing is needed or everything
    /// exists.
    ///
    /// # Errors
    /// Returns an error if something could not be created.
    async fn init(&self) -> Result<(), StoreError> {
        Ok(())
    }

    /// Deletes the record of `name` if the lock has been free for `older_than` by the store's own clock and its
    /// cooldown is over. With `dry_run`, only determines whether it would delete the record. Tokens still rise after a
    /// delete.
    ///
    /// The delete is conditional: if another process acquires the lock in the meantime, it keeps the lock and its
    /// record. A lock whose holder has died is not free.
    ///
    /// # Errors
    /// - [`ErrorKind::Unsupported`]: the store has no conditional deletes, or its clock must not be used. The default
    ///   implementation returns this error.
    /// - The store did not respond.
    async fn sweep(&self, name: &LockName, older_than: Duration, dry_run: bool) -> Result<Swept, StoreError> {
        let _ = (name, older_than, dry_run);
        Err(self.capabilities().unswept())
    }

    /// Returns the capabilities of this store.
    fn capabilities(&self) -> Capabilities;

    /// Returns the clock and the source of randomness that this store uses.
    fn env(&self) -> &Env;
}

/// A lease that was granted.
///
/// ```
/// use leasehold::lease::{Claim, Grant, Holder, Token, Ttl};
///
/// # let env = leasehold::env::Env::system();
/// # let claim = Claim::new(&env, "deploy".parse()?, Ttl::DEFAULT, Holder::this_process());
/// let sent = env.now(); // before the request that granted it
/// let grant = Grant::new(&claim, Token::new(34).unwrap(), sent);
/// assert!(!grant.deadline.passed(env.now()));
/// # Ok::<(), leasehold::Error>(())
/// ```
#[non_exhaustive]
pub struct Grant {
    /// The name of the lock.
    pub name: LockName,
    /// The fencing token.
    pub token: Token,
    /// The highest token that an earlier grant can have. All tokens above it, up to [`token`](Self::token), belong to
    /// this grant only, now and later. `None` if this is not known, or if the process should not pass the lock on among
    /// its tasks, because each of them has a place in the line.
    pub after: Option<Token>,
    /// The id of the claim that was granted.
    pub id: Id,
    /// The lease's time to live.
    pub ttl: Ttl,
    /// When the lease ends for its holder, unless it is renewed.
    pub deadline: Deadline,
    /// Whether the hold reached its [limit](crate::Lock::max_hold). A release then records [`End::Limit`].
    pub at_limit: bool,
    /// The number of permits in the record of a permit: see [`Capabilities::sizes`]. After a grant, it is the number
    /// that the record has, or `None`. The next renewal or release writes `Some` number into the record (0 removes it),
    /// and `None` keeps the record's.
    pub size: Option<u64>,
    /// What the store needs to renew and release the grant. `None` for a grant that comes from a ticket.
    pub memo: Option<Box<dyn Any + Send + Sync>>,
}

/// The memo of a grant whose release was requested. The release may have taken effect although no response arrived.
#[derive(Debug)]
#[allow(dead_code, reason = "only some stores need it")]
pub(crate) struct ReleaseRequest;

impl Grant {
    /// Creates the grant of `claim` with this `token`. `sent` is when the request was sent that granted it, so its
    /// [`deadline`] counts from there. The other fields are empty.
    ///
    /// With the token 0, a release of this grant withdraws the claim.
    pub fn new(claim: &Claim, token: Token, sent: Moment) -> Self {
        Self { token, ..Self::withdrawn(claim.name.clone(), claim.id, claim.ttl, sent) }
    }

    /// Returns a copy as a process has it that knows only the ticket of this grant: without a memo.
    #[must_use]
    pub fn without_memo(&self) -> Self {
        let Self { token, id, ttl, deadline, .. } = *self;
        let name = self.name.clone();
        Self { name, token, after: None, id, ttl, deadline, at_limit: false, size: None, memo: None }
    }

    /// Creates the grant with which a release withdraws the claim `id`. It has no token and does not count as a grant.
    pub(crate) fn withdrawn(name: LockName, id: Id, ttl: Ttl, now: Moment) -> Self {
        let (token, deadline) = (Token::default(), deadline(ttl, now));
        Self { name, token, after: None, id, ttl, deadline, at_limit: false, size: None, memo: None }
    }

    /// Returns how a release ends this grant.
    pub(crate) const fn end(&self) -> End {
        if self.at_limit { End::Limit } else { End::Released }
    }

    /// Returns the loss for [`AcquireOutcome::Lost`] if this grant's deadline passed before the grant could be
    /// reported.
    #[must_use]
    pub fn came_too_late(&self) -> Loss {
        Loss::new(self.name.clone(), self.token, LossReason::EXPIRED)
    }
}

/// Returns `grant`, unless its deadline passed while its response was under way. In that case the grant is released,
/// unless its claim is repeatable.
pub(crate) async fn in_time(
    store: &impl LeaseStore,
    claim: &Claim,
    mut grant: Grant,
) -> Result<AcquireOutcome, StoreError> {
    if !grant.deadline.passed(store.env().now()) {
        return Ok(AcquireOutcome::Granted(grant));
    }
    // Rule 12: a repetition of the claim may have the same grant on a machine with a slower clock.
    if !claim.repeatable {
        tracing::debug!(lock = %grant.name, token = %grant.token, "granted too late; releasing");
        // The grant is valid, whatever happened to its release.
        let released = store.release(&mut grant, None).await;
        released.map_err(|error| error.if_maybe(true))?;
    }
    Ok(AcquireOutcome::Lost(grant.came_too_late()))
}

/// Returns the secret of the claim `id` for the lock `name`. Fails if the id was read from a store.
pub(crate) fn secret_of(name: &LockName, id: Id) -> Result<Secret, Fault> {
    id.secret().ok_or_else(|| {
        Fault::new(ErrorKind::Invalid, format!("lock `{name}`: the secret of this claim is unknown"))
    })
}

impl fmt::Debug for Grant {
    /// Omits the id and the memo, which tell a reader nothing.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Grant")
            .field("name", &self.name)
            .field("token", &self.token)
            .field("ttl", &self.ttl)
            .field("deadline", &self.deadline)
            .finish_non_exhaustive()
    }
}

/// The result of [`LeaseStore::try_acquire`].
///
/// ```
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// # use leasehold::lease::*; let store = leasehold::Locker::open("mem:").await?.store().clone();
/// # let claim = Claim::new(store.env(), "deploy".parse()?, Ttl::DEFAULT, Holder::this_process());
/// match store.try_acquire(&claim).await? {
///     AcquireOutcome::Granted(grant) => assert_eq!(grant.id, claim.id),
///     AcquireOutcome::Held(seen) => store.turn(&claim, &seen).await?, // then try again
///     AcquireOutcome::Lost(loss) => println!("{loss}"),               // then make a new claim
/// }
/// # Ok::<_, leasehold::Error>(()) }).unwrap();
/// ```
#[derive(Debug)]
pub enum AcquireOutcome {
    /// The claim holds the lock until the grant's deadline.
    Granted(Grant),
    /// Another claim holds the lock, or the lock is in a cooldown.
    Held(HolderInfo),
    /// The claim may have been granted, but this became known too late: another claim has been granted the lock since,
    /// or the grant came too late to be used. A late grant was released, unless the claim is repeatable. A new claim
    /// may be granted at once.
    Lost(Loss),
}

/// The result of [`LeaseStore::renew`].
///
/// ```
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// # use leasehold::lease::*; let store = leasehold::Locker::open("mem:").await?.store().clone();
/// # let claim = Claim::new(store.env(), "deploy".parse()?, Ttl::DEFAULT, Holder::this_process());
/// # let AcquireOutcome::Granted(mut grant) = store.try_acquire(&claim).await? else { panic!("held") };
/// store.evict(&grant.name, grant.token, None).await?;
/// match store.renew(&mut grant).await? {
///     Renewal::Renewed => println!("held until {:?}", grant.deadline),
///     Renewal::Lost(loss) => assert_eq!(loss.reason, LossReason::Ended),
/// }
/// # Ok::<_, leasehold::Error>(()) }).unwrap();
/// ```
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "only one value exists at a time, and only briefly")]
pub enum Renewal {
    /// The lease was renewed, and the grant's deadline is later.
    Renewed,
    /// The lock was lost. This is final.
    Lost(Loss),
}

/// The result of [`LeaseStore::release`].
///
/// ```
/// # tokio::runtime::Runtime::new().unwrap().block_on(async { let locker = leasehold::Locker::open("mem:").await?;
/// let guard = locker.lock("report").acquire().await?;
/// locker.evict(guard.name(), guard.token()?).await?; // an operator decided so
/// assert_eq!(guard.release().await?, leasehold::Released::AlreadyLost);
/// # Ok::<_, leasehold::Error>(()) }).unwrap();
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Released {
    /// The lock was held until now, and is released.
    Released,
    /// The lock had already been lost.
    AlreadyLost,
}

/// The result of [`LeaseStore::evict`].
///
/// ```
/// # tokio::runtime::Runtime::new().unwrap().block_on(async { let locker = leasehold::Locker::open("mem:").await?;
/// let guard = locker.lock("deploy").acquire().await?;
/// assert_eq!(locker.evict(guard.name(), guard.token()?).await?, leasehold::Evicted::Evicted);
/// assert_eq!(locker.evict(guard.name(), guard.token()?).await?, leasehold::Evicted::Changed);
/// # Ok::<_, leasehold::Error>(()) }).unwrap();
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Evicted {
    /// The grant with that token has ended.
    Evicted,
    /// The lock was not held with that token.
    Changed,
}

/// The result of [`LeaseStore::sweep`].
///
/// ```
/// # use leasehold::{LockName, Locker, Swept}; use std::time::Duration;
/// # tokio::runtime::Runtime::new().unwrap().block_on(async { let locker = Locker::open("mem:").await?;
/// let (guard, name) = (locker.lock("batch/7").acquire().await?, LockName::new("batch/7")?);
/// assert_eq!(locker.sweep(&name, Duration::ZERO, false).await?, Swept::Kept); // it is held
/// guard.release().await?;
/// assert_eq!(locker.sweep(&name, Duration::from_secs(3600), false).await?, Swept::Kept); // not free for an hour
/// # Ok::<_, leasehold::Error>(()) }).unwrap();
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Swept {
    /// The record was deleted, or with `dry_run` would be.
    Deleted,
    /// The record was kept, or there is none: the lock is held, is in a cooldown, has not been free for long enough by
    /// the store's clock, or was granted less than about four seconds ago (except on PostgreSQL and Redis).
    Kept,
}

/// How often a waiter may poll.
///
/// ```
/// # use std::time::Duration; use leasehold::lease::{Capabilities, PollInterval};
/// let poll_interval = PollInterval { min: Duration::from_millis(200), max: Duration::from_secs(5) };
/// assert_eq!(Capabilities::new("my store", poll_interval).poll_interval, poll_interval);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PollInterval {
    /// The shortest pause before a poll.
    pub min: Duration,
    /// The longest pause. If a lock stays free for longer than this, every waiter sees it free.
    pub max: Duration,
}

/// The capabilities of a store. They are shown to users and select conformance cases.
///
/// ```
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// let capabilities = leasehold::Locker::open("mem:").await?.capabilities();
/// assert!(capabilities.tokens && capabilities.fifo() && !capabilities.watches);
/// assert_eq!(capabilities.to_string(), "fencing tokens, cooldowns, history, waiters in order of arrival");
/// # Ok::<_, leasehold::Error>(()) }).unwrap();
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Capabilities {
    /// The name of the kind of store, for people: `S3`, `SQLite`.
    pub store: &'static str,
    /// Whether grants have fencing tokens.
    pub tokens: bool,
    /// Where the store keeps the line of waiters, for people: `the object NAME.line`. `None` if waiters of different
    /// processes get a lock in no order.
    pub line: Option<&'static str>,
    /// Whether processes that wait for any of several permits get them in the order of their arrival.
    pub permits_in_order: bool,
    /// Whether this order needs a [`PermitQueue`]. Otherwise a waiter has a place in the line of each permit.
    pub(crate) queues_permits: bool,
    /// Whether another process can take over at once if the holder's process dies on the same machine.
    pub sees_dead_processes: bool,
    /// Whether waiters are notified of a release and do not poll.
    pub watches: bool,
    /// Whether a release can start a cooldown.
    pub cooldowns: bool,
    /// Whether [`LeaseStore::inspect`] reports earlier grants.
    pub history: bool,
    /// Whether the records of locks keep the number of permits of a semaphore, and of readers of a readers-writer lock.
    /// Otherwise clients with different numbers get no error: see [`Semaphore`](crate::Semaphore).
    pub sizes: bool,
    /// How often a waiter polls.
    pub poll_interval: PollInterval,
}

impl Capabilities {
    /// Creates the capabilities of a store with tokens, cooldowns and a history, and without the other capabilities.
    pub const fn new(store: &'static str, poll_interval: PollInterval) -> Self {
        Self {
            store,
            tokens: true,
            line: None,
            permits_in_order: false,
            queues_permits: false,
            sees_dead_processes: false,
            watches: false,
            cooldowns: true,
            history: true,
            sizes: false,
            poll_interval,
        }
    }

    /// Returns the error for a store without sweeps.
    pub(crate) fn unswept(&self) -> StoreError {
        let message = format!("records in {} cannot be swept", self.store);
        Fault::new(ErrorKind::Unsupported, message).not_applied()
    }

    /// Returns whether waiters of different processes get a lock in the order of their arrival.
    pub const fn fifo(&self) -> bool {
        self.line.is_some()
    }
}

impl fmt::Display for Capabilities {
    /// Lists the capabilities on one line, for people: `fencing tokens, cooldowns, history`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let can = [
            (self.tokens, "fencing tokens"),
            (self.cooldowns, "cooldowns"),
            (self.history, "history"),
            (self.sees_dead_processes, "takeover at once when a process dies"),
            (self.watches, "waiters do not poll"),
            (self.fifo(), "waiters in order of arrival"),
        ];
        let can: Vec<_> = can.iter().filter(|(can, _)| *can).map(|(_, what)| *what).collect();
        f.write_str(&can.join(", "))
    }
}

/// Settings that every store understands, from its URL or from code.
///
/// ```
/// # use leasehold::{ErrorKind, LockName, Locker, lease::StoreOptions};
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// let mut options = StoreOptions::default();
/// options.store_clock = false; // as `mem:?store_clock=off`
/// let locker = Locker::open_with("mem:", options).await?;
/// let swept = locker.sweep(&LockName::new("batch/7")?, std::time::Duration::ZERO, false).await;
/// assert_eq!(swept.unwrap_err().kind(), ErrorKind::Unsupported); // it needs the store's clock
/// # Ok::<_, leasehold::Error>(()) }).unwrap();
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct StoreOptions {
    /// The clock and the source of randomness.
    pub env: Env,
    /// Whether the lease of a dead holder may end by the store's own clock. With `store_clock=off`, it ends by
    /// observation only.
    pub store_clock: bool,
    /// By how much the store's clock may differ between two of its responses (`margin=5s`).
    pub margin: Duration,
    /// How long opening the store keeps trying a store that does not respond. Most stores send their first request
    /// later, and then the limit of the operation counts, such as [`Lock::store_timeout`](crate::Lock::store_timeout).
    pub open_timeout: Duration,
}

impl Default for StoreOptions {
    fn default() -> Self {
        Self {
            env: Env::system(),
            store_clock: true,
            margin: Duration::from_secs(5),
            open_timeout: Claim::DEFAULT_STORE_TIMEOUT,
        }
    }
}
