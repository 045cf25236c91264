//! Redis Clusters whose slots move and whose primaries are killed while locks are held and contended.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::TryStreamExt;
use leasehold::clock::{Clock, SystemClock};
use leasehold::doctor::{CheckStatus, Examination, Finding};
use leasehold::lease::{AcquireOutcome, LeaseStore, Released, Renewal};
use leasehold::{ErrorKind, Locker, Swept};
use leasehold_testkit::process::within;
use leasehold_testkit::servers::{Server, with_option};
use leasehold_testkit::stores::redis::{Cluster, RedisServer, answers, key, record, redis_cli};

use crate::access::{assert_found, described, make_certificates, refused, waiter};
use crate::leases::{claim_of, granted_to, open, refused_to};
use crate::workers;

const TTL: Duration = Duration::from_secs(5);

async fn cluster(folder: &Path) -> Cluster {
    Cluster::start(&RedisServer::MEMBER, folder).await.unwrap()
}

fn url(cluster: &Cluster, options: &str) -> String {
    with_option(&with_option(&cluster.url(), "prefix=locks/&margin=0s"), options)
}

/// Returns a lock for which this is the primary.
async fn lock_at(cluster: &Cluster, primary: usize) -> String {
    for n in 0.. {
        let name = format!("lock-{n}");
        if cluster.pair_of(&format!("locks/{name}")).await.0 == primary {
            return name;
        }
    }
    unreachable!()
}

/// Returns the key of the record of this primary.
async fn epoch_at(cluster: &Cluster, primary: usize) -> String {
    for n in 0.. {
        let key = format!("locks/{{{n}}}//leasehold/epoch");
        if cluster.pair_of(&key).await.0 == primary {
            return key;
        }
    }
    unreachable!()
}

async fn try_lock(store: &dyn LeaseStore, name: &str) -> AcquireOutcome {
    store.try_acquire(&claim_of(store, name, TTL)).await.unwrap()
}

fn is_withheld(outcome: &AcquireOutcome) -> bool {
    matches!(outcome, AcquireOutcome::Held(held) if held.to_string().contains("failover_grace"))
}

/// 16 processes count under one lock while its slot moves to another primary and back, again and again.
#[tokio::test]
async fn a_counter_stays_exact_while_its_slot_moves() {
    let (folder, counters) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let cluster = cluster(folder.path()).await;
    let slot = cluster.slot_of("locks/counter-0").await;
    let (home, _) = cluster.pair_of("locks/counter-0").await;
    let (other, _) = cluster.pair_of(&format!("locks/{}", lock_at(&cluster, (home + 1) % 3).await)).await;
    let counting = AtomicBool::new(true);
    let count = async {
        workers::count_exactly(&url(&cluster, "failover_grace=0s"), counters.path()).await;
        counting.store(false, Ordering::Relaxed);
    };
    let moving = async {
        let mut moves = 0;
        while counting.load(Ordering::Relaxed) {
            cluster.move_slot(slot, home, other).await;
            cluster.move_slot(slot, other, home).await;
            moves += 2;
        }
        assert!(moves > 10, "the slot moved only {moves} times");
    };
    tokio::join!(count, moving);
}

/// 16 processes count under one lock while its primary is killed and its replica promoted.
#[tokio::test]
async fn a_counter_stays_exact_through_a_failover() {
    let (folder, counters) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut cluster = cluster(folder.path()).await;
    // The workers' leases of 30 s, and the lag of the replicas.
    let url = url(&cluster, "failover_grace=45s");
    let counting = workers::count_exactly(&url, counters.path());
    let file = counters.path().join("counter-0");
    let failover = async {
        within("the first additions", async {
            while std::fs::read_to_string(&file).is_ok_and(|sum| sum.parse().unwrap_or(0) < 50) {
                SystemClock.sleep(Duration::from_millis(20)).await;
            }
        })
        .await;
        let (primary, replica) = cluster.pair_of("locks/counter-0").await;
        cluster.kill(primary, 3 * TTL).await.unwrap();
        assert_eq!(Some(cluster.pair_of("locks/counter-0").await.0), replica, "it was not promoted");
    };
    tokio::join!(counting, failover);
}

