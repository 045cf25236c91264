//! etcd's lock service through its HTTP API, the JSON gateway.

use std::sync::Mutex;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use leasehold::clock::{Clock, SystemClock};
use reqwest::Client;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use super::Options;
use super::http::{client, read, send};

/// `/v3/lock/lock` and `/v3/lock/unlock` for each acquisition, in a lease that is granted once and kept alive.
///
/// All users of one lease share its locks. So each lease is used for one acquisition at a time, and a task that finds
/// none that is free is granted another one.
pub(super) struct Gateway {
    client: Client,
    endpoint: String,
    ttl: Duration,
    free: Mutex<Vec<Lease>>,
}

/// A lease, which is kept alive until this is dropped.
pub(super) struct Lease {
    id: String,
    kept: JoinHandle<()>,
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.kept.abort();
    }
}

/// An answer to `/v3/lease/grant`.
#[derive(Deserialize)]
struct Granted {
    #[serde(rename = "ID")]
    id: String,
}

/// An answer to `/v3/lock/lock`.
#[derive(Deserialize)]
struct Locked {
    /// In base64.
    key: String,
}

impl Gateway {
    pub(super) fn open(options: &Options) -> Result<Self, String> {
        Ok(Self {
            client: client()?,
            endpoint: format!("http://{}/v3", options.text("endpoint")?),
            ttl: options.ttl()?,
            free: Mutex::default(),
        })
    }

    async fn lease(&self) -> Result<Lease, String> {
        if let Some(lease) = self.free.lock().map_err(|error| error.to_string())?.pop() {
            return Ok(lease);
        }
        // etcd's leases have whole seconds.
        let seconds = self.ttl.as_secs();
        let granted = self.post("lease/grant", &json!({"TTL": seconds})).await?;
        let Granted { id } = read(&granted)?;
        let (client, url) = (self.client.clone(), format!("{}/lease/keepalive", self.endpoint));
        let (body, pause) = (json!({"ID": id}), self.ttl / 3);
        let kept = tokio::spawn(async move {
            loop {
                SystemClock.sleep(pause).await;
                if let Err(error) = send(client.post(&url), &body).await {
                    eprintln!("contender: {error}");
                }
            }
        });
        Ok(Lease { id, kept })
    }

    async fn post(&self, method: &str, body: &Value) -> Result<Vec<u8>, String> {
        send(self.client.post(format!("{}/{method}", self.endpoint)), body).await
    }
}

impl super::Client for Gateway {
    type Held = (Lease, String);

    async fn acquire(&self, lock: &str) -> Result<Self::Held, String> {
        let lease = self.lease().await?;
        let body = json!({"name": STANDARD.encode(lock), "lease": lease.id});
        let locked = self.post("lock/lock", &body).await?;
        let Locked { key } = read(&locked)?;
        Ok((lease, key))
    }

    async fn release(&self, (lease, key): Self::Held) -> Result<(), String> {
        self.post("lock/unlock", &json!({"key": key})).await?;
        self.free.lock().map_err(|error| error.to_string())?.push(lease);
        Ok(())
    }

    fn still(&self, _: &Self::Held) -> Option<bool> {
        None
    }
}
