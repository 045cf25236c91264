//! A proxy between contenders and a server that adds a round trip and counts requests. It reads data as it arrives and
//! forwards it after half of the round trip, in each direction, so that bandwidth and pipelining stay the same.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use leasehold_testkit::launch::Protocol;

use super::Counter;
use super::heads::Heads;
use super::messages::MessageCounter;
use super::mysql::Queries;
use super::postgres::Statements;
use super::redis::Commands;
use super::timer::{self, Timer};

/// How many bytes to read at once.
const PACKET: usize = 64 << 10;

/// How many packets may be in transit in one direction of a connection.
const MAX_IN_TRANSIT: usize = 4_096;

/// Returns the counter for a protocol, or `None` if the server counts its messages.
fn counter(protocol: Protocol) -> Option<Box<dyn Counter>> {
    match protocol {
        Protocol::Http => Some(Box::new(Heads::default())),
        Protocol::Mysql => Some(Box::new(MessageCounter::<Queries>::default())),
        Protocol::Postgres => Some(Box::new(MessageCounter::<Statements>::default())),
        Protocol::Redis => Some(Box::new(MessageCounter::<Commands>::default())),
        Protocol::Other => None,
    }
}

/// The loopback port on which the proxies of a server listen, one after the other.
#[derive(Debug)]
pub(crate) struct Door {
    server: String,
    listener: std::net::TcpListener,
}

impl Door {
    /// Opens a port to the server at `server`. 0 means any.
    pub(crate) fn open(server: String, port: u16) -> io::Result<Self> {
        let listener = std::net::TcpListener::bind(("127.0.0.1", port))?;
        listener.set_nonblocking(true)?;
        Ok(Self { server, listener })
    }
}

/// A proxy in front of a server, or of each server of a cluster. Dropping it closes its connections.
#[derive(Debug)]
pub(crate) struct Proxy {
    address: SocketAddr,
    counts: Arc<Counts>,
    _listeners: JoinSet<()>,
}

#[derive(Debug, Default)]
struct Counts(Mutex<BTreeMap<String, u64>>);

impl Counts {
    fn add(&self, new: BTreeMap<String, u64>) {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for (name, count) in new {
            *counts.entry(name).or_default() += count;
        }
    }
}

/// The settings of each connection.
#[derive(Clone, Debug)]
struct ConnectionSettings {
    server: String,
    protocol: Protocol,
    half: Duration,
    timer: Timer,
    counts: Arc<Counts>,
}

impl Proxy {
    /// Starts a proxy behind `doors` that adds `round_trip`.
    pub(crate) fn start(doors: &[Door], protocol: Protocol, round_trip: Duration) -> io::Result<Self> {
        let counts = Arc::new(Counts::default());
        let (timer, mut addresses, mut listeners) = (Timer::start(), Vec::new(), JoinSet::new());
        for Door { server, listener } in doors {
            addresses.push(listener.local_addr()?);
            let listener = TcpListener::from_std(listener.try_clone()?)?;
            let settings = ConnectionSettings {
                server: server.clone(),
                protocol,
                half: round_trip / 2,
                timer: timer.clone(),
                counts: counts.clone(),
            };
            listeners.spawn(accept(listener, settings));
        }
        let address = *addresses.first().ok_or_else(|| io::Error::other("there is no server"))?;
        Ok(Self { address, counts, _listeners: listeners })
    }

