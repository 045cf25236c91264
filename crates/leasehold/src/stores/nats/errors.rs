//! Maps the errors of NATS: whether a write may have taken effect, and what the user can do.

use async_nats::{ConnectError, ConnectErrorKind, RequestError, RequestErrorKind};
use serde::Deserialize;

use crate::error::{ErrorKind, Fault, StoreError};
use crate::lease::printable;
use crate::stores::certificates;
use crate::stores::hosts::MAX_SHOWN;

const PERMISSIONS: &str =
    "the user needs more permissions: `leasehold doctor` lists those that leasehold needs";

/// The error in a response of JetStream.
#[derive(Debug, Deserialize)]
pub(super) struct Refusal {
    code: u16,
    #[serde(default)]
    err_code: u32,
    #[serde(default)]
    description: String,
}

impl Refusal {
    /// Returns whether no message has the subject.
    pub(super) fn is_absence(&self) -> bool {
        self.err_code == 10_037
    }

    /// Returns whether the subject has another revision, or another write to it is in progress.
    pub(super) fn is_conflict(&self) -> bool {
        [10_071, 10_164].contains(&self.err_code)
    }

    /// Returns whether the bucket can be created as another attempt failed: it does not exist, or the server is in no
    /// cluster.
    pub(super) fn asks_for_bucket(&self) -> bool {
        [10_059, 10_074].contains(&self.err_code)
    }

    /// Returns whether a bucket of this name exists already.
    pub(super) fn is_existing_bucket(&self) -> bool {
        self.err_code == 10_058
    }

    /// Returns the error of a request about `bucket`.
    pub(super) fn error(&self, bucket: &str) -> StoreError {
        let described = printable(&self.description, MAX_SHOWN);
        let message =
            format!("NATS refuses a request for the bucket {bucket:?}: {described} ({})", self.err_code);
        let invalid = |help: &str| Fault::new(ErrorKind::Invalid, &*message).with_help(help);
        let fault = match self.err_code {
            10_059 => {
                invalid("create the bucket with `leasehold init`, or correct its name in the store URL")
            }
            10_039 | 10_076 => invalid(
                "JetStream is off: start the server with `jetstream {}` in its configuration, and allow the account to use it",
            ),
            10_054 | 10_109 => invalid("check the settings of the bucket: `nats kv info`"),
            10_002 | 10_023 | 10_047 | 10_077 => Fault::unavailable(message).with_help(
                "JetStream has no room: raise its limits or those of the account, or free space on its disk",
            ),
            _ if self.code >= 429 => Fault::unavailable(message),
            _ => Fault::new(ErrorKind::Unsupported, message)
                .with_help("check the settings of the bucket (`nats kv info`) and the version of the server"),
        };
        // A replica may have stored what the leader could not.
        if self.code < 500 { fault.not_applied() } else { fault.maybe_applied() }
    }
}

/// Returns the error of a response that cannot be read.
pub(super) fn unreadable(bucket: &str) -> Fault {
    Fault::new(ErrorKind::Corrupt, format!("the response of NATS about the bucket {bucket:?} cannot be read"))
        .with_help("check that the servers are NATS servers with JetStream, and that no program responds in their place")
}

/// Returns the error of a write that the stream `other` has stored.
pub(super) fn stored_elsewhere(bucket: &str, other: &str) -> Fault {
    let other = printable(other, MAX_SHOWN);
    let message = format!("the stream {other:?} stores writes to the bucket {bucket:?}");
    Fault::new(ErrorKind::Unsupported, message)
        .with_help("no other stream may have subjects of the bucket, also not one on a leaf node")
}

/// Returns the error of a connection that broke while a request waited for its response.
pub(super) fn lost() -> Fault {
    Fault::unavailable("the connection to NATS was lost")
}

/// Returns the error of a request that the server refused with `text`, its message about a missing permission.
pub(super) fn denied(text: &str) -> StoreError {
    let message = format!("NATS reports: {}", printable(text, MAX_SHOWN));
    let fault = Fault::new(ErrorKind::Denied, message).with_help(PERMISSIONS);
    // Without the permission to receive responses, the request itself may have been applied.
    if is_about_publishing(text) { fault.not_applied() } else { fault.maybe_applied() }
}

fn is_about_publishing(text: &str) -> bool {
    text.contains("for Publish to")
}

/// Returns whether the error `text` of the server is about `subject`, or about all responses.
pub(super) fn concerns(text: &str, subject: &str) -> bool {
    let is_denial = text.to_ascii_lowercase().contains("permissions violation");
    is_denial && (text.contains("\"_INBOX.") || text.contains(&format!("\"{subject}\"")))
}

/// Returns the error of a request without a response.
pub(super) fn of_request(error: &RequestError, subject: &str) -> StoreError {
    match error.kind() {
        // The server dropped the message.
        RequestErrorKind::NoResponders => Fault::unavailable(format!("no NATS server responds to {subject}"))
            .with_help(
                "is JetStream on, does the bucket exist, and have most of its replicas elected a leader? \
                 `leasehold init` creates a bucket",
            )
            .not_applied(),
        RequestErrorKind::MaxPayloadExceeded | RequestErrorKind::InvalidSubject => {
            Fault::new(ErrorKind::Invalid, format!("NATS accepts no such request: {error}"))
                .with_help("raise max_payload in the configuration of the server, or use a shorter name")
                .not_applied()
        }
        _ => lost().maybe_applied(),
    }
}

/// Returns the error of a connection to `host` that could not be opened.
pub(super) fn of_connection(error: &ConnectError, host: &str) -> Fault {
    let source = std::error::Error::source(error).map(ToString::to_string).unwrap_or_default();
    let why = printable(&source, MAX_SHOWN);
    let message = format!("no connection to NATS at {host}: {} {why}", error.kind());
    match error.kind() {
        ConnectErrorKind::AuthorizationViolation | ConnectErrorKind::Authentication => {
            Fault::new(ErrorKind::Denied, message)
                .with_help("check the login in the store URL: a user with a password, a token, `creds_file` or `nkey_file`")
        }
        _ => match certificates::help_for_both(&source) {
            Some(help) => Fault::new(ErrorKind::Invalid, message).with_help(help),
            None => Fault::unavailable(message).with_help(
                "is the server running, are the host and port right, and does it demand TLS or client certificates?",
            ),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_denial_fails_only_requests_that_need_the_permission() {
        let text = |what: &str, subject: &str| format!("Permissions Violation for {what} to {subject:?}");
        for (text, is_ours) in [
            (text("Publish", "$KV.b.a.lock"), true),
            (text("Publish", "$KV.b.a.lock.b"), false),
            (text("Subscription", "_INBOX.x.*"), true),
            (text("Subscription", "leasehold.b.a.lock"), false),
        ] {
            assert_eq!(concerns(&text, "$KV.b.a.lock"), is_ours, "{text}");
        }
    }
}
