//! The table of Azure's responses. This is a pure function, so that tests can cover every case.

use super::config::Target;
use crate::stores::over_http::answer::{Asked, Failure, Row, SignIn};
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
    use Operation::{Create, Delete, Head, Read, Replace};
    use Requested::{KeepLease, Lease, Object};
    let Target { account, container, base } = target;
    let what = format!("cannot {} azblob://{account}/{container}/{key}", requested.verb());
    let (product, changes) = ("Azure Blob Storage", requested.changes());
    let asked = Asked { what: &what, endpoint: base, product, changes, sign_in: SIGN_IN };
    asked.meaning(failure, |answer| match (requested, answer.status, answer.code.as_deref().unwrap_or("")) {
        (Object(Read | Head) | Lease | KeepLease, 404, "BlobNotFound")
        // If the container does not exist, the lease has ended.
        | (KeepLease, 404, "ContainerNotFound") => Row::Absent,
        (Object(Replace | Delete), 404, "BlobNotFound")
        | (Object(Create), 409, "BlobAlreadyExists")
        | (Object(Create | Replace | Delete), 412, "ConditionNotMet")
        | (
            Object(Head),
            412,
            "LeaseIdMismatchWithBlobOperation" | "LeaseNotPresentWithBlobOperation" | "LeaseLost",
        ) => Row::Conflict,
        // Another program has the lease, or there is no lease.
        (Lease | KeepLease, 409 | 412, code) if code.starts_with("Lease") => Row::Conflict,
        // The request exceeds a limit of the account or the partition. Azure refuses it before it begins.
        (_, 503, "ServerBusy")
        | (_, 409, "ContainerBeingDeleted" | "ContainerDisabled" | "AccountBeingCreated") => Row::BUSY,
        (_, 401 | 403, _) if answer.clock_is_off => Row::unavailable(
            "this machine's wall clock is off by more than Azure accepts; the next request is dated by Azure's clock",
        ),
        (_, 401 | 403, "AuthenticationFailed" | "InvalidAuthenticationInfo") if answer.signed_before => {
            asked.signed_out(true)
        }
        (_, 401, _) | (_, 403, "AuthenticationFailed" | "NoAuthenticationInformation") => asked.signed_out(false),
        (_, 403, "AccountIsDisabled" | "KeyBasedAuthenticationNotPermitted") => Row::denied(
            "the account is disabled or accepts no keys: check its settings, or sign in with Entra ID \
             (?credentials=entra)",
        ),
        (_, 403, _) => Row::denied(format!(
            "allow it: with Entra ID, the role \"Storage Blob Data Contributor\" on the container {container:?} of \
             {account:?}; with a shared access signature, the permissions r, w, d and l (sp=rwdl); and check that \
             the account's firewall admits this machine",
        )),
        (_, 404, code) if !code.is_empty() => Row::invalid(format!(
            "there is no container {container:?} at {base}: check the store URL, or create it \
             (az storage container create --account-name {account} --name {container})",
        )),
        (_, 409, "BlobImmutableDueToPolicy") => Row::unsupported(
            "the container does not allow its blobs to be overwritten (an immutability policy or a legal hold), but \
             every renewal overwrites a lock: use a container without one",
        ),
        (_, 412, "LeaseIdMissing" | "LeaseIdMismatchWithBlobOperation" | "LeaseLost") => Row::unavailable(
            "another program holds an Azure lease on this blob: end that program, or break the lease (az storage blob \
             lease break); to share locks with such programs, use ?protocol=lease",
        ),
        _ => asked.usual(answer),
    })
}

const SIGN_IN: SignIn = SignIn {
    missing: "set AZURE_STORAGE_KEY or AZURE_STORAGE_SAS_TOKEN, or name a file in the store URL (?key_file=/path or \
              ?sas_file=/path), or give this machine a managed identity, or run `az login` and write ?credentials=cli",
    refresh: "if this continues: check the identity (managed identity, workload identity, client secret or `az login`)",
};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stores::over_http::answer::{Answer, tests::answered};

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
