//! The address of an API server, and the source of its credentials.

use std::fmt;
use std::path::PathBuf;

use crate::error::Error;
use crate::stores::over_http::transport::Transport;

/// The source of credentials.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// No credentials, or a client certificate in [`Access::identity`].
    Connection,
    /// A token that does not change.
    Token(Secret),
    /// A file with a token, which is read again regularly.
    File(PathBuf),
    /// A program that prints a token.
    Plugin(Plugin),
}

/// Text or bytes that `Debug` does not show.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Secret(pub(super) Vec<u8>);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

/// How to reach the server, and with which credentials.
#[derive(Clone, Debug)]
pub(super) struct Access {
    /// The URL of the server, without `/` at its end.
    pub(super) server: String,
    pub(super) transport: Transport,
    /// The only trusted authorities, in PEM. If `None`, those of the system and of the option `ca` are trusted.
    pub(super) authorities: Option<Vec<u8>>,
    /// The certificate and the key of the client, in PEM.
    pub(super) identity: Option<Secret>,
    pub(super) source: Source,
}

impl Access {
    /// Fails if the server would receive credentials unencrypted.
    pub(super) fn checked(self) -> Result<Self, Error> {
        if self.source != Source::Connection {
            self.transport.check_secrecy(&self.server, "credentials")?;
        }
        Ok(self)
    }
}

/// A program that prints a token, called as kubectl calls it.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Plugin {
    pub(super) command: PathBuf,
    pub(super) args: Vec<String>,
    pub(super) env: Vec<(String, String)>,
    /// The value of the variable `KUBERNETES_EXEC_INFO`.
    pub(super) info: String,
    /// The kubeconfig's hint for a missing command.
    pub(super) hint: Option<String>,
}

impl fmt::Debug for Plugin {
    /// Omits arguments and variables, which may be secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Plugin").field("command", &self.command).finish_non_exhaustive()
    }
}
