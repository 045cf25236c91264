//! Store URLs: `scheme:path?option=value` or `scheme://authority/path?option=value`.
//!
//! A table has the options of each scheme. An option that it does not have is an error, so a misspelt option is never
//! ignored. Passwords are redacted wherever a URL is shown.

mod checked;
mod option;
mod schemes;

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use percent_encoding::{AsciiSet, CONTROLS, percent_decode_str, utf8_percent_encode};

#[allow(unused_imports, reason = "not every build has a store that reads options")]
pub(crate) use self::checked::{CheckedUrl, flaw_of_path};
use self::option::Identity;
pub use self::option::UrlOption;
#[allow(unused_imports, reason = "not every store uses all of it")]
pub(crate) use self::option::{check_secrecy, checked_url, is_host_name, is_this_machine, unreadable_file};
use self::schemes::Location;
#[allow(unused_imports, reason = "only some stores use it")]
pub(crate) use self::schemes::{is_account, is_azure_container, is_dynamodb_table, is_name, is_region};
use crate::error::Error;

/// Characters with a special meaning in a path. After an authority, an `@` may belong to a password.
const PATH: &AsciiSet = &CONTROLS.add(b'%').add(b'?');
const PATH_OF_AUTHORITY: &AsciiSet = &PATH.add(b'@');
/// Characters with a special meaning in a user name, and in the host after it.
const USER: &AsciiSet = &AUTHORITY.add(b':');
const AUTHORITY: &AsciiSet = &PATH.add(b'@').add(b'/');
/// Characters with a special meaning in an option.
const OPTION: &AsciiSet = &CONTROLS.add(b'%').add(b'&').add(b'=').add(b'@');

/// A store URL, split into its parts.
///
/// `Display` and `Debug` omit its password and the values of options that may be secret.
///
/// ```
/// let url = leasehold::url::StoreUrl::parse("s3://bucket/locks?region=eu-west-1")?;
/// assert_eq!((url.scheme(), url.authority(), url.path()), ("s3", Some("bucket"), "/locks"));
/// assert_eq!(url.option("region"), Some("eu-west-1"));
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct StoreUrl {
    scheme: String,
    user: Option<String>,
    password: Option<String>,
    authority: Option<String>,
    path: String,
    options: BTreeMap<String, String>,
}

