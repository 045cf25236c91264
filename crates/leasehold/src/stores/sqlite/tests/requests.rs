//! Tests of the order of requests, and of futures that are no longer polled. Such futures delay no other request.

use futures_util::TryStreamExt;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use super::*;
use crate::stores::sqlite::errors::SqliteError;

type Frozen = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Polls `future` at most `polls` times, and returns it.
async fn freeze(mut future: Frozen, polls: u32) -> Frozen {
    for _ in 0..polls {
        if future.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready() {
            break;
        }
        // The request may or may not be served in the meantime.
        tokio::task::yield_now().await;
    }
    future
}

fn named(store: &SqliteLeases, name: &str) -> Claim {
    let name = LockName::new(name).unwrap();
    Claim::new(&store.env, name, Ttl::new(TTL).unwrap(), Holder::this_process())
}

async fn granted(store: &SqliteLeases, name: &str) -> Grant {
    match store.try_acquire(&named(store, name)).await.unwrap() {
        AcquireOutcome::Granted(grant) => grant,
        other => panic!("{other:?}"),
    }
}

/// Returns a future of the kind `kind`, as a user may create it.
async fn of_a_user(store: &Arc<SqliteLeases>, kind: usize) -> Frozen {
    let user = format!("user/{}", Id::random(&store.env.random));
    let owned = store.clone();
    match kind {
        0 => Box::pin(async move { drop(owned.inspect(&LockName::new(user).unwrap()).await) }),
        1 => Box::pin(async move { drop(owned.try_acquire(&named(&owned, &user)).await) }),
        2 => Box::pin(async move { drop(owned.list("").try_collect::<Vec<_>>().await) }),
        3 => {
            let token = granted(store, &user).await.token;
            Box::pin(async move { drop(owned.evict(&LockName::new(user).unwrap(), token, None).await) })
        }
        4 => {
            granted(store, &user).await;
            let AcquireOutcome::Held(seen) = store.try_acquire(&named(store, &user)).await.unwrap() else {
                panic!()
            };
            Box::pin(async move { drop(owned.changed(&LockName::new(user).unwrap(), &seen).await) })
        }
        _ => {
            let mut grant = granted(store, &user).await;
            match kind {
                5 => Box::pin(async move { drop(owned.renew(&mut grant).await) }),
                6 => Box::pin(async move { drop(owned.release(&mut grant, None).await) }),
                _ => Box::pin(async move { drop(owned.detach(&mut grant).await) }),
            }
        }
    }
}

const KINDS: usize = 8;

#[tokio::test(start_paused = true)]
async fn futures_no_longer_polled_delay_no_others() {
    let site = Site::new();
    let store = Arc::new(site.open().await);
    let random = crate::random::Random::seeded(7);
    let mut frozen = Vec::new();
    let mut held = granted(&store, "held").await;
    for round in 0..60 {
        // Uses each kind in turn first, then random kinds.
        let kind = if round < 2 * KINDS { round % KINDS } else { (random.bits() % KINDS as u128) as usize };
        let polls = if round < 2 * KINDS { 1 + (round / KINDS) as u32 } else { (random.bits() % 4) as u32 };
        let future = of_a_user(&store, kind).await;
        frozen.push(freeze(future, polls).await);
        assert!(matches!(store.renew(&mut held).await.unwrap(), Renewal::Renewed), "{kind} {polls}");
        let mut other = granted(&store, "other").await;
        assert_eq!(store.release(&mut other, None).await.unwrap(), Released::Released);
        store.inspect(&name()).await.unwrap();
    }
    drop(frozen);
}

/// Sends requests of these purposes, in this order, while the file is in use. Returns the order in which they were
/// served.
async fn served(store: &Arc<SqliteLeases>, purposes: impl IntoIterator<Item = Purpose>) -> Vec<Purpose> {
    let order = Arc::new(std::sync::Mutex::new(Vec::new()));
    let gate = Gate::close(store).await;
    let mut tasks = Vec::new();
    for purpose in purposes {
        let (store, order) = (store.clone(), order.clone());
        tasks.push(tokio::spawn(async move {
            let work = move |_: &mut Connection| {
                order.lock().unwrap().push(purpose);
                Ok(())
            };
            store.database.run(&store.env, STORE_TIMEOUT, purpose, work).await.unwrap();
        }));
        tokio::task::yield_now().await;
    }
    drop(gate);
    for task in tasks {
        task.await.unwrap();
    }
    std::mem::take(&mut order.lock().unwrap())
}

