//! Stores whose locks are leases of their own: etcd, Azure's leases, and a `leasehold serve`.
//!
//! Such a store implements [`NativeLeases`]: the steps of a lock, with one change in each. [`NativeStore`] makes a
//! [`LeaseStore`] of them. `steps` repeats each step, resolves lost responses, checks deadlines and ends late grants,
//! once for all of these stores.

mod steps;
#[cfg(test)]
mod tests;

use std::any::Any;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::stream::{self, BoxStream, StreamExt, TryStreamExt};

use crate::clock::Deadline;
use crate::diagnosis::{Diagnose, Examination, Examined};
use crate::env::Env;
use crate::error::{Error, ErrorKind, Fault, StoreError};
use crate::lease::{
    AcquireOutcome, Capabilities, Claim, Evicted, Eviction, Grant, HolderInfo, LeaseStore, Loss, LossReason,
    Released, Renewal, Status, Swept, Token, Ttl, Watch, attempt_limit,
};
use crate::retry::{RetryBudget, repeated};
use crate::types::LockName;
use crate::worker::OnWorker;

/// The time limit of operations that have no limit from their caller.
const STORE_TIMEOUT: Duration = Duration::from_secs(10);

/// The steps of a lock on a store that grants, renews and ends leases itself.
///
/// A step makes at most one change. It sends its requests within `ask`, and may repeat those that only read. Its result
/// says whether the change was made. An error says whether it may have been made: it is
/// [`NotApplied`](StoreError::NotApplied) only if the request certainly has no effect, now and later.
///
/// [`NativeStore`] repeats a step after a transient error and after `Again`.
#[async_trait]
pub(crate) trait NativeLeases: Watch + Diagnose + fmt::Debug + Send + Sync + 'static {
    /// Where a page of a listing begins.
    type Position: Clone + PartialEq + Send + Sync;

    fn env(&self) -> &Env;

    fn capabilities(&self) -> Capabilities;

    /// Requests the lock. The store recognises a repetition by the claim's id.
    async fn claim(&self, claim: &Claim, ask: &mut Ask<'_>) -> Outcome<Claimed>;

    /// Called when no further request for `claim` follows a failed one. Returns whether the claim still waits in the
    /// store, and may be granted.
    fn gave_up(&self, claim: &Claim) -> bool {
        let _ = claim;
        false
    }

    /// Extends the lease of the grant, if it is still the store's.
    async fn renew(&self, grant: &Grant, ask: &mut Ask<'_>) -> Outcome<Renewed>;

    /// Makes the grant independent of this process. Returns `None` if it is already.
    async fn detach(&self, grant: &Grant, ask: &mut Ask<'_>) -> Outcome<Option<Renewed>> {
        let _ = (grant, ask);
        Ok(None)
    }

    /// Returns why a grant was lost that a renewal found [`Gone`](Renewed::Gone). Not called for a store that does not use
    /// that result.
    async fn loss(&self, grant: &Grant, ask: &mut Ask<'_>) -> Outcome<LossReason> {
        let _ = (grant, ask);
        Ok(LossReason::Ended)
    }

    /// Ends the grant, if it is still the store's. If its token is zero, withdraws the claim with its id.
    async fn end(&self, grant: &Grant, cooldown: Option<Duration>, ask: &mut Ask<'_>) -> Outcome<Ended>;

    /// Ends the grant with `token`, if it has the lock.
    async fn evict(
        &self,
        name: &LockName,
        token: Token,
        why: Option<&Eviction>,
        ask: &mut Ask<'_>,
    ) -> Outcome<Ended>;

    /// Reads the state of the lock.
    async fn status(&self, name: &LockName, ask: &mut Ask<'_>) -> Outcome<Status>;

    /// Reads one page of the names that begin with `prefix`, and where the next page begins.
    async fn names(
        &self,
        prefix: &str,
        from: Option<Self::Position>,
        ask: &mut Ask<'_>,
    ) -> Outcome<(Vec<LockName>, Option<Self::Position>)>;

    /// See [`LeaseStore::may_have_place`].
    fn may_have_place(&self, claim: &Claim) -> bool {
        self.capabilities().fifo() && claim.waits
    }

    /// Whether a lock that is free has no record, so that a sweep has nothing to delete.
    fn is_swept(&self) -> bool {
        false
    }

    /// Sends the last requests of the store.
    async fn close(&self) {}
}

/// The result of a step.
pub(crate) type Outcome<T> = Result<T, StoreError>;

/// The time that an operation has left for its steps.
#[derive(Debug)]
pub(crate) struct Ask<'a> {
    budget: RetryBudget<'a>,
    /// Whether an earlier request of the operation got no response, and may have made the change.
    pub(crate) again: bool,
}

impl<'a> Ask<'a> {
    /// Creates the time of an operation that may take `limit` in all, and `attempt_limit` for each request.
    pub(crate) fn within(env: &'a Env, limit: Duration, attempt_limit: Duration) -> Self {
        Self::of(RetryBudget::new(env, limit, attempt_limit))
    }

    /// Creates the time of an operation without a limit from its caller.
    pub(crate) fn new(env: &'a Env) -> Self {
        Self::within(env, STORE_TIMEOUT, attempt_limit(Ttl::DEFAULT))
    }

    fn of(budget: RetryBudget<'a>) -> Self {
        Self { budget, again: false }
    }

    /// Repeats a request that only reads, after transient errors.
    pub(crate) async fn read<T, F>(&mut self, read: impl FnMut() -> F) -> Outcome<T>
    where
        F: Future<Output = Outcome<T>>,
    {
        repeated(self, read).await.map_err(StoreError::of_read)
    }

    /// Waits before the next step. Returns the error if another step is pointless. Whatever that error is, an earlier
    /// request may have made the change.
    async fn pause(&mut self, error: Option<StoreError>) -> Outcome<()> {
        self.again |= matches!(error, Some(StoreError::MaybeApplied(_)));
        let paused = match error {
            Some(error) => self.pause_after(error).await,
            None => self.pause_after_conflict().await,
        };
        paused.map_err(|error| error.if_maybe(self.again))
    }
}

impl<'a> Deref for Ask<'a> {
    type Target = RetryBudget<'a>;

    fn deref(&self) -> &Self::Target {
        &self.budget
    }
}

impl DerefMut for Ask<'_> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.budget
    }
}

