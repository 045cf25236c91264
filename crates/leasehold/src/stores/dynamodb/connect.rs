//! From what a store URL says and the machine's AWS configuration to a client.

use aws_config::SdkConfig;
use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::config::Builder;

use super::config::{Location, SERVICE};
use super::errors::Place;
use crate::env::Env;
use crate::error::Error;

impl Location {
    /// Makes a client. No request is sent, unless the region has to be asked of the machine's metadata service.
    pub(super) async fn connect(&self, env: &Env) -> Result<(Client, Place), Error> {
        let found = self.access.find(SERVICE, env).await?;
        let client = Client::from_conf(client_config(&found.sdk, found.endpoint.as_deref()).build());
        Ok((client, Place { table: self.table.clone(), region: found.region, endpoint: found.endpoint }))
    }
}

pub(super) fn client_config(sdk: &SdkConfig, endpoint: Option<&str>) -> Builder {
    match endpoint {
        Some(endpoint) => Builder::from(sdk).endpoint_url(endpoint),
        None => Builder::from(sdk),
    }
}
