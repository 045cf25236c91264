//! Futures that are polled once, kept, and never polled again.

use futures_util::FutureExt;
use leasehold::lease::Released;
use leasehold::{ErrorKind, LockName};

use super::Harness;
use super::client::LONG;
use super::locks::locker;

/// How many futures of each kind are kept.
const MANY: usize = 12;

/// Acquisitions, releases and queries that are polled once and kept do not delay another lock of the process. That
/// lock is granted, renewed and released.
pub async fn frozen_futures_delay_no_other_lock(harness: &dyn Harness) {
    let (two, there) = locker(harness, "two").await;
    let held = two.within("acquire", there.lock("held").ttl(LONG).acquire()).await.unwrap();
    let (one, here) = locker(harness, "one").await;
    let other = one.within("acquire", here.lock("other").ttl(harness.ttl() * 4).acquire()).await.unwrap();

    let mut granted_at_once = Vec::new();
    let mut acquisitions = Vec::new();
    let mut releases = Vec::new();
    let mut questions = Vec::new();
    for n in 0..MANY {
        for lock in [here.lock("held").ttl(LONG), here.lock(format!("frozen-{n}")).ttl(LONG)] {
            let mut acquire = Box::pin(async move { lock.acquire().await });
            // A store in memory may grant the lock on the first poll.
            match acquire.as_mut().now_or_never() {
                Some(granted) => granted_at_once.push(granted.unwrap()),
                None => acquisitions.push(acquire),
            }
        }
        let released = here.lock(format!("released-{n}")).ttl(LONG);
        let guard = one.within("acquire", released.acquire()).await.unwrap();
        let mut release = Box::pin(guard.release());
        // A store may complete the release on the first poll.
        let _ = release.as_mut().now_or_never();
        releases.push(release);
        let (asks, name) = (here.clone(), LockName::new("held").unwrap());
        let mut question = Box::pin(async move { asks.wait_free(&name, &|_| {}).await });
        assert!(question.as_mut().now_or_never().is_none());
        questions.push(question);
    }
    // Sleeps long enough for several renewals.
    let again = one.within("acquire", here.lock("again").ttl(LONG).acquire()).await.unwrap();
    one.env().sleep(harness.ttl() * 5).await;
    other.check().unwrap();
    again.check().unwrap();
    assert_eq!(one.within("release", other.release()).await.unwrap(), Released::Released);
    assert_eq!(one.within("release", again.release()).await.unwrap(), Released::Released);
    let refused = one.within("try_acquire", here.lock("held").try_acquire()).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Held);
    assert_eq!(two.within("release", held.release()).await.unwrap(), Released::Released);
}
