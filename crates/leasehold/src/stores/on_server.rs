//! Stores whose server decides each step of a lock by its own clock, in one statement or script: PostgreSQL and Redis.
//!
//! Such a store implements [`ServerLeases`], with one request for each step. This module retries requests, handles lost
//! responses, waits, and interprets the responses.

mod acquire;
pub(super) mod grace;
mod hold;
pub(super) mod notifications;
pub(super) mod record;
#[cfg(test)]
mod refused_tests;
pub(super) mod rules;
mod wait;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::stream::{self, BoxStream, StreamExt, TryStreamExt};

pub(super) use self::hold::renewed_until;
use self::notifications::Calls;
use self::record::Record;
use crate::clock::{Deadline, Moment};
use crate::diagnosis::{Diagnose, Examination, Examined};
use crate::env::Env;
use crate::error::{Error, StoreError};
use crate::lease::{
    AcquireOutcome, Capabilities, Claim, Evicted, Eviction, Grant, HolderInfo, Id, LeaseStore,
    ReleaseRequest, Released, Renewal, Status, Swept, Token, Ttl, Watch, attempt_limit,
};
use crate::native::worker::OnWorker;
use crate::retry::{RetryBudget, repeated};
use crate::types::LockName;

/// The time limit of operations that have no limit from their caller.
pub(super) const STORE_TIMEOUT: Duration = Duration::from_secs(10);

/// The response to a claim.
pub(super) enum Contended {
    Granted {
        record: Record,
        /// The moment just before the request was sent.
        sent: Moment,
        /// Whether the server granted the lock after the limit, when the client may have given up.
        is_late: bool,
    },
    Refused(Record),
    /// The server grants no lock at the moment.
    Withheld(HolderInfo),
    /// None of these. The client must ask again.
    Again,
}

/// The response to a request that changes a lock under a condition.
pub(super) enum Changed {
    Done,
    /// The grant was not changed as requested. Contains the record that was found instead.
    Found(Option<Record>),
}

/// The response to an eviction.
#[derive(Clone, Copy, Debug)]
pub(super) struct EvictionAnswer {
    pub(super) is_changed: bool,
    /// If nothing was changed: whether the grant with that token has ended, because it was evicted or released. An earlier
    /// request may have done it.
    pub(super) is_over: bool,
}

