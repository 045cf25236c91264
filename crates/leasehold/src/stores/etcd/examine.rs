//! The doctor's checks of a cluster: the members that respond, the permissions of the user, and the minimum ttl.

use std::time::Duration;

use futures_util::future::join_all;

use super::errors::{Effect, EtcdError};
use super::keys::Keyspace;
use super::leases::EtcdLeases;
use super::requests;
use super::session::limited;
use super::wire::{StatusResponse, TxnRequest};
use crate::clock::timeout;
use crate::diagnosis::{Examined, Finding};
use crate::error::StoreError;
use crate::lease::Id;
use crate::retry::{RetryBudget, retry};

/// The shortest ttl: 1.5 election timeouts of one second, rounded up.
const LEAST_TTL: (Duration, &str) = (
    Duration::from_secs(2),
    "etcd grants leases in whole seconds, of at least 2 s, and extends shorter ones",
);

/// The time limit for a member to report its status.
const LIMIT: Duration = Duration::from_secs(3);

/// The oldest supported version.
const OLDEST: (u32, u32) = (3, 4);

impl EtcdLeases {
    pub(super) async fn examined(&self) -> Examined {
        let mut examined = Examined {
            least_ttl: Some(LEAST_TTL),
            least_permissions: self.least_permissions(),
            ..Examined::default()
        };
        examined.push(Finding::asked(
            "permission-read",
            "the keys below the prefix can be read",
            self.may_read().await,
        ));
        let mut left = Vec::new();
        examined.push(Finding::asked(
            "permission-write",
            "keys can be written and deleted",
            self.may_write(&mut left).await,
        ));
        examined.left = left;
        let members = join_all((0..self.client.members()).map(|member| async move {
            let asked = timeout(&*self.env.clock, LIMIT, self.client.status(member)).await;
            (
                self.client.address(member),
                asked.unwrap_or_else(|| Err(format!("no response within {LIMIT:?}"))),
            )
        }));
        let members = members.await;
        let told: Vec<_> = members.iter().filter_map(|(_, status)| status.as_ref().ok()).collect();
        let known = self.client.cluster_size().await;
        examined.push(answering(&members, known));
        examined.push(versions(&told));
        examined.push(alarms(&told));
        examined
    }

    fn least_permissions(&self) -> Vec<String> {
        let prefix = String::from_utf8_lossy(&self.keys.of_locks("").key).into_owned();
        vec![
            "the minimum that leasehold needs:".to_owned(),
            format!("etcdctl role grant-permission ROLE readwrite {prefix} --prefix=true"),
        ]
    }

    async fn may_read(&self) -> Result<(), StoreError> {
        let budget = RetryBudget::of_question(&self.env);
        let Keyspace { key, end } = self.keys.of_locks("");
        let page = requests::page(key, end, 1, 0);
        let ask = || async {
            let page = page.clone();
            limited(&budget, Effect::None, self.client.range(page))
                .await
                .map(|_| ())
                .map_err(EtcdError::into_store_error)
        };
        retry(&self.env, ask).await
    }

    /// Writes and removes a key that belongs to no lock.
    async fn may_write(&self, left: &mut Vec<String>) -> Result<(), StoreError> {
        let key = self.keys.mark(Id::random(&self.env.random));
        let written = self.asked_to(&requests::rewrite(&key, 0, b"leasehold doctor", 0)).await;
        // Removes the key even after a failure, because a write that got no response may have been applied.
        let removed = self.asked_to(&requests::remove(&key)).await;
        let untouched = matches!(&written, Err(StoreError::NotApplied(_)));
        if removed.is_err() && !untouched {
            left.push(String::from_utf8_lossy(&key).into_owned());
        }
        written.and(removed)
    }

    /// Sends an idempotent request, with retries.
    async fn asked_to(&self, request: &TxnRequest) -> Result<(), StoreError> {
        let budget = RetryBudget::of_question(&self.env);
        let ask = || async {
            limited(&budget, Effect::Writes, self.client.txn(Effect::Writes, request))
                .await
                .map(|_| ())
                .map_err(EtcdError::into_store_error)
        };
        retry(&self.env, ask).await
    }
}

/// Checks whether the members that the URL names respond, and whether it names all members.
fn answering(members: &[(&str, Result<StatusResponse, String>)], known: Option<usize>) -> Finding {
    const CHECK: &str = "members";
    let silent: Vec<_> = members
        .iter()
        .filter_map(|(address, status)| Some(format!("{address}: {}", status.as_ref().err()?)))
        .collect();
    let named = members.len();
    if !silent.is_empty() {
        return Finding::warning(
            CHECK,
            format!(
                "of {named} members that the URL names, {} do not report their status: {}",
                silent.len(),
                silent.join("; ")
            ),
        )
        .with_help("locks work as long as a majority does");
    }
    match known {
        Some(known) if known > named => {
            Finding::warning(CHECK, format!("the URL names {named} of {known} members")).with_help(
                "name them all in the store URL: otherwise locks are unavailable while these members are down, even \
                 if the cluster is up",
            )
        }
        Some(1) => Finding::passed(CHECK, "it responds; it is the only member: while it is down, locks are \
            unavailable"),
        _ => Finding::passed(CHECK, format!("all {named} that the URL names respond")),
    }
}

