//! [`Lock`]: a named lock and its acquisition.

mod repeatable;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::guard::Guard;
use crate::lease::{
    Claim, HeldLock, Holder, HolderInfo, Id, LONGEST_PAUSE, LastError, Nested, PermitQueue, Token, Ttl,
};
use crate::locker::Locker;
use crate::runtime::acquisition::{Acquisition, Request, Wait, unknown_holder};
use crate::runtime::deadlock::{Detector, Held};
use crate::runtime::hand_off::Terms;
use crate::runtime::outage::{Outage, WaitLimit, store_timeout};
use crate::runtime::queue::{OnWait, Queue};
use crate::runtime::renewer::Hold;
use crate::types::{LockName, MAX_HOLD, OnDeadlock, is_unprintable, set_span};
use crate::view::ms;

/// The maximum length of a holder's name and note in a record, in characters.
const MAX_TEXT: usize = 200;

/// The maximum length of the value that a leader advertises, in characters.
pub(crate) const MAX_VALUE: usize = 1_024;

/// A handle to a named lock, with the settings for acquiring it. Cheap to clone.
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
    max_hold: Option<Duration>,
    store_timeout: Option<Duration>,
    holder: Holder,
    on_wait: Option<Arc<OnWait>>,
    /// Whether tasks of this process may pass the lock on among themselves.
    passes_on: bool,
    /// Whether acquisitions ignore the line of waiters.
    barges: bool,
    /// Whether the lock is acquired on behalf of another process.
    for_another: bool,
    /// The queue of this lock, if the lock is one of several permits.
    permit_queue: Option<PermitQueue>,
    /// The first of several permits, and how many permits there are.
    size: Option<(LockName, u64)>,
    /// Why the store does not respond to the current acquisition.
    last_error: LastError,
    /// For how long an acquisition may wait for other processes, if that is limited.
    limit: Option<Duration>,
    /// The locks that the caller holds while it waits for this one.
    holds: Vec<Held>,
    on_deadlock: OnDeadlock,
    /// What another process tells about the locks that it holds.
    nested: Option<Box<Nested>>,
}

impl Lock {
    pub(crate) fn new(locker: Locker, name: String) -> Self {
        Self {
            name,
            ttl: Ttl::DEFAULT.get(),
            lock_delay: Duration::ZERO,
            max_hold: None,
            store_timeout: None,
            last_error: LastError::default(),
            limit: None,
            holds: Vec::new(),
            on_deadlock: OnDeadlock::Fail,
            nested: None,
            holder: locker.holder().clone(),
            on_wait: None,
            passes_on: true,
            barges: false,
            for_another: false,
            permit_queue: None,
            size: None,
            locker,
        }
    }

    /// Sets the lease's time to live, which is how long other processes wait if this one dies. Must be between 500 ms
    /// and 24 h. Defaults to 30 s.
    #[must_use]
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// Sets a note that describes the purpose of the acquisition. Waiters see the note, and so does anyone who inspects
    /// the lock. It is truncated to 200 characters.
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

    /// Sets the value that the holder advertises. If the value is too long, the acquisition fails, because a truncated
    /// URL would be wrong.
    pub(crate) fn value(mut self, value: String) -> Self {
        self.holder.value = Some(value);
        self
    }

    /// Sets how much longer other processes wait after this lease has lapsed, up to 24 h. The delay does not apply
    /// after a release. Use it if the resource does not check fencing tokens and may receive a late write.
    #[must_use]
    pub fn lock_delay(mut self, delay: Duration) -> Self {
        self.lock_delay = delay;
        self
    }

