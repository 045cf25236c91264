//! The doctor's checks of a namespace: permissions, and writes over an outdated version.

use super::{Kubernetes, Put, wire};
use crate::diagnosis::{CheckStatus, Examined, Finding, RESERVED};
use crate::error::{ErrorKind, Fault, StoreError};
use crate::lease::Id;
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
        if examined.is_sound() && may_delete {
            let name = format!("{RESERVED}{}", Id::random(&self.env.random));
            examined.push(match self.conditions(&name).await {
                Ok(finding) => finding,
                Err(error) => Finding::stopped(CONDITIONS, &error),
            });
        }
        examined
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

    /// Checks that creates, changes and deletes are conditional.
    async fn conditions(&self, object: &str) -> Result<Finding, StoreError> {
        let flaw = |what: &str| {
            Finding::failed(CONDITIONS, what)
                .with_help("two processes could hold one lock: do not use this server for locks")
        };
        let note = |text: &str| serde_json::json!({ "leasehold/doctor": text });
        let Put::Done(first) = self.put(object, None, note("1"), None).await? else {
            return Err(Fault::unavailable(format!("the Lease {object} exists already")).not_applied());
        };
        if !matches!(self.put(object, None, note("2"), None).await?, Put::Conflict) {
            return Ok(flaw("a create replaced a Lease that exists"));
        }
        let of = |lease: &super::Lease| lease.version().as_str().parse().map_err(Fault::not_applied);
        let Put::Done(second) = self.put(object, Some(of(&first)?), note("3"), None).await? else {
            return Ok(flaw("a change at the current version was refused"));
        };
        if first.metadata.resource_version == second.metadata.resource_version {
            return Ok(flaw("a change left the version as it was"));
        }
        if !matches!(self.put(object, Some(of(&first)?), note("4"), None).await?, Put::Conflict) {
            return Ok(flaw("a change at an outdated version was applied"));
        }
        if self.delete(object, &first.version()).await? {
            return Ok(flaw("a delete at an outdated version was applied"));
        }
        if !self.delete(object, &second.version()).await? {
            return Ok(flaw("a delete at the current version was refused"));
        }
        if !matches!(self.put(object, Some(of(&second)?), note("5"), None).await?, Put::Absent) {
            return Ok(flaw("a change created a Lease that was deleted"));
        }
        Ok(Finding::passed(
            CONDITIONS,
            "creates, changes and deletes compare versions; none creates a deleted Lease",
        ))
    }
}

const CONDITIONS: &str = "conditional-writes";

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
