//! Redis Clusters of three primaries, which tests, chaos and the benchmark start themselves.

#[cfg(feature = "chaos")]
pub(super) mod chaos;

use std::io;
use std::path::Path;
use std::time::Duration;

use tokio::process::Command;

use super::{RedisServer, answers, redis_cli, tls, within};
use crate::launch::{Launched, Measured, Protocol, free_port, options};

/// How long a member must not respond until another one may take its place.
pub(super) const NODE_TIMEOUT_MS: &str = "1000";

const PRIMARIES: usize = 3;

/// A cluster on this machine. Its servers are killed when it is dropped.
#[derive(Debug)]
pub struct Cluster {
    members: Vec<Launched>,
}

impl Cluster {
    /// Starts a cluster of servers of `kind`, each primary with a replica, with their data below `folder`.
    ///
    /// # Errors
    /// When a server does not start.
    pub async fn start(kind: &'static RedisServer, folder: &Path) -> io::Result<Self> {
        Self::start_with(1, kind, folder).await
    }

    async fn start_with(replicas: usize, kind: &'static RedisServer, folder: &Path) -> io::Result<Self> {
        let mut members = Vec::new();
        for n in 0..PRIMARIES * (1 + replicas) {
            let own = folder.join(format!("member-{n}"));
            std::fs::create_dir_all(&own)?;
            members.push(Launched::start(kind, &own).await?);
        }
        let mut create = Command::new("redis-cli");
        create.args(["--cluster", "create"]).args(members.iter().map(Launched::address));
        create
            .args(["--cluster-replicas", &replicas.to_string(), "--cluster-yes"])
            .args(tls(members[0].url()));
        let output = create.kill_on_drop(true).output().await?;
        if !output.status.success() {
            return Err(io::Error::other(String::from_utf8_lossy(&output.stdout).into_owned()));
        }
        let cluster = Self { members };
        cluster.until_whole().await;
        Ok(cluster)
    }

    /// Waits until all members know each other, and the replicas of primaries that have some, and serve all slots.
    ///
    /// # Panics
    /// When that takes minutes.
    pub async fn until_whole(&self) {
        let known = format!("cluster_known_nodes:{}", self.members.len());
        for member in &self.members {
            answers(member.url(), &["CLUSTER", "INFO"], |info| {
                info.contains("cluster_state:ok") && info.contains(&known)
            })
            .await;
            if self.members.len() == PRIMARIES {
                continue;
            }
            answers(member.url(), &["INFO", "replication"], |info| {
                info.contains("connected_slaves:1") || info.contains("master_link_status:up")
            })
            .await;
        }
    }

    /// Returns the store URL, without a prefix.
    pub fn url(&self) -> String {
        let others: Vec<_> = self.members[1..].iter().map(Launched::address).collect();
        format!("{},{}/?cluster=on", self.members[0].url(), others.join(","))
    }

    /// Returns the members.
    pub fn members(&self) -> &[Launched] {
        &self.members
    }

    /// Returns the slot of `key`.
    ///
    /// # Panics
    /// When no member runs.
    pub async fn slot_of(&self, key: &str) -> u16 {
        for asked in &self.members {
            if let Ok(slot) = redis_cli(asked.url(), &["CLUSTER", "KEYSLOT", key]).await.parse() {
                return slot;
            }
        }
        panic!("no member runs")
    }

    /// Returns the number of the primary that has `key`, and of its replica, according to the first member that runs
    /// and knows them.
    ///
    /// # Panics
    /// When that takes minutes.
    pub async fn pair_of(&self, key: &str) -> (usize, Option<usize>) {
        let slot = self.slot_of(key).await;
        within("a primary", async {
            loop {
                for asked in &self.members {
                    let nodes = redis_cli(asked.url(), &["CLUSTER", "NODES"]).await;
                    if let Some(primary) = self.primary_in(&nodes, slot) {
                        let id = self.id_of(primary).await;
                        let replica = nodes.lines().find(|line| line.contains(&format!(" {id} ")));
                        return (primary, replica.and_then(|line| self.number_in(line)));
                    }
                }
            }
        })
        .await
    }

    fn number_in(&self, line: &str) -> Option<usize> {
        self.members.iter().position(|member| line.contains(&format!("{}@", member.address())))
    }

    fn primary_in(&self, nodes: &str, slot: u16) -> Option<usize> {
        let has = |range: &str| {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            matches!((first.parse(), last.parse()), (Ok(first), Ok(last)) if (first..=last).contains(&slot))
        };
        let line = nodes.lines().find(|line| {
            let words: Vec<_> = line.split(' ').collect();
            words.get(2).is_some_and(|flags| flags.contains("master") && !flags.contains("fail"))
                && words.iter().skip(8).any(|range| has(range))
        })?;
        self.number_in(line)
    }

    /// Returns the id of a member.
    pub async fn id_of(&self, member: usize) -> String {
        redis_cli(self.members[member].url(), &["CLUSTER", "MYID"]).await
    }

