use std::collections::BTreeMap;

use leasehold::clock::TestClock;
use leasehold::lease::PollInterval;
use leasehold::register::Metadata;

use super::*;

/// A minimal register.
#[derive(Debug)]
struct MapRegister {
    cells: Mutex<BTreeMap<String, (u64, Bytes)>>,
    env: Env,
}

impl MapRegister {
    fn faulty() -> FaultyRegister {
        let env = Env::seeded(Arc::new(TestClock::default()), 1);
        FaultyRegister::new(Arc::new(Self { cells: Mutex::default(), env }))
    }
}

#[async_trait]
impl Register for MapRegister {
    async fn read(&self, key: &str) -> Result<Option<VersionedValue>, StoreError> {
        let cells = self.cells.lock().unwrap();
        Ok(cells.get(key).map(|(version, value)| VersionedValue {
            value: value.clone(),
            version: Version::new(version.to_string()),
            metadata: Metadata::default(),
        }))
    }

    async fn write(&self, key: &str, expect: Precondition<'_>, body: Body) -> Result<Write, StoreError> {
        let mut cells = self.cells.lock().unwrap();
        let now = cells.get(key).map(|(version, _)| *version);
        let expected = match expect {
            Precondition::Absent => None,
            Precondition::Version(version) => Some(version.as_str().parse::<u64>().unwrap()),
        };
        if now != expected {
            return Ok(Write::Conflict);
        }
        let version = now.unwrap_or(0) + 1;
        cells.insert(key.into(), (version, body.bytes));
        Ok(Write::Committed(Version::new(version.to_string())))
    }

    async fn delete(&self, key: &str, _version: &Version) -> Result<Deleted, StoreError> {
        self.cells.lock().unwrap().remove(key);
        Ok(Deleted::Deleted)
    }

    fn list(&self, prefix: &str) -> BoxStream<'_, Result<String, StoreError>> {
        let keys: Vec<_> = self
            .cells
            .lock()
            .unwrap()
            .keys()
            .filter(|key| key.starts_with(prefix))
            .cloned()
            .map(Ok)
            .collect();
        stream::iter(keys).boxed()
    }

    fn store_time(&self) -> Option<StoreTime> {
        None
    }

    fn env(&self) -> &Env {
        &self.env
    }

    fn capabilities(&self) -> RegisterCapabilities {
        let poll_interval = PollInterval { min: Duration::from_millis(10), max: Duration::from_millis(100) };
        let mut capabilities = RegisterCapabilities::new("map", poll_interval);
        (capabilities.trusted, capabilities.generations) = (true, true);
        capabilities
    }
}

async fn create(register: &FaultyRegister, key: &str) -> Result<Write, StoreError> {
    register.write(key, Precondition::Absent, "x".into()).await
}

async fn exists(register: &FaultyRegister, key: &str) -> bool {
    register.inner.read(key).await.unwrap().is_some()
}

#[tokio::test]
async fn each_outcome_of_a_write_takes_effect() {
    let register = MapRegister::faulty();
    for (key, outcome, applied, answered) in [
        ("a", Outcome::Fine, true, true),
        ("b", Outcome::AppliedLost, true, false),
        ("c", Outcome::Dropped, false, false),
        ("d", Outcome::NotApplied, false, true),
    ] {
        register.next_write(outcome.clone());
        let answer = create(&register, key).await;
        assert_eq!(exists(&register, key).await, applied, "{outcome:?}");
        assert_eq!(!matches!(answer, Err(StoreError::MaybeApplied(_))), answered, "{outcome:?}: {answer:?}");
    }
    register.next_write(Outcome::Denied);
    assert_eq!(create(&register, "e").await.unwrap_err().fault().kind, ErrorKind::Denied);
    register.next_write(Outcome::Throttled(Duration::from_secs(3)));
    let throttled = create(&register, "e").await.unwrap_err();
    assert_eq!(throttled.fault().retry_after, Some(Duration::from_secs(3)));
    assert_eq!(register.counts(), Counts { writes: 6, ..Counts::default() });
    assert_eq!(register.log()[1].outcome, Outcome::AppliedLost);
}

