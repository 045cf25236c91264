//! The server: its address, startup and shutdown.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use leasehold::Locker;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::api;
use crate::app::{App, Dashboard, Settings};
use crate::audit::Audit;
use crate::connections::{self, Connections, MostConnections};
use crate::tls::Tls;
use crate::ui;

/// The reason why a server did not start, or ended early.
#[derive(Debug)]
pub struct ServeError {
    message: String,
    help: Option<String>,
}

impl ServeError {
    fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), help: None }
    }

    /// Returns what the user can do about the error.
    pub fn help(&self) -> Option<&str> {
        self.help.as_deref()
    }
}

/// How many connections the listener for metrics may have.
const METRICS_CONNECTIONS: MostConnections = MostConnections { in_total: 64, per_address: 32 };

impl fmt::Display for ServeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for ServeError {}

/// A server that listens on its address.
///
/// ```
/// use leasehold_serve::{Access, Server, Settings};
///
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// let locker = leasehold::Locker::open("mem:").await?;
/// let settings = Settings::new(([127, 0, 0, 1], 0).into(), Access::local("a token"), b"a secret".to_vec());
/// let server = Server::bind(locker, settings).await?;
/// println!("listening on http://{}", server.address());
/// server.run(async {}).await?; // until the future completes
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
pub struct Server {
    app: Arc<App>,
    listener: TcpListener,
    tls: Option<Arc<Tls>>,
    address: SocketAddr,
    most: MostConnections,
    /// The listener for metrics and probes.
    metrics: Option<TcpListener>,
}

impl Server {
    /// Listens on the address of `settings`.
    ///
    /// # Errors
    /// The address is in use or may not be used. Or other machines could reach the server without a token or without
    /// TLS, or could read its metrics, and [`insecure`](Settings::insecure) is not set.
    pub async fn bind(locker: Locker, settings: Settings) -> Result<Self, ServeError> {
        let wanted = settings.listen;
        let is_protected = settings.access.needs_token() && settings.tls.is_some();
        if !wanted.ip().is_loopback() && !is_protected && !settings.insecure {
            return Err(refused(wanted, settings.access.needs_token(), settings.tls.is_some()));
        }
        if let Some(metrics) = settings.metrics
            && !metrics.ip().is_loopback()
            && !settings.insecure
        {
            return Err(refused_metrics(metrics));
        }
        let client_ca = settings.tls.as_ref().is_some_and(|tls| tls.accepts_client_certificates());
        if settings.access.has_certificates() != client_ca {
            return Err(mismatched(client_ca));
        }
        let tls = settings.tls.clone();
        let audit = settings.audit.as_ref().map(|file| {
            let failed = |error| ServeError::new(format!("the audit log {}: {error}", file.display()));
            Audit::open(file, locker.store().env()).map_err(failed)
        });
        let audit = audit.transpose()?;
        let in_total = settings.max_connections.max(1);
        let per_address = if settings.behind_proxy { in_total } else { in_total.div_ceil(4) };
        let listener = listen(wanted, "--listen")?;
        let address = listener.local_addr().map_err(|error| ServeError::new(format!("{wanted}: {error}")))?;
        let metrics = match settings.metrics {
            Some(address) => Some(listen(address, "--metrics")?),
            None => None,
        };
        Ok(Self {
            app: Arc::new(App::new(locker, settings, address, audit)),
            listener,
            tls,
            address,
            most: MostConnections { in_total, per_address },
            metrics,
        })
    }

    /// Returns the address of the listener for metrics, if there is one.
    pub fn metrics_address(&self) -> Option<SocketAddr> {
        self.metrics.as_ref().and_then(|listener| listener.local_addr().ok())
    }

    /// Returns the address that the server listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves until `stop` completes. Then requests that wait for a lock get the response 503, requests in progress are
    /// finished, and no hold is released.
    ///
    /// # Errors
    /// None at present. An error of a connection ends only that connection.
    pub async fn run(self, stop: impl Future<Output = ()> + Send + 'static) -> Result<(), ServeError> {
        let stopping = self.app.stopping.clone();
        let looking = tokio::spawn({
            let app = self.app.clone();
            async move { app.feed.watch().await }
        });
        let keys = tokio::spawn({
            let app = self.app.clone();
            async move { app.refresh_keys().await }
        });
        let app = self.app.clone();
        let flushing = tokio::spawn({
            let app = app.clone();
            async move { app.flush_logs().await }
        });
        tokio::spawn({
            let stopping = stopping.clone();
            async move {
                stop.await;
                stopping.cancel();
            }
        });
        let clock = self.app.locker.store().env().clock.clone();
        // Probes get answers until the requests in progress have ended.
        let drained = CancellationToken::new();
        let metrics = self.metrics.map(|listener| {
            let router = api::metrics_router(self.app.clone());
            let (clock, stopping, most) = (clock.clone(), drained.clone(), METRICS_CONNECTIONS);
            tokio::spawn(Connections { router, tls: None, clock, stopping, most }.serve(listener))
        });
        let pages = (self.app.dashboard != Dashboard::Off).then(ui::routes);
        let router = api::router(self.app, pages.unwrap_or_default());
        let most = self.most;
        Connections { router, tls: self.tls, clock, stopping, most }.serve(self.listener).await;
        flushing.abort();
        if let Some(audit) = &app.audit {
            audit.flush().await;
        }
        looking.abort();
        keys.abort();
        drained.cancel();
        if let Some(metrics) = metrics {
            // It ends soon, because none of its requests is of a caller with rights.
            let _ = metrics.await;
        }
        Ok(())
    }
}

/// Listens on `address`, which `option` sets.
pub(crate) fn listen(address: SocketAddr, option: &str) -> Result<TcpListener, ServeError> {
    connections::listen(address).map_err(|error| ServeError {
        message: format!("cannot listen on {address}: {error}"),
        help: Some(format!("choose another address with {option}")),
    })
}

fn refused(address: SocketAddr, has_tokens: bool, has_tls: bool) -> ServeError {
    let missing = match (has_tokens, has_tls) {
        (false, false) => "tokens and no TLS",
        (false, true) => "tokens",
        (true, _) => "TLS",
    };
    ServeError {
        message: format!("{address} can be reached from other machines, but the server has no {missing}"),
        help: Some(
            "use --access, --tls-cert and --tls-key; or put a proxy with TLS in front of the server on this machine; or use --insecure if the network is trusted"
                .to_owned(),
        ),
    }
}

fn refused_metrics(address: SocketAddr) -> ServeError {
    ServeError {
        message: format!("{address} can be reached from other machines, but metrics have neither tokens nor TLS"),
        help: Some(
            "use a loopback address for --metrics; or use --insecure if only trusted machines can reach that port"
                .to_owned(),
        ),
    }
}

fn mismatched(client_ca: bool) -> ServeError {
    let (message, help) = if client_ca {
        (
            "the access file has no [[certificate]], so no client certificate has any rights",
            "add one, or omit --client-ca",
        )
    } else {
        (
            "the access file has a [[certificate]], but the server accepts no client certificates",
            "add --client-ca",
        )
    };
    ServeError { message: message.to_owned(), help: Some(help.to_owned()) }
}
