//! The source of a password that a store URL names.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::{Error, ErrorKind, StoreError};
use crate::url::{CheckedUrl, unreadable_file};

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
    /// Returns the password in `url`, or its source. Returns `None` if there is neither.
    ///
    /// # Errors
    /// Invalid for more than one source.
    pub(super) fn of(url: &CheckedUrl) -> Result<Option<Self>, Error> {
        let given = url.url.password().map(|password| Self::Given(password.to_owned()));
        Self::one_of(given, url, "password_env", "password_file")
    }

    /// Returns `given`, or the source of a password that one of two options names.
    pub(super) fn one_of(
        given: Option<Self>,
        url: &CheckedUrl,
        variable: &'static str,
        file: &'static str,
    ) -> Result<Option<Self>, Error> {
        let from_variable = url.text(variable).map(|name| Self::Variable { option: variable, name });
        let from_file = url.text(file).map(|path| Self::File { option: file, path });
        let mut places = [given, from_variable, from_file].into_iter().flatten();
        let (password, another) = (places.next(), places.next());
        if another.is_some() {
            return Err(Error::invalid("the store URL names more than one password")
                .with_help(format!("keep one of them: in the URL, `{variable}` or `{file}`")));
        }
        Ok(password)
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
                let what = "a file that holds the password and nothing else";
                let text = std::fs::read_to_string(path);
                let text = text.map_err(|error| unreadable_file(option, path, what, &error))?;
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Fault;
    use crate::lease::StoreOptions;
    use crate::url::StoreUrl;

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

    fn read(url: &str) -> Result<Option<Password>, Error> {
        Password::of(&StoreUrl::parse(url)?.checked(&mut StoreOptions::default())?)
    }

    #[test]
    fn a_password_is_read_from_a_file_as_it_is_now() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("password");
        let password = read(&format!("etcd://u@h?password_file={}", file.display())).unwrap().unwrap();
        let error = password.read().unwrap_err();
        assert!(error.to_string().contains("password_file") && !error.help().is_empty(), "{error:?}");
        for (text, read) in [("one\n", "one"), ("two", "two"), ("three \r\n", "three "), ("\n\n", "\n")] {
            std::fs::write(&file, text).unwrap();
            assert_eq!(password.read().unwrap(), read);
        }
    }

    #[test]
    fn a_password_is_read_from_a_variable() {
        // Set by cargo for its tests.
        let password = read("etcd://u@h?password_env=CARGO_PKG_NAME").unwrap().unwrap();
        assert_eq!(password.read().unwrap(), "leasehold");
        let password = read("etcd://u@h?password_env=LEASEHOLD_NO_SUCH_VARIABLE").unwrap().unwrap();
        assert!(password.read().unwrap_err().to_string().contains("LEASEHOLD_NO_SUCH_VARIABLE"));
    }

    #[test]
    fn there_is_one_password_and_it_is_not_shown() {
        for url in ["etcd://u:hunter2@h?password_file=/f", "etcd://u@h?password_file=/f&password_env=P"] {
            let error = read(url).unwrap_err();
            assert!(error.to_string().contains("more than one") && !error.help().is_empty(), "{error:?}");
            assert!(!format!("{error:?}").contains("hunter2"), "{error:?}");
        }
        assert!(!format!("{:?}", read("etcd://u:hunter2@h").unwrap()).contains("hunter2"));
    }
}
