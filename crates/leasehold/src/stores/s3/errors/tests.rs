use std::time::Duration;

use super::*;
use crate::error::Fault;
use crate::stores::over_http::answer::tests::answered;

fn target() -> Target {
    Target { endpoint: Some("http://here:9".into()), ..amazons("bkt") }
}

fn amazons(bucket: &str) -> Target {
    Target { bucket: bucket.into(), region: "eu-west-1".into(), endpoint: None, address: None }
}

#[test]
fn missing_permissions_are_named_for_each_kind_of_bucket() {
    let access_point = "arn:aws:s3:eu-west-1:123456789012:accesspoint/x";
    for (bucket, named) in [
        ("bkt", "s3:PutObject on arn:aws:s3:::bkt/p/x.lock".to_owned()),
        (access_point, format!("s3:PutObject on {access_point}/object/p/x.lock")),
        (
            "bkt--euw1-az1--x-s3",
            "s3express:CreateSession on arn:aws:s3express:eu-west-1:*:bucket/bkt--euw1-az1--x-s3".to_owned(),
        ),
    ] {
        let meaning = meaning(Operation::Create, "p/x.lock", &amazons(bucket), answered(403, "AccessDenied"));
        let Meaning::Failed(error) = meaning else { panic!() };
        assert!(error.fault().help.as_ref().unwrap().contains(&named), "{error:?}");
    }
}

#[test]
fn the_help_for_a_missing_checksum_is_not_to_use_amazon() {
    let text = "Content-MD5 OR x-amz-checksum- HTTP header is required for Put Object requests with Object Lock parameters";
    let answer = |code: &str, text: &str| {
        let (code, message) = (Some(code.to_owned()), Some(text.to_owned()));
        Failure::Answered(Answer { status: 400, code, message, ..Answer::default() })
    };
    for (target, failure, helps) in [
        (amazons("bkt"), answer("InvalidRequest", text), "checksum=crc32"),
        (target(), answer("InvalidRequest", text), "checksum=crc32"),
        (amazons("bkt"), answer("InvalidArgument", "something else"), "`sse`"),
        (target(), answer("InvalidArgument", "something else"), "conditional writes"),
        (amazons("bkt"), answer("KMS.NotFoundException", "no such key"), "`kms_key`"),
    ] {
        let Meaning::Failed(error) = meaning(Operation::Create, "x.lock", &target, failure) else { panic!() };
        let help = error.fault().help.clone().unwrap();
        assert!(help.contains(helps), "{help}");
        assert_eq!(help.contains("use Amazon S3"), helps == "conditional writes", "{help}");
    }
}

fn means(operation: Operation, failure: Failure) -> Meaning {
    meaning(operation, "p/x.lock", &target(), failure)
}

#[test]
fn every_response_has_a_meaning_for_every_operation() {
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
    const UNKNOWN: [&str; 5] =
        ["not unavailable", "maybe unavailable", "maybe unavailable", "maybe unavailable", "not unavailable"];
    for (status, code, expected) in rows {
        for (operation, expected) in [Read, Create, Replace, Delete, List].into_iter().zip(expected) {
            let meaning = means(operation, answered(*status, code));
            assert_eq!(meaning.short(), *expected, "{status} {code} {operation:?}");
        }
    }
}

fn fault(operation: Operation, failure: Failure) -> Fault {
    means(operation, failure).fault()
}

#[test]
fn an_error_names_the_address_asked_but_the_identity_does_not() {
    let address = Some([10, 0, 0, 2].into());
    let target = Target { address, ..target() };
    let Meaning::Failed(error) = meaning(Operation::Read, "x.lock", &target, answered(500, "InternalError"))
    else {
        panic!()
    };
    assert!(error.to_string().contains("http://here:9 at 10.0.0.2"), "{error:?}");
    assert_eq!(target.identity(), "http://here:9/bkt");
}

#[test]
fn errors_say_what_to_do() {
    use Operation::{Create, Delete, List, Read};
    for (operation, failure, helps) in [
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
            Failure::Credentials { detail: String::new(), before: false },
            vec!["no credentials found: set AWS_PROFILE"],
        ),
    ] {
        let help = fault(operation, failure.clone()).help.unwrap();
        for part in helps {
            assert!(help.contains(part), "{failure:?}: {help}");
        }
    }
    let refused = fault(Read, Failure::NotConnected { detail: "refused".into() });
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
    let help = fault(Operation::Read, Failure::Answered(answer)).help.unwrap();
    assert!(help.contains("?region=us-west-2") && help.contains("not in eu-west-1"), "{help}");
    let wait = Some(Duration::from_secs(7));
    let answer =
        Answer { status: 503, code: Some("SlowDown".into()), retry_after: wait, ..Answer::default() };
    assert_eq!(fault(Operation::Create, Failure::Answered(answer)).retry_after, wait);
}
