//! The credentials for Azure: a key, a shared access signature, or a token that Microsoft's library requests.
//!
//! A load runs in a task of its own, so it continues when the request that started it is given up, which happens soon to
//! a request of a short lease.

use std::error::Error as StdError;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use azure_core::credentials::TokenCredential;
use azure_identity::{
    AzureCliCredential, ClientSecretCredential, ManagedIdentityCredential, ManagedIdentityCredentialOptions,
    UserAssignedId, WorkloadIdentityCredential,
};
use futures_util::future::{self, BoxFuture, FutureExt, Shared};

use super::config::{Identity, Secret, Source};
use super::sign::Key;
use crate::clock;
use crate::env::Env;

/// The limit of one load. Below the time limit of a claim (15 s), so that its error can say what is missing.
const LOAD_LIMIT: Duration = Duration::from_secs(12);

/// A token is replaced so long before its end.
const BEFORE_END: Duration = Duration::from_secs(300);

const SCOPE: &str = "https://storage.azure.com/.default";

/// What a request carries.
#[derive(Clone)]
pub(super) enum Proof {
    Key(Arc<Key>),
    /// The query of a shared access signature, encoded.
    Sas(Arc<str>),
    /// The value of the header `Authorization`.
    Bearer(Arc<str>),
    None,
}

/// A proof, and the load that it comes from.
pub(super) struct Signed {
    pub(super) proof: Proof,
    pub(super) load: u64,
}

/// Why there are no credentials.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NotLoaded {
    pub(super) detail: String,
    /// Whether there were credentials before.
    pub(super) before: bool,
}

/// The credentials of one store.
pub(super) struct Credentials {
    source: Source,
    env: Env,
    environment: fn(&str) -> Option<String>,
    state: Mutex<State>,
}

/// A load in progress, which any number of requests await.
type Load = Shared<BoxFuture<'static, Result<Loaded, String>>>;

#[derive(Default)]
struct State {
    loaded: Option<Loaded>,
    loading: Option<Load>,
    /// How often something was loaded.
    loads: u64,
    /// The latest load that the store has accepted.
    accepted: Option<u64>,
}

impl State {
    /// Takes the result of a load that has ended. Returns why it failed.
    fn collect(&mut self) -> Option<String> {
        let ended = self.loading.as_ref().and_then(|load| load.peek().cloned())?;
        self.loading = None;
        match ended {
            Ok(loaded) => {
                self.loads += 1;
                self.loaded = Some(loaded);
                None
            }
            Err(detail) => Some(detail),
        }
    }

    fn signed(&self, now_us: u64) -> Option<Signed> {
        let loaded = self.loaded.as_ref().filter(|loaded| loaded.until_us > now_us)?;
        Some(Signed { proof: loaded.proof.clone(), load: self.loads })
    }
}

#[derive(Clone)]
struct Loaded {
    proof: Proof,
    /// Microseconds since the Unix epoch on the wall clock, which tokens refer to.
    until_us: u64,
}

impl Credentials {
    pub(super) fn new(source: Source, env: Env, environment: fn(&str) -> Option<String>) -> Self {
        Self { source, env, environment, state: Mutex::default() }
    }

    /// Returns what the next request carries. All requests await one load, and none does while the earlier proof is
    /// valid. Cancel safe: a load that was begun continues.
    pub(super) async fn proof(&self) -> Result<Signed, NotLoaded> {
        let now_us = self.env.now().wall_us();
        let soon_us = now_us.saturating_add(clock::micros(BEFORE_END));
        let (signed, load) = self.change(|state| {
            state.collect();
            let lasts = state.loaded.as_ref().is_some_and(|loaded| loaded.until_us > soon_us);
            let load = (!lasts).then(|| state.loading.get_or_insert_with(|| self.load()).clone());
            (state.signed(now_us), load)
        });
        if let Some(signed) = signed {
            return Ok(signed);
        }
        let failed = match load {
            Some(load) => load.await.err(),
            None => None,
        };
        self.change(|state| {
            let detail = state.collect().or(failed);
            state.signed(now_us).ok_or_else(|| NotLoaded {
                detail: detail.unwrap_or_else(|| "they ended at once".to_owned()),
                before: state.accepted.is_some(),
            })
        })
    }

