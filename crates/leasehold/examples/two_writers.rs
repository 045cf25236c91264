//! Two writers update one JSON object. Each adds 1 ten times, first with a lock (pessimistic), then without a lock
//! (optimistic).
//!
//! ```text
//! cargo run --example two_writers                                                         # in memory
//! cargo run --features s3 --example two_writers -- 's3://bucket/folder?region=eu-west-1'
//! ```

use std::sync::Arc;

use bytes::Bytes;
use leasehold::env::Env;
use leasehold::lease::StoreOptions;
use leasehold::stores::memory::MemoryRegister;
use leasehold::{Error, Locker, Object, Register, RegisterLeases, Result};
use serde_json::{Value, json};

const ADDITIONS: u32 = 10;

/// The handles that one process would have.
struct Writer {
    locker: Locker,
    object: Object,
}

#[tokio::main]
async fn main() -> Result<()> {
    let [one, two] = writers(std::env::args().nth(1)).await?;
    let before = count(&one.object).await?;

    tokio::try_join!(with_lock(&one), with_lock(&two))?;
    let between = count(&one.object).await?;
    println!("with a lock: {ADDITIONS} + {ADDITIONS} additions, the count rose by {}", between - before);

    let (first, second) = tokio::try_join!(without_lock(&one), without_lock(&two))?;
    let after = count(&one.object).await?;
    let again = first + second - 2 * ADDITIONS;
    println!("without a lock: the count rose by {}, {again} additions were repeated", after - between);
    Ok(())
}

/// Pessimistic: one writer at a time. Use this for work that takes long or must not be repeated.
async fn with_lock(writer: &Writer) -> Result<()> {
    for _ in 0..ADDITIONS {
        let guard = writer.locker.lock("examples/two-writers").acquire().await?;
        // If this writer was paused and a later holder has written, the object refuses this write.
        writer.object.update_fenced(guard.token()?, async |content| add(content)).await?;
        guard.release().await?;
    }
    Ok(())
}

/// Optimistic: a write succeeds only if the object has not changed since it was read. Otherwise, the addition is
/// repeated. Returns the number of attempts.
async fn without_lock(writer: &Writer) -> Result<u32> {
    let mut attempts = 0;
    for _ in 0..ADDITIONS {
        attempts += writer.object.update(async |content| add(content)).await?.attempts;
    }
    Ok(attempts)
}

/// Computes the new content. This may run several times, so it must have no side effects.
fn add(content: Option<Bytes>) -> Result<Option<Bytes>> {
    let mut value = parse(content)?;
    value["n"] = (n(&value) + 1).into();
    Ok(Some(value.to_string().into()))
}

async fn count(object: &Object) -> Result<u64> {
    Ok(n(&parse(object.read().await?.map(|found| found.value))?))
}

fn parse(content: Option<Bytes>) -> Result<Value> {
    match content {
        Some(bytes) => serde_json::from_slice(&bytes).map_err(failed),
        None => Ok(json!({ "n": 0 })),
    }
}

fn n(value: &Value) -> u64 {
    value["n"].as_u64().unwrap_or(0)
}

/// Creates two writers with separate connections, as in two processes.
async fn writers(url: Option<String>) -> Result<[Writer; 2]> {
    let Some(url) = url else {
        let register: Arc<dyn Register> = Arc::new(MemoryRegister::new(Env::system()));
        return Ok([in_memory(&register), in_memory(&register)]);
    };
    let object = match url.split_once('?') {
        Some((folder, options)) => format!("{}/two-writers.json?{options}", folder.trim_end_matches('/')),
        None => format!("{}/two-writers.json", url.trim_end_matches('/')),
    };
    Ok([open(&url, &object).await?, open(&url, &object).await?])
}

async fn open(locks: &str, object: &str) -> Result<Writer> {
    let object = Object::open(object).await?.content_type("application/json");
    Ok(Writer { locker: Locker::open(locks).await?, object })
}

fn in_memory(register: &Arc<dyn Register>) -> Writer {
    let leases = RegisterLeases::new(register.clone(), StoreOptions::default());
    Writer {
        locker: Locker::new(Arc::new(leases)),
        object: Object::new(register.clone(), "two-writers.json"),
    }
}

fn failed(error: impl ToString) -> Error {
    Error::invalid(error.to_string())
}
