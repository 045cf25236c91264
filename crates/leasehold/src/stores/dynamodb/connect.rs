//! Creates a client from a store URL and the machine's AWS configuration.

use aws_config::SdkConfig;
use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::config::Builder;

use super::config::{Location, SERVICE, Target};
use crate::env::Env;
use crate::error::Error;

impl Location {
    /// Creates a client. Sends no request, except to the machine's metadata service if it must be asked for the region.
    pub(super) async fn connect(&self, env: &Env) -> Result<(Client, Target), Error> {
        let found = self.access.find(SERVICE, env).await?;
        let client = Client::from_conf(client_config(&found.sdk, found.endpoint.as_deref()).build());
        Ok((client, Target { table: self.table.clone(), region: found.region, endpoint: found.endpoint }))
    }
}

pub(super) fn client_config(sdk: &SdkConfig, endpoint: Option<&str>) -> Builder {
    match endpoint {
        Some(endpoint) => Builder::from(sdk).endpoint_url(endpoint),
        None => Builder::from(sdk),
    }
}
