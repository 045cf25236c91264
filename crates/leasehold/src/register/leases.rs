//! The lease protocol on a register.

use std::sync::Arc;

use super::Register;
use crate::lease::StoreOptions;

/// Leases on any [`Register`].
#[derive(Debug)]
pub struct RegisterLeases {
    pub(crate) register: Arc<dyn Register>,
    pub(crate) options: StoreOptions,
}

impl RegisterLeases {
    /// Leases on `register`.
    pub fn new(register: Arc<dyn Register>, options: StoreOptions) -> Self {
        Self { register, options }
    }
}
