//! etcd clusters that a test starts, stops and kills.

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use leasehold::clock::{Clock, SystemClock};
use rustix::process::Signal;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};

use super::try_etcdctl;
use crate::peers::Program;
use crate::process;

/// The names of etcd's counters.
const CALLS: &str = "grpc_server_started_total";
const MESSAGES: &str = "grpc_server_msg_received_total";

/// How often to retry an operation that takes time, and the pause between two tries. Together they last a minute at
/// least.
const TRIES: usize = 300;
const PAUSE: Duration = Duration::from_millis(200);

/// The gRPC methods that are streams of requests.
const STREAMS: [&str; 2] = ["Watch", "LeaseKeepAlive"];

/// A cluster on this machine with its data in a folder. Its processes are killed when it is dropped.
#[derive(Debug)]
pub struct Cluster {
    folder: PathBuf,
    /// Deletes the folder on drop, if the cluster created it.
    _temporary: Option<TempDir>,
    scheme: &'static str,
    members: Vec<Member>,
    /// Additional etcd options of all members.
    options: Vec<String>,
}

#[derive(Debug)]
struct Member {
    clients: String,
    peers: String,
    process: Option<Child>,
}

/// Binds a port for a member. The port stays free while the member is down, because it is outside the range that the
/// system uses for outgoing connections.
fn listener() -> TcpListener {
    loop {
        if let Ok(listener) = TcpListener::bind(("127.0.0.1", fastrand::u16(10_240..32_768))) {
            return listener;
        }
    }
}

impl Cluster {
    /// Starts a cluster of `members` members, which do not wait for the disk: etcd gives up a request after 7 s, and a
    /// busy disk can take longer. Without TLS, waits until all of them serve. `options` are additional etcd options.
    ///
    /// # Panics
    /// When they do not start.
    pub async fn start(members: usize, options: &[&str]) -> Self {
        let temporary = tempfile::tempdir().unwrap();
        let folder = temporary.path().to_owned();
        let options = [&["--unsafe-no-fsync"], options].concat();
        Self::start_in(folder, Some(temporary), members, &options).await
    }

    /// Starts a cluster as it runs in production: its members wait for the disk. Its data and logs are in `folder`,
    /// which is kept.
    ///
    /// # Panics
    /// When they do not start.
    pub async fn start_below(folder: &Path, members: usize) -> Self {
        Self::start_in(folder.to_owned(), None, members, &[]).await
    }

    async fn start_in(folder: PathBuf, temporary: Option<TempDir>, members: usize, options: &[&str]) -> Self {
        // All ports are bound at once, so that no two of them are the same.
        let sockets: Vec<_> = (0..members * 2).map(|_| listener()).collect();
        let address = |n: usize| sockets[n].local_addr().unwrap().to_string();
        let members = (0..members)
            .map(|n| Member { clients: address(2 * n), peers: address(2 * n + 1), process: None })
            .collect();
        drop(sockets);
        let scheme = if options.contains(&"--cert-file") { "https" } else { "http" };
        let options = options.iter().map(|option| (*option).to_owned()).collect();
        let mut cluster = Self { folder, _temporary: temporary, scheme, members, options };
        for n in 0..cluster.members.len() {
            cluster.run(n);
        }
        // Without TLS, `etcdctl` can check the members. With TLS, the first request of a test waits for them.
        if scheme == "http" {
            for n in 0..cluster.members.len() {
                cluster.until_it_serves(n).await;
            }
        }
        cluster
    }

    fn run(&mut self, n: usize) {
        let all: Vec<_> = self
            .members
            .iter()
            .enumerate()
            .map(|(n, member)| format!("m{n}=http://{}", member.peers))
            .collect();
        let member = &mut self.members[n];
        let (clients, peers) =
            (format!("{}://{}", self.scheme, member.clients), format!("http://{}", member.peers));
        // Each start appends to the log, so that it keeps the output from before a kill.
        let log = self.folder.join(format!("m{n}.log"));
        let log = std::fs::File::options().create(true).append(true).open(log).unwrap();
        let process = Command::new(Program::ETCD_SERVER.path())
            .args(["--name", &format!("m{n}"), "--log-level", "error"])
            .arg("--data-dir")
            .arg(self.folder.join(format!("m{n}")))
            .args(["--listen-client-urls", &clients, "--advertise-client-urls", &clients])
            .args(["--listen-peer-urls", &peers, "--initial-advertise-peer-urls", &peers])
            .args(["--initial-cluster", &all.join(",")])
            .args(&self.options)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        member.process = Some(process);
    }

    /// Returns the store URL of all members.
    pub fn url(&self) -> String {
        let members: Vec<_> = self.members.iter().map(|member| member.clients.as_str()).collect();
        format!("etcd://{}/tests/", members.join(","))
    }

    /// Returns the store URL with member `n` first.
    pub fn url_from(&self, n: usize) -> String {
        let count = self.members.len();
        let members: Vec<_> = (n..n + count).map(|n| self.members[n % count].clients.as_str()).collect();
        format!("etcd://{}/tests/", members.join(","))
    }