fn versions(members: &[&StatusResponse]) -> Finding {
    const CHECK: &str = "version";
    let mut versions: Vec<_> = members.iter().map(|member| member.version.clone()).collect();
    versions.sort();
    versions.dedup();
    let shown = versions.join(", ");
    match versions.iter().find(|version| !is_new_enough(version)) {
        _ if versions.is_empty() => Finding::not_applicable(CHECK, "no member reported it"),
        None => Finding::passed(CHECK, shown),
        Some(_) => Finding::failed(CHECK, shown).with_help("leasehold needs etcd 3.4 or later"),
    }
}

fn is_new_enough(version: &str) -> bool {
    let mut numbers = version.split('.').map(|number| number.parse::<u32>().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) >= OLDEST
}

/// Checks for alarms. A member with an alarm accepts no writes, or its data differs from that of other members.
fn alarms(members: &[&StatusResponse]) -> Finding {
    const CHECK: &str = "alarms";
    let leaderless = members.iter().filter(|member| member.leader == 0).count();
    let errors: Vec<_> = members.iter().flat_map(|member| member.errors.iter().cloned()).collect();
    let asked = members.len();
    if let Some(alarm) = errors.iter().find(|error| error.contains("NOSPACE") || error.contains("CORRUPT")) {
        return Finding::failed(CHECK, alarm.clone()).with_help(
            "check the alarms: etcdctl alarm list; for a full database, run etcdctl compact, defrag, alarm disarm",
        );
    }
    // A member that is cut off reports that it has no leader. The others continue without it.
    if leaderless > 0 && 2 * leaderless <= asked {
        return Finding::warning(CHECK, format!("{leaderless} of {asked} members have no leader"))
            .with_help("locks work as long as a majority does: etcdctl endpoint status --cluster");
    }
    if leaderless > 0 {
        return Finding::failed(CHECK, format!("{leaderless} of the members have no leader")).with_help(
            "a majority of the members must be up and connected: etcdctl endpoint status --cluster",
        );
    }
    if errors.is_empty() {
        return Finding::passed(CHECK, "none, and every member follows a leader");
    }
    Finding::warning(CHECK, errors.join("; "))
        .with_help("check the members: etcdctl endpoint status --cluster")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diagnosis::CheckStatus;

    fn member(version: &str, leader: u64, errors: &[&str]) -> StatusResponse {
        let errors = errors.iter().map(|error| (*error).to_owned()).collect();
        StatusResponse { version: version.into(), leader, errors }
    }

    #[test]
    fn old_versions_are_refused() {
        for (version, verdict) in [
            ("3.3.27", CheckStatus::Failed),
            ("3.4.0", CheckStatus::Passed),
            ("3.10.1", CheckStatus::Passed),
            ("4.0.0", CheckStatus::Passed),
            ("", CheckStatus::Failed),
        ] {
            assert_eq!(versions(&[&member(version, 1, &[])]).verdict, verdict, "{version}");
        }
        assert_eq!(versions(&[]).verdict, CheckStatus::NotApplicable);
    }

    #[test]
    fn silent_leaderless_and_alarmed_members_are_reported() {
        let well = || Ok(member("3.7.3", 1, &[]));
        assert_eq!(answering(&[("a:1", well())], Some(1)).verdict, CheckStatus::Passed);
        assert_eq!(answering(&[("a:1", well())], Some(3)).verdict, CheckStatus::Warning);
        let silent = answering(&[("a:1", well()), ("b:2", Err("refused".into()))], Some(2));
        assert!(silent.verdict == CheckStatus::Warning && silent.seen.contains("b:2: refused"), "{silent:?}");
        assert_eq!(alarms(&[&member("3.7.3", 1, &[])]).verdict, CheckStatus::Passed);
        let (well, alone) = (member("3.7.3", 1, &[]), member("3.7.3", 0, &["etcdserver: no leader"]));
        for (members, verdict) in [
            (vec![&alone], CheckStatus::Failed),
            (vec![&well, &alone], CheckStatus::Warning),
            (vec![&well, &alone, &well], CheckStatus::Warning),
            (vec![&well, &alone, &alone], CheckStatus::Failed),
        ] {
            assert_eq!(alarms(&members).verdict, verdict, "{members:?}");
        }
        assert_eq!(alarms(&[&member("3.7.3", 1, &["alarm:NOSPACE"])]).verdict, CheckStatus::Failed);
    }
}
