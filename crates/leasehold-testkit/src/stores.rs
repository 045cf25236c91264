//! The stores under test. One file per store defines its servers, fresh storage, request budget, chaos scenarios and
//! benchmark. The suites, chaos and the benchmark read the table that is built here.
//!
//! To add a store, write its file, add its `mod` and its line to `stores!`, and its feature to the `cfg` of each helper
//! below that the file uses. The line names its storages, because test names must be known at compile time:
//!
//! - `alone`: the conformance suite runs on it;
//! - `shared`: the suites with several processes run on it too;
//! - `http`: in addition, requests are counted, lost and delayed by a [`Proxy`](crate::proxy::Proxy);
//! - `serial`: like `http`, but requests are not counted, and no test has many processes, because the server handles
//!   one request at a time.

#[cfg(any(feature = "s3", feature = "dynamodb"))]
mod aws;
#[cfg(feature = "azure")]
pub mod azure;
#[cfg(feature = "dir")]
pub mod dir;
#[cfg(feature = "dynamodb")]
pub mod dynamodb;
#[cfg(feature = "etcd")]
pub mod etcd;
#[cfg(feature = "gcs")]
pub mod gcs;
#[cfg(feature = "http")]
pub mod http;
#[cfg(feature = "kubernetes")]
pub mod kubernetes;
pub mod memory;
#[cfg(feature = "mysql")]
pub mod mysql;
#[cfg(feature = "nats")]
pub mod nats;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(feature = "redis")]
pub mod redis;
#[cfg(feature = "s3")]
pub mod s3;
#[cfg(feature = "sqlite")]
pub mod sqlite;

#[cfg(any(feature = "azure", feature = "s3", feature = "gcs"))]
use leasehold::LockName;
#[cfg(any(feature = "azure", feature = "s3", feature = "gcs", feature = "dynamodb"))]
use leasehold::clock::{Clock as _, SystemClock};

#[cfg(feature = "chaos")]
use crate::chaos::scenario::Scenario;
use crate::conformance::Harness;
use crate::harness::Fresh;
use crate::test_store::{Kind, Storage, TestStore};