#[tokio::test]
async fn renewals_and_releases_go_before_other_requests() {
    use Purpose::{Poll, Read, Release, Renew, Write};
    let site = Site::new();
    let store = Arc::new(site.open().await);
    let come = [Poll, Write, Read, Release, Renew].into_iter().flat_map(|purpose| [purpose; 10]);
    // The request that was being served is not among them.
    let order = served(&store, come).await;
    assert_eq!(order[..20], [[Renew; 10], [Release; 10]].concat(), "{order:?}");
    // One in eight of the rest is the oldest of all.
    let last = order.iter().rposition(|purpose| *purpose == Write).unwrap();
    let polls = order[..last].iter().filter(|purpose| **purpose == Poll).count();
    assert!((1..=2).contains(&polls), "{order:?}");
    assert_eq!(order.len(), 50);
}

#[tokio::test]
async fn a_waiting_poll_is_served_among_any_number_of_others() {
    let site = Site::new();
    let store = Arc::new(site.open().await);
    let order = served(&store, [Purpose::Poll].into_iter().chain([Purpose::Write; 40])).await;
    assert!(order.iter().position(|purpose| *purpose == Purpose::Poll).unwrap() < 8, "{order:?}");
}

#[tokio::test(start_paused = true)]
async fn a_request_in_a_file_that_hangs_ends_with_its_limit() {
    let site = Site::new();
    let store = Arc::new(site.open().await);
    let mut first = grant(&store).await;
    // A gate that lets the clock advance, like a disk that hangs.
    let other = narrow_runtime();
    let gate = Gate::close_in(&store, other.handle()).await;
    let patient = Claim { store_timeout: Duration::from_secs(3), ..named(&store, "other") };
    let (start, error) = (store.env.now(), store.try_acquire(&patient).await.unwrap_err());
    assert!(matches!(&error, StoreError::NotApplied(_)), "it has not begun: {error:?}");
    let waited = store.env.now().longest_since(start);
    assert!(
        (patient.store_timeout..patient.store_timeout + Duration::from_millis(300)).contains(&waited),
        "{waited:?}"
    );
    assert!(matches!(lost_by(&store, &mut first).await, LossReason::Expired { .. }));
    drop(gate);
    other.shutdown_background();
}

#[tokio::test]
async fn a_request_without_a_caller_is_not_started() {
    let site = Site::new();
    let store = Arc::new(site.open().await);
    let gate = Gate::close(&store).await;
    let gone = freeze(of_try(&store, "gone"), 1).await;
    let kept = freeze(of_try(&store, "kept"), 1).await;
    drop(gone);
    drop(gate);
    let names: Vec<_> = store.list("").map_ok(|name| name.to_string()).try_collect().await.unwrap();
    assert_eq!(names, ["kept"], "what is awaited is done, though not polled");
    drop(kept);
}

fn of_try(store: &Arc<SqliteLeases>, name: &'static str) -> Frozen {
    let store = store.clone();
    Box::pin(async move { drop(store.try_acquire(&named(&store, name)).await) })
}

#[tokio::test]
async fn work_that_has_begun_is_finished_without_its_caller() {
    let site = Site::new();
    let store = Arc::new(site.open().await);
    let (begin, begun) = tokio::sync::oneshot::channel();
    let (go, gone) = std::sync::mpsc::channel::<()>();
    let mut begin = Some(begin);
    let task = tokio::spawn({
        let store = store.clone();
        async move {
            let work = move |connection: &mut Connection| {
                begin.take().unwrap().send(()).unwrap();
                let _ = gone.recv();
                transact(connection, Durability::System, |transaction| {
                    transaction.execute(
                        "INSERT INTO lock (name, record, boot, renewed_ns) VALUES ('x', '{}', '', 0)",
                        (),
                    )?;
                    Ok(((), Some(Changed)))
                })
            };
            store.database.run(&store.env, STORE_TIMEOUT, Purpose::Write, work).await
        }
    });
    begun.await.unwrap();
    task.abort();
    assert!(task.await.unwrap_err().is_cancelled());
    drop(go);
    let names: Vec<_> = store.list("").map_ok(|name| name.to_string()).try_collect().await.unwrap();
    assert_eq!(names, ["x"]);
}

#[tokio::test]
async fn a_request_that_finds_the_file_busy_lets_others_pass() {
    let site = Site::new();
    let store = Arc::new(site.open().await);
    let mut other = rusqlite::Connection::open(site.path()).unwrap();
    let writer = other.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate).unwrap();
    let acquiring = tokio::spawn({
        let store = store.clone();
        async move { granted(&store, "busy").await }
    });
    for _ in 0..20 {
        store.inspect(&name()).await.unwrap();
        assert!(!acquiring.is_finished());
    }
    writer.rollback().unwrap();
    acquiring.await.unwrap();
}

#[tokio::test]
async fn work_that_panics_fails_alone() {
    let site = Site::new();
    let store = Arc::new(site.open().await);
    let work = |_: &mut Connection| -> Result<(), SqliteError> { panic!("on purpose") };
    let error = store.database.run(&store.env, STORE_TIMEOUT, Purpose::Write, work).await.unwrap_err();
    assert_eq!(error.fault().kind, ErrorKind::Unavailable);
    grant(&store).await;
}