/// The replica that is promoted does not have the latest grant.
#[tokio::test]
async fn a_failover_withholds_the_locks_of_its_shard_alone() {
    let folder = tempfile::tempdir().unwrap();
    let mut cluster = cluster(folder.path()).await;
    let (lost, elsewhere) = (lock_at(&cluster, 0).await, lock_at(&cluster, 1).await);
    // Clusters that have just started grant nothing during the grace.
    let old = open(&url(&cluster, "failover_grace=0s")).await;
    let strict = open(&url(&cluster, "failover_grace=20s")).await;
    within("the end of the first grace", async {
        for name in [&lost, &elsewhere] {
            let claim = claim_of(&*strict, name, TTL);
            let mut grant = loop {
                match strict.try_acquire(&claim).await.unwrap() {
                    AcquireOutcome::Granted(grant) => break grant,
                    AcquireOutcome::Held(held) => strict.turn(&claim, &held).await.unwrap(),
                    AcquireOutcome::Lost(loss) => panic!("{loss}"),
                }
            };
            strict.release(&mut grant, None).await.unwrap();
        }
    })
    .await;
    let (primary, replica) = cluster.pair_of(&format!("locks/{lost}")).await;
    let replica = replica.unwrap();
    let stopped = pid_of(&cluster, replica).await;
    signal(&stopped, "STOP").await;
    // Otherwise, the system would keep the grant for the replica.
    assert_eq!(
        redis_cli(cluster.members()[primary].url(), &["CLIENT", "KILL", "TYPE", "replica"]).await,
        "1"
    );
    let mut grant = granted_to(&*old, &claim_of(&*old, &lost, TTL)).await;
    cluster.kill_for_good(primary).await.unwrap();
    signal(&stopped, "CONT").await;
    within("the promotion", async { while cluster.pair_of(&format!("locks/{lost}")).await.0 != replica {} })
        .await;
    let outcome = try_lock(&*strict, &lost).await;
    assert!(is_withheld(&outcome), "the lost grant may still be used: {outcome:?}");
    assert!(matches!(old.renew(&mut grant).await.unwrap(), Renewal::Lost(_)));
    let AcquireOutcome::Granted(mut grant) = try_lock(&*strict, &elsewhere).await else { panic!("withheld") };
    strict.release(&mut grant, None).await.unwrap();
    // The grace is over once for all locks of the shard, for all processes, also for names that are new.
    within("the end of the grace", async {
        while is_withheld(&try_lock(&*strict, &lost).await) {
            SystemClock.sleep(Duration::from_millis(100)).await;
        }
    })
    .await;
    let newcomer = open(&url(&cluster, "failover_grace=20s")).await;
    for n in 0..20 {
        let name = format!("new-{n}");
        let AcquireOutcome::Granted(mut grant) = try_lock(&*newcomer, &name).await else { panic!("{name}") };
        newcomer.release(&mut grant, None).await.unwrap();
    }
}

async fn pid_of(cluster: &Cluster, member: usize) -> String {
    let info = redis_cli(cluster.members()[member].url(), &["INFO", "server"]).await;
    info.lines().find_map(|line| line.strip_prefix("process_id:")).unwrap().trim().to_owned()
}

async fn signal(pid: &str, signal: &str) {
    let status = tokio::process::Command::new("kill").args(["-s", signal, pid]).status().await.unwrap();
    assert!(status.success());
}

