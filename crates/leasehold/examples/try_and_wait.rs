//! Tries to acquire a lock, waits for it, and sends its token with each write.
//!
//! ```text
//! cargo run --example try_and_wait                                                        # SQLite
//! cargo run --features etcd --example try_and_wait -- etcd://127.0.0.1:2379/my-app/
//! ```

use std::time::Duration;

use leasehold::env::Env;
use leasehold::{Error, ErrorKind, Guard, Lock, Locker, Result, Token};

const SECOND: Duration = Duration::from_secs(1);

#[tokio::main]
async fn main() -> Result<()> {
    let scratch = std::env::temp_dir().join(format!("leasehold-try-and-wait-{}.db", std::process::id()));
    let url = std::env::args().nth(1).unwrap_or_else(|| format!("sqlite:{}", scratch.display()));
    // Two lockers with separate connections, as in two processes.
    let (one, two) = (lock(&url, "one").await?, lock(&url, "two").await?);

    let first = one.acquire().await?;
    let earlier = first.token()?;
    println!("one: acquired, token {earlier}, lease {:.0?} unless it is renewed", first.remaining());

    refused("two: try", two.try_acquire().await)?;
    refused("two: wait for a second", two.acquire_within(SECOND).await)?;

    let waiting = tokio::spawn(async move { two.acquire().await });
    Env::system().sleep(SECOND).await;
    println!("one: releases");
    first.release().await?;
    let second = waiting.await.map_err(failed)??;
    println!("two: acquired, token {}", second.token()?);

    let mut resource = Resource::default();
    resource.write(second.token()?, "by two")?;
    match resource.write(earlier, "by one, late") {
        Err(error) => println!("the resource refuses a late write: {error}"),
        Ok(()) => return Err(failed("a late write was accepted")),
    }
    second.release().await?;
    println!("the resource was written {}", resource.content);
    Ok(())
}

async fn lock(url: &str, owner: &str) -> Result<Lock> {
    let lock = Locker::open(url).await?.lock("examples/try-and-wait").owner(owner).ttl(5 * SECOND);
    let owner = owner.to_owned();
    Ok(lock.on_wait(move |held| println!("{owner}: waiting for {held}")))
}

fn refused(what: &str, outcome: Result<Guard>) -> Result<()> {
    match outcome {
        Err(error) if error.kind() == ErrorKind::Held => {
            println!("{what}: {error}");
            Ok(())
        }
        Err(error) => Err(error),
        Ok(_) => Err(failed("two holders")),
    }
}

/// The resource that the lock protects. It remembers the highest token and refuses lower ones.
#[derive(Default)]
struct Resource {
    highest: Option<Token>,
    content: String,
}

impl Resource {
    fn write(&mut self, token: Token, content: &str) -> Result<()> {
        if let Some(highest) = self.highest.filter(|highest| token < *highest) {
            return Err(failed(format!("token {token} is lower than {highest}")));
        }
        self.highest = Some(token);
        content.clone_into(&mut self.content);
        Ok(())
    }
}

fn failed(error: impl ToString) -> Error {
    Error::invalid(error.to_string())
}
