//! The metadata that updates and fenced writes store with an object, and the rules that evaluate it. This module sends
//! no requests.
//!
//! Every write of an update has a nonce. The object's metadata contains the nonces of the latest writes, newest first,
//! each with a hash of the version that it replaced:
//!
//! ```text
//! leasehold-log: <nonce>-<version replaced> <nonce>-<version replaced> ...
//! ```
//!
//! The log shows whether a write whose response was lost was applied. After a conflict or a lost response, the object
//! is read again, and the first rule that matches applies:
//!
//! 1. A nonce of this update is in the log: the update was applied.
//! 2. The object has not changed: the write has not been applied yet. The same write may be sent again, with the same
//!    expected version.
//! 3. All copies of the write met a conflict: it was not applied and never will be. The update starts
//!    over.
//! 4. The log shows that another write replaced the version that this one expects, and that version never recurs: the
//!    write was not applied and never will be. The update starts over.
//! 5. Otherwise the outcome is unknown: another client wrote without the log, or deleted the object, or there were more
//!    writes than the log holds. The write is not repeated.
//!
//! Versions recur if they depend only on the content, as S3's ETags do: A, B, A. Another write may then have replaced
//! the first A or the second one, so rule 4 proves nothing there.
//!
//! A fenced write stores its token, and a write with a lower token is refused. Where versions recur, a delayed write
//! must not find the version that it expects once a higher token has written. So `leasehold-seen` keeps the versions
//! that the object had under lower tokens, and no fenced write produces one of them again.

use std::fmt;

use crate::error::{ErrorKind, Fault};
use crate::lease::Token;
use crate::random::Random;
use crate::register::{Metadata, RegisterCapabilities, Version};

const LOG: &str = "leasehold-log";
const TOKEN: &str = "leasehold-token";
const SEEN: &str = "leasehold-seen";

/// The length of the log: the normal length, and the least if there is little room.
const LOG_LENGTH: usize = 32;
const LEAST_LOG: usize = 8;
/// The bytes of an entry of the log, with a separator.
const LOG_WIDTH: usize = 26;

/// How many versions of lower tokens are stored: the normal number, and the least if there is little room.
const SEEN_LENGTH: usize = 40;
const LEAST_SEEN: usize = 16;
/// The bytes of such a version, with a separator.
const SEEN_WIDTH: usize = 9;

/// The bytes that some stores count for each name in addition to its characters: `x-amz-meta-`.
const NAME_OVERHEAD: usize = 11;

/// Identifies one write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Nonce(u64);

impl Nonce {
    pub(crate) fn random(random: &Random) -> Self {
        // 64 of the 128 bits.
        Self(random.bits() as u64)
    }
}

impl fmt::Display for Nonce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// 32 bits of a hash of a version. For an object that did not exist, the hash of the empty string.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Fingerprint(u32);

impl Fingerprint {
    fn of(version: Option<&Version>) -> Self {
        let text = version.map_or("", Version::as_str);
        // FNV-1a. It is stored in the metadata of objects, so it must never change.
        let hash = text.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        Self((hash ^ (hash >> 32)) as u32)
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}", self.0)
    }
}

/// One write in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Mark {
    nonce: Nonce,
    /// The version that it replaced.
    over: Fingerprint,
}

/// An object as it was read.
#[derive(Clone, Debug, Default)]
pub(crate) struct ObjectState {
    /// `None` if there was no object.
    pub(crate) version: Option<Version>,
    pub(crate) metadata: Metadata,
    /// The stored token; `None` if the object was never fenced.
    pub(crate) token: Option<Token>,
    /// Newest first.
    log: Vec<Mark>,
    seen: Vec<Fingerprint>,
}

impl ObjectState {
    /// Parses `metadata` of the given `version`. Fails if the stored token is not a token.
    pub(crate) fn new(version: Version, metadata: Metadata) -> Result<Self, Fault> {
        let user = |name| metadata.user.get(name).map_or("", String::as_str);
        let token = match user(TOKEN) {
            "" => None,
            text => Some(text.parse().ok().and_then(Token::new).ok_or_else(|| no_token(text))?),
        };
        // A log that does not parse was not written by leasehold, and proves nothing.
        let log = user(LOG).split_ascii_whitespace().map(mark).collect::<Option<_>>().unwrap_or_default();
        let seen = user(SEEN).split_ascii_whitespace().filter_map(fingerprint).collect();
        Ok(Self { version: Some(version), metadata, token, log, seen })
    }

    /// Returns whether nothing was written between the two reads.
    fn is_as(&self, other: &Self) -> bool {
        // Where versions recur, the log distinguishes two states with the same version.
        self.version == other.version
            && self.log.first().map(|mark| mark.nonce) == other.log.first().map(|mark| mark.nonce)
    }

