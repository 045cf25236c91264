//! The addresses that an endpoint's name stands for. Each may be a front end of its own, and the connections of one client
//! mostly go to one of them: an examination asks all.

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, SocketAddr};

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, join_all};
use hyper_util::client::proxy::matcher::Matcher;
use tokio::net::{TcpStream, lookup_host};

use crate::clock::timeout;
use crate::env::Env;
use crate::register::probe::evidence::RACERS;
use crate::stores::aws::config::CONNECT_LIMIT;

/// How many are asked at most: with more, not every race would meet all of them.
const MOST: usize = RACERS;

/// Looks a name up; tests have names of their own.
pub(super) type Lookup = fn(String, u16) -> BoxFuture<'static, io::Result<Vec<SocketAddr>>>;

pub(super) fn system(name: String, port: u16) -> BoxFuture<'static, io::Result<Vec<SocketAddr>>> {
    async move { Ok(lookup_host((name, port)).await?.collect()) }.boxed()
}

/// The addresses of the host in `url`, where they are several that take connections. None where a proxy of the environment
/// looks the name up, and where it cannot be looked up: requests will say why.
pub(super) async fn several(url: &str, lookup: Lookup, env: &Env) -> Vec<IpAddr> {
    let found = found(url, lookup, env).await.unwrap_or_default();
    if found.len() > 1 { found } else { Vec::new() }
}

async fn found(url: &str, lookup: Lookup, env: &Env) -> Option<Vec<IpAddr>> {
    let uri = url.parse().ok()?;
    if Matcher::from_env().intercept(&uri).is_some() {
        return None;
    }
    let port = uri.port_u16().unwrap_or(if uri.scheme_str() == Some("https") { 443 } else { 80 });
    let clock = &*env.clock;
    let addresses = timeout(clock, CONNECT_LIMIT, lookup(uri.host()?.to_owned(), port)).await?.ok()?;
    let addresses: BTreeSet<IpAddr> = addresses.iter().map(SocketAddr::ip).collect();
    // A client goes on to the next address where one takes no connection, as with ::1 of localhost: that is no front end.
    let tries = addresses.into_iter().take(MOST).map(|address| async move {
        let connected = timeout(clock, CONNECT_LIMIT, TcpStream::connect((address, port))).await;
        connected.is_some_and(|connected| connected.is_ok()).then_some(address)
    });
    Some(join_all(tries).await.into_iter().flatten().collect())
}
