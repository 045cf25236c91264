//! The stores. Each storage system has one file or folder, which is the only code that imports its client library.

#[cfg(feature = "_aws")]
mod aws;
#[cfg(feature = "azure")]
pub mod azure;
#[cfg(any(feature = "_bucket", fuzzing))]
#[cfg_attr(not(feature = "s3"), allow(dead_code, unused_imports, reason = "S3 uses all of it"))]
mod buckets;
#[cfg(any(feature = "_network", fuzzing))]
#[allow(dead_code, reason = "not every store uses all of it")]
mod certificates;
#[cfg(feature = "_columns")]
mod columns;
#[cfg(any(feature = "_http", feature = "dir", fuzzing))]
#[cfg_attr(not(feature = "azure"), allow(dead_code, reason = "Azure uses all of it"))]
mod contents;
#[cfg(feature = "_table")]
mod database;
#[cfg(feature = "dir")]
pub mod dir;
#[cfg(feature = "dynamodb")]
pub mod dynamodb;
#[cfg(feature = "etcd")]
pub mod etcd;
#[cfg(any(feature = "dir", feature = "sqlite"))]
mod file_system;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing;
#[cfg(feature = "gcs")]
pub mod gcs;
#[cfg(feature = "_columns")]
mod grace;
#[cfg(any(feature = "_server", fuzzing))]
#[cfg_attr(fuzzing, allow(dead_code, reason = "the fuzz targets open no connections"))]
mod hosts;
#[cfg(feature = "http")]
pub mod http;
#[cfg(feature = "kubernetes")]
pub mod kubernetes;
pub mod memory;
#[cfg(feature = "mysql")]
pub mod mysql;
#[cfg(feature = "nats")]
pub mod nats;
#[cfg(any(feature = "_columns", feature = "sqlite"))]
#[cfg_attr(
    not(any(feature = "postgres", feature = "redis")),
    allow(dead_code, reason = "only connections to servers end when they are unused")
)]
mod notifications;
#[cfg(any(feature = "nats", feature = "redis"))]
mod on_demand;
#[cfg(any(feature = "_http", fuzzing))]
#[cfg_attr(not(feature = "azure"), allow(dead_code, reason = "Azure uses all of it"))]
mod over_http;
#[allow(dead_code, reason = "stores that list from one response do not use it")]
mod pages;
#[cfg(any(feature = "_server", fuzzing))]
#[cfg_attr(fuzzing, allow(dead_code, reason = "the fuzz targets open no connections"))]
mod password;
#[cfg(feature = "_table")]
mod pool;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(feature = "redis")]
pub mod redis;
#[cfg(feature = "_table")]
mod rows;
#[cfg(feature = "s3")]
pub mod s3;
#[cfg(feature = "sqlite")]
pub mod sqlite;
#[cfg(feature = "_table")]
mod table;
#[cfg(feature = "_tls")]
mod tls;
#[cfg(all(fuzzing, not(feature = "_network")))]
#[path = "stores/without_clients.rs"] // Makes rustc look for its modules in `stores/`.
mod without_clients;
#[cfg(all(fuzzing, not(feature = "_network")))]
use self::without_clients::{aws, azure, gcs, s3};
#[cfg(all(fuzzing, not(feature = "_network")))]
pub(crate) use self::without_clients::{dynamodb, etcd};

use std::sync::Arc;

use futures_util::future::BoxFuture;

use crate::env::Env;
use crate::error::Error;
use crate::lease::{LeaseStore, StoreOptions};
use crate::register::Register;
use crate::ticket::Ticket;
use crate::url::{StoreUrl, UrlOption};
use crate::worker::callers_runtime;

/// The maximum number of characters of a store URL that an error shows.
const MAX_SHOWN: usize = 200;

type Opening<T> = BoxFuture<'static, Result<T, Error>>;
type Open = fn(StoreUrl, StoreOptions) -> Opening<Arc<dyn LeaseStore>>;
/// A function that opens the folder of an object, and returns it with the object's key.
type OpenObject = fn(StoreUrl, Env) -> Opening<(Arc<dyn Register>, String)>;

