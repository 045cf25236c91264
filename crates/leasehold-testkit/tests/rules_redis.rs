//! The rules of Redis leases. Each test fails without its rule. `docs/stores/redis-safety.md` has the argument.

use std::sync::Arc;
use std::time::Duration;

use leasehold::clock::{Clock, SystemClock};
use leasehold::error::StoreError;
use leasehold::lease::{
    AcquireOutcome, Claim, Evicted, Grant, HolderInfo, LeaseStore, Released, Renewal, State, Token, Ttl,
};
use leasehold::{ErrorKind, Eviction};
use leasehold_testkit::harness::Fresh;
use leasehold_testkit::launch::Launched;
use leasehold_testkit::process::within;
use leasehold_testkit::servers::with_option;
use leasehold_testkit::stores;
use leasehold_testkit::stores::redis::{RedisServer, answers, key, redis_cli, replicate};
use tempfile::TempDir;

use crate::leases::{TTL, claim, claim_of, granted, granted_to, lock, open, refused, refused_to};

const HOUR: Duration = Duration::from_secs(3_600);

fn fresh() -> Fresh {
    stores::fresh("redis")
}

/// Returns Redis's response to a command about the lock's string (`LOCK`) or its record (`RECORD`).
async fn redis(url: &str, command: &[&str]) -> String {
    let (string, record) = (key(url, "lock"), format!("{}//leasehold", key(url, "lock")));
    let command: Vec<_> = command
        .iter()
        .map(|word| match *word {
            "LOCK" => string.as_str(),
            "RECORD" => record.as_str(),
            word => word,
        })
        .collect();
    redis_cli(url, &command).await
}

/// Moves the time at which the record was written.
async fn move_end(url: &str, us: i64) {
    redis(url, &["HINCRBY", "RECORD", "at", &us.to_string()]).await;
}

#[tokio::test]
async fn a_lock_without_its_string_is_held_while_its_record_is_live() {
    let fresh = fresh();
    let (one, two) = (open(fresh.url()).await, open(fresh.url()).await);
    let mut grant = granted(&*one).await;
    assert_eq!(redis(fresh.url(), &["DEL", "LOCK"]).await, "1");
    assert_eq!(refused(&*two).await.token, Some(grant.token));
    assert!(matches!(one.renew(&mut grant).await.unwrap(), Renewal::Renewed));
    assert_eq!(redis(fresh.url(), &["GET", "LOCK"]).await, grant.id.to_string(), "the renewal sets it again");
    assert_eq!(one.release(&mut grant, None).await.unwrap(), Released::Released);
    assert_eq!(redis(fresh.url(), &["EXISTS", "LOCK"]).await, "0");
}

#[tokio::test]
async fn the_key_of_another_client_ends_a_grant_and_stays() {
    let fresh = fresh();
    let store = open(fresh.url()).await;
    let mut grant = granted(&*store).await;
    redis(fresh.url(), &["SET", "LOCK", "theirs", "PX", "60000"]).await;
    let Renewal::Lost(loss) = store.renew(&mut grant).await.unwrap() else { panic!("renewed") };
    assert!(loss.to_string().contains("another client"), "{loss}");
    store.release(&mut grant, None).await.unwrap();
    assert_eq!(redis(fresh.url(), &["GET", "LOCK"]).await, "theirs");
    assert!(refused(&*store).await.token.is_none());
    // The other client's key also stays if no renewal noticed it before the release.
    redis(fresh.url(), &["DEL", "LOCK"]).await;
    let mut grant = granted(&*store).await;
    redis(fresh.url(), &["SET", "LOCK", "theirs", "PX", "60000"]).await;
    store.release(&mut grant, None).await.unwrap();
    assert_eq!(redis(fresh.url(), &["GET", "LOCK"]).await, "theirs");
    // Now their lock has no end.
    redis(fresh.url(), &["PERSIST", "LOCK"]).await;
    assert_eq!(refused(&*store).await.lapses_within, None);
}

