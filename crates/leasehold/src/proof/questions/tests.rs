use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::stream::BoxStream;
use tokio::sync::Mutex;

use super::*;
use crate::clock::StoreTime;
use crate::diagnosis::Examination;
use crate::env::Env;
use crate::error::Error;
use crate::proof::cells::{RACERS, RACES_DOCTOR};
use crate::proof::flawed::{Flaw, Flawed, store};
use crate::proof::front_ends::Fronts;
use crate::proof::marker::Marker;
use crate::proof::trust::within;
use crate::proof::{LIMIT, examine, examine_register, first_use, probe, probe_deletes};
use crate::register::{Body, FrontEnds, Register, RegisterCapabilities, VersionedValue};

mod front_ends;

async fn examine(register: &dyn Register, deletes: bool) -> Examined {
    let fronts = Fronts::only(register);
    examine::examine(&fronts, &[&fronts], Selection::Doctor { thorough: false, deletes }, Examined::default())
        .await
}

async fn record(store: &Flawed, subject: Subject, unsafe_: Option<&str>) -> Result<(), StoreError> {
    first_use::record(&Fronts::only(store), subject, unsafe_).await
}

async fn verdicts(register: &dyn Register, deletes: bool, verdict: CheckStatus) -> BTreeSet<&'static str> {
    let examined = examine(register, deletes).await;
    for finding in &examined.findings {
        let bad = matches!(finding.verdict, CheckStatus::Failed | CheckStatus::Warning);
        assert!(!bad || !finding.help.is_empty(), "it says what to do: {finding:?}");
    }
    let of = examined.findings.iter().filter(|finding| finding.verdict == verdict);
    of.map(|finding| finding.check).collect()
}

#[tokio::test(start_paused = true)]
async fn a_good_register_passes_every_check_and_is_left_as_it_was() {
    let store = store(Flaw::None);
    let examined = examine(&store, true).await;
    assert!(
        examined.findings.iter().all(|finding| finding.verdict == CheckStatus::Passed),
        "{:#?}",
        examined.findings
    );
    assert_eq!(examined.findings.len(), 14, "{:#?}", examined.findings);
    assert_eq!(examined.left, Vec::<String>::new());
    assert_eq!(there(&store), [".leasehold-probe", ".leasehold-probe-delete"], "what it found is recorded");
}

/// Only the checks that concern a flaw find it.
#[tokio::test(start_paused = true)]
async fn each_flaw_fails_the_checks_that_are_about_it_and_no_others() {
    let rows: &[(Flaw, &[&str])] = &[
        (Flaw::IgnoresAbsent, &["create-if-absent", "create-race"]),
        // All checks whose requests expect a version.
        (
            Flaw::IgnoresVersion,
            &["stale-version", "missing-key", "atomic-race", "delete-race", "delete-marker"],
        ),
        (
            Flaw::IgnoresBoth,
            &[
                "create-if-absent",
                "create-race",
                "stale-version",
                "missing-key",
                "atomic-race",
                "delete-race",
                "delete-marker",
            ],
        ),
        (Flaw::IgnoresVersionOfNothing, &["missing-key", "delete-marker"]),
        (Flaw::ChecksInTwoSteps, &["create-race", "atomic-race", "delete-race"]),
        (Flaw::DoublesCreates(20), &["create-race"]),
        // A race with deletes includes several writes.
        (Flaw::DoublesReplaces(20), &["atomic-race", "delete-race"]),
        (Flaw::DoublesDeletes(20), &["delete-race"]),
        (Flaw::ComparesWithoutQuotes, &["current-version"]),
        (Flaw::NeverMatches, &["current-version"]),
        (Flaw::RefusesEverything, &["create-if-absent"]),
        (Flaw::SameVersionAlways, &["new-version", "stale-version", "atomic-race", "conditional-delete"]),
        (Flaw::IgnoresVersionOfDeletes, &["conditional-delete"]),
        (Flaw::ReadsLate, &["read-after-write"]),
        (Flaw::KeepsDeleted, &["delete-marker"]),
        (Flaw::DeniesWrites, &["permission-write"]),
        (Flaw::DeniesReads, &["permission-read"]),
        (Flaw::DeniesListing, &["permission-list"]),
        (Flaw::DeniesDeletes, &["permission-delete"]),
    ];
    for (flaw, failed) in rows {
        let found = verdicts(&store(*flaw), true, CheckStatus::Failed).await;
        assert_eq!(found, failed.iter().copied().collect(), "{flaw:?}");
    }
}

