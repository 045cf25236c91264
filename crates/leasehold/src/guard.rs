//! [`Guard`]: a lock that is held.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{join_all, select_all};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use crate::error::{Error, ErrorKind, Result};
use crate::lease::{Grant, Loss, LossReason, Released, Token};
use crate::runtime::renewer::{Command, Hold, Opened, RenewerHandle, bind, keep};
use crate::runtime::task;
use crate::ticket::Ticket;
use crate::types::LockName;

/// A lock that is held, and renewed in the background for as long as this value lives.
///
/// The guard knows of a loss before anybody else can be granted the lock, also when the network is down: ask
/// [`check`](Self::check) before each step that must not be done twice, or await [`lost`](Self::lost). What no lock can
/// do is stop a process that is paused between the check and the step: give the [`token`](Self::token) along with every
/// write, and let the resource refuse lower ones.
///
/// A virtual machine that is paused together with its clocks cannot know it: right after the pause `check()` may pass although
/// the lease is over, and the next renewal finds out. A copy of a running process (a live snapshot) believes in its lock
/// until one of the two has renewed. Against both, too, give the token along.
///
/// Dropping a guard ends it at once and releases it in the background, without blocking; outside a runtime the lease
/// lapses by itself. Prefer [`release`](Self::release), which says whether the lock was held until the end.
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
    /// Other locks that are held for this one, and lost with it. Before its own: dropped, and so released, before it.
    parts: Vec<Guard>,
    hold: Hold,
}

impl Guard {
    /// Keeps `grant`. Must be called inside a tokio runtime.
    pub(crate) fn new(opened: Arc<Opened>, grant: Grant) -> Self {
        Self::of(keep(opened, grant, None))
    }

    pub(crate) fn of(hold: Hold) -> Self {
        Self { parts: Vec::new(), hold }
    }

    /// This guard, held only for as long as all of `parts` are held too, which it takes over.
    pub(crate) fn bound_to(mut self, parts: Vec<Guard>) -> Self {
        self.parts = parts;
        bind(self.each().map(|guard| guard.hold.lease.clone()).collect());
        self
    }

    /// This guard's own lock, and those that are held for it.
    fn each(&self) -> impl Iterator<Item = &Guard> {
        std::iter::once(self).chain(&self.parts)
    }

    /// The names of this guard's own lock, and of those that are held for it.
    pub(crate) fn names(&self) -> impl Iterator<Item = &LockName> {
        self.each().map(|guard| &guard.hold.identity.name)
    }

    /// The lock's name.
    pub fn name(&self) -> &LockName {
        &self.hold.identity.name
    }

    /// The fencing token: greater than that of every earlier grant of this lock.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] where the store's protocol carries none ([`Capabilities::tokens`](crate::lease::Capabilities::tokens)).
    pub fn token(&self) -> Result<Token> {
        if self.hold.capabilities.tokens {
            return Ok(self.hold.identity.token);
        }
        let message = format!("locks in {} carry no fencing tokens", self.hold.capabilities.store);
        Err(Error::unsupported(message)
            .with_help("see the store's page for which of its protocols have tokens"))
    }

    /// How long the lock is certainly still held without another renewal; zero once it was lost. Local, no I/O.
    pub fn remaining(&self) -> Duration {
        self.each().map(|guard| guard.hold.lease.remaining()).min().unwrap_or_default()
    }

    /// Whether the lock is still held. Local, no I/O; reads the clock, so it is right also after a suspend.
    ///
    /// # Errors
    /// [`ErrorKind::Lost`], for good.
    pub fn check(&self) -> Result<()> {
        let loss = self.each().find_map(|guard| guard.hold.lease.loss(&guard.hold.identity));
        loss.map_or(Ok(()), |loss| Err(Error::lost(loss)))
    }

    /// Completes when the lock is lost, no later than its deadline. Cancel safe.
    pub async fn lost(&self) -> Loss {
        select_all(self.each().map(|guard| Box::pin(guard.hold.lease.lost(&guard.hold.identity)))).await.0
    }

    /// A token that is cancelled as soon as the lock is not held any more: lost, released, or handed on.
    pub fn cancellation(&self) -> CancellationToken {
        self.hold.lease.over()
    }

    /// Releases the lock and says whether it was held until now.
    ///
    /// The guard is dead before the release is sent. Dropping the future goes on with the release in the background.
    ///
    /// # Errors
    /// When the store did not answer: the release is then tried again in the background, until the lease lapses by
    /// itself.
    pub async fn release(self) -> Result<Released> {
        self.give_up(Command::Release).await
    }

