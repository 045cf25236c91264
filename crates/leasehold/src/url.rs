//! Store URLs: `scheme:path?option=value` or `scheme://authority/path?option=value`.
//!
//! Each store takes the options that it knows. Any remaining option is an error, so a misspelt option is never ignored.
//! Passwords are redacted wherever a URL is shown.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use percent_encoding::{AsciiSet, CONTROLS, percent_decode_str, utf8_percent_encode};

use crate::error::Error;
use crate::lease::StoreOptions;

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
/// let mut url = leasehold::url::StoreUrl::parse("s3://bucket/locks?region=eu-west-1")?;
/// assert_eq!((url.scheme(), url.authority(), url.path()), ("s3", Some("bucket"), "/locks"));
/// assert_eq!(url.take("region").as_deref(), Some("eu-west-1"));
/// url.finish()?;
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
    known: Vec<&'static str>,
}

/// The part of a URL between the scheme and the options.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Location {
    /// The path of a file.
    File,
    /// One or more hosts, separated by commas, and a path.
    Hosts {
        /// The default port.
        port: u16,
    },
    /// The name of a bucket or a table, and a path.
    Name,
}

impl StoreUrl {
    /// Parses `url`.
    ///
    /// # Errors
    /// Returns [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) if `url` is malformed: it has no scheme or a repeated
    /// option, its percent-encoding is invalid, its password seems to contain a `/` or `?` that is not encoded, or its
    /// option `tls` contradicts the scheme.
    pub fn parse(url: &str) -> Result<Self, Error> {
        let (scheme, rest) =
            url.split_once(':').filter(|(scheme, _)| is_scheme(scheme)).ok_or_else(|| {
                // Text without a scheme may be anything, even a password, so the error does not repeat it.
                Error::invalid("the store URL has no scheme").with_help(
                    "use a URL like sqlite:/var/lib/locks.db or s3://bucket/prefix; see `leasehold help stores`",
                )
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
        let scheme = match scheme.to_ascii_lowercase() {
            // Aliases.
            scheme if scheme == "postgresql" => "postgres".to_owned(),
            scheme if scheme == "rediss" || scheme == "valkeys" => {
                if options.get("tls").is_some_and(|tls| tls != "on") {
                    return Err(Error::invalid(format!(
                        "`{scheme}:` implies TLS, but the store URL sets another value of `tls`"
                    ))
                    .with_help("write redis:// for a connection without TLS"));
                }
                options.insert("tls".to_owned(), "on".to_owned());
                "redis".to_owned()
            }
            scheme if scheme == "valkey" => "redis".to_owned(),
            scheme => scheme,
        };
        Ok(Self {
            scheme,
            user,
            password,
            authority: authority.map(decoded).transpose()?,
            path: decoded(path)?,
            options,
            known: Vec::new(),
        })
    }

    /// Returns the scheme, in lower case and without aliases. `postgresql` becomes `postgres`. `valkey` becomes
    /// `redis`. `rediss` and `valkeys` become `redis` with the option `tls=on`.
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

    /// Returns the parts that distinguish this store from others, in a canonical spelling. `location` is the kind of
    /// location that the scheme has.
    pub(crate) fn identity(&self, location: Location) -> Self {
        let authority = self.authority.as_deref();
        let (authority, path) = match location {
            Location::File => {
                let authority = authority.filter(|host| !host.is_empty()).map(str::to_owned);
                (authority, without_detours(&self.path))
            }
            Location::Hosts { port } => {
                let (hosts, port) = (authority.unwrap_or("").to_ascii_lowercase(), format!(":{port}"));
                let mut hosts: Vec<_> =
                    hosts.split(',').map(|host| host.strip_suffix(&port).unwrap_or(host)).collect();
                hosts.sort_unstable();
                hosts.dedup();
                // The default database of Redis.
                let path = if self.scheme == "redis" && self.path == "/0" { "" } else { &self.path };
                (Some(hosts.join(",")), without_last_slash(path))
            }
            Location::Name => (authority.map(str::to_owned), without_last_slash(&self.path)),
        };
        let options = self.options.iter().filter_map(|(key, value)| {
            let value = match (key.as_str(), value.as_str()) {
                ("endpoint", value) => value.trim_end_matches('/'),
                // The default, except on Azure, where it selects the store's own leases.
                ("protocol", "lease") if self.scheme != "azblob" => return None,
                ("table", "leasehold" | "public.leasehold") => return None, // The default.
                ("table", value) => value.strip_prefix("public.").unwrap_or(value),
                ("context" | "master" | "prefix" | "protocol" | "region", value) => value,
                _ => return None,
            };
            Some((key.clone(), value.to_owned()))
        });
        Self {
            scheme: self.scheme.clone(),
            user: None,
            password: None,
            authority,
            path,
            options: options.collect(),
            known: Vec::new(),
        }
    }

    /// Returns whether two [identities](Self::identity) belong to the same store. Regions are compared only if both
    /// URLs name one, because otherwise the region comes from the environment.
    pub(crate) fn names_the_store_of(mut self, mut other: Self) -> bool {
        if !(self.options.contains_key("region") && other.options.contains_key("region")) {
            self.options.remove("region");
            other.options.remove("region");
        }
        self == other
    }

    /// Removes and returns the option `key`. An option that is never taken is an error in [`finish`](Self::finish).
    pub fn take(&mut self, key: &'static str) -> Option<String> {
        self.known.push(key);
        self.options.remove(key)
    }

    /// Removes and returns a switch. `on`, `true`, `1`, `yes` and an empty value (`?create`) mean `true`. `off`,
    /// `false`, `0` and `no` mean `false`.
    ///
    /// # Errors
    /// Returns [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) for any other value.
    pub fn take_switch(&mut self, key: &'static str) -> Result<Option<bool>, Error> {
        match self.take(key).as_deref() {
            None => Ok(None),
            Some("on" | "true" | "1" | "yes" | "") => Ok(Some(true)),
            Some("off" | "false" | "0" | "no") => Ok(Some(false)),
            Some(other) => Err(Error::invalid(format!("the option `{key}` is on or off, not {other:?}"))),
        }
    }

    /// Removes and returns a duration such as `500ms`, `5s`, `2m` or `1h`.
    ///
    /// # Errors
    /// Returns [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) for any other text.
    pub fn take_duration(&mut self, key: &'static str) -> Result<Option<Duration>, Error> {
        let Some(text) = self.take(key) else { return Ok(None) };
        let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
        let number = digits.parse::<u64>().ok();
        let scale_ms = match &text[digits.len()..] {
            "ms" => Some(1),
            "s" => Some(1_000),
            "m" => Some(60_000),
            "h" => Some(3_600_000),
            _ => None,
        };
        match number.zip(scale_ms).and_then(|(number, scale)| number.checked_mul(scale)) {
            Some(ms) => Ok(Some(Duration::from_millis(ms))),
            None => Err(Error::invalid(format!(
                "the option `{key}` is a duration like 5s or 500ms, not {text:?}"
            ))),
        }
    }

    /// Removes the options that all stores understand, `store_clock` and `margin`, and sets them in `options`.
    ///
    /// # Errors
    /// Returns [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) for an invalid value.
    pub fn take_common(&mut self, options: &mut StoreOptions) -> Result<(), Error> {
        if let Some(on) = self.take_switch("store_clock")? {
            options.store_clock = on;
        }
        if let Some(margin) = self.take_duration("margin")? {
            options.margin = margin;
        }
        Ok(())
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

    /// Checks that all options were taken.
    ///
    /// # Errors
    /// Returns [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) for the first option that was not taken. The help
    /// lists the existing options.
    pub fn finish(self) -> Result<(), Error> {
        let Some(unknown) = self.options.keys().next() else { return Ok(()) };
        let error = Error::invalid(format!("`{}:` stores have no option {unknown:?}", self.scheme));
        if self.known.is_empty() {
            return Err(error.with_help("this store takes no options"));
        }
        Err(error.with_help(format!("its options are: {}", self.known.join(", "))))
    }
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
            let value = if is_secret(key, value) { REDACTED } else { value };
            write!(f, "{}", if n == 0 { '?' } else { '&' })?;
            write!(f, "{}={}", utf8_percent_encode(key, OPTION), utf8_percent_encode(value, OPTION))?;
        }
        Ok(())
    }
}

/// What a URL shows in place of a secret.
const REDACTED: &str = "***";

/// The values of the option `credentials` that select a source of credentials.
const SOURCES: [&str; 6] = ["anonymous", "entra", "client_secret", "workload", "managed", "cli"];

/// Returns whether `value` may be a secret. No option takes one: they say where it is. But a user may have put it there.
fn is_secret(key: &str, value: &str) -> bool {
    // A file, a variable, a kind of credentials, how they are sent, or the name of a key. The URL must keep these values
    // when it is parsed again.
    let is_plain = match key {
        "credentials" => value.starts_with('/') || SOURCES.contains(&value),
        "client_secret" => value == "env",
        "key" | "key_file" | "sas_file" | "password_file" | "sentinel_password_file" | "token_file" => {
            value.starts_with('/')
        }
        "password_env" | "sentinel_password_env" => is_variable(value),
        "allow_plaintext_credentials" | "kms_key" | "partition_key" => true,
        _ => false,
    };
    // An endpoint or a proxy with a login.
    let has_login = value.contains("://") && value.contains('@');
    let key = key.to_ascii_lowercase();
    let sounds_secret =
        ["secret", "password", "token", "key", "credential", "sas"].iter().any(|word| key.contains(word));
    has_login || (!is_plain && sounds_secret)
}

/// Returns whether `text` looks like the usual name of an environment variable. A password rarely does. Any other text
/// may be a password and is not shown.
pub(crate) fn is_variable(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_uppercase() || c == '_')
        && text.bytes().all(|b| b.is_ascii_uppercase() || b.is_ascii_digit() || b == b'_')
}

