//! Creates the SDK's HTTP client with a custom proxy or custom certificates.

#[cfg(feature = "s3")]
use std::net::IpAddr;

use aws_smithy_http_client::proxy::ProxyConfig;
use aws_smithy_http_client::tls::rustls_provider::CryptoMode;
use aws_smithy_http_client::tls::{Provider, TlsContext, TrustStore};
use aws_smithy_http_client::{Builder, ConnectorBuilder};
#[cfg(feature = "s3")]
use aws_smithy_runtime_api::client::dns::{DnsFuture, ResolveDns, SharedDnsResolver};
use aws_smithy_runtime_api::client::http::SharedHttpClient;
use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

use crate::error::Error;

/// The addresses of this machine and of its credential services. Requests to them never use a proxy: they may contain
/// tokens, unencrypted, and a proxy could be on another machine.
const LOCAL: &str =
    "localhost,127.0.0.0/8,::1,169.254.169.254,169.254.170.2,169.254.170.23,fd00:ec2::254,fd00:ec2::23";

/// Creates a client that trusts only the certificates in the PEM file `ca`, and sends all requests through `proxy`,
/// except those to [`LOCAL`] addresses. Returns `None` if neither is given. The SDK then uses its own client.
pub(super) fn client(ca: Option<&str>, proxy: Option<&str>) -> Result<Option<SharedHttpClient>, Error> {
    if ca.is_none() && proxy.is_none() {
        return Ok(None);
    }
    let tls = tls(ca)?;
    let proxy = match proxy {
        Some(url) => ProxyConfig::all(url)
            .map_err(|error| Error::invalid(format!("the option `proxy` is {url:?}: {error}")))?
            .no_proxy(LOCAL),
        None => ProxyConfig::from_env(),
    };
    // This is how the SDK creates its own client.
    Ok(Some(Builder::new().build_with_connector_fn(move |settings, components| {
        let mut builder = ConnectorBuilder::default()
            .tls_provider(Provider::Rustls(CryptoMode::AwsLc))
            .tls_context(tls.clone())
            .proxy_config(proxy.clone());
        builder.set_connector_settings(settings.cloned());
        builder.set_sleep_impl(components.and_then(|components| components.sleep_impl()));
        builder.build()
    })))
}

/// Creates a client that trusts the same certificates as [`client`], and resolves every name to `address`. Requests and
/// certificate checks still use the name. Must not be used with a proxy.
#[cfg(feature = "s3")]
pub(in crate::stores) fn pinned(ca: Option<&str>, address: IpAddr) -> Result<SharedHttpClient, Error> {
    let builder = Builder::new().tls_provider(Provider::Rustls(CryptoMode::AwsLc)).tls_context(tls(ca)?);
    Ok(builder.build_with_resolver(SharedDnsResolver::new(Pinned(address))))
}

#[cfg(feature = "s3")]
#[derive(Debug)]
struct Pinned(IpAddr);

#[cfg(feature = "s3")]
impl ResolveDns for Pinned {
    fn resolve_dns<'a>(&'a self, _name: &'a str) -> DnsFuture<'a> {
        DnsFuture::ready(Ok(vec![self.0]))
    }
}

/// Returns a TLS configuration that trusts only the certificates in the PEM file `ca`. Without `ca`, it trusts the
/// machine's certificates.
fn tls(ca: Option<&str>) -> Result<TlsContext, Error> {
    let trusted = match ca {
        Some(path) => TrustStore::empty().with_pem_certificate(certificates(path)?),
        None => TrustStore::default(),
    };
    TlsContext::builder()
        .with_trust_store(trusted)
        .build()
        .map_err(|error| Error::invalid(format!("TLS cannot be set up: {error}")))
}

/// Reads the PEM file `path`. Parses it here, because the SDK's client would panic on an invalid file.
fn certificates(path: &str) -> Result<Vec<u8>, Error> {
    let help = "the option `ca` names a PEM file of the certificates to trust at the store's endpoint";
    let pem = std::fs::read(path)
        .map_err(|error| Error::invalid(format!("{path:?} cannot be read: {error}")).with_help(help))?;
    let unreadable = |error: &dyn std::fmt::Display| {
        Error::invalid(format!("{path:?} has a certificate that cannot be read: {error}")).with_help(help)
    };
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(&pem) {
        let certificate = certificate.map_err(|error| unreadable(&error))?;
        roots.add(certificate).map_err(|error| unreadable(&error))?;
    }
    if roots.is_empty() {
        return Err(Error::invalid(format!("{path:?} has no certificate")).with_help(help));
    }
    Ok(pem)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bad_ca_file_is_an_error_and_no_panic() {
        let folder = tempfile::tempdir().unwrap();
        let broken = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        for (name, text, named) in [
            ("empty.pem", "", "no certificate"),
            ("key.pem", "no PEM", "no certificate"),
            ("broken.pem", broken, "cannot be read"),
            ("cut.pem", "-----BEGIN CERTIFICATE-----\nAAAA\n", "cannot be read"),
        ] {
            let path = folder.path().join(name).display().to_string();
            std::fs::write(&path, text).unwrap();
            let error = client(Some(&path), None).unwrap_err();
            assert!(error.to_string().contains(named) && error.to_string().contains(&path), "{error:?}");
            assert!(error.help()[0].contains("`ca`"), "{error:?}");
        }
        assert!(client(Some("/not/there.pem"), None).unwrap_err().to_string().contains("/not/there.pem"));
    }

    #[test]
    fn without_options_the_sdks_own_client_is_used() {
        assert!(client(None, None).unwrap().is_none());
        assert!(client(None, Some("http://proxy:3128")).unwrap().is_some());
    }
}
