//! The transport options of stores on HTTPS: the proxy, and the certificate authorities that a store URL names.

use std::path::PathBuf;

use crate::error::Error;
use crate::url::{CheckedUrl, check_secrecy};

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
    /// Whether secrets may be sent to another machine without TLS.
    pub(in crate::stores) plaintext: bool,
}

impl Transport {
    pub(in crate::stores) fn of(url: &CheckedUrl) -> Self {
        Self {
            proxy: match url.location("proxy") {
                None => Proxy::None,
                Some(text) if text == "env" => Proxy::Environment,
                Some(proxy) => Proxy::At(proxy),
            },
            authorities: url.text("ca").map(PathBuf::from),
            plaintext: url.switch("plaintext"),
        }
    }

    /// Checks that others cannot read `what` in a request to `endpoint`. The connection must be encrypted, or stay on
    /// this machine and use no proxy, unless the user allows plaintext.
    pub(in crate::stores) fn check_secrecy(&self, endpoint: &str, what: &str) -> Result<(), Error> {
        let proxied = self.proxy != Proxy::None && endpoint.starts_with("http://");
        check_secrecy(endpoint, what, proxied, self.plaintext)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_encrypted_or_stay_on_this_machine() {
        let check = |endpoint: &str, transport: Transport| transport.check_secrecy(endpoint, "tokens");
        let proxies = || [Proxy::Environment, Proxy::At("http://proxy:1".into())];
        for endpoint in [
            "http://minio:9000",
            "http://10.0.0.1",
            "http://127.0.0.1.example.com:80",
            "http://localhost.example.com",
            "http://[2001:db8::1]:9",
        ] {
            let error = check(endpoint, Transport::default()).unwrap_err();
            assert!(
                error.to_string().contains(endpoint) && error.to_string().contains("unencrypted"),
                "{error:?}"
            );
            assert!(error.help()[0].contains("plaintext=on"), "{error:?}");
            check(endpoint, Transport { plaintext: true, ..Transport::default() }).unwrap();
        }
        for endpoint in
            ["http://localhost:9000/path", "http://127.0.0.1", "http://127.1.2.3:9", "http://[::1]:9"]
        {
            check(endpoint, Transport::default()).unwrap();
            for proxy in proxies() {
                let transport = Transport { proxy, ..Transport::default() };
                assert!(check(endpoint, transport).is_err(), "a proxy may be on another machine");
            }
        }
        for proxy in proxies() {
            check("https://minio:9000", Transport { proxy, ..Transport::default() }).unwrap();
        }
    }
}
