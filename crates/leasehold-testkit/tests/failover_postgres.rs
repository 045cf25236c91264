//! `failover_grace` on PostgreSQL: real promotions, and the rules. Each test of a rule fails without that rule.

use std::time::Duration;

use leasehold::error::StoreError;
use leasehold::lease::{AcquireOutcome, LeaseStore, Released, Renewal};
use leasehold::{ErrorKind, LockName, Locker};
use leasehold_testkit::harness::Fresh;
use leasehold_testkit::process::within;
use leasehold_testkit::servers::with_option;
use leasehold_testkit::stores;
use leasehold_testkit::stores::postgres::{PostgresServer, psql, table};
use tempfile::TempDir;

use crate::leases::{
    TTL, assert_repetition_cannot_outlast, claim, claim_of, granted, granted_to, open, refused, refused_to,
};

const GRACE: Duration = Duration::from_secs(60);

/// Asserts that the lock is refused because of the grace.
async fn assert_withheld(store: &dyn LeaseStore, name: &str) {
    let held = refused_to(store, &claim_of(store, name, TTL)).await;
    assert!(held.to_string().contains("failover_grace"), "{held}");
    assert!(held.lapses_within.unwrap() > TTL, "{held:?}");
}

/// Sets the record of the row about the server to an SQL expression of `about`, that record.
async fn change_epoch(url: &str, changed: &str) {
    let sql = format!(
        "UPDATE {0} AS e SET record = ({changed})::json
         FROM (SELECT record::jsonb AS about FROM {0} WHERE name = '//leasehold/epoch') AS before
         WHERE e.name = '//leasehold/epoch' RETURNING 1",
        table(url)
    );
    assert_eq!(psql(url, &sql).await, "1");
}

/// Changes the row as if this many seconds had passed.
async fn wait_for(url: &str, seconds: u64) {
    let since = format!("to_jsonb((about->>'since_us')::int8 - {seconds} * 1000000::int8)");
    change_epoch(url, &format!("jsonb_set(about, '{{since_us}}', {since})")).await;
}

