//! Reads the settings of a server from a store URL.

use std::time::Duration;

use crate::error::Error;
use crate::lease::StoreOptions;
use crate::stores::hosts::{self, Host, take_identity};
use crate::stores::on_server::grace;
use crate::stores::password::Password;
use crate::stores::tls::Tls;
use crate::url::StoreUrl;

/// The ports of hosts without one in the URL.
const PORT: u16 = 6379;
const SENTINEL_PORT: u16 = 26379;

/// The default of `failover_grace`. It is longer than the default lease with its margin plus the ten seconds after
/// which Redis gives up replicas by default.
const FAILOVER_GRACE: Duration = Duration::from_secs(60);

/// The longest prefix. Even with the longest name, the key is short.
const MAX_PREFIX_BYTES: usize = 250;

const FORM: &str = "a Redis store is redis://user@host:6379/0?prefix=locks/";

/// The settings in a store URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Location {
    /// The servers, of which one is the primary, or the Sentinels.
    pub(super) hosts: Vec<Host>,
    /// The name under which the Sentinels know the primary.
    pub(super) master: Option<String>,
    /// The login for the Sentinels. If the user is `None`, the default user.
    pub(super) sentinel_user: Option<String>,
    pub(super) sentinel_password: Option<Password>,
    /// If `None`, the default user.
    pub(super) user: Option<String>,
    pub(super) password: Option<Password>,
    pub(super) database: u16,
    /// The prefix of the keys of all locks.
    pub(super) prefix: String,
    /// For how long no lock is granted after a restart or a promotion of the server. Zero turns the grace off.
    pub(super) failover_grace: Duration,
    /// Whether a release sends a message to the first waiter.
    pub(super) notifies: bool,
    /// If `None`, connections are not encrypted.
    pub(super) tls: Option<Tls>,
}

impl Location {
    pub(super) fn from_url(mut url: StoreUrl, options: &mut StoreOptions) -> Result<Self, Error> {
        url.take_common(options)?;
        if !options.store_clock {
            return Err(Error::invalid(
                "a Redis store has no store_clock=off: the server's clock alone decides when a lease ends",
            )
            .with_help(
                "remove the option, and keep the server's clock accurate (NTP without steps); `margin` \
                    is for small steps",
            ));
        }
        let tls = take_tls(&mut url)?;
        let master = url.take("master").map(checked_master).transpose()?;
        let sentinel_user = url.take("sentinel_user").filter(|user| !user.is_empty());
        let sentinel_password = sentinel_password(&mut url)?;
        if master.is_none() && (sentinel_user.is_some() || sentinel_password.is_some()) {
            return Err(Error::invalid("the store URL has a login for Sentinels, but names no Sentinels")
                .with_help("add master=NAME if the hosts are Sentinels, or leave the options out"));
        }
        if sentinel_user.is_some() && sentinel_password.is_none() {
            return Err(Error::invalid("the option `sentinel_user` names a user without a password")
                .with_help("add sentinel_password_env=NAME or sentinel_password_file=/PATH"));
        }
        let prefix = checked_prefix(url.take("prefix").unwrap_or_default())?;
        let failover_grace = grace::take(&mut url, FAILOVER_GRACE)?;
        let notifies = url.take_switch("notify")?.unwrap_or(true);
        let plaintext = url.take_switch("allow_plaintext_credentials")?.unwrap_or(false);
        let password = Password::take(&mut url)?;
        let port = if master.is_some() { SENTINEL_PORT } else { PORT };
        let hosts: Vec<_> = url
            .authority()
            .unwrap_or("")
            .split(',')
            .map(|text| host(text, port))
            .collect::<Result<_, _>>()?;
        let user = url.user().filter(|user| !user.is_empty()).map(str::to_owned);
        if user.is_some() && password.is_none() {
            return Err(Error::invalid("the Redis store URL names a user without a password")
                .with_help("add password_env=NAME or password_file=/PATH"));
        }
        // With Sentinels, the server that gets the password may be on another machine.
        let stays_here = master.is_none() && hosts.iter().all(Host::is_this_machine);
        let has_password = password.is_some() || sentinel_password.is_some();
        if has_password && tls.is_none() && !plaintext && !stays_here {
            return Err(Error::invalid("the password would be sent unencrypted to another machine")
                .with_help("use tls=on or rediss:// (and ca=FILE), or, in a network that you trust, add allow_plaintext_credentials=on"));
        }
        let database = database(url.path())?;
        url.finish()?;
        Ok(Self {
            hosts,
            master,
            sentinel_user,
            sentinel_password,
            user,
            password,
            database,
            prefix,
            failover_grace,
            notifies,
            tls,
        })
    }

