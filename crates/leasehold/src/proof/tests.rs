use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, join_all};

use super::cells::{Cells, RACERS, RACES_DOCTOR, RACES_FIRST_USE, Races};
use super::checks::worse;
use super::flawed::{Flaw, Flawed, store};
use super::marker::{LONGEST_AGE, Marker, RECORD_LIMIT};
use super::races::{Found, Kind, Plan, Raced};
use super::*;
use crate::clock::{TestClock, timeout};
use crate::env::Env;
use crate::error::{ErrorKind, Fault};
use crate::lease::{Claim, Holder, Id, LeaseStore, StoreOptions, Ttl};
use crate::protocol::RegisterLeases;
use crate::register::{Metadata, Precondition, Version, VersionedValue};
use crate::types::LockName;

const MARKER: &str = ".leasehold-probe";

/// The number of requests of a full probe, without deletes: the marker is read, claimed and judged, and five other
/// requests before the races.
const FULL_PROBE: usize = 3 + 5 + 2 * RACES_FIRST_USE * RACERS;

async fn record(store: &Flawed, subject: Subject, unsafe_: Option<&str>) -> Result<(), StoreError> {
    first_use::record(&Fronts::only(store), subject, unsafe_).await
}

#[tokio::test(start_paused = true)]
async fn a_good_store_is_probed_once_and_then_costs_two_requests() {
    let store = store(Flaw::None);
    probe(&store).await.unwrap();
    assert_eq!(store.requests(), FULL_PROBE);
    assert_eq!(store.cells.lock().unwrap().keys().collect::<Vec<_>>(), [MARKER], "the rest is deleted");
    for _ in 0..3 {
        probe(&store).await.unwrap();
        assert_eq!(store.requests(), 2);
    }
}

#[tokio::test(start_paused = true)]
async fn without_deletes_a_probe_leaves_one_object_per_race() {
    let store = store(Flaw::DeniesDeletes);
    probe(&store).await.unwrap();
    let cells = store.cells.lock().unwrap();
    assert_eq!(cells.keys().filter(|key| key.starts_with(races::PREFIX)).count(), RACES_FIRST_USE);
    assert_eq!(cells.len(), RACES_FIRST_USE + 2, "the marker, and an object for the other questions");
}

