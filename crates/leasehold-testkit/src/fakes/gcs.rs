//! An in-memory server with just enough of GCS's JSON API for a lock. It accepts one write a second for each object,
//! the limit that GCS documents. (GCS allows short bursts; this server does not.)

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use leasehold::clock::{Clock, Moment, SystemClock};
use tokio::io::{AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use crate::http::{Request, http_date};

const BETWEEN_WRITES: Duration = Duration::from_secs(1);

/// A server on a free loopback port. It stops when it is dropped.
#[derive(Debug)]
pub struct FakeGcs {
    address: SocketAddr,
    objects: Arc<Mutex<Objects>>,
    listener: JoinHandle<()>,
}

/// How many writes and deletes of lock objects there were, by result. Writes of waiters' lines do not count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Writes {
    /// Applied.
    pub done: usize,
    /// 412: the object had another generation.
    pub conflicts: usize,
    /// 429: too many writes.
    pub throttled: usize,
}

#[derive(Debug, Default)]
struct Objects {
    by_name: BTreeMap<String, Object>,
    last_write: BTreeMap<String, Moment>,
    generations: u64,
    writes: Writes,
    callers: BTreeSet<Option<String>>,
}

#[derive(Debug)]
struct Object {
    generation: u64,
    value: Vec<u8>,
}

impl FakeGcs {
    /// Starts a server.
    ///
    /// # Panics
    /// When no loopback port is free.
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let objects = Arc::<Mutex<Objects>>::default();
        let listener = tokio::spawn(accept(listener, objects.clone()));
        Self { address, objects, listener }
    }

    /// Returns a store URL on this server, which accepts any bucket.
    pub fn url(&self) -> String {
        format!("gs://bucket/locks?endpoint=http%3A%2F%2F{}&credentials=anonymous", self.address)
    }

    /// Returns the address that the server listens on. The server is also a token server and a metadata server, and
    /// gives every client the token `fake`.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the `Authorization` headers of the requests for objects, and `None` for requests without one.
    pub fn callers(&self) -> BTreeSet<Option<String>> {
        lock(&self.objects).callers.clone()
    }

    /// Returns the results of the writes so far.
    pub fn writes(&self) -> Writes {
        lock(&self.objects).writes
    }
}

impl Drop for FakeGcs {
    fn drop(&mut self) {
        self.listener.abort();
    }
}

fn lock(objects: &Mutex<Objects>) -> MutexGuard<'_, Objects> {
    objects.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn accept(listener: TcpListener, objects: Arc<Mutex<Objects>>) {
    while let Ok((connection, _)) = listener.accept().await {
        let objects = objects.clone();
        // The client may disconnect at any time, so errors are ignored.
        tokio::spawn(async move { serve(connection, &objects).await.ok() });
    }
}

async fn serve(connection: TcpStream, objects: &Mutex<Objects>) -> io::Result<()> {
    let mut connection = BufReader::new(connection);
    while let Some(request) = Request::read(&mut connection).await? {
        let answer = lock(objects).answer(&request);
        connection.write_all(&answer).await?;
    }
    Ok(())
}

impl Objects {
    fn answer(&mut self, request: &Request) -> Vec<u8> {
        if request.path().ends_with("/token") {
            let token = "{\"access_token\":\"fake\",\"expires_in\":3600,\"token_type\":\"Bearer\"}";
            let headers = "content-type: application/json\r\nmetadata-flavor: Google\r\n";
            return answer("200 OK", headers, token.as_bytes());
        }
        self.callers.insert(request.header("authorization").map(str::to_owned));
        match request.method.as_str() {
            "GET" => match self.by_name.get(&named(request)) {
                Some(object) => {
                    answer("200 OK", &format!("x-goog-generation: {}\r\n", object.generation), &object.value)
                }
                None => answer("404 Not Found", "", b"No such object"),
            },
            "POST" => {
                let (name, value) = uploaded(&request.body);
                self.change(request, name, Some(value))
            }
            "DELETE" => self.change(request, named(request), None),
            _ => answer("405 Method Not Allowed", "", b""),
        }
    }

    fn change(&mut self, request: &Request, name: String, value: Option<Vec<u8>>) -> Vec<u8> {
        let now = SystemClock.now();
        let last = self.last_write.get(&name);
        // Objects that the examination of the server writes are not throttled, because it would take minutes
        // otherwise.
        let throttled = !name.contains(".leasehold-probe");
        let counts = throttled && !name.ends_with(".line");
        if throttled && last.is_some_and(|last| now.shortest_since(*last) < BETWEEN_WRITES) {
            self.writes.throttled += usize::from(counts);
            return error("429 Too Many Requests", "rateLimitExceeded");
        }
        let found = self.by_name.get(&name).map_or(0, |object| object.generation);
        if request.parameter("ifGenerationMatch") != Some(&found.to_string()) {
            self.writes.conflicts += usize::from(counts);
            return error("412 Precondition Failed", "conditionNotMet");
        }
        self.writes.done += usize::from(counts);
        self.last_write.insert(name.clone(), now);
        match value {
            None => {
                self.by_name.remove(&name);
                b"HTTP/1.1 204 No Content\r\n\r\n".to_vec()
            }
            Some(value) => {
                self.generations += 1;
                let generation = 1_700_000_000_000_000 + self.generations;
                self.by_name.insert(name, Object { generation, value });
                answer("200 OK", "", format!("{{\"generation\":\"{generation}\"}}").as_bytes())
            }
        }
    }
}

/// Returns the object that the path names. The tests of this server use only names in which nothing but slashes must
/// be encoded.
fn named(request: &Request) -> String {
    request.path().rsplit('/').next().unwrap_or_default().replace("%2F", "/")
}

/// Returns the name and the content in a multipart upload.
fn uploaded(body: &[u8]) -> (String, Vec<u8>) {
    let text = String::from_utf8_lossy(body);
    let mut parts = text.split("\r\n\r\n").skip(1).filter_map(|part| part.split("\r\n--").next());
    let metadata: serde_json::Value = serde_json::from_str(parts.next().unwrap_or_default()).unwrap();
    (metadata["name"].as_str().unwrap().to_owned(), parts.next().unwrap_or_default().into())
}

fn error(status: &str, reason: &str) -> Vec<u8> {
    let body = format!("{{\"error\":{{\"message\":\"{reason}\",\"errors\":[{{\"reason\":\"{reason}\"}}]}}}}");
    answer(status, "", body.as_bytes())
}

fn answer(status: &str, headers: &str, body: &[u8]) -> Vec<u8> {
    let date = http_date(SystemClock.now().wall_us() / 1_000_000);
    let head =
        format!("HTTP/1.1 {status}\r\ndate: {date}\r\n{headers}content-length: {}\r\n\r\n", body.len());
    [head.as_bytes(), body].concat()
}
