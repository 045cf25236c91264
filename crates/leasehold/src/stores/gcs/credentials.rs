//! The credentials for GCS. Google's library finds and refreshes them. This module handles the library's failures.
//!
//! The library loads and refreshes access tokens in a separate task, so a load continues when the request that started
//! it is abandoned. A request for a short lease is abandoned soon. But that task ends for good after an error that the
//! library considers permanent, and when its runtime ends. It also measures the age of a token on a clock that stops
//! while the machine is suspended. So the library is restarted after every failure.

use std::error::Error as StdError;
use std::fmt;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use google_cloud_auth::credentials::{
    AccessTokenCredentials, Builder, CacheableResource, CredentialsProvider, external_account, impersonated,
    service_account, user_account,
};
use reqwest::header::HeaderMap;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use super::config::Source;
use crate::clock;
use crate::env::Env;
use crate::stores::over_http::causes::chain_until;
use crate::stores::over_http::credential_cache::{
    LOAD_LIMIT, Load, Loaded, Loads, NotLoaded, Signed, ended, spawned,
};

/// How long headers are used until the library is asked again. It replaces a token four minutes before its end.
const ASK_AGAIN: Duration = Duration::from_secs(60);

/// The scope of access tokens for the store. It covers all requests for objects. Within it, the roles decide what is
/// allowed.
pub(super) const SCOPE: &str = "https://www.googleapis.com/auth/devstorage.read_write";

/// The scope that a source needs to request access tokens of the account that it impersonates. Those tokens have
/// [`SCOPE`].
const SCOPE_TO_IMPERSONATE: &str = "https://www.googleapis.com/auth/cloud-platform";

/// The server that issues access tokens of service accounts.
const ACCOUNTS: &str = "https://iamcredentials.googleapis.com";

/// The source of the credentials, and the account that they impersonate.
#[derive(Clone, Debug)]
pub(super) struct Identity {
    pub(super) source: Source,
    pub(super) impersonated: Option<Impersonated>,
}

/// A service account to impersonate with the source's credentials.
#[derive(Clone, Debug)]
pub(super) struct Impersonated {
    email: String,
    /// Google's server, except in tests.
    server: String,
}

impl Impersonated {
    pub(super) fn new(email: String) -> Self {
        Self { email, server: ACCOUNTS.to_owned() }
    }

    #[cfg(test)]
    pub(super) fn at(email: &str, server: &str) -> Self {
        Self { email: email.to_owned(), server: server.to_owned() }
    }
}

/// The credentials of one store. Their proofs are headers.
pub(super) struct Credentials {
    identity: Arc<Identity>,
    /// The running library. `None` if the next load must start it.
    library: Arc<Mutex<Option<Library>>>,
    env: Env,
    loads: Loads<HeaderMap>,
}

/// The running library.
struct Library {
    credentials: AccessTokenCredentials,
    /// A task that ends with the runtime, as the library's own task does.
    alive: JoinHandle<()>,
}

impl Drop for Library {
    fn drop(&mut self) {
        self.alive.abort();
    }
}

impl Credentials {
    pub(super) fn new(identity: Identity, env: Env) -> Self {
        let (identity, library) = (Arc::new(identity), Arc::default());
        Self { identity, library, loads: Loads::new(env.clone()), env }
    }

    /// Returns the headers with credentials.
    pub(super) async fn proof(&self) -> Result<Signed<HeaderMap>, NotLoaded> {
        self.loads.proof(|| self.load()).await
    }

    /// See [`Loads::accepted`].
    pub(super) fn accepted(&self) -> bool {
        self.loads.accepted()
    }

    /// See [`Loads::refused`]. The next load starts the library again.
    pub(super) fn refused(&self, load: u64) -> bool {
        *locked(&self.library) = None;
        self.loads.refused(load) && self.identity.source != Source::Anonymous
    }

