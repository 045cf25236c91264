//! The rules of PostgreSQL leases. Each test fails without its rule. `docs/stores/postgres-safety.md` has the argument.

mod connections;
mod durability;
mod search_path;
mod shedlock;
mod tables;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use leasehold::clock::{Clock, SystemClock};
use leasehold::error::StoreError;
use leasehold::lease::{AcquireOutcome, Claim, End, LeaseStore, Released, Renewal, State, Status, Ttl};
use leasehold::{ErrorKind, Eviction, Holder, LockName, Locker};
use leasehold_testkit::harness::Fresh;
use leasehold_testkit::process::within;
use leasehold_testkit::servers::{Server, with_option};
use leasehold_testkit::stores;
use leasehold_testkit::stores::postgres::{PostgresServer, literal, make_table, psql, table};
use leasehold_testkit::tcp_proxy::{Answers, Wire};
use tempfile::TempDir;
use tokio::io::AsyncWriteExt;
use tokio::process::{Child, Command};

use crate::leases::{
    TTL, alice, claim, claim_of, granted, granted_to, hasty, lock, open, refused, shows_the_first_format,
};

const PAUSE: Duration = Duration::from_millis(20);

fn fresh() -> Fresh {
    stores::fresh("postgres")
}

/// Returns the columns `columns` of the lock, as text.
async fn cells(url: &str, columns: &str) -> String {
    psql(url, &format!("SELECT {columns} FROM {} WHERE name = 'lock'", table(url))).await
}

/// Returns the state in the lock's record.
async fn state(url: &str) -> String {
    cells(url, STATE).await
}

const STATE: &str = "record->>'state'";

/// Waits until the result of `sql` is `answer`.
async fn until(url: &str, sql: &str, answer: &str) {
    let reached = async {
        while psql(url, sql).await != answer {
            SystemClock.sleep(PAUSE).await;
        }
    };
    within(sql, reached).await;
}

/// Starts an operator's session, which reads its statements from stdin.
fn operator(url: &str) -> Child {
    Command::new("psql")
        .args(["-XAtq", url.split('?').next().unwrap()])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .unwrap()
}

/// An operator's transaction that keeps the row locked until it ends.
struct Open(Child);

