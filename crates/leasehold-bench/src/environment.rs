//! The servers on which contenders are measured: one per store, on loopback, without earlier data.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use leasehold_testkit::launch::{Measured, Protocol};
use tempfile::TempDir;

use crate::roster::Place;
use crate::scenario::Store;
use crate::wire::proxy::{Door, Proxy};

/// A store that is ready to use.
pub(crate) struct Environment {
    store: Store,
    folder: TempDir,
    /// Killed when this is dropped.
    server: Option<Box<dyn Measured>>,
    doors: Vec<Door>,
}

/// The connection of one contender to a store, for one run.
pub(crate) struct Connection<'a> {
    environment: &'a Environment,
    /// `None` if the store has no server.
    proxy: Option<Proxy>,
    before: BTreeMap<String, u64>,
}

impl Environment {
    /// Starts the server of `store`, if it has one.
    pub(crate) async fn start(store: Store) -> Result<Self, String> {
        let folder = tempfile::Builder::new().prefix("leasehold-bench.").tempdir();
        let folder = folder.map_err(|error| format!("cannot create a temporary folder: {error}"))?;
        let server = match store.bench().server {
            Some(start) => Some(start(folder.path()).await.map_err(|error| error.to_string())?),
            None => None,
        };
        let members = server.as_ref().map(|server| server.members()).unwrap_or_default();
        let doors = members.into_iter().map(|(server, port)| Door::open(server, port));
        let doors =
            doors.collect::<std::io::Result<_>>().map_err(|error| format!("no port is free: {error}"))?;
        Ok(Self { store, folder, server, doors })
    }

    /// Returns the path of a file in the environment's folder.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Opens a connection that adds `round_trip` to each request. The one before must have been dropped.
    pub(crate) async fn connect(&self, round_trip: Duration) -> Result<Connection<'_>, String> {
        let proxy = match &self.server {
            None => None,
            Some(server) => {
                let proxy = Proxy::start(&self.doors, server.protocol(), round_trip);
                Some(proxy.map_err(|error| format!("cannot start the proxy: {error}"))?)
            }
        };
        let mut connection = Connection { environment: self, proxy, before: BTreeMap::new() };
        connection.begin_counting().await;
        Ok(connection)
    }
}

impl Connection<'_> {
    /// Returns the server, and the address of the proxy in front of it.
    fn server(&self) -> Option<(&dyn Measured, String)> {
        Some((self.environment.server.as_deref()?, self.address()))
    }

    /// Returns the store URL.
    pub(crate) fn url(&self) -> String {
        match self.server() {
            Some((server, proxy)) => server.url(&proxy),
            None => self.environment.store.url_in(self.environment.folder.path()),
        }
    }

    /// Returns the address of the proxy, `host:port`.
    pub(crate) fn address(&self) -> String {
        self.proxy.as_ref().map_or_else(String::new, |proxy| proxy.address().to_string())
    }

    /// Returns the options with which a contender finds its server.
    pub(crate) fn options(&self, place: Place) -> Vec<String> {
        match place {
            Place::Url => vec!["--store".to_owned(), self.url()],
            Place::Endpoint => {
                self.server().map(|(server, proxy)| server.options(&proxy)).unwrap_or_default()
            }
        }
    }

    /// Starts counting requests.
    pub(crate) async fn begin_counting(&mut self) {
        self.before = self.all().await;
    }

    /// Returns the requests since [`begin_counting`](Self::begin_counting), by kind, or `None` if they are not counted.
    pub(crate) async fn requests(&self) -> Option<BTreeMap<String, u64>> {
        self.proxy.as_ref()?;
        let new = self.all().await.into_iter().map(|(kind, count)| {
            let before = self.before.get(&kind).copied().unwrap_or(0);
            (kind, count.saturating_sub(before))
        });
        Some(new.filter(|(_, count)| *count > 0).collect())
    }

    /// Returns how many keep-alive streams have been opened in total, if the store has them.
    pub(crate) async fn keep_alive_streams(&self) -> Option<u64> {
        self.environment.server.as_deref()?.keep_alive_streams().await
    }

    /// Returns all requests so far, as counted by the proxy, or the messages that the server has counted.
    async fn all(&self) -> BTreeMap<String, u64> {
        match &self.environment.server {
            Some(server) if server.protocol() == Protocol::Other => server.messages().await,
            _ => self.proxy.as_ref().map(Proxy::counts).unwrap_or_default(),
        }
    }
}
