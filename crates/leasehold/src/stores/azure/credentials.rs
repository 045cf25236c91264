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

#[derive(Default)]
struct State {
    loaded: Option<Loaded>,
    /// How often something was loaded.
    loads: u64,
    /// The latest load that the store has accepted.
    accepted: Option<u64>,
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

    /// Returns what the next request carries. Cancel safe.
    pub(super) async fn proof(&self) -> Result<Signed, NotLoaded> {
        let now_us = self.env.now().wall_us();
        let (known, load) = self.change(|state| (state.loaded.clone(), state.loads));
        if let Some(Loaded { proof, until_us }) = &known
            && until_us.saturating_sub(clock::micros(BEFORE_END)) > now_us
        {
            return Ok(Signed { proof: proof.clone(), load });
        }
        match self.load().await {
            Ok(loaded) => Ok(self.change(|state| {
                state.loads += 1;
                state.loaded = Some(loaded.clone());
                Signed { proof: loaded.proof, load: state.loads }
            })),
            // The last minutes of a token are there for another try.
            Err(_) if known.as_ref().is_some_and(|known| known.until_us > now_us) => {
                Ok(Signed { proof: known.map_or(Proof::None, |known| known.proof), load })
            }
            Err(detail) => Err(self.change(|state| NotLoaded { detail, before: state.accepted.is_some() })),
        }
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

    async fn load(&self) -> Result<Loaded, String> {
        let lasting = |proof| Ok(Loaded { proof, until_us: u64::MAX });
        match &self.source {
            Source::Anonymous => lasting(Proof::None),
            Source::Key(secret) => match Key::parse(&text(secret)?) {
                Some(key) => lasting(Proof::Key(Arc::new(key))),
                None => Err(format!(
                    "{} is no key of an account: it is not in base64",
                    place(secret, "AZURE_STORAGE_KEY")
                )),
            },
            Source::Sas(secret) => {
                let text = text(secret)?;
                let query = text.trim().trim_start_matches('?');
                if query.contains("sig=") && query.bytes().all(|b| b.is_ascii_graphic() && b != b'#') {
                    lasting(Proof::Sas(query.into()))
                } else {
                    Err(format!("{} is no shared access signature", place(secret, "AZURE_STORAGE_SAS_TOKEN")))
                }
            }
            Source::Entra(identity) => self.token(*identity).await,
        }
    }

    async fn token(&self, identity: Identity) -> Result<Loaded, String> {
        let credential = credential(identity, self.environment)?;
        let load = tokio::spawn(async move { credential.get_token(&[SCOPE], None).await });
        match clock::timeout(&*self.env.clock, LOAD_LIMIT, load).await {
            None => Err(format!("no token within {LOAD_LIMIT:?}")),
            Some(Err(_)) => Err("the runtime ended".to_owned()),
            Some(Ok(Err(error))) => Err(in_one_line(&error)),
            Some(Ok(Ok(token))) => {
                let until = u64::try_from(token.expires_on.unix_timestamp()).unwrap_or(0);
                let bearer = format!("Bearer {}", token.token.secret());
                Ok(Loaded { proof: Proof::Bearer(bearer.into()), until_us: until.saturating_mul(1_000_000) })
            }
        }
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