/// The response to a claim.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "only one value exists at a time, and only briefly")]
pub(crate) enum Claimed {
    Granted(Token, Lease),
    Held(HolderInfo),
    /// The claim is spent. If its lease has only [expired](LossReason::Expired), the store may still have it.
    Lost(Loss),
    /// Neither granted nor refused. Ask again.
    Again,
}

/// The response to a renewal.
#[derive(Debug)]
pub(crate) enum Renewed {
    Until(Lease),
    /// The grant no longer exists. [`NativeLeases::loss`] returns why.
    Gone,
    Lost(LossReason),
    /// Neither. Ask again, with the memo.
    Again(Memo),
}

/// The response to a request that ends a grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    Now,
    /// The grant had ended. If an earlier request of the same operation got no response, that request ended it.
    Gone,
    /// Another client ended the grant.
    Lost,
    /// Neither. Ask again.
    Again,
}

/// A lease of the store.
#[derive(Debug, Default)]
pub(crate) struct Lease {
    /// When it ends, if that is earlier than the claim's ttl after the step began.
    pub(crate) until: Option<Deadline>,
    pub(crate) memo: Option<Memo>,
}

/// What the store needs to renew and end a grant.
pub(crate) type Memo = Arc<dyn Any + Send + Sync>;

/// Returns what the store remembers of the grant. Returns `None` for a grant from a ticket and for a withdrawn claim.
pub(crate) fn memo<M: Any + Send + Sync>(grant: &Grant) -> Option<&M> {
    grant.memo.as_ref()?.downcast_ref::<Kept>()?.of_store.as_ref()?.downcast_ref()
}

/// The memo of every grant.
#[derive(Clone, Debug, Default)]
struct Kept {
    of_store: Option<Memo>,
    /// Shared by the copies of the grant, because a release may be dropped after its request was sent.
    ending: Arc<Mutex<Ending>>,
}

