//! Evicting a holder.

use axum::Json;
use axum::extract::State;
use axum::http::HeaderMap;
use leasehold::view::LockDetail;
use leasehold::{Evicted, Eviction, LockName, State as LockState, Token};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::access::Right;
use crate::app::{App, Arrival, Shared};
use crate::body::{Payload, lock_name, token_to_match};
use crate::feed::FeedEvent;
use crate::problem::Problem;

/// Maximum length of a reason.
const MAX_REASON: usize = 200;

/// Whose grant to end.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct EvictRequest {
    /// The lock's name.
    #[schema(min_length = 1, max_length = 256)]
    lock: String,
    /// The reason. The store keeps it in the lock's history if it can.
    #[schema(min_length = 1, max_length = 200)]
    reason: String,
}

/// The grant that was ended.
#[derive(Serialize, ToSchema)]
pub(crate) struct EvictResponse {
    /// The lock's name.
    lock: String,
    /// The token of the grant.
    #[schema(value_type = Token)]
    token: u64,
    /// Always true.
    evicted: bool,
}

/// Ends the grant of another holder.
///
/// The holder detects the eviction at its next renewal, so make sure first that it has stopped. The header `If-Match`
/// has the token of the grant, so that a later holder is not evicted by mistake.
#[utoipa::path(post, path = "/v1/evict", operation_id = "evictHolder", tag = "locks", request_body = EvictRequest,
    params(("If-Match" = String, Header, description = "The token of the grant to end, in quotation marks", pattern = "^\"?[0-9]{1,16}\"?$")),
    responses(
        (status = 200, description = "The grant was ended", body = EvictResponse),
        (status = 412, description = "The lock is not held with that token"),
        (status = 428, description = "If-Match is missing"),
        (status = 501, description = "The store cannot do this")))]
pub(crate) async fn evict(
    State(app): Shared,
    arrival: Arrival,
    headers: HeaderMap,
    Payload(request): Payload<EvictRequest>,
) -> Result<Json<EvictResponse>, Problem> {
    let name = lock_name(&request.lock)?;
    if let Err(problem) = arrival.require(Right::Evict, &name) {
        app.report_refused(&name, problem.word(), &arrival);
        return Err(problem);
    }
    let token = token_to_match(&headers)?;
    match end_grant(&app, &arrival, &name, token, &request.reason).await? {
        Outcome::Evicted => {
            Ok(Json(EvictResponse { lock: name.to_string(), token: token.get(), evicted: true }))
        }
        Outcome::Changed(now) => {
            let current = now.lock.held_by.and_then(|held| held.token).map(Token::get);
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
    let event = |kind| FeedEvent {
        token: Some(token.get()),
        by: Some(arrival.caller.name().to_owned()),
        reason: Some(reason.to_owned()),
        ..FeedEvent::new(kind, name)
    };
    if let Some(audit) = &app.audit {
        // Read the lock first, so that the log does not fill with evictions that change nothing.
        let status = app.locker.inspect(name).await?;
        let (LockState::Held(held) | LockState::Lapsed(held)) = &status.state else {
            return Ok(Outcome::Changed(Box::new(LockDetail::of(&status))));
        };
        if held.token != Some(token) {
            return Ok(Outcome::Changed(Box::new(LockDetail::of(&status))));
        }
        let intended = FeedEvent { at_us: app.now().wall_us(), ..event("evicting") };
        audit.require(&intended, arrival.caller.name()).await?;
    }
    let why = Eviction::new(arrival.caller.name(), reason);
    match app.locker.evict_for(name, token, &why).await? {
        Evicted::Evicted => {
            app.metrics.evicted();
            app.report(event("evicted"), arrival).await;
            Ok(Outcome::Evicted)
        }
        Evicted::Changed => {
            let now = LockDetail::of(&app.locker.inspect(name).await?);
            Ok(Outcome::Changed(Box::new(now)))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use leasehold::Locker;
    use leasehold::env::Env;

    use super::*;
    use crate::audit::Audit;

    #[tokio::test]
    async fn an_eviction_that_cannot_be_recorded_is_not_done() {
        let (locker, root) = (Locker::open("mem:").await.unwrap(), tempfile::tempdir().unwrap());
        let (logs, moved) = (root.path().join("logs"), root.path().join("moved"));
        fs::create_dir(&logs).unwrap();
        let audit = Audit::open(&logs.join("audit.jsonl"), &Env::system()).unwrap();
        let app = App::on(&locker, Some(audit));
        let ticket = locker.lock("a").acquire().await.unwrap().into_ticket().await.unwrap();
        let (operator, name) = (app.arrival(true).await, ticket.name().clone());
        let evict = async |token| end_grant(&app, &operator, &name, token, "it hangs").await;
        let other = Token::new(ticket.token().get() + 1).unwrap();
        assert!(matches!(evict(other).await, Ok(Outcome::Changed(_))));

        fs::rename(&logs, &moved).unwrap();
        assert_eq!(evict(ticket.token()).await.err().unwrap().word(), "not-audited");
        assert!(locker.renew(&ticket).await.is_ok(), "the holder was evicted");
        let ready = crate::api::health::readyz(State(app.clone())).await;
        assert_eq!(ready.err().unwrap().word(), "unready");

        fs::rename(&moved, &logs).unwrap();
        assert!(crate::api::health::readyz(State(app.clone())).await.is_ok());
        assert!(matches!(evict(ticket.token()).await, Ok(Outcome::Evicted)));
        let text = fs::read_to_string(logs.join("audit.jsonl")).unwrap();
        let kinds: Vec<_> = text.lines().filter_map(|line| line.split('"').nth(3)).collect();
        assert_eq!(kinds, ["missing", "evicting", "evicted"]);
    }
}