    /// Stops a member (SIGSTOP) for `duration`.
    ///
    /// # Errors
    /// When it has no process.
    pub async fn stop(&self, member: usize, duration: Duration) -> io::Result<()> {
        self.members[member].stop(duration).await
    }

    /// Kills a member with `kill -9`, and starts it again on the same data after `duration`.
    ///
    /// # Errors
    /// When it does not start again.
    pub async fn kill(&mut self, member: usize, duration: Duration) -> io::Result<()> {
        self.members[member].kill(duration).await
    }

    /// Kills a member with `kill -9`.
    ///
    /// # Errors
    /// When it has no process.
    pub async fn kill_for_good(&mut self, member: usize) -> io::Result<()> {
        self.members[member].kill_for_good().await
    }

    /// Moves a slot with its keys, one key at a time, as `redis-cli --cluster reshard` does.
    ///
    /// # Panics
    /// When a member refuses.
    pub async fn move_slot(&self, slot: u16, from: usize, to: usize) {
        let slot = slot.to_string();
        self.begin_move(&slot, from, to).await;
        self.move_keys(&slot, from, to).await;
        self.end_move(&slot, to).await;
    }

    /// Marks a slot as moving.
    ///
    /// # Panics
    /// When a member refuses.
    pub async fn begin_move(&self, slot: &str, from: usize, to: usize) {
        let (source, target) = (self.id_of(from).await, self.id_of(to).await);
        self.done(to, &["CLUSTER", "SETSLOT", slot, "IMPORTING", &source]).await;
        self.done(from, &["CLUSTER", "SETSLOT", slot, "MIGRATING", &target]).await;
    }

    /// Moves the keys of a slot.
    ///
    /// # Panics
    /// When a member refuses.
    pub async fn move_keys(&self, slot: &str, from: usize, to: usize) {
        let (host, port) = self.members[to].address().rsplit_once(':').expect("a port");
        loop {
            let keys = redis_cli(self.members[from].url(), &["CLUSTER", "GETKEYSINSLOT", slot, "1"]).await;
            let Some(key) = keys.lines().next().filter(|key| !key.is_empty()) else { return };
            let answer =
                redis_cli(self.members[from].url(), &["MIGRATE", host, port, key, "0", "5000"]).await;
            assert!(["OK", "NOKEY"].contains(&&*answer), "{answer}");
        }
    }

    /// Gives a slot to a member.
    ///
    /// # Panics
    /// When a member refuses.
    pub async fn end_move(&self, slot: &str, to: usize) {
        let target = self.id_of(to).await;
        self.done(to, &["CLUSTER", "SETSLOT", slot, "NODE", &target]).await;
        for member in 0..self.members.len() {
            let role = redis_cli(self.members[member].url(), &["INFO", "replication"]).await;
            if member != to && role.contains("role:master") {
                self.done(member, &["CLUSTER", "SETSLOT", slot, "NODE", &target]).await;
            }
        }
    }

    async fn done(&self, member: usize, command: &[&str]) {
        assert_eq!(redis_cli(self.members[member].url(), command).await, "OK", "{command:?}");
    }
}

/// A cluster without replicas for the benchmark, which sends clients to the ports of proxies.
pub(super) struct Announced {
    cluster: Cluster,
    ports: Vec<u16>,
}

impl Announced {
    pub(super) async fn start(folder: &Path) -> io::Result<Self> {
        let cluster = Cluster::start_with(0, &RedisServer::MEMBER, folder).await?;
        let ports = cluster.members.iter().map(|_| free_port()).collect::<io::Result<Vec<_>>>()?;
        for (member, port) in cluster.members.iter().zip(&ports) {
            let announced = ["CONFIG", "SET", "cluster-announce-port", &port.to_string()];
            answers(member.url(), &announced, |answer| answer == "OK").await;
        }
        for member in &cluster.members {
            let all_named = |slots: &str| ports.iter().all(|port| slots.contains(&format!("\n{port}\n")));
            answers(member.url(), &["CLUSTER", "SLOTS"], all_named).await;
            // The default. A server that the benchmark keeps busy for a second is not replaced.
            let patient = ["CONFIG", "SET", "cluster-node-timeout", "15000"];
            answers(member.url(), &patient, |answer| answer == "OK").await;
        }
        Ok(Self { cluster, ports })
    }
}

impl Measured for Announced {
    fn address(&self) -> &str {
        self.cluster.members[0].address()
    }

    fn members(&self) -> Vec<(String, u16)> {
        let addresses = self.cluster.members.iter().map(|member| member.address().to_owned());
        addresses.zip(self.ports.iter().copied()).collect()
    }

    fn url(&self, proxy: &str) -> String {
        format!("redis://{proxy}/?cluster=on&failover_grace=0s")
    }

    fn options(&self, proxy: &str) -> Vec<String> {
        options(&[("--address", proxy)])
    }

    fn protocol(&self) -> Protocol {
        Protocol::Redis
    }
}
