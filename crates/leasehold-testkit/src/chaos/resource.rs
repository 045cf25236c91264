//! The resource that the locks protect: a counter for each lock, in the nemesis's memory, behind a socket.
//!
//! It refuses every read and write with a token lower than the highest it has seen. It has no other protection. A
//! worker that adds one reads the number and writes the next one a little later. Token 0 means that the worker has no
//! token; such a request is never refused.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::json;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::history::History;

/// The server of the counters. It stops when it is dropped.
#[derive(Debug)]
pub struct Resource {
    address: SocketAddr,
    shared: Arc<Shared>,
    task: JoinHandle<()>,
}

#[derive(Debug)]
struct Shared {
    history: History,
    counters: Mutex<BTreeMap<String, Counter>>,
    seen: watch::Sender<Seen>,
    lingering: AtomicUsize,
}

#[derive(Debug, Default)]
struct Counter {
    highest: u64,
    value: u64,
    requests: u64,
}

/// What a resource has observed.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// The worker that last began to use a lock and has not reported the end.
    pub holder: Option<String>,
    /// How many times a worker has begun to use a lock.
    pub grants: u64,
    /// How many reads there were.
    pub reads: u64,
}

impl Resource {
    /// Listens on a free loopback port, and records what it accepts and refuses.
    ///
    /// # Errors
    /// When no port is free.
    pub async fn start(history: History) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            history,
            counters: Mutex::default(),
            seen: watch::Sender::default(),
            lingering: AtomicUsize::new(0),
        });
        let task = tokio::spawn(accept(listener, shared.clone()));
        Ok(Self { address, shared, task })
    }

    /// Returns the address that workers connect to.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns a receiver of what the resource observes.
    pub fn seen(&self) -> watch::Receiver<Seen> {
        self.shared.seen.subscribe()
    }

    /// Asks every worker that reads to keep the lock, until the result is dropped. A fault that is meant for a holder
    /// thus finds one, and the successor still holds the lock when the old holder resumes.
    pub fn linger(&self) -> Linger {
        self.shared.lingering.fetch_add(1, Ordering::Relaxed);
        Linger(self.shared.clone())
    }
}

/// The resource asks workers to keep the lock while this exists.
#[derive(Debug)]
pub struct Linger(Arc<Shared>);

