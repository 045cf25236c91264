//! [`Lock`]: a named lock, and how to acquire it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::clock::timeout;
use crate::error::{Error, ErrorKind, Result};
use crate::guard::Guard;
use crate::lease::{Claim, Holder, HolderInfo, StoreTrouble, Ttl};
use crate::locker::Locker;
use crate::runtime::acquisition::{Acquisition, Request, Wait};
use crate::runtime::hand_off::Terms;
use crate::runtime::outage::{Outage, store_timeout};
use crate::runtime::queue::{OnWait, Queue};
use crate::runtime::renewer::Hold;
use crate::runtime::task;
use crate::types::{LockName, is_unprintable};

/// The longest name and note of a holder that are written into a record, in characters.
const MAX_TEXT: usize = 200;

/// The longest value that a leader can advertise, in characters.
pub(crate) const MAX_VALUE: usize = 1_024;

/// A named lock: a handle that is cheap to clone, and the settings to acquire it with.
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
    /// Why the store does not answer the acquisition under way.
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
            locker,
        }
    }

    /// The lease's time to live: how long others wait after this process died. 500 ms to 24 h, 30 s unless set.
    #[must_use]
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// What this acquisition is for: shown to those who wait. At most 200 characters are kept.
    #[must_use]
    pub fn note(mut self, note: impl Into<String>) -> Self {
        self.holder.note = Some(kept(&note.into()));
        self
    }

    /// The holder's name that others are shown, in place of the user's.
    #[must_use]
    pub fn owner(mut self, name: impl Into<String>) -> Self {
        self.holder.name = kept(&name.into());
        self
    }

    /// What the holder advertises. Too long a value is refused by the acquisition: a URL that was cut is wrong.
    pub(crate) fn value(mut self, value: String) -> Self {
        self.holder.value = Some(value);
        self
    }

    /// How much longer others wait after this lease lapses (never after a release), up to 24 h: for resources that check
    /// no fencing token and may still get a late write.
    #[must_use]
    pub fn lock_delay(mut self, delay: Duration) -> Self {
        self.lock_delay = delay;
        self
    }

    /// How long to keep trying a store that does not answer. Unless set, 15 s; and 5 min for an acquisition that waits, once
    /// the store has answered it.
    #[must_use]
    pub fn store_timeout(mut self, timeout: Duration) -> Self {
        self.store_timeout = Some(timeout);
        self
    }

    /// For a lock that is to be handed on as a [`Ticket`](crate::Ticket): others are told that no process has to live for
    /// it, and a store that sees processes die takes no notice of this one's end.
    #[must_use]
    pub fn for_ticket(mut self) -> Self {
        self.holder.pid = 0;
        self
    }

    /// Calls `tell` whenever an acquisition that waits learns who has the lock: for progress displays and logs.
    #[must_use]
    pub fn on_wait(mut self, tell: impl Fn(&HolderInfo) + Send + Sync + 'static) -> Self {
        self.on_wait = Some(Arc::new(tell));
        self
    }

    /// Acquires the lock, waiting for as long as it takes.
    ///
    /// Tasks of one process that wait for one lock are served in the order of their arrival, and are one contender at
    /// the store. Those that want it with the same settings pass it on among themselves, each with a higher token, and the
    /// store is not asked; after a while other processes are let in. (Not on etcd, which keeps a line for all.)
    ///
    /// Cancel safe: dropping the future leaves nothing held. A grant that arrives late is released in the background, or
    /// lapses.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for a bad name or ttl; what the store says.
    pub async fn acquire(&self) -> Result<Guard> {
        let claim = self.claim()?;
        let queue = self.queue(&claim.name);
        let terms = (self.hands_on && !claim.detached).then(|| Terms::of(&claim));
        let request = Request { terms, ..self.request(claim, Wait::Yes) };
        Acquisition::enter(request, queue).outcome().await.map(Guard::of)
    }

    /// [`acquire`](Self::acquire), but [`ErrorKind::Held`] as soon as the lock is known to rest.
    pub(crate) async fn acquire_unless_it_rests(&self) -> Result<Guard> {
        let claim = self.claim()?;
        let queue = self.queue(&claim.name);
        Acquisition::enter(self.request(claim, Wait::UntilCooldown), queue).outcome().await.map(Guard::of)
    }

    /// Acquires the lock if it is free now, or its last holder's lease has lapsed.
    ///
    /// While another task of this process acquires the lock, the store is not asked a second time: the lock counts as held,
    /// by a [holder](Error::holder) that is unknown until the store has answered that task.
    ///
    /// Cancel safe, as [`acquire`](Self::acquire).
    ///
    /// # Errors
    /// [`ErrorKind::Held`], with [who has it](Error::holder); [`ErrorKind::Invalid`] for a bad name or ttl; what the store
    /// says.
    pub async fn try_acquire(&self) -> Result<Guard> {
        let claim = self.claim()?;
        let queue = self.queue(&claim.name);
        match queue.try_turn() {
            Some(turn) => {
                let request = self.request(claim, Wait::No);
                Acquisition::in_turn(request, queue, turn).outcome().await.map(Guard::of)
            }
            // A task of this process has it, or is before us.
            None => Err(match queue.seen() {
                Some(held) => Error::held(&claim.name, held),
                None => Error::held_as(
                    format!("lock `{}` is being acquired by another task of this process", claim.name),
                    HolderInfo::default(),
                )
                .with_help("who has it is not known: the store has not answered that task yet"),
            }),
        }
    }

    /// Acquires the lock, waiting for at most `limit`.
    ///
    /// While tasks of this process want it all the time, it is left to other processes now and then, for up to three
    /// seconds: with a shorter limit, that can be the time in which it is not to be had.
    ///
    /// Cancel safe, as [`acquire`](Self::acquire).
    ///
    /// # Errors
    /// [`ErrorKind::Held`] when the time was up, with [who has it](Error::holder), or [`ErrorKind::Unavailable`] when the
    /// store had said nothing until then; otherwise as [`acquire`](Self::acquire).
    pub async fn acquire_within(&self, limit: Duration) -> Result<Guard> {
        self.within(limit, |lock| async move { lock.acquire().await }).await
    }

    /// `acquire`, for at most `limit`. In a task, so that the limit holds also when the caller does not poll.
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
                // With the acquisition, the turn is given up, and with it what is known of the holder: not before this.
                None => match queue.seen() {
                    Some(held) => Err(Error::held(&name, held)),
                    None => Err(lock.unanswered(&name, limit)),
                },
            }
        })
        .await
    }

    /// Runs `body` while holding the lock, and releases it afterwards. The body is dropped the moment the lease is lost.
    ///
    /// Cancel safe: dropping the future drops the body and releases the lock in the background.
    ///
    /// # Errors
    /// [`ErrorKind::Lost`] when the lock was lost before the body was done; otherwise as [`acquire`](Self::acquire).
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
        // Work done after the deadline must not look protected.
        guard.check()?;
        if let Err(error) = guard.release().await {
            tracing::warn!(lock = %self.name, %error, "the lock was not released");
        }
        Ok(output)
    }

    /// Never passed on among the tasks of this process: each holder is another grant at the store, as those who observe
    /// it have to see.
    pub(crate) fn not_handed_on(mut self) -> Self {
        self.hands_on = false;
        self
    }

    /// What those are told who wait for it.
    pub(crate) fn on_waiting(&self) -> Option<&OnWait> {
        self.on_wait.as_deref()
    }

    /// Another lock with the same settings.
    pub(crate) fn renamed(&self, name: &LockName) -> Self {
        Self { name: name.to_string(), ..self.clone() }
    }

    /// What else is to be done whenever an acquisition that waits learns who has the lock.
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

    /// Whether it can be asked for as it is.
    pub(crate) fn checked(&self) -> Result<LockName> {
        Ok(self.claim()?.name)
    }

    fn claim(&self) -> Result<Claim> {
        if self.lock_delay > Ttl::MAX {
            return Err(Error::invalid(format!("a lock delay of {:?} is longer than 24h", self.lock_delay)));
        }
        let characters = self.holder.value.as_ref().map_or(0, |value| value.chars().count());
        if characters > MAX_VALUE {
            let message =
                format!("the value to advertise has {characters} characters, and at most {MAX_VALUE} fit");
            return Err(
                Error::invalid(message).with_help("advertise an address, and serve the rest from there")
            );
        }
        let ttl = Ttl::new(self.ttl)?;
        let mut claim = Claim::new(self.locker.store().env(), self.checked_name()?, ttl, self.holder.clone());
        claim.lock_delay = self.lock_delay;
        claim.store_timeout = store_timeout(self.store_timeout, false);
        claim.trouble = self.trouble.clone();
        claim.detached = self.holder.pid == 0;
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
        }
    }

    /// Counts from now for how long the store is silent.
    pub(crate) fn outage(&self) -> Outage {
        Outage::new(self.locker.opened(), &self.name, self.store_timeout)
    }

    fn queue(&self, name: &LockName) -> Arc<Queue<Hold>> {
        self.locker.queues().of(name)
    }

    /// The error of an acquisition of `name` that got no answer from the store within `limit`.
    pub(crate) fn unanswered(&self, name: &LockName, limit: Duration) -> Error {
        let store = self.locker.opened().shown();
        let mut message = format!("lock `{name}`: no answer from {store} within {limit:.1?}");
        if let Some(cause) = self.trouble.cause() {
            message.push_str(&format!(": {cause}"));
        }
        Error::new(ErrorKind::Unavailable, message)
    }

    /// This lock, for an acquisition whose trouble with the store is its own.
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
    /// The lock called `name`. Sends nothing; a bad name is reported by the acquisition.
    pub fn lock(&self, name: impl Into<String>) -> Lock {
        Lock::new(self.clone(), name.into())
    }
}

impl fmt::Debug for Lock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lock").field("name", &self.name).field("ttl", &self.ttl).finish_non_exhaustive()
    }
}