    fn load(&self) -> Load<HeaderMap> {
        if self.identity.source == Source::Anonymous {
            return ended(Ok(Loaded::forever(HeaderMap::new())));
        }
        let (identity, kept, env) = (self.identity.clone(), self.library.clone(), self.env.clone());
        spawned(async move {
            let running = locked(&kept).take().filter(|library| !library.alive.is_finished());
            let library = match running {
                Some(library) => library,
                None => identity.start()?,
            };
            let headers = library.credentials.headers(Default::default());
            let answer = clock::timeout(&*env.clock, LOAD_LIMIT, headers).await;
            let trouble = match answer {
                Some(Ok(CacheableResource::New { data, .. })) => {
                    *locked(&kept) = Some(library);
                    let renew_us = env.now().wall_us().saturating_add(clock::micros(ASK_AGAIN));
                    return Ok(Loaded { renew_us, ..Loaded::forever(data) });
                }
                // This never happens, because leasehold requests headers without naming earlier ones.
                Some(Ok(CacheableResource::NotModified)) => "the library returned none".to_owned(),
                Some(Err(error)) => in_one_line(&error),
                None => format!("they did not load within {LOAD_LIMIT:?}"),
            };
            Err(identity.named_in(trouble))
        })
    }
}

fn locked(library: &Mutex<Option<Library>>) -> MutexGuard<'_, Option<Library>> {
    library.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Identity {
    /// Starts the library.
    fn start(&self) -> Result<Library, String> {
        let credentials = match (&self.source, &self.impersonated) {
            (Source::File(path), account) => from_file(path, account.as_ref())?,
            (_, None) => Builder::default()
                .with_scopes([SCOPE])
                .build_access_token_credentials()
                .map_err(|error| in_one_line(&error))?,
            (_, Some(Impersonated { email, .. })) => Builder::default()
                .with_scopes([SCOPE_TO_IMPERSONATE])
                .build()
                .and_then(|source| {
                    impersonated::Builder::from_source_credentials(source)
                        .with_target_principal(email)
                        .with_scopes([SCOPE])
                        .build_access_token_credentials()
                })
                .map_err(|error| in_one_line(&error))?,
        };
        Ok(Library { credentials, alive: tokio::spawn(std::future::pending()) })
    }

    /// Returns `detail`, why there are no headers, with the names of the file and the account.
    fn named_in(&self, detail: String) -> String {
        let detail = match &self.source {
            Source::File(path) => format!("{}: {detail}", path.display()),
            _ => detail,
        };
        match &self.impersonated {
            Some(account) => format!(
                "as {}, which needs the role roles/iam.serviceAccountTokenCreator on it: {detail}",
                account.email
            ),
            None => detail,
        }
    }
}

impl fmt::Debug for Credentials {
    /// Omits the headers.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").field("identity", &self.identity).finish_non_exhaustive()
    }
}

fn from_file(path: &Path, account: Option<&Impersonated>) -> Result<AccessTokenCredentials, String> {
    let shown = path.display();
    let text = std::fs::read_to_string(path).map_err(|error| format!("{shown} cannot be read: {error}"))?;
    // The parser's error could repeat a secret.
    let key: Value = serde_json::from_str(&text).map_err(|_| format!("{shown} is not JSON"))?;
    let kind = key.get("type").and_then(Value::as_str).unwrap_or_default().to_owned();
    let built = match (kind.as_str(), account) {
        ("impersonated_service_account", Some(account)) => {
            return Err(format!(
                "{shown} is the key of an impersonated service account, which cannot impersonate {} in turn",
                account.email
            ));
        }
        ("service_account" | "authorized_user" | "external_account", Some(account)) => impersonated::Builder::new(json!({
            "type": "impersonated_service_account",
            "service_account_impersonation_url":
                format!("{}/v1/projects/-/serviceAccounts/{}:generateAccessToken", account.server, account.email),
            "source_credentials": key,
        }))
        .with_scopes([SCOPE])
        .build_access_token_credentials(),
        ("service_account", None) => service_account::Builder::new(key)
            .with_access_specifier(service_account::AccessSpecifier::from_scopes([SCOPE]))
            .build_access_token_credentials(),
        ("authorized_user", None) => {
            user_account::Builder::new(key).with_scopes([SCOPE]).build_access_token_credentials()
        }
        ("external_account", None) => {
            external_account::Builder::new(key).with_scopes([SCOPE]).build_access_token_credentials()
        }
        ("impersonated_service_account", None) => {
            impersonated::Builder::new(key).with_scopes([SCOPE]).build_access_token_credentials()
        }
        _ => {
            return Err(format!(
                "{shown} is not a key file: its `type` is none of service_account, authorized_user, \
                 external_account and impersonated_service_account"
            ));
        }
    };
    built.map_err(|error| format!("{shown}: {}", in_one_line(&error)))
}

/// Returns the text of an error and its causes, without the responses of a token server that the library quotes.
fn in_one_line(error: &(dyn StdError + 'static)) -> String {
    chain_until(error, &["] error: ", ", body=<"])
}
