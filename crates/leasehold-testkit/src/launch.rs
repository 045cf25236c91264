//! Servers that chaos and the benchmark start themselves, each on its own port and with its own data.

#[cfg(any(feature = "mysql", feature = "postgres"))]
pub(crate) mod unprivileged;

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::BoxFuture;
use leasehold::clock::{Clock, SystemClock};
use leasehold::random::Random;
use rustix::process::Signal;
use tokio::net::TcpStream;
use tokio::process::{Child, Command};

use crate::process::signal;
use crate::servers::{set_by_test, through};

/// The name of the bucket or table.
pub const STORE: &str = "leasehold-chaos";

/// How long a server may take to start.
const START: Duration = Duration::from_secs(90);

/// A kind of server that chaos and the benchmark can start.
#[async_trait]
pub trait Launch: fmt::Debug + Send + Sync {
    /// Returns the command that runs the server on `address` (`HOST:PORT`) with its data below `folder`.
    fn command(&self, address: &str, folder: &Path) -> Command;

    /// Creates the bucket or table [`STORE`] and returns its store URL. The caller retries until the server is ready.
    async fn make_store(&self, address: &str) -> io::Result<String>;

    /// Returns the command-line options that direct other clients to the server.
    fn options(&self, address: &str) -> Vec<String> {
        options(&[("--endpoint", &format!("http://{address}")), ("--bucket", STORE)])
    }
}

/// Returns a free port for a server. The port is below the range that Linux assigns to outgoing connections.
/// Otherwise, a connection could get the port while the server starts or is down, even a connection to that port
/// itself.
///
/// # Errors
/// When none is free.
pub fn free_port() -> io::Result<u16> {
    const FIRST: u16 = 20_000;
    const COUNT: u16 = 12_000;
    // Ports are tried in turn, so that no two tests of this process get the same one.
    static NEXT: OnceLock<AtomicU16> = OnceLock::new();
    let next = NEXT.get_or_init(|| {
        AtomicU16::new(u16::try_from(Random::from_os().bits() % u128::from(COUNT)).unwrap_or(0))
    });
    let ports = (0..COUNT).map(|_| FIRST + next.fetch_add(1, Ordering::Relaxed) % COUNT);
    let free = |port: &u16| TcpListener::bind(("127.0.0.1", *port)).is_ok();
    ports.into_iter().find(free).ok_or_else(|| io::Error::other("no port is free"))
}

/// Turns names and values into arguments.
pub(crate) fn options(pairs: &[(&str, &str)]) -> Vec<String> {
    pairs.iter().flat_map(|(name, value)| [(*name).to_owned(), (*value).to_owned()]).collect()
}

/// Returns the path of a program, which `./test` or `./chaos` has set in an environment variable.
///
/// # Panics
/// When the variable is not set.
pub fn program(variable: &str) -> String {
    set_by_test(variable, "program")
}

/// Returns the path of the command `leasehold`. Cargo puts it into the folder of the running program, or, if that is
/// a test, into the parent folder.
///
/// # Errors
/// When the path of the running program is unknown.
pub fn leasehold() -> io::Result<PathBuf> {
    let this = std::env::current_exe()?;
    let folder = this.parent().unwrap_or(Path::new("."));
    let folder = if folder.ends_with("deps") { folder.join("..") } else { folder.to_owned() };
    Ok(folder.join("leasehold"))
}

/// A running server, which is killed on drop.
#[derive(Debug)]
pub struct Launched {
    launch: &'static dyn Launch,
    address: String,
    folder: PathBuf,
    child: Child,
    url: String,
}

impl Launched {
    /// Starts the server, with its data below `folder`, and creates an empty bucket or table.
    ///
    /// # Errors
    /// When the server does not start.
    pub async fn start(launch: &'static dyn Launch, folder: &Path) -> io::Result<Self> {
        let address = format!("127.0.0.1:{}", free_port()?);
        let child = run(launch, &address, folder)?;
        let folder = folder.to_owned();
        let mut server = Self { launch, address, folder, child, url: String::new() };
        server.answers().await?;
        server.url = make_store(launch, &server.address).await?;
        Ok(server)
    }

    /// Returns the `host:port` that the server listens on.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Returns the store URL of the bucket or table.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Stops the server (SIGSTOP) for `duration`.
    ///
    /// # Errors
    /// When the server has no process.
    pub async fn stop(&self, duration: Duration) -> io::Result<()> {
        signal(&self.child, Signal::STOP)?;
        SystemClock.sleep(duration).await;
        signal(&self.child, Signal::CONT)
    }

