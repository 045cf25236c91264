//! Where the file is, and whether locks may be kept there.

use std::ffi::OsString;
use std::fs::{self, DirBuilder, Metadata};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{Access, access, statfs};
#[cfg(any(target_os = "linux", target_os = "android"))]
use rustix::fs::{AtFlags, CWD, StatxFlags, statx};

use crate::error::{Error, ErrorKind, Fault};
use crate::url::StoreUrl;

/// A place for the file, not looked at yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Location {
    pub(super) path: PathBuf,
    /// The user vouches that only this machine opens the file, whatever its file system can do.
    pub(super) allow_network: bool,
}

impl Location {
    /// Takes the place out of `url`.
    ///
    /// # Errors
    /// Invalid for a URL with an authority or with a path that is no file.
    pub(super) fn from_url(url: &mut StoreUrl) -> Result<Self, Error> {
        let allow_network = url.take_switch("allow_network")?.unwrap_or(false);
        let authority = url.authority().unwrap_or("");
        if !authority.is_empty() || url.user().is_some() {
            return Err(Error::invalid(format!("a file has no host: {url}")).with_help(format!(
                "with one slash or three for an absolute path, with none for a relative one: sqlite:{}",
                format_args!("{authority}{}", url.path())
            )));
        }
        let path = match url.path() {
            "" => default_path(std::env::var_os("XDG_STATE_HOME"), std::env::var_os("HOME"))?,
            path if path.starts_with(":memory:") => {
                return Err(Error::invalid("locks in SQLite's memory would be seen by nobody else")
                    .with_help("for tests within one process: mem:"));
            }
            path if path.ends_with('/') => {
                return Err(Error::invalid(format!("{path} is a folder, not a file"))
                    .with_help(format!("name a file in it: sqlite:{path}locks.db")));
            }
            path => PathBuf::from(path),
        };
        // The file may be opened again after the program has changed its working directory.
        let path = std::path::absolute(path).map_err(|error| {
            Error::invalid(format!("{url} is relative to a working directory that cannot be told: {error}"))
        })?;
        Ok(Self { path, allow_network })
    }

    /// Makes the folder if it is missing, and refuses what cannot work with an error that says why.
    pub(super) fn prepare(&self) -> Result<(), Fault> {
        create_folder(folder_of(&self.path))?;
        // SQLite follows links, and keeps its -wal and -shm files where they lead.
        let path = fs::canonicalize(&self.path).unwrap_or_else(|_| self.path.clone());
        let folder = folder_of(&path);
        match fs::metadata(&path) {
            Ok(metadata) => check_file(&path, folder, &metadata)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(failed("read", &path, &error)),
        }
        if access(folder, Access::WRITE_OK | Access::EXEC_OK).is_err() {
            return Err(Fault::new(
                ErrorKind::Denied,
                format!("the folder {} cannot be written", folder.display()),
            )
            .with_help("SQLite keeps -wal and -shm files beside its file: the folder must be writable too"));
        }
        if self.allow_network { Ok(()) } else { refuse_shared(folder) }
    }
}

fn folder_of(path: &Path) -> &Path {
    path.parent().unwrap_or(Path::new("/"))
}

fn check_file(path: &Path, folder: &Path, metadata: &Metadata) -> Result<(), Fault> {
    let shown = path.display();
    if metadata.is_dir() {
        return Err(Fault::new(ErrorKind::Invalid, format!("{shown} is a folder, not a file"))
            .with_help(format!("name a file in it: sqlite:{shown}/locks.db")));
    }
    // Opening a pipe would wait for ever.
    if !metadata.is_file() {
        return Err(Fault::new(ErrorKind::Invalid, format!("{shown} is not a regular file")));
    }
    // By each of its paths the file would have another -wal beside it: each side would grant the lock.
    if metadata.nlink() > 1 {
        return Err(Fault::new(ErrorKind::Unsupported, format!("{shown} has several names (hard links)"))
            .with_help("keep one of them; a symbolic link may lead to it"));
    }
    if is_mount(path, folder) {
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

/// Whether `file` is on another mount than the folder that it is in, as with `docker run -v /a/locks.db:/b/locks.db`.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn is_mount(file: &Path, folder: &Path) -> bool {
    let mount = |path: &Path| {
        let status = statx(CWD, path, AtFlags::empty(), StatxFlags::MNT_ID).ok()?;
        (status.stx_mask & StatxFlags::MNT_ID.bits() != 0).then_some(status.stx_mnt_id)
    };
    mount(file) != mount(folder)
}

/// Elsewhere a file cannot be mounted without its folder.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn is_mount(_: &Path, _: &Path) -> bool {
    false
}

