//! Tests of stores with several front ends or addresses.

use super::*;

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
    let alone = examine_register(&front, false, &examination).await;
    assert!(alone.is_sound(), "{:#?}", alone.findings);
    probe(&*front).await.unwrap();
    examination.endpoints = vec!["a".to_owned(), "b".to_owned(), "b".to_owned()];
    let together = examine_register(&front, false, &examination).await;
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
    let examined = examine_register(&front, false, &Examination::default()).await;
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
    let examined = examine_register(&front, false, &examination).await;
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
    let fronts = Fronts::open(&front, &endpoints).await.unwrap();
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
    let examined = examine_register(&register, false, &examination).await;
    let [finding] = &examined.findings[..] else { panic!("{:#?}", examined.findings) };
    assert_eq!((finding.check, finding.verdict), ("endpoints", CheckStatus::Failed));
    assert!(finding.seen.contains("http://b") && !finding.help.is_empty(), "{finding:?}");
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
            let marker = store.cells.lock().unwrap().get(".leasehold-probe").cloned();
            let text =
                marker.map_or_else(String::new, |marker| String::from_utf8_lossy(&marker.value).into());
            assert!(
                !text.contains("found unsafe"),
                "case {number}: a refusal that was read, not found: {text}"
            );
        }
    }
}
