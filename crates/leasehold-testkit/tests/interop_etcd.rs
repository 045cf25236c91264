//! leasehold beside other clients of etcd's locks: `etcdctl lock`, and the mutex of etcd's Go client.

use std::time::Duration;

use leasehold::clock::{Clock, Deadline, SystemClock};
use leasehold::lease::Ttl;
use leasehold::url::StoreUrl;
use leasehold::{ErrorKind, HolderInfo, Locker};
use leasehold_testkit::peers::Program;
use leasehold_testkit::process::{Process, within};
use leasehold_testkit::servers::Server;
use leasehold_testkit::stores::etcd::in_line;

use crate::interop;
use crate::workers::Worker;

const TTL: Duration = Duration::from_secs(10);

/// A lock with a unique name, and its prefix for other clients.
struct Shared {
    url: String,
    prefix: String,
    folder: tempfile::TempDir,
}

impl Shared {
    fn new() -> Self {
        let url = Server::ETCD.fresh_url();
        let prefix = format!("{}/job", StoreUrl::parse(&url).unwrap().path().trim_matches('/'));
        Self { url, prefix, folder: tempfile::tempdir().unwrap() }
    }

    async fn locker(&self) -> Locker {
        Locker::open(&self.url).await.unwrap()
    }

    /// Starts the Go mutex, with a session of 10 s.
    fn go(&self, verb: &str, more: &[&str]) -> Process {
        let more: Vec<&str> = ["--ttl", "10"].into_iter().chain(more.iter().copied()).collect();
        Program::ETCD_GO.start(verb, &self.url, &self.prefix, &more)
    }

    /// Starts `etcdctl lock` with a command that prints `granted` and ends when the file `name` exists.
    fn etcdctl(&self, name: &str) -> Process {
        let file = self.folder.path().join(name);
        let script = format!("echo granted; while [ ! -e '{}' ]; do sleep 0.05; done", file.display());
        let endpoint = format!("--endpoints={}", Server::ETCD.address());
        Process::start(
            Program::ETCDCTL.path(),
            [&endpoint, "lock", "--ttl=10", "--", &self.prefix, "sh", "-c", &script],
        )
    }

    fn end_etcdctl(&self, name: &str) {
        std::fs::write(self.folder.path().join(name), "").unwrap();
    }

    async fn in_line(&self, count: usize) {
        in_line(&Server::ETCD.address(), &format!("{}/", self.prefix), count).await;
    }
}

/// Asserts that a try is refused and reports a foreign holder.
async fn assert_held_by_a_stranger(locker: &Locker) -> HolderInfo {
    let refusal = locker.lock("job").try_acquire().await.unwrap_err();
    assert_eq!(refusal.kind(), ErrorKind::Held);
    let held = refusal.holder().unwrap().clone();
    assert!(held.foreign.as_ref().is_some_and(|what| what.contains("another etcd client")), "{held:?}");
    held
}

#[tokio::test]
async fn we_wait_for_the_mutex_in_go() {
    let shared = Shared::new();
    let mut theirs = shared.go("hold", &[]);
    theirs.says("granted").await;
    let locker = shared.locker().await;
    assert_held_by_a_stranger(&locker).await;
    let name = "job".parse().unwrap();
    let refused = locker.evict(&name, leasehold::Token::default()).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unsupported, "an operator of ours does not end what is not ours");
    let waiting = tokio::spawn({
        let lock = locker.lock("job");
        async move { lock.acquire().await }
    });
    shared.in_line(2).await;
    assert!(!waiting.is_finished());
    theirs.end_input();
    let guard = within("our turn", waiting).await.unwrap().unwrap();
    theirs.says("released").await;
    guard.release().await.unwrap();
}

