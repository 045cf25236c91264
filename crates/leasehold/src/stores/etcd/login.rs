//! The user of a cluster, and the source of the password.

use std::fmt;

use crate::error::{Error, ErrorKind};
use crate::url::StoreUrl;

const FORMS: &str = "it is like etcd://user:password@host:2379/prefix/, percent-encoded, or etcd://user@host:2379/prefix/ with \
                     password_env=NAME or password_file=/PATH";

/// A user of the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Login {
    pub(super) user: String,
    password: Password,
}

/// The source of a password. `Debug` does not show the password.
#[derive(Clone, PartialEq, Eq)]
enum Password {
    /// In the store URL.
    Given(String),
    /// In the environment variable with that name.
    Variable(String),
    /// In a file.
    File(String),
}

impl fmt::Debug for Password {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Given(_) => "Given",
            Self::Variable(_) => "Variable",
            Self::File(_) => "File",
        })
    }
}

impl Login {
    /// Takes the user out of `url`, and the options that name the source of the password.
    ///
    /// # Errors
    /// Invalid for a user without a password, a password without a user, and more than one source for a password.
    pub(super) fn take(url: &mut StoreUrl) -> Result<Option<Self>, Error> {
        let variable = url.take("password_env").map(checked_variable).transpose()?.map(Password::Variable);
        let file = url.take("password_file").map(checked_file).transpose()?.map(Password::File);
        let given = url.password().map(|password| Password::Given(password.to_owned()));
        let mut places = [given, variable, file].into_iter().flatten();
        let (password, another) = (places.next(), places.next());
        if another.is_some() {
            return Err(Error::invalid("the etcd store URL names more than one password")
                .with_help("leave one of them: in the URL, `password_env` or `password_file`"));
        }
        match (url.user(), password) {
            (None, None) => Ok(None),
            (Some(user), Some(password)) if !user.is_empty() => {
                Ok(Some(Self { user: user.to_owned(), password }))
            }
            _ => {
                Err(Error::invalid("the login in the etcd store URL lacks a user or a password")
                    .with_help(FORMS))
            }
        }
    }

    /// Reads the password. Blocks if it is in a file.
    ///
    /// # Errors
    /// Invalid if the variable is not set, or the file cannot be read.
    pub(super) fn password(&self) -> Result<String, Error> {
        match &self.password {
            Password::Given(password) => Ok(password.clone()),
            Password::Variable(name) => std::env::var(name).map_err(|_| {
                Error::invalid(format!(
                    "the option `password_env` names the variable {name}, which is not set"
                ))
                .with_help(format!("set {name} to the password of the etcd user"))
            }),
            Password::File(path) => {
                let text = std::fs::read_to_string(path).map_err(|error| {
                    Error::new(
                        ErrorKind::Invalid,
                        format!("the option `password_file` names {path:?}, which cannot be read: {error}"),
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

/// The value may be the password itself, so it is not repeated. Names in capitals are what [`StoreUrl`] shows.
fn checked_variable(name: String) -> Result<String, Error> {
    if crate::url::is_variable(&name) {
        return Ok(name);
    }
    Err(Error::invalid("the option `password_env` is the name of an environment variable, in capitals")
        .with_help("write password_env=ETCD_PASSWORD, and set that variable to the password"))
}

fn checked_file(path: String) -> Result<String, Error> {
    if path.starts_with('/') && !path.chars().any(crate::types::is_unprintable) {
        return Ok(path);
    }
    Err(Error::invalid("the option `password_file` is the absolute path of a file")
        .with_help("write password_file=/run/secrets/etcd, a file that holds the password and nothing else"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(url: &str) -> Result<Option<Login>, Error> {
        Login::take(&mut StoreUrl::parse(url).unwrap())
    }

    #[test]
    fn a_password_is_read_from_a_file_as_it_is_now() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("password");
        let login = read(&format!("etcd://u@h?password_file={}", file.display())).unwrap().unwrap();
        let error = login.password().unwrap_err();
        assert!(error.to_string().contains("password_file") && !error.help().is_empty(), "{error:?}");
        for (text, password) in [("one\n", "one"), ("two", "two"), ("three \r\n", "three "), ("\n\n", "\n")] {
            std::fs::write(&file, text).unwrap();
            assert_eq!(login.password().unwrap(), password);
        }
    }

    #[test]
    fn a_password_is_read_from_a_variable() {
        // Set by cargo for its tests.
        let login = read("etcd://u@h?password_env=CARGO_PKG_NAME").unwrap().unwrap();
        assert_eq!(login.password().unwrap(), "leasehold");
        let login = read("etcd://u@h?password_env=LEASEHOLD_NO_SUCH_VARIABLE").unwrap().unwrap();
        assert!(login.password().unwrap_err().to_string().contains("LEASEHOLD_NO_SUCH_VARIABLE"));
    }

    #[test]
    fn a_bad_place_for_a_password_is_refused_and_not_repeated() {
        for (url, named) in [
            ("etcd://u@h?password_env=hunter2", "password_env"),
            ("etcd://u@h?password_env=", "password_env"),
            ("etcd://u@h?password_file=hunter2", "password_file"),
            ("etcd://u:hunter2@h?password_file=/f", "more than one"),
            ("etcd://u@h?password_file=/f&password_env=P", "more than one"),
            ("etcd://h?password_env=P", "lacks a user"),
            ("etcd://u@h", "password"),
            ("etcd://:hunter2@h", "user"),
        ] {
            let error = read(url).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{url}");
            assert!(error.to_string().contains(named) && !error.help().is_empty(), "{url}: {error:?}");
            assert!(!format!("{error} {error:?}").contains("hunter2"), "{error:?}");
        }
        let login = read("etcd://u:hunter2@h").unwrap().unwrap();
        assert!(!format!("{login:?}").contains("hunter2"));
    }
}
