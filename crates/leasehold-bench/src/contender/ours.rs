//! leasehold, used as documented: one [`Locker`] for each process.

use std::time::Duration;

use leasehold::{Guard, Locker};

use super::{Client, Options};

pub(super) struct Ours {
    locker: Locker,
    ttl: Duration,
}

impl Ours {
    pub(super) async fn open(options: &Options) -> Result<Self, String> {
        let locker = Locker::open(options.text("store")?).await.map_err(|error| format!("{error:?}"))?;
        Ok(Self { locker, ttl: options.ttl()? })
    }
}

impl Client for Ours {
    type Held = Guard;

    async fn acquire(&self, lock: &str) -> Result<Guard, String> {
        self.locker.lock(lock).ttl(self.ttl).acquire().await.map_err(|error| format!("{error:?}"))
    }

    async fn release(&self, held: Guard) -> Result<(), String> {
        held.release().await.map(|_| ()).map_err(|error| format!("{error:?}"))
    }

    fn is_held(&self, held: &Guard) -> Option<bool> {
        Some(held.check().is_ok())
    }
}
