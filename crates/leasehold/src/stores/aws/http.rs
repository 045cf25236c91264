//! Creates the SDK's HTTP client with a custom proxy or custom certificates.

#[cfg(feature = "s3")]
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use aws_smithy_http_client::proxy::ProxyConfig;
use aws_smithy_http_client::tls::rustls_provider::CryptoMode;
use aws_smithy_http_client::tls::{Provider, TlsContext, TrustStore};
use aws_smithy_http_client::{Builder, ConnectorBuilder};
#[cfg(feature = "s3")]
use aws_smithy_runtime_api::client::dns::{DnsFuture, ResolveDns, SharedDnsResolver};
use aws_smithy_runtime_api::client::http::{
    HttpClient, HttpConnectorSettings, SharedHttpClient, SharedHttpConnector,
};
use aws_smithy_runtime_api::client::runtime_components::RuntimeComponents;
use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

use crate::error::Error;

/// The addresses of this machine and of its credential services. Requests to them never use a proxy: they may contain
/// tokens, unencrypted, and a proxy could be on another machine.
const LOCAL: &str =
    "localhost,127.0.0.0/8,::1,169.254.169.254,169.254.170.2,169.254.170.23,fd00:ec2::254,fd00:ec2::23";

/// A PEM file with the only certificates to trust.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::stores) struct Authorities {
    pub(in crate::stores) file: String,
    /// The setting that names the file, as the subject of a sentence.
    setting: &'static str,
}

impl Authorities {
    /// Returns those of the option `ca`.
    pub(in crate::stores) fn of_option(file: &str) -> Self {
        Self { file: file.to_owned(), setting: "the option `ca`" }
    }

    /// Returns those of the machine's configuration, which all of Amazon's SDKs use for all requests.
    pub(in crate::stores) fn of_machine(file: String) -> Self {
        Self { file, setting: "AWS_CA_BUNDLE (`ca_bundle` of the AWS profile)" }
    }
}

/// The client with which the requests of a store are sent. A clone shares it.
#[derive(Clone, Debug)]
pub(in crate::stores) struct Network {
    authorities: Option<Authorities>,
    proxy: Option<String>,
    current: Arc<Mutex<SharedHttpClient>>,
}

impl Network {
    /// Creates a client like [`client`].
    pub(super) fn new(
        authorities: Option<Authorities>,
        proxy: Option<String>,
    ) -> Result<Option<Self>, Error> {
        let client = client(authorities.as_ref(), proxy.as_deref())?;
        Ok(client.map(|client| Self { authorities, proxy, current: Arc::new(Mutex::new(client)) }))
    }

    pub(in crate::stores) fn authorities(&self) -> Option<&Authorities> {
        self.authorities.as_ref()
    }

    /// Reads the certificates again, for new connections. Keeps the earlier ones if the file cannot be used.
    pub(super) fn renew(&self) {
        match client(self.authorities.as_ref(), self.proxy.as_deref()) {
            Ok(Some(client)) => *self.current.lock().unwrap_or_else(PoisonError::into_inner) = client,
            Ok(None) => {}
            Err(error) => tracing::debug!(%error, "the certificates could not be read again"),
        }
    }
}

impl HttpClient for Network {
    fn http_connector(
        &self,
        settings: &HttpConnectorSettings,
        components: &RuntimeComponents,
    ) -> SharedHttpConnector {
        let client = self.current.lock().unwrap_or_else(PoisonError::into_inner).clone();
        client.http_connector(settings, components)
    }
}

/// Creates a client that trusts only the certificates of `authorities`, and sends all requests through `proxy`, except
/// those to [`LOCAL`] addresses. Returns `None` if neither is given. The SDK then uses its own client.
pub(super) fn client(
    authorities: Option<&Authorities>,
    proxy: Option<&str>,
) -> Result<Option<SharedHttpClient>, Error> {
    if authorities.is_none() && proxy.is_none() {
        return Ok(None);
    }
    let tls = tls(authorities)?;
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
pub(in crate::stores) fn pinned(
    authorities: Option<&Authorities>,
    address: IpAddr,
) -> Result<SharedHttpClient, Error> {
    let builder =
        Builder::new().tls_provider(Provider::Rustls(CryptoMode::AwsLc)).tls_context(tls(authorities)?);
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

/// Returns a TLS configuration that trusts only the certificates of `authorities`. Without them, it trusts the
/// machine's certificates.
fn tls(authorities: Option<&Authorities>) -> Result<TlsContext, Error> {
    let trusted = match authorities {
        Some(authorities) => TrustStore::empty().with_pem_certificate(certificates(authorities)?),
        None => TrustStore::default(),
    };
    TlsContext::builder()
        .with_trust_store(trusted)
        .build()
        .map_err(|error| Error::invalid(format!("TLS cannot be set up: {error}")))
}

/// Reads the PEM file of `authorities`. Parses it here, because the SDK's client would panic on an invalid file.
fn certificates(authorities: &Authorities) -> Result<Vec<u8>, Error> {
    let Authorities { file, setting } = authorities;
    let help = format!("{setting} names a PEM file of the certificates to trust at the store's endpoint");
    let pem = std::fs::read(file)
        .map_err(|error| Error::invalid(format!("{file:?} cannot be read: {error}")).with_help(&help))?;
    let unreadable = |error: &dyn std::fmt::Display| {
        Error::invalid(format!("{file:?} has a certificate that cannot be read: {error}")).with_help(&help)
    };
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(&pem) {
        let certificate = certificate.map_err(|error| unreadable(&error))?;
        roots.add(certificate).map_err(|error| unreadable(&error))?;
    }
    if roots.is_empty() {
        return Err(Error::invalid(format!("{file:?} has no certificate")).with_help(&help));
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
            for (authorities, setting) in [
                (Authorities::of_option(&path), "`ca`"),
                (Authorities::of_machine(path.clone()), "AWS_CA_BUNDLE"),
            ] {
                let error = client(Some(&authorities), None).unwrap_err();
                assert!(error.to_string().contains(named) && error.to_string().contains(&path), "{error:?}");
                assert!(error.help()[0].contains(setting), "{error:?}");
            }
        }
        let missing = client(Some(&Authorities::of_option("/not/there.pem")), None).unwrap_err();
        assert!(missing.to_string().contains("/not/there.pem"));
    }

    #[test]
    fn without_options_the_sdks_own_client_is_used() {
        assert!(client(None, None).unwrap().is_none());
        assert!(client(None, Some("http://proxy:3128")).unwrap().is_some());
    }
}
