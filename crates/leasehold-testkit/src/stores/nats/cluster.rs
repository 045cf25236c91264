//! NATS clusters that a test starts, stops and kills.

use std::process::Stdio;
use std::time::Duration;

use leasehold::clock::{Clock, SystemClock, timeout};
use rustix::process::Signal;
use tempfile::TempDir;
use tokio::process::{Child, Command};

use super::try_ask;
use crate::launch::{free_port, program};
use crate::process::{signal, within};

/// A cluster of three servers on this machine. Its processes are killed when it is dropped.
#[derive(Debug)]
pub struct Cluster {
    folder: TempDir,
    servers: Vec<Server>,
}

#[derive(Debug)]
struct Server {
    clients: u16,
    routes: u16,
    process: Option<Child>,
}

impl Cluster {
    /// Starts the servers. Waits until JetStream serves, without a bucket.
    ///
    /// # Panics
    /// When they do not start.
    pub async fn start() -> Self {
        let port = || free_port().unwrap();
        let servers = (0..3).map(|_| Server { clients: port(), routes: port(), process: None }).collect();
        let mut cluster = Self { folder: tempfile::tempdir().unwrap(), servers };
        (0..3).for_each(|n| cluster.restart(n));
        // Only the leader of the whole cluster responds, as soon as there is one.
        cluster.until("JetStream", "$JS.API.INFO", |answer| answer["error"].is_null()).await;
        cluster
    }

    /// Returns the store URL of a bucket on all servers.
    pub fn url(&self, bucket: &str) -> String {
        let hosts: Vec<_> = (0..3).map(|n| self.address(n)).collect();
        format!("nats://{}/{bucket}", hosts.join(","))
    }

    /// Returns the store URL of a bucket on one server.
    pub fn url_of(&self, n: usize, bucket: &str) -> String {
        format!("nats://{}/{bucket}", self.address(n))
    }

    fn address(&self, n: usize) -> String {
        format!("127.0.0.1:{}", self.servers[n].clients)
    }

    /// Returns the server that leads the stream of `bucket`. Waits until there is one.
    pub async fn leader(&self, bucket: &str) -> usize {
        let subject = format!("$JS.API.STREAM.INFO.KV_{bucket}");
        let info = self.until("a leader", &subject, |info| info["cluster"]["leader"].is_string()).await;
        let name = info["cluster"]["leader"].as_str().unwrap();
        name.trim_start_matches('m').parse().unwrap()
    }

    /// Waits until a server responds that the stream of `bucket` has no leader.
    pub async fn until_leaderless(&self, bucket: &str) {
        let subject = format!("$JS.API.STREAM.INFO.KV_{bucket}");
        let is_leaderless =
            |info: &serde_json::Value| info["config"].is_object() && info["cluster"]["leader"].is_null();
        self.until("a bucket without a leader", &subject, is_leaderless).await;
    }

    /// Asks the servers that run until a response is as expected.
    async fn until(
        &self,
        what: &str,
        subject: &str,
        is_right: impl Fn(&serde_json::Value) -> bool,
    ) -> serde_json::Value {
        within(what, async {
            loop {
                for n in (0..3).filter(|n| self.servers[*n].process.is_some()) {
                    let url = format!("nats://{}", self.address(n));
                    let asked = timeout(&SystemClock, Duration::from_secs(1), try_ask(&url, subject, "", ""));
                    if let Some(Ok(answer)) = asked.await
                        && let Ok(answer) = serde_json::from_str(&answer)
                        && is_right(&answer)
                    {
                        return answer;
                    }
                }
                SystemClock.sleep(Duration::from_millis(50)).await;
            }
        })
        .await
    }

    /// Kills a server with `kill -9`.
    ///
    /// # Panics
    /// When it does not run.
    pub async fn kill(&mut self, n: usize) {
        self.servers[n].process.take().unwrap().kill().await.unwrap();
    }

    /// Stops a server (SIGSTOP), or lets it continue.
    ///
    /// # Panics
    /// When it does not run.
    pub fn pause(&self, n: usize, stop: bool) {
        let process = self.servers[n].process.as_ref().unwrap();
        signal(process, if stop { Signal::STOP } else { Signal::CONT }).unwrap();
    }

    /// Starts a server on its data.
    ///
    /// # Panics
    /// When it cannot be started.
    pub fn restart(&mut self, n: usize) {
        let routes: Vec<_> =
            self.servers.iter().map(|server| format!("nats://127.0.0.1:{}", server.routes)).collect();
        let log = self.folder.path().join(format!("m{n}.log"));
        let log = std::fs::File::options().create(true).append(true).open(log).unwrap();
        let server = &mut self.servers[n];
        let process = Command::new(program("LEASEHOLD_TEST_NATS_SERVER"))
            .args([
                "-a",
                "127.0.0.1",
                "-p",
                &server.clients.to_string(),
                "-n",
                &format!("m{n}"),
                "-js",
                "-sd",
            ])
            .arg(self.folder.path().join(format!("m{n}")))
            .args(["--cluster_name", "test", "--cluster", &routes[n], "--routes", &routes.join(",")])
            .stdin(Stdio::null())
            .stderr(log)
            .kill_on_drop(true)
            .spawn();
        server.process = Some(process.unwrap());
    }
}
