//! Reads the settings of a bucket from a store URL.

use super::keys::Keys;
use crate::error::Error;
use crate::lease::StoreOptions;
use crate::stores::hosts::{Host, Servers, Tls};
use crate::stores::password::Password;
use crate::url::StoreUrl;

/// The settings in a store URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Location {
    /// Servers of one cluster. Any of them serves the bucket.
    pub(super) hosts: Vec<Host>,
    pub(super) login: Login,
    /// If `None`, connections are encrypted only if the server demands it.
    pub(super) tls: Option<Tls>,
    pub(super) keys: Keys,
}

/// How the client logs in. The files are read for each connection, because they may be replaced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Login {
    None,
    /// A user with a password. Without a user, the password is a token.
    Password(Option<String>, Password),
    /// The path of a file with a JWT and the seed of its nkey.
    Credentials(String),
    /// The path of a file with the seed of an nkey.
    Nkey(String),
}

impl Location {
    pub(super) fn from_url(url: StoreUrl, options: &mut StoreOptions) -> Result<Self, Error> {
        let url = url.checked(options)?;
        let servers = Servers::of(&url, url.port())?;
        servers.check_secrecy(servers.password.is_some(), servers.are_this_machine())?;
        let bucket = url.url.path().trim_matches('/');
        if bucket.is_empty() || !bucket.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_".contains(&b)) {
            // The error does not repeat the path, because it may be the end of a password that contains a slash.
            let message =
                "the path of the NATS store URL is not the name of a bucket (letters, digits, `-`, `_`)";
            return Err(Error::invalid(message).with_help(url.form()));
        }
        let login = match (servers.password, url.text("creds_file"), url.text("nkey_file")) {
            (None, None, None) if servers.user.is_some() => {
                return Err(Error::invalid("the NATS store URL names a user without a password")
                    .with_help("add password_env=NAME or password_file=/PATH"));
            }
            (None, None, None) => Login::None,
            (Some(password), None, None) => Login::Password(servers.user, password),
            (None, Some(file), None) if servers.user.is_none() => Login::Credentials(file),
            (None, None, Some(file)) if servers.user.is_none() => Login::Nkey(file),
            _ => {
                return Err(Error::invalid("the NATS store URL names more than one login").with_help(
                    "keep one of them: a user with a password, a token, `creds_file` or `nkey_file`",
                ));
            }
        };
        let keys = Keys::below(bucket, url.text_or_default("prefix"));
        Ok(Self { hosts: servers.hosts, login, tls: servers.tls, keys })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(url: &str) -> Result<Location, Error> {
        Location::from_url(StoreUrl::parse(url)?, &mut StoreOptions::default())
    }

    #[test]
    fn a_url_names_servers_a_login_and_a_bucket() {
        let location = read("nats://al%40ice:p%2Fw@h1:7000,[::1]/b-1?prefix=team.a&tls=on").unwrap();
        let hosts: Vec<_> = location.hosts.iter().map(ToString::to_string).collect();
        assert_eq!(hosts, ["h1:7000", "[::1]:4222"]);
        let Login::Password(Some(user), password) = location.login else { panic!("a user") };
        assert_eq!((&*user, &*password.read().unwrap()), ("al@ice", "p/w"));
        assert_eq!(location.keys.subject("x.lock"), "$KV.b-1.team.a.x.lock");
        let login = |options: &str| read(&format!("nats://h/b?{options}")).unwrap().login;
        assert_eq!(login(""), Login::None);
        assert_eq!(login("creds_file=/c"), Login::Credentials("/c".to_owned()));
        assert_eq!(login("nkey_file=/n"), Login::Nkey("/n".to_owned()));
        assert!(matches!(login("password_env=TOKEN&plaintext=on"), Login::Password(None, _)));
    }

    #[test]
    fn bad_urls_are_errors_that_say_what_to_do_and_show_no_secret() {
        for (url, named) in [
            ("nats://h", "bucket"),
            ("nats://h/a/b", "bucket"),
            ("nats://h/a.b", "bucket"),
            ("nats://u@h/b", "without a password"),
            ("nats://u:hunter2@h/b", "unencrypted"),
            ("nats://u:hunter2@h/b?tls=on&nkey_file=/n", "more than one login"),
            ("nats://u@h/b?creds_file=/c", "more than one login"),
            ("nats://h/b?creds_file=/c&nkey_file=/n", "more than one login"),
            ("nats://h/b?prefix=a..b", "prefix"),
            ("nats://h/b?prefix=a*", "prefix"),
        ] {
            let error = read(url).unwrap_err();
            assert!(error.to_string().contains(named) && !error.help().is_empty(), "{url}: {error:?}");
            assert!(!format!("{error:?}").contains("hunter2"), "{error:?}");
        }
    }
}
