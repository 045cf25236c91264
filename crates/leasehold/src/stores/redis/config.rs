//! Reads the settings of a server from a store URL.

use std::time::Duration;

use crate::error::Error;
use crate::lease::StoreOptions;
use crate::stores::hosts::{Host, Servers, Tls};
use crate::stores::password::Password;
use crate::url::StoreUrl;

/// The port of Sentinels without one in the URL.
const SENTINEL_PORT: u16 = 26379;

/// The settings in a store URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Location {
    /// The servers, of which one is the primary, or the Sentinels, or servers of a cluster.
    pub(super) hosts: Vec<Host>,
    /// Whether the servers are those of a Redis Cluster.
    pub(super) cluster: bool,
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
    pub(super) fn from_url(url: StoreUrl, options: &mut StoreOptions) -> Result<Self, Error> {
        let url = url.checked(options)?;
        let (master, cluster) = (url.text("master"), url.switch("cluster"));
        if master.is_some() && cluster {
            return Err(Error::invalid("the options `cluster` and `master` exclude each other")
                .with_help("leave out `master`: a cluster has no Sentinels"));
        }
        let sentinel_user = url.text("sentinel_user");
        let sentinel_password =
            Password::one_of(None, &url, "sentinel_password_env", "sentinel_password_file")?;
        if master.is_none() && (sentinel_user.is_some() || sentinel_password.is_some()) {
            return Err(Error::invalid("the store URL has a login for Sentinels, but names no Sentinels")
                .with_help("add master=NAME if the hosts are Sentinels, or leave the options out"));
        }
        if sentinel_user.is_some() && sentinel_password.is_none() {
            return Err(Error::invalid("the option `sentinel_user` names a user without a password")
                .with_help("add sentinel_password_env=NAME or sentinel_password_file=/PATH"));
        }
        let servers = Servers::of(&url, if master.is_some() { SENTINEL_PORT } else { url.port() })?;
        if servers.user.is_some() && servers.password.is_none() {
            return Err(Error::invalid("the Redis store URL names a user without a password")
                .with_help("add password_env=NAME or password_file=/PATH"));
        }
        // With Sentinels or in a cluster, the server that gets the password may be on another machine.
        let stays_here = master.is_none() && !cluster && servers.are_this_machine();
        servers.check_secrecy(servers.password.is_some() || sentinel_password.is_some(), stays_here)?;
        let Servers { hosts, user, password, tls, .. } = servers;
        let database = database(url.url.path())?;
        if cluster && database > 0 {
            return Err(Error::invalid("a Redis Cluster has only the database 0 (`cluster=on`)")
                .with_help("leave out the number: redis://host/?cluster=on&prefix=locks/"));
        }
        Ok(Self {
            hosts,
            cluster,
            master,
            sentinel_user,
            sentinel_password,
            user,
            password,
            database,
            prefix: url.text_or_default("prefix").to_owned(),
            failover_grace: url.duration("failover_grace"),
            notifies: url.switch("notify"),
            tls,
        })
    }

    /// Returns the channel of the messages about released locks.
    pub(super) fn channel(&self) -> String {
        format!("{}//leasehold/calls", self.prefix)
    }
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
        assert_eq!(location.failover_grace, Duration::from_secs(60));
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
            assert!(read(&format!("{url}{join}plaintext=on")).is_ok());
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
            ("redis://u@h", "without a password"),
            ("redis://h/locks", "number of a database"),
            ("redis://h/70000", "number of a database"),
            ("redis://h?sentinel_password_env=P", "no Sentinels"),
            ("redis://h?master=m&sentinel_user=u", "`sentinel_user`"),
            ("redis://h?master=m&sentinel_password_env=P&sentinel_password_file=/f", "more than one"),
            ("redis://h?master=m&sentinel_password_env=P", "unencrypted"),
            ("redis://h?store_clock=off", "store_clock"),
            ("redis://h?cluster=on&master=m", "`cluster`"),
            ("redis://h/1?cluster=on", "`cluster=on`"),
            ("redis://:hunter2@localhost/?cluster=on", "unencrypted"),
        ] {
            let error = read(url).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{url}: {error:?}");
            assert!(error.to_string().contains(named) && !error.help().is_empty(), "{url}: {error:?}");
        }
    }
}
