//! Several processes share one SQLite file. Each process is this test program, which reads its role from an environment
//! variable.

use std::fs;
use std::io::{self, Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use leasehold::clock::{Clock, SystemClock};
use leasehold::{ErrorKind, LockName, Locker};

const ROLE: &str = "LEASEHOLD_TEST_ROLE";
const FOLDER: &str = "LEASEHOLD_TEST_FOLDER";

/// Longer than any test, because no test may depend on the end of a lease.
const TTL: Duration = Duration::from_secs(24 * 60 * 60);

/// The time limit of a test.
const TEST_LIMIT: Duration = Duration::from_secs(60);

const PROCESSES: u32 = 6;
const ROUNDS: u32 = 20;

fn url(folder: &Path) -> String {
    format!("sqlite:{}", folder.join("locks.db").display())
}

/// This program in another process, which is killed on drop.
struct Worker(Child);

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(role: &str, folder: &Path) -> Worker {
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "sqlite_processes::role", "--nocapture"])
        .env(ROLE, role)
        .env(FOLDER, folder)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn();
    Worker(child.unwrap())
}

/// Runs the role of another process. Does nothing in the test run itself.
#[tokio::test]
async fn role() {
    let (Ok(role), Some(folder)) = (std::env::var(ROLE), std::env::var_os(FOLDER)) else { return };
    let folder = Path::new(&folder);
    let locker = Locker::open(&url(folder)).await.unwrap();
    match role.as_str() {
        "count" => count(&locker, &folder.join("counter")).await,
        "log" => log(&locker, &folder.join("log")).await,
        "hold" => hold(&locker).await,
        "hand on" => hand_on(&locker).await,
        "renew" => renew(&locker).await,
        other => match other.strip_prefix("join ") {
            Some(number) => join(&locker, number, &folder.join("order")).await,
            None => panic!("no role {other}"),
        },
    }
}

/// Waits for the lock, and appends the number of this process and the time of its grant to a file.
async fn join(locker: &Locker, number: &str, file: &Path) {
    let guard = locker.lock("held").ttl(TTL).acquire_within(TEST_LIMIT).await.unwrap();
    let granted_ms = SystemClock.now().since_boot().as_millis();
    let mut file = fs::OpenOptions::new().append(true).open(file).unwrap();
    file.write_all(format!("{number} {granted_ms}\n").as_bytes()).unwrap();
    guard.release().await.unwrap();
}

/// Increments a number in a file that only the lock protects.
async fn count(locker: &Locker, file: &Path) {
    for _ in 0..ROUNDS {
        let guard = locker.lock("counter").ttl(TTL).acquire_within(TEST_LIMIT).await.unwrap();
        let number: u32 = fs::read_to_string(file).unwrap().parse().unwrap();
        tokio::task::yield_now().await;
        fs::write(file, (number + 1).to_string()).unwrap();
        guard.release().await.unwrap();
    }
}

/// Appends the token of each grant to a file, in an endless loop. Each entry takes two writes, and no other process may
/// write between them.
async fn log(locker: &Locker, file: &Path) {
    let mut file = fs::OpenOptions::new().append(true).open(file).unwrap();
    loop {
        let guard = locker.lock("log").ttl(TTL).acquire().await.unwrap();
        write!(file, "<{}", guard.token().unwrap()).unwrap();
        tokio::task::yield_now().await;
        writeln!(file, ">").unwrap();
        guard.release().await.unwrap();
    }
}

async fn hold(locker: &Locker) {
    let guard = locker.lock("held").ttl(TTL).acquire().await.unwrap();
    eprintln!("\nholding {}", guard.token().unwrap());
    std::future::pending::<()>().await;
}

async fn hand_on(locker: &Locker) {
    let ticket = locker.lock("held").ttl(TTL).acquire().await.unwrap().into_ticket().await.unwrap();
    eprintln!("\nticket {ticket}");
}

/// Acquires the lock, and renews it on request.
async fn renew(locker: &Locker) {
    let ticket = locker.lock("held").ttl(TTL).acquire().await.unwrap().into_ticket().await.unwrap();
    eprintln!("\nholding {}", ticket.token());
    io::stdin().read_line(&mut String::new()).unwrap();
    match locker.renew(&ticket).await {
        Ok(_) => eprintln!("\nrenewed"),
        Err(error) => eprintln!("\nerror {:?}", error.kind()),
    }
}

