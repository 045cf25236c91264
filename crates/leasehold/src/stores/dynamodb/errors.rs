//! The table of DynamoDB's responses. This is a pure function, so that tests can cover every case.

use super::config::Target;
use crate::stores::aws::sign_in::{SIGN_IN, credentials_help, credentials_refused};
use crate::stores::over_http::Meaning;
use crate::stores::over_http::answer::{Asked, Failure, Row};

/// A requested operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    Read,
    /// A conditional write.
    Write,
    /// A conditional delete.
    Delete,
    List,
    DescribeTable,
    CreateTable,
    /// Switches point-in-time recovery on.
    EnableRecovery,
}

impl Operation {
    /// Whether the operation can change a lock or the table.
    fn changes(self) -> bool {
        matches!(self, Self::Write | Self::Delete | Self::CreateTable | Self::EnableRecovery)
    }

    /// Returns what the operation does, and the permission that it needs.
    fn words(self) -> (&'static str, &'static str) {
        match self {
            Self::Read => ("read", "dynamodb:GetItem"),
            Self::Write => ("write", "dynamodb:UpdateItem"),
            Self::Delete => ("delete", "dynamodb:DeleteItem"),
            Self::List => ("list", "dynamodb:Scan"),
            Self::DescribeTable => ("describe", "dynamodb:DescribeTable"),
            Self::CreateTable => ("create", "dynamodb:CreateTable (with tags, dynamodb:TagResource too)"),
            Self::EnableRecovery => {
                ("switch on point-in-time recovery of", "dynamodb:UpdateContinuousBackups")
            }
        }
    }
}

