//! etcd: one member that `./test` starts, and clusters that a test starts itself.

pub mod cluster;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use async_trait::async_trait;
use leasehold::LockName;
use leasehold::clock::{Clock, SystemClock};
use tokio::process::Command;

pub use self::cluster::Cluster;
#[cfg(feature = "chaos")]
use crate::chaos::{plan::Kind as Fault, scenario::Scenario};
use crate::conformance::Harness;
use crate::harness::Fresh;
use crate::launch::{Measured, Protocol, options};
use crate::peers::Program;
use crate::process::within;
use crate::servers::{Server, parsed};
use crate::test_store::{Bench, Kind, Reaper, Storage, TestStore};

#[cfg(feature = "chaos")]
mod chaos;

impl Server {
    /// etcd with one member.
    pub const ETCD: Self = Self { variable: "LEASEHOLD_TEST_ETCD" };
}

impl Program {
    /// etcd's server, for clusters that a test starts itself.
    pub const ETCD_SERVER: Self = Self::tool("LEASEHOLD_TEST_ETCD_SERVER");
    /// etcd's command-line client, which has a `lock` command.
    pub const ETCDCTL: Self = Self::tool("LEASEHOLD_TEST_ETCDCTL");
    /// A peer: the mutex of etcd's Go client.
    pub const ETCD_GO: Self = Self::peer("LEASEHOLD_TEST_PEER_ETCD_GO", |url| {
        options(&[("--endpoint", parsed(url).authority().expect("the store URL names a host"))])
    });
}

/// etcd.
#[derive(Debug)]
pub struct Etcd;

#[async_trait]
impl TestStore for Etcd {
    fn name(&self) -> &'static str {
        "etcd"
    }

    fn storages(&self) -> &'static [Storage] {
        const { &[Storage::at("etcd", Server::ETCD, Kind::Shared)] }
    }

    fn harness(&'static self, storage: &'static Storage) -> Box<dyn Harness> {
        Box::new(Fresh::on(self, storage))
    }

    async fn delete_record(&self, url: &str, name: &LockName) {
        let url = parsed(url);
        let prefix = format!("{}/{name}/", url.path().trim_matches('/'));
        etcdctl(url.authority().unwrap(), &["del", "--prefix", &prefix]).await;
    }

    async fn read_record(&self, url: &str, name: &LockName) -> String {
        let url = parsed(url);
        let prefix = format!("{}/{name}/", url.path().trim_matches('/'));
        etcdctl(url.authority().unwrap(), &["get", "--prefix", &prefix]).await
    }

    fn reaper(&self) -> Reaper {
        Reaper::Server
    }

    #[cfg(feature = "chaos")]
    fn scenarios(&self) -> &'static [Scenario] {
        const ALL: &[Scenario] = &[
            Scenario::store(
                "etcd",
                |folder, workers| chaos::start(1, folder, workers),
                &[Fault::StopServer, Fault::KillServer],
            ),
            Scenario {
                ttl: Duration::from_secs(3),
                ..Scenario::store(
                    "etcd-cluster",
                    |folder, workers| chaos::start(3, folder, workers),
                    &[Fault::StopLeader, Fault::KillLeader],
                )
            },
        ];
        ALL
    }

    fn bench(&self) -> Bench {
        Bench {
            title: "etcd (one member)",
            scenarios: "abcdefgij",
            server: Some(|folder: &Path| {
                Box::pin(async move { Ok(Box::new(Cluster::start_below(folder, 1).await) as _) })
            }),
        }
    }
}

#[async_trait]
impl Measured for Cluster {
    fn address(&self) -> &str {
        Cluster::address(self, 0)
    }

    fn url(&self, proxy: &str) -> String {
        format!("etcd://{proxy}/bench/")
    }

    fn options(&self, proxy: &str) -> Vec<String> {
        options(&[("--endpoint", proxy)])
    }

    fn protocol(&self) -> Protocol {
        Protocol::Other
    }

    async fn messages(&self) -> BTreeMap<String, u64> {
        Cluster::messages(self, 0).await
    }

    async fn keep_alive_streams(&self) -> Option<u64> {
        Some(self.calls(0).await.get("LeaseKeepAlive").copied().unwrap_or(0))
    }
}

/// Runs `etcdctl` on `endpoint` and returns its output.
///
/// # Panics
/// When the command fails.
pub async fn etcdctl(endpoint: &str, arguments: &[&str]) -> String {
    try_etcdctl(endpoint, arguments).await.unwrap_or_else(|error| panic!("etcdctl {arguments:?}: {error}"))
}

async fn try_etcdctl(endpoint: &str, arguments: &[&str]) -> Result<String, String> {
    let output = Command::new(Program::ETCDCTL.path())
        // A busy server takes seconds to check a password.
        .args(["--endpoints", endpoint, "--dial-timeout=30s", "--command-timeout=60s"])
        .args(arguments)
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await
        .unwrap();
    if output.status.success() {
        return Ok(String::from_utf8(output.stdout).unwrap());
    }
    Err(String::from_utf8_lossy(&output.stderr).into_owned())
}

/// Waits until `count` keys begin with `prefix`, which means that this many clients hold the lock or wait for it.
pub async fn in_line(endpoint: &str, prefix: &str, count: usize) {
    let standing = async {
        loop {
            let keys = etcdctl(endpoint, &["get", "--prefix", "--keys-only", prefix]).await;
            if keys.lines().filter(|line| !line.is_empty()).count() == count {
                return;
            }
            SystemClock.sleep(Duration::from_millis(50)).await;
        }
    };
    within(&format!("{count} to stand in line"), standing).await;
}
