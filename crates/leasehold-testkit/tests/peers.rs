//! Clients by others, among themselves: what the tests that mix them with leasehold rely on.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // A panic is how a test fails.

use leasehold::lease::Id;
use leasehold::random::Random;
use leasehold_testkit::peers::Program;
use leasehold_testkit::servers::Server;

const PROCESSES: usize = 4;
const TIMES: usize = 10;

/// A lock that nobody else uses.
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
            let (from, until) = line.split_once(' ').unwrap();
            (from.parse::<u128>().unwrap(), until.parse::<u128>().unwrap())
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
    exclude_each_other(Program::DynamoDbJava, Server::DynamoDbMoto, &["--keep"]).await;
    exclude_each_other(Program::DynamoDbJava, Server::DynamoDbLocal, &[]).await;
    exclude_each_other(Program::DynamoDbJava, Server::DynamoDbLocal, &["--keep", "--update"]).await;
}

#[tokio::test]
async fn lock_clients_in_go() {
    for server in Server::DYNAMODB {
        exclude_each_other(Program::DynamoDbGo, *server, &[]).await;
        exclude_each_other(Program::DynamoDbGo, *server, &["--delete"]).await;
    }
}

#[tokio::test]
async fn mutexes_of_etcd() {
    exclude_each_other(Program::EtcdGo, Server::Etcd, &[]).await;
}
