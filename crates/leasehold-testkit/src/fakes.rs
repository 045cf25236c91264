//! In-memory servers for tests. They implement just enough for a lock, and misbehave as the test asks.

pub mod dynamodb;
pub mod gcs;
pub(crate) mod kubernetes;
pub mod nats;
pub mod s3;

use std::fmt;
use std::time::Duration;

use ::http::{Request, Response};
use bytes::Bytes;

/// A server in memory without a network.
pub(crate) trait Server: fmt::Debug + Send + Sync + 'static {
    /// Executes `request` and returns the response.
    fn answer(&self, request: &Request<Bytes>) -> Response<Bytes>;

    /// Returns the response to a request that is not executed: because it is not allowed, or else because the server is
    /// busy. A busy server may say how long to wait.
    fn refuses(&self, is_denied: bool, wait: Option<Duration>) -> Response<Bytes>;
}
