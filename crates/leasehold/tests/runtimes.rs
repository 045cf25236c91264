//! Programs with several runtimes, with blocking tasks, and without a runtime.

use std::sync::Arc;
use std::time::Duration;

use futures_util::{FutureExt, StreamExt, future::join};
use leasehold::clock::TestClock;
use leasehold::env::Env;
use leasehold::lease::StoreOptions;
use leasehold::{Error, ErrorKind, LockName, Locker, LossReason, Released};
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::task::spawn_blocking;

/// Creates a runtime that runs while the test uses another one.
fn threaded() -> Runtime {
    Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

fn current_thread() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

#[test]
fn another_runtime_renews_and_releases_a_guard() {
    let (one, other) = (threaded(), current_thread());
    let locker = one.block_on(Locker::open("mem:")).unwrap();
    let guard = one.block_on(locker.lock("x").acquire()).unwrap();
    other.block_on(async {
        guard.renew().await.unwrap();
        assert_eq!(guard.release().await.unwrap(), Released::Released);
        locker.lock("x").try_acquire().await.unwrap().release().await.unwrap();
    });
}

#[test]
fn another_runtime_learns_of_a_loss() {
    let (one, other) = (threaded(), current_thread());
    let locker = one.block_on(Locker::open("mem:")).unwrap();
    let guard = one.block_on(locker.lock("x").acquire()).unwrap();
    other.block_on(async {
        let evicted = async {
            locker.evict(guard.name(), guard.token().unwrap()).await.unwrap();
            // The holder finds out with its next renewal.
            guard.renew().await.unwrap_err()
        };
        let (loss, renewed) = join(guard.lost(), evicted).await;
        assert_eq!((loss.token, renewed.kind()), (guard.token().unwrap(), ErrorKind::Lost));
        guard.cancellation().cancelled().await;
    });
}

/// Nothing renews the lease any more, and nothing releases it. The next holder waits for its end.
#[test]
fn a_hold_whose_runtime_has_shut_down_ends_with_its_lease() {
    let paused = || Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    let (one, other) = (paused(), paused());
    let mut options = StoreOptions::default();
    options.env = Env::seeded(Arc::new(TestClock::default()), 1);
    let env = options.env.clone();
    let locker = one.block_on(Locker::open_with("mem:", options)).unwrap();
    let guard = one.block_on(locker.lock("x").acquire()).unwrap();
    drop(one);
    other.block_on(async {
        let lock = locker.lock("x");
        let lost = async { (guard.lost().await, env.now().since_boot()) };
        let next = async { (lock.acquire().await.unwrap(), env.now().since_boot()) };
        let ((loss, lost_at), (next, granted_at)) = join(lost, next).await;
        assert!(matches!(loss.reason, LossReason::Expired { .. }), "{loss}");
        assert!(lost_at <= granted_at && next.token().unwrap() > loss.token);
        next.release().await.unwrap();
    });
}

#[tokio::test]
async fn a_blocking_task_uses_a_lock_with_the_handle_of_its_runtime() {
    let (locker, runtime) = (Locker::open("mem:").await.unwrap(), Handle::current());
    let guard = locker.lock("a").acquire().await.unwrap();
    let lock = locker.lock("b");
    let guard = spawn_blocking(move || {
        guard.check().unwrap();
        let inner = runtime.block_on(lock.acquire()).unwrap();
        runtime.block_on(inner.renew()).unwrap();
        drop(inner);
        drop(runtime.block_on(lock.acquire_within(Duration::from_secs(60))).unwrap());
        guard
    });
    assert_eq!(guard.await.unwrap().release().await.unwrap(), Released::Released);
}

#[cfg(feature = "blocking")]
#[tokio::test]
async fn a_blocking_task_uses_the_blocking_api() {
    let released = spawn_blocking(|| {
        let locker = leasehold::blocking::Locker::open("mem:").unwrap();
        let guard = locker.lock("x").acquire().unwrap();
        guard.renew().unwrap();
        assert_eq!(locker.lock("x").try_acquire().unwrap_err().kind(), ErrorKind::Held);
        guard.release().unwrap()
    });
    assert_eq!(released.await.unwrap(), Released::Released);
}

#[test]
fn calls_outside_of_a_runtime_fail_and_say_why() {
    #[track_caller]
    fn refuses<T>(call: impl Future<Output = Result<T, Error>>) {
        let error = call.now_or_never().expect("an answer at once").err().expect("an error");
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        let text = format!("{error:?}");
        assert!(text.contains("outside of a tokio runtime") && text.contains("#[tokio::main]"), "{text}");
    }
    let (locker, name) =
        (current_thread().block_on(Locker::open("mem:")).unwrap(), LockName::new("x").unwrap());
    refuses(Locker::open("mem:"));
    refuses(leasehold::Object::open("s3://bucket/key?region=eu-west-1"));
    let lock = locker.lock("x");
    refuses(lock.acquire());
    refuses(lock.try_acquire());
    refuses(lock.acquire_within(Duration::from_secs(1)));
    refuses(lock.with(async |_| ()));
    refuses(locker.lock_all(["x", "y"]).acquire());
    refuses(locker.semaphore("x", 2).acquire());
    refuses(locker.rw_lock("x").exclusive());
    refuses(locker.election("x").campaign());
    refuses(locker.election("x").leader());
    refuses(lock.once_per(Duration::from_secs(3600)).acquire());
    refuses(locker.inspect(&name));
    refuses(locker.wait_free(&name, &|_| ()));
    refuses(async { locker.list("").next().await.unwrap() });
}
