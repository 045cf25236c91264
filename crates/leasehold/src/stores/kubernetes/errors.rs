//! The table of a Kubernetes API server's responses. [`meaning`] is a pure function, so that tests cover every row.

use super::config::Target;
use crate::stores::over_http::answer::{Asked, Failure, Row, SignIn};
use crate::stores::over_http::{Meaning, Operation};

/// Returns the meaning of `failure` for `operation` on the Lease `name`.
pub(super) fn meaning(operation: Operation, name: &str, target: &Target, failure: Failure) -> Meaning {
    use Operation::{Create, Delete, Read, Replace};
    let Target { namespace, server } = target;
    let what = format!("cannot {} the Lease {namespace}/{name}", operation.verb());
    let (product, changes) = ("a Kubernetes API server", operation.changes());
    let asked = Asked { what: &what, endpoint: server, product, changes, sign_in: SIGN_IN };
    asked.meaning(failure, |answer| match (operation, answer.status, answer.code.as_deref().unwrap_or("")) {
        (Read | Replace | Delete, 404, "NotFound leases") => Row::Absent,
        (Create, 409, "AlreadyExists") | (Replace | Delete, 409, "Conflict") => Row::Conflict,
        (_, 403, _) if answer.message.as_ref().is_some_and(|text| text.contains("being terminated")) => {
            Row::invalid("the namespace is being deleted: use another one")
        }
        (_, 403, _) => Row::denied(format!(
            "allow it by a Role in the namespace {namespace:?}, on leases of coordination.k8s.io: get, create and patch \
             for locks, list for `leasehold ls`, delete for `leasehold sweep`, watch for waiters",
        )),
        (_, 404, "NotFound namespaces") => Row::invalid(format!(
            "create it (kubectl create namespace {namespace}), or check the store URL",
        )),
        (_, 410, _) => Row::unavailable("the listing took too long: start it again"),
        _ => asked.usual(answer),
    })
}

const SIGN_IN: SignIn = SignIn {
    missing: "check the user of the kubeconfig with `kubectl auth whoami`; in a pod, that its service account exists",
    refresh: "if this continues: check the token's file or the plugin with `kubectl auth whoami`",
};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stores::over_http::answer::{Answer, tests::answered};

    const ALL: [Operation; 5] =
        [Operation::Read, Operation::Create, Operation::Replace, Operation::Delete, Operation::List];

    fn target() -> Target {
        Target { namespace: "jobs".into(), server: "https://here".into() }
    }

    #[test]
    fn every_response_has_a_meaning_for_every_operation() {
        let same = |meaning: &'static str| [meaning; 5];
        let maybe = ["not unavailable", "maybe unavailable", "maybe unavailable", "maybe unavailable"];
        let maybe = [maybe[0], maybe[1], maybe[2], maybe[3], "not unavailable"];
        for (status, code, expected) in [
            (404, "NotFound leases", ["absent", "not invalid", "absent", "absent", "not invalid"]),
            (404, "NotFound namespaces", same("not invalid")),
            (404, "", same("not invalid")),
            (409, "AlreadyExists", ["not invalid", "conflict", "not invalid", "not invalid", "not invalid"]),
            (409, "Conflict", ["not invalid", "not invalid", "conflict", "conflict", "not invalid"]),
            (429, "TooManyRequests", same("not unavailable")),
            (410, "Expired", same("not unavailable")),
            (401, "Unauthorized", same("not denied")),
            (403, "Forbidden", same("not denied")),
            (422, "Invalid", same("not invalid")),
            (500, "InternalError", maybe),
            (503, "ServiceUnavailable", maybe),
            (504, "Timeout", maybe),
            (301, "", same("not invalid")),
        ] {
            for (operation, expected) in ALL.into_iter().zip(expected) {
                let meaning = meaning(operation, "x", &target(), answered(status, code));
                assert_eq!(meaning.short(), expected, "{status} {code} {operation:?}");
            }
        }
    }

    #[test]
    fn every_failure_says_what_to_do() {
        for (status, code, help) in [
            (401, "Unauthorized", "whoami"),
            (403, "Forbidden", "get, create and patch"),
            (404, "NotFound namespaces", "kubectl create namespace jobs"),
            (404, "", "API server"),
            (204, "", "endpoint"),
        ] {
            let fault = meaning(Operation::Replace, "x", &target(), answered(status, code)).fault();
            assert!(fault.help.as_deref().unwrap_or("").contains(help), "{fault:?}");
            assert!(fault.message.contains("the Lease jobs/x"), "{fault:?}");
        }
    }

    #[test]
    fn refused_credentials_are_loaded_again_if_they_were_good() {
        let answer = Answer { status: 401, signed_before: true, ..Answer::default() };
        let meaning = meaning(Operation::Replace, "x", &target(), Failure::Answered(answer));
        assert_eq!(meaning.short(), "not unavailable");
    }
}
