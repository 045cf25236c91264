//! Tests requests that GCS refuses because of a policy or a missing bucket.

use super::*;
use crate::diagnosis::{CheckStatus, Finding};

/// Returns a refusal with a text of GCS.
fn refused_with(status: &str, reason: &str, message: &str) -> String {
    let errors = serde_json::json!([{"domain": "global", "reason": reason, "message": message}]);
    let body = serde_json::json!({"error": {"code": 412, "message": message, "errors": errors}});
    answer(status, "Content-Type: application/json\r\n", &body.to_string())
}

#[tokio::test]
async fn a_policy_is_not_taken_for_a_lost_race() {
    for (reason, message) in [
        ("conditionNotMet", "'us' violates constraint 'constraints/gcp.resourceLocations'"),
        ("orgPolicyConstraintFailed", "Request violates an organization's rule."),
        (
            "conditionNotMet",
            "Constraint constraints/gcp.restrictNonCmekServices: a customer-managed key is required.",
        ),
        ("retentionPolicyNotMet", "The bucket's retention has not been met."),
    ] {
        let server = Server::always(refused_with("412 Precondition Failed", reason, message)).await;
        let register = register(&server);
        let errors = [
            register.write("x.lock", Precondition::Absent, value().into()).await.unwrap_err(),
            register.write("x.lock", Precondition::Version(&v1()), value().into()).await.unwrap_err(),
            register.delete("x.lock", &v1()).await.unwrap_err(),
        ];
        for error in errors {
            assert!(matches!(error, StoreError::NotApplied(_)) && !error.is_transient(), "{error:?}");
            assert_eq!(error.fault().kind, ErrorKind::Denied, "{error:?}");
            assert!(error.to_string().contains(message) && error.to_string().contains(reason), "{error:?}");
            assert!(error.fault().help.as_ref().unwrap().contains("policy"), "{error:?}");
        }
        assert_eq!(server.requests().len(), 3);
    }
    let lost = "At least one of the pre-conditions you specified did not hold.";
    let server = Server::always(refused_with("412 Precondition Failed", "conditionNotMet", lost)).await;
    let written = register(&server).write("x.lock", Precondition::Absent, value().into()).await.unwrap();
    assert_eq!(written, Write::Conflict);
}

#[tokio::test]
async fn an_acquisition_that_a_policy_forbids_fails_at_once() {
    let forbids = refused_with("412 X", "conditionNotMet", "violates constraint 'constraints/x'");
    let server = Server::start(move |seen| {
        Reply::Answer(match seen.line.starts_with("GET") {
            true => answer("404 Not Found", DATE, "No such object: bucket/x"),
            false => forbids.clone(),
        })
    })
    .await;
    let url = format!("gs://bucket?credentials=anonymous&endpoint={}", server.url);
    let error = crate::Locker::open(&url).await.unwrap().lock("x").acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error:?}");
    assert!(error.to_string().contains("constraints/x"), "{error:?}");
    let writes = server.requests().into_iter().filter(|seen| seen.line.starts_with("POST")).count();
    assert_eq!(writes, 1);
}

#[tokio::test]
async fn the_doctor_names_a_bucket_that_is_not_there() {
    let missing = refused_with("404 Not Found", "notFound", "The specified bucket does not exist.");
    let server = Server::always(missing).await;
    let examined = register(&server).examine().await;
    assert!(!examined.is_sound());
    let failed = |finding: &&Finding| finding.verdict == CheckStatus::Failed;
    let [finding] = &examined.findings.iter().filter(failed).collect::<Vec<_>>()[..] else {
        panic!("{examined:?}")
    };
    assert_eq!(finding.check, "bucket");
    assert!(format!("{finding:?}").contains("there is no bucket \\\"bucket\\\" at http://"), "{finding:?}");
    let lines: Vec<_> = server.requests().into_iter().map(|seen| seen.line).collect();
    assert_eq!(lines.len(), 1, "{lines:?}");

    // If the user may not read the bucket's settings, or an emulator has none, the doctor reports that they were not
    // checked, and no check fails.
    for (status, reason) in [("403 Forbidden", "forbidden"), ("404 Not Found", "notFound")] {
        let server = Server::always(refused_with(status, reason, "Not Found")).await;
        let examined = register(&server).examine().await;
        assert!(examined.is_sound(), "{examined:?}");
    }
}
