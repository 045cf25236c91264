//! Users, passwords and certificates of etcd.

use std::path::Path;
use std::time::Duration;

use futures_util::TryStreamExt;
use leasehold::clock::{Clock, SystemClock};
use leasehold::{ErrorKind, LockName, Locker};
use leasehold_testkit::process::within;
use leasehold_testkit::stores::etcd::{Cluster, etcdctl};

use crate::access::make_certificates;

const ROLE: &[&[&str]] = &[
    &["user", "add", "root:secret"],
    &["user", "grant-role", "root", "root"],
    &["role", "add", "leasehold"],
    &["role", "grant-permission", "leasehold", "readwrite", "tests/", "--prefix=true"],
    &["user", "add", "deploy:p@ss/word"],
    &["user", "grant-role", "deploy", "leasehold"],
    &["auth", "enable"],
];

/// Acquires a lock, waits for it on a second client, and releases it.
async fn holds_and_waits(url: &str, ttl: Duration) {
    let (one, two) = (Locker::open(url).await.unwrap(), Locker::open(url).await.unwrap());
    let guard = one.lock("a/lock").ttl(ttl).acquire().await.unwrap();
    let name: LockName = "a/lock".parse().unwrap();
    assert_eq!(two.inspect(&name).await.unwrap().token, Some(guard.token().unwrap()));
    assert_eq!(two.list("").try_collect::<Vec<_>>().await.unwrap(), [name]);
    let waiting = tokio::spawn({
        let lock = two.lock("a/lock").ttl(ttl);
        async move { lock.acquire().await }
    });
    // The lock is renewed in this time.
    SystemClock.sleep(ttl / 2).await;
    guard.check().unwrap();
    guard.release().await.unwrap();
    within("the turn", waiting).await.unwrap().unwrap().into_ticket().await.unwrap();
}

/// Logins expire every second here, and the client renews them. The documented role is sufficient.
#[tokio::test]
async fn a_user_needs_the_documented_role_and_logs_in_again() {
    let cluster = Cluster::start(1, &["--auth-token-ttl", "1"]).await;
    for command in ROLE {
        etcdctl(cluster.address(0), command).await;
    }
    let url = |login: &str, prefix: &str| format!("etcd://{login}{}/{prefix}/", cluster.address(0));
    holds_and_waits(&url("deploy:p%40ss%2Fword@", "tests"), Duration::from_secs(20)).await;

    for (login, prefix, help) in [
        ("", "tests", "etcd://user:password@"),
        ("deploy:hunter2@", "tests", "password"),
        ("unknown:hunter2@", "tests", "password"),
        ("deploy:p%40ss%2Fword@", "others", "grant-permission"),
    ] {
        let locker = Locker::open(&url(login, prefix)).await.unwrap();
        let error = locker.lock("lock").try_acquire().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Denied, "{login}{prefix}: {error:?}");
        assert!(error.help().join(" ").contains(help), "{login}{prefix}: {error:?}");
        let shown = format!("{error} {error:?} {locker:?} {:?}", locker.store());
        assert!(!shown.contains("hunter2") && !shown.contains("p@ss"), "{shown}");
    }
}

/// Starts a cluster with users. Returns it with the store URL of a user that has the documented role.
async fn with_users(options: &[&str]) -> (Cluster, String) {
    let cluster = Cluster::start(1, options).await;
    for command in ROLE {
        etcdctl(cluster.address(0), command).await;
    }
    let url = format!("etcd://deploy:p%40ss%2Fword@{}/tests/", cluster.address(0));
    (cluster, url)
}

/// A lease without keys is kept alive for the next lock, which needs no more rights than the role has.
#[tokio::test]
async fn a_lease_without_locks_is_reused_by_a_user_with_few_rights() {
    let (_cluster, url) = with_users(&[]).await;
    let locker = Locker::open(&url).await.unwrap();
    let ttl = Duration::from_secs(6);
    locker.lock("lock").ttl(ttl).try_acquire().await.unwrap().release().await.unwrap();
    SystemClock.sleep(ttl / 2).await;
    locker.lock("lock").ttl(ttl).try_acquire().await.unwrap().release().await.unwrap();
}

