//! A server on loopback that responds as its script says. For tests of requests.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// A request.
#[derive(Clone, Debug)]
pub(super) struct Seen {
    /// Method and target.
    pub(super) line: String,
    /// The headers in lower case, one for each line.
    pub(super) head: String,
    pub(super) body: Vec<u8>,
}

impl Seen {
    pub(super) fn has(&self, header: &str) -> bool {
        self.head.lines().any(|line| line == header)
    }
}

/// What to do with a request.
pub(super) enum Reply {
    Answer(String),
    /// Close the connection without a response.
    Hang,
    /// Never respond.
    Silence,
}

/// A server that responds as its script says.
pub(super) struct Server {
    pub(super) url: String,
    seen: Arc<Mutex<Vec<Seen>>>,
}

impl Server {
    pub(super) async fn start(script: impl Fn(&Seen) -> Reply + Send + Sync + 'static) -> Self {
        Self::start_at("127.0.0.1:0", script).await
    }

    /// Starts a server that listens at `address`.
    pub(super) async fn start_at(
        address: &str,
        script: impl Fn(&Seen) -> Reply + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind(address).await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let seen: Arc<Mutex<Vec<Seen>>> = Arc::default();
        let (log, script) = (seen.clone(), Arc::new(script));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(converse(stream, log.clone(), script.clone()));
            }
        });
        Self { url, seen }
    }

    /// Starts a server that responds to each request with `refusal` the first time, and by the script when it is sent
    /// again.
    pub(super) async fn unsteady(
        refusal: String,
        script: impl Fn(&Seen) -> Reply + Send + Sync + 'static,
    ) -> Self {
        let turns = AtomicUsize::new(0);
        Self::start(move |seen| match turns.fetch_add(1, Ordering::Relaxed) % 2 {
            0 => Reply::Answer(refusal.clone()),
            _ => script(seen),
        })
        .await
    }

    /// Starts a server that gives every request the same response.
    pub(super) async fn always(answer: impl Into<String>) -> Self {
        let answer = answer.into();
        Self::start(move |_| Reply::Answer(answer.clone())).await
    }

    pub(super) fn requests(&self) -> Vec<Seen> {
        std::mem::take(&mut self.seen.lock().unwrap())
    }
}

async fn converse(
    mut stream: TcpStream,
    log: Arc<Mutex<Vec<Seen>>>,
    script: Arc<impl Fn(&Seen) -> Reply + Send + Sync + 'static>,
) {
    while let Some(seen) = request(&mut stream).await {
        let reply = script(&seen);
        log.lock().unwrap().push(seen);
        match reply {
            Reply::Answer(answer) => {
                drop(stream.write_all(answer.as_bytes()).await);
                if answer.contains("Connection: close") {
                    return;
                }
            }
            Reply::Hang => return,
            Reply::Silence => std::future::pending().await,
        }
    }
}

async fn request(stream: &mut TcpStream) -> Option<Seen> {
    let mut bytes = Vec::new();
    let head_end = loop {
        if let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
            break end + 4;
        }
        if stream.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
    };
    let text = String::from_utf8(bytes[..head_end].to_vec()).unwrap();
    let (line, head) = text.split_once("\r\n").unwrap();
    let head = head.to_ascii_lowercase().replace("\r\n", "\n");
    let length =
        head.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok()).unwrap_or(0);
    while bytes.len() < head_end + length {
        if stream.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
    }
    let line = line.trim_end_matches(" HTTP/1.1").to_owned();
    Some(Seen { line, head, body: bytes[head_end..].to_vec() })
}

pub(super) fn answer(status: &str, headers: &str, body: &str) -> String {
    format!("HTTP/1.1 {status}\r\n{headers}Content-Length: {}\r\n\r\n{body}", body.len())
}
