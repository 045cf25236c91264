//! The database that a store URL names: its servers, the login, and its name.

use std::io;

use crate::error::Error;
use crate::lease::printable;
use crate::stores::hosts::{Host, MAX_SHOWN, Servers, Tls};
use crate::stores::password::Password;
use crate::url::CheckedUrl;

/// A database and how to reach it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Database {
    /// The servers, of which one is the primary.
    pub(super) hosts: Vec<Host>,
    pub(super) user: String,
    pub(super) password: Option<Password>,
    pub(super) name: String,
    /// If `None`, connections are not encrypted.
    pub(super) tls: Option<Tls>,
}

impl Database {
    /// Reads the database from the URL of `store`. Connections to other machines use TLS unless the URL turns it off.
    pub(super) fn of(url: &CheckedUrl, store: &str) -> Result<Self, Error> {
        let mut servers = Servers::of(url, url.port())?;
        let stays_here = servers.are_this_machine();
        if servers.tls.is_none() && !stays_here && url.maybe("tls").is_none() {
            servers.tls = Some(Tls::default());
        }
        servers.check_secrecy(true, stays_here)?;
        let Servers { hosts, user, password, tls, .. } = servers;
        let user = user.ok_or_else(|| {
            Error::invalid(format!("the {store} store URL names no user")).with_help(url.form())
        })?;
        let name = url.url.path().trim_matches('/').to_owned();
        if name.is_empty() || name.contains('/') {
            return Err(Error::invalid(format!(
                "the path of a {store} store URL is the name of one database"
            ))
            .with_help(url.form()));
        }
        Ok(Self { hosts, user, password, name, tls })
    }
}

/// Returns the innermost cause of an error of a connection, which is the most precise, such as a refused connection or an
/// invalid certificate.
pub(super) fn innermost(error: &(dyn std::error::Error + 'static)) -> String {
    let mut why = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        why = error.to_string();
        // `source` of an I/O error skips the error that it wraps.
        source = error
            .downcast_ref::<io::Error>()
            .map_or_else(|| error.source(), |error| error.get_ref().map(|error| error as _));
    }
    printable(&why, MAX_SHOWN)
}
