//! The rules of locks in NATS. Each test fails without its rule.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::TryStreamExt;
use leasehold::clock::{Clock, Moment, SystemClock};
use leasehold::doctor::CheckStatus;
use leasehold::env::Env;
use leasehold::lease::{AcquireOutcome, LeaseStore, Released, Renewal, State, StoreOptions};
use leasehold::url::StoreUrl;
use leasehold::{ErrorKind, Locker};
use leasehold_testkit::conformance::Harness;
use leasehold_testkit::launch::Launched;
use leasehold_testkit::process::within;
use leasehold_testkit::servers::{through, with_option};
use leasehold_testkit::stores;
use leasehold_testkit::stores::nats::{NatsServer, Scripted, Traffic, api, ask, create, subject};
use leasehold_testkit::tcp_proxy::{Answers, Wire};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::leases::{claim, granted, granted_to, lock, open, refused, until_renewed};

/// Starts a server for one test.
async fn server() -> (Launched, String, TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let server = Launched::start(&NatsServer, folder.path()).await.unwrap();
    let url = server.url().to_owned();
    (server, url, folder)
}

/// Returns the store URL of another bucket on the same server.
fn bucket(url: &str, name: &str) -> String {
    url.replace("leasehold-chaos", name)
}

/// Deletes the messages of the lock without a marker, as `nats stream purge --subject` does.
async fn purge(url: &str) {
    let answer = api(url, "STREAM.PURGE", &json!({ "filter": subject(url, "lock") }).to_string()).await;
    assert_eq!(answer["success"], true, "{answer}");
}

#[tokio::test]
async fn a_bucket_that_can_lose_locks_is_refused() {
    let (_server, url, _folder) = server().await;
    let old = |setting: &str| json!({ "discard": "old", "max_msgs_per_subject": 1, setting: 1_000_000 });
    for (name, settings, named) in [
        ("ttl", json!({ "max_age": 3_600_000_000_000_u64 }), "max_age"),
        ("messages", old("max_msgs"), "max_msgs"),
        ("bytes", old("max_bytes"), "max_bytes"),
        ("queue", json!({ "retention": "workqueue" }), "retention"),
        ("memory", json!({ "storage": "memory" }), "memory"),
        ("silent", json!({ "no_ack": true }), "no_ack"),
        ("late", json!({ "persist_mode": "async" }), "persist_mode"),
        (
            "strict",
            json!({ "discard": "new", "discard_new_per_subject": true, "max_msgs_per_subject": 1 }),
            "discard_new_per_subject",
        ),
        ("mirror", json!({ "mirror": { "name": "KV_leasehold-chaos" } }), "mirror"),
        ("sourced", json!({ "sources": [{ "name": "KV_leasehold-chaos" }] }), "copies"),
        (
            "renamed",
            json!({ "subject_transform": { "src": "$KV.renamed.>", "dest": "$KV.else.>" } }),
            "transform",
        ),
    ] {
        let url = bucket(&url, name);
        let made = create(&url, settings).await;
        assert!(made["error"].is_null(), "{name}: {made}");
        let store = open(&url).await;
        for error in [store.try_acquire(&claim(&*store)).await.unwrap_err(), store.init().await.unwrap_err()]
        {
            assert_eq!(error.fault().kind, ErrorKind::Unsupported, "{name}: {error:?}");
            assert!(error.to_string().contains(named) && error.fault().help.is_some(), "{name}: {error:?}");
        }
        let report = Locker::open(&url).await.unwrap().examine(&Default::default()).await;
        let failed = report.findings.iter().filter(|finding| finding.verdict == CheckStatus::Failed);
        assert!(failed.into_iter().any(|finding| finding.seen.contains(named)), "{name}: {report:?}");
    }
    // Nothing of this deletes locks.
    let settings =
        json!({ "max_msgs_per_subject": 64, "discard": "new", "max_bytes": 1_000_000, "allow_direct": true });
    let url = bucket(&url, "history");
    create(&url, settings).await;
    granted(&*open(&url).await).await;
}

