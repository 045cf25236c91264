//! Connections: how many are open, TLS, and how long a slow client may keep one open.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use futures_util::FutureExt as _;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use leasehold::clock::{Clock, timeout};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use crate::tls::{CertificateNames, Tls};
use crate::wrong_tokens::Peer;

/// Maximum number of open connections. Each request that waits has one.
const MAX_CONNECTIONS: u32 = 12_000;
/// How long a TLS handshake may take.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a connection may be idle, and how long the head of a request may take. It is longer than the minute for
/// which proxies keep a connection open, so that the proxy closes it first.
const IDLE_TIMEOUT: Duration = Duration::from_secs(75);
/// How long requests in progress may take after the server was asked to stop. Supervisors kill a process after 30 s.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(20);
/// Maximum length of the head of a request, which each connection can make the server keep before the caller is known.
/// It must have room for a token of 8 KiB and for the headers that proxies add. Bodies are not limited by it.
const MAX_HEAD: usize = 64 * 1024;
/// The pause after the machine has refused a connection, for example because too many files are open.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// Serves connections.
#[derive(Clone)]
pub(crate) struct Connections {
    pub(crate) router: Router,
    pub(crate) tls: Option<Arc<Tls>>,
    pub(crate) clock: Arc<dyn Clock>,
    /// Cancelled when the server stops.
    pub(crate) stopping: CancellationToken,
}

impl Connections {
    /// Accepts connections until the server stops. Then waits for the requests in progress.
    pub(crate) async fn serve(self, listener: TcpListener) {
        self.serve_at_most(MAX_CONNECTIONS, listener).await;
    }

    async fn serve_at_most(self, most: u32, listener: TcpListener) {
        let room = Arc::new(Semaphore::new(most as usize));
        let stopping = self.stopping.clone();
        let accept = async {
            loop {
                // Acquire a permit first, so that further connections wait in the listener's queue.
                let Ok(permit) = room.clone().acquire_owned().await else { return };
                match listener.accept().await {
                    Ok((stream, peer)) => {
                        tokio::spawn(self.clone().connection(stream, Peer(peer.ip()), permit));
                    }
                    Err(error) if is_of_one_client(&error) => {}
                    Err(error) => {
                        tracing::warn!("cannot accept connections: {error}");
                        self.clock.sleep(RETRY_PAUSE).await;
                    }
                }
            }
        };
        tokio::select! {
            () = accept => {}
            () = stopping.cancelled() => {}
        }
        drop(listener);
        // All permits are returned when all connections have ended. The semaphore is never closed. The limit prevents a
        // client that does not read its response from keeping the server alive.
        let _ = timeout(&*self.clock, DRAIN_TIMEOUT, room.acquire_many(most)).await;
    }

    /// Serves the requests of one connection.
    async fn connection(self, stream: TcpStream, peer: Peer, _permit: OwnedSemaphorePermit) {
        let Some(tls) = &self.tls else { return self.requests(stream, peer, None).await };
        let tls = tls.clone();
        let handshake = async {
            let config = tokio::task::spawn_blocking(move || tls.config()).await.ok()?;
            // An error is the fault of the client, which has received a TLS alert.
            TlsAcceptor::from(config).accept(stream).await.ok()
        };
        let stream = tokio::select! {
            stream = timeout(&*self.clock, HANDSHAKE_TIMEOUT, handshake) => stream.flatten(),
            () = self.stopping.cancelled() => None,
        };
        let Some(stream) = stream else { return };
        let certificate = stream.get_ref().1.peer_certificates().and_then(<[_]>::first);
        let names = certificate.map(CertificateNames::of);
        self.requests(stream, peer, names).await;
    }

    async fn requests(
        &self,
        stream: impl AsyncRead + AsyncWrite + Unpin,
        peer: Peer,
        names: Option<CertificateNames>,
    ) {
        let router = TowerToHyperService::new(self.router.clone());
        let service = service_fn(move |request: hyper::Request<Incoming>| {
            let mut request: Request = request.map(Body::new);
            request.extensions_mut().insert(peer);
            if let Some(names) = &names {
                request.extensions_mut().insert(names.clone());
            }
            router.call(request)
        });
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(IDLE_TIMEOUT)
            .max_buf_size(MAX_HEAD)
            .serve_connection(TokioIo::new(stream), service);
        let mut connection = std::pin::pin!(connection);
        let mut stopped = std::pin::pin!(self.stopping.cancelled().fuse());
        loop {
            tokio::select! {
                // An error means that the client closed the connection.
                _ = &mut connection => return,
                () = &mut stopped => connection.as_mut().graceful_shutdown(),
            }
        }
    }
}

