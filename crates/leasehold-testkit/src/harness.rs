//! The storage that leasehold's own stores run the conformance cases on.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use leasehold::env::Env;
use leasehold::lease::{LeaseStore, StoreOptions};
use leasehold::register::{Deleted, Register};
use leasehold::stores::STORES;
use leasehold::stores::memory::MemoryRegister;
use leasehold::{LockName, RegisterLeases};

use crate::conformance::Harness;

/// Leases on one register, with nothing but the register shared between clients.
#[derive(Clone, Debug)]
pub struct OnRegister {
    register: Arc<dyn Register>,
    options: StoreOptions,
    by_existence: bool,
}

impl OnRegister {
    /// Leases on `register`.
    pub fn new(register: Arc<dyn Register>, options: StoreOptions) -> Self {
        Self { register, options, by_existence: false }
    }

    /// The same storage with the protocol of simple clients: a lock is held while its object exists.
    pub fn by_existence(self) -> Self {
        Self { by_existence: true, ..self }
    }

    /// Leases on a fresh [`MemoryRegister`] that runs on `env`.
    pub fn memory(env: Env) -> Self {
        let mut options = StoreOptions::default();
        options.env = env.clone();
        options.margin = Duration::ZERO;
        Self::new(Arc::new(MemoryRegister::new(env)), options)
    }
}

#[async_trait]
impl Harness for OnRegister {
    async fn open(&self) -> Arc<dyn LeaseStore> {
        let leases = if self.by_existence { RegisterLeases::by_existence } else { RegisterLeases::new };
        Arc::new(leases(self.register.clone(), self.options.clone()))
    }

    async fn delete_record(&self, name: &LockName) {
        delete_record(&*self.register, &object(name, self.by_existence)).await;
    }
}

async fn delete_record(register: &dyn Register, key: &str) {
    let cell = register.read(key).await.unwrap().expect("there is a record to delete");
    assert_eq!(register.delete(key, &cell.version).await.unwrap(), Deleted::Deleted);
}

/// The key of a lock's object.
fn object(name: &LockName, by_existence: bool) -> String {
    if by_existence { name.to_string() } else { format!("{name}.lock") }
}

/// Whether `url` asks for the protocol of simple clients.
#[cfg(any(feature = "s3", feature = "gcs"))]
fn is_by_existence(url: &str) -> bool {
    url.contains("protocol=existence")
}

/// A fresh SQLite file, opened anew for each client.
#[cfg(feature = "sqlite")]
#[derive(Debug)]
pub struct Sqlite {
    folder: tempfile::TempDir,
}

#[cfg(feature = "sqlite")]
impl Default for Sqlite {
    fn default() -> Self {
        Self { folder: tempfile::tempdir().expect("a temporary folder") }
    }
}

#[cfg(feature = "sqlite")]
impl Sqlite {
    fn file(&self) -> std::path::PathBuf {
        self.folder.path().join("locks.db")
    }

    /// Its store URL, for other processes.
    pub fn url(&self) -> String {
        format!("sqlite:{}", self.file().display())
    }

    /// The folder that it is in, and that goes with it.
    pub fn folder(&self) -> &std::path::Path {
        self.folder.path()
    }
}

#[cfg(feature = "sqlite")]
#[async_trait]
impl Harness for Sqlite {
    async fn open(&self) -> Arc<dyn LeaseStore> {
        open(&self.url()).await
    }

    async fn delete_record(&self, name: &LockName) {
        let database = rusqlite::Connection::open(self.file()).unwrap();
        database.busy_timeout(self.limit()).unwrap();
        assert_eq!(database.execute("DELETE FROM lock WHERE name = ?1", [name.as_str()]).unwrap(), 1);
    }
}

/// A fresh prefix of a bucket on a real server.
#[cfg(feature = "s3")]
#[derive(Debug)]
pub struct S3 {
    url: String,
}

#[cfg(feature = "s3")]
impl S3 {
    /// A fresh prefix on `server`.
    ///
    /// # Panics
    /// When `./test` has not started the server.
    pub fn on(server: crate::servers::Server) -> Self {
        Self { url: server.fresh_url() }
    }

    /// The same with the protocol of simple clients: a lock is held while its object exists.
    pub fn by_existence(self) -> Self {
        Self { url: format!("{}&protocol=existence", self.url) }
    }

    /// Its store URL, for other processes.
    pub fn url(&self) -> &str {
        &self.url
    }
}

#[cfg(feature = "s3")]
#[async_trait]
impl Harness for S3 {
    async fn open(&self) -> Arc<dyn LeaseStore> {
        vouch_for(&self.url).await;
        // Without a margin, inspection tells of a lapse within the limit of a case. The servers run on this machine.
        open(&format!("{}&margin=0s", self.url)).await
    }

