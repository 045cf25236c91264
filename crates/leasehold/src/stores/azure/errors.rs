//! Interprets the responses of Azure, and missing responses. This is a pure function, so that tests can cover every
//! case.

use std::fmt;

use super::config::Target;
use crate::error::{ErrorKind, Fault, StoreError};
use crate::stores::over_http::answer::{Answer, Asked, FailedRequest, Failure, SignIn};
use crate::stores::over_http::{Meaning, Operation};

/// A requested operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Requested {
    Object(Operation),
    /// Acquires a lease of a blob.
    Lease,
    /// Renews or ends a lease, or writes under it.
    KeepLease,
}

impl From<Operation> for Requested {
    fn from(operation: Operation) -> Self {
        Self::Object(operation)
    }
}

impl Requested {
    fn changes(self) -> bool {
        match self {
            Self::Object(operation) => operation.changes(),
            Self::Lease | Self::KeepLease => true,
        }
    }

    fn verb(self) -> &'static str {
        match self {
            Self::Object(operation) => operation.verb(),
            Self::Lease | Self::KeepLease => "lease",
        }
    }
}

/// Returns the meaning of `failure` for the `requested` operation on the blob `key`.
pub(super) fn meaning(requested: Requested, key: &str, target: &Target, failure: Failure) -> Meaning {
    let case = Case { requested, key, target };
    let answer = match case.asked().answer(failure) {
        Ok(answer) => answer,
        Err(error) => return Meaning::Failed(error),
    };
    let code = answer.code.as_deref().unwrap_or("");
    match (requested, answer.status, code) {
        (Requested::Object(Operation::Read | Operation::Head), 404, "BlobNotFound")
        | (Requested::Lease | Requested::KeepLease, 404, "BlobNotFound")
        // If the container does not exist, the lease has ended.
        | (Requested::KeepLease, 404, "ContainerNotFound") => Meaning::Absent,
        (Requested::Object(Operation::Replace | Operation::Delete), 404, "BlobNotFound")
        | (Requested::Object(Operation::Create), 409, "BlobAlreadyExists")
        | (
            Requested::Object(Operation::Create | Operation::Replace | Operation::Delete),
            412,
            "ConditionNotMet",
        )
        | (
            Requested::Object(Operation::Head),
            412,
            "LeaseIdMismatchWithBlobOperation" | "LeaseNotPresentWithBlobOperation" | "LeaseLost",
        ) => Meaning::Conflict,
        // Another program has the lease, or there is no lease.
        (Requested::Lease | Requested::KeepLease, 409 | 412, code) if code.starts_with("Lease") => {
            Meaning::Conflict
        }
        _ => Meaning::Failed(case.asked().explained(&answer, case.answered(&answer))),
    }
}

struct Case<'a> {
    requested: Requested,
    key: &'a str,
    target: &'a Target,
}

impl fmt::Display for Case<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Target { account, container, .. } = self.target;
        write!(f, "cannot {} azblob://{account}/{container}/{}", self.requested.verb(), self.key)
    }
}

impl FailedRequest for Case<'_> {
    fn asked(&self) -> Asked<'_> {
        let changes = self.requested.changes();
        Asked { what: self, endpoint: &self.target.base, changes, sign_in: SIGN_IN }
    }
}

