//! TLS: the certificates of the server and of clients.

mod client;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{RootCertStore, ServerConfig};
use sha2::{Digest as _, Sha256};

pub(crate) use self::client::ClientCertificate;

/// The reason why a certificate or key cannot be used.
#[derive(Debug)]
pub struct InvalidTls(String);

impl fmt::Display for InvalidTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for InvalidTls {}

/// The certificate of a server, its key, and the authority whose clients it accepts. When the files change, new
/// connections use the new content.
///
/// ```no_run
/// use leasehold_serve::{Access, Settings, Tls};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let access = Access::local("a token");
/// let mut settings = Settings::new(([127, 0, 0, 1], 0).into(), access, b"a secret".to_vec());
/// settings.tls = Some(Tls::load("tls.crt".into(), "tls.key".into(), None)?.into());
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Tls {
    files: Files,
    current: Mutex<Loaded>,
}

#[derive(Debug)]
struct Files {
    certificate: PathBuf,
    key: PathBuf,
    client_ca: Option<PathBuf>,
}

/// The contents of the files.
struct Contents {
    certificate: Vec<u8>,
    key: Vec<u8>,
    client_ca: Option<Vec<u8>>,
}

#[derive(Debug)]
struct Loaded {
    config: Arc<ServerConfig>,
    /// The digest of the contents that were read last, even if they could not be used.
    read: [u8; 32],
}

impl Tls {
    /// Loads the server's `certificate`, followed by intermediate certificates, and its `key` from PEM files. With
    /// `client_ca`, clients may send a certificate of this authority.
    ///
    /// # Errors
    /// A file cannot be used. The error names the file and the reason.
    pub fn load(certificate: PathBuf, key: PathBuf, client_ca: Option<PathBuf>) -> Result<Self, InvalidTls> {
        let files = Files { certificate, key, client_ca };
        let contents = files.read()?;
        let config = files.config(&contents)?;
        Ok(Self { current: Mutex::new(Loaded { config, read: contents.digest() }), files })
    }

    /// Returns whether clients may send a certificate.
    pub fn accepts_client_certificates(&self) -> bool {
        self.files.client_ca.is_some()
    }

    /// Returns the configuration for a new connection. Reads the files. If they cannot be used, for example because
    /// only one of them has been replaced so far, the previous configuration stays in use. Blocks, because the files
    /// may be on a disk that hangs.
    pub(crate) fn config(&self) -> Arc<ServerConfig> {
        let contents = self.files.read();
        let read = match &contents {
            Ok(contents) => contents.digest(),
            Err(error) => Sha256::digest(&error.0).into(),
        };
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        if current.read != read {
            current.read = read;
            match contents.and_then(|contents| self.files.config(&contents)) {
                Ok(config) => {
                    tracing::info!("new connections use the new TLS files");
                    current.config = config;
                }
                Err(error) => {
                    tracing::warn!(
                        "the new TLS files cannot be used; the previous ones stay in use: {error}"
                    );
                }
            }
        }
        current.config.clone()
    }
}

impl Files {
    fn read(&self) -> Result<Contents, InvalidTls> {
        Ok(Contents {
            certificate: read(&self.certificate)?,
            key: read(&self.key)?,
            client_ca: self.client_ca.as_deref().map(read).transpose()?,
        })
    }

    fn config(&self, contents: &Contents) -> Result<Arc<ServerConfig>, InvalidTls> {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let unusable = |error: &dyn fmt::Display| {
            InvalidTls(format!(
                "{} and {} cannot be used for TLS: {error}",
                self.certificate.display(),
                self.key.display()
            ))
        };
        let builder = ServerConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(|error| unusable(&error))?;
        let builder = match (&self.client_ca, &contents.client_ca) {
            (Some(file), Some(pem)) => {
                let mut roots = RootCertStore::empty();
                for certificate in certificates(file, pem)? {
                    roots.add(certificate).map_err(|error| invalid(file, &error))?;
                }
                let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
                    .allow_unauthenticated()
                    .build()
                    .map_err(|error| invalid(file, &error))?;
                builder.with_client_cert_verifier(verifier)
            }
            _ => builder.with_no_client_auth(),
        };
        let chain = certificates(&self.certificate, &contents.certificate)?;
        // Drop the error of the parser, so that it cannot repeat the key.
        let key = PrivateKeyDer::from_pem_slice(&contents.key)
            .map_err(|_| invalid(&self.key, &"it contains no private key in PEM format"))?;
        let mut config = builder.with_single_cert(chain, key).map_err(|error| unusable(&error))?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        if self.client_ca.is_some() {
            // A resumed session would not verify the client's certificate again, although it may have expired in the
            // meantime.
            config.session_storage = Arc::new(NoServerSessionStorage {});
            config.send_tls13_tickets = 0;
        }
        Ok(Arc::new(config))
    }
}

impl Contents {
    fn digest(&self) -> [u8; 32] {
        let mut digest = Sha256::new();
        for part in [&self.certificate, &self.key, self.client_ca.as_ref().unwrap_or(&Vec::new())] {
            digest.update((part.len() as u64).to_le_bytes());
            digest.update(part);
        }
        digest.finalize().into()
    }
}

fn read(file: &Path) -> Result<Vec<u8>, InvalidTls> {
    std::fs::read(file).map_err(|error| invalid(file, &error))
}

fn certificates(file: &Path, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, InvalidTls> {
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match all {
        Ok(all) if !all.is_empty() => Ok(all),
        Ok(_) | Err(_) => Err(invalid(file, &"it contains no certificate in PEM format")),
    }
}

fn invalid(file: &Path, why: &dyn fmt::Display) -> InvalidTls {
    InvalidTls(format!("{}: {why}", file.display()))
}
