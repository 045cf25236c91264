//! Tests of the interface without async.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use leasehold::blocking::{Due, Guard, Locker};
use leasehold::env::Env;
use leasehold::lease::Secret;
use leasehold::{ErrorKind, Eviction, LockName, Once, Released, State};

fn locker() -> Locker {
    Locker::open("mem:").unwrap()
}

fn is_free(locker: &Locker, name: &str) -> bool {
    matches!(locker.inspect(&LockName::new(name).unwrap()).unwrap().state, State::Free)
}

fn evict(locker: &Locker, guard: &Guard) {
    locker.evict(guard.name(), guard.token().unwrap()).unwrap();
}

#[test]
fn one_thread_at_a_time_holds_a_lock() {
    let locker = locker();
    let (inside, entries) = (AtomicUsize::new(0), AtomicUsize::new(0));
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..25 {
                    let guard = locker.lock("x").acquire().unwrap();
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                    entries.fetch_add(1, Ordering::SeqCst);
                    inside.fetch_sub(1, Ordering::SeqCst);
                    guard.release().unwrap();
                }
            });
        }
    });
    assert_eq!(entries.into_inner(), 200);
}

#[test]
fn a_dropped_guard_is_released_when_the_drop_returns() {
    let locker = locker();
    for _ in 0..50 {
        drop(locker.lock("x").try_acquire().unwrap());
        assert!(is_free(&locker, "x"));
    }
}

#[test]
fn a_lease_is_renewed_while_its_thread_works() {
    let guard = locker().lock("x").ttl(Duration::from_millis(500)).acquire().unwrap();
    // The remaining time grows only after a renewal.
    let mut least = guard.remaining();
    loop {
        let remaining = guard.remaining();
        assert!(!remaining.is_zero(), "the lease was not renewed");
        if remaining > least {
            break;
        }
        least = remaining;
        thread::yield_now();
    }
    guard.check().unwrap();
}

#[test]
fn a_thread_learns_that_the_lock_was_lost() {
    let locker = locker();
    let guard = locker.lock("x").ttl(Duration::from_millis(500)).acquire().unwrap();
    assert!(guard.lost_within(Duration::ZERO).unwrap().is_none());
    evict(&locker, &guard);
    guard.lost().unwrap();
    assert!(guard.lost_within(Duration::ZERO).unwrap().is_some());
    assert_eq!(guard.check().unwrap_err().kind(), ErrorKind::Lost);
}

#[test]
fn work_after_a_loss_is_an_error() {
    let locker = locker();
    let lock = locker.lock("x").ttl(Duration::from_millis(500));
    let lost = lock.with(|guard| {
        evict(&locker, guard);
        guard.lost().unwrap();
    });
    assert_eq!(lost.unwrap_err().kind(), ErrorKind::Lost);
}

/// The ttl is so long that no renewal notices the eviction before the end of the body.
#[test]
fn an_eviction_that_only_the_store_knows_of_is_an_error() {
    let locker = locker();
    let lost = locker.lock("x").with(|guard| {
        evict(&locker, guard);
        guard.check().unwrap();
    });
    assert_eq!(lost.unwrap_err().kind(), ErrorKind::Lost);
}

#[test]
fn a_callback_that_waits_gets_an_error() {
    let locker = locker();
    let guard = locker.lock("x").acquire().unwrap();
    let (told, seen) = mpsc::channel();
    let (told, inspector) = (Mutex::new(told), locker.clone());
    let waiting = locker.lock("x").on_wait(move |_| {
        let inspected = inspector.inspect(&LockName::new("x").unwrap());
        let _ = told.lock().unwrap().send(inspected.unwrap_err().kind());
    });
    let waiter = thread::spawn(move || waiting.acquire().unwrap().release().unwrap());
    assert_eq!(seen.recv().unwrap(), ErrorKind::Invalid);
    drop(guard);
    waiter.join().unwrap();
}

