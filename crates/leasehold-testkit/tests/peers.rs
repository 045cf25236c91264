//! Other lock clients among themselves. Checks the behaviour on which the tests that mix them with leasehold rely.

use leasehold::lease::Id;
use leasehold::random::Random;
use leasehold_testkit::peers::Program;
use leasehold_testkit::process::Process;
use leasehold_testkit::servers::Server;

const PROCESSES: usize = 4;
const TIMES: usize = 10;

/// Returns the name of a unique lock.
fn fresh_lock() -> String {
    format!("peers/{}", Id::random(&Random::from_os()))
}

async fn exclude_each_other(peer: Program, server: Server, more: &[&str]) {
    let (url, lock) = (server.url(), fresh_lock());
    let more = [&["--ttl", "10"], more].concat();
    let mut holder = peer.start("hold", &url, &lock, &more);
    holder.says("granted").await;
    assert_eq!(peer.start("try", &url, &lock, &more).end().await, (vec!["held".to_owned()], Some(1)));
    assert_eq!(holder.end().await, (vec!["released".to_owned()], Some(0)));
    assert_eq!(peer.start("try", &url, &lock, &more).end().await, (vec!["granted".to_owned()], Some(0)));
    count_exactly(peer, &url, &more).await;
}

async fn count_exactly(peer: Program, url: &str, more: &[&str]) {
    let (folder, lock) = (tempfile::tempdir().unwrap(), fresh_lock());
    let file = folder.path().join("counter");
    std::fs::write(&file, "0").unwrap();
    let times = TIMES.to_string();
    let more = [more, &["--file", file.to_str().unwrap(), "--times", &times]].concat();
    let peers: Vec<_> = (0..PROCESSES).map(|_| peer.start("increment", url, &lock, &more)).collect();
    let mut held = Vec::new();
    for peer in peers {
        let (said, code) = peer.end().await;
        assert_eq!(code, Some(0), "a peer failed");
        held.extend(said.iter().map(|line| {
            let times =
                line.split_once(' ').map(|(from, until)| (from.parse::<u128>(), until.parse::<u128>()));
            let Some((Ok(from), Ok(until))) = times else { panic!("a peer printed {line:?}") };
            (from, until)
        }));
    }
    assert_eq!(std::fs::read_to_string(&file).unwrap(), (PROCESSES * TIMES).to_string());
    held.sort_unstable();
    assert_eq!(held.len(), PROCESSES * TIMES);
    for pair in held.windows(2) {
        assert!(pair[0].1 <= pair[1].0, "held by two at once: {pair:?}");
    }
}

#[tokio::test]
async fn lock_clients_in_java() {
    exclude_each_other(Program::DYNAMODB_JAVA, Server::DYNAMODB_MOTO, &["--keep"]).await;
    exclude_each_other(Program::DYNAMODB_JAVA, Server::DYNAMODB_LOCAL, &[]).await;
    exclude_each_other(Program::DYNAMODB_JAVA, Server::DYNAMODB_LOCAL, &["--keep", "--update"]).await;
}

#[tokio::test]
async fn lock_clients_in_go() {
    for server in Server::DYNAMODB {
        exclude_each_other(Program::DYNAMODB_GO, *server, &[]).await;
        exclude_each_other(Program::DYNAMODB_GO, *server, &["--delete"]).await;
    }
}

#[tokio::test]
async fn mutexes_of_etcd() {
    exclude_each_other(Program::ETCD_GO, Server::ETCD, &[]).await;
}

/// Checks the output and the actions of the benchmark's contenders. They are counted, not timed.
async fn speaks_the_protocol_of_the_benchmark(peer: Program, server: Server) {
    let url = server.url();
    contend(peer, &url, &["--count", "3"], Some(12)).await;
    // Waiters give up when the time is over.
    contend(peer, &url, &["--seconds", "1"], None).await;

    let lock = fresh_lock();
    let mut holder = started(peer, "hold", &url, &lock, &[]).await;
    let said = holder.line().await.unwrap();
    let (word, when) = said.split_once(' ').unwrap();
    assert!(word == "granted" && when.parse::<u64>().is_ok(), "{said}");
    assert_eq!(holder.end().await, (vec![], Some(0)));
    // The lock was released, so the next holder does not wait for the lease to end.
    let mut next = started(peer, "hold", &url, &lock, &["--ttl-ms", "3600000"]).await;
    assert!(next.line().await.unwrap().starts_with("granted "));
    assert_eq!(next.end().await.1, Some(0));

    let lock = fresh_lock();
    for _ in 0..2 {
        let mut holder = started(peer, "many", &url, &lock, &["--locks", "70", "--seconds", "1"]).await;
        holder.says("held").await;
        assert_eq!(holder.end().await, (vec!["done".to_owned()], Some(0)));
    }
}

async fn started(peer: Program, verb: &str, url: &str, lock: &str, more: &[&str]) -> Process {
    let ttl: &[&str] = if more.contains(&"--ttl-ms") { &[] } else { &["--ttl-ms", "30000"] };
    let mut process = peer.contender(verb, url, lock, &[ttl, more].concat());
    process.says("ready").await;
    process.tell("go").await;
    process
}

/// Runs two processes of two tasks each, which hold the lock for long enough to overlap if they can. They must make
/// exactly `acquisitions` acquisitions, if given.
async fn contend(peer: Program, url: &str, until: &[&str], acquisitions: Option<usize>) {
    let lock = fresh_lock();
    let more = [&["--tasks", "2", "--hold-us", "20000", "--ttl-ms", "30000"], until].concat();
    let mut contenders = Vec::new();
    for _ in 0..2 {
        let mut process = peer.contender("contend", url, &lock, &more);
        process.says("ready").await;
        contenders.push(process);
    }
    for process in &mut contenders {
        process.tell("go").await;
    }
    let mut held = Vec::new();
    for process in contenders {
        let (mut said, code) = process.end().await;
        assert_eq!((said.pop().as_deref(), code), (Some("done"), Some(0)));
        held.extend(said.iter().map(|line| acquisition(line)));
    }
    assert!(acquisitions.is_none_or(|expected| held.len() == expected), "{held:?}");
    held.sort_unstable();
    for pair in held.windows(2) {
        assert!(pair[0].1 <= pair[1].0, "held by two at once: {pair:?}");
    }
}

/// Returns the times between which a lock was held.
fn acquisition(line: &str) -> (u64, u64) {
    let words: Vec<u64> =
        line.strip_prefix("E ").unwrap().split(' ').map(|word| word.parse().unwrap()).collect();
    let [task, asked, granted, releasing, released] = words[..] else { panic!("{line}") };
    assert!(task < 2 && asked <= granted && granted + 10_000 <= releasing && releasing <= released, "{line}");
    (granted, releasing)
}

#[tokio::test]
async fn contenders_of_the_benchmark_with_lock_clients_in_java() {
    speaks_the_protocol_of_the_benchmark(Program::DYNAMODB_JAVA, Server::DYNAMODB_LOCAL).await;
}

#[tokio::test]
async fn contenders_of_the_benchmark_with_lock_clients_in_go() {
    speaks_the_protocol_of_the_benchmark(Program::DYNAMODB_GO, Server::DYNAMODB_LOCAL).await;
}

#[tokio::test]
async fn contenders_of_the_benchmark_with_mutexes_of_etcd() {
    speaks_the_protocol_of_the_benchmark(Program::ETCD_GO, Server::ETCD).await;
}
