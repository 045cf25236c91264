//! Logins, certificates and permissions of NATS.

use std::process::Stdio;
use std::time::Duration;

use futures_util::TryStreamExt;
use leasehold::clock::{Clock, SystemClock};
use leasehold::doctor::{CheckStatus, Examination};
use leasehold::url::StoreUrl;
use leasehold::{ErrorKind, Locker};
use leasehold_testkit::launch::{free_port, program};
use leasehold_testkit::process::within;
use leasehold_testkit::servers::with_option;
use leasehold_testkit::stores::nats::ask;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::{Child, Command};

use crate::access::{self, assert_granted, make_certificates, waiter};
use crate::leases::{claim_of, granted_to, lock, open};

/// The public key of the nkey in [`SEED`].
const NKEY: &str = "UDWFCLEURB6KGPA26BUMNKAA5YNERGVXF6LTGXJTVUMUFZ3JP7TFIX5E";
const SEED: &str = "SUAOJOA7YKRRA3X67YSX2KRNKHECTT36JCM2N23A7Y4HX4TWMAFZL7QKRE";

/// The least permissions, as the doctor lists them.
const PUBLISH: &[&str] = &["$JS.API.STREAM.INFO.KV_b", "$JS.API.STREAM.MSG.GET.KV_b", "$KV.b.locks.>"];
const RESPONSES: &str = "_INBOX.>";
const COPIES: &str = "leasehold.b.locks.>";

/// A server that only this test uses.
struct Server {
    port: u16,
    folder: TempDir,
    process: Child,
}

impl Server {
    /// Starts a server with the lines `settings` in its configuration, where FOLDER is its folder.
    async fn start(settings: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        make_certificates(folder.path(), &[("server", "IP:127.0.0.1"), ("client", "DNS:client")]).await;
        let port = free_port().unwrap();
        let process = Self::run(&folder, port, settings).await;
        Self { port, folder, process }
    }

    async fn run(folder: &TempDir, port: u16, settings: &str) -> Child {
        let path = folder.path().to_str().unwrap();
        let common = format!("listen: 127.0.0.1:{port}\njetstream {{ store_dir: \"{path}/data\" }}\n");
        let file = folder.path().join("server.conf");
        std::fs::write(&file, common + &settings.replace("FOLDER", path)).unwrap();
        let log = std::fs::File::create(folder.path().join("server.log")).unwrap();
        let mut command = Command::new(program("LEASEHOLD_TEST_NATS_SERVER"));
        command.arg("-c").arg(&file).stdin(Stdio::null()).stderr(log).kill_on_drop(true);
        let process = command.spawn().unwrap();
        within("a server", async {
            while TcpStream::connect(("127.0.0.1", port)).await.is_err() {
                SystemClock.sleep(Duration::from_millis(20)).await;
            }
        })
        .await;
        process
    }

    /// Starts the server again, with other settings.
    async fn restart(&mut self, settings: &str) {
        self.process.kill().await.unwrap();
        self.process = Self::run(&self.folder, self.port, settings).await;
    }

    /// Returns the store URL of the bucket, with a login like `u:p@`, or none.
    fn url(&self, login: &str, options: &str) -> String {
        let url = format!("nats://{login}127.0.0.1:{}/b?prefix=locks", self.port);
        if options.is_empty() { url } else { with_option(&url, options) }
    }

    fn file(&self, name: &str, content: &str) -> String {
        let file = self.folder.path().join(name);
        if !content.is_empty() {
            std::fs::write(&file, content).unwrap();
        }
        file.display().to_string()
    }
}

/// Creates the bucket as `leasehold init` does.
async fn init(url: &str) {
    let store = leasehold::stores::open(StoreUrl::parse(url).unwrap(), Default::default()).await.unwrap();
    store.init().await.unwrap();
}

/// Returns the error of a refused attempt, which has a help text and shows no secret.
async fn refused(url: &str) -> leasehold::Error {
    let error = access::refused(url).await;
    let shown = format!("{error} {error:?}");
    assert!(!error.help().is_empty(), "{error:?}");
    assert!(!shown.contains("ss/word") && !shown.contains(&SEED[2..]), "{error:?}");
    error
}

#[tokio::test]
async fn a_user_with_a_password() {
    let server = Server::start("authorization { user: deploy, password: \"p@ss/word\" }\n").await;
    let file = server.file("password", "p@ss/word\n");
    init(&server.url("deploy:p%40ss%2Fword@", "")).await;
    assert_granted(&server.url("deploy@", &format!("password_file={file}"))).await;
    for login in ["", "deploy:other@", "other:p%40ss%2Fword@", ":p%40ss%2Fword@"] {
        assert_eq!(refused(&server.url(login, "")).await.kind(), ErrorKind::Denied, "{login}");
    }
}

#[tokio::test]
async fn a_token() {
    let server = Server::start("authorization { token: \"p@ss/word\" }\n").await;
    let file = server.file("token", "p@ss/word\n");
    init(&server.url("", &format!("password_file={file}"))).await;
    assert_granted(&server.url(":p%40ss%2Fword@", "")).await;
    server.file("token", "another\n");
    assert_eq!(refused(&server.url("", &format!("password_file={file}"))).await.kind(), ErrorKind::Denied);
}

