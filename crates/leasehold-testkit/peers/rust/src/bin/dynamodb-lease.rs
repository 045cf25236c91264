//! Benchmark contender for DynamoDB with dynamodb-lease. Tasks of one process queue at a mutex of the client. Leases
//! end by the clocks of the clients, in whole seconds.
//!
//! ```text
//! bench ... --endpoint URL --table TABLE --lock KEY --ttl-ms MILLISECONDS
//! ```
//!
//! The client needs a table whose items have a time to live, so this program creates the table TABLE-lease if it does
//! not exist.

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, Result};
use leasehold_peers::{Client, Contender, Lost, dynamodb, run};

#[tokio::main]
async fn main() -> ExitCode {
    run(async |options| {
        let client = dynamodb::client(options)?;
        let table = format!("{}-lease", options.text("table")?);
        dynamodb::make_table(&client, &table, "key", Some("lease_expiry")).await?;
        let seconds = options.ttl_seconds()?;
        let client = dynamodb_lease::Client::builder()
            .table_name(table)
            .lease_ttl_seconds(seconds)
            .extend_every(options.ttl()? / 3)
            .build_and_check_db(client)
            .await?;
        Ok(Process(client))
    })
    .await
}

#[derive(Clone)]
struct Process(dynamodb_lease::Client);

impl Client for Process {
    type Contender = Lock;

    async fn contender(&self, lock: String) -> Result<Lock> {
        Ok(Lock { client: self.0.clone(), key: lock })
    }
}

struct Lock {
    client: dynamodb_lease::Client,
    key: String,
}

impl Contender for Lock {
    async fn cohort<F, D>(&mut self, during: F) -> Result<()>
    where
        F: FnOnce(Lost) -> D + Send + 'static,
        D: Future<Output = ()> + Send + 'static,
    {
        let lease = Arc::new(self.client.acquire(self.key.as_str()).await?);
        let held = lease.clone();
        during(Box::new(move || !held.is_healthy())).await;
        Arc::into_inner(lease).context("the lease is still asked about")?.release().await
    }

    async fn close(self) -> Result<()> {
        Ok(())
    }
}
