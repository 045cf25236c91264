//! The transport options of stores on HTTPS: the proxy, and the certificate authorities that a store URL names.

use std::path::PathBuf;

use crate::error::Error;
use crate::url::StoreUrl;

/// The proxy for requests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::stores) enum Proxy {
    #[default]
    None,
    /// The proxy in the environment: `HTTPS_PROXY` and similar variables.
    Environment,
    /// The proxy at this URL.
    At(String),
}

/// How to reach the server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::stores) struct Transport {
    pub(in crate::stores) proxy: Proxy,
    /// A PEM file of certificate authorities that are trusted in addition to the authorities of the system.
    pub(in crate::stores) authorities: Option<PathBuf>,
}

impl Transport {
    /// Takes the options `proxy` and `ca` out of `url`.
    pub(in crate::stores) fn take(url: &mut StoreUrl) -> Result<Self, Error> {
        Ok(Self {
            proxy: url.take("proxy").map(checked_proxy).transpose()?.unwrap_or_default(),
            authorities: url.take("ca").map(|path| checked_file("ca", path)).transpose()?,
        })
    }

    /// Returns whether a request to `endpoint` keeps its contents secret. The connection must be encrypted, or must
    /// stay on this machine and use no proxy.
    pub(in crate::stores) fn keeps_secrets(&self, endpoint: &str) -> bool {
        let Some(host) = endpoint.strip_prefix("http://") else { return true };
        let host = host.split('/').next().unwrap_or(host);
        let host = host.rsplit_once(':').map_or(host, |(host, _port)| host);
        self.proxy == Proxy::None && matches!(host, "localhost" | "127.0.0.1" | "[::1]")
    }
}

pub(in crate::stores) fn checked_file(option: &str, path: String) -> Result<PathBuf, Error> {
    if path.starts_with('/') && !path.chars().any(crate::types::is_unprintable) {
        return Ok(PathBuf::from(path));
    }
    Err(Error::invalid(format!("the option `{option}` is {path:?}, which is not an absolute path"))
        .with_help(format!("write ?{option}=/path/to/file.pem")))
}

fn checked_proxy(proxy: String) -> Result<Proxy, Error> {
    if proxy == "env" {
        return Ok(Proxy::Environment);
    }
    // The error does not show the value, because the part before `@` is a login.
    if proxy.contains('@') {
        return Err(Error::invalid("the option `proxy` contains a login")
            .with_help("set HTTPS_PROXY to the proxy with its login, and write proxy=env"));
    }
    checked_url(&proxy, "the option `proxy`").map(Proxy::At).map_err(|error| {
        error.with_help("a proxy is like http://proxy.example.com:3128, or `env` for HTTPS_PROXY")
    })
}

/// Checks the URL of a host, and returns it without trailing slashes.
pub(in crate::stores) fn checked_url(url: &str, source: &str) -> Result<String, Error> {
    let url = url.trim_end_matches('/');
    let host = url.strip_prefix("http://").or_else(|| url.strip_prefix("https://"));
    let Some(host) = host else {
        return Err(Error::invalid(format!("{source} is {url:?}, without http:// or https://")));
    };
    let fine = host.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '[')
        && host.bytes().all(|b| b.is_ascii_graphic() && !b"?#\\\"<>^`{|}".contains(&b));
    if fine {
        Ok(url.to_owned())
    } else {
        Err(Error::invalid(format!("{source} is {url:?}, which is not the URL of a host")))
    }
}
