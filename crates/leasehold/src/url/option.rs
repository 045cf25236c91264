//! An option of store URLs: what it accepts, whether it is shown, and whether it tells stores apart.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

use crate::error::Error;

/// An option of the URLs of a scheme.
///
/// ```
/// let redis = leasehold::stores::STORES.iter().find(|kind| kind.scheme == "redis").expect("a known store");
/// let notify = redis.options().find(|option| option.name == "notify").expect("an option of Redis");
/// assert_eq!((notify.values(), notify.default), ("on|off".to_owned(), "`on`"));
/// ```
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct UrlOption {
    /// Its name in the URL.
    pub name: &'static str,
    /// What happens without the option, or a value between backticks that means the same.
    pub default: &'static str,
    /// What it does.
    pub help: &'static str,
    pub(super) kind: Kind,
    /// Whether people may write the secret itself as its value. A value that is not of its kind is then not shown.
    pub(super) secret: bool,
    pub(super) identity: Identity,
    /// Whether it applies to locks only, and not to objects.
    pub(super) of_locks: bool,
}

/// What the values of an option are.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    Switch,
    /// A duration, up to a number of hours.
    Duration(u64),
    /// One of these words.
    Word(&'static [&'static str]),
    /// One of these words, or the absolute path of a file.
    File(&'static [&'static str]),
    /// One of these words, or the URL of a host.
    Url(&'static [&'static str]),
    /// The name of an environment variable.
    Variable,
    /// Other text: the check, what it is, and an example.
    Text(fn(&str) -> bool, &'static str, &'static str),
}

/// Whether an option is a part of the identity of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Identity {
    No,
    /// The text at the beginning of the value that means the same as none.
    Without(&'static str),
    /// Only if both URLs have the option, because otherwise the environment decides.
    IfBothNameIt,
}

pub(super) const fn option(
    name: &'static str,
    kind: Kind,
    default: &'static str,
    help: &'static str,
) -> UrlOption {
    UrlOption { name, default, help, kind, secret: false, identity: Identity::No, of_locks: false }
}

impl UrlOption {
    pub(super) const fn secret(self) -> Self {
        Self { secret: true, ..self }
    }

    /// Makes it a part of the identity. A value means the same without `prefix`.
    pub(super) const fn identity(self, prefix: &'static str) -> Self {
        Self { identity: Identity::Without(prefix), ..self }
    }

    pub(super) const fn if_both(self) -> Self {
        Self { identity: Identity::IfBothNameIt, ..self }
    }

    pub(super) const fn of_locks(self) -> Self {
        Self { of_locks: true, ..self }
    }

    /// Returns the values that it accepts, in short form, such as `on|off`.
    pub fn values(&self) -> String {
        let or = |words: &[&str], other: &str| [words, &[other]].concat().join("|");
        match self.kind {
            Kind::Switch => "on|off".to_owned(),
            Kind::Duration(_) => "DURATION".to_owned(),
            Kind::Word(words) => words.join("|"),
            Kind::File(words) => or(words, "FILE"),
            Kind::Url(words) => or(words, "URL"),
            Kind::Variable => "VARIABLE".to_owned(),
            Kind::Text(..) => "TEXT".to_owned(),
        }
    }

    /// Returns the value that means the same as no option, if there is one.
    pub(super) fn default_value(&self) -> Option<&'static str> {
        self.default.strip_prefix('`')?.strip_suffix('`').filter(|value| !value.contains('`'))
    }

    /// Returns the canonical spelling of `value`, if it is a part of the identity of a store.
    pub(super) fn identity_of<'a>(&self, value: &'a str) -> Option<&'a str> {
        let prefix = match self.identity {
            Identity::No => return None,
            Identity::Without(prefix) => prefix,
            Identity::IfBothNameIt => "",
        };
        let value = value.strip_prefix(prefix).unwrap_or(value);
        let value = if matches!(self.kind, Kind::Url(_)) { value.trim_end_matches('/') } else { value };
        Some(value).filter(|value| self.default_value() != Some(value))
    }

    /// Returns whether a URL may be shown with this `value`.
    pub(super) fn may_show(&self, value: &str) -> bool {
        !(self.secret && self.flaw(value).is_some() || has_login(self.kind, value))
    }

    /// Returns what is wrong with `value`, without the value if it may be a secret.
    pub(super) fn flaw(&self, value: &str) -> Option<Error> {
        let name = self.name;
        let (fine, what, example) = match self.kind {
            Kind::Switch => (switch(value).is_some(), "`on` or `off`".to_owned(), "on"),
            Kind::Duration(hours) => {
                let duration = duration(value);
                if duration.is_some_and(|duration| duration > Duration::from_secs(hours * 3_600)) {
                    return Some(
                        Error::invalid(format!("the option `{name}` is longer than {hours} hours"))
                            .with_help(format!("`{name}`: {}", self.help)),
                    );
                }
                (duration.is_some(), "a duration like 5s or 500ms".to_owned(), "5s")
            }
            Kind::Word(words) => (words.contains(&value), one_of(words, None), words[0]),
            Kind::File(words) => {
                let fine = value.starts_with('/') && !value.chars().any(crate::types::is_unprintable);
                (
                    words.contains(&value) || fine,
                    one_of(words, Some("the absolute path of a file")),
                    "/path/to/file",
                )
            }
            Kind::Url(words) if words.contains(&value) => return None,
            Kind::Url(words) => {
                let error = checked_url(value, &format!("the option `{name}`")).err()?;
                return Some(match words {
                    [] => error,
                    _ => error.with_help(format!("or write {name}={}", words.join(&format!(" or {name}=")))),
                });
            }
            Kind::Variable => {
                let what = "the name of an environment variable, in capitals".to_owned();
                (is_variable(value), what, "LOCKS_PASSWORD")
            }
            Kind::Text(check, what, example) => (check(value), what.to_owned(), example),
        };
        if fine {
            return None;
        }
        let message = match self.secret || has_login(self.kind, value) {
            true => format!("the option `{name}` is not {what}"),
            false => format!("the option `{name}` is {value:?}, which is not {what}"),
        };
        Some(
            Error::invalid(message)
                .with_help(format!("`{name}`: {}; for example {name}={example}", self.help)),
        )
    }
}

