//! Code that the stores with buckets (S3, GCS, Azure) share: the location of a register in a bucket, the keys of its
//! objects, and listings.

mod keys;
mod listing;
mod protocol;

pub(super) use self::keys::Keys;
pub(super) use self::listing::{Page, listing};
pub(super) use self::protocol::Protocol;
use super::over_http::{Meaning, failed};
use crate::error::{Error, Fault, StoreError};
use crate::register::{Deleted, Version, Write};
use crate::url::flaw_of_path;

/// The longest prefix, in bytes. An object key has at most 1,024 bytes. Of these, `/`, a percent-encoded name of 256
/// bytes and `.lock` take 774.
pub(super) const MAX_PREFIX_BYTES: usize = 250;

/// Splits the path of an object's URL into the folder and the last part of the object key: `/a/b/c.json` into `a/b` and
/// `c.json`.
pub(super) fn checked_object(path: &str) -> Result<(String, String), Error> {
    let key = path.strip_prefix('/').unwrap_or(path);
    let flaw = if key.is_empty() { Some("names no object".to_owned()) } else { flaw_of_path(key, 1_024) };
    if let Some(flaw) = flaw {
        return Err(Error::invalid(format!("the object key {key:?} {flaw}"))
            .with_help("write the object's URL like s3://my-bucket/path/counter.json"));
    }
    let (folder, name) = key.rsplit_once('/').unwrap_or(("", key));
    Ok((folder.to_owned(), name.to_owned()))
}

/// Returns the outcome of a read from the `result` of its request. `parse` reads the response.
pub(super) fn found<T, U>(
    result: Result<T, Meaning>,
    parse: impl FnOnce(T) -> Result<U, Fault>,
) -> Result<Option<U>, StoreError> {
    match result {
        Ok(answer) => parse(answer).map(Some).map_err(Fault::not_applied),
        Err(Meaning::Absent) => Ok(None),
        Err(other) => Err(failed(other)),
    }
}

/// Returns the outcome of a conditional write from the `result` of its request. `version` reads the new version in the
/// response. If there is none, the object was written, but could never be replaced.
pub(super) fn written<T>(
    result: Result<T, Meaning>,
    version: impl FnOnce(T) -> Result<Version, Fault>,
) -> Result<Write, StoreError> {
    match result {
        Ok(answer) => version(answer).map(Write::Committed).map_err(Fault::maybe_applied),
        Err(Meaning::Conflict) => Ok(Write::Conflict),
        Err(other) => Err(failed(other)),
    }
}

/// Returns the outcome of a conditional delete from the `result` of its request.
pub(super) fn deleted<T>(result: Result<T, Meaning>) -> Result<Deleted, StoreError> {
    match result {
        Ok(_) => Ok(Deleted::Deleted),
        Err(Meaning::Conflict) => Ok(Deleted::Conflict),
        Err(other) => Err(failed(other)),
    }
}
