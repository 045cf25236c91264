//! A proxy between a client and a real HTTP server. It counts requests, and loses, delays or duplicates them.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use leasehold::env::Env;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::http::Request;

/// What the proxy does to one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Harm {
    /// Forwarded; the response is returned.
    None,
    /// Forwarded; the connection breaks instead of a response.
    AnswerLost,
    /// Not forwarded; the connection breaks.
    Cut,
    /// Forwarded after this long.
    Delayed(Duration),
    /// Forwarded at once; the response is returned after this long.
    AnswerDelayed(Duration),
    /// Forwarded twice: one after the other, or to two servers at once. The first response is returned.
    Twice,
    /// Forwarded twice; the second response is returned, as by a client that retries.
    TwiceSecondAnswer,
    /// Not forwarded; the response has this status and an empty body.
    Status(u16),
}

/// A request that the proxy received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Its method.
    pub method: String,
    /// Its path, still encoded, without the query.
    pub path: String,
    /// Its `X-Amz-Target`, which names the operation if the path does not.
    pub target: Option<String>,
    /// Its body.
    pub body: Vec<u8>,
    /// What the proxy did to it.
    pub harm: Harm,
    /// Whether the client closed the connection before it got a response, as it does at the request's time limit.
    pub abandoned: bool,
    number: usize,
}

/// A proxy on a free loopback port. It stops when it is dropped.
///
/// ```no_run
/// # use leasehold_testkit::proxy::{Harm, Proxy};
/// # async fn example() -> leasehold::Result<()> {
/// let proxy = Proxy::start("127.0.0.1:9000").await; // an S3-compatible server
/// let url = format!("s3://bucket/locks?region=us-east-1&endpoint=http://{}", proxy.address());
/// let locker = leasehold::Locker::open(&url).await?;
/// proxy.next("PUT", Harm::AnswerLost);
/// let guard = locker.lock("nightly").acquire().await?;
/// assert!(proxy.count("PUT", "nightly.lock") >= 1);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    listener: JoinHandle<()>,
}

#[derive(Debug)]
struct Shared {
    servers: Vec<String>,
    /// How many requests were forwarded.
    forwarded: AtomicUsize,
    script: Mutex<Script>,
    changed: watch::Sender<()>,
    env: Env,
}

#[derive(Debug, Default)]
struct Script {
    next: VecDeque<(String, Harm)>,
    every: Option<Harm>,
    log: Vec<Seen>,
    /// How many requests were logged.
    logged: usize,
}

impl Proxy {
    /// Starts a proxy for the server at `server` (`host:port`).
    ///
    /// # Panics
    /// When no loopback port is free.
    pub async fn start(server: impl Into<String>) -> Self {
        Self::before(vec![server.into()]).await
    }

    /// Starts a proxy that forwards requests to `servers` in turn, like a load balancer. If a server refuses the
    /// connection, the request goes to the next one. With several servers, the proxy closes its connection to the
    /// server when the client closes its connection, except for requests that it delays.
    ///
    /// # Panics
    /// When no loopback port is free.
    pub async fn before(servers: Vec<String>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            servers,
            forwarded: AtomicUsize::new(0),
            script: Mutex::default(),
            changed: watch::Sender::new(()),
            env: Env::system(),
        });
        let listener = tokio::spawn(accept(listener, shared.clone()));
        Self { address, shared, listener }
    }

    /// Returns the address that clients connect to.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Sets what happens to the next request with `method` that has no harm scripted yet. Calls queue up.
    pub fn next(&self, method: &str, harm: Harm) {
        self.shared.script().next.push_back((method.into(), harm));
    }

    /// Sets what happens to all further requests that have no scripted harm. [`Harm::None`] ends this.
    pub fn every(&self, harm: Harm) {
        self.shared.script().every = Some(harm);
    }

    /// Returns the requests received since the start or the last [`reset`](Self::reset), in order.
    pub fn log(&self) -> Vec<Seen> {
        self.shared.script().log.clone()
    }

    /// Returns how many requests with `method` there were for paths that end with `suffix`.
    pub fn count(&self, method: &str, suffix: &str) -> usize {
        let script = self.shared.script();
        script.log.iter().filter(|seen| seen.method == method && seen.path.ends_with(suffix)).count()
    }

    /// Returns the methods of the requests for paths that end with `suffix`, in order.
    pub fn methods(&self, suffix: &str) -> Vec<String> {
        let script = self.shared.script();
        script.log.iter().filter(|seen| seen.path.ends_with(suffix)).map(|seen| seen.method.clone()).collect()
    }

    /// Clears the log and the counts.
    pub fn reset(&self) {
        self.shared.script().log.clear();
    }

    /// Completes when the log satisfies `reached`. Cancel safe.
    pub async fn until(&self, mut reached: impl FnMut(&[Seen]) -> bool) {
        let mut changes = self.shared.changed.subscribe();
        // The sender lives as long as `self`, so this cannot fail.
        let _ = changes.wait_for(|_| reached(&self.shared.script().log)).await;
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.listener.abort();
    }
}