impl Case<'_> {
    /// Returns the error for an unsuccessful response.
    fn answered(&self, answer: &Answer) -> StoreError {
        let code = answer.code.as_deref().unwrap_or("");
        match (answer.status, code) {
            // The request exceeds a limit of the account or the partition. Azure refuses it before it begins.
            (503, "ServerBusy") | (429, _) => self.refused(self.busy(answer)),
            (409, "ContainerBeingDeleted" | "ContainerDisabled" | "AccountBeingCreated") => {
                self.refused(self.busy(answer))
            }
            // After a timeout Azure does not report whether the operation continued.
            (408 | 500 | 502..=599, _) => self.unknown(self.busy(answer)),
            (401 | 403, _) if answer.clock_is_off => self.refused(self.clock_is_off(answer)),
            (401 | 403, "AuthenticationFailed" | "InvalidAuthenticationInfo") if answer.signed_before => {
                self.refused(self.expired(answer))
            }
            (401, _) | (403, "AuthenticationFailed" | "NoAuthenticationInformation") => {
                self.refused(self.not_signed_in(answer))
            }
            (403, "AccountIsDisabled" | "KeyBasedAuthenticationNotPermitted") => {
                self.refused(self.fault(ErrorKind::Denied, answer).with_help(
                    "the account is disabled or accepts no keys: check its settings, or sign in with Entra ID \
                     (?credentials=entra)",
                ))
            }
            (403, _) => self.refused(self.denied(answer)),
            (404, _) if !code.is_empty() => self.refused(self.no_container(answer)),
            (409, "BlobImmutableDueToPolicy") => self.refused(self.retained(answer)),
            (412, "LeaseIdMissing" | "LeaseIdMismatchWithBlobOperation" | "LeaseLost") => {
                self.refused(self.leased(answer))
            }
            (200..=299, _) => self.unknown(self.garbled(answer)),
            _ => self.refused(self.unexpected(answer)),
        }
    }

    fn clock_is_off(&self, answer: &Answer) -> Fault {
        self.fault(ErrorKind::Unavailable, answer).with_help(
            "this machine's wall clock is off by more than Azure accepts; the next request is dated by Azure's clock",
        )
    }

    fn expired(&self, answer: &Answer) -> Fault {
        self.fault(ErrorKind::Unavailable, answer).with_help(
            "Azure accepted these credentials before: they have expired or were replaced, and are loaded again",
        )
    }

    fn not_signed_in(&self, answer: &Answer) -> Fault {
        self.fault(ErrorKind::Denied, answer)
            .with_help(format!("Azure does not accept these credentials: {}", SIGN_IN.missing))
    }

    fn denied(&self, answer: &Answer) -> Fault {
        let Target { account, container, .. } = self.target;
        self.fault(ErrorKind::Denied, answer).with_help(format!(
            "allow it: with Entra ID, the role \"Storage Blob Data Contributor\" on the container {container:?} of \
             {account:?}; with a shared access signature, the permissions r, w, d and l (sp=rwdl); and check that \
             the account's firewall admits this machine",
        ))
    }

    fn no_container(&self, answer: &Answer) -> Fault {
        let Target { account, container, .. } = self.target;
        self.fault(ErrorKind::Invalid, answer).with_help(format!(
            "there is no container {container:?} at {}: check the store URL, or create it \
             (az storage container create --account-name {account} --name {container})",
            self.target.base
        ))
    }

    fn retained(&self, answer: &Answer) -> Fault {
        self.fault(ErrorKind::Unsupported, answer).with_help(
            "the container does not allow its blobs to be overwritten (an immutability policy or a legal hold), but \
             every renewal overwrites a lock: use a container without one",
        )
    }

    fn leased(&self, answer: &Answer) -> Fault {
        self.fault(ErrorKind::Unavailable, answer).with_help(
            "another program holds an Azure lease on this blob: end that program, or break the lease (az storage blob \
             lease break); to share locks with such programs, use ?protocol=lease",
        )
    }

    fn garbled(&self, answer: &Answer) -> Fault {
        self.fault(ErrorKind::Unavailable, answer)
            .with_help("the response is not one of Azure Blob Storage's: check the endpoint")
    }

    fn unexpected(&self, answer: &Answer) -> Fault {
        self.fault(ErrorKind::Invalid, answer).with_help(format!(
            "if the response gives no reason: check that {} is an endpoint of Azure Blob Storage",
            self.target.base
        ))
    }
}

