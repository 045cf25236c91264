//! Code that the stores over HTTP share: S3, DynamoDB, GCS, Azure, Kubernetes and `leasehold serve`.
//!
//! `answer` interprets responses for all of them but `leasehold serve`. The other modules send requests for those that
//! do not use Amazon's SDK (`aws`).

pub(super) mod answer;
pub(super) mod causes;
pub(super) mod credential_cache;
#[cfg(feature = "_reqwest")]
pub(super) mod exchange;
#[cfg(feature = "_reqwest")]
pub(super) mod https;
#[cfg(test)]
pub(super) mod scripted;
pub(super) mod transport;
#[cfg(all(test, any(feature = "dynamodb", feature = "gcs", feature = "s3")))]
pub(super) mod wire_rules;

use std::time::Duration;

use crate::error::{ErrorKind, Fault, StoreError};
use crate::register::MAX_VALUE_BYTES;

/// An operation on an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    Read,
    /// Reads the metadata only. S3's errors then have no code.
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

/// The meaning of an unsuccessful response.
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
            Self::Failed(error) => self::answer::tests::short(error),
        }
    }

    pub(super) fn fault(self) -> Fault {
        match self {
            Self::Failed(StoreError::NotApplied(fault) | StoreError::MaybeApplied(fault)) => fault,
            other => panic!("{other:?}"),
        }
    }
}

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
