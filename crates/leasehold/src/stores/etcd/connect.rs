//! How to connect to the members of a cluster, according to the store URL.

use std::time::Duration;

use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};

use super::config::Location;
use crate::error::Error;
use crate::stores::hosts::{CONNECT_LIMIT, Tls};
use crate::url::unreadable_file;

/// The interval of pings. If a member dies without closing its connections, this is noticed after this time plus
/// [`PING_LIMIT`]. etcd refuses clients that ping more often than every 5 s (`--grpc-keepalive-min-time`).
const PING: Duration = Duration::from_secs(10);
const PING_LIMIT: Duration = Duration::from_secs(5);

/// How to connect to the members.
#[derive(Clone, Debug)]
pub(super) struct Connector {
    members: Vec<String>,
    tls: Option<Tls>,
    server_name: Option<String>,
}

/// The contents of the TLS files of a store URL.
#[derive(Clone, PartialEq, Eq, Default)]
pub(super) struct Files {
    authority: Option<Vec<u8>>,
    identity: Option<(Vec<u8>, Vec<u8>)>,
}

impl Connector {
    pub(super) fn to(location: &Location) -> Self {
        let Location { members, tls, server_name, .. } = location.clone();
        Self { members, tls, server_name }
    }

    pub(super) fn members(&self) -> &[String] {
        &self.members
    }

    pub(super) fn is_tls(&self) -> bool {
        self.tls.is_some()
    }

    /// Returns whether there are TLS files. They may change while the store is open.
    pub(super) fn has_files(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.authority.is_some() || tls.identity.is_some())
    }

    /// Reads the TLS files. Blocks.
    ///
    /// # Errors
    /// Invalid for a file that cannot be read.
    pub(super) fn read(&self) -> Result<Files, Error> {
        let Some(tls) = &self.tls else { return Ok(Files::default()) };
        let authority = tls.authority.as_ref().map(|file| read(file, "ca")).transpose()?;
        let identity = match &tls.identity {
            Some((certificate, key)) => Some((read(certificate, "cert")?, read(key, "key")?)),
            None => None,
        };
        Ok(Files { authority, identity })
    }

    /// Returns a channel to each member. The channels connect when they are used. Blocks, because it reads the
    /// certificates that the machine trusts. Must be called inside the runtime to which the connections will belong.
    ///
    /// # Errors
    /// Invalid for a bad host, and for files that contain no certificate.
    pub(super) fn channels(&self, files: &Files) -> Result<Vec<Channel>, Error> {
        let tls = self.is_tls().then(|| self.config(files));
        let scheme = if tls.is_some() { "https" } else { "http" };
        let channel = |member: &String| {
            let mut endpoint = Endpoint::from_shared(format!("{scheme}://{member}"))
                .map_err(|error| {
                    Error::invalid(format!("{member:?} is not the host and port of an etcd member"))
                        .with_source(error)
                })?
                .connect_timeout(CONNECT_LIMIT)
                .http2_keep_alive_interval(PING)
                .keep_alive_timeout(PING_LIMIT)
                .tcp_nodelay(true);
            if let Some(tls) = &tls {
                endpoint = endpoint.tls_config(tls.clone()).map_err(|error| {
                    Error::invalid("the TLS options of the etcd store URL cannot be used for a TLS client")
                        .with_help("`ca`, `cert` and `key` are PEM files: certificates, and the private key of `cert`")
                        .with_source(error)
                })?;
            }
            Ok(endpoint.connect_lazy())
        };
        self.members.iter().map(channel).collect()
    }

    fn config(&self, files: &Files) -> ClientTlsConfig {
        let mut tls = ClientTlsConfig::new().timeout(CONNECT_LIMIT);
        tls = match &files.authority {
            Some(pem) => tls.ca_certificate(Certificate::from_pem(pem)),
            None => tls.with_native_roots(),
        };
        if let Some((certificate, key)) = &files.identity {
            tls = tls.identity(Identity::from_pem(certificate, key));
        }
        match &self.server_name {
            Some(name) => tls.domain_name(name),
            None => tls,
        }
    }
}

fn read(file: &str, option: &str) -> Result<Vec<u8>, Error> {
    std::fs::read(file).map_err(|error| unreadable_file(option, file, "a PEM file", &error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lease::StoreOptions;
    use crate::url::StoreUrl;

    #[test]
    fn a_file_that_is_missing_is_named() {
        let url = StoreUrl::parse("etcd://h?ca=/no/such/file").unwrap();
        let location = Location::from_url(url, &mut StoreOptions::default()).unwrap();
        let missing = Connector::to(&location).read().map(drop).unwrap_err();
        assert!(missing.to_string().contains("/no/such/file"), "{missing:?}");
    }
}
