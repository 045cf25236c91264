//! [`Guard`]: a held lock.

mod size;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{join_all, select_all, try_join_all};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use crate::clock::Deadline;
use crate::error::{Error, ErrorKind, Result};
use crate::lease::{Grant, HeldLock, Loss, LossReason, Released, Token};
use crate::runtime::deadlock::Held;
use crate::runtime::limit::Limit;
use crate::runtime::open_store::OpenStore;
use crate::runtime::renewer::{Command, Hold, RenewerHandle, bind, keep};
use crate::runtime::task;
use crate::ticket::Ticket;
use crate::types::LockName;

/// A held lock. Its lease is renewed in the background for as long as this value exists, by the tokio runtime in which
/// the lock was acquired. If that runtime shuts down, the lock is held until its [`deadline`](Self::deadline).
///
/// The guard detects a loss before another process can be granted the lock, even if the network is down. Call
/// [`check`](Self::check) before each step that must not be done twice, or await [`lost`](Self::lost).
///
/// No lock can stop a process that is paused between the check and the step. Send the [`token`](Self::token) with every
/// write, and let the resource refuse lower tokens. The token also protects the resource in two rare cases:
///
/// - A virtual machine is paused together with its clocks. Right after the pause, `check()` may succeed although the
///   lease is over. The next renewal detects the loss.
/// - A running process is copied (a live snapshot). Both copies consider the lock held until one of them renews it.
///
/// Dropping a guard invalidates it at once and releases the lock in the background, without blocking. Outside a
/// runtime, the lease lapses instead. Prefer [`release`](Self::release), which reports whether the lock was held until
/// the end.
///
/// ```
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// let locker = leasehold::Locker::open("mem:").await?;
/// let guard = locker.lock("report").acquire().await?;
/// println!("writing with token {}", guard.token()?);
/// guard.check()?; // local, no I/O
/// guard.release().await?;
/// # Ok::<_, leasehold::Error>(())
/// # }).unwrap();
/// ```
#[must_use = "a guard that is dropped releases its lock"]
pub struct Guard {
    /// The other locks of a hold of several locks. They are lost with this one.
    parts: Vec<Guard>,
    /// Whether the parts are locks of their own, which the caller named, and not the permits of an exclusive hold.
    are_named: bool,
    hold: Hold,
}

impl Guard {
    /// Creates a guard that keeps `grant`, the grant of a ticket, until `limit` at the latest. Must be called within a
    /// tokio runtime.
    pub(crate) fn new(opened: Arc<OpenStore>, grant: Grant, limit: Option<Limit>) -> Self {
        // Only the acquisition knows the lock delay.
        Self::of(keep(opened, grant, limit, None, None, false))
    }

    pub(crate) fn of(hold: Hold) -> Self {
        Self { parts: Vec::new(), are_named: false, hold }
    }

    /// Returns one guard of locks that are held together: it is held only while all of them are held. `None` without a
    /// guard. `are_named` is whether the caller named each lock.
    pub(crate) fn together(guards: Vec<Self>, are_named: bool) -> Option<Self> {
        let mut guards = guards.into_iter();
        let first = guards.next()?;
        let parts: Vec<_> = guards.collect();
        if parts.is_empty() {
            return Some(first);
        }
        let mut whole = first;
        (whole.parts, whole.are_named) = (parts, are_named);
        bind(whole.each().map(|guard| guard.hold.state.clone()).collect());
        Some(whole)
    }

    /// Returns this guard, followed by the guards of its parts.
    fn each(&self) -> impl Iterator<Item = &Guard> {
        std::iter::once(self).chain(&self.parts)
    }

    /// Returns the names of all locks that this guard holds, including the permits of an exclusive hold.
    pub(crate) fn all_names(&self) -> impl Iterator<Item = &LockName> {
        self.each().map(|guard| &guard.hold.lock.name)
    }

    /// Returns the guards of the locks that the caller named.
    fn named(&self) -> impl Iterator<Item = &Guard> {
        std::iter::once(self).chain(self.parts.iter().filter(|_| self.are_named))
    }

    /// Returns the names of the locks, in the order in which they were acquired. There is one, except for
    /// [`Locks`](crate::Locks).
    pub fn names(&self) -> impl Iterator<Item = &LockName> {
        self.named().map(|guard| &guard.hold.lock.name)
    }