impl StoreUrl {
    /// Parses `url`.
    ///
    /// # Errors
    /// Returns [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) if `url` is malformed: it has no scheme or a repeated
    /// option, its percent-encoding is invalid, its password seems to contain a `/` or `?` that is not encoded, or an
    /// option contradicts the scheme.
    pub fn parse(url: &str) -> Result<Self, Error> {
        let (scheme, rest) =
            url.split_once(':').filter(|(scheme, _)| is_scheme(scheme)).ok_or_else(|| {
                // Text without a scheme may be anything, even a password, so the error does not repeat it.
                Error::invalid("the store URL has no scheme").with_help(schemes::EXAMPLES)
            })?;
        let (rest, query) = rest.split_once('?').map_or((rest, None), |(rest, query)| (rest, Some(query)));
        let (authority, path) = match rest.strip_prefix("//") {
            None => (None, rest),
            Some(rest) => {
                let end = rest.find('/').unwrap_or(rest.len());
                (Some(&rest[..end]), &rest[end..])
            }
        };
        // Otherwise, in `user:pass/word@host`, the text before the slash would be shown as a host. In
        // `user:p@ss/word@host`, the text after the slash would be shown as a path.
        let unescaped =
            |authority: &str| authority.rsplit_once('@').map_or(authority, |(login, _)| login).contains(':');
        if authority.is_some_and(unescaped)
            && (path.contains('@') || query.is_some_and(|query| query.contains('@')))
        {
            return Err(Error::invalid(
                "the store URL has an `@` after a `/` or `?`, perhaps its password contains these characters",
            )
            .with_help("percent-encode the password: %2F for `/`, %3F for `?`, %40 for `@`"));
        }
        let (login, authority) = match authority.and_then(|authority| authority.rsplit_once('@')) {
            Some((login, authority)) => (Some(login), Some(authority)),
            None => (None, authority),
        };
        let (user, password) = match login.map(|login| login.split_once(':').unwrap_or((login, ""))) {
            Some((user, password)) => {
                (Some(decoded(user)?), Some(decoded(password)?).filter(|p| !p.is_empty()))
            }
            None => (None, None),
        };
        let mut options = BTreeMap::new();
        for pair in query.unwrap_or("").split('&').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            if options.insert(decoded(key)?, decoded(value)?).is_some() {
                return Err(Error::invalid(format!("the store URL has the option `{key}` twice")));
            }
        }
        let mut scheme = scheme.to_ascii_lowercase();
        if let Some((canonical, implied)) = schemes::of_alias(&scheme) {
            if let Some((name, value)) = implied {
                let given = options.insert(name.to_owned(), value.to_owned());
                if given.is_some_and(|given| given != value) {
                    return Err(Error::invalid(format!(
                        "`{scheme}:` implies {name}={value}, but the store URL sets another value of `{name}`"
                    ))
                    .with_help(format!("leave `{name}` out, or write {canonical}:// with the option")));
                }
            }
            canonical.clone_into(&mut scheme);
        }
        Ok(Self {
            scheme,
            user,
            password,
            authority: authority.map(decoded).transpose()?,
            path: decoded(path)?,
            options,
        })
    }

    /// Returns the scheme, in lower case. An alias is replaced, as `postgresql` by `postgres`.
    pub fn scheme(&self) -> &str {
        &self.scheme
    }

    /// Returns the text between `//` and the path, without user and password. Returns `None` if the URL has no `//`.
    pub fn authority(&self) -> Option<&str> {
        self.authority.as_deref()
    }

    /// Returns the user before `@`.
    pub fn user(&self) -> Option<&str> {
        self.user.as_deref()
    }

    /// Returns the password before `@`.
    pub fn password(&self) -> Option<&str> {
        self.password.as_deref()
    }

    /// Returns the decoded path, with its leading `/` if there is one.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Returns the value of an option.
    pub fn option(&self, name: &str) -> Option<&str> {
        self.options.get(name).map(String::as_str)
    }

    /// Returns the URL of the object `name` in the folder of the locks of this store. Leaves out the options that only
    /// locks have.
    ///
    /// ```
    /// use leasehold::url::StoreUrl;
    ///
    /// let locks = StoreUrl::parse("s3://bucket/tf/?region=eu-west-1&margin=9s")?;
    /// let state = StoreUrl::parse("s3://bucket/tf/prod.tfstate?region=eu-west-1")?;
    /// assert_eq!(locks.object("prod.tfstate"), state);
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    #[must_use]
    pub fn object(&self, name: &str) -> Self {
        let scheme = schemes::find(&self.scheme);
        let of_locks = |option: &str| scheme.and_then(|s| s.option(option)).is_some_and(|o| o.of_locks);
        let mut url = self.clone();
        url.options.retain(|option, _| !of_locks(option));
        url.path = format!("{}/{name}", self.path.trim_end_matches('/'));
        url
    }

    /// Returns the parts that distinguish this store from others, in a canonical spelling.
    pub(crate) fn identity(&self) -> Self {
        let authority = self.authority.as_deref();
        let scheme = schemes::find(&self.scheme);
        let (authority, path) = match scheme.map(|scheme| scheme.location) {
            Some(Location::File) => {
                let authority = authority.filter(|host| !host.is_empty()).map(str::to_owned);
                (authority, without_detours(&self.path))
            }
            Some(Location::Hosts { port, path }) => {
                let (hosts, port) = (authority.unwrap_or("").to_ascii_lowercase(), format!(":{port}"));
                let mut hosts: Vec<_> =
                    hosts.split(',').map(|host| host.strip_suffix(&port).unwrap_or(host)).collect();
                hosts.sort_unstable();
                hosts.dedup();
                let path = if self.path == path { "" } else { &self.path };
                (Some(hosts.join(",")), without_last_slash(path))
            }
            Some(Location::Name(..)) | None => (authority.map(str::to_owned), without_last_slash(&self.path)),
        };
        let options = self.options.iter().filter_map(|(name, value)| {
            let value = scheme?.option(name)?.identity_of(value)?;
            Some((name.clone(), value.to_owned()))
        });
        Self {
            scheme: self.scheme.clone(),
            user: None,
            password: None,
            authority,
            path,
            options: options.collect(),
        }
    }

    /// Returns whether two [identities](Self::identity) belong to the same store. Some options, such as regions, are
    /// compared only if both URLs have one, because otherwise the environment decides.
    pub(crate) fn names_the_store_of(mut self, mut other: Self) -> bool {
        let Some(scheme) = schemes::find(&self.scheme) else { return self == other };
        for option in scheme.all_options().filter(|option| option.identity == Identity::IfBothNameIt) {
            if !(self.options.contains_key(option.name) && other.options.contains_key(option.name)) {
                self.options.remove(option.name);
                other.options.remove(option.name);
            }
        }
        self == other
    }

    /// Checks that this URL was not copied from where a URL is shown without its secrets. The functions that open a store
    /// call this.
    ///
    /// # Errors
    /// Returns [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) if the password or an option is `***`.
    pub fn check_whole(&self) -> Result<(), Error> {
        let redacted = |text: &String| text == REDACTED;
        if !self.password.iter().chain(self.options.values()).any(redacted) {
            return Ok(());
        }
        Err(Error::invalid(format!("the store URL {self} has `{REDACTED}` in place of a secret"))
            .with_help("this is how leasehold shows a URL; use the URL with the secret, or an alias of it in config.toml")
            .with_help(
                "`leasehold run` does not pass a secret in its option --store to its command: set LEASEHOLD_STORE instead",
            ))
    }
}

