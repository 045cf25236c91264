//! Leases whose requests stay in this process. For the simulation.

use std::fmt;
use std::future::ready;
use std::sync::Arc;

use aws_config::timeout::TimeoutConfig;
use aws_config::{BehaviorVersion, Region, SdkConfig};
use aws_credential_types::Credentials;
use aws_credential_types::provider::SharedCredentialsProvider;
use aws_sdk_dynamodb::Client;
use aws_smithy_runtime_api::client::connection::{CaptureSmithyConnection, ConnectionMetadata};
use aws_smithy_runtime_api::client::http::{
    HttpClient, HttpConnector, HttpConnectorFuture, HttpConnectorSettings, SharedHttpConnector,
};
use aws_smithy_runtime_api::client::orchestrator::{HttpRequest, HttpResponse};
use aws_smithy_runtime_api::client::result::ConnectorError;
use aws_smithy_runtime_api::client::runtime_components::RuntimeComponents;
use aws_smithy_runtime_api::http::StatusCode;
use aws_smithy_types::body::SdkBody;
use bytes::Bytes;
use futures_util::future::BoxFuture;
use serde_json::Value;

use super::config::{Location, Target};
use super::connect::client_config;
use super::dialect::Dialect;
use super::{AttributeValue, DynamoDb, item};
use crate::error::Error;
use crate::lease::StoreOptions;
use crate::protocol::RegisterLeases;
use crate::protocol::record::Content;
use crate::stores::aws::config::careful;
use crate::stores::aws::credentials::{Source, StoreCredentials};
use crate::stores::aws::requests::Requests;
use crate::url::StoreUrl;

const REGION: &str = "eu-west-1";

/// A response: the status, the headers and the body.
pub type Answer = (u16, Vec<(String, String)>, Vec<u8>);

/// Carries a request to a server: the operation, such as `UpdateItem`, and the body. Returns `None` if no response
/// arrives. The request may then have been applied.
pub type Carry = dyn Fn(String, Bytes) -> BoxFuture<'static, Option<Answer>> + Send + Sync;

/// Opens leases on a table of Amazon's, whose requests `carry` sends. Reads neither the environment nor files. Each
/// request waits for as long as the protocol lets it.
///
/// # Errors
/// None that a caller can cause.
pub fn leases(carry: Arc<Carry>, mut options: StoreOptions) -> Result<RegisterLeases, Error> {
    let url = StoreUrl::parse(&format!("dynamodb://locks?region={REGION}"))?;
    let location = Location::from_url(url, &mut options)?;
    let provider = SharedCredentialsProvider::new(Credentials::new("id", "key", None, None, "simulated"));
    let again = provider.clone();
    let source: Source = Arc::new(move || Box::pin(ready(Ok(again.clone()))));
    let credentials = StoreCredentials::new(Some(provider), source, options.env.clone());
    let sdk = SdkConfig::builder().behavior_version(BehaviorVersion::latest()).region(Region::new(REGION));
    let sdk = careful(&sdk.http_client(Carrier(carry)).build(), &credentials);
    // The SDK's limits would run on true time.
    let sdk = sdk.to_builder().timeout_config(TimeoutConfig::disabled()).build();
    let target = Target { table: location.table.clone(), region: REGION.to_owned(), endpoint: None };
    let requests = Requests::new(options.env.clone(), credentials, None);
    let client = Client::from_conf(client_config(&sdk, None).build());
    Ok(RegisterLeases::on(Arc::new(DynamoDb::new(client, requests, target, &location)), options))
}

/// Returns the record in an item, which has the form of DynamoDB's API, as JSON. Returns `None` if it is not a lock.
pub fn record(item: &Value) -> Option<Bytes> {
    let AttributeValue::M(item) = value(&serde_json::json!({ "M": item }))? else { return None };
    match item::read(&item, Dialect::Java).ok()?.content {
        Content::Record(record) => record.to_bytes().ok(),
        Content::Foreign { .. } => None,
    }
}

fn value(json: &Value) -> Option<AttributeValue> {
    let (kind, json) = json.as_object()?.iter().next()?;
    Some(match (kind.as_str(), json) {
        ("BOOL", Value::Bool(is_so)) => AttributeValue::Bool(*is_so),
        ("L", Value::Array(values)) => AttributeValue::L(values.iter().map(value).collect::<Option<_>>()?),
        ("M", Value::Object(entries)) => {
            let entry = |(name, json): (&String, &Value)| Some((name.clone(), value(json)?));
            AttributeValue::M(entries.iter().map(entry).collect::<Option<_>>()?)
        }
        ("N", Value::String(digits)) => AttributeValue::N(digits.clone()),
        ("S", Value::String(text)) => AttributeValue::S(text.clone()),
        _ => return None,
    })
}

/// The SDK's client of HTTP.
#[derive(Clone)]
struct Carrier(Arc<Carry>);

impl fmt::Debug for Carrier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Carrier")
    }
}

impl HttpClient for Carrier {
    fn http_connector(&self, _: &HttpConnectorSettings, _: &RuntimeComponents) -> SharedHttpConnector {
        SharedHttpConnector::new(self.clone())
    }
}

impl HttpConnector for Carrier {
    fn call(&self, request: HttpRequest) -> HttpConnectorFuture {
        let operation = request.headers().get("x-amz-target").and_then(|target| target.rsplit('.').next());
        let operation = operation.unwrap_or_default().to_owned();
        let body = Bytes::copy_from_slice(request.body().bytes().unwrap_or_default());
        // There always is a connection, so a request without a response may have been applied.
        if let Some(capture) = request.extension::<CaptureSmithyConnection>() {
            let connection = ConnectionMetadata::builder().proxied(false).poison_fn(|| {}).build();
            capture.set_connection_retriever(move || Some(connection.clone()));
        }
        let answer = (self.0)(operation, body);
        HttpConnectorFuture::new(async move {
            let lost = || ConnectorError::io("no response".into());
            let (status, headers, body) = answer.await.ok_or_else(lost)?;
            let status =
                StatusCode::try_from(status).map_err(|error| ConnectorError::other(error.into(), None))?;
            let mut response = HttpResponse::new(status, SdkBody::from(body));
            for (name, text) in headers {
                response.headers_mut().insert(name, text);
            }
            Ok(response)
        })
    }
}
