//! leasehold's locks over HTTP: what `leasehold serve` runs.
//!
//! The server keeps no state that a lock depends on: the store has it. Any server on the same store serves any ticket,
//! also one that has just started. Clients renew their holds themselves. The server never renews a hold on its own, and
//! never releases one because a connection ended.
//!
//! - `api`: one file for each group of routes. Each route checks its input, asks [`Locker`](leasehold::Locker), and
//!   responds with a type from `view`, or with a `problem`.
//! - `access`: who may do what; tokens of issuers (feature `oidc`); checks against other sites in a browser.
//! - `connections`, `tls`: how requests arrive.
//! - `trace`: the span of a request; its parent by `traceparent` (feature `otlp`).
//! - `ui`: the dashboard.
//! - `app`: what all routes share. `feed`: the events that viewers get. `examiner`: the doctor, for the dashboard.

mod access;
mod api;
mod app;
mod audit;
mod body;
mod connections;
mod examiner;
mod feed;
mod limits;
mod metrics;
mod problem;
mod readiness;
mod server;
mod tls;
mod trace;
mod ui;
mod view;
mod waits;

pub use self::access::{Access, InvalidAccess};
pub use self::app::{Dashboard, Settings};
pub use self::server::{ServeError, Server};
pub use self::tls::{InvalidTls, Tls};