    /// Returns the metadata for a write over this object, with `nonce` and `token`. A `token` of `None` keeps the
    /// stored one.
    pub(crate) fn followed_by(
        &self,
        nonce: Nonce,
        token: Option<Token>,
        capabilities: &RegisterCapabilities,
    ) -> Result<Metadata, Fault> {
        let mut metadata = self.metadata.clone();
        for name in [LOG, TOKEN, SEEN] {
            metadata.user.remove(name);
        }
        let Some(most) = capabilities.metadata else { return Ok(metadata) };
        let others = metadata.user.iter().map(|(name, value)| name.len() + value.len() + NAME_OVERHEAD);
        let others: usize = others.sum();
        let mut left = most.saturating_sub(others);
        let full = || too_full(others, most);
        if let Some(token) = token.or(self.token) {
            let token = token.to_string();
            left = left.checked_sub(TOKEN.len() + NAME_OVERHEAD + token.len()).ok_or_else(full)?;
            metadata.user.insert(TOKEN.to_owned(), token);
        }
        let seen = if capabilities.generations { Vec::new() } else { self.seen_before(token) };
        if !seen.is_empty() {
            // The log needs its room, too.
            let room = left.saturating_sub(LOG.len() + NAME_OVERHEAD + LOG_WIDTH * LEAST_LOG);
            let length = entries(SEEN, room, SEEN_WIDTH, SEEN_LENGTH, LEAST_SEEN.min(seen.len()));
            let text = joined(seen.iter().take(length.ok_or_else(full)?));
            left -= SEEN.len() + NAME_OVERHEAD + text.len();
            metadata.user.insert(SEEN.to_owned(), text);
        }
        let length = entries(LOG, left, LOG_WIDTH, LOG_LENGTH, LEAST_LOG).ok_or_else(full)?;
        let own = Mark { nonce, over: Fingerprint::of(self.version.as_ref()) };
        let marks = std::iter::once(&own).chain(&self.log).take(length);
        metadata.user.insert(LOG.to_owned(), joined(marks));
        Ok(metadata)
    }

    /// Returns the versions that this object had under tokens lower than that of a write with `token`, latest first.
    fn seen_before(&self, token: Option<Token>) -> Vec<Fingerprint> {
        if token.or(self.token) == self.token {
            return self.seen.clone();
        }
        let now = Fingerprint::of(self.version.as_ref());
        let mut seen = Vec::new();
        for version in
            std::iter::once(now).chain(self.log.iter().map(|mark| mark.over)).chain(self.seen.clone())
        {
            if !seen.contains(&version) {
                seen.push(version);
            }
        }
        seen
    }

    /// Returns whether a write with `token` that gives the object `version` would admit a delayed write with a lower
    /// token that expects this version.
    pub(crate) fn lets_through(&self, token: Option<Token>, version: &Version) -> bool {
        // If neither the object nor this write has a token, nothing is fenced.
        token.or(self.token).is_some() && self.seen_before(token).contains(&Fingerprint::of(Some(version)))
    }

    /// Returns the stored token if it is higher than `token`, so that it refuses the write.
    pub(crate) fn refuses(&self, token: Option<Token>) -> Option<Token> {
        self.token.filter(|written| token.is_some_and(|token| token < *written))
    }
}

/// The outcome of the writes over one version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Applied.
    Applied,
    /// Not applied yet. The same write may be sent again.
    Again,
    /// Not applied, and it never will be.
    Never,
    /// Unknown.
    Unknown,
}

/// Returns the outcome of the writes over `base` if the object is `now`. `own` contains the nonces of this update,
/// including those of writes over earlier versions. `unknown` says whether any write over `base` got no response.
pub(crate) fn verdict(
    base: &ObjectState,
    own: &[Nonce],
    unknown: bool,
    now: &ObjectState,
    capabilities: &RegisterCapabilities,
) -> Verdict {
    if now.log.iter().any(|mark| own.contains(&mark.nonce)) {
        return Verdict::Applied;
    }
    if now.is_as(base) {
        return Verdict::Again;
    }
    if !unknown {
        return Verdict::Never;
    }
    let over = Fingerprint::of(base.version.as_ref());
    let replaced = base.version.is_some() && now.log.iter().any(|mark| mark.over == over);
    if replaced && capabilities.generations { Verdict::Never } else { Verdict::Unknown }
}

/// Returns how many entries of `width` bytes fit into `left` bytes under `name`, or `None` if fewer than `least`.
fn entries(name: &str, left: usize, width: usize, most: usize, least: usize) -> Option<usize> {
    let fit = left.saturating_sub(name.len() + NAME_OVERHEAD) / width;
    (fit >= least).then(|| fit.min(most))
}

fn joined<T: fmt::Display>(items: impl Iterator<Item = T>) -> String {
    items.map(|item| item.to_string()).collect::<Vec<_>>().join(" ")
}

impl fmt::Display for Mark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.nonce, self.over)
    }
}

fn mark(text: &str) -> Option<Mark> {
    let (nonce, over) = text.split_once('-')?;
    let nonce = u64::from_str_radix(nonce, 16).ok().filter(|_| nonce.len() == 16)?;
    Some(Mark { nonce: Nonce(nonce), over: fingerprint(over)? })
}

fn fingerprint(text: &str) -> Option<Fingerprint> {
    u32::from_str_radix(text, 16).ok().filter(|_| text.len() == 8).map(Fingerprint)
}

fn no_token(text: &str) -> Fault {
    let text: String = text.chars().filter(|c| !crate::types::is_unprintable(*c)).take(40).collect();
    Fault::new(
        ErrorKind::Corrupt,
        format!("the object's metadata {TOKEN} is {text:?}, which is not a fencing token"),
    )
    .with_help(
        "nothing was written; write the object again without that metadata while no other client writes to it",
    )
}

fn too_full(others: usize, most: usize) -> Fault {
    Fault::new(
        ErrorKind::Unsupported,
        format!(
            "the object's own metadata uses {others} of the {most} bytes that the store allows, which leaves too \
             little room for the marks that updates and fenced writes need"
        ),
    )
    .with_help("remove some of the metadata, or move it into the object")
}

#[cfg(test)]
mod tests;