#[tokio::test]
async fn init_creates_a_missing_bucket_and_keeps_one() {
    let (_server, url, _folder) = server().await;
    let url = bucket(&url, "new");
    let store = open(&url).await;
    let error = store.try_acquire(&claim(&*store)).await.unwrap_err();
    assert_eq!(error.fault().kind, ErrorKind::Invalid, "{error:?}");
    assert!(error.fault().help.as_ref().unwrap().contains("leasehold init"), "{error:?}");
    // Several processes may prepare it at the same time.
    let all: Vec<_> = (0..4).map(|_| async { open(&url).await.init().await }).collect();
    futures_util::future::try_join_all(all).await.unwrap();
    let grant = granted(&*store).await;
    store.init().await.unwrap();
    assert_eq!(refused(&*store).await.token, Some(grant.token));
}

/// A bucket that is deleted and made again would otherwise count its revisions from one again.
#[tokio::test]
async fn revisions_of_a_bucket_that_is_made_again_do_not_repeat() {
    let (_server, url, _folder) = server().await;
    let url = bucket(&url, "again");
    let (one, two) = (open(&url).await, open(&url).await);
    one.init().await.unwrap();
    let mut lost = granted(&*one).await;
    let deleted = api(&url, "STREAM.DELETE", "").await;
    assert_eq!(deleted["success"], true, "{deleted}");
    two.init().await.unwrap();
    // As many writes as before, of another client.
    let mut grant = granted(&*two).await;
    assert!(grant.token > lost.token);
    assert!(matches!(one.renew(&mut lost).await.unwrap(), Renewal::Lost(_)));
    assert!(matches!(two.renew(&mut grant).await.unwrap(), Renewal::Renewed));
}

#[tokio::test]
async fn a_lock_that_was_deleted_by_hand_can_be_granted_again() {
    for history in [1, 5] {
        let (_server, url, _folder) = server().await;
        let url = bucket(&url, "deleted");
        create(&url, json!({ "max_msgs_per_subject": history, "allow_rollup_hdrs": true })).await;
        let (one, two) = (open(&url).await, open(&url).await);
        let mut last = None;
        for marker in [
            "KV-Operation: DEL\r\n",
            "KV-Operation: PURGE\r\nNats-Rollup: sub\r\n",
            "Nats-Marker-Reason: Purge\r\n",
            "",
        ] {
            let mut grant = granted(&*one).await;
            assert!(last < Some(grant.token), "{marker:?}");
            if marker.is_empty() {
                purge(&url).await;
            } else {
                let stored = ask(&url, &subject(&url, "lock"), marker, "").await;
                assert!(stored.contains("\"seq\""), "{stored}");
            }
            assert!(matches!(one.renew(&mut grant).await.unwrap(), Renewal::Lost(_)), "{marker:?}");
            let names: Vec<_> = Locker::open(&url).await.unwrap().list("").try_collect().await.unwrap();
            assert!(names.is_empty(), "{marker:?}: {names:?}");
            let mut next = granted(&*two).await;
            assert!(next.token > grant.token, "{marker:?}");
            assert_eq!(one.release(&mut grant, None).await.unwrap(), Released::AlreadyLost);
            assert_eq!(two.release(&mut next, None).await.unwrap(), Released::Released);
            last = Some(next.token);
        }
    }
}

#[tokio::test]
async fn one_of_many_creates_over_a_deleted_key_succeeds() {
    let fresh = stores::fresh("nats");
    let store = open(fresh.url()).await;
    for _ in 0..10 {
        let mut grant = granted(&*store).await;
        store.release(&mut grant, None).await.unwrap();
        fresh.delete_record(&lock()).await;
        let tries = (0..8).map(|_| async {
            let store = open(fresh.url()).await;
            match store.try_acquire(&claim(&*store)).await.unwrap() {
                AcquireOutcome::Granted(grant) => Some((store, grant)),
                _ => None,
            }
        });
        let mut granted: Vec<_> = futures_util::future::join_all(tries).await.into_iter().flatten().collect();
        assert_eq!(granted.len(), 1);
        let (store, mut grant) = granted.remove(0);
        store.release(&mut grant, None).await.unwrap();
    }
}

