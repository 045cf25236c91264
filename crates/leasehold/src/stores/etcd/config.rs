//! The settings of a cluster in a store URL.

use std::net::IpAddr;

use super::login::Login;
use crate::error::Error;
use crate::lease::StoreOptions;
use crate::stores::hosts::{self, Host, is_host_name, take_identity};
use crate::url::StoreUrl;

/// The default port of members: the port for etcd's clients.
const PORT: u16 = 2379;

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
}

/// The TLS options of a store URL. The files are in PEM form.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Tls {
    /// The authority that signs the members' certificates. If it is `None`, the authorities that the machine trusts are
    /// used.
    pub(super) authority: Option<String>,
    /// The client certificate and its private key.
    pub(super) identity: Option<(String, String)>,
    /// The name in the members' certificates, if it is not the host of the URL.
    pub(super) server_name: Option<String>,
}

impl Location {
    pub(super) fn from_url(mut url: StoreUrl, options: &mut StoreOptions) -> Result<Self, Error> {
        url.take_common(options)?;
        let tls = take_tls(&mut url)?;
        let hosts = members(url.authority().unwrap_or(""))?;
        let prefix = prefix(url.path())?;
        let login = Login::take(&mut url)?;
        let plaintext = url.take_switch("allow_plaintext_credentials")?.unwrap_or(false);
        if login.is_some() && tls.is_none() && !plaintext {
            check_private(&hosts)?;
        }
        url.finish()?;
        let members = hosts.iter().map(Host::to_string).collect();
        Ok(Self { members, prefix, login, tls })
    }
}

/// Takes the TLS options out of `url`. Returns `Some` for `tls=on`, or if any other TLS option is given.
fn take_tls(url: &mut StoreUrl) -> Result<Option<Tls>, Error> {
    let switch = url.take_switch("tls")?;
    let (authority, identity) = (url.take("ca"), take_identity(url)?);
    let server_name = url.take("server_name").map(checked_server_name).transpose()?;
    let wanted = authority.is_some() || identity.is_some() || server_name.is_some();
    match switch {
        Some(false) if wanted => Err(Error::invalid("tls=off, but there are TLS options")
            .with_help("leave out `tls`, or `ca`, `cert`, `key` and `server_name`")),
        None if !wanted => Ok(None),
        Some(false) => Ok(None),
        Some(true) | None => Ok(Some(Tls { authority, identity, server_name })),
    }
}

fn checked_server_name(name: String) -> Result<String, Error> {
    if name.parse::<IpAddr>().is_ok() || is_host_name(&name) {
        return Ok(name);
    }
    Err(Error::invalid(format!("the option `server_name` is {name:?}, which is not the name of a host"))
        .with_help(
            "it is a name that the members' certificates are for, like etcd.example.com, or an IP address",
        ))
}

/// Checks that all `hosts` are this machine. Others could read a login that is sent unencrypted to another machine.
fn check_private(hosts: &[Host]) -> Result<(), Error> {
    match hosts.iter().find(|host| !host.is_this_machine()) {
        None => Ok(()),
        Some(host) => Err(Error::invalid(format!(
            "the etcd member {} would receive the user and the password unencrypted",
            host.name
        ))
        .with_help(
            "use tls=on (and ca=FILE), or, in a network that you trust, add allow_plaintext_credentials=on",
        )),
    }
}

fn members(authority: &str) -> Result<Vec<Host>, Error> {
    authority.split(',').map(member).collect()
}

fn member(text: &str) -> Result<Host, Error> {
    Host::parse(text, PORT).ok_or_else(|| {
        Error::invalid(if text.is_empty() {
            "the etcd store URL names no member".to_owned()
        } else {
            format!("{} is not the host and port of an etcd member", hosts::shown(text))
        })
        .with_help("an etcd store is etcd://host:2379,host2:2379/prefix/")
    })
}

/// Returns the path without its first `/` and with one at its end. `//x` is the prefix `/x/`, which other clients may
/// use.
fn prefix(path: &str) -> Result<String, Error> {
    let prefix = path.strip_prefix('/').unwrap_or(path);
    let flaw = if prefix.len() > MAX_PREFIX_BYTES {
        Some("is longer than 250 bytes")
    } else if prefix.chars().any(crate::types::is_unprintable) {
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
    fn a_url_has_the_members_and_the_login() {
        let location =
            read("etcd://al%40ice:p%2Fw%40rd@h1:2379,h2,[::1]:9/team/locks?ca=/ca.pem&cert=/me.pem").unwrap();
        assert_eq!(location.members, ["h1:2379", "h2:2379", "[::1]:9"]);
        assert_eq!(location.prefix, "team/locks/");
        let login = location.login.unwrap();
        assert_eq!((login.user.as_str(), login.password().unwrap().as_str()), ("al@ice", "p/w@rd"));
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
        for name in ["etcd.example.com", "10.0.0.1", "::1"] {
            let tls = read(&format!("etcd://h?server_name={name}")).unwrap().tls.unwrap();
            assert_eq!(tls.server_name.as_deref(), Some(name));
        }
    }

    #[test]
    fn a_login_is_not_sent_in_the_clear() {
        for login in ["u:hunter2@", "u@"] {
            let option = if login == "u@" { "password_file=/f" } else { "" };
            for hosts in ["h", "10.0.0.1:1", "localhost,h", "127.0.0.1.example.com", "[2001:db8::1]:1"] {
                let error = read(&format!("etcd://{login}{hosts}/?{option}")).unwrap_err();
                assert!(error.to_string().contains("unencrypted"), "{hosts}: {error:?}");
                assert!(error.help()[0].contains("allow_plaintext_credentials=on"), "{error:?}");
                assert!(!format!("{error} {error:?}").contains("hunter2"));
                for allowed in ["tls=on", "allow_plaintext_credentials=on"] {
                    read(&format!("etcd://{login}{hosts}/?{option}&{allowed}")).unwrap();
                }
                assert!(
                    read(&format!("etcd://{login}{hosts}/?{option}&allow_plaintext_credentials=off"))
                        .is_err()
                );
            }
            for hosts in ["localhost", "LOCALHOST:1", "127.0.0.1:1,[::1]:2,127.8.0.1"] {
                read(&format!("etcd://{login}{hosts}/?{option}")).unwrap();
            }
        }
        read("etcd://h").unwrap();
    }

    #[test]
    fn a_bad_url_is_an_error_that_says_what_to_do() {
        for (url, named) in [
            ("etcd:", "no member"),
            ("etcd:h", "no member"),
            ("etcd:///p", "no member"),
            ("etcd://h,,i", "no member"),
            ("etcd://h:0", "h:0"),
            ("etcd://h:x", "the part before the path"),
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
            ("etcd://h?tls=off&server_name=x", "tls=off"),
            ("etcd://h?server_name=a%20b", "server_name"),
            ("etcd://h?server_name=", "server_name"),
            ("etcd://h?allow_plaintext_credentials=perhaps", "allow_plaintext_credentials"),
            ("etcd://h?endpoint=x", "endpoint"),
            ("etcd://h?discovery_srv=on", "discovery_srv"),
        ] {
            let error = read(url).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{url}: {error:?}");
            assert!(error.to_string().contains(named), "{url}: {error:?}");
        }
    }

    #[test]
    fn the_password_is_not_shown() {
        let location = read("etcd://u:hunter2@localhost/").unwrap();
        assert!(!format!("{location:?}").contains("hunter2"));
        let error = read("etcd://u:hunter2@h:x/").unwrap_err();
        assert!(!format!("{error} {error:?}").contains("hunter2"));
    }
}
