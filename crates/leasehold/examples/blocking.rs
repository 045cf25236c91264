//! Uses a lock from threads, without async. Each thread prints a line while it holds the lock.
//!
//! ```text
//! cargo run --features blocking --example blocking
//! cargo run --features blocking,s3 --example blocking -- 's3://bucket/locks?region=eu-west-1'
//! ```

use std::thread;
use std::time::Duration;

use leasehold::blocking::Locker;
use leasehold::{Error, Result};

const THREADS: usize = 4;

fn main() -> Result<()> {
    let scratch = std::env::temp_dir().join(format!("leasehold-blocking-{}.db", std::process::id()));
    let url = std::env::args().nth(1).unwrap_or_else(|| format!("sqlite:{}", scratch.display()));
    let locker = Locker::open(&url)?;
    let lock = locker.lock("examples/blocking").ttl(Duration::from_secs(10));
    thread::scope(|scope| {
        let threads: Vec<_> = (1..=THREADS)
            .map(|thread| {
                let lock = &lock;
                scope.spawn(move || {
                    lock.with(|guard| {
                        guard.check()?; // before each step that must not be done twice
                        println!("thread {thread} holds the lock with token {}", guard.token()?);
                        Ok(())
                    })?
                })
            })
            .collect();
        threads.into_iter().try_for_each(|thread| {
            thread.join().unwrap_or_else(|_| Err(Error::invalid("a thread panicked".to_owned())))
        })
    })
}
