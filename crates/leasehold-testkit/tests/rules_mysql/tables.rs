//! Tables on which two processes could hold one lock are refused, and tables of ShedLock can be shared.

use super::*;

/// Returns the error of an attempt on a table after `alter`.
async fn refusal(alter: &str) -> StoreError {
    let fresh = fresh();
    let sql = alter.replace("TABLE t", &format!("TABLE {}", table(fresh.url())));
    query(fresh.url(), &sql.replace("FROM t", &format!("FROM {}", table(fresh.url())))).await;
    let store = open(fresh.url()).await;
    store.try_acquire(&claim(&*store)).await.unwrap_err()
}

#[tokio::test]
async fn tables_that_can_lose_or_confuse_locks_are_refused() {
    for (alter, named) in [
        ("ALTER TABLE t ENGINE=MyISAM", "MyISAM"),
        ("ALTER TABLE t ENGINE=Aria", "Aria"),
        ("ALTER TABLE t ENGINE=MEMORY, DROP record, DROP history, DROP line", "MEMORY"),
        ("ALTER TABLE t DROP PRIMARY KEY", "unique"),
        ("ALTER TABLE t DROP PRIMARY KEY, ADD PRIMARY KEY (name, locked_by)", "unique"),
        ("ALTER TABLE t DROP PRIMARY KEY, ADD UNIQUE (name(3))", "unique"),
        ("ALTER TABLE t DROP PRIMARY KEY, ADD INDEX (name)", "unique"),
        ("ALTER TABLE t DROP PRIMARY KEY, ADD UNIQUE (name) USING HASH", "unique"),
        ("ALTER TABLE t MODIFY name varchar(64) NOT NULL", "varchar(64)"),
        ("ALTER TABLE t MODIFY lock_until timestamp(6) NOT NULL DEFAULT '2030-01-01'", "timestamp(6)"),
        ("ALTER TABLE t MODIFY lock_until datetime NOT NULL", "datetime "),
        ("ALTER TABLE t MODIFY lock_until datetime(6) NOT NULL ON UPDATE NOW(6)", "on update"),
        ("ALTER TABLE t MODIFY token int", "token int"),
        ("ALTER TABLE t DROP served", "served"),
    ] {
        let error = refusal(alter).await;
        assert!(!error.is_transient() && error.fault().help.is_some(), "{alter}: {error:?}");
        assert!(error.to_string().contains(named), "{alter}: {error:?}");
    }
}

#[tokio::test]
async fn a_view_is_refused() {
    let fresh = fresh();
    let name = table(fresh.url());
    query(fresh.url(), &format!("CREATE VIEW v{name} AS SELECT * FROM {name}")).await;
    let store = open(&fresh.url().replace(&name, &format!("v{name}"))).await;
    let error = store.try_acquire(&claim(&*store)).await.unwrap_err();
    assert!(error.to_string().contains("not an ordinary table"), "{error:?}");
}

/// The table of ShedLock's documentation, after the ALTER TABLE that the error and the documentation show.
#[tokio::test]
async fn a_table_of_shedlock_is_extended_once_its_types_suit() {
    let fresh = fresh();
    let name = table(fresh.url()).replace("locks", "shed");
    let url = fresh.url().replace(&table(fresh.url()), &name);
    query(
        &url,
        &format!(
            "CREATE TABLE {name}(name VARCHAR(64) NOT NULL, lock_until TIMESTAMP(3) NOT NULL,
             locked_at TIMESTAMP(3) NOT NULL DEFAULT CURRENT_TIMESTAMP(3), locked_by VARCHAR(255) NOT NULL,
             PRIMARY KEY (name));
             INSERT INTO {name} VALUES ('job', '2020-01-01', '2020-01-01', 'host-1')"
        ),
    )
    .await;
    let locker = Locker::open(&url).await.unwrap();
    let error = locker.init().await.unwrap_err();
    assert!(error.to_string().contains("timestamp(3)"), "{error:?}");
    assert!(error.help()[0].contains("datetime(6)") && error.help()[0].contains("varbinary"), "{error:?}");
    query(
        &url,
        &format!(
            "ALTER TABLE {name} MODIFY name varbinary(256) NOT NULL, MODIFY lock_until datetime(6) NOT NULL,
             MODIFY locked_at datetime(6) NOT NULL, MODIFY locked_by varbinary(255) NOT NULL"
        ),
    )
    .await;
    let error = locker.lock("job").try_acquire().await.unwrap_err();
    assert!(error.help()[0].contains("leasehold init"), "{error:?}");
    // Several processes may run it at once.
    let all = (0..4).map(|_| async { Locker::open(&url).await.unwrap().init().await });
    for made in futures_util::future::join_all(all).await {
        made.unwrap();
    }
    locker.lock("job").acquire().await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_missing_table_or_database_is_an_error_that_says_what_to_do() {
    let fresh = fresh();
    for url in [
        fresh.url().replace("table=", "table=no_such_"),
        fresh.url().replace("/locks?", "/no_such_database?"),
    ] {
        let store = open(&url).await;
        let error = store.try_acquire(&claim(&*store)).await.unwrap_err();
        assert_eq!(error.fault().kind, ErrorKind::Invalid, "{error:?}");
        assert!(error.fault().help.as_ref().unwrap().contains("leasehold init"), "{error:?}");
    }
}

/// Once the table exists, an open store uses it.
#[tokio::test]
async fn a_store_that_was_opened_before_its_table_uses_it() {
    let fresh = fresh();
    let url = fresh.url().replace("table=locks_", "table=later_");
    let store = open(&url).await;
    store.try_acquire(&claim(&*store)).await.unwrap_err();
    store.init().await.unwrap();
    granted(&*store).await;
}
