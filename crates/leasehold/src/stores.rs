//! The stores: one file or folder for each storage system, the only code that imports its client.

#[cfg(any(feature = "s3", feature = "dynamodb"))]
mod aws;
#[cfg(feature = "dynamodb")]
pub mod dynamodb;
#[cfg(feature = "etcd")]
pub mod etcd;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing;
#[cfg(feature = "gcs")]
pub mod gcs;
pub mod memory;
#[cfg(any(feature = "gcs", feature = "s3", fuzzing))]
#[cfg_attr(
    fuzzing,
    allow(dead_code, unused_imports, reason = "the fuzz targets use the keys and the checks of URLs")
)]
mod objects;
#[cfg(feature = "s3")]
pub mod s3;
#[cfg(test)]
#[cfg(any(feature = "dynamodb", feature = "gcs", feature = "s3"))]
mod scripted;
#[cfg(feature = "sqlite")]
pub mod sqlite;
#[cfg(all(fuzzing, not(any(feature = "s3", feature = "dynamodb", feature = "gcs", feature = "etcd"))))]
#[path = "stores/without_clients.rs"] // With a path its modules lie beside it.
mod without_clients;
#[cfg(all(fuzzing, not(any(feature = "s3", feature = "dynamodb", feature = "gcs", feature = "etcd"))))]
use self::without_clients::{aws, gcs, s3};
#[cfg(all(fuzzing, not(any(feature = "s3", feature = "dynamodb", feature = "gcs", feature = "etcd"))))]
pub(crate) use self::without_clients::{dynamodb, etcd};

use std::sync::Arc;

use crate::env::Env;
use crate::error::Error;
use crate::lease::{LeaseStore, StoreOptions};
use crate::register::Register;
use crate::url::StoreUrl;

/// What a URL scheme stands for: shown by `help stores`, and what an error names when a store was not built in.
#[derive(Clone, Copy, Debug)]
pub struct Scheme {
    /// The scheme, without the colon.
    pub scheme: &'static str,
    /// The store, for people.
    pub store: &'static str,
    /// What it can, as [`Capabilities`](crate::lease::Capabilities) says it; the page of the store says when it differs.
    pub can: &'static str,
    /// An example.
    pub example: &'static str,
    /// The cargo feature that it needs; `None` for what is always there.
    pub feature: Option<&'static str>,
    /// Whether this build has it.
    pub built_in: bool,
}

/// Every scheme that leasehold knows.
pub const SCHEMES: &[Scheme] = &[
    Scheme {
        scheme: "sqlite",
        store: "SQLite file on this machine",
        can: "fencing tokens, rests, history, successor at once when a process dies",
        example: "sqlite:/var/lib/myapp/locks.db",
        feature: Some("sqlite"),
        built_in: cfg!(feature = "sqlite"),
    },
    Scheme {
        scheme: "s3",
        store: "Amazon S3 and compatible stores",
        can: "fencing tokens, rests, history",
        example: "s3://bucket/prefix?region=eu-west-1",
        feature: Some("s3"),
        built_in: cfg!(feature = "s3"),
    },
    Scheme {
        scheme: "dynamodb",
        store: "Amazon DynamoDB, beside AWS's lock client",
        can: "fencing tokens, rests, history",
        example: "dynamodb://table?region=eu-west-1",
        feature: Some("dynamodb"),
        built_in: cfg!(feature = "dynamodb"),
    },
    Scheme {
        scheme: "gs",
        store: "Google Cloud Storage",
        can: "fencing tokens, rests, history",
        example: "gs://bucket/prefix",
        feature: Some("gcs"),
        built_in: cfg!(feature = "gcs"),
    },
    Scheme {
        scheme: "etcd",
        store: "etcd cluster",
        can: "fencing tokens, rests, waiters told of a release, waiters in order of arrival",
        example: "etcd://host:2379,host2:2379/prefix/",
        feature: Some("etcd"),
        built_in: cfg!(feature = "etcd"),
    },
    Scheme {
        scheme: "mem",
        store: "memory of this process, for tests",
        can: "fencing tokens, rests, history",
        example: "mem:",
        feature: None,
        built_in: true,
    },
];

/// Opens the store that `url` names.
///
/// # Errors
/// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) for a URL that cannot be read or an option that does not exist;
/// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) for a store that was not built in; what the store says.
pub async fn open(url: StoreUrl, options: StoreOptions) -> Result<Arc<dyn LeaseStore>, Error> {
    match url.scheme() {
        "mem" => memory::open(url, options),
        #[cfg(feature = "sqlite")]
        "sqlite" => sqlite::open(url, options).await,
        #[cfg(feature = "dynamodb")]
        "dynamodb" => dynamodb::open(url, options).await,
        #[cfg(feature = "s3")]
        "s3" => s3::open(url, options).await,
        #[cfg(feature = "gcs")]
        "gs" => gcs::open(url, options),
        #[cfg(feature = "etcd")]
        "etcd" => etcd::open(url, options).await,
        other => Err(not_built_in(other)),
    }
}

/// Opens the folder of the object that `url` names as a register, and says which key the object has there.
///
/// # Errors
/// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) for a store that keeps no objects; otherwise as [`open`].
pub(crate) async fn open_object(url: StoreUrl, env: Env) -> Result<(Arc<dyn Register>, String), Error> {
    #[cfg(not(any(feature = "s3", feature = "gcs")))]
    drop(env);
    match url.scheme() {
        #[cfg(feature = "s3")]
        "s3" => s3::open_object(url, env).await,
        #[cfg(feature = "gcs")]
        "gs" => gcs::open_object(url, env),
        #[cfg(not(feature = "s3"))]
        "s3" => Err(not_built_in("s3")),
        #[cfg(not(feature = "gcs"))]
        "gs" => Err(not_built_in("gs")),
        other => {
            Err(Error::unsupported(format!("there are no objects in `{other}:`, to be updated or written"))
                .with_help("objects are kept by s3:// and gs://, like s3://bucket/path/counter.json"))
        }
    }
}

fn not_built_in(scheme: &str) -> Error {
    match SCHEMES.iter().find(|known| known.scheme == scheme).and_then(|known| known.feature) {
        Some(feature) => Error::unsupported(format!("this build has no `{scheme}:` store"))
            .with_help(format!("build it in: cargo install leasehold-cli --features {feature}")),
        None => {
            let schemes: Vec<_> = SCHEMES.iter().map(|known| known.scheme).collect();
            Error::invalid(format!("there is no store `{scheme}:`"))
                .with_help(format!("the stores are: {}", schemes.join(", ")))
        }
    }
}
