//! DynamoDB, on DynamoDB Local and on moto.

use std::io;
use std::path::Path;

use async_trait::async_trait;
use aws_sdk_dynamodb::types::{AttributeValue, ReturnValue};
use leasehold::{LockName, Locker};
use tokio::process::Command;

use super::marker;
#[cfg(feature = "chaos")]
use crate::chaos::{plan::Kind as Fault, scenario::Scenario, servers::Http};
use crate::conformance::Harness;
use crate::harness::Fresh;
use crate::launch::{Launch, STORE, measured, options, program};
use crate::peers::Program;
use crate::proxy::Seen;
use crate::servers::{Server, endpoint, parsed, unique, with_option};
use crate::test_store::{Bench, Budget, Kind, Storage, TestStore};

impl Server {
    /// DynamoDB Local, by Amazon.
    pub const DYNAMODB_LOCAL: Self = Self { variable: "LEASEHOLD_TEST_DYNAMODB_LOCAL" };
    /// moto's DynamoDB.
    pub const DYNAMODB_MOTO: Self = Self { variable: "LEASEHOLD_TEST_DYNAMODB_MOTO" };
    /// Unmodified moto, whose DynamoDB is not atomic: it checks conditions, then writes.
    pub const DYNAMODB_RACY: Self = Self { variable: "LEASEHOLD_TEST_BAD_DYNAMODB_RACY" };
    /// Every DynamoDB server on which locks work.
    pub const DYNAMODB: &[Self] = &[Self::DYNAMODB_LOCAL, Self::DYNAMODB_MOTO];
}

impl Program {
    /// A peer: AWS's lock client for DynamoDB, in Java.
    pub const DYNAMODB_JAVA: Self = Self::peer("LEASEHOLD_TEST_PEER_DYNAMODB_JAVA", peer_options);
    /// A peer: dynamolock, a port of that client to Go.
    pub const DYNAMODB_GO: Self = Self::peer("LEASEHOLD_TEST_PEER_DYNAMODB_GO", peer_options);
}

fn peer_options(url: &str) -> Vec<String> {
    let url = parsed(url);
    let endpoint = url.option("endpoint").expect("the store URL names an endpoint");
    client_options(endpoint, url.authority().expect("the store URL names a table"))
}

fn client_options(endpoint: &str, table: &str) -> Vec<String> {
    options(&[("--endpoint", endpoint), ("--table", table)])
}

/// DynamoDB.
#[derive(Debug)]
pub struct DynamoDb;

/// The option that creates the table.
const CREATE: &str = "create=true";

