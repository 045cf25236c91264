//! The rules of leases on MySQL, against MariaDB. Each test fails without its rule. `docs/stores/mysql.md` has the
//! argument.

mod server_settings;
mod shedlock;
mod tables;

use std::time::Duration;

use leasehold::clock::{Clock, SystemClock};
use leasehold::error::StoreError;
use leasehold::lease::{AcquireOutcome, Released, Renewal, State, Swept, Ttl};
use leasehold::{ErrorKind, LockName, Locker};
use leasehold_testkit::harness::Fresh;
use leasehold_testkit::process::within;
use leasehold_testkit::servers::{Server, with_option};
use leasehold_testkit::stores;
use leasehold_testkit::stores::mysql::{MariadbServer, query, table};
use leasehold_testkit::tcp_proxy::{Answers, Wire};
use tempfile::TempDir;
use tokio::io::AsyncWriteExt;
use tokio::process::{Child, Command};

use crate::leases::{
    TTL, alice, claim, claim_of, granted, granted_to, hasty, lock, open, refused, refused_to,
    shows_the_first_format,
};

const PAUSE: Duration = Duration::from_millis(20);

fn fresh() -> Fresh {
    stores::fresh("mysql")
}

/// Returns the columns `columns` of the lock, as text.
async fn cells(url: &str, columns: &str) -> String {
    query(url, &format!("SELECT {columns} FROM {} WHERE name = 'lock'", table(url))).await
}

async fn update(url: &str, set: &str) {
    query(url, &format!("UPDATE {} SET {set} WHERE name = 'lock'", table(url))).await;
}

const STATE: &str = "JSON_VALUE(record, '$.state')";

/// Waits until the result of `sql` is `answer`.
async fn until(url: &str, sql: &str, answer: &str) {
    let reached = async {
        while query(url, sql).await != answer {
            SystemClock.sleep(PAUSE).await;
        }
    };
    within(sql, reached).await;
}

/// Returns a query for the number of statements of the table that run or wait. It does not count itself.
fn running(url: &str) -> String {
    let name = table(url);
    let (first, last) = name.split_at(4);
    format!(
        "SELECT COUNT(*) FROM information_schema.PROCESSLIST
         WHERE COMMAND = 'Query' AND INFO LIKE CONCAT('%{first}', '{last}%')"
    )
}

/// An operator's transaction that keeps the row locked until it ends.
struct Open(Child);

impl Open {
    async fn on_row(url: &str) -> Self {
        let server = leasehold_testkit::servers::parsed(url);
        let (host, port) = server.authority().unwrap().rsplit_once(':').unwrap();
        let mut child = Command::new("mariadb")
            .args(["--no-defaults", "--unbuffered", "-h", host, "-P", port, "-u", "leasehold"])
            .arg(server.path().trim_matches('/'))
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let name = table(url);
        let sql = format!("BEGIN; SELECT name FROM {name} FOR UPDATE; DO GET_LOCK('{name}', 0);\n");
        child.stdin.as_mut().unwrap().write_all(sql.as_bytes()).await.unwrap();
        until(url, &format!("SELECT IS_USED_LOCK('{name}') IS NOT NULL"), "1").await;
        Self(child)
    }

    async fn end(mut self) {
        self.0.stdin.as_mut().unwrap().write_all(b"ROLLBACK;\n").await.unwrap();
        self.0.stdin = None;
        self.0.wait().await.unwrap();
    }
}

/// Starts a server that only this test uses.
async fn server(settings: &[&str]) -> (MariadbServer, String, TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let server = MariadbServer::start_with(folder.path(), settings).await.unwrap();
    let url = server.url();
    (server, url, folder)
}

/// Ends the lease of the lock, as if an hour had passed.
async fn lapse(url: &str) {
    update(url, "lock_until = TIMESTAMPADD(HOUR, -1, lock_until), written_us = written_us - 3600000000")
        .await;
}

