//! The rules of a key: how its value is read, written and deleted as a file with a number.
//! `docs/rfcs/0003-directory.md` says why this is safe.
//!
//! Everything here works on a [`Folder`], so that the tests can run each step of several writers in every order, on a
//! folder with stale listings, lost responses and wrong clocks.

use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::clock::Moment;
use crate::error::{ErrorKind, Fault, StoreError};
use crate::lease::Id;
use crate::register::{Body, Metadata, Version};

/// The limits that the rules depend on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// How many higher generations exist before a generation is removed (rule 2).
    pub(super) newer: u64,
    /// How old a generation is at least when it is removed, in microseconds of the file server's clock (rule 2).
    pub(super) age_us: u64,
    /// The same for the temporary file of a write.
    pub(super) temporary_age_us: u64,
    /// How long a write may take at most (rule 3).
    pub(super) longest_write: Duration,
}

/// The limits of every process. They are part of the format: all processes must agree on them.
pub(super) const LIMITS: Limits = Limits {
    newer: 16,
    age_us: 3_600_000_000,
    temporary_age_us: 1_800_000_000,
    longest_write: Duration::from_secs(60),
};

/// How often a generation may vanish between a listing and the read of its file.
const MAX_READS: usize = 8;

/// How many generations a write removes at most, so that it stays quick.
const MAX_REMOVED: usize = 64;

/// The end of the name of a temporary file. A nonce precedes it.
const TEMPORARY: &str = ".tmp";

/// The longest first line of a file, in bytes: metadata of the length that [`super::MAX_METADATA_BYTES`] allows, and
/// the headers of a file.
pub(super) const MAX_HEADER_BYTES: usize = 16 << 10;

/// The first word of each generation.
const MAGIC: &str = "leasehold-1";

/// The folder of one key. Each method is one operation on files.
pub(super) trait Folder {
    /// Returns the names in the folder. [`io::ErrorKind::NotFound`] if the key has no folder.
    fn list(&self) -> io::Result<Vec<String>>;
    /// Returns the content of a file.
    fn read(&self, name: &str) -> io::Result<Vec<u8>>;
    /// Returns the first [`MAX_HEADER_BYTES`] of a file, and its length in bytes.
    fn read_beginning(&self, name: &str) -> io::Result<(Vec<u8>, u64)>;
    /// Creates the folder, durably. Succeeds if it exists.
    fn make(&self) -> io::Result<()>;
    /// Creates a file with this header and this value, durably. Returns when its names last changed, in microseconds of
    /// the file server's clock.
    fn create(&self, name: &str, header: &[u8], value: &[u8]) -> io::Result<u64>;
    /// Gives the file `from` the second name `to`. Fails if that name exists.
    fn link(&self, from: &str, to: &str) -> io::Result<()>;
    /// Makes the names in the folder durable.
    fn sync(&self) -> io::Result<()>;
    /// Returns when the names of a file last changed, as [`create`](Self::create) does.
    fn stamp(&self, name: &str) -> io::Result<u64>;
    /// Removes a name.
    fn remove(&self, name: &str) -> io::Result<()>;
    /// Returns the current time on this machine.
    fn now(&self) -> Moment;
    /// Returns the fault for an operation that failed. `what` is the operation, as in "cannot list".
    fn fault(&self, what: &str, error: &io::Error) -> Fault;
}

/// What the first line of a generation's file says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Generation {
    pub(super) number: u64,
    pub(super) nonce: Id,
    /// The length of the value in bytes. `None` if the key has no value since this generation.
    pub(super) length: Option<u64>,
    pub(super) metadata: Metadata,
}

/// The metadata of a value in the header of its file.
#[derive(Serialize, Deserialize)]
#[serde(remote = "Metadata", rename_all = "kebab-case")]
struct Headers {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    content_type: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    cache_control: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    content_encoding: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    content_disposition: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    content_language: Option<String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    user: BTreeMap<String, String>,
}

