//! A key-value bucket of NATS with the locks. The store's own requests, and the copies that its waiters watch, travel
//! through the networks of the simulation.

use std::sync::Arc;

use leasehold::RegisterLeases;
use leasehold::env::Env;
use leasehold::lease::StoreOptions;
use serde_json::Value;

use super::LOCK;
use super::recorder::Recorder;
use super::wire::{Backend, Served, Wire};
use crate::fakes::nats::FakeNats;
use crate::machine::Machine;

/// The server, and the end of the networks to it.
pub(super) struct Bucket {
    server: Arc<FakeNats>,
    served: Arc<Served>,
}

impl Bucket {
    /// Creates a bucket whose commits the checker observes.
    pub(super) fn new(env: Env, commits: Arc<Recorder>) -> Self {
        let committed = move |key: &str, before: Option<&[u8]>, after: Option<&[u8]>| match (before, after) {
            (before, Some(after)) => commits.commits(key, before, after, false),
            (Some(before), None) => commits.deleted(key, before),
            (None, None) => {}
        };
        let server = Arc::new(FakeNats::new(env.clone(), committed));
        Self { served: Arc::new(Served { server: server.clone(), env }), server }
    }
}

impl Backend for Bucket {
    fn leases(&self, network: Arc<Machine>, options: StoreOptions) -> RegisterLeases {
        open(Wire { network, served: self.served.clone() }, self.server.clone(), options)
    }

    fn served(&self) -> Arc<Served> {
        self.served.clone()
    }

    fn delete(&self) -> bool {
        self.server.delete(&format!("$KV.locks.{LOCK}.lock"))
    }

    fn line(&self, lock: &str) -> Option<Value> {
        serde_json::from_slice(&self.server.value(&format!("$KV.locks.{lock}.line"))?).ok()
    }
}

#[cfg(feature = "nats")]
use self::way::open;

#[cfg(feature = "nats")]
mod way {
    use async_trait::async_trait;
    use bytes::Bytes;
    use futures_util::stream::{self, BoxStream, StreamExt};
    use http::{Request, StatusCode};
    use leasehold::Register as _;
    use leasehold::stores::nats::simulated::{self, Carrier, RequestErrorKind};
    use tokio::sync::broadcast::error::RecvError;

    use super::*;
    use crate::fakes::nats::{INBOX, refusal};
    use crate::http::rfc3339;

    /// The way of one process to the server.
    #[derive(Debug)]
    struct Way {
        wire: Arc<Wire>,
        server: Arc<FakeNats>,
    }

    pub(super) fn open(wire: Wire, server: Arc<FakeNats>, options: StoreOptions) -> RegisterLeases {
        let way = Way { wire: Arc::new(wire), server };
        let leases = simulated::leases("nats://simulated/locks", Arc::new(way), options);
        leases.unwrap_or_else(|error| unreachable!("no bucket: {error}"))
    }

    #[async_trait]
    impl Carrier for Way {
        async fn request(
            &self,
            subject: String,
            headers: Vec<(String, String)>,
            payload: Bytes,
        ) -> Result<Bytes, RequestErrorKind> {
            let request =
                headers.into_iter().fold(Request::post(format!("/{subject}")), |request, (name, text)| {
                    request.header(name, text)
                });
            let request = request.body(payload).map_err(|_| RequestErrorKind::InvalidSubject)?;
            let is_other = subject.starts_with("$KV.") && self.wire.network.env().random.fraction() < 0.5;
            let error = |code, err_code| Ok(refusal(code, err_code, "injected").to_string().into());
            match self.wire.carry(request).await {
                // A replica may have stored what the leader could not.
                None if is_other => error(503, 10_077),
                None => Err(RequestErrorKind::Other),
                Some((_, response)) if response.status() == StatusCode::SERVICE_UNAVAILABLE => {
                    // Another write to the key is in progress, and comes to nothing.
                    if is_other { error(400, 10_164) } else { Err(RequestErrorKind::NoResponders) }
                }
                Some((at_us, response)) if subject.contains(".INFO.") => {
                    let mut info: Value = serde_json::from_slice(response.body()).unwrap_or_default();
                    info["ts"] = rfc3339(at_us).into();
                    Ok(info.to_string().into())
                }
                Some((_, response)) => Ok(response.into_body()),
            }
        }

        /// A copy travels like the response to a request, so it may be lost or late.
        fn subscribe(&self, subject: String) -> BoxStream<'static, Bytes> {
            let next = move |(wire, mut copies): (Arc<Wire>, tokio::sync::broadcast::Receiver<_>)| {
                let subject = subject.clone();
                async move {
                    loop {
                        match copies.recv().await {
                            Ok((to, copy)) if to == subject => {
                                let copy = wire.carry(Request::post(INBOX).body(copy).ok()?).await;
                                if let Some((_, copy)) =
                                    copy.filter(|(_, copy)| copy.status() == StatusCode::OK)
                                {
                                    return Some((copy.into_body(), (wire, copies)));
                                }
                            }
                            Err(RecvError::Closed) => return None,
                            Ok(_) | Err(RecvError::Lagged(_)) => {}
                        }
                    }
                }
            };
            stream::unfold((self.wire.clone(), self.server.copies()), next).boxed()
        }
    }
}

#[cfg(not(feature = "nats"))]
fn open(_wire: Wire, _server: Arc<FakeNats>, _options: StoreOptions) -> RegisterLeases {
    unreachable!("the feature nats is off")
}
