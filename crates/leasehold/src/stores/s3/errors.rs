//! The table of S3's responses. This is a pure function, so that tests can cover every case.

use super::config::Target;
use crate::stores::aws::sign_in::{SIGN_IN, credentials_help, credentials_refused};
use crate::stores::over_http::answer::{Answer, Asked, Failure, Row};
use crate::stores::over_http::{Meaning, Operation};

/// Returns the meaning of `failure` for `operation` on object `key`.
pub(super) fn meaning(operation: Operation, key: &str, target: &Target, failure: Failure) -> Meaning {
    use Operation::{Delete, Head, Read, Replace};
    let (bucket, endpoint) = (&target.bucket, target.endpoint());
    let what = format!("cannot {} s3://{bucket}/{key}", operation.verb());
    let changes = operation.changes();
    let asked = Asked { what: &what, endpoint: &endpoint, product: "S3", changes, sign_in: SIGN_IN };
    asked.meaning(failure, |answer| match (answer.status, answer.code.as_deref().unwrap_or("")) {
        (404, "NoSuchKey") if operation == Read => Row::Absent,
        // A response to HEAD has no body, and so no error code. If the bucket is missing, the write that follows
        // reports it.
        (404, _) if operation == Head => Row::Absent,
        (404, "NoSuchKey") if matches!(operation, Replace | Delete) => Row::Conflict,
        (412, _) if changes => Row::Conflict,
        // Throttled. S3 refused the request before it did anything.
        (503, "SlowDown") => Row::BUSY,
        // Another conditional write of this key is in progress. Nothing was written, and the lock may or may not be
        // held.
        (409, _) => Row::BUSY,
        // S3 gave up reading the request. But a proxy may send this response for a request that it has already
        // forwarded.
        (400, "RequestTimeout") => Row::InDoubt(None),
        (501, _) | (400, "NotImplemented") => not_implemented(operation),
        // The outcome of other 503s is unknown: load balancers return them for broken connections, and MinIO if too few
        // disks accepted the write.
        (..300 | 408 | 429 | 500.., _) => asked.usual(answer),
        (_, "NoSuchBucket" | "InvalidBucketName") => Row::invalid(format!(
            "there is no bucket {bucket:?} at {endpoint}: check the store URL, or create it (aws s3 mb s3://{bucket})"
        )),
        (300..400, _) | (400, "AuthorizationHeaderMalformed" | "IllegalLocationConstraintException") => {
            wrong_region(target, answer)
        }
        (400, "KeyTooLongError" | "XMinioInvalidObjectName") => Row::invalid(
            "the key is too long for the store: use a shorter lock name or prefix (characters other than letters, \
             digits and - . _ ~ take three bytes or more; MinIO allows 255 bytes between two slashes)",
        ),
        // The SDK has learned the clock difference from this response and signs the next request by the store's clock.
        (_, "RequestTimeTooSkewed") => Row::unavailable(
            "this machine's wall clock is more than 15 minutes off, and S3 refuses its signatures: set the clock",
        ),
        _ if credentials_help(answer).is_some() => credentials_refused(answer),
        (401 | 403, _) => denied(operation, key, target),
        (_, code) if code.starts_with("KMS.") => Row::invalid(
            "the key that encrypts the object cannot be used: check the option `kms_key`, or the bucket's default \
             encryption",
        ),
        // A body without a checksum in a bucket with Object Lock.
        (400, "InvalidRequest") if changes && wants_checksum(answer) => Row::invalid(
            "the bucket has Object Lock and accepts no object without a checksum: add ?checksum=crc32 to the store \
             URL, or checksum=md5 for an older store. With a default retention each renewal of a lock leaves a \
             version that stays until its retention ends, so it is better to use another bucket",
        ),
        (400, "InvalidArgument" | "InvalidRequest" | "InvalidHeader" | "UnsupportedArgument") if changes => {
            match target.is_trusted() {
                // Amazon supports conditional writes, so something else is wrong with the request.
                true => Row::invalid(
                    "check the options `checksum`, `sse` and `kms_key` of the store URL, and the settings of the bucket",
                ),
                false => not_implemented(operation),
            }
        }
        _ => asked.usual(answer),
    })
}

fn not_implemented(operation: Operation) -> Row {
    Row::unsupported(match operation {
        Operation::Read | Operation::Head | Operation::List => {
            "this store does not implement a request that leasehold needs"
        }
        Operation::Create | Operation::Replace => {
            "this store does not implement conditional writes (If-None-Match and If-Match on PutObject); locks need \
             them: use Amazon S3 or a store that has them"
        }
        Operation::Delete => {
            "this store does not implement conditional deletes (If-Match on DeleteObject), so old records cannot be \
             swept safely; locking does not need them"
        }
    })
}

fn wrong_region(target: &Target, answer: &Answer) -> Row {
    let Target { bucket, region: asked, .. } = target;
    Row::invalid(match &answer.region {
        Some(region) if region != asked => {
            format!(
                "the bucket {bucket:?} is in {region}, not in {asked}: add ?region={region} to the store URL"
            )
        }
        _ => format!(
            "the bucket {bucket:?} seems not to be in {asked}: set the bucket's region (or the right endpoint) in the \
             store URL"
        ),
    })
}

fn denied(operation: Operation, key: &str, target: &Target) -> Row {
    let (bucket, object) = (target.arn(), target.arn_of(key));
    Row::denied(match operation {
        _ if target.is_directory() => format!("allow s3express:CreateSession on {bucket}"),
        Operation::List => format!("allow s3:ListBucket on {bucket}"),
        Operation::Read | Operation::Head => format!(
            "allow s3:GetObject on {object}, and s3:ListBucket on {bucket}: without the latter S3 also responds with \
             403 for an object that does not exist yet",
        ),
        Operation::Create | Operation::Replace => format!("allow s3:PutObject on {object}"),
        Operation::Delete => format!("allow s3:DeleteObject on {object}"),
    })
}

/// Whether the message names Content-MD5 or x-amz-checksum-.
fn wants_checksum(answer: &Answer) -> bool {
    answer.message.as_ref().is_some_and(|message| {
        let message = message.to_ascii_lowercase();
        message.contains("content-md5") || message.contains("x-amz-checksum")
    })
}

#[cfg(test)]
mod tests;
