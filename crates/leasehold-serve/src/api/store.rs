//! The capabilities of the server's store, and the rights of the caller.

use axum::Json;
use axum::extract::State;
use serde::Serialize;
use utoipa::ToSchema;

use crate::access::Right;
use crate::app::{Arrival, Shared};

/// What a client needs to know about the store of this server.
#[derive(Serialize, ToSchema)]
#[schema(as = Store)]
pub(crate) struct StoreView {
    /// The version of leasehold.
    version: &'static str,
    /// The kind of store, as text for people.
    store: &'static str,
    /// Whether grants have fencing tokens.
    tokens: bool,
    /// Whether a release can have a `cooldown`.
    cooldowns: bool,
    /// Whether the store keeps ended grants. If not, it cannot grant a lock by a `claim`.
    history: bool,
    /// The principal of the caller; null without a token.
    #[schema(required)]
    principal: Option<String>,
    /// What the caller may do.
    rules: Vec<RuleView>,
}

/// What the caller may do with the locks whose names begin with a prefix.
#[derive(Serialize, ToSchema)]
#[schema(as = Rule)]
pub(crate) struct RuleView {
    /// The prefix; empty for all locks.
    prefix: String,
    /// The rights.
    allow: Vec<Right>,
}

/// Reports what the store can do, and what the caller may do.
///
/// Sends no request to the store.
#[utoipa::path(get, path = "/v1/store", operation_id = "getStore", tag = "server",
    responses((status = 200, description = "The store and the caller", body = StoreView)))]
pub(crate) async fn store(State(app): Shared, arrival: Arrival) -> Json<StoreView> {
    let capabilities = app.locker.capabilities();
    let rule =
        |(prefix, allow): &(String, Vec<Right>)| RuleView { prefix: prefix.clone(), allow: allow.clone() };
    Json(StoreView {
        version: env!("CARGO_PKG_VERSION"),
        store: capabilities.store,
        tokens: capabilities.tokens,
        cooldowns: capabilities.cooldowns,
        history: capabilities.history,
        principal: arrival.caller.principal.clone(),
        rules: arrival.caller.rights().iter().map(rule).collect(),
    })
}
