//! The meaning of a response of GCS, or of a missing one. A pure function, so that every row of it is tested.

use std::fmt;
use std::time::Duration;

use crate::error::{ErrorKind, Fault, StoreError};

/// The operation that was requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    Read,
    /// A write that expects no object.
    Create,
    /// A write that expects a generation.
    Replace,
    Delete,
    List,
}

impl Operation {
    /// Whether the request can have an effect.
    pub(super) fn changes(self) -> bool {
        matches!(self, Self::Create | Self::Replace | Self::Delete)
    }

    fn verb(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Create | Self::Replace => "write",
            Self::Delete => "delete",
            Self::List => "list",
        }
    }

    fn permission(self) -> &'static str {
        match self {
            Self::Read => {
                "storage.objects.get, and storage.objects.list: without the latter GCS answers 403 also for \
                           an object that does not exist yet"
            }
            Self::Create => "storage.objects.create",
            // An overwrite deletes the object that was there.
            Self::Replace => {
                "storage.objects.create and storage.objects.delete: overwriting an object needs both"
            }
            Self::Delete => "storage.objects.delete",
            Self::List => "storage.objects.list",
        }
    }
}

/// The bucket that was addressed, and settings for every request to it.
#[derive(Clone, Debug, Default)]
pub(super) struct Place {
    pub(super) bucket: String,
    /// The endpoint, without `/` at its end.
    pub(super) endpoint: String,
    /// The project that pays for requests, if the bucket is a requester-pays bucket.
    pub(super) user_project: Option<String>,
    /// The key of Cloud KMS that objects are encrypted with, instead of the bucket's key.
    pub(super) kms_key: Option<String>,
}

impl Place {
    /// Whether the endpoint is known to honour preconditions, as Google documents for its own.
    pub(super) fn is_trusted(&self) -> bool {
        let host = self.endpoint.strip_prefix("https://").unwrap_or("");
        host == "storage.googleapis.com" || (host.ends_with(".googleapis.com") && !host.contains('/'))
    }
}

/// A response other than success.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) status: u16,
    /// GCS's reason, like `rateLimitExceeded`. `None` if the body was not GCS's JSON.
    pub(super) reason: Option<String>,
    /// GCS's message, or the text of the body.
    pub(super) message: Option<String>,
    pub(super) retry_after: Option<Duration>,
    /// How long to wait if the store throttles and does not say how long.
    pub(super) pause: Duration,
}

/// Why a request did not succeed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Trouble {
    /// The store returned an error. `signed_before`: it had accepted the same credentials earlier.
    Answered { answer: Answer, signed_before: bool },
    /// The credentials could not be loaded. `before`: they could earlier.
    Credentials { detail: String, before: bool },
    /// The request could not be built.
    NotMade { detail: String },
    /// There was no connection, so nothing was sent.
    NotConnected { detail: String },
    /// The request may have been sent, and no complete response arrived.
    NoAnswer { detail: String },
}

/// The meaning of a response.
#[derive(Debug)]
pub(super) enum Meaning {
    /// There is no object at that key.
    Absent,
    /// The precondition does not hold.
    Conflict,
    Failed(StoreError),
}

/// Returns the meaning of `trouble` for `operation` on object `key`.
pub(super) fn meaning(operation: Operation, key: &str, place: &Place, trouble: Trouble) -> Meaning {
    let case = Case { operation, key, place };
    let (answer, signed_before) = match trouble {
        Trouble::Answered { answer, signed_before } => (answer, signed_before),
        Trouble::Credentials { detail, before } => return case.refused(case.no_credentials(&detail, before)),
        Trouble::NotMade { detail } => {
            return case.refused(Fault::new(
                ErrorKind::Invalid,
                format!("{case}: the request could not be made: {detail}"),
            ));
        }
        Trouble::NotConnected { detail } => {
            let help = help_to_connect(&place.endpoint, &detail);
            let fault = Fault::unavailable(format!("no connection to {}: {detail}", place.endpoint));
            return case.refused(fault.with_help(help));
        }
        Trouble::NoAnswer { detail } => {
            // hyper's error for a response that does not begin with HTTP/1.1, such as one in TLS.
            let is_no_http = detail.contains("invalid HTTP");
            let fault = Fault::unavailable(format!("{case}: {} gave no answer: {detail}", place.endpoint));
            return case.unknown(match place.endpoint.strip_prefix("http://") {
                Some(host) if is_no_http => fault.with_help(format!(
                    "the server does not answer in plain HTTP: if it expects TLS, write endpoint=https://{host}"
                )),
                _ => fault,
            });
        }
    };
    match (operation, answer.status) {
        (Operation::Read, 404) if names_no_bucket(&answer) => Meaning::Absent,
        (Operation::Delete, 404) if names_no_bucket(&answer) => Meaning::Conflict,
        (Operation::Create | Operation::Replace | Operation::Delete, 412) if is_lost_race(&answer) => {
            Meaning::Conflict
        }
        _ => case.answered(&answer, signed_before),
    }
}