impl Drop for Linger {
    fn drop(&mut self) {
        self.0.lingering.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Drop for Resource {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    while let Ok((connection, _)) = listener.accept().await {
        let shared = shared.clone();
        // Connections break when workers are killed, so errors are ignored.
        tokio::spawn(async move { serve(connection, &shared).await.ok() });
    }
}

async fn serve(connection: TcpStream, shared: &Shared) -> io::Result<()> {
    let mut connection = BufReader::new(connection);
    loop {
        let mut line = String::new();
        // A partial line comes from a worker that was killed.
        if connection.read_line(&mut line).await? == 0 || !line.ends_with('\n') {
            return Ok(());
        }
        let request: Vec<&str> = line.split_whitespace().collect();
        let answer = shared.answer(&request).ok_or_else(|| io::Error::other(line.clone()))?;
        connection.write_all(answer.as_bytes()).await?;
    }
}

impl Shared {
    /// Handles a request: `read LOCK TOKEN WHO`, `write LOCK TOKEN WHO VALUE` or `over LOCK TOKEN WHO`.
    fn answer(&self, request: &[&str]) -> Option<String> {
        let (verb, lock, token, who) = (request.first()?, request.get(1)?, request.get(2)?, request.get(3)?);
        let token: u64 = token.parse().ok()?;
        match *verb {
            "read" => {
                // Records the read before `seen` changes, because other tasks react to that change.
                let answer = self.counted("read", lock, token, None);
                self.seen.send_modify(|seen| {
                    seen.grants += u64::from(seen.holder.as_deref() != Some(*who));
                    seen.reads += 1;
                    seen.holder = Some((*who).to_owned());
                });
                Some(answer)
            }
            "write" => Some(self.counted("write", lock, token, Some(request.get(4)?.parse().ok()?))),
            "over" => {
                self.seen.send_if_modified(|seen| {
                    let ends = seen.holder.as_deref() == Some(*who);
                    seen.holder = seen.holder.take().filter(|_| !ends);
                    ends
                });
                Some("accepted 0 go\n".to_owned())
            }
            _ => None,
        }
    }

    /// Performs one read or write. Holds a mutex throughout, so that the history has the order of the operations.
    fn counted(&self, what: &str, lock: &str, token: u64, written: Option<u64>) -> String {
        let mut counters = self.counters.lock().unwrap_or_else(PoisonError::into_inner);
        let counter = counters.entry(lock.to_owned()).or_default();
        let from = self.history.now();
        let accepted = token == 0 || token >= counter.highest;
        if accepted {
            counter.highest = counter.highest.max(token);
            counter.value = written.unwrap_or(counter.value);
        }
        counter.requests += 1;
        let (value, number) = (written.unwrap_or(counter.value), counter.requests);
        let event =
            json!({ "lock": lock, "token": token, "accepted": accepted, "value": value, "number": number });
        self.history.record(what, from, event);
        let linger = self.lingering.load(Ordering::Relaxed) > 0;
        let stay = if linger { "stay" } else { "go" };
        format!("{} {value} {stay}\n", if accepted { "accepted" } else { "refused" })
    }
}

/// A worker's connection to the resource.
#[derive(Debug)]
pub struct Client {
    connection: BufReader<TcpStream>,
    who: String,
    stay: bool,
}

impl Client {
    /// Connects to a resource as `who`.
    ///
    /// # Errors
    /// When the resource is gone.
    pub async fn connect(address: &str, who: &str) -> io::Result<Self> {
        let connection = BufReader::new(TcpStream::connect(address).await?);
        Ok(Self { connection, who: who.to_owned(), stay: false })
    }

    /// Returns whether the last response asked the worker to keep the lock.
    pub fn asks_to_stay(&self) -> bool {
        self.stay
    }

    /// Reads the counter. Returns `None` if the token is too low.
    ///
    /// # Errors
    /// When the resource is gone.
    pub async fn read(&mut self, lock: &str, token: u64) -> io::Result<Option<u64>> {
        let request = format!("read {lock} {token} {}\n", self.who);
        self.ask(&request).await
    }

    /// Sets the counter. Returns `None` if the token is too low.
    ///
    /// # Errors
    /// When the resource is gone.
    pub async fn write(&mut self, lock: &str, token: u64, value: u64) -> io::Result<Option<u64>> {
        let request = format!("write {lock} {token} {} {value}\n", self.who);
        self.ask(&request).await
    }

    /// Reports that the worker no longer uses the lock.
    ///
    /// # Errors
    /// When the resource is gone.
    pub async fn over(&mut self, lock: &str, token: u64) -> io::Result<()> {
        let request = format!("over {lock} {token} {}\n", self.who);
        self.ask(&request).await.map(|_| ())
    }

    async fn ask(&mut self, request: &str) -> io::Result<Option<u64>> {
        self.connection.write_all(request.as_bytes()).await?;
        let mut answer = String::new();
        self.connection.read_line(&mut answer).await?;
        let words: Vec<&str> = answer.split_whitespace().collect();
        let [verdict, value, stay] = words[..] else {
            return Err(io::Error::other(format!("the resource says {answer:?}")));
        };
        self.stay = stay == "stay";
        let value = value.parse().map_err(io::Error::other)?;
        Ok((verdict == "accepted").then_some(value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_lower_token_is_refused_also_after_a_mere_read() {
        let folder = tempfile::tempdir().unwrap();
        let resource = Resource::start(History::create(folder.path(), "counter").unwrap()).await.unwrap();
        let address = resource.address().to_string();
        let mut old = Client::connect(&address, "w0.1").await.unwrap();
        let mut new = Client::connect(&address, "w1.1").await.unwrap();
        assert_eq!(old.read("l", 4).await.unwrap(), Some(0));
        assert_eq!(old.write("l", 4, 1).await.unwrap(), Some(1));
        assert_eq!(new.read("l", 7).await.unwrap(), Some(1));
        assert_eq!(old.write("l", 4, 2).await.unwrap(), None);
        assert_eq!(new.write("l", 7, 2).await.unwrap(), Some(2));
        let seen = resource.seen();
        assert_eq!(
            (seen.borrow().holder.as_deref(), seen.borrow().grants, seen.borrow().reads),
            (Some("w1.1"), 2, 2)
        );
        old.over("l", 4).await.unwrap();
        assert!(seen.borrow().holder.is_some());
        new.over("l", 7).await.unwrap();
        assert!(seen.borrow().holder.is_none());
        let linger = resource.linger();
        assert_eq!((new.read("l", 7).await.unwrap(), new.asks_to_stay()), (Some(2), true));
        drop(linger);
        assert_eq!((new.read("l", 7).await.unwrap(), new.asks_to_stay()), (Some(2), false));
        let history = std::fs::read_to_string(folder.path().join("counter.jsonl")).unwrap();
        assert_eq!(history.lines().count(), 7);
        assert_eq!(history.matches("\"accepted\":false").count(), 1);
    }
}