const SIGN_IN: SignIn = SignIn {
    missing: "set AZURE_STORAGE_KEY or AZURE_STORAGE_SAS_TOKEN, or name a file in the store URL (?key_file=/path or \
              ?sas_file=/path), or give this machine a managed identity, or run `az login` and write ?credentials=cli",
    refresh: "if this continues: check the identity (managed identity, workload identity, client secret or `az login`)",
};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stores::over_http::answer::tests::answered;

    const ALL: [Operation; 6] = [
        Operation::Read,
        Operation::Head,
        Operation::Create,
        Operation::Replace,
        Operation::Delete,
        Operation::List,
    ];

    fn target() -> Target {
        Target { account: "acct1".into(), container: "locks".into(), base: "https://here".into() }
    }

    #[test]
    fn every_response_has_a_meaning_for_every_operation() {
        let same = |meaning: &'static str| [meaning; 6];
        let maybe = ["not unavailable", "not unavailable", "maybe unavailable", "maybe unavailable"];
        let maybe = [maybe[0], maybe[1], maybe[2], maybe[3], "maybe unavailable", "not unavailable"];
        for (status, code, expected) in [
            (404, "BlobNotFound", ["absent", "absent", "not invalid", "conflict", "conflict", "not invalid"]),
            (404, "ContainerNotFound", same("not invalid")),
            (404, "", same("not invalid")),
            (
                409,
                "BlobAlreadyExists",
                ["not invalid", "not invalid", "conflict", "not invalid", "not invalid", "not invalid"],
            ),
            (
                412,
                "ConditionNotMet",
                ["not invalid", "not invalid", "conflict", "conflict", "conflict", "not invalid"],
            ),
            (412, "", same("not invalid")),
            (412, "LeaseIdMissing", same("not unavailable")),
            (409, "BlobImmutableDueToPolicy", same("not unsupported")),
            (409, "ContainerBeingDeleted", same("not unavailable")),
            (503, "ServerBusy", same("not unavailable")),
            (429, "", same("not unavailable")),
            (503, "", maybe),
            (500, "OperationTimedOut", maybe),
            (500, "InternalError", maybe),
            (502, "", maybe),
            (401, "NoAuthenticationInformation", same("not denied")),
            (403, "AuthenticationFailed", same("not denied")),
            (403, "AuthorizationPermissionMismatch", same("not denied")),
            (403, "", same("not denied")),
            (400, "InvalidHeaderValue", same("not invalid")),
            (301, "", same("not invalid")),
        ] {
            for (operation, expected) in ALL.into_iter().zip(expected) {
                let meaning = meaning(operation.into(), "x.lock", &target(), answered(status, code));
                assert_eq!(meaning.short(), expected, "{status} {code} {operation:?}");
            }
        }
    }

    #[test]
    fn every_response_has_a_meaning_for_leases() {
        let head = Requested::Object(Operation::Head);
        for (requested, status, code, expected) in [
            (Requested::Lease, 404, "BlobNotFound", "absent"),
            (Requested::Lease, 404, "ContainerNotFound", "not invalid"),
            (Requested::Lease, 409, "LeaseAlreadyPresent", "conflict"),
            (Requested::Lease, 409, "LeaseIsBreakingAndCannotBeAcquired", "conflict"),
            (Requested::Lease, 409, "BlobBeingRehydrated", "not invalid"),
            (Requested::KeepLease, 404, "BlobNotFound", "absent"),
            (Requested::KeepLease, 404, "ContainerNotFound", "absent"),
            (Requested::KeepLease, 409, "LeaseIdMismatchWithLeaseOperation", "conflict"),
            (Requested::KeepLease, 409, "LeaseNotPresentWithLeaseOperation", "conflict"),
            (Requested::KeepLease, 409, "LeaseIsBrokenAndCannotBeRenewed", "conflict"),
            (Requested::KeepLease, 412, "LeaseLost", "conflict"),
            (Requested::KeepLease, 412, "LeaseIdMismatchWithBlobOperation", "conflict"),
            (Requested::KeepLease, 503, "ServerBusy", "not unavailable"),
            (Requested::KeepLease, 500, "OperationTimedOut", "maybe unavailable"),
            (Requested::Lease, 500, "InternalError", "maybe unavailable"),
            (head, 412, "LeaseIdMismatchWithBlobOperation", "conflict"),
            (head, 412, "LeaseNotPresentWithBlobOperation", "conflict"),
            (head, 412, "LeaseLost", "conflict"),
        ] {
            let meaning = meaning(requested, "x", &target(), answered(status, code));
            assert_eq!(meaning.short(), expected, "{status} {code} {requested:?}");
        }
    }

    #[test]
    fn every_failure_says_what_to_do() {
        for (status, code, help) in [
            (404, "ContainerNotFound", "az storage container create"),
            (412, "LeaseIdMissing", "lease break"),
            (409, "BlobImmutableDueToPolicy", "without"),
            (403, "AuthenticationFailed", "AZURE_STORAGE_KEY"),
            (403, "AuthorizationPermissionMismatch", "Storage Blob Data Contributor"),
            (403, "KeyBasedAuthenticationNotPermitted", "entra"),
            (400, "X", "endpoint"),
            (204, "", "endpoint"),
        ] {
            let fault =
                meaning(Operation::Replace.into(), "x.lock", &target(), answered(status, code)).fault();
            assert!(fault.help.as_deref().unwrap_or("").contains(help), "{fault:?}");
            assert!(fault.message.contains("azblob://acct1/locks/x.lock"), "{fault:?}");
        }
    }

    #[test]
    fn refused_credentials_are_loaded_again_if_they_were_good() {
        let of = |code: &str, change: fn(&mut Answer)| {
            let mut answer = Answer { status: 403, code: Some(code.to_owned()), ..Answer::default() };
            change(&mut answer);
            meaning(Operation::Replace.into(), "x", &target(), Failure::Answered(answer)).short()
        };
        assert_eq!(of("AuthenticationFailed", |_| ()), "not denied");
        assert_eq!(of("AuthenticationFailed", |answer| answer.signed_before = true), "not unavailable");
        assert_eq!(of("AuthenticationFailed", |answer| answer.clock_is_off = true), "not unavailable");
        // A retry does not restore a missing permission.
        let denied = of("AuthorizationPermissionMismatch", |answer| answer.signed_before = true);
        assert_eq!(denied, "not denied");
    }
}
