//! Certificates and attempts for the tests of access to a server.

use std::path::Path;
use std::time::Duration;

use leasehold::Locker;
use tokio::process::Command;

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
