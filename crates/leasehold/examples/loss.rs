//! Cancels work when the lock is lost. An operator evicts the holder, which learns of it at its next renewal.
//!
//! ```text
//! cargo run --example loss
//! ```

use std::time::Duration;

use leasehold::{LockName, Locker, Result};

#[tokio::main]
async fn main() -> Result<()> {
    let locker = Locker::open("mem:").await?;
    let guard = locker.lock("examples/loss").ttl(Duration::from_secs(3)).acquire().await?;
    println!("acquired, token {}", guard.token()?);

    // The work knows nothing about locks. It gets a cancellation token.
    let cancelled = guard.cancellation();
    let clock = locker.store().env().clock.clone();
    let work = tokio::spawn(async move {
        let mut steps = 0;
        while !cancelled.is_cancelled() {
            tokio::select! {
                () = cancelled.cancelled() => {}
                () = clock.sleep(Duration::from_millis(300)) => steps += 1,
            }
        }
        steps
    });

    locker.evict(&LockName::new("examples/loss")?, guard.token()?).await?;
    println!("evicted by an operator");
    let loss = guard.lost().await;
    println!("{loss}");
    println!("the work stopped after {} steps", work.await.unwrap_or(0));
    // Code that polls can call `check` instead.
    assert!(guard.check().is_err());
    Ok(())
}
