//! Loads the credentials for a store. Loads them again before they expire and after the store has refused them.
//!
//! The SDK's providers keep what they have read from the machine's files for as long as they exist. So after a refusal,
//! and for credentials without an expiry, each load uses a new provider. It reads the files as they are then.
//!
//! A load continues when the request that needs it is abandoned. A request for a short lease has a time limit of a
//! quarter of a second. Signing in, or asking the metadata service or a helper program, takes longer.

use std::error::Error as StdError;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, UNIX_EPOCH};

use aws_credential_types::Credentials;
use aws_credential_types::provider::error::CredentialsError;
use aws_credential_types::provider::{ProvideCredentials, SharedCredentialsProvider, future};
use futures_util::future::BoxFuture;

use crate::clock;
use crate::env::Env;
use crate::stores::over_http::causes::{causes, chain};
use crate::stores::over_http::credential_cache::{LOAD_LIMIT, Load, Loaded, Loads, spawned};

/// How long before their expiry credentials are replaced. The metadata service has new ones by then.
const BEFORE_END: Duration = Duration::from_secs(300);

/// How long credentials without an expiry are used until they are read again. The SDK has the same limit.
const READ_AGAIN: Duration = Duration::from_secs(15 * 60);

/// How long credentials are used at least. This machine's clock may be ahead, so only the store decides whether they
/// have expired.
const LEAST: Duration = Duration::from_secs(60);

/// Returns a new provider, which has read nothing yet.
pub(in crate::stores) type Source =
    Arc<dyn Fn() -> BoxFuture<'static, Result<SharedCredentialsProvider, String>> + Send + Sync>;

/// The credentials of one store. A clone shares them.
#[derive(Clone)]
pub(in crate::stores) struct StoreCredentials(Arc<Inner>);

struct Inner {
    source: Source,
    /// The provider for the next load. `None` if that needs a new one.
    provider: Arc<Mutex<Option<SharedCredentialsProvider>>>,
    env: Env,
    loads: Loads<Credentials>,
}

impl StoreCredentials {
    /// Creates credentials that come from `first`, if there is such a provider, and later from those of `source`.
    pub(in crate::stores) fn new(first: Option<SharedCredentialsProvider>, source: Source, env: Env) -> Self {
        let provider = Arc::new(Mutex::new(first));
        Self(Arc::new(Inner { source, provider, loads: Loads::new(env.clone()), env }))
    }

    /// Returns the number of the load whose credentials the next request will use.
    pub(super) fn load(&self) -> u64 {
        self.0.loads.upcoming()
    }

    /// Records that the store has accepted credentials.
    pub(super) fn accepted(&self) {
        self.0.loads.accepted();
    }

    /// Records that the store has refused the credentials from `load`, so that they are read again, by a new provider.
    /// Returns whether the store has accepted credentials before.
    pub(super) fn refused(&self, load: u64) -> bool {
        *self.0.provider.lock().unwrap_or_else(PoisonError::into_inner) = None;
        self.0.loads.refused(load)
    }

    async fn credentials(&self) -> Result<Credentials, CredentialsError> {
        let signed = self.0.loads.proof(|| self.0.begin()).await;
        signed.map(|signed| signed.proof).map_err(|missing| CredentialsError::not_loaded(missing.detail))
    }
}

impl Inner {
    fn begin(&self) -> Load<Credentials> {
        let (source, kept, env) = (self.source.clone(), self.provider.clone(), self.env.clone());
        spawned(async move {
            let earlier = kept.lock().unwrap_or_else(PoisonError::into_inner).take();
            let provided = clock::timeout(&*env.clock, LOAD_LIMIT, async {
                let provider = match earlier.clone() {
                    Some(provider) => provider,
                    None => source().await?,
                };
                let credentials = provider.provide_credentials().await.map_err(|error| detail(&error))?;
                Ok::<_, String>((provider, credentials))
            });
            let (provider, credentials) = match provided.await {
                Some(provided) => provided?,
                // The metadata service allows its last credentials to be used while it does not respond.
                None => earlier
                    .and_then(|provider| provider.fallback_on_interrupt().map(|last| (provider, last)))
                    .ok_or_else(|| format!("they did not load within {LOAD_LIMIT:?}"))?,
            };
            if credentials.expiry().is_some() {
                *kept.lock().unwrap_or_else(PoisonError::into_inner) = Some(provider);
            }
            Ok(lasting(credentials, env.now().wall_us()))
        })
    }
}

/// Returns `credentials` with the times from which they are replaced and no longer used.
fn lasting(credentials: Credentials, now_us: u64) -> Loaded<Credentials> {
    let after = |pause| now_us.saturating_add(clock::micros(pause));
    let expiry = credentials.expiry().and_then(|expiry| expiry.duration_since(UNIX_EPOCH).ok());
    let Some(expiry) = expiry else {
        return Loaded { proof: credentials, renew_us: after(READ_AGAIN), until_us: u64::MAX };
    };
    let left = clock::micros(expiry).saturating_sub(now_us);
    // A quarter of the time that is left, because the metadata service may return the same credentials again.
    let early = clock::micros(BEFORE_END).min(left / 4);
    let until_us = clock::micros(expiry).max(after(LEAST));
    Loaded { proof: credentials, renew_us: now_us.saturating_add(left - early), until_us }
}

