//! Passwords, certificates and permissions on MariaDB, and the doctor's findings about unsafe servers.

use std::os::unix::fs::PermissionsExt;

use leasehold::doctor::{CheckStatus, Examination};
use leasehold::{ErrorKind, Locker};
use leasehold_testkit::servers::with_option;
use leasehold_testkit::stores;
use leasehold_testkit::stores::mysql::{MariadbServer, query, table};
use tempfile::TempDir;

use crate::access::{
    assert_certificates_are_checked, assert_found, assert_granted, described, make_certificates, refused,
};

/// Starts a server with TLS, and a user `deploy` who may neither delete rows nor change the table.
async fn server() -> (MariadbServer, TempDir) {
    let folder = tempfile::tempdir().unwrap();
    make_certificates(folder.path(), &[("server", "IP:127.0.0.1"), ("deploy", "DNS:deploy")]).await;
    for file in ["ca.pem", "server.pem", "server.key"] {
        let mode = std::fs::Permissions::from_mode(0o644);
        std::fs::set_permissions(folder.path().join(file), mode).unwrap();
    }
    let path = |name: &str| folder.path().join(name).display().to_string();
    let settings = [
        format!("ssl-ca={}", path("ca.pem")),
        format!("ssl-cert={}", path("server.pem")),
        format!("ssl-key={}", path("server.key")),
    ];
    let settings: Vec<_> = settings.iter().map(String::as_str).collect();
    let server = MariadbServer::start_with(folder.path(), &settings).await.unwrap();
    let user = "CREATE USER deploy@'%' IDENTIFIED BY 'p@ss/word';
        GRANT SELECT, INSERT, UPDATE ON locks.leasehold TO deploy@'%'";
    query(&server.url(), user).await;
    (server, folder)
}

#[tokio::test]
async fn a_lesser_user_with_a_password_acquires_locks() {
    let (server, folder) = server().await;
    let (address, ca) = (server.address(), folder.path().join("ca.pem"));
    let file = folder.path().join("password");
    std::fs::write(&file, "p@ss/word\n").unwrap();
    let given = format!("mysql://deploy:p%40ss%2Fword@{address}/locks");
    let in_file = format!("mysql://deploy@{address}/locks?password_file={}", file.display());
    for url in [given.clone(), in_file.clone(), with_option(&given, &format!("ca={}", ca.display()))] {
        assert_granted(&url).await;
    }
    for url in [given.replace("p%40ss%2Fword", "hunter2"), format!("mysql://deploy@{address}/locks")] {
        let locker = Locker::open(&url).await.unwrap();
        let error = locker.lock("lock").try_acquire().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Denied, "{error:?}");
        let shown = format!("{} {locker:?} {:?}", described(&error), locker.store());
        assert!(shown.contains("password") && !shown.contains("hunter2"), "{shown}");
    }
    // The user may not delete rows. A row is only deleted once its token is old.
    query(&server.url(), "UPDATE leasehold SET token = token - 60000000").await;
    let locker = Locker::open(&given).await.unwrap();
    let error = locker.sweep(&"lock".parse().unwrap(), std::time::Duration::ZERO, false).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error:?}");
    assert!(described(&error).contains("DELETE"), "{error:?}");
    // The password is replaced while the store is open.
    let locker = Locker::open(&in_file).await.unwrap();
    query(&server.url(), "SET PASSWORD FOR deploy@'%' = PASSWORD('other')").await;
    std::fs::write(&file, "other").unwrap();
    locker.lock("lock").acquire().await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn the_servers_certificate_must_be_trusted_and_for_its_name() {
    let (server, folder) = server().await;
    query(&server.url(), "ALTER USER deploy@'%' IDENTIFIED BY '' REQUIRE SUBJECT '/CN=deploy'").await;
    let url = format!("mysql://deploy@{}/locks", server.address());
    assert_certificates_are_checked(&url, folder.path()).await;
    // This server has no TLS.
    let fresh = stores::fresh("mysql");
    let plain = refused(&with_option(fresh.url(), "tls=on")).await;
    assert!(described(&plain).contains("has no TLS"), "{plain:?}");
}

#[tokio::test]
async fn the_doctor_names_what_is_unsafe_or_missing() {
    let folder = tempfile::tempdir().unwrap();
    let settings = ["sync-binlog=1", "innodb-flush-log-at-trx-commit=1"];
    let server = MariadbServer::start_with(folder.path(), &settings).await.unwrap();
    let url = server.url();
    let report = Locker::open(&url).await.unwrap().examine(&Examination::default()).await;
    let bad = report.findings.iter().filter(|finding| finding.verdict == CheckStatus::Failed);
    assert_eq!(bad.count(), 0, "{report:#?}");
    for check in ["primary", "table", "durability", "failover", "permission-table"] {
        assert_found(&url, check, CheckStatus::Passed, "").await;
    }
    for (set, named) in [
        ("innodb_flush_log_at_trx_commit = 2", "second of grants"),
        ("sync_binlog = 0", "what is not in the binary log"),
    ] {
        query(&url, &format!("SET GLOBAL {set}")).await;
        assert_found(&url, "durability", CheckStatus::Warning, named).await;
    }
    let as_user = url.replace("leasehold@", "deploy@");
    query(&url, "CREATE USER deploy@'%'; GRANT SELECT ON locks.leasehold TO deploy@'%'").await;
    assert_found(&as_user, "permission-table", CheckStatus::Failed, "INSERT, UPDATE").await;
    assert_found(&as_user, "permission-table", CheckStatus::Failed, "GRANT").await;
    query(&url, "GRANT INSERT, UPDATE ON locks.leasehold TO deploy@'%'").await;
    assert_found(&as_user, "permission-table", CheckStatus::Warning, "DELETE").await;
    query(&url, "CREATE TRIGGER t BEFORE UPDATE ON leasehold FOR EACH ROW SET NEW.size = OLD.size").await;
    assert_found(&url, "permission-table", CheckStatus::Warning, "triggers").await;
    query(&url, "DROP TRIGGER t; ALTER TABLE leasehold DROP COLUMN written_us").await;
    assert_found(&url, "reachable", CheckStatus::Failed, "written_us").await;
    Locker::open(&url).await.unwrap().init().await.unwrap();
    assert_found(&url, "table", CheckStatus::Passed, "").await;
    let missing = url.replace("table=leasehold", "table=none");
    assert_found(&missing, "reachable", CheckStatus::Failed, "leasehold init").await;
    query(&url, "SET GLOBAL read_only = 1").await;
    assert_found(&url, "reachable", CheckStatus::Failed, "read_only").await;
}

#[tokio::test]
async fn only_init_needs_the_permission_to_create_a_table() {
    let fresh = stores::fresh("mysql");
    let user = table(fresh.url()).replace("locks", "user");
    let user = &user[..user.len().min(32)];
    query(
        fresh.url(),
        &format!("CREATE USER {user}@'%'; GRANT SELECT, INSERT, UPDATE ON locks.* TO {user}@'%'"),
    )
    .await;
    let url = fresh.url().replace("leasehold@", &format!("{user}@"));
    assert_granted(&url).await;
    // It changes nothing if the table is complete.
    Locker::open(&url).await.unwrap().init().await.unwrap();
    let error = Locker::open(&url.replace("table=", "table=no_")).await.unwrap().init().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error:?}");
    assert!(described(&error).contains("CREATE"), "{error:?}");
}
