//! TLS for stores whose clients use rustls: MySQL, NATS, PostgreSQL and Redis.

use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};

use crate::error::{Error, Fault, StoreError};
use crate::stores::hosts::Tls;
use crate::url::unreadable_file;
use crate::worker::program_ends;

/// Returns the TLS configuration of a client for `store`. Blocks, because the files may be on a disk that hangs.
pub(super) fn client_config(tls: &Tls, store: &str) -> Result<ClientConfig, Error> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(authorities(tls)?);
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let no_client = |error: rustls::Error| {
        Error::invalid(format!(
            "the TLS options of the {store} store URL cannot be used for a TLS client: {error}"
        ))
        .with_help("`ca`, `cert` and `key` are PEM files: certificates, and the private key of `cert`")
    };
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(no_client)?
        .with_root_certificates(roots);
    match &tls.identity {
        None => Ok(builder.with_no_client_auth()),
        Some((certificate, key)) => {
            let chain = certificates(certificate, "cert")?;
            let key = PrivateKeyDer::from_pem_slice(&read(key, "key")?)
                .map_err(|error| unreadable(key, "key", &error))?;
            builder.with_client_auth_cert(chain, key).map_err(no_client)
        }
    }
}

/// Returns the certificates of the authorities to trust. Blocks.
pub(super) fn authorities(tls: &Tls) -> Result<Vec<CertificateDer<'static>>, Error> {
    let is_readable = |der: &CertificateDer<'static>| RootCertStore::empty().add(der.clone());
    let Some(file) = &tls.authority else {
        // Ignores certificates that cannot be parsed.
        let mut system = rustls_native_certs::load_native_certs().certs;
        system.retain(|der| is_readable(der).is_ok());
        return Ok(system);
    };
    let given = certificates(file, "ca")?;
    match given.iter().find_map(|der| is_readable(der).err()) {
        Some(error) => Err(unreadable(file, "ca", &error)),
        None => Ok(given),
    }
}

/// Returns the texts of the client's certificate and its key. Blocks.
#[allow(dead_code, reason = "only a client that reads certificates itself needs them")]
pub(super) fn identity(tls: &Tls) -> Result<Option<[Vec<u8>; 2]>, Error> {
    let texts = |(certificate, key): &(String, String)| Ok([read(certificate, "cert")?, read(key, "key")?]);
    tls.identity.as_ref().map(texts).transpose()
}

/// Reads files on a thread for blocking work. A connection reads the password and the TLS files again, because they may be
/// replaced while the store is open.
pub(super) async fn blocking<T: Send + 'static>(
    read: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, StoreError> {
    let read = tokio::task::spawn_blocking(read).await;
    let read = read.map_err(|_| program_ends().not_applied())?;
    read.map_err(|error| {
        let fault = Fault::new(error.kind(), error.to_string());
        match error.help().first() {
            Some(help) => fault.with_help(help),
            None => fault,
        }
        .not_applied()
    })
}

fn certificates(file: &str, option: &str) -> Result<Vec<CertificateDer<'static>>, Error> {
    let pem = read(file, option)?;
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
    match all {
        Ok(all) if all.is_empty() => Err(unreadable(file, option, &"it contains no certificate")),
        Ok(all) => Ok(all),
        Err(error) => Err(unreadable(file, option, &error)),
    }
}

fn read(file: &str, option: &str) -> Result<Vec<u8>, Error> {
    std::fs::read(file).map_err(|error| unreadable(file, option, &error))
}

fn unreadable(file: &str, option: &str, why: &dyn std::fmt::Display) -> Error {
    unreadable_file(option, file, "a PEM file", why)
}
