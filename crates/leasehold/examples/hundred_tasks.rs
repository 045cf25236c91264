//! One lock, a hundred tasks: each holds it for a moment, and says so.
//!
//! ```text
//! cargo run --example hundred_tasks                              # in memory
//! cargo run --example hundred_tasks -- sqlite:/tmp/locks.db      # run it twice at once
//! cargo run --features s3 --example hundred_tasks -- 's3://bucket/locks?region=eu-west-1'
//! ```

use std::time::Duration;

use leasehold::{Locker, Result};

#[tokio::main]
async fn main() -> Result<()> {
    let url = std::env::args().nth(1).unwrap_or_else(|| "mem:".to_owned());
    let locker = Locker::open(&url).await?;
    let mut tasks = tokio::task::JoinSet::new();
    for n in 0..100 {
        let lock = locker.lock("examples/hundred-tasks").note(format!("task {n}"));
        let clock = locker.store().env().clock.clone();
        tasks.spawn(async move {
            let guard = lock.acquire().await?;
            println!("task {n:>2} acquired, token {}", guard.token()?);
            clock.sleep(Duration::from_millis(5)).await; // The work.
            println!("task {n:>2} releases");
            guard.release().await
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.map_err(|panic| leasehold::Error::invalid(panic.to_string()))??;
    }
    println!("all hundred had their turn");
    Ok(())
}
