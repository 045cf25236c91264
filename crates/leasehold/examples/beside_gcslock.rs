//! Shares a lock with gcslock, or with any other client that creates and deletes an object.
//!
//! ```text
//! cargo run --example beside_gcslock                                                      # in memory
//! cargo run --features gcs --example beside_gcslock -- gs://bucket/locks
//! ```

use std::sync::Arc;

use leasehold::env::Env;
use leasehold::lease::StoreOptions;
use leasehold::register::{Deleted, Precondition, Version, Write};
use leasehold::stores::memory::MemoryRegister;
use leasehold::{Error, ErrorKind, Locker, Register, RegisterLeases, Result};

const LOCK: &str = "beside-gcslock";

#[tokio::main]
async fn main() -> Result<()> {
    let register = open(std::env::args().nth(1))?;
    let leases = RegisterLeases::by_existence(register.clone(), StoreOptions::default());
    let lock = Locker::new(Arc::new(leases)).lock(LOCK);

    let object =
        create(&*register).await?.ok_or_else(|| failed("the lock is held; is there an object to delete?"))?;
    match lock.try_acquire().await {
        Err(error) if error.kind() == ErrorKind::Held => {
            println!("gcslock has it, leasehold is refused: {error}")
        }
        Err(error) => return Err(error),
        Ok(_) => return Err(failed("two holders")),
    }
    delete(&*register, &object).await?;

    let guard = lock.acquire().await?;
    match create(&*register).await? {
        None => println!("leasehold has it, gcslock is refused"),
        Some(_) => return Err(failed("two holders")),
    }
    guard.release().await?;

    let object = create(&*register).await?.ok_or_else(|| failed("the release did not free the lock"))?;
    println!("leasehold has released it, gcslock has it again");
    delete(&*register, &object).await
}

/// Acquires the lock like gcslock: creates the object if it does not exist.
async fn create(register: &dyn Register) -> Result<Option<Version>> {
    match register.write(LOCK, Precondition::Absent, "1".into()).await? {
        Write::Committed(version) => Ok(Some(version)),
        Write::Conflict => Ok(None),
    }
}

/// Releases the lock like gcslock, by deleting the object. gcslock deletes any version of the object, but a register
/// deletes only the given one.
async fn delete(register: &dyn Register, object: &Version) -> Result<()> {
    match register.delete(LOCK, object).await? {
        Deleted::Deleted => Ok(()),
        Deleted::Conflict => Err(failed("another client changed the object")),
    }
}

fn open(url: Option<String>) -> Result<Arc<dyn Register>> {
    match url {
        None => Ok(Arc::new(MemoryRegister::new(Env::system()))),
        #[cfg(feature = "gcs")]
        Some(url) => {
            let separator = if url.contains('?') { '&' } else { '?' };
            let url = leasehold::url::StoreUrl::parse(&format!("{url}{separator}protocol=existence"))?;
            Ok(Arc::new(leasehold::stores::gcs::GcsRegister::open(url, Env::system())?))
        }
        #[cfg(not(feature = "gcs"))]
        Some(_) => {
            Err(Error::unsupported("this build has no `gs:` store").with_help("cargo run --features gcs ..."))
        }
    }
}

fn failed(error: impl ToString) -> Error {
    Error::invalid(error.to_string())
}
