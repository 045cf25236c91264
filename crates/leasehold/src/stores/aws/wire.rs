//! The credentials and the configuration of clients of the scripted server, for tests.

use aws_config::{BehaviorVersion, Region, SdkConfig};
use aws_credential_types::Credentials;
use aws_credential_types::provider::SharedCredentialsProvider;

pub(in crate::stores) fn test_credentials() -> SharedCredentialsProvider {
    SharedCredentialsProvider::new(Credentials::new("id", "secret", None, None, "test"))
}

/// Returns the configuration of a machine in `eu-west-1` that signs with `credentials`.
pub(in crate::stores) fn machine(credentials: SharedCredentialsProvider) -> SdkConfig {
    SdkConfig::builder()
        .behavior_version(BehaviorVersion::latest())
        .region(Region::new("eu-west-1"))
        .credentials_provider(credentials)
        .build()
}
