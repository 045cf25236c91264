//! Evicting a holder.

use axum::Json;
use axum::extract::State;
use axum::http::HeaderMap;
use leasehold::{Evicted, Eviction, LockName, Token};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::access::Right;
use crate::app::{App, Arrival, Shared};
use crate::body::{Payload, lock_name, token_to_match};
use crate::feed::FeedEvent;
use crate::problem::Problem;
use crate::view::LockDetail;

/// Maximum length of a reason.
const MAX_REASON: usize = 200;

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct EvictRequest {
    #[schema(min_length = 1, max_length = 256)]
    lock: String,
    /// The reason. The store keeps it in the lock's history if it can.
    #[schema(min_length = 1, max_length = 200)]
    reason: String,
}

#[derive(Serialize, ToSchema)]
pub(crate) struct EvictedAnswer {
    lock: String,
    token: u64,
    evicted: bool,
}

/// Ends the grant of another holder.
///
/// The holder detects the eviction at its next renewal, so make sure first that it has stopped. The header `If-Match`
/// has the token of the grant, so that a later holder is not evicted by mistake.
#[utoipa::path(post, path = "/v1/evict", request_body = EvictRequest,
    params(("If-Match" = String, Header, description = "The token of the grant to end, in quotation marks", pattern = "^\"?[0-9]{1,16}\"?$")),
    responses(
        (status = 200, body = EvictedAnswer), (status = 400, body = Problem, content_type = "application/problem+json"), (status = 401, body = Problem, content_type = "application/problem+json"), (status = 403, body = Problem, content_type = "application/problem+json"),
        (status = 412, description = "The lock is not held with that token", body = Problem, content_type = "application/problem+json"),
        (status = 408, body = Problem, content_type = "application/problem+json"), (status = 413, body = Problem, content_type = "application/problem+json"), (status = 415, body = Problem, content_type = "application/problem+json"),
        (status = 428, description = "If-Match is missing", body = Problem, content_type = "application/problem+json"),
        (status = 429, body = Problem, content_type = "application/problem+json"), (status = 501, body = Problem, content_type = "application/problem+json"), (status = 503, body = Problem, content_type = "application/problem+json")))]
pub(crate) async fn evict(
    State(app): Shared,
    arrival: Arrival,
    headers: HeaderMap,
    Payload(request): Payload<EvictRequest>,
) -> Result<Json<EvictedAnswer>, Problem> {
    let name = lock_name(&request.lock)?;
    arrival.require(Right::Evict, &name)?;
    let token = token_to_match(&headers)?;
    match end_grant(&app, &arrival, &name, token, &request.reason).await? {
        Outcome::Evicted => {
            Ok(Json(EvictedAnswer { lock: name.to_string(), token: token.get(), evicted: true }))
        }
        Outcome::Changed(now) => {
            let current = now.lock.held.and_then(|held| held.token);
            Err(Problem::changed(format!("lock `{name}` is not held with token {token}"), current)
                .with_help("read the lock again: another holder may have it now"))
        }
    }
}

/// The outcome of an eviction.
pub(crate) enum Outcome {
    Evicted,
    /// The lock is not held with that token. Contains its current state.
    Changed(Box<LockDetail>),
}

/// Ends the grant of `name` with this `token`, if the caller may do so and the grant is the current one.
pub(crate) async fn end_grant(
    app: &App,
    arrival: &Arrival,
    name: &LockName,
    token: Token,
    reason: &str,
) -> Result<Outcome, Problem> {
    arrival.require(Right::Evict, name)?;
    let reason = reason.trim();
    if reason.is_empty() || reason.chars().count() > MAX_REASON {
        return Err(Problem::invalid(format!("`reason` must have 1 to {MAX_REASON} characters")));
    }
    app.limits.admit(arrival.caller.name(), arrival.at)?;
    let why = Eviction::new(arrival.caller.name(), reason);
    match app.locker.evict_for(name, token, &why).await? {
        Evicted::Evicted => {
            let event = FeedEvent {
                token: Some(token.get()),
                by: Some(arrival.caller.name().to_owned()),
                reason: Some(reason.to_owned()),
                ..FeedEvent::new("evicted", name)
            };
            app.metrics.evicted();
            app.report(event, arrival);
            Ok(Outcome::Evicted)
        }
        Evicted::Changed => {
            let now = LockDetail::of(&app.locker.inspect(name).await?);
            Ok(Outcome::Changed(Box::new(now)))
        }
    }
}