    async fn delete_record(&self, name: &LockName) {
        // Not through leasehold's register, which deletes only where the server can do so conditionally: MinIO cannot.
        let url = leasehold::url::StoreUrl::parse(&self.url).unwrap();
        let object = object(name, is_by_existence(&self.url));
        let key = format!("{}/{object}", url.path().trim_matches('/'));
        let client = s3_client(&self.url).await;
        let bucket = url.authority().unwrap();
        client.head_object().bucket(bucket).key(&key).send().await.expect("there is a record to delete");
        client.delete_object().bucket(bucket).key(&key).send().await.unwrap();
    }

    fn rounds(&self) -> usize {
        // Waiters ask a server only a few times a second.
        2
    }
}

/// A client of the server at `url`, for what an operator does by hand.
#[cfg(feature = "s3")]
pub async fn s3_client(url: &str) -> aws_sdk_s3::Client {
    let mut url = leasehold::url::StoreUrl::parse(url).unwrap();
    let config = aws_config::load_defaults(aws_config::BehaviorVersion::latest()).await;
    let config = aws_sdk_s3::config::Builder::from(&config)
        .endpoint_url(url.take("endpoint").unwrap())
        .region(aws_sdk_s3::config::Region::new(url.take("region").unwrap()))
        .force_path_style(true)
        .build();
    aws_sdk_s3::Client::from_conf(config)
}

/// A fresh prefix of a real etcd.
#[cfg(feature = "etcd")]
#[derive(Debug)]
pub struct Etcd {
    url: String,
}

#[cfg(feature = "etcd")]
impl Default for Etcd {
    fn default() -> Self {
        Self { url: crate::servers::Server::Etcd.fresh_url() }
    }
}

#[cfg(feature = "etcd")]
#[async_trait]
impl Harness for Etcd {
    async fn open(&self) -> Arc<dyn LeaseStore> {
        open(&self.url).await
    }

    async fn delete_record(&self, name: &LockName) {
        let url = leasehold::url::StoreUrl::parse(&self.url).unwrap();
        let prefix = format!("{}/{name}/", url.path().trim_matches('/'));
        crate::etcd::etcdctl(url.authority().unwrap(), &["del", "--prefix", &prefix]).await;
    }
}

/// A fresh prefix of a bucket on a real server.
#[cfg(feature = "gcs")]
#[derive(Debug)]
pub struct Gcs {
    url: String,
}

#[cfg(feature = "gcs")]
impl Gcs {
    /// A fresh prefix on `server`.
    ///
    /// # Panics
    /// When `./test` has not started the server.
    pub fn on(server: crate::servers::Server) -> Self {
        Self { url: server.fresh_url() }
    }

    /// The same with the protocol of simple clients: a lock is held while its object exists.
    pub fn by_existence(self) -> Self {
        Self { url: format!("{}&protocol=existence", self.url) }
    }
}

#[cfg(feature = "gcs")]
#[async_trait]
impl Harness for Gcs {
    async fn open(&self) -> Arc<dyn LeaseStore> {
        vouch_for(&self.url).await;
        // Without a margin, inspection tells of a lapse within the limit of a case. The servers run on this machine.
        open(&format!("{}&margin=0s", self.url)).await
    }

    async fn delete_record(&self, name: &LockName) {
        let url = leasehold::url::StoreUrl::parse(&self.url).unwrap();
        let register = leasehold::stores::gcs::GcsRegister::open(url, Env::system()).unwrap();
        delete_record(&register, &object(name, is_by_existence(&self.url))).await;
    }

    fn rounds(&self) -> usize {
        // Waiters ask a server only a few times a second.
        2
    }
}

/// Records at the store that `url` names that its server passed its examination, for other processes: see the harnesses.
pub async fn vouch_for(url: &str) {
    let parsed = leasehold::url::StoreUrl::parse(url).unwrap();
    match parsed.scheme() {
        #[cfg(feature = "s3")]
        "s3" => {
            let register = leasehold::stores::s3::S3Register::open(parsed, Env::system()).await.unwrap();
            vouch(&register, is_by_existence(url), "\"00000000000000000000000000000000\"").await;
        }
        #[cfg(feature = "gcs")]
        "gs" => {
            let register = leasehold::stores::gcs::GcsRegister::open(parsed, Env::system()).unwrap();
            vouch(&register, is_by_existence(url), "1").await;
        }
        _ => {}
    }
}

/// Writes the markers of an examination that the server passed. The races of one are hundreds of requests, and each case has a
/// prefix of its own. Other tests examine servers, these among them: `refused.rs`, the doctor's.
#[cfg(any(feature = "s3", feature = "gcs"))]
async fn vouch(register: &dyn leasehold::Register, deletes: bool, outdated: &str) {
    let now = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_micros();
    let keys = [".leasehold-probe", ".leasehold-probe-delete"];
    for key in &keys[..1 + usize::from(deletes)] {
        let marker = format!(
            r#"{{"about":"the testkit knows this server","examination":2,"outdated":{outdated:?},"verdicts":[{{"place":"{}","at_us":{now}}}],"nonce":"{:032x}"}}"#,
            register.place(),
            1
        );
        let marker: bytes::Bytes = marker.into();
        // Another client of the same case may have written it.
        let _ = register.write(key, leasehold::register::Precondition::Absent, marker.into()).await.unwrap();
    }
}