impl Shared {
    fn script(&self) -> MutexGuard<'_, Script> {
        self.script.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Logs `request`. Returns what happens to it, and its number.
    fn harm(&self, request: &Request) -> (Harm, usize) {
        let mut script = self.script();
        let scripted = script.next.iter().position(|(method, _)| *method == request.method);
        let harm = scripted
            .and_then(|n| script.next.remove(n))
            .map(|(_, harm)| harm)
            .or(script.every)
            .unwrap_or(Harm::None);
        let number = script.logged;
        script.logged += 1;
        script.log.push(Seen {
            method: request.method.clone(),
            path: request.path().into(),
            target: request.header("x-amz-target").map(str::to_owned),
            body: request.body.clone(),
            harm,
            abandoned: false,
            number,
        });
        drop(script);
        self.changed.send_replace(());
        (harm, number)
    }

    /// Records that the client no longer waits for the response to this request.
    fn abandoned(&self, number: usize) {
        if let Some(seen) = self.script().log.iter_mut().find(|seen| seen.number == number) {
            seen.abandoned = true;
        }
        self.changed.send_replace(());
    }

    /// Connects to the server whose turn it is, or else to the next one that accepts the connection.
    async fn connect(&self) -> io::Result<TcpStream> {
        let first = self.forwarded.fetch_add(1, Ordering::Relaxed);
        let mut refused = io::Error::other("no server");
        for n in 0..self.servers.len() {
            match TcpStream::connect(&self.servers[(first + n) % self.servers.len()]).await {
                Ok(server) => return Ok(server),
                Err(error) => refused = error,
            }
        }
        Err(refused)
    }

    /// Sends `request` to a server and returns its whole response.
    async fn forward(&self, request: &Request) -> io::Result<Vec<u8>> {
        let mut server = self.connect().await?;
        server.write_all(&request.to_bytes()).await?;
        let mut answer = Vec::new();
        server.read_to_end(&mut answer).await?;
        Ok(answer)
    }

    /// Sends `request` twice and returns both responses. With several servers, sends it to two of them at the same
    /// time.
    async fn forward_twice(&self, request: &Request) -> io::Result<(Vec<u8>, Vec<u8>)> {
        if self.servers.len() > 1 {
            return tokio::try_join!(self.forward(request), self.forward(request));
        }
        Ok((self.forward(request).await?, self.forward(request).await?))
    }

