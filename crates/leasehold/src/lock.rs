//! [`Lock`]: a named lock, and how to acquire it.

mod repeatable;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::clock::timeout;
use crate::error::{Error, ErrorKind, Result};
use crate::guard::Guard;
use crate::lease::{Claim, Holder, HolderInfo, LONGEST_PAUSE, PermitQueue, StoreTrouble, Ttl};
use crate::locker::Locker;
use crate::runtime::acquisition::{Acquisition, Request, Wait};
use crate::runtime::hand_off::Terms;
use crate::runtime::outage::{Outage, store_timeout};
use crate::runtime::queue::{OnWait, Queue};
use crate::runtime::renewer::Hold;
use crate::runtime::task;
use crate::types::{LockName, is_unprintable};

/// The maximum length of a holder's name and note in a record, in characters.
const MAX_TEXT: usize = 200;

/// The maximum length of the value that a leader advertises, in characters.
pub(crate) const MAX_VALUE: usize = 1_024;

/// A named lock: a cheaply cloned handle, with the settings for acquiring it.
///
/// ```
/// # use std::time::Duration;
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// let locker = leasehold::Locker::open("mem:").await?;
/// let lock = locker.lock("deploy/prod").ttl(Duration::from_secs(30)).note("make deploy");
/// let guard = lock.acquire().await?;
/// assert!(lock.try_acquire().await.is_err());
/// guard.release().await?;
/// # Ok::<_, leasehold::Error>(())
/// # }).unwrap();
/// ```
#[derive(Clone)]
pub struct Lock {
    locker: Locker,
    name: String,
    ttl: Duration,
    lock_delay: Duration,
    store_timeout: Option<Duration>,
    holder: Holder,
    on_wait: Option<Arc<OnWait>>,
    /// Whether tasks of this process may pass the lock on among themselves.
    hands_on: bool,
    /// Whether acquisitions ignore the line of waiters.
    barges: bool,
    /// Whether the lock is for a process that leasehold does not see here.
    for_another: bool,
    /// The queue of this lock, if it is one of several permits.
    permit_queue: Option<PermitQueue>,
    /// Why the store does not respond to the current acquisition.
    trouble: StoreTrouble,
}

impl Lock {
    pub(crate) fn new(locker: Locker, name: String) -> Self {
        Self {
            name,
            ttl: Ttl::DEFAULT.get(),
            lock_delay: Duration::ZERO,
            store_timeout: None,
            trouble: StoreTrouble::default(),
            holder: locker.holder().clone(),
            on_wait: None,
            hands_on: true,
            barges: false,
            for_another: false,
            permit_queue: None,
            locker,
        }
    }

    /// Sets the lease's time to live: how long other processes wait if this one dies. Between 500 ms and 24 h;
    /// defaults to 30 s.
    #[must_use]
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// Describes the purpose of this acquisition. Waiters and inspection show it. At most 200 characters are kept.
    #[must_use]
    pub fn note(mut self, note: impl Into<String>) -> Self {
        self.holder.note = Some(kept(&note.into()));
        self
    }

    /// Sets the holder's name that other processes see. Defaults to the user's name.
    #[must_use]
    pub fn owner(mut self, name: impl Into<String>) -> Self {
        self.holder.name = kept(&name.into());
        self
    }

    /// Sets the value that the holder advertises. If the value is too long, the acquisition fails: a truncated URL would
    /// be wrong.
    pub(crate) fn value(mut self, value: String) -> Self {
        self.holder.value = Some(value);
        self
    }

    /// Sets how much longer other processes wait after this lease has lapsed (never after a release), up to 24 h. Use this
    /// if the resource does not check fencing tokens and may receive a late write.
    #[must_use]
    pub fn lock_delay(mut self, delay: Duration) -> Self {
        self.lock_delay = delay;
        self
    }

    /// Sets how long to keep trying a store that does not respond. Defaults to 15 s, and to 5 min for an acquisition
    /// that waits once the store has responded to it.
    #[must_use]
    pub fn store_timeout(mut self, timeout: Duration) -> Self {
        self.store_timeout = Some(timeout);
        self
    }