/// A kind of store: the URL scheme, and how to open the store.
///
/// ```
/// use leasehold::stores::STORES;
///
/// for kind in STORES.iter().filter(|kind| kind.is_built_in()) {
///     println!("{} ({}): {}", kind.name, kind.example, kind.can);
/// }
/// let memory = STORES.iter().find(|kind| kind.scheme == "mem").expect("every build has it");
/// assert!(memory.is_built_in());
/// assert_eq!(memory.feature, None);
/// ```
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct StoreKind {
    /// The scheme of its URLs, without the colon.
    pub scheme: &'static str,
    /// The name of the store that is shown to users.
    pub name: &'static str,
    /// The features of the store, in the terms of [`Capabilities`](crate::lease::Capabilities). The store's
    /// documentation page lists exceptions.
    pub can: &'static str,
    /// An example of a URL.
    pub example: &'static str,
    /// The cargo feature that builds it in; `None` for a store that every build has.
    pub feature: Option<&'static str>,
    /// The function that opens the store; `None` if this build does not have it.
    open: Option<Open>,
    /// Whether it keeps objects that [`update`](crate::update()) can change.
    keeps_objects: bool,
    /// The function that opens an object for an update; `None` if this build does not have the store, or the store
    /// keeps no objects.
    open_object: Option<OpenObject>,
}

impl StoreKind {
    /// Returns whether this build has the store.
    pub const fn is_built_in(&self) -> bool {
        self.open.is_some()
    }

    /// Returns the options of its URLs.
    pub fn options(&self) -> impl Iterator<Item = &'static UrlOption> + use<> {
        crate::url::options_of(self.scheme)
    }
}

/// Expands to `Some(function)` if the feature is enabled, otherwise to `None`. The function returns a boxed future.
macro_rules! with_feature {
    ($feature:literal, $open:expr) => {{
        #[cfg(feature = $feature)]
        {
            Some(|url, options| Box::pin($open(url, options)))
        }
        #[cfg(not(feature = $feature))]
        {
            None
        }
    }};
}

