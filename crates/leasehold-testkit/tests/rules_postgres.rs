//! The rules of PostgreSQL leases: each test fails without its rule. `docs/stores/postgres.md` has the argument.

use std::sync::Arc;
use std::time::Duration;

use leasehold::clock::{Clock, SystemClock};
use leasehold::error::StoreError;
use leasehold::lease::{
    AcquireOutcome, Claim, Grant, LeaseStore, Released, Renewal, State, Status, StoreOptions, Ttl,
};
use leasehold::url::StoreUrl;
use leasehold::{ErrorKind, Holder, LockName};
use leasehold_testkit::harness::Fresh;
use leasehold_testkit::process::within;
use leasehold_testkit::servers::{Server, with_option};
use leasehold_testkit::stores;
use leasehold_testkit::stores::postgres::{PostgresServer, literal, make_table, psql, table};
use leasehold_testkit::wire::{Answers, Wire};
use tempfile::TempDir;
use tokio::io::AsyncWriteExt;
use tokio::process::{Child, Command};

const TTL: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(20);

fn fresh() -> Fresh {
    stores::fresh("postgres")
}

async fn open(url: &str) -> Arc<dyn LeaseStore> {
    leasehold::stores::open(StoreUrl::parse(url).unwrap(), StoreOptions::default()).await.unwrap()
}

fn lock() -> LockName {
    LockName::new("lock").unwrap()
}

fn claim(store: &dyn LeaseStore) -> Claim {
    Claim::new(store.env(), lock(), Ttl::new(TTL).unwrap(), Holder::this_process())
}

/// A claim whose client gives up soon.
fn hasty(store: &dyn LeaseStore) -> Claim {
    let mut claim = Claim::new(store.env(), lock(), Ttl::new(Ttl::MIN).unwrap(), Holder::this_process());
    claim.store_timeout = Duration::from_millis(500);
    claim
}

async fn granted_to(store: &dyn LeaseStore, claim: &Claim) -> Grant {
    match store.try_acquire(claim).await.unwrap() {
        AcquireOutcome::Granted(grant) => grant,
        other => panic!("{other:?}"),
    }
}

async fn granted(store: &dyn LeaseStore) -> Grant {
    granted_to(store, &claim(store)).await
}

async fn assert_refused(store: &dyn LeaseStore) {
    let outcome = store.try_acquire(&claim(store)).await.unwrap();
    assert!(matches!(outcome, AcquireOutcome::Held(_)), "{outcome:?}");
}

/// What the columns `columns` of the lock say.
async fn cells(url: &str, columns: &str) -> String {
    psql(url, &format!("SELECT {columns} FROM {} WHERE name = 'lock'", table(url))).await
}

/// Waits until `sql` gives `answer`.
async fn until(url: &str, sql: &str, answer: &str) {
    let reached = async {
        while psql(url, sql).await != answer {
            SystemClock.sleep(PAUSE).await;
        }
    };
    within(sql, reached).await;
}

/// An operator's transaction that has locked the row, until it is dropped.
struct Open(Child);

impl Open {
    async fn on_row(url: &str) -> Self {
        let server = url.split('?').next().unwrap();
        let mut child = Command::new("psql")
            .args(["-XAtq", server])
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let sql = format!("BEGIN; SELECT 'locked_{0}' FROM {0} FOR UPDATE;\n", table(url));
        child.stdin.as_mut().unwrap().write_all(sql.as_bytes()).await.unwrap();
        let has_locked = format!(
            "SELECT count(*) FROM pg_stat_activity WHERE state = 'idle in transaction' AND query LIKE '%locked_{}''%'",
            table(url)
        );
        until(url, &has_locked, "1").await;
        Self(child)
    }

    async fn end(mut self) {
        self.0.stdin.as_mut().unwrap().write_all(b"ROLLBACK;\n").await.unwrap();
        self.0.stdin = None;
        self.0.wait().await.unwrap();
    }
}

/// A server of the test's own.
async fn server(settings: &[&str]) -> (PostgresServer, String, TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let server = PostgresServer::start_with(folder.path(), settings).await.unwrap();
    let url = with_option(&server.url_by(server.address()), "table=leasehold");
    (server, url, folder)
}

#[tokio::test]
async fn a_refused_claim_locks_no_row_and_writes_nothing() {
    let fresh = fresh();
    let store = open(fresh.url()).await;
    granted(&*store).await;
    let before = cells(fresh.url(), "xmin, xmax").await;
    let transaction = Open::on_row(fresh.url()).await;
    assert_refused(&*store).await;
    transaction.end().await;
    assert_eq!(cells(fresh.url(), "xmin").await, before.split('|').next().unwrap());
}

#[tokio::test]
async fn a_statement_waits_no_longer_for_a_row_than_its_client() {
    let fresh = fresh();
    let store = open(fresh.url()).await;
    store.release(&mut granted(&*store).await, None).await.unwrap();
    let transaction = Open::on_row(fresh.url()).await;
    store.try_acquire(&hasty(&*store)).await.unwrap_err();
    let waiting = format!(
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%{}%'",
        table(fresh.url())
    );
    until(fresh.url(), &waiting, "0").await;
    transaction.end().await;
    assert_eq!(store.inspect(&lock()).await.unwrap().state, State::Free);
}