    /// Returns the name of the lock, or of the first of several locks.
    pub fn name(&self) -> &LockName {
        &self.hold.lock.name
    }

    /// Returns the locks of this hold, as waiters tell that they hold them, with the store of each.
    pub(crate) fn held(&self) -> impl Iterator<Item = (&OpenStore, Held)> {
        let with_token = self.each().map(|guard| &guard.hold).filter(|hold| hold.capabilities.tokens);
        with_token.map(|hold| {
            let lock = HeldLock { name: hold.lock.name.clone(), token: hold.granted };
            (&*hold.opened, Held { lock, over: Some(hold.state.over()) })
        })
    }

    /// Returns the fencing token, which is greater than the token of every earlier grant of this lock.
    ///
    /// # Errors
    /// Returns [`ErrorKind::Unsupported`] if the store's protocol has no tokens
    /// ([`Capabilities::tokens`](crate::lease::Capabilities::tokens)), or if the guard holds
    /// [several locks](crate::Locks), each of which has its own token: see [`tokens`](Self::tokens).
    pub fn token(&self) -> Result<Token> {
        if self.are_named {
            let message = format!("a hold of {} locks has no single token", self.parts.len() + 1);
            return Err(
                Error::unsupported(message).with_help("use the token of the lock that protects the resource")
            );
        }
        self.own_token()
    }

    /// Returns the fencing token of each lock, by its name.
    ///
    /// # Errors
    /// Returns [`ErrorKind::Unsupported`] if the store's protocol has no tokens
    /// ([`Capabilities::tokens`](crate::lease::Capabilities::tokens)).
    pub fn tokens(&self) -> Result<BTreeMap<LockName, Token>> {
        self.named().map(|guard| Ok((guard.name().clone(), guard.own_token()?))).collect()
    }

    fn own_token(&self) -> Result<Token> {
        if self.hold.capabilities.tokens {
            return Ok(self.hold.lock.token);
        }
        let message = format!("locks in {} have no fencing tokens", self.hold.capabilities.store);
        Err(Error::unsupported(message).with_help("docs/stores lists the protocols with tokens"))
    }

    /// Returns how long the lock is certain to be held without another renewal. Returns zero if the lock was lost.
    /// Local, no I/O.
    pub fn remaining(&self) -> Duration {
        self.each().map(|guard| guard.hold.state.remaining()).min().unwrap_or_default()
    }

    /// Returns a function that does what [`remaining`](Self::remaining) does, for tasks that do not own the guard. Once
    /// the guard has ended, the function returns zero.
    pub fn monitor(&self) -> impl Fn() -> Duration + Send + Sync + use<> {
        let states: Vec<_> = self.each().map(|guard| guard.hold.state.clone()).collect();
        move || states.iter().map(|state| state.remaining()).min().unwrap_or_default()
    }

    /// Checks that the lock is still held. Local, no I/O.
    ///
    /// This reads the clock, so the result is also correct after a suspend.
    ///
    /// # Errors
    /// Returns [`ErrorKind::Lost`] if the lock was lost. A loss is final.
    pub fn check(&self) -> Result<()> {
        let loss = self.each().find_map(|guard| guard.hold.state.loss(&guard.hold.lock));
        loss.map_or(Ok(()), |loss| Err(Error::lost(loss)))
    }

    /// Returns the time until which the lock is certain to be held without another renewal. Local, no I/O.
    ///
    /// Use this if another process on this machine checks the deadline, as [`check`](Self::check) does in this one.
    ///
    /// # Errors
    /// Returns [`ErrorKind::Lost`] if the lock was lost. A loss is final.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// let guard = leasehold::Locker::open("mem:").await?.lock("report").acquire().await?;
    /// assert!(guard.deadline()?.span() > Duration::from_secs(29)); // a little less than the ttl
    /// # Ok::<_, leasehold::Error>(())
    /// # }).unwrap();
    /// ```
    pub fn deadline(&self) -> Result<Deadline> {
        self.check()?;
        let deadlines = self.each().map(|guard| guard.hold.state.deadline());
        let earliest = deadlines.reduce(|one, two| Some(one?.earliest(two?))).flatten();
        earliest.ok_or_else(|| Error::lost(self.hold.lock.loss(LossReason::Ended)))
    }

