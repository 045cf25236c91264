//! Benchmark contender for etcd with etcd-client, whose lock API is the server's own lock service.
//!
//! ```text
//! bench ... --endpoint HOST:PORT --lock PREFIX --ttl-ms MILLISECONDS
//! ```
//!
//! A lock belongs to a lease, and all users of one lease share its locks. Therefore each task that contends for a lock
//! has its own lease.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use anyhow::Result;
use etcd_client::LockOptions;
use leasehold_peers::etcd::Lease;
use leasehold_peers::{Client, Contender, Lost, run};
use tokio::sync::OnceCell;

#[tokio::main]
async fn main() -> ExitCode {
    run(async |options| {
        let client = etcd_client::Client::connect([options.text("endpoint")?], None).await?;
        Ok(Etcd { client, ttl: options.ttl_seconds()?, shared: Arc::default() })
    })
    .await
}

#[derive(Clone)]
struct Etcd {
    client: etcd_client::Client,
    ttl: u32,
    shared: Arc<OnceCell<Arc<Lease>>>,
}

impl Etcd {
    async fn lease(&self) -> Result<Arc<Lease>> {
        Ok(Arc::new(Lease::grant(self.client.clone(), self.ttl).await?))
    }

    fn lock(&self, name: String, lease: Arc<Lease>) -> Lock {
        Lock { client: self.client.clone(), name, lease }
    }
}

impl Client for Etcd {
    type Contender = Lock;

    async fn contender(&self, lock: String) -> Result<Lock> {
        Ok(self.lock(lock, self.lease().await?))
    }

    async fn holder(&self, lock: String) -> Result<Lock> {
        let lease = self.shared.get_or_try_init(|| self.lease()).await?;
        Ok(self.lock(lock, lease.clone()))
    }

    async fn close(&self) -> Result<()> {
        if let Some(lease) = self.shared.get() {
            self.client.clone().lease_revoke(lease.id).await?;
        }
        Ok(())
    }
}

struct Lock {
    client: etcd_client::Client,
    name: String,
    lease: Arc<Lease>,
}

impl Contender for Lock {
    async fn cohort<F, D>(&mut self, during: F) -> Result<()>
    where
        F: FnOnce(Lost) -> D + Send + 'static,
        D: Future<Output = ()> + Send + 'static,
    {
        let options = LockOptions::new().with_lease(self.lease.id);
        let granted = self.client.lock(self.name.as_str(), Some(options)).await?;
        let lost = self.lease.lost.clone();
        during(Box::new(move || lost.load(Ordering::Relaxed))).await;
        self.client.unlock(granted.key()).await?;
        Ok(())
    }

    /// Revokes the lease, unless holders share it. `Etcd::close` revokes a shared lease.
    async fn close(mut self) -> Result<()> {
        if let Some(lease) = Arc::into_inner(self.lease) {
            self.client.lease_revoke(lease.id).await?;
        }
        Ok(())
    }
}
