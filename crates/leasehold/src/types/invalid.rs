//! [`InvalidValue`]: why a name, an id, a token or a time to live is not valid.

use std::fmt;

/// The error for an invalid value. Its message quotes the value and says why it is invalid.
///
/// Converts into an [`Error`](crate::Error) of kind [`ErrorKind::Invalid`](crate::ErrorKind::Invalid).
///
/// ```
/// let error = leasehold::LockName::new("a//b").unwrap_err();
/// assert!(error.to_string().contains("a//b"));
/// assert_eq!(leasehold::Error::from(error).kind(), leasehold::ErrorKind::Invalid);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidValue {
    message: String,
    help: Option<&'static str>,
}

impl InvalidValue {
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), help: None }
    }

    pub(crate) fn with_help(mut self, help: &'static str) -> Self {
        self.help = Some(help);
        self
    }

    /// Returns what a valid value looks like, if the message does not say so.
    pub fn help(&self) -> Option<&'static str> {
        self.help
    }
}

impl fmt::Display for InvalidValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for InvalidValue {}
