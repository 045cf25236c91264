//! Certificates and attempts for the tests of access to a server.

use std::path::Path;
use std::time::Duration;

use leasehold::clock::{Clock, SystemClock};
use leasehold::doctor::{CheckStatus, Examination};
use leasehold::{ErrorKind, Guard, Locker};
use leasehold_testkit::process::within;
use leasehold_testkit::servers::with_option;
use tokio::process::Command;
use tokio::task::JoinHandle;

/// Creates a certificate authority in `folder` (`ca.pem`), and a certificate from it for each of `subjects`: its name,
/// which is also the name of its files, and its alternative name.
pub(crate) async fn make_certificates(folder: &Path, subjects: &[(&str, &str)]) {
    const NEW: &str = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2";
    openssl(folder, &format!("{NEW} -keyout ca.key -out ca.pem -subj /CN=authority")).await;
    for (name, alternative) in subjects {
        let by = "-CA ca.pem -CAkey ca.key -addext basicConstraints=critical,CA:FALSE";
        let usage = "-addext extendedKeyUsage=serverAuth,clientAuth";
        let to = format!("-keyout {name}.key -out {name}.pem -subj /CN={name}");
        openssl(folder, &format!("{NEW} {by} {usage} {to} -addext subjectAltName={alternative}")).await;
    }
}

async fn openssl(folder: &Path, arguments: &str) {
    let arguments = arguments.split(' ');
    let output = Command::new("openssl").args(arguments).current_dir(folder).output().await.unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Asserts that a lock in the store at `url` can be acquired and released.
pub(crate) async fn assert_granted(url: &str) {
    let lock = Locker::open(url).await.unwrap().lock("lock");
    lock.acquire().await.unwrap().release().await.unwrap();
}

/// Returns the error of an attempt to acquire a lock in the store at `url`, to which the client has no access.
pub(crate) async fn refused(url: &str) -> leasehold::Error {
    let locker = Locker::open(url).await.unwrap();
    let lock = locker.lock("lock").store_timeout(Duration::from_secs(30));
    lock.try_acquire().await.unwrap_err()
}

pub(crate) fn described(error: &leasehold::Error) -> String {
    format!("{error} {error:?} {}", error.help().join(" "))
}

/// Asserts that the doctor's `check` ended with `verdict` and that its finding contains `named`.
pub(crate) async fn assert_found(url: &str, check: &str, verdict: CheckStatus, named: &str) {
    let report = Locker::open(url).await.unwrap().examine(&Examination::default()).await;
    let found = report.findings.iter().find(|finding| finding.check == check);
    let found = found.unwrap_or_else(|| panic!("{check}: {report:#?}"));
    assert_eq!(found.verdict, verdict, "{report:#?}");
    assert!(format!("{} {}", found.seen, found.help.join(" ")).contains(named), "{found:?}");
}

/// Asserts that a client of the server at `url`, which demands the certificate `deploy` of `folder`, trusts only a server
/// whose certificate is of the authority that the URL names and for the host.
pub(crate) async fn assert_certificates_are_checked(url: &str, folder: &Path) {
    let file = |name: &str| folder.join(name).display().to_string();
    let ca = with_option(url, &format!("ca={}", file("ca.pem")));
    let cert = format!("cert={}&key={}", file("deploy.pem"), file("deploy.key"));
    assert_granted(&with_option(&ca, &cert)).await;
    let untrusted = refused(&with_option(url, &format!("tls=on&{cert}"))).await;
    assert!(described(&untrusted).contains("ca=FILE"), "{untrusted:?}");
    let elsewhere = refused(&with_option(&ca.replace("127.0.0.1", "localhost"), &cert)).await;
    assert!(described(&elsewhere).contains("not for the host"), "{elsewhere:?}");
    let nameless = refused(&ca).await;
    assert_eq!(nameless.kind(), ErrorKind::Denied, "{nameless:?}");
}

/// Starts a task that waits for the lock of `guard`, acquires it and releases it. Returns once it waits in the line.
pub(crate) async fn waiter(url: &str, guard: &Guard) -> JoinHandle<()> {
    let locker = Locker::open(url).await.unwrap();
    let lock = locker.lock(guard.name().as_str());
    let waiting =
        tokio::spawn(async move { lock.acquire().await.unwrap().release().await.map(drop).unwrap() });
    within("a waiter", async {
        while locker.inspect(guard.name()).await.unwrap().waiters.is_empty() {
            SystemClock.sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
    waiting
}
