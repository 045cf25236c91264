//! What an answer of S3, or the lack of one, means: a pure function, so that every row of it is tested.

use std::fmt;
use std::net::IpAddr;

use crate::error::{ErrorKind, Fault, StoreError};
use crate::stores::aws::trouble::{Answer, Trouble, Unanswered};

/// What was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    Read,
    /// Asks for the metadata alone.
    Stat,
    /// A write that expects nothing there.
    Create,
    /// A write that expects a version.
    Replace,
    Delete,
    List,
}

impl Operation {
    /// Whether the request can have an effect.
    fn changes(self) -> bool {
        matches!(self, Self::Create | Self::Replace | Self::Delete)
    }

    fn verb(self) -> &'static str {
        match self {
            Self::Read | Self::Stat => "read",
            Self::Create | Self::Replace => "write",
            Self::Delete => "delete",
            Self::List => "list",
        }
    }

    fn permission(self) -> &'static str {
        match self {
            Self::Read | Self::Stat => "s3:GetObject",
            Self::Create | Self::Replace => "s3:PutObject",
            Self::Delete => "s3:DeleteObject",
            Self::List => "s3:ListBucket",
        }
    }
}

/// Where it was asked for, for messages.
#[derive(Clone, Debug)]
pub(super) struct Place {
    pub(super) bucket: String,
    pub(super) region: String,
    /// `None` for Amazon's own endpoint.
    pub(super) endpoint: Option<String>,
    /// Which of those that the endpoint's name stands for; `None` leaves it to the client.
    pub(super) address: Option<IpAddr>,
}

impl Place {
    /// Whether it is known to honour preconditions, as Amazon documents of its general purpose buckets. It is not taken
    /// for granted of other stores, nor of what other names stand for on Amazon's own endpoints: access points by ARN
    /// or alias (`name-s3alias`, and `name-ext-s3alias` of a file system), Object Lambda (`name--ol-s3`), Outposts
    /// (`name--op-s3`), directory buckets (`name--x-s3`) and those that are still to come.
    pub(super) fn is_trusted(&self) -> bool {
        let plain =
            self.bucket.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b"-.".contains(&b));
        let special = self.bucket.rsplit_once("--").is_some_and(|(_, kind)| kind.ends_with("-s3"))
            || self.bucket.ends_with("-s3alias")
            || self.bucket.ends_with(".mrap");
        self.endpoint.is_none() && plain && !special
    }

    /// Whether it is a directory bucket of S3 Express, or an access point of one.
    pub(super) fn is_directory(&self) -> bool {
        self.bucket.ends_with("--x-s3") || self.bucket.ends_with("--xa-s3")
    }

    /// The bucket, or the access point, in a policy.
    pub(super) fn arn(&self) -> String {
        let Self { bucket, region, .. } = self;
        match bucket.starts_with("arn:") {
            true => bucket.clone(),
            false if bucket.ends_with("--xa-s3") => {
                format!("arn:aws:s3express:{region}:*:accesspoint/{bucket}")
            }
            false if self.is_directory() => format!("arn:aws:s3express:{region}:*:bucket/{bucket}"),
            false => format!("arn:aws:s3:::{bucket}"),
        }
    }

    /// Its objects in a policy.
    pub(super) fn arn_of(&self, key: &str) -> String {
        let objects = if self.bucket.starts_with("arn:") { "/object" } else { "" };
        format!("{}{objects}/{key}", self.arn())
    }

    /// The endpoint and the bucket, the same at each address.
    pub(super) fn shown(&self) -> String {
        format!("{}/{}", self.name().trim_end_matches('/'), self.bucket)
    }

    fn name(&self) -> String {
        self.endpoint.clone().unwrap_or_else(|| format!("Amazon S3 in {}", self.region))
    }

    fn endpoint(&self) -> String {
        match self.address {
            Some(address) => format!("{} at {address}", self.name()),
            None => self.name(),
        }
    }
}

/// What it means.
#[derive(Debug)]
pub(super) enum Meaning {
    /// There is nothing at that key.
    Absent,
    /// The precondition does not hold.
    Conflict,
    Failed(StoreError),
}