#[async_trait]
impl TestStore for DynamoDb {
    fn name(&self) -> &'static str {
        "dynamodb"
    }

    fn storages(&self) -> &'static [Storage] {
        const { &[Storage::at("dynamodb_local", Server::DYNAMODB_LOCAL, Kind::Http)] }
    }

    /// Gives each case a separate table instead of a prefix, because a listing reads the whole table.
    fn harness(&'static self, storage: &'static Storage) -> Box<dyn Harness> {
        let url = storage.server.expect("a server").url();
        let table = parsed(&url).authority().unwrap().to_owned();
        let url = url.replacen(&table, &format!("{table}-{}", unique()), 1);
        Box::new(Fresh::on(self, storage).at(with_option(&url, CREATE)))
    }

    async fn delete_record(&self, url: &str, name: &LockName) {
        let key = name.to_string();
        let (client, table) = client(url).await;
        let request = client.delete_item().table_name(table).key("key", AttributeValue::S(key));
        let deleted = request.return_values(ReturnValue::AllOld).send().await.unwrap();
        assert!(deleted.attributes.is_some(), "there is a record to delete");
    }

    async fn read_record(&self, url: &str, name: &LockName) -> String {
        let (client, table) = client(url).await;
        let request = client.get_item().table_name(table).key("key", AttributeValue::S(name.to_string()));
        format!("{:?}", request.send().await.unwrap().item)
    }

    /// Handles only the separate table of a case. `./test` does the same for the shared table.
    async fn vouch_for(&self, url: &str) {
        if !url.contains(CREATE) {
            return;
        }
        let (client, table) = client(url).await;
        let endpoint = parsed(url).option("endpoint").unwrap().to_owned();
        let marker = marker(&format!("{endpoint}/{table}"), "none");
        let request =
            client.put_item().table_name(table).item("key", AttributeValue::S(".leasehold-probe".into()));
        let request = request.item("nonce", AttributeValue::S("vouched".into()));
        request.item("marker", AttributeValue::S(marker)).send().await.unwrap();
    }

    fn budget(&self) -> Option<Budget> {
        Some(Budget {
            request: |seen| operation(seen, "/lock"),
            examines_first: false,
            // The first finds no item and reads the time; the second creates the item; the third gives it a token that
            // is certainly new. In between, one more, to the item of the line.
            first: &["UpdateItem", "UpdateItem", "UpdateItem"],
            cold: &["UpdateItem"],
            refusal: &["UpdateItem"],
            read: "GetItem",
            write: "UpdateItem",
            joins: 1,
            write_method: "POST",
        })
    }

    #[cfg(feature = "chaos")]
    fn scenarios(&self) -> &'static [Scenario] {
        const ALL: &[Scenario] = &[Scenario::store(
            "dynamodb-local",
            |folder, workers| Http::start(&Local { in_memory: false }, folder, workers),
            &[Fault::StopServer, Fault::KillServer],
        )];
        ALL
    }

    fn bench(&self) -> Bench {
        Bench {
            title: "DynamoDB (DynamoDB Local)",
            scenarios: "abcdefij",
            server: Some(|folder| measured(&Local { in_memory: true }, folder)),
        }
    }
}

/// Returns the operation of `seen` if it concerns an item whose key ends with `key`.
pub fn operation(seen: &Seen, key: &str) -> Option<String> {
    let body: serde_json::Value = serde_json::from_slice(&seen.body).unwrap();
    let (_, operation) = seen.target.as_ref()?.rsplit_once('.')?;
    body["Key"]["key"]["S"].as_str()?.ends_with(key).then(|| operation.to_owned())
}

/// Returns a plain client of the table that a store URL names, and the table's name, for operations outside
/// leasehold.
///
/// # Panics
/// When the URL has no endpoint or no region.
pub async fn client(url: &str) -> (aws_sdk_dynamodb::Client, String) {
    let url = parsed(url);
    let config = aws_config::load_defaults(aws_config::BehaviorVersion::latest()).await;
    let config = aws_sdk_dynamodb::config::Builder::from(&config)
        .endpoint_url(url.option("endpoint").unwrap())
        .region(aws_sdk_dynamodb::config::Region::new(url.option("region").unwrap().to_owned()))
        .build();
    (aws_sdk_dynamodb::Client::from_conf(config), url.authority().unwrap().to_owned())
}

/// DynamoDB Local, with its data on disk or in memory.
#[derive(Debug)]
struct Local {
    in_memory: bool,
}

#[async_trait]
impl Launch for Local {
    fn command(&self, address: &str, folder: &Path) -> Command {
        let (_, port) = address.split_once(':').unwrap_or((address, ""));
        let jars = program("LEASEHOLD_TEST_DYNAMODB_LOCAL_JARS");
        let mut local = Command::new("java");
        local.arg(format!("-Djava.library.path={jars}")).args(["-cp", &format!("{jars}/*")]);
        local.arg(program("LEASEHOLD_TEST_DYNAMODB_LOCAL_SERVER"));
        local.args(["-sharedDb", "-disableTelemetry", "-port", port]);
        if self.in_memory {
            local.arg("-inMemory")
        } else {
            local.arg("-dbPath").arg(folder)
        };
        local
    }

    async fn make_store(&self, address: &str) -> io::Result<String> {
        make_table(address).await
    }

    fn options(&self, address: &str) -> Vec<String> {
        client_options(&format!("http://{address}"), STORE)
    }
}

async fn make_table(address: &str) -> io::Result<String> {
    let url = format!("dynamodb://{STORE}?{}&region=us-east-1", endpoint(address));
    Locker::open(&with_option(&url, CREATE)).await.map_err(io::Error::other)?;
    Ok(url)
}
