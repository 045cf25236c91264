//! Renewing, checking, releasing and withdrawing. `acquire` has the acquisition.

pub(crate) mod acquire;
mod bodies;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use leasehold::lease::{End, Secret, Token};
use leasehold::view::ms;
use leasehold::{ErrorKind, LockName, Loss, LossReason, OncePer, Released, Ticket};
use tracing::Instrument as _;

use self::acquire::claim_secret;
pub(crate) use self::bodies::AcquireRequest;
use self::bodies::{
    CheckRequest, CheckResponse, ReleaseRequest, ReleaseResponse, RenewAllRequest, RenewAllResponse,
    RenewRequest, Renewal, RenewedHold, WithdrawRequest, WithdrawResponse,
};
use crate::access::Right;
use crate::app::{App, Arrival, Shared};
use crate::body::{Payload, duration, lock_name};
use crate::feed::FeedEvent;
use crate::grants::Fate;
use crate::problem::Problem;
use crate::trace;
use crate::waits::Withdrawn;

/// How many tickets one request may renew.
const MAX_RENEWALS: usize = 100;
/// How many locks of a ticket are read concurrently.
const CONCURRENCY: usize = 8;
/// For how long a request with an unknown ticket waits until the limit of failed requests admits it, and how often it
/// asks. Tickets that this server has not seen may all be valid, for example after a restart.
const PATIENCE: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(50);
/// Maximum cooldown.
const MAX_COOLDOWN: Duration = OncePer::LONGEST;

/// Renews a hold.
#[utoipa::path(post, path = "/v1/holds/renew", operation_id = "renewHold", tag = "holds",
    request_body = RenewRequest,
    responses((status = 200, description = "The hold was renewed", body = RenewedHold),
        (status = 410, description = "The lock was lost")))]
pub(crate) async fn renew(
    State(app): Shared,
    arrival: Arrival,
    Payload(request): Payload<RenewRequest>,
) -> Result<Json<RenewedHold>, Problem> {
    Ok(Json(renew_one(&app, &arrival, &request.ticket).await?))
}

/// Renews up to 100 holds.
#[utoipa::path(post, path = "/v1/holds/renew-all", operation_id = "renewHolds", tag = "holds",
    request_body = RenewAllRequest,
    responses((status = 200, description = "Each hold was renewed or not", body = RenewAllResponse)))]
pub(crate) async fn renew_all(
    State(app): Shared,
    arrival: Arrival,
    Payload(request): Payload<RenewAllRequest>,
) -> Result<Json<RenewAllResponse>, Problem> {
    if !(1..=MAX_RENEWALS).contains(&request.tickets.len()) {
        return Err(Problem::invalid(format!("`tickets` must have 1 to {MAX_RENEWALS} tickets")));
    }
    let (app, arrival) = (&app, &arrival);
    let one = |ticket: String| async move {
        renew_one(app, arrival, &ticket).await.map_or_else(Renewal::Failed, Renewal::Renewed)
    };
    let results = futures_util::future::join_all(request.tickets.into_iter().map(one)).await;
    Ok(Json(RenewAllResponse { results }))
}

/// Renews the hold of the ticket `text`.
pub(crate) async fn renew_one(app: &App, arrival: &Arrival, text: &str) -> Result<RenewedHold, Problem> {
    let outcome = renewed(app, arrival, text).await;
    let slack = outcome.as_ref().ok().and_then(|(_, slack)| *slack);
    app.metrics.renewed(&outcome, slack);
    outcome.map(|(renewed, _)| renewed)
}

/// Renews a hold. Also returns which fraction of the ttl was left when the store responded, if no limit shortens it.
async fn renewed(app: &App, arrival: &Arrival, text: &str) -> Result<(RenewedHold, Option<f64>), Problem> {
    let presented = Presented::parse(app, arrival, text, false).await?;
    let ticket = &presented.ticket;
    let held = match app.locker.renew(ticket).await {
        Ok(held) => held,
        Err(error) => return Err(presented.failed(error).await),
    };
    app.grants.record(ticket, Fate::Held);
    presented.not_counted();
    let now = app.now();
    let left = ticket.max_hold().is_none().then(|| held.deadline().remaining(now).as_secs_f64());
    let slack = left.map(|left| left / ticket.ttl().as_secs_f64());
    let renewed = RenewedHold {
        lock: ticket.name().to_string(),
        token: token(app, ticket),
        tokens: tokens(app, ticket),
        valid_ms: ms(arrival.valid(held.deadline(), now)),
        ttl_ms: ms(ticket.ttl()),
    };
    Ok((renewed, slack))
}

