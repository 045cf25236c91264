//! The properties of a server that its response to INFO reports, and whether locks are safe on such a server.

use std::time::Duration;

use super::errors;
use crate::error::{ErrorKind, Fault};
use crate::lease::printable;

/// The oldest supported version. Older servers do not check min-replicas-to-write for scripts, so a primary that is cut
/// off would renew leases for ever.
const OLDEST: [u32; 3] = [6, 2, 7];

/// The default of `min-replicas-max-lag`, in seconds.
const DEFAULT_LAG: u64 = 10;

/// How much longer than `min-replicas-max-lag` a primary that is cut off accepts writes: it measures the lag in whole
/// seconds, and judges it once a second.
pub(super) const LAG_ROUNDING: Duration = Duration::from_secs(2);

/// The properties that a server reports.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ServerInfo {
    /// Redis or Valkey, with its version.
    pub(super) product: String,
    pub(super) version: [u32; 3],
    pub(super) is_primary: bool,
    pub(super) is_clustered: bool,
    /// Which keys the server deletes when its memory is full: `noeviction` for none.
    pub(super) policy: String,
    pub(super) has_memory_limit: bool,
    pub(super) replicas: u32,
    pub(super) has_append_only_file: bool,
    /// `min-replicas-max-lag`, in seconds. `None` if it was not read, or is 0, and so turned off.
    pub(super) max_lag: Option<u64>,
}

impl ServerInfo {
    pub(super) fn of(info: &str) -> Self {
        let value = |key: &str| {
            let mut lines = info.lines().filter_map(|line| line.split_once(':'));
            lines.find(|(name, _)| *name == key).map_or("", |(_, value)| value.trim())
        };
        let version = value("redis_version");
        let mut numbers = version.split('.').map(|number| number.parse().unwrap_or(0));
        let product = match value("valkey_version") {
            "" => format!("Redis {}", printable(version, 20)),
            version => format!("Valkey {}", printable(version, 20)),
        };
        Self {
            product,
            version: [(); 3].map(|()| numbers.next().unwrap_or(0)),
            is_primary: value("role") == "master",
            is_clustered: value("cluster_enabled") == "1",
            policy: value("maxmemory_policy").to_owned(),
            has_memory_limit: !matches!(value("maxmemory"), "" | "0"),
            replicas: value("connected_slaves").parse().unwrap_or(0),
            has_append_only_file: value("aof_enabled") == "1",
            max_lag: None,
        }
    }

    /// Returns for how long a primary that is cut off from its replicas may continue to grant and renew leases. This is
    /// an estimate for errors before a grant: the scripts refuse leases that would be too long with the actual lag.
    pub(super) fn lag(&self) -> Duration {
        Duration::from_secs(self.max_lag.unwrap_or(DEFAULT_LAG)) + LAG_ROUNDING
    }

    /// Fails if locks are not safe on this server.
    pub(super) fn check(&self, host: &str, cluster: bool) -> Result<(), Fault> {
        if self.is_clustered != cluster {
            return Err(if cluster { errors::no_cluster(host) } else { errors::cluster() });
        }
        if self.version < OLDEST {
            let oldest = OLDEST.map(|number| number.to_string()).join(".");
            let message = format!("{host} is {}, and leasehold needs Redis {oldest} or newer", self.product);
            return Err(Fault::new(ErrorKind::Unsupported, message));
        }
        if !self.is_primary {
            return Err(errors::not_primary(&format!("{host} is a replica")));
        }
        if self.evicts() {
            let message = format!(
                "{host} may delete locks when its memory is full: maxmemory-policy is {}",
                self.policy
            );
            return Err(Fault::new(ErrorKind::Unsupported, message)
                .with_help("set maxmemory-policy to noeviction, or use a server that is not a cache"));
        }
        Ok(())
    }

    /// Returns whether the server deletes keys that have not expired.
    pub(super) fn evicts(&self) -> bool {
        self.has_memory_limit && self.may_evict()
    }

    /// Returns whether the server would delete such keys if it had a memory limit.
    pub(super) fn may_evict(&self) -> bool {
        !matches!(self.policy.as_str(), "noeviction" | "")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INFO: &str = "# Server\r\nredis_version:7.2.4\r\nvalkey_version:8.0.1\r\nmaxmemory:0\r\n\
        maxmemory_policy:allkeys-lru\r\nrole:master\r\nconnected_slaves:2\r\naof_enabled:1\r\ncluster_enabled:0\r\n";

    fn check(change: impl FnOnce(&mut ServerInfo)) -> Result<(), Fault> {
        let mut server = ServerInfo::of(INFO);
        change(&mut server);
        server.check("h:1", false)
    }

    #[test]
    fn a_server_that_may_lose_locks_is_refused() {
        let server = ServerInfo::of(INFO);
        assert_eq!(
            (server.product.as_str(), server.version, server.replicas),
            ("Valkey 8.0.1", [7, 2, 4], 2)
        );
        assert!(server.may_evict() && !server.evicts() && server.has_append_only_file);
        assert!(check(|_| ()).is_ok());
        assert!(check(|server| server.has_memory_limit = true).unwrap_err().message.contains("allkeys-lru"));
        assert_eq!(check(|server| server.is_clustered = true).unwrap_err().kind, ErrorKind::Unsupported);
        assert_eq!(check(|server| server.is_primary = false).unwrap_err().kind, ErrorKind::Unavailable);
        assert_eq!(check(|server| server.version = [6, 2, 6]).unwrap_err().kind, ErrorKind::Unsupported);
        assert!(check(|server| server.version = [6, 2, 7]).is_ok());
        let error = ServerInfo::of(INFO).check("h:1", true).unwrap_err();
        assert!(error.help.unwrap().contains("leave out cluster=on"));
        assert!(ServerInfo::of("").check("h:1", false).is_err());
    }
}