    /// Waits until a renewal has moved the deadline away from `known`, and returns the new deadline. Never completes if
    /// the lock is lost, so also await [`lost`](Self::lost). Cancel safe.
    pub async fn renewed(&self, known: Deadline) -> Deadline {
        loop {
            // A renewal after this line is not missed.
            let renewed = select_all(self.each().map(|guard| Box::pin(guard.hold.state.renewed())));
            match self.deadline() {
                Ok(deadline) if deadline != known => return deadline,
                _ => renewed.await,
            };
        }
    }

    /// Renews the lease now and returns the new deadline. Success means that the lock was certainly still held after
    /// the call was made. Unlike [`check`](Self::check), this is also reliable after a pause during which both clocks
    /// of the machine stood still.
    ///
    /// While the store does not respond, this waits for further attempts until the lock is lost. The future does not
    /// borrow the guard. Cancel safe: dropping the future does not affect the lock.
    ///
    /// # Errors
    /// Returns [`ErrorKind::Lost`] if the lock was lost or released. A loss is final.
    ///
    /// ```
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// let guard = leasehold::Locker::open("mem:").await?.lock("report").acquire().await?;
    /// guard.renew().await?;
    /// # Ok::<_, leasehold::Error>(())
    /// # }).unwrap();
    /// ```
    pub fn renew(&self) -> impl Future<Output = Result<Deadline>> + Send + use<> {
        let asked = self.hold.state.now();
        let renewals = self.each().map(|guard| {
            let (state, lock) = (guard.hold.state.clone(), guard.hold.lock.clone());
            // The response to a renewal that was sent before this call does not count.
            async move { state.renewed_since(asked).await.map_err(|()| Error::lost(state.loss_of(&lock))) }
        });
        let renewals = try_join_all(renewals.collect::<Vec<_>>());
        async move {
            let deadlines = renewals.await?.into_iter().reduce(Deadline::earliest);
            deadlines.ok_or_else(|| Error::invalid("the guard holds no lock"))
        }
    }

    /// Waits until the lock is lost, and returns the loss. Completes no later than the deadline, also in another
    /// runtime than the one in which the lock was acquired. Cancel safe.
    pub async fn lost(&self) -> Loss {
        select_all(self.each().map(|guard| Box::pin(guard.hold.state.lost(&guard.hold.lock)))).await.0
    }

    /// Returns a cancellation token that is cancelled as soon as the lock is lost, released, or handed on as a ticket,
    /// or the tokio runtime in which it was acquired shuts down. It may be awaited in any runtime. Cancelling it has no
    /// effect on the lock.
    pub fn cancellation(&self) -> CancellationToken {
        // With the token itself, a caller could stop the renewals.
        self.hold.state.over().child_token()
    }

    /// Releases the lock and reports whether it was held until now.
    ///
    /// The guard is invalidated before the release is sent. If the future is dropped, the release continues in the
    /// background. If one of several locks was lost, this waits until the others are released.
    ///
    /// # Errors
    /// Returns an error if the store did not respond. The release is then retried in the background until the lease has
    /// lapsed.
    pub async fn release(self) -> Result<Released> {
        self.give_up(Command::Release).await
    }

    /// Returns when the hold ends, however often its lease is renewed: see [`Lock::max_hold`](crate::Lock::max_hold).
    /// Returns `None` without a limit. Local, no I/O.
    pub fn limit(&self) -> Option<Deadline> {
        self.each().filter_map(|guard| Some(guard.hold.state.limit()?.until)).reduce(Deadline::earliest)
    }

    /// Limits the hold to `max_hold` from now on, unless it has a limit.
    pub(crate) fn limit_to(&self, max_hold: Duration) {
        let limit = Limit::new(max_hold, self.hold.state.now());
        for guard in self.each() {
            guard.hold.state.limit_to(limit);
        }
    }

    /// Releases the lock like [`release`](Self::release), because the work took too long. The history then shows that
    /// the hold ended at its [limit](Self::limit) ([`End::Limit`](crate::lease::End::Limit)). Use it if you stop the
    /// work a little before the limit.
    ///
    /// # Errors
    /// Returns the same errors as [`release`](Self::release).
    pub async fn release_at_limit(self) -> Result<Released> {
        self.give_up(Command::ReleaseAtLimit).await
    }