#[tokio::test]
async fn names_are_compared_byte_by_byte() {
    let fresh = fresh();
    let store = open(fresh.url()).await;
    let names =
        ["lock", "Lock", "löck", "lo\u{308}ck", "lock ", "lock  ", "ß", "ss", "loc%", "l_ck", "x'y\\\"`"];
    let mut grants = Vec::new();
    for name in names {
        grants.push(granted_to(&*store, &claim_of(&*store, name, TTL)).await);
        refused_to(&*store, &claim_of(&*store, name, TTL)).await;
    }
    let locker = Locker::open(fresh.url()).await.unwrap();
    let listed: Vec<_> = futures_util::TryStreamExt::try_collect(locker.list("")).await.unwrap();
    let mut sorted: Vec<_> = names.iter().map(|name| LockName::new(name).unwrap()).collect();
    sorted.sort_by(|a, b| a.as_str().as_bytes().cmp(b.as_str().as_bytes()));
    assert_eq!(listed, sorted);
    for mut grant in grants {
        assert_eq!(store.release(&mut grant, None).await.unwrap(), Released::Released);
    }
}

/// The server is stopped while the claim is under way, and continues after the client has given up.
#[tokio::test]
async fn a_claim_that_arrives_late_is_not_granted() {
    let (server, url, _folder) = server(&[]).await;
    let store = open(&url).await;
    // The second write removes the doubt about the token of a new row, so that the claim is the first request.
    for _ in 0..2 {
        store.release(&mut granted(&*store).await, None).await.unwrap();
    }
    server.stop();
    let error = store.try_acquire(&hasty(&*store)).await.unwrap_err();
    assert!(matches!(error, StoreError::MaybeApplied(_)), "{error:?}");
    server.resume();
    drop(store);
    until(&url, &running(&url), "0").await;
    let connections = "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE COMMAND = 'Sleep'";
    until(&url, connections, "0").await;
    assert_eq!(cells(&url, STATE).await, "free");
}

/// The clock is read again after the wait for the row. The server waits for at most a second.
#[tokio::test]
async fn a_claim_that_waited_too_long_for_the_row_is_not_granted() {
    let fresh = fresh();
    let store = open(fresh.url()).await;
    store.release(&mut granted(&*store).await, None).await.unwrap();
    let transaction = Open::on_row(fresh.url()).await;
    store.try_acquire(&hasty(&*store)).await.unwrap_err();
    transaction.end().await;
    until(fresh.url(), &running(fresh.url()), "0").await;
    assert_eq!(store.inspect(&lock()).await.unwrap().state, State::Free);
}

/// The statement fails, so that its connection is free for others.
#[tokio::test]
async fn a_statement_waits_only_briefly_for_a_locked_row() {
    let fresh = fresh();
    let store = open(fresh.url()).await;
    let mut grant = granted(&*store).await;
    let transaction = Open::on_row(fresh.url()).await;
    let error = store.release(&mut grant, None).await.unwrap_err();
    assert!(error.to_string().contains("Lock wait timeout"), "{error:?}");
    transaction.end().await;
    assert_eq!(store.release(&mut grant, None).await.unwrap(), Released::Released);
}

#[tokio::test]
async fn a_lost_response_is_resolved_by_the_id_of_the_claim() {
    let fresh = fresh();
    let wire = Wire::to(&Server::MYSQL.address()).await;
    let by_wire = fresh.url().replace(&Server::MYSQL.address(), &wire.address().to_string());
    let store = open(&by_wire).await;
    // Connect first, so that it is the claim's response that is lost.
    for _ in 0..2 {
        store.release(&mut granted(&*store).await, None).await.unwrap();
    }
    wire.let_answers(Answers::AreLost);
    let state = format!("SELECT {STATE} FROM {}", table(fresh.url()));
    let after = async |reached: &str| {
        until(fresh.url(), &state, reached).await;
        wire.let_answers(Answers::Arrive);
    };
    let claim = claim(&*store);
    let outcome = async { tokio::join!(store.try_acquire(&claim), after("held")).0.unwrap() };
    let AcquireOutcome::Granted(mut grant) = within("a grant", outcome).await else { panic!("not granted") };
    assert_eq!(cells(fresh.url(), "token").await, grant.token.to_string());
    // The same for the release.
    wire.let_answers(Answers::AreLost);
    let released = async { tokio::join!(store.release(&mut grant, None), after("free")).0.unwrap() };
    assert_eq!(within("a release", released).await, Released::Released);
}

