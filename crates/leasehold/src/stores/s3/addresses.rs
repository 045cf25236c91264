//! The addresses that an endpoint's name stands for. Each may be a front end of its own, and the connections of one client
//! mostly go to one of them: an examination asks all.

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

/// How many connections are tried at once: a process may have some hundred files open.
const TRIED_AT_ONCE: usize = 64;

/// Looks a name up; tests have names of their own.
pub(super) type Lookup = fn(String, u16) -> BoxFuture<'static, io::Result<Vec<SocketAddr>>>;

pub(super) fn system(name: String, port: u16) -> BoxFuture<'static, io::Result<Vec<SocketAddr>>> {
    async move { Ok(lookup_host((name, port)).await?.collect()) }.boxed()
}

/// The addresses of a name that has several.
#[derive(Debug, Default)]
pub(super) struct Addresses {
    /// Those that take connections.
    pub(super) answering: Vec<IpAddr>,
    /// Those that take none, and why.
    pub(super) silent: Vec<(IpAddr, String)>,
}

/// The addresses of the host in `url`. None where they are not several, where a proxy of the environment looks the name up, and
/// where it cannot be looked up or nothing answers: requests will say why.
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
            // `localhost` has both loopback addresses, and servers listen at one: that the other is silent is no news.
            Err(_) if address == Ipv6Addr::LOCALHOST => {}
            Err(error) => found.silent.push((address, error.to_string())),
        }
    }
    Some(found)
}
