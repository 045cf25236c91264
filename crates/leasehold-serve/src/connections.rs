//! Connections: which are open, TLS, and how long a slow client may keep one open.

mod room;
mod writes;

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes, HttpBody};
use axum::extract::Request;
use axum::response::Response;
use futures_util::FutureExt as _;
use hyper::body::{Frame, Incoming, SizeHint};
use hyper::server::conn::http1;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use leasehold::clock::{Clock, Moment, timeout};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

pub(crate) use self::room::{Arriving, Handle, InProgress, MostConnections};
use self::room::{Full, Place, Room};
use self::writes::TimedWrites;
use crate::peer::Peer;
use crate::tls::{ClientCertificate, Tls};

/// How long a TLS handshake may take.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a connection may be idle, and how long the head of a request may take. It is longer than the minute for
/// which proxies keep a connection open, so that the proxy closes it first.
const IDLE_TIMEOUT: Duration = Duration::from_secs(75);
/// How long requests in progress may take after the server was asked to stop. Supervisors kill a process after 30 s.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(20);
/// How long connections without a request of a caller with rights may last after the server was asked to stop.
const SPARE_DRAIN_TIMEOUT: Duration = Duration::from_secs(1);
/// Maximum length of the head of a request, which each connection can make the server keep before the caller is known.
/// It must have room for a token of 8 KiB and for the headers that proxies add. Bodies are not limited by it.
const MAX_HEAD: usize = 32 * 1024;
/// How much of a response the machine keeps for a client that does not read, about. It is small because each connection
/// can have that much, and because the server sees no sooner that a client does not read.
const SEND_BUFFER: u32 = 64 * 1024;
/// How many connections wait until the server accepts them.
const BACKLOG: u32 = 1_024;
/// The pause after the machine has refused a connection, for example because too many files are open.
const RETRY_PAUSE: Duration = Duration::from_secs(1);
/// The pause between two warnings about refused connections.
const WARNING_PAUSE: Duration = Duration::from_secs(60);

/// Serves connections.
#[derive(Clone)]
pub(crate) struct Connections {
    pub(crate) router: Router,
    pub(crate) tls: Option<Arc<Tls>>,
    pub(crate) clock: Arc<dyn Clock>,
    /// Cancelled when the server stops.
    pub(crate) stopping: CancellationToken,
    pub(crate) most: MostConnections,
}

/// Listens on `address`.
pub(crate) fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    // Unix keeps an address in use for a while after its server has ended. On Windows, the option means something else.
    #[cfg(unix)]
    socket.set_reuseaddr(true)?;
    // Accepted connections inherit it.
    socket.set_send_buffer_size(SEND_BUFFER)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

impl Connections {
    /// Accepts connections until the server stops. Then waits for the requests in progress.
    pub(crate) async fn serve(self, listener: TcpListener) {
        let room = Room::new(self.most);
        tokio::select! {
            () = self.accept(&listener, &room) => {}
            () = self.stopping.cancelled() => {}
        }
        drop(listener);
        let mark = room.mark();
        let drain = async {
            if timeout(&*self.clock, SPARE_DRAIN_TIMEOUT, room.empty()).await.is_none() {
                room.close_spare_before(mark);
                room.empty().await;
            }
        };
        // The limit prevents a request that never ends from keeping the server alive.
        let _ = timeout(&*self.clock, DRAIN_TIMEOUT, drain).await;
    }

    /// Accepts connections. Never ends.
    async fn accept(&self, listener: &TcpListener, room: &Arc<Room>) {
        let mut warned = None;
        loop {
            match listener.accept().await {
                Ok((stream, peer)) => {
                    let entered = loop {
                        let changed = room.changed();
                        match room.enter(peer.ip()) {
                            // Further connections wait in the listener's queue.
                            Err(Full::All) => changed.await,
                            entered => break entered,
                        }
                    };
                    match entered {
                        Ok(place) => {
                            drop(tokio::spawn(self.clone().connection(stream, Peer(peer.ip()), place)))
                        }
                        Err(_) => self.warn_of_refusal(peer, &mut warned),
                    }
                }
                Err(error) if is_of_one_client(&error) => {}
                Err(error) => {
                    tracing::warn!("cannot accept connections: {error}");
                    self.clock.sleep(RETRY_PAUSE).await;
                }
            }
        }
    }

    /// Logs that a connection was refused, if no warning was logged recently.
    fn warn_of_refusal(&self, peer: SocketAddr, warned: &mut Option<Moment>) {
        let now = self.clock.now();
        if warned.is_none_or(|warned| now.longest_since(warned) >= WARNING_PAUSE) {
            *warned = Some(now);
            let (address, most) = (peer.ip(), self.most.per_address);
            tracing::warn!(
                "refused a connection from {address}: its {most} connections all have requests in progress. If it is \
a reverse proxy, start the server with --behind-proxy"
            );
        }
    }