/// A flaw that affects only updates, or only releases that delete, does not make a store unsafe for other uses.
#[tokio::test(start_paused = true)]
async fn flaws_without_effect_on_locks_are_not_failures() {
    for flaw in
        [Flaw::IgnoresVersionOfDeletes, Flaw::DoublesDeletes(20), Flaw::DeniesDeletes, Flaw::DropsMetadata]
    {
        assert_eq!(verdicts(&store(flaw), false, CheckStatus::Failed).await, BTreeSet::new(), "{flaw:?}");
    }
    let warned = verdicts(&store(Flaw::DropsMetadata), false, CheckStatus::Warning).await;
    assert_eq!(warned, BTreeSet::from(["metadata"]));
}

#[tokio::test(start_paused = true)]
async fn objects_that_cannot_be_deleted_are_named() {
    let store = store(Flaw::DeniesDeletes);
    let examined = examine(&store, false).await;
    let [of_races, other] = &examined.left[..] else { panic!("{:?}", examined.left) };
    let (count, prefix) = of_races.split_once(" objects ").unwrap();
    assert_eq!(count, RACES_DOCTOR.to_string(), "one for each race");
    let prefix = prefix.strip_suffix('*').unwrap();
    let others: Vec<_> = there(&store).into_iter().filter(|key| !key.starts_with(prefix)).collect();
    assert_eq!(others, [".leasehold-probe", other]);
    assert_eq!(there(&store).len(), RACES_DOCTOR + others.len());
}

/// A busy store is not unsafe, but a check that could not run does not pass either.
#[tokio::test(start_paused = true)]
async fn a_store_that_is_too_busy_to_be_examined_does_not_pass() {
    let busy = Flawed { busy_every: 1, ..store(Flaw::None) };
    assert_eq!(verdicts_of_busy(&busy).await, ["unanswered"]);
}

/// If responses are lost, requests are throttled, or both, all requests are retried and each flaw is still found.
#[tokio::test(start_paused = true)]
async fn transient_failures_neither_hide_nor_report_a_flaw() {
    for (loses_every, busy_every) in
        [(2, 0), (3, 0), (5, 0), (7, 0), (0, 2), (0, 3), (5, 3), (7, 4), (11, 13)]
    {
        let bad = |flaw| Flawed { loses_every, busy_every, ..store(flaw) };
        let found = verdicts_of_busy(&bad(Flaw::None)).await;
        // Failures are so frequent that a check may run out of retries.
        let often = (1..5).contains(&loses_every) || (1..5).contains(&busy_every);
        assert!(found.is_empty() || often && found == ["unanswered"], "{found:?} {loses_every} {busy_every}");
        for flaw in [Flaw::IgnoresAbsent, Flaw::IgnoresVersion, Flaw::NeverMatches, Flaw::SameVersionAlways] {
            let found = verdicts_of_busy(&bad(flaw)).await;
            assert_ne!(found, Vec::<&str>::new(), "{flaw:?} {loses_every} {busy_every}");
        }
    }
    for first in 1..10 {
        let busy = Flawed { busy_first: first.into(), ..store(Flaw::None) };
        assert_eq!(verdicts_of_busy(&busy).await, Vec::<&str>::new(), "{first}");
    }
}

/// A race in which hardly any request got a response shows nothing.
#[tokio::test(start_paused = true)]
async fn races_without_responses_do_not_pass() {
    assert_eq!(
        verdicts(&store(Flaw::RefusesRacers), false, CheckStatus::Warning).await,
        BTreeSet::from(["create-race", "atomic-race"])
    );
}

