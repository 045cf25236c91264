//! Optimistic updates on a network that loses, duplicates and delays requests.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use bytes::Bytes;
use leasehold::clock::TestClock;
use leasehold::env::Env;
use leasehold::error::Error;
use leasehold::register::{Body, Metadata, Precondition, Register, Write};
use leasehold::stores::memory::MemoryRegister;
use leasehold::{ErrorKind, Object, Updated, update};
use leasehold_testkit::fault::{Chaos, FaultyRegister, Kind, Outcome};

const KEY: &str = "list";

/// The store that the clients of a test share.
struct World(Arc<MemoryRegister>);

impl World {
    fn new() -> Self {
        Self(Arc::new(MemoryRegister::new(env(0))))
    }

    fn by_content() -> Self {
        Self(Arc::new(MemoryRegister::by_content(env(0))))
    }

    fn network(&self) -> FaultyRegister {
        FaultyRegister::new(self.0.clone())
    }

    async fn text(&self) -> String {
        let cell = self.0.read(KEY).await.unwrap().unwrap();
        String::from_utf8(cell.value.to_vec()).unwrap()
    }

    /// Overwrites any content, as a client without leasehold does.
    async fn overwrite(&self, text: &'static str) {
        let version = self.0.head(KEY).await.unwrap().map(|head| head.version);
        let expect = version.as_ref().map_or(Precondition::Absent, Precondition::Version);
        assert!(matches!(self.0.write(KEY, expect, text.into()).await.unwrap(), Write::Committed(_)));
    }
}

fn env(seed: u64) -> Env {
    Env::seeded(Arc::new(TestClock::default()), seed)
}

/// Adds `word` to the list.
async fn add(register: &dyn Register, word: &str) -> Result<Updated, Error> {
    update(register, KEY, async |content| Ok(Some(with(content, word)))).await
}

fn with(content: Option<Bytes>, word: &str) -> Bytes {
    let text = content.map_or_else(String::new, |bytes| String::from_utf8(bytes.to_vec()).unwrap());
    format!("{text}{word} ").into()
}

#[tokio::test(start_paused = true)]
async fn an_update_is_one_read_and_one_write() {
    let world = World::new();
    let network = world.network();
    for word in ["a", "b"] {
        let updated = add(&network, word).await.unwrap();
        assert!(updated.written && updated.attempts == 1);
    }
    assert_eq!(world.text().await, "a b ");
    let counts = network.counts();
    assert_eq!((counts.reads, counts.writes), (2, 2));
}

#[tokio::test(start_paused = true)]
async fn an_update_without_a_change_writes_nothing() {
    let world = World::new();
    let network = world.network();
    let absent = update(&network, KEY, async |content| {
        assert_eq!(content, None);
        Ok::<_, Error>(None)
    });
    assert!(!absent.await.unwrap().written);
    add(&network, "a").await.unwrap();
    network.reset_counts();
    let left = update(&network, KEY, async |_| Ok::<_, Error>(None)).await.unwrap();
    assert_eq!((left.written, left.content.as_deref()), (false, Some(&b"a "[..])));
    let same = update(&network, KEY, async |content| Ok::<_, Error>(content)).await.unwrap();
    assert!(!same.written);
    let failed = update(&network, KEY, async |_| Err(Error::invalid("no"))).await.unwrap_err();
    assert_eq!(failed.kind(), ErrorKind::Invalid);
    assert_eq!((network.counts().reads, network.counts().writes), (3, 0));
}

#[tokio::test(start_paused = true)]
async fn a_lost_response_is_resolved() {
    for world in [World::new(), World::by_content()] {
        let network = world.network();
        for (word, outcome) in [
            ("a", Outcome::AppliedLost),
            ("b", Outcome::Dropped),
            ("c", Outcome::AppliedLost),
            ("d", Outcome::TwiceSecondAnswer),
            ("e", Outcome::Twice),
            ("f", Outcome::NotApplied),
            ("g", Outcome::Throttled(Duration::from_secs(1))),
        ] {
            network.next_write(outcome.clone());
            let updated = add(&network, word).await.unwrap();
            assert!(updated.written && updated.attempts == 1, "{outcome:?}");
        }
        assert_eq!(world.text().await, "a b c d e f g ");
    }
}