macro_rules! stores {
    ($($(#[$cfg:meta])? $store:path { $($storage:ident: $kind:ident),* })*) => {
        /// Every store.
        pub const STORES: &[&dyn TestStore] = &[$($(#[$cfg])? &$store),*];

        /// The lines of `stores!`: for each store, its storages and their kinds.
        #[cfg(test)]
        const LINES: &[&[(&str, &str)]] =
            &[$($(#[$cfg])? &[$((stringify!($storage), stringify!($kind))),*]),*];

        /// Calls `$suite! { NAME: KIND ... }` with the storages of all stores, to generate a test for each.
        #[macro_export]
        macro_rules! for_each_storage {
            ($suite:ident) => {
                $($(#[$cfg])? $suite! { $($storage: $kind)* })*
            };
        }
    };
}

stores! {
    #[cfg(feature = "s3")]
    s3::S3 { s3_minio: http, s3_moto: serial }
    #[cfg(feature = "dynamodb")]
    dynamodb::DynamoDb { dynamodb_local: http }
    #[cfg(feature = "gcs")]
    gcs::Gcs { gcs: http, gcs_existence: alone }
    #[cfg(feature = "azure")]
    azure::Azure { azure: http, azure_lease: alone }
    #[cfg(feature = "etcd")]
    etcd::Etcd { etcd: shared }
    #[cfg(feature = "kubernetes")]
    kubernetes::Kubernetes { kubernetes: http }
    #[cfg(feature = "sqlite")]
    sqlite::Sqlite { sqlite: shared }
    #[cfg(feature = "dir")]
    dir::Dir { dir: shared }
    #[cfg(feature = "http")]
    http::Http { http_sqlite: alone }
    #[cfg(feature = "mysql")]
    mysql::Mysql { mysql: shared }
    #[cfg(feature = "postgres")]
    postgres::Postgres { postgres: shared, postgres_pgbouncer: alone }
    #[cfg(feature = "redis")]
    redis::Redis { redis: shared, redis_valkey: alone, redis_cluster: shared }
    #[cfg(feature = "nats")]
    nats::Nats { nats: shared }
    memory::Memory { memory: alone }
}

/// Returns the store named `name`.
pub fn named(name: &str) -> Option<&'static dyn TestStore> {
    STORES.iter().find(|store| store.name() == name).copied()
}

/// Returns the storage named `name`, and its store.
///
/// # Panics
/// When there is no such storage.
pub fn storage(name: &str) -> (&'static dyn TestStore, &'static Storage) {
    let all = STORES.iter().flat_map(|store| store.storages().iter().map(move |storage| (*store, storage)));
    let mut found = all.filter(|(_, storage)| storage.name == name);
    found.next().unwrap_or_else(|| panic!("there is no storage {name}"))
}

/// Creates empty storage on the storage named `name`.
///
/// # Panics
/// When there is no such storage, or `./test` has not started its server.
pub fn fresh(name: &str) -> Fresh {
    let (store, storage) = storage(name);
    Fresh::on(store, storage)
}

/// Like [`fresh`], but returns the harness of a conformance case.
///
/// # Panics
/// As [`fresh`].
pub fn harness(name: &str) -> Box<dyn Harness> {
    let (store, storage) = storage(name);
    store.harness(storage)
}

/// Returns all chaos scenarios: first those of the stores, then those of the broken locks, whose flaws must be
/// detected.
#[cfg(feature = "chaos")]
pub fn scenarios() -> Vec<&'static Scenario> {
    let mut all: Vec<_> = STORES.iter().flat_map(|store| store.scenarios()).collect();
    all.sort_by_key(|scenario| scenario.must_break.is_some());
    all
}

/// Creates empty storage on each server of at least `kind`. With `one_each`, uses only the first server of each
/// store.
///
/// # Panics
/// When `./test` has not started the servers.
pub fn fresh_on(kind: Kind, one_each: bool) -> Vec<Fresh> {
    let mut all = Vec::new();
    for store in STORES {
        let storages = store.storages().iter().filter(|storage| storage.kind >= kind);
        for storage in storages.take(if one_each { 1 } else { usize::MAX }) {
            all.push(Fresh::on(*store, storage));
        }
    }
    all
}

/// Returns the key of the object of `name` in the bucket of `url`.
#[cfg(any(feature = "azure", feature = "s3", feature = "gcs"))]
fn object(url: &str, name: &LockName) -> String {
    crate::harness::object(name, is_by_existence(url))
}

/// Returns whether `url` selects the existence protocol of simple clients.
#[cfg(any(feature = "azure", feature = "s3", feature = "gcs"))]
fn is_by_existence(url: &str) -> bool {
    url.contains("protocol=existence")
}

/// Writes the markers of an examination that the server has passed. Each case has its own prefix, and a real
/// examination of each prefix would make hundreds of requests.
#[cfg(any(feature = "azure", feature = "s3", feature = "gcs"))]
async fn vouch(register: &dyn leasehold::Register, deletes: bool, outdated: &str) {
    let keys = [".leasehold-probe", ".leasehold-probe-delete"];
    for key in &keys[..1 + usize::from(deletes)] {
        let marker: bytes::Bytes = marker(&register.identity(), outdated).into();
        // Another client of the same case may have written it already.
        let _ = register.write(key, leasehold::register::Precondition::Absent, marker.into()).await.unwrap();
    }
}

/// Returns the record of an examination that the server at `place` has just passed.
#[cfg(any(feature = "azure", feature = "s3", feature = "gcs", feature = "dynamodb"))]
fn marker(place: &str, outdated: &str) -> String {
    let now = SystemClock.now().wall_us();
    format!(
        r#"{{"about":"the testkit knows this server","examination":2,"outdated":{outdated:?},"verdicts":[{{"place":"{place}","at_us":{now}}}],"nonce":"{:032x}"}}"#,
        1
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(feature = "chaos")]
    use crate::chaos::{checker::Rule, scenario::Clocks, worker::Kind as Lock};

    #[test]
    fn the_store_list_matches_the_store_files() {
        for (store, line) in STORES.iter().zip(LINES) {
            let storages = store.storages().iter();
            let kind = |kind: Kind| format!("{kind:?}").to_lowercase();
            let of_file: Vec<_> = storages.map(|storage| (storage.name, kind(storage.kind))).collect();
            let of_line: Vec<_> = line.iter().map(|(name, kind)| (*name, (*kind).to_owned())).collect();
            assert_eq!(of_line, of_file, "{store:?}");
        }
        assert_eq!(STORES.len(), LINES.len());
    }

    #[test]
    fn names_are_unique_and_start_with_that_of_the_store() {
        let mut names: Vec<_> =
            STORES.iter().flat_map(|store| store.storages()).map(|one| one.name).collect();
        names.sort_unstable();
        assert!(names.windows(2).all(|pair| pair[0] != pair[1]), "{names:?}");
        for store in STORES {
            assert!(store.storages().iter().all(|storage| storage.name.starts_with(store.name())));
            let http = store.storages().iter().any(|storage| storage.kind >= Kind::Serial);
            assert_eq!(http, store.budget().is_some(), "{store:?}");
        }
    }

    #[cfg(feature = "chaos")]
    #[test]
    fn scenarios_have_unique_names_and_stores_promise_one_holder() {
        let all = scenarios();
        for (n, scenario) in all.iter().enumerate() {
            assert!(all[..n].iter().all(|other| other.name != scenario.name));
            let naive = scenario.kind != Lock::Leasehold;
            assert_eq!(naive, scenario.must_break.is_some(), "{}", scenario.name);
            if !naive && scenario.clocks != Clocks::TwiceTooFast {
                assert!(scenario.promises.contains(&Rule::OneHolder), "{}", scenario.name);
            }
        }
    }
}
