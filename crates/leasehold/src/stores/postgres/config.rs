//! Reads the settings of a database from a store URL.

use std::time::Duration;

use crate::error::Error;
use crate::lease::StoreOptions;
use crate::stores::hosts::{self, Host, take_identity};
use crate::stores::on_server::grace;
use crate::stores::password::Password;
use crate::stores::tls::Tls;
use crate::url::StoreUrl;

/// The port of hosts without one in the URL.
const PORT: u16 = 5432;

/// The table if the URL names none.
const TABLE: &str = "leasehold";

/// The schema of a table without one in the URL.
const SCHEMA: &str = "public";

/// PostgreSQL truncates longer names.
const MAX_NAME_BYTES: usize = 63;

const FORM: &str = "a PostgreSQL store is postgres://user@host:5432/database?table=leasehold";

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
    pub(super) fn from_url(mut url: StoreUrl, options: &mut StoreOptions) -> Result<Self, Error> {
        url.take_common(options)?;
        if !options.store_clock {
            return Err(Error::invalid("a PostgreSQL store has no store_clock=off: the server's clock alone decides when a lease ends")
                .with_help("remove the option, and keep the server's clock accurate (NTP without steps); `margin` \
                    is for small steps"));
        }
        let table = Table::named(&url.take("table").unwrap_or_else(|| TABLE.to_owned()))?;
        // Off by default: most servers lose no commit, so the grace would only delay grants and limit leases.
        let failover_grace = grace::take(&mut url, Duration::ZERO)?;
        let notifies = url.take_switch("notify")?.unwrap_or(true);
        let plaintext = url.take_switch("allow_plaintext_credentials")?.unwrap_or(false);
        let password = Password::take(&mut url)?;
        let hosts = hosts(url.authority().unwrap_or(""))?;
        let tls = take_tls(&mut url, &hosts, plaintext)?;
        let user = match url.user().filter(|user| !user.is_empty()) {
            Some(user) => user.to_owned(),
            None => return Err(Error::invalid("the PostgreSQL store URL names no user").with_help(FORM)),
        };
        let database = url.path().trim_matches('/').to_owned();
        if database.is_empty() || database.contains('/') {
            return Err(Error::invalid("the path of a PostgreSQL store URL is the name of one database")
                .with_help(FORM));
        }
        url.finish()?;
        Ok(Self { hosts, user, password, database, table, failover_grace, notifies, tls })
    }
}

impl Table {
    fn named(name: &str) -> Result<Self, Error> {
        let parts: Vec<_> = name.split('.').collect();
        let is_name = |part: &&str| {
            !part.is_empty()
                && part.len() <= MAX_NAME_BYTES
                && !part.contains('"')
                && !part.chars().any(crate::types::is_unprintable)
        };
        if parts.len() > 2 || !parts.iter().all(is_name) {
            return Err(Error::invalid(format!(
                "the option `table` is {name:?}, which is not the name of a table"
            ))
            .with_help(
                "it is a name like leasehold, or like locks.leasehold with a schema; at most 63 bytes each",
            ));
        }
        // Always names a schema. Behind a pooler, the search path may be another client's and lead to another table.
        let (schema, table) = name.split_once('.').unwrap_or((SCHEMA, name));
        Ok(Self { name: name.to_owned(), sql: format!("\"{schema}\".\"{table}\"") })
    }
}

/// Takes the TLS options. Without `sslmode`, connections to other machines are encrypted and verified.
fn take_tls(url: &mut StoreUrl, hosts: &[Host], plaintext: bool) -> Result<Option<Tls>, Error> {
    let mode = url.take("sslmode");
    let (authority, identity) = (url.take("ca"), take_identity(url)?);
    let has_files = authority.is_some() || identity.is_some();
    let stays_here = hosts.iter().all(Host::is_this_machine);
    match mode.as_deref() {
        Some("verify-full") => Ok(Some(Tls { authority, identity })),
        Some("disable") if has_files => Err(Error::invalid("sslmode=disable, but there are TLS options")
            .with_help("leave out `sslmode`, or `ca`, `cert` and `key`")),
        Some("disable") if stays_here || plaintext => Ok(None),
        Some("disable") => Err(Error::invalid("sslmode=disable would send the user and the password unencrypted to another machine")
            .with_help("leave it out (and name the authority with ca=FILE), or, in a network that you trust, add allow_plaintext_credentials=on")),
        None if has_files || !stays_here => Ok(Some(Tls { authority, identity })),
        None => Ok(None),
        Some(other) => Err(Error::invalid(format!("the option `sslmode` is verify-full or disable, not {other:?}"))
            .with_help("the other modes of libpq do not check that the certificate belongs to the host, so an \
                intermediary could impersonate the server: name the authority with ca=FILE")),
    }
}

