//! The doctor's checks of the server and the permissions.

use std::time::Duration;

use super::connect::setting;
use super::errors;
use super::link::Link;
use super::records::RedisRecords;
use super::server::ServerInfo;
use crate::clock::timeout;
use crate::diagnosis::{CheckStatus, Examined, Finding, RESERVED};
use crate::error::{ErrorKind, StoreError};
use crate::lease::{Claim, Holder, Id, Ttl};
use crate::retry::RetryBudget;
use crate::stores::grace;
use crate::types::LockName;

/// The time limit of a single request of these checks.
const SETTING: Duration = Duration::from_secs(2);

impl RedisRecords {
    /// Describes the server and whether it may lose locks.
    pub(super) async fn examined(&self, ttl: Ttl) -> Examined {
        let mut examined = Examined {
            least_permissions: least_permissions(self.shards().location().cluster),
            ..Examined::default()
        };
        let budget = RetryBudget::of_question(&self.env);
        match budget.request(self.examine_server(ttl, &mut examined)).await {
            Ok(()) => {}
            Err(error) if error.fault().kind == ErrorKind::Denied => {
                examined.push(Finding::of_error("permission-server", CheckStatus::Failed, &error));
            }
            Err(error) => examined.push(Finding::stopped("server", &error)),
        }
        examined
    }

    async fn examine_server(&self, ttl: Ttl, examined: &mut Examined) -> Result<(), StoreError> {
        let connector = &self.shards().connector;
        let mut links = Vec::new();
        if self.shards().location().cluster {
            let slots = self.slots(true).await?;
            for host in slots.hosts() {
                links.push(connector.only(&host).connect_to_any(&self.env).await?);
            }
            examined.push(self.cluster(&links, slots.missing()).await);
        } else {
            links.push(connector.connect_to_any(&self.env).await?);
        }
        // Of each check, the worst finding of all shards.
        let mut worst: Vec<Finding> = Vec::new();
        for link in &links {
            for (n, finding) in self.of_primary(link, ttl).await.into_iter().enumerate() {
                match worst.get_mut(n) {
                    None => worst.push(finding),
                    Some(other) if severity(&finding) > severity(other) => *other = finding,
                    Some(_) => {}
                }
            }
        }
        worst.into_iter().for_each(|finding| examined.push(finding));
        examined.push(self.permissions(ttl).await?);
        examined.push(self.messages().await?);
        Ok(())
    }

    /// Describes a primary.
    async fn of_primary(&self, link: &Link, ttl: Ttl) -> [Finding; 4] {
        let (server, location) = (&link.server, self.shards().location());
        let (grace, lease) = (location.failover_grace, ttl.contender_span() + self.margin);
        let (least_replicas, host) = (self.least_replicas(link).await, link.host.to_string());
        let mut findings = [
            primary(server, &host, location.cluster),
            eviction(server),
            failover(server, grace, lease, least_replicas),
            durability(server, grace),
        ];
        if location.cluster {
            findings[1..].iter_mut().for_each(|finding| finding.seen.insert_str(0, &format!("{host}: ")));
        }
        findings
    }

    /// Describes the cluster of these primaries.
    async fn cluster(&self, links: &[Link], missing: usize) -> Finding {
        const CHECK: &str = "cluster";
        if missing > 0 {
            return Finding::failed(CHECK, format!("{missing} of 16384 hash slots have no server"))
                .with_help(errors::FIX);
        }
        for link in links {
            let (mut question, mut connection) = (redis::cmd("CLUSTER"), link.connection.clone());
            let asked = question.arg("INFO").query_async::<String>(&mut connection);
            let info = timeout(&*self.env.clock, SETTING, asked).await;
            if matches!(info, Some(Ok(info)) if info.contains("cluster_state:fail")) {
                return Finding::failed(CHECK, format!("{} reports cluster_state:fail", link.host))
                    .with_help(errors::FIX);
            }
        }
        let Some(alone) = links.iter().find(|link| link.server.replicas == 0) else {
            return Finding::passed(CHECK, format!("{} primaries, each with a replica", links.len()));
        };
        let mut connection = alone.connection.clone();
        let asked = setting::<String>(&mut connection, "cluster-require-full-coverage");
        let stops = match timeout(&*self.env.clock, SETTING, asked).await {
            Some(Ok(Some(value))) if value == "no" => "lock of this shard",
            _ => "lock of any shard (unless cluster-require-full-coverage is no)",
        };
        let what = format!("{} has no replica: while it is down, no {stops} can be acquired", alone.host);
        Finding::warning(CHECK, what).with_help("add a replica to each primary")
    }

