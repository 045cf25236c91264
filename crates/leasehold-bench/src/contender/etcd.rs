//! etcd's lock service through its HTTP API, the JSON gateway.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use leasehold::clock::{Clock, SystemClock};
use reqwest::Client;
use serde::Deserialize;
use serde_json::json;
use tokio::task::JoinSet;

use super::Options;
use super::http::{client, read, send};

/// Calls `/v3/lock/lock` and `/v3/lock/unlock` for each acquisition, with a lease that is granted once and kept alive.
///
/// All users of one lease share its locks, so only one task may use this client.
pub(super) struct Gateway {
    client: Client,
    endpoint: String,
    lease: String,
    _kept: JoinSet<()>,
}

/// The response to `/v3/lease/grant`.
#[derive(Deserialize)]
struct Granted {
    #[serde(rename = "ID")]
    id: String,
}

/// The response to `/v3/lock/lock`.
#[derive(Deserialize)]
struct Locked {
    key: String,
}

impl Gateway {
    pub(super) async fn open(options: &Options) -> Result<Self, String> {
        let (client, ttl) = (client()?, options.ttl()?);
        let endpoint = format!("http://{}/v3", options.text("endpoint")?);
        // The ttl of an etcd lease is in whole seconds.
        let grant = client.post(format!("{endpoint}/lease/grant"));
        let granted = send(grant, &json!({"TTL": ttl.as_secs()})).await?;
        let Granted { id: lease } = read(&granted)?;
        let (keeper, url, body) =
            (client.clone(), format!("{endpoint}/lease/keepalive"), json!({"ID": lease}));
        let mut kept = JoinSet::new();
        kept.spawn(async move {
            loop {
                SystemClock.sleep(ttl / 3).await;
                if let Err(error) = send(keeper.post(&url), &body).await {
                    eprintln!("contender: {error}");
                }
            }
        });
        Ok(Self { client, endpoint, lease, _kept: kept })
    }
}

impl super::Client for Gateway {
    /// The key of the hold, in base64.
    type Held = String;

    async fn acquire(&self, lock: &str) -> Result<String, String> {
        let body = json!({"name": STANDARD.encode(lock), "lease": self.lease});
        let locked = send(self.client.post(format!("{}/lock/lock", self.endpoint)), &body).await?;
        let Locked { key } = read(&locked)?;
        Ok(key)
    }

    async fn release(&self, key: String) -> Result<(), String> {
        let request = self.client.post(format!("{}/lock/unlock", self.endpoint));
        send(request, &json!({"key": key})).await.map(|_| ())
    }

    fn is_held(&self, _: &String) -> Option<bool> {
        None
    }
}