/// `$XDG_STATE_HOME/leasehold/locks.db`, else `~/.local/state/leasehold/locks.db`.
fn default_path(state: Option<OsString>, home: Option<OsString>) -> Result<PathBuf, Error> {
    // The XDG specification says that a relative path is to be ignored.
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

/// Others have no business in folders that we make: names and notes of locks may tell much.
fn create_folder(folder: &Path) -> Result<(), Fault> {
    match DirBuilder::new().recursive(true).mode(0o700).create(folder) {
        Ok(()) => Ok(()),
        Err(error) => Err(failed("create the folder", folder, &error)),
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

/// A file that two kernels can open has two boot clocks, and its locks would be granted twice.
fn refuse_shared(folder: &Path) -> Result<(), Fault> {
    let Ok(status) = statfs(folder) else { return Ok(()) };
    #[cfg(any(target_os = "linux", target_os = "android"))]
    let shared = shared_file_system(status.f_type as u64 & 0xffff_ffff);
    #[cfg(target_vendor = "apple")]
    let shared = (status.f_flags & MNT_LOCAL == 0).then_some("a network file system");
    #[cfg(not(any(target_os = "linux", target_os = "android", target_vendor = "apple")))]
    let shared = {
        let _ = status;
        None::<&str>
    };
    let Some(kind) = shared else { return Ok(()) };
    Err(Fault::new(
        ErrorKind::Unsupported,
        format!("{} is on {kind}, which other machines may share", folder.display()),
    )
    .with_help(
        "SQLite locks are for one machine: use a local disk, or a store for many machines; \
         if only this machine opens the file: ?allow_network=on",
    ))
}

/// From <sys/mount.h>.
#[cfg(target_vendor = "apple")]
const MNT_LOCAL: u32 = 0x1000;

/// The file systems of statfs(2) that another kernel can have mounted at the same time.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn shared_file_system(magic: u64) -> Option<&'static str> {
    Some(match magic {
        0x6969 => "NFS",
        0x517b | 0xff53_4d42 | 0xfe53_4d42 => "SMB",
        0x0102_1997 => "9p (a folder of a virtual machine's host)",
        0x6573_5546 => "FUSE (sshfs, a cloud drive, a folder of a virtual machine's host)",
        0x786f_4256 => "a VirtualBox shared folder",
        0xbacb_acbc => "a VMware shared folder",
        0x00c3_6400 => "Ceph",
        0x5346_414f | 0x6b41_4653 => "AFS",
        0x7375_7245 => "Coda",
        0x0bd0_0bd0 => "Lustre",
        0x4750_4653 => "GPFS",
        0x0116_1970 => "GFS2",
        0x7461_636f => "OCFS2",
        0x1983_0326 => "BeeGFS",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn location(url: &str) -> Result<Location, Error> {
        let mut url = StoreUrl::parse(url)?;
        let location = Location::from_url(&mut url)?;
        url.finish()?;
        Ok(location)
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
            assert_eq!(location(url).unwrap(), Location { path, allow_network: false }, "{url}");
        }
        assert!(location("sqlite:x.db?allow_network=on").unwrap().allow_network);
    }

    #[test]
    fn what_names_no_file_is_refused_with_help() {
        for bad in [
            "sqlite://host/x.db",
            "sqlite://locks.db",
            "sqlite://user@/x.db",
            "sqlite::memory:",
            "sqlite:folder/",
            "sqlite:x.db?allow_netwrok=on",
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
    fn missing_folders_are_made_for_their_owner_only() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("a/b/locks.db");
        Location { path, allow_network: true }.prepare().unwrap();
        for made in ["a", "a/b"] {
            let mode = fs::metadata(home.path().join(made)).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o700, "{made}");
        }
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
            let fault = Location { path: path.clone(), allow_network: true }.prepare().unwrap_err();
            assert_eq!(fault.kind, kind, "{path:?}: {fault:?}");
        }
    }

    #[test]
    fn a_file_with_two_names_is_refused_and_one_with_a_symbolic_link_is_not() {
        let home = tempfile::tempdir().unwrap();
        let at = |name: &str| home.path().join(name);
        let prepare = |name: &str| Location { path: at(name), allow_network: true }.prepare();
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
    fn a_file_on_another_mount_than_its_folder_is_noticed() {
        let home = tempfile::tempdir().unwrap();
        fs::write(home.path().join("locks.db"), "").unwrap();
        assert!(!is_mount(&home.path().join("locks.db"), home.path()));
        assert!(is_mount(&home.path().join("locks.db"), Path::new("/proc")));
    }

    #[test]
    fn without_write_permission_the_error_says_so() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("locks.db");
        fs::write(&path, "").unwrap();
        // Permissions do not bind root.
        let expected = if rustix::process::geteuid().is_root() { None } else { Some(ErrorKind::Denied) };
        for (what, mode, usual) in [(&path, 0o400, 0o600), (&home.path().to_owned(), 0o500, 0o700)] {
            fs::set_permissions(what, fs::Permissions::from_mode(mode)).unwrap();
            let fault = Location { path: path.clone(), allow_network: true }.prepare().err();
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

    #[cfg(target_os = "linux")]
    #[test]
    fn file_systems_that_machines_share_are_known_and_local_ones_are_not_refused() {
        for shared in [0x6969, 0xfe53_4d42, 0x6573_5546, 0x0102_1997] {
            assert!(shared_file_system(shared).is_some(), "{shared:x}");
        }
        // ext4, btrfs, xfs, tmpfs, overlayfs, zfs
        for local in [0xef53, 0x9123_683e, 0x5846_5342, 0x0102_1994, 0x794c_7630, 0x2fc1_2fc1] {
            assert_eq!(shared_file_system(local), None, "{local:x}");
        }
    }
}
