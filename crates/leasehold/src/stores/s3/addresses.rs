//! Finds the addresses of an endpoint's name. Each may be a separate front end. One client mostly connects to only one
//! of them, so an examination uses all of them.

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use futures_util::future::BoxFuture;
use futures_util::{FutureExt, StreamExt, stream};
use hyper_util::client::proxy::matcher::Matcher;
use tokio::net::{TcpStream, lookup_host};

use crate::clock::timeout;
use crate::env::Env;
use crate::stores::aws::config::CONNECT_LIMIT;

/// The maximum number of connections that are opened at once. A process may be limited to a few hundred open files.
const TRIED_AT_ONCE: usize = 64;

/// A function that resolves a name. Tests replace it.
pub(super) type Lookup = fn(String, u16) -> BoxFuture<'static, io::Result<Vec<SocketAddr>>>;

pub(super) fn system(name: String, port: u16) -> BoxFuture<'static, io::Result<Vec<SocketAddr>>> {
    async move { Ok(lookup_host((name, port)).await?.collect()) }.boxed()
}

/// The addresses of a name, by whether they accept connections.
#[derive(Debug, Default)]
pub(super) struct Addresses {
    /// The addresses that accept connections.
    pub(super) answering: Vec<IpAddr>,
    /// The addresses that accept none, and why.
    pub(super) silent: Vec<(IpAddr, String)>,
}

/// Returns the addresses of the host in `url`. `answering` is empty if fewer than two addresses accept connections.
/// Both lists are empty if none does, if the name cannot be resolved, or if a proxy from the environment resolves it.
/// Requests then report why they fail.
pub(super) async fn of(url: &str, lookup: Lookup, env: &Env) -> Addresses {
    let found = found(url, lookup, env).await.unwrap_or_default();
    match found.answering.len() {
        0 => Addresses::default(),
        1 => Addresses { answering: Vec::new(), ..found },
        _ => found,
    }
}

async fn found(url: &str, lookup: Lookup, env: &Env) -> Option<Addresses> {
    let uri = url.parse().ok()?;
    if Matcher::from_env().intercept(&uri).is_some() {
        return None;
    }
    let port = uri.port_u16().unwrap_or(if uri.scheme_str() == Some("https") { 443 } else { 80 });
    let clock = &*env.clock;
    let addresses = timeout(clock, CONNECT_LIMIT, lookup(uri.host()?.to_owned(), port)).await?.ok()?;
    let addresses: BTreeSet<IpAddr> = addresses.iter().map(SocketAddr::ip).collect();
    let tries = addresses.into_iter().map(|address| async move {
        let connected = timeout(clock, CONNECT_LIMIT, TcpStream::connect((address, port))).await;
        (address, connected.unwrap_or_else(|| Err(io::ErrorKind::TimedOut.into())))
    });
    let mut tries = stream::iter(tries).buffered(TRIED_AT_ONCE);
    let mut found = Addresses::default();
    while let Some((address, connected)) = tries.next().await {
        match connected {
            Ok(_) => found.answering.push(address),
            // `localhost` has two loopback addresses, and servers usually listen on only one of them. So `::1` is not
            // reported as silent.
            Err(_) if address == Ipv6Addr::LOCALHOST => {}
            Err(error) => found.silent.push((address, error.to_string())),
        }
    }
    Some(found)
}
