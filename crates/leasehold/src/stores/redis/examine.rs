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
use crate::stores::hosts::Host;
use crate::types::LockName;

/// The time limit of a single request of these checks.
const SETTING: Duration = Duration::from_secs(2);

impl RedisRecords {
    /// Describes the server and whether it may lose locks.
    pub(super) async fn examined(&self, ttl: Ttl) -> Examined {
        let mut examined = Examined { least_permissions: least_permissions(), ..Examined::default() };
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
        let link = self.shards().connector.connect_to_any(&self.env).await?;
        let (server, grace) = (&link.server, self.shards().location().failover_grace);
        examined.push(primary(server, &link.host, false));
        examined.push(eviction(server));
        let lease = ttl.contender_span() + self.margin;
        examined.push(failover(server, grace, lease, self.least_replicas(&link).await));
        examined.push(durability(server, grace));
        examined.push(self.permissions(ttl).await?);
        examined.push(self.messages().await?);
        Ok(())
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

fn least_permissions() -> Vec<String> {
    [
        "the minimum that leasehold needs (a prefix of `locks/` here):",
        "ACL SETUSER ... on >PASSWORD ~locks/* &locks/* +evalsha +script|load +info +time",
        "    +get +set +del +exists +type +pttl +hset +hmget +zadd +zrem +zrangebylex",
        "    +publish +subscribe +unsubscribe",
        "and +select for a database other than 0",
    ]
    .map(str::to_owned)
    .to_vec()
}

fn primary(server: &ServerInfo, host: &Host, cluster: bool) -> Finding {
    const CHECK: &str = "primary";
    // The check `eviction` reports the policy.
    let suits = ServerInfo { policy: String::new(), ..server.clone() };
    Finding::required(CHECK, suits.check(host, cluster).map(|()| format!("{host} is a primary, {}", server.product)))
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
            version: (7, 0),
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
            (primary(&server(), "h"), Passed),
            (primary(&ServerInfo { is_primary: false, ..server() }, "h"), Failed),
            (primary(&cache(true), "h"), Passed),
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
