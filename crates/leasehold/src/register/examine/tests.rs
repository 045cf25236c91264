use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::stream::BoxStream;
use tokio::sync::Mutex;

use super::super::probe::evidence::{Marker, RACES_DOCTOR};
use super::super::probe::trust::within;
use super::super::probe::{LIMIT, Subject, probe, probe_deletes, record};
use super::*;
use crate::clock::StoreTime;
use crate::env::Env;
use crate::error::Error;
use crate::lease::Id;
use crate::register::flawed::{Flaw, Flawed, store};
use crate::register::{FrontEnds, RegisterCapabilities};

async fn examine(register: &dyn Register, deletes: bool, examination: &Examination) -> Examined {
    Patient::new(register, deletes, examination).await.run(&[register]).await
}

async fn verdicts(register: &dyn Register, deletes: bool, verdict: CheckStatus) -> BTreeSet<&'static str> {
    let examined = examine(register, deletes, &Examination::default()).await;
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
    let examined = examine(&store, true, &Examination::default()).await;
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
    let examined = examine(&store, false, &Examination::default()).await;
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
        examine(&store, false, &Examination::default()).await;
        *store.flaw.lock().unwrap() = Flaw::None;
        for _ in 0..2 {
            let error = probe(&store).await.unwrap_err();
            assert_eq!(error.fault().kind, ErrorKind::Unsupported, "{flaw:?}: {error:?}");
        }
        examine(&store, false, &Examination::default()).await;
        probe(&store).await.unwrap();
    }
    // A permission that is missing for a while does not make a store unsafe.
    for flaw in [Flaw::DeniesWrites, Flaw::DeniesReads, Flaw::RefusesRacers] {
        *store.flaw.lock().unwrap() = flaw;
        examine(&store, false, &Examination::default()).await;
        *store.flaw.lock().unwrap() = Flaw::None;
        probe(&store).await.unwrap();
    }
    // An examination without a result lifts no refusal.
    record(&store, Subject::Writes, Some("two won")).await.unwrap();
    *store.flaw.lock().unwrap() = Flaw::RefusesRacers;
    examine(&store, false, &Examination::default()).await;
    *store.flaw.lock().unwrap() = Flaw::None;
    assert!(probe(&store).await.unwrap_err().to_string().contains("two won"));
}

/// The guarantees that `?protocol=existence` and sweeps need are recorded separately.
#[tokio::test(start_paused = true)]
async fn deletes_that_are_unsafe_are_refused_where_they_matter() {
    let store = store(Flaw::DoublesDeletes(100));
    let examined = examine(&store, false, &Examination::default()).await;
    assert!(examined.is_sound(), "{:#?}", examined.findings);
    *store.flaw.lock().unwrap() = Flaw::None;
    probe(&store).await.unwrap();
    let error = probe_deletes(&store).await.unwrap_err();
    assert!(error.to_string().contains("writes and deletes"), "{error:?}");
    examine(&store, false, &Examination::default()).await;
    probe_deletes(&store).await.unwrap();
}

fn there(store: &Flawed) -> Vec<String> {
    let mut keys: Vec<_> = store.cells.lock().unwrap().keys().cloned().collect();
    keys.sort();
    keys
}

async fn verdicts_of_busy(busy: &Flawed) -> Vec<&'static str> {
    let examined = examine(busy, false, &Examination::default()).await;
    let failed = examined.findings.iter().filter(|finding| finding.verdict == CheckStatus::Failed);
    failed.map(|finding| finding.check).collect()
}

/// One front end of a store. Its requests are atomic with each other, but not with those of another front end.
#[derive(Debug)]
struct Front {
    store: Arc<Flawed>,
    /// The objects at the second address, if they are not the same.
    second: Option<Arc<Flawed>>,
    endpoint: String,
    /// The addresses of the endpoint's name.
    addresses: Vec<IpAddr>,
    /// The addresses that accept no connection.
    silent: Vec<IpAddr>,
    turn: Mutex<()>,
}

impl Front {
    fn new(store: Arc<Flawed>, endpoint: &str) -> Self {
        let (endpoint, addresses, silent) = (endpoint.to_owned(), Vec::new(), Vec::new());
        Self { store, second: None, endpoint, addresses, silent, turn: Mutex::default() }
    }

    fn of(store: Arc<Flawed>, endpoint: &str) -> Arc<dyn Register> {
        Arc::new(Self::new(store, endpoint))
    }

    fn at(store: Arc<Flawed>, endpoint: &str, addresses: &[IpAddr]) -> Arc<dyn Register> {
        Arc::new(Self { addresses: addresses.to_vec(), ..Self::new(store, endpoint) })
    }

