use super::*;
use crate::error::Fault;

fn target(endpoint: &str) -> Target {
    Target { bucket: "bkt".into(), endpoint: endpoint.into(), ..Target::default() }
}

fn means(operation: Operation, failure: Failure) -> Meaning {
    meaning(operation, "p/x.lock", &target("http://here:9"), failure)
}

fn answered(status: u16, reason: &str, message: &str) -> Failure {
    let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    let answer = Answer { status, code: some(reason), message: some(message), ..Answer::default() };
    Failure::Answered(answer)
}

const NO_BUCKET: &str = "The specified bucket does not exist.";
const PRECONDITION: &str = "At least one of the pre-conditions you specified did not hold.";
const LOCATION: &str = "'us' violates constraint 'constraints/gcp.resourceLocations'";
const POLICY: [&str; 5] = ["not invalid", "not denied", "not denied", "not denied", "not invalid"];
const UNKNOWN: [&str; 5] =
    ["not unavailable", "maybe unavailable", "maybe unavailable", "maybe unavailable", "not unavailable"];
const BUSY: [&str; 5] = ["not unavailable"; 5];
const DENIED: [&str; 5] = ["not denied"; 5];
const INVALID: [&str; 5] = ["not invalid"; 5];

#[test]
fn every_response_has_a_meaning_for_every_operation() {
    use Operation::{Create, Delete, List, Read, Replace};
    let rows: &[(u16, &str, &str, [&str; 5])] = &[
        // status, reason, message, [read, create, replace, delete, list]
        (
            404,
            "notFound",
            "No such object: bkt/p/x.lock",
            ["absent", "not invalid", "not invalid", "conflict", "not invalid"],
        ),
        // The responses to a read, of GCS and of an emulator.
        (
            404,
            "",
            "No such object: bkt/p/x.lock",
            ["absent", "not invalid", "not invalid", "conflict", "not invalid"],
        ),
        (404, "", "Not Found", ["absent", "not invalid", "not invalid", "conflict", "not invalid"]),
        (404, "notFound", NO_BUCKET, INVALID),
        (404, "", NO_BUCKET, INVALID),
        (404, "", "<html>nginx</html>", INVALID),
        (412, "conditionNotMet", "", ["not invalid", "conflict", "conflict", "conflict", "not invalid"]),
        (412, "", "", ["not invalid", "conflict", "conflict", "conflict", "not invalid"]),
        (
            412,
            "conditionNotMet",
            PRECONDITION,
            ["not invalid", "conflict", "conflict", "conflict", "not invalid"],
        ),
        (412, "", PRECONDITION, ["not invalid", "conflict", "conflict", "conflict", "not invalid"]),
        (412, "conditionNotMet", LOCATION, POLICY),
        (412, "orgPolicyConstraintFailed", "", POLICY),
        (412, "", LOCATION, POLICY),
        (412, "preconditionFailed", "Objects need a customer-managed encryption key.", POLICY),
        (412, "", "<html>proxy", INVALID),
        (304, "notModified", "", INVALID),
        (307, "", "", INVALID),
        (308, "", "", INVALID),
        (400, "invalid", "The maximum object length is 1024 characters", INVALID),
        (400, "parseError", "", INVALID),
        (400, "required", "Bucket is a requester pays bucket but no user project provided.", DENIED),
        (401, "authError", "Invalid Credentials", DENIED),
        (401, "required", "Anonymous caller does not have storage.objects.get access", DENIED),
        (403, "forbidden", "", DENIED),
        (403, "", "<html>proxy", DENIED),
        (403, "accountDisabled", "", DENIED),
        (403, "rateLimitExceeded", "", BUSY),
        (403, "userRateLimitExceeded", "", BUSY),
        (403, "quotaExceeded", "", BUSY),
        (403, "retentionPolicyNotMet", "", ["not unsupported"; 5]),
        (403, "objectUnderActiveHold", "", ["not unsupported"; 5]),
        (405, "methodNotAllowed", "", INVALID),
        (408, "", "", UNKNOWN),
        (409, "conflict", "", UNKNOWN),
        (410, "", "", INVALID),
        (411, "", "", INVALID),
        (413, "uploadTooLarge", "", INVALID),
        (416, "", "", INVALID),
        (418, "", "", INVALID),
        (429, "rateLimitExceeded", "The object exceeded the rate limit for object mutation operations", BUSY),
        (429, "", "", BUSY),
        (499, "", "Client Closed Request", UNKNOWN),
        (500, "internalError", "", UNKNOWN),
        (501, "notImplemented", "", ["not unsupported"; 5]),
        (502, "badGateway", "", UNKNOWN),
        (503, "backendError", "", UNKNOWN),
        (503, "", "", UNKNOWN),
        (504, "gatewayTimeout", "", UNKNOWN),
        (200, "", "", UNKNOWN),
    ];
    for (status, reason, message, expected) in rows {
        for (operation, expected) in [Read, Create, Replace, Delete, List].into_iter().zip(expected) {
            let meaning = means(operation, answered(*status, reason, message));
            assert_eq!(meaning.short(), *expected, "{status} {reason} {message} {operation:?}");
        }
    }
}

fn fault(operation: Operation, failure: Failure) -> Fault {
    means(operation, failure).fault()
}

#[test]
fn errors_say_what_to_do() {
    use Operation::{Create, Delete, List, Read, Replace};
    for (operation, failure, helps) in [
        (
            Read,
            answered(403, "forbidden", ""),
            vec!["storage.objects.get", "storage.objects.list", "gs://bkt"],
        ),
        (Create, answered(403, "forbidden", ""), vec!["storage.objects.create", "roles/storage.objectUser"]),
        (Replace, answered(403, "forbidden", ""), vec!["storage.objects.create", "storage.objects.delete"]),
        (Delete, answered(403, "forbidden", ""), vec!["storage.objects.delete"]),
        (List, answered(403, "forbidden", ""), vec!["storage.objects.list"]),
        (Read, answered(401, "required", ""), vec!["GOOGLE_APPLICATION_CREDENTIALS", "gcloud auth"]),
        (Create, answered(404, "notFound", NO_BUCKET), vec!["\"bkt\"", "http://here:9", "buckets create"]),
        (Replace, answered(403, "retentionPolicyNotMet", ""), vec!["retention"]),
        (Replace, answered(412, "conditionNotMet", LOCATION), vec!["policy", "no other client", "?kms_key="]),
        (Create, answered(403, "accountDisabled", ""), vec!["?user_project="]),
        (
            Read,
            Failure::Credentials { detail: String::new(), before: false },
            vec!["no credentials found", "?credentials=/path/to/key.json"],
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
fn an_expired_token_is_transient() {
    let answer = Answer { status: 401, signed_before: true, ..Answer::default() };
    let expired = means(Operation::Create, Failure::Answered(answer));
    assert_eq!(expired.short(), "not unavailable");
}
