//! The arguments of `leasehold serve`.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::builder::NonEmptyStringValueParser;
use clap::{Args, ValueEnum, ValueHint};

#[derive(Debug, Args)]
#[command(
    after_help = "Clients acquire, renew and release locks by HTTP; see /openapi.json and docs/serve.md. They renew \
their holds themselves. The server keeps no state that a lock depends on: any server on the same store serves any \
ticket. SIGTERM ends it. Nothing is released then.

Open the address in a browser to see the locks; with --ui=rw, to reserve locks and evict holders too
(docs/dashboard.md).

Only this machine can reach the default address, and every user of the machine may see and acquire locks. To evict a \
holder, send the token that is printed at the start. Beyond this machine, --access and --tls-cert are needed.

Examples:
  leasehold serve
  curl http://127.0.0.1:7420/v1/locks
  leasehold -s s3://my-bucket/locks serve --access access.toml --secret-file secret
  leasehold serve --listen 0.0.0.0:7420 --access access.toml --tls-cert tls.crt --tls-key tls.key"
)]
pub(crate) struct ServeArgs {
    /// Address to listen on
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:7420")]
    pub(crate) listen: SocketAddr,
    /// File with tokens and rules, in TOML [default: this machine's users may see and acquire locks]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) access: Option<PathBuf>,
    /// File with a secret of at least 32 bytes, the same for all servers of the store. A request that is repeated at
    /// another server, or after a restart, is recognised by it [default: random]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) secret_file: Option<PathBuf>,
    /// File to which each acquisition, release, loss and eviction is appended, as a line of JSON
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) audit: Option<PathBuf>,
    /// Address of a separate listener for /metrics, in the format of Prometheus, without access control
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub(crate) metrics: Option<SocketAddr>,
    /// Further name under which clients address the server; can be repeated
    #[arg(long, value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    pub(crate) host: Vec<String>,
    /// File with the server's certificate, in PEM form, followed by intermediate ones. The server then speaks HTTPS. When
    /// the file changes, new connections use the new certificate
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, requires = "tls_key")]
    pub(crate) tls_cert: Option<PathBuf>,
    /// File with the private key of the certificate, in PEM form
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, requires = "tls_cert")]
    pub(crate) tls_key: Option<PathBuf>,
    /// File with the certificate authority of clients, in PEM form. Clients may send a certificate in place of a token;
    /// the access file says whose it is
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, requires_all = ["tls_cert", "access"])]
    pub(crate) client_ca: Option<PathBuf>,
    /// Listen beyond this machine although there is no TLS or no --access
    #[arg(long)]
    pub(crate) insecure: bool,
    /// What the dashboard at /ui/ may do
    #[arg(long, value_name = "MODE", value_enum, default_value = "ro")]
    pub(crate) ui: Ui,
}

/// What the dashboard may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Ui {
    /// Nothing: there is no dashboard
    Off,
    /// Show the locks
    Ro,
    /// Also reserve locks, evict holders and examine the store, after signing in with a token
    Rw,
}