/// The server ends the connection while the claim waits for the row. Then the claim is repeated on another connection.
#[tokio::test]
async fn a_connection_that_is_killed_during_a_write_costs_no_lock() {
    let fresh = fresh();
    let store = open(fresh.url()).await;
    store.release(&mut granted(&*store).await, None).await.unwrap();
    let transaction = Open::on_row(fresh.url()).await;
    let claim = claim(&*store);
    let kill = async {
        until(fresh.url(), &running(fresh.url()), "1").await;
        let id = running(fresh.url()).replace("COUNT(*)", "ID");
        let id = query(fresh.url(), &id).await;
        query(fresh.url(), &format!("KILL CONNECTION {id}")).await;
        transaction.end().await;
    };
    let (outcome, ()) = tokio::join!(store.try_acquire(&claim), kill);
    let AcquireOutcome::Granted(mut grant) = outcome.unwrap() else { panic!("not granted") };
    assert_eq!(store.release(&mut grant, None).await.unwrap(), Released::Released);
}

#[tokio::test]
async fn a_lock_outlives_a_crash_of_the_server() {
    let (mut server, url, _folder) = server(&[]).await;
    let store = open(&url).await;
    let mut grant = granted(&*store).await;
    server.kill().await.unwrap();
    server.restart().await.unwrap();
    refused(&*open(&url).await).await;
    assert!(matches!(store.renew(&mut grant).await.unwrap(), Renewal::Renewed));
    assert_eq!(store.release(&mut grant, None).await.unwrap(), Released::Released);
}

/// A renewal's new end counts from the time of the renewal, so it would prolong a lease that has already lapsed.
#[tokio::test]
async fn a_renewal_of_a_lapsed_lease_is_lost() {
    let fresh = fresh();
    let store = open(fresh.url()).await;
    let mut grant = granted(&*store).await;
    lapse(fresh.url()).await;
    assert!(matches!(store.renew(&mut grant).await.unwrap(), Renewal::Lost(_)));
    assert!(matches!(store.inspect(&lock()).await.unwrap().state, State::Lapsed(_)));
}

#[tokio::test]
async fn a_claim_whose_grant_has_ended_is_never_granted_again() {
    let fresh = fresh();
    let store = open(fresh.url()).await;
    let mut first = claim(&*store);
    first.repeatable = true;
    let mut grant = granted_to(&*store, &first).await;
    store.release(&mut grant, None).await.unwrap();
    for store in [&store, &open(fresh.url()).await] {
        let outcome = store.try_acquire(&first).await.unwrap();
        assert!(matches!(outcome, AcquireOutcome::Lost(_)), "{outcome:?}");
    }
}

/// The request of a claim arrives once more, after its grant was released and before its client would have given up.
#[tokio::test]
async fn a_late_copy_of_a_claim_is_not_granted_again() {
    let (_server, url, _folder) = server(&["general-log", "log-output=TABLE"]).await;
    let store = open(&url).await;
    for _ in 0..3 {
        store.release(&mut granted(&*store).await, None).await.unwrap();
    }
    let claims = "SELECT argument FROM mysql.general_log WHERE argument LIKE '%l.is_open AND%' AND argument LIKE 'UPDATE%'";
    let claim = query(&url, &format!("{claims} ORDER BY event_time DESC LIMIT 1")).await;
    let before = cells(&url, "*").await;
    assert_eq!(query(&url, &format!("{}; SELECT ROW_COUNT()", claim.split(';').next().unwrap())).await, "0");
    assert_eq!(cells(&url, "*").await, before);
    // Nothing else keeps it from being granted.
    update(
        &url,
        "history = '[]', record = REGEXP_REPLACE(record, '\"grant\":\"[0-9a-f]*\"', '\"grant\":\"\"')",
    )
    .await;
    assert_eq!(query(&url, &format!("{}; SELECT ROW_COUNT()", claim.split(';').next().unwrap())).await, "1");
}

/// The claim has not read the line, so the statement compares it with who was served.
#[tokio::test]
async fn a_lock_that_others_wait_for_is_not_granted_unread() {
    let fresh = fresh();
    let (store, other) = (open(fresh.url()).await, open(fresh.url()).await);
    store.release(&mut granted(&*store).await, None).await.unwrap();
    let mut grant = granted(&*store).await;
    let mut waiter = claim(&*other);
    waiter.waits = true;
    let held = refused_to(&*other, &waiter).await;
    other.turn(&waiter, &held).await.unwrap();
    assert_eq!(store.inspect(&lock()).await.unwrap().waiters.len(), 1);
    store.release(&mut grant, None).await.unwrap();
    let reserved = refused(&*open(fresh.url()).await).await;
    assert!(reserved.reserved, "{reserved:?}");
    let third = open(fresh.url()).await;
    third.release(&mut granted_to(&*third, &waiter).await, None).await.unwrap();
    // The entry of the waiter that was served is still in the line.
    granted(&*open(fresh.url()).await).await;
}

