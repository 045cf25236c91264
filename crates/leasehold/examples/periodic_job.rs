//! A job that several machines start, and that runs once per period. The lock is renewed while the job runs, and released
//! if the job fails, so that another machine can run it.
//!
//! ```text
//! cargo run --example periodic_job                                                        # SQLite
//! cargo run --features dynamodb --example periodic_job -- 'dynamodb://table?region=eu-west-1'
//! ```

use std::time::Duration;

use leasehold::{Guard, Locker, Once, Result};

const PERIOD: Duration = Duration::from_secs(60);

#[tokio::main]
async fn main() -> Result<()> {
    let scratch = std::env::temp_dir().join(format!("leasehold-periodic-job-{}.db", std::process::id()));
    let url = std::env::args().nth(1).unwrap_or_else(|| format!("sqlite:{}", scratch.display()));
    // Both machines start at the same time. One runs the job. The other waits and learns that the job ran.
    tokio::try_join!(start("machine one", &url), start("machine two", &url))?;
    // A second start within the period does not run the job.
    start("machine one", &url).await
}

/// The program that cron would start on each machine.
async fn start(machine: &str, url: &str) -> Result<()> {
    let locker = Locker::open(url).await?;
    let lock = locker.lock("examples/periodic-job").owner(machine).ttl(Duration::from_secs(2));
    match lock.once_per(PERIOD).run(async |guard| job(guard, &locker, machine).await).await? {
        Once::Ran(Ok(())) => println!("{machine}: done"),
        Once::Ran(Err(error)) => println!("{machine}: failed, another machine may try: {error}"),
        Once::AlreadyRan(ran) => {
            let by = ran.by.map_or_else(|| "another machine".to_owned(), |holder| holder.name);
            println!(
                "{machine}: {by} already ran it; due again within {:.0?}",
                ran.again_within.unwrap_or(PERIOD)
            );
        }
    }
    Ok(())
}

/// Takes longer than the ttl of the lease. The future is dropped if the lock is lost.
async fn job(guard: &Guard, locker: &Locker, machine: &str) -> Result<()> {
    for step in 1..=3 {
        guard.check()?; // Still held? Local, no request.
        println!("{machine}: step {step}, token {}", guard.token()?);
        locker.store().env().sleep(Duration::from_secs(1)).await;
    }
    Ok(())
}
