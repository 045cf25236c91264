//! What a store URL says of a cluster.

use std::fmt;

use crate::error::Error;
use crate::lease::StoreOptions;
use crate::url::StoreUrl;

/// The port of etcd's clients, for a member that names none.
const PORT: u16 = 2379;

/// The longest prefix: with the longest name it is still a short key.
const MAX_PREFIX_BYTES: usize = 250;

/// A user of the cluster. `Debug` does not show the password.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Login {
    pub(super) user: String,
    pub(super) password: String,
}

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Login").field("user", &self.user).finish_non_exhaustive()
    }
}

/// What a store URL says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Location {
    /// `host:port` of each member.
    pub(super) members: Vec<String>,
    /// What every key begins with: empty, or ending in `/`.
    pub(super) prefix: String,
    pub(super) login: Option<Login>,
    pub(super) tls: Option<Tls>,
}

/// Files in PEM form.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Tls {
    /// Who signs the members' certificates; whom the machine trusts, when it is not named.
    pub(super) authority: Option<String>,
    /// Our own certificate, and its private key.
    pub(super) identity: Option<(String, String)>,
}

impl Location {
    pub(super) fn from_url(mut url: StoreUrl, options: &mut StoreOptions) -> Result<Self, Error> {
        url.take_common(options)?;
        let tls = take_tls(&mut url)?;
        let members = members(url.authority().unwrap_or(""))?;
        let prefix = prefix(url.path())?;
        let login = match (url.user(), url.password()) {
            (None, _) => None,
            (Some(user), Some(password)) if !user.is_empty() => {
                Some(Login { user: user.to_owned(), password: password.to_owned() })
            }
            (Some(_), _) => {
                return Err(Error::invalid("the login in the etcd store URL lacks a user or a password")
                    .with_help("it is like etcd://user:password@host:2379/prefix/, percent-encoded"));
            }
        };
        url.finish()?;
        Ok(Self { members, prefix, login, tls })
    }
}

/// `tls=on`, or any of the files, which would make no sense without.
fn take_tls(url: &mut StoreUrl) -> Result<Option<Tls>, Error> {
    let switch = url.take_switch("tls")?;
    let (authority, certificate, key) = (url.take("ca"), url.take("cert"), url.take("key"));
    let identity = match (certificate, key) {
        (None, None) => None,
        (Some(certificate), key) => {
            // One file may hold both.
            let key = key.unwrap_or_else(|| certificate.clone());
            Some((certificate, key))
        }
        (None, Some(_)) => {
            return Err(Error::invalid("the option `key` stands without `cert`")
                .with_help("name the certificate that the key belongs to: cert=FILE&key=FILE"));
        }
    };
    let files = authority.is_some() || identity.is_some();
    match switch {
        Some(false) if files => Err(Error::invalid("tls=off, and yet certificates are named")
            .with_help("leave out `tls`, or `ca`, `cert` and `key`")),
        None if !files => Ok(None),
        Some(false) => Ok(None),
        Some(true) | None => Ok(Some(Tls { authority, identity })),
    }
}

fn members(authority: &str) -> Result<Vec<String>, Error> {
    authority.split(',').map(member).collect()
}

fn member(text: &str) -> Result<String, Error> {
    let fine = |host: &str, port: Option<&str>| {
        let host_fine = match host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            Some(address) => address.parse::<std::net::Ipv6Addr>().is_ok(),
            None => {
                host.starts_with(|c: char| c.is_ascii_alphanumeric())
                    && host.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._".contains(&b))
            }
        };
        host_fine && port.is_none_or(|port| port.parse::<u16>().is_ok_and(|port| port > 0))
    };
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) if !text.ends_with(']') => (host, Some(port)),
        _ => (text, None),
    };
    if fine(host, port) {
        return Ok(format!("{host}:{}", port.map_or(PORT.to_string(), str::to_owned)));
    }
    let error = Error::invalid(if text.is_empty() {
        "the etcd store URL names no member".to_owned()
    } else {
        format!("{text:?} is no host and port of an etcd member")
    });
    Err(error.with_help("an etcd store is etcd://host:2379,host2:2379/prefix/"))
}

