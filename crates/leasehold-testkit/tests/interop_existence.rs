//! `?protocol=existence` beside handwritten clients that create the object if it does not exist, and that delete it.

use std::path::Path;
use std::time::Duration;

use futures_util::future::join;
use leasehold::clock::{Clock, Deadline, SystemClock};
use leasehold::env::Env;
use leasehold::url::StoreUrl;
use leasehold::{ErrorKind, Locker};
use leasehold_testkit::proxy::Proxy;
use leasehold_testkit::servers::{self, Server};
use leasehold_testkit::stores;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::workers::{self, Worker};

/// Long enough for a busy server to respond in time.
const TTL: Duration = Duration::from_secs(8);
const TTL_OPTION: &[&str] = &["--ttl", "8"];

/// Runs `test` on both stores at once, with a unique prefix each.
async fn on_both(test: impl AsyncFn(Plain)) {
    join(async { test(Plain::on(Server::FAKE_GCS).await).await }, async {
        test(Plain::on(Server::MOTO).await).await;
    })
    .await;
}

/// A client that uses only HTTP, the lock's name and the store's documented API.
#[derive(Clone, Debug)]
struct Plain {
    server: Server,
    /// The store URL of the same objects.
    url: String,
    prefix: String,
}

impl Plain {
    async fn on(server: Server) -> Self {
        let url = format!("{}&protocol=existence", server.fresh_url());
        let store = stores::named(if server == Server::FAKE_GCS { "gcs" } else { "s3" }).unwrap();
        store.vouch_for(&url).await;
        let prefix = StoreUrl::parse(&url).unwrap().path().trim_matches('/').to_owned();
        Self { server, url, prefix }
    }

    /// Creates the lock's object if there is none. Returns 200 or 412.
    async fn create(&self, lock: &str) -> u16 {
        let Self { prefix, .. } = self;
        let request = match self.server {
            Server::FAKE_GCS => format!(
                "POST /upload/storage/v1/b/leasehold-test/o?uploadType=media&ifGenerationMatch=0&name={}%2F{lock} ",
                prefix.replace('/', "%2F")
            ),
            _ => format!("PUT /leasehold-test/{prefix}/{lock} "),
        };
        self.send(&request, "If-None-Match: *\r\nContent-Type: text/plain\r\nContent-Length: 1\r\n\r\n1")
            .await
    }

    /// Deletes the lock's object, whichever client created it.
    async fn delete(&self, lock: &str) -> u16 {
        let Self { prefix, .. } = self;
        let request = match self.server {
            Server::FAKE_GCS => {
                format!("DELETE /storage/v1/b/leasehold-test/o/{}%2F{lock} ", prefix.replace('/', "%2F"))
            }
            _ => format!("DELETE /leasehold-test/{prefix}/{lock} "),
        };
        self.send(&request, "Content-Length: 0\r\n\r\n").await
    }

