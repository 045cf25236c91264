//! Passwords, certificates and permissions on PostgreSQL, and the doctor's findings about unsafe servers.

use std::os::unix::fs::PermissionsExt;

use leasehold::doctor::{CheckStatus, Examination};
use leasehold::{ErrorKind, Locker};
use leasehold_testkit::servers::with_option;
use leasehold_testkit::stores;
use leasehold_testkit::stores::postgres::{PostgresServer, make_table, psql, table};
use tempfile::TempDir;

use crate::access::{
    assert_certificates_are_checked, assert_found, assert_granted, described, make_certificates, refused,
};

/// Starts a server with TLS, whose pg_hba.conf has the lines `access` for the user `deploy`.
async fn server(access: &str) -> (PostgresServer, TempDir) {
    let folder = tempfile::tempdir().unwrap();
    make_certificates(folder.path(), &[("server", "IP:127.0.0.1"), ("deploy", "DNS:deploy")]).await;
    let data = folder.path().join("postgres");
    let mut server = PostgresServer::start_with(
        folder.path(),
        &["ssl_ca_file=ca.pem", "ssl_cert_file=server.pem", "ssl_key_file=server.key"],
    )
    .await
    .unwrap();
    let url = server.url_by(server.address());
    psql(
        &url,
        "CREATE ROLE deploy LOGIN PASSWORD 'p@ss/word'; GRANT SELECT, INSERT, UPDATE ON leasehold TO deploy",
    )
    .await;
    server.kill().await.unwrap();
    for file in ["ca.pem", "server.pem", "server.key"] {
        std::fs::copy(folder.path().join(file), data.join(file)).unwrap();
        let owner = std::fs::metadata(&data).unwrap();
        std::os::unix::fs::chown(
            data.join(file),
            Some(std::os::unix::fs::MetadataExt::uid(&owner)),
            Some(std::os::unix::fs::MetadataExt::gid(&owner)),
        )
        .unwrap();
        std::fs::set_permissions(data.join(file), std::fs::Permissions::from_mode(0o600)).unwrap();
    }
    let rules = data.join("pg_hba.conf");
    let before = std::fs::read_to_string(&rules).unwrap();
    std::fs::write(&rules, format!("{access}\n{before}")).unwrap();
    server.set(&["ssl=on"]).unwrap();
    server.restart().await.unwrap();
    (server, folder)
}

#[tokio::test]
async fn a_password_opens_the_server_encrypted_or_not() {
    let (server, folder) = server("host all deploy 127.0.0.1/32 scram-sha-256").await;
    let (address, ca) = (server.address(), folder.path().join("ca.pem"));
    let file = folder.path().join("password");
    std::fs::write(&file, "p@ss/word\n").unwrap();
    let given = format!("postgres://deploy:p%40ss%2Fword@{address}/postgres");
    let in_file = format!("postgres://deploy@{address}/postgres?password_file={}", file.display());
    // The user `deploy` may not delete rows itself.
    psql(&server.url_by(address), "DELETE FROM leasehold").await;
    let graced = with_option(&given, "failover_grace=60s");
    let withheld = refused(&graced).await;
    assert!(withheld.to_string().contains("failover_grace"), "the server has fsync=off: {withheld}");
    for url in [given.clone(), in_file.clone(), with_option(&given, &format!("ca={}", ca.display()))] {
        assert_granted(&url).await;
    }
    for url in [given.replace("p%40ss%2Fword", "hunter2"), in_file.replace("password_file", "note")] {
        let Ok(locker) = Locker::open(&url).await else {
            assert!(url.contains("note"), "{url}");
            continue;
        };
        let error = locker.lock("lock").try_acquire().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Denied, "{error:?}");
        let shown = format!("{} {locker:?} {:?}", described(&error), locker.store());
        assert!(shown.contains("password") && !shown.contains("hunter2"), "{shown}");
    }
    let missing = refused(&format!("postgres://deploy@{address}/postgres")).await;
    assert!(described(&missing).contains("PGPASSWORD"), "{missing:?}");
    // The password is replaced while the store is open.
    let locker = Locker::open(&in_file).await.unwrap();
    psql(&server.url_by(address), "ALTER ROLE deploy PASSWORD 'other'").await;
    std::fs::write(&file, "other").unwrap();
    locker.lock("lock").acquire().await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn the_servers_certificate_must_be_trusted_and_for_its_name() {
    let (server, folder) = server("hostssl all deploy 127.0.0.1/32 cert").await;
    let url = format!("postgres://deploy@{}/postgres", server.address());
    assert_certificates_are_checked(&url, folder.path()).await;
    // This server has no TLS.
    let fresh = stores::fresh("postgres");
    let plain = refused(&with_option(fresh.url(), "tls=on")).await;
    assert!(described(&plain).contains("ssl=off"), "{plain:?}");
}