/// Returns the meaning of `failure` for `operation` on the item `key` (empty for the whole table). A table that does not
/// exist is absent for `DescribeTable`, and one that exists, or is being created or deleted, is a conflict for
/// `CreateTable`.
pub(super) fn meaning(operation: Operation, key: &str, target: &Target, failure: Failure) -> Meaning {
    use Operation::{CreateTable, Delete, DescribeTable, Write};
    let ((verb, permission), table, endpoint) = (operation.words(), &target.table, target.endpoint());
    let slash = if key.is_empty() { "" } else { "/" };
    let what = format!("cannot {verb} dynamodb://{table}{slash}{key}");
    let (product, changes) = ("DynamoDB", operation.changes());
    let asked = Asked { what: &what, endpoint: &endpoint, product, changes, sign_in: SIGN_IN };
    asked.meaning(failure, |answer| match (operation, answer.status, answer.code.as_deref().unwrap_or("")) {
        (Write | Delete, _, "ConditionalCheckFailedException") => Row::Conflict,
        (DescribeTable, _, "ResourceNotFoundException") => Row::Absent,
        (CreateTable, _, "ResourceInUseException") => Row::Conflict,
        // DynamoDB throttled the request before it did anything, or the request conflicted with another write of the
        // same item.
        (
            _,
            400,
            "ProvisionedThroughputExceededException"
            | "ThrottlingException"
            | "Throttling"
            | "RequestLimitExceeded"
            | "LimitExceededException"
            | "TransactionConflictException"
            | "TransactionInProgressException"
            | "ReplicatedWriteConflictException"
            | "ContinuousBackupsUnavailableException",
        ) => Row::BUSY,
        (_, 501, _) | (_, 400 | 404, "UnknownOperationException" | "SerializationException") => {
            Row::unsupported(format!(
                "{endpoint} does not implement a request that leasehold needs: conditional UpdateItem, GetItem or Scan",
            ))
        }
        (_, 400, "ResourceNotFoundException") => Row::invalid(format!(
            "there is no table {table:?} at {endpoint}, or it is being created: check the name, the region and the \
             account, or create it (leasehold init, or ?create=true in the store URL)",
        )),
        // The SDK has learned the clock difference from this response and signs the next request by the store's clock.
        (_, 400, "InvalidSignatureException" | "RequestExpired") if answer.clock_is_off => Row::unavailable(
            "this machine's wall clock is more than 5 minutes off, and DynamoDB refuses its signatures: set the clock",
        ),
        (_, 400..=499, _) if credentials_help(answer).is_some() => credentials_refused(answer),
        (_, 401 | 403, _) | (_, 400, "AccessDeniedException") => Row::denied(format!(
            "allow {permission} on {}; if your own key encrypts the table, also kms:Decrypt on that key",
            target.arn()
        )),
        (_, 400, "ValidationException") => Row::invalid(format!(
            "the partition key of {table:?} must be a string, and there must be no sort key; a key that is not named \
             `key` needs ?partition_key=NAME if dynamodb:DescribeTable is not allowed: `leasehold doctor` checks it"
        )),
        (_, 400, "ItemCollectionSizeLimitExceededException") => {
            Row::invalid("use a separate table for locks, without local secondary indexes")
        }
        _ => asked.usual(answer),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Fault;
    use crate::stores::over_http::answer::{Answer, tests::answered};

    fn target() -> Target {
        Target { table: "tbl".into(), region: "eu-west-1".into(), endpoint: Some("http://here:9".into()) }
    }

    fn means(operation: Operation, failure: Failure) -> Meaning {
        meaning(operation, "p/x", &target(), failure)
    }

    #[test]
    fn every_response_has_a_meaning_for_every_operation() {
        use Operation::{CreateTable, DescribeTable, List, Read, Write};
        const UNKNOWN: [&str; 5] = [
            "not unavailable",
            "maybe unavailable",
            "not unavailable",
            "not unavailable",
            "maybe unavailable",
        ];
        const BUSY: [&str; 5] = ["not unavailable"; 5];
        const DENIED: [&str; 5] = ["not denied"; 5];
        const INVALID: [&str; 5] = ["not invalid"; 5];
        const UNSUPPORTED: [&str; 5] = ["not unsupported"; 5];
        let rows: &[(u16, &str, [&str; 5])] = &[
            // status, code, [read, write, list, describe, create]
            (
                400,
                "ConditionalCheckFailedException",
                ["not invalid", "conflict", "not invalid", "not invalid", "not invalid"],
            ),
            (
                400,
                "ResourceNotFoundException",
                ["not invalid", "not invalid", "not invalid", "absent", "not invalid"],
            ),
            (
                400,
                "ResourceInUseException",
                ["not invalid", "not invalid", "not invalid", "not invalid", "conflict"],
            ),
            (400, "ProvisionedThroughputExceededException", BUSY),
            (400, "ThrottlingException", BUSY),
            (400, "Throttling", BUSY),
            (400, "RequestLimitExceeded", BUSY),
            (400, "LimitExceededException", BUSY),
            (400, "TransactionConflictException", BUSY),
            (400, "TransactionInProgressException", BUSY),
            (400, "ReplicatedWriteConflictException", BUSY),
            (429, "", BUSY),
            (500, "InternalServerError", UNKNOWN),
            (500, "InternalFailure", UNKNOWN),
            (500, "", UNKNOWN),
            (502, "", UNKNOWN),
            (503, "ServiceUnavailable", UNKNOWN),
            (503, "", UNKNOWN),
            (504, "", UNKNOWN),
            (408, "", UNKNOWN),
            (200, "", UNKNOWN),
            (400, "AccessDeniedException", DENIED),
            (400, "UnrecognizedClientException", DENIED),
            (400, "InvalidSignatureException", DENIED),
            (400, "IncompleteSignatureException", DENIED),
            (400, "MissingAuthenticationTokenException", DENIED),
            (400, "ExpiredTokenException", DENIED),
            (403, "InvalidClientTokenId", DENIED),
            (401, "", DENIED),
            (403, "", DENIED),
            (400, "ValidationException", INVALID),
            (400, "ItemCollectionSizeLimitExceededException", INVALID),
            (400, "InvalidEndpointException", INVALID),
            (400, "", INVALID),
            (404, "", INVALID),
            (413, "", INVALID),
            (301, "", INVALID),
            (418, "", INVALID),
            (400, "UnknownOperationException", UNSUPPORTED),
            (400, "SerializationException", UNSUPPORTED),
            (501, "NotImplemented", UNSUPPORTED),
        ];
        for (status, code, expected) in rows {
            for (operation, expected) in
                [Read, Write, List, DescribeTable, CreateTable].into_iter().zip(expected)
            {
                let meaning = means(operation, answered(*status, code));
                assert_eq!(meaning.short(), *expected, "{status} {code} {operation:?}");
            }
        }
    }

    fn fault(operation: Operation, failure: Failure) -> Fault {
        means(operation, failure).fault()
    }

    #[test]
    fn errors_say_what_to_do() {
        use Operation::{CreateTable, List, Read, Write};
        for (operation, failure, helps) in [
            (Read, answered(400, "AccessDeniedException"), vec!["dynamodb:GetItem", "eu-west-1:*:table/tbl"]),
            (Write, answered(400, "AccessDeniedException"), vec!["dynamodb:UpdateItem"]),
            (List, answered(400, "AccessDeniedException"), vec!["dynamodb:Scan"]),
            (CreateTable, answered(400, "AccessDeniedException"), vec!["dynamodb:CreateTable"]),
            (
                Write,
                answered(400, "ResourceNotFoundException"),
                vec!["\"tbl\"", "leasehold init", "create=true"],
            ),
            (
                Write,
                answered(400, "ValidationException"),
                vec!["`key`", "sort key", "partition_key=", "leasehold doctor"],
            ),
            (Read, answered(400, "UnrecognizedClientException"), vec!["AWS_PROFILE"]),
            (Read, answered(400, "ExpiredTokenException"), vec!["sign in again"]),
            (Read, answered(400, "InvalidSignatureException"), vec!["AWS_SECRET_ACCESS_KEY"]),
            (Read, answered(404, ""), vec!["endpoint of DynamoDB", "http://here:9"]),
        ] {
            let fault = fault(operation, failure.clone());
            assert!(fault.message.contains("dynamodb://tbl/p/x"), "{}", fault.message);
            let help = fault.help.unwrap();
            for part in helps {
                assert!(help.contains(part), "{failure:?}: {help}");
            }
        }
    }

    #[test]
    fn a_signature_refused_because_of_the_clock_is_transient() {
        let answer = Answer {
            status: 400,
            code: Some("InvalidSignatureException".into()),
            clock_is_off: true,
            ..Answer::default()
        };
        let meaning = means(Operation::Write, Failure::Answered(answer));
        assert_eq!(meaning.short(), "not unavailable");
    }
}