    /// Marks the lock as one that will be passed on as a [`Ticket`](crate::Ticket): other processes see that no
    /// process needs to live for it, and a store that notices the death of processes ignores the end of this one.
    #[must_use]
    pub fn for_ticket(mut self) -> Self {
        self.holder.pid = 0;
        self
    }

    /// Acquires the lock for another process, as a server does for its clients: other processes see `holder`, and a store
    /// that notices the death of processes ignores the end of this one. At most 200 characters of each text are kept,
    /// other than of the value.
    #[must_use]
    pub fn on_behalf_of(mut self, holder: Holder) -> Self {
        self.holder = Holder {
            name: kept(&holder.name),
            host: kept(&holder.host),
            note: holder.note.as_deref().map(kept),
            ..holder
        };
        self.for_another = true;
        self
    }

    /// Takes the lock as soon as it is free, even if other processes have waited for longer, and takes no place in the
    /// line of waiters. By default, processes get the lock in the order in which they joined the line, on stores that
    /// [have one](crate::lease::Capabilities::fifo). Has no effect on etcd.
    #[must_use]
    pub fn barge(mut self) -> Self {
        self.barges = true;
        self
    }

    /// Calls `tell` whenever a waiting acquisition learns which process holds the lock, for progress displays and logs.
    #[must_use]
    pub fn on_wait(mut self, tell: impl Fn(&HolderInfo) + Send + Sync + 'static) -> Self {
        self.on_wait = Some(Arc::new(tell));
        self
    }

    /// Acquires the lock. Waits without a limit.
    ///
    /// Tasks of one process that wait for the same lock are served in the order of their arrival, and are one
    /// contender at the store. Tasks with the same settings pass the lock on among themselves without a request, each
    /// with a higher token. After a while, other processes get a turn. (Not on etcd, where the tasks of all processes are
    /// in one queue.)
    ///
    /// Cancel safe: dropping the future leaves nothing held. A grant that arrives later is released in the background,
    /// or lapses.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for a bad name or ttl; the store's errors.
    pub async fn acquire(&self) -> Result<Guard> {
        let claim = self.claim()?;
        let queue = self.queue(&claim.name);
        let terms = (self.hands_on && !claim.detached).then(|| Terms::of(&claim));
        let request = Request { terms, ..self.request(claim, Wait::Yes) };
        Acquisition::enter(request, queue).outcome().await.map(Guard::of)
    }

    /// Like [`acquire`](Self::acquire), but fails with [`ErrorKind::Held`] as soon as the lock is known to rest.
    pub(crate) async fn acquire_unless_it_rests(&self) -> Result<Guard> {
        let claim = self.claim()?;
        let queue = self.queue(&claim.name);
        Acquisition::enter(self.request(claim, Wait::UntilCooldown), queue).outcome().await.map(Guard::of)
    }

    /// Acquires the lock if it is free now, or its last holder's lease has lapsed.
    ///
    /// While another task of this process acquires the lock, no second request is sent. The lock then counts as held,
    /// by a [holder](Error::holder) that is unknown until the store has responded to that task.
    ///
    /// Cancel safe, as [`acquire`](Self::acquire).
    ///
    /// # Errors
    /// [`ErrorKind::Held`], with the [holder](Error::holder); [`ErrorKind::Invalid`] for a bad name or ttl; the
    /// store's errors.
    pub async fn try_acquire(&self) -> Result<Guard> {
        let claim = self.claim()?;
        let queue = self.queue(&claim.name);
        match queue.try_turn() {
            Some(turn) => {
                let request = self.request(claim, Wait::No);
                Acquisition::in_turn(request, queue, turn).outcome().await.map(Guard::of)
            }
            // A task of this process holds the lock or is ahead in the queue.
            None => Err(match queue.seen() {
                Some(held) => Error::held(&claim.name, held),
                None => self.unknown_holder(&claim.name),
            }),
        }
    }