    /// Limits how long the lock is held, from the grant on, however often the lease is renewed. Use it for work that may
    /// hang. Must be at least 500 ms and at most 366 days. Other processes see the limit. ShedLock calls it
    /// `lockAtMostFor`.
    ///
    /// At the limit, the guard is lost ([`LossReason::Limit`](crate::LossReason::Limit)), and the lease is not renewed any
    /// more. The work does not stop by itself: see [`Guard::lost`]. Others get the lock as soon as the guard is released
    /// or dropped, and otherwise when its lease and the [lock delay](Self::lock_delay) have passed. The time is measured
    /// on this machine, like the deadline of a guard; it includes the time of a suspend.
    ///
    /// A [`Ticket`](crate::Ticket) keeps the limit. Each renewal by ticket compares the limit with the time since the
    /// grant on the store's clock, because the clocks of two machines may differ. So a ticket with a limit costs one more
    /// request per renewal, and needs a store that shows this time
    /// ([`HolderInfo::held_for`](crate::HolderInfo::held_for)). With [`for_ticket`](Self::for_ticket), the ttl is not longer
    /// than the limit.
    #[must_use]
    pub fn max_hold(mut self, limit: Duration) -> Self {
        self.max_hold = Some(limit);
        self
    }

    /// Sets how long to retry while the store does not respond. Defaults to 15 s. For an acquisition that waits,
    /// defaults to 5 min as soon as the store has responded once.
    #[must_use]
    pub fn store_timeout(mut self, timeout: Duration) -> Self {
        self.store_timeout = Some(timeout);
        self
    }

    /// Marks the lock as one that will be handed on as a [`Ticket`](crate::Ticket). Other processes then see that the
    /// hold does not depend on a process, and a store that detects dead processes ignores the death of this one.
    #[must_use]
    pub fn for_ticket(mut self) -> Self {
        self.holder.pid = 0;
        self
    }

    /// Sets another process as the holder, as a server does for its clients. Other processes then see `holder`, and a
    /// store that detects dead processes ignores the death of this process. Each text except the value is truncated to
    /// 200 characters. Its [`max_hold_ms`](Holder::max_hold_ms) is shown, but not enforced here.
    #[must_use]
    pub fn on_behalf_of(mut self, holder: Holder) -> Self {
        self.holder = Holder {
            name: kept(&holder.name),
            host: kept(&holder.host),
            note: holder.note.as_deref().map(kept),
            nested: None,
            ..holder
        };
        self.nested = holder.nested;
        self.for_another = true;
        self
    }

    /// Says that the caller holds `guard` until the acquisition ends, and cannot release it before. May be called for
    /// several guards; the first eight count.
    ///
    /// While [`acquire`](Self::acquire) waits, others see which locks the waiter holds
    /// ([`Holder::holds`](crate::Holder::holds)). If the waiters wait for each other in a cycle, all of them log it, and
    /// one fails with [`ErrorKind::Deadlock`](crate::ErrorKind::Deadlock), usually within half a minute
    /// ([`on_deadlock`](Self::on_deadlock)). A wait for the lock of `guard` itself fails at once.
    ///
    /// A waiter with a limit ends by itself, so it is in no cycle. Neither are waiters for permits and for shared holds,
    /// and claims that [barge](Self::barge). Cycles are found in one store, if it has
    /// [tokens](crate::lease::Capabilities::tokens) and [keeps a line](crate::lease::Capabilities::fifo).
    ///
    /// ```
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// let locker = leasehold::Locker::open("mem:").await?;
    /// let outer = locker.lock("a").acquire().await?;
    /// let inner = locker.lock("b").while_holding(&outer).acquire().await?;
    /// # drop((inner, outer));
    /// # Ok::<_, leasehold::Error>(()) }).unwrap();
    /// ```
    #[must_use]
    pub fn while_holding(mut self, guard: &Guard) -> Self {
        let opened = self.locker.opened().clone();
        self.holds.extend(guard.held().filter(|(store, _)| store.is_same(&opened)).map(|(_, held)| held));
        self
    }

