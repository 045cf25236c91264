//! The doctor's checks of a namespace: permissions, and whether Leases can be proven to have conditional writes.

use async_trait::async_trait;
use bytes::Bytes;

use super::{Kubernetes, Put, revision, wire};
use crate::diagnosis::{CheckStatus, Examined, Finding};
use crate::env::Env;
use crate::error::{ErrorKind, Fault, StoreError};
use crate::proof::cells::{Cells, Profile, Races};
use crate::proof::examine_cells;
use crate::register::{Deleted, Precondition, Version, Write};
use crate::stores::over_http::{Operation, failed};

/// The verbs on Leases that leasehold uses, their purpose, and whether locks need them.
const VERBS: [(&str, &str, bool); 6] = [
    ("get", "locks", true),
    ("create", "locks", true),
    ("patch", "locks", true),
    ("list", "`leasehold ls`", false),
    ("delete", "`leasehold sweep`", false),
    ("watch", "waiters, which poll without it", false),
];

const LEAST: &str = "a Role in the namespace, on leases of coordination.k8s.io: get, create and patch for locks; list for \
                     `leasehold ls`, delete for `leasehold sweep` and this examination, watch for waiters";

impl Kubernetes {
    pub(super) async fn examined(&self) -> Examined {
        let mut examined = Examined { least_permissions: vec![LEAST.to_owned()], ..Examined::default() };
        let (permissions, may_delete) = self.permissions().await;
        examined.push(permissions);
        if may_delete { examine_cells(self, false, examined).await } else { examined }
    }

    /// Asks the server what this user may do. Also returns whether the user may delete the Lease that this examination
    /// creates.
    async fn permissions(&self) -> (Finding, bool) {
        const CHECK: &str = "permissions";
        let mut missing = Vec::new();
        for (verb, _, _) in VERBS {
            let asked = self.ask(Operation::Read, "", wire::may(&self.target.namespace, verb)).await;
            match asked.map_err(failed).map(|body| wire::is_allowed(&body)) {
                Ok(Some(true)) => {}
                Ok(Some(false)) => missing.push(verb),
                Ok(None) => {
                    let answer = "not checked: the server's response is not a SelfSubjectAccessReview";
                    return (Finding::not_applicable(CHECK, answer), false);
                }
                Err(error) if error.fault().kind == ErrorKind::Denied => {
                    let seen = "not checked: this user may not create a SelfSubjectAccessReview";
                    return (Finding::not_applicable(CHECK, seen), false);
                }
                Err(error) => return (Finding::stopped(CHECK, &error), false),
            }
        }
        (judge(CHECK, &self.target.namespace, &missing), !missing.contains(&"delete"))
    }
}

/// Kubernetes itself depends on the API server comparing versions, so there are no races.
const PROFILE: Profile = Profile {
    cell: "Lease",
    absent: "a create",
    current: "resourceVersion",
    delete: "resourceVersion",
    instead: "do not use this server for locks",
    trusted: true,
    permissions: false,
    doctor: Races::NONE,
    ..Profile::REGISTER
};

#[async_trait]
impl Cells for Kubernetes {
    async fn read(&self, key: &str) -> Result<Option<(Bytes, Version)>, StoreError> {
        let lease = self.read_lease(object(key)).await?;
        Ok(lease.map(|lease| (Bytes::new(), lease.version())))
    }

    async fn write(&self, key: &str, expect: Precondition<'_>, bytes: Bytes) -> Result<Write, StoreError> {
        let note = serde_json::json!({ "leasehold/doctor": String::from_utf8_lossy(&bytes) });
        let revision = revision(expect).map_err(Fault::not_applied)?;
        Ok(match self.put(object(key), revision, note, None).await? {
            Put::Done(lease) => Write::Committed(lease.version()),
            Put::Conflict | Put::Absent => Write::Conflict,
        })
    }

    async fn delete(&self, key: &str, version: &Version) -> Result<Deleted, StoreError> {
        let deleted = self.delete(object(key), version).await?;
        Ok(if deleted { Deleted::Deleted } else { Deleted::Conflict })
    }

    fn env(&self) -> &Env {
        &self.env
    }

    fn profile(&self) -> Profile {
        PROFILE
    }
}

/// Returns the name of a Lease, which cannot begin with a period.
fn object(key: &str) -> &str {
    key.trim_start_matches('.')
}

fn judge(check: &'static str, namespace: &str, missing: &[&str]) -> Finding {
    let lacks = |needed: bool| {
        let lacking = VERBS.iter().filter(move |(verb, _, locks)| *locks == needed && missing.contains(verb));
        lacking.map(|(verb, what, _)| format!("{verb} ({what})")).collect::<Vec<_>>().join(", ")
    };
    let (needed, useful) = (lacks(true), lacks(false));
    let help = "grant it by a Role and a RoleBinding: docs/stores/kubernetes.md has them";
    if !needed.is_empty() {
        return Finding::failed(check, format!("this user may not, with leases in {namespace:?}: {needed}"))
            .with_help(help);
    }
    if !useful.is_empty() {
        let seen = format!("locks work; this user may not, with leases in {namespace:?}: {useful}");
        return Finding::new(check, CheckStatus::Warning, seen).with_help(help);
    }
    Finding::passed(check, format!("this user may do all that leasehold does with leases in {namespace:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_permissions_are_named_with_what_needs_them() {
        let of = |missing: &[&str]| judge("permissions", "jobs", missing);
        assert_eq!(of(&[]).verdict, CheckStatus::Passed);
        let warned = of(&["list", "watch"]);
        assert_eq!(warned.verdict, CheckStatus::Warning);
        assert!(warned.seen.contains("list (`leasehold ls`)"), "{warned:?}");
        let failed = of(&["patch", "list"]);
        assert_eq!(failed.verdict, CheckStatus::Failed);
        assert!(failed.seen.contains("patch (locks)") && !failed.seen.contains("list"), "{failed:?}");
    }
}
