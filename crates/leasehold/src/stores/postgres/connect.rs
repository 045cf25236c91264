//! Connects to a server.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::future::poll_fn;
use rustls::ClientConfig;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc::unbounded_channel;
use tokio_postgres::config::SslMode;
use tokio_postgres::{AsyncMessage, Client, Config, Connection, NoTls};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::errors;
use super::session::Session;
use crate::stores::database::Database;
use crate::stores::hosts::{CONNECT_LIMIT, Host};
use crate::stores::table::SILENCE;

/// A startup setting. Poolers refuse it, or do not pass it on.
pub(super) const MARK: &str = "leasehold.listens";

/// What a connection needs: the password, and the TLS configuration unless it is not encrypted.
pub(super) type Login = (Option<String>, Option<ClientConfig>);

/// Connects to `host`, with the setting [`MARK`] if the connection `is_marked`. The calling runtime drives the connection.
pub(super) async fn connect(
    host: &Host,
    database: &Database,
    (password, tls): Login,
    is_marked: bool,
) -> Result<Session, tokio_postgres::Error> {
    let mut config = Config::new();
    config
        .host(&host.name)
        .port(host.port)
        .user(&database.user)
        .dbname(&database.name)
        .application_name("leasehold")
        .connect_timeout(CONNECT_LIMIT)
        .keepalives_idle(SILENCE)
        .keepalives_interval(SILENCE / 4)
        .tcp_user_timeout(SILENCE)
        .ssl_mode(if tls.is_some() { SslMode::Require } else { SslMode::Disable });
    if is_marked {
        config.options(format!("-c {MARK}=on"));
    }
    if let Some(password) = password {
        config.password(password);
    }
    Ok(match tls {
        Some(tls) => {
            let (client, connection) = config.connect(MakeRustlsConnect::new(tls)).await?;
            driven(client, connection, host.to_string())
        }
        None => {
            let (client, connection) = config.connect(NoTls).await?;
            driven(client, connection, host.to_string())
        }
    })
}

/// Starts the task that reads and writes the connection.
fn driven<S, T>(client: Client, mut connection: Connection<S, T>, host: String) -> Session
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
    Session::new(client, doubt, driver.abort_handle(), notifications, host)
}

#[cfg(test)]
mod tests {
    use super::super::store::PostgresTable;
    use super::*;
    use crate::error::Error;
    use crate::lease::StoreOptions;
    use crate::stores::table::Table;
    use crate::url::StoreUrl;

    fn login(url: &str) -> Result<Login, Error> {
        let url = StoreUrl::parse(url)?.checked(&mut StoreOptions::default())?;
        PostgresTable::login(&Database::of(&url, "PostgreSQL")?)
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
                let error = login(&format!("postgres://u@h/d?{option}={path}")).unwrap_err();
                assert!(error.to_string().contains(named) || option == "cert", "{error:?}");
                assert!(error.to_string().contains("PEM") || error.help()[0].contains("PEM"), "{error:?}");
            }
        }
        for option in ["ca=/not/there", "cert=/not/there", "password_file=/not/there"] {
            let error = login(&format!("postgres://u@h/d?{option}")).unwrap_err();
            assert!(error.to_string().contains("/not/there"), "{error:?}");
        }
    }
}