/// Releases a hold.
#[utoipa::path(post, path = "/v1/holds/release", operation_id = "releaseHold", tag = "holds",
    request_body = ReleaseRequest,
    responses((status = 200, description = "The lock was released", body = ReleaseResponse),
        (status = 410, description = "The lock had already been lost"),
        (status = 501, description = "The store has no cooldowns")))]
pub(crate) async fn release(
    State(app): Shared,
    arrival: Arrival,
    Payload(request): Payload<ReleaseRequest>,
) -> Result<Json<ReleaseResponse>, Problem> {
    Ok(Json(
        release_one(&app, &arrival, &request.ticket, request.cooldown.as_deref(), request.at_limit).await?,
    ))
}

/// Releases the hold of the ticket `text`.
pub(crate) async fn release_one(
    app: &App,
    arrival: &Arrival,
    text: &str,
    cooldown: Option<&str>,
    at_limit: bool,
) -> Result<ReleaseResponse, Problem> {
    let cooldown = cooldown.map(|cooldown| duration("cooldown", cooldown, MAX_COOLDOWN)).transpose()?;
    let presented = Presented::parse(app, arrival, text, true).await?;
    let ticket = &presented.ticket;
    if presented.fate == Some(Fate::Released) {
        return Ok(ReleaseResponse { lock: ticket.name().to_string(), released: true, before: true });
    }
    let released = match cooldown {
        Some(cooldown) => app.locker.release_with_cooldown(ticket, cooldown).await,
        None if at_limit => app.locker.release_at_limit(ticket).await,
        None => app.locker.release(ticket).await,
    };
    let before = match released {
        Ok(Released::Released) => false,
        Ok(Released::AlreadyLost) => match presented.unreleased().await? {
            None => true,
            Some((name, token)) => {
                let loss = Loss::new(name, token, LossReason::Ended);
                return Err(presented.lost(&loss).await);
            }
        },
        Err(error) => return Err(presented.failed(error).await),
    };
    app.grants.record(ticket, Fate::Released);
    if !before {
        presented.not_counted();
        // A renewal may have reported it.
        if at_limit && !matches!(presented.fate, Some(Fate::Lost(_))) {
            app.metrics.lost(LossReason::Limit.as_str());
        }
        report_each(app, arrival, "released", ticket).await;
    }
    Ok(ReleaseResponse { lock: ticket.name().to_string(), released: true, before })
}

/// Withdraws an acquisition.
///
/// Ends the hold that the acquisition with this `claim` may have received although its response was lost, gives up its
/// place among the waiters, and ends its requests that wait at this server. If the store grants one of these later, the
/// server releases the lock. Another request with this `claim` that arrives later may still be granted; its lease then
/// lapses.
#[utoipa::path(post, path = "/v1/holds/withdraw", operation_id = "withdrawAcquisition", tag = "holds",
    request_body = WithdrawRequest,
    responses((status = 200, description = "The acquisition was withdrawn", body = WithdrawResponse)))]
pub(crate) async fn withdraw(
    State(app): Shared,
    arrival: Arrival,
    Payload(request): Payload<WithdrawRequest>,
) -> Result<Json<WithdrawResponse>, Problem> {
    let name = lock_name(&request.lock)?;
    arrival.require(Right::Acquire, &name)?;
    let secret = claim_secret(&request.claim)?;
    let waited = app.waits.withdraw(&name, secret.id());
    let is_known = waited.is_some();
    if !is_known {
        app.limits.attempt(arrival.caller.name(), arrival.at)?;
    }
    if let Some(waited) = waited {
        let late = end_late_hold(app.clone(), arrival.clone(), name.clone(), secret, waited);
        tokio::spawn(late.instrument(trace::waiting()));
    }
    let ended = end_claim(&app, &arrival, &name, secret).await;
    if !is_known && !matches!(ended, Ok(false)) {
        app.limits.succeeded(arrival.caller.name());
    }
    let released = ended?;
    Ok(Json(WithdrawResponse { lock: name.to_string(), released }))
}

/// Ends the hold that the store may grant to a withdrawn acquisition by a request that is already under way.
async fn end_late_hold(app: Arc<App>, arrival: Arrival, name: LockName, secret: Secret, waited: Withdrawn) {
    waited.ended().await;
    if let Err(error) = end_claim(&app, &arrival, &name, secret).await {
        tracing::debug!(lock = %name, %error, "a withdrawn claim may have received a hold, which lapses");
    }
}