#[tokio::test]
async fn a_lapsed_grant_is_not_renewed_and_its_late_claim_not_granted() {
    let fresh = fresh();
    let store = open(fresh.url()).await;
    let mut old_claim = claim(&*store);
    old_claim.repeatable = true;
    let mut old = granted_to(&*store, &old_claim).await;
    move_end(fresh.url(), -3_600_000_000).await;
    redis(fresh.url(), &["DEL", "LOCK"]).await;
    assert!(matches!(store.renew(&mut old).await.unwrap(), Renewal::Lost(_)));
    let outcome = store.try_acquire(&old_claim).await.unwrap();
    assert!(matches!(outcome, AcquireOutcome::Lost(_)), "{outcome:?}");
    let mut new = granted(&*store).await;
    assert!(new.token > old.token);
    assert!(matches!(store.renew(&mut old).await.unwrap(), Renewal::Lost(_)));
    assert_eq!(store.release(&mut old, None).await.unwrap(), Released::AlreadyLost);
    assert!(matches!(store.renew(&mut new).await.unwrap(), Renewal::Renewed));
    store.release(&mut new, None).await.unwrap();
    for ended in [&old_claim, &old_claim] {
        let outcome = store.try_acquire(ended).await.unwrap();
        assert!(matches!(outcome, AcquireOutcome::Lost(_)), "by its id in the history: {outcome:?}");
    }
}

/// Another client does not add leasehold's grants to the history.
#[tokio::test]
async fn a_lapsed_claim_is_not_granted_after_another_client() {
    let fresh = fresh();
    let store = open(fresh.url()).await;
    let mut old_claim = claim(&*store);
    old_claim.repeatable = true;
    granted_to(&*store, &old_claim).await;
    move_end(fresh.url(), -3_600_000_000).await;
    redis(fresh.url(), &["SET", "LOCK", "theirs"]).await;
    let outcome = store.try_acquire(&old_claim).await.unwrap();
    assert!(matches!(outcome, AcquireOutcome::Held(_)), "held by another client: {outcome:?}");
    redis(fresh.url(), &["DEL", "LOCK"]).await;
    let outcome = store.try_acquire(&old_claim).await.unwrap();
    assert!(matches!(outcome, AcquireOutcome::Lost(_)), "freed by another client: {outcome:?}");
    granted(&*store).await;
    let outcome = store.try_acquire(&old_claim).await.unwrap();
    assert!(matches!(outcome, AcquireOutcome::Lost(_)), "by its id in the history: {outcome:?}");
}

#[tokio::test]
async fn the_history_says_who_evicted_a_holder_and_why() {
    let fresh = fresh();
    let store = open(fresh.url()).await;
    let grant = granted(&*store).await;
    let why = Eviction::new("alice", "the \"machine\" is gone\\");
    assert_eq!(store.evict(&lock(), grant.token, Some(&why)).await.unwrap(), Evicted::Evicted);
    let past = store.inspect(&lock()).await.unwrap().history.remove(0);
    assert_eq!((past.grant, past.evicted), (grant.id, Some(why)));
}

#[tokio::test]
async fn a_claim_is_granted_again_with_its_token_and_a_new_lease() {
    let fresh = fresh();
    let store = open(fresh.url()).await;
    let mut claim = claim(&*store);
    claim.repeatable = true;
    let first = granted_to(&*store, &claim).await;
    move_end(fresh.url(), -20_000_000).await;
    let second = granted_to(&*store, &claim).await;
    assert_eq!((first.token, first.id), (second.token, second.id));
    let left = refused(&*open(fresh.url()).await).await.lapses_within.unwrap();
    assert!(left > TTL, "{left:?}");
    let left: u128 = redis(fresh.url(), &["PTTL", "LOCK"]).await.parse().unwrap();
    assert!(left > TTL.as_millis(), "{left}");
}

#[tokio::test]
async fn the_string_outlasts_the_holders_lease_by_the_margin() {
    let fresh = fresh();
    let store = open(&with_option(fresh.url(), "margin=100s")).await;
    let mut claim = claim(&*store);
    claim.lock_delay = Duration::from_secs(1_000);
    let grant = granted_to(&*store, &claim).await;
    assert!(grant.deadline.remaining(store.env().now()) <= TTL);
    let left_ms: u64 = redis(fresh.url(), &["PTTL", "LOCK"]).await.parse().unwrap();
    assert!(left_ms > 1_120_000, "{left_ms}");
}

#[tokio::test]
async fn an_eviction_and_a_release_need_the_token() {
    let fresh = fresh();
    let store = open(fresh.url()).await;
    let mut grant = granted(&*store).await;
    let before = Token::new(grant.token.get() - 1).unwrap();
    assert_eq!(store.evict(&lock(), before, None).await.unwrap(), Evicted::Changed);
    let mut other = grant.without_memo();
    other.token = before;
    assert!(matches!(store.renew(&mut other).await.unwrap(), Renewal::Lost(_)));
    assert_eq!(store.release(&mut other, None).await.unwrap(), Released::AlreadyLost);
    assert!(matches!(store.renew(&mut grant).await.unwrap(), Renewal::Renewed));
    assert_eq!(store.evict(&lock(), grant.token, None).await.unwrap(), Evicted::Evicted);
    assert!(matches!(store.renew(&mut grant).await.unwrap(), Renewal::Lost(_)));
    assert_eq!(redis(fresh.url(), &["EXISTS", "LOCK"]).await, "0");
}