/// The server is stopped while the claim is under way, and goes on when its client has given up.
#[tokio::test]
async fn a_claim_that_arrives_late_is_not_granted() {
    let (server, url, _folder) = server(&[]).await;
    let store = open(&url).await;
    store.release(&mut granted(&*store).await, None).await.unwrap();
    server.stop();
    let error = store.try_acquire(&hasty(&*store)).await.unwrap_err();
    assert!(matches!(error, StoreError::MaybeApplied(_)), "{error:?}");
    server.go_on();
    let running = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'leasehold'";
    drop(store);
    until(&url, running, "0").await;
    assert_eq!(cells(&url, "state").await, "free");
}

#[tokio::test]
async fn a_claim_whose_grant_has_ended_is_never_granted_again() {
    let fresh = fresh();
    let store = open(fresh.url()).await;
    let first = claim(&*store);
    let is_lost = async || matches!(store.try_acquire(&first).await.unwrap(), AcquireOutcome::Lost(_));
    let mut grant = granted_to(&*store, &first).await;
    store.release(&mut grant, None).await.unwrap();
    assert!(is_lost().await, "released");
    let mut later = granted(&*store).await;
    store.release(&mut later, None).await.unwrap();
    assert!(is_lost().await, "released, and granted to another since");
    assert_eq!(cells(fresh.url(), "state").await, "free");
    // Lapsed, and no other has taken the lock over.
    let last = claim(&*store);
    granted_to(&*store, &last).await;
    lapse(fresh.url()).await;
    let outcome = store.try_acquire(&last).await.unwrap();
    assert!(matches!(outcome, AcquireOutcome::Lost(_)), "{outcome:?}");
    granted(&*store).await;
}

/// Ends the lease of the lock, as if an hour had passed.
async fn lapse(url: &str) {
    let hour = "interval '1 hour'";
    let set = format!("lock_until = lock_until - {hour}, lease_until = lease_until - {hour}");
    psql(url, &format!("UPDATE {} SET {set}", table(url))).await;
}

#[tokio::test]
async fn a_late_copy_of_a_claim_ends_no_cooldown() {
    let fresh = fresh();
    let store = open(fresh.url()).await;
    let first = claim(&*store);
    let mut grant = granted_to(&*store, &first).await;
    store.release(&mut grant, Some(TTL)).await.unwrap();
    let outcome = store.try_acquire(&first).await.unwrap();
    assert!(matches!(outcome, AcquireOutcome::Lost(_)), "{outcome:?}");
    assert_eq!(cells(fresh.url(), "state").await, "resting");
    assert_refused(&*store).await;
}

#[tokio::test]
async fn a_lost_answer_is_resolved_by_the_id_of_the_claim() {
    let fresh = fresh();
    let wire = Wire::to(&Server::POSTGRESQL.address()).await;
    let by_wire = fresh.url().replace(&Server::POSTGRESQL.address(), &wire.address().to_string());
    let store = open(&by_wire).await;
    // Connected already: the claim itself loses its answer.
    store.release(&mut granted(&*store).await, None).await.unwrap();
    wire.let_answers(Answers::AreLost);
    let claim = claim(&*store);
    let granted = async {
        let answers = async {
            until(fresh.url(), &format!("SELECT state FROM {}", table(fresh.url())), "held").await;
            wire.let_answers(Answers::Arrive);
        };
        tokio::join!(store.try_acquire(&claim), answers).0.unwrap()
    };
    let AcquireOutcome::Granted(mut grant) = within("a grant", granted).await else { panic!("not granted") };
    assert_eq!(cells(fresh.url(), "token").await, grant.token.to_string());
    // The same for the release.
    wire.let_answers(Answers::AreLost);
    let released = async {
        let answers = async {
            until(fresh.url(), &format!("SELECT state FROM {}", table(fresh.url())), "free").await;
            wire.let_answers(Answers::Arrive);
        };
        tokio::join!(store.release(&mut grant, None), answers).0.unwrap()
    };
    assert_eq!(within("a release", released).await, Released::Released);
}

/// Users whose sessions are in other time zones share one clock.
#[tokio::test]
async fn sessions_in_other_time_zones_see_the_same_lease() {
    let fresh = fresh();
    let url = fresh.url();
    let mut stores = Vec::new();
    for zone in ["Asia/Kolkata", "America/Los_Angeles"] {
        let user = table(url).replace("locks", &zone[..4].to_lowercase());
        let sql = format!(
            "CREATE ROLE {user} LOGIN; ALTER ROLE {user} SET timezone = '{zone}';
             GRANT SELECT, INSERT, UPDATE ON {} TO {user}",
            table(url)
        );
        psql(url, &sql).await;
        stores.push(open(&url.replace("leasehold@", &format!("{user}@"))).await);
    }
    for (one, other) in [(0, 1), (1, 0)] {
        let mut grant = granted(&*stores[one]).await;
        assert_refused(&*stores[other]).await;
        let Status { state: State::Held(held), .. } = stores[other].inspect(&lock()).await.unwrap() else {
            panic!("not held")
        };
        let left = held.lapses_within.unwrap();
        assert!(left > TTL / 2 && left < TTL * 2, "{left:?}");
        assert_eq!(stores[one].release(&mut grant, None).await.unwrap(), Released::Released);
    }
}