#[tokio::test]
async fn an_nkey() {
    let server = Server::start(&format!("authorization {{ users: [{{ nkey: {NKEY} }}] }}\n")).await;
    let url = server.url("", &format!("nkey_file={}", server.file("nkey", &format!("{SEED}\n"))));
    init(&url).await;
    assert_granted(&url).await;
    for broken in [&SEED[..40], "SUACSSL3UAHUDXKFSNVUZRF5UHPMWZ6BFDTJ7M6USDXIEDNPPQYYYCU3VY"] {
        server.file("nkey", broken);
        assert_eq!(refused(&url).await.kind(), ErrorKind::Denied);
    }
    let missing = server.url("", "nkey_file=/nowhere");
    let error = Locker::open(&missing).await.unwrap_err();
    assert!(error.to_string().contains("nkey_file") && error.kind() == ErrorKind::Invalid, "{error:?}");
}

/// The operator, the accounts and the user exist only here.
#[tokio::test]
async fn a_credentials_file() {
    let server = Server::start(include_str!("nats/operator.conf")).await;
    let file = server.file("user.creds", include_str!("nats/user.creds"));
    let url = server.url("", &format!("creds_file={file}"));
    init(&url).await;
    assert_granted(&url).await;
    assert_eq!(refused(&server.url("", "")).await.kind(), ErrorKind::Denied);
    server.file("user.creds", "p@ss/word");
    let error = Locker::open(&url).await.unwrap_err();
    assert!(error.to_string().contains("creds_file") && error.kind() == ErrorKind::Invalid, "{error:?}");
    assert!(!format!("{error:?}").contains("ss/word"), "{error:?}");
}

#[tokio::test]
async fn a_certificate_is_checked_and_a_client_certificate_sent() {
    let server = Server::start(
        "tls { cert_file: \"FOLDER/server.pem\", key_file: \"FOLDER/server.key\", ca_file: \"FOLDER/ca.pem\", verify: true }\n",
    )
    .await;
    let [ca, cert, key] = ["ca.pem", "client.pem", "client.key"].map(|name| server.file(name, ""));
    let url = server.url("", &format!("ca={ca}&cert={cert}&key={key}"));
    init(&url).await;
    assert_granted(&url).await;
    let untrusted = refused(&server.url("", &format!("tls=on&cert={cert}&key={key}"))).await;
    assert_eq!(untrusted.kind(), ErrorKind::Invalid, "{untrusted:?}");
    // The server demands TLS, although the URL does not.
    assert_eq!(refused(&server.url("", "")).await.kind(), ErrorKind::Invalid);
    let another_name = url.replace("127.0.0.1", "localhost");
    assert_eq!(
        refused(&another_name).await.kind(),
        ErrorKind::Invalid,
        "the certificate is for another name"
    );
    let without = server.url("", &format!("ca={ca}"));
    let locker = Locker::open(&without).await.unwrap();
    let refused = locker.lock("lock").store_timeout(Duration::from_secs(2)).try_acquire().await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Invalid, "without a client certificate: {refused:?}");
}

#[tokio::test]
async fn a_server_without_tls_does_not_get_the_login() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("nats://u:hunter2@{}/b?tls=on", listener.local_addr().unwrap());
    let opening = tokio::spawn(async move {
        let lock = Locker::open(&url).await.unwrap().lock("lock").store_timeout(Duration::from_secs(1));
        lock.try_acquire().await.unwrap_err()
    });
    let (mut client, _) = listener.accept().await.unwrap();
    client
        .write_all(b"INFO {\"server_id\":\"x\",\"version\":\"2.15.3\",\"headers\":true}\r\n")
        .await
        .unwrap();
    let mut sent = vec![0; 4_096];
    let count = client.read(&mut sent).await.unwrap();
    assert_eq!(sent[0], 22, "a TLS handshake: {}", String::from_utf8_lossy(&sent[..count]));
    drop((client, listener));
    opening.await.unwrap();
}

#[tokio::test]
async fn a_replaced_password_is_read_for_the_next_connection() {
    let settings = |word: &str| format!("authorization {{ user: deploy, password: {word} }}\n");
    let mut server = Server::start(&settings("one")).await;
    let file = server.file("password", "one");
    let url = server.url("deploy@", &format!("password_file={file}"));
    init(&url).await;
    let store = open(&url).await;
    let mut grant = granted_to(&*store, &claim_of(&*store, "lock", Duration::from_secs(10))).await;
    // First the server has the new password, then the file. In between, the error is one that holders retry.
    server.restart(&settings("two")).await;
    let error = store.renew(&mut grant).await.unwrap_err();
    assert!(error.is_transient() && error.to_string().contains("authorization"), "{error:?}");
    server.file("password", "two");
    store.inspect(&lock()).await.unwrap();
}

