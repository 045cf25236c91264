//! Redis and Valkey: the servers that `./test` starts, with a prefix for each test, and servers that a test starts
//! itself.

mod cluster;
#[cfg(feature = "chaos")]
mod sentinel;

use std::io;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use async_trait::async_trait;
pub use cluster::Cluster;
use leasehold::LockName;
use leasehold::clock::{Clock, SystemClock};
use tokio::process::Command;

#[cfg(feature = "chaos")]
use crate::chaos::{
    plan::Kind as Fault,
    scenario::{Clocks, LOSES_WRITES, Language, Scenario},
    servers::Wired,
};
use crate::conformance::Harness;
use crate::harness::Fresh;
use crate::launch::{Launch, Launched, Measured, Protocol, options, program};
use crate::peers::Program;
use crate::process::within;
use crate::servers::{Server, parsed, unique, with_option};
use crate::test_store::{Bench, Kind, Reaper, Storage, TestStore};

impl Server {
    /// Redis.
    pub const REDIS: Self = Self { variable: "LEASEHOLD_TEST_REDIS" };
    /// Valkey.
    pub const VALKEY: Self = Self { variable: "LEASEHOLD_TEST_VALKEY" };
    /// A Redis Cluster of three primaries with a replica each.
    pub const REDIS_CLUSTER: Self = Self { variable: "LEASEHOLD_TEST_REDIS_CLUSTER" };
}

impl Program {
    /// A peer: `Lock` of redis-py.
    pub const REDIS_PY: Self = Self::peer("LEASEHOLD_TEST_PEER_REDIS_PY", address);
    /// A peer: redsync, in Go, with one server.
    pub const REDSYNC: Self = Self::peer("LEASEHOLD_TEST_PEER_REDSYNC", address);
    /// A peer: node-redlock, with one server.
    pub const REDLOCK_NODE: Self = Self::peer("LEASEHOLD_TEST_PEER_REDLOCK_NODE", address);
    /// A peer: Redisson, in Java, whose locks are hashes.
    pub const REDISSON: Self = Self::peer("LEASEHOLD_TEST_PEER_REDISSON", address);
}

fn address(url: &str) -> Vec<String> {
    options(&[("--address", parsed(url).authority().expect("a host"))])
}

/// Redis and Valkey.
#[derive(Debug)]
pub struct Redis;