impl fmt::Debug for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StoreUrl({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_of_the_documentation_is_read() {
        let url = StoreUrl::parse("sqlite:path.db").unwrap();
        assert_eq!((url.scheme(), url.authority(), url.path()), ("sqlite", None, "path.db"));
        let url = StoreUrl::parse("sqlite:///var/lib/x.db").unwrap();
        assert_eq!((url.authority(), url.path()), (Some(""), "/var/lib/x.db"));
        let mut url =
            StoreUrl::parse("S3://bucket/a/b?region=eu-west-1&endpoint=http%3A%2F%2Flocalhost:9000").unwrap();
        assert_eq!((url.scheme(), url.authority(), url.path()), ("s3", Some("bucket"), "/a/b"));
        assert_eq!(url.take("region").as_deref(), Some("eu-west-1"));
        assert_eq!(url.take("endpoint").as_deref(), Some("http://localhost:9000"));
        url.finish().unwrap();
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
            "redis://u@h?cert=/etc/cert&key=/etc/key",
            "etcd://u@h/p?password_file=/run/secrets/etcd",
            "etcd://u@h/p?allow_plaintext_credentials=on&password_env=ETCD_PASSWORD",
            "sqlite:/a%3Fb%2520c.db",
            "s3://b/p%25?endpoint=http%3A%2F%2Fx%26y%3D%25",
            "sqlite:é/x",
            "sqlite:%2F%2Fx",
            "x1://h%2F%40%3F:1/%40?a=%40",
            "x1://u%3A%40@h/",
            "x1://%1b%e2%80%ae@%1b%e2%80%ae/%1b?%1b=%1b",
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
            let error = shown.check_whole().unwrap_err();
            assert!(error.to_string().contains("`***`"), "{error}");
        }
    }

    #[test]
    fn an_unknown_url_option_is_an_error_that_names_it() {
        let mut url = StoreUrl::parse("s3://b?regoin=x").unwrap();
        url.take("region");
        let error = url.finish().unwrap_err();
        assert!(error.to_string().contains("regoin") && error.help()[0].contains("region"), "{error:?}");
        for bad in ["", "bucket", "C", "://x", "s3://b?a=1&a=2", "s3://%ff", "sqlite:%00"] {
            assert_eq!(StoreUrl::parse(bad).unwrap_err().kind(), crate::ErrorKind::Invalid, "{bad}");
        }
        for bad in ["5", "s", "5 s", "-1s", "99999999999999999999s", "1.5s"] {
            let mut url = StoreUrl::parse(&format!("s3://b?margin={bad}")).unwrap();
            assert!(url.take_duration("margin").is_err(), "{bad}");
        }
        let mut url = StoreUrl::parse("s3://b?store_clock=maybe").unwrap();
        assert!(url.take_common(&mut StoreOptions::default()).is_err());
    }
}