/// The lease in the table is longer than the holder's, by the margin and by both distances of the protocol.
#[tokio::test]
async fn contenders_wait_for_the_margin_beyond_the_lease() {
    let fresh = fresh();
    let ttl = Ttl::new(TTL).unwrap();
    for (margin, url) in [(5, fresh.url().to_owned()), (0, with_option(fresh.url(), "margin=0s"))] {
        let store = open(&url).await;
        let mut claim = claim(&*store);
        claim.lock_delay = Duration::from_secs(2);
        let mut grant = granted_to(&*store, &claim).await;
        let span = ttl.contender_span() + Duration::from_secs(margin + 2);
        let lease = "round(extract(epoch FROM lock_until - locked_at) * 1000)";
        assert_eq!(cells(fresh.url(), "lease_us").await, span.as_micros().to_string());
        let written: u128 = cells(fresh.url(), lease).await.parse().unwrap();
        assert!(written.abs_diff(span.as_millis()) < 1_000, "{written}");
        assert!(matches!(store.renew(&mut grant).await.unwrap(), Renewal::Renewed));
        let renewed: u128 = cells(fresh.url(), lease).await.parse().unwrap();
        assert!(renewed >= written, "{renewed} after {written}");
        store.release(&mut grant, None).await.unwrap();
    }
}

/// Its new end is later than its grant by the time until the renewal.
#[tokio::test]
async fn a_renewal_of_a_lapsed_lease_is_lost() {
    let fresh = fresh();
    let store = open(fresh.url()).await;
    let mut grant = granted(&*store).await;
    lapse(fresh.url()).await;
    assert!(matches!(store.renew(&mut grant).await.unwrap(), Renewal::Lost(_)));
    let status = store.inspect(&lock()).await.unwrap();
    assert!(matches!(status.state, State::Lapsed(_)), "{status:?}");
}

#[tokio::test]
async fn a_grant_with_another_token_is_neither_renewed_nor_released() {
    let fresh = fresh();
    let store = open(fresh.url()).await;
    let claim = claim(&*store);
    let mut first = granted_to(&*store, &claim).await;
    psql(fresh.url(), &format!("DELETE FROM {}", table(fresh.url()))).await;
    let mut second = granted_to(&*store, &claim).await;
    assert!(second.token > first.token);
    assert_eq!(store.release(&mut first, None).await.unwrap(), Released::AlreadyLost);
    assert!(matches!(store.renew(&mut first).await.unwrap(), Renewal::Lost(_)));
    assert!(matches!(store.renew(&mut second).await.unwrap(), Renewal::Renewed));
}

/// As if the server's clock had been set back by an hour since.
#[tokio::test]
async fn a_released_lock_is_free_whatever_its_time_says() {
    let fresh = fresh();
    let store = open(fresh.url()).await;
    store.release(&mut granted(&*store).await, None).await.unwrap();
    let later = "lock_until = lock_until + interval '1 hour', lease_until = lease_until + interval '1 hour'";
    let ahead = format!("UPDATE {} SET {later}", table(fresh.url()));
    psql(fresh.url(), &ahead).await;
    assert_eq!(store.inspect(&lock()).await.unwrap().state, State::Free);
    granted(&*store).await;
}

/// Tokens rise also while the server's clock is behind them, and a row whose token is ahead of the clock is not swept.
#[tokio::test]
async fn tokens_rise_beyond_the_clock_and_stay_below_their_limit() {
    let fresh = fresh();
    let store = open(fresh.url()).await;
    let mut grant = granted(&*store).await;
    store.release(&mut grant, None).await.unwrap();
    let ahead = grant.token.get() + 3_600_000_000;
    let set = |token: u64| format!("UPDATE {} SET token = {token}", table(fresh.url()));
    psql(fresh.url(), &set(ahead)).await;
    let mut claim = claim(&*store);
    claim.tokens = 7;
    let mut next = granted_to(&*store, &claim).await;
    assert_eq!((next.token.get(), next.after.map(leasehold::Token::get)), (ahead + 7, Some(ahead)));
    store.release(&mut next, None).await.unwrap();
    let swept = store.sweep(&lock(), Duration::ZERO, false).await.unwrap();
    assert_eq!(swept, leasehold::lease::Swept::Kept);
    psql(fresh.url(), &set((1 << 53) - 1)).await;
    let mut hasty = hasty(&*store);
    hasty.tokens = 1;
    let error = store.try_acquire(&hasty).await.unwrap_err();
    assert_eq!(error.fault().kind, ErrorKind::Corrupt, "{error:?}");
    assert_eq!(cells(fresh.url(), "state").await, "free");
}

/// A table that could lose or confuse locks is refused before anything is written.
#[tokio::test]
async fn tables_on_which_locks_are_unsafe_are_refused() {
    let fresh = fresh();
    let columns = "(name text PRIMARY KEY, lock_until TIME NOT NULL, locked_at TIME NOT NULL, locked_by text NOT NULL,
        lease_until timestamp, token bigint, prev_token bigint, lease_us bigint, ttl_ms bigint, state text, holder jsonb,
        past jsonb, waiters jsonb)";
    for (number, (kind, time, named)) in [
        ("UNLOGGED TABLE", "timestamp", "UNLOGGED"),
        ("TABLE", "timestamptz", "TimeZone"),
        ("TABLE", "timestamp(0)", "coarse"),
        ("TABLE", "timestamp", ""),
    ]
    .into_iter()
    .enumerate()
    {
        let (name, columns) = (format!("{}_{number}", table(fresh.url())), columns.replace("TIME", time));
        psql(fresh.url(), &format!("CREATE {kind} {name} {columns}")).await;
        let store = open(&fresh.url().replace(&table(fresh.url()), &name)).await;
        match store.try_acquire(&claim(&*store)).await {
            Ok(AcquireOutcome::Granted(_)) if named.is_empty() => {}
            Err(error) if !named.is_empty() => {
                assert_eq!(error.fault().kind, ErrorKind::Unsupported);
                assert!(error.to_string().contains(named) && error.fault().help.is_some(), "{error:?}");
            }
            other => panic!("{kind} {time}: {other:?}"),
        }
    }
}

