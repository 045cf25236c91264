//! The credentials and the configuration of clients of the scripted server, for tests.

use std::path::Path;
use std::sync::Arc;

use aws_config::profile::ProfileFileCredentialsProvider;
#[allow(deprecated, reason = "the new names are in a crate that leasehold does not use")]
use aws_config::profile::profile_file::{ProfileFileKind, ProfileFiles};
use aws_config::{BehaviorVersion, Region, SdkConfig};
use aws_credential_types::Credentials;
use aws_credential_types::provider::error::CredentialsError;
use aws_credential_types::provider::{ProvideCredentials, SharedCredentialsProvider, future};

use super::access::Access;
use super::config::providers;
use super::credentials::{Source, StoreCredentials};
use crate::env::Env;

pub(in crate::stores) fn test_credentials() -> StoreCredentials {
    from_provider(Credentials::new("id", "secret", None, None, "test"))
}

/// Returns credentials that always come from `provider`.
fn from_provider(provider: impl ProvideCredentials + 'static) -> StoreCredentials {
    let provider = SharedCredentialsProvider::new(provider);
    let again = provider.clone();
    let source: Source = Arc::new(move || Box::pin(std::future::ready(Ok(again.clone()))));
    StoreCredentials::new(Some(provider), source, Env::system())
}

/// Returns credentials of a machine that has none.
pub(in crate::stores) fn no_credentials() -> StoreCredentials {
    #[derive(Debug)]
    struct NoCredentials;
    impl ProvideCredentials for NoCredentials {
        fn provide_credentials<'a>(&'a self) -> future::ProvideCredentials<'a>
        where
            Self: 'a,
        {
            future::ProvideCredentials::ready(Err(CredentialsError::not_loaded("no profile")))
        }
    }
    from_provider(NoCredentials)
}

/// Returns credentials of the machine's file at `path`, read as the store reads them.
#[allow(deprecated, reason = "the new names are in a crate that leasehold does not use")]
pub(in crate::stores) fn in_file(path: &Path) -> StoreCredentials {
    let files = ProfileFiles::builder().with_file(ProfileFileKind::Credentials, path).build();
    let access = Access { region: Some("eu-west-1".to_owned()), ..Access::default() };
    let source = providers(move || {
        let provider = ProfileFileCredentialsProvider::builder().profile_files(files.clone());
        Ok(access.loader(None)?.credentials_provider(provider.profile_name("default").build()))
    });
    StoreCredentials::new(None, source, Env::system())
}

/// Writes a file for [`in_file`], with this session token.
pub(in crate::stores) fn write_token(path: &Path, token: &str) {
    let text = format!(
        "[default]\naws_access_key_id = id\naws_secret_access_key = hunter2\naws_session_token = {token}\n"
    );
    std::fs::write(path, text).unwrap();
}

/// Returns the configuration of a machine in `eu-west-1`.
pub(in crate::stores) fn machine() -> SdkConfig {
    SdkConfig::builder().behavior_version(BehaviorVersion::latest()).region(Region::new("eu-west-1")).build()
}
