//! Loads credentials in the background. A load continues when the request that needs it is abandoned.
//!
//! A request for a short lease has a time limit of a quarter of a second. Signing in, or asking the metadata service or
//! a helper program, takes longer. Without a background task, each attempt would start over, and none would finish.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use aws_credential_types::Credentials;
use aws_credential_types::provider::error::CredentialsError;
use aws_credential_types::provider::{ProvideCredentials, SharedCredentialsProvider, future};
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared};

use crate::clock::{self, Moment};
use crate::env::Env;

/// The time limit of one load. It is below the time limit of a claim (15 s), so that its error is reported in time. It
/// is above the time after which the metadata service's client gives up (four attempts of one second each, with
/// pauses).
const LOAD_LIMIT: Duration = Duration::from_secs(12);

/// How long after its start a load that has ended is handed out, if no request has taken its result. After a pause, the
/// result may be out of date, and a failure says nothing about the next load.
const RESULT_LIMIT: Duration = Duration::from_secs(24);

type Load = Shared<BoxFuture<'static, Result<Credentials, Arc<CredentialsError>>>>;

/// A provider that loads the credentials of another provider in a separate task, which all requests await.
pub(super) struct BackgroundCredentials {
    provider: SharedCredentialsProvider,
    env: Env,
    /// The load in progress, or a finished load whose result no request has taken yet. With the time at which it began.
    load: Mutex<Option<(Load, Moment)>>,
}

impl BackgroundCredentials {
    pub(super) fn new(provider: SharedCredentialsProvider, env: Env) -> Self {
        Self { provider, env, load: Mutex::default() }
    }

    async fn credentials(&self) -> Result<Credentials, CredentialsError> {
        let load = self.current();
        let result = load.clone().await;
        let mut slot = self.load.lock().unwrap_or_else(PoisonError::into_inner);
        if slot.as_ref().is_some_and(|(current, _)| current.ptr_eq(&load)) {
            *slot = None;
        }
        drop(slot);
        result.map_err(CredentialsError::not_loaded)
    }

    fn current(&self) -> Load {
        let mut slot = self.load.lock().unwrap_or_else(PoisonError::into_inner);
        if slot.as_ref().is_some_and(|(load, began)| self.is_stale(load, *began)) {
            *slot = None;
        }
        slot.get_or_insert_with(|| (self.begin(), self.env.now())).0.clone()
    }

    fn begin(&self) -> Load {
        let (provider, env) = (self.provider.clone(), self.env.clone());
        let task = tokio::spawn(async move {
            match clock::timeout(&*env.clock, LOAD_LIMIT, provider.provide_credentials()).await {
                Some(result) => result.map_err(Arc::new),
                None => Err(Arc::new(CredentialsError::provider_timed_out(LOAD_LIMIT))),
            }
        });
        let load =
            async { task.await.unwrap_or_else(|error| Err(Arc::new(CredentialsError::unhandled(error)))) };
        load.boxed().shared()
    }

    /// Whether `load` has ended, and its result has expired or is old.
    fn is_stale(&self, load: &Load, began: Moment) -> bool {
        // Not `peek`, because an abandoned load is only known to have ended when it is polled.
        let Some(result) = load.clone().now_or_never() else { return false };
        let now = self.env.now();
        let wall: SystemTime = UNIX_EPOCH + Duration::from_micros(now.wall_us());
        let has_expired =
            |credentials: Credentials| credentials.expiry().is_some_and(|expiry| expiry <= wall);
        now.longest_since(began) > RESULT_LIMIT || result.is_ok_and(has_expired)
    }
}

impl ProvideCredentials for BackgroundCredentials {
    fn provide_credentials<'a>(&'a self) -> future::ProvideCredentials<'a>
    where
        Self: 'a,
    {
        future::ProvideCredentials::new(self.credentials())
    }

    fn fallback_on_interrupt(&self) -> Option<Credentials> {
        self.provider.fallback_on_interrupt()
    }
}

impl fmt::Debug for BackgroundCredentials {
    /// Omits the credentials.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BackgroundCredentials").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::{Clock as _, TestClock};
    use std::sync::atomic::{AtomicUsize, Ordering};
    use tokio::sync::Notify;

    #[derive(Debug, Default)]
    struct Slow {
        loads: AtomicUsize,
        expiry: Option<SystemTime>,
        go: Notify,
    }

    #[derive(Debug)]
    struct Handle(Arc<Slow>);

    impl ProvideCredentials for Handle {
        fn provide_credentials<'a>(&'a self) -> future::ProvideCredentials<'a>
        where
            Self: 'a,
        {
            future::ProvideCredentials::new(async {
                self.0.loads.fetch_add(1, Ordering::SeqCst);
                self.0.go.notified().await;
                Ok(Credentials::new("id", "secret", None, self.0.expiry, "test"))
            })
        }
    }

    fn slow() -> (Arc<Slow>, BackgroundCredentials) {
        slow_for(None)
    }

    /// Returns a slow provider of credentials that expire after `lasts`.
    fn slow_for(lasts: Option<Duration>) -> (Arc<Slow>, BackgroundCredentials) {
        let env = Env::seeded(Arc::new(TestClock::default()), 1);
        let now = UNIX_EPOCH + Duration::from_micros(env.now().wall_us());
        let slow = Arc::new(Slow { expiry: lasts.map(|lasts| now + lasts), ..Slow::default() });
        (slow.clone(), BackgroundCredentials::new(SharedCredentialsProvider::new(Handle(slow)), env))
    }

    #[tokio::test(start_paused = true)]
    async fn a_load_survives_the_request_that_asked_for_it() {
        let (slow, credentials) = slow();
        for _ in 0..3 {
            let clock = TestClock::default();
            let attempt = clock::timeout(&clock, Duration::from_millis(250), credentials.credentials());
            assert!(attempt.await.is_none());
        }
        slow.go.notify_one();
        assert_eq!(credentials.credentials().await.unwrap().access_key_id(), "id");
        assert_eq!(slow.loads.load(Ordering::SeqCst), 1, "one load served four requests");
        slow.go.notify_one();
        credentials.credentials().await.unwrap();
        assert_eq!(slow.loads.load(Ordering::SeqCst), 2, "a load that was taken is not handed out forever");
    }

    #[tokio::test(start_paused = true)]
    async fn an_expired_or_old_result_is_not_handed_out() {
        for (lasts, pause) in [(Some(Duration::from_secs(5)), 6), (None, 60)] {
            let (slow, credentials) = slow_for(lasts);
            let clock = TestClock::default();
            let attempt = clock::timeout(&clock, Duration::from_millis(250), credentials.credentials());
            assert!(attempt.await.is_none());
            slow.go.notify_one();
            clock.sleep(Duration::from_secs(pause)).await;
            slow.go.notify_one();
            credentials.credentials().await.unwrap();
            assert_eq!(slow.loads.load(Ordering::SeqCst), 2, "{lasts:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_load_that_hangs_ends_in_an_error() {
        let (_slow, credentials) = slow();
        let error = credentials.credentials().await.unwrap_err();
        assert!(matches!(error, CredentialsError::CredentialsNotLoaded(_)), "{error:?}");
        assert!(!format!("{credentials:?}").contains("secret"));
    }
}