#[tokio::test(start_paused = true)]
async fn an_applied_write_is_found_below_later_writes() {
    for world in [World::new(), World::by_content()] {
        let network = world.network();
        add(&network, "a").await.unwrap();
        let updating = add_under_way(&network, "b", Outcome::AppliedLost).await;
        for word in ["c", "d"] {
            add(&*world.0, word).await.unwrap();
        }
        network.deliver().await;
        assert!(updating.await.unwrap().unwrap().written);
        assert_eq!(world.text().await, "a b c d ");
    }
}

/// Starts to add `word`. When this function returns, the write has had `outcome`, and the read after it hangs.
async fn add_under_way(network: &FaultyRegister, word: &'static str, outcome: Outcome) -> Adding {
    network.next_write(outcome);
    network.next_read(Outcome::Fine);
    network.next_read(Outcome::Stalled);
    network.reset_counts();
    let adding = tokio::spawn({
        let network = network.clone();
        async move { add(&network, word).await }
    });
    network.sent(3).await;
    adding
}

type Adding = tokio::task::JoinHandle<Result<Updated, Error>>;

/// Starts to add `b` to the list `a`. When this function returns, the write is still under way.
async fn write_under_way(world: &World) -> (FaultyRegister, Adding) {
    let network = world.network();
    add(&network, "a").await.unwrap();
    let updating = add_under_way(&network, "b", Outcome::HeldBack).await;
    assert_eq!(network.held(), 2, "the write, then the read");
    (network, updating)
}

#[tokio::test(start_paused = true)]
async fn a_write_that_was_overtaken_is_remade_and_lands_once() {
    let world = World::new();
    let (network, updating) = write_under_way(&world).await;
    add(&*world.0, "c").await.unwrap();
    // The write stays under way, and the read completes.
    network.deliver_newest().await;
    assert!(updating.await.unwrap().unwrap().written);
    assert_eq!(world.text().await, "a c b ");
    assert_eq!(network.deliver().await, Some(Write::Conflict));
    assert_eq!(world.text().await, "a c b ");
}

#[tokio::test(start_paused = true)]
async fn with_reused_versions_an_overtaken_write_is_in_doubt() {
    let world = World::by_content();
    let (network, updating) = write_under_way(&world).await;
    add(&*world.0, "c").await.unwrap();
    network.deliver_newest().await;
    let error = updating.await.unwrap().unwrap_err();
    assert!(error.kind() == ErrorKind::Unavailable && error.maybe_applied(), "{error:?}");
    // Another client removes `c`, and then the write is applied. If the client had repeated it, its word would be there
    // twice.
    update(&*world.0, KEY, async |_| Ok::<_, Error>(Some("a ".into()))).await.unwrap();
    assert!(matches!(network.deliver().await, Some(Write::Committed(_))));
    assert_eq!(world.text().await, "a b ");
}

/// This client's create may have been applied and deleted before the other create.
#[tokio::test(start_paused = true)]
async fn an_unknown_create_is_not_repeated_after_anothers_create() {
    let world = World::new();
    let network = world.network();
    let adding = add_under_way(&network, "a", Outcome::AppliedLost).await;
    let version = world.0.head(KEY).await.unwrap().unwrap().version;
    world.0.delete(KEY, &version).await.unwrap();
    add(&*world.0, "b").await.unwrap();
    network.deliver().await;
    assert!(adding.await.unwrap().unwrap_err().maybe_applied());
    assert_eq!(world.text().await, "b ");
}

/// The version is the same again, but the log differs from the one that the write expects. Repeating the write would
/// erase the marks of others.
#[tokio::test(start_paused = true)]
async fn with_reused_versions_a_reverted_change_is_a_change() {
    let world = World::by_content();
    let (network, updating) = write_under_way(&world).await;
    add(&*world.0, "c").await.unwrap();
    update(&*world.0, KEY, async |_| Ok::<_, Error>(Some("a ".into()))).await.unwrap();
    network.deliver_newest().await;
    assert!(updating.await.unwrap().unwrap_err().maybe_applied());
    assert_eq!(world.text().await, "a ");
}

#[tokio::test(start_paused = true)]
async fn after_a_foreign_overwrite_a_writes_effect_is_unknown() {
    for world in [World::new(), World::by_content()] {
        let network = world.network();
        add(&network, "a").await.unwrap();
        let updating = add_under_way(&network, "b", Outcome::AppliedLost).await;
        world.overwrite("z ").await;
        network.deliver().await;
        let error = updating.await.unwrap().unwrap_err();
        assert!(error.kind() == ErrorKind::Unavailable && error.maybe_applied(), "{error:?}");
        assert_eq!(world.text().await, "z ");
    }
}

