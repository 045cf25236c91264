//! An in-memory server with just enough of S3 for a lock. It either honours preconditions or ignores them, like
//! servers from before November 2024.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use leasehold::clock::{Clock, SystemClock};
use tokio::io::{AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use crate::http::{Request, http_date};

/// How the server treats `If-Match` and `If-None-Match`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Preconditions {
    /// It honours them.
    Honoured,
    /// It ignores them: every write and every delete succeeds.
    Ignored,
}

/// A server on a free loopback port. It stops when it is dropped.
#[derive(Debug)]
pub struct FakeS3 {
    address: SocketAddr,
    objects: Arc<Mutex<Objects>>,
    listener: JoinHandle<()>,
}

#[derive(Debug, Default)]
struct Objects {
    by_path: BTreeMap<String, (String, Vec<u8>)>,
    writes: u64,
}

impl FakeS3 {
    /// Starts a server.
    ///
    /// # Panics
    /// When no loopback port is free.
    pub async fn start(preconditions: Preconditions) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let objects = Arc::<Mutex<Objects>>::default();
        let listener = tokio::spawn(accept(listener, objects.clone(), preconditions));
        Self { address, objects, listener }
    }

    /// Returns the address that the server listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns a store URL on this server, which accepts any bucket and any credentials.
    pub fn url(&self) -> String {
        format!("s3://bucket/locks?endpoint=http%3A%2F%2F{}&region=us-east-1", self.address)
    }

    /// Returns the paths of the objects, bucket first.
    pub fn paths(&self) -> Vec<String> {
        self.objects.lock().unwrap_or_else(PoisonError::into_inner).by_path.keys().cloned().collect()
    }
}

impl Drop for FakeS3 {
    fn drop(&mut self) {
        self.listener.abort();
    }
}

async fn accept(listener: TcpListener, objects: Arc<Mutex<Objects>>, preconditions: Preconditions) {
    while let Ok((connection, _)) = listener.accept().await {
        let objects = objects.clone();
        // The client may disconnect at any time, so errors are ignored.
        tokio::spawn(async move { serve(connection, &objects, preconditions).await.ok() });
    }
}

async fn serve(
    connection: TcpStream,
    objects: &Mutex<Objects>,
    preconditions: Preconditions,
) -> io::Result<()> {
    let mut connection = BufReader::new(connection);
    while let Some(request) = Request::read(&mut connection).await? {
        let answer = objects.lock().unwrap_or_else(PoisonError::into_inner).answer(&request, preconditions);
        connection.write_all(&answer.to_bytes()).await?;
        if request.header("connection") == Some("close") {
            break;
        }
    }
    Ok(())
}

struct Answer {
    status: &'static str,
    etag: Option<String>,
    body: Vec<u8>,
}

impl Answer {
    fn error(status: &'static str, code: &str) -> Self {
        let body =
            format!("<?xml version=\"1.0\"?><Error><Code>{code}</Code><Message>{code}</Message></Error>");
        Self { status, etag: None, body: body.into_bytes() }
    }

    fn to_bytes(&self) -> Vec<u8> {
        let date = http_date(SystemClock.now().wall_us() / 1_000_000);
        let etag = self.etag.as_ref().map(|etag| format!("etag: {etag}\r\n")).unwrap_or_default();
        // A response with status 204 must have neither a body nor a content length.
        let length = match self.status {
            "204 No Content" => String::new(),
            _ => format!("content-length: {}\r\n", self.body.len()),
        };
        let head =
            format!("HTTP/1.1 {}\r\ndate: {date}\r\nx-amz-request-id: 1\r\n{etag}{length}\r\n", self.status);
        [head.as_bytes(), &self.body].concat()
    }
}

impl Objects {
    fn answer(&mut self, request: &Request, preconditions: Preconditions) -> Answer {
        let path = request.path().to_owned();
        let found = self.by_path.get(&path).map(|(etag, _)| etag.as_str());
        if request.method != "GET"
            && preconditions == Preconditions::Honoured
            && let Some(refusal) = refusal(request, found)
        {
            return refusal;
        }
        match request.method.as_str() {
            "GET" if request.parameter("list-type").is_some() => self.list(request),
            "GET" => match self.by_path.get(&path) {
                Some((etag, value)) => {
                    Answer { status: "200 OK", etag: Some(etag.clone()), body: value.clone() }
                }
                None => Answer::error("404 Not Found", "NoSuchKey"),
            },
            "PUT" => {
                self.writes += 1;
                let etag = format!("\"{:032x}\"", self.writes);
                self.by_path.insert(path, (etag.clone(), request.body.clone()));
                Answer { status: "200 OK", etag: Some(etag), body: Vec::new() }
            }
            "DELETE" => {
                self.by_path.remove(&path);
                Answer { status: "204 No Content", etag: None, body: Vec::new() }
            }
            _ => Answer::error("405 Method Not Allowed", "MethodNotAllowed"),
        }
    }

    /// Lists every key below the prefix on one page. Locks' keys need no escaping in XML.
    fn list(&self, request: &Request) -> Answer {
        let bucket = format!("{}/", request.path().trim_end_matches('/'));
        let prefix = request.parameter("prefix").unwrap_or_default().replace("%2F", "/");
        let keys = self.by_path.keys().filter_map(|path| path.strip_prefix(&bucket));
        let entries: String = keys
            .filter(|key| key.starts_with(&prefix))
            .map(|key| format!("<Contents><Key>{key}</Key></Contents>"))
            .collect();
        let body = format!(
            "<?xml version=\"1.0\"?><ListBucketResult><IsTruncated>false</IsTruncated>{entries}</ListBucketResult>"
        );
        Answer { status: "200 OK", etag: None, body: body.into_bytes() }
    }
}

/// Returns the response to a write or delete whose preconditions do not hold.
fn refusal(request: &Request, found: Option<&str>) -> Option<Answer> {
    match (request.header("if-none-match"), request.header("if-match"), found) {
        (Some(_), _, Some(_)) => Some(Answer::error("412 Precondition Failed", "PreconditionFailed")),
        (_, Some(_), None) => Some(Answer::error("404 Not Found", "NoSuchKey")),
        (_, Some(expected), Some(found)) if expected != found => {
            Some(Answer::error("412 Precondition Failed", "PreconditionFailed"))
        }
        _ => None,
    }
}
