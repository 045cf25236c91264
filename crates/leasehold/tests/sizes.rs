//! The number of permits of a semaphore, and of readers of a readers-writer lock, in the store.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use crate::common::{Client, TTL, World};
use leasehold::lease::LeaseStore;
use leasehold::observe::{Event, Observer};
use leasehold::register::Register;
use leasehold::{Error, ErrorKind, Guard, LockName, Locker, RwLock, Semaphore, State, Swept};
use leasehold_testkit::fault::{FaultyRegister, Kind, Outcome, Sent};
use tokio::task::JoinHandle;

const SECOND: Duration = Duration::from_secs(1);

fn semaphore(client: &Client, permits: usize) -> Semaphore {
    Locker::new(client.leases.clone()).semaphore("x", permits).ttl(TTL)
}

fn rw_lock(client: &Client, readers: usize) -> RwLock {
    Locker::new(client.leases.clone()).rw_lock("x").readers(readers).ttl(TTL)
}

fn name(permit: usize) -> LockName {
    LockName::new(format!("x/permit-{permit}")).unwrap()
}

/// Returns the size in the record of a permit.
async fn recorded(world: &World, permit: usize) -> Option<u64> {
    let cell = world.register.read(&format!("x/permit-{permit}.lock")).await.unwrap()?;
    serde_json::from_slice::<serde_json::Value>(&cell.value).unwrap()["size"].as_u64()
}

/// Acquires and releases each of `permits` permits, so that the records have the size.
async fn used(client: &Client, permits: usize) {
    let (semaphore, mut guards) = (semaphore(client, permits), Vec::new());
    for _ in 0..permits {
        guards.push(semaphore.try_acquire().await.unwrap());
    }
    for guard in guards {
        guard.release().await.unwrap();
    }
}

async fn held(client: &Client) -> usize {
    let mut held = 0;
    for permit in 1..=5 {
        held +=
            usize::from(matches!(client.leases.inspect(&name(permit)).await.unwrap().state, State::Held(_)));
    }
    held
}

/// Checks that `refused` is the error for two different numbers.
fn differ(refused: leasehold::Result<Guard>, asked: u64, stored: u64) -> Error {
    let error = refused.unwrap_err();
    let sizes = error.sizes().unwrap_or_else(|| panic!("{error:?}"));
    assert_eq!((error.kind(), sizes.asked, sizes.stored), (ErrorKind::Invalid, asked, stored));
    error
}

#[tokio::test(start_paused = true)]
async fn the_first_acquisition_decides_and_another_number_is_an_error_that_names_both() {
    for (first, second) in [(2, 3), (3, 2), (1, 2), (64, 63)] {
        let world = World::new();
        let (one, two) = (world.observer(1), world.observer(2));
        let guard = semaphore(&one, first).acquire().await.unwrap();
        let other = semaphore(&two, second);
        for refused in [other.try_acquire().await, other.acquire().await, other.acquire_within(SECOND).await]
        {
            let error = differ(refused, second as u64, first as u64);
            let says =
                format!("`x` has {first} permits in the store, and this acquisition asks for {second}");
            assert_eq!(error.to_string(), says);
            assert_eq!(error.help(), [format!("ask for {first}, or resize `x` while nobody holds it")]);
        }
        guard.check().unwrap();
        guard.release().await.unwrap();
        differ(other.acquire().await, second as u64, first as u64);
        assert_eq!(held(&one).await, 0, "what the refused acquisition had is released");
        semaphore(&two, first).acquire().await.unwrap().release().await.unwrap();
    }
}

/// All of them are held, so the acquisition would wait before it can compare.
#[tokio::test(start_paused = true)]
async fn another_number_is_an_error_although_all_permits_are_held() {
    let world = World::new();
    let (one, two) = (world.observer(1), world.observer(2));
    let _held = [semaphore(&one, 2).acquire().await.unwrap(), semaphore(&one, 2).acquire().await.unwrap()];
    differ(semaphore(&two, 1).acquire().await, 1, 2);
    differ(semaphore(&two, 1).try_acquire().await, 1, 2);
}