#[tokio::test]
async fn a_missing_table_is_an_error_that_names_init() {
    let fresh = fresh();
    let missing = format!("{}_x", fresh.url());
    let store = open(&missing).await;
    let error = store.try_acquire(&claim(&*store)).await.unwrap_err();
    assert!(error.fault().help.as_ref().unwrap().contains("leasehold init"), "{error:?}");
    store.init().await.unwrap();
    granted(&*store).await;
}

/// Another process makes the table, and has not committed yet.
#[tokio::test]
async fn a_table_that_another_makes_at_once_is_used() {
    let url = format!("{}_x", fresh().url());
    let server = url.split('?').next().unwrap();
    let mut other = Command::new("psql")
        .args(["-XAtq", server])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let columns = "name text PRIMARY KEY, lock_until timestamp, locked_at timestamp, locked_by text";
    let begin = format!("BEGIN; CREATE TABLE {} ({columns});\n", table(&url));
    other.stdin.as_mut().unwrap().write_all(begin.as_bytes()).await.unwrap();
    let idle = "state = 'idle in transaction' AND query LIKE 'CREATE TABLE %'";
    // The question itself is active, and has its pattern in two parts.
    let name = table(&url);
    let (first, last) = name.split_at(10);
    let count = |what: &str| {
        format!("SELECT count(*) FROM pg_stat_activity WHERE {what} AND query LIKE '%{first}' || '{last}%'")
    };
    until(&url, &count(idle), "1").await;
    let store = open(&url).await;
    let commit = async {
        until(&url, &count("wait_event_type = 'Lock'"), "1").await;
        other.stdin.as_mut().unwrap().write_all(b"COMMIT;\n").await.unwrap();
    };
    let (made, ()) = within("the table", async { tokio::join!(store.init(), commit) }).await;
    made.unwrap();
    granted(&*store).await;
}

/// A commit that does not wait for the disk is lost when the server is killed.
#[tokio::test]
async fn a_grant_survives_a_crash_where_other_commits_need_not() {
    let (mut server, url, _folder) = server(&["synchronous_commit=off", "wal_writer_delay=10s"]).await;
    let store = open(&url).await;
    let grant = granted(&*store).await;
    server.kill().await.unwrap();
    server.restart().await.unwrap();
    assert_eq!(cells(&url, "token").await, grant.token.to_string());
}

/// PostgreSQL reports success after such a commit, with a warning, also where sessions ask for errors alone.
#[tokio::test]
async fn a_commit_that_did_not_wait_for_its_standby_is_no_grant() {
    let (_server, url, _folder) = server(&["client_min_messages=error"]).await;
    let store = open(&url).await;
    store.release(&mut granted(&*store).await, None).await.unwrap();
    wait_for_a_standby(&url).await;
    let mut claim = claim(&*store);
    claim.store_timeout = Duration::from_secs(3);
    let error = while_canceling(&url, store.try_acquire(&claim)).await.unwrap_err();
    assert!(matches!(error, StoreError::MaybeApplied(_)), "{error:?}");
    assert!(error.to_string().contains("standbys"), "{error:?}");
}

/// The primary has the end of the grant, but a promoted standby may not.
#[tokio::test]
async fn an_end_that_did_not_wait_for_its_standby_is_in_doubt() {
    let (_server, url, _folder) = server(&[]).await;
    let store = open(&url).await;
    let mut grant = granted(&*store).await;
    let mut other = claim(&*store);
    other.name = LockName::new("other").unwrap();
    let evicted = granted_to(&*store, &other).await;
    wait_for_a_standby(&url).await;
    let released = while_canceling(&url, store.release(&mut grant, None)).await;
    assert!(matches!(released, Err(StoreError::MaybeApplied(_))), "{released:?}");
    let evicted = while_canceling(&url, store.evict(&other.name, evicted.token)).await;
    assert!(matches!(evicted, Err(StoreError::MaybeApplied(_))), "{evicted:?}");
}

/// Runs `work` while an operator cancels every wait for a standby.
async fn while_canceling<T>(url: &str, work: impl Future<Output = T>) -> T {
    let canceled = async {
        loop {
            psql(url, CANCEL).await;
            SystemClock.sleep(PAUSE).await;
        }
    };
    tokio::select! {
        output = work => output,
        () = canceled => unreachable!(),
    }
}

const CANCEL: &str =
    "SELECT count(pg_cancel_backend(pid)) FROM pg_stat_activity WHERE wait_event = 'SyncRep'";

/// Lets commits wait for a standby from now on. There is none.
async fn wait_for_a_standby(url: &str) {
    let names = "SET synchronous_commit = local; CREATE TABLE other (n int);
                 ALTER SYSTEM SET synchronous_standby_names = '*'";
    psql(url, names).await;
    psql(url, "SELECT pg_reload_conf()").await;
    // The server takes it up when it comes to it.
    let waits = async {
        loop {
            let mut commit = Box::pin(psql(url, "INSERT INTO other VALUES (1)"));
            let waits = async {
                while psql(url, CANCEL).await != "1" {
                    SystemClock.sleep(PAUSE).await;
                }
            };
            tokio::select! {
                _ = &mut commit => {}
                () = waits => {
                    commit.await;
                    return;
                }
            }
        }
    };
    within("commits to wait for a standby", waits).await;
}