/// The login with which the watch stream was opened has expired. etcd refuses new watches on the stream without naming
/// the watch.
#[tokio::test]
async fn a_waiter_notices_that_its_watch_is_refused() {
    let (cluster, url) = with_users(&["--auth-token-ttl", "1"]).await;
    let (one, two) = (Locker::open(&url).await.unwrap(), Locker::open(&url).await.unwrap());
    // Opens the watch stream.
    let _watched = two.lock("other").acquire().await.unwrap();
    let held = one.lock("lock").acquire().await.unwrap();
    SystemClock.sleep(Duration::from_secs(6)).await;
    let waiting = tokio::spawn({
        let lock = two.lock("lock");
        async move { lock.acquire().await }
    });
    let line = async {
        while etcdctl(
            cluster.address(0),
            &["--user", "root:secret", "get", "--prefix", "--keys-only", "tests/lock/"],
        )
        .await
        .lines()
        .filter(|line| !line.is_empty())
        .count()
            < 2
        {}
    };
    within("the waiter's place", line).await;
    SystemClock.sleep(Duration::from_secs(2)).await;
    held.release().await.unwrap();
    // This limit is far shorter than the pause after which the waiter would look without a watch event.
    let granted = leasehold::clock::timeout(&SystemClock, Duration::from_secs(6), waiting).await;
    let _granted = granted.expect("no watch event arrived").unwrap().unwrap();
}

/// Changes the password of the documented user.
async fn change_password(cluster: &Cluster, password: &str) {
    let added = format!("deploy:{password}");
    for command in [
        &["user", "delete", "deploy"][..],
        &["user", "add", &added],
        &["user", "grant-role", "deploy", "leasehold"],
    ] {
        etcdctl(cluster.address(0), &[&["--user", "root:secret"], command].concat()).await;
    }
}

#[tokio::test]
async fn a_password_in_a_file_is_read_again_for_each_login() {
    let (cluster, _) = with_users(&[]).await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("password");
    std::fs::write(&file, "p@ss/word\n").unwrap();
    let url = format!("etcd://deploy@{}/tests/?password_file={}", cluster.address(0), file.display());
    let locker = Locker::open(&url).await.unwrap();
    locker.lock("lock").try_acquire().await.unwrap().release().await.unwrap();
    change_password(&cluster, "rotated").await;
    // The file has the new password only later.
    let early =
        locker.lock("lock").store_timeout(Duration::from_millis(300)).try_acquire().await.unwrap_err();
    assert_eq!(early.kind(), ErrorKind::Unavailable, "{early:?}");
    std::fs::write(&file, "rotated\n").unwrap();
    // Waits, because the request of the attempt that gave up may not be over.
    locker.lock("lock").acquire().await.unwrap().release().await.unwrap();
    let shown = format!("{locker:?} {:?}", locker.store());
    assert!(!shown.contains("rotated") && !shown.contains("p@ss"), "{shown}");
}

#[tokio::test]
async fn a_password_is_read_from_a_variable() {
    let (cluster, _) = with_users(&[]).await;
    // A variable that cargo sets for its tests.
    change_password(&cluster, env!("CARGO_PKG_NAME")).await;
    let url = format!("etcd://deploy@{}/tests/?password_env=CARGO_PKG_NAME", cluster.address(0));
    Locker::open(&url).await.unwrap().lock("lock").try_acquire().await.unwrap().release().await.unwrap();
}

/// A login that is not required is not an error, because authentication may be enabled later.
#[tokio::test]
async fn a_cluster_without_users_takes_any_login() {
    let cluster = Cluster::start(1, &[]).await;
    let url = format!("etcd://deploy:secret@{}/tests/", cluster.address(0));
    Locker::open(&url).await.unwrap().lock("lock").acquire().await.unwrap().release().await.unwrap();
}

