//! The credentials for GCS. Google's library finds and refreshes them. This module handles the library's failures.
//!
//! The library loads and refreshes access tokens in a separate task, so a load continues when the request that started
//! it is abandoned. A request for a short lease is abandoned soon. But that task ends for good after an error that the
//! library considers permanent, and when its runtime ends. It also measures the age of a token on a clock that stops
//! while the machine is suspended. So the library is restarted after every failure.

use std::error::Error as StdError;
use std::fmt;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use google_cloud_auth::credentials::{
    AccessTokenCredentials, Builder, CacheableResource, CredentialsProvider, external_account, impersonated,
    service_account, user_account,
};
use reqwest::header::HeaderMap;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use super::config::Source;
use crate::clock::{self, Moment};
use crate::env::Env;

/// The time limit of one load. It is below the time limit of a claim (15 s), so that its error is reported in time.
const LOAD_LIMIT: Duration = Duration::from_secs(12);

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

/// Why there are no credentials.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NotLoaded {
    /// The library's error, on one line.
    pub(super) detail: String,
    /// Whether credentials were loaded before.
    pub(super) before: bool,
}

/// The credentials of one store.
pub(super) struct Credentials {
    identity: Identity,
    env: Env,
    state: Mutex<State>,
}

/// Headers with credentials, and the number of the library's start that they come from.
pub(super) struct Signed {
    pub(super) headers: HeaderMap,
    pub(super) start: u64,
}

#[derive(Default)]
struct State {
    library: Option<Library>,
    /// The number of times that the library was started.
    starts: u64,
    /// When requests began to wait for headers, if none have arrived since.
    waiting_since: Option<Moment>,
    /// Whether headers were ever returned.
    loaded_before: bool,
    /// Whether the store has accepted headers.
    accepted: bool,
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
        Self { identity, env, state: Mutex::default() }
    }

    /// Returns the headers with credentials.
    ///
    /// Cancel safe: a load that has started continues.
    pub(super) async fn headers(&self) -> Result<Signed, NotLoaded> {
        if self.identity.source == Source::Anonymous {
            return Ok(Signed { headers: HeaderMap::new(), start: 0 });
        }
        let (credentials, start, left) = self.started()?;
        let answer = clock::timeout(&*self.env.clock, left, credentials.headers(Default::default())).await;
        let trouble = match answer {
            Some(Ok(CacheableResource::New { data, .. })) => {
                self.change(|state| (state.waiting_since, state.loaded_before) = (None, true));
                return Ok(Signed { headers: data, start });
            }
            // This never happens, because leasehold requests headers without naming earlier ones.
            Some(Ok(CacheableResource::NotModified)) => "the library returned none".to_owned(),
            Some(Err(error)) => in_one_line(&error),
            None => format!("they did not load within {LOAD_LIMIT:?}"),
        };
        Err(self.forget(trouble))
    }

    /// Records that the store has accepted headers. Always returns `true`: the store has accepted the credentials.
    pub(super) fn accepted(&self) -> bool {
        self.change(|state| state.accepted = true);
        true
    }

    /// Records that the store has refused headers of `start` (401), so that the next request loads new ones. Returns
    /// whether the store has accepted headers before. Several requests with the same headers
    /// may be refused, some of them after new headers were loaded.
    pub(super) fn refused(&self, start: u64) -> bool {
        if self.identity.source == Source::Anonymous {
            return false;
        }
        self.change(|state| {
            if state.starts == start {
                state.library = None;
            }
            state.accepted
        })
    }

    /// Starts the library if it is not running. Returns its credentials, the number of its start, and how long a load
    /// may still take.
    fn started(&self) -> Result<(AccessTokenCredentials, u64, Duration), NotLoaded> {
        let now = self.env.now();
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let running = state.library.as_ref().filter(|library| !library.alive.is_finished());
        let credentials = match running {
            Some(library) => library.credentials.clone(),
            None => {
                let credentials =
                    self.start().map_err(|detail| NotLoaded { detail, before: state.loaded_before })?;
                let alive = tokio::spawn(std::future::pending());
                state.library = Some(Library { credentials: credentials.clone(), alive });
                state.starts += 1;
                credentials
            }
        };
        let since = *state.waiting_since.get_or_insert(now);
        Ok((credentials, state.starts, LOAD_LIMIT.saturating_sub(now.longest_since(since))))
    }

    fn start(&self) -> Result<AccessTokenCredentials, String> {
        match (&self.identity.source, &self.identity.impersonated) {
            (Source::File(path), account) => from_file(path, account.as_ref()),
            (_, None) => Builder::default()
                .with_scopes([SCOPE])
                .build_access_token_credentials()
                .map_err(|error| in_one_line(&error)),
            (_, Some(Impersonated { email, .. })) => Builder::default()
                .with_scopes([SCOPE_TO_IMPERSONATE])
                .build()
                .and_then(|source| {
                    impersonated::Builder::from_source_credentials(source)
                        .with_target_principal(email)
                        .with_scopes([SCOPE])
                        .build_access_token_credentials()
                })
                .map_err(|error| in_one_line(&error)),
        }
    }

    fn forget(&self, detail: String) -> NotLoaded {
        let detail = match &self.identity.source {
            Source::File(path) => format!("{}: {detail}", path.display()),
            _ => detail,
        };
        let detail = match &self.identity.impersonated {
            Some(account) => format!(
                "as {}, which needs the role roles/iam.serviceAccountTokenCreator on it: {detail}",
                account.email
            ),
            None => detail,
        };
        self.change(|state| {
            state.library = None;
            state.waiting_since = None;
            NotLoaded { detail, before: state.loaded_before }
        })
    }

    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        change(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
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

/// Formats an error and its causes on one line, without the responses of a token server that the library quotes.
fn in_one_line(error: &(dyn StdError + 'static)) -> String {
    let causes = std::iter::successors(Some(error), |&error| error.source());
    let texts: Vec<String> = causes
        .map(|cause| {
            let text = cause.to_string();
            // The server's response follows these words.
            let text = ["] error: ", ", body=<"]
                .iter()
                .fold(&text[..], |text, words| text.split(words).next().unwrap_or_default());
            text.chars().filter(|c| !crate::types::is_unprintable(*c)).collect()
        })
        .collect();
    texts.join(": ").chars().take(400).collect()
}
