use futures_util::FutureExt;

use super::*;
use crate::clock::{Clock, TestClock};
use crate::lease::StoreOptions;
use crate::observe::Observers;
use crate::stores::memory::MemoryRegister;
use crate::{Guard, Locker, RegisterLeases};

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn failed_renewals_are_retried_more_often_near_the_deadline() {
    let ttl = Ttl::from_millis(10_000).unwrap();
    let pause = |left| pause_after_failure(Duration::from_millis(left), ttl).as_millis();
    assert_eq!([pause(9_000), pause(2_000), pause(400), pause(10)], [1_000, 500, 100, 50]);
}

#[tokio::test(start_paused = true)]
async fn a_lost_lease_reports_a_loss_and_a_released_one_does_not() {
    let clock = Arc::new(TestClock::default());
    let env = Env { clock, ..Env::system() };
    let lock = LockAndToken { name: crate::LockName::new("x").unwrap(), token: crate::Token::default() };
    let hold =
        || HoldState::new(env.clone(), Deadline::new(env.now(), SECOND * 10), None, Span::none(), None);
    let released = hold();
    assert!(released.end().is_none());
    assert!(released.lost(&lock).now_or_never().is_none());
    let lost = hold();
    lost.lose(lock.loss(LossReason::Ended));
    assert!(lost.lost(&lock).now_or_never().is_some());
}

/// A machine that was paused together with its clocks has an earlier deadline after its next renewal.
#[tokio::test(start_paused = true)]
async fn a_loss_is_reported_at_a_deadline_that_was_brought_forward() {
    let clock = Arc::new(TestClock::default());
    let lock = LockAndToken { name: crate::LockName::new("x").unwrap(), token: crate::Token::default() };
    for by_watchdog in [false, true] {
        let start = clock.now();
        let hold = HoldState::new(
            Env::seeded(clock.clone(), 1),
            Deadline::new(start, SECOND * 30),
            None,
            Span::none(),
            None,
        );
        let hold = Arc::new(hold);
        let mut reported = match by_watchdog {
            false => hold.lost(&lock).map(drop).boxed_local(),
            true => {
                let (lock, observers) = (lock.clone(), Observers::default());
                Watchdog { hold: hold.clone(), lock, granted: start, observers }.watch().boxed_local()
            }
        };
        assert!(reported.as_mut().now_or_never().is_none());
        hold.prolong(Deadline::new(start, SECOND * 10));
        reported.await;
        let after = clock.now().longest_since(start);
        assert!(after >= SECOND * 10 && after < SECOND * 11, "{after:?}");
    }
}

/// Ten thousand held locks have ten thousand of these tasks, so the tasks must not contain the state of a renewal or a
/// release.
#[test]
fn the_tasks_of_a_held_lock_stay_small_in_memory() {
    fn renewer<A, B, T>(_: impl FnOnce(A, B) -> T) -> usize {
        size_of::<T>()
    }
    fn watchdog<A, T>(_: impl FnOnce(A) -> T) -> usize {
        size_of::<T>()
    }
    let sizes =
        [renewer(Renewer::run), size_of::<Renewer>(), watchdog(Watchdog::watch), size_of::<HoldState>()];
    let most = [400, 640, 300, 192];
    assert!(sizes.iter().zip(most).all(|(size, most)| *size <= most), "{sizes:?}, at most {most:?}");
}

#[tokio::test(start_paused = true)]
async fn the_next_renewal_is_due_after_a_third_of_what_is_left() {
    let clock = Arc::new(TestClock::default());
    let env = Env::seeded(clock.clone(), 1);
    let ttl = crate::lease::Ttl::from_millis(10_000).unwrap();
    let grant = Grant {
        name: crate::LockName::new("x").unwrap(),
        token: crate::Token::default(),
        after: None,
        id: crate::lease::Id::random(&env.random),
        ttl,
        deadline: crate::lease::deadline(ttl, clock.now()),
        at_limit: false,
        size: None,
        memo: None,
    };
    let start = clock.now();
    for passed_ms in [0, 3_000, 7_000, 9_500, 20_000] {
        let passed = clock.now().longest_since(start);
        clock.sleep(Duration::from_millis(passed_ms).saturating_sub(passed)).await;
        let left = grant.deadline.remaining(clock.now()).as_secs_f64();
        let due = next_renewal(&grant, &env).remaining(clock.now()).as_secs_f64();
        let third = left * 10.0 / 9.85 / 3.0;
        assert!((due - third).abs() <= third * 0.101, "{left} s left, due in {due} s");
    }
}

