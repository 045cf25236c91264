//! Interprets the responses of GCS, and missing responses. This is a pure function, so that tests can cover every case.

use std::fmt;

use super::config::Target;
use crate::error::{ErrorKind, Fault, StoreError};
use crate::stores::over_http::answer::{Answer, Asked, FailedRequest, Failure, SignIn};
use crate::stores::over_http::{Meaning, Operation};

fn permission(operation: Operation) -> &'static str {
    match operation {
        Operation::Read | Operation::Head => {
            "storage.objects.get, and storage.objects.list: without the latter GCS also responds with 403 for an \
             object that does not exist yet"
        }
        Operation::Create => "storage.objects.create",
        // An overwrite deletes the previous object.
        Operation::Replace => {
            "storage.objects.create and storage.objects.delete: overwriting an object needs both"
        }
        Operation::Delete => "storage.objects.delete",
        Operation::List => "storage.objects.list",
    }
}

/// Returns the meaning of `failure` for `operation` on object `key`.
pub(super) fn meaning(operation: Operation, key: &str, target: &Target, failure: Failure) -> Meaning {
    let case = Case { operation, key, target };
    let answer = match case.asked().answer(failure) {
        Ok(answer) => answer,
        Err(error) => return Meaning::Failed(error),
    };
    match (operation, answer.status) {
        (Operation::Read, 404) if is_about_object(&answer) => Meaning::Absent,
        (Operation::Delete, 404) if is_about_object(&answer) => Meaning::Conflict,
        (Operation::Create | Operation::Replace | Operation::Delete, 412) if is_lost_race(&answer) => {
            Meaning::Conflict
        }
        _ => Meaning::Failed(case.asked().explained(&answer, case.answered(&answer))),
    }
}

/// Whether the request was refused before it had any effect, because of a quota or the limit of one write per second
/// for one object.
pub(super) fn is_throttled(answer: &Answer) -> bool {
    let code = answer.code.as_deref().unwrap_or("");
    matches!(
        (answer.status, code),
        (429, _) | (403, "rateLimitExceeded" | "userRateLimitExceeded" | "quotaExceeded")
    )
}

/// Whether a 412 is about the generation. Organisation policies also cause a 412, sometimes with the same reason. In
/// this case, only the text differs: "'...' violates constraint 'constraints/...'".
fn is_lost_race(answer: &Answer) -> bool {
    let of_policy = answer.message.as_deref().is_some_and(|text| {
        let text = text.to_ascii_lowercase();
        ["constraint", "policy", "encryption"].iter().any(|word| text.contains(word))
    });
    match answer.code.as_deref() {
        Some("conditionNotMet") => !of_policy,
        Some(_) => false,
        // Emulators give no reason.
        None => !of_policy && !is_page(answer),
    }
}

/// Whether a 404 is about the object. GCS gives the same reason for a missing bucket and a missing object, and only the
/// text differs. It is safe to mistake a missing bucket for a missing object, because the write that follows fails.
fn is_about_object(answer: &Answer) -> bool {
    !is_page(answer) && !answer.message.as_deref().unwrap_or("").contains("bucket does not exist")
}

/// Whether the response is a web page, which does not come from GCS.
fn is_page(answer: &Answer) -> bool {
    answer.message.as_deref().is_some_and(|text| text.trim_start().starts_with('<'))
}

struct Case<'a> {
    operation: Operation,
    key: &'a str,
    target: &'a Target,
}

impl fmt::Display for Case<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot {} gs://{}/{}", self.operation.verb(), self.target.bucket, self.key)
    }
}

impl FailedRequest for Case<'_> {
    fn asked(&self) -> Asked<'_> {
        let (endpoint, changes) = (self.target.endpoint.as_str(), self.operation.changes());
        Asked { what: self, endpoint, changes, sign_in: SIGN_IN }
    }
}