/// The help text for a missing connection. rustls's messages show problems with the scheme and the certificates.
fn help_to_connect(endpoint: &str, detail: &str) -> String {
    match endpoint.strip_prefix("https://") {
        Some(host) if detail.contains("InvalidContentType") => {
            format!(
                "the server does not speak TLS: if it is one for plain HTTP, write endpoint=http://{host}"
            )
        }
        Some(_) if detail.contains("UnknownIssuer") => {
            "the server's certificate is by an authority that this machine does not know: name its file with \
             ?ca=/path/to/ca.pem"
                .to_owned()
        }
        Some(_) => "check the endpoint and that it speaks TLS, the proxy if there is one, the name resolution and the \
                    network"
            .to_owned(),
        None => "check the endpoint, the proxy if there is one, the name resolution and the network".to_owned(),
    }
}

/// Whether a 412 is about the generation. Organisation policies also cause a 412, sometimes with the same reason. Then
/// only the text differs: "'...' violates constraint 'constraints/...'".
fn is_lost_race(answer: &Answer) -> bool {
    let of_policy = answer.message.as_deref().is_some_and(|text| {
        let text = text.to_ascii_lowercase();
        ["constraint", "policy", "encryption"].iter().any(|word| text.contains(word))
    });
    match answer.reason.as_deref() {
        Some("conditionNotMet") => !of_policy,
        Some(_) => false,
        // Emulators give no reason.
        None => !of_policy && !is_page(answer),
    }
}

/// Whether a 404 is about the object. GCS has one reason for a missing bucket and a missing object, and only the text
/// differs. It is safe to take a missing bucket for a missing object: the write that follows fails.
fn names_no_bucket(answer: &Answer) -> bool {
    !is_page(answer) && !answer.message.as_deref().unwrap_or("").contains("bucket does not exist")
}

/// Whether the response is a web page, which does not come from GCS.
fn is_page(answer: &Answer) -> bool {
    answer.message.as_deref().is_some_and(|text| text.trim_start().starts_with('<'))
}

struct Case<'a> {
    operation: Operation,
    key: &'a str,
    place: &'a Place,
}

impl fmt::Display for Case<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot {} gs://{}/{}", self.operation.verb(), self.place.bucket, self.key)
    }
}

