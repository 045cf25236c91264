//! A contender on Redis without leasehold: the algorithm of redis-py's `Lock`.

use std::time::Duration;

use leasehold::clock::{Clock, SystemClock};
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Script};

use super::Options;

/// redis-py's default.
const PAUSE: Duration = Duration::from_millis(100);

/// redis-py's script for a release.
const RELEASE: &str = "local token = redis.call('get', KEYS[1])
if not token or token ~= ARGV[1] then return 0 end
redis.call('del', KEYS[1])
return 1";

/// Sets a key with a time to live, if there is none. Otherwise it sleeps for 100 ms and retries. A release deletes the
/// key with a script, if it has the same value. Like redis-py's lock, it does not renew.
pub(super) struct RedisPy {
    connection: MultiplexedConnection,
    release: Script,
    ttl: Duration,
}

impl RedisPy {
    pub(super) async fn open(options: &Options) -> Result<Self, String> {
        let client = redis::Client::open(options.store()?).map_err(|error| error.to_string())?;
        // As in redis-py and in leasehold, no time limits.
        let limits = AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None);
        let connection = client.get_multiplexed_async_connection_with_config(&limits).await;
        let connection = connection.map_err(|error| error.to_string())?;
        Ok(Self { connection, release: Script::new(RELEASE), ttl: options.ttl()? })
    }
}

impl super::Client for RedisPy {
    /// The key and its value.
    type Held = (String, String);

    async fn acquire(&self, lock: &str) -> Result<Self::Held, String> {
        let token = format!("{:032x}", fastrand::u128(..));
        let mut set = redis::cmd("SET");
        set.arg(lock).arg(&token).arg("NX").arg("PX").arg(self.ttl.as_millis() as u64);
        loop {
            let answer: Result<Option<String>, _> = set.query_async(&mut self.connection.clone()).await;
            if answer.map_err(|error| error.to_string())?.is_some() {
                return Ok((lock.to_owned(), token));
            }
            SystemClock.sleep(PAUSE).await;
        }
    }

    async fn release(&self, (lock, token): Self::Held) -> Result<(), String> {
        let mut script = self.release.key(lock);
        let deleted: Result<u64, _> = script.arg(token).invoke_async(&mut self.connection.clone()).await;
        match deleted.map_err(|error| error.to_string())? {
            0 => Err("the lock has lapsed".to_owned()),
            _ => Ok(()),
        }
    }

    fn is_held(&self, _: &Self::Held) -> Option<bool> {
        None
    }
}