#[async_trait]
impl TestStore for Redis {
    fn name(&self) -> &'static str {
        "redis"
    }

    fn storages(&self) -> &'static [Storage] {
        const {
            &[
                Storage::at("redis", Server::REDIS, Kind::Shared),
                Storage::at("redis_valkey", Server::VALKEY, Kind::Alone),
                Storage::at("redis_cluster", Server::REDIS_CLUSTER, Kind::Shared),
            ]
        }
    }

    fn fresh_url(&self, storage: &Storage, _folder: &Path) -> String {
        let server = storage.server.expect("storage on a server").url();
        with_option(&server, &format!("prefix={}/", unique()))
    }

    fn harness(&'static self, storage: &'static Storage) -> Box<dyn Harness> {
        Box::new(Fresh::on(self, storage))
    }

    async fn delete_record(&self, url: &str, name: &LockName) {
        let key = key(url, name.as_str());
        let record = record(url, &key);
        assert!(["1", "2"].contains(&&*redis_cli(url, &["DEL", &key, &record]).await));
    }

    async fn read_record(&self, url: &str, name: &LockName) -> String {
        let key = key(url, name.as_str());
        let record = redis_cli(url, &["HGETALL", &record(url, &key)]).await;
        format!("{} {record}", redis_cli(url, &["GET", &key]).await)
    }

    fn reaper(&self) -> Reaper {
        Reaper::StoreClock
    }

    #[cfg(feature = "chaos")]
    fn scenarios(&self) -> &'static [Scenario] {
        // A margin is only needed if the server's clock is set, and no test sets this clock.
        const FAULTS: &[Fault] = &[Fault::StopServer, Fault::KillServer];
        const REDIS: Scenario = Scenario {
            options: "margin=0s&failover_grace=0s",
            ..Scenario::store(
                "redis",
                |folder, workers| Wired::start(&RedisServer::KEEPING, folder, workers),
                FAULTS,
            )
        };
        // A promotion, the grace of 15 s, and some grants. Without this rest, each promotion came within the grace of the
        // one before, and nothing was granted until the faults were over.
        const REST: Duration = Duration::from_secs(25);
        // A process and its agent run on one machine, so they have the same boot clock.
        const CLIENTS: Scenario = Scenario { clocks: Clocks::WallOnly, ..REDIS };
        const ALL: &[Scenario] = &[
            REDIS,
            Scenario { name: "python", language: Language::Python, ..CLIENTS },
            Scenario { name: "node", language: Language::Node, ..CLIENTS },
            Scenario {
                options: "margin=0s&failover_grace=3s",
                promises: LOSES_WRITES,
                ..Scenario::store(
                    "redis-forgetting",
                    |folder, workers| Wired::start(&RedisServer::FORGETTING, folder, workers),
                    FAULTS,
                )
            },
            Scenario {
                options: "margin=0s&failover_grace=15s",
                rest: REST,
                promises: LOSES_WRITES,
                ..Scenario::store("redis-cluster", cluster::chaos::start, FAULTS)
            },
            // Twelve seconds of the grace period are for a primary that was stopped. It renews leases until it notices
            // that it was replaced.
            Scenario {
                options: "margin=0s&failover_grace=15s",
                rest: REST,
                promises: LOSES_WRITES,
                ..Scenario::store("redis-sentinel", sentinel::start, FAULTS)
            },
        ];
        ALL
    }

    fn bench(&self) -> Bench {
        Bench {
            title: "Redis",
            scenarios: "abcdefij",
            server: Some(|folder: &Path| {
                Box::pin(async move {
                    let server = Launched::start(&RedisServer::KEEPING, folder).await?;
                    Ok(Box::new(Direct(server)) as _)
                })
            }),
        }
    }

    fn other_benches(&self) -> &'static [(&'static str, Bench)] {
        const CLUSTER: Bench = Bench {
            title: "Redis Cluster",
            scenarios: "abcdfj",
            server: Some(|folder: &Path| {
                Box::pin(async move { Ok(Box::new(cluster::Announced::start(folder).await?) as _) })
            }),
        };
        &[("redis-cluster", CLUSTER)]
    }
}

/// Returns the key of the lock `name` in the store at `url`.
pub fn key(url: &str, name: &str) -> String {
    format!("{}{name}", parsed(url).option("prefix").unwrap_or_default())
}

/// Returns the key of the record of the lock whose string is `key`.
pub fn record(url: &str, key: &str) -> String {
    if is_cluster(url) { format!("{{{key}}}//leasehold") } else { format!("{key}//leasehold") }
}

fn is_cluster(url: &str) -> bool {
    url.contains("cluster=on")
}

/// Returns the options with which `redis-cli` connects to the server of `url`, whatever certificate it has.
fn tls(url: &str) -> &'static [&'static str] {
    if url.starts_with("rediss:") { &["--tls", "--insecure"] } else { &[] }
}

/// Runs a command on the server of `url` with `redis-cli` and returns its output. In a cluster, runs it on the server
/// that has the key.
///
/// # Panics
/// When `redis-cli` cannot be run.
pub async fn redis_cli(url: &str, command: &[&str]) -> String {
    let server = parsed(url);
    let host = server.authority().and_then(|hosts| hosts.split(',').next());
    let (host, port) = host.and_then(|host| host.rsplit_once(':')).expect("a host and a port");
    let output = Command::new("redis-cli")
        .args(["-h", host, "-p", port, "--raw"])
        .args(tls(url))
        .args(is_cluster(url).then_some("-c"))
        .args(command)
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await
        .expect("redis-cli is there");
    String::from_utf8(output.stdout).unwrap().trim_end().to_owned()
}