/// The primary accepts connections, but does not respond. A short lease leaves no time to find that out in one request.
#[tokio::test]
async fn a_primary_that_hangs_is_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let cluster = cluster(folder.path()).await;
    let locker = Locker::open(&url(&cluster, "failover_grace=0s")).await.unwrap();
    let lock = locker.lock("lock").ttl(Duration::from_secs(1));
    lock.acquire().await.unwrap().release().await.unwrap();
    let (primary, _) = cluster.pair_of("locks/lock").await;
    let pid = pid_of(&cluster, primary).await;
    signal(&pid, "STOP").await;
    let granted = within("a grant of the replica", async {
        loop {
            if let Ok(guard) = lock.acquire().await {
                break guard;
            }
        }
    });
    let guard = granted.await;
    signal(&pid, "CONT").await;
    guard.release().await.unwrap();
}

#[tokio::test]
async fn an_open_store_lists_the_locks_of_a_promoted_primary() {
    let folder = tempfile::tempdir().unwrap();
    let mut cluster = cluster(folder.path()).await;
    let url = url(&cluster, "failover_grace=0s");
    let name = lock_at(&cluster, 0).await;
    let locker = Locker::open(&url).await.unwrap();
    locker.lock(name.as_str()).acquire().await.unwrap().release().await.unwrap();
    let listed = async || futures_util::TryStreamExt::try_collect::<Vec<_>>(locker.list("")).await;
    assert_eq!(listed().await.unwrap().len(), 1);
    let key = format!("locks/{name}");
    let (primary, replica) = cluster.pair_of(&key).await;
    let keys = async || redis_cli(cluster.members()[replica.unwrap()].url(), &["DBSIZE"]).await;
    within("the copy of the record", async { while keys().await == "0" {} }).await;
    cluster.kill_for_good(primary).await.unwrap();
    within("the promotion", async { while Some(cluster.pair_of(&key).await.0) != replica {} }).await;
    within("the listing", async { while !listed().await.is_ok_and(|names| names.len() == 1) {} }).await;
}

#[tokio::test]
async fn requests_follow_a_slot_that_moves() {
    let folder = tempfile::tempdir().unwrap();
    let cluster = cluster(folder.path()).await;
    assert_followed(&cluster, &url(&cluster, "failover_grace=0s")).await;
}

/// Moves a slot. A lock in it that is held, its release and other claims follow. None of the requests is applied twice.
async fn assert_followed(cluster: &Cluster, url: &str) {
    let (name, key) = ("lock", "locks/lock");
    let slot = cluster.slot_of(key).await.to_string();
    let (home, _) = cluster.pair_of(key).await;
    let (other, _) = cluster.pair_of(&format!("locks/{}", lock_at(cluster, (home + 1) % 3).await)).await;
    let (store, second) = (open(url).await, open(url).await);
    let mut grant = granted_to(&*store, &claim_of(&*store, name, TTL)).await;
    refused_to(&*second, &claim_of(&*second, name, TTL)).await;
    cluster.begin_move(&slot, home, other).await;
    assert!(matches!(store.renew(&mut grant).await.unwrap(), Renewal::Renewed), "before its keys move");
    cluster.move_keys(&slot, home, other).await;
    assert!(matches!(store.renew(&mut grant).await.unwrap(), Renewal::Renewed), "ASK");
    refused_to(&*second, &claim_of(&*second, name, TTL)).await;
    assert_eq!(store.release(&mut grant, None).await.unwrap(), Released::Released);
    cluster.end_move(&slot, other).await;
    let mut grant = granted_to(&*second, &claim_of(&*second, name, TTL)).await;
    assert!(matches!(second.renew(&mut grant).await.unwrap(), Renewal::Renewed), "MOVED");
    refused_to(&*store, &claim_of(&*store, name, TTL)).await;
    assert_eq!(second.release(&mut grant, None).await.unwrap(), Released::Released);
    let kept = redis_cli(cluster.members()[other].url(), &["EXISTS", &record(url, key)]).await;
    assert_eq!(kept, "1");
}