#[tokio::test]
async fn a_claim_of_an_unread_record_gets_tokens_above_its_last() {
    let fresh = fresh();
    let store = open(fresh.url()).await;
    let mut first = granted(&*store).await;
    store.release(&mut first, None).await.unwrap();
    // As if the clock had been set back.
    let ahead = Token::LIMIT - 1_000_000;
    redis(fresh.url(), &["HSET", "RECORD", "token", &ahead.to_string()]).await;
    let store = open(fresh.url()).await;
    let mut claim = claim(&*store);
    claim.tokens = 10;
    let mut grant = granted_to(&*store, &claim).await;
    assert_eq!((grant.token.get(), grant.after.map(Token::get)), (ahead + 10, Some(ahead)));
    store.release(&mut grant, None).await.unwrap();
    redis(fresh.url(), &["HSET", "RECORD", "token", &(Token::LIMIT - 1).to_string()]).await;
    let store = open(fresh.url()).await;
    let error = store.try_acquire(&claim).await.unwrap_err();
    assert_eq!(error.fault().kind, ErrorKind::Corrupt, "{error}");
}

/// A repeated claim is granted only once, whether or not its record was read.
#[tokio::test]
async fn a_claim_in_the_history_of_an_unread_record_is_lost() {
    let fresh = fresh();
    let store = open(fresh.url()).await;
    let mut claim = claim(&*store);
    claim.repeatable = true;
    for _ in 0..2 {
        let mut grant = match store.try_acquire(&claim).await.unwrap() {
            AcquireOutcome::Granted(grant) => grant,
            AcquireOutcome::Lost(_) => granted(&*store).await,
            AcquireOutcome::Held(held) => panic!("{held}"),
        };
        store.release(&mut grant, None).await.unwrap();
        let outcome = open(fresh.url()).await.try_acquire(&claim).await.unwrap();
        assert!(matches!(outcome, AcquireOutcome::Lost(_)), "{outcome:?}");
    }
}

/// A server that has lost a renewal has an earlier record of the same grant.
#[tokio::test]
async fn a_holder_continues_after_the_server_lost_its_renewal() {
    let fresh = fresh();
    let store = open(fresh.url()).await;
    let mut grant = granted(&*store).await;
    let fields = ["version", "record", "at"];
    let mut before = Vec::new();
    for field in fields {
        before.push(redis(fresh.url(), &["HGET", "RECORD", field]).await);
    }
    assert!(matches!(store.renew(&mut grant).await.unwrap(), Renewal::Renewed));
    for (field, value) in fields.iter().zip(&before) {
        redis(fresh.url(), &["HSET", "RECORD", field, value]).await;
    }
    assert!(matches!(store.renew(&mut grant).await.unwrap(), Renewal::Renewed));
    let record = redis(fresh.url(), &["HGET", "RECORD", "record"]).await;
    assert!(record.contains("\"heartbeat\":1"), "like the one that was lost: {record}");
}

#[tokio::test]
async fn a_damaged_record_is_an_error_and_changes_nothing() {
    let fresh = fresh();
    let store = open(fresh.url()).await;
    granted(&*store).await;
    for (field, value) in [
        ("token", "x"),
        ("token", ""),
        ("token", "nan"),
        ("grant", "x"),
        ("at", "soon"),
        ("at", ""),
        ("record", ""),
        ("record", "{}"),
    ] {
        let good = redis(fresh.url(), &["HGET", "RECORD", field]).await;
        redis(fresh.url(), &["HSET", "RECORD", field, value]).await;
        redis(fresh.url(), &["DEL", "LOCK"]).await;
        let before = redis(fresh.url(), &["HGETALL", "RECORD"]).await;
        let outcome = store.try_acquire(&claim(&*store)).await;
        let error = outcome.expect_err(&format!("{field} is {value:?}"));
        assert_eq!(error.fault().kind, ErrorKind::Corrupt, "{field} {value}: {error}");
        assert!(error.fault().help.is_some(), "{error}");
        assert_eq!(redis(fresh.url(), &["HGETALL", "RECORD"]).await, before, "{field} {value}");
        assert_eq!(redis(fresh.url(), &["EXISTS", "LOCK"]).await, "0", "{field} {value}");
        redis(fresh.url(), &["HSET", "RECORD", field, &good]).await;
    }
    refused(&*store).await;
    redis(fresh.url(), &["DEL", "RECORD", "LOCK"]).await;
    redis(fresh.url(), &["SET", "RECORD", "x"]).await;
    let error = store.try_acquire(&claim(&*store)).await.unwrap_err();
    assert_eq!(error.fault().kind, ErrorKind::Corrupt, "{error}");
}

