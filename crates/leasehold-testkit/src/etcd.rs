//! etcd for tests: the member that `./test` starts, and etcd's own tool.

use std::process::Stdio;

use leasehold::lease::Id;
use leasehold::random::Random;
use tokio::process::Command;

/// What `./test` gives in an environment variable.
///
/// # Panics
/// When it was not given: nothing is skipped in silence.
pub fn given(variable: &str) -> String {
    std::env::var(variable).unwrap_or_else(|_| {
        panic!("{variable} is not set: run ./test, which installs and starts what the tests need, and sets it")
    })
}

/// The store URL of the member that `./test` starts, with a prefix that nobody else uses.
pub fn fresh_url() -> String {
    format!("{}{}/", given("LEASEHOLD_TEST_ETCD"), Id::random(&Random::from_os()))
}

/// Runs etcd's own tool on `endpoint`, and gives what it says.
///
/// # Panics
/// When it fails.
pub async fn etcdctl(endpoint: &str, arguments: &[&str]) -> String {
    let output = Command::new(given("LEASEHOLD_TEST_ETCDCTL"))
        .env("ETCDCTL_API", "3")
        .args(["--endpoints", endpoint])
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .await
        .unwrap();
    assert!(output.status.success(), "etcdctl {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}
