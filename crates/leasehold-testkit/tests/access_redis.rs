//! Passwords, certificates, permissions and Sentinels of Redis, and the doctor's findings about unsafe servers.

use std::process::Stdio;
use std::time::Duration;

use leasehold::clock::{Clock, SystemClock};
use leasehold::doctor::{CheckStatus, Examination};
use leasehold::{ErrorKind, Locker, Swept};
use leasehold_testkit::launch::{free_port, program};
use leasehold_testkit::process::within;
use leasehold_testkit::servers::with_option;
use leasehold_testkit::stores::redis::redis_cli;
use tempfile::TempDir;
use tokio::net::TcpStream;
use tokio::process::{Child, Command};

use crate::access::{self, assert_granted, make_certificates, waiter};

/// The least permissions, as the doctor lists them, with the keys of these tests.
const LEAST: &str = "user deploy on >p@ss/word ~locks/* &locks/* +evalsha +script|load +info +time \
    +get +set +del +exists +type +pttl +hset +hmget +zadd +zrem +zrangebylex +publish +subscribe +unsubscribe";

/// A server that only this test uses.
struct Server {
    port: u16,
    folder: TempDir,
    _process: Child,
}

impl Server {
    /// Starts a server without TLS, with the lines `settings` in its configuration, where FOLDER is its folder.
    async fn start(settings: &str) -> Self {
        Self::launch("LEASEHOLD_TEST_REDIS_SERVER", "port", settings).await
    }

    async fn launch(variable: &str, listen: &str, settings: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        make_certificates(folder.path(), &[("server", "IP:127.0.0.1")]).await;
        let port = free_port().unwrap();
        let path = folder.path().to_str().unwrap();
        let common = format!("bind 127.0.0.1\nport 0\n{listen} {port}\nsave \"\"\ndir {path}\n");
        let file = folder.path().join("server.conf");
        std::fs::write(&file, common + &settings.replace("FOLDER", path)).unwrap();
        let log = std::fs::File::create(folder.path().join("server.log")).unwrap();
        let mut command = Command::new(program(variable));
        let process = command.arg(&file).stdin(Stdio::null()).stdout(log).kill_on_drop(true).spawn().unwrap();
        within("a server", async {
            while TcpStream::connect(("127.0.0.1", port)).await.is_err() {
                SystemClock.sleep(Duration::from_millis(20)).await;
            }
        })
        .await;
        Self { port, folder, _process: process }
    }

    /// Returns the server's store URL, with a login like `u:p@`, or none.
    fn url(&self, login: &str, options: &str) -> String {
        let url = format!("redis://{login}127.0.0.1:{}?prefix=locks/&failover_grace=0s", self.port);
        if options.is_empty() { url } else { with_option(&url, options) }
    }

    fn file(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }
}

/// Returns the error of a refused attempt, which has a help text and does not show the password.
async fn refused(url: &str) -> leasehold::Error {
    let error = access::refused(url).await;
    assert!(!error.help().is_empty() && !format!("{error} {error:?}").contains("ss/word"), "{error:?}");
    error
}

#[tokio::test]
async fn the_password_of_the_default_user() {
    let server = Server::start("requirepass p@ss/word\n").await;
    let file = server.file("password");
    std::fs::write(&file, "p@ss/word\n").unwrap();
    assert_granted(&server.url(":p%40ss%2Fword@", "")).await;
    assert_granted(&server.url("", &format!("password_file={file}"))).await;
    assert_eq!(refused(&server.url("", "")).await.kind(), ErrorKind::Denied);
    assert_eq!(refused(&server.url(":other-word@", "")).await.kind(), ErrorKind::Denied);
}