#[tokio::test]
async fn a_standby_is_refused_as_not_the_primary() {
    let (mut server, url, folder) = server(&[]).await;
    server.kill().await.unwrap();
    std::fs::write(folder.path().join("postgres/standby.signal"), "").unwrap();
    server.start().await.unwrap();
    let store = open(&url).await;
    let mut claim = claim(&*store);
    claim.store_timeout = Duration::from_secs(5);
    let refused = async {
        loop {
            let error = store.try_acquire(&claim).await.unwrap_err();
            if error.to_string().contains("is a standby") {
                return error;
            }
        }
    };
    let error = within("the refusal", refused).await;
    assert!(error.fault().help.as_ref().unwrap().contains("primary"), "{error:?}");
}

/// Of the servers in the URL, the primary is used, whatever their order.
#[tokio::test]
async fn the_primary_is_found_among_several_hosts() {
    let fresh = fresh();
    let address = Server::POSTGRESQL.address();
    let url = fresh.url().replace(&address, &format!("127.0.0.1:1,{address}"));
    granted(&*open(&url).await).await;
}

/// The statements that clients sent to the server.
fn sent(folder: &TempDir) -> usize {
    let log = std::fs::read_to_string(folder.path().join("postgres.log")).unwrap();
    log.lines().filter(|line| line.contains("execute <unnamed>")).count()
}

#[tokio::test]
async fn each_step_of_a_lock_is_one_statement() {
    for grace in ["0s", "60s"] {
        each_step_is_one_statement(grace).await;
    }
}

async fn each_step_is_one_statement(grace: &str) {
    let (_server, url, folder) = server(&["log_statement=all", "fsync=on"]).await;
    let store = open(&with_option(&url, &format!("failover_grace={grace}"))).await;
    let mut grant = granted(&*store).await;
    let mut before = sent(&folder);
    let mut one_more = async |step: &str| {
        let now = sent(&folder);
        assert_eq!(now - before, 1, "{step}");
        before = now;
    };
    store.renew(&mut grant).await.unwrap();
    one_more("a renewal").await;
    store.release(&mut grant, None).await.unwrap();
    one_more("a release").await;
    let mut grant = granted(&*store).await;
    one_more("an acquisition").await;
    assert_refused(&*store).await;
    one_more("a refusal").await;
    store.inspect(&lock()).await.unwrap();
    one_more("an inspection").await;
    store.release(&mut grant, None).await.unwrap();
    one_more("a release").await;
}

/// ShedLock 7's own statements, as its JDBC provider sends them with the database's time.
struct ShedLock<'a>(&'a str);

impl ShedLock<'_> {
    async fn lock(&self, seconds: u32) -> bool {
        let (table, name) = (table(self.0), literal("lock"));
        let insert = format!(
            "INSERT INTO {table}(name, lock_until, locked_at, locked_by)
             VALUES({name}, timezone('utc', CURRENT_TIMESTAMP) + cast('{seconds} seconds' as interval),
                timezone('utc', CURRENT_TIMESTAMP), 'host-1')
             ON CONFLICT (name) DO UPDATE SET lock_until = timezone('utc', CURRENT_TIMESTAMP) + cast('{seconds} seconds' as interval),
                locked_at = timezone('utc', CURRENT_TIMESTAMP), locked_by = 'host-1'
             WHERE {table}.name = {name} AND {table}.lock_until <= timezone('utc', CURRENT_TIMESTAMP) RETURNING 1"
        );
        psql(self.0, &insert).await == "1"
    }

    async fn unlock(&self) -> bool {
        let sql = format!(
            "UPDATE {} SET lock_until = timezone('utc', CURRENT_TIMESTAMP)
             WHERE name = 'lock' AND locked_by = 'host-1' RETURNING 1",
            table(self.0)
        );
        psql(self.0, &sql).await == "1"
    }
}

#[tokio::test]
async fn shedlocks_statements_and_leasehold_exclude_each_other() {
    let fresh = fresh();
    let (store, shedlock) = (open(fresh.url()).await, ShedLock(fresh.url()));
    let mut first = granted(&*store).await;
    assert!(!shedlock.lock(60).await, "leasehold holds it");
    store.release(&mut first, None).await.unwrap();
    assert!(shedlock.lock(60).await, "leasehold has released it");
    let AcquireOutcome::Held(held) = store.try_acquire(&claim(&*store)).await.unwrap() else {
        panic!("ShedLock holds it")
    };
    assert_eq!((held.holder.unwrap().name.as_str(), held.token), ("host-1", None));
    // It has nothing that leasehold could end.
    assert!(matches!(store.renew(&mut first).await.unwrap(), Renewal::Lost(_)));
    assert_eq!(store.release(&mut first, None).await.unwrap(), Released::Released, "that was before");
    let evicted = store.evict(&lock(), first.token).await.unwrap();
    assert_eq!(evicted, leasehold::lease::Evicted::Changed);
    assert!(shedlock.unlock().await, "nothing has changed it");
    let second = granted(&*store).await;
    assert!(second.token > first.token && second.after == Some(first.token));
    assert!(!shedlock.unlock().await && !shedlock.lock(60).await);
}

