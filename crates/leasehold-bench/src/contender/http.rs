//! The HTTP client of the contenders that speak HTTP themselves.

use reqwest::{Client, RequestBuilder};
use serde::Deserialize;
use serde_json::Value;

/// Creates a client for HTTP/1.1 without a proxy, like leasehold's own client.
pub(super) fn client() -> Result<Client, String> {
    let client = Client::builder().no_proxy().http1_only().tcp_nodelay(true).build();
    client.map_err(|error| error.to_string())
}

/// Sends a request and returns the body of a successful response. Reads the whole body, because only then can the
/// connection be reused.
pub(super) async fn send(request: RequestBuilder, body: &Value) -> Result<Vec<u8>, String> {
    let request = request.header("content-type", "application/json").body(body.to_string());
    let answer = request.send().await.map_err(|error| format!("{error:?}"))?;
    let (status, url) = (answer.status(), answer.url().clone());
    let bytes = answer.bytes().await.map_err(|error| format!("{error:?}"))?;
    if status.is_success() {
        Ok(bytes.into())
    } else {
        Err(format!("{url}: {status}: {}", String::from_utf8_lossy(&bytes)))
    }
}

pub(super) fn read<'a, T: Deserialize<'a>>(answer: &'a [u8]) -> Result<T, String> {
    serde_json::from_slice(answer).map_err(|error| error.to_string())
}