    /// Creates a front end whose name has two addresses with different objects. The name leads to the first address.
    fn split([store, second]: [Arc<Flawed>; 2], endpoint: &str) -> Arc<dyn Register> {
        let (addresses, second) = (two_addresses().to_vec(), Some(second));
        Arc::new(Self { second, addresses, ..Self::new(store, endpoint) })
    }

    /// Creates a front end whose name has one more address, which does not respond.
    fn beside_a_silent_one(store: Arc<Flawed>, endpoint: &str) -> Arc<dyn Register> {
        let silent = vec![IpAddr::from(Ipv4Addr::new(10, 0, 0, 9))];
        Arc::new(Self { silent, ..Self::new(store, endpoint) })
    }
}

#[async_trait]
impl Register for Front {
    async fn read(&self, key: &str) -> Result<Option<VersionedValue>, StoreError> {
        self.store.read(key).await
    }
    async fn write(&self, key: &str, expect: Precondition<'_>, body: Body) -> Result<Write, StoreError> {
        let _turn = self.turn.lock().await;
        self.store.write(key, expect, body).await
    }
    async fn delete(&self, key: &str, version: &Version) -> Result<Deleted, StoreError> {
        let _turn = self.turn.lock().await;
        self.store.delete(key, version).await
    }
    fn list(&self, prefix: &str) -> BoxStream<'_, Result<String, StoreError>> {
        self.store.list(prefix)
    }
    fn store_time(&self) -> Option<StoreTime> {
        self.store.store_time()
    }
    fn env(&self) -> &Env {
        self.store.env()
    }
    fn capabilities(&self) -> RegisterCapabilities {
        self.store.capabilities()
    }
    fn identity(&self) -> String {
        self.endpoint.clone()
    }
    fn through(&self, endpoint: &str) -> Result<Arc<dyn Register>, Error> {
        Ok(Self::of(self.store.clone(), endpoint))
    }
    async fn fronts(&self) -> Result<FrontEnds, Error> {
        let front = |(n, address): (usize, &IpAddr)| {
            let store = self.second.as_ref().filter(|_| n == 1).unwrap_or(&self.store);
            (*address, Self::of(store.clone(), &self.endpoint))
        };
        let mut ends = FrontEnds::default();
        ends.answering = self.addresses.iter().take(RACERS).enumerate().map(front).collect();
        ends.more = self.addresses.len() - ends.answering.len();
        ends.silent = self.silent.iter().map(|address| (*address, "refused".to_owned())).collect();
        Ok(ends)
    }
}

fn two_addresses() -> [IpAddr; 2] {
    [1, 2].map(|n| IpAddr::from(Ipv4Addr::new(10, 0, 0, n)))
}

#[tokio::test(start_paused = true)]
async fn front_ends_that_are_only_atomic_alone_fail_in_races() {
    let store = Arc::new(store(Flaw::ChecksInTwoSteps));
    let front = Front::of(store.clone(), "a");
    let mut examination = Examination::default();
    let alone = examine_all(&front, false, &examination).await;
    assert!(alone.is_sound(), "{:#?}", alone.findings);
    probe(&*front).await.unwrap();
    examination.endpoints = vec!["a".to_owned(), "b".to_owned(), "b".to_owned()];
    let together = examine_all(&front, false, &examination).await;
    assert_eq!(together.findings[0].check, "endpoints");
    assert!(together.findings[0].seen.ends_with(": a, b"), "{:?}", together.findings[0]);
    let failed: Vec<_> = together
        .findings
        .iter()
        .filter(|found| found.verdict == CheckStatus::Failed)
        .map(|found| found.check)
        .collect();
    assert_eq!(failed, ["create-race", "atomic-race"]);
    // Neither front end is used again.
    for front in [front.clone(), front.through("b").unwrap()] {
        assert_eq!(probe(&*front).await.unwrap_err().fault().kind, ErrorKind::Unsupported);
    }
}

/// This also applies before the first use, without named endpoints.
#[tokio::test(start_paused = true)]
async fn the_addresses_of_one_name_are_raced_together() {
    let addresses = two_addresses();
    let alone = Front::at(Arc::new(store(Flaw::ChecksInTwoSteps)), "name", &addresses[..0]);
    probe(&*alone).await.unwrap();
    let together = || Front::at(Arc::new(store(Flaw::ChecksInTwoSteps)), "name", &addresses);
    let error = probe(&*together()).await.unwrap_err();
    assert!(error.to_string().contains("atomically"), "{error:?}");
    let front = together();
    let examined = examine_all(&front, false, &Examination::default()).await;
    let seen = &examined.findings[0].seen;
    assert!(seen.ends_with(": name at 10.0.0.1, name at 10.0.0.2"), "{seen}");
    let race = examined.findings.iter().find(|found| found.check == "create-race").unwrap();
    assert_eq!(race.verdict, CheckStatus::Failed, "{race:?}");
    assert_eq!(probe(&*front).await.unwrap_err().fault().kind, ErrorKind::Unsupported);
}

