//! The source of a password that a store URL names.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::{Error, ErrorKind, StoreError};
use crate::url::StoreUrl;

/// The source of a password. `Debug` does not show the password.
#[derive(Clone, PartialEq, Eq)]
pub(super) enum Password {
    /// The store URL contains the password.
    Given(String),
    /// The option names the environment variable that contains the password.
    Variable { option: &'static str, name: String },
    /// The option names the file that contains the password.
    File { option: &'static str, path: String },
}

impl fmt::Debug for Password {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Given(_) => "Given",
            Self::Variable { .. } => "Variable",
            Self::File { .. } => "File",
        })
    }
}

impl Password {
    /// Takes the password, or the option that names its source, out of `url`. Returns `None` if there is neither.
    ///
    /// # Errors
    /// Invalid for more than one source, and for a malformed source.
    pub(super) fn take(url: &mut StoreUrl) -> Result<Option<Self>, Error> {
        let given = url.password().map(|password| Self::Given(password.to_owned()));
        let variable = Self::variable(url, "password_env")?;
        let file = Self::file(url, "password_file")?;
        let mut places = [given, variable, file].into_iter().flatten();
        let (password, another) = (places.next(), places.next());
        if another.is_some() {
            return Err(Error::invalid("the store URL names more than one password")
                .with_help("keep one of them: in the URL, `password_env` or `password_file`"));
        }
        Ok(password)
    }

    /// Takes the option that names a variable.
    pub(super) fn variable(url: &mut StoreUrl, option: &'static str) -> Result<Option<Self>, Error> {
        let name = url.take(option).map(|name| checked_variable(name, option)).transpose()?;
        Ok(name.map(|name| Self::Variable { option, name }))
    }

    /// Takes the option that names a file.
    pub(super) fn file(url: &mut StoreUrl, option: &'static str) -> Result<Option<Self>, Error> {
        let path = url.take(option).map(|path| checked_file(path, option)).transpose()?;
        Ok(path.map(|path| Self::File { option, path }))
    }

    /// Reads the password. Blocks if it is in a file.
    ///
    /// # Errors
    /// Invalid if the variable is not set, or the file cannot be read.
    pub(super) fn read(&self) -> Result<String, Error> {
        match self {
            Self::Given(password) => Ok(password.clone()),
            Self::Variable { option, name } => std::env::var(name).map_err(|_| {
                Error::invalid(format!("the option `{option}` names the variable {name}, which is not set"))
                    .with_help(format!("set {name} to the password"))
            }),
            Self::File { option, path } => {
                let text = std::fs::read_to_string(path).map_err(|error| {
                    Error::new(
                        ErrorKind::Invalid,
                        format!("the option `{option}` names {path:?}, which cannot be read: {error}"),
                    )
                    .with_help("it is the path of a file that holds the password and nothing else")
                })?;
                // Strips the line ending.
                Ok(text
                    .strip_suffix('\n')
                    .map_or(text.as_str(), |text| text.strip_suffix('\r').unwrap_or(text))
                    .to_owned())
            }
        }
    }
}

/// Whether a server has accepted the login of a store URL before. A clone shares this.
///
/// Afterwards, the password and the files may be replaced. Until both the server and the files have the new ones, the
/// server refuses the login, or a file cannot be read. So such an error is transient then.
#[derive(Clone, Debug, Default)]
pub(super) struct Accepted(Arc<AtomicBool>);

impl Accepted {
    /// Records that a server has accepted the login.
    pub(super) fn note(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Returns `error`, the error of a connection, as a transient one if an earlier login was accepted.
    pub(super) fn judge(&self, error: StoreError) -> StoreError {
        match error {
            StoreError::NotApplied(mut fault)
                if self.0.load(Ordering::Relaxed)
                    && matches!(fault.kind, ErrorKind::Denied | ErrorKind::Invalid) =>
            {
                fault.kind = ErrorKind::Unavailable;
                fault.not_applied()
            }
            error => error,
        }
    }
}

/// Checks the name of a variable. The error does not show the value, because it may be the password itself. Only names
/// in capitals are accepted, because only those are shown by [`StoreUrl`].
fn checked_variable(name: String, option: &str) -> Result<String, Error> {
    if crate::url::is_variable(&name) {
        return Ok(name);
    }
    Err(Error::invalid(format!("the option `{option}` is the name of an environment variable, in capitals"))
        .with_help(format!("write {option}=LOCKS_PASSWORD, and set that variable to the password")))
}

fn checked_file(path: String, option: &str) -> Result<String, Error> {
    if path.starts_with('/') && !path.chars().any(crate::types::is_unprintable) {
        return Ok(path);
    }
    Err(Error::invalid(format!("the option `{option}` is the absolute path of a file")).with_help(format!(
        "write {option}=/run/secrets/locks, a file that holds the password and nothing else"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Fault;

    #[test]
    fn only_after_a_login_is_a_refused_login_transient() {
        let accepted = Accepted::default();
        let judged = |kind| accepted.judge(Fault::new(kind, "no").not_applied()).fault().kind;
        assert_eq!(judged(ErrorKind::Denied), ErrorKind::Denied);
        accepted.clone().note();
        assert_eq!(judged(ErrorKind::Denied), ErrorKind::Unavailable);
        assert_eq!(judged(ErrorKind::Invalid), ErrorKind::Unavailable);
        assert_eq!(judged(ErrorKind::Unsupported), ErrorKind::Unsupported);
    }
}