impl Case<'_> {
    /// The request had no effect.
    fn refused(&self, fault: Fault) -> Meaning {
        Meaning::Failed(fault.not_applied())
    }

    /// The request may have had its effect, if it can have one.
    fn unknown(&self, fault: Fault) -> Meaning {
        Meaning::Failed(if self.operation.changes() { fault.maybe_applied() } else { fault.not_applied() })
    }

    fn answered(&self, answer: &Answer, signed_before: bool) -> Meaning {
        let reason = answer.reason.as_deref().unwrap_or("");
        match (answer.status, reason) {
            // Refused before anything was done: quotas, and one write a second for one object.
            (429, _) | (403, "rateLimitExceeded" | "userRateLimitExceeded" | "quotaExceeded") => {
                let wait = answer.retry_after.unwrap_or(answer.pause);
                self.refused(self.fault(ErrorKind::Unavailable, answer).with_retry_after(wait))
            }
            // GCS asks clients to retry these, and does not say that nothing was done: a front end may give up waiting
            // for a back end that continues. That includes 503, and 409, which is not documented for objects.
            (408 | 409 | 499 | 500 | 502..=599, _) => self.unknown(self.busy(answer)),
            (501, _) => self.refused(self.not_implemented(answer)),
            (401, _) if signed_before => self.refused(self.expired(answer)),
            (401, _) | (403, "required" | "authError") => self.refused(self.not_signed_in(answer)),
            (403, "retentionPolicyNotMet" | "objectUnderActiveHold") => self.refused(self.retained(answer)),
            (403, "accountDisabled" | "UserProjectAccountProblem")
            | (400, "userProjectMissing" | "required") => self.refused(self.billing(answer)),
            (403, _) => self.refused(self.denied(answer)),
            (404, _) if !is_page(answer) => self.refused(self.no_bucket(answer)),
            (412, _) if self.operation.changes() && !is_page(answer) => {
                self.refused(self.forbidden_by_policy(answer))
            }
            (200..=299, _) => self.unknown(self.garbled(answer)),
            _ => self.refused(self.unexpected(answer)),
        }
    }

    fn fault(&self, kind: ErrorKind, answer: &Answer) -> Fault {
        let mut message = format!("{self}: {} answered {}", self.place.endpoint, answer.status);
        for part in [&answer.reason, &answer.message].into_iter().flatten() {
            // Text of another machine: on one line, without control characters, truncated.
            let part: String = part.chars().filter(|c| !crate::types::is_unprintable(*c)).take(200).collect();
            message.push_str(": ");
            message.push_str(&part);
        }
        Fault::new(kind, message)
    }

    fn busy(&self, answer: &Answer) -> Fault {
        let fault = self.fault(ErrorKind::Unavailable, answer);
        match answer.retry_after {
            Some(wait) => fault.with_retry_after(wait),
            None => fault,
        }
    }

    fn not_implemented(&self, answer: &Answer) -> Fault {
        self.fault(ErrorKind::Unsupported, answer).with_help(
            "this store does not implement a request that leasehold needs: use Google Cloud Storage itself",
        )
    }

    fn no_bucket(&self, answer: &Answer) -> Fault {
        let bucket = &self.place.bucket;
        self.fault(ErrorKind::Invalid, answer).with_help(format!(
            "there is no bucket {bucket:?} at {}: check the store URL, or create it \
             (gcloud storage buckets create gs://{bucket})",
            self.place.endpoint
        ))
    }

    /// Access tokens live for an hour. leasehold considered this one valid until now, by a clock that stops during a
    /// suspend.
    fn expired(&self, answer: &Answer) -> Fault {
        self.fault(ErrorKind::Unavailable, answer).with_help(
            "the access token is not accepted any more; a new one is asked for with the next request",
        )
    }

    fn not_signed_in(&self, answer: &Answer) -> Fault {
        self.fault(ErrorKind::Denied, answer)
            .with_help(format!("GCS does not accept these credentials: {SIGN_IN}"))
    }

    fn denied(&self, answer: &Answer) -> Fault {
        let bucket = &self.place.bucket;
        self.fault(ErrorKind::Denied, answer).with_help(format!(
            "allow {} on the bucket: gcloud storage buckets add-iam-policy-binding gs://{bucket} \
             --role=roles/storage.objectUser --member=...",
            self.operation.permission()
        ))
    }

    fn retained(&self, answer: &Answer) -> Fault {
        self.fault(ErrorKind::Unsupported, answer).with_help(
            "the bucket keeps its objects from being overwritten (a retention policy, a retention lock or a hold), and \
             a lock is overwritten with every renewal: use a bucket without",
        )
    }

    fn forbidden_by_policy(&self, answer: &Answer) -> Fault {
        self.fault(ErrorKind::Denied, answer).with_help(
            "a policy of the bucket or of its organisation forbids this write, and no other client is involved: change the \
             policy or use another bucket; where it demands a customer-managed key, name one with ?kms_key=",
        )
    }

    fn billing(&self, answer: &Answer) -> Fault {
        self.fault(ErrorKind::Denied, answer).with_help(
            "the project that pays for the request is missing or cannot be billed: for a bucket whose requesters pay, \
             name yours with ?user_project=",
        )
    }

    fn no_credentials(&self, detail: &str, before: bool) -> Fault {
        if before {
            // They often load at the next try, and a lease has time for that.
            return Fault::unavailable(format!("{self}: the credentials could not be refreshed: {detail}"))
                .with_help(format!("if this goes on: {SIGN_IN}"));
        }
        Fault::new(ErrorKind::Denied, format!("{self}: no credentials: {detail}"))
            .with_help(format!("no credentials found: {SIGN_IN}"))
    }

    fn garbled(&self, answer: &Answer) -> Fault {
        self.fault(ErrorKind::Unavailable, answer)
            .with_help("the answer is not one of GCS: check the endpoint")
    }

    fn unexpected(&self, answer: &Answer) -> Fault {
        self.fault(ErrorKind::Invalid, answer).with_help(format!(
            "if the answer does not say what is wrong: check that {} is an endpoint of Google Cloud Storage",
            self.place.endpoint
        ))
    }
}

const SIGN_IN: &str = "set GOOGLE_APPLICATION_CREDENTIALS to a key file, or run `gcloud auth application-default login`, or \
                       give this machine a service account, or name a key file in the store URL \
                       (?credentials=/path/to/key.json)";

#[cfg(test)]
mod tests;