#[tokio::test]
async fn a_write_held_back_is_applied_on_delivery() {
    let register = MapRegister::faulty();
    register.next_write(Outcome::HeldBack);
    assert!(matches!(create(&register, "a").await, Err(StoreError::MaybeApplied(_))));
    assert!(!exists(&register, "a").await);
    assert!(matches!(register.deliver().await, Some(Write::Committed(_))));
    assert!(exists(&register, "a").await);
    register.next_write(Outcome::HeldBack);
    let _ = create(&register, "a").await;
    assert_eq!(register.deliver().await, Some(Write::Conflict));
    assert_eq!(register.deliver().await, None);
}

#[tokio::test]
async fn a_stalled_request_arrives_although_its_caller_gave_up() {
    let register = MapRegister::faulty();
    register.next_write(Outcome::Stalled);
    let caller = tokio::spawn({
        let register = register.clone();
        async move { create(&register, "a").await }
    });
    register.sent(1).await;
    caller.abort();
    assert!(caller.await.unwrap_err().is_cancelled());
    assert!(!exists(&register, "a").await);
    register.deliver().await;
    assert!(exists(&register, "a").await);
}

#[tokio::test]
async fn a_delayed_response_has_the_earlier_value() {
    let register = MapRegister::faulty();
    register.next_read(Outcome::AnswerStalled);
    let reader = tokio::spawn({
        let register = register.clone();
        async move { register.read("a").await }
    });
    register.sent(1).await;
    create(&register, "a").await.unwrap();
    register.deliver().await;
    assert_eq!(reader.await.unwrap().unwrap(), None, "read before the write, returned after it");
}

#[tokio::test]
async fn either_copy_of_a_doubled_request_gives_the_response() {
    let register = MapRegister::faulty();
    register.next_write(Outcome::Twice);
    assert!(matches!(create(&register, "a").await, Ok(Write::Committed(_))));
    register.next_write(Outcome::TwiceSecondAnswer);
    assert_eq!(create(&register, "b").await.unwrap(), Write::Conflict);
    assert!(exists(&register, "b").await);
}

#[tokio::test(start_paused = true)]
async fn delays_run_on_the_registers_clock_and_outlive_the_caller() {
    let register = MapRegister::faulty();
    let clock = register.env().clock.clone();
    let start = clock.now();
    register.next_write(Outcome::Delayed(Duration::from_secs(5)));
    let write = create(&register, "a");
    assert!(leasehold::clock::timeout(&*clock, Duration::from_secs(1), write).await.is_none());
    assert!(!exists(&register, "a").await);
    clock.sleep(Duration::from_secs(5)).await;
    assert!(exists(&register, "a").await);
    register.next_read(Outcome::AnswerDelayed(Duration::from_secs(4)));
    assert!(register.read("a").await.unwrap().is_some());
    assert_eq!(clock.now().longest_since(start), Duration::from_secs(10));
}

#[tokio::test]
async fn standing_outcomes_last_until_healed_after_scripted_ones() {
    let register = MapRegister::faulty();
    register.disconnect();
    register.next_read(Outcome::Fine);
    assert!(register.read("a").await.is_ok());
    assert!(register.read("a").await.is_err());
    assert!(register.list("").next().await.unwrap().is_err());
    register.heal();
    create(&register, "a").await.unwrap();
    assert_eq!(register.list("").next().await.unwrap().unwrap(), "a");
    register.reset_counts();
    assert_eq!((register.counts().total(), register.log().len()), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn chaos_replays_from_its_seed() {
    let outcomes = async |seed| {
        let register = MapRegister::faulty();
        register.chaos(Chaos::all(seed, 0.05));
        for n in 0..200 {
            let _ = create(&register, &n.to_string()).await;
        }
        register.log().into_iter().map(|sent| sent.outcome).collect::<Vec<_>>()
    };
    let first = outcomes(1).await;
    assert_eq!(first, outcomes(1).await);
    assert_ne!(first, outcomes(2).await);
    assert!(first.contains(&Outcome::Fine) && first.contains(&Outcome::AppliedLost));
}
