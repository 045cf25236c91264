//! leasehold, used as documented: one [`Locker`] for each process.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use leasehold::observe::{Event, Observer};
use leasehold::{Guard, Locker};

use super::{Client, Options};

pub(super) struct Ours {
    locker: Locker,
    ttl: Duration,
    renewals: Option<Arc<Renewals>>,
}

#[derive(Default)]
struct Renewals(AtomicU64);

impl Observer for Renewals {
    fn observe(&self, event: &Event<'_>) {
        if let Event::Renewed { .. } = event {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Ours {
    pub(super) async fn open(options: &Options) -> Result<Self, String> {
        let mut locker = Locker::open(options.text("store")?).await.map_err(|error| format!("{error:?}"))?;
        // Only where renewals are what is measured.
        let renewals = (options.verb == "many").then(Arc::<Renewals>::default);
        if let Some(renewals) = &renewals {
            locker = locker.observed_by(renewals.clone());
        }
        Ok(Self { locker, ttl: options.ttl()?, renewals })
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

    fn left(&self, held: &Guard) -> Option<Duration> {
        Some(held.remaining())
    }

    fn renewals(&self) -> Option<u64> {
        Some(self.renewals.as_ref()?.0.load(Ordering::Relaxed))
    }
}