/// Old versions of ShedLock unlock by the name alone, also when their own lock has run out.
#[tokio::test]
async fn an_unlock_of_another_clients_row_ends_no_lease() {
    let fresh = fresh();
    let store = open(fresh.url()).await;
    let mut grant = granted(&*store).await;
    let unlock = format!("UPDATE {} SET lock_until = timezone('utc', clock_timestamp())", table(fresh.url()));
    psql(fresh.url(), &unlock).await;
    assert_refused(&*store).await;
    psql(fresh.url(), &unlock).await;
    assert!(matches!(store.renew(&mut grant).await.unwrap(), Renewal::Renewed));
    psql(fresh.url(), &unlock).await;
    assert_eq!(store.release(&mut grant, Some(TTL)).await.unwrap(), Released::Released);
    psql(fresh.url(), &unlock).await;
    assert_refused(&*store).await;
}

/// A search path that another client left behind in a pooler leads to no other table.
#[tokio::test]
async fn the_search_path_of_a_session_decides_no_table() {
    let fresh = fresh();
    let (url, name) = (fresh.url(), table(fresh.url()));
    let user = name.replace("locks", "user");
    let sql = format!(
        "CREATE ROLE {user} LOGIN; CREATE SCHEMA {user} AUTHORIZATION {user};
         CREATE TABLE {user}.{name} (LIKE {name} INCLUDING ALL); GRANT ALL ON {user}.{name}, {name} TO {user};
         ALTER ROLE {user} SET search_path = {user}, public"
    );
    psql(url, &sql).await;
    let other = open(&url.replace("leasehold@", &format!("{user}@"))).await;
    granted(&*open(url).await).await;
    assert_refused(&*other).await;
}

/// A row that cannot be read is not taken over either, however long ago its lease ended.
#[tokio::test]
async fn a_row_that_cannot_be_read_is_never_granted_over() {
    let fresh = fresh();
    let store = open(fresh.url()).await;
    for garbled in ["state = 'lost'", "state = NULL", "holder = NULL", "holder = '7'", "token = NULL"] {
        psql(fresh.url(), &format!("DELETE FROM {}", table(fresh.url()))).await;
        granted(&*store).await;
        lapse(fresh.url()).await;
        psql(fresh.url(), &format!("UPDATE {} SET {garbled}", table(fresh.url()))).await;
        let before = cells(fresh.url(), "xmin").await;
        let error = store.try_acquire(&claim(&*store)).await.unwrap_err();
        assert_eq!(error.fault().kind, ErrorKind::Corrupt, "{garbled}: {error:?}");
        assert_eq!(cells(fresh.url(), "xmin").await, before, "{garbled}");
    }
}

/// ShedLock's own table, with its types.
#[tokio::test]
async fn init_adds_its_columns_to_a_table_of_shedlock() {
    let fresh = fresh();
    let name = format!("{}_shedlock", table(fresh.url()));
    let url = fresh.url().replace(&table(fresh.url()), &name);
    let sql = format!(
        "CREATE TABLE {name}(name VARCHAR(64) NOT NULL, lock_until TIMESTAMP NOT NULL, locked_at TIMESTAMP NOT NULL,
            locked_by VARCHAR(255) NOT NULL, PRIMARY KEY (name))"
    );
    psql(&url, &sql).await;
    let store = open(&url).await;
    let error = store.try_acquire(&claim(&*store)).await.unwrap_err();
    assert!(error.fault().help.as_ref().unwrap().contains("leasehold init"), "{error:?}");
    make_table(&url);
    let (shedlock, mut grant) = (ShedLock(&url), granted(&*store).await);
    assert!(!shedlock.lock(60).await);
    store.release(&mut grant, None).await.unwrap();
    assert!(shedlock.lock(60).await);
    assert_refused(&*store).await;
    let long = LockName::new("x".repeat(65)).unwrap();
    let claim = Claim::new(store.env(), long, Ttl::DEFAULT, Holder::this_process());
    let error = store.try_acquire(&claim).await.unwrap_err();
    assert!(error.fault().kind == ErrorKind::Invalid && error.fault().help.is_some(), "{error:?}");
}

/// ShedLock remembers which names have rows, and runs no job whose row was deleted.
#[tokio::test]
async fn a_table_that_shedlock_shares_is_not_swept() {
    let fresh = fresh();
    let (store, shedlock) = (open(fresh.url()).await, ShedLock(fresh.url()));
    assert!(shedlock.lock(0).await);
    let other = LockName::new("other").unwrap();
    let claim = Claim::new(store.env(), other.clone(), Ttl::DEFAULT, Holder::this_process());
    store.release(&mut granted_to(&*store, &claim).await, None).await.unwrap();
    let name = format!("{}_shedlock", table(fresh.url()));
    let url = fresh.url().replace(&table(fresh.url()), &name);
    let columns =
        "name VARCHAR(64) PRIMARY KEY, lock_until TIMESTAMP, locked_at TIMESTAMP, locked_by VARCHAR(255)";
    psql(&url, &format!("CREATE TABLE {name}({columns})")).await;
    make_table(&url);
    for dry_run in [true, false] {
        for store in [&store, &open(&url).await] {
            let error = store.sweep(&other, Duration::ZERO, dry_run).await.unwrap_err();
            let fault = error.fault();
            assert_eq!(fault.kind, ErrorKind::Unsupported, "{error:?}");
            assert!(fault.help.as_ref().unwrap().contains("ShedLock"), "{error:?}");
        }
    }
    let count = format!("SELECT count(*) FROM {}", table(fresh.url()));
    assert_eq!(psql(fresh.url(), &count).await, "2");
}

/// Statements that wait for a lock of the table or of its rows.
fn waiting(url: &str) -> String {
    // The question itself has the name in two parts.
    let name = table(url);
    let (first, last) = name.split_at(4);
    format!(
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%{first}' || '{last}%'"
    )
}