/// Creates a waiter with this name, and waits until it has a place in the line.
async fn waiter(fresh: &Fresh, name: &str) -> (Arc<dyn LeaseStore>, Claim) {
    let store = open(fresh.url()).await;
    let mut claim = claim(&*store);
    claim.holder.name = name.to_owned();
    claim.waits = true;
    let AcquireOutcome::Held(held) = store.try_acquire(&claim).await.unwrap() else { panic!("granted") };
    within("a place", store.turn(&claim, &held)).await.unwrap();
    // It learns its place from what it has just read.
    refused_to(&*store, &claim).await;
    (store, claim)
}

async fn asked((store, claim): &(Arc<dyn LeaseStore>, Claim)) -> Result<Grant, HolderInfo> {
    match store.try_acquire(claim).await.unwrap() {
        AcquireOutcome::Granted(grant) => Ok(grant),
        AcquireOutcome::Held(held) => Err(held),
        AcquireOutcome::Lost(loss) => panic!("{loss}"),
    }
}

#[tokio::test]
async fn waiters_are_granted_the_lock_in_the_order_of_joining() {
    let fresh = fresh();
    let store = open(fresh.url()).await;
    let mut grant = granted(&*store).await;
    let (a, b, c) = (waiter(&fresh, "a").await, waiter(&fresh, "b").await, waiter(&fresh, "c").await);
    let status = store.inspect(&lock()).await.unwrap();
    let names: Vec<_> = status.waiters.iter().map(|waiter| waiter.holder.name.as_str()).collect();
    assert_eq!(names, ["a", "b", "c"]);
    store.release(&mut grant, None).await.unwrap();
    let held = asked(&b).await.unwrap_err();
    assert!(held.reserved && held.ahead == Some(1) && held.holder.unwrap().name == "a");
    assert_eq!(held.waiter_ahead.unwrap().name, "a");
    assert!(refused(&*store).await.reserved, "a newcomer stands behind all");
    let mut first = asked(&a).await.unwrap();
    assert_eq!(asked(&b).await.unwrap_err().ahead, Some(0));
    // The second waiter gives up.
    let mut withdrawn = Grant::new(&b.1, Token::default(), store.env().now());
    let told = asked(&c).await.unwrap_err();
    assert_eq!((told.ahead, told.waiter_ahead.as_ref().unwrap().name.as_str()), (Some(1), "b"));
    b.0.release(&mut withdrawn, None).await.unwrap();
    let told = asked(&c).await.unwrap_err();
    assert_eq!((told.ahead, told.waiter_ahead), (Some(0), None), "the one before it gave up");
    a.0.release(&mut first, None).await.unwrap();
    let mut second = asked(&c).await.unwrap();
    c.0.release(&mut second, None).await.unwrap();
    assert!(store.inspect(&lock()).await.unwrap().waiters.is_empty());
}

#[tokio::test]
async fn a_dead_waiter_is_passed_over_after_its_reservation() {
    let fresh = fresh();
    let store = open(fresh.url()).await;
    let mut grant = granted(&*store).await;
    let (_dead, next) = (waiter(&fresh, "dead").await, waiter(&fresh, "next").await);
    store.release(&mut grant, None).await.unwrap();
    let left = asked(&next).await.unwrap_err().lapses_within.unwrap();
    move_end(fresh.url(), -i64::try_from(left.as_micros()).unwrap()).await;
    asked(&next).await.unwrap();
    assert!(store.inspect(&lock()).await.unwrap().waiters.is_empty(), "it lost its place");
}

/// Before its grace is over, a claim that ignores the line takes the lock, again and again.
#[tokio::test]
async fn the_reservation_of_a_dead_waiter_adds_up_over_grants() {
    let fresh = fresh();
    let store = open(fresh.url()).await;
    let mut grant = granted(&*store).await;
    let (dead, next) = (waiter(&fresh, "dead").await, waiter(&fresh, "next").await);
    // The grace is 20.5 s.
    let line = format!("1 10000 {} {{}}\n2 10000 {} {{}}", dead.1.id, next.1.id);
    redis(fresh.url(), &["HSET", "RECORD", "line", &line]).await;
    store.release(&mut grant, None).await.unwrap();
    for _ in 0..2 {
        assert!(asked(&next).await.unwrap_err().reserved);
        move_end(fresh.url(), -9_000_000).await;
        assert!(asked(&next).await.unwrap_err().reserved);
        let mut barging = claim(&*store);
        barging.barges = true;
        let mut grant = granted_to(&*store, &barging).await;
        store.release(&mut grant, None).await.unwrap();
    }
    move_end(fresh.url(), -4_000_000).await;
    assert!(refused(&*store).await.reserved, "a newcomer has not seen the earlier times");
    asked(&next).await.unwrap();
    assert!(store.inspect(&lock()).await.unwrap().waiters.is_empty());
}