    /// Acquires the lock, waiting for at most `limit`.
    ///
    /// On a store without an [order of waiters](crate::lease::Capabilities::fifo), a process whose tasks want the lock all
    /// the time leaves it to other processes now and then, for up to three seconds. A shorter limit may end during such a
    /// time.
    ///
    /// Cancel safe, as [`acquire`](Self::acquire).
    ///
    /// # Errors
    /// [`ErrorKind::Held`] after the time limit, with the [holder](Error::holder), or [`ErrorKind::Unavailable`] if
    /// the store had not responded by then; otherwise as [`acquire`](Self::acquire).
    pub async fn acquire_within(&self, limit: Duration) -> Result<Guard> {
        self.within(limit, |lock| async move { lock.acquire().await }).await
    }

    /// Runs `acquire` for at most `limit`, in a task, so that the limit applies even if the caller does not poll.
    pub(crate) async fn within<F>(
        &self,
        limit: Duration,
        acquire: impl FnOnce(Self) -> F + Send + 'static,
    ) -> Result<Guard>
    where
        F: Future<Output = Result<Guard>> + Send + 'static,
    {
        let lock = self.with_own_trouble();
        let name = lock.checked_name()?;
        let queue = lock.queue(&name);
        let env = lock.locker.store().env().clone();
        let mut acquisition = Box::pin(acquire(lock.clone()));
        task::run(async move {
            match timeout(&*env.clock, limit, acquisition.as_mut()).await {
                Some(outcome) => outcome,
                // Dropping the acquisition gives up its turn and what is known about the holder, so this comes first.
                None => match queue.seen() {
                    Some(held) => Err(Error::held(&name, held)),
                    None => Err(lock.unanswered(&name, limit)),
                },
            }
        })
        .await
    }

    /// Runs `body` while holding the lock, and releases it afterwards. The body is dropped as soon as the lease is
    /// lost.
    ///
    /// Cancel safe: dropping the future drops the body and releases the lock in the background.
    ///
    /// # Errors
    /// [`ErrorKind::Lost`] if the lock was lost before it was released, even if the body had ended; otherwise as
    /// [`acquire`](Self::acquire).
    ///
    /// ```
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// let locker = leasehold::Locker::open("mem:").await?;
    /// let sum = locker.lock("report").with(async |guard| { guard.remaining(); 40 + 2 }).await?;
    /// assert_eq!(sum, 42);
    /// # Ok::<_, leasehold::Error>(())
    /// # }).unwrap();
    /// ```
    pub async fn with<T>(&self, body: impl AsyncFnOnce(&Guard) -> T) -> Result<T> {
        let guard = self.acquire().await?;
        let output = tokio::select! {
            biased;
            loss = guard.lost() => return Err(Error::lost(loss)),
            output = body(&guard) => output,
        };
        guard.release_held().await?;
        Ok(output)
    }

    /// The lock is never passed on among the tasks of this process: observers must see each holder as a separate
    /// grant.
    pub(crate) fn not_handed_on(mut self) -> Self {
        self.hands_on = false;
        self
    }

    /// This lock as a permit whose waiters have a `queue`.
    pub(crate) fn queued(self, queue: Option<PermitQueue>) -> Self {
        Self { permit_queue: queue, ..self }
    }

    pub(crate) fn queue_of_permits(&self) -> Option<&PermitQueue> {
        self.permit_queue.as_ref()
    }

    /// The lock of the [`PermitQueue`] called `name`. Its ttl is short, because its holder waits: if that process dies, the
    /// others need not wait for long.
    pub(crate) fn for_queue(&self, name: &LockName) -> Self {
        let (ttl, lock_delay) = (self.ttl.min(LONGEST_PAUSE), Duration::ZERO);
        Self { ttl, lock_delay, permit_queue: None, ..self.renamed(name).not_handed_on() }
    }

    /// Whether `held` names this process, or no holder.
    pub(crate) fn is_of_this_process(&self, held: &HolderInfo) -> bool {
        let identity = |holder: &Holder| (holder.name.clone(), holder.host.clone(), holder.pid);
        held.holder.as_ref().is_none_or(|holder| identity(holder) == identity(&self.holder))
    }

    /// Whether acquisitions ignore the line of waiters.
    pub(crate) fn barges(&self) -> bool {
        self.barges
    }

