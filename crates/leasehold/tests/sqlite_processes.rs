//! Real processes on one SQLite file: each is this test program again, in the role that an environment variable names.
#![cfg(feature = "sqlite")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test stops at the first surprise"
)]

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use leasehold::{ErrorKind, Locker};

const ROLE: &str = "LEASEHOLD_TEST_ROLE";
const FOLDER: &str = "LEASEHOLD_TEST_FOLDER";

/// Longer than any test: nothing here may depend on a lease that runs out.
const TTL: Duration = Duration::from_secs(24 * 60 * 60);

const PROCESSES: u32 = 6;
const ROUNDS: u32 = 20;

fn url(folder: &Path) -> String {
    format!("sqlite:{}", folder.join("locks.db").display())
}

/// This program as another process in `role`.
fn start(role: &str, folder: &Path) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "role", "--nocapture"])
        .env(ROLE, role)
        .env(FOLDER, folder)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// What the other processes do; nothing in the test run itself.
#[tokio::test]
async fn role() {
    let (Ok(role), Some(folder)) = (std::env::var(ROLE), std::env::var_os(FOLDER)) else { return };
    let folder = Path::new(&folder);
    let locker = Locker::open(&url(folder)).await.unwrap();
    match role.as_str() {
        "count" => count(&locker, &folder.join("counter")).await,
        "hold" => hold(&locker).await,
        "hand on" => hand_on(&locker).await,
        other => panic!("no role {other}"),
    }
}

/// Adds to a number in a file, in the way that loses additions unless one process at a time does it.
async fn count(locker: &Locker, file: &Path) {
    for _ in 0..ROUNDS {
        let guard = locker.lock("counter").ttl(TTL).acquire().await.unwrap();
        let number: u32 = fs::read_to_string(file).unwrap().parse().unwrap();
        tokio::task::yield_now().await;
        fs::write(file, (number + 1).to_string()).unwrap();
        guard.release().await.unwrap();
    }
}

async fn hold(locker: &Locker) {
    let guard = locker.lock("held").ttl(TTL).acquire().await.unwrap();
    eprintln!("\nholding {}", guard.token());
    std::future::pending::<()>().await;
}

async fn hand_on(locker: &Locker) {
    let ticket = locker.lock("held").ttl(TTL).acquire().await.unwrap().into_ticket().await.unwrap();
    eprintln!("\nticket {ticket}");
}

/// The rest of the line of `child`'s messages that begins with `word`.
fn said(child: &mut Child, word: &str) -> String {
    let lines = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
    let line = lines.into_iter().find_map(|line| line.strip_prefix(word).map(str::to_owned));
    line.expect("the process ended without a word").trim().to_owned()
}

#[tokio::test]
async fn processes_that_count_under_a_lock_lose_no_addition() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("counter"), "0").unwrap();
    let children: Vec<_> = (0..PROCESSES).map(|_| start("count", folder.path())).collect();
    for child in children {
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    let number: u32 = fs::read_to_string(folder.path().join("counter")).unwrap().parse().unwrap();
    assert_eq!(number, PROCESSES * ROUNDS);
}

#[tokio::test]
#[cfg(target_os = "linux")]
async fn a_holder_that_is_killed_is_succeeded_without_waiting_for_its_lease() {
    let folder = tempfile::tempdir().unwrap();
    let mut holder = start("hold", folder.path());
    let token: u64 = said(&mut holder, "holding").parse().unwrap();
    let locker = Locker::open(&url(folder.path())).await.unwrap();
    let lock = locker.lock("held");
    assert_eq!(lock.try_acquire().await.unwrap_err().kind(), ErrorKind::Held);
    let waiting = lock.acquire_within(Duration::from_secs(60));
    let (guard, ()) = tokio::join!(waiting, async { holder.kill().unwrap() });
    let guard = guard.unwrap();
    assert!(guard.token().get() > token);
    guard.release().await.unwrap();
    holder.wait().unwrap();
}

#[tokio::test]
async fn a_ticket_outlives_the_process_that_acquired_it() {
    let folder = tempfile::tempdir().unwrap();
    let mut giver = start("hand on", folder.path());
    let ticket = said(&mut giver, "ticket").parse().unwrap();
    giver.wait().unwrap();
    let locker = Locker::open(&url(folder.path())).await.unwrap();
    assert_eq!(locker.lock("held").try_acquire().await.unwrap_err().kind(), ErrorKind::Held);
    assert!(locker.renew(&ticket).await.unwrap() > TTL / 2);
    locker.release(&ticket).await.unwrap();
    locker.lock("held").try_acquire().await.unwrap().release().await.unwrap();
}