#[tokio::test]
async fn a_claim_that_barges_ignores_the_line_and_leaves_it_unchanged() {
    let fresh = fresh();
    let store = open(fresh.url()).await;
    let mut grant = granted(&*store).await;
    let (_, first) = waiter(&fresh, "first").await;
    // The waiter polls rarely, so that its grace does not end by chance.
    redis(fresh.url(), &["HSET", "RECORD", "line", &format!("1 10000 {} {{}}", first.id)]).await;
    store.release(&mut grant, None).await.unwrap();
    let mut barging = claim(&*store);
    barging.barges = true;
    granted_to(&*store, &barging).await;
    assert_eq!(store.inspect(&lock()).await.unwrap().waiters.len(), 1);
}

#[tokio::test]
async fn a_damaged_line_delays_no_one() {
    let fresh = fresh();
    let store = open(fresh.url()).await;
    let mut grant = granted(&*store).await;
    redis(fresh.url(), &["HSET", "RECORD", "line", "x\n7 y z\n\n"]).await;
    let next = waiter(&fresh, "next").await;
    store.release(&mut grant, None).await.unwrap();
    next.0.release(&mut asked(&next).await.unwrap(), None).await.unwrap();
    let mut grant = granted(&*store).await;
    let next = waiter(&fresh, "next").await;
    store.release(&mut grant, None).await.unwrap();
    let (_, claim) = &next;
    let never = format!("8 99999999 {:032x} {{}}\n9 500 {} {{}}", 7, claim.id);
    redis(fresh.url(), &["HSET", "RECORD", "line", &never]).await;
    let left = asked(&next).await.unwrap_err().lapses_within.unwrap();
    assert!(left <= Duration::from_secs(21), "{left:?}");
    move_end(fresh.url(), -i64::try_from(left.as_micros()).unwrap()).await;
    asked(&next).await.unwrap();
}

/// Starts a server that only this test uses. Returns it with its store URL and its folder.
pub(crate) async fn server(kind: &'static RedisServer, options: &str) -> (Launched, String, TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let server = Launched::start(kind, folder.path()).await.unwrap();
    let url = with_option(server.url(), options);
    (server, url, folder)
}

/// Waits until the server has been running for so many seconds.
async fn until_uptime(url: &str, seconds: u64) {
    answers(url, &["INFO", "server"], |info| {
        let uptime = info.split_once("uptime_in_seconds:").map_or("", |(_, rest)| rest);
        uptime.lines().next().is_some_and(|line| line.trim().parse::<u64>().unwrap_or(0) >= seconds)
    })
    .await;
}

#[tokio::test]
async fn nothing_is_granted_for_the_grace_after_a_restart() {
    for (grace, is_granted) in [("0s", true), ("60s", false)] {
        let options = format!("margin=0s&failover_grace={grace}");
        let (mut server, url, _folder) = server(&RedisServer::FORGETTING, &options).await;
        // Without a grace, because a server that has just started grants nothing during the grace.
        let store = open(&with_option(server.url(), "margin=0s&failover_grace=0s")).await;
        let first = granted(&*store).await;
        server.kill(Duration::ZERO).await.unwrap();
        let store = open(&url).await;
        match store.try_acquire(&claim(&*store)).await.unwrap() {
            AcquireOutcome::Granted(grant) if is_granted => assert!(grant.token > first.token),
            AcquireOutcome::Held(held) if !is_granted => {
                assert!(held.to_string().contains("failover_grace"), "{held}");
                assert!(held.lapses_within.unwrap() > TTL, "{held:?}");
            }
            other => panic!("{grace}: {other:?}"),
        }
    }
}

#[tokio::test]
async fn a_server_that_runs_for_longer_than_the_grace_grants_at_once() {
    let (_server, url, _folder) = server(&RedisServer::KEEPING, "margin=0s&failover_grace=10s").await;
    let store = open(&url).await;
    let short = claim_of(&*store, "lock", Duration::from_secs(5));
    let first = within("a grant", async {
        loop {
            match store.try_acquire(&short).await.unwrap() {
                AcquireOutcome::Granted(grant) => break grant,
                AcquireOutcome::Held(held) => store.turn(&short, &held).await.unwrap(),
                AcquireOutcome::Lost(loss) => panic!("{loss}"),
            }
        }
    })
    .await;
    // The server counts its uptime in whole seconds, of which the last does not count.
    until_uptime(&url, 12).await;
    // Now the server looks as if nothing had ever been locked on it.
    redis(&url, &["FLUSHALL"]).await;
    let other = open(&url).await;
    let second = granted_to(&*other, &claim_of(&*other, "lock", Duration::from_secs(5))).await;
    assert!(second.token > first.token);
}