/// All stores that leasehold knows. A new store needs an entry here, a `mod` above, and a feature.
pub const STORES: &[StoreKind] = &[
    StoreKind {
        scheme: "sqlite",
        name: "SQLite file on this machine",
        can: "fencing tokens, cooldowns, history, takeover at once when a process dies, waiters in order of arrival",
        example: "sqlite:/var/lib/myapp/locks.db",
        feature: Some("sqlite"),
        open: with_feature!("sqlite", sqlite::open),
        keeps_objects: false,
        open_object: None,
    },
    StoreKind {
        scheme: "dir",
        name: "directory that machines share (NFS, Amazon EFS)",
        can: "fencing tokens, cooldowns, history, waiters in order of arrival",
        example: "dir:/mnt/efs/locks",
        feature: Some("dir"),
        open: with_feature!("dir", dir::open),
        keeps_objects: true,
        open_object: with_feature!("dir", dir::open_object),
    },
    StoreKind {
        scheme: "s3",
        name: "Amazon S3 and compatible stores",
        can: "fencing tokens, cooldowns, history, waiters in order of arrival",
        example: "s3://bucket/prefix?region=eu-west-1",
        feature: Some("s3"),
        open: with_feature!("s3", s3::open),
        keeps_objects: true,
        open_object: with_feature!("s3", s3::open_object),
    },
    StoreKind {
        scheme: "dynamodb",
        name: "Amazon DynamoDB, compatible with AWS's lock client",
        can: "fencing tokens, cooldowns, history, waiters in order of arrival",
        example: "dynamodb://table?region=eu-west-1",
        feature: Some("dynamodb"),
        open: with_feature!("dynamodb", dynamodb::open),
        keeps_objects: false,
        open_object: None,
    },
    StoreKind {
        scheme: "gs",
        name: "Google Cloud Storage",
        can: "fencing tokens, cooldowns, history, waiters in order of arrival",
        example: "gs://bucket/prefix",
        feature: Some("gcs"),
        open: with_feature!("gcs", gcs::open),
        keeps_objects: true,
        open_object: with_feature!("gcs", gcs::open_object),
    },
    StoreKind {
        scheme: "azblob",
        name: "Azure Blob Storage",
        can: "fencing tokens, cooldowns, history, waiters in order of arrival",
        example: "azblob://account/container/prefix",
        feature: Some("azure"),
        open: with_feature!("azure", azure::open),
        keeps_objects: true,
        open_object: with_feature!("azure", azure::open_object),
    },
    StoreKind {
        scheme: "etcd",
        name: "etcd cluster",
        can: "fencing tokens, cooldowns, waiters do not poll, waiters in order of arrival",
        example: "etcd://host:2379,host2:2379/prefix/",
        feature: Some("etcd"),
        open: with_feature!("etcd", etcd::open),
        keeps_objects: false,
        open_object: None,
    },
    StoreKind {
        scheme: "k8s",
        name: "Kubernetes Leases, compatible with client-go's leader election",
        can: "fencing tokens, cooldowns, history, waiters in order of arrival",
        example: "k8s://namespace",
        feature: Some("kubernetes"),
        open: with_feature!("kubernetes", kubernetes::open),
        keeps_objects: false,
        open_object: None,
    },
    StoreKind {
        scheme: "mysql",
        name: "MySQL or MariaDB table, compatible with ShedLock",
        can: "fencing tokens, cooldowns, history, waiters in order of arrival",
        example: "mysql://user@host/database",
        feature: Some("mysql"),
        open: with_feature!("mysql", mysql::open),
        keeps_objects: false,
        open_object: None,
    },
    StoreKind {
        scheme: "postgres",
        name: "PostgreSQL table, compatible with ShedLock",
        can: "fencing tokens, cooldowns, history, waiters in order of arrival",
        example: "postgres://user@host/database",
        feature: Some("postgres"),
        open: with_feature!("postgres", postgres::open),
        keeps_objects: false,
        open_object: None,
    },
    StoreKind {
        scheme: "redis",
        name: "Redis or Valkey, compatible with clients that SET NX PX",
        can: "fencing tokens, cooldowns, history, waiters in order of arrival",
        example: "redis://host:6379/0?prefix=locks/",
        feature: Some("redis"),
        open: with_feature!("redis", redis::open),
        keeps_objects: false,
        open_object: None,
    },
    StoreKind {
        scheme: "nats",
        name: "NATS JetStream bucket",
        can: "fencing tokens, cooldowns, history, waiters in order of arrival",
        example: "nats://host:4222/bucket?prefix=locks",
        feature: Some("nats"),
        open: with_feature!("nats", nats::open),
        keeps_objects: false,
        open_object: None,
    },
    StoreKind {
        scheme: "https",
        name: "leasehold serve, on the server's store",
        can: "fencing tokens, cooldowns, history, waiters do not poll",
        example: "https://locks.example.com",
        feature: Some("http"),
        open: with_feature!("http", http::open),
        keeps_objects: false,
        open_object: None,
    },
    StoreKind {
        scheme: "http",
        name: "leasehold serve on this machine",
        can: "fencing tokens, cooldowns, history, waiters do not poll",
        example: "http://127.0.0.1:7420",
        feature: Some("http"),
        open: with_feature!("http", http::open),
        keeps_objects: false,
        open_object: None,
    },
    StoreKind {
        scheme: "mem",
        name: "memory of this process, for tests",
        can: "fencing tokens, cooldowns, history, waiters in order of arrival",
        example: "mem:",
        feature: None,
        open: Some(|url, options| Box::pin(async { memory::open(url, options) })),
        keeps_objects: false,
        open_object: None,
    },
];

fn kind_of(url: &StoreUrl) -> Option<&'static StoreKind> {
    STORES.iter().find(|kind| kind.scheme == url.scheme())
}

/// Opens the store that `url` names.
///
/// ```
/// # use std::time::Duration;
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// use leasehold::{Locker, lease::StoreOptions, stores, url::StoreUrl};
///
/// let mut options = StoreOptions::default();
/// options.margin = Duration::from_secs(10); // an option in the URL overrides it
/// let store = stores::open(StoreUrl::parse("mem:")?, options).await?;
/// assert!(store.capabilities().tokens);
/// let guard = Locker::new(store).lock("deploy/prod").acquire().await?;
/// guard.release().await?;
/// # Ok::<_, leasehold::Error>(())
/// # }).unwrap();
/// ```
///
/// Cancel safe, except that SQLite's file, or DynamoDB's table with `create=true`, may have been created.
///
/// # Errors
/// Returns [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) for a malformed URL or an unknown option,
/// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) for a store that this build does not have, and otherwise
/// the errors of the store itself.
pub async fn open(url: StoreUrl, options: StoreOptions) -> Result<Arc<dyn LeaseStore>, Error> {
    callers_runtime()?;
    match kind_of(&url).and_then(|kind| kind.open) {
        Some(open) => open(url, options).await,
        None => Err(not_built_in(&url)),
    }
}

