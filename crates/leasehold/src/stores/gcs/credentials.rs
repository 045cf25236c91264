//! Who we are to GCS: Google's own library finds and refreshes the credentials, and this file outlives its troubles.
//!
//! The library loads and refreshes tokens in a task of its own, so a load goes on when the request that asked for it is
//! given up, as a request of a short lease soon is. But that task ends for ever at an error that the library takes for
//! a lasting one, and with the runtime that it was started in; and it counts a token's time on a clock that stops in
//! suspend. So the library is started anew after every trouble.

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

/// The limit of one load: below the patience of a claim (15 s), so that its error can say what is missing.
const LOAD_LIMIT: Duration = Duration::from_secs(12);

/// Enough for objects; what the roles allow within it is the administrator's to say.
pub(super) const SCOPE: &str = "https://www.googleapis.com/auth/devstorage.read_write";

/// What a source needs to ask for tokens of the account that it impersonates; those tokens have [`SCOPE`].
const SCOPE_TO_IMPERSONATE: &str = "https://www.googleapis.com/auth/cloud-platform";

/// Where tokens of service accounts are asked for.
const ACCOUNTS: &str = "https://iamcredentials.googleapis.com";

/// Whose credentials.
#[derive(Clone, Debug)]
pub(super) struct Identity {
    pub(super) source: Source,
    pub(super) impersonated: Option<Impersonated>,
}

/// A service account that the source's credentials may act as.
#[derive(Clone, Debug)]
pub(super) struct Impersonated {
    email: String,
    /// Google's, but in tests.
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
    /// What the library says, in one line.
    pub(super) detail: String,
    /// Whether there were some before.
    pub(super) before: bool,
}

/// The credentials of one store.
pub(super) struct Credentials {
    identity: Identity,
    env: Env,
    state: Mutex<State>,
}

/// Headers that say who we are, and which start of the library they come from.
pub(super) struct Signed {
    pub(super) headers: HeaderMap,
    pub(super) start: u64,
}

#[derive(Default)]
struct State {
    library: Option<Library>,
    /// Counts how often the library was started.
    starts: u64,
    /// Since when requests have been waiting for headers in vain.
    waiting_since: Option<Moment>,
    /// Whether headers were ever given out.
    loaded_before: bool,
    /// The latest start of the library of which the store has accepted headers.
    accepted: Option<u64>,
}

/// The library, started.
struct Library {
    credentials: AccessTokenCredentials,
    /// Ends with the runtime, as the library's own task does.
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

    /// The headers that say who we are. Cancel safe: what was begun goes on.
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
            // We ask for headers whatever they were before.
            Some(Ok(CacheableResource::NotModified)) => "the library gave none".to_owned(),
            Some(Err(error)) => in_one_line(&error),
            None => format!("they did not load within {LOAD_LIMIT:?}"),
        };
        Err(self.forget(trouble))
    }

    /// The store has accepted headers of `start`. Gives what it says of them: that they were good.
    pub(super) fn accepted(&self, start: u64) -> bool {
        self.change(|state| state.accepted = state.accepted.max(Some(start)));
        true
    }

    /// The store has refused headers of `start` (401): the next request asks for new ones. Whether it had accepted them,
    /// or later ones, before: several requests may hear of it, some when new ones are there already.
    pub(super) fn refused(&self, start: u64) -> bool {
        if self.identity.source == Source::Anonymous {
            return false;
        }
        self.change(|state| {
            if state.starts == start {
                state.library = None;
            }
            state.accepted >= Some(start)
        })
    }

    /// The library, started if it is not running, which start this was, and how long a load may still take.
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
    /// Nothing of what was loaded.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").field("identity", &self.identity).finish_non_exhaustive()
    }
}

fn from_file(path: &Path, account: Option<&Impersonated>) -> Result<AccessTokenCredentials, String> {
    let shown = path.display();
    let text = std::fs::read_to_string(path).map_err(|error| format!("{shown} cannot be read: {error}"))?;
    // What the parser says of it could repeat a secret.
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

/// An error and its causes in one line, without what the library quotes of a token server's answer.
fn in_one_line(error: &(dyn StdError + 'static)) -> String {
    let causes = std::iter::successors(Some(error), |&error| error.source());
    let texts: Vec<String> = causes
        .map(|cause| {
            let text = cause.to_string();
            // The answer stands behind these words.
            let text = ["] error: ", ", body=<"]
                .iter()
                .fold(&text[..], |text, words| text.split(words).next().unwrap_or_default());
            text.chars().filter(|c| !crate::types::is_unprintable(*c)).collect()
        })
        .collect();
    texts.join(": ").chars().take(400).collect()
}
