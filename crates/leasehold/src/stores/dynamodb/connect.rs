//! Creates a client from a store URL and the machine's AWS configuration.

use std::time::Duration;

use aws_config::SdkConfig;
use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::config::Builder;

use super::config::{Location, SERVICE, Target};
use crate::env::Env;
use crate::error::Error;
use crate::stores::aws::requests::Requests;

impl Location {
    /// Creates a client. Sends no request, except to the machine's metadata service if it must be asked for the region.
    pub(super) async fn connect(
        &self,
        env: &Env,
        limit: Duration,
    ) -> Result<(Client, Requests, Target), Error> {
        let found = self.access.find(SERVICE, env, limit).await?;
        let client = Client::from_conf(client_config(&found.sdk, found.endpoint.as_deref()).build());
        let target = Target { table: self.table.clone(), region: found.region, endpoint: found.endpoint };
        Ok((client, found.requests, target))
    }
}

pub(super) fn client_config(sdk: &SdkConfig, endpoint: Option<&str>) -> Builder {
    match endpoint {
        Some(endpoint) => Builder::from(sdk).endpoint_url(endpoint),
        None => Builder::from(sdk),
    }
}
