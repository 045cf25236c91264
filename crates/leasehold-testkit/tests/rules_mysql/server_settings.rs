//! The server's settings do not matter, or lead to an error that says what to do.

use super::*;

/// Defaults that change what the same statements mean in other sessions.
const HOSTILE: &[&str] = &[
    "autocommit=0",
    "sql-mode=ANSI,ANSI_QUOTES,NO_BACKSLASH_ESCAPES,PAD_CHAR_TO_FULL_LENGTH,SIMULTANEOUS_ASSIGNMENT,PIPES_AS_CONCAT",
    "transaction-isolation=SERIALIZABLE",
    "transaction-read-only=ON",
    "default-time-zone=+05:30",
    "character-set-server=utf16",
    "collation-server=utf16_general_ci",
    "skip-character-set-client-handshake",
    "wait-timeout=1",
    "innodb-lock-wait-timeout=100",
    "completion-type=CHAIN",
    "binlog-format=ROW",
];

#[tokio::test]
async fn defaults_of_the_server_change_nothing() {
    let (server, url, _folder) = server(HOSTILE).await;
    query(&url, "SET GLOBAL sql_select_limit = 1, unique_checks = 0").await;
    let (store, other) = (open(&url).await, open(&url).await);
    for name in ["lock", "löck 'a\\"] {
        for _ in 0..3 {
            let mut grant = granted_to(&*store, &claim_of(&*store, name, TTL)).await;
            // Another session sees what was committed.
            let held = refused_to(&*other, &claim_of(&*other, name, TTL)).await;
            assert!(held.lapses_within.unwrap() > TTL / 2, "{held:?}");
            assert!(held.lapses_within.unwrap() < TTL * 2, "{held:?}");
            assert!(matches!(store.renew(&mut grant).await.unwrap(), Renewal::Renewed));
            assert_eq!(store.release(&mut grant, None).await.unwrap(), Released::Released);
        }
    }
    // A waiter gets the lock, and its place in the line is committed too.
    let locker = Locker::open(&url).await.unwrap();
    let guard = locker.lock("lock").acquire().await.unwrap();
    let next = Locker::open(&url).await.unwrap();
    let next = next.lock("lock");
    let release = async {
        while locker.inspect(&lock()).await.unwrap().waiters.is_empty() {
            SystemClock.sleep(PAUSE).await;
        }
        guard.release().await.unwrap();
    };
    let (second, ()) = within("the next grant", async { tokio::join!(next.acquire(), release) }).await;
    let held = second.unwrap();
    // The server crashes, so that only what was committed is left.
    let mut server = server;
    server.kill().await.unwrap();
    server.restart().await.unwrap();
    refused(&*open(&url).await).await;
    held.release().await.unwrap();
}

/// The server closes connections after a second, if the session does not set another limit.
#[tokio::test]
async fn a_short_timeout_of_the_server_closes_no_connection() {
    let (_server, url, _folder) = server(&["wait-timeout=1"]).await;
    let store = open(&url).await;
    granted(&*store).await;
    let sessions =
        "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE COMMAND = 'Sleep' AND TIME >= 2";
    until(&url, sessions, "1").await;
}

#[tokio::test]
async fn the_error_of_a_server_that_logs_statements_says_what_to_set() {
    let (_server, url, _folder) = server(&["binlog-format=STATEMENT"]).await;
    let store = open(&url).await;
    let error = store.try_acquire(&claim(&*store)).await.unwrap_err();
    assert_eq!(error.fault().kind, ErrorKind::Unsupported, "{error:?}");
    assert!(error.fault().help.as_ref().unwrap().contains("binlog_format"), "{error:?}");
}

/// The user of the tests may write although the server is read-only, so only the store's own check refuses.
#[tokio::test]
async fn a_server_that_becomes_read_only_is_not_used_again() {
    let ((_old, old, _folder), (_new, new, _other)) = (server(&[]).await, server(&[]).await);
    let address = |url: &str| url.split(['@', '/']).nth(3).unwrap().to_owned();
    let both = old.replace(&address(&old), &format!("{},{}", address(&old), address(&new)));
    let store = open(&both).await;
    store.release(&mut granted(&*store).await, None).await.unwrap();
    let reader = Locker::open(&old).await.unwrap();
    let names = async || futures_util::TryStreamExt::try_collect::<Vec<_>>(reader.list("")).await;
    assert_eq!(names().await.unwrap(), [lock()]);
    query(&old, "SET GLOBAL read_only = 1").await;
    assert_eq!(names().await.unwrap_err().kind(), ErrorKind::Unavailable);
    let before = cells(&old, "*").await;
    let grant = granted(&*store).await;
    assert_eq!(cells(&new, "token").await, grant.token.to_string());
    assert_eq!(cells(&old, "*").await, before);
    // Without the other server, the error says what is wrong.
    let store = open(&old).await;
    let mut claim = claim(&*store);
    claim.store_timeout = Duration::from_secs(3);
    let error = store.try_acquire(&claim).await.unwrap_err();
    assert!(error.is_transient() && error.to_string().contains("read_only"), "{error:?}");
}

/// A proxy sends the statements of one connection to another server. It has another identity, as if it had been changed.
#[tokio::test]
async fn a_statement_that_reaches_another_server_changes_nothing() {
    let (_server, url, _folder) = server(&[]).await;
    let store = open(&url).await;
    let mut grant = granted(&*store).await;
    let before = cells(&url, "version").await;
    query(&url, "SET GLOBAL server_id = 77").await;
    // The renewal is refused on the connection that was checked, and repeated on a new one.
    let writes = async || {
        let sql =
            "SELECT VARIABLE_VALUE FROM information_schema.GLOBAL_STATUS WHERE VARIABLE_NAME = 'COM_UPDATE'";
        query(&url, sql).await.parse::<u64>().unwrap()
    };
    let sent = writes().await;
    assert!(matches!(store.renew(&mut grant).await.unwrap(), Renewal::Renewed));
    assert_eq!(writes().await - sent, 2);
    assert_ne!(cells(&url, "version").await, before);
}

#[tokio::test]
async fn the_primary_is_found_among_several_hosts() {
    let fresh = fresh();
    let address = Server::MYSQL.address();
    granted(&*open(&fresh.url().replace(&address, &format!("127.0.0.1:1,{address}"))).await).await;
}