impl Open {
    async fn on_row(url: &str) -> Self {
        let mut child = operator(url);
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

/// Starts a server that only this test uses.
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
    refused(&*store).await;
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

/// The server is stopped while the claim is under way, and continues after the client has given up.
#[tokio::test]
async fn a_claim_that_arrives_late_is_not_granted() {
    let (server, url, _folder) = server(&[]).await;
    let store = open(&url).await;
    store.release(&mut granted(&*store).await, None).await.unwrap();
    server.stop();
    let error = store.try_acquire(&hasty(&*store)).await.unwrap_err();
    assert!(matches!(error, StoreError::MaybeApplied(_)), "{error:?}");
    server.resume();
    let running = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'leasehold'";
    drop(store);
    until(&url, running, "0").await;
    assert_eq!(state(&url).await, "free");
}

/// Returns a claim that may be repeated elsewhere.
fn repeatable(store: &dyn LeaseStore) -> Claim {
    let mut claim = claim(store);
    claim.repeatable = true;
    claim
}

/// Whether or not the record was read.
#[tokio::test]
async fn a_claim_whose_grant_has_ended_is_never_granted_again() {
    let fresh = fresh();
    let store = open(fresh.url()).await;
    let first = repeatable(&*store);
    let is_lost = async |claim: &Claim| {
        for store in [&store, &open(fresh.url()).await] {
            let outcome = store.try_acquire(claim).await.unwrap();
            assert!(matches!(outcome, AcquireOutcome::Lost(_)), "{outcome:?}");
        }
    };
    let mut grant = granted_to(&*store, &first).await;
    store.release(&mut grant, None).await.unwrap();
    is_lost(&first).await;
    let mut later = granted(&*store).await;
    store.release(&mut later, None).await.unwrap();
    is_lost(&first).await;
    assert_eq!(state(fresh.url()).await, "free");
    // The grant has lapsed, and no other client has taken the lock over.
    let last = repeatable(&*store);
    granted_to(&*store, &last).await;
    lapse(fresh.url()).await;
    is_lost(&last).await;
    granted(&*store).await;
}

/// Ends the lease of the lock, as if an hour had passed.
async fn lapse(url: &str) {
    let set = "lock_until = lock_until - interval '1 hour', written_us = written_us - 3600000000";
    psql(url, &format!("UPDATE {} SET {set}", table(url))).await;
}

#[tokio::test]
async fn a_late_copy_of_a_claim_ends_no_cooldown() {
    let fresh = fresh();
    let store = open(fresh.url()).await;
    let first = repeatable(&*store);
    let mut grant = granted_to(&*store, &first).await;
    store.release(&mut grant, Some(TTL)).await.unwrap();
    let outcome = store.try_acquire(&first).await.unwrap();
    assert!(matches!(outcome, AcquireOutcome::Lost(_)), "{outcome:?}");
    assert_eq!(state(fresh.url()).await, "cooldown");
    refused(&*store).await;
}

#[tokio::test]
async fn a_lost_response_is_resolved_by_the_id_of_the_claim() {
    let fresh = fresh();
    let wire = Wire::to(&Server::POSTGRESQL.address()).await;
    let by_wire = fresh.url().replace(&Server::POSTGRESQL.address(), &wire.address().to_string());
    let store = open(&by_wire).await;
    // Connect first, so that it is the claim's response that is lost.
    store.release(&mut granted(&*store).await, None).await.unwrap();
    wire.let_answers(Answers::AreLost);
    let claim = claim(&*store);
    let granted = async {
        let answers = async {
            until(fresh.url(), &format!("SELECT {STATE} FROM {}", table(fresh.url())), "held").await;
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
            until(fresh.url(), &format!("SELECT {STATE} FROM {}", table(fresh.url())), "free").await;
            wire.let_answers(Answers::Arrive);
        };
        tokio::join!(store.release(&mut grant, None), answers).0.unwrap()
    };
    assert_eq!(within("a release", released).await, Released::Released);
}

/// Users whose sessions have different time zones share one clock.
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
        refused(&*stores[other]).await;
        let Status { state: State::Held(held), .. } = stores[other].inspect(&lock()).await.unwrap() else {
            panic!("not held")
        };
        let left = held.lapses_within.unwrap();
        assert!(left > TTL / 2 && left < TTL * 2, "{left:?}");
        assert_eq!(stores[one].release(&mut grant, None).await.unwrap(), Released::Released);
    }
}

/// The lease in the table lasts for the contender's span, the lock delay and the margin. So it outlasts the holder's
/// lease.
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
        let written: u128 = cells(fresh.url(), lease).await.parse().unwrap();
        assert!(written.abs_diff(span.as_millis()) < 1_000, "{written}");
        assert!(matches!(store.renew(&mut grant).await.unwrap(), Renewal::Renewed));
        let renewed: u128 = cells(fresh.url(), lease).await.parse().unwrap();
        assert!(renewed >= written, "{renewed} after {written}");
        store.release(&mut grant, None).await.unwrap();
    }
}

/// A renewal's new end counts from the time of the renewal, so it would prolong a lease that has already lapsed.
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
    let mut grant = granted(&*store).await;
    let before = leasehold::Token::new(grant.token.get() - 1).unwrap();
    let mut other = grant.without_memo();
    other.token = before;
    assert!(matches!(store.renew(&mut other).await.unwrap(), Renewal::Lost(_)));
    assert_eq!(store.release(&mut other, None).await.unwrap(), Released::AlreadyLost);
    assert!(matches!(store.renew(&mut grant).await.unwrap(), Renewal::Renewed));
}

#[tokio::test]
async fn an_eviction_is_kept_in_the_history_with_its_reason() {
    let fresh = fresh();
    let store = open(fresh.url()).await;
    for why in [Some(Eviction::new("bob@ci-8", "the machine is \"gone\"")), None] {
        let mut grant = granted(&*store).await;
        store.evict(&lock(), grant.token, why.as_ref()).await.unwrap();
        let history = store.inspect(&lock()).await.unwrap().history;
        assert_eq!((history[0].token, &history[0].evicted), (grant.token, &why));
        assert!(matches!(store.renew(&mut grant).await.unwrap(), Renewal::Lost(_)));
    }
}

