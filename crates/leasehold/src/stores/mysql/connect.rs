//! Connects to the servers that a store URL names.

use std::time::Duration;

use mysql_async::{ClientIdentity, Conn, OptsBuilder, SslOpts};
use rustls::crypto::{CryptoProvider, aws_lc_rs};

use super::config::Location;
use super::errors;
use crate::clock::timeout;
use crate::env::Env;
use crate::error::{Error, Fault, StoreError};
use crate::stores::hosts::{CONNECT_LIMIT, Host, Tls};
use crate::stores::password::Accepted;
use crate::stores::tls::{authorities, blocking, client_config, identity};

/// How long it takes to notice a server that has vanished without closing its connections.
const SILENCE: Duration = Duration::from_secs(10);

/// The largest statement and row. Both are far smaller.
const LARGEST: usize = 16 << 20;

/// How to connect to the servers.
#[derive(Debug)]
pub(super) struct Connector {
    pub(super) location: Location,
    accepted: Accepted,
}

/// The secrets and certificates of a connection.
type Read = (Option<String>, Option<SslOpts>);

impl Connector {
    /// Prepares connections to the servers at `location`. Blocks, because it reads the files, so that one that cannot
    /// be read is an error before anything is locked.
    ///
    /// # Errors
    /// Invalid for a password or a TLS file that cannot be read.
    pub(super) fn to(location: Location) -> Result<Self, Error> {
        read(&location)?;
        Ok(Self { location, accepted: Accepted::default() })
    }

    /// Connects to `host`.
    ///
    /// # Errors
    /// Not applied, because nothing was sent.
    pub(super) async fn connect(&self, host: &Host, env: &Env) -> Result<Conn, StoreError> {
        let conn = self.opened(host, env).await.map_err(|error| self.accepted.judge(error))?;
        self.accepted.note();
        Ok(conn)
    }

    async fn opened(&self, host: &Host, env: &Env) -> Result<Conn, StoreError> {
        let location = self.location.clone();
        let (password, tls) = blocking(move || read(&location)).await?;
        let database = &self.location.database;
        let is_tls = tls.is_some();
        let options = OptsBuilder::default()
            .ip_or_hostname(&host.name)
            .tcp_port(host.port)
            .user(Some(&database.user))
            .pass(password.or_else(|| std::env::var("MYSQL_PWD").ok()))
            .db_name(Some(&database.name))
            .ssl_opts(tls)
            .tcp_keepalive(Some(SILENCE))
            // Otherwise the client would connect again, by the server's local socket.
            .prefer_socket(false)
            // An update counts the rows that it finds, even if it does not change them.
            .client_found_rows(true)
            // Without these, the client would send two more requests.
            .max_allowed_packet(Some(LARGEST))
            .wait_timeout(Some(0));
        match timeout(&*env.clock, CONNECT_LIMIT, Conn::new(options)).await {
            Some(conn) => conn.map_err(|error| {
                errors::of_connection(&error, host, is_tls, &self.location.table).not_applied()
            }),
            None => {
                let message = format!("no connection to MySQL at {host} within {CONNECT_LIMIT:.1?}");
                Err(Fault::unavailable(message).not_applied())
            }
        }
    }
}

fn read(location: &Location) -> Result<Read, Error> {
    let database = &location.database;
    let password = database.password.as_ref().map(|password| password.read()).transpose()?;
    Ok((password, database.tls.as_ref().map(ssl_options).transpose()?))
}

fn ssl_options(tls: &Tls) -> Result<SslOpts, Error> {
    // Says which file is wrong. The client would not.
    client_config(tls, "MySQL")?;
    // The client takes the provider of the process, and would panic if it had to choose one of two.
    if CryptoProvider::get_default().is_none() {
        let _ = aws_lc_rs::default_provider().install_default();
    }
    let roots = authorities(tls)?.into_iter().map(|root| root.to_vec().into()).collect();
    let identity =
        identity(tls)?.map(|[certificate, key]| ClientIdentity::new(certificate.into(), key.into()));
    Ok(SslOpts::default()
        .with_disable_built_in_roots(true)
        .with_root_certs(roots)
        .with_client_identity(identity))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lease::StoreOptions;
    use crate::url::StoreUrl;

    #[test]
    fn a_bad_file_is_an_error_and_no_panic() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file.pem").display().to_string();
        std::fs::write(&path, "no PEM").unwrap();
        for option in ["ca", "cert", "password_file"] {
            for path in [path.as_str(), "/not/there"] {
                if option == "password_file" && path != "/not/there" {
                    continue;
                }
                let url = StoreUrl::parse(&format!("mysql://u@h/d?{option}={path}")).unwrap();
                let location = Location::from_url(url, &mut StoreOptions::default()).unwrap();
                let error = Connector::to(location).unwrap_err();
                assert!(error.to_string().contains(path) && !error.help().is_empty(), "{error:?}");
            }
        }
    }
}
