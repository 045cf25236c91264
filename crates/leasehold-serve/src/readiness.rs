//! Whether the store responds, for probes.

use std::sync::Arc;
use std::time::Duration;

use leasehold::clock::{Moment, timeout};
use leasehold::{LockName, Locker};
use tokio::sync::Mutex;

use crate::feed::{NO_RESPONSE, reason};

/// How long the store may take to respond.
const LIMIT: Duration = Duration::from_secs(3);
/// How long the result of a check is used. Probes need no token, so they must not be able to keep the store from
/// renewing leases.
const RECENT: Duration = Duration::from_secs(1);

/// Whether the store responded recently. Locked while a check is in progress.
#[derive(Clone, Debug, Default)]
pub(crate) struct Readiness(Arc<Mutex<Option<Checked>>>);

/// The last check.
#[derive(Debug)]
struct Checked {
    at: Moment,
    /// The error says whether the store responded, without its text.
    result: Result<(), &'static str>,
}

impl Readiness {
    /// Checks whether the store of `locker` responds.
    pub(crate) async fn check(&self, locker: &Locker) -> Result<(), &'static str> {
        let (readiness, locker) = (self.clone(), locker.clone());
        // Use a task, so that the next probe gets the result even if this one is abandoned.
        let checked = tokio::spawn(async move { readiness.checked(&locker).await }).await;
        checked.unwrap_or(Err("the check failed"))
    }

    async fn checked(&self, locker: &Locker) -> Result<(), &'static str> {
        let env = locker.store().env();
        let mut last = self.0.lock().await;
        if let Some(Checked { at, result }) = &*last
            && env.now().longest_since(*at) < RECENT
        {
            return *result;
        }
        let result = match LockName::new("leasehold-ready") {
            Ok(name) => match timeout(&*env.clock, LIMIT, locker.inspect(&name)).await {
                Some(Ok(_)) => Ok(()),
                Some(Err(error)) => Err((reason(&error), error.to_string())),
                None => Err((NO_RESPONSE, format!("no response within {LIMIT:?}"))),
            },
            Err(error) => Err(("the check failed", error.to_string())),
        };
        let was_ready = last.as_ref().is_none_or(|last| last.result.is_ok());
        let result = result.map_err(|(reason, detail)| {
            if was_ready {
                tracing::warn!("this server is not ready: {detail}");
            }
            reason
        });
        *last = Some(Checked { at: env.now(), result });
        result
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;
    use crate::feed::{Feed, paused_store};

    #[tokio::test(start_paused = true)]
    async fn probes_share_one_request_to_the_store() {
        let feed = Feed::new(&paused_store().await);
        let (readiness, locker) = (Readiness::default(), feed.locker());
        let checks = (0..100).map(|_| readiness.check(locker));
        assert!(futures_util::future::join_all(checks).await.iter().all(Result::is_ok));
        assert_eq!(feed.meter().total(), 1);
        locker.store().env().sleep(RECENT).await;
        readiness.check(locker).await.unwrap();
        assert_eq!(feed.meter().total(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn probes_that_are_given_up_share_a_request_too() {
        let feed = Feed::new(&paused_store().await);
        let (readiness, locker) = (Readiness::default(), feed.locker());
        for _ in 0..100 {
            assert!(readiness.check(locker).now_or_never().is_none());
        }
        readiness.check(locker).await.unwrap();
        assert_eq!(feed.meter().total(), 1);
    }
}