/// Tokens rise even while the server's clock is behind them.
#[tokio::test]
async fn tokens_rise_beyond_the_clock_and_stay_below_their_limit() {
    let fresh = fresh();
    let store = open(fresh.url()).await;
    for _ in 0..2 {
        store.release(&mut granted(&*store).await, None).await.unwrap();
    }
    let ahead = cells(fresh.url(), "token").await.parse::<u64>().unwrap() + 3_600_000_000;
    update(fresh.url(), &format!("token = {ahead}")).await;
    let store = open(fresh.url()).await;
    let mut claim = claim(&*store);
    claim.tokens = 7;
    let mut next = granted_to(&*store, &claim).await;
    assert_eq!((next.token.get(), next.after.map(leasehold::Token::get)), (ahead + 7, Some(ahead)));
    store.release(&mut next, None).await.unwrap();
    assert_eq!(store.sweep(&lock(), Duration::ZERO, false).await.unwrap(), Swept::Kept);
    update(fresh.url(), &format!("token = {}", (1_u64 << 53) - 1)).await;
    let store = open(fresh.url()).await;
    let error = store.try_acquire(&self::claim(&*store)).await.unwrap_err();
    assert_eq!(error.fault().kind, ErrorKind::Corrupt, "{error:?}");
    assert_eq!(cells(fresh.url(), STATE).await, "free");
}

/// Sessions whose time zones differ share one clock, and so do users of other clients.
#[tokio::test]
async fn the_lease_in_the_table_is_in_utc_and_includes_the_margin() {
    let fresh = fresh();
    for (margin, url) in [(5, fresh.url().to_owned()), (0, with_option(fresh.url(), "margin=0s"))] {
        let store = open(&url).await;
        let mut grant = granted(&*store).await;
        let span = Ttl::new(TTL).unwrap().contender_span() + Duration::from_secs(margin);
        let left = "ROUND(TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), lock_until) / 1000)";
        let left: u128 = cells(fresh.url(), left).await.parse().unwrap();
        assert!(left <= span.as_millis() && left + 2_000 > span.as_millis(), "{left} of {span:?}");
        store.release(&mut grant, None).await.unwrap();
    }
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
        "record = x'ff'",
        "record = JSON_SET(record, '$.grant', '00112233445566778899aabbccddeeff')",
        "version = NULL",
        "token = NULL",
        "token = -1",
        "served = NULL",
        "written_us = NULL",
        "locked_by = 'leasehold:x'",
    ] {
        query(fresh.url(), &format!("DELETE FROM {}", table(fresh.url()))).await;
        granted(&*store).await;
        lapse(fresh.url()).await;
        update(fresh.url(), garbled).await;
        let before = cells(fresh.url(), "*").await;
        let error = store.try_acquire(&claim(&*store)).await.unwrap_err();
        assert_eq!(error.fault().kind, ErrorKind::Corrupt, "{garbled}: {error:?}");
        assert_eq!(cells(fresh.url(), "*").await, before, "{garbled}");
    }
    // A free row is granted without a read, so the statement compares what the next token depends on.
    for garbled in ["version = NULL", "token = NULL", "token = -5"] {
        query(fresh.url(), &format!("DELETE FROM {}", table(fresh.url()))).await;
        for _ in 0..2 {
            store.release(&mut granted(&*store).await, None).await.unwrap();
        }
        update(fresh.url(), garbled).await;
        let error = open(fresh.url()).await.try_acquire(&claim(&*store)).await.unwrap_err();
        assert_eq!(error.fault().kind, ErrorKind::Corrupt, "free, {garbled}: {error:?}");
    }
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

/// Returns how many statements clients have sent: writes, and reads.
async fn sent(url: &str) -> (u64, u64) {
    let writes = "SELECT SUM(VARIABLE_VALUE) FROM information_schema.GLOBAL_STATUS
        WHERE VARIABLE_NAME IN ('COM_INSERT', 'COM_UPDATE')";
    let reads =
        "SELECT VARIABLE_VALUE FROM information_schema.GLOBAL_STATUS WHERE VARIABLE_NAME = 'COM_SELECT'";
    let number = async |sql: &str| query(url, sql).await.parse::<f64>().unwrap() as u64;
    (number(writes).await, number(reads).await)
}

