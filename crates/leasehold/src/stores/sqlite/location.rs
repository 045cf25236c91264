//! The location of the file, and the checks whether it can keep locks.

use std::ffi::OsString;
use std::fs::{self, DirBuilder, Metadata};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{Access, access};

use super::mounts;
use crate::error::{Error, ErrorKind, Fault};
use crate::lease::StoreOptions;
use crate::stores::file_system;
use crate::url::StoreUrl;

/// A location that has not been checked yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Location {
    pub(super) path: PathBuf,
    /// Whether the user guarantees that only this machine opens the file. The file system is then not checked.
    pub(super) allow_network: bool,
    /// Whether this is the default location. Its folder is created if it is missing.
    pub(super) is_default: bool,
}

impl Location {
    /// Reads the location, and applies the common settings of `url` to `options`.
    ///
    /// # Errors
    /// Invalid for a URL with an authority or with a path that is not a file.
    pub(super) fn from_url(url: StoreUrl, options: &mut StoreOptions) -> Result<Self, Error> {
        let checked = url.checked(options)?;
        let (url, allow_network) = (&checked.url, checked.switch("allow_network"));
        let authority = url.authority().unwrap_or("");
        if !authority.is_empty() || url.user().is_some() {
            return Err(Error::invalid(format!("a file has no host: {url}")).with_help(format!(
                "use one or three slashes for an absolute path, none for a relative one: sqlite:{}",
                format_args!("{authority}{}", url.path())
            )));
        }
        let is_default = url.path().is_empty();
        let path = match url.path() {
            "" => default_path(std::env::var_os("XDG_STATE_HOME"), std::env::var_os("HOME"))?,
            path if path.starts_with(":memory:") => {
                return Err(Error::invalid(
                    "an in-memory SQLite database cannot be shared with other processes",
                )
                .with_help("for tests within one process: mem:"));
            }
            path if path.ends_with('/') => {
                return Err(Error::invalid(format!("{path} is a folder, not a file"))
                    .with_help(format!("name a file in it: sqlite:{path}locks.db")));
            }
            path => PathBuf::from(path),
        };
        // Makes the path absolute, because the file may be opened again after the program has changed its working
        // directory.
        let path = std::path::absolute(path).map_err(|error| {
            Error::invalid(format!(
                "{url} is relative to a working directory that cannot be determined: {error}"
            ))
        })?;
        Ok(Self { path, allow_network, is_default })
    }

    /// Creates the folder if it is missing. Only its owner has access, because names and notes of locks may be
    /// confidential.
    pub(super) fn create_folder(&self) -> Result<(), Fault> {
        let folder = folder_of(&self.path);
        let created = DirBuilder::new().recursive(true).mode(0o700).create(folder);
        created.map_err(|error| failed("create the folder", folder, &error))
    }

    /// Returns whether the folder is certainly missing.
    pub(super) fn has_no_folder(&self) -> bool {
        fs::metadata(folder_of(&self.path)).is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
    }

    /// Checks the location. If it cannot work, the error explains why. Returns the path without symbolic links, as far
    /// as it exists, because SQLite keeps its -wal and -shm files beside that path.
    pub(super) fn prepare(&self) -> Result<PathBuf, Fault> {
        if self.is_default {
            self.create_folder()?;
        }
        let folder = fs::canonicalize(folder_of(&self.path)).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => self.no_folder(),
            _ => failed("read", folder_of(&self.path), &error),
        })?;
        let path = match fs::canonicalize(&self.path) {
            Ok(path) => path,
            Err(_) => folder.join(self.path.file_name().unwrap_or_default()),
        };
        let folder = folder_of(&path);
        match fs::metadata(&path) {
            Ok(metadata) => check_file(&path, &metadata)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(failed("read", &path, &error)),
        }
        if !self.allow_network {
            file_system::require_local(folder)?;
        }
        if access(folder, Access::WRITE_OK | Access::EXEC_OK).is_err() {
            return Err(Fault::new(
                ErrorKind::Denied,
                format!("the folder {} cannot be written", folder.display()),
            )
            .with_help("SQLite keeps -wal and -shm files beside its file: the folder must be writable too"));
        }
        Ok(path)
    }

    /// Returns the type of the file system that the file is on. Fails if the type is not known to be local.
    pub(super) fn file_system(&self) -> Result<String, Fault> {
        let path = fs::canonicalize(&self.path).unwrap_or_else(|_| self.path.clone());
        file_system::require_local(folder_of(&path))
    }

    fn no_folder(&self) -> Fault {
        let (folder, path) = (folder_of(&self.path).display(), self.path.display());
        Fault::new(ErrorKind::Invalid, format!("the folder {folder} does not exist"))
            .with_help(format!("check the path, or create the folder: leasehold init --store sqlite:{path}"))
    }
}