    async fn send(&self, request: &str, rest: &str) -> u16 {
        let address = self.server.address();
        let mut stream = TcpStream::connect(&address).await.unwrap();
        // moto requires an identity, but does not check the signature.
        let who = "AWS4-HMAC-SHA256 Credential=plain/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0";
        let head = format!(
            "{request}HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nAuthorization: {who}\r\n{rest}"
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer.split(' ').nth(1).unwrap().parse().unwrap()
    }

    async fn acquire(&self, lock: &str) {
        let env = Env::system();
        while self.create(lock).await != 200 {
            env.sleep(env.random.jittered(Duration::from_millis(60), 0.8)).await;
        }
    }

    async fn release(&self, lock: &str) {
        assert!([200, 204].contains(&self.delete(lock).await));
    }
}

#[tokio::test]
async fn we_wait_until_a_plain_client_deletes_its_lock() {
    on_both(async |plain| {
        plain.acquire("deploy/prod").await;
        let proxy = Proxy::start(plain.server.address()).await;
        let locker = Locker::open(&servers::through(&plain.url, proxy.address())).await.unwrap();
        let lock = locker.lock("deploy/prod").ttl(TTL);
        let refused = lock.try_acquire().await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Held);
        assert!(refused.to_string().contains("unknown holder"), "{refused}");
        assert!(refused.holder().unwrap().foreign.is_some());
        let waiter = tokio::spawn(async move { lock.acquire().await });
        // The waiter still reads after a lease of ours would have ended.
        let lease = Deadline::new(SystemClock.now(), TTL);
        proxy.until(|_| lease.passed(SystemClock.now())).await;
        assert!(!waiter.is_finished());
        plain.release("deploy/prod").await;
        workers::within("ours", waiter).await.unwrap().unwrap().release().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_plain_client_is_refused_until_we_release() {
    on_both(async |plain| {
        let locker = Locker::open(&plain.url).await.unwrap();
        let guard = locker.lock("deploy/prod").acquire().await.unwrap();
        assert_eq!(plain.create("deploy/prod").await, 412);
        guard.release().await.unwrap();
        assert_eq!(plain.create("deploy/prod").await, 200);
        assert_eq!(locker.lock("deploy/prod").try_acquire().await.unwrap_err().kind(), ErrorKind::Held);
        plain.release("deploy/prod").await;
    })
    .await;
}

/// If a plain client deletes our object, we lose the lock. The next renewal reports the loss and does not restore the
/// object.
#[tokio::test]
async fn we_learn_that_a_plain_client_deleted_our_lock() {
    on_both(async |plain| {
        let locker = Locker::open(&plain.url).await.unwrap();
        let guard = locker.lock("x.lock").ttl(TTL).acquire().await.unwrap();
        plain.release("x.lock").await;
        assert_eq!(plain.create("x.lock").await, 200, "theirs now");
        workers::within("the loss", guard.lost()).await;
        guard.release().await.unwrap();
        assert_eq!(plain.create("x.lock").await, 412, "and still");
    })
    .await;
}

/// If a leasehold holder is killed, a leasehold client takes over. The object exists throughout, so a plain client
/// cannot get in between.
#[tokio::test]
async fn after_a_dead_holder_ours_takes_over_and_theirs_does_not() {
    on_both(async |plain| {
        let mut holder = Worker::start("hold", &plain.url, "lock", TTL_OPTION);
        let first = holder.granted().await;
        holder.kill().await;
        let theirs = tokio::spawn({
            let plain = plain.clone();
            async move { plain.acquire("lock").await }
        });
        let mut next = Worker::start("hold", &plain.url, "lock", TTL_OPTION);
        let second = next.granted().await;
        assert!(second > first || plain.server != Server::FAKE_GCS, "{second} after {first}");
        assert!(!theirs.is_finished(), "they never time out");
        next.kill().await;
        plain.release("lock").await;
        workers::within("theirs", theirs).await.unwrap();
    })
    .await;
}

/// 4 leasehold processes and 4 plain clients add to one number that only the lock protects.
#[tokio::test]
async fn four_of_ours_and_four_of_theirs_count_exactly() {
    const EACH: usize = 15;
    on_both(async |plain| {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("counter");
        std::fs::write(&file, "0").unwrap();
        let times = EACH.to_string();
        let more = ["--file", file.to_str().unwrap(), "--times", &times];
        let ours: Vec<_> = (0..4).map(|_| Worker::start("increment", &plain.url, "counter", &more)).collect();
        let theirs = (0..4).map(|_| {
            let (plain, file) = (plain.clone(), file.clone());
            tokio::spawn(async move {
                let mut held = Vec::new();
                for _ in 0..EACH {
                    plain.acquire("counter").await;
                    held.push(add_one_carelessly(&file));
                    plain.release("counter").await;
                }
                held
            })
        });
        let mut held = Vec::new();
        for client in theirs.collect::<Vec<_>>() {
            held.extend(workers::within("a plain client", client).await.unwrap());
        }
        for worker in ours {
            let (said, code) = worker.end().await;
            assert_eq!(code, Some(0), "a worker failed");
            held.extend(said.iter().map(|line| {
                let numbers: Vec<u128> = line.split(' ').map(|number| number.parse().unwrap()).collect();
                (numbers[1], numbers[2])
            }));
        }
        assert_eq!(std::fs::read_to_string(&file).unwrap(), (8 * EACH).to_string());
        held.sort_unstable();
        assert!(held.windows(2).all(|pair| pair[0].1 <= pair[1].0), "held by two at once: {held:?}");
    })
    .await;
}

/// Reads the number and then writes it. Returns the times before and after.
fn add_one_carelessly(file: &Path) -> (u128, u128) {
    let from = SystemClock.now().since_boot().as_nanos();
    let number: u64 = std::fs::read_to_string(file).unwrap().trim().parse().unwrap();
    std::fs::write(file, (number + 1).to_string()).unwrap();
    (from, SystemClock.now().since_boot().as_nanos())
}
