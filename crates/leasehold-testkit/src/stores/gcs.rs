//! Google Cloud Storage, on fake-gcs-server.

use std::io;
use std::path::Path;
use std::time::Duration;

use async_trait::async_trait;
use leasehold::LockName;
use leasehold::env::Env;
use leasehold::stores::gcs::GcsRegister;
use tokio::process::Command;

use super::{is_by_existence, object, vouch};
#[cfg(feature = "chaos")]
use crate::chaos::{plan::Kind as Fault, scenario::Scenario, servers::Http};
use crate::conformance::Harness;
use crate::harness::{Fresh, delete_record, read_record};
use crate::http;
use crate::launch::{Launch, STORE, measured, program};
use crate::servers::{Server, below, endpoint, parsed};
use crate::test_store::{Bench, Budget, Kind, Storage, TestStore};

impl Server {
    /// fake-gcs-server, a GCS server in Go.
    pub const FAKE_GCS: Self = Self { variable: "LEASEHOLD_TEST_GCS_FAKE" };
    /// gcp-storage-emulator, a GCS server in Python, which ignores preconditions.
    pub const BAD_GCS: Self = Self { variable: "LEASEHOLD_TEST_BAD_GCS" };
}

/// Google Cloud Storage.
#[derive(Debug)]
pub struct Gcs;

fn register(url: &str) -> GcsRegister {
    GcsRegister::open(parsed(url), Env::system()).unwrap()
}

#[async_trait]
impl TestStore for Gcs {
    fn name(&self) -> &'static str {
        "gcs"
    }

    fn storages(&self) -> &'static [Storage] {
        const {
            &[
                Storage::at("gcs", Server::FAKE_GCS, Kind::Http),
                // Some responses of fake-gcs-server take longer than a second on a busy machine.
                Storage::at("gcs_existence", Server::FAKE_GCS, Kind::Alone)
                    .with("protocol=existence")
                    .with_ttl(Duration::from_secs(5)),
            ]
        }
    }

    fn harness(&'static self, storage: &'static Storage) -> Box<dyn Harness> {
        Box::new(Fresh::on(self, storage))
    }

    async fn delete_record(&self, url: &str, name: &LockName) {
        delete_record(&register(url), &object(url, name)).await;
    }

    async fn read_record(&self, url: &str, name: &LockName) -> String {
        read_record(&register(url), &object(url, name)).await
    }

    async fn vouch_for(&self, url: &str) {
        vouch(&register(url), is_by_existence(url), "1").await;
    }

    fn budget(&self) -> Option<Budget> {
        Some(Budget {
            // An upload has the object's name in its body, so all requests are counted.
            request: |seen| Some(seen.method.clone()),
            examines_first: true,
            first: &["GET", "POST"],
            cold: &["GET", "POST"],
            refusal: &["GET"],
            read: "GET",
            write: "POST",
            joins: 2,
            write_method: "POST",
        })
    }

    #[cfg(feature = "chaos")]
    fn scenarios(&self) -> &'static [Scenario] {
        const GCS: Scenario = Scenario::store(
            "gcs",
            |folder, workers| Http::start(&FakeGcsServer, folder, workers),
            &[Fault::StopServer],
        );
        const ALL: &[Scenario] =
            &[GCS, Scenario { name: "gcs-existence", options: "protocol=existence", ..GCS }];
        ALL
    }

    fn bench(&self) -> Bench {
        Bench {
            title: "GCS (fake-gcs-server)",
            scenarios: "abcdefij",
            server: Some(|folder| measured(&FakeGcsServer, folder)),
        }
    }
}

/// fake-gcs-server, with its data in memory.
#[derive(Debug)]
struct FakeGcsServer;

#[async_trait]
impl Launch for FakeGcsServer {
    fn command(&self, address: &str, _folder: &Path) -> Command {
        let (host, port) = address.split_once(':').unwrap_or((address, ""));
        let mut gcs = Command::new(program("LEASEHOLD_TEST_FAKE_GCS_SERVER"));
        gcs.args(["-scheme", "http", "-backend", "memory", "-host", host, "-port", port]);
        gcs.args(["-public-host", address, "-external-url", &format!("http://{address}")]);
        gcs.args(["-log-level", "warn"]);
        gcs
    }

    async fn make_store(&self, address: &str) -> io::Result<String> {
        let body = format!("{{\"name\": \"{STORE}\"}}");
        let header = "content-type: application/json\r\n";
        let made = http::exchange(address, "POST", "/storage/v1/b?project=p", header, body.as_bytes());
        match made.await? {
            // 409: an earlier attempt created the bucket, but its response was lost.
            (200 | 409, _) => {
                Ok(below(&format!("gs://{STORE}?{}&credentials=anonymous", endpoint(address)), "chaos"))
            }
            (status, body) => {
                let body = String::from_utf8_lossy(&body);
                Err(io::Error::other(format!("no bucket: {status} {body}")))
            }
        }
    }
}