    /// Records that the store has accepted what came from `load`. Always returns true: it was good.
    pub(super) fn accepted(&self, load: u64) -> bool {
        self.change(|state| state.accepted = state.accepted.max(Some(load)));
        true
    }

    /// Records that the store has refused what came from `load`, so that the next request loads again. Returns whether
    /// the store had accepted this or a later load before.
    pub(super) fn refused(&self, load: u64) -> bool {
        self.change(|state| {
            if state.loads == load {
                state.loaded = None;
            }
            state.accepted >= Some(load)
        })
    }

    /// Starts a load. Only tokens take time.
    fn load(&self) -> Load {
        let loaded = match &self.source {
            Source::Entra(identity) => return self.token(*identity),
            Source::Anonymous => Ok(Proof::None),
            Source::Key(secret) => key(secret),
            Source::Sas(secret) => signature(secret),
        };
        let loaded = loaded.map(|proof| Loaded { proof, until_us: u64::MAX });
        let load = future::ready(loaded).boxed().shared();
        // Ready at once for `collect`.
        let _ = load.clone().now_or_never();
        load
    }

    fn token(&self, identity: Identity) -> Load {
        let (env, environment) = (self.env.clone(), self.environment);
        let task = tokio::spawn(async move {
            let credential = credential(identity, environment)?;
            let token = clock::timeout(&*env.clock, LOAD_LIMIT, credential.get_token(&[SCOPE], None)).await;
            let token = token.ok_or_else(|| format!("no token within {LOAD_LIMIT:?}"))?;
            let token = token.map_err(|error| in_one_line(&error))?;
            let until = u64::try_from(token.expires_on.unix_timestamp()).unwrap_or(0);
            let bearer = format!("Bearer {}", token.token.secret());
            Ok(Loaded { proof: Proof::Bearer(bearer.into()), until_us: until.saturating_mul(1_000_000) })
        });
        task.map(|ended| ended.unwrap_or_else(|_| Err("the runtime ended".to_owned()))).boxed().shared()
    }

    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        change(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl fmt::Debug for Credentials {
    /// Shows nothing that was loaded.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").field("source", &self.source).finish_non_exhaustive()
    }
}

fn key(secret: &Secret) -> Result<Proof, String> {
    Key::parse(&text(secret)?).map(|key| Proof::Key(Arc::new(key))).ok_or_else(|| {
        format!("{} is no key of an account: it is not in base64", place(secret, "AZURE_STORAGE_KEY"))
    })
}

fn signature(secret: &Secret) -> Result<Proof, String> {
    let text = text(secret)?;
    let query = text.trim().trim_start_matches('?');
    if query.contains("sig=") && query.bytes().all(|b| b.is_ascii_graphic() && b != b'#') {
        return Ok(Proof::Sas(query.into()));
    }
    Err(format!("{} is no shared access signature", place(secret, "AZURE_STORAGE_SAS_TOKEN")))
}

fn text(secret: &Secret) -> Result<String, String> {
    match secret {
        Secret::Text(text) => Ok(text.clone()),
        Secret::File(path) => std::fs::read_to_string(path)
            .map_err(|error| format!("{} cannot be read: {error}", path.display())),
    }
}

fn place(secret: &Secret, variable: &str) -> String {
    match secret {
        Secret::Text(_) => variable.to_owned(),
        Secret::File(path) => format!("the file {}", path.display()),
    }
}

/// Returns the credential of `identity`, from the variables that Microsoft's libraries read.
fn credential(
    identity: Identity,
    environment: impl Fn(&str) -> Option<String>,
) -> Result<Arc<dyn TokenCredential>, String> {
    let variable = |name: &str| environment(name).filter(|text| !text.is_empty());
    let needed = |name: &str| variable(name).ok_or_else(|| format!("{name} is not set"));
    let made = match (identity, variable("AZURE_CLIENT_SECRET"), variable("AZURE_FEDERATED_TOKEN_FILE")) {
        (Identity::ClientSecret, None, _) => return Err("AZURE_CLIENT_SECRET is not set".to_owned()),
        (Identity::ClientSecret | Identity::Environment, Some(secret), _) => {
            let (tenant, client) = (needed("AZURE_TENANT_ID")?, needed("AZURE_CLIENT_ID")?);
            ClientSecretCredential::new(&tenant, client, secret.into(), None)
                .map(|made| made as Arc<dyn TokenCredential>)
        }
        (Identity::Workload, ..) | (Identity::Environment, None, Some(_)) => {
            WorkloadIdentityCredential::new(None).map(|made| made as _)
        }
        (Identity::Managed | Identity::Environment, ..) => {
            let user_assigned_id = variable("AZURE_CLIENT_ID").map(UserAssignedId::ClientId);
            let options = ManagedIdentityCredentialOptions { user_assigned_id, ..Default::default() };
            ManagedIdentityCredential::new(Some(options)).map(|made| made as _)
        }
        (Identity::Cli, ..) => AzureCliCredential::new(None).map(|made| made as _),
    };
    made.map_err(|error| in_one_line(&error))
}

/// An error and its causes in one line.
fn in_one_line(error: &(dyn StdError + 'static)) -> String {
    let causes = std::iter::successors(Some(error), |&error| error.source());
    let texts: Vec<String> = causes
        .map(|cause| cause.to_string().chars().filter(|c| !crate::types::is_unprintable(*c)).collect())
        .collect();
    texts.join(": ").chars().take(400).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    /// Lets a test decide what the managed identity's endpoint says: there is none, so a load fails, or never ends.
    fn credentials(source: Source) -> Credentials {
        Credentials::new(source, Env::system(), |_| None)
    }

    fn token(until_us: u64) -> Result<Loaded, String> {
        static N: AtomicU64 = AtomicU64::new(0);
        let n = N.fetch_add(1, Ordering::Relaxed);
        Ok(Loaded { proof: Proof::Bearer(format!("Bearer {n}").into()), until_us })
    }

    fn pending() -> Load {
        future::pending().boxed().shared()
    }

    /// Renewals do not wait while a token is replaced, and only one load runs.
    #[tokio::test]
    async fn a_token_is_used_until_its_end_while_the_next_one_loads() {
        let credentials = credentials(Source::Entra(Identity::ClientSecret));
        let now_us = credentials.env.now().wall_us();
        credentials.change(|state| {
            state.loaded = token(now_us + 60_000_000).ok();
            state.loads = 1;
            state.loading = Some(pending());
        });
        assert_eq!(credentials.proof().await.unwrap().load, 1);
        let next = future::ready(token(now_us + 3_600_000_000)).boxed().shared();
        let _ = next.clone().now_or_never();
        credentials.change(|state| state.loading = Some(next));
        assert_eq!(credentials.proof().await.unwrap().load, 2);
        assert!(credentials.change(|state| state.loading.is_none()), "the new token lasts");
    }

    #[tokio::test]
    async fn what_the_environment_lacks_is_named() {
        let credentials = credentials(Source::Entra(Identity::ClientSecret));
        let error = credentials.proof().await.err().unwrap();
        let expected = NotLoaded { detail: "AZURE_CLIENT_SECRET is not set".into(), before: false };
        assert_eq!(error, expected);
        // The next request tries again.
        assert!(credentials.change(|state| state.loading.is_none()));
    }

    #[tokio::test]
    async fn a_refusal_of_an_older_load_does_not_discard_a_newer_one() {
        let credentials = credentials(Source::Anonymous);
        let first = credentials.proof().await.unwrap().load;
        credentials.accepted(first);
        assert!(credentials.refused(first));
        let second = credentials.proof().await.unwrap().load;
        assert!(second > first && !credentials.refused(second));
        let third = credentials.proof().await.unwrap().load;
        credentials.refused(first);
        assert_eq!(credentials.proof().await.unwrap().load, third);
    }
}
