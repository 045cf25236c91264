//! leasehold through `leasehold serve`, which this contender starts on the store.

use std::fmt::Write as _;
use std::process::Stdio;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use leasehold::{Guard, Locker};
use leasehold_testkit::launch;
use serde::Deserialize;
use sha2::{Digest, Sha256};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

use super::ours::Ours;
use super::{Client, Options};

/// How many principals take turns: the server admits 50 acquisitions per second of each.
const PRINCIPALS: usize = 64;

pub(super) struct Served {
    /// One for each principal.
    clients: Vec<Ours>,
    next: AtomicUsize,
    /// Killed when this is dropped.
    _server: Child,
    _folder: TempDir,
}

/// The first line of the server.
#[derive(Deserialize)]
struct Serving {
    address: String,
}

impl Served {
    pub(super) async fn open(options: &Options) -> Result<Self, String> {
        Self::start(options.text("store")?, options.ttl()?).await.map_err(|error| error.to_string())
    }

    async fn start(store: &str, ttl: Duration) -> Result<Self, Box<dyn std::error::Error + Send + Sync>> {
        let folder = tempfile::Builder::new().prefix("leasehold-bench.").tempdir()?;
        let access = folder.path().join("access.toml");
        let mut rules = String::new();
        for n in 0..PRINCIPALS {
            let token = format!("token-{n}");
            std::fs::write(folder.path().join(&token), &token)?;
            let mut digest = String::new();
            for byte in Sha256::digest(&token) {
                write!(digest, "{byte:02x}")?;
            }
            writeln!(rules, "[[token]]\nprincipal = \"p{n}\"\nsha256 = \"{digest}\"")?;
            writeln!(rules, "[[rule]]\nprincipal = \"p{n}\"\nallow = [\"read\", \"acquire\"]")?;
        }
        std::fs::write(&access, rules)?;
        let mut server = Command::new(launch::leasehold()?)
            .args(["--json", "--store", store, "serve", "--listen", "127.0.0.1:0", "--access"])
            .arg(&access)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let mut output = BufReader::new(server.stdout.take().ok_or("the server has no output")?);
        let mut line = String::new();
        output.read_line(&mut line).await?;
        let Serving { address } =
            serde_json::from_str(&line).map_err(|error| format!("the server said {line:?}: {error}"))?;
        // A full pipe would block the server.
        tokio::spawn(async move { tokio::io::copy(&mut output, &mut tokio::io::sink()).await });
        let mut clients = Vec::new();
        for n in 0..PRINCIPALS {
            let token = folder.path().join(format!("token-{n}"));
            let url = format!("{}?token_file={}", address.trim_end_matches('/'), token.display());
            clients.push(Ours::new(Locker::open(&url).await?, ttl));
        }
        Ok(Self { clients, next: AtomicUsize::new(0), _server: server, _folder: folder })
    }
}

impl Client for Served {
    type Held = Guard;

    async fn acquire(&self, lock: &str) -> Result<Guard, String> {
        let n = self.next.fetch_add(1, Ordering::Relaxed) % PRINCIPALS;
        self.clients[n].acquire(lock).await
    }

    async fn release(&self, held: Guard) -> Result<(), String> {
        self.clients[0].release(held).await
    }

    fn still(&self, held: &Guard) -> Option<bool> {
        self.clients[0].still(held)
    }
}
