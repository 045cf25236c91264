//! Connects to the servers that a store URL names.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::future::poll_fn;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::task::AbortHandle;
use tokio_postgres::config::SslMode;
use tokio_postgres::{AsyncMessage, Client, Config, Connection, NoTls};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::config::{Location, Table};
use super::errors;
use crate::clock::timeout;
use crate::env::Env;
use crate::error::{Error, ErrorKind, Fault, StoreError};
use crate::stores::hosts::{CONNECT_LIMIT, Host};
use crate::stores::password::Accepted;
use crate::stores::tls::{blocking, client_config};

/// How long it takes to notice a server that has vanished without closing its connections.
const SILENCE: Duration = Duration::from_secs(10);

/// A startup setting. Poolers refuse it, or do not pass it on.
pub(super) const MARK: &str = "leasehold.listens";

/// How to connect to the servers.
#[derive(Clone, Debug)]
pub(super) struct Connector {
    location: Location,
    accepted: Accepted,
    /// Set if a pooler in front of the server has refused [`MARK`].
    is_pooled: Arc<AtomicBool>,
}

/// An open connection. It is closed when this is dropped.
pub(super) struct Link {
    pub(super) client: Client,
    /// Set when a commit did not wait for the standbys.
    doubt: Arc<AtomicBool>,
    driver: AbortHandle,
    /// The notifications that arrive, once the connection listens.
    pub(super) notifications: Option<UnboundedReceiver<String>>,
    /// The address of the server, for messages.
    pub(super) host: String,
}

impl Link {
    /// Returns whether a commit since the previous call did not wait for the standbys. The server sends that notice
    /// before it reports success.
    pub(super) fn take_doubt(&self) -> bool {
        self.doubt.swap(false, Ordering::SeqCst)
    }

    /// Closes the connection without waiting for the statement that it runs. Sends no cancel request, because canceling
    /// a wait for standbys would leave a commit that may be lost.
    pub(super) fn abort(&self) {
        self.driver.abort();
    }
}

impl Connector {
    /// Prepares connections to the servers at `location`. Blocks, because it reads the files, so that one that cannot
    /// be read is an error before anything is locked.
    ///
    /// # Errors
    /// Invalid for a password or a TLS file that cannot be read.
    pub(super) fn to(location: Location) -> Result<Self, Error> {
        location.password.as_ref().map(|password| password.read()).transpose()?;
        location.tls.as_ref().map(|tls| client_config(tls, "PostgreSQL")).transpose()?;
        Ok(Self { location, accepted: Accepted::default(), is_pooled: Arc::default() })
    }

    pub(super) fn table(&self) -> &Table {
        &self.location.table
    }

    pub(super) fn failover_grace(&self) -> Duration {
        self.location.failover_grace
    }

    pub(super) fn notifies(&self) -> bool {
        self.location.notifies
    }

    pub(super) fn hosts(&self) -> &[Host] {
        &self.location.hosts
    }

    /// Connects to `host`. The calling runtime drives the connection.
    ///
    /// # Errors
    /// Not applied, because nothing was sent.
    pub(super) async fn connect(&self, host: &Host, env: &Env) -> Result<Link, StoreError> {
        let is_marked = !self.is_pooled.load(Ordering::SeqCst);
        let link = match self.opened(host, env, is_marked).await {
            Err(error) if is_marked && error.fault().kind == ErrorKind::Unsupported => {
                self.is_pooled.store(true, Ordering::SeqCst);
                self.opened(host, env, false).await
            }
            link => link,
        };
        let link = link.map_err(|error| self.accepted.judge(error))?;
        self.accepted.note();
        Ok(link)
    }

