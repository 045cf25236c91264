//! The fence check, for proxies.

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use leasehold::State as LockState;

use crate::access::Right;
use crate::app::{Arrival, Shared};
use crate::body::{PathName, number};
use crate::problem::Problem;

/// Reports whether a fencing token belongs to the current grant.
///
/// Advisory: the response may be outdated when it arrives. A resource that compares tokens itself is safe.
#[utoipa::path(get, path = "/v1/fence/{name}", operation_id = "checkToken", tag = "locks",
    params(("name" = String, Path, description = "The lock's name; its slashes may be encoded or not"),
        ("Leasehold-Token" = String, Header, description = "The token that a client sent")),
    responses((status = 204, description = "The token is that of the current grant"),
        (status = 412, description = "The token is not that of the current grant")))]
pub(crate) async fn fence(
    State(app): Shared,
    arrival: Arrival,
    headers: HeaderMap,
    PathName(name): PathName,
) -> Result<StatusCode, Problem> {
    arrival.require(Right::Read, &name)?;
    let given = headers.get("leasehold-token").and_then(|token| token.to_str().ok()).and_then(number);
    let Some(given) = given else {
        return Err(Problem::invalid("the header `Leasehold-Token` has no token")
            .with_help("a token is a number below 2^53: Leasehold-Token: 17"));
    };
    let status = app.locker.inspect(&name).await?;
    let held = match &status.state {
        LockState::Held(held) if !held.in_cooldown && !held.reserved => held.token,
        _ => None,
    };
    let Some(token) = held else {
        return Err(Problem::changed(format!("lock `{name}` is not held"), None));
    };
    // A process may hand a lock from task to task. The tasks use the tokens between the previous grant and this one.
    let is_current = match status.history.first() {
        Some(previous) => given > previous.token && given <= token,
        None => given == token,
    };
    if is_current {
        return Ok(StatusCode::NO_CONTENT);
    }
    let detail = format!("token {given} is not that of the current grant of lock `{name}`");
    Err(Problem::changed(detail, Some(token.get())))
}