/// The row looks as if the server's clock had been set back by an hour since the release.
#[tokio::test]
async fn a_released_lock_is_free_whatever_its_time() {
    let fresh = fresh();
    let store = open(fresh.url()).await;
    store.release(&mut granted(&*store).await, None).await.unwrap();
    let later = "lock_until = lock_until + interval '1 hour', written_us = written_us + 3600000000";
    let ahead = format!("UPDATE {} SET {later}", table(fresh.url()));
    psql(fresh.url(), &ahead).await;
    assert_eq!(store.inspect(&lock()).await.unwrap().state, State::Free);
    granted(&*store).await;
}

/// Tokens rise even while the server's clock is behind them. A row whose token is ahead of the clock is not swept.
#[tokio::test]
async fn tokens_rise_beyond_the_clock_and_stay_below_their_limit() {
    let fresh = fresh();
    let store = open(fresh.url()).await;
    let mut grant = granted(&*store).await;
    store.release(&mut grant, None).await.unwrap();
    let ahead = grant.token.get() + 3_600_000_000;
    let set = |token: u64| format!("UPDATE {} SET token = {token}", table(fresh.url()));
    psql(fresh.url(), &set(ahead)).await;
    let store = open(fresh.url()).await;
    let mut claim = claim(&*store);
    claim.tokens = 7;
    let mut next = granted_to(&*store, &claim).await;
    assert_eq!((next.token.get(), next.after.map(leasehold::Token::get)), (ahead + 7, Some(ahead)));
    store.release(&mut next, None).await.unwrap();
    let swept = store.sweep(&lock(), Duration::ZERO, false).await.unwrap();
    assert_eq!(swept, leasehold::lease::Swept::Kept);
    psql(fresh.url(), &set((1 << 53) - 1)).await;
    let store = open(fresh.url()).await;
    let claim = self::claim(&*store);
    let error = store.try_acquire(&claim).await.unwrap_err();
    assert_eq!(error.fault().kind, ErrorKind::Corrupt, "{error:?}");
    assert_eq!(state(fresh.url()).await, "free");
}

/// A row that cannot be read is not taken over, however long ago its lease ended.
#[tokio::test]
async fn a_row_that_cannot_be_read_is_never_granted_over() {
    let fresh = fresh();
    let store = open(fresh.url()).await;
    for garbled in [
        "record = '7'",
        "record = '{}'",
        "record = NULL",
        "record = jsonb_set(record::jsonb, '{state}', '\"lost\"')::json",
        "record = jsonb_set(record::jsonb, '{holder}', '{}')::json",
        "record = jsonb_set(record::jsonb, '{grant}', '\"00112233445566778899aabbccddeeff\"')::json",
        "version = NULL",
        "token = NULL",
        "token = -1",
        "served = NULL",
        "written_us = NULL",
        "locked_by = 'leasehold:x'",
    ] {
        psql(fresh.url(), &format!("DELETE FROM {}", table(fresh.url()))).await;
        granted(&*store).await;
        lapse(fresh.url()).await;
        psql(fresh.url(), &format!("UPDATE {} SET {garbled}", table(fresh.url()))).await;
        let before = cells(fresh.url(), "xmin").await;
        let error = store.try_acquire(&claim(&*store)).await.unwrap_err();
        assert_eq!(error.fault().kind, ErrorKind::Corrupt, "{garbled}: {error:?}");
        assert_eq!(cells(fresh.url(), "xmin").await, before, "{garbled}");
    }
    // A free row is granted without a read, so the statement compares what the next token depends on.
    for garbled in ["version = NULL", "token = NULL", "token = -5"] {
        psql(fresh.url(), &format!("DELETE FROM {}", table(fresh.url()))).await;
        store.release(&mut granted(&*store).await, None).await.unwrap();
        psql(fresh.url(), &format!("UPDATE {} SET {garbled}", table(fresh.url()))).await;
        let error = store.try_acquire(&claim(&*store)).await.unwrap_err();
        assert_eq!(error.fault().kind, ErrorKind::Corrupt, "free, {garbled}: {error:?}");
    }
}