fn hosts(authority: &str) -> Result<Vec<Host>, Error> {
    authority.split(',').map(host).collect()
}

fn host(text: &str) -> Result<Host, Error> {
    Host::parse(text, PORT).ok_or_else(|| {
        Error::invalid(if text.is_empty() {
            "the PostgreSQL store URL names no host".to_owned()
        } else {
            format!("{} is not the host and port of a PostgreSQL server", hosts::shown(text))
        })
        .with_help(FORM)
    })
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
            assert_eq!(read(&format!("postgres://u@{here}/d?sslmode=disable")).unwrap().tls, None);
        }
        let tls = read("postgres://u@localhost/d?sslmode=verify-full&ca=/ca&cert=/me").unwrap().tls.unwrap();
        assert_eq!(tls.authority.as_deref(), Some("/ca"));
        assert_eq!(tls.identity, Some(("/me".into(), "/me".into())));
        for host in ["h", "10.0.0.1", "127.0.0.1.example.com", "localhost,h"] {
            let error = read(&format!("postgres://u:hunter2@{host}/d?sslmode=disable")).unwrap_err();
            assert!(error.to_string().contains("unencrypted"), "{error:?}");
            assert!(!format!("{error} {error:?}").contains("hunter2"));
            let allowed = format!("postgres://u@{host}/d?sslmode=disable&allow_plaintext_credentials=on");
            assert_eq!(read(&allowed).unwrap().tls, None);
        }
    }

    #[test]
    fn a_bad_url_is_an_error_that_says_what_to_do() {
        for (url, named) in [
            ("postgres:", "no host"),
            ("postgres:///d", "no host"),
            ("postgres://u@h,,i/d", "no host"),
            ("postgres://u@h:0/d", "h:0"),
            ("postgres://u@h:99999/d", "h:99999"),
            ("postgres://u@a b/d", "a b"),
            ("postgres://u@[::g]:1/d", "::g"),
            ("postgres://h/d", "no user"),
            ("postgres://u@h", "database"),
            ("postgres://u@h/", "database"),
            ("postgres://u@h/a/b", "database"),
            ("postgres://u@h/d?table=", "`table`"),
            ("postgres://u@h/d?table=a.b.c", "`table`"),
            ("postgres://u@h/d?table=a%22b", "`table`"),
            ("postgres://u@h/d?table=a%0Ab", "`table`"),
            ("postgres://u@h/d?sslmode=require", "`sslmode`"),
            ("postgres://u@h/d?sslmode=disable&ca=/x", "sslmode=disable"),
            ("postgres://u@h/d?key=/x", "`key`"),
            ("postgres://u@h/d?store_clock=off", "store_clock=off"),
            ("postgres://u@h/d?application_name=x", "application_name"),
        ] {
            let error = read(url).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{url}: {error:?}");
            assert!(error.to_string().contains(named) && !error.help().is_empty(), "{url}: {error:?}");
        }
        let long = format!("postgres://u@h/d?table={}", "x".repeat(64));
        assert!(read(&long).unwrap_err().help()[0].contains("63 bytes"));
    }

    #[test]
    fn the_password_is_not_shown() {
        let location = read("postgres://u:hunter2@localhost/d").unwrap();
        assert!(!format!("{location:?}").contains("hunter2"));
        let error = read("postgres://u:hunter2@h:x/d").unwrap_err();
        assert!(!format!("{error} {error:?}").contains("hunter2"));
    }
}
