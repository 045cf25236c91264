//! HTTP between a process and a server in memory. A request travels as one write to a [`Register`], so that the
//! testkit's networks can lose, delay and repeat it. The version that the write returns is the response.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::stream::{self, BoxStream, StreamExt};
use http::header::{DATE, HeaderName, HeaderValue};
use http::{Method, Request, Response, Uri};
use leasehold::clock::StoreTime;
use leasehold::env::Env;
use leasehold::error::{Fault, StoreError};
use leasehold::lease::StoreOptions;
use leasehold::register::{
    Body, Deleted, Head, Precondition, Register, RegisterCapabilities, Version, VersionedValue, Write,
};
use leasehold::stores::memory::MemoryRegister;
use leasehold::{ErrorKind, RegisterLeases};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::fakes::Server;
use crate::http::http_date;
use crate::machine::Machine;

/// The way of one process to a server.
#[derive(Debug)]
pub(super) struct Wire {
    /// The network, with [`Served`] at its end.
    pub(super) network: Arc<Machine>,
    pub(super) served: Arc<Served>,
}

/// A server at the end of networks.
#[derive(Debug)]
pub(super) struct Served {
    pub(super) server: Arc<dyn Server>,
    /// With the server's clock.
    pub(super) env: Env,
}

/// A server in memory that has the locks of a history, and is reached by the store's own requests.
pub(super) trait Backend {
    /// Returns the leases, as the process on `network` uses them.
    fn leases(&self, network: Arc<Machine>, options: StoreOptions) -> RegisterLeases;

    /// Returns the end of the networks to it.
    fn served(&self) -> Arc<Served>;

    /// Deletes the record of the lock by hand. Returns whether there was one.
    fn delete(&self) -> bool;

    /// Returns the line of `lock`.
    fn line(&self, lock: &str) -> Option<Value>;
}

/// A response, as it travels.
#[derive(Debug, Serialize, Deserialize)]
struct Answer {
    /// When the server sent it, by its clock.
    at_us: u64,
    status: u16,
    headers: Vec<(String, String)>,
    body: String,
}

impl Wire {
    /// Like [`carry`](Self::carry). Every response has a `Date`.
    pub(super) async fn exchange(&self, request: Request<Bytes>) -> Option<Response<Bytes>> {
        let (at_us, mut response) = self.carry(request).await?;
        response.headers_mut().insert(DATE, HeaderValue::try_from(http_date(at_us / 1_000_000)).ok()?);
        Some(response)
    }

    /// Sends `request`. Returns its response, and the time in it, of a front end whose clock may be off. `None` if the
    /// connection breaks. A request that the network refuses gets the server's response to one that it does not serve.
    pub(super) async fn carry(&self, request: Request<Bytes>) -> Option<(u64, Response<Bytes>)> {
        let (head, bytes) = request.into_parts();
        let mut body = Body::from(bytes);
        let text = |value: &HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
        body.metadata.user =
            head.headers.iter().map(|(name, value)| (name.to_string(), text(value))).collect();
        let key = format!("{} {}", head.method, head.uri);
        let (at_us, response) = match self.network.write(&key, Precondition::Absent, body).await {
            Ok(Write::Committed(answer)) => response(answer.as_str())?,
            Err(StoreError::NotApplied(fault)) => {
                let refused = self.served.server.refuses(fault.kind == ErrorKind::Denied, fault.retry_after);
                (self.served.env.now().wall_us(), refused)
            }
            Ok(Write::Conflict) | Err(StoreError::MaybeApplied(_)) => return None,
        };
        Some((at_us.saturating_add_signed(self.network.skew_us()), response))
    }
}

/// Returns a response that has travelled, and when it was sent.
fn response(answer: &str) -> Option<(u64, Response<Bytes>)> {
    let Answer { at_us, status, headers, body } = serde_json::from_str(answer).ok()?;
    let response = headers
        .into_iter()
        .fold(Response::builder().status(status), |response, (name, value)| response.header(name, value));
    Some((at_us, response.body(body.into()).ok()?))
}

#[async_trait]
impl Register for Served {
    async fn write(&self, key: &str, _expect: Precondition<'_>, body: Body) -> Result<Write, StoreError> {
        let (method, uri) = key.split_once(' ').ok_or_else(not_http)?;
        let mut request = Request::new(body.bytes);
        *request.method_mut() = Method::from_bytes(method.as_bytes()).map_err(|_| not_http())?;
        *request.uri_mut() = uri.parse::<Uri>().map_err(|_| not_http())?;
        for (name, value) in body.metadata.user {
            let name = HeaderName::try_from(name).map_err(|_| not_http())?;
            request.headers_mut().insert(name, HeaderValue::try_from(value).map_err(|_| not_http())?);
        }
        let (head, body) = self.server.answer(&request).into_parts();
        let text = |value: &HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
        let answer = Answer {
            at_us: self.env.now().wall_us(),
            status: head.status.as_u16(),
            headers: head.headers.iter().map(|(name, value)| (name.to_string(), text(value))).collect(),
            body: String::from_utf8_lossy(&body).into_owned(),
        };
        Ok(Write::Committed(Version::new(serde_json::to_string(&answer).map_err(|_| not_http())?)))
    }

    async fn read(&self, _key: &str) -> Result<Option<VersionedValue>, StoreError> {
        Err(not_http())
    }

    async fn head(&self, _key: &str) -> Result<Option<Head>, StoreError> {
        Err(not_http())
    }

    async fn delete(&self, _key: &str, _version: &Version) -> Result<Deleted, StoreError> {
        Err(not_http())
    }

    fn list(&self, _prefix: &str) -> BoxStream<'_, Result<String, StoreError>> {
        stream::empty().boxed()
    }

    /// The time is in the responses.
    fn store_time(&self) -> Option<StoreTime> {
        None
    }

    fn env(&self) -> &Env {
        &self.env
    }

    fn capabilities(&self) -> RegisterCapabilities {
        MemoryRegister::new(self.env.clone()).capabilities()
    }
}

fn not_http() -> StoreError {
    Fault::new(ErrorKind::Invalid, "not an HTTP request").not_applied()
}