    /// Gives up the lock without a release: it is free when its lease ends. Use it if the work may still run, although
    /// nothing can stop it any more.
    pub fn lapse(mut self) {
        // Invalidate all parts, as a release does.
        self.end();
        for mut guard in std::mem::take(&mut self.parts).into_iter().chain([self]) {
            if let Some(renewer) = guard.hold.renewer.take() {
                renewer.post(Command::Lapse);
            }
        }
    }

    /// Releases the lock at the end of the work that it protected. If the release fails, logs the error and retries in
    /// the background.
    ///
    /// # Errors
    /// Returns [`ErrorKind::Lost`] if the lock was lost before the release. This includes an eviction since the last
    /// renewal, which only the store knows of.
    pub(crate) async fn release_held(self) -> Result<()> {
        // Work that ended after the deadline must not look protected.
        self.check()?;
        let (state, lock) = (self.hold.state.clone(), self.hold.lock.clone());
        match self.release().await {
            Ok(Released::Released) => Ok(()),
            Ok(Released::AlreadyLost) => Err(Error::lost(state.loss_of(&lock))),
            Err(error) => {
                tracing::warn!(lock = %lock.name, %error, "the lock was not released");
                Ok(())
            }
        }
    }

    /// Releases the lock with a cooldown. The lock is not granted again before `period` has passed since this grant.
    ///
    /// Use this for work that must not be repeated too soon, such as an hourly report or a batch job that several
    /// machines start.
    ///
    /// After the release, the cooldown is measured on the store's clock. The guard is invalidated before the release is
    /// sent. The release is retried until the lease has ended, because without a recorded cooldown, the lock may be
    /// granted again at once. If the future is dropped, the retries continue in the background.
    ///
    /// # Errors
    /// - [`ErrorKind::Unsupported`]: the store has no cooldowns
    ///   ([`Capabilities::cooldowns`](crate::lease::Capabilities::cooldowns)), or this is a hold of several locks: of
    ///   [`Locks`](crate::Locks), or an exclusive hold of a [`RwLock`](crate::RwLock). They are then released without a
    ///   cooldown.
    /// - Any error from the store, if the cooldown could not be recorded before the lease ended.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// let lock = leasehold::Locker::open("mem:").await?.lock("report");
    /// lock.acquire().await?.release_with_cooldown(Duration::from_secs(3600)).await?;
    /// assert!(lock.try_acquire().await.unwrap_err().holder().unwrap().in_cooldown);
    /// # Ok::<_, leasehold::Error>(())
    /// # }).unwrap();
    /// ```
    pub async fn release_with_cooldown(self, period: Duration) -> Result<Released> {
        if !self.hold.capabilities.cooldowns {
            let message = format!("locks in {} have no cooldowns", self.hold.capabilities.store);
            self.release().await?;
            return Err(
                Error::unsupported(message).with_help("release without a cooldown, or use another store")
            );
        }
        if !self.parts.is_empty() {
            let error = no_cooldown(self.name());
            self.release().await?;
            return Err(error);
        }
        if self.check().is_err() {
            return self.release().await;
        }
        self.give_up(move |reply| Command::Cooldown(period, reply)).await
    }

    /// Stops the renewals and returns the lock as a [`Ticket`], with which another process can renew and release it.
    ///
    /// The lease continues from its last renewal. If the future is dropped, the lock is released. One ticket holds all
    /// locks of a hold of several locks.
    ///
    /// # Errors
    /// - [`ErrorKind::Lost`]: the lock was already lost.
    /// - Any error from the store.
    ///
    /// In all these cases, the lock is released, or lapses if the runtime in which it was acquired has shut down.
    pub async fn into_ticket(mut self) -> Result<Ticket> {
        self.check()?;
        for guard in self.each() {
            guard.hold.state.detach();
        }
        let (lock, are_named) = (self.hold.lock.clone(), self.are_named);
        let parts = std::mem::take(&mut self.parts);
        let answers =
            std::iter::once(self).chain(parts).map(async |mut guard| guard.ask(Command::Detach).await);
        // After an error, the answers of the other locks are dropped, and so these locks are released.
        let (tickets, taken): (Vec<_>, Vec<_>) = try_join_all(answers).await?.into_iter().unzip();
        // There is no await between here and the caller, so the ticket cannot be dropped unnoticed.
        if taken.iter().any(oneshot::Sender::is_closed)
            || taken.into_iter().any(|taken| taken.send(()).is_err())
        {
            // The response was read too late: the lock has been released, or its lease is over.
            return Err(Error::lost(lock.loss(LossReason::EXPIRED)));
        }
        Ticket::together(tickets, are_named).ok_or_else(|| Error::invalid("the guard holds no lock"))
    }