    /// Like [`while_holding`](Self::while_holding), for a lock of this store that another process holds until this
    /// acquisition ends: one that has started this process and waits for its end. The `token` is that of its guard.
    #[must_use]
    pub fn while_other_holds(mut self, lock: LockName, token: Token) -> Self {
        self.holds.push(Held { lock: HeldLock { name: lock, token }, over: None });
        self
    }

    /// Sets what happens if the acquisition is in a cycle of waiters. See [`while_holding`](Self::while_holding).
    #[must_use]
    pub fn on_deadlock(mut self, action: OnDeadlock) -> Self {
        self.on_deadlock = action;
        self
    }

    /// Makes acquisitions ignore the line of waiters. They take the lock as soon as it is free, even if other processes
    /// have waited for longer, and do not join the line. By default, on stores that
    /// [have a line](crate::lease::Capabilities::fifo), processes get the lock in the order in which they joined it.
    /// Has no effect on etcd.
    #[must_use]
    pub fn barge(mut self) -> Self {
        self.barges = true;
        self
    }

    /// Calls `callback` whenever a waiting acquisition learns which process holds the lock. Useful for progress
    /// displays and logs.
    #[must_use]
    pub fn on_wait(mut self, callback: impl Fn(&HolderInfo) + Send + Sync + 'static) -> Self {
        self.on_wait = Some(Arc::new(callback));
        self
    }

    /// Acquires the lock, waiting for as long as it takes.
    ///
    /// Tasks of one process that wait for the same lock are served in the order of their arrival. To the store, they
    /// are a single contender. Tasks with the same settings in one tokio runtime pass the lock on among themselves
    /// without a request, each with a higher token. After a while, other processes get a turn. (On etcd, the tasks of all
    /// processes wait in one line instead.)
    ///
    /// Cancel safe: dropping the future leaves nothing held. A grant that arrives later is released in the background,
    /// or lapses.
    ///
    /// # Errors
    /// Returns [`ErrorKind::Invalid`] if the name or a setting is invalid, or any error from the store.
    ///
    /// [`ErrorKind::Invalid`]: crate::ErrorKind::Invalid
    pub async fn acquire(&self) -> Result<Guard> {
        let claim = self.claim()?;
        let queue = self.queue_of(&claim);
        let terms = (self.passes_on && !claim.detached).then(|| Terms::of(&claim));
        let request = Request { terms, ..self.request(claim, Wait::Yes) };
        Acquisition::enter(request, queue).outcome().await.map(Guard::of)
    }

    /// Acquires the lock like [`acquire`](Self::acquire), but fails with [`ErrorKind::Held`] as soon as the lock is
    /// known to be in a cooldown.
    ///
    /// [`ErrorKind::Held`]: crate::ErrorKind::Held
    pub(crate) async fn acquire_unless_in_cooldown(&self) -> Result<Guard> {
        let claim = self.claim()?;
        let queue = self.queue(&claim.name);
        Acquisition::enter(self.request(claim, Wait::UntilCooldown), queue).outcome().await.map(Guard::of)
    }