#[tokio::test]
async fn the_mutex_in_go_waits_for_us() {
    let shared = Shared::new();
    let guard = shared.locker().await.lock("job").acquire().await.unwrap();
    let refused = shared.go("try", &[]);
    assert_eq!(refused.end().await, (vec!["held".to_owned()], Some(1)));
    let mut theirs = shared.go("hold", &[]);
    shared.in_line(2).await;
    guard.release().await.unwrap();
    theirs.says("granted").await;
    assert_held_by_a_stranger(&shared.locker().await).await;
    theirs.end_input();
    theirs.says("released").await;
}

#[tokio::test]
async fn etcdctl_lock_and_we_wait_for_each_other() {
    let shared = Shared::new();
    let locker = shared.locker().await;
    let guard = locker.lock("job").acquire().await.unwrap();
    let mut theirs = shared.etcdctl("first");
    shared.in_line(2).await;
    guard.release().await.unwrap();
    theirs.says("granted").await;
    assert_held_by_a_stranger(&locker).await;
    let waiting = tokio::spawn({
        let lock = locker.lock("job");
        async move { lock.acquire().await }
    });
    shared.in_line(2).await;
    shared.end_etcdctl("first");
    within("our turn", waiting).await.unwrap().unwrap().release().await.unwrap();
}

/// All clients wait in one line, in the order of their arrival.
#[tokio::test]
async fn all_clients_wait_in_one_line() {
    let shared = Shared::new();
    let guard = shared.locker().await.lock("job").acquire().await.unwrap();
    let (told, mut order) = tokio::sync::mpsc::unbounded_channel();
    let mut tasks = tokio::task::JoinSet::new();
    for (n, who) in ["go", "ours", "etcdctl", "ours", "go", "etcdctl", "ours"].into_iter().enumerate() {
        let told = told.clone();
        let name = n.to_string();
        match who {
            "ours" => {
                let lock = shared.locker().await.lock("job");
                tasks.spawn(async move {
                    let guard = lock.acquire().await.unwrap();
                    told.send(n).unwrap();
                    guard.release().await.unwrap();
                });
            }
            "go" => {
                let mut process = shared.go("hold", &[]);
                tasks.spawn(async move {
                    process.says("granted").await;
                    told.send(n).unwrap();
                    process.end_input();
                    process.says("released").await;
                });
            }
            _ => {
                let (mut process, file) = (shared.etcdctl(&name), shared.folder.path().join(&name));
                tasks.spawn(async move {
                    process.says("granted").await;
                    told.send(n).unwrap();
                    std::fs::write(file, "").unwrap();
                    assert_eq!(process.end().await.1, Some(0));
                });
            }
        }
        shared.in_line(n + 2).await;
    }
    guard.release().await.unwrap();
    within("all turns", async { while tasks.join_next().await.map(Result::unwrap).is_some() {} }).await;
    drop(told);
    let mut seen = Vec::new();
    while let Some(n) = order.recv().await {
        seen.push(n);
    }
    assert_eq!(seen, [0, 1, 2, 3, 4, 5, 6]);
}

/// Four processes of each client add to one counter that only the lock protects.
#[tokio::test]
async fn four_of_theirs_and_four_of_ours_count_exactly() {
    let shared = Shared::new();
    let ours = |more: &[&str]| Worker::start("increment", &shared.url, "job", more);
    let theirs = |_, more: &[&str]| shared.go("increment", more);
    interop::count_exactly(4, 25, ours, theirs).await;
}

#[tokio::test]
async fn each_kind_takes_over_after_a_killed_holder_of_the_other() {
    let shared = Shared::new();
    let mut theirs = shared.go("hold", &[]);
    theirs.says("granted").await;
    let mut ours = Worker::start("hold", &shared.url, "job", &["--ttl", "10"]);
    shared.in_line(2).await;
    theirs.kill().await;
    ours.granted().await;
    let alive = Deadline::new(SystemClock.now(), Ttl::new(TTL).unwrap().holder_span() / 3);
    let mut theirs = shared.go("hold", &[]);
    shared.in_line(2).await;
    ours.kill().await;
    theirs.says("granted").await;
    assert!(alive.passed(SystemClock.now()), "granted before the lease of the dead can have ended");
}