#[tokio::test]
async fn a_store_that_is_dropped_leaves_nothing_open() {
    let site = Site::new();
    let store = site.open().await;
    store.inspect(&name()).await.unwrap();
    let queue = Arc::downgrade(store.database.queue());
    drop(store);
    assert!(queue.upgrade().is_none(), "a runner outlived the last answer");
}

/// Creates a runtime with one thread for blocking work.
fn narrow_runtime() -> tokio::runtime::Runtime {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(1).max_blocking_threads(1).thread_name("narrow").enable_time().build().unwrap()
}

#[tokio::test]
async fn an_idle_runtime_serves_no_requests_of_others() {
    let site = Site::new();
    let store = Arc::new(site.open().await);
    let theirs = narrow_runtime();
    let gate = Gate::close_in(&store, theirs.handle()).await;
    let work = |_: &mut Connection| Ok(std::thread::current().name().map(str::to_owned));
    let mut ours = Box::pin(store.database.run(&store.env, STORE_TIMEOUT, Purpose::Read, work));
    assert!(poll_in(&tokio::runtime::Handle::current(), &mut ours).is_pending());
    drop(gate);
    // The other runtime would have to wait for its thread when it ends, so that thread must not serve the request.
    assert_ne!(ours.await.unwrap().as_deref(), Some("narrow"));
    theirs.shutdown_background();
}

#[tokio::test]
async fn a_runtime_without_a_free_thread_delays_its_own_requests_only() {
    let site = Site::new();
    let store = Arc::new(site.open().await);
    let narrow = narrow_runtime();
    let (free, blocked) = std::sync::mpsc::channel::<()>();
    narrow.spawn_blocking(move || blocked.recv());
    let gate = Gate::close(&store).await;
    let theirs: Vec<_> = ["a", "b"]
        .into_iter()
        .map(|name| {
            let (store, started) = (store.clone(), tokio::sync::oneshot::channel());
            let task = async move {
                let mut future = freeze(of_try(&store, name), 1).await;
                started.0.send(()).unwrap();
                future.as_mut().await;
            };
            (narrow.spawn(task), started.1)
        })
        .collect();
    let mut tasks = Vec::new();
    for (task, started) in theirs {
        started.await.unwrap();
        tasks.push(task);
    }
    drop(gate);
    for _ in 0..10 {
        let mut ours = grant(&store).await;
        assert_eq!(store.release(&mut ours, None).await.unwrap(), Released::Released);
    }
    drop(free);
    for task in tasks {
        task.await.unwrap();
    }
    narrow.shutdown_background();
}

#[tokio::test]
async fn a_runtime_that_ends_drops_only_its_own_requests() {
    let site = Site::new();
    let store = Arc::new(site.open().await);
    let ending = narrow_runtime();
    let (free, blocked) = std::sync::mpsc::channel::<()>();
    ending.spawn_blocking(move || blocked.recv());
    let mut theirs = of_try(&store, "theirs");
    assert!(poll_in(ending.handle(), &mut theirs).is_pending());
    ending.shutdown_background();
    drop(free);
    let mut ours = grant(&store).await;
    // Either result is correct.
    theirs.as_mut().await;
    assert_eq!(store.release(&mut ours, None).await.unwrap(), Released::Released);
    let ended = narrow_runtime();
    let handle = ended.handle().clone();
    ended.shutdown_background();
    let name = name();
    match poll_in(&handle, &mut Box::pin(store.inspect(&name))) {
        Poll::Ready(Err(error)) => assert_eq!(error.fault().kind, ErrorKind::Unavailable),
        other => panic!("{other:?}"),
    }
    grant(&store).await;
}

/// Polls `future` once, as a task of `runtime` would.
fn poll_in<F: Future + Unpin>(runtime: &tokio::runtime::Handle, future: &mut F) -> Poll<F::Output> {
    let _within = runtime.enter();
    Pin::new(future).poll(&mut Context::from_waker(Waker::noop()))
}

/// Runs a request whose file is busy 20 times, with a limit of five pauses. With `change`, another process writes to
/// the file meanwhile.
async fn busy_often(change: bool) -> Result<(), StoreError> {
    let site = Site::new();
    let store = site.open().await;
    let other = rusqlite::Connection::open(site.path()).unwrap();
    let mut times = 0;
    let work = move |_: &mut Connection| {
        times += 1;
        if change {
            other.execute_batch("UPDATE counter SET token = token + 1").unwrap();
        }
        if times > 20 { Ok(()) } else { Err(errors::SqliteError::busy("a test")) }
    };
    store.database.run(&store.env, Duration::from_millis(50), Purpose::Write, work).await
}

#[tokio::test(start_paused = true)]
async fn a_file_that_others_change_is_busy_but_responds() {
    busy_often(true).await.unwrap();
    let error = busy_often(false).await.unwrap_err();
    assert_eq!(error.fault().kind, ErrorKind::Unavailable);
}
