//! Tests of the whole store on real files. They advance the clock themselves, so no test waits for a lease.

mod disk;
mod files;
mod identity;
mod leases;
mod requests;
mod succession;
mod waiters;

use futures_util::TryStreamExt;
use std::fs;
use std::path::PathBuf;

#[cfg(target_os = "linux")]
use super::machine::tests::Sleeper;
use super::*;
use crate::clock::{Clock, SystemClock, TestClock};
use crate::lease::{End, Holder, HolderInfo, LossReason, State, Ttl, Watch, deadline};

const TTL: Duration = Duration::from_secs(30);

/// A folder with a lock file, and a clock that all its stores share.
struct Site {
    folder: tempfile::TempDir,
    clock: Arc<TestClock>,
    machine: Machine,
}

impl Site {
    fn new() -> Self {
        Self {
            folder: tempfile::tempdir().unwrap(),
            clock: Arc::default(),
            machine: Machine { boot: "boot 1".into(), ..Machine::this().unwrap() },
        }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("locks.db")
    }

    async fn try_open(&self) -> Result<SqliteLeases, StoreError> {
        let env = Env { clock: self.clock.clone(), random: Env::system().random };
        let location = Location { path: self.path(), allow_network: false, is_default: false };
        SqliteLeases::open(location, self.machine.clone(), env).await
    }

    async fn open(&self) -> SqliteLeases {
        self.try_open().await.unwrap()
    }

    /// Opens the same file as another process on the same machine.
    #[cfg(target_os = "linux")]
    async fn open_as(&self, process: &machine::Process) -> SqliteLeases {
        let machine = Machine { me: Some(process.clone()), ..self.machine.clone() };
        let mut store = self.open().await;
        store.machine = Arc::new(machine);
        store
    }

    /// Restarts the boot clock. The wall clock continues (to the second).
    fn reboot(&mut self) {
        self.machine.boot.push('+');
        let before = self.clock.now().wall_us();
        self.clock = Arc::default();
        self.clock.step_wall(((before - self.clock.now().wall_us()) / 1_000_000).try_into().unwrap());
    }

    fn sql(&self, sql: &str) {
        rusqlite::Connection::open(self.path()).unwrap().execute_batch(sql).unwrap();
    }

    fn delete(&self) {
        for suffix in ["", "-wal", "-shm"] {
            let _ = fs::remove_file(format!("{}{suffix}", self.path().display()));
        }
    }
}

fn name() -> LockName {
    LockName::new("deploy/prod").unwrap()
}

fn claim(store: &SqliteLeases) -> Claim {
    Claim::new(&store.env, name(), Ttl::new(TTL).unwrap(), Holder::this_process())
}

async fn verdict(store: &SqliteLeases) -> AcquireOutcome {
    store.try_acquire(&claim(store)).await.unwrap()
}

async fn grant(store: &SqliteLeases) -> Grant {
    match verdict(store).await {
        AcquireOutcome::Granted(grant) => grant,
        other => panic!("not granted: {other:?}"),
    }
}

async fn held(store: &SqliteLeases) -> HolderInfo {
    match verdict(store).await {
        AcquireOutcome::Held(held) => held,
        other => panic!("not held: {other:?}"),
    }
}

async fn lost_by(store: &SqliteLeases, grant: &mut Grant) -> LossReason {
    match store.renew(grant).await.unwrap() {
        Renewal::Lost(loss) => loss.reason,
        Renewal::Renewed => panic!("renewed"),
    }
}

/// Keeps the file of a store in use until it is dropped.
struct Gate {
    _open: std::sync::mpsc::Sender<()>,
}

impl Gate {
    async fn close(store: &Arc<SqliteLeases>) -> Self {
        Self::close_in(store, &tokio::runtime::Handle::current()).await
    }

    async fn close_in(store: &Arc<SqliteLeases>, runtime: &tokio::runtime::Handle) -> Self {
        let (open, opened) = std::sync::mpsc::channel::<()>();
        let (begin, begun) = tokio::sync::oneshot::channel();
        let (store, mut begin) = (store.clone(), Some(begin));
        runtime.spawn(async move {
            let work = move |_: &mut Connection| {
                begin.take().map(|begin| begin.send(()));
                // Blocks until the sender is dropped.
                let _ = opened.recv();
                Ok(())
            };
            store.database.run(&store.env, STORE_TIMEOUT, Purpose::Read, work).await
        });
        begun.await.unwrap();
        Self { _open: open }
    }
}

/// Returns the time from the last renewal until the lease lapses.
fn span() -> Duration {
    Ttl::new(TTL).unwrap().contender_span()
}