/// Entries of the history that cannot be read are left out.
#[tokio::test]
async fn a_history_that_cannot_be_read_keeps_no_lock() {
    let fresh = fresh();
    let store = open(fresh.url()).await;
    for garbled in ["7", "{}", "[{\"token\": 1}, 7]"] {
        psql(fresh.url(), &format!("DELETE FROM {}", table(fresh.url()))).await;
        store.release(&mut granted(&*store).await, None).await.unwrap();
        psql(fresh.url(), &format!("UPDATE {} SET history = '{garbled}'", table(fresh.url()))).await;
        assert!(store.inspect(&lock()).await.unwrap().history.is_empty(), "{garbled}");
        store.release(&mut granted(&*store).await, None).await.unwrap();
        assert_eq!(store.inspect(&lock()).await.unwrap().history.len(), 1, "{garbled}");
    }
}

/// Returns a query for the number of statements that wait for a lock of the table or of its rows.
fn waiting(url: &str) -> String {
    // The query must not count itself, so it has the name in two parts.
    let name = table(url);
    let (first, last) = name.split_at(4);
    format!(
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%{first}' || '{last}%'"
    )
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

/// The renewal gives up early, so that its connection is free for others.
#[tokio::test]
async fn a_renewal_waits_only_briefly_for_a_locked_row() {
    let fresh = fresh();
    let store = open(fresh.url()).await;
    let claim = claim_of(&*store, "lock", TTL / 3);
    let mut grant = granted_to(&*store, &claim).await;
    let transaction = Open::on_row(fresh.url()).await;
    let error = store.renew(&mut grant).await.unwrap_err();
    assert!(error.to_string().contains("lock timeout"), "{error:?}");
    transaction.end().await;
}

/// If policies hide a row from a user, no claim of that user can see why it is not granted.
#[tokio::test]
async fn a_hidden_row_leads_to_an_error_that_names_row_security() {
    let fresh = fresh();
    let (url, name) = (fresh.url(), table(fresh.url()));
    let user = name.replace("locks", "user");
    let sql = format!(
        "CREATE ROLE {user} LOGIN; GRANT ALL ON {name} TO {user}; ALTER TABLE {name} ENABLE ROW LEVEL SECURITY;
         CREATE POLICY visible ON {name} USING (served <> 1)"
    );
    psql(url, &sql).await;
    granted(&*open(url).await).await;
    psql(url, &format!("UPDATE {name} SET served = 1")).await;
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

/// A row as the first version wrote it. Never edit it, because rows in databases look like this.
const FIRST_VERSION: &str = r#"'lock', timezone('utc', clock_timestamp()) + interval '1 hour',
    '2026-11-23 01:02:03.456789', 'leasehold:00112233445566778899aabbccddeeff',
    '0123456789abcdef0123456789abcdef', 1763654400000041, 1763654400000040, 0,
    (extract(epoch FROM clock_timestamp()) * 1000000)::int8, false,
    '{"leasehold":1,"state":"held","token":0,"grant":"00112233445566778899aabbccddeeff","heartbeat":0,"nonce":"0123456789abcdef0123456789abcdef","ttl_ms":30000,"holder":{"name":"alice","host":"ci-7","pid":4121,"note":"make deploy"},"granted_at_us":1763654390000000}',
    '[{"token":1763654400000040,"grant":"ffeeddccbbaa99887766554433221100","holder":{"name":"bob","host":"ci-8","pid":1},"from_us":1763654300000000,"until_us":1763654390000000,"end":"lapsed"}]'"#;

#[tokio::test]
async fn the_first_row_format_is_still_read_and_written() {
    let fresh = fresh();
    let columns = "name, lock_until, locked_at, locked_by, version, token, prev_token, served, written_us, is_open, record, history";
    psql(fresh.url(), &format!("INSERT INTO {} ({columns}) VALUES ({FIRST_VERSION})", table(fresh.url())))
        .await;
    let store = open(fresh.url()).await;
    shows_the_first_format(&*store, &alice()).await;
    // Use the holder of the row, so that everything but the ids and times is predictable.
    psql(fresh.url(), &format!("DELETE FROM {}", table(fresh.url()))).await;
    let mut claim = claim(&*store);
    claim.holder = alice();
    let mut grant = granted_to(&*store, &claim).await;
    let same = format!(
        "locked_by = 'leasehold:{0}', version = record->>'nonce', prev_token IS NULL, served, is_open,
         record->>'grant' = '{0}', record->>'holder', history,
         (SELECT string_agg(key, ' ') FROM json_object_keys(record) AS key)",
        claim.id
    );
    let holder = r#"{"name":"alice","host":"ci-7","pid":4121,"note":"make deploy"}"#;
    let keys = "leasehold state token grant heartbeat nonce ttl_ms holder granted_at_us";
    assert_eq!(cells(fresh.url(), &same).await, format!("t|t|t|0|f|t|{holder}|[]|{keys}"));
    store.release(&mut grant, None).await.unwrap();
    let past = "record->>'state', is_open, history->0->>'grant', history->0->>'token', history->0->>'end',
        history->0->>'holder', json_array_length(history)";
    let expected = format!("free|t|{}|{}|released|{holder}|1", claim.id, grant.token);
    assert_eq!(cells(fresh.url(), past).await, expected);
}

/// Other isolation levels than `read committed` answer a conflict with an error.
#[tokio::test]
async fn holders_exclude_each_other_in_stricter_isolation_levels() {
    for level in ["repeatable read", "serializable"] {
        let (_server, url, _folder) = server(&[&format!("default_transaction_isolation={level}")]).await;
        let count = AtomicU64::new(0);
        let counted = (0..4).map(|_| async {
            let locker = Locker::open(&url).await.unwrap();
            for _ in 0..4 {
                let guard = locker.lock("lock").acquire().await.unwrap();
                let seen = count.load(Ordering::SeqCst);
                tokio::task::yield_now().await;
                count.store(seen + 1, Ordering::SeqCst);
                guard.release().await.unwrap();
            }
        });
        within("all increments", join_all(counted)).await;
        assert_eq!(count.load(Ordering::SeqCst), 16, "{level}");
    }
}

/// The first claim reads the clock, which becomes its token, and then takes long to create the row. Without turns, the
/// second one would create and delete the row meanwhile, with a higher token.
#[tokio::test]
async fn a_lock_without_a_row_is_granted_to_one_claim_at_a_time() {
    let fresh = fresh();
    let (url, name) = (fresh.url(), table(fresh.url()));
    let (store, other) = (open(url).await, open(url).await);
    let first = claim(&*store);
    // Locks are of the whole database, so each test takes another one.
    let key = format!("pg_catalog.hashtext('{name}')");
    let sql = format!(
        "CREATE FUNCTION slow_{name}() RETURNS trigger LANGUAGE plpgsql
            AS $$BEGIN PERFORM pg_catalog.pg_advisory_xact_lock({key}); RETURN NEW; END$$;
         CREATE TRIGGER slow BEFORE INSERT ON {name} FOR EACH ROW WHEN (NEW.locked_by = 'leasehold:{}')
            EXECUTE FUNCTION slow_{name}()",
        first.id
    );
    psql(url, &sql).await;
    let mut operator = operator(url);
    let input = operator.stdin.as_mut().unwrap();
    input.write_all(format!("SELECT pg_advisory_lock({key});\n").as_bytes()).await.unwrap();
    let is_locked = format!(
        "SELECT count(*) FROM pg_stat_activity WHERE state = 'idle' AND query LIKE 'SELECT pg_advisory_lock%{name}%'"
    );
    until(url, &is_locked, "1").await;
    let refused = async {
        until(url, &waiting(url), "1").await;
        other.try_acquire(&hasty(&*other)).await.unwrap_err();
        drop(operator.stdin.take());
        operator.wait().await.unwrap();
    };
    let (outcome, ()) =
        within("the first claim", async { tokio::join!(store.try_acquire(&first), refused) }).await;
    assert!(matches!(outcome.unwrap(), AcquireOutcome::Granted(_)));
}
