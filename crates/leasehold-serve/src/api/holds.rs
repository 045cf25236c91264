//! Renewing, checking, releasing and withdrawing. `acquire` has the acquisition.

pub(crate) mod acquire;
mod bodies;

use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use leasehold::lease::End;
use leasehold::{LockName, Loss, LossReason, Released, State as LockState, Ticket};

use self::acquire::claim_id;
pub(crate) use self::bodies::AcquireRequest;
use self::bodies::{
    Checked, ReleaseRequest, ReleasedAnswer, RenewAnswer, RenewRequest, Renewed, RenewedAll, RenewedOne,
    TicketRequest, WithdrawRequest, WithdrawnAnswer,
};
use crate::access::Right;
use crate::app::{App, Arrival, Shared};
use crate::body::{Payload, duration, lock_name};
use crate::feed::FeedEvent;
use crate::problem::Problem;
use crate::view::ms;

/// How many tickets one request may renew, and how long its body may be.
const MAX_RENEWALS: usize = 100;
pub(super) const MAX_RENEWAL_BODY: usize = 64 * 1024;
/// Maximum cooldown.
const MAX_COOLDOWN: Duration = Duration::from_secs(366 * 24 * 60 * 60);

/// Renews one hold or up to 100.
#[utoipa::path(post, path = "/v1/holds/renew", request_body = RenewRequest, responses(
    (status = 200, description = "`Renewed` for one ticket, `RenewedAll` for several", body = RenewAnswer),
    (status = 400, body = Problem, content_type = "application/problem+json"), (status = 401, body = Problem, content_type = "application/problem+json"), (status = 403, body = Problem, content_type = "application/problem+json"),
    (status = 410, description = "The lock was lost", body = Problem, content_type = "application/problem+json"),
    (status = 408, body = Problem, content_type = "application/problem+json"), (status = 413, body = Problem, content_type = "application/problem+json"), (status = 415, body = Problem, content_type = "application/problem+json"), (status = 503, body = Problem, content_type = "application/problem+json")))]
pub(crate) async fn renew(
    State(app): Shared,
    arrival: Arrival,
    Payload(request): Payload<RenewRequest>,
) -> Result<Json<RenewAnswer>, Problem> {
    match (request.ticket, request.tickets) {
        (Some(ticket), None) => Ok(Json(RenewAnswer::One(renew_one(&app, &arrival, &ticket).await?))),
        (None, Some(tickets)) if (1..=MAX_RENEWALS).contains(&tickets.len()) => {
            let one = |ticket: String| {
                let (app, arrival) = (&app, &arrival);
                async move {
                    renew_one(app, arrival, &ticket)
                        .await
                        .map_or_else(RenewedOne::Failed, RenewedOne::Renewed)
                }
            };
            let results = futures_util::future::join_all(tickets.into_iter().map(one)).await;
            Ok(Json(RenewAnswer::All(RenewedAll { results })))
        }
        (None, Some(_)) => Err(Problem::invalid(format!("`tickets` must have 1 to {MAX_RENEWALS} tickets"))),
        _ => Err(Problem::invalid("the body needs either `ticket` or `tickets`")),
    }
}

/// Renews the hold of the ticket `text`.
pub(crate) async fn renew_one(app: &App, arrival: &Arrival, text: &str) -> Result<Renewed, Problem> {
    let outcome = renewed(app, arrival, text).await;
    let slack = outcome.as_ref().ok().map(|(_, slack)| *slack);
    app.metrics.renewed(&outcome, slack);
    outcome.map(|(renewed, _)| renewed)
}

