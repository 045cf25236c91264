//! Whether the store responds, for probes.

use std::time::Duration;

use leasehold::clock::{Moment, timeout};
use leasehold::{LockName, Locker};
use tokio::sync::Mutex;

/// How long the store may take to respond.
const LIMIT: Duration = Duration::from_secs(3);
/// For how long the result of a check is used: probes need no token, and must not keep the store from renewing leases.
const RECENT: Duration = Duration::from_secs(1);

/// Whether the store responded lately, and if not, why. Locked while a check is under way.
#[derive(Debug, Default)]
pub(crate) struct Readiness(Mutex<Option<(Moment, Result<(), String>)>>);

impl Readiness {
    /// Whether the store of `locker` responds.
    pub(crate) async fn check(&self, locker: &Locker) -> Result<(), String> {
        let env = locker.store().env();
        let mut last = self.0.lock().await;
        if let Some((at, result)) = &*last
            && env.now().longest_since(*at) < RECENT
        {
            return result.clone();
        }
        let result = match LockName::new("leasehold-ready") {
            Ok(name) => match timeout(&*env.clock, LIMIT, locker.inspect(&name)).await {
                Some(Ok(_)) => Ok(()),
                Some(Err(error)) => Err(error.to_string()),
                None => Err(format!("the store did not respond within {LIMIT:?}")),
            },
            Err(error) => Err(error.to_string()),
        };
        *last = Some((env.now(), result.clone()));
        result
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use leasehold::clock::TestClock;
    use leasehold::env::Env;
    use leasehold::lease::StoreOptions;

    use super::*;
    use crate::feed::Feed;

    #[tokio::test(start_paused = true)]
    async fn probes_share_one_request_to_the_store() {
        let mut options = StoreOptions::default();
        options.env = Env::seeded(Arc::new(TestClock::default()), 1);
        let feed = Feed::new(&Locker::open_with("mem:", options).await.unwrap());
        let (readiness, locker) = (Readiness::default(), feed.locker());
        let checks = (0..100).map(|_| readiness.check(locker));
        assert!(futures_util::future::join_all(checks).await.iter().all(Result::is_ok));
        assert_eq!(feed.meter().total(), 1);
        locker.store().env().sleep(RECENT).await;
        readiness.check(locker).await.unwrap();
        assert_eq!(feed.meter().total(), 2);
    }
}
