//! The path of the directory in a store URL.

use std::path::PathBuf;

use crate::error::Error;
use crate::protocol::records::JsonRecords;
use crate::url::{CheckedUrl, StoreUrl, flaw_of_path};

/// The longest path, in bytes, on most systems.
const MAX_PATH_BYTES: usize = 4_095;

/// Returns the path that the URL names.
///
/// # Errors
/// Invalid for a URL with a host or without a path.
pub(super) fn path_of(checked: &CheckedUrl) -> Result<PathBuf, Error> {
    let url = &checked.url;
    let authority = url.authority().unwrap_or("");
    if !authority.is_empty() || url.user().is_some() {
        return Err(Error::invalid(format!("a directory has no host: {url}")).with_help(format!(
            "mount the directory and name the path of the mount, with one or three slashes: dir:{}",
            url.path()
        )));
    }
    if url.path().is_empty() {
        return Err(Error::invalid("the store URL names no directory").with_help(checked.form()));
    }
    absolute(url.path())
}

/// Returns the path of the object that `url` names.
///
/// # Errors
/// The same as those of [`path_of`], and invalid for a path that ends with `/`, has `.` or `..` in it, or ends like the
/// key of a lock.
pub(super) fn object_of(url: StoreUrl) -> Result<PathBuf, Error> {
    let path = path_of(&url.checked_object()?)?;
    let flaw = match path.to_str() {
        None => Some("is not UTF-8".to_owned()),
        Some(text) if JsonRecords::is_key(text) => {
            Some("ends like the key of a lock, with `.lock` or `.line`".to_owned())
        }
        Some(text) => flaw_of_path(text.strip_prefix('/').unwrap_or(text), MAX_PATH_BYTES),
    };
    match flaw {
        Some(flaw) => Err(Error::invalid(format!("the path {path:?} of an object {flaw}"))
            .with_help("write the object's URL like dir:/mnt/efs/locks/counter.json")),
        None => Ok(path),
    }
}

/// Returns `path` as an absolute path, because the program may change its working directory.
pub(super) fn absolute(path: &str) -> Result<PathBuf, Error> {
    std::path::absolute(path).map_err(|error| {
        Error::invalid(format!(
            "{path:?} is relative to a working directory that cannot be determined: {error}"
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    fn path(url: &str) -> Result<PathBuf, Error> {
        path_of(&StoreUrl::parse(url)?.checked_object()?)
    }

    #[test]
    fn every_form_of_the_url_names_its_directory() {
        let here = std::env::current_dir().unwrap();
        for (url, expected) in [
            ("dir:locks", here.join("locks")),
            ("dir:/mnt/efs/locks/", "/mnt/efs/locks/".into()),
            ("dir:///mnt/a%20b", "/mnt/a b".into()),
        ] {
            assert_eq!(path(url).unwrap(), expected, "{url}");
        }
    }

    #[test]
    fn an_object_has_a_path_of_its_own() {
        let of = |url: &str| object_of(StoreUrl::parse(url).unwrap());
        assert_eq!(of("dir:/locks/prod/a.json").unwrap(), PathBuf::from("/locks/prod/a.json"));
        for bad in [
            "dir:/locks/",
            "dir:/",
            "dir:/locks/../a.json",
            "dir:/locks/a.lock",
            "dir://host/a",
            "dir:",
            "dir:a?margin=1s",
        ] {
            let error = of(bad).unwrap_err();
            assert_eq!((error.kind(), error.help().len()), (ErrorKind::Invalid, 1), "{bad}: {error:?}");
        }
    }

    #[test]
    fn a_url_without_a_directory_is_refused_with_help() {
        for bad in ["dir:", "dir://host/locks", "dir://locks", "dir://user@/locks", "dir:~/locks"] {
            let error = path(bad).unwrap_err();
            assert_eq!((error.kind(), error.help().len()), (ErrorKind::Invalid, 1), "{bad}: {error:?}");
        }
    }
}