#[tokio::test]
async fn a_call_in_a_runtime_blocks_its_thread() {
    let locker = locker();
    let guard = locker.lock("x").acquire().unwrap();
    assert_eq!(locker.lock("x").try_acquire().unwrap_err().kind(), ErrorKind::Held);
    drop(guard);
    assert!(is_free(&locker, "x"));
    // More operations than tokio allows in one poll of this task.
    for _ in 0..200 {
        locker.lock("x").acquire().unwrap().release().unwrap();
    }
}

#[test]
fn an_acquisition_ends_at_its_limit() {
    let locker = locker();
    let _guard = locker.lock("x").acquire().unwrap();
    let held = locker.lock("x").acquire_within(Duration::from_millis(20)).unwrap_err();
    assert_eq!(held.kind(), ErrorKind::Held);
}

#[test]
fn a_ticket_holds_a_lock_across_guards() {
    let locker = locker();
    let ticket = locker.lock("x").for_ticket().acquire().unwrap().into_ticket().unwrap();
    assert_eq!(locker.lock("x").try_acquire().unwrap_err().kind(), ErrorKind::Held);
    locker.renew(&ticket).unwrap();
    assert_eq!(locker.resume(&ticket).unwrap().token().unwrap(), ticket.token());
    assert!(is_free(&locker, "x"));
}

#[test]
fn an_acquisition_can_be_repeated_by_its_secret() {
    let (locker, name) = (locker(), LockName::new("x").unwrap());
    let acquire = |secret| locker.lock("x").acquire_ticket(secret, Duration::ZERO);
    let [first, second] = [(); 2].map(|()| Secret::new(&Env::system()));
    let ticket = acquire(first).unwrap();
    assert!(acquire(first).unwrap().ticket().token() >= ticket.ticket().token());
    assert_eq!(locker.withdraw(&name, first).unwrap(), Released::Released);
    assert_eq!(acquire(first).unwrap_err().kind(), ErrorKind::Lost, "the secret is spent");

    let ticket = acquire(second).unwrap();
    locker.release_with_cooldown(ticket.ticket(), Duration::from_secs(60)).unwrap();
    assert!(!is_free(&locker, "x"));
}

#[test]
fn another_thread_reads_how_long_a_guard_holds() {
    let guard = locker().lock("x").acquire().unwrap();
    let (remaining, ended) = (guard.monitor(), guard.monitor());
    assert!(!thread::spawn(remaining).join().unwrap().is_zero());
    guard.release().unwrap();
    assert!(ended().is_zero());
}

#[test]
fn a_hold_that_lapses_is_not_released() {
    let locker = locker();
    locker.lock("x").acquire().unwrap().lapse();
    assert!(!is_free(&locker, "x"));
}

#[test]
fn a_guard_is_renewed_on_demand() {
    let guard = locker().lock("x").acquire().unwrap();
    let granted = guard.deadline().unwrap();
    let renewed = guard.renew().unwrap();
    assert!(renewed.start().longest_since(granted.start()) > Duration::ZERO, "the lease begins anew");
}

#[test]
fn an_eviction_reports_its_reason() {
    let locker = locker();
    let leadership = locker.election("x").campaign_within(Duration::from_secs(30)).unwrap();
    let why = Eviction::new("alice", "the machine is gone");
    locker.evict_for(leadership.name(), leadership.term().unwrap(), &why).unwrap();
    assert_eq!(locker.inspect(leadership.name()).unwrap().history[0].evicted, Some(why));
}

#[test]
fn a_job_runs_once_per_period() {
    let job = locker().lock("x").once_per(Duration::from_secs(3600));
    let failed = job.run(|_| Err::<(), _>("the disk is full")).unwrap();
    assert_eq!(failed, Once::Ran(Err("the disk is full")));
    assert_eq!(job.run(|_| Ok::<_, ()>(7)).unwrap(), Once::Ran(Ok(7)));
    assert!(matches!(job.try_run(|_| Ok::<_, ()>(8)).unwrap(), Once::AlreadyRan(_)));
    assert!(matches!(job.acquire().unwrap(), Due::AlreadyRan(_)));
}