    /// Checks whether the user may receive the messages about released locks.
    async fn messages(&self) -> Result<Finding, StoreError> {
        const CHECK: &str = "notifications";
        let location = self.shards().location();
        if !location.notifies {
            return Ok(Finding::passed(CHECK, "notify=off: waiters poll"));
        }
        let channel = location.channel();
        let mut connection = self.shard("").await?.link.connection.clone();
        match timeout(&*self.env.clock, SETTING, connection.subscribe(&channel)).await {
            Some(Ok(())) => Ok(Finding::passed(CHECK, "a release wakes the first waiter at once")),
            Some(Err(error)) if error.code() == Some("NOPERM") => Ok(Finding::warning(
                CHECK,
                "the user may not subscribe: waiters poll, the first one every 0.5 s",
            )
            .with_help("allow the user +subscribe +unsubscribe and the channel, as below")),
            Some(Err(error)) => Err(errors::of_request(&error)),
            None => Ok(Finding::warning(CHECK, "the server did not respond to SUBSCRIBE: waiters poll")),
        }
    }

    /// Checks whether the user may acquire and release locks, with a lock that nothing else uses.
    async fn permissions(&self, ttl: Ttl) -> Result<Finding, StoreError> {
        const CHECK: &str = "permission-commands";
        let name = format!("{RESERVED}{}/permissions", &Id::random(&self.env.random).to_string()[..12]);
        let Ok(name) = LockName::new(name) else { return Ok(Finding::passed(CHECK, "not tried")) };
        let claim = Claim::new(&self.env, name, ttl, Holder::this_process());
        match self.try_all(&claim).await {
            Err(error) if error.fault().kind == ErrorKind::Denied => {
                Ok(Finding::of_error(CHECK, CheckStatus::Failed, &error))
            }
            Err(error) if error.fault().kind != ErrorKind::Invalid => Err(error),
            _ => Ok(Finding::passed(CHECK, "the user may acquire and release locks with this prefix")),
        }
    }

    /// Returns how many replicas must be connected for a write. Returns `None` if the user may not read this setting.
    async fn least_replicas(&self, link: &Link) -> Option<u64> {
        let mut connection = link.connection.clone();
        let asked = setting(&mut connection, "min-replicas-to-write");
        timeout(&*self.env.clock, SETTING, asked).await?.ok()?
    }
}

fn severity(finding: &Finding) -> u8 {
    match finding.verdict {
        CheckStatus::Failed => 2,
        CheckStatus::Warning => 1,
        CheckStatus::Passed | CheckStatus::NotApplicable => 0,
    }
}

fn least_permissions(cluster: bool) -> Vec<String> {
    let (one, many) = ("~locks/* &locks/*", "~locks/* ~{locks/* &locks/*");
    let more = "and +select for a database other than 0";
    [
        "the minimum that leasehold needs (a prefix of `locks/` here):",
        &format!(
            "ACL SETUSER ... on >PASSWORD {} +evalsha +script|load +info +time",
            if cluster { many } else { one }
        ),
        "    +get +set +del +exists +type +pttl +hset +hmget +zadd +zrem +zrangebylex",
        "    +publish +subscribe +unsubscribe",
        if cluster { "    +cluster|slots +cluster|info +asking +scan" } else { more },
    ]
    .map(str::to_owned)
    .to_vec()
}

fn primary(server: &ServerInfo, host: &str, cluster: bool) -> Finding {
    const CHECK: &str = "primary";
    // The check `eviction` reports the policy.
    let suits = ServerInfo { policy: String::new(), ..server.clone() };
    Finding::required(
        CHECK,
        suits.check(host, cluster).map(|()| format!("{host} is a primary, {}", server.product)),
    )
}

fn eviction(server: &ServerInfo) -> Finding {
    const CHECK: &str = "eviction";
    let policy = &server.policy;
    match (server.may_evict(), server.has_memory_limit) {
        (false, _) => Finding::passed(CHECK, "the server deletes no key before it expires"),
        (true, true) => Finding::failed(
            CHECK,
            format!("maxmemory-policy is {policy}: when its memory is full, the server deletes locks"),
        )
        .with_help("set maxmemory-policy to noeviction, or use a server that is not a cache"),
        (true, false) => Finding::warning(
            CHECK,
            format!(
                "maxmemory-policy is {policy}: as soon as maxmemory is set, leasehold refuses the server"
            ),
        )
        .with_help("set maxmemory-policy to noeviction"),
    }
}

