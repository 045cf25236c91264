//! Waiters that hold locks.

use leasehold::{ErrorKind, Guard, Locker};

use super::Harness;
use super::client::{LONG, name};
use super::locks::locker;

/// Two waiters hold what the other waits for. Inspection shows it, and exactly one of them fails, so that the other goes
/// on.
pub async fn one_of_two_waiters_in_a_cycle_fails(harness: &dyn Harness) {
    let ((one, here), (two, there)) = (locker(harness, "one").await, locker(harness, "two").await);
    let capabilities = one.store.capabilities();
    if !capabilities.fifo() || !capabilities.tokens {
        return; // Nothing shows who waits, or for which grant.
    }
    let guard_of = async |locker: &Locker, lock: &str| locker.lock(lock).ttl(LONG).acquire().await.unwrap();
    let (first, second) = (guard_of(&here, "a").await, guard_of(&there, "b").await);
    let token = first.token().unwrap();
    let waits = |locker: &Locker, lock: &str, guard: Guard| {
        let lock = locker.lock(lock).ttl(LONG).while_holding(&guard);
        tokio::spawn(async move {
            let outcome = lock.acquire().await;
            drop(guard);
            outcome
        })
    };
    let of_first = waits(&here, "b", first);
    let shown = async {
        loop {
            let waiters = two.inspect(&name("b")).await.waiters;
            if let Some(held) = waiters.first().and_then(|waiter| waiter.holder.holds().first()) {
                return held.clone();
            }
            two.env().sleep(std::time::Duration::from_millis(50)).await;
        }
    };
    let shown = two.within("a waiter that shows what it holds", shown).await;
    assert_eq!((shown.name.as_str(), shown.token), ("a", token));
    let of_second = waits(&there, "a", second);
    let both = async { [of_first.await.unwrap(), of_second.await.unwrap()] };
    let outcomes = two.within("the end of both waits", both).await;
    let failed: Vec<_> = outcomes.into_iter().filter_map(Result::err).collect();
    assert_eq!(failed.len(), 1, "{failed:?}");
    assert_eq!(failed[0].kind(), ErrorKind::Deadlock);
}
