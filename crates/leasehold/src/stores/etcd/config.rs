//! The settings of a cluster in a store URL.

use crate::error::Error;
use crate::lease::StoreOptions;
use crate::stores::hosts::{Host, Servers, Tls};
use crate::stores::password::Password;
use crate::url::{CheckedUrl, StoreUrl};

/// The maximum length of a prefix. Together with the longest name, it still makes a short key.
const MAX_PREFIX_BYTES: usize = 250;

/// The settings in a store URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Location {
    /// `host:port` of each member.
    pub(super) members: Vec<String>,
    /// The prefix of every key: empty, or ending in `/`.
    pub(super) prefix: String,
    pub(super) login: Option<Login>,
    pub(super) tls: Option<Tls>,
    /// The name in the members' certificates, if it is not the host of the URL.
    pub(super) server_name: Option<String>,
}

/// A user of the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Login {
    pub(super) user: String,
    pub(super) password: Password,
}

impl Location {
    pub(super) fn from_url(url: StoreUrl, options: &mut StoreOptions) -> Result<Self, Error> {
        let url = url.checked(options)?;
        let servers = Servers::of(&url, url.port())?;
        let login = match (servers.user.clone(), servers.password.clone()) {
            (None, None) => None,
            (Some(user), Some(password)) => Some(Login { user, password }),
            _ => {
                return Err(Error::invalid("the login in the etcd store URL lacks a user or a password")
                    .with_help(
                        "it is like etcd://user:password@host:2379/prefix/, percent-encoded, or \
                     etcd://user@host:2379/prefix/ with password_env=NAME or password_file=/PATH",
                    ));
            }
        };
        servers.check_secrecy(login.is_some(), servers.are_this_machine())?;
        Ok(Self {
            members: servers.hosts.iter().map(Host::to_string).collect(),
            prefix: prefix(&url)?,
            login,
            tls: servers.tls,
            server_name: url.text("server_name"),
        })
    }
}

/// Returns the path without its first `/` and with one at its end. `//x` is the prefix `/x/`, which other clients may
/// use.
fn prefix(url: &CheckedUrl) -> Result<String, Error> {
    let path = url.url.path().strip_prefix('/').unwrap_or_default();
    let root = if path.starts_with('/') { "/" } else { "" };
    match path.strip_prefix('/').unwrap_or(path) {
        "" => Ok(root.to_owned()),
        path if path.starts_with('/') => {
            Err(Error::invalid("the prefix has an empty segment").with_help(url.form()))
        }
        path => Ok(format!("{root}{}/", url.prefix(path, MAX_PREFIX_BYTES)?)),
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
    fn a_url_has_the_members_and_the_login() {
        let location = read("etcd://al%40ice:p%2Fw%40rd@h1:2379,h2,[::1]:9/team/locks?tls=on").unwrap();
        assert_eq!(location.members, ["h1:2379", "h2:2379", "[::1]:9"]);
        assert_eq!(location.prefix, "team/locks/");
        let login = location.login.unwrap();
        assert_eq!((login.user.as_str(), login.password.read().unwrap().as_str()), ("al@ice", "p/w@rd"));
        for (url, prefix) in [
            ("etcd://h", ""),
            ("etcd://h/", ""),
            ("etcd://h/a", "a/"),
            ("etcd://h/a/", "a/"),
            ("etcd://h//", "/"),
            ("etcd://h//a/b", "/a/b/"),
        ] {
            assert_eq!(read(url).unwrap().prefix, prefix, "{url}");
        }
        let named = read("etcd://h?server_name=etcd.example.com").unwrap();
        assert!(named.tls.is_some() && named.server_name.as_deref() == Some("etcd.example.com"));
    }

    #[test]
    fn a_login_is_not_sent_in_the_clear() {
        for login in ["u:hunter2@h", "u@h?password_file=/f"] {
            let error = read(&format!("etcd://{login}")).unwrap_err();
            assert!(error.to_string().contains("unencrypted"), "{error:?}");
        }
        read("etcd://h").unwrap();
    }

    #[test]
    fn a_bad_url_is_an_error_that_says_what_to_do() {
        for (url, named) in [
            ("etcd:", "no host"),
            ("etcd:h", "no host"),
            ("etcd://h/a//b", "segment"),
            ("etcd://h/../b", "segment"),
            ("etcd://h/a%0Ab", "control"),
            ("etcd://user@h/", "password"),
            ("etcd://:pw@h/", "user"),
            ("etcd://h?password_env=P", "user"),
        ] {
            let error = read(url).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{url}: {error:?}");
            assert!(error.to_string().contains(named), "{url}: {error:?}");
        }
    }
}