/// Returns the next line of the worker's output that begins with `word`, without that word.
fn said(worker: &mut Worker, word: &str) -> String {
    // Read byte by byte, so that the rest is left for the next call.
    let messages = worker.0.stderr.as_mut().unwrap();
    loop {
        let mut line = Vec::new();
        while !line.ends_with(b"\n") {
            let mut byte = [0];
            messages.read_exact(&mut byte).expect("the process ended without output");
            line.extend(byte);
        }
        if let Some(rest) = String::from_utf8(line).unwrap().strip_prefix(word) {
            return rest.trim().to_owned();
        }
    }
}

#[tokio::test]
async fn processes_that_count_under_a_lock_lose_no_addition() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("counter"), "0").unwrap();
    let workers: Vec<_> = (0..PROCESSES).map(|_| start("count", folder.path())).collect();
    for mut worker in workers {
        let messages = io::read_to_string(worker.0.stderr.take().unwrap()).unwrap();
        assert!(worker.0.wait().unwrap().success(), "{messages}");
    }
    let number: u32 = fs::read_to_string(folder.path().join("counter")).unwrap().parse().unwrap();
    assert_eq!(number, PROCESSES * ROUNDS);
}

#[tokio::test]
#[cfg(target_os = "linux")]
async fn a_killed_holders_lock_is_granted_before_its_lease_ends() {
    let folder = tempfile::tempdir().unwrap();
    let mut holder = start("hold", folder.path());
    let token: u64 = said(&mut holder, "holding").parse().unwrap();
    let locker = Locker::open(&url(folder.path())).await.unwrap();
    let lock = locker.lock("held");
    assert_eq!(lock.try_acquire().await.unwrap_err().kind(), ErrorKind::Held);
    let waiting = lock.acquire_within(TEST_LIMIT);
    let (guard, ()) = tokio::join!(waiting, async { holder.0.kill().unwrap() });
    let guard = guard.unwrap();
    assert!(guard.token().unwrap().get() > token);
    guard.release().await.unwrap();
}

#[test]
#[cfg(target_os = "linux")]
fn killed_processes_leave_no_second_holder_and_no_stuck_lock() {
    const KILLS: usize = 12;
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log");
    fs::write(&log, "").unwrap();
    let length = || fs::metadata(&log).unwrap().len();
    let mut workers: Vec<_> = (0..3).map(|_| start("log", folder.path())).collect();
    for kill in 0..KILLS {
        // The others continue, although the killed process may have held the lock with a lease of a day.
        let (before, start_of_wait) = (length(), SystemClock.now());
        while length() < before + 400 {
            assert!(SystemClock.now().longest_since(start_of_wait) < TEST_LIMIT, "the lock is stuck");
            std::thread::yield_now();
        }
        let worker = &mut workers[kill % 3];
        assert_eq!(worker.0.try_wait().unwrap(), None, "it is still at work");
        *worker = start("log", folder.path());
    }
    drop(workers);
    // A process that was killed between its two writes leaves an open line, and the next grant begins after it.
    let text = fs::read_to_string(&log).unwrap();
    let open = text.matches('<').count() - text.matches('>').count();
    assert!(open <= KILLS + 3, "{open} lines were left open by {KILLS} kills");
    let grants: Vec<&str> = text.split('<').skip(1).collect();
    let closed = grants.iter().filter(|grant| grant.trim_end().ends_with('>')).count();
    assert_eq!(closed + open, grants.len(), "a process wrote between the two writes of another");
    let tokens: Vec<u64> =
        grants.iter().map(|grant| grant.trim_end_matches(['>', '\n']).parse().unwrap()).collect();
    assert!(tokens.is_sorted_by(|earlier, later| earlier < later), "{tokens:?}");
}

