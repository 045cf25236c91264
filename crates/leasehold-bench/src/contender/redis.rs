//! A contender on Redis without leasehold: the algorithm of redis-py's `Lock`.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::time::Duration;

use leasehold::clock::{Clock, SystemClock};
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Script};
use tokio::sync::Mutex;

use super::Options;

/// redis-py's default.
const PAUSE: Duration = Duration::from_millis(100);

/// redis-py's script for a release.
const RELEASE: &str = "local token = redis.call('get', KEYS[1])
if not token or token ~= ARGV[1] then return 0 end
redis.call('del', KEYS[1])
return 1";

/// Sets a key with a time to live, if there is none. Otherwise it sleeps for 100 ms and retries. A release deletes the
/// key with a script, if it has the same value. Like redis-py's lock, it does not renew. In a cluster, it asks
/// the server that has the key.
pub(super) struct RedisPy {
    connection: MultiplexedConnection,
    /// The connections to other servers of a cluster, by lock.
    moved: Mutex<HashMap<String, MultiplexedConnection>>,
    release: Script,
    ttl: Duration,
}

impl RedisPy {
    pub(super) async fn open(options: &Options) -> Result<Self, String> {
        let connection = connect(options.store()?).await?;
        Ok(Self { connection, moved: Mutex::default(), release: Script::new(RELEASE), ttl: options.ttl()? })
    }

    async fn connection(&self, lock: &str) -> MultiplexedConnection {
        self.moved.lock().await.get(lock).unwrap_or(&self.connection).clone()
    }

    /// Connects to the server of a cluster that has the lock, unless another task has done so.
    async fn follow(&self, lock: &str, address: &str) -> Result<(), String> {
        if let Entry::Vacant(entry) = self.moved.lock().await.entry(lock.to_owned()) {
            entry.insert(connect(&format!("redis://{address}")).await?);
        }
        Ok(())
    }
}

async fn connect(url: &str) -> Result<MultiplexedConnection, String> {
    let client = redis::Client::open(url).map_err(|error| error.to_string())?;
    // As in redis-py and in leasehold, no time limits.
    let limits = AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None);
    let connection = client.get_multiplexed_async_connection_with_config(&limits).await;
    connection.map_err(|error| error.to_string())
}

impl super::Client for RedisPy {
    /// The key and its value.
    type Held = (String, String);

    async fn acquire(&self, lock: &str) -> Result<Self::Held, String> {
        let token = format!("{:032x}", fastrand::u128(..));
        let mut set = redis::cmd("SET");
        set.arg(lock).arg(&token).arg("NX").arg("PX").arg(self.ttl.as_millis() as u64);
        loop {
            let answer: Result<Option<String>, _> = set.query_async(&mut self.connection(lock).await).await;
            match answer {
                Ok(Some(_)) => return Ok((lock.to_owned(), token)),
                Ok(None) => SystemClock.sleep(PAUSE).await,
                Err(error) => match error.redirect_node() {
                    Some((address, _)) => self.follow(lock, address).await?,
                    None => return Err(error.to_string()),
                },
            }
        }
    }

    async fn release(&self, (lock, token): Self::Held) -> Result<(), String> {
        let mut connection = self.connection(&lock).await;
        let deleted: Result<u64, _> = self.release.key(lock).arg(token).invoke_async(&mut connection).await;
        match deleted.map_err(|error| error.to_string())? {
            0 => Err("the lock has lapsed".to_owned()),
            _ => Ok(()),
        }
    }

    fn is_held(&self, _: &Self::Held) -> Option<bool> {
        None
    }
}