#[tokio::test(start_paused = true)]
async fn concurrent_first_acquisitions_agree_on_one_number() {
    for seed in 0..40 {
        let world = World::paced();
        let mut tasks = tokio::task::JoinSet::new();
        for n in 0..4 {
            let client = world.dated(seed * 4 + n);
            tasks.spawn(async move {
                let permits = 2 + n as usize % 2;
                let outcome = semaphore(&client, permits).acquire_within(SECOND * 20).await;
                let size = match &outcome {
                    Ok(_) => permits as u64,
                    Err(error) if error.sizes().is_some() => error.sizes().unwrap().stored,
                    // Three clients with the same number of permits at most.
                    Err(error) => panic!("{error}"),
                };
                (size, outcome)
            });
        }
        let outcomes = tasks.join_all().await;
        let size = recorded(&world, 1).await.unwrap();
        assert!(outcomes.iter().all(|(seen, _)| *seen == size), "{size}: {outcomes:?}");
        assert_eq!(outcomes.iter().filter(|(_, outcome)| outcome.is_ok()).count(), 2);
    }
}

#[tokio::test(start_paused = true)]
async fn a_plain_lock_and_an_eviction_keep_the_number() {
    let world = World::new();
    let client = world.observer(1);
    used(&client, 2).await;
    let locker = Locker::new(client.leases.clone());
    for permit in [1, 2] {
        let plain = locker.lock(name(permit).as_str()).acquire().await.unwrap();
        locker.evict(&name(permit), plain.token().unwrap()).await.unwrap();
        drop(plain);
        locker.lock(name(permit).as_str()).acquire().await.unwrap().release().await.unwrap();
        assert_eq!(recorded(&world, permit).await, Some(2));
    }
    differ(semaphore(&client, 3).acquire().await, 3, 2);
    assert_eq!(
        locker.sweep(&name(1), Duration::ZERO, true).await.unwrap_err().kind(),
        ErrorKind::Unsupported
    );
    let dated = world.dated(2);
    dated.env.sleep(SECOND * 60).await;
    let swept = Locker::new(dated.leases.clone()).sweep(&name(1), Duration::ZERO, false).await.unwrap();
    assert_eq!(swept, Swept::Kept, "the number would be forgotten");
}

/// Somebody took the first permit by hand before there was a number.
#[tokio::test(start_paused = true)]
async fn without_a_number_acquisitions_wait_for_the_first_permit() {
    let world = World::paced();
    let (one, two) = (world.dated(1), world.dated(2));
    let plain = Locker::new(one.leases.clone()).lock("x/permit-1").acquire().await.unwrap();
    let error = semaphore(&two, 3).try_acquire().await.unwrap_err();
    assert_eq!((error.kind(), held(&one).await), (ErrorKind::Held, 1), "{error}");
    let waiting = semaphore(&two, 3);
    let waiting = tokio::spawn(async move { waiting.acquire().await.unwrap() });
    one.env.sleep(SECOND * 40).await;
    two.network.reset_counts();
    one.env.sleep(SECOND * 20).await;
    let polls = two.network.counts();
    assert!(!waiting.is_finished() && polls.writes == 0 && polls.reads < 40, "{polls:?}");
    plain.release().await.unwrap();
    assert_eq!(waiting.await.unwrap().name(), &name(1));
}