#[test]
fn a_job_that_lost_its_lock_is_not_recorded() {
    let locker = locker();
    let job = locker.lock("x").ttl(Duration::from_millis(500)).once_per(Duration::from_secs(3600));
    let lost = job.run(|guard| {
        evict(&locker, guard);
        guard.lost().unwrap();
        Ok::<_, ()>(())
    });
    assert_eq!(lost.unwrap_err().kind(), ErrorKind::Lost);
    assert!(matches!(job.run(|_| Ok::<_, ()>(())).unwrap(), Once::Ran(Ok(()))));
}

#[test]
fn semaphores_and_shared_holds_are_guards() {
    let locker = locker();
    let semaphore = locker.semaphore("s", 2);
    let permits = [semaphore.acquire().unwrap(), semaphore.acquire().unwrap()];
    assert_eq!(semaphore.try_acquire().unwrap_err().kind(), ErrorKind::Held);
    drop(permits);
    semaphore.acquire_within(Duration::from_secs(60)).unwrap().release().unwrap();

    let index = locker.rw_lock("i");
    let shared = index.shared().unwrap();
    assert_eq!(index.try_exclusive().unwrap_err().kind(), ErrorKind::Held);
    drop(shared);
    drop(index.try_exclusive().unwrap());
    drop(index.try_shared().unwrap());
}

#[test]
fn observers_see_each_leader() {
    let election = locker().election("x").value("http://a");
    let mut changes = election.observe();
    assert_eq!(changes.next().unwrap().unwrap(), None);
    let leadership = election.clone().owner("ann").try_campaign().unwrap();
    let every = election.observe_every(Duration::from_secs(60)).next().unwrap().unwrap().unwrap();
    assert_eq!(every.holder.unwrap().name, "ann");
    let leader = changes.next().unwrap().unwrap().unwrap();
    assert_eq!((leader.value.as_deref(), leader.term), (Some("http://a"), Some(leadership.term().unwrap())));
    leadership.resign().unwrap();
    assert_eq!(changes.next().unwrap().unwrap(), None);
}

#[test]
fn an_object_is_updated_on_the_calling_thread() {
    let register = Arc::new(leasehold::stores::memory::MemoryRegister::new(leasehold::env::Env::system()));
    let object = leasehold::blocking::Object::new(register, "n");
    let caller = thread::current().id();
    for expected in ["1", "2"] {
        object
            .update(|content| {
                assert_eq!(thread::current().id(), caller);
                let n: u32 = content.map_or(0, |text| String::from_utf8_lossy(&text).parse().unwrap());
                Ok::<_, leasehold::Error>(Some((n + 1).to_string().into()))
            })
            .unwrap();
        assert_eq!(object.read().unwrap().unwrap().value, expected);
    }
    let refused = object.update(|_| Err::<_, leasehold::Error>(locker().lock("").acquire().unwrap_err()));
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::Invalid);
}

#[test]
fn several_locks_are_acquired_together() {
    let locker = Locker::open("mem:").unwrap();
    let locks = locker.lock("b").and(["a"]);
    let guard = locks.acquire().unwrap();
    assert_eq!(guard.names().map(|name| name.to_string()).collect::<Vec<_>>(), ["a", "b"]);
    assert_eq!(
        guard.tokens().unwrap().into_keys().map(|name| name.to_string()).collect::<Vec<_>>(),
        ["a", "b"]
    );
    assert_eq!(locks.try_acquire().unwrap_err().kind(), ErrorKind::Held);
    assert_eq!(locks.acquire_within(Duration::from_millis(10)).unwrap_err().kind(), ErrorKind::Held);
    guard.release().unwrap();
    drop(locks.try_acquire().unwrap());
    drop(locker.lock("b").try_acquire().unwrap());
}
