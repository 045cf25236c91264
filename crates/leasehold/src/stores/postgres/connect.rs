//! Connects to a server.

use rustls::ClientConfig;
use tokio_postgres::config::SslMode;
use tokio_postgres::{Config, NoTls};
use tokio_postgres_rustls::MakeRustlsConnect;

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
    let host = host.to_string();
    Ok(match tls {
        Some(tls) => Session::driven(config.connect(MakeRustlsConnect::new(tls)).await?, host),
        None => Session::driven(config.connect(NoTls).await?, host),
    })
}

#[cfg(test)]
mod tests {
    use super::super::store::PostgresTable;
    use super::*;
    use crate::error::Error;
    use crate::lease::StoreOptions;
    use crate::stores::table::Servers;
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
