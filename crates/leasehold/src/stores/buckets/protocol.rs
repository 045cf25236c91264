//! The protocols that a store URL can select: records, or objects whose existence is the lock.

use std::sync::Arc;

use super::Keys;
use crate::lease::{LeaseStore, StoreOptions};
use crate::protocol::RegisterLeases;
use crate::register::Register;
use crate::url::CheckedUrl;

/// How objects represent a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::stores) enum Protocol {
    /// A record, `<name>.lock`, that remains when the lock is free.
    Lease,
    /// The lock is held while an object with its name exists, as in simple lock clients.
    Existence,
}

impl Protocol {
    pub(in crate::stores) fn of(url: &CheckedUrl) -> Self {
        url.word("protocol", &[("lease", Self::Lease), ("existence", Self::Existence)]).unwrap_or(Self::Lease)
    }

    /// Creates a lease store that uses this protocol on `register`.
    pub(in crate::stores) fn leases(
        self,
        register: Arc<dyn Register>,
        options: StoreOptions,
    ) -> Arc<dyn LeaseStore> {
        Arc::new(match self {
            Self::Lease => RegisterLeases::new(register, options),
            Self::Existence => RegisterLeases::by_existence(register, options),
        })
    }

    /// Returns the keys of objects below `prefix`.
    pub(in crate::stores) fn keys(self, prefix: &str) -> Keys {
        match self {
            Self::Lease => Keys::below(prefix),
            // Other clients do not know leasehold's encoding.
            Self::Existence => Keys::verbatim(prefix),
        }
    }
}