    /// Carries out `harm` and returns the response for the client, if any.
    async fn answer(&self, request: &Request, harm: Harm) -> io::Result<Option<Vec<u8>>> {
        match harm {
            Harm::None => self.forward(request).await.map(Some),
            Harm::AnswerLost => self.forward(request).await.map(|_| None),
            Harm::Cut => Ok(None),
            Harm::Delayed(delay) => {
                self.env.sleep(delay).await;
                self.forward(request).await.map(Some)
            }
            Harm::AnswerDelayed(delay) => {
                let answer = self.forward(request).await?;
                self.env.sleep(delay).await;
                Ok(Some(answer))
            }
            Harm::Twice => Ok(Some(self.forward_twice(request).await?.0)),
            Harm::TwiceSecondAnswer => Ok(Some(self.forward_twice(request).await?.1)),
            Harm::Status(status) => {
                let answer =
                    format!("HTTP/1.1 {status} Injected\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
                Ok(Some(answer.into_bytes()))
            }
        }
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    while let Ok((connection, _)) = listener.accept().await {
        let shared = shared.clone();
        // The client or the server may disconnect at any time, so errors are ignored.
        tokio::spawn(async move { serve(connection, &shared).await.ok() });
    }
}

/// Serves one connection. It carries one request, because the responses have `connection: close`.
async fn serve(connection: TcpStream, shared: &Shared) -> io::Result<()> {
    let mut connection = BufReader::new(connection);
    let Some(request) = Request::read(&mut connection).await? else { return Ok(()) };
    let (harm, number) = shared.harm(&request);
    let reports = shared.servers.len() > 1 && !matches!(harm, Harm::Delayed(_));
    let mut answering = pin!(shared.answer(&request, harm));
    let answer = tokio::select! {
        answer = &mut answering => answer?,
        () = closed(&mut connection) => {
            shared.abandoned(number);
            if reports { None } else { answering.await? }
        }
    };
    if let Some(answer) = answer {
        connection.write_all(&answer).await?;
        connection.shutdown().await?;
    }
    Ok(())
}

/// Completes when the client has closed its connection. Cancel safe.
async fn closed(connection: &mut BufReader<TcpStream>) {
    while let Ok(bytes @ 1..) = connection.fill_buf().await.map(<[u8]>::len) {
        connection.consume(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fakes::s3::{FakeS3, Preconditions};

    /// Sends a request. Returns the status of its response, or `None` if the connection breaks instead.
    async fn send(proxy: &Proxy, method: &str, header: &str) -> Option<String> {
        let mut connection = TcpStream::connect(proxy.address()).await.unwrap();
        let request =
            format!("{method} /bucket/key?x=y HTTP/1.1\r\nhost: h\r\n{header}content-length: 0\r\n\r\n");
        connection.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        connection.read_to_string(&mut answer).await.unwrap();
        answer.split(' ').nth(1).map(str::to_owned)
    }

    const CREATE: &str = "if-none-match: *\r\n";

    /// Returns the status of the response to a create with `harm`, and whether the create was applied.
    async fn create_with(harm: Harm) -> (Option<String>, bool) {
        let server = FakeS3::start(Preconditions::Honoured).await;
        let proxy = Proxy::start(server.address().to_string()).await;
        proxy.next("PUT", harm);
        let status = send(&proxy, "PUT", CREATE).await;
        let [seen] = &proxy.log()[..] else { panic!() };
        assert_eq!((&*seen.method, &*seen.path, seen.harm), ("PUT", "/bucket/key", harm));
        (status, !server.paths().is_empty())
    }

    #[tokio::test]
    async fn a_request_that_its_client_abandons_is_marked() {
        let proxy = Proxy::start("127.0.0.1:1").await;
        proxy.next("GET", Harm::Delayed(Duration::from_secs(3600)));
        let mut client = TcpStream::connect(proxy.address()).await.unwrap();
        client.write_all(b"GET /x HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
        proxy.until(|log| log.len() == 1).await;
        assert!(!proxy.log()[0].abandoned);
        drop(client);
        proxy.until(|log| log[0].abandoned).await;
    }

    #[tokio::test]
    async fn each_fault_of_the_proxy_has_its_effect() {
        let short = Duration::from_millis(1);
        for (harm, status, applied) in [
            (Harm::None, Some("200"), true),
            (Harm::AnswerLost, None, true),
            (Harm::Cut, None, false),
            (Harm::Delayed(short), Some("200"), true),
            (Harm::AnswerDelayed(short), Some("200"), true),
            (Harm::Twice, Some("200"), true),
            (Harm::TwiceSecondAnswer, Some("412"), true),
            (Harm::Status(503), Some("503"), false),
        ] {
            assert_eq!(create_with(harm).await, (status.map(str::to_owned), applied), "{harm:?}");
        }
    }

    #[tokio::test]
    async fn a_fault_applies_to_its_method_and_ends_when_healed() {
        let server = FakeS3::start(Preconditions::Honoured).await;
        let proxy = Proxy::start(server.address().to_string()).await;
        proxy.next("PUT", Harm::Cut);
        assert_eq!(send(&proxy, "GET", "").await.as_deref(), Some("404"));
        assert_eq!(send(&proxy, "PUT", "").await, None);
        proxy.every(Harm::Status(500));
        assert_eq!(send(&proxy, "PUT", "").await.as_deref(), Some("500"));
        proxy.every(Harm::None);
        assert_eq!(send(&proxy, "PUT", "").await.as_deref(), Some("200"));
        proxy.until(|log| log.len() == 4).await;
        assert_eq!(
            (proxy.count("PUT", "/key"), proxy.methods("key").len(), proxy.count("PUT", "z")),
            (3, 4, 0)
        );
        proxy.reset();
        assert!(proxy.log().is_empty());
    }

    #[tokio::test]
    async fn requests_reach_several_servers_in_turn() {
        let servers =
            [FakeS3::start(Preconditions::Honoured).await, FakeS3::start(Preconditions::Honoured).await];
        let refused = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
        let addresses = [servers[0].address(), servers[1].address(), refused];
        let proxy = Proxy::before(addresses.iter().map(ToString::to_string).collect()).await;
        // The third server refuses the connection, so the first one gets its request.
        for (status, have) in [("200", [1, 0]), ("200", [1, 1]), ("412", [1, 1]), ("412", [1, 1])] {
            assert_eq!(send(&proxy, "PUT", CREATE).await.as_deref(), Some(status));
            assert_eq!(servers.each_ref().map(|server| server.paths().len()), have);
        }
    }

    #[tokio::test]
    async fn a_doubled_request_reaches_two_servers() {
        let servers =
            [FakeS3::start(Preconditions::Honoured).await, FakeS3::start(Preconditions::Honoured).await];
        let proxy = Proxy::before(servers.iter().map(|server| server.address().to_string()).collect()).await;
        proxy.next("PUT", Harm::Twice);
        assert_eq!(send(&proxy, "PUT", CREATE).await.as_deref(), Some("200"));
        assert_eq!(servers.each_ref().map(|server| server.paths().len()), [1, 1]);
    }
}
