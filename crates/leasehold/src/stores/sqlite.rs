//! Soon.

use std::sync::Arc;

use crate::error::Error;
use crate::lease::{LeaseStore, StoreOptions};
use crate::url::StoreUrl;

/// Opens it.
///
/// # Errors
/// Always, for now.
pub async fn open(url: StoreUrl, options: StoreOptions) -> Result<Arc<dyn LeaseStore>, Error> {
    let _ = options;
    Err(Error::unsupported(format!("{url}: not yet")))
}