/// The servers speak TLS alone. Their certificate is for a name, which they have to report instead of their addresses.
#[tokio::test]
async fn a_cluster_with_tls_is_used_by_the_name_in_its_certificate() {
    let (folder, others) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    make_certificates(folder.path(), &[("server", "DNS:localhost")]).await;
    make_certificates(others.path(), &[]).await;
    let mut cluster = Cluster::start(&RedisServer::ENCRYPTED_MEMBER, folder.path()).await.unwrap();
    let plain = url(&cluster, "failover_grace=0s").replace("127.0.0.1", "localhost");
    let trusting = |folder: &Path| with_option(&plain, &format!("ca={}", folder.join("ca.pem").display()));
    let url = trusting(folder.path());

    let unnamed = refused(&url).await;
    assert_eq!(unnamed.kind(), ErrorKind::Invalid, "{unnamed:?}");
    assert!(described(&unnamed).contains("127.0.0.1"), "{unnamed:?}");
    assert!(described(&unnamed).contains("cluster-announce-hostname"), "{unnamed:?}");
    for (option, value) in
        [("cluster-announce-hostname", "localhost"), ("cluster-preferred-endpoint-type", "hostname")]
    {
        for member in cluster.members() {
            assert_eq!(redis_cli(member.url(), &["CONFIG", "SET", option, value]).await, "OK");
        }
    }
    for member in cluster.members() {
        answers(member.url(), &["CLUSTER", "NODES"], |nodes| nodes.matches(",localhost").count() == 6).await;
    }

    for untrusted in [&plain, &trusting(others.path())] {
        let error = refused(untrusted).await;
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error:?}");
        assert!(described(&error).contains("ca=FILE"), "{error:?}");
    }
    // A server may be restarting, so this is tried again until the timeout.
    let unencrypted = Locker::open(&plain.replace("rediss://", "redis://")).await.unwrap();
    let unencrypted =
        unencrypted.lock("lock").store_timeout(Duration::from_secs(3)).try_acquire().await.unwrap_err();
    assert!(described(&unencrypted).contains("write rediss://"), "{unencrypted:?}");

    let locker = Locker::open(&url).await.unwrap();
    for primary in 0..3 {
        let guard = locker.lock(lock_at(&cluster, primary).await).acquire().await.unwrap();
        let waiting = waiter(&url, &guard).await;
        guard.release().await.unwrap();
        waiting.await.unwrap();
    }
    assert_followed(&cluster, &url).await;
    assert_eq!(locker.list("").try_collect::<Vec<_>>().await.unwrap().len(), 4);
    assert_found(&url, "cluster", CheckStatus::Passed, "").await;

    // From now on, the servers ask for the certificates of clients. `redis-cli` has none.
    let name = lock_at(&cluster, 0).await;
    let (primary, _) = cluster.pair_of(&format!("locks/{name}")).await;
    for member in cluster.members() {
        let set = ["CONFIG", "SET", "tls-auth-clients", "yes"];
        assert_eq!(redis_cli(member.url(), &set).await, "OK");
    }
    let uncertified = refused(&url).await;
    assert_eq!(uncertified.kind(), ErrorKind::Invalid, "{uncertified:?}");
    assert!(described(&uncertified).contains("cert=FILE"), "{uncertified:?}");
    let (cert, key) = (folder.path().join("server.pem"), folder.path().join("server.key"));
    let certified = format!("cert={}&key={}", cert.display(), key.display());
    let locker = Locker::open(&with_option(&url, &certified)).await.unwrap();
    let lock = locker.lock(name).ttl(Duration::from_secs(1));
    lock.acquire().await.unwrap().release().await.unwrap();
    cluster.kill_for_good(primary).await.unwrap();
    let granted = within("a grant of the replica", async {
        loop {
            if let Ok(guard) = lock.acquire().await {
                break guard;
            }
        }
    });
    granted.await.release().await.unwrap();
}