/// The release of a grant.
#[derive(Debug, Default)]
struct Ending {
    /// Whether a request that got no response may have ended the grant.
    asked: bool,
    over: Option<Released>,
}

impl Kept {
    /// Returns the memo of `grant`.
    fn of(grant: &mut Grant) -> &mut Self {
        let memo =
            grant.memo.take().filter(|memo| memo.is::<Self>()).unwrap_or_else(|| Box::new(Self::default()));
        let memo = grant.memo.insert(memo).downcast_mut();
        memo.unwrap_or_else(|| unreachable!("the memo was checked"))
    }

    fn ending(&self) -> MutexGuard<'_, Ending> {
        self.ending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A store with native leases, as a [`LeaseStore`].
pub(crate) struct NativeStore<N: NativeLeases>(Home<N>);

/// Where the work of a store runs.
enum Home<N> {
    /// In the caller's future.
    Caller(Arc<N>),
    /// On the store's thread, because locks share connections and keep-alives.
    Thread(OnWorker<N>),
}

impl<N: NativeLeases> NativeStore<N> {
    /// Creates a store whose work runs in the callers' futures.
    pub(crate) fn new(leases: N) -> Self {
        Self(Home::Caller(Arc::new(leases)))
    }

    /// Creates a store with its own thread; see [`OnWorker::open`].
    pub(crate) async fn on_worker(
        store: &str,
        connect: impl FnOnce() -> Result<N, Error> + Send + 'static,
    ) -> Result<Self, Error> {
        Ok(Self(Home::Thread(OnWorker::open(store, connect).await?)))
    }

    pub(crate) fn leases(&self) -> &Arc<N> {
        match &self.0 {
            Home::Caller(leases) => leases,
            Home::Thread(thread) => &thread.leases,
        }
    }

    async fn run<T, F>(&self, work: impl FnOnce(Arc<N>) -> F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, StoreError>> + Send + 'static,
    {
        match &self.0 {
            Home::Caller(leases) => work(leases.clone()).await,
            Home::Thread(thread) => thread.run(work).await?,
        }
    }

    /// Runs `work` on a copy of `grant`, because a job on the store's thread outlives the borrow of the grant.
    async fn run_on<T, F>(
        &self,
        grant: &mut Grant,
        work: impl FnOnce(Arc<N>, Grant) -> F,
    ) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: Future<Output = (Grant, Result<T, StoreError>)> + Send + 'static,
    {
        let memo = Some(Box::new(Kept::of(grant).clone()) as Box<_>);
        let copy = Grant { name: grant.name.clone(), memo, ..*grant };
        let work = |leases| {
            let work = work(leases, copy);
            async move { Ok(work.await) }
        };
        let (copy, answer) = self.run(work).await?;
        (grant.deadline, grant.memo) = (copy.deadline, copy.memo);
        answer
    }
}

impl<N: NativeLeases> fmt::Debug for NativeStore<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.leases().fmt(f)
    }
}

impl<N: NativeLeases> Drop for NativeStore<N> {
    fn drop(&mut self) {
        if let Home::Thread(thread) = &mut self.0 {
            let leases = thread.leases.clone();
            thread.finish(async move { leases.close().await });
        }
    }
}

#[async_trait]
impl<N: NativeLeases> LeaseStore for NativeStore<N> {
    async fn try_acquire(&self, claim: &Claim) -> Result<AcquireOutcome, StoreError> {
        let claim = claim.clone();
        self.run(|leases| async move { steps::acquire(&*leases, &claim).await }).await
    }

    async fn renew(&self, grant: &mut Grant) -> Result<Renewal, StoreError> {
        self.run_on(grant, |leases, mut grant| async move {
            let renewal = steps::renew(&*leases, &mut grant).await;
            (grant, renewal)
        })
        .await
    }

    async fn release(&self, grant: &mut Grant, cooldown: Option<Duration>) -> Result<Released, StoreError> {
        let cooldown = cooldown.filter(|cooldown| !cooldown.is_zero());
        self.run_on(grant, move |leases, mut grant| async move {
            let released = steps::end(&*leases, &mut grant, cooldown).await;
            (grant, released)
        })
        .await
    }

