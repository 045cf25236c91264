//! A way to a server in memory, in the place of the client of NATS.

use std::fmt;

use async_nats::RequestErrorKind;
use async_trait::async_trait;
use bytes::Bytes;
use futures_util::stream::BoxStream;

/// A way to a server.
#[async_trait]
pub trait Carrier: fmt::Debug + Send + Sync {
    /// Carries a request, and returns the payload of the response. After [`RequestErrorKind::Other`], the connection is
    /// lost, and the request may have been applied.
    async fn request(
        &self,
        subject: String,
        headers: Vec<(String, String)>,
        payload: Bytes,
    ) -> Result<Bytes, RequestErrorKind>;

    /// Returns the payloads that are published with `subject` from now on.
    fn subscribe(&self, subject: String) -> BoxStream<'static, Bytes>;
}