#[tokio::test]
async fn the_longest_grace_of_all_clients_counts() {
    let (mut server, url, _folder) = server(&RedisServer::KEEPING, "margin=0s&failover_grace=3600s").await;
    let store = open(&url).await;
    assert!(refused(&*store).await.lapses_within.unwrap() > HOUR / 2);
    server.kill(Duration::ZERO).await.unwrap();
    let store = open(&with_option(server.url(), "margin=0s&failover_grace=40s")).await;
    assert!(refused(&*store).await.lapses_within.unwrap() > HOUR / 2);
}

#[tokio::test]
async fn a_promoted_replica_grants_nothing_for_the_grace() {
    let (mut primary, _, _folder) = server(&RedisServer::KEEPING, "").await;
    let (_replica, url, _other) = server(&RedisServer::KEEPING, "margin=0s&failover_grace=2s").await;
    replicate(&url, Some(primary.address())).await;
    answers(&url, &["INFO", "everything"], |info| info.contains("master_link_status:up")).await;
    let store = open(&url).await;
    let mut claim = claim_of(&*store, "lock", Duration::from_secs(1));
    claim.store_timeout = Duration::from_secs(5);
    let error = store.try_acquire(&claim).await.unwrap_err();
    assert!(error.to_string().contains("not the primary"), "{error}");
    // Wait until the replica has been running for longer than the grace, but not as a primary.
    until_uptime(&url, 3).await;
    primary.kill(Duration::ZERO).await.unwrap();
    replicate(&url, None).await;
    let short = claim_of(&*store, "lock", Ttl::MIN);
    let outcome = store.try_acquire(&short).await.unwrap();
    assert!(
        matches!(&outcome, AcquireOutcome::Held(held) if held.to_string().contains("failover_grace")),
        "{outcome:?}"
    );
}

#[tokio::test]
async fn a_lease_that_could_outlast_the_grace_is_refused() {
    let fresh = fresh();
    let url = fresh.url().replace("failover_grace=0s", "failover_grace=60s");
    let store = open(&url).await;
    let error = store.try_acquire(&claim_of(&*store, "lock", Duration::from_secs(120))).await.unwrap_err();
    assert!(matches!(error, StoreError::NotApplied(_)));
    assert_eq!(error.fault().kind, ErrorKind::Invalid, "{error}");
    assert!(error.fault().help.as_deref().unwrap().contains("failover_grace="), "{error:?}");
}

/// A primary that is cut off from its replicas renews leases for some time. The server counts its replicas at each
/// grant, because they may connect after the client did.
#[tokio::test]
async fn a_long_lease_is_refused_once_a_replica_connects() {
    let (primary, url, _folder) = server(&RedisServer::KEEPING, "margin=0s&failover_grace=60s").await;
    let store = open(&url).await;
    let claim = |ttl| claim_of(&*store, "lock", Duration::from_secs(ttl));
    let outcome = store.try_acquire(&claim(55)).await.unwrap();
    assert!(matches!(outcome, AcquireOutcome::Held(_)), "the grace is not over: {outcome:?}");
    let since = async || redis_cli(&url, &["HGET", &epoch(&url), "since"]).await;
    let before = since().await;
    let (_replica, replica_url, _other) = server(&RedisServer::KEEPING, "").await;
    replicate(&replica_url, Some(primary.address())).await;
    answers(&url, &["INFO", "everything"], |info| info.contains("connected_slaves:1")).await;
    let error = store.try_acquire(&claim(55)).await.unwrap_err();
    assert!(matches!(error, StoreError::NotApplied(_)));
    assert_eq!(error.fault().kind, ErrorKind::Invalid, "{error}");
    let outcome = store.try_acquire(&claim(45)).await.unwrap();
    assert!(matches!(outcome, AcquireOutcome::Held(_)), "the grace covers this lease: {outcome:?}");
    assert_eq!(since().await, before, "a primary that gets its first replica begins no grace");
}

/// Returns the key of the record about the server.
fn epoch(url: &str) -> String {
    key(url, "//leasehold/epoch")
}