/// A statement that waits for the whole table stops all others behind it.
#[tokio::test]
async fn init_does_not_wait_long_for_a_table_in_use() {
    let fresh = fresh();
    let store = open(fresh.url()).await;
    granted(&*store).await;
    psql(fresh.url(), &format!("ALTER TABLE {} DROP COLUMN ttl_ms", table(fresh.url()))).await;
    let transaction = Open::on_row(fresh.url()).await;
    let error = store.init().await.unwrap_err();
    assert!(error.is_transient(), "{error:?}");
    until(fresh.url(), &waiting(fresh.url()), "0").await;
    transaction.end().await;
    store.init().await.unwrap();
}

#[tokio::test]
async fn a_sweep_waits_no_longer_for_a_row_than_its_client() {
    let fresh = fresh();
    let store = open(fresh.url()).await;
    store.release(&mut granted(&*store).await, None).await.unwrap();
    let transaction = Open::on_row(fresh.url()).await;
    store.sweep(&lock(), Duration::ZERO, false).await.unwrap_err();
    until(fresh.url(), &waiting(fresh.url()), "0").await;
    transaction.end().await;
    let swept = store.sweep(&lock(), Duration::ZERO, false).await.unwrap();
    assert_eq!(swept, leasehold::lease::Swept::Deleted);
}

/// A deletion that was reported stays done after a crash.
#[tokio::test]
async fn a_sweep_survives_a_crash_where_other_commits_need_not() {
    let (mut server, url, _folder) = server(&["synchronous_commit=off", "wal_writer_delay=10s"]).await;
    let store = open(&url).await;
    store.release(&mut granted(&*store).await, None).await.unwrap();
    store.sweep(&lock(), Duration::ZERO, false).await.unwrap();
    server.kill().await.unwrap();
    server.restart().await.unwrap();
    assert_eq!(cells(&url, "state").await, "");
}

/// The server that was connected to becomes read-only, and another one is the primary.
#[tokio::test]
async fn a_session_that_is_read_only_is_not_used_again() {
    let ((_old, old, _folder), (_new, new, _other)) = (server(&[]).await, server(&[]).await);
    let address = |url: &str| url.split(['@', '/']).nth(3).unwrap().to_owned();
    let both = old.replace(&address(&old), &format!("{},{}", address(&old), address(&new)));
    let store = open(&both).await;
    store.release(&mut granted(&*store).await, None).await.unwrap();
    psql(&old, "ALTER SYSTEM SET default_transaction_read_only = on").await;
    psql(&old, "SELECT pg_reload_conf()").await;
    until(&old, "SHOW default_transaction_read_only", "on").await;
    let mut claim = claim(&*store);
    claim.store_timeout = Duration::from_secs(20);
    let grant = granted_to(&*store, &claim).await;
    assert_eq!(cells(&new, "token").await, grant.token.to_string());
}

/// Connections that fell silent together cost one attempt, and not one each.
#[tokio::test]
async fn idle_connections_are_not_tried_after_one_is_silent() {
    let (_server, url, _folder) = server(&[]).await;
    let store = open(&url).await;
    store.release(&mut granted(&*store).await, None).await.unwrap();
    // Several connections, since all claims wait for the row.
    let transaction = Open::on_row(&url).await;
    let claims: Vec<_> = (0..3).map(|_| claim(&*store)).collect();
    let all = futures_util::future::join_all(claims.iter().map(|claim| store.try_acquire(claim)));
    let ended = async {
        until(&url, &waiting(&url), "3").await;
        transaction.end().await;
    };
    for outcome in tokio::join!(all, ended).0 {
        if let AcquireOutcome::Granted(mut grant) = outcome.unwrap() {
            store.release(&mut grant, None).await.unwrap();
        }
    }
    let pids = psql(&url, "SELECT pid FROM pg_stat_activity WHERE application_name = 'leasehold'").await;
    signal("-STOP", &pids).await;
    let mut claim = claim(&*store);
    claim.store_timeout = Duration::from_secs(10);
    let outcome = store.try_acquire(&claim).await;
    signal("-CONT", &pids).await;
    assert!(matches!(outcome, Ok(AcquireOutcome::Granted(_))), "{outcome:?}");
}

async fn signal(signal: &str, pids: &str) {
    assert!(Command::new("kill").arg(signal).args(pids.lines()).status().await.unwrap().success());
}

/// What one server refuses for good may be well on another, which does not answer now.
#[tokio::test]
async fn an_error_that_one_of_two_hosts_gave_may_pass() {
    let fresh = fresh();
    let address = Server::POSTGRESQL.address();
    let url = fresh.url().replace(&address, &format!("{address},127.0.0.1:1"));
    psql(&url.replace(",127.0.0.1:1", ""), &format!("ALTER TABLE {} SET UNLOGGED", table(&url))).await;
    let store = open(&url).await;
    let error = store.try_acquire(&hasty(&*store)).await.unwrap_err();
    assert!(error.is_transient(), "{error:?}");
    let error = error.to_string();
    assert!(error.contains("UNLOGGED") && error.contains("127.0.0.1:1"), "{error}");
}

/// Requests that were given up while they connected have connections all the same.
#[tokio::test]
async fn a_store_opens_no_more_connections_than_its_limit() {
    let (server, url, _folder) = server(&[]).await;
    let wire = Wire::to(server.address()).await;
    wire.let_answers(Answers::AreLost);
    let store = open(&url.replace(server.address(), &wire.address().to_string())).await;
    let claims: Vec<_> = (0..8).map(|_| hasty(&*store)).collect();
    let all = claims.iter().map(|claim| store.try_acquire(claim));
    for outcome in futures_util::future::join_all(all).await {
        outcome.unwrap_err();
    }
    let count = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()";
    let count: usize = psql(&url, count).await.parse().unwrap();
    assert!(count <= 3, "{count} connections of contenders");
}

