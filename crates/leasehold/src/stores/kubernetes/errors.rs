//! The meaning of a response of a Kubernetes API server, or of a missing response. [`meaning`] is a pure function, so
//! that tests cover every row.

use std::fmt;

use super::config::Target;
use crate::error::{ErrorKind, StoreError};
use crate::stores::over_http::answer::{Answer, Asked, FailedRequest, Failure, SignIn};
use crate::stores::over_http::{Meaning, Operation};

/// Returns the meaning of `failure` for `operation` on the Lease `name`.
pub(super) fn meaning(operation: Operation, name: &str, target: &Target, failure: Failure) -> Meaning {
    let case = Case { operation, name, target };
    let answer = match case.asked().answer(failure) {
        Ok(answer) => answer,
        Err(error) => return Meaning::Failed(error),
    };
    let code = answer.code.as_deref().unwrap_or("");
    match (operation, answer.status, code) {
        (Operation::Read | Operation::Replace | Operation::Delete, 404, "NotFound leases") => Meaning::Absent,
        (Operation::Create, 409, "AlreadyExists")
        | (Operation::Replace | Operation::Delete, 409, "Conflict") => Meaning::Conflict,
        _ => Meaning::Failed(case.asked().explained(&answer, case.answered(&answer))),
    }
}

struct Case<'a> {
    operation: Operation,
    name: &'a str,
    target: &'a Target,
}

impl fmt::Display for Case<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Target { namespace, .. } = self.target;
        write!(f, "cannot {} the Lease {namespace}/{}", self.operation.verb(), self.name)
    }
}

impl FailedRequest for Case<'_> {
    fn asked(&self) -> Asked<'_> {
        let changes = self.operation.changes();
        Asked { what: self, endpoint: &self.target.server, changes, sign_in: SIGN_IN }
    }
}

impl Case<'_> {
    /// Returns the error for an unsuccessful response.
    fn answered(&self, answer: &Answer) -> StoreError {
        let code = answer.code.as_deref().unwrap_or("");
        let fault = |kind| self.fault(kind, answer);
        self.refused(match (answer.status, code) {
            // The change may have reached etcd.
            (408 | 500 | 502..=599, _) => return self.unknown(self.busy(answer)),
            (200..=299, _) => {
                return self.unknown(
                    self.busy(answer)
                        .with_help("the response is not one of a Kubernetes API server: check the endpoint"),
                );
            }
            // The server's flow control refused the request before it began.
            (429, _) => self.busy(answer),
            (401, _) if answer.signed_before => self.busy(answer).with_help(
                "the server accepted these credentials before: they have expired or were replaced, and are loaded again",
            ),
            (401, _) => fault(ErrorKind::Denied)
                .with_help(format!("the server does not accept these credentials: {}", SIGN_IN.missing)),
            (403, _) if answer.message.as_ref().is_some_and(|text| text.contains("being terminated")) => {
                fault(ErrorKind::Invalid).with_help("the namespace is being deleted: use another one")
            }
            (403, _) => fault(ErrorKind::Denied).with_help(format!(
                "allow it by a Role in the namespace {:?}, on leases of coordination.k8s.io: get, create and patch for locks, \
                 list for `leasehold ls`, delete for `leasehold sweep`, watch for waiters",
                self.target.namespace
            )),
            (404, "NotFound namespaces") => fault(ErrorKind::Invalid).with_help(format!(
                "create it (kubectl create namespace {}), or check the store URL",
                self.target.namespace
            )),
            (410, _) => self.busy(answer).with_help("the listing took too long: start it again"),
            _ => fault(ErrorKind::Invalid).with_help(format!(
                "if the response gives no reason: check that {} is a Kubernetes API server of version \
                 1.14 or newer",
                self.target.server
            )),
        })
    }
}

const SIGN_IN: SignIn = SignIn {
    missing: "check the user of the kubeconfig with `kubectl auth whoami`; in a pod, that its service account exists",
    refresh: "if this continues: check the token's file or the plugin with `kubectl auth whoami`",
};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stores::over_http::answer::tests::answered;

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