/// Returns whether an error of `accept` concerns only one client.
fn is_of_one_client(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::path::Path;
    use std::process::Command;

    use axum::routing::{MethodRouter, get};
    use leasehold::clock::TestClock;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::task::JoinHandle;

    use super::*;

    /// Longer than any limit in this module. The time of the tests is paused, so it passes at once.
    const LONG: Duration = Duration::from_secs(600);

    fn tls(folder: &Path) -> Arc<Tls> {
        let words = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=localhost -keyout key -out crt";
        let made = Command::new("openssl").args(words.split(' ')).current_dir(folder).output().unwrap();
        assert!(made.status.success(), "{made:?}");
        Arc::new(Tls::load(folder.join("crt"), folder.join("key"), None).unwrap())
    }

    async fn start(most: u32, tls: Option<Arc<Tls>>) -> (SocketAddr, CancellationToken) {
        let (address, stopping, _) = start_with(get(async || "answer"), most, tls).await;
        (address, stopping)
    }

    /// Starts a server. The third value is its task, which completes when the server has ended.
    async fn start_with(
        handler: MethodRouter,
        most: u32,
        tls: Option<Arc<Tls>>,
    ) -> (SocketAddr, CancellationToken, JoinHandle<()>) {
        let stopping = CancellationToken::new();
        let router = Router::new().route("/", handler);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let clock = Arc::new(TestClock::default());
        let connections = Connections { router, tls, clock, stopping: stopping.clone() };
        (address, stopping, tokio::spawn(connections.serve_at_most(most, listener)))
    }

    /// Returns the text that the server sends until it closes the connection.
    async fn received(mut stream: TcpStream) -> Option<String> {
        let mut text = String::new();
        // A reset also ends the connection.
        timeout(&TestClock::default(), LONG, stream.read_to_string(&mut text)).await.map(|_| text)
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_client_makes_room_for_others() {
        let (address, _stopping) = start(1, None).await;
        let silent = TcpStream::connect(address).await.unwrap();
        let mut slow = TcpStream::connect(address).await.unwrap();
        slow.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n").await.unwrap();
        let mut other = TcpStream::connect(address).await.unwrap();
        other.write_all(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await.unwrap();
        let answer = received(other).await.expect("the other client waits for its turn");
        assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("answer"), "{answer}");
        assert!(!received(silent).await.unwrap().contains("200"));
        assert!(!received(slow).await.unwrap().contains("200"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_head_that_is_too_long_is_refused() {
        let (address, _stopping) = start(1, None).await;
        let start = "GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nX: ";
        // The long head has no end, so that the server reads all of it before it refuses it.
        for (length, end, status) in [(30 * 1024, "\r\n\r\n", "200"), (MAX_HEAD, "", "431")] {
            let mut client = TcpStream::connect(address).await.unwrap();
            let head = format!("{start}{}{end}", "x".repeat(length - start.len()));
            client.write_all(head.as_bytes()).await.unwrap();
            let answer = received(client).await.unwrap();
            assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{answer}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_handshake_that_never_ends_is_given_up() {
        let folder = tempfile::tempdir().unwrap();
        let (address, _stopping) = start(1, Some(tls(folder.path()))).await;
        let silent = TcpStream::connect(address).await.unwrap();
        assert_eq!(received(silent).await.as_deref(), Some(""));
    }

    #[tokio::test(start_paused = true)]
    async fn a_stopping_server_does_not_wait_forever() {
        let asked = Arc::new(tokio::sync::Notify::new());
        let asks = asked.clone();
        let handler = get(async move || {
            asks.notify_one();
            std::future::pending::<&str>().await
        });
        let (address, stopping, ended) = start_with(handler, 1, None).await;
        let mut client = TcpStream::connect(address).await.unwrap();
        client.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
        asked.notified().await;
        stopping.cancel();
        assert!(timeout(&TestClock::default(), LONG, ended).await.is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn a_stopping_server_ends_idle_connections() {
        let (address, stopping) = start(2, None).await;
        let mut idle = TcpStream::connect(address).await.unwrap();
        idle.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
        let mut first = [0; 12];
        idle.read_exact(&mut first).await.unwrap();
        assert_eq!(&first, b"HTTP/1.1 200");
        stopping.cancel();
        let ended = timeout(&TestClock::default(), IDLE_TIMEOUT / 2, received(idle)).await;
        assert!(ended.is_some(), "at once, not when it has been idle for long");
    }
}