/// The steps of a lock. `on_server` limits the time of each step, repeats it, and interprets its response. `init` and
/// `examine` do so themselves.
///
/// Each change of a lock is one request, which the server executes atomically and by its own clock. Several requests
/// would keep the lock's row locked while the client stalls between them. For the same reason, a stored procedure commits
/// before it returns its result. The server responds when the change is as durable as it can make it. If a failover can
/// lose changes nevertheless, the store has a [`failover_grace`](grace).
///
/// The condition of a change is evaluated while the row is locked, on the row as it is then, in every isolation level. A
/// read from before the lock decides nothing. Lock names are compared byte by byte.
///
/// The server's clock has microseconds or at least milliseconds. It is read when the step needs it, not when the
/// transaction begins, and is independent of a session's time zone. A grant uses the time after the row is locked. If
/// there is no row, it uses the time after each earlier claim for this name has committed or failed. Otherwise, its token
/// could be below an earlier one.
///
/// A method sends a request for a change once. It returns [`StoreError::NotApplied`] only if the request certainly has no
/// effect. An error that can follow a commit, such as a lost connection, is [`StoreError::MaybeApplied`].
///
/// If the future is dropped, the server may still execute the request, at any later time. The conditions of each step
/// make that harmless: a late claim fails on its limit or on `past`. The store closes the connection. It does not ask the
/// server to cancel the statement if that can commit a change that is not yet durable, as on PostgreSQL. A request waits
/// for a locked row at most as long as its caller, so that abandoned requests do not accumulate on the server.
///
/// Renewals do not wait for claims, and releases do not wait for renewals: each has its own connections.
///
/// The store refuses a server on which a lock could have two holders, for example a standby of PostgreSQL, and a table
/// that a crash can empty. It checks each connection when it opens it, as far as one query shows the problem. The doctor
/// (`examine`) reports what only an operator can judge, for example `fsync=off`.
///
/// A lock is *live* until its lease or its cooldown has ended, and while another client holds it. A grant *is held* as
/// long as the record says so, even if its lease has ended. The [`Record`] keeps the latest eight grants that are no
/// longer held (`past`).
#[async_trait]
pub(super) trait ServerLeases: fmt::Debug + Send + Sync + 'static {
    fn env(&self) -> &Env;

    fn capabilities(&self) -> Capabilities;

    /// Requests the lock, for [`Ttl::contender_span`] plus the store's margin for steps of its clock and the claim's
    /// lock delay. The server grants it if all these are true:
    ///
    /// - The lock is not live.
    /// - The record can be read. Otherwise, the result is an error of the kind `Corrupt`.
    /// - The claim was not granted before: it is neither the record's latest grant nor in `past`.
    /// - No other claim waits before this one, or the [`grace`](crate::lease::grace) of those that do is over. It counts
    ///   from the end of the lease or of the cooldown, or from the release. If the first waiter is the one in
    ///   [`kept_earlier`](crate::lease::Place::kept_earlier), the time there counts too. A claim that is not among the
    ///   waiters is behind all of them. A claim that [barges](Claim::barges) ignores them.
    /// - The [`failover_grace`](grace) is over, if the store has one. Otherwise, the result is [`Contended::Withheld`].
    /// - If the store can check it: `limit` has not passed. It counts from the call. After it, the caller no longer waits
    ///   for the response. The result is then [`Contended::Again`]. A store that cannot check it sets `is_late` to false.
    ///
    /// The new token is the last token plus [`Claim::tokens`] (between 1 and `MAX_TOKENS`), or the server's clock in
    /// microseconds if that is higher. The tokens between the last one and the new one belong to this grant, too
    /// ([`Grant::after`]). The new token must be below [`Token::LIMIT`]. If the previous grant is still held, its lease
    /// has ended, and the server adds it to `past`. It removes the claim, and those before it, from the waiters, unless
    /// the claim barges.
    ///
    /// If the claim's own grant is held and its lease has not ended, the server grants it again, with the same token. The
    /// lease is then as long as the claim requests or as it was, whichever is longer, and renewals keep this length. A
    /// refusal does not change the record.
    async fn contend(&self, claim: &Claim, limit: Duration) -> Result<Contended, StoreError>;

    /// Renews the grant if its id and token are in the record, it is held, and its lease has not ended. The new lease may
    /// begin at any time between the arrival of the request and its commit. It is as long as the record says, because the
    /// ticket of a repeated acquisition may have a longer ttl. Also returns the new deadline ([`renewed_until`]), which
    /// counts from before the request was sent.
    async fn renew(&self, grant: &Grant) -> Result<(Changed, Deadline), StoreError>;

    /// Ends the grant if its id and token are in the record and it is held. Adds it to `past`, and starts the cooldown at
    /// the server's time, unless it is zero. Calls the first waiter. The token of a withdrawn claim is 0 and is not
    /// compared.
    async fn release(&self, grant: &Grant, cooldown: Duration) -> Result<Changed, StoreError>;

    /// Makes sure that an earlier write to `name`, whose response was lost, is as durable as one whose response
    /// arrived. Required if a client can see a change before the replicas have it, as on PostgreSQL. By default, does
    /// nothing.
    async fn settle(&self, name: &LockName) -> Result<(), StoreError> {
        let _ = name;
        Ok(())
    }

    /// Ends the latest grant if it has `token` and is held, or its cooldown. Adds a grant that was held to `past`, with
    /// `why`. Calls the first waiter.
    async fn evict(
        &self,
        name: &LockName,
        token: Token,
        why: Option<&Eviction>,
    ) -> Result<EvictionAnswer, StoreError>;

    /// Returns the record, or `None` if there is none. A record that cannot be read is an error of the kind `Corrupt`.
    async fn read(&self, name: &LockName) -> Result<Option<Record>, StoreError>;

    /// Adds the claim to the end of the waiters, if the lock is live or has waiters, and if there are fewer than
    /// [`MAX_WAITERS`](crate::lease::MAX_WAITERS). A claim that already waits, or is the latest grant, is not added; the
    /// result is then [`Changed::Found`]. The waiter's entry has the server's time and the pause between its polls,
    /// from which the [`grace`](crate::lease::grace) follows. That pause is the store's pause times its place in the
    /// line, up to the store's longest pause.
    async fn join(&self, claim: &Claim) -> Result<Changed, StoreError>;

    /// Removes the claim from the waiters. Waits for a request to join that the server is executing.
    async fn leave(&self, name: &LockName, claim: Id) -> Result<(), StoreError>;

    /// Returns the claims of this process that the server can call when it is their turn. A store whose server cannot
    /// call them still keeps a [`Calls`].
    fn calls(&self) -> &Arc<Calls>;

    /// Starts to listen for calls, unless this process already listens or cannot listen. Calls all claims once it
    /// listens.
    fn listen(&self);

    /// Returns one page of the names that begin with `prefix`, and a mark from which the next page continues. A page may
    /// be empty, and may contain names that are not lock names.
    async fn names(&self, prefix: &str, from: Option<String>) -> Result<Page, StoreError>;

    /// Creates what the store needs. Several processes may call it at the same time.
    async fn init(&self) -> Result<(), StoreError>;

    /// See [`LeaseStore::sweep`]. The request that deletes the record checks again that it is leasehold's, free or in a
    /// cooldown that is over, old enough, and that its token is below the server's clock, from which the next token comes.
    async fn sweep(&self, name: &LockName, older_than: Duration, dry_run: bool) -> Result<Swept, StoreError>;

    /// See [`Diagnose::discard`].
    async fn discard(&self, name: &LockName) -> Result<bool, StoreError>;

    /// See [`Diagnose::examine`].
    async fn examine(&self, examination: &Examination) -> Examined;

    /// Closes the connections that the store keeps open.
    fn close(&self);
}

