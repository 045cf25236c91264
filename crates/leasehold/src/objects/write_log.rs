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
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::golden::{assert_written, golden};
    use crate::lease::PollInterval;

    fn capabilities(generations: bool) -> RegisterCapabilities {
        let poll_interval = PollInterval { min: Duration::ZERO, max: Duration::ZERO };
        RegisterCapabilities {
            store: "test",
            trusted: true,
            generations,
            metadata: Some(2_048),
            poll_interval,
        }
    }

    fn nonce(number: u64) -> Nonce {
        Nonce(number)
    }

    fn token(number: u64) -> Token {
        Token::new(number).unwrap()
    }

    fn foreign(version: &str) -> ObjectState {
        ObjectState::new(Version::new(version), Metadata::default()).unwrap()
    }

    fn after(base: &ObjectState, number: u64, version: &str) -> ObjectState {
        fenced_after(base, number, None, version, true)
    }

    fn fenced_after(
        base: &ObjectState,
        number: u64,
        token: Option<Token>,
        version: &str,
        generations: bool,
    ) -> ObjectState {
        let metadata = base.followed_by(nonce(number), token, &capabilities(generations)).unwrap();
        ObjectState::new(Version::new(version), metadata).unwrap()
    }

    fn verdict_on(base: &ObjectState, unknown: bool, now: &ObjectState) -> Verdict {
        verdict(base, &[nonce(1)], unknown, now, &capabilities(true))
    }

    #[test]
    fn rule_1_our_nonce_is_found_below_those_of_others() {
        let base = foreign("1");
        let mut now = after(&base, 1, "2");
        for number in 2..=32 {
            assert_eq!(verdict_on(&base, true, &now), Verdict::Applied);
            assert_eq!(
                verdict_on(&base, false, &now),
                Verdict::Applied,
                "the response to a second copy is a conflict"
            );
            now = after(&now, number, &format!("{}", number + 1));
        }
        // After one more write, the log no longer contains it.
        let now = after(&now, 40, "40");
        assert_eq!(verdict_on(&base, true, &now), Verdict::Unknown);
    }

    #[test]
    fn rule_2_a_write_is_sent_again_while_nothing_changed() {
        for base in [foreign("1"), after(&foreign("1"), 7, "2"), ObjectState::default()] {
            assert_eq!(verdict_on(&base, true, &base.clone()), Verdict::Again);
            assert_eq!(verdict_on(&base, false, &base.clone()), Verdict::Again);
        }
    }

    #[test]
    fn rule_2_the_same_version_after_other_writes_is_a_change() {
        let base = after(&foreign("a"), 7, "b");
        let back = after(&after(&base, 8, "c"), 9, "b");
        assert_eq!(verdict(&base, &[nonce(1)], true, &back, &capabilities(false)), Verdict::Unknown);
        assert_eq!(verdict(&base, &[nonce(1)], false, &back, &capabilities(false)), Verdict::Never);
    }

    #[test]
    fn rule_3_a_conflict_means_not_applied() {
        let base = foreign("1");
        for now in [foreign("2"), after(&base, 7, "2"), after(&foreign("5"), 7, "6"), ObjectState::default()]
        {
            assert_eq!(verdict_on(&base, false, &now), Verdict::Never);
        }
    }

    #[test]
    fn rule_4_a_write_whose_base_was_replaced_can_never_apply() {
        for base in [foreign("1"), after(&foreign("0"), 7, "1")] {
            let now = after(&after(&base, 8, "2"), 9, "3");
            assert_eq!(verdict_on(&base, true, &now), Verdict::Never);
            let unsure = verdict(&base, &[nonce(1)], true, &now, &capabilities(false));
            assert_eq!(unsure, Verdict::Unknown, "where versions recur, it may have replaced it later");
        }
    }

    #[test]
    fn rule_5_after_a_wipe_or_deletion_the_effect_is_unknown() {
        let base = after(&foreign("0"), 7, "1");
        for now in [foreign("9"), after(&foreign("9"), 8, "10"), ObjectState::default()] {
            assert_eq!(verdict_on(&base, true, &now), Verdict::Unknown);
        }
        // After a create, another client may have created the object after ours was deleted.
        let now = after(&ObjectState::default(), 8, "2");
        assert_eq!(verdict_on(&ObjectState::default(), true, &now), Verdict::Unknown);
        assert_eq!(verdict_on(&ObjectState::default(), false, &now), Verdict::Never);
    }

    #[test]
    fn metadata_of_other_clients_is_kept() {
        let mut metadata = Metadata { content_type: Some("text/plain".into()), ..Metadata::default() };
        metadata.user.insert("owner".into(), "ann".into());
        let base = ObjectState::new(Version::new("1"), metadata).unwrap();
        let now = fenced_after(&base, 1, Some(token(5)), "2", true);
        assert_eq!(now.metadata.content_type.as_deref(), Some("text/plain"));
        assert_eq!(now.metadata.user["owner"], "ann");
        assert_eq!(now.metadata.user[TOKEN], "5");
        assert_eq!(now.metadata.user[LOG], format!("{:016x}-{}", 1, Fingerprint::of(base.version.as_ref())));
        assert!(!now.metadata.user.contains_key(SEEN));
        assert_eq!(after(&now, 2, "3").token, Some(token(5)), "an update leaves the token");
    }

    #[test]
    fn the_write_log_never_exceeds_the_stores_limit() {
        for others in (0..2_048).step_by(50) {
            let mut metadata = Metadata::default();
            metadata.user.insert("o".into(), "x".repeat(others));
            let mut now = ObjectState::new(Version::new("0"), metadata).unwrap();
            for number in 1..100 {
                let next = now.followed_by(nonce(number), Some(token(number)), &capabilities(false));
                let Ok(metadata) = next else {
                    let fault = next.unwrap_err();
                    // Only the first writes can be refused: the later ones need no more space.
                    assert!(others > 1_600 && fault.kind == ErrorKind::Unsupported, "{others}: {fault:?}");
                    assert!(number < 20, "{others}: refused only after {number} tokens");
                    break;
                };
                let bytes =
                    metadata.user.iter().map(|(name, value)| name.len() + value.len() + NAME_OVERHEAD);
                assert!(bytes.sum::<usize>() <= 2_048, "{others} {number}");
                now = ObjectState::new(Version::new(number.to_string()), metadata).unwrap();
                assert!(now.log.len() >= LEAST_LOG.min(number as usize));
            }
        }
    }

    #[test]
    fn a_lower_token_is_refused_and_an_equal_one_is_not() {
        let now = fenced_after(&foreign("1"), 1, Some(token(5)), "2", true);
        assert_eq!(now.refuses(Some(token(4))), Some(token(5)));
        assert_eq!(now.refuses(Some(token(5))), None);
        assert_eq!(now.refuses(Some(token(6))), None);
        assert_eq!(now.refuses(None), None);
        assert_eq!(foreign("1").refuses(Some(token(0))), None);
    }

    #[test]
    fn a_version_of_a_lower_token_does_not_come_back() {
        let a = Version::new("a");
        let three = fenced_after(&foreign("a"), 1, Some(token(3)), "b", false);
        assert!(!foreign("a").lets_through(None, &a), "nothing is fenced");
        assert!(foreign("a").lets_through(Some(token(3)), &a));
        assert!(three.lets_through(Some(token(3)), &a), "an earlier holder without a token may have read it");
        assert!(three.lets_through(None, &a), "an update of a fenced object neither");
        assert!(three.lets_through(Some(token(5)), &Version::new("b")));
        assert!(!three.lets_through(Some(token(3)), &Version::new("b")), "the holder's own");
        let five = fenced_after(&three, 2, Some(token(5)), "c", false);
        let five = fenced_after(&five, 3, Some(token(5)), "d", false);
        assert!(["a", "b"].iter().all(|old| five.lets_through(Some(token(5)), &Version::new(*old))));
        assert!(!five.lets_through(Some(token(5)), &Version::new("c")));
        assert!(
            ["a", "b", "c", "d"].iter().all(|old| five.lets_through(Some(token(6)), &Version::new(*old)))
        );
    }

    #[test]
    fn a_malformed_token_is_corrupt_and_a_malformed_log_is_empty() {
        let state = |name: &str, value: &str| {
            let mut metadata = Metadata::default();
            metadata.user.insert(name.into(), value.into());
            ObjectState::new(Version::new("1"), metadata)
        };
        for bad in ["x", "-1", "9007199254740992", "1 2", "\u{202e}"] {
            assert_eq!(state(TOKEN, bad).unwrap_err().kind, ErrorKind::Corrupt, "{bad}");
        }
        for bad in ["x", "0-0", "0000000000000001-0000000g", "0000000000000001-00000001 x", "é-é"] {
            assert!(state(LOG, bad).unwrap().log.is_empty(), "{bad}");
        }
        assert_eq!(state(LOG, "0000000000000001-00000001").unwrap().log.len(), 1);
    }

    #[test]
    fn the_golden_write_logs_are_read_and_written() {
        let fenced = fenced_after(&foreign("\"a\""), 1, Some(token(41)), "\"b\"", false);
        let fenced = fenced_after(&fenced, 2, Some(token(42)), "\"c\"", false);
        let lines: Vec<_> =
            fenced.metadata.user.iter().map(|(name, value)| format!("{name}={value}")).collect();
        assert_written("1-update-marks.txt", &lines.join("\n"));
        let mut metadata = Metadata::default();
        for line in golden("1-update-marks.txt").lines() {
            let (name, value) = line.split_once('=').unwrap();
            metadata.user.insert(name.to_owned(), value.to_owned());
        }
        let read = ObjectState::new(Version::new("\"c\""), metadata).unwrap();
        assert_eq!((read.token, &read.log, &read.seen), (Some(token(42)), &fenced.log, &fenced.seen));
        assert_eq!((read.log.len(), read.seen.len()), (2, 2));
    }
}