    /// Returns the channel of the messages about released locks.
    pub(super) fn channel(&self) -> String {
        format!("{}//leasehold/calls", self.prefix)
    }
}

/// Takes the TLS options. TLS is on with `tls=on`, or if any of the files is named.
fn take_tls(url: &mut StoreUrl) -> Result<Option<Tls>, Error> {
    let switch = url.take_switch("tls")?;
    let (authority, identity) = (url.take("ca"), take_identity(url)?);
    let wanted = authority.is_some() || identity.is_some();
    match switch {
        Some(false) if wanted => Err(Error::invalid("tls=off, but there are TLS options")
            .with_help("leave out `tls`, or `ca`, `cert` and `key`")),
        Some(true) => Ok(Some(Tls { authority, identity })),
        None if wanted => Ok(Some(Tls { authority, identity })),
        Some(false) | None => Ok(None),
    }
}

fn checked_master(name: String) -> Result<String, Error> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    if !name.is_empty() && name.chars().all(is_name) {
        return Ok(name);
    }
    Err(Error::invalid(format!("the option `master` is {name:?}, which is not the name of a primary"))
        .with_help("it is the name in the Sentinels' configuration: sentinel monitor NAME ..."))
}

/// Takes the password for the Sentinels.
fn sentinel_password(url: &mut StoreUrl) -> Result<Option<Password>, Error> {
    let variable = Password::variable(url, "sentinel_password_env")?;
    let file = Password::file(url, "sentinel_password_file")?;
    if variable.is_some() && file.is_some() {
        return Err(Error::invalid("the store URL names more than one password of the Sentinels")
            .with_help("keep one of them: `sentinel_password_env` or `sentinel_password_file`"));
    }
    Ok(variable.or(file))
}

/// Checks the prefix. Only leasehold's own keys contain `//`, so a prefix must not.
fn checked_prefix(prefix: String) -> Result<String, Error> {
    let flaw = if prefix.len() > MAX_PREFIX_BYTES {
        "is longer than 250 bytes"
    } else if prefix.chars().any(crate::types::is_unprintable) {
        "contains a control or invisible character"
    } else if prefix.starts_with('/') || prefix.contains("//") {
        "begins with `/` or contains `//`"
    } else {
        return Ok(prefix);
    };
    Err(Error::invalid(format!("the option `prefix` {flaw}"))
        .with_help("it is put before the name of each lock, like locks/ or app:locks:"))
}

fn host(text: &str, port: u16) -> Result<Host, Error> {
    Host::parse(text, port).ok_or_else(|| {
        Error::invalid(if text.is_empty() {
            "the Redis store URL names no host".to_owned()
        } else {
            format!("{} is not the host and port of a Redis server", hosts::shown(text))
        })
        .with_help(FORM)
    })
}