/// Another server was the primary meanwhile, and may have lost a grant, while the connection to this one stayed open.
#[tokio::test]
async fn a_primary_that_is_promoted_again_is_asked_again() {
    let folder = tempfile::tempdir().unwrap();
    let cluster = cluster(folder.path()).await;
    let name = lock_at(&cluster, 0).await;
    let key = format!("locks/{name}");
    let store = open(&url(&cluster, "failover_grace=60s")).await;
    let outcome = try_lock(&*store, &name).await;
    assert!(is_withheld(&outcome), "the grace after the start: {outcome:?}");
    // The grace ends early, as if the clock had been set back in a longer one.
    let epoch = epoch_at(&cluster, 0).await;
    assert_eq!(redis_cli(&cluster.url(), &["HSET", &epoch, "since", "1"]).await, "0");
    let outcome = try_lock(&*store, &name).await;
    assert!(matches!(outcome, AcquireOutcome::Granted(_)), "asked again: {outcome:?}");
    let (primary, replica) = cluster.pair_of(&key).await;
    for next in [replica.unwrap(), primary] {
        within("the promotion", async {
            while cluster.pair_of(&key).await.0 != next {
                redis_cli(cluster.members()[next].url(), &["CLUSTER", "FAILOVER"]).await;
                SystemClock.sleep(Duration::from_millis(100)).await;
            }
        })
        .await;
    }
    redis_cli(cluster.members()[primary].url(), &["DEL", &key, &record(&cluster.url(), &key)]).await;
    let outcome = try_lock(&*store, &name).await;
    assert!(is_withheld(&outcome), "{outcome:?}");
}

#[tokio::test]
async fn the_key_of_another_client_is_respected() {
    let url = with_option(&Server::REDIS_CLUSTER.url(), &format!("prefix=theirs{:x}/", std::process::id()));
    let store = open(&url).await;
    assert_eq!(redis_cli(&url, &["SET", &key(&url, "lock"), "theirs", "NX", "PX", "60000"]).await, "OK");
    let held = refused_to(&*store, &claim_of(&*store, "lock", TTL)).await;
    assert!(held.to_string().contains("another client"), "{held}");
    redis_cli(&url, &["DEL", &key(&url, "lock")]).await;
    granted_to(&*store, &claim_of(&*store, "lock", TTL)).await;
    assert_eq!(redis_cli(&url, &["SET", &key(&url, "lock"), "theirs", "NX"]).await, "");
}

#[tokio::test]
async fn a_lock_is_listed_with_its_odd_braces_or_refused() {
    let server = Server::REDIS_CLUSTER.url();
    for (prefix, names) in [("x%7B", vec!["a", "{b}c"]), ("%7Bone%7D/", vec!["a", "}b", "c{d}"])] {
        let prefix = format!("prefix={prefix}{:x}/", std::process::id());
        let locker = Locker::open(&with_option(&server, &prefix)).await.unwrap();
        for name in &names {
            locker.lock(*name).acquire().await.unwrap().release().await.unwrap();
        }
        let mut listed: Vec<_> =
            futures_util::TryStreamExt::try_collect::<Vec<_>>(locker.list("")).await.unwrap();
        listed.sort();
        let mut names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
        names.sort();
        assert_eq!(listed.iter().map(ToString::to_string).collect::<Vec<_>>(), names);
    }
    let locker = Locker::open(&server).await.unwrap();
    // The lock `a` has the record that `{a}` would have.
    for name in ["a}b", "{a}"] {
        let error = locker.lock(name).try_acquire().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error:?}");
        assert!(error.to_string().contains("`cluster=on`"), "{error}");
    }
}

#[tokio::test]
async fn the_option_must_fit_the_server() {
    let single = with_option(&Server::REDIS.url(), "cluster=on");
    let member = Server::REDIS_CLUSTER.url().replace("cluster=on&", "");
    for (url, help) in [(single, "leave out cluster=on"), (member, "add cluster=on")] {
        let error = Locker::open(&url).await.unwrap().lock("lock").try_acquire().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error:?}");
        assert!(error.help().iter().any(|line| line.contains(help)), "{error:?}");
    }
}