    /// Serves the requests of one connection, until it must make room.
    async fn connection(self, stream: TcpStream, peer: Peer, place: Place) {
        let stream = TimedWrites::new(stream, self.clock.clone(), self.stopping.clone());
        tokio::select! {
            () = place.closed() => {}
            () = self.handshake(stream, peer, place.handle()) => {}
        }
    }

    async fn handshake(&self, stream: TimedWrites<TcpStream>, peer: Peer, place: &Handle) {
        let Some(tls) = self.tls.clone() else { return self.requests(stream, peer, place, None).await };
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
        let certificates = stream.get_ref().1.peer_certificates();
        let certificate = certificates.map(|chain| ClientCertificate::of(chain, self.clock.now()));
        self.requests(stream, peer, place, certificate).await;
    }

    async fn requests(
        &self,
        stream: impl AsyncRead + AsyncWrite + Unpin,
        peer: Peer,
        place: &Handle,
        certificate: Option<ClientCertificate>,
    ) {
        let router = TowerToHyperService::new(self.router.clone());
        let service = service_fn(move |request: hyper::Request<Incoming>| {
            let mut request: Request = request.map(Body::new);
            request.extensions_mut().insert(peer);
            request.extensions_mut().insert(place.clone());
            if let Some(certificate) = &certificate {
                request.extensions_mut().insert(certificate.clone());
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
                // An error means that the client closed the connection, or does not read.
                _ = &mut connection => return,
                () = &mut stopped => connection.as_mut().graceful_shutdown(),
            }
        }
    }
}

impl InProgress {
    /// Marks that the request is in progress until its response has been passed to the connection.
    pub(crate) fn until_sent(self, response: Response) -> Response {
        response.map(|body| Body::new(Sent { body, _request: self }))
    }
}

/// The body of a response, and its request.
struct Sent {
    body: Body,
    _request: InProgress,
}

impl HttpBody for Sent {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Returns whether an error of `accept` concerns only one client.
fn is_of_one_client(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::path::Path;
    use std::process::Command;
    use std::sync::Mutex;

    use axum::http::HeaderMap;
    use axum::middleware::{Next, from_fn};
    use axum::routing::{MethodRouter, get};
    use futures_util::stream;
    use leasehold::clock::TestClock;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::task::JoinHandle;

    use super::writes::{LAST_PATIENCE, PATIENCE};
    use super::*;

    /// Longer than any limit in this module. The time of the tests is paused, so it passes at once.
    const LONG: Duration = Duration::from_secs(600);

    fn tls(folder: &Path) -> Arc<Tls> {
        let words = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=localhost -keyout key -out crt";
        let made = Command::new("openssl").args(words.split(' ')).current_dir(folder).output().unwrap();
        assert!(made.status.success(), "{made:?}");
        Arc::new(Tls::load(folder.join("crt"), folder.join("key"), None).unwrap())
    }

    async fn start(most: usize, tls: Option<Arc<Tls>>) -> (SocketAddr, CancellationToken) {
        let (address, stopping, _) = start_with(get(async || "answer"), most, tls).await;
        (address, stopping)
    }

    /// Starts a server. The third value is its task, which completes when the server has ended.
    async fn start_with(
        handler: MethodRouter,
        in_total: usize,
        tls: Option<Arc<Tls>>,
    ) -> (SocketAddr, CancellationToken, JoinHandle<()>) {
        let stopping = CancellationToken::new();
        let router = Router::new().route("/", handler).layer(from_fn(as_of_a_caller));
        let listener = listen("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = listener.local_addr().unwrap();
        let clock = Arc::new(TestClock::default());
        let most = MostConnections { in_total, per_address: in_total };
        let connections = Connections { router, tls, clock, stopping: stopping.clone(), most };
        (address, stopping, tokio::spawn(connections.serve(listener)))
    }

    /// Treats requests with the header `X-Caller` as those of a caller with rights.
    async fn as_of_a_caller(request: Request, next: Next) -> Response {
        let has_rights = request.headers().contains_key("x-caller");
        let place = request.extensions().get::<Handle>().filter(|_| has_rights);
        match place.map(Handle::begin) {
            Some(in_progress) => in_progress.until_sent(next.run(request).await),
            None => next.run(request).await,
        }
    }

    /// Returns the text that the server sends until it closes the connection.
    async fn received(mut stream: TcpStream) -> Option<String> {
        let mut text = String::new();
        // A reset also ends the connection.
        timeout(&TestClock::default(), LONG, stream.read_to_string(&mut text)).await.map(|_| text)
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_client_is_given_up() {
        let (address, _stopping) = start(3, None).await;
        let silent = TcpStream::connect(address).await.unwrap();
        let mut slow = TcpStream::connect(address).await.unwrap();
        slow.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n").await.unwrap();
        let mut other = TcpStream::connect(address).await.unwrap();
        other.write_all(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await.unwrap();
        let answer = received(other).await.unwrap();
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

    const GET: &str = "GET / HTTP/1.1\r\nHost: x\r\n\r\n";
    /// A request of a caller with rights.
    const GET_OF_A_CALLER: &str = "GET / HTTP/1.1\r\nHost: x\r\nX-Caller: ci\r\n\r\n";

    /// Returns an endless body that keeps `alive`.
    fn endless<T: Send + 'static>(alive: T) -> Body {
        const PART: &[u8] = &[b'x'; 64 * 1024];
        Body::from_stream(stream::repeat_with(move || {
            let _alive = &alive;
            Ok::<_, Infallible>(Bytes::from_static(PART))
        }))
    }

    async fn connect(address: SocketAddr, text: &str) -> TcpStream {
        let mut client = TcpStream::connect(address).await.unwrap();
        client.write_all(text.as_bytes()).await.unwrap();
        client
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_never_reads_is_given_up() {
        let bodies = Arc::new(Mutex::new(Vec::new()));
        let of_handler = bodies.clone();
        let handler = get(async move || {
            let alive = CancellationToken::new();
            of_handler.lock().unwrap().push(alive.clone());
            endless(alive.drop_guard())
        });
        let (address, _stopping, _) = start_with(handler, 2, None).await;
        let clock = TestClock::default();
        for request in [GET, GET_OF_A_CALLER] {
            let begin = clock.now();
            let mut silent = connect(address, request).await;
            silent.read_exact(&mut [0; 12]).await.unwrap();
            let body = bodies.lock().unwrap().pop().unwrap();
            assert!(timeout(&clock, LONG, body.cancelled()).await.is_some(), "{request}");
            let lasted = clock.now().longest_since(begin);
            assert!(lasted >= PATIENCE && lasted < 2 * PATIENCE, "{lasted:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn strangers_leave_room_for_callers() {
        const MOST: usize = 8;
        let handler = get(async |headers: HeaderMap| {
            if headers.contains_key("x-caller") {
                std::future::pending::<()>().await;
            }
            endless(())
        });
        let (address, _stopping, _) = start_with(handler, MOST, None).await;
        let clock = TestClock::default();
        let begin = clock.now();
        let mut caller = connect(address, GET_OF_A_CALLER).await;
        let mut strangers = Vec::new();
        for number in 0..5 * MOST {
            // Some are silent, some do not read, and some send half a head.
            let text = ["", GET, "GET / HTTP/1.1\r\nHost: "][number % 3];
            strangers.push(connect(address, text).await);
        }
        let mut first = [0; 12];
        connect(address, GET).await.read_exact(&mut first).await.unwrap();
        assert_eq!(&first, b"HTTP/1.1 200");
        assert!(caller.read(&mut first).now_or_never().is_none(), "its request is still in progress");
        let took = clock.now().longest_since(begin);
        assert!(took < Duration::from_secs(1), "{took:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_stopping_server_does_not_wait_for_slow_clients() {
        let (served, mut requests) = tokio::sync::mpsc::unbounded_channel();
        let handler = get(async move || {
            let _ = served.send(());
            endless(())
        });
        let (address, stopping, ended) = start_with(handler, 8, None).await;
        let mut clients = Vec::new();
        for text in ["", "GET / HTTP/1.1\r\nHost: ", GET, GET_OF_A_CALLER] {
            clients.push(connect(address, text).await);
        }
        for _ in 0..2 {
            requests.recv().await.unwrap();
        }
        let clock = TestClock::default();
        let begin = clock.now();
        stopping.cancel();
        ended.await.unwrap();
        let took = clock.now().longest_since(begin);
        assert!(took < 2 * LAST_PATIENCE, "{took:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_stopping_server_waits_for_callers_but_not_forever() {
        for (takes, is_answered) in [(DRAIN_TIMEOUT / 2, true), (2 * DRAIN_TIMEOUT, false)] {
            let asked = Arc::new(tokio::sync::Notify::new());
            let asks = asked.clone();
            let handler = get(async move || {
                asks.notify_one();
                TestClock::default().sleep(takes).await;
                "answer"
            });
            let (address, stopping, ended) = start_with(handler, 2, None).await;
            let client = connect(address, GET_OF_A_CALLER).await;
            asked.notified().await;
            let clock = TestClock::default();
            let begin = clock.now();
            stopping.cancel();
            ended.await.unwrap();
            let took = clock.now().longest_since(begin);
            assert!(took <= DRAIN_TIMEOUT + Duration::from_secs(1), "{took:?}");
            if is_answered {
                assert!(received(client).await.unwrap().ends_with("answer"));
            }
        }
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