    async fn opened(&self, host: &Host, env: &Env, is_marked: bool) -> Result<Link, StoreError> {
        let mut config = Config::new();
        config
            .host(&host.name)
            .port(host.port)
            .user(&self.location.user)
            .dbname(&self.location.database)
            .application_name("leasehold")
            .connect_timeout(CONNECT_LIMIT)
            .keepalives_idle(SILENCE)
            .keepalives_interval(SILENCE / 4)
            .tcp_user_timeout(SILENCE)
            .ssl_mode(if self.location.tls.is_some() { SslMode::Require } else { SslMode::Disable });
        if is_marked {
            config.options(format!("-c {MARK}=on"));
        }
        let location = self.location.clone();
        let (password, tls) = blocking(move || {
            let password = location.password.as_ref().map(|password| password.read()).transpose()?;
            Ok((password, location.tls.as_ref().map(|tls| client_config(tls, "PostgreSQL")).transpose()?))
        })
        .await?;
        if let Some(password) = password.or_else(|| std::env::var("PGPASSWORD").ok()) {
            config.password(password);
        }
        let shown = host.to_string();
        let connecting = async {
            match tls {
                Some(tls) => {
                    let (client, connection) = config.connect(MakeRustlsConnect::new(tls)).await?;
                    Ok(driven(client, connection, shown.clone()))
                }
                None => {
                    let (client, connection) = config.connect(NoTls).await?;
                    Ok(driven(client, connection, shown.clone()))
                }
            }
        };
        match timeout(&*env.clock, CONNECT_LIMIT, connecting).await {
            Some(Ok(link)) => Ok(link),
            Some(Err(error)) => {
                let is_tls = self.location.tls.is_some();
                Err(errors::of_connection(&error, &shown, is_tls, self.table()).not_applied())
            }
            None => {
                let message = format!("no connection to PostgreSQL at {shown} within {CONNECT_LIMIT:.1?}");
                Err(Fault::unavailable(message).not_applied())
            }
        }
    }
}

/// Starts the task that reads and writes the connection.
fn driven<S, T>(client: Client, mut connection: Connection<S, T>, host: String) -> Link
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let doubt = Arc::<AtomicBool>::default();
    let noted = doubt.clone();
    let (notified, notifications) = unbounded_channel();
    let driver = tokio::spawn(async move {
        loop {
            match poll_fn(|context| connection.poll_message(context)).await {
                // This notice arrives before the response to the statement.
                Some(Ok(AsyncMessage::Notice(notice))) if errors::is_commit_in_doubt(&notice) => {
                    noted.store(true, Ordering::SeqCst);
                }
                Some(Ok(AsyncMessage::Notification(notification))) => {
                    let _ = notified.send(notification.payload().to_owned());
                }
                Some(Ok(_)) => {}
                Some(Err(error)) => {
                    tracing::debug!(%error, "a connection to PostgreSQL ended");
                    return;
                }
                None => return,
            }
        }
    });
    Link { client, doubt, driver: driver.abort_handle(), notifications: Some(notifications), host }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lease::StoreOptions;
    use crate::url::StoreUrl;

    fn connector(url: &str) -> Result<Connector, Error> {
        Connector::to(Location::from_url(StoreUrl::parse(url)?, &mut StoreOptions::default())?)
    }

    #[test]
    fn a_bad_file_is_an_error_and_no_panic() {
        let folder = tempfile::tempdir().unwrap();
        let broken = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        for (text, named) in
            [("", "no certificate"), ("no PEM", "no certificate"), (broken, "cannot be read")]
        {
            let path = folder.path().join("file.pem").display().to_string();
            std::fs::write(&path, text).unwrap();
            for option in ["ca", "cert"] {
                let error = connector(&format!("postgres://u@h/d?{option}={path}")).unwrap_err();
                assert!(error.to_string().contains(named) || option == "cert", "{error:?}");
                assert!(error.to_string().contains("PEM") || error.help()[0].contains("PEM"), "{error:?}");
            }
        }
        for option in ["ca=/not/there", "cert=/not/there", "password_file=/not/there"] {
            let error = connector(&format!("postgres://u@h/d?{option}")).unwrap_err();
            assert!(error.to_string().contains("/not/there"), "{error:?}");
        }
    }
}