/// `help stores` tells people what the store at `url` can; the store itself must say the same.
pub async fn assert_described(url: &str) {
    let url = leasehold::url::StoreUrl::parse(url).unwrap();
    let scheme = STORES.iter().find(|scheme| scheme.scheme == url.scheme()).unwrap();
    let store = leasehold::stores::open(url, StoreOptions::default()).await.unwrap();
    assert_eq!(scheme.can, store.capabilities().to_string());
}

/// A table of its own on a real server. Not a prefix of one: a listing reads the whole table, and moto, which does one
/// thing at a time, would keep the leases of other cases waiting.
#[cfg(feature = "dynamodb")]
#[derive(Debug)]
pub struct DynamoDb {
    url: String,
}

#[cfg(feature = "dynamodb")]
impl DynamoDb {
    /// A table on `server` that is made when it is first opened.
    ///
    /// # Panics
    /// When `./test` has not started the server.
    pub fn on(server: crate::servers::Server) -> Self {
        let url = server.url();
        let table = leasehold::url::StoreUrl::parse(&url).unwrap().authority().unwrap().to_owned();
        let fresh =
            format!("{table}-{}", leasehold::lease::Id::random(&leasehold::random::Random::from_os()));
        Self { url: format!("{}&create=true", url.replacen(&table, &fresh, 1)) }
    }
}

#[cfg(feature = "dynamodb")]
#[async_trait]
impl Harness for DynamoDb {
    async fn open(&self) -> Arc<dyn LeaseStore> {
        // As with S3.
        let store = open(&format!("{}&margin=0s", self.url)).await;
        self.vouch().await;
        store
    }

    async fn delete_record(&self, name: &LockName) {
        use aws_sdk_dynamodb::types::{AttributeValue, ReturnValue};
        let key = name.to_string();
        let (client, table) = dynamodb_client(&self.url).await;
        let request = client.delete_item().table_name(table).key("key", AttributeValue::S(key));
        let deleted = request.return_values(ReturnValue::AllOld).send().await.unwrap();
        assert!(deleted.attributes.is_some(), "there is a record to delete");
    }

    fn rounds(&self) -> usize {
        // As with S3.
        2
    }
}

#[cfg(feature = "dynamodb")]
impl DynamoDb {
    /// Writes the marker of an examination that the server passed. The races of one take moto seconds, and each case has a
    /// table of its own. Other tests examine servers, this one among them: `refused.rs`, the doctor's.
    async fn vouch(&self) {
        use aws_sdk_dynamodb::types::AttributeValue;
        let (client, table) = dynamodb_client(&self.url).await;
        let endpoint = leasehold::url::StoreUrl::parse(&self.url).unwrap().take("endpoint").unwrap();
        let now = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_micros();
        let marker = format!(
            r#"{{"about":"the testkit knows this server","examination":2,"outdated":"none","verdicts":[{{"place":"{endpoint}/{table}","at_us":{now}}}],"nonce":"{:032x}"}}"#,
            1
        );
        let request =
            client.put_item().table_name(table).item("key", AttributeValue::S(".leasehold-probe".into()));
        let request = request.item("nonce", AttributeValue::S("vouched".into()));
        request.item("marker", AttributeValue::S(marker)).send().await.unwrap();
    }
}

/// A plain client of the table that a store URL names, and the table's name: for what people do beside leasehold.
///
/// # Panics
/// When the URL has no endpoint and no region.
#[cfg(feature = "dynamodb")]
pub async fn dynamodb_client(url: &str) -> (aws_sdk_dynamodb::Client, String) {
    let mut url = leasehold::url::StoreUrl::parse(url).unwrap();
    let config = aws_config::load_defaults(aws_config::BehaviorVersion::latest()).await;
    let config = aws_sdk_dynamodb::config::Builder::from(&config)
        .endpoint_url(url.take("endpoint").unwrap())
        .region(aws_sdk_dynamodb::config::Region::new(url.take("region").unwrap()))
        .build();
    (aws_sdk_dynamodb::Client::from_conf(config), url.authority().unwrap().to_owned())
}

#[cfg(any(feature = "sqlite", feature = "s3", feature = "gcs", feature = "dynamodb", feature = "etcd"))]
async fn open(url: &str) -> Arc<dyn LeaseStore> {
    let url = leasehold::url::StoreUrl::parse(url).unwrap();
    leasehold::stores::open(url, StoreOptions::default()).await.unwrap()
}
