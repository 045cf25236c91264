use proptest::prelude::*;

use super::*;
use crate::golden::{golden, golden_record};
use crate::lease::End;

/// Returns the Lease that shows `record`, as a server returns it.
fn lease_of(record: &Record, over: Option<(&Revision, Option<&Record>)>) -> Value {
    let spec = spec(record, over).unwrap();
    let annotations = annotations(record, Some(&spec)).unwrap();
    json!({ "metadata": { "name": "x", "resourceVersion": "7", "annotations": annotations }, "spec": spec })
}

fn content(lease: &Value) -> Content {
    Lease::of(lease.to_string().as_bytes()).unwrap().found().unwrap().content
}

fn record(lease: &Value) -> Record {
    match content(lease) {
        Content::Record(record) => *record,
        Content::Foreign { what, .. } => panic!("{what}"),
    }
}

fn foreign(lease: &Value) -> String {
    match content(lease) {
        Content::Foreign { what, .. } => what,
        Content::Record(record) => panic!("{record:?}"),
    }
}

fn revision(transitions: i32, renewed_s: u64) -> Revision {
    Revision { resource_version: "7".into(), transitions, renewed_s }
}

const GOLDEN: [&str; 5] =
    ["1-held.json", "1-free.json", "1-cooldown.json", "1-leading.json", "1-awaited.json"];

#[test]
fn a_record_is_read_back_unchanged() {
    for golden in GOLDEN {
        let golden = golden_record(golden);
        assert_eq!(record(&lease_of(&golden, None)), golden);
    }
}

#[test]
fn the_first_format_is_still_read_and_written() {
    let held = golden_record("1-held.json");
    let lease: Value = serde_json::from_str(&golden("1-kubernetes-held.json")).unwrap();
    assert_eq!(record(&lease), held);
    assert_eq!(lease_of(&held, Some((&revision(4, 0), None))), lease);
}

/// kubectl and other clients read these fields.
#[test]
fn the_spec_names_the_holder() {
    let held = golden_record("1-held.json");
    assert_eq!(
        lease_of(&held, Some((&revision(4, 0), None)))["spec"],
        json!({
            "holderIdentity": "alice@ci-7_4121_00112233", "leaseDurationSeconds": 34, "leaseTransitions": 5,
            "acquireTime": "2025-11-20T16:00:00.000041Z", "renewTime": "2025-11-20T16:00:30.000041Z",
        })
    );
    let free = Record { state: RecordState::Free, ..held.clone() };
    let spec = &lease_of(&free, Some((&revision(4, 0), Some(&held))))["spec"];
    // client-go releases a lock like this.
    assert_eq!((&spec["holderIdentity"], &spec["leaseDurationSeconds"]), (&json!(""), &json!(1)));
    assert_eq!(spec["leaseTransitions"], json!(4));
    let cooldown = Record { state: RecordState::Cooldown, cooldown_ms: Some(60_000), ..held };
    let spec = &lease_of(&cooldown, None)["spec"];
    assert_eq!(spec["holderIdentity"], json!("cooldown after alice@ci-7_4121_00112233"));
    assert_eq!(spec["leaseDurationSeconds"], json!(63));
}

/// Other clients take over when they have seen no change for the duration in the Lease.
#[test]
fn other_clients_wait_longer_than_a_holder_may_hold() {
    for ttl_ms in [500, 2_000, 30_000, 86_400_000] {
        let record = Record { ttl_ms, lock_delay_ms: 1_500, ..golden_record("1-held.json") };
        let seconds = lease_of(&record, None)["spec"]["leaseDurationSeconds"].as_u64().unwrap();
        let least = record.ttl().contender_span() + record.lock_delay() + UNSEEN;
        assert!(Duration::from_secs(seconds) >= least, "{ttl_ms}");
    }
}

