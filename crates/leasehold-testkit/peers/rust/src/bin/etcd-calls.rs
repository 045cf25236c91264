//! A baseline and not a lock: the etcd calls and conditions that any lock needs. Puts a key with a lease if there is no
//! key below the lock's name, and deletes the key if it is unchanged. The key's name and value are as long as those of
//! leasehold's keys.
//!
//! ```text
//! bench contend --endpoint HOST:PORT --lock NAME --ttl-ms MILLISECONDS ...
//! ```

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use anyhow::{Context, Result, ensure};
use etcd_client::{Compare, CompareOp, PutOptions, Txn, TxnOp};
use leasehold_peers::etcd::Lease;
use leasehold_peers::{Client, Contender, Lost, run};

#[tokio::main]
async fn main() -> ExitCode {
    run(async |options| {
        let client = etcd_client::Client::connect([options.text("endpoint")?], None).await?;
        Ok(Etcd { client, ttl: options.ttl_seconds()? })
    })
    .await
}

#[derive(Clone)]
struct Etcd {
    client: etcd_client::Client,
    ttl: u32,
}

impl Client for Etcd {
    type Contender = Calls;

    async fn contender(&self, lock: String) -> Result<Calls> {
        let lease = Arc::new(Lease::grant(self.client.clone(), self.ttl).await?);
        Ok(Calls { client: self.client.clone(), name: format!("bench/{lock}/"), lease, calls: 0 })
    }
}

struct Calls {
    client: etcd_client::Client,
    name: String,
    lease: Arc<Lease>,
    calls: u64,
}

impl Contender for Calls {
    async fn cohort<F, D>(&mut self, during: F) -> Result<()>
    where
        F: FnOnce(Lost) -> D + Send + 'static,
        D: Future<Output = ()> + Send + 'static,
    {
        self.calls += 1;
        let claim = format!("{:032x}", self.calls);
        let key = format!("{}{claim}", self.name);
        let value = format!(
            r#"{{"leasehold":1,"state":"granted","claim":"{claim}","ttl_ms":30000,"holder":{{"name":"somebody","host":"somewhere","pid":12345}}}}"#
        );
        let unlocked = Compare::create_revision(self.name.as_str(), CompareOp::Equal, 0).with_prefix();
        let put = TxnOp::put(key.as_str(), value, Some(PutOptions::new().with_lease(self.lease.id)));
        let answer = self.client.txn(Txn::new().when([unlocked]).and_then([put])).await?;
        ensure!(answer.succeeded(), "another client has a key below {}", self.name);
        let revision = answer.header().context("the response has no header")?.revision();
        let lost = self.lease.lost.clone();
        during(Box::new(move || lost.load(Ordering::Relaxed))).await;
        let unchanged = Compare::mod_revision(key.as_str(), CompareOp::Equal, revision);
        let delete = TxnOp::delete(key, None);
        let answer = self.client.txn(Txn::new().when([unchanged]).and_then([delete])).await?;
        ensure!(answer.succeeded(), "another client has changed the key");
        Ok(())
    }

    async fn close(mut self) -> Result<()> {
        self.client.lease_revoke(self.lease.id).await?;
        Ok(())
    }
}