fn database(path: &str) -> Result<u16, Error> {
    match path.trim_matches('/') {
        "" => Ok(0),
        // The error does not repeat the path, because it may be the end of a password that contains a slash.
        number => number.parse().map_err(|_| {
            Error::invalid("the path of the Redis store URL is not the number of a database")
                .with_help("the prefix of the locks is an option: redis://host/0?prefix=locks/")
        }),
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
    fn a_url_names_servers_login_database_and_prefix() {
        let location =
            read("rediss://al%40ice:p%2Fw@h1:7000,[::1]/3?prefix=app:locks/&failover_grace=5m").unwrap();
        let hosts: Vec<_> = location.hosts.iter().map(ToString::to_string).collect();
        assert_eq!(hosts, ["h1:7000", "[::1]:6379"]);
        assert_eq!((location.user.as_deref(), location.database), (Some("al@ice"), 3));
        assert_eq!(location.password.unwrap().read().unwrap(), "p/w");
        assert_eq!((location.prefix.as_str(), location.tls), ("app:locks/", Some(Tls::default())));
        assert_eq!(location.failover_grace, Duration::from_secs(300));
        let location = read("valkey://h").unwrap();
        assert_eq!((location.database, location.prefix.as_str(), location.tls), (0, "", None));
        assert_eq!(location.failover_grace, FAILOVER_GRACE);
        let sentinels = read("redis://s1,s2:1/0?master=mymaster").unwrap();
        let hosts: Vec<_> = sentinels.hosts.iter().map(ToString::to_string).collect();
        assert_eq!(
            (hosts, sentinels.master.as_deref()),
            (vec!["s1:26379".into(), "s2:1".into()], Some("mymaster"))
        );
    }

    #[test]
    fn a_password_is_sent_encrypted_or_stays_on_this_machine() {
        for url in
            ["redis://:hunter2@h", "redis://u:hunter2@localhost,h", "redis://:hunter2@localhost/?master=m"]
        {
            let error = read(url).unwrap_err();
            assert!(error.to_string().contains("unencrypted"), "{error:?}");
            assert!(!format!("{error} {error:?}").contains("hunter2"));
            let join = if url.contains('?') { '&' } else { '?' };
            assert!(read(&format!("{url}{join}allow_plaintext_credentials=on")).is_ok());
            assert!(read(&format!("{url}{join}tls=on")).unwrap().tls.is_some());
        }
        assert!(read("redis://:hunter2@127.0.0.1").unwrap().tls.is_none());
        let location = read("redis://:hunter2@localhost").unwrap();
        assert!(!format!("{location:?}").contains("hunter2"));
    }

    #[test]
    fn a_bad_url_is_an_error_that_says_what_to_do() {
        for (url, named) in [
            ("redis:", "no host"),
            ("redis:///0", "no host"),
            ("redis://h,,i", "no host"),
            ("redis://h:0", "h:0"),
            ("redis://a b", "a b"),
            ("redis://u@h", "without a password"),
            ("redis://u:hunter2h", "the part before the path"),
            ("redis://u:hunter2h:6379", "the part before the path"),
            ("redis://h/locks", "number of a database"),
            ("redis://h/70000", "number of a database"),
            ("redis://h?prefix=/x", "`prefix`"),
            ("redis://h?prefix=a//b", "`prefix`"),
            ("redis://h?prefix=a%0Ab", "`prefix`"),
            ("redis://h?master=", "`master`"),
            ("redis://h?sentinel_password_env=P", "no Sentinels"),
            ("redis://h?master=m&sentinel_user=u", "`sentinel_user`"),
            ("redis://h?master=m&sentinel_password_env=hunter2", "`sentinel_password_env`"),
            ("redis://h?master=m&sentinel_password_env=P&sentinel_password_file=/f", "more than one"),
            ("redis://h?master=m&sentinel_password_env=P", "unencrypted"),
            ("redis://h?failover_grace=49h", "48 hours"),
            ("redis://h?tls=off&ca=/x", "tls=off"),
            ("rediss://h?tls=off", "`tls`"),
            ("redis://h?key=/x", "`key`"),
            ("redis://h?store_clock=off", "store_clock=off"),
            ("redis://h?db=1", "db"),
        ] {
            let error = read(url).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{url}: {error:?}");
            assert!(error.to_string().contains(named) && !error.help().is_empty(), "{url}: {error:?}");
        }
    }
}
