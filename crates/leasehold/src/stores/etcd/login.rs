//! The user of a cluster, and the source of the password.

use crate::error::Error;
use crate::stores::password::Password;
use crate::url::StoreUrl;

const FORMS: &str = "it is like etcd://user:password@host:2379/prefix/, percent-encoded, or etcd://user@host:2379/prefix/ with \
                     password_env=NAME or password_file=/PATH";

/// A user of the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Login {
    pub(super) user: String,
    password: Password,
}

impl Login {
    /// Takes the user out of `url`, and the options that name the source of the password.
    ///
    /// # Errors
    /// Invalid for a user without a password, a password without a user, and more than one source for a password.
    pub(super) fn take(url: &mut StoreUrl) -> Result<Option<Self>, Error> {
        let password = Password::take(url)?;
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
        self.password.read()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

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