/// A page of names, and where the next page begins if there is one.
pub(super) type Page = (Vec<String>, Option<String>);

/// The [`LeaseStore`] of a server. Each call runs as a job on the store's thread, so that a future that its caller no
/// longer polls does not keep a connection.
#[derive(Debug)]
pub(super) struct ServerStore<L: ServerLeases>(OnWorker<L>);

impl<L: ServerLeases> ServerStore<L> {
    /// Starts the store's thread, and calls `connect` on a blocking thread of its runtime, because `connect` may block.
    pub(super) async fn open(
        store: &str,
        connect: impl FnOnce() -> Result<L, Error> + Send + 'static,
    ) -> Result<Arc<dyn LeaseStore>, Error> {
        Ok(Arc::new(Self(OnWorker::open(store, connect).await?)))
    }
}

/// Returns a copy of `grant` for the store's thread.
fn copy(grant: &Grant) -> Grant {
    Grant {
        name: grant.name.clone(),
        memo: grant.memo.as_ref().map(|_| Box::new(ReleaseRequest) as Box<_>),
        ..*grant
    }
}

fn budget<L: ServerLeases>(leases: &L, limit: Duration, ttl: Ttl) -> RetryBudget<'_> {
    RetryBudget::new(leases.env(), limit, attempt_limit(ttl))
}

#[async_trait]
impl<L: ServerLeases> LeaseStore for ServerStore<L> {
    async fn try_acquire(&self, claim: &Claim) -> Result<AcquireOutcome, StoreError> {
        let claim = claim.clone();
        self.0.run(|leases| async move { acquire::acquire(&*leases, &claim).await }).await?
    }

    async fn renew(&self, grant: &mut Grant) -> Result<Renewal, StoreError> {
        self.0
            .run_on(grant, copy(grant), |leases, mut grant| async move {
                let renewal = hold::prolong(&*leases, &mut grant).await;
                (grant, renewal)
            })
            .await?
    }

    async fn release(&self, grant: &mut Grant, cooldown: Option<Duration>) -> Result<Released, StoreError> {
        self.0
            .run_on(grant, copy(grant), move |leases, mut grant| async move {
                let released = hold::end(&*leases, &mut grant, cooldown).await;
                if grant.token.get() == 0 {
                    // The claim was withdrawn and no longer waits.
                    wait::leave(&*leases, &grant.name, grant.id).await;
                }
                (grant, released)
            })
            .await?
    }

