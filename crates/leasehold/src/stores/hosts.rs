//! The parts that the URLs of servers have in common: the hosts, and the files of the client certificate.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

use crate::error::Error;
#[cfg(any(feature = "postgres", feature = "redis"))]
use crate::error::{ErrorKind, Fault, StoreError};
use crate::url::StoreUrl;

/// The host and the port of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Host {
    /// A name or an IP address, without brackets.
    pub(super) name: String,
    pub(super) port: u16,
}

impl Host {
    /// Parses `name`, `name:port`, `[address]` or `[address]:port`. `port` is the default port. Returns `None` if
    /// `text` has another form.
    pub(super) fn parse(text: &str, port: u16) -> Option<Self> {
        let (name, port) = match text.rsplit_once(':') {
            Some((name, port)) if !text.ends_with(']') => (name, port.parse().ok().filter(|port| *port > 0)?),
            _ => (text, port),
        };
        let name = match name.strip_prefix('[').and_then(|name| name.strip_suffix(']')) {
            Some(address) => address.parse::<Ipv6Addr>().is_ok().then_some(address)?,
            None => is_host_name(name).then_some(name)?,
        };
        Some(Self { name: name.to_owned(), port })
    }

    /// Returns whether the host is this machine, so that requests to it do not leave the machine.
    pub(super) fn is_this_machine(&self) -> bool {
        let address = self.name.parse::<IpAddr>();
        self.name.eq_ignore_ascii_case("localhost") || address.is_ok_and(|address| address.is_loopback())
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name.contains(':') {
            true => write!(f, "[{}]:{}", self.name, self.port),
            false => write!(f, "{}:{}", self.name, self.port),
        }
    }
}

/// Returns the text with which an error names a host that cannot be parsed. If the `@` after a password is missing, the
/// password looks like a part of the host. So text that may be a login is not shown.
pub(super) fn shown(text: &str) -> String {
    let may_be_login = text
        .rsplit_once(':')
        .is_some_and(|(name, port)| name.contains(':') || !port.bytes().all(|byte| byte.is_ascii_digit()));
    if may_be_login && !text.starts_with('[') {
        "the part before the path".to_owned()
    } else {
        format!("{text:?}")
    }
}

pub(super) fn is_host_name(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._".contains(&b))
}

/// Takes `cert` and `key` out of `url`: the files of the client certificate and its private key.
///
/// # Errors
/// Invalid for `key` without `cert`.
pub(super) fn take_identity(url: &mut StoreUrl) -> Result<Option<(String, String)>, Error> {
    match (url.take("cert"), url.take("key")) {
        (None, None) => Ok(None),
        // One file may contain both.
        (Some(certificate), None) => Ok(Some((certificate.clone(), certificate))),
        (Some(certificate), Some(key)) => Ok(Some((certificate, key))),
        (None, Some(_)) => Err(Error::invalid("the option `key` needs the option `cert`")
            .with_help("name the certificate that the key belongs to: cert=FILE&key=FILE")),
    }
}

/// Returns the error to report if none of the servers could be used. It is permanent only if the error of every server
/// is permanent.
#[cfg(any(feature = "postgres", feature = "redis"))]
pub(super) fn none_of(failed: Vec<StoreError>) -> StoreError {
    let final_kind = failed.iter().all(|error| !error.is_transient());
    let kind =
        failed.first().filter(|_| final_kind).map_or(ErrorKind::Unavailable, |error| error.fault().kind);
    let messages: Vec<_> = failed.iter().map(ToString::to_string).collect();
    let is_full = failed.iter().any(|error| error.fault().is_full());
    let message = messages.join("; ");
    let fault = if is_full { Fault::full(message) } else { Fault::new(kind, message) };
    match failed.into_iter().find_map(|error| error.fault().help.clone()) {
        Some(help) => fault.with_help(help).not_applied(),
        None => fault.not_applied(),
    }
}