#[tokio::test]
async fn the_doctor_names_what_is_unsafe_or_missing() {
    let folder = tempfile::tempdir().unwrap();
    let server = PostgresServer::start_with(folder.path(), &["fsync=on"]).await.unwrap();
    let url = with_option(&server.url_by(server.address()), "table=locks");
    make_table(&url);
    let report = Locker::open(&url).await.unwrap().examine(&Examination::default()).await;
    assert!(report.findings.iter().all(|found| found.verdict != CheckStatus::Failed), "{report:#?}");
    for check in
        ["primary", "table", "durability", "failover", "permission-table", "unique-names", "row-security"]
    {
        assert_found(&url, check, CheckStatus::Passed, "").await;
    }
    let as_user = url.replace("leasehold@", "deploy@");
    psql(&url, "CREATE ROLE deploy LOGIN; GRANT SELECT ON locks TO deploy").await;
    assert_found(&as_user, "permission-table", CheckStatus::Failed, "INSERT, UPDATE").await;
    assert_found(&as_user, "permission-table", CheckStatus::Failed, "GRANT SELECT, INSERT").await;
    psql(&url, "GRANT INSERT, UPDATE ON locks TO deploy").await;
    assert_found(&as_user, "permission-table", CheckStatus::Warning, "DELETE").await;
    psql(&url, "ALTER TABLE locks ENABLE ROW LEVEL SECURITY").await;
    assert_found(&as_user, "row-security", CheckStatus::Failed, "without a policy").await;
    psql(&url, "CREATE POLICY all_rows ON locks USING (true)").await;
    assert_found(&as_user, "row-security", CheckStatus::Warning, "policies").await;
    psql(&url, "INSERT INTO pg_subscription_rel VALUES (1, 'locks'::regclass, 'r', NULL)").await;
    assert_found(&as_user, "subscription", CheckStatus::Warning, "logical").await;
    psql(&url, "DELETE FROM pg_subscription_rel").await;
    psql(&url, "ALTER TABLE locks DROP CONSTRAINT locks_pkey").await;
    assert_found(&url, "unique-names", CheckStatus::Failed, "PRIMARY KEY").await;
    psql(&url, "ALTER TABLE locks ADD PRIMARY KEY (name); ALTER TABLE locks DROP COLUMN written_us CASCADE")
        .await;
    assert_found(&url, "reachable", CheckStatus::Failed, "written_us").await;
    psql(&url, "ALTER TABLE locks ADD written_us bigint, ALTER served TYPE int").await;
    assert_found(&url, "table", CheckStatus::Failed, "served").await;
    psql(&url, "ALTER TABLE locks ALTER served TYPE bigint, ALTER line TYPE json").await;
    assert_found(&url, "table", CheckStatus::Failed, "line").await;
    psql(&url, "ALTER TABLE locks ALTER line TYPE jsonb, ALTER name TYPE varchar(64)").await;
    assert_found(&url, "table", CheckStatus::Passed, "").await;
    psql(&url, "ALTER TABLE locks SET UNLOGGED").await;
    assert_found(&url, "reachable", CheckStatus::Failed, "UNLOGGED").await;
    let missing = url.replace("table=locks", "table=none");
    assert_found(&missing, "reachable", CheckStatus::Failed, "leasehold init").await;
}

#[tokio::test]
async fn the_doctor_fails_a_server_without_fsync() {
    let fresh = stores::fresh("postgres");
    assert_found(fresh.url(), "durability", CheckStatus::Failed, "fsync").await;
    let error = refused(&fresh.url().replace(&table(fresh.url()), "no_such_schema.locks")).await;
    assert!(described(&error).contains("leasehold init"), "{error:?}");
}