    fn may_have_place(&self, claim: &Claim) -> bool {
        self.leases().may_have_place(claim)
    }

    async fn detach(&self, grant: &mut Grant) -> Result<(), StoreError> {
        self.run_on(grant, |leases, mut grant| async move {
            let detached = steps::detach(&*leases, &mut grant).await;
            (grant, detached)
        })
        .await
    }

    async fn evict(
        &self,
        name: &LockName,
        token: Token,
        why: Option<&Eviction>,
    ) -> Result<Evicted, StoreError> {
        let (name, why) = (name.clone(), why.cloned());
        self.run(move |leases| async move { steps::evict(&*leases, &name, token, why.as_ref()).await }).await
    }

    async fn inspect(&self, name: &LockName) -> Result<Status, StoreError> {
        let name = name.clone();
        self.run(|leases| async move { leases.status(&name, &mut Ask::new(leases.env())).await }).await
    }

    fn list(&self, prefix: &str) -> BoxStream<'_, Result<LockName, StoreError>> {
        let prefix = prefix.to_owned();
        // Where the next page begins. `None` after the last page.
        let pages = stream::try_unfold(Some(None), move |from: Option<Option<N::Position>>| {
            let prefix = prefix.clone();
            async move {
                let Some(from) = from else { return Ok(None) };
                let (names, next) = self
                    .run(|leases| async move {
                        let mut ask = Ask::of(RetryBudget::of_question(leases.env()));
                        let page = leases.names(&prefix, from.clone(), &mut ask).await?;
                        if page.1.is_some() && page.1 == from { Err(endless()) } else { Ok(page) }
                    })
                    .await?;
                Ok(Some((stream::iter(names.into_iter().map(Ok)), next.map(Some))))
            }
        });
        pages.try_flatten().boxed()
    }

    async fn sweep(&self, _: &LockName, _: Duration, _: bool) -> Result<Swept, StoreError> {
        if self.leases().is_swept() { Ok(Swept::Kept) } else { Err(self.capabilities().unswept()) }
    }

    fn capabilities(&self) -> Capabilities {
        self.leases().capabilities()
    }

    fn env(&self) -> &Env {
        self.leases().env()
    }
}

fn endless() -> StoreError {
    Fault::new(ErrorKind::Corrupt, "the store's listing does not end: a page names itself as the next one")
        .not_applied()
}

#[async_trait]
impl<N: NativeLeases> Watch for NativeStore<N> {
    async fn changed(&self, name: &LockName, seen: &HolderInfo) -> Result<(), StoreError> {
        let (name, seen) = (name.clone(), seen.clone());
        self.run(|leases| async move { leases.changed(&name, &seen).await }).await
    }

    async fn turn(&self, claim: &Claim, seen: &HolderInfo) -> Result<(), StoreError> {
        let (claim, seen) = (claim.clone(), seen.clone());
        self.run(|leases| async move { leases.turn(&claim, &seen).await }).await
    }

    /// Runs in the caller's future, because every held lock waits here.
    async fn ended(&self, grant: &Grant) {
        self.leases().ended(grant).await;
    }

    async fn holder_changed(&self, name: &LockName, seen: &Status) {
        let (name, seen) = (name.clone(), seen.clone());
        let changed = self.run(|leases| async move {
            leases.holder_changed(&name, &seen).await;
            Ok(())
        });
        // If the store's thread has ended, the observer inspects the lock again.
        let _ = changed.await;
    }
}

#[async_trait]
impl<N: NativeLeases> Diagnose for NativeStore<N> {
    async fn examine(&self, examination: &Examination) -> Examined {
        let examination = examination.clone();
        self.run(|leases| async move { Ok(leases.examine(&examination).await) }).await.unwrap_or_default()
    }

    async fn discard(&self, name: &LockName) -> Result<bool, StoreError> {
        let name = name.clone();
        self.run(|leases| async move { leases.discard(&name).await }).await
    }
}
