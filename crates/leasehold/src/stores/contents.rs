//! What a register was opened for, and how long its values may be.

use crate::error::{ErrorKind, Fault, StoreError};
use crate::register::{MAX_OBJECT_BYTES, MAX_VALUE_BYTES};

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