#[tokio::test]
async fn the_history_keeps_the_latest_eight() {
    let site = Site::new();
    let store = site.open().await;
    let mut tokens = Vec::new();
    for _ in 0..10 {
        let mut grant = grant(&store).await;
        tokens.insert(0, grant.token);
        store.release(&mut grant, None).await.unwrap();
    }
    let history = store.inspect(&name()).await.unwrap().history;
    assert_eq!(history.iter().map(|past| past.token).collect::<Vec<_>>(), tokens[..8]);
    assert!(history.iter().all(|past| past.end == End::Released));
}

#[tokio::test]
async fn names_are_listed_by_prefix_page_by_page() {
    let site = Site::new();
    let store = site.open().await;
    let mut expected = Vec::new();
    for number in 0..PAGE + 10 {
        expected.push(format!("a_/{number:04}"));
    }
    let values =
        expected.iter().map(|name| format!("('{name}', '{{}}', '', 0)")).collect::<Vec<_>>().join(",");
    site.sql(&format!(
        "INSERT INTO lock (name, record, boot, renewed_ns) VALUES {values}, ('ab/x', '{{}}', '', 0), ('../x', '{{}}', '', 0)"
    ));
    let listed = |prefix: &'static str| {
        let names = store.list(prefix).map_ok(|name| name.to_string());
        async move { names.try_collect::<Vec<_>>().await.unwrap() }
    };
    assert_eq!(listed("a_").await, expected);
    assert_eq!(listed("ab").await, ["ab/x"]);
    assert_eq!(listed("%").await, [""; 0]);
    assert_eq!(listed("").await.len(), expected.len() + 1);
}

#[tokio::test]
async fn a_waiter_learns_of_a_release_by_another_process() {
    let site = Site::new();
    let (one, two) = (site.open().await, site.open().await);
    let mut first = grant(&one).await;
    let seen = held(&two).await;
    let name = name();
    let (changed, released) = tokio::join!(two.changed(&name, &seen), one.release(&mut first, None));
    changed.unwrap();
    released.unwrap();
    grant(&two).await;
    // Another grant now holds the lock, so the waiter wakes.
    two.changed(&name, &seen).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_waiter_wakes_at_the_lapse_and_not_before() {
    let site = Site::new();
    let store = site.open().await;
    grant(&store).await;
    let seen = held(&store).await;
    let start = store.env.now();
    store.changed(&name(), &seen).await.unwrap();
    let waited = store.env.now().longest_since(start);
    assert!((span()..span() + Duration::from_millis(5)).contains(&waited), "{waited:?}");
}

#[tokio::test]
async fn capabilities_match_what_the_store_does() {
    let site = Site::new();
    let capabilities = site.open().await.capabilities();
    assert!(capabilities.tokens && capabilities.cooldowns && capabilities.fifo() && !capabilities.watches);
    assert_eq!(capabilities.sees_dead_processes, cfg!(target_os = "linux"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_tasks_on_two_stores_never_hold_the_lock_together() {
    let site = Site::new();
    let env = Env { clock: Arc::new(SystemClock), random: Env::system().random };
    let inside = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let tokens = Arc::new(std::sync::Mutex::new(Vec::new()));
    let mut stores = Vec::new();
    for _ in 0..2 {
        let location = Location { path: site.path(), allow_network: false, is_default: false };
        stores.push(Arc::new(SqliteLeases::open(location, site.machine.clone(), env.clone()).await.unwrap()));
    }
    let tasks = (0..16).map(|number| {
        let (store, inside, tokens) = (stores[number % 2].clone(), inside.clone(), tokens.clone());
        tokio::spawn(async move {
            for _ in 0..5 {
                let mut grant = loop {
                    match verdict(&store).await {
                        AcquireOutcome::Granted(grant) => break grant,
                        AcquireOutcome::Held(held) => store.changed(&name(), &held).await.unwrap(),
                        AcquireOutcome::Lost(loss) => panic!("{loss}"),
                    }
                };
                assert!(!inside.swap(true, std::sync::atomic::Ordering::SeqCst), "two holders");
                tokens.lock().unwrap().push(grant.token);
                tokio::task::yield_now().await;
                inside.store(false, std::sync::atomic::Ordering::SeqCst);
                assert_eq!(store.release(&mut grant, None).await.unwrap(), Released::Released);
            }
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        task.await.unwrap();
    }
    let tokens = tokens.lock().unwrap();
    assert_eq!(tokens.len(), 80);
    assert!(tokens.is_sorted_by(|earlier, later| earlier < later));
}