    async fn stop_waiting(&self, claim: &Claim) -> Result<(), StoreError> {
        let (name, id) = (claim.name.clone(), claim.id);
        self.0.run(|leases| async move { wait::leave(&*leases, &name, id).await }).await
    }

    fn may_have_place(&self, claim: &Claim) -> bool {
        claim.waits && !claim.barges
    }

    async fn evict(
        &self,
        name: &LockName,
        token: Token,
        why: Option<&Eviction>,
    ) -> Result<Evicted, StoreError> {
        let (name, why) = (name.clone(), why.cloned());
        self.0
            .run(move |leases| async move { hold::end_by_token(&*leases, &name, token, why.as_ref()).await })
            .await?
    }

    async fn inspect(&self, name: &LockName) -> Result<Status, StoreError> {
        let name = name.clone();
        self.0
            .run(|leases| async move {
                let mut budget = budget(&*leases, STORE_TIMEOUT, Ttl::DEFAULT);
                let record = repeated(&mut budget, || leases.read(&name)).await?;
                Ok(rules::status(name.clone(), record))
            })
            .await?
    }

    fn list(&self, prefix: &str) -> BoxStream<'_, Result<LockName, StoreError>> {
        let prefix = prefix.to_owned();
        // Where the next page begins. `None` after the last page.
        let pages = stream::try_unfold(Some(None::<String>), move |from| {
            let prefix = prefix.clone();
            async move {
                let Some(from) = from else { return Ok(None) };
                let page = self.0.run(|leases| async move {
                    let mut budget = budget(&*leases, STORE_TIMEOUT, Ttl::DEFAULT);
                    repeated(&mut budget, || leases.names(&prefix, from.clone())).await
                });
                let (names, next) = page.await??;
                Ok(Some((names, next.map(Some))))
            }
        });
        // Skips names that are not lock names, because leasehold did not write them.
        let names = pages.map_ok(|names| {
            stream::iter(names).map(LockName::new).filter_map(async |name| name.ok().map(Ok))
        });
        names.try_flatten().boxed()
    }

    async fn init(&self) -> Result<(), StoreError> {
        self.0.run(|leases| async move { leases.init().await }).await?
    }

    async fn sweep(&self, name: &LockName, older_than: Duration, dry_run: bool) -> Result<Swept, StoreError> {
        let name = name.clone();
        self.0
            .run(|leases| async move {
                let mut budget = budget(&*leases, STORE_TIMEOUT, Ttl::DEFAULT);
                repeated(&mut budget, || leases.sweep(&name, older_than, dry_run)).await
            })
            .await?
    }

    fn capabilities(&self) -> Capabilities {
        self.0.leases.capabilities()
    }

    fn env(&self) -> &Env {
        self.0.leases.env()
    }
}

#[async_trait]
impl<L: ServerLeases> Watch for ServerStore<L> {
    async fn turn(&self, claim: &Claim, seen: &HolderInfo) -> Result<(), StoreError> {
        let (claim, seen) = (claim.clone(), seen.clone());
        self.0.run(|leases| async move { wait::until_turn(&*leases, &claim, &seen).await }).await?
    }

    async fn changed(&self, name: &LockName, seen: &HolderInfo) -> Result<(), StoreError> {
        let (name, seen) = (name.clone(), seen.clone());
        self.0.run(|leases| async move { wait::until_changed(&*leases, &name, &seen).await }).await?
    }
}

#[async_trait]
impl<L: ServerLeases> Diagnose for ServerStore<L> {
    async fn discard(&self, name: &LockName) -> Result<bool, StoreError> {
        let name = name.clone();
        self.0
            .run(|leases| async move {
                let mut budget = budget(&*leases, STORE_TIMEOUT, Ttl::DEFAULT);
                repeated(&mut budget, || leases.discard(&name)).await
            })
            .await?
    }

    async fn examine(&self, examination: &Examination) -> Examined {
        let examination = examination.clone();
        self.0.run(|leases| async move { leases.examine(&examination).await }).await.unwrap_or_default()
    }
}

impl<L: ServerLeases> Drop for ServerStore<L> {
    fn drop(&mut self) {
        let leases = self.0.leases.clone();
        self.0.finish(async move { leases.close() });
    }
}