    /// The callback for waiting acquisitions.
    pub(crate) fn on_waiting(&self) -> Option<&OnWait> {
        self.on_wait.as_deref()
    }

    /// Another lock with the same settings.
    pub(crate) fn renamed(&self, name: &LockName) -> Self {
        Self { name: name.to_string(), ..self.clone() }
    }

    /// Adds a callback for each time a waiting acquisition learns which process holds the lock.
    pub(crate) fn noting(&self, note: impl Fn(&HolderInfo) + Send + Sync + 'static) -> Self {
        let on_wait = self.on_wait.clone();
        self.clone().on_wait(move |held| {
            note(held);
            if let Some(on_wait) = &on_wait {
                on_wait(held);
            }
        })
    }

    pub(crate) fn locker(&self) -> &Locker {
        &self.locker
    }

    pub(crate) fn checked_name(&self) -> Result<LockName> {
        Ok(LockName::new(&self.name)?)
    }

    /// Checks that the settings are valid. Returns the name.
    pub(crate) fn checked(&self) -> Result<LockName> {
        Ok(self.claim()?.name)
    }

    fn claim(&self) -> Result<Claim> {
        if self.lock_delay > Ttl::MAX {
            return Err(Error::invalid(format!(
                "lock delay {:?} is out of range (maximum 24h)",
                self.lock_delay
            )));
        }
        let characters = self.holder.value.as_ref().map_or(0, |value| value.chars().count());
        if characters > MAX_VALUE {
            let message = format!("the value to advertise has {characters} characters (maximum {MAX_VALUE})");
            return Err(
                Error::invalid(message).with_help("advertise an address and serve larger data from there")
            );
        }
        let ttl = Ttl::new(self.ttl)?;
        let mut claim = Claim::new(self.locker.store().env(), self.checked_name()?, ttl, self.holder.clone());
        claim.lock_delay = self.lock_delay;
        claim.store_timeout = store_timeout(self.store_timeout, false);
        claim.trouble = self.trouble.clone();
        claim.detached = self.for_another || self.holder.pid == 0;
        claim.barges = self.barges;
        claim.queue = self.permit_queue.clone();
        Ok(claim)
    }

    fn request(&self, claim: Claim, wait: Wait) -> Request {
        Request {
            opened: self.locker.opened().clone(),
            claim,
            terms: None,
            wait,
            on_wait: self.on_wait.clone(),
            store_timeout: self.store_timeout,
            began: self.locker.store().env().now(),
        }
    }

    /// Starts to measure how long the store does not respond.
    pub(crate) fn outage(&self) -> Outage {
        Outage::new(self.locker.opened(), &self.name, self.store_timeout)
    }

    fn queue(&self, name: &LockName) -> Arc<Queue<Hold>> {
        self.locker.queues().of(name)
    }

    /// The error of an acquisition of `name` without a response from the store within `limit`.
    pub(crate) fn unanswered(&self, name: &LockName, limit: Duration) -> Error {
        let store = self.locker.opened().shown();
        let mut message = format!("lock `{name}`: no response from {store} within {limit:.1?}");
        if let Some(cause) = self.trouble.cause() {
            message.push_str(&format!(": {cause}"));
        }
        Error::new(ErrorKind::Unavailable, message)
    }

    /// This lock, with a separate record of the store's trouble.
    pub(crate) fn with_own_trouble(&self) -> Self {
        Self { trouble: StoreTrouble::default(), ..self.clone() }
    }

    pub(crate) fn tell(&self, held: &HolderInfo) {
        if let Some(on_wait) = &self.on_wait {
            on_wait(held);
        }
    }
}

fn kept(text: &str) -> String {
    text.chars().map(|c| if is_unprintable(c) { ' ' } else { c }).take(MAX_TEXT).collect()
}

impl Locker {
    /// The lock named `name`. Sends no request; the acquisition reports an invalid name.
    pub fn lock(&self, name: impl Into<String>) -> Lock {
        Lock::new(self.clone(), name.into())
    }
}

impl fmt::Debug for Lock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lock").field("name", &self.name).field("ttl", &self.ttl).finish_non_exhaustive()
    }
}
