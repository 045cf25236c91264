//! Leases whose requests stay in this process. For the simulation.

use std::sync::Arc;

pub use async_nats::RequestErrorKind;

use super::Bucketed;
pub use super::carrier::Carrier;
use super::config::Location;
use super::links::Links;
use crate::error::Error;
use crate::lease::StoreOptions;
use crate::protocol::RegisterLeases;
use crate::url::StoreUrl;
use crate::worker::OnWorker;

/// Opens leases in the bucket of `url`, on a server that `carrier` reaches. Reads no files.
///
/// # Errors
/// For a bad URL, and outside of a tokio runtime.
pub fn leases(
    url: &str,
    carrier: Arc<dyn Carrier>,
    mut options: StoreOptions,
) -> Result<RegisterLeases, Error> {
    let location = Location::from_url(StoreUrl::parse(url)?, &mut options)?;
    let (keys, env) = (location.keys.clone(), options.env.clone());
    let mut links = Links::new(location, env.clone());
    links.carrier = Some(carrier);
    let register = Bucketed { worker: OnWorker::here(links)?, keys, env };
    Ok(RegisterLeases::new(Arc::new(register), options))
}