/// Returns the options of a scheme.
pub(crate) fn options_of(scheme: &str) -> impl Iterator<Item = &'static UrlOption> + use<> {
    schemes::find(scheme).into_iter().flat_map(|scheme| scheme.all_options())
}

fn without_last_slash(path: &str) -> String {
    path.strip_suffix('/').unwrap_or(path).to_owned()
}

/// Removes `//` and `/./` from the path of a file. Keeps `..`, because its meaning depends on symbolic links.
fn without_detours(path: &str) -> String {
    let root = if path.starts_with('/') { "/" } else { "" };
    let parts: Vec<_> = path.split('/').filter(|part| !matches!(*part, "" | ".")).collect();
    format!("{root}{}", parts.join("/"))
}

fn is_scheme(text: &str) -> bool {
    text.len() >= 2
        && text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"+-.".contains(&b))
}

fn decoded(text: &str) -> Result<String, Error> {
    match percent_decode_str(text).decode_utf8() {
        Ok(text) if !text.contains('\0') => Ok(text.into_owned()),
        _ => Err(Error::invalid(
            "a part of the store URL is not UTF-8 when percent-decoded, or contains a NUL",
        )),
    }
}

impl FromStr for StoreUrl {
    type Err = Error;

    fn from_str(url: &str) -> Result<Self, Error> {
        Self::parse(url)
    }
}

impl fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.scheme)?;
        if let Some(authority) = &self.authority {
            f.write_str("//")?;
            match (&self.user, &self.password) {
                (Some(user), Some(_)) => write!(f, "{}:{REDACTED}@", utf8_percent_encode(user, USER))?,
                (Some(user), None) => write!(f, "{}@", utf8_percent_encode(user, USER))?,
                (None, _) => {}
            }
            utf8_percent_encode(authority, AUTHORITY).fmt(f)?;
        }
        // The text must parse to the same URL, because tickets and environment variables carry it.
        match (&self.authority, self.path.strip_prefix("//")) {
            (Some(_), _) => utf8_percent_encode(&self.path, PATH_OF_AUTHORITY).fmt(f)?,
            (None, Some(rest)) => write!(f, "/%2F{}", utf8_percent_encode(rest, PATH))?,
            (None, None) => utf8_percent_encode(&self.path, PATH).fmt(f)?,
        }
        for (n, (key, value)) in self.options.iter().enumerate() {
            // An option that no store has may be anything.
            let option = schemes::find(&self.scheme).and_then(|scheme| scheme.option(key));
            let value = if option.is_some_and(|option| option.may_show(value)) { value } else { REDACTED };
            write!(f, "{}", if n == 0 { '?' } else { '&' })?;
            write!(f, "{}={}", utf8_percent_encode(key, OPTION), utf8_percent_encode(value, OPTION))?;
        }
        Ok(())
    }
}

/// What a URL shows in place of a secret.
const REDACTED: &str = "***";

