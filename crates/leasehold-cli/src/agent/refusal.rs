//! [`Refusal`]: why a request failed, as reported to the host.

use leasehold::error::Sizes;
use leasehold::{Error, HolderInfo, Token};

use crate::exit::Failure;

/// Why a request failed. Contains no secrets.
#[derive(Debug)]
pub(super) struct Refusal {
    pub(super) kind: String,
    pub(super) message: String,
    pub(super) help: Vec<String>,
    pub(super) held_by: Option<Box<HolderInfo>>,
    pub(super) refused_by: Option<Token>,
    pub(super) sizes: Option<Sizes>,
    pub(super) maybe_applied: bool,
}

impl Refusal {
    pub(super) fn new(kind: &str, message: impl Into<String>) -> Self {
        Failure::new(0, kind, message).into()
    }

    /// Creates the refusal of a request that is itself wrong.
    pub(super) fn invalid(message: impl Into<String>) -> Self {
        Self::new("invalid", message)
    }

    /// Creates the refusal of a request that exceeds a limit.
    pub(super) fn limit(message: impl Into<String>) -> Self {
        Self::new("limit", message)
    }

    pub(super) fn cancelled() -> Self {
        Self::new("cancelled", "the request was cancelled")
    }

    pub(super) fn with_help(mut self, help: impl Into<String>) -> Self {
        self.help.push(help.into());
        self
    }
}

impl From<Failure> for Refusal {
    fn from(failure: Failure) -> Self {
        let Failure { kind, message, help, .. } = failure;
        // An error that means a wrong command line elsewhere means a wrong field here.
        let kind = if kind == "usage" { "invalid".to_owned() } else { kind };
        Self { kind, message, help, held_by: None, refused_by: None, sizes: None, maybe_applied: false }
    }
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        let (held_by, refused_by) = (error.holder().cloned().map(Box::new), error.refused_by());
        let (sizes, maybe_applied) = (error.sizes(), error.maybe_applied());
        Self { held_by, refused_by, sizes, maybe_applied, ..Failure::from(error).into() }
    }
}