/// The responses are lost, but the writes are applied.
#[tokio::test]
async fn lost_responses_to_a_holder_are_resolved() {
    let fresh = stores::fresh("nats");
    let wire = Wire::to(&fresh.server().address()).await;
    let locker = Locker::open(&through(fresh.url(), wire.address())).await.unwrap();
    // The next acquisition needs no read.
    locker.lock("lock").acquire().await.unwrap().release().await.unwrap();
    let before = locker.inspect(&lock()).await.unwrap().token;
    let direct = open(fresh.url()).await;
    wire.let_answers(Answers::AreLost);
    let acquiring = tokio::spawn({
        let locker = locker.clone();
        async move { locker.lock("lock").ttl(Duration::from_secs(5)).acquire().await }
    });
    wire.until_lost().await;
    let held = within("the grant", async {
        loop {
            let token = direct.inspect(&lock()).await.unwrap().token;
            if token > before {
                return token;
            }
            SystemClock.sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
    wire.let_answers(Answers::Arrive);
    let guard = acquiring.await.unwrap().unwrap();
    assert_eq!(guard.token().ok(), held, "it is the same grant");
    until_renewed(&guard).await;
    wire.let_answers(Answers::AreLost);
    let releasing = tokio::spawn(guard.release());
    within("the release", async {
        while matches!(direct.inspect(&lock()).await.unwrap().state, State::Held(_)) {
            SystemClock.sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
    wire.let_answers(Answers::Arrive);
    assert_eq!(releasing.await.unwrap().unwrap(), Released::Released);
}

/// A waiting request ends when its connection does, not at its time limit.
#[tokio::test]
async fn a_request_ends_with_its_connection() {
    let fresh = stores::fresh("nats");
    let wire = Wire::to(&fresh.server().address()).await;
    let url = through(fresh.url(), wire.address());
    let store = open_with(&url, Env::seeded(Arc::new(WithoutLimits), 1)).await;
    granted(&*store).await;
    wire.let_answers(Answers::AreLost);
    let reading = tokio::spawn({
        let store = store.clone();
        async move { store.inspect(&lock()).await }
    });
    wire.until_lost().await;
    wire.let_answers(Answers::Arrive);
    within("the end of the request and another one", reading).await.unwrap().unwrap();
}

#[tokio::test]
async fn a_connection_that_does_not_respond_is_replaced() {
    let fresh = stores::fresh("nats");
    let wire = Wire::to(&fresh.server().address()).await;
    let hosts = format!("{},{}", wire.address(), fresh.server().address());
    let locker = Locker::open(&through(fresh.url(), hosts)).await.unwrap();
    let guard = locker.lock("lock").ttl(Duration::from_secs(15)).acquire().await.unwrap();
    wire.let_answers(Answers::Stopped);
    until_renewed(&guard).await;
    guard.release().await.unwrap();
}

/// Returns the store URL of the bucket on a scripted server.
fn scripted(server: &Scripted) -> String {
    format!("nats://{}/b", server.address())
}

/// Returns the response of a server that has the bucket, without any key, and stores every write.
fn healthy(subject: &str) -> Value {
    match subject {
        _ if subject.contains(".INFO.") => described("m0"),
        _ if subject.contains(".MSG.GET.") => json!({ "error": { "code": 404, "err_code": 10_037 } }),
        _ => json!({ "stream": "KV_b", "seq": 1 }),
    }
}

/// Returns the description of a bucket with three replicas.
fn described(leader: &str) -> Value {
    let mut info = json!({
        "config": {
            "name": "KV_b", "retention": "limits", "storage": "file", "discard": "new", "num_replicas": 3,
            "max_msgs_per_subject": 1, "metadata": { "_nats.ver": "2.15.3" },
        },
        "cluster": { "name": "c", "leader": leader },
        "ts": "2026-01-01T00:00:00Z",
    });
    if leader.is_empty() {
        info["cluster"].as_object_mut().unwrap().remove("leader");
    }
    info
}

/// It accepts connections. JetStream does not respond, or has no leader.
#[tokio::test]
async fn a_server_that_is_cut_off_from_its_cluster_is_passed_over() {
    let fresh = stores::fresh("nats");
    let unavailable = json!({ "error": { "code": 503, "err_code": 10_008 } });
    for response in [None, Some(described("")), Some(unavailable)] {
        let server = Scripted::start({
            let response = response.clone();
            move |_, _| response.clone()
        })
        .await;
        let hosts = format!("{},{}", server.address(), fresh.server().address());
        let locker = Locker::open(&through(fresh.url(), hosts)).await.unwrap();
        let lock = locker.lock("lock").store_timeout(Duration::from_secs(10));
        lock.acquire()
            .await
            .unwrap_or_else(|error| panic!("{response:?}: {error:?}"))
            .release()
            .await
            .unwrap();
    }
}

#[tokio::test]
async fn a_server_that_is_cut_off_later_is_left() {
    let questions = AtomicUsize::default();
    let server = Scripted::start(move |subject, _| {
        let is_cut_off = subject.contains(".INFO.") && questions.fetch_add(1, Ordering::SeqCst) == 1;
        Some(if is_cut_off { described("") } else { healthy(subject) })
    })
    .await;
    let clock = Arc::new(Movable::default());
    let store = open_with(&scripted(&server), Env::seeded(clock.clone(), 1)).await;
    store.inspect(&lock()).await.unwrap();
    *clock.0.lock().unwrap() += Duration::from_secs(11);
    within("another connection", async {
        while server.connections() == 1 {
            store.inspect(&lock()).await.unwrap();
        }
    })
    .await;
}

/// The question about the clock and the settings gets no response.
#[tokio::test]
async fn a_question_about_the_clock_holds_up_no_request() {
    let questions = AtomicUsize::default();
    let server = Scripted::start(move |subject, _| {
        let is_late = subject.contains(".INFO.") && questions.fetch_add(1, Ordering::SeqCst) > 0;
        (!is_late).then(|| healthy(subject))
    })
    .await;
    let clock = Arc::new(Movable::default());
    let store = open_with(&scripted(&server), Env::seeded(clock.clone(), 1)).await;
    let mut grant = granted(&*store).await;
    *clock.0.lock().unwrap() += Duration::from_secs(11);
    let renewed = within("a renewal", store.renew(&mut grant)).await.unwrap();
    assert!(matches!(renewed, Renewal::Renewed), "{renewed:?}");
}

/// The client is connected to a newer server, as during an upgrade.
#[tokio::test]
async fn the_version_of_the_leader_counts() {
    let server = Scripted::start(|_, _| {
        let mut info = described("m0");
        info["config"].as_object_mut().unwrap().remove("metadata");
        Some(info)
    })
    .await;
    let error = open(&scripted(&server)).await.init().await.unwrap_err();
    assert_eq!(error.fault().kind, ErrorKind::Unsupported, "{error:?}");
    assert!(error.to_string().contains("2.10"), "{error:?}");
}

#[tokio::test]
async fn init_ends_if_the_server_does_not_respond() {
    let all = [None, Some(described("m0"))].map(async |created| {
        let requests = AtomicUsize::default();
        let server = Scripted::start(move |_, _| match requests.fetch_add(1, Ordering::SeqCst) {
            0 => Some(json!({ "error": { "code": 404, "err_code": 10_059 } })),
            1 => created.clone(),
            _ => None,
        })
        .await;
        let error = open(&scripted(&server)).await.init().await.unwrap_err();
        assert!(error.is_transient(), "{error:?}");
    });
    within("the time limit", futures_util::future::join_all(all)).await;
}

/// The bucket has refused the write, or has not got it.
#[tokio::test]
async fn a_write_that_another_stream_stores_is_no_grant() {
    let (_server, url, _folder) = server().await;
    let url = bucket(&url, "taken");
    let made = create(&url, json!({ "max_msgs_per_subject": 1, "subjects": ["$KV.elsewhere.>"] })).await;
    assert!(made["error"].is_null(), "{made}");
    let settings = json!({ "name": "OTHER", "subjects": ["$KV.taken.>"] }).to_string();
    let made = ask(&url, "$JS.API.STREAM.CREATE.OTHER", "", &settings).await;
    assert!(!made.contains("error"), "{made}");
    let store = open(&url).await;
    let error = store.try_acquire(&claim(&*store)).await.unwrap_err();
    assert_eq!(error.fault().kind, ErrorKind::Unsupported, "{error:?}");
    assert!(error.to_string().contains("OTHER"), "{error:?}");
}

#[tokio::test]
async fn a_waiter_and_a_holder_survive_a_restart_of_the_server() {
    let (mut server, url, _folder) = server().await;
    let locker = Locker::open(&url).await.unwrap();
    let guard = locker.lock("lock").ttl(Duration::from_secs(10)).acquire().await.unwrap();
    let token = guard.token().unwrap();
    let waiting = tokio::spawn(async move { Locker::open(&url).await.unwrap().lock("lock").acquire().await });
    within("a waiter", async {
        while locker.inspect(guard.name()).await.unwrap().waiters.is_empty() {
            SystemClock.sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
    server.kill(Duration::from_millis(300)).await.unwrap();
    until_renewed(&guard).await;
    guard.check().unwrap();
    assert!(!waiting.is_finished());
    guard.release().await.unwrap();
    let next = waiting.await.unwrap().unwrap();
    assert!(next.token().unwrap() > token);
    next.release().await.unwrap();
}

/// Opens the store on the clock of `env`.
async fn open_with(url: &str, env: Env) -> Arc<dyn LeaseStore> {
    let mut options = StoreOptions::default();
    options.env = env;
    leasehold::stores::open(StoreUrl::parse(url).unwrap(), options).await.unwrap()
}

/// A clock on which the time limit of no request passes.
#[derive(Debug)]
struct WithoutLimits;

#[async_trait]
impl Clock for WithoutLimits {
    fn now(&self) -> Moment {
        SystemClock.now()
    }

    async fn sleep(&self, duration: Duration) {
        if duration >= Duration::from_millis(500) {
            std::future::pending::<()>().await;
        }
        SystemClock.sleep(duration).await;
    }
}

/// A clock that can be moved forward, on which the time limit of no request passes.
#[derive(Debug, Default)]
struct Movable(std::sync::Mutex<Duration>);

#[async_trait]
impl Clock for Movable {
    fn now(&self) -> Moment {
        let (now, by) = (SystemClock.now(), *self.0.lock().unwrap());
        let us = u64::try_from(by.as_micros()).unwrap();
        Moment::from_raw(
            u64::try_from(now.since_boot().as_nanos()).unwrap() + us * 1_000,
            i64::try_from(now.wall_us() + us).unwrap() * 1_000,
        )
    }

    async fn sleep(&self, duration: Duration) {
        WithoutLimits.sleep(duration).await;
    }
}

#[tokio::test]
async fn the_clock_and_the_settings_are_read_again() {
    let (_server, url, _folder) = server().await;
    let traffic = Traffic::of(&url).await;
    let clock = Arc::new(Movable::default());
    let store = open_with(&url, Env::seeded(clock.clone(), 1)).await;
    let asked = async || traffic.counts().await.get("INFO").copied().unwrap_or(0);
    let mut grant = granted(&*store).await;
    assert!(matches!(store.renew(&mut grant).await.unwrap(), Renewal::Renewed));
    assert_eq!(asked().await, 1, "with the connection");
    *clock.0.lock().unwrap() += Duration::from_secs(11);
    assert!(matches!(store.renew(&mut grant).await.unwrap(), Renewal::Renewed));
    assert!(matches!(store.renew(&mut grant).await.unwrap(), Renewal::Renewed));
    assert_eq!(asked().await, 2);
    let settings = json!({
        "name": "KV_leasehold-chaos", "subjects": ["$KV.leasehold-chaos.>"], "max_msgs_per_subject": 1, "storage": "file",
        "max_age": 3_600_000_000_000_u64,
    });
    let updated = api(&url, "STREAM.UPDATE", &settings.to_string()).await;
    assert!(updated["error"].is_null(), "{updated}");
    *clock.0.lock().unwrap() += Duration::from_secs(11);
    let error = within("an error", async {
        loop {
            if let Err(error) = store.inspect(&lock()).await {
                return error;
            }
        }
    })
    .await;
    assert_eq!(error.fault().kind, ErrorKind::Unsupported, "{error:?}");
}

#[tokio::test]
async fn a_value_of_another_program_counts_as_held_and_stays() {
    let fresh = stores::fresh("nats");
    let store = open(fresh.url()).await;
    ask(fresh.url(), &subject(fresh.url(), "lock"), "", "theirs").await;
    assert!(refused(&*store).await.foreign.is_some());
    assert_eq!(stores::nats::value(fresh.url(), &subject(fresh.url(), "lock")).await, "theirs");
}

#[tokio::test]
async fn stores_with_different_prefixes_are_independent() {
    let (_server, url, _folder) = server().await;
    let urls = [
        url.clone(),
        with_option(&url, "prefix=a"),
        with_option(&url, "prefix=a.b"),
        with_option(&url, "prefix=a/b"),
    ];
    for url in &urls {
        granted(&*open(url).await).await;
    }
    for url in &urls {
        let names: Vec<_> = Locker::open(url).await.unwrap().list("").try_collect().await.unwrap();
        assert!(names.contains(&lock()), "{url}: {names:?}");
    }
}

/// A direct read could be answered by a replica that lags behind.
#[tokio::test]
async fn each_step_is_one_request_to_the_leader() {
    let (_server, url, _folder) = server().await;
    let traffic = Traffic::of(&url).await;
    let seen =
        async |what: &str, expected: &[(&str, u64)], before: &mut std::collections::BTreeMap<String, u64>| {
            let now = traffic.counts().await;
            let new: Vec<_> = now
                .iter()
                .map(|(kind, count)| (kind.as_str(), count - before.get(kind).copied().unwrap_or(0)))
                .filter(|(_, count)| *count > 0)
                .collect();
            assert_eq!(new, expected, "{what}");
            *before = now.clone();
        };
    let mut before = traffic.counts().await;
    let (one, two) = (open(&url).await, open(&url).await);
    let mut grant = granted(&*one).await;
    seen("first", &[("INFO", 1), ("MSG.GET", 1), ("write", 1)], &mut before).await;
    one.renew(&mut grant).await.unwrap();
    seen("renewal", &[("write", 1)], &mut before).await;
    refused(&*two).await;
    seen("a refusal to a client that has just connected", &[("INFO", 1), ("MSG.GET", 1)], &mut before).await;
    one.release(&mut grant, None).await.unwrap();
    seen("release", &[("write", 1)], &mut before).await;
    let mut grant = granted_to(&*one, &claim(&*one)).await;
    seen("a warm acquisition", &[("write", 1)], &mut before).await;
    one.release(&mut grant, None).await.unwrap();
    granted(&*two).await;
    seen("a release and a cold acquisition", &[("MSG.GET", 1), ("write", 2)], &mut before).await;
}