    /// Returns the address that clients connect to. In a cluster, it is that of the first server.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the requests so far, by kind.
    pub(crate) fn counts(&self) -> BTreeMap<String, u64> {
        self.counts.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

async fn accept(listener: TcpListener, settings: ConnectionSettings) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((client, _)) => {
                    connections.spawn(connect(client, settings.clone()));
                }
                Err(_) => return,
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

/// Forwards a connection until both directions have been closed or it breaks.
async fn connect(client: TcpStream, settings: ConnectionSettings) -> io::Result<()> {
    let server = TcpStream::connect(&settings.server).await?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let requests = forward(from_client, to_server, counter(settings.protocol), &settings);
    let responses = forward(from_server, to_client, None, &settings);
    tokio::try_join!(requests, responses)?;
    Ok(())
}

/// Forwards one direction of a connection until it ends.
async fn forward(
    from: OwnedReadHalf,
    to: OwnedWriteHalf,
    counter: Option<Box<dyn Counter>>,
    settings: &ConnectionSettings,
) -> io::Result<()> {
    if settings.half.is_zero() {
        forward_at_once(from, to, counter, settings).await
    } else {
        forward_delayed(from, to, counter, settings).await
    }
}

async fn forward_at_once(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mut counter: Option<Box<dyn Counter>>,
    settings: &ConnectionSettings,
) -> io::Result<()> {
    let mut packet = vec![0; PACKET];
    loop {
        let count = from.read(&mut packet).await?;
        if count == 0 {
            return to.shutdown().await;
        }
        count_requests(&mut counter, &packet[..count], settings);
        to.write_all(&packet[..count]).await?;
    }
}

async fn forward_delayed(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mut counter: Option<Box<dyn Counter>>,
    settings: &ConnectionSettings,
) -> io::Result<()> {
    let (sent, mut in_transit) = mpsc::channel::<(Duration, Vec<u8>)>(MAX_IN_TRANSIT);
    let reading = async move {
        let mut packet = vec![0; PACKET];
        loop {
            let count = from.read(&mut packet).await?;
            let due = timer::now() + settings.half;
            count_requests(&mut counter, &packet[..count], settings);
            // The end of the connection is delayed like the data before it.
            if sent.send((due, packet[..count].to_vec())).await.is_err() || count == 0 {
                return Ok(());
            }
        }
    };
    let writing = async move {
        while let Some((due, packet)) = in_transit.recv().await {
            settings.timer.sleep_until(due).await;
            if packet.is_empty() {
                break;
            }
            to.write_all(&packet).await?;
        }
        to.shutdown().await
    };
    tokio::try_join!(reading, writing)?;
    Ok(())
}

fn count_requests(counter: &mut Option<Box<dyn Counter>>, bytes: &[u8], settings: &ConnectionSettings) {
    if let Some(counter) = counter {
        counter.feed(bytes);
        let new = counter.take();
        if !new.is_empty() {
            settings.counts.add(new);
        }
    }
}

#[cfg(test)]
mod tests {
    use leasehold_testkit::launch::free_port;

    use super::*;

    /// Starts a server that echoes every byte. Returns its address.
    async fn echo() -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                tokio::spawn(async move {
                    let (mut from, mut to) = client.split();
                    tokio::io::copy(&mut from, &mut to).await
                });
            }
        });
        address
    }

    fn door(server: String) -> Door {
        Door::open(server, 0).unwrap()
    }

    const REQUEST: &[u8] = b"PUT /k HTTP/1.1\r\ncontent-length: 3\r\n\r\nabc";

    #[tokio::test]
    async fn everything_arrives_and_requests_are_counted() {
        for round_trip in [Duration::ZERO, Duration::from_millis(4)] {
            let proxy = Proxy::start(&[door(echo().await)], Protocol::Http, round_trip).unwrap();
            let mut client = TcpStream::connect(proxy.address()).await.unwrap();
            let begin = timer::now();
            client.write_all(&REQUEST.repeat(3)).await.unwrap();
            client.shutdown().await.unwrap();
            let mut answer = Vec::new();
            client.read_to_end(&mut answer).await.unwrap();
            assert_eq!(answer, REQUEST.repeat(3));
            assert!(timer::now() - begin >= round_trip);
            assert_eq!(proxy.counts(), BTreeMap::from([("PUT".to_owned(), 3)]));
        }
    }

    #[tokio::test]
    async fn the_next_packet_does_not_wait_for_a_response() {
        const PACKETS: usize = 20;
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let server = listener.local_addr().unwrap().to_string();
        tokio::spawn(async move {
            let (mut client, _) = listener.accept().await.unwrap();
            client.read_exact(&mut [0; PACKETS]).await.unwrap();
            client.write_all(b"!").await.unwrap();
        });
        let proxy = Proxy::start(&[door(server)], Protocol::Other, Duration::from_millis(2)).unwrap();
        let mut client = TcpStream::connect(proxy.address()).await.unwrap();
        for _ in 0..PACKETS {
            client.write_all(b"x").await.unwrap();
            tokio::task::yield_now().await;
        }
        client.read_exact(&mut [0]).await.unwrap();
        assert!(proxy.counts().is_empty());
    }

    #[tokio::test]
    async fn connections_end_with_the_proxy() {
        let proxy = Proxy::start(&[door(echo().await)], Protocol::Other, Duration::ZERO).unwrap();
        let mut client = TcpStream::connect(proxy.address()).await.unwrap();
        client.write_all(b"x").await.unwrap();
        client.read_exact(&mut [0]).await.unwrap();
        drop(proxy);
        assert!(matches!(client.read(&mut [0]).await, Ok(0) | Err(_)));
    }

    #[tokio::test]
    async fn one_proxy_after_the_other_is_behind_all_doors() {
        let port = free_port().unwrap();
        let doors = [door(echo().await), Door::open(echo().await, port).unwrap()];
        for _ in 0..3 {
            let proxy = Proxy::start(&doors, Protocol::Http, Duration::ZERO).unwrap();
            for port in [proxy.address().port(), port] {
                let mut client = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
                client.write_all(REQUEST).await.unwrap();
                client.read_exact(&mut [0; REQUEST.len()]).await.unwrap();
            }
            assert_eq!(proxy.counts(), BTreeMap::from([("PUT".to_owned(), 2)]));
        }
    }
}