    /// Releases the lock and lets it rest: it is granted to nobody before `period` has passed since it was granted. For
    /// what must not be done again so soon: a report that is due once an hour, a batch job that several machines start.
    ///
    /// From the release on the rest counts on the store's clock. The guard is dead before the release is sent; that is tried
    /// until the lease has ended, since a lock that does not rest may be granted at once. Dropping the future goes on
    /// with it in the background.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] where locks cannot rest ([`Capabilities::rests`](crate::lease::Capabilities::rests)), and for an exclusive hold of a
    /// [`RwLock`](crate::RwLock), which is more than one lock: it is then released without. What the store says, when it could not be told before the lease ended.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// let lock = leasehold::Locker::open("mem:").await?.lock("report");
    /// lock.acquire().await?.rest(Duration::from_secs(3600)).await?;
    /// assert!(lock.try_acquire().await.unwrap_err().holder().unwrap().resting);
    /// # Ok::<_, leasehold::Error>(())
    /// # }).unwrap();
    /// ```
    pub async fn rest(self, period: Duration) -> Result<Released> {
        if !self.hold.capabilities.rests {
            let message = format!("locks in {} cannot rest", self.hold.capabilities.store);
            self.release().await?;
            return Err(Error::unsupported(message).with_help("see the store's page for what it can"));
        }
        if let Err(error) = self.single("cannot rest") {
            self.release().await?;
            return Err(error);
        }
        self.give_up(move |reply| Command::Rest(period, reply)).await
    }

    /// Stops the renewals and hands the lock on as a [`Ticket`], for another process to renew and to release.
    ///
    /// The lease runs on from its last renewal. Dropping the future releases the lock.
    ///
    /// # Errors
    /// [`ErrorKind::Lost`] when it was lost already; [`ErrorKind::Unsupported`] for an exclusive hold of a
    /// [`RwLock`](crate::RwLock), which is more than one lock; what the store says. The lock is then released.
    pub async fn into_ticket(mut self) -> Result<Ticket> {
        self.single("cannot be handed on as a ticket")?;
        self.check()?;
        let (ticket, taken) = self.ask(Command::HandOn).await?;
        // From here to the caller nothing is awaited: the ticket cannot be dropped unseen.
        if taken.send(()).is_err() {
            // It was looked at too late: the lock is released, or its lease is over.
            return Err(Error::lost(self.hold.identity.loss(LossReason::Expired { last_error: None })));
        }
        Ok(ticket)
    }

    async fn give_up(
        self,
        command: impl FnOnce(oneshot::Sender<Result<Released>>) -> Command + Send + 'static,
    ) -> Result<Released> {
        // By the clock: a lease whose deadline has passed is lost, not released.
        if self.check().is_err() {
            return Ok(Released::AlreadyLost);
        }
        // The belief in all parts, before anything is sent about one.
        self.end();
        // Several releases, one after the other: in a task, which goes on when the caller stops polling.
        match self.hold.renewer.as_ref().filter(|_| !self.parts.is_empty()).map(RenewerHandle::runtime) {
            Some(runtime) => {
                let all = task::answer_in(&runtime, |reply| async move {
                    drop(reply.send(self.settle_all(command).await));
                });
                // None: the runtime that they were acquired in has shut down.
                all.await.unwrap_or(Ok(Released::AlreadyLost))
            }
            None => self.settle_all(command).await,
        }
    }

    async fn settle_all(
        mut self,
        command: impl FnOnce(oneshot::Sender<Result<Released>>) -> Command + Send,
    ) -> Result<Released> {
        // The lock that names the guard comes last: who looks at it alone finds it free when all is.
        let parts = std::mem::take(&mut self.parts).into_iter().map(|part| part.settled(Command::Release));
        let parts = join_all(parts).await;
        let whole = self.settled(command).await;
        parts.into_iter().fold(whole, |whole, part| match (whole?, part?) {
            (Released::Released, Released::Released) => Ok(Released::Released),
            _ => Ok(Released::AlreadyLost),
        })
    }

    /// Gives up what this guard itself stands for, after its end.
    async fn settled(
        mut self,
        command: impl FnOnce(oneshot::Sender<Result<Released>>) -> Command,
    ) -> Result<Released> {
        match self.ask(command).await {
            Err(error) if error.kind() == ErrorKind::Lost => Ok(Released::AlreadyLost),
            answer => answer,
        }
    }

    /// The user's belief ends here.
    fn end(&self) {
        for guard in self.each() {
            guard.hold.lease.end();
        }
    }

    /// For what only a single lock can do.
    fn single(&self, what: &str) -> Result<()> {
        if self.parts.is_empty() {
            return Ok(());
        }
        Err(Error::unsupported(format!("an exclusive hold of `{}` {what}", self.name()))
            .with_help("it is made of several locks; plain locks, permits and shared holds can"))
    }

    async fn ask<T>(&mut self, command: impl FnOnce(oneshot::Sender<Result<T>>) -> Command) -> Result<T> {
        let (reply, answer) = oneshot::channel();
        let lost = self.hold.lease.end();
        let answer = match self.hold.renewer.take() {
            Some(renewer) => renewer.tell(command(reply), answer).await,
            None => None,
        };
        match (answer, lost) {
            (Some(answer), _) => answer,
            (None, Some(loss)) => Err(Error::lost(loss)),
            // Settled as lost in the same instant, or the runtime that it was acquired in has shut down.
            (None, None) => Err(Error::lost(self.hold.identity.loss(LossReason::Ended))),
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        // All are dead before the first is released.
        self.end();
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guard")
            .field("name", &self.hold.identity.name)
            .field("token", &self.hold.identity.token)
            .field("remaining", &self.remaining())
            .finish()
    }
}