fn folder_of(path: &Path) -> &Path {
    path.parent().unwrap_or(Path::new("/"))
}

fn check_file(path: &Path, metadata: &Metadata) -> Result<(), Fault> {
    let shown = path.display();
    if metadata.is_dir() {
        return Err(Fault::new(ErrorKind::Invalid, format!("{shown} is a folder, not a file"))
            .with_help(format!("name a file in it: sqlite:{shown}/locks.db")));
    }
    // Opening a pipe would block forever.
    if !metadata.is_file() {
        return Err(Fault::new(ErrorKind::Invalid, format!("{shown} is not a regular file")));
    }
    // Each name of the file would have a separate -wal file beside it, so processes that use different names would each
    // grant the lock.
    if metadata.nlink() > 1 {
        return Err(Fault::new(ErrorKind::Unsupported, format!("{shown} has several names (hard links)"))
            .with_help("keep one of them; a symbolic link may lead to it"));
    }
    // As with `docker run -v /a/locks.db:/b/locks.db`. Each place has its own -wal file too.
    if mounts::is_mounted(path)? {
        return Err(Fault::new(
            ErrorKind::Unsupported,
            format!("{shown} is mounted by itself, without its folder"),
        )
        .with_help("mount the folder instead: SQLite keeps -wal and -shm files beside its file"));
    }
    if access(path, Access::READ_OK | Access::WRITE_OK).is_err() {
        return Err(Fault::new(ErrorKind::Denied, format!("{shown} cannot be read and written"))
            .with_help("taking a lock writes to the file: ask its owner for write permission"));
    }
    Ok(())
}

/// Returns `$XDG_STATE_HOME/leasehold/locks.db`, else `~/.local/state/leasehold/locks.db`.
fn default_path(state: Option<OsString>, home: Option<OsString>) -> Result<PathBuf, Error> {
    // The XDG specification requires that a relative path is ignored.
    let absolute = |folder: Option<OsString>| folder.map(PathBuf::from).filter(|folder| folder.is_absolute());
    let state = absolute(state).or_else(|| absolute(home).map(|home| home.join(".local/state")));
    match state {
        Some(state) => Ok(state.join("leasehold/locks.db")),
        None => {
            Err(Error::invalid("`sqlite:` without a path needs HOME or XDG_STATE_HOME, and neither is set")
                .with_help("name the file: sqlite:/var/lib/myapp/locks.db"))
        }
    }
}