#[tokio::test(start_paused = true)]
async fn a_store_that_drops_metadata_is_refused_for_updates() {
    let good = store(Flaw::None);
    for _ in 0..2 {
        probe_metadata(&good).await.unwrap();
        assert_eq!(good.requests(), 2);
    }
    let forgetful = store(Flaw::DropsMetadata);
    probe(&forgetful).await.unwrap();
    for _ in 0..2 {
        let error = probe_metadata(&forgetful).await.unwrap_err();
        assert_eq!(error.fault().kind, ErrorKind::Unsupported);
    }
    let busy = Flawed { busy_every: 2, loses_every: 3, ..store(Flaw::None) };
    probe_metadata(&busy).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn every_flawed_store_is_refused_each_time_it_is_asked() {
    for (flaw, named) in [
        (Flaw::IgnoresAbsent, "If-None-Match"),
        (Flaw::IgnoresVersion, "If-Match"),
        (Flaw::IgnoresBoth, "If-None-Match"),
        (Flaw::IgnoresVersionOfNothing, "no object"),
        (Flaw::ChecksInTwoSteps, "atomically"),
        (Flaw::NeverMatches, "If-Match"),
        (Flaw::RefusesEverything, "refuses to create"),
        (Flaw::SameVersionAlways, "the same version"),
        (Flaw::ComparesWithoutQuotes, "without them"),
        (Flaw::DoublesCreates(100), "creates"),
        (Flaw::DoublesReplaces(100), "one version"),
    ] {
        let store = store(flaw);
        for attempt in 0..3 {
            let error = probe(&store).await.unwrap_err();
            assert_eq!(error.fault().kind, ErrorKind::Unsupported, "{flaw:?}: {error:?}");
            assert!(error.to_string().contains(named), "{flaw:?} {attempt}: {error:?}");
            assert!(error.fault().help.is_some());
        }
    }
}

#[tokio::test(start_paused = true)]
async fn deletes_that_do_not_exclude_writes_are_refused() {
    probe_deletes(&store(Flaw::None)).await.unwrap();
    for (flaw, named) in [
        (Flaw::IgnoresVersionOfDeletes, "DeleteObject"),
        (Flaw::DoublesDeletes(100), "writes and deletes"),
        (Flaw::ChecksInTwoSteps, "writes and deletes"),
    ] {
        let store = store(flaw);
        for _ in 0..2 {
            let error = probe_deletes(&store).await.unwrap_err();
            assert_eq!(error.fault().kind, ErrorKind::Unsupported, "{flaw:?}: {error:?}");
            assert!(error.to_string().contains(named), "{flaw:?}: {error:?}");
        }
    }
}

/// Checks the pass rates that the documentation promises for the first use and for the doctor if two requests win in 1
/// race of 10.
#[tokio::test(start_paused = true)]
async fn a_rarely_unsafe_store_passes_as_rarely_as_documented() {
    const SEEDS: u64 = 200;
    for (races, flaw, kind, most) in [
        (RACES_FIRST_USE, Flaw::DoublesCreates(10), Kind::Creates, SEEDS / 50),
        (RACES_FIRST_USE, Flaw::DoublesReplaces(10), Kind::Replaces, SEEDS / 50),
        (RACES_DOCTOR, Flaw::DoublesCreates(10), Kind::Creates, SEEDS / 100),
        (RACES_DOCTOR, Flaw::DoublesDeletes(10), Kind::Deletes, SEEDS / 100),
    ] {
        let mut passed = 0;
        for seed in 0..SEEDS {
            let env = Env::seeded(Arc::new(TestClock::default()), seed);
            let store = Flawed { env, ..store(flaw) };
            let store = Fronts::only(&store);
            let size = Races { races, ..store.profile().first_use };
            let kinds = std::slice::from_ref(&kind);
            let plan = Plan { kinds, size, all: false, limit: LIMIT };
            let Found { kinds, .. } = races::run(&store, plan).await;
            let [Raced { counted, unsafe_, .. }] = &kinds[..] else { panic!("{kinds:?}") };
            if unsafe_.is_none() {
                assert_eq!(*counted, races);
                passed += 1;
            }
        }
        assert!(passed <= most, "{flaw:?}: {passed} of {SEEDS} with {races} races");
    }
}

/// Many requests at once may be too much for a server in a test.
#[tokio::test(start_paused = true)]
async fn a_slow_server_is_raced_with_fewer_requests() {
    let store = store(Flaw::ServesFour);
    for (least_racers, expected) in [(4, 3), (15, 0)] {
        let size = Races { races: 3, racers: 15, least_racers, lanes: 1 };
        let plan = Plan { kinds: &[Kind::Creates], size, all: false, limit: LIMIT };
        let Found { kinds, .. } = races::run(&Fronts::only(&store), plan).await;
        assert_eq!(kinds[0].counted, expected, "at least {least_racers}: {kinds:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_store_that_turned_bad_after_its_full_probe_is_refused() {
    for flaw in [Flaw::IgnoresVersion, Flaw::IgnoresBoth] {
        let store = store(Flaw::None);
        probe(&store).await.unwrap();
        *store.flaw.lock().unwrap() = flaw;
        for _ in 0..3 {
            assert_eq!(probe(&store).await.unwrap_err().fault().kind, ErrorKind::Unsupported);
        }
    }
}

/// A store without atomic checks would eventually pass if the full probe were repeated often enough. So only the
/// doctor repeats it.
#[tokio::test(start_paused = true)]
async fn a_refusal_stays_until_the_doctor_lifts_it() {
    let store = store(Flaw::DoublesCreates(100));
    probe(&store).await.unwrap_err();
    *store.flaw.lock().unwrap() = Flaw::None;
    store.requests();
    for _ in 0..3 {
        let error = probe(&store).await.unwrap_err();
        assert!(
            error.to_string().contains("found unsafe") && error.to_string().contains("creates"),
            "{error:?}"
        );
        assert!(error.fault().help.as_ref().unwrap().contains("leasehold doctor"));
        assert_eq!(store.requests(), 1);
    }
    record(&store, Subject::Writes, None).await.unwrap();
    store.requests();
    probe(&store).await.unwrap();
    assert_eq!(store.requests(), 2);
    record(&store, Subject::Writes, Some("two won")).await.unwrap();
    assert!(probe(&store).await.unwrap_err().to_string().contains("two won"));
}

/// Buckets are mirrored together with their markers.
#[tokio::test(start_paused = true)]
async fn a_marker_of_another_store_causes_a_full_probe() {
    let here = store(Flaw::None);
    probe(&here).await.unwrap();
    let copied = here.cells.lock().unwrap().clone();
    let mirror = Flawed { identity: "there".to_owned(), ..store(Flaw::ChecksInTwoSteps) };
    *mirror.cells.lock().unwrap() = copied;
    assert!(probe(&mirror).await.unwrap_err().to_string().contains("atomically"));
    // The verdict on the mirror does not apply to the original.
    let copied = mirror.cells.lock().unwrap().clone();
    *here.cells.lock().unwrap() = copied;
    probe(&here).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_marker_that_is_too_old_causes_a_full_probe() {
    let store = store(Flaw::None);
    probe(&store).await.unwrap();
    tokio::time::advance(LONGEST_AGE - Duration::from_secs(60)).await;
    store.requests();
    probe(&store).await.unwrap();
    assert_eq!(store.requests(), 2);
    tokio::time::advance(Duration::from_secs(120)).await;
    *store.flaw.lock().unwrap() = Flaw::ChecksInTwoSteps;
    assert!(probe(&store).await.unwrap_err().to_string().contains("atomically"));
}

#[tokio::test(start_paused = true)]
async fn many_processes_at_once_raise_no_false_alarm() {
    for (loses_every, busy_every) in [(0, 0), (7, 0), (0, 5), (7, 5), (2, 0), (0, 2)] {
        let store = Flawed { loses_every, busy_every, ..store(Flaw::None) };
        for outcome in join_all((0..16).map(|_| probe(&store))).await {
            match outcome {
                Ok(()) => {}
                // Sixteen processes at once may overload a store that loses or refuses many writes.
                Err(error) => assert!(error.is_transient() && loses_every + busy_every > 0, "{error:?}"),
            }
        }
        store.requests();
        probe(&Flawed { loses_every: 0, busy_every: 0, ..store }).await.unwrap();
    }
}

/// Runs the probe in 16 processes at once, and checks that only one of them ran the full probe.
async fn only_one_probes(shared: &Flawed) {
    let lone = store(Flaw::None);
    probe(&lone).await.unwrap();
    for outcome in join_all((0..16).map(|_| probe(shared))).await {
        outcome.unwrap();
    }
    let writes = |register: &Flawed| register.accepted.load(Ordering::SeqCst);
    assert_eq!(writes(shared), writes(&lone), "accepted writes with {:?} each", shared.latency);
}

/// Processes that all start at once would otherwise keep the store busy with races.
#[tokio::test(start_paused = true)]
async fn of_many_processes_one_probes_and_the_others_wait() {
    for ms in [0, 5, 200] {
        only_one_probes(&Flawed { latency: Duration::from_millis(ms), ..store(Flaw::None) }).await;
    }
}

/// Without a clock of the store, a recorded pass is not used, so each process runs the full probe in its turn.
#[tokio::test(start_paused = true)]
async fn processes_that_probe_in_turn_do_not_fail() {
    let latency = Duration::from_millis(50);
    let store = Flawed { latency, has_clock: false, ..store(Flaw::None) };
    for outcome in join_all((0..24).map(|_| probe(&store))).await {
        outcome.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_prober_that_died_has_only_one_successor() {
    let store = Flawed { latency: Duration::from_millis(200), ..store(Flaw::None) };
    let id = || Id::random(&store.env.random);
    let abandoned = Marker::blank(id()).probed_by(id(), &store.identity, store.store_time());
    store.write(MARKER, Precondition::Absent, abandoned.to_bytes().into()).await.unwrap();
    store.accepted.store(0, Ordering::SeqCst);
    only_one_probes(&store).await;
}

/// Starts a probe of `store`, and returns it when its races have begun.
async fn racing<'a>(store: &'a Flawed) -> BoxFuture<'a, Result<(), StoreError>> {
    let mut probe: BoxFuture<'a, _> = Box::pin(probe(store));
    while store.cells.lock().unwrap().len() < 3 {
        assert!(probe.as_mut().now_or_never().is_none());
        tokio::task::yield_now().await;
    }
    probe
}

/// A process that waits for the lock for a few seconds would otherwise never take over.
#[tokio::test(start_paused = true)]
async fn a_prober_whose_time_limit_has_passed_is_replaced_at_once() {
    let store = store(Flaw::None);
    drop(racing(&store).await);
    tokio::time::advance(LIMIT + Duration::from_secs(1)).await;
    let start = store.env.now();
    probe(&store).await.unwrap();
    assert_eq!(store.env.now().shortest_since(start), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn a_refusal_that_was_read_is_not_recorded_again() {
    let store = store(Flaw::None);
    let probe = racing(&store).await;
    record(&store, Subject::Writes, Some("two won")).await.unwrap();
    let recorded = store.cells.lock().unwrap()[MARKER].clone();
    let error = probe.await.unwrap_err();
    assert!(error.to_string().ends_with("found unsafe: two won"), "{error}");
    assert_eq!(store.cells.lock().unwrap()[MARKER].version, recorded.version);
}

#[tokio::test(start_paused = true)]
async fn a_verdict_is_recorded_although_the_store_is_busy() {
    let store = store(Flaw::None);
    let start = store.env.now();
    store.busy_first.store(3, Ordering::SeqCst);
    record(&store, Subject::Writes, Some("two won")).await.unwrap();
    assert!(store.env.now().shortest_since(start) >= Duration::from_secs(3), "as the store asked");
    *store.flaw.lock().unwrap() = Flaw::AsksForAMinute;
    record(&store, Subject::Writes, Some("two won")).await.unwrap();
    *store.flaw.lock().unwrap() = Flaw::None;
    store.busy_first.store(usize::MAX, Ordering::SeqCst);
    let start = store.env.now();
    let error = record(&store, Subject::Writes, None).await.unwrap_err();
    assert_eq!(error.to_string(), "429");
    assert!(store.env.now().shortest_since(start) <= RECORD_LIMIT, "a flaw is reported in time");
}

/// A flaw that was found must not be forgotten because the store is busy.
#[tokio::test(start_paused = true)]
async fn a_flaw_is_reported_in_time_and_recorded() {
    let store = store(Flaw::DoublesInOneLane);
    let start = store.env.now();
    let error = probe(&store).await.unwrap_err();
    assert_eq!(error.fault().kind, ErrorKind::Unsupported, "{error:?}");
    assert!(store.env.now().shortest_since(start) < Duration::from_secs(10), "the other races stop");
    *store.flaw.lock().unwrap() = Flaw::None;
    assert!(probe(&store).await.unwrap_err().to_string().contains("found unsafe"));
}

#[test]
fn two_winners_outweigh_races_without_a_result() {
    let busy = || Some(Fault::unavailable("503").not_applied());
    let two = || Some(Fault::new(ErrorKind::Unsupported, "two won").not_applied());
    let raced = |kind, counted, unsafe_, trouble| Raced { kind, counted, unsafe_, trouble };
    let verdict = |kinds: Vec<Raced>| {
        let problems = kinds.into_iter().map(|raced| raced.problem(RACES_FIRST_USE));
        problems.reduce(worse).flatten().map_or(Ok(()), Err)
    };
    let denied = || Some(Fault::new(ErrorKind::Denied, "403").not_applied());
    let hopeless =
        verdict(vec![raced(Kind::Creates, 3, None, busy()), raced(Kind::Replaces, 0, None, denied())]);
    assert_eq!(hopeless.unwrap_err().to_string(), "403");
    for kinds in [
        vec![raced(Kind::Creates, 3, None, busy()), raced(Kind::Replaces, 3, two(), busy())],
        vec![raced(Kind::Creates, 3, None, None), raced(Kind::Replaces, 3, two(), None)],
        vec![raced(Kind::Creates, 3, two(), None), raced(Kind::Replaces, 3, None, busy())],
    ] {
        assert_eq!(verdict(kinds).unwrap_err().to_string(), "two won");
    }
    let all = RACES_FIRST_USE;
    let too_few =
        verdict(vec![raced(Kind::Creates, all, None, busy()), raced(Kind::Replaces, all - 1, None, None)]);
    assert!(too_few.unwrap_err().is_transient());
    verdict(vec![raced(Kind::Creates, all, None, busy()), raced(Kind::Replaces, all, None, None)]).unwrap();
}

/// Returns the locks of a store whose probe takes more than ten seconds, and a claim.
fn slow() -> (RegisterLeases, Claim) {
    let register = Flawed { latency: Duration::from_secs(1), ..store(Flaw::None) };
    let leases = RegisterLeases::new(Arc::new(register), StoreOptions::default());
    let claim = Claim::new(leases.env(), LockName::new("x").unwrap(), Ttl::DEFAULT, Holder::this_process());
    (leases, claim)
}

/// An earlier error explains more than that the store is being checked.
#[tokio::test(start_paused = true)]
async fn the_wait_for_the_probe_hides_no_error() {
    let (leases, claim) = slow();
    claim.last_error.set(&Fault::unavailable("503").not_applied());
    assert!(
        timeout(&*leases.env().clock, Duration::from_secs(10), leases.try_acquire(&claim)).await.is_none()
    );
    assert_eq!(claim.last_error.get().as_deref(), Some("503"));
}

/// A user who gives up learns that the store was being checked.
#[tokio::test(start_paused = true)]
async fn an_acquisition_that_waits_for_the_probe_says_so() {
    let (leases, claim) = slow();
    let acquisition = leases.try_acquire(&claim);
    assert!(timeout(&*leases.env().clock, Duration::from_secs(10), acquisition).await.is_none());
    assert!(claim.last_error.get().unwrap().contains("checking the store"), "{:?}", claim.last_error);
    leases.try_acquire(&claim).await.unwrap();
    assert_eq!(claim.last_error.get(), None);
}

#[tokio::test(start_paused = true)]
async fn a_prober_that_died_is_waited_for_and_replaced() {
    let store = store(Flaw::None);
    drop(racing(&store).await);
    store.requests();
    let start = store.env.now();
    probe(&store).await.unwrap();
    let waited = store.env.now().shortest_since(start);
    assert!((10..40).contains(&waited.as_secs()), "{waited:?}");
    assert!(store.requests() > 2);
}

/// A first caller that is never polled again must not delay other callers, no matter how many steps it has made.
#[tokio::test(start_paused = true)]
async fn a_first_caller_that_is_not_polled_delays_no_other() {
    for polls in (0..12).chain([20, 40, 80]) {
        let leases = RegisterLeases::new(Arc::new(store(Flaw::None)), StoreOptions::default());
        let claim = |name: &str| {
            let name = LockName::new(name).unwrap();
            Claim::new(leases.env(), name, Ttl::DEFAULT, Holder::this_process())
        };
        let (first, second) = (claim("first"), claim("second"));
        let mut frozen = Box::pin(leases.try_acquire(&first));
        for _ in 0..polls {
            if frozen.as_mut().now_or_never().is_some() {
                break;
            }
            tokio::task::yield_now().await;
        }
        let start = leases.env().now();
        leases.try_acquire(&second).await.unwrap();
        let took = leases.env().now().shortest_since(start);
        assert!(took < Duration::from_secs(5), "{polls} polls: {took:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_invalid_marker_leads_to_one_full_probe() {
    for value in [
        "",
        "garbage",
        "{}",
        r#"{"about":"","passed":1,"outdated":"x","nonce":"00000000000000000000000000000000"}"#,
    ] {
        let store = store(Flaw::None);
        let cell = VersionedValue {
            value: Bytes::from(value),
            version: Version::new("v0"),
            metadata: Metadata::default(),
        };
        store.cells.lock().unwrap().insert(MARKER.to_owned(), cell);
        probe(&store).await.unwrap();
        assert!(store.requests() > 2, "{value}");
        probe(&store).await.unwrap();
        assert_eq!(store.requests(), 2, "{value}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_store_that_stays_busy_is_reported_as_such() {
    let store = Flawed { busy_every: 1, ..store(Flaw::None) };
    let error = probe(&store).await.unwrap_err();
    assert!(error.is_transient() && error.to_string().contains("preconditions"), "{error:?}");
    assert!((8..200).contains(&store.requests()), "it is asked again, at growing intervals");
}
