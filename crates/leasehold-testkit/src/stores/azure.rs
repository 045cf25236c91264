//! Azure Blob Storage, on Azurite.

use std::io;
use std::path::Path;
use std::time::Duration;

use async_trait::async_trait;
use leasehold::LockName;
use leasehold::env::Env;
use leasehold::stores::azure::AzureRegister;
use tokio::process::Command;

use super::{object, vouch};
#[cfg(feature = "chaos")]
use crate::chaos::{
    plan::Kind as Fault,
    scenario::{Scenario, WITHOUT_TOKENS},
    servers::Http,
};
use crate::conformance::Harness;
use crate::harness::{Fresh, delete_record, read_record};
use crate::http;
use crate::launch::{Launch, STORE, measured, options, program};
use crate::peers::Program;
use crate::servers::{Server, below, endpoint, parsed};
use crate::test_store::{Bench, Budget, Kind, Storage, TestStore};

impl Server {
    /// Azurite, Microsoft's emulator of Azure Storage.
    pub const AZURITE: Self = Self { variable: "LEASEHOLD_TEST_AZURE" };
    const LEASES: Self = Self { variable: "LEASEHOLD_TEST_AZURE_LEASE" };
}

impl Program {
    /// A peer: the leases of azure-storage-blob.
    pub const AZURE_PY: Self = Self::peer("LEASEHOLD_TEST_PEER_AZURE_PY", container);
}

/// Returns the peer's option that names the container of a store URL. The peer uses leases.
fn container(url: &str) -> Vec<String> {
    let url = format!("http://{}/{ACCOUNT}/{}", Server::LEASES.address(), location(url).0);
    options(&[("--container", &url)])
}

/// Returns the container and the prefix in a store URL.
fn location(url: &str) -> (String, String) {
    let url = parsed(url);
    let (container, prefix) = url.path().trim_start_matches('/').split_once('/').unwrap_or_default();
    (container.to_owned(), prefix.to_owned())
}

/// Returns the name, within its container, of the blob of a lock that is a lease.
pub fn leased_blob(url: &str, name: &str) -> String {
    format!("{}/{name}", location(url).1)
}

/// Azure Blob Storage.
#[derive(Debug)]
pub struct Azure;

/// The account of every emulator.
const ACCOUNT: &str = "devstoreaccount1";

/// A shared access signature that is valid until 2099, made with the key of that account. The key is public.
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
        const {
            let leases = Storage::at("azure_lease", Server::LEASES, Kind::Alone).with("protocol=lease");
            &[
                Storage::at("azure", Server::AZURITE, Kind::Http),
                leases.with_ttl(Duration::from_secs(15)).with_longest_ttl(Duration::from_secs(60)),
            ]
        }
    }

    fn harness(&'static self, storage: &'static Storage) -> Box<dyn Harness> {
        Box::new(Fresh::on(self, storage))
    }

    async fn delete_record(&self, url: &str, name: &LockName) {
        if !is_by_lease(url) {
            return delete_record(&register(url), &object(url, name)).await;
        }
        // Azure does not delete a blob that is leased, so break the lease first.
        let path = format!("/{ACCOUNT}{}/{name}?comp=lease&{SAS}", parsed(url).path());
        let break_now = "x-ms-lease-action: break\r\nx-ms-lease-break-period: 0\r\n";
        let broken = http::exchange(&Server::LEASES.address(), "PUT", &path, break_now, b"").await.unwrap();
        assert_eq!(broken.0, 202, "{broken:?}");
        delete_record(&register(url), name.as_str()).await;
    }

    async fn read_record(&self, url: &str, name: &LockName) -> String {
        let key = if is_by_lease(url) { name.to_string() } else { object(url, name) };
        read_record(&register(url), &key).await
    }

    async fn vouch_for(&self, url: &str) {
        if is_by_lease(url) {
            return;
        }
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
        // Azure has no leases shorter than 15 seconds.
        const LEASES: Scenario = Scenario {
            name: "azure-lease",
            options: "protocol=lease",
            ttl: Duration::from_secs(15),
            promises: WITHOUT_TOKENS,
            ..AZURE
        };
        const ALL: &[Scenario] = &[AZURE, LEASES];
        ALL
    }

    fn bench(&self) -> Bench {
        Bench {
            title: "Azure Blob (Azurite)",
            scenarios: "abcdefij",
            server: Some(|folder| measured(&Azurite, folder)),
        }
    }
}

/// Returns whether locks at `url` are leases of blobs.
fn is_by_lease(url: &str) -> bool {
    url.contains("protocol=lease")
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
            // 409: an earlier attempt created the container, but its response was lost.
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