/// A proxy that repeats requests returns the conflict of the second copy.
#[tokio::test(start_paused = true)]
async fn a_conflict_without_a_later_read_is_maybe_applied() {
    for trouble in [Outcome::Dropped, Outcome::Denied] {
        let world = World::new();
        let network = world.network();
        network.next_read(Outcome::Fine);
        network.every(Kind::Read, trouble);
        network.next_write(Outcome::TwiceSecondAnswer);
        let error = add(&network, "a").await.unwrap_err();
        assert_eq!(world.text().await, "a ");
        assert!(error.maybe_applied(), "{error:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_conflict_with_a_write_without_leasehold_starts_over() {
    let world = World::new();
    world.overwrite("y ").await;
    let runs = AtomicU32::new(0);
    let updated = update(&*world.0, KEY, async |content| {
        if runs.fetch_add(1, Ordering::SeqCst) == 0 {
            world.overwrite("z ").await;
        }
        Ok::<_, Error>(Some(with(content, "b")))
    });
    assert_eq!(updated.await.unwrap().attempts, 2);
    assert_eq!(world.text().await, "z b ");
}

#[tokio::test(start_paused = true)]
async fn a_deleted_object_is_recreated_unless_a_write_is_in_doubt() {
    let world = World::new();
    let network = world.network();
    add(&network, "a").await.unwrap();
    let version = world.0.head(KEY).await.unwrap().unwrap().version;
    network.next_write(Outcome::Stalled);
    network.reset_counts();
    let adding = tokio::spawn({
        let network = network.clone();
        async move { add(&network, "b").await }
    });
    network.sent(2).await;
    world.0.delete(KEY, &version).await.unwrap();
    network.deliver().await;
    adding.await.unwrap().unwrap();
    assert_eq!(world.text().await, "b ");

    let version = world.0.head(KEY).await.unwrap().unwrap().version;
    let adding = add_under_way(&network, "c", Outcome::HeldBack).await;
    world.0.delete(KEY, &version).await.unwrap();
    network.deliver_all().await;
    assert!(adding.await.unwrap().unwrap_err().maybe_applied());
}

#[tokio::test(start_paused = true)]
async fn metadata_of_other_clients_is_kept() {
    let world = World::new();
    let mut metadata = Metadata { content_type: Some("application/json".into()), ..Metadata::default() };
    metadata.user.insert("owner".into(), "ann".into());
    metadata.cache_control = Some("no-cache".into());
    let body = Body { bytes: "x ".into(), metadata: metadata.clone() };
    world.0.write(KEY, Precondition::Absent, body).await.unwrap();
    add(&*world.0, "a").await.unwrap();
    let mut now = world.0.read(KEY).await.unwrap().unwrap().metadata;
    assert!(now.user.remove("leasehold-log").is_some());
    assert_eq!(now, metadata);

    let object = Object::new(world.0.clone(), "new").content_type("text/plain");
    object.update(async |_| Ok::<_, Error>(Some("x".into()))).await.unwrap();
    let kind = |cell: leasehold::register::VersionedValue| cell.metadata.content_type;
    assert_eq!(kind(object.read().await.unwrap().unwrap()).as_deref(), Some("text/plain"));
    add(&*world.0, "b").await.unwrap();
    update(&*world.0, "bytes", async |_| Ok::<_, Error>(Some("x".into()))).await.unwrap();
    let bytes = world.0.read("bytes").await.unwrap().unwrap();
    assert_eq!(kind(bytes).as_deref(), Some("application/octet-stream"));
}

#[tokio::test(start_paused = true)]
async fn an_update_gives_up_after_its_attempts_and_after_its_time() {
    let world = World::new();
    let meddled = async |object: Object| {
        object
            .update(async |content| {
                let number = world.0.head(KEY).await.unwrap().map_or(0, |head| head.size);
                world.0.env().sleep(Duration::from_secs(3_600)).await; // the closure's time does not count
                world.overwrite(if number == 2 { "yyy" } else { "zz" }).await;
                Ok::<_, Error>(Some(with(content, "b")))
            })
            .await
            .unwrap_err()
    };
    let few = meddled(Object::new(world.0.clone(), KEY).attempts(3)).await;
    assert!(few.kind() == ErrorKind::Conflict && few.to_string().contains("3 attempts"), "{few:?}");
    let slow = world.network();
    slow.every(Kind::Read, Outcome::AnswerDelayed(Duration::from_secs(1)));
    let short = meddled(Object::new(Arc::new(slow), KEY).within(Duration::from_secs(20))).await;
    assert!(short.kind() == ErrorKind::Conflict && short.to_string().contains("20s"), "{short:?}");
    assert!(!few.maybe_applied() && !short.maybe_applied());

    let cut = world.network();
    cut.every(Kind::Write, Outcome::Dropped);
    let error = add(&cut, "b").await.unwrap_err();
    assert!(error.kind() == ErrorKind::Unavailable && error.maybe_applied(), "{error:?}");
    cut.heal();
    cut.every(Kind::Write, Outcome::Denied);
    let error = add(&cut, "b").await.unwrap_err();
    assert!(error.kind() == ErrorKind::Denied && !error.maybe_applied(), "{error:?}");
}

#[tokio::test(start_paused = true)]
async fn an_update_may_take_as_long_as_it_likes() {
    let world = World::new();
    let object = Object::new(world.0.clone(), KEY).within(Duration::MAX);
    let make = async |content| {
        world.0.env().sleep(Duration::from_secs(1)).await;
        Ok::<_, Error>(Some(with(content, "a")))
    };
    object.update(make).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn tasks_sharing_an_object_handle_take_turns_and_others_retry() {
    for shared in [true, false] {
        let world = World::new();
        let network = world.network();
        network.every(Kind::Read, Outcome::AnswerDelayed(Duration::from_millis(10)));
        network.every(Kind::Write, Outcome::Delayed(Duration::from_millis(10)));
        let one = Object::new(Arc::new(network.clone()), KEY);
        let tasks: Vec<_> = (0..32)
            .map(|task| {
                let object = if shared { one.clone() } else { Object::new(Arc::new(network.clone()), KEY) };
                tokio::spawn(async move {
                    let word = task.to_string();
                    object.update(async |content| Ok::<_, Error>(Some(with(content, &word)))).await.unwrap()
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
        let text = world.text().await;
        assert_eq!(text.split_whitespace().collect::<BTreeSet<_>>().len(), 32, "{text}");
        if shared {
            assert_eq!(network.counts().total(), 64);
        }
    }
}

/// Each word is in the list exactly once if its update was reported as done, at most once if its outcome was unknown,
/// and not at all if it failed.
#[tokio::test(start_paused = true)]
async fn no_update_is_lost_or_applied_twice_under_any_faults() {
    let (mut done, mut open, mut failed) = (0, 0, 0);
    for seed in 0..seeds() {
        let world = if seed % 2 == 0 { World::new() } else { World::by_content() };
        let outcomes = history(&world, seed).await;
        let text = world.text().await;
        for (word, outcome) in outcomes {
            let times = text.split_whitespace().filter(|found| *found == word).count();
            match outcome {
                Ok(_) => assert_eq!(times, 1, "seed {seed}: {word} is done: {text}"),
                Err(error) if error.maybe_applied() => {
                    open += 1;
                    assert!(times <= 1, "seed {seed}: {word} stands {times} times: {text}");
                    continue;
                }
                Err(error) => {
                    failed += 1;
                    assert_eq!(times, 0, "seed {seed}: {word} failed: {error}: {text}");
                    continue;
                }
            }
            done += 1;
        }
    }
    println!("{done} updates done, {open} left open, {failed} failed");
    assert!(done > 10 * (open + failed), "{done} updates done, {open} left open, {failed} failed");
}

fn seeds() -> u64 {
    std::env::var("LEASEHOLD_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(2_000) / 4
}

async fn history(world: &World, seed: u64) -> Vec<(String, Result<Updated, Error>)> {
    world.overwrite("start ").await;
    let clients: Vec<_> = (0..4)
        .map(|client| {
            let network = world.network();
            let mut chaos = Chaos::all(seed * 8 + client, 0.05);
            chaos.delay_most = Duration::from_secs(3);
            network.chaos(chaos);
            let words: Vec<_> = (0..6).map(|n| format!("{client}.{n}")).collect();
            let task = tokio::spawn({
                let network = network.clone();
                async move {
                    let mut outcomes = Vec::new();
                    for word in words {
                        let outcome = add(&network, &word).await;
                        outcomes.push((word, outcome));
                    }
                    outcomes
                }
            });
            (network, task)
        })
        .collect();
    let mut outcomes = Vec::new();
    let mut networks = Vec::new();
    for (network, task) in clients {
        outcomes.extend(task.await.unwrap());
        // Deliver the held requests while other updates are in progress.
        network.deliver_all().await;
        networks.push(network);
    }
    tokio::time::advance(Duration::from_secs(60)).await;
    for network in networks {
        network.deliver_all().await;
    }
    outcomes
}