    /// Returns the address that clients of member `n` connect to.
    pub fn address(&self, n: usize) -> &str {
        &self.members[n].clients
    }

    /// Returns the current leader, according to the members that respond. Waits until there is one.
    ///
    /// # Panics
    /// When there is no leader for a minute.
    pub async fn leader(&self) -> usize {
        for _ in 0..TRIES {
            for (n, member) in self.members.iter().enumerate() {
                if member.process.is_some() && self.leader_by(n).await == Some(true) {
                    return n;
                }
            }
            SystemClock.sleep(PAUSE).await;
        }
        panic!("the cluster has no leader");
    }

    /// Waits until member `n` responds to clients and has a leader.
    async fn until_it_serves(&mut self, n: usize) {
        for _ in 0..TRIES {
            if self.leader_by(n).await.is_some() {
                return;
            }
            if let Some(process) = &mut self.members[n].process
                && let Some(status) = process.try_wait().unwrap()
            {
                panic!("member {n} of the cluster ended: {status}");
            }
            SystemClock.sleep(PAUSE).await;
        }
        panic!("member {n} of the cluster does not serve");
    }

    /// Returns whether member `n` is the leader, by its own account, or `None` if it has no leader or does not
    /// respond.
    async fn leader_by(&self, n: usize) -> Option<bool> {
        let asked = try_etcdctl(
            &self.members[n].clients,
            &["--command-timeout=2s", "endpoint", "status", "-w", "json"],
        );
        let status: serde_json::Value = serde_json::from_str(&asked.await.ok()?).unwrap();
        let status = &status[0]["Status"];
        let leader = status["leader"].as_u64().filter(|leader| *leader != 0)?;
        Some(Some(leader) == status["header"]["member_id"].as_u64())
    }

    /// Kills a member with `kill -9`.
    pub async fn kill(&mut self, n: usize) {
        self.members[n].process.take().unwrap().kill().await.unwrap();
    }

    /// Starts a killed member again.
    pub fn restart(&mut self, n: usize) {
        self.run(n);
    }

    /// Stops a member (SIGSTOP). It keeps its connections but does not respond to requests.
    pub fn stop(&self, n: usize) {
        self.signal(n, Signal::STOP);
    }

    /// Resumes a stopped member.
    pub fn resume(&self, n: usize) {
        self.signal(n, Signal::CONT);
    }

    fn signal(&self, n: usize, signal: Signal) {
        process::signal(self.members[n].process.as_ref().unwrap(), signal).unwrap();
    }

    /// Returns how many requests of each kind member `n` has received, by its own count: `Txn`, `Watch`, and so on.
    /// Each message on a watch or keep-alive stream counts as one request.
    pub async fn requests(&self, n: usize) -> BTreeMap<String, u64> {
        self.counted(n, |method| if STREAMS.contains(&method) { MESSAGES } else { CALLS }).await
    }

    /// Returns how many messages of each kind member `n` has received, by its own count. A call counts as one
    /// message, a stream as all of its messages.
    pub async fn messages(&self, n: usize) -> BTreeMap<String, u64> {
        self.counted(n, |_| MESSAGES).await
    }

    /// Returns how many calls of each kind member `n` has received, by its own count. A stream counts as one call.
    pub async fn calls(&self, n: usize) -> BTreeMap<String, u64> {
        self.counted(n, |_| CALLS).await
    }

    /// Returns the value, by method, of the counter that `of` names.
    async fn counted(&self, n: usize, of: impl Fn(&str) -> &str) -> BTreeMap<String, u64> {
        let metrics = self.metrics(n).await;
        let mut counted = BTreeMap::new();
        for line in metrics.lines().filter(|line| line.contains("etcdserverpb") || line.contains("v3lockpb"))
        {
            let Some((name, count)) = line.rsplit_once(' ') else { continue };
            let method = name.split("grpc_method=\"").nth(1).and_then(|rest| rest.split('"').next());
            let (Some(method), Ok(count)) = (method, count.parse::<f64>()) else { continue };
            if name.starts_with(of(method)) && count > 0.0 {
                *counted.entry(method.to_owned()).or_default() += count as u64;
            }
        }
        counted
    }

    /// Reads again if the server resets the connection, which it does under load.
    async fn metrics(&self, n: usize) -> String {
        let read = async || {
            let mut connection = TcpStream::connect(&self.members[n].clients).await?;
            connection.write_all(b"GET /metrics HTTP/1.0\r\nHost: localhost\r\n\r\n").await?;
            let mut answer = String::new();
            connection.read_to_string(&mut answer).await?;
            Ok::<_, std::io::Error>(answer)
        };
        let mut failures = 0;
        loop {
            match read().await {
                Ok(answer) => return answer,
                Err(error) if failures == 20 => panic!("etcd's metrics cannot be read: {error}"),
                Err(_) => failures += 1,
            }
        }
    }
}