impl Case<'_> {
    /// Returns the error for an unsuccessful response.
    fn answered(&self, answer: &Answer) -> StoreError {
        let code = answer.code.as_deref().unwrap_or("");
        match (answer.status, code) {
            _ if is_throttled(answer) => self.refused(self.busy(answer)),
            // GCS asks clients to retry these requests, but does not promise that they had no effect. A front end may
            // give up waiting for a back end that continues. This includes 503, and also 409, which is not documented
            // for objects.
            (408 | 409 | 499 | 500 | 502..=599, _) => self.unknown(self.busy(answer)),
            (501, _) => self.refused(self.not_implemented(answer)),
            (401, _) if answer.signed_before => self.refused(self.expired(answer)),
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

    fn not_implemented(&self, answer: &Answer) -> Fault {
        self.fault(ErrorKind::Unsupported, answer).with_help(
            "this store does not implement a request that leasehold needs: use Google Cloud Storage itself",
        )
    }

    fn no_bucket(&self, answer: &Answer) -> Fault {
        let bucket = &self.target.bucket;
        self.fault(ErrorKind::Invalid, answer).with_help(format!(
            "there is no bucket {bucket:?} at {}: check the store URL, or create it \
             (gcloud storage buckets create gs://{bucket})",
            self.target.endpoint
        ))
    }

    /// Returns the fault for an expired access token. Access tokens are valid for an hour, but Google's library
    /// measures their age on a clock that stops while the machine is suspended.
    fn expired(&self, answer: &Answer) -> Fault {
        self.fault(ErrorKind::Unavailable, answer)
            .with_help("the access token is no longer accepted; a new one is requested with the next request")
    }

    fn not_signed_in(&self, answer: &Answer) -> Fault {
        self.fault(ErrorKind::Denied, answer)
            .with_help(format!("GCS does not accept these credentials: {}", SIGN_IN.missing))
    }

    fn denied(&self, answer: &Answer) -> Fault {
        let bucket = &self.target.bucket;
        self.fault(ErrorKind::Denied, answer).with_help(format!(
            "allow {} on the bucket: gcloud storage buckets add-iam-policy-binding gs://{bucket} \
             --role=roles/storage.objectUser --member=...",
            permission(self.operation)
        ))
    }

    fn retained(&self, answer: &Answer) -> Fault {
        self.fault(ErrorKind::Unsupported, answer).with_help(
            "the bucket does not allow its objects to be overwritten (a retention policy, a retention lock or a \
             hold), but every renewal overwrites a lock: use a bucket without one",
        )
    }

    fn forbidden_by_policy(&self, answer: &Answer) -> Fault {
        self.fault(ErrorKind::Denied, answer).with_help(
            "a policy of the bucket or of its organisation forbids this write, and no other client is involved: change the \
             policy or use another bucket; if it requires a customer-managed key, name one with ?kms_key=",
        )
    }

    fn billing(&self, answer: &Answer) -> Fault {
        self.fault(ErrorKind::Denied, answer).with_help(
            "the project that pays for the request is missing or cannot be billed: for a requester-pays bucket, \
             name your project with ?user_project=",
        )
    }

    fn garbled(&self, answer: &Answer) -> Fault {
        self.fault(ErrorKind::Unavailable, answer)
            .with_help("the response is not one of GCS's: check the endpoint")
    }

    fn unexpected(&self, answer: &Answer) -> Fault {
        self.fault(ErrorKind::Invalid, answer).with_help(format!(
            "if the response gives no reason: check that {} is an endpoint of Google Cloud Storage",
            self.target.endpoint
        ))
    }
}

const SIGN_IN: SignIn = SignIn {
    missing: "set GOOGLE_APPLICATION_CREDENTIALS to a key file, or run `gcloud auth application-default login`, or give this \
              machine a service account, or name a key file in the store URL (?credentials=/path/to/key.json)",
    refresh: "if this continues: run `gcloud auth application-default login`, or check the key file or the service account",
};

#[cfg(test)]
mod tests;
