//! Code that the object stores (S3, GCS, Azure) share: the location of a register in a bucket, the keys of its objects,
//! and listings.

mod keys;
mod listing;
#[cfg(any(feature = "gcs", feature = "s3", fuzzing))]
mod protocol;

use std::time::Duration;

pub(super) use self::keys::Keys;
pub(super) use self::listing::{Page, listing};
#[cfg(any(feature = "gcs", feature = "s3", fuzzing))]
pub(super) use self::protocol::Protocol;
use crate::error::{Error, ErrorKind, Fault, StoreError};
use crate::register::{MAX_OBJECT_BYTES, MAX_VALUE_BYTES};

/// The longest prefix, in bytes. An object key has at most 1,024 bytes. Of these, `/`, a percent-encoded name of 256
/// bytes and `.lock` take 774.
const MAX_PREFIX_BYTES: usize = 250;

/// The lowest transfer rate for which the time limit of a request is extended, in bytes of body per second.
const SLOWEST_BYTES_PER_SECOND: usize = 256 << 10;

/// Returns the time limit of a request with a body of this many `bytes`. `least` is the limit of a request with a
/// record.
pub(super) fn request_limit(least: Duration, bytes: usize) -> Duration {
    if bytes <= MAX_VALUE_BYTES {
        return least;
    }
    least + Duration::from_secs((bytes / SLOWEST_BYTES_PER_SECOND) as u64)
}

/// An operation of an object store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    Read,
    /// Reads the metadata only. S3's errors then have no code.
    #[cfg_attr(
        not(any(feature = "azure", feature = "s3")),
        allow(dead_code, reason = "GCS answers it as a read")
    )]
    Head,
    /// A write that expects no object.
    Create,
    /// A write that expects a version.
    Replace,
    Delete,
    List,
}

impl Operation {
    /// Whether the operation can change an object.
    pub(super) fn changes(self) -> bool {
        matches!(self, Self::Create | Self::Replace | Self::Delete)
    }

    pub(super) fn verb(self) -> &'static str {
        match self {
            Self::Read | Self::Head => "read",
            Self::Create | Self::Replace => "write",
            Self::Delete => "delete",
            Self::List => "list",
        }
    }
}

/// The meaning of an unsuccessful response of an object store.
#[derive(Debug)]
pub(super) enum Meaning {
    /// There is no object at that key.
    Absent,
    /// The precondition does not hold.
    Conflict,
    Failed(StoreError),
}

/// Returns the error of a request whose response can only mean a failure.
pub(super) fn failed(meaning: Meaning) -> StoreError {
    match meaning {
        Meaning::Failed(error) => error,
        // Each store's `meaning` returns these only for operations that handle them.
        Meaning::Absent | Meaning::Conflict => {
            Fault::new(ErrorKind::Corrupt, "an impossible response").maybe_applied()
        }
    }
}

#[cfg(test)]
impl Meaning {
    /// Returns `absent`, `conflict`, or for a failure `not` or `maybe` (applied) and the kind of the fault.
    pub(super) fn short(&self) -> String {
        match self {
            Self::Absent => "absent".into(),
            Self::Conflict => "conflict".into(),
            Self::Failed(error) => super::answer::tests::short(error),
        }
    }

    pub(super) fn fault(self) -> Fault {
        match self {
            Self::Failed(StoreError::NotApplied(fault) | StoreError::MaybeApplied(fault)) => fault,
            other => panic!("{other:?}"),
        }
    }
}

/// The kind of values that a register was opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Contents {
    /// Records of locks: small, and without metadata.
    Records,
    /// Objects of users, with their metadata.
    Objects,
}

impl Contents {
    /// The maximum length of a value, in bytes.
    pub(super) fn most_bytes(self) -> usize {
        match self {
            Self::Records => MAX_VALUE_BYTES,
            Self::Objects => MAX_OBJECT_BYTES,
        }
    }

    /// Returns the error for an object that is longer than [`most_bytes`](Self::most_bytes).
    pub(super) fn too_large(self, object: &str, bytes: Option<usize>) -> StoreError {
        let most = self.most_bytes();
        let size = bytes.map_or_else(|| format!("more than {most}"), |bytes| bytes.to_string());
        let fault = match self {
            Self::Records => Fault::new(
                ErrorKind::Corrupt,
                format!("the object {object:?} has {size} bytes; lock records have about 1,000"),
            )
            .with_help("it is not a record of leasehold: inspect it, and move it away if it is not needed"),
            Self::Objects => Fault::new(
                ErrorKind::Unsupported,
                format!(
                    "the object {object:?} has {size} bytes, and leasehold reads and writes {most} at most"
                ),
            )
            .with_help(
                "objects are kept in memory and written in one request: split it, or store the name of a \
                larger object in it",
            ),
        };
        fault.not_applied()
    }
}

/// Splits the path of an object's URL into the folder and the last part of the object key: `/a/b/c.json` into `a/b` and
/// `c.json`. `example` is an object's URL that errors show.
pub(super) fn checked_object(path: &str, example: &str) -> Result<(String, String), Error> {
    let key = path.strip_prefix('/').unwrap_or(path);
    let flaw = if key.is_empty() {
        Some("names no object")
    } else if key.len() > 1_024 {
        Some("is longer than 1,024 bytes")
    } else if key.chars().any(crate::types::is_unprintable) {
        Some("contains a control or invisible character")
    } else if key.split('/').any(|segment| matches!(segment, "" | "." | "..")) {
        Some("has an empty, `.` or `..` segment")
    } else {
        None
    };
    if let Some(flaw) = flaw {
        return Err(Error::invalid(format!("the object key {key:?} {flaw}"))
            .with_help(format!("write the object's URL like {example}")));
    }
    let (folder, name) = key.rsplit_once('/').unwrap_or(("", key));
    Ok((folder.to_owned(), name.to_owned()))
}

/// Returns the prefix in the path of a store URL, without `/` at either end. `example` is a store URL that errors show.
pub(super) fn checked_prefix(path: &str, example: &str) -> Result<String, Error> {
    let prefix = path.strip_prefix('/').unwrap_or(path);
    let prefix = prefix.strip_suffix('/').unwrap_or(prefix);
    let flaw = if prefix.is_empty() {
        None
    } else if prefix.len() > MAX_PREFIX_BYTES {
        Some("is longer than 250 bytes")
    } else if prefix.chars().any(crate::types::is_unprintable) {
        Some("contains a control or invisible character")
    } else if prefix.split('/').any(|segment| matches!(segment, "" | "." | "..")) {
        // Clients, proxies and stores disagree on the meaning of such segments.
        Some("has an empty, `.` or `..` segment")
    } else {
        None
    };
    match flaw {
        None => Ok(prefix.to_owned()),
        Some(flaw) => Err(Error::invalid(format!("the prefix {prefix:?} {flaw}"))
            .with_help(format!("write the store URL like {example}"))),
    }
}
