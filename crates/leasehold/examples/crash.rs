//! A holder crashes, and another process takes over. The example starts a second instance of itself as the holder, and
//! kills it.
//!
//! ```text
//! cargo run --example crash                                      # SQLite: taken over at once
//! cargo run --features s3 --example crash -- 's3://bucket/locks?region=eu-west-1'   # after the lease
//! ```

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Duration;

use leasehold::{Error, ErrorKind, Locker, Result};

const LOCK: &str = "examples/crash";

#[tokio::main]
async fn main() -> Result<()> {
    let scratch = std::env::temp_dir().join(format!("leasehold-crash-{}.db", std::process::id()));
    let url = std::env::args().nth(1).unwrap_or_else(|| format!("sqlite:{}", scratch.display()));
    if std::env::var_os("HOLDER").is_some() {
        return hold(&url).await;
    }
    let mut holder = Command::new(std::env::current_exe().map_err(failed)?)
        .arg(&url)
        .env("HOLDER", "1")
        .stdout(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    let mut line = String::new();
    BufReader::new(holder.stdout.take().ok_or_else(|| failed("no output"))?)
        .read_line(&mut line)
        .map_err(failed)?;
    print!("the holder says: {line}");

    let locker = Locker::open(&url).await?;
    let lock =
        locker.lock(LOCK).on_wait(|held| println!("waiting for {held}, lease <= {:.0?}", held.lapses_within));
    match lock.try_acquire().await {
        Err(error) if error.kind() == ErrorKind::Held => println!("refused, as it should be: {error}"),
        Err(error) => return Err(error),
        Ok(_) => return Err(failed("two holders")),
    }
    holder.kill().and_then(|()| holder.wait()).map_err(failed)?;
    println!("the holder was killed");
    let guard = lock.acquire().await?;
    println!("took over with the higher token {}", guard.token()?);
    guard.release().await?;
    Ok(())
}

/// Acquires the lock, prints the token, and never releases it.
async fn hold(url: &str) -> Result<()> {
    let locker = Locker::open(url).await?;
    let guard = locker.lock(LOCK).ttl(Duration::from_secs(5)).note("about to crash").acquire().await?;
    println!("acquired, token {}", guard.token()?);
    Err(failed(guard.lost().await))
}

fn failed(error: impl ToString) -> Error {
    Error::invalid(error.to_string())
}
