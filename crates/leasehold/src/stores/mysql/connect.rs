//! Connects to a server.

use mysql_async::{ClientIdentity, Conn, OptsBuilder, SslOpts};
use rustls::crypto::{CryptoProvider, aws_lc_rs};

use crate::error::Error;
use crate::stores::database::Database;
use crate::stores::hosts::{Host, Tls};
use crate::stores::table::SILENCE;
use crate::stores::tls::{authorities, client_config, identity};

/// The largest statement and row. Both are far smaller.
const LARGEST: usize = 16 << 20;

/// What a connection needs: the password, and the TLS options unless it is not encrypted.
pub(super) type Login = (Option<String>, Option<SslOpts>);

/// Connects to `host`.
pub(super) async fn connect(
    host: &Host,
    database: &Database,
    (password, tls): Login,
) -> Result<Conn, mysql_async::Error> {
    let options = OptsBuilder::default()
        .ip_or_hostname(&host.name)
        .tcp_port(host.port)
        .user(Some(&database.user))
        .pass(password)
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
    Conn::new(options).await
}

pub(super) fn ssl_options(tls: &Tls) -> Result<SslOpts, Error> {
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
    use super::super::store::MysqlTable;
    use super::*;
    use crate::lease::StoreOptions;
    use crate::stores::table::Servers;
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
                let database = Database::of(&url.checked(&mut StoreOptions::default()).unwrap(), "MySQL");
                let error = MysqlTable::login(&database.unwrap()).unwrap_err();
                assert!(error.to_string().contains(path) && !error.help().is_empty(), "{error:?}");
            }
        }
    }
}
