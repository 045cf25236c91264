//! Reads the settings of a database from a store URL.

use std::time::Duration;

use crate::error::Error;
use crate::lease::StoreOptions;
use crate::stores::database::Database;
use crate::stores::hosts::{Host, Tls};
use crate::stores::password::Password;
use crate::url::StoreUrl;

/// The schema of a table without one in the URL.
const SCHEMA: &str = "public";

/// The settings in a store URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Location {
    /// The servers, of which one is the primary.
    pub(super) hosts: Vec<Host>,
    pub(super) user: String,
    /// If `None`, `PGPASSWORD` is used if it is set, and otherwise no password.
    pub(super) password: Option<Password>,
    pub(super) database: String,
    pub(super) table: Table,
    /// For how long no lock is granted after a promotion. Zero turns the grace off.
    pub(super) failover_grace: Duration,
    /// Whether a release notifies the first waiter.
    pub(super) notifies: bool,
    /// If `None`, connections are not encrypted.
    pub(super) tls: Option<Tls>,
}

/// The table of the locks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Table {
    /// The name as in the URL.
    pub(super) name: String,
    /// The name in SQL: quoted, with its schema.
    pub(super) sql: String,
}

impl Location {
    pub(super) fn from_url(url: StoreUrl, options: &mut StoreOptions) -> Result<Self, Error> {
        let url = url.checked(options)?;
        let Database { hosts, user, password, name: database, tls } = Database::of(&url, "PostgreSQL")?;
        Ok(Self {
            hosts,
            user,
            password,
            database,
            table: Table::named(url.text_or_default("table")),
            failover_grace: url.duration("failover_grace"),
            notifies: url.switch("notify"),
            tls,
        })
    }
}

impl Table {
    fn named(name: &str) -> Self {
        // Always names a schema. Behind a pooler, the search path may be another client's and lead to another table.
        let (schema, table) = name.split_once('.').unwrap_or((SCHEMA, name));
        Self { name: name.to_owned(), sql: format!("\"{schema}\".\"{table}\"") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    fn read(url: &str) -> Result<Location, Error> {
        Location::from_url(StoreUrl::parse(url)?, &mut StoreOptions::default())
    }

    #[test]
    fn a_url_names_servers_user_database_and_table() {
        let location = read("postgres://al%40ice:p%2Fw@h1:6432,h2,[::1]:9/app?table=ops.locks").unwrap();
        let hosts: Vec<_> = location.hosts.iter().map(ToString::to_string).collect();
        assert_eq!(hosts, ["h1:6432", "h2:5432", "[::1]:9"]);
        assert_eq!((location.user.as_str(), location.database.as_str()), ("al@ice", "app"));
        assert_eq!(location.password.unwrap().read().unwrap(), "p/w");
        assert_eq!(location.table.sql, "\"ops\".\"locks\"");
        let location = read("postgres://u@h/app").unwrap();
        assert_eq!((location.table.sql.as_str(), location.password), ("\"public\".\"leasehold\"", None));
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
}