/// Starts a server whose grace after the start is over.
async fn settled() -> (Launched, String, TempDir, Arc<dyn LeaseStore>) {
    let (server, url, folder) = server(&RedisServer::KEEPING, "margin=0s&failover_grace=60s").await;
    let store = open(&url).await;
    assert!(refused(&*store).await.withheld);
    redis_cli(&url, &["HSET", &epoch(&url), "since", "1"]).await;
    (server, url, folder, store)
}

/// A restart can lose the latest writes, although the server has the record of itself on its disk.
#[tokio::test]
async fn the_grace_begins_anew_after_a_restart_that_kept_the_data() {
    let (mut server, url, _folder, store) = settled().await;
    let mut grant = granted(&*store).await;
    store.release(&mut grant, None).await.unwrap();
    server.kill(Duration::ZERO).await.unwrap();
    assert!(refused(&*open(&url).await).await.withheld);
}

/// Otherwise, the next claim would wait for the whole grace, even if the lock was held for a day after the restart.
#[tokio::test]
async fn a_renewal_begins_the_grace() {
    let (mut server, url, _folder, store) = settled().await;
    let mut grant = granted(&*store).await;
    let began_us = SystemClock.now().wall_us();
    server.kill(Duration::ZERO).await.unwrap();
    let renewed = within("a response to a renewal", async {
        loop {
            match store.renew(&mut grant).await {
                Ok(renewed) => break renewed,
                Err(error) => assert!(error.is_transient(), "{error}"),
            }
        }
    });
    assert!(matches!(renewed.await, Renewal::Renewed), "the grace withholds no renewal");
    let since_us: u64 = redis_cli(&url, &["HGET", &epoch(&url), "since"]).await.parse().unwrap();
    assert!(since_us >= began_us, "{since_us} is before {began_us}");
}

/// An operator demoted it. The connection of the client stays open.
#[tokio::test]
async fn a_replica_that_accepts_writes_renews_nothing() {
    let (_server, url, _folder, store) = settled().await;
    let mut grant = granted_to(&*store, &claim_of(&*store, "lock", Duration::from_secs(5))).await;
    redis_cli(&url, &["CONFIG", "SET", "replica-read-only", "no"]).await;
    // No server is there, so the replica keeps its data.
    replicate(&url, Some("127.0.0.1:1")).await;
    let error = store.renew(&mut grant).await.unwrap_err();
    assert!(error.to_string().contains("not the primary"), "{error}");
}

/// Starts a primary with a replica, whose grace after the start is over.
async fn pair(options: &str, max_lag: &str) -> ([(Launched, String, TempDir); 2], Arc<dyn LeaseStore>) {
    let primary = server(&RedisServer::KEEPING, options).await;
    let replica = server(&RedisServer::KEEPING, "").await;
    replicate(&replica.1, Some(primary.0.address())).await;
    answers(&primary.1, &["INFO", "replication"], |info| info.contains("state=online")).await;
    for setting in [["min-replicas-to-write", "1"], ["min-replicas-max-lag", max_lag]] {
        redis_cli(&primary.1, &["CONFIG", "SET", setting[0], setting[1]]).await;
    }
    let store = open(&primary.1).await;
    let outcome = store.try_acquire(&claim_of(&*store, "first", Ttl::MIN)).await.unwrap();
    assert!(matches!(outcome, AcquireOutcome::Held(_)), "the grace is not over: {outcome:?}");
    redis_cli(&primary.1, &["HSET", &epoch(&primary.1), "since", "1"]).await;
    ([primary, replica], store)
}

#[tokio::test]
async fn the_grace_must_cover_the_real_lag_of_replicas() {
    let (_servers, store) = pair("margin=0s&failover_grace=26s", "20").await;
    let error = store.try_acquire(&claim_of(&*store, "lock", Duration::from_secs(5))).await.unwrap_err();
    assert_eq!(error.fault().kind, ErrorKind::Invalid, "{error}");
    assert!(error.to_string().contains("22s for the lag"), "{error}");
}

/// The limit of the server may be unknown to the client, or be raised while it is connected. A client that connects
/// again reads the new one.
#[tokio::test]
async fn a_primary_that_is_cut_off_renews_only_within_its_lag() {
    let ([primary, replica], store) = pair("margin=0s&failover_grace=9s", "1").await;
    let claim = claim_of(&*store, "lock", Duration::from_secs(5));
    let mut grant = granted_to(&*store, &claim).await;
    assert!(matches!(store.renew(&mut grant).await.unwrap(), Renewal::Renewed));
    redis_cli(&primary.1, &["CONFIG", "SET", "min-replicas-max-lag", "3600"]).await;
    let refused = within("a refusal", async {
        loop {
            if let Err(error) = store.renew(&mut grant).await {
                break error;
            }
            // The server measures the lag in whole seconds.
            SystemClock.sleep(Duration::from_millis(100)).await;
        }
    });
    let refused = tokio::select! {
        refused = refused => refused,
        _ = replica.0.stop(HOUR) => unreachable!("the replica is stopped for an hour"),
    };
    assert!(refused.to_string().contains("NOREPLICAS"), "{refused}");
    let mut other = claim_of(&*store, "other", Duration::from_secs(5));
    other.store_timeout = Duration::from_secs(1);
    let refused = store.try_acquire(&other).await.unwrap_err().to_string();
    // The second text if the client has connected again.
    assert!(refused.contains("NOREPLICAS") || refused.contains("could outlast a failover"), "{refused}");
}

