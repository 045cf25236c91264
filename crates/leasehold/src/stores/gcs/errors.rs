//! The table of GCS's responses. This is a pure function, so that tests can cover every case.

use super::config::Target;
use crate::stores::over_http::answer::{Answer, Asked, Failure, Row, SignIn};
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
    let Target { bucket, endpoint, .. } = target;
    let what = format!("cannot {} gs://{bucket}/{key}", operation.verb());
    let changes = operation.changes();
    let asked = Asked { what: &what, endpoint, product: "Google Cloud Storage", changes, sign_in: SIGN_IN };
    asked.meaning(failure, |answer| match (answer.status, answer.code.as_deref().unwrap_or("")) {
        (404, _) if operation == Operation::Read && is_about_object(answer) => Row::Absent,
        (404, _) if operation == Operation::Delete && is_about_object(answer) => Row::Conflict,
        (412, _) if changes && is_lost_race(answer) => Row::Conflict,
        _ if is_throttled(answer) => Row::BUSY,
        // 409 is not documented for objects.
        (409 | 499, _) => Row::InDoubt(None),
        (403, "required" | "authError") => asked.signed_out(false),
        (403, "retentionPolicyNotMet" | "objectUnderActiveHold") => Row::unsupported(
            "the bucket does not allow its objects to be overwritten (a retention policy, a retention lock or a \
             hold), but every renewal overwrites a lock: use a bucket without one",
        ),
        (403, "accountDisabled" | "UserProjectAccountProblem") | (400, "userProjectMissing" | "required") => {
            Row::denied(
                "the project that pays for the request is missing or cannot be billed: for a requester-pays bucket, \
                 name your project with ?user_project=",
            )
        }
        (403, _) => Row::denied(format!(
            "allow {} on the bucket: gcloud storage buckets add-iam-policy-binding gs://{bucket} \
             --role=roles/storage.objectUser --member=...",
            permission(operation)
        )),
        (404, _) if !is_page(answer) => Row::invalid(format!(
            "there is no bucket {bucket:?} at {endpoint}: check the store URL, or create it \
             (gcloud storage buckets create gs://{bucket})",
        )),
        (412, _) if changes && !is_page(answer) => Row::denied(
            "a policy of the bucket or of its organisation forbids this write, and no other client is involved: change \
             the policy or use another bucket; if it requires a customer-managed key, name one with ?kms_key=",
        ),
        _ => asked.usual(answer),
    })
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

const SIGN_IN: SignIn = SignIn {
    missing: "set GOOGLE_APPLICATION_CREDENTIALS to a key file, or run `gcloud auth application-default login`, or give this \
              machine a service account, or name a key file in the store URL (?credentials=/path/to/key.json)",
    refresh: "if this continues: run `gcloud auth application-default login`, or check the key file or the service account",
};

#[cfg(test)]
mod tests;