/// Opens the folder of the object that `url` names as a register. Returns it with the object's key.
///
/// # Errors
/// Returns [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) for a store that keeps no objects, and otherwise
/// the errors of [`open`].
pub(crate) async fn open_object(url: StoreUrl, env: Env) -> Result<(Arc<dyn Register>, String), Error> {
    callers_runtime()?;
    let kind = kind_of(&url);
    match kind.and_then(|kind| kind.open_object) {
        Some(open) => open(url, env).await,
        None if kind.is_some_and(|kind| kind.keeps_objects) => Err(not_built_in(&url)),
        None => {
            let scheme = url.scheme();
            Err(Error::unsupported(format!("a `{scheme}:` store keeps no objects to update or write"))
                .with_help(
                    "use an object of s3://, gs://, azblob:// or dir:, like s3://bucket/path/counter.json",
                ))
        }
    }
}

/// Returns whether both URLs name the same store. They do if the scheme, location, endpoint and protocol are equal, and
/// also the region if both URLs name one. Ignores logins, credentials, settings and the order of hosts. Looks up no
/// file, name or server.
///
/// ```
/// use leasehold::{stores::is_same_store, url::StoreUrl};
///
/// let store = StoreUrl::parse("s3://bucket/locks?region=eu-west-1")?;
/// assert!(is_same_store(&store, &StoreUrl::parse("s3://bucket/locks/?profile=ci&margin=10s")?));
/// assert!(!is_same_store(&store, &StoreUrl::parse("s3://bucket/other?region=eu-west-1")?));
/// # Ok::<(), leasehold::Error>(())
/// ```
pub fn is_same_store(one: &StoreUrl, other: &StoreUrl) -> bool {
    one.identity().names_the_store_of(other.identity())
}

impl Ticket {
    /// Checks that this ticket belongs to the store that `url` names. Compares stores like [`is_same_store`]. A ticket
    /// without a store is accepted for every store. Opens nothing and sends no request.
    ///
    /// # Errors
    /// Returns [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) if the ticket belongs to another store (the message
    /// names both), or if `url` is malformed.
    pub fn check_store(&self, url: &str) -> Result<(), Error> {
        let here = StoreUrl::parse(url)?;
        let Some(text) = self.store() else { return Ok(()) };
        let theirs = StoreUrl::parse(text)?;
        if is_same_store(&theirs, &here) {
            return Ok(());
        }
        let shown: String = theirs.identity().to_string().chars().take(MAX_SHOWN).collect();
        Err(Error::invalid(format!(
            "the ticket is for a lock in the store {shown}, but the store in use is {here}"
        ))
        .with_help("open the store of the ticket by a URL of your own, if you trust it")
        .with_help("if both URLs mean one store, use `Ticket::without_store`"))
    }
}

