//! The server of `leasehold serve`, which offers leasehold's locks over HTTP.
//!
//! The server keeps no state that a lock depends on. All such state is in the store. Any server on the same store
//! serves any ticket, even a server that has just started. Clients renew their holds themselves. The server never
//! renews a hold on its own, and never releases a hold because a connection ended.
//!
//! - `api`: one file for each group of routes. Each route checks its input, calls [`Locker`](leasehold::Locker), and
//!   responds with a type from `view` or with a `problem`.
//! - `access`: who may do what; tokens of issuers (feature `oidc`); checks against other sites in a browser.
//! - `connections`, `tls`: how requests arrive. `limits`, `capacity`: how many.
//! - `trace`: the span of a request, and its parent from `traceparent` (feature `otlp`).
//! - `ui`: the dashboard.
//! - `app`: the state that all routes share. `feed`: the events for viewers. `audit`: the audit log. `grants`: the
//!   grants that the server has seen. `limits`, `rates`, `wrong_tokens`: how much a caller may do.
//!   `examiner`: the doctor, for the dashboard.
//! - `leader`: who leads an election, for `leasehold elect --http`. `terraform`: the state of Terraform, for
//!   `leasehold terraform`.

mod access;
mod api;
mod app;
mod audit;
mod body;
mod capacity;
mod changes;
mod connections;
mod examiner;
mod feed;
mod grants;
mod leader;
mod limits;
mod metrics;
mod peer;
mod problem;
mod rates;
mod readiness;
mod server;
mod terraform;
mod tls;
mod trace;
mod ui;
#[cfg(test)]
mod unreliable;
mod view;
mod visible;
mod waits;
mod words;
mod wrong_tokens;

pub use self::access::{Access, InvalidAccess};
pub use self::app::{Dashboard, Settings};
pub use self::leader::{LeaderListener, LeaderPage};
pub use self::server::{ServeError, Server};
pub use self::terraform::{Acquire, Closed, StateBackend, StateListener, Warn};
pub use self::tls::{InvalidTls, Tls};