/// Ends the hold of the claim with this `secret`, and gives up its place among the waiters. Returns whether it had the lock.
async fn end_claim(app: &App, arrival: &Arrival, name: &LockName, secret: Secret) -> leasehold::Result<bool> {
    let released = app.locker.withdraw(name, secret).await? == Released::Released;
    if released {
        report(app, arrival, "released", name, None).await;
    }
    Ok(released)
}

/// Reports whether a hold is still valid, without renewing it.
#[utoipa::path(post, path = "/v1/holds/check", operation_id = "checkHold", tag = "holds",
    request_body = CheckRequest,
    responses((status = 200, description = "The store has the hold", body = CheckResponse),
        (status = 410, description = "The lock was lost")))]
pub(crate) async fn check(
    State(app): Shared,
    arrival: Arrival,
    Payload(request): Payload<CheckRequest>,
) -> Result<Json<CheckResponse>, Problem> {
    let ticket: Ticket = request.ticket.parse()?;
    ticket.grants().try_for_each(|(name, _)| arrival.require(Right::Acquire, name))?;
    app.limits.admit(arrival.caller.name(), arrival.at)?;
    app.locker.url().map_or(Ok(()), |url| ticket.check_store(url))?;
    let mut earliest = None::<Duration>;
    for (name, token) in ticket.grants() {
        let status = app.locker.inspect(name).await?;
        let reason = match status.state.held_with(token) {
            Ok(held) => {
                earliest = earliest.into_iter().chain(held.lapses_within).min();
                continue;
            }
            Err(reason) => *reason,
        };
        let is_known =
            app.grants.fate(&ticket).is_some() || status.history.iter().any(|past| ticket.is_of(past));
        if !is_known {
            return Err(Problem::unknown_grant(name, &reason));
        }
        return Err(Problem::lost(&Loss::new(name.clone(), token, reason)));
    }
    Ok(Json(CheckResponse {
        lock: ticket.name().to_string(),
        token: token(&app, &ticket),
        lapses_within_ms: earliest.map(ms),
    }))
}

/// A ticket that a request uses. Anyone can write a ticket, so its content counts only when the store has confirmed it.
struct Presented<'a> {
    app: &'a App,
    arrival: &'a Arrival,
    ticket: Ticket,
    /// What this server knew about the grant when the request arrived. A request for an unknown grant counts as one that
    /// fails, until the store has confirmed the grant.
    fate: Option<Fate>,
}

impl<'a> Presented<'a> {
    /// Parses the ticket in a request. Fails if the caller may not use it, has sent too many invalid tickets, or was told
    /// that the hold is lost. Then the store is not asked again, so a client that continues to use such a ticket costs
    /// little. A lock that may still be held can be released.
    async fn parse(app: &'a App, arrival: &'a Arrival, text: &str, releases: bool) -> Result<Self, Problem> {
        let attempt = || app.limits.attempt(arrival.caller.name(), arrival.at);
        let ticket = match text.parse::<Ticket>() {
            Ok(ticket) => ticket,
            Err(error) => return Err(attempt().err().unwrap_or_else(|| error.into())),
        };
        for (name, _) in ticket.grants() {
            if let Err(problem) = arrival.require(Right::Acquire, name) {
                attempt()?;
                app.report_refused(name, problem.word(), arrival);
                return Err(problem);
            }
        }
        // A hold that this server has seen is renewed, however many other requests of the caller fail.
        let fate = app.grants.fate(&ticket);
        match &fate {
            None => patiently(app, arrival).await?,
            Some(Fate::Lost(loss)) if !(releases && may_be_held(&ticket, loss)) => {
                return Err(Problem::lost(loss));
            }
            Some(Fate::Held | Fate::Released | Fate::Lost(_)) => {}
        }
        Ok(Self { app, arrival, ticket, fate })
    }

    /// Does not count the request as one that failed.
    fn not_counted(&self) {
        if self.fate.is_none() {
            self.app.limits.succeeded(self.arrival.caller.name());
        }
    }

    /// Returns the problem for `error`, and reports a loss.
    async fn failed(&self, error: leasehold::Error) -> Problem {
        match error.loss() {
            Some(loss) => self.lost(loss).await,
            None => {
                // The failure of the store is not the fault of the caller.
                if error.kind() != ErrorKind::Invalid {
                    self.not_counted();
                }
                error.into()
            }
        }
    }

