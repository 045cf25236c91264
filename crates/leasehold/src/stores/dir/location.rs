//! The path of the directory in a store URL.

use std::path::PathBuf;

use crate::error::Error;
use crate::lease::StoreOptions;
use crate::url::StoreUrl;

/// Returns the path that `url` names, and applies its settings to `options`.
///
/// # Errors
/// Invalid for a URL with a host or without a path.
pub(super) fn path_of(url: StoreUrl, options: &mut StoreOptions) -> Result<PathBuf, Error> {
    let checked = url.checked(options)?;
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
        path_of(StoreUrl::parse(url)?, &mut StoreOptions::default())
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
    fn a_url_without_a_directory_is_refused_with_help() {
        for bad in ["dir:", "dir://host/locks", "dir://locks", "dir://user@/locks", "dir:~/locks"] {
            let error = path(bad).unwrap_err();
            assert_eq!((error.kind(), error.help().len()), (ErrorKind::Invalid, 1), "{bad}: {error:?}");
        }
    }
}