impl fmt::Debug for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StoreUrl({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lease::StoreOptions;

    #[test]
    fn every_form_of_the_documentation_is_read() {
        let url = StoreUrl::parse("sqlite:path.db").unwrap();
        assert_eq!((url.scheme(), url.authority(), url.path()), ("sqlite", None, "path.db"));
        let url = StoreUrl::parse("sqlite:///var/lib/x.db").unwrap();
        assert_eq!((url.authority(), url.path()), (Some(""), "/var/lib/x.db"));
        let url =
            StoreUrl::parse("S3://bucket/a/b?region=eu-west-1&endpoint=http%3A%2F%2Flocalhost:9000").unwrap();
        assert_eq!((url.scheme(), url.authority(), url.path()), ("s3", Some("bucket"), "/a/b"));
        assert_eq!(url.option("region"), Some("eu-west-1"));
        assert_eq!(url.option("endpoint"), Some("http://localhost:9000"));
        let url = StoreUrl::parse("etcd://u:p%40@h1:2379,h2:2379/prefix").unwrap();
        assert_eq!(
            (url.authority(), url.user(), url.password()),
            (Some("h1:2379,h2:2379"), Some("u"), Some("p@"))
        );
        assert_eq!(StoreUrl::parse("mem:").unwrap().path(), "");
    }

    #[test]
    fn a_displayed_url_can_be_parsed_back() {
        for text in [
            "gs://b/p?credentials=anonymous",
            "gs://b/p?credentials=/etc/key.json",
            "azblob://a/c?key_file=/etc/key",
            "azblob://a/c?sas_file=/etc/sas",
            "azblob://a/c?credentials=client_secret",
            "azblob://a/c?credentials=managed",
            "k8s://n?token_file=/run/token&context=prod",
            "s3://b?kms_key=alias/x&expected_bucket_owner=1",
            "redis://u@h?cert=/etc/cert&key=/etc/key",
            "etcd://u@h/p?password_file=/run/secrets/etcd",
            "etcd://u@h/p?plaintext=on&password_env=ETCD_PASSWORD",
            "sqlite:/a%3Fb%2520c.db",
            "s3://b/p%25?endpoint=http%3A%2F%2Fx%26y%3D%25",
            "sqlite:é/x",
            "sqlite:%2F%2Fx",
            "x1://h%2F%40%3F:1/%40",
            "redis://h?prefix=%40%26",
            "x1://u%3A%40@h/",
            "x1://%1b%e2%80%ae@%1b%e2%80%ae/%1b",
        ] {
            let url = StoreUrl::parse(text).unwrap();
            assert_eq!(StoreUrl::parse(&url.to_string()).unwrap(), url, "{url}");
            assert!(!url.to_string().contains(crate::types::is_unprintable), "{url}");
        }
    }

    #[test]
    fn secrets_are_not_shown() {
        let url = StoreUrl::parse("s3://id:hunter2@bucket/p?secret_key=hunter2&region=x").unwrap();
        for shown in [url.to_string(), format!("{url:?}")] {
            assert!(!shown.contains("hunter2") && shown.contains("region=x"), "{shown}");
        }
        for url in [
            "gs://bucket?credentials={hunter2}",
            "s3://bucket?Secret_Key=hunter2",
            "gs://bucket?proxy=http://u:hunter2@host",
            "gs://bucket?kms_key=http://u:hunter2@host",
            "etcd://u@h?password_env=hunter2",
            "redis://h?master=m&sentinel_password_env=hunter2",
            "redis://h?master=m&sentinel_password_file=hunter2",
            "etcd://u@h?password_file=hunter2",
            "redis://u@h?key=hunter2",
            "azblob://a/c?key_file=hunter2",
            "azblob://a/c?sas=hunter2",
            "azblob://a/c?client_secret=hunter2",
            "azblob://a/c?endpoint=https://h%3Fsig=hunter2",
            "s3://bucket?endpoint=u:hunter2@host",
            "other://h?region=hunter2",
        ] {
            let url = StoreUrl::parse(url).unwrap();
            assert!(!url.to_string().contains("hunter2"), "{url}");
        }
        for secret in [
            "hunter2",
            "etcd://user:hun/hunter2@host",
            "etcd://user:hun?hunter2@host",
            "etcd://user:hun@/hunter2@host",
            "etcd://user:@?hunter2@host",
        ] {
            let error = StoreUrl::parse(secret).unwrap_err();
            assert!(!format!("{error} {error:?}").contains("hunter2"), "{error}");
        }
    }

    #[test]
    fn a_url_with_a_redacted_secret_is_not_whole() {
        for url in [
            "redis://u:hunter2@h",
            "redis://:hunter2@h/0",
            "redis://h?key=hunter2",
            "gs://b?proxy=http://u:p@h",
        ] {
            let url = StoreUrl::parse(url).unwrap();
            url.check_whole().unwrap();
            let shown = StoreUrl::parse(&url.to_string()).unwrap();
            for error in
                [shown.check_whole().unwrap_err(), shown.checked(&mut StoreOptions::default()).unwrap_err()]
            {
                assert!(error.to_string().contains("`***`"), "{error}");
            }
        }
    }

    #[test]
    fn a_malformed_url_is_refused() {
        for bad in
            ["", "bucket", "C", "://x", "s3://b?a=1&a=2", "s3://%ff", "sqlite:%00", "rediss://h?tls=off"]
        {
            assert_eq!(StoreUrl::parse(bad).unwrap_err().kind(), crate::ErrorKind::Invalid, "{bad}");
        }
    }

    #[test]
    fn an_alias_implies_its_option() {
        for (alias, whole) in [
            ("postgresql://h", "postgres://h"),
            ("valkey://h", "redis://h"),
            ("rediss://h", "redis://h?tls=on"),
            ("Valkeys://h?tls=on", "redis://h?tls=on"),
        ] {
            assert_eq!(StoreUrl::parse(alias).unwrap(), StoreUrl::parse(whole).unwrap(), "{alias}");
        }
    }
}