    /// Returns the problem for the loss of the hold. Reports the loss once, if the server or the store knows the grant.
    /// `loss` names the lock of the ticket that was lost.
    async fn lost(&self, loss: &Loss) -> Problem {
        let Self { app, arrival, ticket, .. } = self;
        let Loss { name, token, reason, .. } = loss;
        // If the store does not respond, the ticket counts as one of an unknown grant.
        if self.fate.is_none() && !matches!(self.end(name).await, Ok(Some(_))) {
            app.report_refused(name, "unknown-ticket", arrival);
            return Problem::unknown_grant(name, reason);
        }
        // Many requests may learn of the loss at the same time.
        let before = app.grants.record(ticket, Fate::Lost(Box::new(loss.clone())));
        if !matches!(before, Some(Fate::Lost(_))) {
            app.metrics.lost(reason.as_str());
            let token = app.locker.capabilities().tokens.then(|| token.get());
            let reason = Some(reason.as_str().to_owned());
            app.report(FeedEvent { token, reason, ..FeedEvent::new("lost", name) }, arrival).await;
        }
        Problem::lost(loss)
    }

    /// Returns a lock of the ticket whose hold did not end with a release, or `None` if all were released: by this
    /// request, or by an earlier one whose response was lost. A lock whose history shows another end comes first.
    async fn unreleased(&self) -> Result<Option<(LockName, Token)>, Problem> {
        let grants: Vec<_> = self.ticket.grants().map(|(name, token)| (name.clone(), token)).collect();
        let ends = stream::iter(grants)
            .map(|(name, token)| async move {
                let end = self.end(&name).await?;
                Ok::<_, leasehold::Error>((name, token, end))
            })
            .buffered(CONCURRENCY);
        let mut ends: Vec<_> = ends.try_collect().await.map_err(|error: leasehold::Error| {
            self.not_counted();
            Problem::from(error)
        })?;
        ends.retain(|(_, _, end)| !matches!(end, Some(End::Released | End::Limit)));
        ends.sort_by_key(|(_, _, end)| end.is_none());
        Ok(ends.into_iter().next().map(|(name, token, _)| (name, token)))
    }

    /// Returns how the ticket's grant of the lock `name` ended, if the history of this lock has the grant.
    async fn end(&self, name: &LockName) -> leasehold::Result<Option<End>> {
        let status = self.app.locker.inspect(name).await?;
        let has = |of: Token| self.ticket.grants().any(|(lock, token)| lock == name && token == of);
        let mut history = status.history.iter();
        Ok(history.find(|past| has(past.token) && self.ticket.is_of(past)).map(|past| past.end))
    }
}

/// Returns whether a lock of `ticket`, which was lost, may still be held until it lapses.
fn may_be_held(ticket: &Ticket, loss: &Loss) -> bool {
    matches!(loss.reason, LossReason::Limit) || ticket.grants().count() > 1
}

/// Counts a request with an unknown ticket as one that fails. Waits for a short time if there were too many.
async fn patiently(app: &App, arrival: &Arrival) -> Result<(), Problem> {
    loop {
        let now = app.now();
        match app.limits.attempt(arrival.caller.name(), now) {
            Err(_) if now.longest_since(arrival.at) < PATIENCE => app.sleep(PAUSE).await,
            admitted => return admitted,
        }
    }
}

async fn report(app: &App, arrival: &Arrival, kind: &'static str, name: &LockName, token: Option<u64>) {
    let by = arrival.caller.principal.clone();
    app.report(FeedEvent { token, by, ..FeedEvent::new(kind, name) }, arrival).await;
}

/// Reports what happened to each lock of `ticket`.
async fn report_each(app: &App, arrival: &Arrival, kind: &'static str, ticket: &Ticket) {
    for (name, token) in ticket.tokens() {
        let token = app.locker.capabilities().tokens.then(|| token.get());
        report(app, arrival, kind, &name, token).await;
    }
}

/// Returns the token of each lock of `ticket`, by its name.
fn tokens(app: &App, ticket: &Ticket) -> Option<BTreeMap<String, u64>> {
    let tokens = ticket.tokens().into_iter().map(|(name, token)| (name.to_string(), token.get()));
    app.locker.capabilities().tokens.then(|| tokens.collect())
}