/// The tasks of one process pass the lock on without a request.
#[tokio::test(start_paused = true)]
async fn a_permit_that_is_passed_on_is_compared_too() {
    let world = World::new();
    let client = world.observer(1);
    let locker = Locker::new(client.leases.clone());
    let plain = locker.lock("x/permit-1").ttl(TTL).acquire().await.unwrap();
    let one = semaphore(&client, 1);
    let one = tokio::spawn(async move { one.acquire().await.unwrap() });
    tokio::task::yield_now().await;
    plain.release().await.unwrap();
    let guard = one.await.unwrap();
    assert_eq!(recorded(&world, 1).await, Some(1));
    let two = semaphore(&client, 2);
    let two = tokio::spawn(async move { two.acquire().await });
    client.env.sleep(SECOND).await;
    differ(two.await.unwrap(), 2, 1);
    guard.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_permit_whose_record_has_the_number_costs_no_more_than_a_lock() {
    let world = World::new();
    let (one, two) = (world.observer(1), world.observer(2));
    used(&one, 2).await;
    for permits in [1, 2] {
        assert_eq!(recorded(&world, permits).await, Some(2));
    }
    semaphore(&two, 2).acquire().await.unwrap().release().await.unwrap();
    let counts = two.network.counts();
    assert_eq!((counts.reads, counts.writes), (1, 2));
    // A plain lock, for comparison.
    let three = world.observer(3);
    Locker::new(three.leases.clone()).lock("x/permit-2").acquire().await.unwrap().release().await.unwrap();
    assert_eq!((three.network.counts().reads, three.network.counts().writes), (1, 2));
}

/// Otherwise a resize could come between the two.
#[tokio::test(start_paused = true)]
async fn the_number_is_read_after_the_grant() {
    for seed in 0..20 {
        let world = World::new();
        let (one, two) = (world.observer(100), world.observer(seed));
        let first = semaphore(&one, 2).acquire().await.unwrap();
        assert_eq!(first.name(), &name(1));
        let guard = semaphore(&two, 2).acquire().await.unwrap();
        assert_eq!(guard.name(), &name(2));
        let sent: Vec<_> = two.network.log().into_iter().map(|sent| (sent.kind, sent.key)).collect();
        let at = |kind, key: &str| sent.iter().rposition(|(is, of)| *is == kind && of == key).unwrap();
        assert!(at(Kind::Write, "x/permit-2.lock") < at(Kind::Read, "x/permit-1.lock"), "{sent:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_resize_changes_the_number_only_if_no_permit_is_held() {
    let world = World::new();
    let (one, two) = (world.observer(1), world.observer(2));
    let error = semaphore(&one, 2).resize().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "there is no number yet: {error}");
    used(&one, 2).await;
    for permit in [1, 2] {
        let plain = Locker::new(two.leases.clone()).lock(name(permit).as_str()).owner("bob");
        let plain = plain.acquire().await.unwrap();
        for size in [1, 3] {
            let error = semaphore(&one, size).resize().await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Held, "{error}");
            assert!(error.to_string().contains("cannot be resized while it is held"), "{error}");
            assert!(error.to_string().contains("bob"), "{error}");
        }
        plain.release().await.unwrap();
        assert_eq!((recorded(&world, 1).await, held(&one).await), (Some(2), 0));
    }
    for (size, before) in [(4, 2), (4, 4), (1, 4), (3, 1)] {
        assert_eq!(semaphore(&one, size).resize().await.unwrap(), before);
        differ(semaphore(&two, 2).acquire().await, 2, size as u64);
        used(&two, size).await;
        assert_eq!(held(&one).await, 0);
    }
}

/// The records of the other permits must not keep the old number.
#[tokio::test(start_paused = true)]
async fn after_a_resize_no_record_lets_a_client_by_the_old_number_in() {
    let world = World::new();
    let (one, two) = (world.observer(1), world.observer(2));
    used(&two, 3).await;
    assert_eq!(semaphore(&one, 4).resize().await.unwrap(), 3);
    for _ in 0..20 {
        differ(semaphore(&two, 3).acquire().await, 3, 4);
    }
}

/// A client is paused after its grant. Its lease lapses, and the number is changed before it reads it.
#[tokio::test(start_paused = true)]
async fn a_client_that_was_paused_before_the_comparison_sees_the_new_number() {
    let world = World::new();
    let (one, two) = (world.observer(1), world.observer(2));
    let first = semaphore(&one, 2).acquire().await.unwrap();
    // The reads of the grant of the second permit pass, and then that of the first one hangs.
    let network = two.network.clone();
    let paused = semaphore(&two, 2);
    let paused = tokio::spawn(async move { paused.acquire().await });
    while two.network.counts().writes == 0 {
        one.env.sleep(Duration::from_millis(1)).await;
    }
    network.stall();
    one.env.sleep(SECOND).await;
    first.release().await.unwrap();
    let three = world.observer(3);
    let resized = loop {
        match semaphore(&three, 3).resize().await {
            Err(error) if error.kind() == ErrorKind::Held => three.env.sleep(SECOND).await,
            resized => break resized.unwrap(),
        }
    };
    assert_eq!(resized, 2);
    network.heal();
    match paused.await.unwrap() {
        Ok(guard) => assert_eq!(guard.check().unwrap_err().kind(), ErrorKind::Lost),
        Err(error) => assert!(error.sizes().is_some() || error.kind() == ErrorKind::Lost, "{error}"),
    }
}

/// The resize ends without a further request, as if its process were killed. The records then agree, or have no number.
#[tokio::test(start_paused = true)]
async fn a_resize_that_dies_at_any_point_leaves_one_number() {
    let mut sizes = Vec::new();
    for polls in 0..40 {
        let world = World::paced();
        let (one, two, three) = (world.dated(1), world.dated(2), world.dated(3));
        used(&one, 2).await;
        {
            let semaphore = semaphore(&two, 3);
            let mut resize = pin!(semaphore.resize());
            for _ in 0..polls {
                if futures_util::future::poll_immediate(resize.as_mut()).await.is_some() {
                    break;
                }
                two.env.sleep(Duration::from_millis(5)).await;
            }
            two.network.stall();
        }
        // A request that is under way still arrives.
        three.env.sleep(SECOND).await;
        let size = recorded(&world, 1).await.unwrap();
        for permit in 2..=3 {
            let other = recorded(&world, permit).await;
            assert!(other.is_none_or(|other| other == size), "{size} {other:?} after {polls} polls");
        }
        three.env.sleep(TTL * 3).await;
        differ(semaphore(&three, 5 - size as usize).acquire().await, 5 - size, size);
        used(&three, size as usize).await;
        sizes.push(size);
    }
    assert!(sizes.contains(&2) && sizes.contains(&3), "{sizes:?}");
}

/// The resize holds all permits while it changes the number.
#[tokio::test(start_paused = true)]
async fn nobody_gets_a_permit_during_a_resize() {
    let world = World::paced();
    let (one, two) = (world.dated(1), world.dated(2));
    used(&one, 2).await;
    // Each of its writes takes a second.
    one.network.every(Kind::Write, Outcome::Delayed(SECOND));
    let resize = semaphore(&one, 3);
    let resize = tokio::spawn(async move { resize.resize().await });
    two.env.sleep(Duration::from_millis(1_200)).await;
    while !resize.is_finished() && held(&two).await == 3 {
        for permits in [2, 3] {
            let refused = semaphore(&two, permits).try_acquire().await.unwrap_err();
            assert!(refused.kind() == ErrorKind::Held || refused.sizes().is_some(), "{refused}");
        }
    }
    assert_eq!(resize.await.unwrap().unwrap(), 2);
    used(&two, 3).await;
}

/// Starts a resize to 3 by `client`, whose network has faults from the moment at which it holds all three permits. The
/// permits have the number 2 before.
async fn faulty_resize(
    world: &World,
    client: &Client,
    faults: impl FnOnce(&FaultyRegister),
) -> JoinHandle<leasehold::Result<u64>> {
    let other = world.dated(100);
    used(&other, 2).await;
    // The first grant of a name may take a second write.
    Locker::new(other.leases.clone()).lock("x/permit-3").acquire().await.unwrap().release().await.unwrap();
    let network = client.network.clone();
    let heals = client.network.clone();
    // Its holds end in the network as it is then, but its releases get through.
    let locker = Locker::new(client.leases.clone()).observed_by(Arc::new(AtLoss(heals)));
    // The client learns of its grants a second late.
    network.every(Kind::Write, Outcome::AnswerDelayed(SECOND));
    let resize = tokio::spawn(async move { locker.semaphore("x", 3).ttl(TTL).resize().await });
    while held(&other).await < 3 {
        other.env.sleep(Duration::from_millis(1)).await;
    }
    network.heal();
    faults(&network);
    resize
}

/// Heals the network when the first permit is lost.
struct AtLoss(FaultyRegister);

impl Observer for AtLoss {
    fn observe(&self, event: &Event<'_>) {
        if let Event::Lost { lock, .. } = event
            && **lock == name(1)
        {
            self.0.heal();
        }
    }
}

/// Otherwise another client could get a permit by the old number, and the request for the new one arrives after that.
#[tokio::test(start_paused = true)]
async fn a_resize_goes_on_when_its_caller_is_gone() {
    let world = World::new();
    let (one, two) = (world.observer(1), world.observer(2));
    let resize = faulty_resize(&world, &one, |network| {
        network.every_write_of("x/permit-1.lock", Outcome::Delayed(SECOND * 3));
    })
    .await;
    // The request for the new number is under way.
    two.env.sleep(SECOND * 2).await;
    assert_eq!(recorded(&world, 2).await, None);
    resize.abort();
    let refused = loop {
        two.env.sleep(Duration::from_millis(100)).await;
        match semaphore(&two, 2).try_acquire().await {
            Err(error) if error.kind() == ErrorKind::Held => {}
            refused => break refused,
        }
    };
    differ(refused, 2, 3);
    while held(&two).await > 0 {
        two.env.sleep(Duration::from_millis(100)).await;
    }
    used(&two, 3).await;
}

/// The other permits may have been released before, and granted by the old number.
#[tokio::test(start_paused = true)]
async fn a_release_does_not_write_the_number_of_a_resize_that_failed() {
    let world = World::new();
    let one = world.observer(1);
    let resize = faulty_resize(&world, &one, |network| {
        network.every_write_of("x/permit-1.lock", Outcome::Dropped);
    })
    .await;
    let error = resize.await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
    assert_eq!((recorded(&world, 1).await, held(&one).await), (Some(2), 0));
}

/// A renewal with the new number finds that an earlier one was applied, which wrote the old number.
#[tokio::test(start_paused = true)]
async fn a_resize_ends_only_when_the_record_has_its_number() {
    let world = World::new();
    let (one, two) = (world.observer(1), world.observer(2));
    let resize = faulty_resize(&world, &one, |network| {
        network.every(Kind::Read, Outcome::Stalled);
        network.every(Kind::Write, Outcome::NotApplied);
        network.every_write_of("x/permit-1.lock", Outcome::AnswerStalled);
    })
    .await;
    // The first permit is renewed while the others keep their number.
    let first = async || world.register.read("x/permit-1.lock").await.unwrap().unwrap().version;
    let before = first().await;
    while first().await == before {
        two.env.sleep(Duration::from_millis(100)).await;
    }
    one.network.every(Kind::Write, Outcome::Fine);
    let writes_it = |sent: &Sent| {
        sent.value.as_ref().is_some_and(|value| String::from_utf8_lossy(value).contains("\"size\":3"))
    };
    while !one.network.log().iter().any(writes_it) {
        two.env.sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(recorded(&world, 1).await, Some(2));
    one.network.heal();
    assert_eq!(resize.await.unwrap().unwrap(), 2);
    assert_eq!(recorded(&world, 1).await, Some(3));
}

#[tokio::test(start_paused = true)]
async fn readers_and_writers_agree_on_the_number_of_readers() {
    let world = World::new();
    let (one, two) = (world.observer(1), world.observer(2));
    let mut readers = Vec::new();
    for _ in 0..12 {
        readers.push(rw_lock(&one, 12).try_shared().await.unwrap());
    }
    assert_eq!(rw_lock(&one, 12).try_shared().await.unwrap_err().kind(), ErrorKind::Held);
    for other in [8, 16] {
        let lock = rw_lock(&two, other);
        for refused in [lock.try_shared().await, lock.shared().await, lock.exclusive().await] {
            let error = differ(refused, other as u64, 12);
            assert!(error.to_string().contains("has 12 readers"), "{error}");
        }
    }
    assert_eq!(rw_lock(&two, 12).try_exclusive().await.unwrap_err().kind(), ErrorKind::Held);
    let last = readers.pop().unwrap();
    for reader in readers {
        reader.release().await.unwrap();
    }
    // One reader, whose permit is not among the first eight, or is.
    let refused = rw_lock(&two, 8).try_exclusive().await.unwrap_err();
    assert!(refused.sizes().is_some() || refused.kind() == ErrorKind::Held, "{refused}");
    assert_eq!(rw_lock(&two, 13).resize().await.unwrap_err().kind(), ErrorKind::Held);
    last.release().await.unwrap();
    let writer = rw_lock(&two, 12).exclusive().await.unwrap();
    assert_eq!(rw_lock(&one, 12).try_shared().await.unwrap_err().kind(), ErrorKind::Held);
    assert_eq!(rw_lock(&one, 13).resize().await.unwrap_err().kind(), ErrorKind::Held);
    writer.release().await.unwrap();
    assert_eq!(rw_lock(&one, 64).resize().await.unwrap(), 12);
    differ(rw_lock(&two, 12).exclusive().await, 12, 64);
    rw_lock(&two, 64).exclusive().await.unwrap().release().await.unwrap();
    for bad in [0, 65] {
        let error = rw_lock(&two, bad).shared().await.unwrap_err();
        assert_eq!((error.kind(), error.sizes()), (ErrorKind::Invalid, None));
    }
}

#[tokio::test(start_paused = true)]
async fn a_writer_records_the_number_if_there_is_none() {
    let world = World::new();
    let (one, two) = (world.observer(1), world.observer(2));
    rw_lock(&one, 3).exclusive().await.unwrap().release().await.unwrap();
    differ(rw_lock(&two, 8).try_shared().await, 8, 3);
    rw_lock(&two, 3).shared().await.unwrap().check().unwrap();
}

/// A release deletes the object, so the number could not stay.
#[tokio::test(start_paused = true)]
async fn a_store_that_keeps_no_number_has_eight_readers_and_no_resize() {
    let world = World::by_existence();
    let client = world.observer(1);
    assert!(!client.leases.capabilities().sizes);
    for refused in [rw_lock(&client, 9).shared().await, rw_lock(&client, 7).exclusive().await] {
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::Unsupported);
    }
    rw_lock(&client, 8).exclusive().await.unwrap().release().await.unwrap();
    assert_eq!(rw_lock(&client, 8).resize().await.unwrap_err().kind(), ErrorKind::Unsupported);
    assert_eq!(semaphore(&client, 8).resize().await.unwrap_err().kind(), ErrorKind::Unsupported);
    // As many as the largest number.
    let _one = semaphore(&client, 1).acquire().await.unwrap();
    semaphore(&client, 2).acquire().await.unwrap().check().unwrap();
}
