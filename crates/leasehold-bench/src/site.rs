//! The servers that contenders are measured on: one for each store, on loopback, with fresh data.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use tempfile::TempDir;

use crate::roster::Place;
use crate::scenario::Store;
use crate::wire::proxy::{Proxy, Speaks};

/// A store, ready to be used.
pub(crate) struct Site {
    store: Store,
    folder: TempDir,
    #[cfg(feature = "servers")]
    server: servers::Server,
}

/// One contender's way to a store, for one run.
pub(crate) struct Way<'a> {
    site: &'a Site,
    /// Where there is a server.
    proxy: Option<Proxy>,
    before: BTreeMap<String, u64>,
}

impl Site {
    /// Starts what `store` needs.
    pub(crate) async fn start(store: Store) -> Result<Self, String> {
        let folder = tempfile::Builder::new().prefix("leasehold-bench.").tempdir();
        let folder = folder.map_err(|error| format!("no temporary folder: {error}"))?;
        #[cfg(feature = "servers")]
        {
            let server = servers::Server::start(store, folder.path()).await?;
            Ok(Self { store, folder, server })
        }
        #[cfg(not(feature = "servers"))]
        {
            if store.has_server() {
                return Err("it was not built in: build with --all-features".to_owned());
            }
            Ok(Self { store, folder })
        }
    }

    /// A file of its own in the site's folder.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A way that is longer by `round_trip`.
    pub(crate) async fn way(&self, round_trip: Duration) -> Result<Way<'_>, String> {
        let proxy = match self.server_address() {
            None => None,
            Some(address) => {
                let speaks = if self.store == Store::Etcd { Speaks::Other } else { Speaks::Http };
                let proxy = Proxy::start(&address, speaks, round_trip).await;
                Some(proxy.map_err(|error| format!("no proxy: {error}"))?)
            }
        };
        let mut way = Way { site: self, proxy, before: BTreeMap::new() };
        way.begin_counting().await;
        Ok(way)
    }

    #[cfg(feature = "servers")]
    fn server_address(&self) -> Option<String> {
        self.server.address()
    }

    #[cfg(not(feature = "servers"))]
    fn server_address(&self) -> Option<String> {
        None
    }
}

impl Way<'_> {
    /// The store URL.
    pub(crate) fn url(&self) -> String {
        match (self.site.store, &self.proxy) {
            (Store::Memory, _) => "mem:".to_owned(),
            #[cfg(feature = "servers")]
            (_, Some(proxy)) => self.site.server.url(&proxy.address().to_string()),
            _ => format!("sqlite:{}", self.site.file("locks.db").display()),
        }
    }

    /// The address of the proxy, `host:port`.
    pub(crate) fn address(&self) -> String {
        self.proxy.as_ref().map_or_else(String::new, |proxy| proxy.address().to_string())
    }

    /// The options that tell a contender where its server is.
    pub(crate) fn options(&self, place: Place) -> Vec<String> {
        let address = self.address();
        let options: &[(&str, String)] = match (place, self.site.store) {
            (Place::Url, _) => &[("--store", self.url())],
            (Place::Endpoint, Store::S3 | Store::Gcs) => {
                &[("--endpoint", format!("http://{address}")), ("--bucket", BUCKET.to_owned())]
            }
            (Place::Endpoint, Store::DynamoDb) => {
                &[("--endpoint", format!("http://{address}")), ("--table", BUCKET.to_owned())]
            }
            (Place::Endpoint, _) => &[("--endpoint", address)],
        };
        options.iter().flat_map(|(name, value)| [(*name).to_owned(), value.clone()]).collect()
    }

    /// From now on requests count.
    pub(crate) async fn begin_counting(&mut self) {
        self.before = self.all().await;
    }

    /// The requests since then, by kind; `None` where there is nobody to ask.
    pub(crate) async fn requests(&self) -> Option<BTreeMap<String, u64>> {
        self.proxy.as_ref()?;
        let new = self.all().await.into_iter().map(|(kind, count)| {
            let before = self.before.get(&kind).copied().unwrap_or(0);
            (kind, count.saturating_sub(before))
        });
        Some(new.filter(|(_, count)| *count > 0).collect())
    }

    /// How many streams of keep-alives were ever opened, where there are such.
    pub(crate) async fn keep_alive_streams(&self) -> Option<u64> {
        #[cfg(feature = "servers")]
        if self.site.store == Store::Etcd {
            return Some(self.site.server.keep_alive_streams().await);
        }
        None
    }

    /// All requests so far: of HTTP as the proxy counts them, of etcd by its own count of messages.
    async fn all(&self) -> BTreeMap<String, u64> {
        #[cfg(feature = "servers")]
        if self.site.store == Store::Etcd {
            return self.site.server.messages().await;
        }
        self.proxy.as_ref().map(Proxy::counts).unwrap_or_default()
    }
}

/// The bucket, or the table.
#[cfg(feature = "servers")]
const BUCKET: &str = leasehold_testkit::chaos::site::STORE;
#[cfg(not(feature = "servers"))]
const BUCKET: &str = "";

#[cfg(feature = "servers")]
mod servers {
    use std::collections::BTreeMap;
    use std::path::Path;

    use leasehold_testkit::chaos::scenario::Place;
    use leasehold_testkit::chaos::site;
    use leasehold_testkit::etcd::Cluster;
    use leasehold_testkit::servers::through;

    use crate::scenario::Store;

    /// Killed when dropped.
    pub(super) enum Server {
        None,
        Http { server: site::Server, url: String },
        Etcd(Cluster),
    }

    impl Server {
        pub(super) async fn start(store: Store, folder: &Path) -> Result<Self, String> {
            let place = match store {
                Store::Sqlite | Store::Memory => return Ok(Self::None),
                Store::Etcd => return Ok(Self::Etcd(Cluster::start_below(folder, 1).await)),
                Store::S3 => Place::MinIo,
                Store::DynamoDb => Place::DynamoDbInMemory,
                Store::Gcs => Place::FakeGcs,
            };
            let started = site::Server::start_with_store(place, folder).await;
            let (server, url) = started.map_err(|error| error.to_string())?;
            Ok(Self::Http { server, url })
        }

        pub(super) fn address(&self) -> Option<String> {
            match self {
                Self::None => None,
                Self::Http { server, .. } => Some(server.address().to_owned()),
                Self::Etcd(cluster) => Some(cluster.address(0).to_owned()),
            }
        }

        /// The store URL by way of `proxy`.
        pub(super) fn url(&self, proxy: &str) -> String {
            match self {
                Self::None => String::new(),
                Self::Http { url, .. } => through(url, proxy),
                Self::Etcd(_) => format!("etcd://{proxy}/bench/"),
            }
        }

        pub(super) async fn keep_alive_streams(&self) -> u64 {
            match self {
                Self::Etcd(cluster) => cluster.calls(0).await.get("LeaseKeepAlive").copied().unwrap_or(0),
                Self::None | Self::Http { .. } => 0,
            }
        }

        pub(super) async fn messages(&self) -> BTreeMap<String, u64> {
            match self {
                Self::Etcd(cluster) => cluster.messages(0).await,
                Self::None | Self::Http { .. } => BTreeMap::new(),
            }
        }
    }
}
