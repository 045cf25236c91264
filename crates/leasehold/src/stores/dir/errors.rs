//! The meaning of the file system's errors for a lease, and the help for each.

use std::io;
use std::path::Path;

use crate::error::{ErrorKind, Fault};

/// A fault that passes through an [`io::Error`].
#[derive(Debug)]
pub(super) struct Lost(Fault);

impl Lost {
    pub(super) fn of(fault: Fault) -> io::Error {
        io::Error::other(Self(fault))
    }
}

impl std::fmt::Display for Lost {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0.message)
    }
}

impl std::error::Error for Lost {}

/// Returns the fault for a directory without a marker.
pub(super) fn not_prepared(path: &Path) -> Fault {
    let path = path.display();
    let message = format!("{path} is not a directory that was prepared for locks");
    Fault::new(ErrorKind::Invalid, message).with_help(format!(
        "if it is on a mount, check that the mount is there; prepare a new directory once: leasehold init --store \
         dir:{path}"
    ))
}

/// Returns the fault for the path of an object that is a directory of locks.
pub(super) fn no_object(path: &Path) -> Fault {
    let path = path.display();
    Fault::new(
        ErrorKind::Invalid,
        format!("{path} is a directory that was prepared, and not an object in it"),
    )
    .with_help(format!("name an object in it, like dir:{path}/counter.json"))
}

/// Returns the fault for a directory inside another one that was prepared.
pub(super) fn nested(path: &Path, outer: &Path) -> Fault {
    let (path, outer) = (path.display(), outer.display());
    Fault::new(ErrorKind::Invalid, format!("{path} is inside {outer}, which was prepared for locks"))
        .with_help(format!("use --store dir:{outer}, or a directory outside of it"))
}

/// Returns the fault for a directory in which only the owner of a file may remove it.
pub(super) fn sticky(path: &Path) -> Fault {
    let path = path.display();
    Fault::new(
        ErrorKind::Invalid,
        format!("{path} has the sticky bit, so users cannot remove each other's files"),
    )
    .with_help(format!("use a directory of its own without that bit: chmod -t {path}"))
}

/// Returns the fault for an operation that failed with `error`. `what` is the operation, as in "list".
pub(super) fn fault(what: &str, path: &Path, error: &io::Error) -> Fault {
    if let Some(Lost(fault)) = error.get_ref().and_then(|inner| inner.downcast_ref()) {
        let mut same = Fault::new(fault.kind, fault.message.clone());
        same.help.clone_from(&fault.help);
        return same;
    }
    let (kind, help) = meaning(error.kind());
    let fault = Fault::new(kind, format!("cannot {what} {}: {error}", path.display()));
    if help.is_empty() { fault } else { fault.with_help(help) }
}

fn meaning(error: io::ErrorKind) -> (ErrorKind, &'static str) {
    use io::ErrorKind as K;
    match error {
        K::PermissionDenied => (
            ErrorKind::Denied,
            "all users of the locks must be able to read, write and enter the directory and its folders: \
             see \"Several users\" in docs/stores/dir.md",
        ),
        K::ReadOnlyFilesystem => (ErrorKind::Denied, "the file system is mounted read-only"),
        K::Unsupported | K::CrossesDevices | K::TooManyLinks => (ErrorKind::Unsupported, NO_LINKS),
        K::NotADirectory | K::InvalidFilename => {
            (ErrorKind::Invalid, "a part of the path is not a directory, or cannot be one")
        }
        K::InvalidData | K::FileTooLarge => (
            ErrorKind::Corrupt,
            "the file was changed by hand or is damaged. Mend it while no process uses the directory: for a lock, remove its \
             folder (tokens keep rising); for an object, move the highest file away (the one below it has the \
             previous content)",
        ),
        K::StorageFull | K::QuotaExceeded => (ErrorKind::Unavailable, "free some space, or raise the quota"),
        K::StaleNetworkFileHandle => {
            (ErrorKind::Unavailable, "the directory was removed or exported anew on the file server")
        }
        _ => (ErrorKind::Unavailable, ""),
    }
}

/// The help for a file system without hard links.
pub(super) const NO_LINKS: &str = "this file system has no hard links, which locks in a directory need: for one machine \
    use sqlite:, for several machines one of the other stores (`leasehold help stores`)";

/// The help for a file system that is refused by its type.
pub(super) const OTHERS: &str = "for one machine use a local folder, for several machines a folder on NFS or one of the \
    other stores (`leasehold help stores`)";