/// Its connection is free for others meanwhile.
#[tokio::test]
async fn a_renewal_waits_only_briefly_for_a_locked_row() {
    let fresh = fresh();
    let store = open(fresh.url()).await;
    let claim = Claim::new(store.env(), lock(), Ttl::new(TTL / 3).unwrap(), Holder::this_process());
    let mut grant = granted_to(&*store, &claim).await;
    let transaction = Open::on_row(fresh.url()).await;
    let error = store.renew(&mut grant).await.unwrap_err();
    assert!(error.to_string().contains("lock timeout"), "{error:?}");
    transaction.end().await;
}

/// Policies that hide a row from a user let no claim of that user see why it is not granted.
#[tokio::test]
async fn a_hidden_row_leads_to_an_error_that_names_row_security() {
    let fresh = fresh();
    let (url, name) = (fresh.url(), table(fresh.url()));
    let user = name.replace("locks", "user");
    let sql = format!(
        "CREATE ROLE {user} LOGIN; GRANT ALL ON {name} TO {user}; ALTER TABLE {name} ENABLE ROW LEVEL SECURITY;
         CREATE POLICY visible ON {name} USING (ttl_ms <> 1)"
    );
    psql(url, &sql).await;
    granted(&*open(url).await).await;
    psql(url, &format!("UPDATE {name} SET ttl_ms = 1")).await;
    let other = open(&url.replace("leasehold@", &format!("{user}@"))).await;
    let mut claim = claim(&*other);
    claim.store_timeout = Duration::from_secs(3);
    let error = other.try_acquire(&claim).await.unwrap_err();
    let help = error.fault().help.clone().unwrap_or_default();
    assert!(help.contains("row security") && help.contains("doctor"), "{error:?}");
}

#[tokio::test]
async fn a_cooldown_that_is_too_long_is_an_error_of_the_cooldown() {
    let fresh = fresh();
    let store = open(fresh.url()).await;
    let mut grant = granted(&*store).await;
    let error = store.release(&mut grant, Some(Duration::MAX)).await.unwrap_err();
    assert_eq!(error.fault().kind, ErrorKind::Invalid, "{error:?}");
    assert!(error.fault().help.as_ref().unwrap().contains("cooldown"), "{error:?}");
    assert_eq!(store.release(&mut grant, None).await.unwrap(), Released::Released);
}

/// A row as the first version wrote it. Never edit it: rows in databases look like this.
const FIRST_VERSION: &str = r#"'lock', timezone('utc', clock_timestamp()) + interval '1 hour',
    timezone('utc', clock_timestamp()) + interval '1 hour', '2026-11-23 01:02:03.456789',
    'leasehold:00112233445566778899aabbccddeeff', 1763654400000041, 1763654400000040, 35450000, 30000, 'held',
    '{"name":"alice","host":"ci-7","pid":4121,"note":"make deploy"}',
    '[{"token":1763654400000040,"grant":"ffeeddccbbaa99887766554433221100","holder":{"name":"bob","host":"ci-8","pid":1},
       "from_us":1763654300000000,"until_us":1763654390000000,"end":"lapsed"}]'"#;

#[tokio::test]
async fn a_row_of_the_first_version_is_read_and_still_written_so() {
    let fresh = fresh();
    let columns = "name, lock_until, lease_until, locked_at, locked_by, token, prev_token, lease_us, ttl_ms, state, holder, past";
    psql(fresh.url(), &format!("INSERT INTO {} ({columns}) VALUES ({FIRST_VERSION})", table(fresh.url())))
        .await;
    let store = open(fresh.url()).await;
    let status = store.inspect(&lock()).await.unwrap();
    let State::Held(held) = &status.state else { panic!("{status:?}") };
    let alice = Holder {
        name: "alice".into(),
        host: "ci-7".into(),
        pid: 4121,
        note: Some("make deploy".into()),
        value: None,
    };
    assert_eq!(held.holder.as_ref(), Some(&alice));
    assert_eq!(status.token.map(leasehold::Token::get), Some(1_763_654_400_000_041));
    assert_eq!((status.history.len(), status.history[0].holder.name.as_str()), (1, "bob"));
    // Another name, so that all but the times can be foretold.
    psql(fresh.url(), &format!("DELETE FROM {}", table(fresh.url()))).await;
    let mut claim = claim(&*store);
    claim.holder = alice;
    let mut grant = granted_to(&*store, &claim).await;
    let by = format!("leasehold:{}", claim.id);
    let same = format!(
        "locked_by = '{by}', prev_token IS NULL, lease_us, ttl_ms, state, past,
         holder = '{{\"name\":\"alice\",\"host\":\"ci-7\",\"pid\":4121,\"note\":\"make deploy\"}}'"
    );
    assert_eq!(cells(fresh.url(), &same).await, "t|t|35450000|30000|held|[]|t");
    store.release(&mut grant, None).await.unwrap();
    let past = "state, past->0->>'grant', past->0->>'token', past->0->>'end', past->0->'holder' = holder,
        past->0->'until_us' > past->0->'from_us', jsonb_array_length(past)";
    let expected = format!("free|{}|{}|released|t|t|1", claim.id, grant.token);
    assert_eq!(cells(fresh.url(), past).await, expected);
}