    /// Acquires the lock if it is free now, or if its last holder's lease has lapsed.
    ///
    /// If another task of this process is acquiring the lock, this call sends no request. The lock then counts as held.
    /// Its [holder](Error::holder) is unknown until the store has responded to that task.
    ///
    /// Cancel safe, like [`acquire`](Self::acquire).
    ///
    /// # Errors
    /// Returns [`ErrorKind::Held`], with the [holder](Error::holder), if the lock is held. Otherwise, returns the same
    /// errors as [`acquire`](Self::acquire).
    ///
    /// [`ErrorKind::Held`]: crate::ErrorKind::Held
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
                None => unknown_holder(&claim.name),
            }),
        }
    }

    /// Acquires the lock, waiting for other processes for at most `limit`. An attempt that is under way when this time
    /// is over is finished, as by [`try_acquire`](Self::try_acquire).
    ///
    /// On a store without an [order of waiters](crate::lease::Capabilities::fifo), a process whose tasks want the lock
    /// all the time leaves it to other processes from time to time, for up to three seconds. A shorter limit may expire
    /// during such a pause.
    ///
    /// Cancel safe, like [`acquire`](Self::acquire).
    ///
    /// # Errors
    /// Returns [`ErrorKind::Held`], with the [holder](Error::holder), if the lock was not acquired within `limit`.
    /// Returns [`ErrorKind::Unavailable`] if the store fails when `limit` is over, or has not responded within `limit`
    /// and two seconds. Otherwise, returns the same errors as [`acquire`](Self::acquire).
    ///
    /// [`ErrorKind::Held`]: crate::ErrorKind::Held
    /// [`ErrorKind::Unavailable`]: crate::ErrorKind::Unavailable
    pub async fn acquire_within(&self, limit: Duration) -> Result<Guard> {
        self.limited(limit).acquire().await
    }

    /// Runs `body` while holding the lock, and releases it afterwards. The body is dropped as soon as the lease is
    /// lost.
    ///
    /// Cancel safe: dropping the future drops the body and releases the lock in the background.
    ///
    /// # Errors
    /// Returns [`ErrorKind::Lost`] if the lock was lost before it was released, even if the body had ended. Otherwise,
    /// returns the same errors as [`acquire`](Self::acquire).
    ///
    /// ```
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// let locker = leasehold::Locker::open("mem:").await?;
    /// let sum = locker.lock("report").with(async |guard| { guard.remaining(); 40 + 2 }).await?;
    /// assert_eq!(sum, 42);
    /// # Ok::<_, leasehold::Error>(())
    /// # }).unwrap();
    /// ```
    ///
    /// [`ErrorKind::Lost`]: crate::ErrorKind::Lost
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

    /// Prevents the tasks of this process from passing the lock on among themselves, because observers must see each
    /// holder as a separate grant.
    pub(crate) fn not_passed_on(mut self) -> Self {
        self.passes_on = false;
        self
    }

    /// Returns this lock as a permit whose waiters use `queue`.
    pub(crate) fn queued(self, permit_queue: Option<PermitQueue>) -> Self {
        Self { permit_queue, ..self }
    }

    /// Makes the acquisition of `first`, if the lock has this name, record that there are `size` permits.
    pub(crate) fn sized(self, first: LockName, size: u64) -> Self {
        Self { size: Some((first, size)), ..self }
    }

    pub(crate) fn queue_of_permits(&self) -> Option<&PermitQueue> {
        self.permit_queue.as_ref()
    }

    /// Returns the lock of the [`PermitQueue`] called `name`. Its ttl is short because its holder is itself waiting: if
    /// that process dies, the others do not wait for long.
    pub(crate) fn for_queue(&self, name: &LockName) -> Self {
        let (ttl, lock_delay) = (self.ttl.min(LONGEST_PAUSE), Duration::ZERO);
        Self { ttl, lock_delay, max_hold: None, permit_queue: None, ..self.renamed(name).not_passed_on() }
    }

    /// Returns whether `held` names this process or no holder.
    pub(crate) fn is_of_this_process(&self, held: &HolderInfo) -> bool {
        let identity = |holder: &Holder| (holder.name.clone(), holder.host.clone(), holder.pid);
        held.holder.as_ref().is_none_or(|holder| identity(holder) == identity(&self.holder))
    }

    /// Returns whether acquisitions ignore the line of waiters.
    pub(crate) fn barges(&self) -> bool {
        self.barges
    }

    /// Returns the callback for waiting acquisitions.
    pub(crate) fn on_waiting(&self) -> Option<&OnWait> {
        self.on_wait.as_deref()
    }

    /// Returns the lock called `name` with the same settings.
    pub(crate) fn renamed(&self, name: &LockName) -> Self {
        // Permits have no cycles: a waiter takes any of them.
        Self { name: name.to_string(), holds: Vec::new(), nested: None, ..self.clone() }
    }

    /// Returns the lock with the holds of `outer`, which waiters tell others.
    pub(crate) fn holding_like(self, outer: &Self) -> Self {
        Self { holds: outer.holds.clone(), nested: outer.nested.clone(), ..self }
    }

    /// Adds a callback that runs whenever a waiting acquisition learns which process holds the lock.
    pub(crate) fn noting(&self, note: impl Fn(&HolderInfo) + Send + Sync + 'static) -> Self {
        let on_wait = self.on_wait.clone();
        self.clone().on_wait(move |held| {
            note(held);
            if let Some(on_wait) = &on_wait {
                on_wait(held);
            }
        })
    }

    /// Returns the lock without its limit, which others still see, and the limit.
    pub(crate) fn without_limit(mut self) -> (Self, Option<Duration>) {
        self.ttl = self.lease();
        let limit = self.max_hold.take();
        self.holder.max_hold_ms = limit.map(ms).or(self.holder.max_hold_ms);
        (self, limit)
    }

    pub(crate) fn locker(&self) -> &Locker {
        &self.locker
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn checked_name(&self) -> Result<LockName> {
        Ok(LockName::new(&self.name)?)
    }

    /// Checks that the settings are valid. Returns the name.
    pub(crate) fn checked(&self) -> Result<LockName> {
        Ok(self.claim()?.name)
    }

    /// Returns the ttl of the leases. That of a ticket is not longer than its limit, after which it would only keep others
    /// waiting: nothing releases the lock then.
    fn lease(&self) -> Duration {
        self.max_hold.filter(|_| self.is_detached()).map_or(self.ttl, |limit| self.ttl.min(limit))
    }

    /// Returns whether the hold does not depend on this process.
    fn is_detached(&self) -> bool {
        self.for_another || self.holder.pid == 0
    }

    fn claim(&self) -> Result<Claim> {
        if self.lock_delay > Ttl::MAX {
            return Err(Error::invalid(format!(
                "lock delay {} is out of range (maximum 24h)",
                set_span(self.lock_delay)
            )));
        }
        // Also the limit that a server only shows.
        let limit = self.max_hold.or(self.holder.max_hold_ms.map(Duration::from_millis));
        if let Some(limit) = limit.filter(|limit| !(Ttl::MIN..=MAX_HOLD).contains(limit)) {
            return Err(Error::invalid(format!(
                "max hold {} is out of range (minimum {}, maximum 366 days)",
                set_span(limit),
                set_span(Ttl::MIN)
            )));
        }
        let characters = self.holder.value.as_ref().map_or(0, |value| value.chars().count());
        if characters > MAX_VALUE {
            let message = format!("the value to advertise has {characters} characters (maximum {MAX_VALUE})");
            return Err(
                Error::invalid(message).with_help("advertise an address and serve larger data from there")
            );
        }
        let ttl = Ttl::new(self.lease())?;
        let env = self.locker.store().env();
        let mut claim = Claim::new(env, self.checked_name()?, ttl, self.holder.clone());
        claim.lock_delay = self.lock_delay;
        claim.holder.max_hold_ms = self.max_hold.map(ms).or(claim.holder.max_hold_ms);
        claim.store_timeout = store_timeout(self.store_timeout, false);
        claim.last_error = self.last_error.clone();
        claim.detached = self.is_detached();
        claim.barges = self.barges;
        claim.permit_queue = self.permit_queue.clone();
        claim.size = self.size.as_ref().filter(|(first, _)| *first == claim.name).map(|(_, size)| *size);
        claim.nested = self.nested.clone().or_else(|| self.nested(claim.id));
        Ok(claim)
    }

    /// Returns what an acquisition with this id tells about the locks that its caller holds.
    fn nested(&self, id: Id) -> Option<Box<Nested>> {
        let holds: Vec<_> = self.holds.iter().map(|held| held.lock.clone()).take(Nested::MAX).collect();
        let tells = !holds.is_empty() && self.limit.is_none() && !self.barges;
        let stays = self.on_deadlock == OnDeadlock::Wait;
        tells.then(|| Box::new(Nested { holds, id, seen: Vec::new(), stays }))
    }

    fn request(&self, claim: Claim, wait: Wait) -> Request {
        let detects = self.nested.is_none() && claim.nested.is_some();
        let now = || self.locker.store().env().now();
        Request {
            detector: detects.then(|| Detector::new(self.holds.clone(), now())),
            opened: self.locker.opened().clone(),
            claim,
            terms: None,
            wait,
            max_hold: self.max_hold,
            on_wait: self.on_wait.clone(),
            store_timeout: self.store_timeout,
            limit: self.wait_limit(self.limit),
        }
    }

    /// Returns the limit of an acquisition that begins now.
    pub(crate) fn wait_limit(&self, limit: Option<Duration>) -> WaitLimit {
        let env = self.locker.store().env();
        WaitLimit { env: env.clone(), began: env.now(), limit }
    }

    /// Starts measuring how long the store has not responded.
    pub(crate) fn outage(&self) -> Outage {
        Outage::new(self.locker.opened(), &self.name, self.store_timeout)
    }

    /// Returns the queue of the waiting `claim`. A waiter that tells which locks it holds has a place of its own in the
    /// line, where others see it.
    fn queue_of(&self, claim: &Claim) -> Arc<Queue<Hold>> {
        if claim.nested.is_some() { Queue::alone() } else { self.queue(&claim.name) }
    }

    fn queue(&self, name: &LockName) -> Arc<Queue<Hold>> {
        self.locker.queues().of(name)
    }

    /// Returns the error for an acquisition of `name` that got no response from the store within `limit`.
    pub(crate) fn unanswered(&self, name: &LockName, limit: Duration) -> Error {
        let limit = self.wait_limit(Some(limit));
        limit.unanswered(name, &self.locker.opened().shown(), self.last_error.get())
    }

    /// Returns this lock with a limit for waiting, and a separate record of the last error.
    pub(crate) fn limited(&self, limit: Duration) -> Self {
        Self { limit: Some(limit), ..self.with_own_last_error() }
    }

    /// Returns the record of the latest error.
    pub(crate) fn last_error(&self) -> &LastError {
        &self.last_error
    }

    /// Returns this lock with a separate record of the last error.
    pub(crate) fn with_own_last_error(&self) -> Self {
        Self { last_error: LastError::default(), ..self.clone() }
    }

    pub(crate) fn report_holder(&self, held: &HolderInfo) {
        if let Some(on_wait) = &self.on_wait {
            on_wait(held);
        }
    }
}

fn kept(text: &str) -> String {
    text.chars().map(|c| if is_unprintable(c) { ' ' } else { c }).take(MAX_TEXT).collect()
}

impl Locker {
    /// Returns the lock called `name`. Sends no request. If the name is invalid, the acquisition fails.
    #[must_use]
    pub fn lock(&self, name: impl Into<String>) -> Lock {
        Lock::new(self.clone(), name.into())
    }
}

impl fmt::Debug for Lock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lock").field("name", &self.name).field("ttl", &self.ttl).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::TestClock;
    use crate::env::Env;
    use crate::lease::StoreOptions;

    #[tokio::test(start_paused = true)]
    async fn copies_of_a_machine_request_with_different_ids() {
        let clock = Arc::new(TestClock::default());
        let id = async || {
            let options = StoreOptions { env: Env::seeded(clock.clone(), 1), ..StoreOptions::default() };
            Locker::open_with("mem:", options).await.unwrap().lock("a").claim().unwrap().id
        };
        let first = id().await;
        assert_eq!(first, id().await);
        clock.suspend(Duration::from_millis(1));
        assert_ne!(first, id().await);
    }
}