#[tokio::test(start_paused = true)]
async fn rule_9_an_expired_lease_is_not_prolonged_even_if_unnoticed() {
    let clock = Arc::new(TestClock::default());
    let deadline = Deadline::new(clock.now(), Duration::from_secs(30));
    let hold = HoldState::new(Env::seeded(clock.clone(), 1), deadline, None, Span::none(), None);
    let lock = LockAndToken { name: crate::LockName::new("x").unwrap(), token: crate::Token::default() };
    hold.prolong(Deadline::new(clock.now(), Duration::from_secs(40)));
    assert_eq!(hold.remaining(), Duration::from_secs(40));
    clock.suspend(Duration::from_secs(41));
    hold.prolong(Deadline::new(clock.now(), Duration::from_secs(40)));
    assert!(hold.loss(&lock).is_some());
}

fn locker() -> (Arc<TestClock>, Locker) {
    let clock = Arc::new(TestClock::default());
    let env = Env::seeded(clock.clone(), 1);
    let register = Arc::new(MemoryRegister::new(env.clone()));
    let options = StoreOptions { env, ..StoreOptions::default() };
    (clock, Locker::new(Arc::new(RegisterLeases::new(register, options))))
}

async fn acquired(locker: &Locker, name: &str, ttl: Duration) -> Guard {
    locker.lock(name).ttl(ttl).acquire().await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_released_lock_leaves_no_task() {
    let (clock, locker) = locker();
    let tasks = || Handle::current().metrics().num_alive_tasks();
    for n in 0..10 {
        let guard = acquired(&locker, &format!("x{n}"), SECOND * 30).await;
        assert!(tasks() >= 2, "the renewer's and the watchdog's");
        match n % 2 {
            0 => drop(guard.release().await.unwrap()),
            _ => drop(guard),
        }
    }
    // Sleeps in short steps, because the clock starts a task for long sleeps.
    for _ in 0..20 {
        clock.sleep(SECOND / 4).await;
    }
    assert_eq!(tasks(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_lock_lost_before_its_first_renewal_frees_the_queue() {
    let (clock, locker) = locker();
    let lost = acquired(&locker, "x", SECOND * 600).await;
    clock.suspend(SECOND * 601);
    assert!(lost.check().is_err());
    clock.sleep(SECOND).await;
    assert!(locker.queues().of(lost.name()).try_turn().is_some());
    drop(lost);
}

#[tokio::test(start_paused = true)]
async fn locks_that_are_bound_together_are_lost_together() {
    let (clock, locker) = locker();
    let part = acquired(&locker, "part", SECOND).await;
    locker.evict(part.name(), part.token().unwrap()).await.unwrap();
    let whole = acquired(&locker, "x", SECOND * 600).await;
    let whole = Guard::together(vec![whole, part], false).unwrap();
    clock.sleep(SECOND * 2).await;
    assert!(whole.check().is_err());
    let name = whole.name().clone();
    drop(whole);
    clock.sleep(SECOND).await;
    assert!(locker.queues().of(&name).try_turn().is_some());
}

#[test]
fn a_lock_may_be_released_outside_of_its_runtime() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let guard = runtime.block_on(async {
        let locker = Locker::open("mem:").await.unwrap();
        acquired(&locker, "x", SECOND * 30).await
    });
    // The runtime does the work. The caller need not be in it.
    let mut release = Box::pin(guard.release());
    assert!(release.as_mut().now_or_never().is_none());
    runtime.block_on(async {
        while release.as_mut().now_or_never().is_none_or(|released| released.unwrap() != Released::Released) {
            tokio::task::yield_now().await;
        }
    });
}

/// A renewer runs in the runtime of the task that passed the lock on. That runtime may shut down before the next
/// holder's does.
#[test]
fn a_lock_is_not_passed_on_to_another_runtime() {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let (one, other) = (runtime(), runtime());
    let lock = one.block_on(Locker::open("mem:")).unwrap().lock("x");
    // The first grant of a record has only one token, so it cannot be passed on.
    one.block_on(async { lock.acquire().await.unwrap().release().await.unwrap() });
    let before = one.block_on(lock.acquire()).unwrap();
    let (mut next, mut last) = (Box::pin(lock.acquire()), Box::pin(lock.acquire()));
    one.block_on(async { assert!(next.as_mut().now_or_never().is_none()) });
    other.block_on(async { assert!(last.as_mut().now_or_never().is_none()) });
    one.block_on(before.release()).unwrap();
    let next = one.block_on(next).unwrap();
    one.block_on(next.release()).unwrap();
    let last = other.block_on(last).unwrap();
    drop(one);
    other.block_on(last.renew()).unwrap();
    assert_eq!(other.block_on(last.release()).unwrap(), Released::Released);
}

/// Nothing renews the lease any more, and tasks of other runtimes may wait for the end of the hold.
#[test]
fn a_runtime_that_shuts_down_wakes_the_tasks_of_others() {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let one = runtime();
    let guard = one.block_on(async {
        let locker = Locker::open("mem:").await.unwrap();
        acquired(&locker, "x", SECOND * 30).await
    });
    let (over, renewal) = (guard.cancellation(), guard.renew());
    assert!(guard.check().is_ok() && !over.is_cancelled());
    drop(one);
    assert!(over.is_cancelled());
    assert!(guard.check().is_ok(), "no other process can get the lock before the deadline");
    let error = runtime().block_on(renewal).unwrap_err();
    assert!(error.kind() == crate::ErrorKind::Lost && error.to_string().contains("has shut down"), "{error}");
}

#[test]
fn a_runtime_that_shuts_down_frees_the_queue() {
    let runtime = || {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        builder.enable_time().start_paused(true).build().unwrap()
    };
    let first = runtime();
    let (_, locker) = first.block_on(async { locker() });
    let guard = first.block_on(acquired(&locker, "x", SECOND * 30));
    assert!(locker.queues().of(guard.name()).try_turn().is_none());
    drop(first);
    assert!(locker.queues().of(guard.name()).try_turn().is_some());
    // The renewer has ended, so the lease lapses.
    runtime().block_on(async { assert_eq!(guard.release().await.unwrap(), Released::AlreadyLost) });
}

#[tokio::test(start_paused = true)]
async fn a_renewal_on_request_moves_the_deadline_at_once() {
    let (clock, locker) = locker();
    let guard = acquired(&locker, "x", SECOND * 600).await;
    let first = guard.deadline().unwrap();
    clock.sleep(SECOND).await;
    let mut renewed = Box::pin(guard.renewed(first));
    assert!(renewed.as_mut().now_or_never().is_none());
    let second = guard.renew().await.unwrap();
    assert_eq!((second.start(), second.span()), (clock.now(), first.span()));
    assert_eq!((renewed.await, guard.deadline().unwrap()), (second, second));
    assert!(guard.renewed(first).now_or_never().is_some(), "a renewal that came before is not missed");
}

#[tokio::test(start_paused = true)]
async fn a_renewal_that_was_sent_earlier_does_not_count() {
    let clock = Arc::new(TestClock::default());
    let deadline = || Deadline::new(clock.now(), SECOND * 30);
    let (sent_before, hold) =
        (deadline(), HoldState::new(Env::seeded(clock.clone(), 1), deadline(), None, Span::none(), None));
    clock.sleep(SECOND).await;
    let mut renewed = Box::pin(hold.renewed_since(clock.now()));
    let is_requested = || hold.renewal_requested.notified().now_or_never().is_some();
    assert!(renewed.as_mut().now_or_never().is_none() && is_requested());
    hold.prolong(Deadline::new(sent_before.start(), SECOND * 31));
    assert!(renewed.as_mut().now_or_never().is_none() && is_requested(), "another renewal is necessary");
    let later = deadline();
    hold.prolong(later);
    assert_eq!(renewed.now_or_never(), Some(Ok(later)));
    assert!(!is_requested());
}

#[tokio::test(start_paused = true)]
async fn a_renewal_on_request_reports_a_loss() {
    let (clock, locker) = locker();
    let guard = acquired(&locker, "x", SECOND * 600).await;
    clock.sleep(SECOND).await;
    locker.evict(guard.name(), guard.token().unwrap()).await.unwrap();
    assert!(guard.check().is_ok(), "not noticed yet");
    assert_eq!(guard.renew().await.unwrap_err().kind(), crate::ErrorKind::Lost);
    assert!(guard.check().is_err() && guard.deadline().is_err());

    let guard = acquired(&locker, "y", SECOND * 600).await;
    clock.sleep(SECOND).await;
    let renewal = guard.renew();
    guard.release().await.unwrap();
    assert_eq!(renewal.await.unwrap_err().kind(), crate::ErrorKind::Lost);
}

#[tokio::test(start_paused = true)]
async fn a_guard_of_several_locks_has_the_earliest_deadline() {
    let (clock, locker) = locker();
    let part = acquired(&locker, "part", SECOND * 600).await;
    let first = part.deadline().unwrap();
    clock.sleep(SECOND).await;
    let whole = acquired(&locker, "x", SECOND * 600).await;
    let whole = Guard::together(vec![whole, part], false).unwrap();
    assert_eq!(whole.deadline().unwrap(), first);
    assert_eq!(whole.renew().await.unwrap().start(), clock.now());
    assert_eq!(whole.deadline().unwrap().start(), clock.now(), "both were renewed");
}