/// Changes the row as if another server had been promoted.
async fn fail_over(url: &str) {
    change_epoch(url, r#"jsonb_set(about, '{epoch}', '"7 00000003"')"#).await;
}

/// Creates a table that only this test uses, whose server has been known for longer than the grace.
async fn known() -> (Fresh, String) {
    let fresh = stores::fresh("postgres");
    let url = with_option(fresh.url(), "margin=0s&failover_grace=60s");
    Locker::open(&url).await.unwrap().init().await.unwrap();
    wait_for(&url, 100).await;
    (fresh, url)
}

/// Waits until the result of `sql` is `answer`.
async fn until(url: &str, sql: &str, answer: &str) {
    let reached = async {
        while psql(url, sql).await != answer {
            tokio::task::yield_now().await;
        }
    };
    within(sql, reached).await;
}

/// A primary that loses no commit, and its standby.
struct Pair {
    primary: PostgresServer,
    standby: PostgresServer,
    _folders: [TempDir; 2],
}

impl Pair {
    async fn start() -> Self {
        let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let primary = PostgresServer::start_with(folders[0].path(), &["fsync=on"]).await.unwrap();
        let standby = primary.standby_below(folders[1].path()).await.unwrap();
        Self { primary, standby, _folders: folders }
    }

    /// Starts a pair whose primary waits for the standby.
    async fn synchronous() -> Self {
        let pair = Self::start().await;
        let primary = pair.url_of_primary();
        psql(&primary, "ALTER SYSTEM SET synchronous_standby_names = '*'").await;
        psql(&primary, "SELECT pg_reload_conf()").await;
        until(&primary, "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'", "1").await;
        pair
    }

    fn url_of_primary(&self) -> String {
        self.primary.url_by(self.primary.address())
    }

    fn url(&self, options: &str) -> String {
        let both = format!("{},{}", self.primary.address(), self.standby.address());
        format!("{}?table=leasehold&margin=0s&{options}", self.primary.url_by(&both))
    }

    fn url_of_standby(&self) -> String {
        with_option(&self.standby.url_by(self.standby.address()), "table=leasehold")
    }

    async fn fail_over(&mut self) {
        self.primary.kill().await.unwrap();
        self.standby.promote().await.unwrap();
    }
}

/// The standby lacks the grant. Without the grace, two processes hold the lock at once.
#[tokio::test]
async fn a_promoted_asynchronous_standby_adds_no_second_holder() {
    for grace in [Duration::ZERO, GRACE] {
        let mut pair = Pair::start().await;
        let url = pair.url(&format!("failover_grace={}s", grace.as_secs()));
        let (one, two) = (open(&url).await, open(&url).await);
        // This grant reaches the standby as well.
        let mut known = granted_to(&*one, &claim_of(&*one, "known", TTL)).await;
        let seen = format!("{}", known.token);
        let sql = "SELECT coalesce(max(token), 0) FROM leasehold";
        until(&pair.url_of_standby(), sql, &seen).await;
        pair.standby.stop_copying().await.unwrap();
        let mut first = granted(&*one).await;
        pair.fail_over().await;
        let outcome = two.try_acquire(&claim(&*two)).await.unwrap();
        assert!(!first.deadline.passed(one.env().now()), "its holder still works");
        if grace.is_zero() {
            let AcquireOutcome::Granted(second) = outcome else { panic!("{outcome:?}") };
            assert!(second.token > first.token, "only the token tells them apart");
            continue;
        }
        let AcquireOutcome::Held(held) = outcome else { panic!("{outcome:?}") };
        assert!(held.to_string().contains("failover_grace"), "{held}");
        assert!(held.lapses_within.unwrap() > first.deadline.remaining(one.env().now()), "{held:?}");
        // The holder notices the loss. Grants that the standby had received continue.
        assert!(matches!(one.renew(&mut first).await.unwrap(), Renewal::Lost(_)));
        assert!(matches!(one.renew(&mut known).await.unwrap(), Renewal::Renewed));
        wait_for(&pair.url_of_standby(), grace.as_secs()).await;
        assert!(granted(&*two).await.token > first.token);
        // A promoted server that has not received the row may lack grants as well.
        psql(&pair.url_of_standby(), "DELETE FROM leasehold WHERE name = '//leasehold/epoch'").await;
        assert_withheld(&*two, "other").await;
    }
}

#[tokio::test]
async fn a_promoted_synchronous_standby_has_every_grant() {
    let mut pair = Pair::synchronous().await;
    let store = open(&pair.url("failover_grace=0s")).await;
    let mut grant = granted(&*store).await;
    pair.fail_over().await;
    let other = open(&pair.url("failover_grace=0s")).await;
    assert_eq!(refused(&*other).await.token, Some(grant.token));
    assert!(matches!(store.renew(&mut grant).await.unwrap(), Renewal::Renewed));
    assert_eq!(store.release(&mut grant, None).await.unwrap(), Released::Released);
    granted(&*other).await;
}

/// An operator cancels the wait of a claim, so that only the primary has the grant. The client reads it there, and the
/// standby is promoted before it has received it.
#[tokio::test]
async fn a_grant_that_the_promoted_standby_lacks_is_not_reported() {
    let mut pair = Pair::synchronous().await;
    let url = pair.url("failover_grace=0s");
    let store = open(&url).await;
    store.release(&mut granted(&*store).await, None).await.unwrap();
    pair.standby.stop_copying().await.unwrap();
    let primary = pair.url_of_primary();
    let waits = "FROM pg_stat_activity WHERE wait_event = 'SyncRep'";
    let failover = async {
        until(&primary, &format!("SELECT count(pg_cancel_backend(pid)) {waits}"), "1").await;
        let settles = format!("SELECT count(*) {waits} AND query LIKE '%SET served = l.served%'");
        until(&primary, &settles, "1").await;
        pair.fail_over().await;
    };
    let claim = claim(&*store);
    let (outcome, ()) = tokio::join!(store.try_acquire(&claim), failover);
    let AcquireOutcome::Granted(grant) = outcome.unwrap() else { panic!("not granted") };
    let stored = psql(&pair.url_of_standby(), "SELECT token FROM leasehold WHERE name = 'lock'").await;
    assert_eq!(stored, grant.token.to_string());
    refused(&*open(&url).await).await;
}

/// The error says what to do. Otherwise, the claim would write the row again and again.
#[tokio::test]
async fn an_epoch_row_that_a_trigger_drops_is_an_error() {
    let (_fresh, url) = known().await;
    let name = table(&url);
    let drops = format!(
        "DELETE FROM {name};
         CREATE FUNCTION drop_{name}() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
         CREATE TRIGGER drops BEFORE INSERT ON {name} FOR EACH ROW WHEN (NEW.name = '//leasehold/epoch')
            EXECUTE FUNCTION drop_{name}()"
    );
    psql(&url, &drops).await;
    let store = open(&url).await;
    let mut claim = claim(&*store);
    claim.store_timeout = Duration::from_secs(1);
    let error = store.try_acquire(&claim).await.unwrap_err();
    assert!(error.to_string().contains("//leasehold/epoch"), "{error:?}");
    assert!(error.fault().help.as_ref().unwrap().contains("trigger"), "{error:?}");
}

/// Only a server without `fsync` may lose its log in a restart.
#[tokio::test]
async fn a_restart_begins_the_grace_if_it_can_lose_commits() {
    for (fsync, loses) in [("on", false), ("off", true)] {
        let folder = tempfile::tempdir().unwrap();
        let settings = [&*format!("fsync={fsync}")];
        let mut server = PostgresServer::start_with(folder.path(), &settings).await.unwrap();
        let url = format!("{}?table=leasehold&failover_grace=60s", server.url_by(server.address()));
        for _ in 0..2 {
            let store = open(&url).await;
            if loses {
                assert_withheld(&*store, "lock").await;
                wait_for(&url, GRACE.as_secs()).await;
            }
            store.release(&mut granted(&*store).await, None).await.unwrap();
            server.kill().await.unwrap();
            server.restart().await.unwrap();
        }
    }
}

#[tokio::test]
async fn during_the_grace_known_grants_go_on_and_nothing_is_granted() {
    let (_fresh, url) = known().await;
    let store = open(&url).await;
    let mut first = claim(&*store);
    first.repeatable = true;
    let mut grant = granted_to(&*store, &first).await;
    granted_to(&*store, &claim_of(&*store, "lapsed", TTL)).await;
    let an_hour_ago = "written_us = written_us - 3600000000 WHERE name = 'lapsed'";
    psql(&url, &format!("UPDATE {} SET {an_hour_ago}", table(&url))).await;
    fail_over(&url).await;
    assert_withheld(&*store, "other").await;
    assert_withheld(&*store, "lapsed").await;
    assert_eq!(refused(&*store).await.token, Some(grant.token), "held by a known grant");
    let again = granted_to(&*store, &first).await;
    assert_eq!(again.token, grant.token, "a claim that is repeated was granted before");
    grant = again;
    assert!(matches!(store.renew(&mut grant).await.unwrap(), Renewal::Renewed));
    assert_eq!(store.release(&mut grant, None).await.unwrap(), Released::Released);
    assert_withheld(&*store, "lock").await;
    let outcome = store.try_acquire(&first).await.unwrap();
    assert!(matches!(outcome, AcquireOutcome::Lost(_)), "its grant has ended: {outcome:?}");
    wait_for(&url, GRACE.as_secs()).await;
    granted(&*store).await;
}

#[tokio::test]
async fn the_longest_grace_of_all_clients_counts() {
    let (_fresh, url) = known().await;
    let (longer, shorter) = (url.replace("=60s", "=3600s"), url);
    let left = async |url: &str| refused(&*open(url).await).await.lapses_within.unwrap().as_secs();
    // By now, 100 s have passed.
    assert!((3_000..3_501).contains(&left(&longer).await));
    assert!((3_000..3_501).contains(&left(&shorter).await));
    fail_over(&shorter).await;
    assert!((3_501..=3_600).contains(&left(&shorter).await));
    wait_for(&shorter, 3_600).await;
    granted(&*open(&shorter).await).await;
}

/// The grace begins again once, when a claim notices it, and then passes.
#[tokio::test]
async fn a_clock_that_was_set_back_does_not_prolong_the_grace() {
    let (_fresh, url) = known().await;
    let store = open(&url).await;
    for ahead in [1, 3_600, 6_000_000_000_i64] {
        wait_for(&url, GRACE.as_secs()).await;
        store.release(&mut granted(&*store).await, None).await.unwrap();
        let since = format!("to_jsonb((extract(epoch FROM clock_timestamp()) + {ahead})::int8 * 1000000)");
        change_epoch(&url, &format!("jsonb_set(about, '{{since_us}}', {since})")).await;
        assert!(refused(&*store).await.lapses_within.unwrap() <= GRACE);
        wait_for(&url, GRACE.as_secs() / 2).await;
        assert!(refused(&*store).await.lapses_within.unwrap() <= GRACE / 2);
    }
    wait_for(&url, GRACE.as_secs()).await;
    granted(&*store).await;
}

#[tokio::test]
async fn a_lease_that_could_outlast_the_grace_is_refused() {
    let (_fresh, url) = known().await;
    let store = open(&url).await;
    let error = store.try_acquire(&claim_of(&*store, "lock", 2 * GRACE)).await.unwrap_err();
    assert!(matches!(error, StoreError::NotApplied(_)));
    assert_eq!(error.fault().kind, ErrorKind::Invalid, "{error}");
    assert!(error.fault().help.as_deref().unwrap().contains("failover_grace="), "{error:?}");
    assert_repetition_cannot_outlast(&*store, GRACE).await;
}

#[tokio::test]
async fn the_epoch_row_is_not_listed_as_a_lock() {
    let (_fresh, url) = known().await;
    let locker = Locker::open(&url).await.unwrap();
    locker.lock("lock").try_acquire().await.unwrap().release().await.unwrap();
    let names: Vec<_> = futures_util::TryStreamExt::try_collect(locker.list("")).await.unwrap();
    assert_eq!(names, [LockName::new("lock").unwrap()]);
    // The row does not count as a lock of another client either, which would prevent all sweeps.
    locker.sweep(&names[0], Duration::ZERO, false).await.unwrap();
    assert_eq!(psql(&url, &format!("SELECT name FROM {}", table(&url))).await, "//leasehold/epoch");
}

/// A row as it was first written. Never edit it, because rows in databases look like this.
const FIRST_VERSION: &str = r#"{"epoch": "7 00000001", "grace_us": 60000000, "since_us": 1763654400000040}"#;

#[tokio::test]
async fn the_format_of_the_epoch_row_is_unchanged() {
    let (_fresh, url) = known().await;
    let keys = "SELECT string_agg(key || json_typeof(value), ' ' ORDER BY key) FROM json_each(";
    let row = format!("(SELECT record FROM {} WHERE name = '//leasehold/epoch')", table(&url));
    let first = psql(&url, &format!("{keys}'{FIRST_VERSION}')")).await;
    assert_eq!(psql(&url, &format!("{keys}{row})")).await, first);
    let is_of_server = "(SELECT system_identifier FROM pg_control_system())::text || ' 00000001%'";
    let of_server = format!("SELECT record->>'epoch' LIKE {is_of_server} FROM {row} AS row (record)");
    assert_eq!(psql(&url, &of_server).await, "t", "a copy of the table in another cluster begins the grace");
    change_epoch(&url, &format!("'{FIRST_VERSION}'")).await;
    assert_withheld(&*open(&url).await, "lock").await;
}