/// Returns the doctor's findings on front ends that it has not examined.
async fn unexamined(front: Arc<dyn Register>, endpoints: &[&str]) -> Vec<Finding> {
    let endpoints = endpoints.iter().map(|&endpoint| endpoint.to_owned()).collect();
    let examination = Examination { endpoints, ..Examination::default() };
    let examined = examine_all(&front, false, &examination).await;
    let of_fronts =
        |finding: &Finding| finding.check == "endpoints" && finding.verdict != CheckStatus::Passed;
    examined.findings.into_iter().filter(of_fronts).collect()
}

#[tokio::test(start_paused = true)]
async fn addresses_that_do_not_respond_are_named_in_a_warning() {
    let front = Front::beside_a_silent_one(Arc::new(store(Flaw::None)), "name");
    let [warning] = &unexamined(front, &[]).await[..] else { panic!() };
    assert_eq!(warning.verdict, CheckStatus::Warning);
    assert!(warning.seen.ends_with(": name at 10.0.0.9 (refused)"), "{warning:?}");
    assert!(warning.help[0].contains("run `leasehold doctor` again when they are up"), "{warning:?}");
    let all_answer = Front::at(Arc::new(store(Flaw::None)), "name", &addresses(8));
    assert_eq!(unexamined(all_answer, &[]).await, []);
}