/// client-go compares whole seconds.
#[test]
fn each_renewal_shows_another_second() {
    let mut before = golden_record("1-held.json");
    let mut at = revision(0, before.renewed_at_us.unwrap() / 1_000_000);
    for after_us in [1_000_000, 700_000, 1_100_000, 0, 1_000_000] {
        let renewed_us = before.renewed_at_us.unwrap() + after_us;
        let renewed =
            Record { heartbeat: before.heartbeat + 1, renewed_at_us: Some(renewed_us), ..before.clone() };
        let shown: Lease = serde_json::from_value(lease_of(&renewed, Some((&at, Some(&before))))).unwrap();
        let shown: Revision = shown.version().as_str().parse().unwrap();
        assert!(shown.renewed_s > at.renewed_s, "{shown:?} {at:?}");
        assert!(shown.renewed_s <= renewed_us / 1_000_000 + MAX_AHEAD_S);
        (before, at) = (renewed, shown);
    }
    // Several renewals per second do not move the time far ahead.
    assert_eq!(next_shown(10_500_000, 12), 12_000_000);
    assert_eq!(next_shown(10_500_000, 99), 12_000_000);
    assert_eq!(next_shown(10_500_000, 7), 10_500_000);
}

#[test]
fn transitions_count_grants() {
    let before = golden_record("1-held.json");
    let of = |record: &Record| {
        lease_of(record, Some((&revision(4, 0), Some(&before))))["spec"]["leaseTransitions"].clone()
    };
    let renewed = Record { heartbeat: 4, ..before.clone() };
    assert_eq!(of(&renewed), json!(4));
    assert_eq!(of(&Record { grant: before.nonce, ..before.clone() }), json!(5));
    assert_eq!(lease_of(&before, None)["spec"]["leaseTransitions"], json!(0));
}

#[test]
fn without_the_servers_time_nothing_is_written() {
    let record = Record { renewed_at_us: None, ..golden_record("1-held.json") };
    assert_eq!(spec(&record, None).unwrap_err().kind, ErrorKind::Unsupported);
}

/// client-go keeps the annotations when it writes.
#[test]
fn a_changed_spec_is_another_clients_lock() {
    let ours = golden_record("1-awaited.json");
    for (field, value) in [
        ("holderIdentity", json!("pod-7_9d1c")),
        ("renewTime", json!("2026-01-01T00:00:00.000000Z")),
        ("leaseTransitions", json!(9)),
    ] {
        let mut lease = lease_of(&ours, None);
        lease["spec"][field] = value;
        let theirs = record(&lease);
        assert_eq!((theirs.state, theirs.unconfirmed), (RecordState::Held, true), "{field}");
        assert!(theirs.grant != ours.grant && theirs.nonce != ours.nonce, "{field}");
        assert_eq!(theirs.renewed_at_us, None, "their clock does not count");
        // The fields of the earlier record are kept.
        assert_eq!((theirs.token, theirs.served), (ours.token, ours.served));
        assert_eq!((theirs.awaited, &theirs.history[1..]), (true, &ours.history[..]));
        let replaced = &theirs.history[0];
        assert_eq!((replaced.grant, replaced.token, replaced.end), (ours.grant, ours.token, End::Lapsed));
    }
}

/// A waiter writes down the lock of the other client, which goes on.
#[test]
fn a_marked_lock_of_another_client_is_not_in_the_history() {
    let ours = golden_record("1-held.json");
    let mut lease = lease_of(&ours, None);
    lease["spec"]["holderIdentity"] = json!("pod-7_9d1c");
    let theirs = record(&lease);
    let marked = Record { awaited: true, ..theirs.clone() };
    lease["metadata"]["annotations"][RECORD] = annotations(&marked, None).unwrap()[RECORD].clone();
    assert_eq!(record(&lease), marked, "the mark changes nothing else");
    lease["spec"]["renewTime"] = json!("2026-01-01T00:00:00.000000Z");
    assert_eq!(record(&lease).history, theirs.history);
}