fn not_built_in(url: &StoreUrl) -> Error {
    let scheme = url.scheme();
    match kind_of(url).and_then(|kind| kind.feature) {
        Some(feature) => Error::unsupported(format!("this build has no `{scheme}:` store"))
            .with_help(format!(
                "build it with the feature `{feature}`; for the command, in a checkout of leasehold: cargo install \
                 --path crates/leasehold-cli --locked --features {feature}"
            )),
        None => url.unknown_scheme(),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    /// A ticket contains the identity of its store.
    #[test]
    fn an_identity_has_no_logins_and_settings() {
        let of = |url: &str| StoreUrl::parse(url).unwrap().identity().to_string();
        assert_eq!(of("etcd://u:hunter2@h:2379/p/?ca=/x&key=/y"), "etcd://h/p");
        assert_eq!(
            of("gs://b/p?credentials=/k.json&margin=9s&endpoint=http://h"),
            "gs://b/p?endpoint=http://h"
        );
        assert_eq!(of("s3://b?region=eu-west-1&profile=admin"), "s3://b?region=eu-west-1");
    }

    /// The documentation of each store has the options of the table, with their defaults, and no others.
    #[test]
    fn the_documentation_has_the_options_of_the_table() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/stores");
        for kind in STORES {
            let page = match kind.scheme {
                "gs" => "gcs",
                "azblob" => "azure",
                "k8s" => "kubernetes",
                "https" => "http",
                "mem" => continue,
                page => page,
            };
            let text = std::fs::read_to_string(format!("{folder}/{page}.md")).unwrap();
            let (_, text) = text.split_once("## URL and options").unwrap();
            let table = text.lines().skip_while(|line| !line.starts_with("| option |"));
            let mut documented = Vec::new();
            for row in table.take_while(|line| line.starts_with('|')) {
                let cells: Vec<_> = row.split(" | ").collect();
                let names = cells[0].split('`').skip(1).step_by(2);
                let is_option = |name: &&str| name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_');
                for name in names.filter(is_option) {
                    let option = kind.options().find(|option| option.name == name);
                    let option = option.unwrap_or_else(|| panic!("{page}.md: there is no option {name}"));
                    let is_value = option.default.starts_with('`') && option.default.ends_with('`');
                    let default = if is_value { option.default } else { "" };
                    assert!(cells[2].contains(default), "{page}.md: the default of {name} is {default}");
                    documented.push(name);
                }
            }
            for option in kind.options() {
                assert!(documented.contains(&option.name), "{page}.md lacks `{}`", option.name);
            }
        }
    }

    #[test]
    fn different_stores_are_distinguished() {
        let same = |one: &str, other: &str| {
            let (one, other) = (StoreUrl::parse(one).unwrap(), StoreUrl::parse(other).unwrap());
            assert_eq!(is_same_store(&one, &other), is_same_store(&other, &one), "{one} {other}");
            is_same_store(&one, &other)
        };
        for (one, other) in [
            ("sqlite:/a/b.db", "SQLITE:///a//./b.db?allow_network=on"),
            ("sqlite:", "sqlite:?margin=9s"),
            ("s3://b/p", "s3://b/p/?store_clock=off&profile=x&protocol=lease"),
            ("s3://b", "s3://b/"),
            ("s3://b/p?region=eu-west-1", "s3://b/p"),
            ("gs://b?endpoint=http://h:1/", "gs://b?endpoint=http://h:1&credentials=anonymous"),
            ("etcd://u:secret@H1,h2:2379/x/", "etcd://h2,h1:2379/x?ca=/c.pem&tls=on"),
            ("postgres://u:secret@H/d", "postgresql://v@h:5432/d?table=leasehold&ca=/c.pem"),
            ("etcd://h,h/x", "etcd://h/x"),
            ("rediss://:secret@H", "valkey://h:6379/0?failover_grace=0s&cluster=off"),
        ] {
            assert!(same(one, other), "{one} {other}");
        }
        for (one, other) in [
            ("sqlite:/a/b.db", "sqlite:/a/c.db"),
            ("sqlite:/a/b.db", "sqlite:a/b.db"),
            ("sqlite:/a/b.db", "sqlite:/a/x/../b.db"),
            ("sqlite:/a/b.db", "sqlite:"),
            ("sqlite:/a", "sqlite://h/a"),
            ("s3://b/p", "gs://b/p"),
            ("s3://b/p", "s3://b/P"),
            ("s3://b/p", "s3://c/p"),
            ("s3://b/p", "s3://b/p/q"),
            ("dynamodb://Table", "dynamodb://table"),
            ("dynamodb://t?region=a", "dynamodb://t?region=b"),
            ("s3://b?protocol=existence", "s3://b"),
            ("azblob://a/c?protocol=lease", "azblob://a/c"),
            ("gs://b?endpoint=https://evil", "gs://b"),
            ("gs://b?endpoint=https://evil", "gs://b?endpoint=https://h"),
            ("etcd://h/x", "etcd://h/y"),
            ("etcd://h", "etcd://h,evil"),
            ("etcd://h//x", "etcd://h/x"),
            ("redis://h/1", "redis://h"),
            ("redis://h?prefix=a", "redis://h?prefix=b"),
            ("redis://h?prefix=a/", "redis://h?prefix=a"),
            ("redis://h?master=a", "redis://h"),
            ("redis://h?cluster=on", "redis://h"),
            ("postgres://u@h/d?table=x", "postgres://u@h/d"),
            ("postgres://u@h/d", "postgres://u@h/e"),
            ("mem:", "sqlite:"),
        ] {
            assert!(!same(one, other), "{one} {other}");
        }
    }
}
