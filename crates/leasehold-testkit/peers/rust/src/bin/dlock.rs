//! Benchmark contender for DynamoDB with dlock. Uses dlock's function that acquires, renews and releases, with its
//! default settings, so waiters retry immediately.
//!
//! ```text
//! bench ... --endpoint URL --table TABLE --lock NAME --ttl-ms MILLISECONDS
//! ```
//!
//! dlock needs its own table layout, so this program creates the table TABLE-dlock if it does not exist. dlock reports
//! a loss only after the holder is done.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, anyhow};
use dlock::{DLock, DynamodbProvider};
use leasehold_peers::{Client, Contender, Lost, dynamodb, run};

#[tokio::main]
async fn main() -> ExitCode {
    run(async |options| {
        let client = dynamodb::client(options)?;
        let table = format!("{}-dlock", options.text("table")?);
        dynamodb::make_table(&client, &table, DynamodbProvider::NAME_ATTRIBUTE, None).await?;
        let provider = DynamodbProvider::builder().client(client).table_name(table).build();
        Ok(Process { provider, ttl: options.ttl()? })
    })
    .await
}

#[derive(Clone)]
struct Process {
    provider: DynamodbProvider,
    ttl: Duration,
}

impl Client for Process {
    type Contender = Lock;

    async fn contender(&self, lock: String) -> Result<Lock> {
        let lock = DLock::builder()
            .name(lock)
            .owner(format!("process {}", std::process::id()))
            .duration(self.ttl)
            .provider(self.provider.clone())
            .build();
        Ok(Lock(lock))
    }
}

struct Lock(DLock<DynamodbProvider>);

impl Contender for Lock {
    async fn cohort<F, D>(&mut self, during: F) -> Result<()>
    where
        F: FnOnce(Lost) -> D + Send + 'static,
        D: Future<Output = ()> + Send + 'static,
    {
        let mut during = Some(during);
        // This is not an async closure, because its future would borrow `during` and could not be sent to another
        // thread.
        let done = self.0.with(move |_token| {
            let during = during.take();
            async move {
                if let Some(during) = during {
                    during(Box::new(|| false)).await;
                }
            }
        });
        done.await.map_err(|error| anyhow!("{error}"))
    }

    async fn close(self) -> Result<()> {
        Ok(())
    }
}