/// Renews a hold. Also returns which fraction of the ttl was left when the store responded.
async fn renewed(app: &App, arrival: &Arrival, text: &str) -> Result<(Renewed, f64), Problem> {
    let ticket = ticket(arrival, text)?;
    let held = match app.locker.renew(&ticket).await {
        Ok(held) => held,
        Err(error) => {
            if let Some(loss) = error.loss() {
                report_loss(app, arrival, loss);
            }
            return Err(error.into());
        }
    };
    let now = app.now();
    let slack = held.deadline().remaining(now).as_secs_f64() / ticket.ttl().as_secs_f64();
    let renewed = Renewed {
        lock: ticket.name().to_string(),
        token: token(app, &ticket),
        valid_ms: ms(arrival.valid(held.deadline(), now)),
        ttl_ms: ms(ticket.ttl()),
    };
    Ok((renewed, slack))
}

/// Releases a hold.
#[utoipa::path(post, path = "/v1/holds/release", request_body = ReleaseRequest, responses(
    (status = 200, body = ReleasedAnswer), (status = 501, description = "The store has no cooldowns", body = Problem, content_type = "application/problem+json"), (status = 400, body = Problem, content_type = "application/problem+json"), (status = 401, body = Problem, content_type = "application/problem+json"), (status = 403, body = Problem, content_type = "application/problem+json"),
    (status = 410, description = "The lock had already been lost", body = Problem, content_type = "application/problem+json"),
    (status = 408, body = Problem, content_type = "application/problem+json"), (status = 413, body = Problem, content_type = "application/problem+json"), (status = 415, body = Problem, content_type = "application/problem+json"), (status = 503, body = Problem, content_type = "application/problem+json")))]
pub(crate) async fn release(
    State(app): Shared,
    arrival: Arrival,
    Payload(request): Payload<ReleaseRequest>,
) -> Result<Json<ReleasedAnswer>, Problem> {
    Ok(Json(release_one(&app, &arrival, &request.ticket, request.cooldown.as_deref()).await?))
}

/// Releases the hold of the ticket `text`.
pub(crate) async fn release_one(
    app: &App,
    arrival: &Arrival,
    text: &str,
    cooldown: Option<&str>,
) -> Result<ReleasedAnswer, Problem> {
    let ticket = ticket(arrival, text)?;
    let released = match cooldown {
        Some(cooldown) => {
            let cooldown = duration("cooldown", cooldown, MAX_COOLDOWN)?;
            app.locker.release_with_cooldown(&ticket, cooldown).await?
        }
        None => app.locker.release(&ticket).await?,
    };
    if released == Released::AlreadyLost && !was_released(app, &ticket).await? {
        let loss = Loss::new(ticket.name().clone(), ticket.token(), LossReason::Ended);
        report_loss(app, arrival, &loss);
        return Err(lost(&ticket, LossReason::Ended));
    }
    if released == Released::Released {
        report(app, arrival, "released", ticket.name(), token(app, &ticket));
    }
    let before = released == Released::AlreadyLost;
    Ok(ReleasedAnswer { lock: ticket.name().to_string(), released: true, before })
}

/// Withdraws an acquisition.
///
/// Ends the hold that the acquisition with this `claim` may have received although its response was lost, gives up its
/// place among the waiters, and ends its requests that wait at this server. A request with this `claim` that arrives
/// later may still be granted; its lease then lapses.
#[utoipa::path(post, path = "/v1/holds/withdraw", request_body = WithdrawRequest, responses(
    (status = 200, body = WithdrawnAnswer), (status = 400, body = Problem, content_type = "application/problem+json"), (status = 401, body = Problem, content_type = "application/problem+json"), (status = 403, body = Problem, content_type = "application/problem+json"),
    (status = 408, body = Problem, content_type = "application/problem+json"), (status = 413, body = Problem, content_type = "application/problem+json"), (status = 415, body = Problem, content_type = "application/problem+json"), (status = 503, body = Problem, content_type = "application/problem+json")))]
