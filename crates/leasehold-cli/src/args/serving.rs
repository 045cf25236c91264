//! The arguments of `leasehold serve`.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::builder::NonEmptyStringValueParser;
use clap::{Args, ValueEnum, ValueHint};
use leasehold_serve::Settings;

#[derive(Debug, Args)]
#[command(
    after_help = "Clients acquire, renew and release locks over HTTP; see /openapi.json and docs/serve.md. The \
server does not renew locks for its clients. It keeps no state that a lock depends on: any server on the same store \
accepts any ticket. SIGTERM stops the server; it releases no locks.

Open the address in a browser to see the locks and, with --ui=rw, to acquire locks and to evict holders \
(docs/dashboard.md).

Only this machine can reach the default address, and every user of the machine may see and acquire locks. To evict a \
holder, send the token that the server prints at startup. To listen beyond this machine, use --access and --tls-cert.

Examples:
  leasehold serve
  curl http://127.0.0.1:7420/v1/locks
  leasehold -s s3://my-bucket/locks serve --access access.toml \\
    --secret-file secret
  leasehold serve --listen 0.0.0.0:7420 --access access.toml \\
    --tls-cert tls.crt --tls-key tls.key"
)]
pub(crate) struct ServeArgs {
    /// Address to listen on
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:7420")]
    pub(crate) listen: SocketAddr,
    /// TOML file with tokens, OIDC issuers and rules [default: this machine's users may see and acquire locks]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) access: Option<PathBuf>,
    /// File with a secret of at least 32 bytes, the same for all servers of the store. With it, a server recognises
    /// a request that was sent to another server or before a restart [default: random]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) secret_file: Option<PathBuf>,
    /// File to which the server appends a line of JSON for each acquisition, release, loss and eviction
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) audit: Option<PathBuf>,
    /// Address of a separate listener without access control, for Prometheus metrics at /metrics and for probes at
    /// /healthz and /readyz
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub(crate) metrics: Option<SocketAddr>,
    /// Maximum number of connections. Requests that wait for locks may be three quarters of them
    #[arg(long, value_name = "N", default_value_t = Settings::MAX_CONNECTIONS, value_parser = connections)]
    pub(crate) max_connections: usize,
    /// Clients connect through a reverse proxy. Otherwise, one address may have a quarter of the connections
    #[arg(long)]
    pub(crate) behind_proxy: bool,
    /// Additional host name that clients use for the server; can be repeated
    #[arg(long, value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    pub(crate) host: Vec<String>,
    /// PEM file with the server's certificate, followed by intermediate certificates. The server then uses HTTPS. When
    /// the file changes, new connections use the new certificate
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, requires = "tls_key")]
    pub(crate) tls_cert: Option<PathBuf>,
    /// PEM file with the private key of the certificate
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, requires = "tls_cert")]
    pub(crate) tls_key: Option<PathBuf>,
    /// PEM file with the certificate authority of clients. Clients may send a certificate instead of a token; the
    /// access file maps certificates to principals
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, requires_all = ["tls_cert", "access"])]
    pub(crate) client_ca: Option<PathBuf>,
    /// Allow a --listen address beyond this machine without TLS or without --access, and a --metrics address beyond
    /// this machine
    #[arg(long)]
    pub(crate) insecure: bool,
    /// What the dashboard at /ui/ may do
    #[arg(long, value_name = "MODE", value_enum, default_value = "ro")]
    pub(crate) ui: Ui,
}

/// Parses a maximum number of connections.
fn connections(text: &str) -> Result<usize, String> {
    let number = text.parse().ok().filter(|number| (16..=1_000_000).contains(number));
    number.ok_or_else(|| "must be a number from 16 to 1,000,000".to_owned())
}

/// What the dashboard may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Ui {
    /// Nothing: there is no dashboard
    Off,
    /// Show the locks
    Ro,
    /// Also acquire locks, evict holders and examine the store, after signing in with a token
    Rw,
}