fn failover(
    server: &ServerInfo,
    failover_grace: Duration,
    lease: Duration,
    least_replicas: Option<u64>,
) -> Finding {
    const CHECK: &str = "failover";
    let by_token = "or protect the resource with fencing tokens, in a store that survives the failover";
    if failover_grace.is_zero() {
        return Finding::warning(CHECK, "failover_grace is 0: a restart or a promotion can lose the latest grants, and then two processes hold one lock")
            .with_help("leave out failover_grace=0s, or set it above the longest lease")
            .with_help(by_token);
    }
    let lag = if server.replicas == 0 { Duration::ZERO } else { server.lag() };
    if let Err(error) = grace::check(failover_grace, lease, lag) {
        return Finding::of_error(CHECK, CheckStatus::Failed, &error);
    }
    let seconds = failover_grace.as_secs();
    if server.replicas == 0 {
        return Finding::passed(
            CHECK,
            format!("no replica is connected; after a restart no lock is granted for {seconds} s"),
        );
    }
    let replicas = server.replicas;
    let longest = failover_grace.saturating_sub(lag).as_secs();
    match (least_replicas, server.max_lag) {
        (Some(0), _) | (Some(_), None) => Finding::warning(
            CHECK,
            format!("{replicas} replicas, and min-replicas-to-write or min-replicas-max-lag is 0: a primary that is cut off continues to renew leases, while another one is promoted"),
        )
        .with_help("set min-replicas-to-write to 1 and min-replicas-max-lag to 10, and failover_grace above the longest lease and this lag")
        .with_help(by_token),
        (Some(least), Some(lag)) => Finding::passed(
            CHECK,
            format!(
                "{replicas} replicas, min-replicas-to-write is {least} and min-replicas-max-lag {lag}; after a promotion no lock is granted for {seconds} s, which covers leases of up to {longest} s (this one: {:.1} s)",
                lease.as_secs_f64()
            ),
        ),
        (None, _) => Finding::warning(
            CHECK,
            format!("{replicas} replicas, and the user may not read min-replicas-to-write: if it is 0, a primary that is cut off continues to renew leases"),
        )
        .with_help("set min-replicas-to-write to 1, or allow the user +config|get"),
    }
}

fn durability(server: &ServerInfo, grace: Duration) -> Finding {
    const CHECK: &str = "durability";
    if server.has_append_only_file {
        return Finding::passed(
            CHECK,
            "the append-only file is on: a restart of the process keeps the locks",
        );
    }
    if grace.is_zero() {
        return Finding::failed(CHECK, "the append-only file is off and failover_grace is 0: a restart loses the locks, and grants them again at once")
            .with_help("set appendonly to yes, or leave out failover_grace=0s");
    }
    Finding::passed(
        CHECK,
        "the append-only file is off: a restart loses the locks, and failover_grace keeps them from being granted at once",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server() -> ServerInfo {
        ServerInfo {
            product: "Redis 7.0.15".into(),
            version: [7, 0, 15],
            is_primary: true,
            policy: "noeviction".into(),
            has_append_only_file: true,
            ..ServerInfo::default()
        }
    }

    #[test]
    fn unsafe_settings_are_failures_and_doubtful_ones_warnings() {
        use CheckStatus::{Failed, Passed, Warning};
        let (minute, none) = (Duration::from_secs(60), Duration::ZERO);
        // Of the default ttl.
        let lease = Duration::from_millis(35_500);
        let lagging = |max_lag| ServerInfo { replicas: 1, max_lag, ..server() };
        let cache =
            |has_memory_limit| ServerInfo { policy: "allkeys-lru".into(), has_memory_limit, ..server() };
        let volatile = ServerInfo { has_append_only_file: false, ..server() };
        for (finding, verdict) in [
            (primary(&server(), "h", false), Passed),
            (primary(&ServerInfo { is_primary: false, ..server() }, "h", false), Failed),
            (primary(&cache(true), "h", false), Passed),
            (eviction(&server()), Passed),
            (eviction(&cache(false)), Warning),
            (eviction(&cache(true)), Failed),
            (failover(&server(), minute, lease, None), Passed),
            (failover(&server(), none, lease, Some(1)), Warning),
            (failover(&server(), minute, Duration::from_secs(61), None), Failed),
            (failover(&lagging(None), minute, lease, Some(0)), Warning),
            (failover(&lagging(None), minute, lease, Some(1)), Warning),
            (failover(&lagging(Some(60)), minute, lease, Some(1)), Failed),
            (failover(&lagging(Some(23)), minute, lease, Some(1)), Failed),
            (failover(&lagging(Some(22)), minute, lease, Some(1)), Passed),
            (failover(&lagging(None), minute, lease, None), Warning),
            (failover(&lagging(Some(10)), minute, Duration::from_secs(49), Some(1)), Failed),
            (durability(&server(), none), Passed),
            (durability(&volatile, minute), Passed),
            (durability(&volatile, none), Failed),
        ] {
            assert_eq!(finding.verdict, verdict, "{finding:?}");
        }
    }
}
