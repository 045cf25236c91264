//! The HTTPS client, and its limits.

use std::time::Duration;

use reqwest::redirect;

use crate::error::{Error, ErrorKind};

/// The limit of one request, so that several fit into the shortest usual lease. The layers above cut it further.
pub(super) const REQUEST_LIMIT: Duration = Duration::from_secs(5);

/// A lost SYN is sent again after one second and after three.
const CONNECT_LIMIT: Duration = Duration::from_millis(3_100);

/// Google closes idle connections after four minutes; a request on one that is just being closed would be lost.
const IDLE_LIMIT: Duration = Duration::from_secs(60);

/// A client that sends each request once.
pub(super) fn client() -> Result<reqwest::Client, Error> {
    reqwest::Client::builder()
        // A retry inside would turn an applied write whose answer was lost into a conflict.
        .retry(reqwest::retry::never())
        // A redirected write is not ours to repeat.
        .redirect(redirect::Policy::none())
        // What is sent to this machine in the clear, access tokens too, is to stay on it.
        .no_proxy()
        .connect_timeout(CONNECT_LIMIT)
        .pool_idle_timeout(IDLE_LIMIT)
        .tcp_nodelay(true)
        .http1_only()
        .user_agent(concat!("leasehold/", env!("CARGO_PKG_VERSION")))
        .build()
        .map_err(|error| {
            Error::new(ErrorKind::Unavailable, format!("no HTTPS client could be made: {error}"))
                .with_help(
                    "check that the machine has root certificates (Debian: the package ca-certificates)",
                )
                .with_source(error)
        })
}
