//! From what a store URL says to how the members of a cluster are connected to.

use std::time::Duration;

use tonic::transport::{Certificate, ClientTlsConfig, Endpoint, Identity};

use super::config::{Location, Tls};
use crate::error::{Error, ErrorKind};

/// How long a connection may take to be made: a lost SYN is sent again after one second.
const CONNECT_LIMIT: Duration = Duration::from_millis(2_500);

/// A member that has died without a word is noticed after this and [`PING_LIMIT`]. etcd refuses clients that ask more
/// often than every 5 s (`--grpc-keepalive-min-time`).
const PING: Duration = Duration::from_secs(10);
const PING_LIMIT: Duration = Duration::from_secs(5);

impl Location {
    /// How to connect to each member.
    ///
    /// # Errors
    /// Invalid for a host that is none, and for a certificate file that cannot be read.
    pub(super) fn endpoints(&self) -> Result<Vec<(String, Endpoint)>, Error> {
        let tls = self.tls.as_ref().map(Tls::load).transpose()?;
        let scheme = if tls.is_some() { "https" } else { "http" };
        let endpoint = |member: &String| {
            let no_host = |error: tonic::transport::Error| {
                Error::invalid(format!(
                    "{member:?} is no host and port of an etcd member, or its TLS files are bad"
                ))
                .with_source(error)
            };
            let mut endpoint = Endpoint::from_shared(format!("{scheme}://{member}"))
                .map_err(no_host)?
                .connect_timeout(CONNECT_LIMIT)
                .http2_keep_alive_interval(PING)
                .keep_alive_timeout(PING_LIMIT)
                .tcp_nodelay(true);
            if let Some(tls) = &tls {
                endpoint = endpoint.tls_config(tls.clone()).map_err(no_host)?;
            }
            Ok((member.clone(), endpoint))
        };
        self.members.iter().map(endpoint).collect()
    }
}

impl Tls {
    fn load(&self) -> Result<ClientTlsConfig, Error> {
        let mut tls = ClientTlsConfig::new();
        tls = match &self.authority {
            Some(file) => tls.ca_certificate(Certificate::from_pem(read(file, "ca")?)),
            None => tls.with_native_roots(),
        };
        if let Some((certificate, key)) = &self.identity {
            tls = tls.identity(Identity::from_pem(read(certificate, "cert")?, read(key, "key")?));
        }
        Ok(tls)
    }
}

fn read(file: &str, option: &str) -> Result<Vec<u8>, Error> {
    std::fs::read(file).map_err(|error| {
        Error::new(
            ErrorKind::Invalid,
            format!("the option `{option}` names {file:?}, which cannot be read: {error}"),
        )
        .with_help("it is the path of a PEM file")
    })
}