    /// Kills the server with `kill -9`, and starts it again on the same data and port after `duration`.
    ///
    /// # Errors
    /// When the server does not start again.
    pub async fn kill(&mut self, duration: Duration) -> io::Result<()> {
        self.child.kill().await?;
        SystemClock.sleep(duration).await;
        self.child = run(self.launch, &self.address, &self.folder)?;
        self.answers().await
    }

    /// Kills the server with `kill -9`.
    ///
    /// # Errors
    /// When the server has no process.
    pub async fn kill_for_good(&mut self) -> io::Result<()> {
        self.child.kill().await
    }

    /// Waits until the server accepts connections.
    async fn answers(&mut self) -> io::Result<()> {
        let start = SystemClock.now();
        while TcpStream::connect(&self.address).await.is_err() {
            if let Some(status) = self.child.try_wait()? {
                return Err(io::Error::other(format!("{:?} does not start: {status}", self.launch)));
            }
            if SystemClock.now().longest_since(start) > START {
                return Err(io::Error::other(format!("{:?} takes no connections", self.launch)));
            }
            SystemClock.sleep(Duration::from_millis(50)).await;
        }
        Ok(())
    }
}

fn run(launch: &dyn Launch, address: &str, folder: &Path) -> io::Result<Child> {
    let log = std::fs::File::options().create(true).append(true).open(folder.join("server.log"))?;
    let mut command = launch.command(address, folder);
    command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).kill_on_drop(true).spawn()
}

/// Creates the bucket or table. Retries, because a server that accepts connections may not be ready for that yet.
async fn make_store(launch: &dyn Launch, address: &str) -> io::Result<String> {
    let start = SystemClock.now();
    loop {
        match launch.make_store(address).await {
            Err(_) if SystemClock.now().longest_since(start) < START => {
                SystemClock.sleep(Duration::from_millis(200)).await;
            }
            made => return made,
        }
    }
}

/// Starts the server on which the benchmark measures a store, with its data below a folder.
pub type StartMeasured = for<'a> fn(&'a Path) -> BoxFuture<'a, io::Result<Box<dyn Measured>>>;

/// The protocol between client and server, which determines how a proxy counts requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// HTTP/1.1.
    Http,
    /// The protocol of MySQL.
    Mysql,
    /// The protocol of PostgreSQL.
    Postgres,
    /// The protocol of Redis.
    Redis,
    /// Another protocol. The server itself counts the [`messages`](Measured::messages).
    Other,
}

/// A server that the benchmark measures.
#[async_trait]
pub trait Measured: Send + Sync {
    /// Returns the `host:port` that the server listens on.
    fn address(&self) -> &str;

    /// Returns the `host:port` of each server, and the port on which its proxy has to listen, because the servers send
    /// clients there. 0 means any.
    fn members(&self) -> Vec<(String, u16)> {
        vec![(self.address().to_owned(), 0)]
    }

    /// Returns the store URL through `proxy`, the one of the first server.
    fn url(&self, proxy: &str) -> String;

    /// Returns the command-line options that direct other clients to the server through `proxy`.
    fn options(&self, proxy: &str) -> Vec<String>;

    /// Returns the protocol that clients speak.
    fn protocol(&self) -> Protocol {
        Protocol::Http
    }

    /// Returns how many messages clients have sent so far, by kind, if the protocol is [`Protocol::Other`].
    async fn messages(&self) -> BTreeMap<String, u64> {
        BTreeMap::new()
    }

    /// Returns how many keep-alive streams were ever opened, if the store has them.
    async fn keep_alive_streams(&self) -> Option<u64> {
        None
    }
}

/// Starts an HTTP server for the benchmark.
pub fn measured<'a>(
    launch: &'static dyn Launch,
    folder: &'a Path,
) -> BoxFuture<'a, io::Result<Box<dyn Measured>>> {
    Box::pin(async move { Ok(Box::new(Launched::start(launch, folder).await?) as _) })
}

#[async_trait]
impl Measured for Launched {
    fn address(&self) -> &str {
        &self.address
    }

    fn url(&self, proxy: &str) -> String {
        through(&self.url, proxy)
    }

    fn options(&self, proxy: &str) -> Vec<String> {
        self.launch.options(proxy)
    }
}