fn one_of(words: &[&str], other: Option<&str>) -> String {
    let words = words.iter().map(|word| format!("`{word}`")).chain(other.map(str::to_owned));
    words.collect::<Vec<_>>().join(" or ")
}

/// Returns whether `value` may contain a login or a signature.
fn has_login(kind: Kind, value: &str) -> bool {
    let is_url = matches!(kind, Kind::Url(_));
    value.contains('@') && (is_url || value.contains("://")) || is_url && value.contains('?')
}

pub(super) fn switch(text: &str) -> Option<bool> {
    match text {
        "on" | "true" | "1" | "yes" | "" => Some(true),
        "off" | "false" | "0" | "no" => Some(false),
        _ => None,
    }
}

pub(super) fn duration(text: &str) -> Option<Duration> {
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let scale_ms = match &text[digits.len()..] {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(scale_ms).map(Duration::from_millis)
}

/// Returns whether `text` looks like the usual name of an environment variable. A password rarely does. Any other text
/// may be a password and is not shown.
fn is_variable(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_uppercase() || c == '_')
        && text.bytes().all(|b| b.is_ascii_uppercase() || b.is_ascii_digit() || b == b'_')
}

pub(crate) fn is_host_name(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._".contains(&b))
}

/// Returns the error for the file at `path` that `option` names and that is not readable as `what` it is.
#[allow(dead_code, reason = "only stores with such files use it")]
pub(crate) fn unreadable_file(option: &str, path: &str, what: &str, why: &dyn fmt::Display) -> Error {
    Error::invalid(format!("the option `{option}` names {path:?}, which cannot be read: {why}"))
        .with_help(format!("it is the path of {what}"))
}

/// Checks the URL of a host from `source`, and returns it without slashes at its end.
#[allow(dead_code, reason = "some stores also read such URLs elsewhere")]
pub(crate) fn checked_url(url: &str, source: &str) -> Result<String, Error> {
    let like = "it is like https://host.example.com or http://127.0.0.1:8000";
    // The part before `@` may be a password, and the query may be a signature.
    if url.contains(['@', '?']) {
        return Err(Error::invalid(format!("{source} contains a login or a query"))
            .with_help("credentials do not belong in a store URL")
            .with_help(like));
    }
    let url = url.trim_end_matches('/');
    let Some(host) = url.strip_prefix("http://").or_else(|| url.strip_prefix("https://")) else {
        let bare = url.split_once("://").map_or(url, |(_, rest)| rest);
        return Err(Error::invalid(format!("{source} is {url:?}, without http:// or https://"))
            .with_help(format!("write https://{bare} or http://{bare}")));
    };
    let fine = host.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '[')
        && host.bytes().all(|b| b.is_ascii_graphic() && !b"#\\\"<>^`{|}".contains(&b));
    match fine {
        true => Ok(url.to_owned()),
        false => {
            Err(Error::invalid(format!("{source} is {url:?}, which is not the URL of a host"))
                .with_help(like))
        }
    }
}

/// Returns whether others could read a request to `url`: it is neither encrypted nor stays on this machine.
fn is_exposed(url: &str) -> bool {
    let Some(host) = url.strip_prefix("http://") else { return false };
    let host = host.split('/').next().unwrap_or(host);
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or(rest),
        None => host.split(':').next().unwrap_or(host),
    };
    !is_this_machine(name)
}

/// Checks that others cannot read `what` in a request to `endpoint`, which may leave this machine through a proxy, unless
/// the user allows `plaintext`.
#[allow(dead_code, reason = "only stores over HTTP ask this")]
pub(crate) fn check_secrecy(endpoint: &str, what: &str, proxied: bool, plaintext: bool) -> Result<(), Error> {
    if plaintext || !proxied && !is_exposed(endpoint) {
        return Ok(());
    }
    Err(Error::invalid(format!("{endpoint} would receive {what} unencrypted"))
        .with_help("use https://; or, in a network that you trust, add plaintext=on to the store URL"))
}

/// Returns whether `host`, a name or an address without brackets, is this machine.
pub(crate) fn is_this_machine(host: &str) -> bool {
    host.eq_ignore_ascii_case("localhost")
        || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// Returns whether `text` is a name or an address that a certificate may be for.
pub(super) fn is_server_name(text: &str) -> bool {
    text.parse::<Ipv6Addr>().is_ok() || is_host_name(text)
}