#[tokio::test]
async fn a_user_with_the_least_permissions_can_do_everything() {
    let server = Server::start(&format!("user default off\n{LEAST}\n")).await;
    let url = server.url("deploy:p%40ss%2Fword@", "");
    assert_granted(&url).await;
    let locker = Locker::open(&url).await.unwrap();
    let guard = locker.lock("a/b").acquire().await.unwrap();
    let waiting = waiter(&url, &guard).await;
    let name = guard.name().clone();
    guard.release().await.unwrap();
    waiting.await.unwrap();
    assert_eq!(locker.sweep(&name, Duration::ZERO, false).await.unwrap(), Swept::Deleted);
    let guard = locker.lock("a/c").acquire().await.unwrap();
    locker.evict(guard.name(), guard.token().unwrap()).await.unwrap();
    let report = locker.examine(&Examination::default()).await;
    let failed: Vec<_> =
        report.findings.iter().filter(|finding| finding.verdict == CheckStatus::Failed).collect();
    assert!(failed.iter().all(|finding| finding.check == "durability"), "{failed:?}");
    // With another prefix, the user may do nothing.
    let elsewhere = url.replace("prefix=locks/", "prefix=others/");
    assert_eq!(refused(&elsewhere).await.kind(), ErrorKind::Denied);
}

#[tokio::test]
async fn each_permission_that_the_doctor_lists_is_needed() {
    let all: Vec<_> = LEAST.split_whitespace().collect();
    let server = Server::start("").await;
    let admin = server.url("", "");
    let url = server.url("deploy:p%40ss%2Fword@", "");
    redis_cli(&admin, &["SET", "locks/foreign", "x"]).await;
    // Without the first three, waiters poll.
    let optional = ["+publish", "+subscribe", "+unsubscribe", "+script|load"];
    for dropped in all.iter().filter(|word| word.starts_with('+') && !optional.contains(word)) {
        redis_cli(&admin, &["ACL", "DELUSER", "deploy"]).await;
        let rules: Vec<_> =
            ["ACL", "SETUSER"].iter().chain(&all[1..]).filter(|word| word != &dropped).copied().collect();
        assert_eq!(redis_cli(&admin, &rules).await, "OK");
        let used = async {
            let locker = Locker::open(&url).await?;
            locker.inspect(&"foreign".parse()?).await?;
            let guard = locker.lock("lock").acquire().await?;
            let name = guard.name().clone();
            let other = Locker::open(&url).await?;
            let waiting = tokio::spawn(async move { other.lock("lock").acquire().await?.release().await });
            while locker.inspect(&name).await?.waiters.is_empty() {
                SystemClock.sleep(Duration::from_millis(10)).await;
                if waiting.is_finished() {
                    break;
                }
            }
            guard.release().await?;
            let _: leasehold::Released = waiting.await.unwrap()?;
            futures_util::TryStreamExt::try_collect::<Vec<_>>(locker.list("")).await?;
            assert_eq!(locker.sweep(&name, Duration::ZERO, false).await?, Swept::Deleted);
            let strict = url.replace("failover_grace=0s", "failover_grace=60s");
            Locker::open(&strict).await?.lock("lock").try_acquire().await?.release().await?;
            Ok::<_, leasehold::Error>(())
        };
        let error = within(dropped, used).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Denied, "{dropped}: {error:?}");
    }
}

#[tokio::test]
async fn a_certificate_is_checked_and_a_client_certificate_sent() {
    let server = Server::launch(
        "LEASEHOLD_TEST_REDIS_SERVER",
        "tls-port",
        "tls-cert-file FOLDER/server.pem\ntls-key-file FOLDER/server.key\ntls-ca-cert-file FOLDER/ca.pem\n",
    )
    .await;
    let (ca, cert, key) = (server.file("ca.pem"), server.file("server.pem"), server.file("server.key"));
    assert_granted(&server.url("", &format!("ca={ca}&cert={cert}&key={key}"))).await;
    let uncertified = refused(&server.url("", &format!("ca={ca}"))).await;
    assert_eq!(uncertified.kind(), ErrorKind::Invalid, "{uncertified:?}");
    assert!(uncertified.help().iter().any(|line| line.contains("cert=FILE")), "{uncertified:?}");
    let untrusted = refused(&server.url("", &format!("tls=on&cert={cert}&key={key}"))).await;
    assert_eq!(untrusted.kind(), ErrorKind::Invalid, "{untrusted:?}");
    let url = server.url("", &format!("ca={ca}&cert={cert}&key={key}")).replace("127.0.0.1", "localhost");
    assert_eq!(refused(&url).await.kind(), ErrorKind::Invalid, "the certificate is for another name");
}

