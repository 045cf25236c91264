//! The HTTPS client, and its limits.

use std::path::Path;
use std::time::Duration;

use reqwest::{Certificate, redirect};

use super::config::{Proxy, Transport};
use crate::error::{Error, ErrorKind};

/// The limit of one request. Several requests fit into the shortest usual lease. The layers above reduce it further.
pub(super) const REQUEST_LIMIT: Duration = Duration::from_secs(5);

/// A lost SYN is sent again after one second and after three.
const CONNECT_LIMIT: Duration = Duration::from_millis(3_100);

/// Google closes idle connections after four minutes. A request on a connection that is just being closed would be
/// lost.
const IDLE_LIMIT: Duration = Duration::from_secs(60);

/// Creates a client that sends each request once.
pub(super) fn client(transport: &Transport) -> Result<reqwest::Client, Error> {
    let mut builder = reqwest::Client::builder()
        // A retry inside would turn an applied write whose answer was lost into a conflict.
        .retry(reqwest::retry::never())
        // leasehold must not repeat a redirected write.
        .redirect(redirect::Policy::none())
        .connect_timeout(CONNECT_LIMIT)
        .pool_idle_timeout(IDLE_LIMIT)
        .tcp_nodelay(true)
        .http1_only()
        .user_agent(concat!("leasehold/", env!("CARGO_PKG_VERSION")));
    builder = match &transport.proxy {
        // Plain requests to this machine, including access tokens, must not leave it.
        Proxy::None => builder.no_proxy(),
        Proxy::Environment => builder,
        Proxy::At(url) => {
            let proxy = reqwest::Proxy::all(url).map_err(|error| {
                Error::invalid(format!("the proxy {url:?} cannot be used: {error}"))
                    .with_help("a proxy is like http://proxy.example.com:3128")
            })?;
            builder.proxy(proxy)
        }
    };
    if let Some(path) = &transport.authorities {
        builder = builder.tls_certs_merge(authorities(path)?);
    }
    builder.build().map_err(|error| {
        Error::new(ErrorKind::Unavailable, format!("no HTTPS client could be made: {error}"))
            .with_help("check that the machine has root certificates (Debian: the package ca-certificates)")
            .with_source(error)
    })
}

/// Reads the certificates in the PEM file at `path`.
fn authorities(path: &Path) -> Result<Vec<Certificate>, Error> {
    let shown = path.display();
    let invalid = |flaw: String| {
        Error::invalid(format!("the file {shown} of the option `ca` {flaw}"))
            .with_help("name a PEM file of certificate authorities: ?ca=/path/to/ca.pem")
    };
    let pem = std::fs::read(path).map_err(|error| invalid(format!("cannot be read: {error}")))?;
    match Certificate::from_pem_bundle(&pem) {
        Ok(certificates) if !certificates.is_empty() => Ok(certificates),
        // The parser's error could repeat a key that is in the file.
        _ => Err(invalid("has no certificate that can be read".to_owned())),
    }
}
