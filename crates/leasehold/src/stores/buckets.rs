//! Code that the stores with buckets (S3, GCS, Azure) share: the location of a register in a bucket, the keys of its
//! objects, and listings.

mod keys;
mod listing;
mod protocol;

pub(super) use self::keys::Keys;
pub(super) use self::listing::{Page, listing};
pub(super) use self::protocol::Protocol;
use super::over_http::{Meaning, failed};
use crate::error::{Error, StoreError};
use crate::register::Deleted;

/// The longest prefix, in bytes. An object key has at most 1,024 bytes. Of these, `/`, a percent-encoded name of 256
/// bytes and `.lock` take 774.
const MAX_PREFIX_BYTES: usize = 250;

/// Splits the path of an object's URL into the folder and the last part of the object key: `/a/b/c.json` into `a/b` and
/// `c.json`. `example` is an object's URL that errors show.
pub(super) fn checked_object(path: &str, example: &str) -> Result<(String, String), Error> {
    let key = path.strip_prefix('/').unwrap_or(path);
    let flaw = match key {
        "" => Some("names no object"),
        key if key.len() > 1_024 => Some("is longer than 1,024 bytes"),
        key => flaw(key),
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
    let flaw = match prefix {
        "" => None,
        prefix if prefix.len() > MAX_PREFIX_BYTES => Some("is longer than 250 bytes"),
        prefix => flaw(prefix),
    };
    match flaw {
        None => Ok(prefix.to_owned()),
        Some(flaw) => Err(Error::invalid(format!("the prefix {prefix:?} {flaw}"))
            .with_help(format!("write the store URL like {example}"))),
    }
}

/// Returns what is wrong with the characters or the segments of `path`.
fn flaw(path: &str) -> Option<&'static str> {
    if path.chars().any(crate::types::is_unprintable) {
        Some("contains a control or invisible character")
    } else if path.split('/').any(|segment| matches!(segment, "" | "." | "..")) {
        // Clients, proxies and stores disagree on the meaning of such segments.
        Some("has an empty, `.` or `..` segment")
    } else {
        None
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