#[tokio::test]
async fn sentinels_name_the_primary() {
    let server = Server::start("appendonly yes\n").await;
    let monitor = format!("sentinel monitor main 127.0.0.1 {} 1\n", server.port);
    let sentinel = Server::launch("LEASEHOLD_TEST_REDIS_SENTINEL", "port", &monitor).await;
    assert_granted(&sentinel.url("", "master=main")).await;
    assert_eq!(redis_cli(&server.url("", ""), &["EXISTS", "locks/lock//leasehold"]).await, "1");
    // One Sentinel that does not respond causes no error.
    let two = sentinel.url("", "master=main").replace("redis://", "redis://127.0.0.1:1,");
    assert_granted(&two).await;
    let unknown = refused(&sentinel.url("", "master=other")).await;
    assert!(unknown.to_string().contains("has no primary named"), "{unknown}");
}

#[tokio::test]
async fn sentinels_have_their_own_password() {
    let server = Server::start("appendonly yes\nrequirepass p@ss/word\n").await;
    let settings = format!(
        "requirepass its-own\nsentinel monitor main 127.0.0.1 {} 1\nsentinel auth-pass main p@ss/word\n",
        server.port
    );
    let sentinel = Server::launch("LEASEHOLD_TEST_REDIS_SENTINEL", "port", &settings).await;
    let file = sentinel.file("password");
    std::fs::write(&file, "its-own\n").unwrap();
    let url = |more: &str| {
        let options = format!("master=main&plaintext=on{more}");
        sentinel.url(":p%40ss%2Fword@", &options)
    };
    assert_granted(&url(&format!("&sentinel_password_file={file}"))).await;
    assert_granted(&url(&format!("&sentinel_user=default&sentinel_password_file={file}"))).await;
    std::fs::write(&file, "another\n").unwrap();
    for more in [String::new(), format!("&sentinel_password_file={file}")] {
        let error = refused(&url(&more)).await;
        assert_eq!(error.kind(), ErrorKind::Denied, "{error:?}");
        assert!(error.help().iter().any(|help| help.contains("sentinel_password_file")), "{error:?}");
    }
}

#[tokio::test]
async fn the_doctor_fails_servers_that_lose_locks() {
    let failed = async |server: &Server, options: &str| {
        let locker = Locker::open(&server.url("", options)).await.unwrap();
        let report = locker.examine(&Examination::default()).await;
        let failed = report.findings.iter().filter(|finding| finding.verdict == CheckStatus::Failed);
        failed.map(|finding| finding.check).collect::<Vec<_>>().join(" ")
    };
    let safe = Server::start("appendonly yes\n").await;
    assert_eq!(failed(&safe, "").await, "");
    let forgetting = Server::start("").await;
    assert_eq!(failed(&forgetting, "").await, "durability");
    let cache = Server::start("appendonly yes\nmaxmemory 100mb\nmaxmemory-policy allkeys-lru\n").await;
    assert_eq!(failed(&cache, "").await, "reachable");
    let error = refused(&cache.url("", "")).await;
    assert!(error.to_string().contains("allkeys-lru"), "{error}");
    let lesser = Server::start("appendonly yes\nuser default on nopass ~* &* +@all -zadd\n").await;
    let locker = Locker::open(&lesser.url("", "")).await.unwrap();
    let report = locker.examine(&Examination::default()).await;
    let finding = report.finding("permission-commands").unwrap();
    assert_eq!(finding.verdict, CheckStatus::Failed);
    assert!(finding.help.iter().any(|line| line.contains("ACL SETUSER")), "{finding:?}");
}
