//! The known keys of an issuer, and the task that fetches them.
//!
//! One task fetches the keys. So only one fetch runs at a time, and a client that closes its connection does not end
//! it. A request whose key is known never waits for a fetch.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk, KeyAlgorithm, KeyOperations, PublicKeyUse};
use jsonwebtoken::{Algorithm, DecodingKey};
use leasehold::clock::{self, Moment};
use leasehold::env::Env;
use serde_json::Value;
use tokio::sync::{Notify, watch};

use super::source::{Set, Source};

/// The time limit of one fetch.
pub(super) const FETCH_TIMEOUT: Duration = Duration::from_secs(10);
/// The time limit of a request that waits for a fetch. It is longer than the limit of the fetch, so that the fetching
/// task can report the result.
const WAIT_TIMEOUT: Duration = Duration::from_secs(11);
/// The minimum time between the last fetch and another one that an unknown key causes.
pub(super) const MIN_INTERVAL: Duration = Duration::from_secs(10);
/// After this time, keys are fetched again, and those that the issuer has withdrawn are no longer accepted.
pub(super) const MAX_AGE: Duration = Duration::from_secs(15 * 60);
/// After this time, a fetch that failed is repeated.
const RETRY_INTERVAL: Duration = Duration::from_secs(30);

/// A public key, and the algorithms of signatures that it may verify.
#[derive(Debug)]
pub(super) struct Key {
    pub(super) decoding: DecodingKey,
    /// Not empty. All of them match the type of the key. Neither `none` nor an algorithm with a shared secret is among
    /// them.
    pub(super) algorithms: Vec<Algorithm>,
}

/// The reason why there is no key.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum NoKey {
    /// The issuer has no key with this id.
    Unknown,
    /// The keys could not be fetched.
    Unavailable,
}

/// The keys of one issuer.
#[derive(Debug)]
pub(super) struct Keys {
    source: Source,
    fetched: watch::Sender<Fetched>,
    requested: Notify,
}

/// The result of the latest fetches.
#[derive(Debug, Default)]
struct Fetched {
    keys: HashMap<String, Arc<Key>>,
    /// When the last fetch ended.
    at: Option<Moment>,
    /// Whether the last fetch failed. The keys are then from an earlier fetch.
    has_failed: bool,
}

impl Keys {
    pub(super) fn new(source: Source) -> Self {
        Self { source, fetched: watch::Sender::default(), requested: Notify::new() }
    }

    /// Returns the key `id`. If it is unknown, waits a limited time for a fetch, unless the last fetch is recent.
    pub(super) async fn find(&self, id: &str, env: &Env) -> Result<Arc<Key>, NoKey> {
        let mut fetched = self.fetched.subscribe();
        // Take both values from the same state.
        let (found, was_just_fetched) = {
            let fetched = fetched.borrow_and_update();
            (fetched.find(id), fetched.is_recent(env.now()))
        };
        if found.is_ok() || was_just_fetched {
            return found;
        }
        self.requested.notify_one();
        match clock::timeout(&*env.clock, WAIT_TIMEOUT, fetched.changed()).await {
            Some(_) => fetched.borrow().find(id),
            None => Err(NoKey::Unavailable),
        }
    }

    /// Fetches the keys at once, at intervals, and when an unknown key is requested. Runs until it is dropped.
    pub(super) async fn refresh(&self, issuer: &str, env: &Env) {
        loop {
            let set = clock::timeout(&*env.clock, FETCH_TIMEOUT, self.source.fetch()).await;
            let keys =
                set.unwrap_or_else(|| Err(format!("no response within {FETCH_TIMEOUT:?}"))).and_then(usable);
            let has_failed = keys.is_err();
            if let Err(error) = &keys {
                tracing::warn!(issuer, error, "the keys of an issuer could not be fetched");
            }
            let ended = env.now();
            self.fetched.send_modify(|fetched| {
                fetched.at = Some(ended);
                fetched.has_failed = has_failed;
                if let Ok(keys) = keys {
                    fetched.keys = keys;
                }
            });
            tokio::select! {
                () = env.sleep(if has_failed { RETRY_INTERVAL } else { MAX_AGE }) => {}
                () = self.requested(env) => {}
            }
        }
    }

    /// Waits until a request needs an unknown key and the last fetch is not recent.
    async fn requested(&self, env: &Env) {
        loop {
            self.requested.notified().await;
            if !self.fetched.borrow().is_recent(env.now()) {
                return;
            }
        }
    }
}

impl Fetched {
    fn find(&self, id: &str) -> Result<Arc<Key>, NoKey> {
        let missing = if self.has_failed { NoKey::Unavailable } else { NoKey::Unknown };
        self.keys.get(id).cloned().ok_or(missing)
    }

    /// Returns whether the last fetch ended less than [`MIN_INTERVAL`] before `now`, on the clock that cannot be set.
    fn is_recent(&self, now: Moment) -> bool {
        self.at.is_some_and(|at| now.since_boot().saturating_sub(at.since_boot()) < MIN_INTERVAL)
    }
}

