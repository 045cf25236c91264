//! The credentials for Azure: a key, a shared access signature, or a token that Microsoft's library requests.

use std::fmt;
use std::sync::Arc;
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
use crate::stores::over_http::causes::chain;
use crate::stores::over_http::credential_cache::{
    LOAD_LIMIT, Load, Loaded, Loads, NotLoaded, Signed, ended, spawned,
};

/// How long before its expiry an access token is replaced.
const BEFORE_END: Duration = Duration::from_secs(300);

const SCOPE: &str = "https://storage.azure.com/.default";

/// The proof of identity that a request carries.
#[derive(Clone)]
pub(super) enum Proof {
    Key(Arc<Key>),
    /// The encoded query of a shared access signature.
    Sas(Arc<str>),
    /// The value of the header `Authorization`.
    Bearer(Arc<str>),
    None,
}

/// The credentials of one store.
pub(super) struct Credentials {
    source: Source,
    env: Env,
    environment: fn(&str) -> Option<String>,
    loads: Loads<Proof>,
}

impl Credentials {
    pub(super) fn new(source: Source, env: Env, environment: fn(&str) -> Option<String>) -> Self {
        Self { source, loads: Loads::new(env.clone()), env, environment }
    }

    /// Returns the proof for the next request.
    pub(super) async fn proof(&self) -> Result<Signed<Proof>, NotLoaded> {
        self.loads.proof(|| self.load()).await
    }

    /// See [`Loads::accepted`].
    pub(super) fn accepted(&self) -> bool {
        self.loads.accepted()
    }

    /// See [`Loads::refused`].
    pub(super) fn refused(&self, load: u64) -> bool {
        self.loads.refused(load)
    }

    /// Starts a load. Only a load of an access token takes time.
    fn load(&self) -> Load<Proof> {
        let loaded = match &self.source {
            Source::Entra(identity) => return self.token(*identity),
            Source::Anonymous => Ok(Proof::None),
            Source::Key(secret) => key(secret),
            Source::Sas(secret) => signature(secret),
        };
        ended(loaded.map(Loaded::forever))
    }

    fn token(&self, identity: Identity) -> Load<Proof> {
        let (env, environment) = (self.env.clone(), self.environment);
        spawned(async move {
            let credential = credential(identity, environment)?;
            let token = clock::timeout(&*env.clock, LOAD_LIMIT, credential.get_token(&[SCOPE], None)).await;
            let token = token.ok_or_else(|| format!("no token within {LOAD_LIMIT:?}"))?;
            let token = token.map_err(|error| chain(&error))?;
            let until = u64::try_from(token.expires_on.unix_timestamp()).unwrap_or(0);
            let bearer = format!("Bearer {}", token.token.secret());
            let until_us = until.saturating_mul(1_000_000);
            let renew_us = until_us.saturating_sub(clock::micros(BEFORE_END));
            Ok(Loaded { proof: Proof::Bearer(bearer.into()), renew_us, until_us })
        })
    }
}

impl fmt::Debug for Credentials {
    /// Omits the proof.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").field("source", &self.source).finish_non_exhaustive()
    }
}

fn key(secret: &Secret) -> Result<Proof, String> {
    Key::parse(&text(secret)?).map(|key| Proof::Key(Arc::new(key))).ok_or_else(|| {
        format!(
            "{} is not the key of an account: it is not valid base64",
            origin(secret, "AZURE_STORAGE_KEY")
        )
    })
}

fn signature(secret: &Secret) -> Result<Proof, String> {
    let text = text(secret)?;
    let query = text.trim().trim_start_matches('?');
    if query.contains("sig=") && query.bytes().all(|b| b.is_ascii_graphic() && b != b'#') {
        return Ok(Proof::Sas(query.into()));
    }
    Err(format!("{} is not a shared access signature", origin(secret, "AZURE_STORAGE_SAS_TOKEN")))
}

fn text(secret: &Secret) -> Result<String, String> {
    match secret {
        Secret::Text(text) => Ok(text.clone()),
        Secret::File(path) => std::fs::read_to_string(path)
            .map_err(|error| format!("{} cannot be read: {error}", path.display())),
    }
}

/// Returns the variable or the file that contains the secret, for messages.
fn origin(secret: &Secret, variable: &str) -> String {
    match secret {
        Secret::Text(_) => variable.to_owned(),
        Secret::File(path) => format!("the file {}", path.display()),
    }
}

/// Returns the credential of `identity`. Reads the same variables as Microsoft's libraries.
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
    made.map_err(|error| chain(&error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_missing_environment_variable_is_named() {
        let source = Source::Entra(Identity::ClientSecret);
        let credentials = Credentials::new(source, Env::system(), |_| None);
        let error = credentials.proof().await.err().unwrap();
        let expected = NotLoaded { detail: "AZURE_CLIENT_SECRET is not set".into(), before: false };
        assert_eq!(error, expected);
    }
}
