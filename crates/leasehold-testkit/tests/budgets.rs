//! How many requests a lock costs, as counted by a proxy. `./test` starts the servers. `budget_etcd.rs` covers etcd.
//! Servers that handle one request at a time are left out, because a client repeats a request whose response takes too
//! long.

use std::time::Duration;

use leasehold::lease::{Claim, Grant, HolderInfo};
use leasehold::{Holder, Locker};
use leasehold_testkit::for_each_storage;
use leasehold_testkit::proxy::{Harm, Proxy};
use leasehold_testkit::servers::{Server, through};
use leasehold_testkit::stores;
use leasehold_testkit::test_store::Budget;

use crate::leases::{claim_of, granted_to, refused_to};

macro_rules! suite {
    ($($storage:ident: $kind:ident)*) => { $(budgets!($storage $kind);)* };
}

macro_rules! budgets {
    ($storage:ident http) => {
        on_storage! { $storage:
            each_step_of_a_lock_costs_what_the_documentation_says
            a_waiter_reads_and_never_writes
            a_lost_response_costs_one_more_read
        }
    };
    ($storage:ident $kind:ident) => {};
}

for_each_storage!(suite);

/// A server whose requests are counted.
pub(crate) struct Counted {
    server: Server,
    budget: Budget,
}

/// A client with its own proxy.
pub(crate) struct Client {
    pub(crate) proxy: Proxy,
    pub(crate) locker: Locker,
    budget: Budget,
}

impl Counted {
    /// Returns the counted server of the storage of that name, and a unique URL on it.
    pub(crate) fn on(storage: &str) -> (Self, String) {
        let (store, storage) = stores::storage(storage);
        let (server, budget) = (storage.server.unwrap(), store.budget().unwrap());
        (Self { server, budget }, stores::fresh(storage.name).url().to_owned())
    }

    /// Creates a client whose proxy has counted nothing yet.
    pub(crate) async fn client(&self, url: &str) -> Client {
        let proxy = Proxy::start(self.server.address()).await;
        let locker = Locker::open(&through(url, proxy.address())).await.unwrap();
        if self.budget.examines_first {
            locker.lock("another").acquire().await.unwrap().release().await.unwrap();
            proxy.reset();
        }
        Client { proxy, locker, budget: self.budget }
    }
}

impl Client {
    /// Returns the requests for the lock's record, in order. Omits those that the client abandoned at their time limit,
    /// because it repeats them.
    pub(crate) fn requests(&self) -> Vec<String> {
        let log = self.proxy.log();
        log.iter().filter(|seen| !seen.abandoned).filter_map(self.budget.request).collect()
    }

    pub(crate) async fn granted(&self) -> Grant {
        granted(&self.locker).await
    }

    async fn refused(&self) -> HolderInfo {
        refused_to(&**self.locker.store(), &claim(&self.locker)).await
    }

    pub(crate) async fn renewed(&self, grant: &mut Grant) {
        self.locker.store().renew(grant).await.unwrap();
    }

    pub(crate) async fn released(&self, grant: &mut Grant) {
        self.locker.store().release(grant, None).await.unwrap();
    }

    /// Waits until this many requests have arrived.
    async fn until(&self, count: usize) {
        self.proxy.until(|log| log.iter().filter_map(self.budget.request).count() >= count).await;
    }

    fn writes(&self) -> usize {
        self.requests().iter().filter(|request| *request == self.budget.write).count()
    }

    /// Asserts that the client tried once and has only read since, except to join the line.
    fn assert_only_read(&self) {
        let requests = self.requests();
        let (tried, rest) = requests.split_at(self.budget.refusal.len());
        assert_eq!(tried, self.budget.refusal, "the try that found it held");
        let (joins, reads): (Vec<_>, Vec<_>) = rest.iter().partition(|request| *request == self.budget.write);
        assert_eq!(joins.len(), self.budget.joins, "{requests:?}");
        assert!(reads.iter().all(|request| *request == self.budget.read), "{requests:?}");
    }

    /// Asserts that the client wrote only for its try (if a try writes), to join the line, to acquire the lock, and to
    /// release it.
    fn assert_wrote_once(&self) {
        let tried = self.budget.refusal.iter().filter(|request| **request == self.budget.write).count();
        assert_eq!(self.writes(), tried + self.budget.joins + 2, "one write to acquire, and one to release");
    }
}

fn claim(locker: &Locker) -> Claim {
    claim_of(&**locker.store(), "lock", Duration::from_secs(60))
}

async fn granted(locker: &Locker) -> Grant {
    granted_to(&**locker.store(), &claim(locker)).await
}

async fn each_step_of_a_lock_costs_what_the_documentation_says(storage: &str) {
    let (counted, url) = Counted::on(storage);
    let (budget, client) = (counted.budget, counted.client(&url).await);

    let mut first = client.granted().await;
    assert_eq!(client.requests(), budget.first, "the first acquisition ever");
    client.proxy.reset();
    client.renewed(&mut first).await;
    client.renewed(&mut first).await;
    assert_eq!(client.requests(), [budget.write; 2], "two renewals");
    client.proxy.reset();
    client.released(&mut first).await;
    assert_eq!(client.requests(), [budget.write], "a release");
    client.proxy.reset();
    let mut warm = client.granted().await;
    assert_eq!(client.requests(), [budget.write], "a warm acquisition");

    let other = counted.client(&url).await;
    let held = other.refused().await;
    assert_eq!(other.requests(), budget.refusal, "a refusal");
    assert_eq!((held.holder, held.token), (Some(Holder::this_process()), Some(warm.token)));
    client.released(&mut warm).await;

    let other = counted.client(&url).await;
    let cold = other.granted().await;
    assert_eq!(other.requests(), budget.cold, "a cold acquisition");
    assert!(first.token < warm.token && warm.token < cold.token);
}

async fn a_waiter_reads_and_never_writes(storage: &str) {
    let (counted, url) = Counted::on(storage);
    let holder = Locker::open(&url).await.unwrap();
    let mut grant = granted(&holder).await;
    let client = counted.client(&url).await;
    let locker = client.locker.clone();
    let waiter = tokio::spawn(async move { locker.lock("lock").acquire().await });
    client.until(4 + client.budget.joins).await;
    client.assert_only_read();
    holder.store().release(&mut grant, None).await.unwrap();
    waiter.await.unwrap().unwrap().release().await.unwrap();
    client.assert_wrote_once();
}

/// If the response to an applied write is lost, the client does not repeat the write. It reads the record and
/// recognises its own write.
async fn a_lost_response_costs_one_more_read(storage: &str) {
    let (counted, url) = Counted::on(storage);
    let client = counted.client(&url).await;
    let mut grant = client.granted().await;
    client.released(&mut grant).await;
    client.proxy.reset();
    client.proxy.next(counted.budget.write_method, Harm::AnswerLost);
    let again = client.granted().await;
    assert!(again.token > grant.token);
    let requests = client.requests();
    let expected = [counted.budget.write, counted.budget.read];
    assert_eq!(&requests[..2], expected, "the write is resolved by a read: {requests:?}");
    assert!(requests.len() <= 3, "{requests:?}");
}
