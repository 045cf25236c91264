//! What the stores of objects (S3, GCS) share: where in a bucket a register lies, and the keys of its objects.

mod keys;

use std::sync::Arc;

pub(super) use self::keys::Keys;
use crate::error::Error;
use crate::lease::{LeaseStore, StoreOptions};
use crate::register::{Register, RegisterLeases};
use crate::url::StoreUrl;

/// The longest prefix, in bytes: an object key has at most 1,024, of which `/`, a percent-encoded name of 256 and
/// `.lock` take 774.
const MAX_PREFIX_BYTES: usize = 250;

/// What the objects of a lock look like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Protocol {
    /// A record that stays: `<name>.lock`, free or held.
    Lease,
    /// The lock is held while an object with its name exists, as simple clients have it.
    Existence,
}

impl Protocol {
    /// Takes the option `protocol` out of `url`.
    pub(super) fn take(url: &mut StoreUrl) -> Result<Self, Error> {
        match url.take("protocol").as_deref() {
            None | Some("lease") => Ok(Self::Lease),
            Some("existence") => Ok(Self::Existence),
            Some(other) => Err(Error::invalid(format!("there is no protocol {other:?}")).with_help(
                "the protocols are `lease`, which is the default, and `existence`, for sharing locks with clients that \
                 create an object and delete it",
            )),
        }
    }

    /// Leases by this protocol on `register`.
    pub(super) fn leases(self, register: Arc<dyn Register>, options: StoreOptions) -> Arc<dyn LeaseStore> {
        Arc::new(match self {
            Self::Lease => RegisterLeases::new(register, options),
            Self::Existence => RegisterLeases::by_existence(register, options),
        })
    }

    /// The keys of objects below `prefix`.
    pub(super) fn keys(self, prefix: &str) -> Keys {
        match self {
            Self::Lease => Keys::below(prefix),
            // Other clients know nothing of our encoding.
            Self::Existence => Keys::verbatim(prefix),
        }
    }
}

/// The prefix that the path of a store URL names, without `/` at either end; `example` is such a URL.
pub(super) fn checked_prefix(path: &str, example: &str) -> Result<String, Error> {
    let prefix = path.strip_prefix('/').unwrap_or(path);
    let prefix = prefix.strip_suffix('/').unwrap_or(prefix);
    let flaw = if prefix.is_empty() {
        None
    } else if prefix.len() > MAX_PREFIX_BYTES {
        Some("is longer than 250 bytes")
    } else if prefix.chars().any(crate::name::is_unprintable) {
        Some("contains a control or invisible character")
    } else if prefix.split('/').any(|segment| matches!(segment, "" | "." | "..")) {
        // Clients, proxies and stores disagree on what they mean.
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
