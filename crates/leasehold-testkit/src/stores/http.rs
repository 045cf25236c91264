//! A `leasehold serve` on a SQLite file.

use std::io;
use std::path::Path;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use async_trait::async_trait;
use leasehold::{LockName, Locker};
use leasehold_serve::{Access, Server, Settings};
use tokio::process::Command;

#[cfg(feature = "chaos")]
use crate::chaos::{plan::Kind as Fault, scenario::Scenario, servers::Http as Proxied};
use crate::conformance::Harness;
use crate::harness::{Fresh, read_database};
use crate::http;
use crate::launch::{Launch, leasehold, measured, options};
use crate::servers::parsed;
use crate::test_store::{Bench, Kind, Storage, TestStore};

/// A `leasehold serve` on a SQLite file.
#[derive(Debug)]
pub struct Http;

/// The token with all rights.
const TOKEN: &str = "a-token-for-tests";

/// The names of the files with the locks and with the token.
const LOCKS: &str = "locks.db";
const TOKEN_FILE: &str = "token";

/// Starts a server on the locks in `folder`, in a thread that runs as long as this process. Returns its store URL.
///
/// # Panics
/// When the server does not start.
pub fn serve(folder: &Path) -> String {
    let (sender, address) = mpsc::channel();
    let store = format!("sqlite:{}", folder.join(LOCKS).display());
    thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async move {
            let locker = Locker::open(&store).await.unwrap();
            let settings = Settings::new(
                ([127, 0, 0, 1], 0).into(),
                Access::local(TOKEN),
                b"a secret for tests".to_vec(),
            );
            let server = Server::bind(locker, settings).await.unwrap();
            sender.send(server.address()).unwrap();
            server.run(std::future::pending()).await.unwrap();
        });
    });
    let address = address.recv_timeout(Duration::from_secs(60)).expect("a server that listens");
    let token = folder.join(TOKEN_FILE);
    std::fs::write(&token, TOKEN).unwrap();
    format!("http://{address}?token_file={}", token.display())
}

/// Returns the folder of the server at `url`.
fn folder(url: &str) -> std::path::PathBuf {
    let token = parsed(url).option("token_file").expect("a URL of a server for tests").to_owned();
    Path::new(&token).parent().unwrap().to_owned()
}

#[async_trait]
impl TestStore for Http {
    fn name(&self) -> &'static str {
        "http"
    }

    fn storages(&self) -> &'static [Storage] {
        const { &[Storage::local("http_sqlite", Kind::Alone)] }
    }

    fn fresh_url(&self, _storage: &Storage, folder: &Path) -> String {
        serve(folder)
    }

    fn harness(&'static self, storage: &'static Storage) -> Box<dyn Harness> {
        Box::new(Fresh::on(self, storage))
    }

    async fn delete_record(&self, url: &str, name: &LockName) {
        let database = rusqlite::Connection::open(folder(url).join(LOCKS)).unwrap();
        database.busy_timeout(Duration::from_secs(60)).unwrap();
        assert_eq!(database.execute("DELETE FROM lock WHERE name = ?1", [name.as_str()]).unwrap(), 1);
    }

    async fn read_record(&self, url: &str, _name: &LockName) -> String {
        read_database(&folder(url).join(LOCKS))
    }

    #[cfg(feature = "chaos")]
    fn scenarios(&self) -> &'static [Scenario] {
        const HTTP: Scenario = Scenario::store(
            "http",
            |folder, workers| Proxied::start(&Serve, folder, workers),
            &[Fault::StopServer, Fault::KillServer],
        );
        const REPLICAS: Scenario = Scenario::store(
            "http-replicas",
            |folder, workers| Proxied::start_replicas(&Serve, 3, folder, workers),
            &[Fault::StopServer, Fault::KillServer],
        );
        const ALL: &[Scenario] = &[HTTP, REPLICAS];
        ALL
    }

    fn bench(&self) -> Bench {
        Bench {
            title: "leasehold serve (a SQLite file)",
            scenarios: "abf",
            server: Some(|folder| measured(&Serve, folder)),
        }
    }
}

/// The command `leasehold serve`.
#[derive(Debug)]
struct Serve;

#[async_trait]
impl Launch for Serve {
    fn command(&self, address: &str, folder: &Path) -> Command {
        let secret = folder.join("secret");
        // If this fails, the server reports that it cannot read the file.
        let _ = std::fs::write(&secret, "the secret of all servers in this folder");
        let mut server = Command::new(leasehold().expect("the path of this program"));
        server.arg("--store").arg(format!("sqlite:{}", folder.join(LOCKS).display()));
        server.args(["serve", "--listen", address, "--secret-file"]).arg(secret);
        server
    }

    async fn make_store(&self, address: &str) -> io::Result<String> {
        match http::exchange(address, "GET", "/readyz", "", b"").await? {
            (200 | 204, _) => Ok(format!("http://{address}")),
            (status, _) => Err(io::Error::other(format!("the server is not ready: {status}"))),
        }
    }

    fn options(&self, address: &str) -> Vec<String> {
        options(&[("--server", &format!("http://{address}"))])
    }
}