#[derive(Serialize, Deserialize)]
struct Header(#[serde(with = "Headers")] Metadata);

impl Generation {
    /// Returns the version of the value.
    pub(super) fn version(&self) -> Version {
        Version::new(format!("{}-{}", self.number, self.nonce))
    }

    /// Returns the first line of its file: the nonce, the length and the metadata.
    fn header(&self) -> String {
        let Self { nonce, length, metadata, .. } = self;
        let length = length.map_or_else(|| "deleted".to_owned(), |length| length.to_string());
        match metadata.is_empty() {
            true => format!("{MAGIC} {nonce} {length}\n"),
            // JSON has no line break, except between its tokens.
            false => format!("{MAGIC} {nonce} {length} {}\n", json!(Header(metadata.clone()))),
        }
    }

    /// Reads the file of generation `number` from its beginning, which has the first line, and its length. Also returns
    /// the length of the first line. `None` if leasehold did not write it as it is.
    fn parse(number: u64, beginning: &[u8], file_bytes: u64) -> Option<(Self, usize)> {
        let end = beginning.iter().position(|&byte| byte == b'\n')?;
        let mut words = std::str::from_utf8(&beginning[..end]).ok()?.splitn(4, ' ');
        let (MAGIC, nonce, length) = (words.next()?, words.next()?.parse().ok()?, words.next()?) else {
            return None;
        };
        let metadata = match words.next() {
            Some(headers) => serde_json::from_str::<Header>(headers).ok()?.0,
            None => Metadata::default(),
        };
        let rest = file_bytes.checked_sub(end as u64 + 1)?;
        let length = match length {
            "deleted" if rest == 0 && metadata.is_empty() => None,
            length if length == rest.to_string() => Some(rest),
            _ => return None,
        };
        Some((Self { number, nonce, length, metadata }, end + 1))
    }
}

/// The outcome of a write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Written(Version),
    Conflict,
}

/// Reads the highest generation and its value. Returns `None` if the key was never written.
pub(super) fn read(folder: &impl Folder) -> Result<Option<(Generation, Bytes)>, Fault> {
    latest(folder, |number, name| {
        let content = Bytes::from(folder.read(name)?);
        let found = Generation::parse(number, &content, content.len() as u64);
        Ok(found.map(|(generation, from)| (generation, content.slice(from..))))
    })
}

/// Reads the first line of the highest generation. Returns `None` if the key was never written.
pub(super) fn head(folder: &impl Folder) -> Result<Option<Generation>, Fault> {
    latest(folder, |number, name| heading(folder, number, name))
}

fn heading(folder: &impl Folder, number: u64, name: &str) -> io::Result<Option<Generation>> {
    let (beginning, file_bytes) = folder.read_beginning(name)?;
    Ok(Generation::parse(number, &beginning, file_bytes).map(|(generation, _)| generation))
}

/// Returns what `open` reads of the highest generation. `open` returns `None` for a file that leasehold did not write.
fn latest<T>(
    folder: &impl Folder,
    open: impl Fn(u64, &str) -> io::Result<Option<T>>,
) -> Result<Option<T>, Fault> {
    for _ in 0..MAX_READS {
        let names = match folder.list() {
            Ok(names) => names,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok(None);
            }
            Err(error) => return Err(folder.fault("list", &error)),
        };
        let Some(number) = highest(&names) else { return Ok(None) };
        match open(number, &name(number)) {
            Ok(Some(found)) => return Ok(Some(found)),
            Ok(None) => {
                let no_file = io::Error::new(io::ErrorKind::InvalidData, "leasehold did not write it so");
                return Err(folder.fault(&format!("understand the file {} in", name(number)), &no_file));
            }
            // The listing was stale: the highest generation is never removed (rule 1).
            Err(error) if vanished(&error) => {}
            Err(error) => return Err(folder.fault("read a file in", &error)),
        }
    }
    let stale = io::Error::new(io::ErrorKind::StaleNetworkFileHandle, "its listing stays out of date");
    Err(folder.fault("read", &stale))
}

/// Writes `value`, or deletes it if it is `None`, as the next generation, if the key has the version `expect`, or no
/// value if that is `None`. `nonce` must be new.
pub(super) fn write(
    folder: &impl Folder,
    limits: &Limits,
    expect: Option<&Version>,
    nonce: Id,
    value: Option<Body>,
) -> Result<Outcome, StoreError> {
    let began = folder.now();
    let latest = head(folder).map_err(Fault::not_applied)?;
    let found = latest.as_ref().filter(|latest| latest.length.is_some()).map(Generation::version);
    if found.as_ref() != expect {
        return Ok(Outcome::Conflict);
    }
    let is_first = latest.is_none();
    let number = latest.map_or(Some(1), |latest| latest.number.checked_add(1));
    let number = number.ok_or_else(|| full().not_applied())?;
    let length = value.as_ref().map(|body| body.bytes.len() as u64);
    let Body { bytes, metadata } = value.unwrap_or_default();
    let next = Generation { number, nonce, length, metadata };
    let header = next.header();
    if header.len() > MAX_HEADER_BYTES {
        return Err(Fault::new(ErrorKind::Unsupported, "the metadata is too long").not_applied());
    }
    // Only a create makes the folder: no other write may follow the removal of a folder. If the folder exists, a
    // process may have died before it was durable, or before others could use it.
    if is_first {
        folder.make().map_err(|error| folder.fault("create", &error).not_applied())?;
    }
    let temporary = format!("{nonce}{TEMPORARY}");
    let result = match folder.create(&temporary, header.as_bytes(), &bytes) {
        Ok(now_us) => publish(folder, limits, began, &temporary, &next).map(|names| (names, now_us)),
        Err(error) => {
            if matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded) {
                make_room(folder, limits, &temporary);
            }
            Err(folder.fault("write a file in", &error).not_applied())
        }
    };
    // A file that stays is removed by a later write.
    let _ = folder.remove(&temporary);
    match result? {
        (Some(names), now_us) => {
            clean(folder, limits, &names, number, now_us);
            Ok(Outcome::Written(next.version()))
        }
        (None, _) => Ok(Outcome::Conflict),
    }
}