/// A process that uses the store relies on the doctor's latest result.
#[tokio::test(start_paused = true)]
async fn the_doctors_verdict_decides_whether_a_store_is_used() {
    let store = store(Flaw::None);
    probe(&store).await.unwrap();
    for flaw in
        [Flaw::DoublesCreates(100), Flaw::ChecksInTwoSteps, Flaw::IgnoresVersion, Flaw::SameVersionAlways]
    {
        *store.flaw.lock().unwrap() = flaw;
        examine(&store, false).await;
        *store.flaw.lock().unwrap() = Flaw::None;
        for _ in 0..2 {
            let error = probe(&store).await.unwrap_err();
            assert_eq!(error.fault().kind, ErrorKind::Unsupported, "{flaw:?}: {error:?}");
        }
        examine(&store, false).await;
        probe(&store).await.unwrap();
    }
    // A permission that is missing for a while does not make a store unsafe.
    for flaw in [Flaw::DeniesWrites, Flaw::DeniesReads, Flaw::RefusesRacers] {
        *store.flaw.lock().unwrap() = flaw;
        examine(&store, false).await;
        *store.flaw.lock().unwrap() = Flaw::None;
        probe(&store).await.unwrap();
    }
    // An examination without a result lifts no refusal.
    record(&store, Subject::Writes, Some("two won")).await.unwrap();
    *store.flaw.lock().unwrap() = Flaw::RefusesRacers;
    examine(&store, false).await;
    *store.flaw.lock().unwrap() = Flaw::None;
    assert!(probe(&store).await.unwrap_err().to_string().contains("two won"));
}

/// The guarantees that `?protocol=existence` and sweeps need are recorded separately.
#[tokio::test(start_paused = true)]
async fn deletes_that_are_unsafe_are_refused_where_they_matter() {
    let store = store(Flaw::DoublesDeletes(100));
    let examined = examine(&store, false).await;
    assert!(examined.is_sound(), "{:#?}", examined.findings);
    *store.flaw.lock().unwrap() = Flaw::None;
    probe(&store).await.unwrap();
    let error = probe_deletes(&store).await.unwrap_err();
    assert!(error.to_string().contains("writes and deletes"), "{error:?}");
    examine(&store, false).await;
    probe_deletes(&store).await.unwrap();
}

fn there(store: &Flawed) -> Vec<String> {
    let mut keys: Vec<_> = store.cells.lock().unwrap().keys().cloned().collect();
    keys.sort();
    keys
}

async fn verdicts_of_busy(busy: &Flawed) -> Vec<&'static str> {
    let examined = examine(busy, false).await;
    let failed = examined.findings.iter().filter(|finding| finding.verdict == CheckStatus::Failed);
    failed.map(|finding| finding.check).collect()
}

/// The doctor does not wait as long as a busy store asks.
#[tokio::test(start_paused = true)]
async fn the_races_of_the_doctor_end_in_time() {
    let store = store(Flaw::DoublesInOneLane);
    let start = store.env.now();
    let examined = examine(&store, false).await;
    let race = examined.findings.iter().find(|finding| finding.check == "atomic-race").unwrap();
    assert_eq!(race.verdict, CheckStatus::Failed);
    let took = store.env.now().shortest_since(start);
    assert!(took < Duration::from_secs(600), "{took:?}");
}

/// A few races say little, and processes would use the store for thirty days.
#[tokio::test(start_paused = true)]
async fn a_store_too_slow_for_enough_races_is_not_recorded_as_safe() {
    let slow = Arc::new(Flawed { latency: Duration::from_secs(3), ..store(Flaw::None) });
    let marker = Marker::blank(Id::random(&slow.env.random)).refused("here", slow.store_time(), "two won");
    slow.write(".leasehold-probe", Precondition::Absent, marker.to_bytes().into()).await.unwrap();
    let findings = examine(&*slow, false).await.findings;
    let find = |check: &str| findings.iter().find(|finding| finding.check == check);
    for race in ["create-race", "atomic-race"] {
        let race = find(race).unwrap_or_else(|| panic!("{findings:#?}"));
        assert_eq!(race.verdict, CheckStatus::Warning);
        assert!(race.seen.starts_with("only ") && !race.seen.starts_with("only 0 "), "{race:?}");
    }
    assert!(probe(&*slow).await.unwrap_err().to_string().contains("two won"));
}