pub(crate) async fn withdraw(
    State(app): Shared,
    arrival: Arrival,
    Payload(request): Payload<WithdrawRequest>,
) -> Result<Json<WithdrawnAnswer>, Problem> {
    let name = lock_name(&request.lock)?;
    arrival.require(Right::Acquire, &name)?;
    let id = claim_id(&request.claim)?;
    app.waits.withdraw(&name, id);
    let released = app.locker.withdraw(&name, id).await? == Released::Released;
    if released {
        report(&app, &arrival, "released", &name, None);
    }
    Ok(Json(WithdrawnAnswer { lock: name.to_string(), released }))
}

/// Returns whether an earlier request, whose response was lost, released the hold.
async fn was_released(app: &App, ticket: &Ticket) -> Result<bool, Problem> {
    let status = app.locker.inspect(ticket.name()).await?;
    Ok(status.history.iter().any(|past| past.token == ticket.token() && past.end == End::Released))
}

/// Reports whether a hold is still valid, without renewing it.
#[utoipa::path(post, path = "/v1/holds/check", request_body = TicketRequest, responses(
    (status = 200, body = Checked), (status = 400, body = Problem, content_type = "application/problem+json"), (status = 401, body = Problem, content_type = "application/problem+json"), (status = 403, body = Problem, content_type = "application/problem+json"),
    (status = 410, description = "The lock was lost", body = Problem, content_type = "application/problem+json"),
    (status = 408, body = Problem, content_type = "application/problem+json"), (status = 413, body = Problem, content_type = "application/problem+json"), (status = 415, body = Problem, content_type = "application/problem+json"), (status = 429, body = Problem, content_type = "application/problem+json"), (status = 503, body = Problem, content_type = "application/problem+json")))]
pub(crate) async fn check(
    State(app): Shared,
    arrival: Arrival,
    Payload(request): Payload<TicketRequest>,
) -> Result<Json<Checked>, Problem> {
    let ticket = ticket(&arrival, &request.ticket)?;
    app.limits.admit(arrival.caller.name(), arrival.at)?;
    app.locker.url().map_or(Ok(()), |url| ticket.check_store(url))?;
    match app.locker.inspect(ticket.name()).await?.state {
        LockState::Held(held) if held.token == Some(ticket.token()) && !held.in_cooldown => {
            Ok(Json(Checked {
                lock: ticket.name().to_string(),
                token: token(&app, &ticket),
                lapses_within_ms: held.lapses_within.map(ms),
            }))
        }
        LockState::Held(by) if !by.in_cooldown => Err(lost(&ticket, LossReason::TakenOver { by })),
        LockState::Lapsed(held) if held.token == Some(ticket.token()) => {
            Err(lost(&ticket, LossReason::Expired { last_error: None }))
        }
        _ => Err(lost(&ticket, LossReason::Ended)),
    }
}

/// Parses the ticket in a request. Fails if its caller may not use it.
fn ticket(arrival: &Arrival, text: &str) -> Result<Ticket, Problem> {
    let ticket: Ticket = text.parse::<Ticket>()?;
    arrival.require(Right::Acquire, ticket.name())?;
    Ok(ticket)
}

fn lost(ticket: &Ticket, reason: LossReason) -> Problem {
    let loss = Loss::new(ticket.name().clone(), ticket.token(), reason);
    Problem::new(StatusCode::GONE, "lost", loss.to_string()).with_loss(&loss)
}

fn report(app: &App, arrival: &Arrival, kind: &'static str, name: &LockName, token: Option<u64>) {
    let by = arrival.caller.principal.clone();
    app.report(FeedEvent { token, by, ..FeedEvent::new(kind, name) }, arrival);
}

fn report_loss(app: &App, arrival: &Arrival, loss: &Loss) {
    let reason = loss.reason.as_str();
    app.metrics.lost(reason);
    let (token, reason) = (Some(loss.token.get()), Some(reason.to_owned()));
    app.report(FeedEvent { token, reason, ..FeedEvent::new("lost", &loss.name) }, arrival);
}

fn token(app: &App, ticket: &Ticket) -> Option<u64> {
    app.locker.capabilities().tokens.then(|| ticket.token().get())
}
