//! Acquires a lock on a store of one's own, loses it, and prints the tokens: `cargo run -p own-store`.

use std::sync::Arc;
use std::time::Duration;

use leasehold::Result;
use leasehold::clock::SystemClock;
use own_store::{MapServer, open};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let server = Arc::new(MapServer::new(Arc::new(SystemClock)));
    let (one, two) = (open(&server), open(&server)); // two lockers, one store

    let guard = one.lock("report").ttl(Duration::from_secs(1)).acquire().await?;
    let first = guard.token()?;
    println!("one has token {first}");

    two.evict(guard.name(), first).await?; // an operator ends the hold
    println!("one: {}", guard.lost().await);

    let guard = two.lock("report").acquire().await?;
    println!("two has token {}", guard.token()?);
    assert!(guard.token()? > first);
    guard.release().await?;
    Ok(())
}