impl ProvideCredentials for StoreCredentials {
    fn provide_credentials<'a>(&'a self) -> future::ProvideCredentials<'a>
    where
        Self: 'a,
    {
        future::ProvideCredentials::new(self.credentials())
    }
}

impl fmt::Debug for StoreCredentials {
    /// Omits the credentials.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreCredentials").finish_non_exhaustive()
    }
}

/// Returns why credentials could not be loaded. The text of a `CredentialsError` only says that credentials were not
/// enabled or not loaded. Its source has the details.
fn detail(error: &CredentialsError) -> String {
    let error: &(dyn StdError + 'static) = error;
    chain(causes(error).find(|cause| !cause.is::<CredentialsError>()).unwrap_or(error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::{Clock as _, TestClock};
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::SystemTime;
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

    /// A slow provider of credentials that expire after `lasts`, and the number of times that it was made anew.
    struct Machine {
        slow: Arc<Slow>,
        made: Arc<AtomicUsize>,
        credentials: StoreCredentials,
        clock: Arc<TestClock>,
    }

    fn slow(lasts: Option<Duration>) -> Machine {
        let clock = Arc::new(TestClock::default());
        let env = Env::seeded(clock.clone(), 1);
        let now = UNIX_EPOCH + Duration::from_micros(env.now().wall_us());
        let slow = Arc::new(Slow { expiry: lasts.map(|lasts| now + lasts), ..Slow::default() });
        let made = Arc::new(AtomicUsize::new(0));
        let (again, counted) = (slow.clone(), made.clone());
        let source: Source = Arc::new(move || {
            counted.fetch_add(1, Ordering::SeqCst);
            let provider = SharedCredentialsProvider::new(Handle(again.clone()));
            Box::pin(async move { Ok(provider) })
        });
        let first = SharedCredentialsProvider::new(Handle(slow.clone()));
        Machine { slow, made, credentials: StoreCredentials::new(Some(first), source, env), clock }
    }

    impl Machine {
        async fn loaded(&self) -> Credentials {
            self.slow.go.notify_one();
            self.credentials.credentials().await.unwrap()
        }

        /// Returns how often credentials were loaded, and how often from a new provider.
        fn counts(&self) -> (usize, usize) {
            (self.slow.loads.load(Ordering::SeqCst), self.made.load(Ordering::SeqCst))
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_load_survives_the_request_that_asked_for_it() {
        let machine = slow(None);
        for _ in 0..3 {
            let credentials = machine.credentials.credentials();
            let attempt = clock::timeout(&*machine.clock, Duration::from_millis(250), credentials);
            assert!(attempt.await.is_none());
        }
        assert_eq!(machine.loaded().await.access_key_id(), "id");
        machine.loaded().await;
        assert_eq!(machine.counts(), (1, 0), "one load served all requests");
    }

    /// A provider that does not expire its credentials has read them from a file, and would not read it again.
    #[tokio::test(start_paused = true)]
    async fn only_credentials_that_expire_keep_their_provider() {
        for (lasts, pause, anew) in [(Some(Duration::from_secs(3_600)), 3_400, 0), (None, 16 * 60, 1)] {
            let machine = slow(lasts);
            machine.loaded().await;
            machine.clock.sleep(Duration::from_secs(pause)).await;
            assert_eq!(machine.counts(), (1, 0));
            machine.loaded().await; // starts a load, and does not wait for it
            tokio::task::yield_now().await;
            assert_eq!(machine.counts(), (2, anew), "{lasts:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn refused_credentials_come_from_a_new_provider() {
        let machine = slow(Some(Duration::from_secs(3_600)));
        machine.loaded().await;
        assert!(!machine.credentials.refused(machine.credentials.load()), "never accepted");
        machine.loaded().await;
        assert_eq!(machine.counts(), (2, 1));
        machine.credentials.accepted();
        let load = machine.credentials.load();
        assert!(machine.credentials.refused(load));
        machine.loaded().await;
        assert!(machine.credentials.refused(load), "of an older load");
        machine.loaded().await;
        assert_eq!(machine.counts(), (3, 2), "newer credentials are not discarded");
    }

    #[test]
    fn credentials_that_seem_to_have_expired_are_still_tried() {
        let at =
            |s| Credentials::new("id", "secret", None, Some(UNIX_EPOCH + Duration::from_secs(s)), "test");
        let now_us = 1_000_000_000;
        for (expiry, renew, until) in [(4_600, 4_300, 4_600), (1_100, 1_075, 1_100), (900, 1_000, 1_060)] {
            let loaded = lasting(at(expiry), now_us);
            assert_eq!(
                (loaded.renew_us, loaded.until_us),
                (renew * 1_000_000, until * 1_000_000),
                "{expiry}"
            );
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_load_that_hangs_ends_in_an_error() {
        let credentials = slow(None).credentials;
        let error = credentials.credentials().await.unwrap_err();
        assert!(matches!(error, CredentialsError::CredentialsNotLoaded(_)), "{error:?}");
        assert!(!format!("{credentials:?}").contains("secret"));
    }
}