#[tokio::test]
async fn the_doctor_asks_every_shard() {
    async fn findings(url: &str) -> Vec<Finding> {
        Locker::open(url).await.unwrap().examine(&Examination::default()).await.findings
    }
    async fn finding(url: &str, check: &str) -> Finding {
        let findings = findings(url).await;
        let found = findings.iter().find(|finding| finding.check == check);
        found.unwrap_or_else(|| panic!("no {check}: {findings:?}")).clone()
    }
    let folder = tempfile::tempdir().unwrap();
    let mut cluster = cluster(folder.path()).await;
    let url = url(&cluster, "failover_grace=60s");
    let found = finding(&url, "cluster").await;
    assert_eq!(found.verdict, CheckStatus::Passed, "{found:?}");
    let (third, replica) = cluster.pair_of(&format!("locks/{}", lock_at(&cluster, 2).await)).await;
    redis_cli(cluster.members()[third].url(), &["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]).await;
    let found = finding(&url, "eviction").await;
    assert_eq!(found.verdict, CheckStatus::Warning, "{found:?}");
    assert!(found.seen.contains(cluster.members()[third].address()), "{found:?}");
    cluster.kill_for_good(replica.unwrap()).await.unwrap();
    within("the end of the replica", async {
        while finding(&url, "cluster").await.verdict == CheckStatus::Passed {}
    })
    .await;
    let found = finding(&url, "cluster").await;
    assert_eq!(found.verdict, CheckStatus::Warning, "{found:?}");
    redis_cli(cluster.members()[third].url(), &["CLUSTER", "DELSLOTS", "16000"]).await;
    // `reachable`, as soon as the primary has noticed that the cluster is down, or else `cluster`.
    let findings = findings(&url).await;
    let helps = |finding: &Finding| finding.help.iter().any(|line| line.contains("--cluster check"));
    let mut failed = findings.iter().filter(|finding| finding.verdict == CheckStatus::Failed);
    assert!(failed.any(helps), "{findings:?}");
}

/// The permissions in docs/stores/redis-cluster.md, with a password.
const LEAST: &str = "deploy on >word ~locks/* ~{locks/* &locks/* +evalsha +script|load +info +time +get +set +del +exists \
    +type +pttl +hset +hmget +publish +subscribe +unsubscribe +cluster|slots +asking +scan";

#[tokio::test]
async fn the_least_user_of_a_cluster_can_do_everything() {
    let folder = tempfile::tempdir().unwrap();
    let cluster = cluster(folder.path()).await;
    let user: Vec<_> = ["ACL", "SETUSER"].into_iter().chain(LEAST.split_whitespace()).collect();
    for member in cluster.members() {
        assert_eq!(redis_cli(member.url(), &user).await, "OK");
    }
    let url = url(&cluster, "failover_grace=0s&plaintext=on").replace("redis://", "redis://deploy:word@");
    let locker = Locker::open(&url).await.unwrap();
    for primary in 0..3 {
        let lock = locker.lock(lock_at(&cluster, primary).await);
        let guard = lock.acquire().await.unwrap();
        let name = guard.name().clone();
        let waiting = waiter(&url, &guard).await;
        guard.release().await.unwrap();
        waiting.await.unwrap();
        // For how long it has been free is known only up to the time of a request.
        within("a sweep", async {
            while locker.sweep(&name, Duration::ZERO, false).await.unwrap() != Swept::Deleted {}
        })
        .await;
        let guard = lock.acquire().await.unwrap();
        locker.evict(guard.name(), guard.token().unwrap()).await.unwrap();
    }
    assert_eq!(locker.list("").try_collect::<Vec<_>>().await.unwrap().len(), 3);
    let elsewhere = url.replace("prefix=locks/", "prefix=others/");
    assert_eq!(refused(&elsewhere).await.kind(), ErrorKind::Denied);
}