/// What `trouble` means for `operation` on object `key`.
pub(super) fn meaning(operation: Operation, key: &str, place: &Place, trouble: Trouble) -> Meaning {
    let case = Case { operation, key, place };
    let answer = match trouble.answer(&case, &place.endpoint()) {
        Ok(answer) => answer,
        Err(Unanswered::NotSent(fault)) => return case.refused(fault),
        Err(Unanswered::MaybeSent(fault)) => return case.unknown(fault),
    };
    match (operation, answer.status, answer.code.as_deref()) {
        (Operation::Read, 404, Some("NoSuchKey")) => Meaning::Absent,
        // An answer to HEAD has no body, and so no code: the bucket may be what is missing, as the write will tell.
        (Operation::Stat, 404, _) => Meaning::Absent,
        (Operation::Replace | Operation::Delete, 404, Some("NoSuchKey")) => Meaning::Conflict,
        (Operation::Create | Operation::Replace | Operation::Delete, 412, _) => Meaning::Conflict,
        _ => case.answered(&answer),
    }
}

struct Case<'a> {
    operation: Operation,
    key: &'a str,
    place: &'a Place,
}

impl fmt::Display for Case<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot {} s3://{}/{}", self.operation.verb(), self.place.bucket, self.key)
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

    fn answered(&self, answer: &Answer) -> Meaning {
        let code = answer.code.as_deref().unwrap_or("");
        match (answer.status, code) {
            // The request reached an end of S3 that does no work for it: throttling before anything is done.
            (503, "SlowDown") | (429, _) => self.refused(self.busy(answer)),
            // Another conditional write of this key is under way. Nothing was written, and nobody is known to hold it.
            (409, _) => self.refused(self.busy(answer)),
            // S3 gave up reading the request; a proxy may say so of one that it had passed on. Other 503s likewise:
            // load balancers give them for connections that broke, MinIO when too few disks took the write.
            (408 | 500..=500 | 502..=599, _) | (400, "RequestTimeout") => self.unknown(self.busy(answer)),
            (501, _) | (400, "NotImplemented") => self.refused(self.not_implemented(answer)),
            (_, "NoSuchBucket" | "InvalidBucketName") => self.refused(self.no_bucket(answer)),
            (300..=399, _) | (400, "AuthorizationHeaderMalformed" | "IllegalLocationConstraintException") => {
                self.refused(self.wrong_region(answer))
            }
            (400, "KeyTooLongError" | "XMinioInvalidObjectName") => self.refused(self.bad_key(answer)),
            (_, "RequestTimeTooSkewed") => self.refused(self.skewed(answer)),
            (401 | 403, _) | (400, "ExpiredToken" | "InvalidToken" | "TokenRefreshRequired") => {
                self.refused(self.denied(answer))
            }
            (_, code) if code.starts_with("KMS.") => self.refused(self.no_key(answer)),
            (400, "InvalidRequest") if self.operation.changes() && wants_checksum(answer) => {
                self.refused(self.no_checksum(answer))
            }
            (400, "InvalidArgument" | "InvalidRequest" | "InvalidHeader" | "UnsupportedArgument")
                if self.operation.changes() =>
            {
                self.refused(match self.place.is_trusted() {
                    true => self.bad_setting(answer),
                    false => self.not_implemented(answer),
                })
            }
            (200..=299, _) => self.unknown(self.garbled(answer)),
            _ => self.refused(self.unexpected(answer)),
        }
    }

    fn fault(&self, kind: ErrorKind, answer: &Answer) -> Fault {
        answer.fault(kind, self, &self.place.endpoint())
    }

    fn busy(&self, answer: &Answer) -> Fault {
        self.fault(ErrorKind::Unavailable, answer)
    }

    fn not_implemented(&self, answer: &Answer) -> Fault {
        self.fault(ErrorKind::Unsupported, answer).with_help(match self.operation {
            Operation::Read | Operation::Stat | Operation::List => "this store does not implement a request that leasehold needs",
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

    /// What a bucket with Object Lock says to a body without a checksum.
    fn no_checksum(&self, answer: &Answer) -> Fault {
        self.fault(ErrorKind::Invalid, answer).with_help(
            "the bucket has Object Lock and takes no object without a checksum: add ?checksum=crc32 to the store URL, or \
             checksum=md5 for an older store. With a default retention each renewal of a lock leaves a version that stays \
             until its retention ends: rather use another bucket",
        )
    }

    fn no_key(&self, answer: &Answer) -> Fault {
        self.fault(ErrorKind::Invalid, answer).with_help(
            "the key that encrypts the object cannot be used: check the option `kms_key`, or the bucket's default encryption",
        )
    }

    /// Amazon has conditional writes, so something else is wrong with the request.
    fn bad_setting(&self, answer: &Answer) -> Fault {
        self.fault(ErrorKind::Invalid, answer).with_help(
            "check the options `checksum`, `sse` and `kms_key` of the store URL, and the settings of the bucket",
        )
    }

    fn no_bucket(&self, answer: &Answer) -> Fault {
        let bucket = &self.place.bucket;
        self.fault(ErrorKind::Invalid, answer).with_help(format!(
            "there is no bucket {bucket:?} at {}: check the store URL, or create it (aws s3 mb s3://{bucket})",
            self.place.endpoint()
        ))
    }

    fn wrong_region(&self, answer: &Answer) -> Fault {
        let (bucket, asked) = (&self.place.bucket, &self.place.region);
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

    /// The SDK has learned the difference from this answer and signs the next request by the store's clock.
    fn skewed(&self, answer: &Answer) -> Fault {
        self.fault(ErrorKind::Unavailable, answer)
            .with_help("this machine's wall clock is more than 15 minutes off, and S3 refuses its signatures: set the clock")
    }

    fn denied(&self, answer: &Answer) -> Fault {
        let fault = self.fault(ErrorKind::Denied, answer);
        if let Some(help) = answer.credentials_help() {
            return fault.with_help(help);
        }
        if self.place.is_directory() {
            return fault.with_help(format!("allow s3express:CreateSession on {}", self.place.arn()));
        }
        let (bucket, object) = (self.place.arn(), self.place.arn_of(self.key));
        match self.operation {
            Operation::List => fault.with_help(format!("allow s3:ListBucket on {bucket}")),
            Operation::Read | Operation::Stat => fault.with_help(format!(
                "allow s3:GetObject on {object}, and s3:ListBucket on {bucket}: without the latter S3 answers 403 also for \
                 an object that does not exist yet",
            )),
            _ => fault.with_help(format!("allow {} on {object}", self.operation.permission())),
        }
    }

    fn garbled(&self, answer: &Answer) -> Fault {
        self.fault(ErrorKind::Unavailable, answer)
            .with_help("the answer is not one of S3: check the endpoint")
    }

    fn bad_key(&self, answer: &Answer) -> Fault {
        self.fault(ErrorKind::Invalid, answer).with_help(
            "the store does not take so long a key: use a shorter lock name or prefix (other characters than letters, \
             digits and - . _ ~ take three bytes or more; MinIO takes 255 bytes between two slashes)",
        )
    }

    fn unexpected(&self, answer: &Answer) -> Fault {
        self.fault(ErrorKind::Invalid, answer).with_help(format!(
            "S3 does not answer so: check that {} is an S3 endpoint",
            self.place.endpoint()
        ))
    }
}

/// Content-MD5 or x-amz-checksum- is what it names.
fn wants_checksum(answer: &Answer) -> bool {
    answer.message.as_ref().is_some_and(|message| {
        let message = message.to_ascii_lowercase();
        message.contains("content-md5") || message.contains("x-amz-checksum")
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn place() -> Place {
        Place { endpoint: Some("http://here:9".into()), ..amazons("bkt") }
    }

    fn amazons(bucket: &str) -> Place {
        Place { bucket: bucket.into(), region: "eu-west-1".into(), endpoint: None, address: None }
    }

    #[test]
    fn only_plain_buckets_at_amazons_endpoints_are_trusted() {
        for (bucket, trusted) in [
            ("bkt", true),
            ("my--bucket", true),
            ("my.bucket", true),
            ("s3alias", true),
            ("backup-s3", true),
            // An access point, and one of a file system (FSx).
            ("locks-a1b2c3d4e5f6a1b2c3d4e5f6a1b2c3d4use1a-s3alias", false),
            ("locks-a1b2c3d4e5f6a1b2c3d4e5f6a1b2c3d4use1a-ext-s3alias", false),
            // Object Lambda, Outposts, a directory bucket, a table bucket, and one that is still to come.
            ("locks-a1b2c3d4use1a--ol-s3", false),
            ("locks-o01ac5d28a6a232904e8xz5w8ijx1qzlbp3i3kuse10--op-s3", false),
            ("bkt--euw1-az1--x-s3", false),
            ("locks--euw1-az1--xa-s3", false),
            ("bkt--table-s3", false),
            ("bkt--new-s3", false),
            ("mfzwi23gnjvgw.mrap", false),
            ("arn:aws:s3:eu-west-1:123456789012:accesspoint/locks", false),
            ("arn:aws:s3::123456789012:accesspoint/mfzwi23gnjvgw.mrap", false),
            ("arn:aws:s3-object-lambda:eu-west-1:123456789012:accesspoint/locks", false),
        ] {
            assert_eq!(amazons(bucket).is_trusted(), trusted, "{bucket}");
            // An endpoint of one's own is probed, also if it is one of Amazon's.
            for endpoint in ["https://s3.example.com", "https://s3.eu-west-1.amazonaws.com"] {
                let place = Place { endpoint: Some(endpoint.into()), ..amazons(bucket) };
                assert!(!place.is_trusted(), "{bucket} {endpoint}");
            }
        }
    }

    #[test]
    fn missing_permissions_are_named_for_each_kind_of_bucket() {
        let access_point = "arn:aws:s3:eu-west-1:123456789012:accesspoint/x";
        for (bucket, named) in [
            ("bkt", "s3:PutObject on arn:aws:s3:::bkt/p/x.lock".to_owned()),
            (access_point, format!("s3:PutObject on {access_point}/object/p/x.lock")),
            (
                "bkt--euw1-az1--x-s3",
                "s3express:CreateSession on arn:aws:s3express:eu-west-1:*:bucket/bkt--euw1-az1--x-s3"
                    .to_owned(),
            ),
        ] {
            let meaning =
                meaning(Operation::Create, "p/x.lock", &amazons(bucket), answered(403, "AccessDenied"));
            let Meaning::Failed(error) = meaning else { panic!() };
            assert!(error.fault().help.as_ref().unwrap().contains(&named), "{error:?}");
        }
    }

    #[test]
    fn a_body_without_a_checksum_is_not_told_to_move_to_amazon() {
        let text = "Content-MD5 OR x-amz-checksum- HTTP header is required for Put Object requests with Object Lock parameters";
        let answer = |code: &str, text: &str| {
            let (code, message) = (Some(code.to_owned()), Some(text.to_owned()));
            Trouble::Answered(Answer { status: 400, code, message, ..Answer::default() })
        };
        for (place, trouble, helps) in [
            (amazons("bkt"), answer("InvalidRequest", text), "checksum=crc32"),
            (place(), answer("InvalidRequest", text), "checksum=crc32"),
            (amazons("bkt"), answer("InvalidArgument", "something else"), "`sse`"),
            (place(), answer("InvalidArgument", "something else"), "conditional writes"),
            (amazons("bkt"), answer("KMS.NotFoundException", "no such key"), "`kms_key`"),
        ] {
            let Meaning::Failed(error) = meaning(Operation::Create, "x.lock", &place, trouble) else {
                panic!()
            };
            let help = error.fault().help.clone().unwrap();
            assert!(help.contains(helps), "{help}");
            assert_eq!(help.contains("use Amazon S3"), helps == "conditional writes", "{help}");
        }
    }

    fn means(operation: Operation, trouble: Trouble) -> Meaning {
        meaning(operation, "p/x.lock", &place(), trouble)
    }

    fn answered(status: u16, code: &str) -> Trouble {
        let code = (!code.is_empty()).then(|| code.to_owned());
        Trouble::Answered(Answer { status, code, ..Answer::default() })
    }

    /// `absent`, `conflict`, or `not`/`maybe` with the kind of the fault.
    fn short(meaning: &Meaning) -> String {
        match meaning {
            Meaning::Absent => "absent".into(),
            Meaning::Conflict => "conflict".into(),
            Meaning::Failed(StoreError::NotApplied(fault)) => format!("not {}", fault.kind),
            Meaning::Failed(StoreError::MaybeApplied(fault)) => format!("maybe {}", fault.kind),
        }
    }

    #[test]
    fn every_answer_has_its_meaning_for_every_operation() {
        use Operation::{Create, Delete, List, Read, Replace};
        let rows: &[(u16, &str, [&str; 5])] = &[
            // status, code, [read, create, replace, delete, list]
            (404, "NoSuchKey", ["absent", "not invalid", "conflict", "conflict", "not invalid"]),
            (404, "", ["not invalid"; 5]),
            (404, "NoSuchBucket", ["not invalid"; 5]),
            (412, "PreconditionFailed", ["not invalid", "conflict", "conflict", "conflict", "not invalid"]),
            (412, "", ["not invalid", "conflict", "conflict", "conflict", "not invalid"]),
            (409, "ConditionalRequestConflict", ["not unavailable"; 5]),
            (409, "OperationAborted", ["not unavailable"; 5]),
            (429, "TooManyRequests", ["not unavailable"; 5]),
            (503, "SlowDown", ["not unavailable"; 5]),
            (503, "SlowDownWrite", UNKNOWN),
            (503, "ServiceUnavailable", UNKNOWN),
            (503, "", UNKNOWN),
            (500, "InternalError", UNKNOWN),
            (502, "", UNKNOWN),
            (504, "", UNKNOWN),
            (507, "XMinioStorageFull", UNKNOWN),
            (408, "", UNKNOWN),
            (400, "RequestTimeout", UNKNOWN),
            (200, "", UNKNOWN),
            (501, "NotImplemented", ["not unsupported"; 5]),
            (400, "NotImplemented", ["not unsupported"; 5]),
            (
                400,
                "InvalidArgument",
                ["not invalid", "not unsupported", "not unsupported", "not unsupported", "not invalid"],
            ),
            (400, "KeyTooLongError", ["not invalid"; 5]),
            (400, "AuthorizationHeaderMalformed", ["not invalid"; 5]),
            (400, "IllegalLocationConstraintException", ["not invalid"; 5]),
            (301, "PermanentRedirect", ["not invalid"; 5]),
            (307, "TemporaryRedirect", ["not invalid"; 5]),
            (403, "AccessDenied", ["not denied"; 5]),
            (403, "", ["not denied"; 5]),
            (401, "", ["not denied"; 5]),
            (403, "InvalidAccessKeyId", ["not denied"; 5]),
            (403, "SignatureDoesNotMatch", ["not denied"; 5]),
            (400, "ExpiredToken", ["not denied"; 5]),
            (403, "RequestTimeTooSkewed", ["not unavailable"; 5]),
            (405, "MethodNotAllowed", ["not invalid"; 5]),
            (418, "", ["not invalid"; 5]),
        ];
        const UNKNOWN: [&str; 5] = [
            "not unavailable",
            "maybe unavailable",
            "maybe unavailable",
            "maybe unavailable",
            "not unavailable",
        ];
        for (status, code, expected) in rows {
            for (operation, expected) in [Read, Create, Replace, Delete, List].into_iter().zip(expected) {
                let meaning = means(operation, answered(*status, code));
                assert_eq!(short(&meaning), *expected, "{status} {code} {operation:?}");
            }
        }
    }

    #[test]
    fn without_an_answer_it_matters_whether_the_request_was_sent() {
        let detail = || "x".to_owned();
        for (trouble, read, write) in [
            (Trouble::NotConnected { detail: detail() }, "not unavailable", "not unavailable"),
            (Trouble::NoAnswer { detail: detail() }, "not unavailable", "maybe unavailable"),
            (Trouble::NotMade { detail: detail() }, "not invalid", "not invalid"),
            (Trouble::Credentials { detail: detail(), before: false }, "not denied", "not denied"),
            (Trouble::Credentials { detail: detail(), before: true }, "not unavailable", "not unavailable"),
        ] {
            assert_eq!(short(&means(Operation::Read, trouble.clone())), read, "{trouble:?}");
            for operation in [Operation::Create, Operation::Replace, Operation::Delete] {
                assert_eq!(short(&means(operation, trouble.clone())), write, "{trouble:?}");
            }
        }
    }

    fn fault(operation: Operation, trouble: Trouble) -> Fault {
        match means(operation, trouble) {
            Meaning::Failed(StoreError::NotApplied(fault) | StoreError::MaybeApplied(fault)) => fault,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn an_error_names_the_address_that_was_asked_and_the_verdict_does_not() {
        let address = Some([10, 0, 0, 2].into());
        let place = Place { address, ..place() };
        let Meaning::Failed(error) =
            meaning(Operation::Read, "x.lock", &place, answered(500, "InternalError"))
        else {
            panic!()
        };
        assert!(error.to_string().contains("http://here:9 at 10.0.0.2"), "{error:?}");
        assert_eq!(place.shown(), "http://here:9/bkt");
    }

    #[test]
    fn errors_say_what_to_do() {
        use Operation::{Create, Delete, List, Read};
        for (operation, trouble, helps) in [
            (Read, answered(403, "AccessDenied"), vec!["s3:GetObject", "s3:ListBucket", "bkt/p/x.lock"]),
            (Create, answered(403, "AccessDenied"), vec!["s3:PutObject", "arn:aws:s3:::bkt/p/x.lock"]),
            (Delete, answered(403, "AccessDenied"), vec!["s3:DeleteObject"]),
            (List, answered(403, "AccessDenied"), vec!["s3:ListBucket on arn:aws:s3:::bkt"]),
            (Read, answered(404, "NoSuchBucket"), vec!["\"bkt\"", "http://here:9"]),
            (Create, answered(501, "NotImplemented"), vec!["conditional writes"]),
            (Read, answered(403, "InvalidAccessKeyId"), vec!["AWS_PROFILE"]),
            (Read, answered(403, "RequestTimeTooSkewed"), vec!["clock"]),
            (Read, answered(400, "ExpiredToken"), vec!["sign in again"]),
            (
                Read,
                Trouble::Credentials { detail: String::new(), before: false },
                vec!["no credentials found: set AWS_PROFILE"],
            ),
        ] {
            let help = fault(operation, trouble.clone()).help.unwrap();
            for part in helps {
                assert!(help.contains(part), "{trouble:?}: {help}");
            }
        }
        let refused = fault(Read, Trouble::NotConnected { detail: "refused".into() });
        assert!(refused.message.contains("http://here:9") && refused.message.contains("refused"));
    }

    #[test]
    fn a_wrong_region_names_the_right_one_and_throttling_its_pause() {
        let answer = Answer {
            status: 301,
            code: Some("PermanentRedirect".into()),
            region: Some("us-west-2".into()),
            ..Answer::default()
        };
        let help = fault(Operation::Read, Trouble::Answered(answer)).help.unwrap();
        assert!(help.contains("?region=us-west-2") && help.contains("not in eu-west-1"), "{help}");
        let wait = Some(Duration::from_secs(7));
        let answer =
            Answer { status: 503, code: Some("SlowDown".into()), retry_after: wait, ..Answer::default() };
        assert_eq!(fault(Operation::Create, Trouble::Answered(answer)).retry_after, wait);
    }

    #[test]
    fn the_stores_own_words_are_shown_on_one_line_and_cut() {
        let answer = Answer {
            status: 418,
            message: Some(format!("a\n\u{1b}[31m{}", "x".repeat(999))),
            ..Answer::default()
        };
        let message = fault(Operation::Read, Trouble::Answered(answer)).message;
        assert!(!message.contains(['\n', '\u{1b}']) && message.len() < 400, "{message}");
    }
}
