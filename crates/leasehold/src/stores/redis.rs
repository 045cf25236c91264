//! Redis and Valkey: a script writes a record if it has the expected version. Other clients
//! that lock with `SET key value NX PX` use the same keys.
//!
//! `docs/stores/redis.md` describes the layout, the permissions and the limits,
//! `docs/stores/redis-safety.md` what Redis can guarantee.

mod answer;
mod config;
mod connect;
mod errors;
mod examine;
mod link;
mod links;
mod listener;
mod records;
mod scan;
mod scripts;
mod server;
mod shards;
mod slots;

use std::sync::Arc;
use std::time::Duration;

use self::config::Location;
use self::records::RedisRecords;
use crate::error::Error;
use crate::lease::{LeaseStore, PollInterval, StoreOptions};
use crate::protocol::RegisterLeases;
use crate::url::StoreUrl;

/// A poll is one script that reads two keys.
const POLL_INTERVAL: PollInterval =
    PollInterval { min: Duration::from_millis(10), max: Duration::from_millis(500) };

/// Opens leases in the Redis database that `url` names: `redis://user@host,host2:6379/0?prefix=locks/`.
/// `docs/stores/redis.md` lists all options.
///
/// Sends no request. Refuses `store_clock=off`, because the server's clock decides when a lease ends. `margin` is how
/// far that clock may be set ahead without ending a lease early.
///
/// ```no_run
/// # async fn example() -> leasehold::Result<()> {
/// use leasehold::{Locker, lease::StoreOptions, stores::redis, url::StoreUrl};
///
/// let url = StoreUrl::parse("redis://cache.example.com/0?tls=on&password_env=REDIS_PASSWORD")?;
/// let store = redis::open(url, StoreOptions::default()).await?;
/// let guard = Locker::new(store).lock("deploy/prod").acquire().await?;
/// guard.release().await?;
/// # Ok(()) }
/// ```
///
/// # Errors
/// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) for a bad URL and for files that cannot be read.
pub async fn open(url: StoreUrl, mut options: StoreOptions) -> Result<Arc<dyn LeaseStore>, Error> {
    let location = Location::from_url(url, &mut options)?;
    let records = RedisRecords::open(location, options.env.clone(), options.margin).await?;
    Ok(Arc::new(RegisterLeases::on(Arc::new(records), options)))
}
