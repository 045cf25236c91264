//! Interprets the responses of S3, and missing responses. This is a pure function, so that tests can cover every case.

use std::fmt;

use super::config::Target;
use crate::error::{ErrorKind, Fault, StoreError};
use crate::stores::aws::sign_in::{SIGN_IN, credentials_help, credentials_refused};
use crate::stores::over_http::answer::{Answer, Asked, FailedRequest, Failure};
use crate::stores::over_http::{Meaning, Operation};

fn permission(operation: Operation) -> &'static str {
    match operation {
        Operation::Read | Operation::Head => "s3:GetObject",
        Operation::Create | Operation::Replace => "s3:PutObject",
        Operation::Delete => "s3:DeleteObject",
        Operation::List => "s3:ListBucket",
    }
}

/// Returns the meaning of `failure` for `operation` on object `key`.
pub(super) fn meaning(operation: Operation, key: &str, target: &Target, failure: Failure) -> Meaning {
    let case = Case { operation, key, target, endpoint: target.endpoint() };
    let answer = match case.asked().answer(failure) {
        Ok(answer) => answer,
        Err(error) => return Meaning::Failed(error),
    };
    match (operation, answer.status, answer.code.as_deref()) {
        (Operation::Read, 404, Some("NoSuchKey")) => Meaning::Absent,
        // A response to HEAD has no body, and so no error code. If the bucket is missing, the write that follows
        // reports it.
        (Operation::Head, 404, _) => Meaning::Absent,
        (Operation::Replace | Operation::Delete, 404, Some("NoSuchKey")) => Meaning::Conflict,
        (Operation::Create | Operation::Replace | Operation::Delete, 412, _) => Meaning::Conflict,
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
        write!(f, "cannot {} s3://{}/{}", self.operation.verb(), self.target.bucket, self.key)
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
            // Throttled. S3 refused the request before it did anything.
            (503, "SlowDown") | (429, _) => self.refused(self.busy(answer)),
            // Another conditional write of this key is in progress. Nothing was written, and the lock may or may not be
            // held.
            (409, _) => self.refused(self.busy(answer)),
            // With 408 and `RequestTimeout`, S3 gave up reading the request. But a proxy may send this response for a
            // request that it has already forwarded. The outcome of other 503s is unknown too: load balancers return
            // them for broken connections, and MinIO if too few disks accepted the write.
            (408 | 500 | 502..=599, _) | (400, "RequestTimeout") => self.unknown(self.busy(answer)),
            (501, _) | (400, "NotImplemented") => self.refused(self.not_implemented(answer)),
            (_, "NoSuchBucket" | "InvalidBucketName") => self.refused(self.no_bucket(answer)),
            (300..=399, _) | (400, "AuthorizationHeaderMalformed" | "IllegalLocationConstraintException") => {
                self.refused(self.wrong_region(answer))
            }
            (400, "KeyTooLongError" | "XMinioInvalidObjectName") => self.refused(self.bad_key(answer)),
            (_, "RequestTimeTooSkewed") => self.refused(self.skewed(answer)),
            (400..=499, _) if credentials_help(answer).is_some() => {
                self.refused(credentials_refused(self, answer))
            }
            (401 | 403, _) => self.refused(self.denied(answer)),
            (_, code) if code.starts_with("KMS.") => self.refused(self.no_key(answer)),
            (400, "InvalidRequest") if self.operation.changes() && wants_checksum(answer) => {
                self.refused(self.no_checksum(answer))
            }
            (400, "InvalidArgument" | "InvalidRequest" | "InvalidHeader" | "UnsupportedArgument")
                if self.operation.changes() =>
            {
                self.refused(match self.target.is_trusted() {
                    true => self.bad_setting(answer),
                    false => self.not_implemented(answer),
                })
            }
            (200..=299, _) => self.unknown(self.garbled(answer)),
            _ => self.refused(self.unexpected(answer)),
        }
    }

    fn not_implemented(&self, answer: &Answer) -> Fault {
        self.fault(ErrorKind::Unsupported, answer).with_help(match self.operation {
            Operation::Read | Operation::Head | Operation::List => "this store does not implement a request that leasehold needs",
            Operation::Create | Operation::Replace => {
                "this store does not implement conditional writes (If-None-Match and If-Match on PutObject); locks \
                 need them: use Amazon S3 or a store that has them"
            }
            Operation::Delete => {
                "this store does not implement conditional deletes (If-Match on DeleteObject), so old records cannot \
                 be swept safely; locking does not need them"
            }
        })
    }

    /// Returns the fault for a body without a checksum in a bucket with Object Lock.
    fn no_checksum(&self, answer: &Answer) -> Fault {
        self.fault(ErrorKind::Invalid, answer).with_help(
            "the bucket has Object Lock and accepts no object without a checksum: add ?checksum=crc32 to the store \
             URL, or checksum=md5 for an older store. With a default retention each renewal of a lock leaves a \
             version that stays until its retention ends, so it is better to use another bucket",
        )
    }

    fn no_key(&self, answer: &Answer) -> Fault {
        self.fault(ErrorKind::Invalid, answer).with_help(
            "the key that encrypts the object cannot be used: check the option `kms_key`, or the bucket's default encryption",
        )
    }

    /// Returns the fault of a bucket at Amazon. Amazon supports conditional writes, so something else is wrong with the
    /// request.
    fn bad_setting(&self, answer: &Answer) -> Fault {
        self.fault(ErrorKind::Invalid, answer).with_help(
            "check the options `checksum`, `sse` and `kms_key` of the store URL, and the settings of the bucket",
        )
    }

    fn no_bucket(&self, answer: &Answer) -> Fault {
        let bucket = &self.target.bucket;
        self.fault(ErrorKind::Invalid, answer).with_help(format!(
            "there is no bucket {bucket:?} at {}: check the store URL, or create it (aws s3 mb s3://{bucket})",
            self.endpoint
        ))
    }

    fn wrong_region(&self, answer: &Answer) -> Fault {
        let (bucket, asked) = (&self.target.bucket, &self.target.region);
        self.fault(ErrorKind::Invalid, answer).with_help(match &answer.region {
            Some(region) if region != asked => {
                format!("the bucket {bucket:?} is in {region}, not in {asked}: add ?region={region} to the store URL")
            }
            _ => format!(
                "the bucket {bucket:?} seems not to be in {asked}: set the bucket's region (or the right endpoint) in \
                 the store URL"
            ),
        })
    }

    /// Returns a transient fault: the SDK has learned the clock difference from this response and signs the next
    /// request by the store's clock.
    fn skewed(&self, answer: &Answer) -> Fault {
        self.fault(ErrorKind::Unavailable, answer)
            .with_help("this machine's wall clock is more than 15 minutes off, and S3 refuses its signatures: set the clock")
    }

    fn denied(&self, answer: &Answer) -> Fault {
        let fault = self.fault(ErrorKind::Denied, answer);
        if self.target.is_directory() {
            return fault.with_help(format!("allow s3express:CreateSession on {}", self.target.arn()));
        }
        let (bucket, object) = (self.target.arn(), self.target.arn_of(self.key));
        match self.operation {
            Operation::List => fault.with_help(format!("allow s3:ListBucket on {bucket}")),
            Operation::Read | Operation::Head => fault.with_help(format!(
                "allow s3:GetObject on {object}, and s3:ListBucket on {bucket}: without the latter S3 also responds \
                 with 403 for an object that does not exist yet",
            )),
            _ => fault.with_help(format!("allow {} on {object}", permission(self.operation))),
        }
    }

    fn garbled(&self, answer: &Answer) -> Fault {
        self.fault(ErrorKind::Unavailable, answer)
            .with_help("the response is not one of S3's: check the endpoint")
    }

    fn bad_key(&self, answer: &Answer) -> Fault {
        self.fault(ErrorKind::Invalid, answer).with_help(
            "the key is too long for the store: use a shorter lock name or prefix (characters other than letters, \
             digits and - . _ ~ take three bytes or more; MinIO allows 255 bytes between two slashes)",
        )
    }

    fn unexpected(&self, answer: &Answer) -> Fault {
        self.fault(ErrorKind::Invalid, answer).with_help(format!(
            "this is not a response of S3: check that {} is an S3 endpoint",
            self.endpoint
        ))
    }
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