/// Sends `command` to the server of `url` until the response is as expected.
///
/// # Panics
/// When it never is.
pub async fn answers(url: &str, command: &[&str], is_right: impl Fn(&str) -> bool) {
    within(&format!("the right response of Redis to {command:?}"), async {
        while !is_right(&redis_cli(url, command).await) {
            SystemClock.sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
}

/// Makes the server of `url` a replica of the server at `primary` (`HOST:PORT`), or, without one, a primary. Waits while
/// the server loads its data after a start, because it refuses the command until then.
///
/// # Panics
/// When the server does not accept the command.
pub async fn replicate(url: &str, primary: Option<&str>) {
    let (host, port) =
        primary.map_or(("NO", "ONE"), |address| address.rsplit_once(':').expect("a host and a port"));
    answers(url, &["REPLICAOF", host, port], |answer| answer.starts_with("OK")).await;
}

/// A server that a test starts itself.
#[derive(Debug)]
pub struct RedisServer {
    /// When writes to the append-only file reach the disk. `None` if there is no file; the server then loses its data
    /// when it is killed.
    append: Option<&'static str>,
    /// Whether it can be a member of a cluster.
    clustered: bool,
    /// Whether it speaks TLS alone, also to other servers. Its certificate is in the folder above the one with its data:
    /// `server.pem`, `server.key` and `ca.pem`.
    encrypted: bool,
}

impl RedisServer {
    /// A server that keeps its data when it is killed.
    pub const KEEPING: Self = Self { append: Some("always"), clustered: false, encrypted: false };
    /// A server that loses its data when it is killed.
    pub const FORGETTING: Self = Self { append: None, ..Self::KEEPING };
    /// A server that may respond before its data is on the disk, as servers do by default.
    pub const EVERY_SECOND: Self = Self { append: Some("everysec"), ..Self::KEEPING };
    /// A member of a cluster that keeps its data when it is killed.
    pub const MEMBER: Self = Self { clustered: true, ..Self::KEEPING };
    /// Such a member with TLS.
    pub const ENCRYPTED_MEMBER: Self = Self { encrypted: true, ..Self::MEMBER };

    fn scheme(&self) -> &'static str {
        if self.encrypted { "rediss" } else { "redis" }
    }
}

#[async_trait]
impl Launch for RedisServer {
    fn command(&self, address: &str, folder: &Path) -> Command {
        let (host, port) = address.rsplit_once(':').expect("a host and a port");
        let mut command = Command::new(program("LEASEHOLD_TEST_REDIS_SERVER"));
        command.args(["--bind", host, "--save", ""]).arg("--dir").arg(folder);
        if self.encrypted {
            command.args(["--port", "0", "--tls-port", port, "--tls-auth-clients", "no"]);
            command.args(["--tls-cluster", "yes", "--tls-replication", "yes"]);
            for (option, file) in [
                ("--tls-cert-file", "server.pem"),
                ("--tls-key-file", "server.key"),
                ("--tls-ca-cert-file", "ca.pem"),
            ] {
                command.arg(option).arg(folder.with_file_name(file));
            }
        } else {
            command.args(["--port", port]);
        }
        let only = if self.append.is_some() { "yes" } else { "no" };
        command.args(["--appendonly", only, "--appendfsync", self.append.unwrap_or("no")]);
        if self.clustered {
            // Below the ports of servers.
            let bus = port.parse::<u16>().expect("a port") - 10_000;
            command.args(["--cluster-enabled", "yes", "--cluster-node-timeout", cluster::NODE_TIMEOUT_MS]);
            command.args(["--cluster-port", &bus.to_string()]);
        }
        command
    }

    async fn make_store(&self, address: &str) -> io::Result<String> {
        let url = format!("{}://{address}", self.scheme());
        match redis_cli(&url, &["PING"]).await.as_str() {
            "PONG" => Ok(url),
            other => Err(io::Error::other(format!("Redis is not ready: {other}"))),
        }
    }

    fn options(&self, address: &str) -> Vec<String> {
        options(&[("--address", address)])
    }
}

/// A server that does not speak HTTP.
struct Direct(Launched);

impl Measured for Direct {
    fn address(&self) -> &str {
        self.0.address()
    }

    fn url(&self, proxy: &str) -> String {
        format!("redis://{proxy}?failover_grace=0s")
    }

    fn options(&self, proxy: &str) -> Vec<String> {
        options(&[("--address", proxy)])
    }

    fn protocol(&self) -> Protocol {
        Protocol::Redis
    }
}
