//! Which tables are refused, and how a table is made.

use super::*;

/// A table that could lose or confuse locks is refused before anything is written.
#[tokio::test]
async fn tables_on_which_locks_are_unsafe_are_refused() {
    let fresh = fresh();
    let columns = "(name text PRIMARY KEY, lock_until TIME NOT NULL, locked_at TIME NOT NULL, locked_by text NOT NULL,
        version text, token bigint, prev_token bigint, served bigint, size bigint, written_us bigint, is_open boolean, record json,
        history json, line jsonb)";
    for (number, (kind, time, named, reason)) in [
        ("UNLOGGED TABLE", "timestamp", "UNLOGGED", "SET LOGGED"),
        ("TABLE", "timestamptz", "timestamptz", "TimeZone"),
        ("TABLE", "timestamp(0)", "timestamp(0)", "coarse"),
        ("TABLE", "timestamp", "", ""),
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
                let help = error.fault().help.as_ref().unwrap();
                assert!(error.to_string().contains(named) && help.contains(reason), "{error:?}");
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

/// Another process makes the table and has not committed yet.
#[tokio::test]
async fn a_table_that_another_makes_at_once_is_used() {
    let url = format!("{}_x", fresh().url());
    let mut other = operator(&url);
    let columns = "name text PRIMARY KEY, lock_until timestamp, locked_at timestamp, locked_by text";
    let begin = format!("BEGIN; CREATE TABLE {} ({columns});\n", table(&url));
    other.stdin.as_mut().unwrap().write_all(begin.as_bytes()).await.unwrap();
    let idle = "state = 'idle in transaction' AND query LIKE 'CREATE TABLE %'";
    // The query must not count itself. It is active, and has its pattern in two parts.
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

/// A search path that another client left behind in a pooler does not select another table.
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
    refused(&*other).await;
}

/// A statement that waits for the whole table blocks all others behind it.
#[tokio::test]
async fn init_does_not_wait_long_for_a_table_in_use() {
    let fresh = fresh();
    let store = open(fresh.url()).await;
    granted(&*store).await;
    psql(fresh.url(), &format!("ALTER TABLE {} DROP COLUMN served", table(fresh.url()))).await;
    let transaction = Open::on_row(fresh.url()).await;
    let error = store.init().await.unwrap_err();
    assert!(error.is_transient(), "{error:?}");
    until(fresh.url(), &waiting(fresh.url()), "0").await;
    transaction.end().await;
    store.init().await.unwrap();
}