/// Creates certificates for a member with the alternative name `member` and for a client.
async fn certificates(folder: &Path, member: &str) {
    make_certificates(folder, &[("member", member), ("client", "DNS:client")]).await;
}

/// Starts a member that requires client certificates. Returns it with the options of a store URL that has such a
/// certificate.
async fn with_certificates(folder: &Path) -> (Cluster, String) {
    let file = |name: &str| folder.join(name).to_str().unwrap().to_owned();
    let (certificate, key, authority) = (file("member.pem"), file("member.key"), file("ca.pem"));
    let options = [
        "--cert-file",
        &certificate,
        "--key-file",
        &key,
        "--trusted-ca-file",
        &authority,
        "--client-cert-auth",
    ];
    let cluster = Cluster::start(1, &options).await;
    let (cert, key) = (file("client.pem"), file("client.key"));
    (cluster, format!("?ca={authority}&cert={cert}&key={key}"))
}

async fn refused(url: &str) -> leasehold::Error {
    let locker = Locker::open(url).await.unwrap();
    let lock = locker.lock("lock").store_timeout(Duration::from_secs(3));
    let error = lock.try_acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{url}: {error:?}");
    assert!(error.to_string().contains("etcd at"), "{url}: {error:?}");
    error
}

#[tokio::test]
async fn client_and_server_certificates_are_required() {
    let folder = tempfile::tempdir().unwrap();
    certificates(folder.path(), "IP:127.0.0.1").await;
    let (cluster, options) = with_certificates(folder.path()).await;
    let url = format!("etcd://{}/tests/", cluster.address(0));
    holds_and_waits(&format!("{url}{options}"), Duration::from_secs(6)).await;

    let authority = options.split('&').next().unwrap();
    for (options, help) in [("?tls=on", "ca=FILE"), (authority, "cert=FILE"), ("", "tls=on")] {
        let error = refused(&format!("{url}{options}")).await;
        assert!(error.help().join(" ").contains(help), "{options}: {error:?}");
    }
}

#[tokio::test]
async fn the_error_for_tls_to_a_plain_member_names_the_option() {
    let cluster = Cluster::start(1, &[]).await;
    let error = refused(&format!("etcd://{}/tests/?tls=on", cluster.address(0))).await;
    assert!(error.help().join(" ").contains("remove tls=on"), "{error:?}");
}

#[tokio::test]
async fn a_member_is_checked_by_the_server_name() {
    let folder = tempfile::tempdir().unwrap();
    certificates(folder.path(), "DNS:etcd.internal").await;
    let (cluster, options) = with_certificates(folder.path()).await;
    let url = format!("etcd://{}/tests/{options}", cluster.address(0));
    holds_and_waits(&format!("{url}&server_name=etcd.internal"), Duration::from_secs(6)).await;
    for wrong in ["", "&server_name=etcd.example"] {
        let error = refused(&format!("{url}{wrong}")).await;
        assert!(error.help().join(" ").contains("server_name="), "{error:?}");
    }
}

#[tokio::test]
async fn certificates_are_read_again_when_they_were_replaced() {
    let folder = tempfile::tempdir().unwrap();
    certificates(folder.path(), "IP:127.0.0.1").await;
    let (mut cluster, options) = with_certificates(folder.path()).await;
    let locker = Locker::open(&format!("etcd://{}/tests/{options}", cluster.address(0))).await.unwrap();
    let held = locker.lock("held").acquire().await.unwrap();
    // Create a new authority and new certificates.
    certificates(folder.path(), "IP:127.0.0.1").await;
    cluster.kill(0).await;
    cluster.restart(0);
    locker.lock("lock").acquire().await.unwrap().release().await.unwrap();
    held.check().unwrap();
    held.release().await.unwrap();
}
