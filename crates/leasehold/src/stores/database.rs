//! The table that a store URL names: the servers of its database, and the login.

use std::io;
use std::time::Duration;

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
    /// The table of the locks.
    pub(super) table: String,
    /// For how long no lock is granted after a promotion. Zero turns the grace off.
    pub(super) failover_grace: Duration,
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
        let table = url.text_or_default("table").to_owned();
        Ok(Self { hosts, user, password, name, tls, table, failover_grace: url.duration("failover_grace") })
    }

    /// Reads the password, and what `tls` reads. Without a password in the URL, the environment `variable` is used if it
    /// is set, and otherwise no password. Blocks.
    pub(super) fn login<T>(
        &self,
        variable: &str,
        tls: impl FnOnce(&Tls) -> Result<T, Error>,
    ) -> Result<(Option<String>, Option<T>), Error> {
        let password = self.password.as_ref().map(Password::read).transpose()?;
        let password = password.or_else(|| std::env::var(variable).ok());
        Ok((password, self.tls.as_ref().map(tls).transpose()?))
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;
    use crate::lease::StoreOptions;
    use crate::url::StoreUrl;

    fn read(url: &str) -> Result<Database, Error> {
        Database::of(&StoreUrl::parse(url)?.checked(&mut StoreOptions::default())?, "PostgreSQL")
    }

    #[test]
    fn a_url_names_servers_user_database_and_table() {
        let database = read("postgres://al%40ice:p%2Fw@h1:6432,h2,[::1]:9/app?table=ops.locks").unwrap();
        let hosts: Vec<_> = database.hosts.iter().map(ToString::to_string).collect();
        assert_eq!(hosts, ["h1:6432", "h2:5432", "[::1]:9"]);
        assert_eq!((database.user.as_str(), database.name.as_str()), ("al@ice", "app"));
        assert_eq!(database.password.unwrap().read().unwrap(), "p/w");
        assert_eq!(database.table, "ops.locks");
        let database = read("postgres://u@h/app").unwrap();
        assert_eq!((database.table.as_str(), database.password), ("leasehold", None));
    }

    #[test]
    fn other_machines_are_reached_encrypted_and_verified() {
        assert_eq!(read("postgres://u@h/d").unwrap().tls, Some(Tls::default()));
        assert_eq!(read("postgres://u@localhost,h/d").unwrap().tls, Some(Tls::default()));
        for here in ["localhost", "127.0.0.1:1", "[::1]"] {
            assert_eq!(read(&format!("postgres://u@{here}/d")).unwrap().tls, None);
            assert_eq!(read(&format!("postgres://u@{here}/d?tls=off")).unwrap().tls, None);
        }
        let tls = read("postgres://u@localhost/d?tls=on&ca=/ca&cert=/me").unwrap().tls.unwrap();
        assert_eq!(tls.authority.as_deref(), Some("/ca"));
        assert_eq!(tls.identity, Some(("/me".into(), "/me".into())));
        for host in ["h", "10.0.0.1", "127.0.0.1.example.com", "localhost,h"] {
            let error = read(&format!("postgres://u:hunter2@{host}/d?tls=off")).unwrap_err();
            assert!(error.to_string().contains("unencrypted"), "{error:?}");
            assert!(!format!("{error} {error:?}").contains("hunter2"));
            let allowed = format!("postgres://u@{host}/d?tls=off&plaintext=on");
            assert_eq!(read(&allowed).unwrap().tls, None);
        }
    }

    #[test]
    fn a_bad_url_is_an_error_that_says_what_to_do() {
        for (url, named) in [
            ("postgres:", "no host"),
            ("postgres:///d", "no host"),
            ("postgres://h/d", "no user"),
            ("postgres://u@h", "database"),
            ("postgres://u@h/", "database"),
            ("postgres://u@h/a/b", "database"),
            ("postgres://u@h/d?store_clock=off", "store_clock"),
        ] {
            let error = read(url).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{url}: {error:?}");
            assert!(error.to_string().contains(named) && !error.help().is_empty(), "{url}: {error:?}");
        }
    }

    #[test]
    fn a_url_of_mysql_names_servers_user_database_and_table() {
        let database =
            read("mariadb://al%40ice:p%2Fw@h1:3307,h2/app?table=Shed Lock&failover_grace=1m").unwrap();
        let hosts: Vec<_> = database.hosts.iter().map(ToString::to_string).collect();
        assert_eq!(hosts, ["h1:3307", "h2:3306"]);
        assert_eq!((database.user.as_str(), database.name.as_str()), ("al@ice", "app"));
        assert_eq!(
            (database.table.as_str(), database.failover_grace),
            ("Shed Lock", Duration::from_secs(60))
        );
        assert!(database.tls.is_some(), "another machine is reached with TLS");
        let database = read("mysql://u@localhost/app").unwrap();
        assert_eq!((database.table.as_str(), database.tls), ("leasehold", None));
    }

    #[test]
    fn a_bad_url_of_mysql_is_an_error_that_says_what_to_do() {
        for (url, named) in [
            ("mysql://h/d", "no user"),
            ("mysql://u@h", "database"),
            ("mysql://u@h/a/b", "database"),
            ("mysql://u:hunter2@h/d?tls=off", "unencrypted"),
            ("mysql://u@h/d?store_clock=off", "store_clock"),
            ("mysql://u@h/d?table=a`b", "table"),
            ("mysql://u@h/d?table=a.b", "table"),
            ("mysql://u@h/d?table=", "table"),
        ] {
            let error = read(url).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{url}: {error:?}");
            assert!(error.to_string().contains(named) && !error.help().is_empty(), "{url}: {error:?}");
            assert!(!format!("{error} {error:?}").contains("hunter2"));
        }
    }
}
