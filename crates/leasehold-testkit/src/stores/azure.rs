//! Azure Blob Storage, on Azurite.

use std::io;
use std::path::Path;

use async_trait::async_trait;
use leasehold::LockName;
use leasehold::env::Env;
use leasehold::stores::azure::AzureRegister;
use tokio::process::Command;

use super::{object, vouch};
#[cfg(feature = "chaos")]
use crate::chaos::{plan::Kind as Fault, scenario::Scenario, servers::Http};
use crate::conformance::Harness;
use crate::harness::{Fresh, delete_record};
use crate::http;
use crate::launch::{Launch, STORE, measured, program};
use crate::servers::{Server, below, endpoint, parsed};
use crate::test_store::{Bench, Budget, Kind, Storage, TestStore};

impl Server {
    /// Azurite, Microsoft's emulator of Azure Storage.
    pub const AZURITE: Self = Self { variable: "LEASEHOLD_TEST_AZURE" };
}

/// Azure Blob Storage.
#[derive(Debug)]
pub struct Azure;

/// The account of every emulator.
const ACCOUNT: &str = "devstoreaccount1";

/// A shared access signature until 2099 by the key of that account, which is public.
const SAS: &str = "sv=2023-11-03&ss=b&srt=sco&sp=rwdlc&se=2099-01-01T00%3A00%3A00Z&sig=thsOUTh%2Bdpz9aZUW1m5mG5k5vQy%2FtbbHlBFHN8kpSso%3D";

fn register(url: &str) -> AzureRegister {
    AzureRegister::open(parsed(url), Env::system()).unwrap()
}

#[async_trait]
impl TestStore for Azure {
    fn name(&self) -> &'static str {
        "azure"
    }

    fn storages(&self) -> &'static [Storage] {
        const { &[Storage::at("azure", Server::AZURITE, Kind::Http)] }
    }

    fn harness(&'static self, storage: &'static Storage) -> Box<dyn Harness> {
        Box::new(Fresh::on(self, storage))
    }

    async fn delete_record(&self, url: &str, name: &LockName) {
        delete_record(&register(url), &object(url, name)).await;
    }

    async fn vouch_for(&self, url: &str) {
        vouch(&register(url), true, "\"0x1\"").await;
    }

    fn budget(&self) -> Option<Budget> {
        Some(Budget {
            request: |seen| seen.path.ends_with("/lock.lock").then(|| seen.method.clone()),
            examines_first: false,
            first: &["GET", "PUT"],
            cold: &["GET", "PUT"],
            refusal: &["GET"],
            read: "GET",
            write: "PUT",
            joins: 1,
            write_method: "PUT",
        })
    }

    #[cfg(feature = "chaos")]
    fn scenarios(&self) -> &'static [Scenario] {
        const AZURE: Scenario = Scenario::store(
            "azure",
            |folder, workers| Http::start(&Azurite, folder, workers),
            &[Fault::StopServer],
        );
        const ALL: &[Scenario] = &[AZURE];
        ALL
    }

    fn bench(&self) -> Bench {
        Bench {
            title: "Azure Blob (Azurite)",
            scenarios: "abcdei",
            server: Some(|folder| measured(&Azurite, folder)),
        }
    }
}

/// Azurite, with its data in memory.
#[derive(Debug)]
struct Azurite;

#[async_trait]
impl Launch for Azurite {
    fn command(&self, address: &str, _folder: &Path) -> Command {
        let (host, port) = address.split_once(':').unwrap_or((address, ""));
        let mut azurite = Command::new(program("LEASEHOLD_TEST_AZURITE_SERVER"));
        azurite.args(["--blobHost", host, "--blobPort", port, "--inMemoryPersistence"]);
        azurite.args(["--silent", "--disableTelemetry"]);
        azurite
    }

    async fn make_store(&self, address: &str) -> io::Result<String> {
        let path = format!("/{ACCOUNT}/{STORE}?restype=container&{SAS}");
        match http::exchange(address, "PUT", &path, "", b"").await? {
            // 409: an earlier try created it, and its answer was lost.
            (201 | 409, _) => {
                Ok(below(&format!("azblob://{ACCOUNT}/{STORE}?{}", endpoint(address)), "chaos"))
            }
            (status, body) => {
                let body = String::from_utf8_lossy(&body);
                Err(io::Error::other(format!("no container: {status} {body}")))
            }
        }
    }
}