    async fn give_up(
        self,
        command: impl Fn(oneshot::Sender<Result<Released>>) -> Command + Clone + Send + Sync + 'static,
    ) -> Result<Released> {
        // Reads the clock: a lease whose deadline has passed is lost, not released.
        let loss = self.check().err();
        if let Some(loss) = loss.as_ref().and_then(Error::loss)
            && self.parts.is_empty()
            && loss.reason != LossReason::Limit
        {
            return Ok(Released::AlreadyLost);
        }
        // Otherwise, other locks or the same one are still held, and the caller may be about to exit.
        // Invalidate all parts before a request is sent for any of them.
        self.end();
        // A hold of several locks is released in a task, which continues if the caller stops polling.
        let runtime =
            self.hold.renewer.as_ref().filter(|_| !self.parts.is_empty()).map(RenewerHandle::runtime);
        let released = match runtime {
            Some(runtime) => {
                let all = task::answer_in(&runtime, |reply| async move {
                    drop(reply.send(self.settle_all(command).await));
                });
                // `None`: the runtime in which the locks were acquired has shut down.
                all.await.unwrap_or(Ok(Released::AlreadyLost))
            }
            None => self.settle_all(command).await,
        };
        if loss.is_some() { Ok(Released::AlreadyLost) } else { released }
    }

    async fn settle_all(
        mut self,
        command: impl Fn(oneshot::Sender<Result<Released>>) -> Command + Clone + Send + Sync,
    ) -> Result<Released> {
        let parts = std::mem::take(&mut self.parts);
        release_all(std::iter::once(self).chain(parts), |guard: Self| guard.settled(command.clone())).await
    }

    /// Sends `command` for this guard's own lock. The guard must have been invalidated before.
    async fn settled(
        mut self,
        command: impl FnOnce(oneshot::Sender<Result<Released>>) -> Command,
    ) -> Result<Released> {
        match self.ask(command).await {
            Err(error) if error.kind() == ErrorKind::Lost => Ok(Released::AlreadyLost),
            answer => answer,
        }
    }

    /// Invalidates the guard and its parts.
    fn end(&self) {
        for guard in self.each() {
            guard.hold.state.end();
        }
    }

    async fn ask<T>(&mut self, command: impl FnOnce(oneshot::Sender<Result<T>>) -> Command) -> Result<T> {
        let (reply, answer) = oneshot::channel();
        let lost = self.hold.state.end();
        let answer = match self.hold.renewer.take() {
            Some(renewer) => renewer.send(command(reply), answer).await,
            None => None,
        };
        match (answer, lost) {
            (Some(answer), _) => answer,
            (None, Some(loss)) => Err(Error::lost(loss)),
            // The lock was lost at the same moment, or the runtime in which it was acquired has shut down.
            (None, None) => Err(Error::lost(self.hold.lock.loss(LossReason::Ended))),
        }
    }
}

/// Releases locks that are held together, and returns how this ended. Releases the first one last: a process that sees
/// it free can rely on the others being free.
pub(crate) async fn release_all<T, F: Future<Output = Result<Released>>>(
    held: impl IntoIterator<Item = T>,
    release: impl Fn(T) -> F,
) -> Result<Released> {
    let mut held = held.into_iter();
    let first = held.next();
    let others = join_all(held.map(&release)).await;
    let first = join_all(first.map(&release)).await;
    others.into_iter().chain(first).try_fold(Released::Released, |all, outcome| match (all, outcome?) {
        (Released::Released, Released::Released) => Ok(Released::Released),
        _ => Ok(Released::AlreadyLost),
    })
}

/// Returns the error for a cooldown of several locks, the first of which is `name`.
pub(crate) fn no_cooldown(name: &LockName) -> Error {
    Error::unsupported(format!("the hold of `{name}` consists of several locks and has no cooldown"))
        .with_help("release them without a cooldown, or use a single lock")
}

impl Drop for Guard {
    fn drop(&mut self) {
        // Invalidate all parts before the first one is released.
        self.end();
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guard")
            .field("name", &self.hold.lock.name)
            .field("token", &self.hold.lock.token)
            .field("remaining", &self.remaining())
            .finish()
    }
}