/// Returns the token of the lock of `ticket`. Several locks have no single token.
fn token(app: &App, ticket: &Ticket) -> Option<u64> {
    let has_one = app.locker.capabilities().tokens && ticket.tokens().len() == 1;
    has_one.then(|| ticket.token().get())
}

#[cfg(test)]
mod forged_tests;

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use async_trait::async_trait;
    use axum::http::HeaderMap;
    use futures_util::stream::BoxStream;
    use leasehold::clock::{StoreTime, timeout};
    use leasehold::env::Env;
    use leasehold::error::StoreError;
    use leasehold::lease::StoreOptions;
    use leasehold::register::{
        Body, Deleted, Precondition, RegisterCapabilities, Version, VersionedValue, Write,
    };
    use leasehold::stores::memory::MemoryRegister;
    use leasehold::{Locker, Register, RegisterLeases};
    use tokio::sync::{Notify, oneshot};

    use super::acquire::acquire_one;
    use super::*;
    use crate::access::Access;
    use crate::app::Settings;

    /// A register whose first write waits for a signal.
    #[derive(Debug)]
    struct SlowRegister {
        memory: MemoryRegister,
        signal: Mutex<Option<oneshot::Receiver<()>>>,
        /// Notified when the first write has arrived.
        arrived: Arc<Notify>,
    }

    #[async_trait]
    impl Register for SlowRegister {
        async fn read(&self, key: &str) -> Result<Option<VersionedValue>, StoreError> {
            self.memory.read(key).await
        }

        async fn write(&self, key: &str, expect: Precondition<'_>, body: Body) -> Result<Write, StoreError> {
            let signal = self.signal.lock().unwrap().take();
            if let Some(signal) = signal {
                self.arrived.notify_one();
                signal.await.unwrap();
            }
            self.memory.write(key, expect, body).await
        }

        async fn delete(&self, key: &str, version: &Version) -> Result<Deleted, StoreError> {
            self.memory.delete(key, version).await
        }

        fn list(&self, prefix: &str) -> BoxStream<'_, Result<String, StoreError>> {
            self.memory.list(prefix)
        }

        fn store_time(&self) -> Option<StoreTime> {
            self.memory.store_time()
        }

        fn env(&self) -> &Env {
            self.memory.env()
        }

        fn capabilities(&self) -> RegisterCapabilities {
            self.memory.capabilities()
        }
    }

    #[tokio::test]
    async fn a_grant_that_follows_a_withdrawal_is_released() {
        let (go, signal) = oneshot::channel();
        let (env, arrived) = (Env::system(), Arc::new(Notify::new()));
        let memory = MemoryRegister::new(env.clone());
        let register = SlowRegister { memory, signal: Mutex::new(Some(signal)), arrived: arrived.clone() };
        let locker = Locker::new(Arc::new(RegisterLeases::new(Arc::new(register), StoreOptions::default())));
        let address = "127.0.0.1:7420".parse().unwrap();
        let settings = Settings::new(address, Access::local("t"), b"s".to_vec());
        let app = Arc::new(App::new(locker, settings, address, None));
        let caller = Access::local("t").caller(&HeaderMap::new(), None, &env).await.unwrap();
        let arrival = Arrival { at: app.now(), caller };
        let mut viewer = app.feed.view(vec![String::new()], None);

        let claim = "0123456789abcdef".repeat(2);
        let wanted = AcquireRequest {
            claim: Some(claim.clone()),
            wait: Some("60s".to_owned()),
            ..AcquireRequest::new("a".to_owned(), "10m".to_owned(), None)
        };
        let (of_task, its_arrival) = (app.clone(), arrival.clone());
        let asking =
            tokio::spawn(async move { acquire_one(&of_task, &its_arrival, None, &wanted).await.is_ok() });
        arrived.notified().await;
        let request = WithdrawRequest { lock: "a".to_owned(), claim };
        let withdrawn = withdraw(State(app.clone()), arrival, Payload(request)).await.unwrap();
        assert!(!withdrawn.0.released, "the write is still under way");

        go.send(()).unwrap();
        let released = timeout(&*env.clock, Duration::from_secs(60), viewer.receiver.recv()).await;
        assert_eq!(released.expect("the late grant stays").unwrap().event.kind, "released");
        let status = app.locker.inspect(&LockName::new("a").unwrap()).await.unwrap();
        assert_eq!((status.state, status.history.len()), (leasehold::State::Free, 1));
        assert!(!asking.await.unwrap());
    }
}