fn failed(what: &str, path: &Path, error: &io::Error) -> Fault {
    use io::ErrorKind as K;
    let kind = match error.kind() {
        K::PermissionDenied | K::ReadOnlyFilesystem => ErrorKind::Denied,
        K::NotADirectory | K::AlreadyExists | K::InvalidFilename | K::NotFound => ErrorKind::Invalid,
        _ => ErrorKind::Unavailable,
    };
    let fault = Fault::new(kind, format!("cannot {what} {}: {error}", path.display()));
    match kind {
        ErrorKind::Denied => {
            fault.with_help("name a file in a folder that you may write to, like sqlite:locks.db")
        }
        ErrorKind::Invalid => fault.with_help("a part of the path is not a folder, or cannot be one"),
        _ => fault,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn location(url: &str) -> Result<Location, Error> {
        Location::from_url(StoreUrl::parse(url)?, &mut StoreOptions::default())
    }

    #[test]
    fn every_form_of_the_url_names_its_file() {
        for (url, path) in [
            ("sqlite:rel.db", "rel.db"),
            ("sqlite:a%20b/c.db", "a b/c.db"),
            ("sqlite:/abs.db", "/abs.db"),
            ("sqlite:///abs.db", "/abs.db"),
        ] {
            let path = std::env::current_dir().unwrap().join(path);
            assert_eq!(
                location(url).unwrap(),
                Location { path, allow_network: false, is_default: false },
                "{url}"
            );
        }
        assert!(location("sqlite:x.db?allow_network=on").unwrap().allow_network);
    }

    #[test]
    fn a_url_without_a_file_is_refused_with_help() {
        for bad in [
            "sqlite://host/x.db",
            "sqlite://locks.db",
            "sqlite://user@/x.db",
            "sqlite::memory:",
            "sqlite:folder/",
        ] {
            let error = location(bad).unwrap_err();
            assert_eq!((error.kind(), error.help().len()), (ErrorKind::Invalid, 1), "{bad}: {error:?}");
        }
        assert!(location("sqlite://locks.db").unwrap_err().help()[0].ends_with("sqlite:locks.db"));
    }

    #[test]
    fn the_default_is_in_the_users_state_folder() {
        let path = |state: Option<&str>, home: Option<&str>| {
            default_path(state.map(Into::into), home.map(Into::into))
        };
        assert_eq!(path(Some("/s"), Some("/h")).unwrap(), Path::new("/s/leasehold/locks.db"));
        for unusable in [None, Some(""), Some("relative")] {
            let expected = Path::new("/h/.local/state/leasehold/locks.db");
            assert_eq!(path(unusable, Some("/h")).unwrap(), expected);
        }
        assert_eq!(path(None, None).unwrap_err().kind(), ErrorKind::Invalid);
    }

    #[test]
    fn a_missing_default_folder_is_made_for_its_owner_only() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("a/b/locks.db");
        Location { path, allow_network: true, is_default: true }.prepare().unwrap();
        for made in ["a", "a/b"] {
            let mode = fs::metadata(home.path().join(made)).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o700, "{made}");
        }
    }

    #[test]
    fn a_missing_folder_that_was_named_is_an_error() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("a/b/locks.db");
        let fault =
            Location { path: path.clone(), allow_network: true, is_default: false }.prepare().unwrap_err();
        assert_eq!(fault.kind, ErrorKind::Invalid);
        assert!(fault.message.contains(path.parent().unwrap().to_str().unwrap()), "{fault:?}");
        let help = fault.help.unwrap();
        assert!(help.contains(&format!("leasehold init --store sqlite:{}", path.display())), "{help}");
        assert!(fs::read_dir(home.path()).unwrap().next().is_none(), "nothing was made");
    }

    #[test]
    fn a_place_where_no_file_can_be_is_refused() {
        let home = tempfile::tempdir().unwrap();
        fs::write(home.path().join("file"), "").unwrap();
        let cases = [
            (home.path().to_owned(), ErrorKind::Invalid),
            (home.path().join("file/locks.db"), ErrorKind::Invalid),
            (home.path().join("n".repeat(300)), ErrorKind::Invalid),
            (PathBuf::from("/dev/null"), ErrorKind::Invalid),
        ];
        for (path, kind) in cases {
            let fault = Location { path: path.clone(), allow_network: true, is_default: false }
                .prepare()
                .unwrap_err();
            assert_eq!(fault.kind, kind, "{path:?}: {fault:?}");
        }
    }

    #[test]
    fn a_hard_linked_file_is_refused_and_a_symbolic_link_is_not() {
        let home = tempfile::tempdir().unwrap();
        let at = |name: &str| home.path().join(name);
        let prepare =
            |name: &str| Location { path: at(name), allow_network: true, is_default: false }.prepare();
        fs::write(at("locks.db"), "").unwrap();
        std::os::unix::fs::symlink(at("locks.db"), at("symbolic")).unwrap();
        prepare("symbolic").unwrap();
        fs::hard_link(at("locks.db"), at("hard")).unwrap();
        for name in ["locks.db", "hard", "symbolic"] {
            assert_eq!(prepare(name).unwrap_err().kind, ErrorKind::Unsupported, "{name}");
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_file_system_that_is_not_local_is_refused() {
        // Nobody can create a file there. The file system is named before the missing permission.
        let location = Location { path: "/proc/locks.db".into(), allow_network: false, is_default: false };
        let fault = location.prepare().unwrap_err();
        assert_eq!(fault.kind, ErrorKind::Unsupported, "{fault:?}");
    }

    #[test]
    fn without_write_permission_the_error_names_the_cause() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("locks.db");
        fs::write(&path, "").unwrap();
        // Permissions do not restrict root.
        let expected = if rustix::process::geteuid().is_root() { None } else { Some(ErrorKind::Denied) };
        for (what, mode, usual) in [(&path, 0o400, 0o600), (&home.path().to_owned(), 0o500, 0o700)] {
            fs::set_permissions(what, fs::Permissions::from_mode(mode)).unwrap();
            let fault =
                Location { path: path.clone(), allow_network: true, is_default: false }.prepare().err();
            fs::set_permissions(what, fs::Permissions::from_mode(usual)).unwrap();
            assert_eq!(fault.map(|fault| fault.kind), expected, "{what:?}");
        }
    }

    #[test]
    fn errors_of_the_system_have_their_kind() {
        use io::ErrorKind as K;
        for (system, kind) in [
            (K::PermissionDenied, ErrorKind::Denied),
            (K::ReadOnlyFilesystem, ErrorKind::Denied),
            (K::NotADirectory, ErrorKind::Invalid),
            (K::StorageFull, ErrorKind::Unavailable),
            (K::Other, ErrorKind::Unavailable),
        ] {
            assert_eq!(failed("read", Path::new("x"), &system.into()).kind, kind, "{system}");
        }
    }
}