/// The path without its first `/`, and with one at its end: `//x` is the prefix `/x/`, as other clients may have it.
fn prefix(path: &str) -> Result<String, Error> {
    let prefix = path.strip_prefix('/').unwrap_or(path);
    let flaw = if prefix.len() > MAX_PREFIX_BYTES {
        Some("is longer than 250 bytes")
    } else if prefix.chars().any(crate::name::is_unprintable) {
        Some("contains a control or invisible character")
    } else if prefix
        .strip_prefix('/')
        .unwrap_or(prefix)
        .trim_end_matches('/')
        .split('/')
        .any(|s| matches!(s, "." | ".."))
    {
        Some("has a `.` or `..` segment")
    } else if prefix.get(1..).is_some_and(|rest| rest.contains("//")) || prefix == "//" {
        Some("has an empty segment")
    } else {
        None
    };
    match flaw {
        Some(flaw) => Err(Error::invalid(format!("the prefix {prefix:?} {flaw}")).with_help(
            "an etcd store is etcd://host:2379/prefix/, for example etcd://host:2379/team/locks/",
        )),
        None if prefix.is_empty() || prefix.ends_with('/') => Ok(prefix.to_owned()),
        None => Ok(format!("{prefix}/")),
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
    fn a_url_says_where_and_as_whom() {
        let location =
            read("etcd://al%40ice:p%2Fw%40rd@h1:2379,h2,[::1]:9/team/locks?ca=/ca.pem&cert=/me.pem").unwrap();
        assert_eq!(location.members, ["h1:2379", "h2:2379", "[::1]:9"]);
        assert_eq!(location.prefix, "team/locks/");
        assert_eq!(location.login, Some(Login { user: "al@ice".into(), password: "p/w@rd".into() }));
        let tls = location.tls.unwrap();
        assert_eq!(tls.authority.as_deref(), Some("/ca.pem"));
        assert_eq!(tls.identity, Some(("/me.pem".into(), "/me.pem".into())), "one file may hold both");
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
        assert!(read("etcd://h?tls=on").unwrap().tls.is_some());
        assert!(read("etcd://h?tls=off").unwrap().tls.is_none());
    }

    #[test]
    fn a_bad_url_is_an_error_that_says_what_to_do() {
        for (url, named) in [
            ("etcd:", "no member"),
            ("etcd:h", "no member"),
            ("etcd:///p", "no member"),
            ("etcd://h,,i", "no member"),
            ("etcd://h:0", "h:0"),
            ("etcd://h:x", "h:x"),
            ("etcd://h:99999", "h:99999"),
            ("etcd://a b", "a b"),
            ("etcd://[::g]:1", "::g"),
            ("etcd://h/a//b", "segment"),
            ("etcd://h/../b", "segment"),
            ("etcd://h/a%0Ab", "control"),
            ("etcd://user@h/", "password"),
            ("etcd://:pw@h/", "user"),
            ("etcd://h?tls=off&ca=/x", "tls=off"),
            ("etcd://h?key=/x", "`key`"),
            ("etcd://h?tls=maybe", "tls"),
            ("etcd://h?endpoint=x", "endpoint"),
        ] {
            let error = read(url).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{url}: {error:?}");
            assert!(error.to_string().contains(named), "{url}: {error:?}");
        }
        let missing = read("etcd://h?ca=/no/such/file").unwrap().endpoints().unwrap_err();
        assert!(missing.to_string().contains("/no/such/file"), "{missing:?}");
    }

    #[test]
    fn the_password_is_not_shown() {
        let location = read("etcd://u:hunter2@h/").unwrap();
        assert!(!format!("{location:?}").contains("hunter2"));
        let error = read("etcd://u:hunter2@h:x/").unwrap_err();
        assert!(!format!("{error} {error:?}").contains("hunter2"));
    }
}