/// A write and the read that follows it are one request.
#[tokio::test]
async fn each_step_of_a_lock_is_one_request() {
    let (_server, url, _folder) = server(&[]).await;
    let store = open(&url).await;
    for _ in 0..2 {
        store.release(&mut granted(&*store).await, None).await.unwrap();
    }
    let mut before = sent(&url).await;
    let mut is = async |step: &str, writes: u64| {
        let now = sent(&url).await;
        // Each count reads twice.
        let reads = if step.ends_with("connection") { now.1 - before.1 - 2 } else { 1 };
        assert_eq!((now.0 - before.0, now.1 - before.1 - 2), (writes, reads), "{step}");
        before = now;
    };
    let mut grant = granted(&*store).await;
    is("an acquisition", 1).await;
    store.renew(&mut grant).await.unwrap();
    is("a renewal", 1).await;
    store.inspect(&lock()).await.unwrap();
    is("an inspection", 0).await;
    store.release(&mut grant, None).await.unwrap();
    is("a release", 1).await;
    granted(&*open(&url).await).await;
    is("an acquisition with its connection", 1).await;
    refused(&*store).await;
    is("a refusal", 1).await;
}

/// A row as the first version wrote it. Never edit it, because rows in databases look like this.
const FIRST_VERSION: &str = r#"'lock', TIMESTAMPADD(HOUR, 1, UTC_TIMESTAMP(6)),
    '2026-11-23 01:02:03.456789', 'leasehold:00112233445566778899aabbccddeeff',
    '0123456789abcdef0123456789abcdef', 1763654400000041, 1763654400000040, 0,
    TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)), 0,
    '{"leasehold":1,"state":"held","token":0,"grant":"00112233445566778899aabbccddeeff","heartbeat":0,"nonce":"0123456789abcdef0123456789abcdef","ttl_ms":30000,"holder":{"name":"alice","host":"ci-7","pid":4121,"note":"make deploy"},"granted_at_us":1763654390000000}',
    '[{"token":1763654400000040,"grant":"ffeeddccbbaa99887766554433221100","holder":{"name":"bob","host":"ci-8","pid":1},"from_us":1763654300000000,"until_us":1763654390000000,"end":"lapsed"}]',
    '{"leasehold":1,"last":4,"waiters":[{"number":4,"claim":"11112222333344445555666677778888","holder":{"name":"carol","host":"h","pid":1},"polls_ms":500}]}', 4"#;

#[tokio::test]
async fn the_first_row_format_is_still_read_and_written() {
    let fresh = fresh();
    let columns = "name, lock_until, locked_at, locked_by, version, token, prev_token, served, written_us, is_open, record, history, line, line_last";
    query(fresh.url(), &format!("INSERT INTO {} ({columns}) VALUES ({FIRST_VERSION})", table(fresh.url())))
        .await;
    let store = open(fresh.url()).await;
    let status = shows_the_first_format(&*store, &alice()).await;
    assert_eq!(status.waiters.len(), 1, "{status:?}");
    // Use the holder of the row, so that everything but the ids and times is predictable.
    query(fresh.url(), &format!("DELETE FROM {}", table(fresh.url()))).await;
    for _ in 0..2 {
        store.release(&mut granted(&*store).await, None).await.unwrap();
    }
    update(fresh.url(), "history = '[]'").await;
    let store = open(fresh.url()).await;
    let mut claim = claim(&*store);
    claim.holder = alice();
    let mut grant = granted_to(&*store, &claim).await;
    let same = format!(
        "locked_by = 'leasehold:{0}', version = JSON_VALUE(record, '$.nonce'), prev_token < token, served, is_open,
         JSON_VALUE(record, '$.grant') = '{0}', JSON_QUERY(record, '$.holder'), history, JSON_KEYS(record)",
        claim.id
    );
    let holder = r#"{"name":"alice","host":"ci-7","pid":4121,"note":"make deploy"}"#;
    let keys = r#"["leasehold", "state", "token", "grant", "heartbeat", "nonce", "ttl_ms", "holder", "granted_at_us"]"#;
    assert_eq!(cells(fresh.url(), &same).await, format!("1\t1\t1\t0\t0\t1\t{holder}\t[]\t{keys}"));
    store.release(&mut grant, None).await.unwrap();
    let past = format!("{STATE}, is_open, JSON_VALUE(history, '$[0].grant'), JSON_LENGTH(history)");
    assert_eq!(cells(fresh.url(), &past).await, format!("free\t1\t{}\t1", claim.id));
}