/// Returns the keys that can verify signatures.
fn usable(set: Set) -> Result<HashMap<String, Arc<Key>>, String> {
    let mut keys = HashMap::new();
    for (id, key) in set.keys.iter().filter_map(key) {
        keys.entry(id).or_insert_with(|| Arc::new(key));
    }
    if keys.is_empty() {
        return Err("it has no key with an id (`kid`) that verifies signatures".to_owned());
    }
    Ok(keys)
}

/// Returns the id and the key, if it is a public key for signatures.
fn key(value: &Value) -> Option<(String, Key)> {
    use Algorithm::{ES256, ES384, EdDSA, PS256, PS384, PS512, RS256, RS384, RS512};
    let jwk: Jwk = serde_json::from_value(value.clone()).ok()?;
    let common = &jwk.common;
    let verifies = common.public_key_use.as_ref().is_none_or(|of| *of == PublicKeyUse::Signature)
        && common.key_operations.as_ref().is_none_or(|of| of.contains(&KeyOperations::Verify));
    let of_type: &[Algorithm] = match &jwk.algorithm {
        AlgorithmParameters::RSA(_) => &[RS256, RS384, RS512, PS256, PS384, PS512],
        AlgorithmParameters::EllipticCurve(key) if key.curve == EllipticCurve::P256 => &[ES256],
        AlgorithmParameters::EllipticCurve(key) if key.curve == EllipticCurve::P384 => &[ES384],
        AlgorithmParameters::OctetKeyPair(key) if key.curve == EllipticCurve::Ed25519 => &[EdDSA],
        _ => &[],
    };
    let fits = |of: &Algorithm| common.key_algorithm.is_none_or(|named| named == KeyAlgorithm::from(*of));
    let algorithms: Vec<Algorithm> = of_type.iter().copied().filter(fits).collect();
    if !verifies || algorithms.is_empty() {
        return None;
    }
    Some((common.key_id.clone()?, Key { decoding: DecodingKey::from_jwk(&jwk).ok()?, algorithms }))
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;
    use leasehold::clock::TestClock;
    use serde_json::json;

    use super::*;

    #[tokio::test]
    async fn a_fetch_begins_only_a_pause_after_the_last_one() {
        let clock = Arc::new(TestClock::default());
        let env = Env::seeded(clock.clone(), 1);
        let keys = Keys::new(Source::file("/nowhere"));
        let find = || keys.find("k", &env).now_or_never().map(Result::unwrap_err);
        let begins = || keys.requested(&env).now_or_never().is_some();
        assert!(find().is_none() && begins(), "nothing was fetched yet");
        keys.fetched.send_modify(|fetched| fetched.at = Some(env.now()));
        assert_eq!(find(), Some(NoKey::Unknown), "it does not wait");
        keys.requested.notify_one();
        assert!(!begins(), "a request that came before the last fetch ended");
        clock.suspend(MIN_INTERVAL);
        assert!(find().is_none() && begins());
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_waits_for_keys_for_a_limited_time() {
        let env = Env::seeded(Arc::new(TestClock::default()), 1);
        // The task that fetches the keys does not run.
        let keys = Keys::new(Source::file("/nowhere"));
        let found = clock::timeout(&*env.clock, 2 * FETCH_TIMEOUT, keys.find("k", &env)).await;
        assert_eq!(found.expect("it waits").unwrap_err(), NoKey::Unavailable);
    }

    #[test]
    fn only_public_keys_for_signatures_are_used() {
        let rsa = |more: Value| {
            let mut key = json!({"kty": "RSA", "kid": "k", "n": "AQAB", "e": "AQAB"});
            key.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            key
        };
        let (_, any) = key(&rsa(json!({}))).unwrap();
        assert!(any.algorithms.len() == 6 && any.algorithms.contains(&Algorithm::PS256));
        let (_, one) = key(&rsa(json!({"use": "sig", "alg": "RS256"}))).unwrap();
        assert_eq!(one.algorithms, [Algorithm::RS256]);
        for unfit in [
            rsa(json!({"use": "enc"})),
            rsa(json!({"key_ops": ["encrypt"]})),
            rsa(json!({"alg": "RSA-OAEP"})),
            rsa(json!({"alg": "HS256"})),
            rsa(json!({"alg": "ES256"})),
            rsa(json!({"kid": null})),
            rsa(json!({"n": "not base64!"})),
            json!({"kty": "oct", "kid": "k", "k": "c2VjcmV0", "alg": "HS256"}),
            json!({"kty": "OKP", "kid": "k", "crv": "X25519", "x": "AQAB"}),
            json!({"kty": "EC", "kid": "k", "crv": "P-521", "x": "AQAB", "y": "AQAB"}),
            json!({"kty": "new"}),
            json!(7),
        ] {
            assert!(key(&unfit).is_none(), "{unfit}");
        }
        let set = |keys: Vec<Value>| usable(Set { keys });
        assert!(set(vec![json!({"kty": "new"}), rsa(json!({}))]).unwrap().contains_key("k"));
        assert!(set(vec![json!({"kty": "oct", "kid": "k", "k": "c2VjcmV0"})]).is_err());
    }
}
