//! Reads the settings of a database from a store URL.

use std::time::Duration;

use crate::error::Error;
use crate::lease::StoreOptions;
use crate::stores::database::Database;
use crate::url::StoreUrl;

/// The settings in a store URL.
#[derive(Clone, Debug)]
pub(super) struct Location {
    /// Without a password, `MYSQL_PWD` is used if it is set, and otherwise no password.
    pub(super) database: Database,
    pub(super) table: String,
    /// For how long no lock is granted after a promotion. Zero turns the grace off.
    pub(super) failover_grace: Duration,
}

impl Location {
    pub(super) fn from_url(url: StoreUrl, options: &mut StoreOptions) -> Result<Self, Error> {
        let url = url.checked(options)?;
        Ok(Self {
            database: Database::of(&url, "MySQL")?,
            table: url.text_or_default("table").to_owned(),
            failover_grace: url.duration("failover_grace"),
        })
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
        let location =
            read("mariadb://al%40ice:p%2Fw@h1:3307,h2/app?table=Shed Lock&failover_grace=1m").unwrap();
        let hosts: Vec<_> = location.database.hosts.iter().map(ToString::to_string).collect();
        assert_eq!(hosts, ["h1:3307", "h2:3306"]);
        assert_eq!((location.database.user.as_str(), location.database.name.as_str()), ("al@ice", "app"));
        assert_eq!(
            (location.table.as_str(), location.failover_grace),
            ("Shed Lock", Duration::from_secs(60))
        );
        assert!(location.database.tls.is_some(), "another machine is reached with TLS");
        let location = read("mysql://u@localhost/app").unwrap();
        assert_eq!((location.table.as_str(), location.database.tls), ("leasehold", None));
    }

    #[test]
    fn a_bad_url_is_an_error_that_says_what_to_do() {
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