#[test]
fn another_clients_lock_is_held_for_its_duration() {
    let mut lease = json!({
        "metadata": { "resourceVersion": "7" },
        "spec": { "holderIdentity": "pod", "leaseDurationSeconds": 15, "leaseTransitions": 2,
                  "acquireTime": "2026-01-01T00:00:00.000000Z", "renewTime": "2026-01-01T00:00:09.000000Z" },
    });
    let first = record(&lease);
    assert_eq!((first.state, first.ttl_ms, first.token), (RecordState::Held, 15_000, Token::default()));
    assert_eq!(first.holder.to_string(), "pod");
    // Each renewal and each grant looks different.
    lease["spec"]["renewTime"] = json!("2026-01-01T00:00:11.000000Z");
    let second = record(&lease);
    assert_ne!(second.grant, first.grant);
    lease["spec"]["acquireTime"] = json!("2026-01-01T00:00:10.000000Z");
    assert_ne!(record(&lease).grant, second.grant);
    lease["spec"]["leaseDurationSeconds"] = json!(7 * 86_400);
    let long = record(&lease);
    assert!(long.ttl_ms + long.lock_delay_ms >= 7 * 86_400_000);
    // client-go releases a lock like this.
    lease["spec"]["holderIdentity"] = json!("");
    lease["spec"]["leaseDurationSeconds"] = json!(1);
    assert_eq!(record(&lease).state, RecordState::Free);
    // kubectl creates a Lease like this.
    assert_eq!(record(&json!({ "metadata": { "resourceVersion": "7" } })).state, RecordState::Free);
}

#[test]
fn leases_not_understood_are_never_taken_over() {
    let mut lease = lease_of(&golden_record("1-free.json"), None);
    lease["spec"]["strategy"] = json!("OldestEmulationVersion");
    assert!(foreign(&lease).contains("OldestEmulationVersion"));
    for seconds in [Value::Null, json!(0), json!(-1)] {
        let spec = json!({ "holderIdentity": "pod", "leaseDurationSeconds": seconds });
        let lease = json!({ "metadata": { "resourceVersion": "7" }, "spec": spec });
        assert!(foreign(&lease).contains("leaseDurationSeconds"));
    }
    let mut lease = lease_of(&golden_record("1-held.json"), None);
    lease["metadata"]["annotations"][RECORD] = json!("{");
    foreign(&lease);
    lease["metadata"]["annotations"][RECORD] = json!(r#"{"leasehold":2}"#);
    let newer = Lease::of(lease.to_string().as_bytes()).unwrap().found().unwrap_err();
    assert_eq!(newer.kind, ErrorKind::Unsupported);
}

#[test]
fn an_object_without_a_version_is_an_error() {
    for text in ["", "{}", "<html>", r#"{"metadata":{"name":"x"}}"#, r#"{"metadata":{"resourceVersion":""}}"#]
    {
        assert_eq!(Lease::of(text.as_bytes()).unwrap_err().kind, ErrorKind::Corrupt, "{text}");
    }
    for text in ["", "7", "7 1", "7 1 2 3", " 1 2", "7 x 2"] {
        assert!(text.parse::<Revision>().is_err(), "{text:?}");
    }
    assert_eq!("7 1 2".parse::<Revision>().unwrap(), revision(1, 2));
}

proptest! {
    #[test]
    fn no_spec_makes_the_parser_panic(
        holder in ".{0,40}", seconds in any::<i32>(), time in ".{0,30}", transitions in any::<i32>(), earlier in ".{0,60}",
    ) {
        let spec = json!({ "holderIdentity": holder, "leaseDurationSeconds": seconds, "renewTime": time,
                           "leaseTransitions": transitions });
        let metadata = json!({ "resourceVersion": "7", "annotations": { RECORD: earlier, MARK: holder } });
        let lease = Lease::of(json!({ "metadata": metadata, "spec": spec }).to_string().as_bytes()).unwrap();
        let _ = lease.found();
        prop_assert!(lease.version().as_str().parse::<Revision>().is_ok());
    }
}