/// The server reports how long it has been running in whole seconds, which can be almost a second too long.
#[tokio::test]
async fn the_grace_begins_when_the_server_starts_and_not_before() {
    let fraction_us = || SystemClock.now().wall_us() % 1_000_000;
    SystemClock.sleep(Duration::from_micros(1_600_000 - fraction_us())).await;
    let before_us = SystemClock.now().wall_us();
    let (_server, url, _folder) = server(&RedisServer::KEEPING, "margin=0s&failover_grace=60s").await;
    let store = open(&url).await;
    SystemClock.sleep(Duration::from_micros(1_000_000 - fraction_us())).await;
    refused(&*store).await;
    let since_us: u64 = redis_cli(&url, &["HGET", &epoch(&url), "since"]).await.trim().parse().unwrap();
    assert!(since_us >= before_us, "{since_us} is before {before_us}");
}

#[tokio::test]
async fn a_grace_that_began_ahead_of_the_clock_begins_now() {
    let (_server, url, _folder) = server(&RedisServer::KEEPING, "margin=0s&failover_grace=60s").await;
    let store = open(&url).await;
    refused(&*store).await;
    let ahead = SystemClock.now().wall_us() + 3_600_000_000;
    redis_cli(&url, &["HSET", &epoch(&url), "since", &ahead.to_string()]).await;
    assert!(refused(&*store).await.lapses_within.unwrap() <= Duration::from_secs(60));
    let since_us: u64 = redis_cli(&url, &["HGET", &epoch(&url), "since"]).await.trim().parse().unwrap();
    assert!(since_us <= SystemClock.now().wall_us(), "otherwise the grace would never end");
}

#[tokio::test]
async fn a_server_that_may_evict_locks_is_refused() {
    let (_server, url, _folder) = server(&RedisServer::FORGETTING, "failover_grace=0s").await;
    redis(&url, &["CONFIG", "SET", "maxmemory", "100mb", "maxmemory-policy", "volatile-lru"]).await;
    let store = open(&url).await;
    let error = store.try_acquire(&claim(&*store)).await.unwrap_err();
    assert_eq!(error.fault().kind, ErrorKind::Unsupported, "{error}");
    assert!(error.to_string().contains("volatile-lru"), "{error}");
}

#[tokio::test]
async fn the_release_of_a_lock_of_another_client_is_noticed() {
    let fresh = fresh();
    let store = open(fresh.url()).await;
    redis(fresh.url(), &["SET", "LOCK", "theirs", "PX", "600000"]).await;
    let held = refused(&*store).await;
    let mut claim = claim(&*store);
    claim.waits = true;
    let (waited, _) = tokio::join!(
        within("its release", async {
            store.turn(&claim, &held).await.unwrap();
            let AcquireOutcome::Held(held) = store.try_acquire(&claim).await.unwrap() else { return };
            store.turn(&claim, &held).await.unwrap();
            granted_to(&*store, &claim).await;
        }),
        async {
            redis(fresh.url(), &["DEL", "LOCK"]).await;
        }
    );
    let () = waited;
    assert!(matches!(store.inspect(&lock()).await.unwrap().state, State::Held(_)));
}

#[tokio::test]
async fn a_claim_that_arrives_after_its_client_gave_up_is_not_granted() {
    let (server, url, _folder) = server(&RedisServer::FORGETTING, "failover_grace=0s").await;
    let store = open(&url).await;
    // After this grant, the connection is open, the server's clock is known, and the server has the script.
    let mut first = granted(&*store).await;
    store.release(&mut first, None).await.unwrap();
    let mut hasty = claim_of(&*store, "lock", Duration::from_secs(2));
    hasty.store_timeout = Duration::from_millis(300);
    let (stopped, outcome) = tokio::join!(server.stop(Duration::from_secs(3)), store.try_acquire(&hasty));
    stopped.unwrap();
    outcome.unwrap_err();
    granted(&*open(&url).await).await;
}
