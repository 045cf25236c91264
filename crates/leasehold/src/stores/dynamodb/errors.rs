//! Interprets the responses of DynamoDB, and missing responses. This is a pure function, so that tests can cover every
//! case.

use std::fmt;

use super::config::Target;
use crate::error::{ErrorKind, Fault, StoreError};
use crate::stores::aws::sign_in::{SIGN_IN, credentials_help, credentials_refused};
use crate::stores::over_http::answer::{Answer, Asked, FailedRequest, Failure};

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

    fn verb(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Delete => "delete",
            Self::List => "list",
            Self::DescribeTable => "describe",
            Self::CreateTable => "create",
            Self::EnableRecovery => "switch on point-in-time recovery of",
        }
    }

    fn permission(self) -> &'static str {
        match self {
            Self::Read => "dynamodb:GetItem",
            Self::Write => "dynamodb:UpdateItem",
            Self::Delete => "dynamodb:DeleteItem",
            Self::List => "dynamodb:Scan",
            Self::DescribeTable => "dynamodb:DescribeTable",
            Self::CreateTable => "dynamodb:CreateTable (with tags, dynamodb:TagResource too)",
            Self::EnableRecovery => "dynamodb:UpdateContinuousBackups",
        }
    }
}

/// The meaning of a response.
#[derive(Debug)]
pub(super) enum Meaning {
    /// The condition does not hold.
    Conflict,
    /// There is no such table. Only for `DescribeTable`.
    NoTable,
    /// The table exists, or is being created or deleted. Only for `CreateTable`.
    TableExists,
    Failed(StoreError),
}

/// Returns the meaning of `failure` for `operation` on the item `key` (empty for the whole table).
pub(super) fn meaning(operation: Operation, key: &str, target: &Target, failure: Failure) -> Meaning {
    let case = Case { operation, key, target, endpoint: target.endpoint() };
    let answer = match case.asked().answer(failure) {
        Ok(answer) => answer,
        Err(error) => return Meaning::Failed(error),
    };
    match (operation, answer.code.as_deref()) {
        (Operation::Write | Operation::Delete, Some("ConditionalCheckFailedException")) => Meaning::Conflict,
        (Operation::DescribeTable, Some("ResourceNotFoundException")) => Meaning::NoTable,
        (Operation::CreateTable, Some("ResourceInUseException")) => Meaning::TableExists,
        _ => Meaning::Failed(case.asked().explained(&answer, case.answered(&answer))),
    }
}

struct Case<'a> {
    operation: Operation,
    key: &'a str,
    target: &'a Target,
    endpoint: String,
}

impl fmt::Display for Case<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot {} dynamodb://{}", self.operation.verb(), self.target.table)?;
        if self.key.is_empty() { Ok(()) } else { write!(f, "/{}", self.key) }
    }
}

impl FailedRequest for Case<'_> {
    fn asked(&self) -> Asked<'_> {
        Asked { what: self, endpoint: &self.endpoint, changes: self.operation.changes(), sign_in: SIGN_IN }
    }
}