/// Links the temporary file to its number. Returns the names in the folder if the write counts, or `None` if another
/// write was first.
fn publish(
    folder: &impl Folder,
    limits: &Limits,
    began: Moment,
    temporary: &str,
    next: &Generation,
) -> Result<Option<Vec<String>>, StoreError> {
    let is_quick = || folder.now().longest_since(began) <= limits.longest_write;
    let slow = || Fault::unavailable("a write took too long to count");
    if !is_quick() {
        return Err(slow().not_applied());
    }
    let to = name(next.number);
    if let Err(error) = folder.link(temporary, &to) {
        // NFS may send a request twice, and the second response then says that the name exists. The file shows who
        // created it. The number of links could come from a cache, but a file that is found by its name does not.
        match heading(folder, next.number, &to).ok().flatten() {
            Some(found) if found.nonce == next.nonce => {}
            Some(_) => return Ok(None),
            None => {
                let fault = folder.fault("link a file in", &error);
                let refused = matches!(fault.kind, ErrorKind::Denied | ErrorKind::Unsupported);
                return Err(if refused { fault.not_applied() } else { fault.maybe_applied() });
            }
        }
    }
    folder.sync().map_err(|error| folder.fault("sync", &error).maybe_applied())?;
    let names = folder.list().map_err(|error| folder.fault("list", &error).maybe_applied())?;
    if highest(&names) != Some(next.number) {
        return Err(Fault::unavailable("another process wrote at the same time").maybe_applied());
    }
    if !is_quick() {
        return Err(slow().maybe_applied());
    }
    Ok(Some(names))
}

/// Removes temporary files of dead or sleeping processes, and then old generations, from the oldest on. `now_us` is the
/// time stamp of a file that was just created.
fn clean(folder: &impl Folder, limits: &Limits, names: &[String], latest: u64, now_us: u64) {
    // A stamp from the future is from a clock that was set back, and would otherwise stop the removal until then.
    let is_older = |name: &str, age_us: u64| {
        folder.stamp(name).is_ok_and(|stamp_us| stamp_us.abs_diff(now_us) >= age_us)
    };
    // First, so that a process that slept between its read and its link cannot link any more: its file is older than
    // half an hour when the number that it wants is free again.
    for name in
        names.iter().filter(|name| name.ends_with(TEMPORARY) && is_older(name, limits.temporary_age_us))
    {
        if folder.remove(name).is_err_and(|error| !vanished(&error)) {
            return;
        }
    }
    let mut outdated: Vec<u64> = names.iter().filter_map(|name| number(name)).collect();
    outdated.retain(|number| latest.saturating_sub(*number) >= limits.newer);
    outdated.sort_unstable();
    let outdated = outdated.into_iter().map(name).take_while(|name| is_older(name, limits.age_us));
    for name in outdated.take(MAX_REMOVED) {
        // Another process may have removed it.
        let _ = folder.remove(&name);
    }
}

/// Removes what [`clean`] would remove if the disk had room for the write. Otherwise it would stay full of old
/// generations. The file that could not be written shows the file server's time. An outdated listing has a lower highest
/// generation, so less is removed.
fn make_room(folder: &impl Folder, limits: &Limits, temporary: &str) {
    if let Ok(now_us) = folder.stamp(temporary)
        && let Ok(names) = folder.list()
        && let Some(latest) = highest(&names)
    {
        clean(folder, limits, &names, latest, now_us);
    }
}

fn highest(names: &[String]) -> Option<u64> {
    names.iter().filter_map(|name| number(name)).max()
}

/// Returns the name of the file of a generation.
fn name(number: u64) -> String {
    format!("{number:020}")
}

/// Returns the generation whose file has this name.
fn number(name: &str) -> Option<u64> {
    (name.len() == 20 && name.bytes().all(|b| b.is_ascii_digit())).then(|| name.parse().ok()).flatten()
}

/// Returns whether a name that was listed leads to nothing.
fn vanished(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::StaleNetworkFileHandle)
}

fn full() -> Fault {
    Fault::new(ErrorKind::Corrupt, "the generations of this key are used up")
}

#[cfg(test)]
mod tests;