/// At the first use, there is no doctor to report them.
#[tokio::test(start_paused = true)]
async fn unresponsive_addresses_are_logged_at_the_first_use() {
    let log = Log::default();
    let _guard = tracing::subscriber::set_default(log.clone());
    let front = Front::beside_a_silent_one(Arc::new(store(Flaw::None)), "name");
    probe(&*front).await.unwrap();
    let told = log.0.lock().unwrap().clone();
    let [warning] = &told[..] else { panic!("{told:?}") };
    assert!(warning.contains("WARN") && warning.contains("10.0.0.9"), "{warning}");
    // The verdict has been recorded.
    probe(&*front).await.unwrap();
    assert_eq!(log.0.lock().unwrap().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_name_with_too_many_addresses_is_a_warning() {
    let front = Front::at(Arc::new(store(Flaw::None)), "name", &addresses(20));
    let [warning] = &unexamined(front, &[]).await[..] else { panic!() };
    assert_eq!(warning.verdict, CheckStatus::Warning);
    assert!(warning.seen.starts_with("only 8 of 20 addresses"), "{warning:?}");
    assert!(warning.help[0].contains("--endpoint"), "{warning:?}");
}

#[tokio::test(start_paused = true)]
async fn every_race_covers_every_name_even_with_many_addresses() {
    let front = Front::at(Arc::new(store(Flaw::ChecksInTwoSteps)), "many", &addresses(20));
    let endpoints = vec!["b".to_owned(), "c".to_owned()];
    let fronts = Fronts::open(&front, &endpoints, RACERS).await.unwrap();
    let [chosen, left_out] = fronts.findings() else { panic!("{:?}", fronts.findings()) };
    let shown = chosen.seen.split_once(": ").unwrap().1;
    let many = |n| format!("many at 10.0.0.{n}");
    let expected = [&many(1), "b", "c", &many(2), &many(3), &many(4), &many(5), &many(6)];
    assert_eq!(shown.split(", ").collect::<Vec<_>>(), expected);
    assert!(left_out.seen.starts_with("only 8 of 22 "), "{left_out:?}");
}

#[tokio::test(start_paused = true)]
async fn more_endpoints_than_a_race_has_requests_are_refused() {
    let front = Front::of(Arc::new(store(Flaw::None)), "a");
    let eight = ["b", "c", "d", "e", "f", "g", "h", "a"];
    assert_eq!(unexamined(front.clone(), &eight).await, []);
    let nine = ["b", "c", "d", "e", "f", "g", "h", "i"];
    let [refused] = &unexamined(front, &nine).await[..] else { panic!() };
    assert_eq!(refused.verdict, CheckStatus::Failed);
    assert!(refused.seen.starts_with("9 endpoints") && !refused.help.is_empty(), "{refused:?}");
}

fn addresses(count: u8) -> Vec<IpAddr> {
    (1..=count).map(|n| IpAddr::from(Ipv4Addr::new(10, 0, 0, n))).collect()
}

/// Collects log events of level warning and above.
#[derive(Clone, Default)]
struct Log(Arc<std::sync::Mutex<Vec<String>>>);

impl tracing::Subscriber for Log {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() <= tracing::Level::WARN
    }
    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::Id {
        tracing::Id::from_u64(1)
    }
    fn record(&self, _: &tracing::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::Id, _: &tracing::Id) {}
    fn event(&self, event: &tracing::Event<'_>) {
        self.0.lock().unwrap().push(format!("{} {event:?}", event.metadata().level()));
    }
    fn enter(&self, _: &tracing::Id) {}
    fn exit(&self, _: &tracing::Id) {}
}

#[tokio::test(start_paused = true)]
async fn a_store_without_endpoints_is_reported() {
    let examination = Examination { endpoints: vec!["http://b".to_owned()], ..Examination::default() };
    let register: Arc<dyn Register> = Arc::new(store(Flaw::None));
    let examined = examine_all(&register, false, &examination).await;
    let [finding] = &examined.findings[..] else { panic!("{:#?}", examined.findings) };
    assert_eq!((finding.check, finding.verdict), ("endpoints", CheckStatus::Failed));
    assert!(finding.seen.contains("http://b") && !finding.help.is_empty(), "{finding:?}");
}

/// The doctor does not wait as long as a busy store asks.
#[tokio::test(start_paused = true)]
async fn the_races_of_the_doctor_end_in_time() {
    let store = store(Flaw::DoublesInOneLane);
    let start = store.env.now();
    let examined = examine(&store, false, &Examination::default()).await;
    let race = examined.findings.iter().find(|finding| finding.check == "atomic-race").unwrap();
    assert_eq!(race.verdict, CheckStatus::Failed);
    let took = store.env.now().shortest_since(start);
    assert!(took < Duration::from_secs(600), "{took:?}");
}

/// A few races say little, and processes would use the store for thirty days.
#[tokio::test(start_paused = true)]
async fn a_store_that_is_too_slow_for_enough_races_is_not_recorded_as_safe() {
    let slow = Arc::new(Flawed { latency: Duration::from_secs(3), ..store(Flaw::None) });
    let marker = Marker::blank(Id::random(&slow.env.random)).refused("here", slow.store_time(), "two won");
    slow.write(".leasehold-probe", Precondition::Absent, marker.to_bytes().into()).await.unwrap();
    let findings = examine(&*slow, false, &Examination::default()).await.findings;
    let find = |check: &str| findings.iter().find(|finding| finding.check == check);
    for race in ["create-race", "atomic-race"] {
        let race = find(race).unwrap_or_else(|| panic!("{findings:#?}"));
        assert_eq!(race.verdict, CheckStatus::Warning);
        assert!(race.seen.starts_with("only ") && !race.seen.starts_with("only 0 "), "{race:?}");
    }
    assert!(probe(&*slow).await.unwrap_err().to_string().contains("two won"));
}

/// Whatever the markers at the two addresses say, the store is refused and does not stay busy.
#[tokio::test(start_paused = true)]
async fn addresses_with_different_objects_are_refused() {
    let marker = |register: &Flawed| Marker::blank(Id::random(&register.env.random));
    let probed = |register: &Flawed| {
        marker(register).probed_by(Id::random(&register.env.random), "name", register.store_time())
    };
    let refused = |register: &Flawed| marker(register).refused("name", register.store_time(), "a flaw");
    type Make<'a> = &'a dyn Fn(&Flawed) -> Marker;
    let cases: [[Option<Make<'_>>; 2]; 5] = [
        [None, None],
        [Some(&marker), Some(&probed)],
        [Some(&probed), Some(&refused)],
        [Some(&probed), Some(&probed)],
        [None, Some(&probed)],
    ];
    for (number, case) in cases.iter().enumerate() {
        let stores = [(); 2].map(|()| Arc::new(store(Flaw::None)));
        for (n, (store, make)) in stores.iter().zip(case).enumerate() {
            store.requests.store(10 * n, Ordering::SeqCst); // for different versions
            if let Some(make) = make {
                let body = make(store).to_bytes().into();
                store.write(".leasehold-probe", Precondition::Absent, body).await.unwrap();
            }
        }
        let env = stores[0].env.clone();
        let register = Front::split(stores.clone(), "name");
        let error = within(&env, LIMIT, probe(&*register)).await.unwrap_err();
        assert_eq!(error.fault().kind, ErrorKind::Unsupported, "case {number}: {error:?}");
        for store in stores {
            let marker = store.cells.lock().unwrap()[".leasehold-probe"].value.clone();
            let text = String::from_utf8_lossy(&marker);
            assert!(
                !text.contains("found unsafe"),
                "case {number}: a refusal that was read, not found: {text}"
            );
        }
    }
}