#[tokio::test]
#[cfg(target_os = "linux")]
async fn waiting_processes_get_the_lock_in_order_of_arrival() {
    const WAITING: u32 = 8;
    const KILLED: u32 = 3;
    let folder = tempfile::tempdir().unwrap();
    let order = folder.path().join("order");
    fs::write(&order, "").unwrap();
    let locker = Locker::open(&url(folder.path())).await.unwrap();
    let guard = locker.lock("held").ttl(TTL).acquire().await.unwrap();
    let file = rusqlite::Connection::open(folder.path().join("locks.db")).unwrap();
    let in_line = || file.query_row("SELECT count(*) FROM waiter", (), |row| row.get::<_, u32>(0)).unwrap();
    let mut workers = Vec::new();
    for number in 0..WAITING {
        workers.push(start(&format!("join {number}"), folder.path()));
        let start_of_wait = SystemClock.now();
        while in_line() <= number {
            assert!(SystemClock.now().longest_since(start_of_wait) < TEST_LIMIT, "it does not join");
            std::thread::yield_now();
        }
    }
    drop(workers.remove(KILLED as usize));
    assert_eq!(in_line(), WAITING, "a killed process leaves its row");
    guard.release().await.unwrap();
    for mut worker in workers {
        let messages = io::read_to_string(worker.0.stderr.take().unwrap()).unwrap();
        assert!(worker.0.wait().unwrap().success(), "{messages}");
    }
    let text = fs::read_to_string(&order).unwrap();
    let (numbers, granted_ms): (Vec<u32>, Vec<u64>) = text
        .lines()
        .map(|line| line.split_once(' ').unwrap())
        .map(|(number, ms)| (number.parse::<u32>().unwrap(), ms.parse::<u64>().unwrap()))
        .unzip();
    assert_eq!(numbers, (0..WAITING).filter(|number| *number != KILLED).collect::<Vec<_>>());
    // A waiter that does not respond delays the next one by 1.1 s.
    let gap_ms = granted_ms[KILLED as usize] - granted_ms[KILLED as usize - 1];
    assert!(gap_ms < 1_000, "the killed process delayed the next one by {gap_ms} ms");
    assert_eq!(in_line(), 0);
}

#[tokio::test]
async fn a_ticket_outlives_the_process_that_acquired_it() {
    let folder = tempfile::tempdir().unwrap();
    let mut giver = start("hand on", folder.path());
    let ticket = said(&mut giver, "ticket").parse().unwrap();
    giver.0.wait().unwrap();
    let locker = Locker::open(&url(folder.path())).await.unwrap();
    assert_eq!(locker.lock("held").try_acquire().await.unwrap_err().kind(), ErrorKind::Held);
    assert!(locker.renew(&ticket).await.unwrap().remaining() > TTL / 2);
    locker.release(&ticket).await.unwrap();
    locker.lock("held").try_acquire().await.unwrap().release().await.unwrap();
}

/// The combinations in which the files beside the database can be deleted.
const COMPANIONS: [&[&str]; 3] = [&["-wal", "-shm"], &["-wal"], &["-shm"]];

fn delete(folder: &Path, suffixes: &[&str]) {
    for suffix in suffixes {
        fs::remove_file(folder.join(format!("locks.db{suffix}"))).unwrap();
    }
}

#[tokio::test]
async fn a_log_deleted_while_in_use_leaves_one_holder() {
    for suffixes in COMPANIONS {
        let folder = tempfile::tempdir().unwrap();
        let mut holder = start("renew", folder.path());
        let token: u64 = said(&mut holder, "holding").parse().unwrap();
        delete(folder.path(), suffixes);
        // Another process may now see wrong data, because the files are gone. Both processes must agree on the result.
        let other = Locker::open(&url(folder.path())).await;
        let granted = match &other {
            Ok(locker) => locker.lock("held").ttl(TTL).try_acquire().await.ok(),
            Err(_) => None,
        };
        holder.0.stdin.take().unwrap().write_all(b"renew\n").unwrap();
        let mut messages = String::new();
        holder.0.stderr.take().unwrap().read_to_string(&mut messages).unwrap();
        let renewed = messages.contains("\nrenewed");
        assert!(renewed || messages.contains("\nerror"), "{messages}");
        if let Some(guard) = granted {
            assert!(!renewed, "{suffixes:?}: two holders, of {token} and of {:?}", guard.token());
            guard.check().unwrap();
        }
    }
}

#[tokio::test]
async fn a_process_that_only_inspects_keeps_the_log_of_others() {
    let folder = tempfile::tempdir().unwrap();
    let looking = Locker::open(&url(folder.path())).await.unwrap();
    looking.inspect(&LockName::new("held").unwrap()).await.unwrap();
    delete(folder.path(), COMPANIONS[0]);
    said(&mut start("hand on", folder.path()), "ticket");
    // The last process to close the database writes the log into it and deletes the log.
    drop(looking);
    let locker = Locker::open(&url(folder.path())).await.unwrap();
    assert_eq!(locker.lock("held").try_acquire().await.unwrap_err().kind(), ErrorKind::Held);
}