/// Returns the settings of a user who may publish and subscribe to these subjects.
fn permitted(publish: &[&str], subscribe: &[&str]) -> String {
    format!(
        "authorization {{ users: [ {{ user: admin, password: admin }}, {{ user: deploy, password: \"p@ss/word\", \
         permissions: {{ publish: {publish:?}, subscribe: {subscribe:?} }} }} ] }}\n"
    )
}

#[tokio::test]
async fn a_user_with_the_least_permissions_can_do_everything() {
    let server = Server::start(&permitted(PUBLISH, &[RESPONSES, COPIES])).await;
    init(&server.url("admin:admin@", "")).await;
    let url = server.url("deploy:p%40ss%2Fword@", "");
    let locker = Locker::open(&url).await.unwrap();
    let guard = locker.lock("a/b").acquire().await.unwrap();
    let waiting = waiter(&url, &guard).await;
    guard.release().await.unwrap();
    waiting.await.unwrap();
    let guard = locker.lock("a/c").acquire().await.unwrap();
    locker.evict(guard.name(), guard.token().unwrap()).await.unwrap();
    let names: Vec<_> = locker.list("a/").try_collect().await.unwrap();
    assert_eq!(names.len(), 2);
    let report = locker.examine(&Examination::default()).await;
    let failed: Vec<_> =
        report.findings.iter().filter(|finding| finding.verdict == CheckStatus::Failed).collect();
    assert!(failed.is_empty(), "{failed:?}");
    assert_eq!(report.finding("durability").unwrap().verdict, CheckStatus::Warning, "one server");
    let notifications = report.finding("notifications").unwrap();
    assert!(notifications.seen.contains("at once"), "{notifications:?}");
    // With another prefix, the user may do nothing.
    let elsewhere = url.replace("prefix=locks", "prefix=others");
    assert_eq!(refused(&elsewhere).await.kind(), ErrorKind::Denied);
    // The user may not create a bucket.
    let store =
        leasehold::stores::open(StoreUrl::parse(&url.replace("/b?", "/c?")).unwrap(), Default::default())
            .await;
    assert_eq!(store.unwrap().init().await.unwrap_err().fault().kind, ErrorKind::Denied);
}

/// The server reports a missing permission beside the responses. A request does not wait for its time limit.
#[tokio::test]
async fn each_permission_that_the_doctor_lists_is_needed() {
    for dropped in 0..=PUBLISH.len() {
        let publish: Vec<_> =
            PUBLISH.iter().enumerate().filter(|(n, _)| *n != dropped).map(|(_, subject)| *subject).collect();
        let subscribe = if dropped == PUBLISH.len() { COPIES } else { RESPONSES };
        let server = Server::start(&permitted(&publish, &[subscribe])).await;
        init(&server.url("admin:admin@", "")).await;
        let url = server.url("deploy:p%40ss%2Fword@", "");
        assert_eq!(refused(&url).await.kind(), ErrorKind::Denied, "{publish:?} {subscribe}");
        let report = Locker::open(&url).await.unwrap().examine(&Examination::default()).await;
        assert!(report.findings.iter().any(|finding| finding.verdict == CheckStatus::Failed), "{report:?}");
        assert!(format!("{report:?}").contains("publish: $JS.API.STREAM.INFO.KV_b"), "{report:?}");
    }
}

#[tokio::test]
async fn a_user_who_may_not_be_notified_polls() {
    let server = Server::start(&permitted(PUBLISH, &[RESPONSES])).await;
    init(&server.url("admin:admin@", "")).await;
    let url = server.url("deploy:p%40ss%2Fword@", "");
    let locker = Locker::open(&url).await.unwrap();
    for _ in 0..2 {
        let guard = locker.lock("lock").acquire().await.unwrap();
        let waiting = waiter(&url, &guard).await;
        guard.release().await.unwrap();
        waiting.await.unwrap();
    }
    let report = locker.examine(&Examination::default()).await;
    let notifications = report.finding("notifications").unwrap();
    assert_eq!(notifications.verdict, CheckStatus::Warning, "{notifications:?}");
    assert!(notifications.help[0].contains(COPIES), "{notifications:?}");
}

/// A bucket may be shared with other programs.
#[tokio::test]
async fn a_long_value_of_another_program_does_not_disturb_a_listing() {
    let server = Server::start("max_payload: 2MB\n").await;
    let url = server.url("", "");
    init(&url).await;
    let stored = ask(&url, "$KV.b.locks.theirs", "", &"x".repeat((1 << 20) + 1)).await;
    assert!(stored.contains("\"seq\""), "{stored}");
    let locker = Locker::open(&url).await.unwrap();
    let guard = locker.lock("mine").acquire().await.unwrap();
    let names: Vec<_> = locker.list("").try_collect().await.unwrap();
    assert_eq!(names, [guard.name().clone()]);
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_server_without_jetstream_is_named() {
    let server = Server::start("accounts { A { users: [{ user: a, password: a }] } }\n").await;
    let error = refused(&server.url("a:a@", "")).await;
    assert!(error.help()[0].contains("JetStream"), "{error:?}");
}
