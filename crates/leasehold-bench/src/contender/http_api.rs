//! leasehold through the HTTP API of `leasehold serve`, which this contender starts on the store.

use std::fmt::Write as _;
use std::process::Stdio;
use std::sync::atomic::{AtomicUsize, Ordering};

use leasehold_testkit::launch;
use reqwest::Client;
use serde::Deserialize;
use serde_json::json;
use sha2::{Digest, Sha256};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

use super::Options;
use super::http::{client, read, send};

/// How many principals take turns. The server admits 50 acquisitions per second from each of them.
const PRINCIPALS: usize = 64;

pub(super) struct Served {
    client: Client,
    /// The URL of `/v1/holds`.
    url: String,
    ttl: String,
    /// The number of acquisitions so far.
    acquisitions: AtomicUsize,
    /// Killed when this is dropped.
    _server: Child,
    _folder: TempDir,
}

/// The first line that the server prints.
#[derive(Deserialize)]
struct Serving {
    address: String,
}

/// A principal's token, and the ticket of its hold.
pub(super) struct Held {
    token: String,
    ticket: String,
}

/// The response to `/v1/holds`.
#[derive(Deserialize)]
struct Granted {
    ticket: String,
}

impl Served {
    pub(super) async fn open(options: &Options) -> Result<Self, String> {
        Self::start(options).await.map_err(|error| error.to_string())
    }

    async fn start(options: &Options) -> Result<Self, Box<dyn std::error::Error + Send + Sync>> {
        let folder = tempfile::Builder::new().prefix("leasehold-bench.").tempdir()?;
        let access = folder.path().join("access.toml");
        let mut rules = String::new();
        for n in 0..PRINCIPALS {
            let mut digest = String::new();
            for byte in Sha256::digest(token(n)) {
                write!(digest, "{byte:02x}")?;
            }
            writeln!(rules, "[[token]]\nprincipal = \"p{n}\"\nsha256 = \"{digest}\"")?;
            writeln!(rules, "[[rule]]\nprincipal = \"p{n}\"\nallow = [\"read\", \"acquire\"]")?;
        }
        std::fs::write(&access, rules)?;
        let mut server = Command::new(launch::leasehold()?)
            .args([
                "--json",
                "--store",
                options.text("store")?,
                "serve",
                "--listen",
                "127.0.0.1:0",
                "--access",
            ])
            .arg(&access)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let mut output = BufReader::new(server.stdout.take().ok_or("the server has no output")?);
        let mut line = String::new();
        output.read_line(&mut line).await?;
        let Serving { address } =
            serde_json::from_str(&line).map_err(|error| format!("the server printed {line:?}: {error}"))?;
        // Keep reading, because a full pipe would block the server.
        tokio::spawn(async move { tokio::io::copy(&mut output, &mut tokio::io::sink()).await });
        Ok(Self {
            client: client()?,
            url: format!("{}/v1/holds", address.trim_end_matches('/')),
            ttl: format!("{}ms", options.number("ttl-ms")?),
            acquisitions: AtomicUsize::new(0),
            _server: server,
            _folder: folder,
        })
    }
}

/// Returns the token of principal `n`.
fn token(n: usize) -> String {
    format!("token-{n}")
}

impl super::Client for Served {
    type Held = Held;

    async fn acquire(&self, lock: &str) -> Result<Held, String> {
        let n = self.acquisitions.fetch_add(1, Ordering::Relaxed);
        let token = token(n % PRINCIPALS);
        let request = self.client.post(&self.url).bearer_auth(&token);
        let request = request.header("idempotency-key", format!("{lock}-{n}-{:016x}", fastrand::u64(..)));
        let body = json!({"lock": lock, "ttl": self.ttl, "wait": "60s"});
        let Granted { ticket } = read(&send(request, &body).await?)?;
        Ok(Held { token, ticket })
    }

    async fn release(&self, held: Held) -> Result<(), String> {
        let request = self.client.post(format!("{}/release", self.url)).bearer_auth(held.token);
        send(request, &json!({"ticket": held.ticket})).await.map(|_| ())
    }

    fn is_held(&self, _: &Held) -> Option<bool> {
        None
    }
}