impl Case<'_> {
    /// Returns the error for an unsuccessful response.
    fn answered(&self, answer: &Answer) -> StoreError {
        let code = answer.code.as_deref().unwrap_or("");
        match (answer.status, code) {
            // DynamoDB throttled the request before it did anything, or the request conflicted with another write of
            // the same item.
            (
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
            )
            | (429, _) => self.refused(self.busy(answer)),
            (501, _) | (400 | 404, "UnknownOperationException" | "SerializationException") => {
                self.refused(self.not_implemented(answer))
            }
            (408 | 500..=599, _) => self.unknown(self.busy(answer)),
            (200..=299, _) => self.unknown(self.garbled(answer)),
            (400, "ResourceNotFoundException") => self.refused(self.no_table(answer)),
            (400, "InvalidSignatureException" | "RequestExpired") if answer.clock_is_off => {
                self.refused(self.skewed(answer))
            }
            (400..=499, _) if credentials_help(answer).is_some() => {
                self.refused(credentials_refused(self, answer))
            }
            (401 | 403, _) | (400, "AccessDeniedException") => self.refused(self.denied(answer)),
            (400, "ValidationException") => self.refused(self.invalid(answer)),
            (400, "ItemCollectionSizeLimitExceededException") => self.refused(self.too_large(answer)),
            _ => self.refused(self.unexpected(answer)),
        }
    }

    fn garbled(&self, answer: &Answer) -> Fault {
        self.fault(ErrorKind::Unavailable, answer)
            .with_help("the response is not one of DynamoDB's: check the endpoint")
    }

    fn no_table(&self, answer: &Answer) -> Fault {
        let Target { table, .. } = self.target;
        self.fault(ErrorKind::Invalid, answer).with_help(format!(
            "there is no table {table:?} at {}, or it is being created: check the name, the region and the account, \
             or create it (leasehold init, or ?create=true in the store URL)",
            self.endpoint
        ))
    }

    /// Returns a transient fault: the SDK has learned the clock difference from this response and signs the next
    /// request by the store's clock.
    fn skewed(&self, answer: &Answer) -> Fault {
        self.fault(ErrorKind::Unavailable, answer).with_help(
            "this machine's wall clock is more than 5 minutes off, and DynamoDB refuses its signatures: set the clock",
        )
    }

    fn denied(&self, answer: &Answer) -> Fault {
        self.fault(ErrorKind::Denied, answer).with_help(format!(
            "allow {} on {}; if your own key encrypts the table, also kms:Decrypt on that key",
            self.operation.permission(),
            self.target.arn()
        ))
    }

    fn invalid(&self, answer: &Answer) -> Fault {
        let Target { table, .. } = self.target;
        self.fault(ErrorKind::Invalid, answer).with_help(format!(
            "the partition key of {table:?} must be a string, and there must be no sort key; a key that is not \
             named `key` needs ?partition_key=NAME if dynamodb:DescribeTable is not allowed: `leasehold doctor` \
             checks it"
        ))
    }

    fn too_large(&self, answer: &Answer) -> Fault {
        self.fault(ErrorKind::Invalid, answer)
            .with_help("use a separate table for locks, without local secondary indexes")
    }

    fn not_implemented(&self, answer: &Answer) -> Fault {
        self.fault(ErrorKind::Unsupported, answer).with_help(format!(
            "{} does not implement a request that leasehold needs: conditional UpdateItem, GetItem or Scan",
            self.endpoint
        ))
    }

    fn unexpected(&self, answer: &Answer) -> Fault {
        self.fault(ErrorKind::Invalid, answer).with_help(format!(
            "this is not a response of DynamoDB: check that {} is a DynamoDB endpoint",
            self.endpoint
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stores::over_http::answer::tests::{answered, short as error_in_short};

    fn target() -> Target {
        Target { table: "tbl".into(), region: "eu-west-1".into(), endpoint: Some("http://here:9".into()) }
    }

    fn means(operation: Operation, failure: Failure) -> Meaning {
        meaning(operation, "p/x", &target(), failure)
    }

    /// Returns the meaning in one or two words. For a failure, these are `not` or `maybe` (applied), and the kind of
    /// the fault.
    fn short(meaning: &Meaning) -> String {
        match meaning {
            Meaning::Conflict => "conflict".into(),
            Meaning::NoTable => "no table".into(),
            Meaning::TableExists => "table exists".into(),
            Meaning::Failed(error) => error_in_short(error),
        }
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
                ["not invalid", "not invalid", "not invalid", "no table", "not invalid"],
            ),
            (
                400,
                "ResourceInUseException",
                ["not invalid", "not invalid", "not invalid", "not invalid", "table exists"],
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
                assert_eq!(short(&meaning), *expected, "{status} {code} {operation:?}");
            }
        }
    }

    fn fault(operation: Operation, failure: Failure) -> Fault {
        match means(operation, failure) {
            Meaning::Failed(StoreError::NotApplied(fault) | StoreError::MaybeApplied(fault)) => fault,
            other => panic!("{other:?}"),
        }
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
            (Read, answered(404, ""), vec!["DynamoDB endpoint", "http://here:9"]),
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
        assert_eq!(short(&meaning), "not unavailable");
    }
}
