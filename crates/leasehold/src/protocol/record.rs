//! The lock record that the store keeps. It is JSON, readable with the store's own tools. A release does not delete it,
//! except in the existence protocol.

use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::error::{ErrorKind, Fault};
use crate::lease::{End, Holder, Id, PastGrant, Token, Ttl, printable};

/// The format that this version writes, and the newest one that it reads.
pub(crate) const FORMAT: u64 = 1;

/// The maximum number of ended grants in a record's history.
const HISTORY: usize = 8;

/// The record of a lock, format 1. The golden files in `tests/records` make sure that it stays readable.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    /// The format.
    pub(crate) leasehold: u64,
    pub(crate) state: RecordState,
    /// The fencing token of the current grant, or of the latest one.
    pub(crate) token: Token,
    /// The id of the claim that was granted last. It stays when the lock is free.
    pub(crate) grant: Id,
    /// The number of renewals of `grant`. A lease is alive while (grant, heartbeat) keeps changing.
    pub(crate) heartbeat: u64,
    /// Fresh in every write, so no two bodies, and no two ETags, are equal.
    pub(crate) nonce: Id,
    pub(crate) ttl_ms: u64,
    /// How much longer contenders wait after the lease has lapsed.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) lock_delay_ms: u64,
    pub(crate) holder: Holder,
    /// When the grant was made: an upper bound of the store's clock, in microseconds since the Unix epoch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) granted_at_us: Option<u64>,
    /// When this record was written, also as an upper bound. Never earlier than the time of the store's clock just
    /// before the write was sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) renewed_at_us: Option<u64>,
    /// In state `cooldown`: the length of the cooldown, counted from `renewed_at_us`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) cooldown_ms: Option<u64>,
    /// Whether the record is unconfirmed: a create wrote it, and its claim has neither renewed nor released it since. A
    /// create may be applied late. While it was under way, other records may have been created and deleted by hand, and
    /// their tokens may be higher. So the next grant takes its token from the store's clock and not by counting.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) unconfirmed: bool,
    /// Whether processes wait in the [line](super::line) of this lock.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) awaited: bool,
    /// The number of the latest waiter in the line that was granted the lock or passed over.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) served: u64,
    /// For the first permit of a semaphore or of a readers-writer lock: how many permits there are. For another permit:
    /// the size of the first one, which its holder has compared. 0 if there is none. Every write keeps it, except one of
    /// a holder that [sets](crate::lease::Grant::size) it.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) size: u64,
    /// The latest ended grants, newest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) history: Vec<PastGrant>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum RecordState {
    Held,
    Free,
    Cooldown,
}

/// The content of a lock's key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    Record(Box<Record>),
    /// Not a record of leasehold: a lock of another client.
    Foreign {
        /// Describes it for people.
        what: String,
        /// How much longer the lock can last, if the store knows it.
        lasts: Option<Duration>,
        /// The ended grants of leasehold, if the store keeps them beside the lock of another client.
        history: Vec<PastGrant>,
    },
}

impl Content {
    /// Returns a lock of another client, of which nothing more is known.
    pub(crate) fn foreign(what: impl Into<String>) -> Self {
        Self::Foreign { what: what.into(), lasts: None, history: Vec::new() }
    }
}

impl Record {
    /// Returns the record of a lock that was never granted, and that processes wait for: only other clients have had it.
    /// The next grant replaces it. Records may have been deleted before, so the token of that grant comes from the
    /// server's clock.
    pub(crate) fn never_granted() -> Self {
        Self {
            leasehold: FORMAT,
            state: RecordState::Free,
            token: Token::default(),
            grant: Id::NONE,
            heartbeat: 0,
            nonce: Id::NONE,
            ttl_ms: Ttl::DEFAULT.as_millis(),
            lock_delay_ms: 0,
            holder: Holder::default(),
            granted_at_us: None,
            renewed_at_us: None,
            cooldown_ms: None,
            unconfirmed: true,
            awaited: true,
            served: 0,
            size: 0,
            history: vec![],
        }
    }

    pub(crate) fn to_bytes(&self) -> Result<Bytes, Fault> {
        serde_json::to_vec(self).map(Bytes::from).map_err(|error| {
            Fault::new(ErrorKind::Invalid, format!("the lock record cannot be written: {error}"))
        })
    }

    /// Returns the ttl of the record. It applies to every contender, whatever ttl that contender uses for its own
    /// lease.
    pub(crate) fn ttl(&self) -> Ttl {
        // `parse` has validated it.
        Ttl::from_millis(self.ttl_ms).unwrap_or_default()
    }

    pub(crate) fn lock_delay(&self) -> Duration {
        Duration::from_millis(self.lock_delay_ms)
    }

    /// Returns how long the record keeps others out if it is held and not renewed, as contenders measure it: its lease
    /// and the lock delay.
    pub(crate) fn span(&self) -> Duration {
        self.ttl().contender_span() + self.lock_delay()
    }

    pub(crate) fn cooldown(&self) -> Duration {
        Duration::from_millis(self.cooldown_ms.unwrap_or(0))
    }

    /// Returns for how long after this write the record keeps others out, on the store's clock, which may be set by
    /// `margin`.
    pub(crate) fn kept_for(&self, margin: Duration) -> Duration {
        match self.state {
            RecordState::Free => Duration::ZERO,
            RecordState::Held => self.span().saturating_add(margin),
            RecordState::Cooldown => self.cooldown(),
        }
    }

    /// Adds an ended grant to the front of the history, and drops the grants beyond the limit.
    pub(crate) fn remember(&mut self, past: PastGrant) {
        self.history.insert(0, past);
        self.history.truncate(HISTORY);
    }

    /// Adds the current grant to the history, unless it is already there. For a store on which another client can end
    /// or replace a grant: a late repetition of that claim must still be refused (rule 12).
    #[allow(dead_code, reason = "only stores that share records with other clients use it")]
    pub(crate) fn remember_replaced(&mut self) {
        if self.history.iter().any(|past| past.grant == self.grant) {
            return;
        }
        self.remember(PastGrant {
            token: self.token,
            grant: self.grant,
            holder: self.holder.of_the_past(),
            from_us: self.granted_at_us,
            // The grant ended at an unknown time after its last renewal.
            until_us: self.renewed_at_us,
            end: End::Lapsed,
            evicted: None,
        });
    }
}

/// Parses the content of a lock's key. It never guesses: anything that is not certainly a record of leasehold is
/// foreign or an error.
pub(crate) fn parse(bytes: &[u8]) -> Result<Content, Fault> {
    #[derive(Deserialize)]
    struct Tag {
        leasehold: u64,
    }
    let record: Result<Record, _> = serde_json::from_slice(bytes);
    // Only content that does not parse as a record is parsed a second time.
    let format = match &record {
        Ok(record) => Ok(record.leasehold),
        Err(_) => serde_json::from_slice(bytes).map(|Tag { leasehold }| leasehold),
    };
    let Ok(format) = format else {
        return Ok(Content::foreign(describe(bytes)));
    };
    if format > FORMAT {
        let message = format!(
            "the lock record has format {format}, and this version of leasehold reads up to {FORMAT}"
        );
        return Err(Fault::new(ErrorKind::Unsupported, message).with_help(
            "upgrade leasehold here; the record was written by a newer version and was left as it is",
        ));
    }
    let corrupt = |why: String| {
        // The message may repeat bytes of the record.
        let why = printable(&why, 200);
        Fault::new(ErrorKind::Corrupt, format!("the lock record is damaged: {why}")).with_help(
            "inspect it with the store's own tools; delete it by hand when no process holds the lock",
        )
    };
    if format == 0 {
        return Err(corrupt("there is no format 0".to_owned()));
    }
    let record = record.map_err(|error| corrupt(error.to_string()))?;
    if record.state == RecordState::Cooldown && record.cooldown_ms.is_none() {
        return Err(corrupt("it is in a cooldown without a duration".to_owned()));
    }
    Ttl::from_millis(record.ttl_ms).map_err(|error| corrupt(error.to_string()))?;
    if record.heartbeat >= Token::LIMIT {
        return Err(corrupt("its heartbeat is out of range".to_owned())); // Otherwise an increment could overflow.
    }
    if record.served >= Token::LIMIT {
        return Err(corrupt("its number of served waiters is out of range".to_owned())); // Likewise.
    }
    Ok(Content::Record(Box::new(record)))
}

/// Returns the protocol that a record of leasehold names. `None` stands for the default protocol, whose records stay
/// after a release.
pub(crate) fn protocol(bytes: &[u8]) -> Option<String> {
    #[derive(Deserialize)]
    struct Tag {
        protocol: Option<serde_json::Value>,
    }
    match serde_json::from_slice::<Tag>(bytes) {
        Ok(Tag { protocol: None }) => None,
        Ok(Tag { protocol: Some(serde_json::Value::String(name)) }) => Some(printable(&name, 32)),
        // The name is not that of a known protocol.
        Ok(Tag { protocol: Some(_) }) | Err(_) => Some("unknown".to_owned()),
    }
}

/// Describes a foreign object in a few printable words.
fn describe(bytes: &[u8]) -> String {
    const MOST: usize = 32;
    let head: String = String::from_utf8_lossy(&bytes[..bytes.len().min(MOST)])
        .chars()
        .map(|c| if crate::types::is_unprintable(c) { '\u{fffd}' } else { c })
        .collect();
    let dots = if bytes.len() > MOST { "…" } else { "" };
    format!("an object of {} bytes that leasehold did not write: `{head}{dots}`", bytes.len())
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Every released format stays readable. Never edit these lines, only add new ones.
    const GOLDEN: &[(&str, RecordState)] = &[
        (include_str!("../../tests/records/1-held.json"), RecordState::Held),
        (include_str!("../../tests/records/1-free.json"), RecordState::Free),
        (include_str!("../../tests/records/1-cooldown.json"), RecordState::Cooldown),
        (include_str!("../../tests/records/1-leading.json"), RecordState::Held),
        (include_str!("../../tests/records/1-awaited.json"), RecordState::Held),
        (include_str!("../../tests/records/1-evicted.json"), RecordState::Free),
        (include_str!("../../tests/records/1-limit.json"), RecordState::Held),
        (include_str!("../../tests/records/1-size.json"), RecordState::Free),
    ];

    #[test]
    fn golden_records_are_read_and_written_back_unchanged() {
        for (golden, state) in GOLDEN {
            let Content::Record(record) = parse(golden.as_bytes()).unwrap() else {
                panic!("foreign: {golden}")
            };
            assert_eq!(record.state, *state);
            assert_eq!(record.to_bytes().unwrap(), golden.trim_end());
        }
    }

    #[test]
    fn the_advertised_value_of_a_holder_is_read_if_there_is_one() {
        let advertised = |golden: &str| match parse(golden.as_bytes()).unwrap() {
            Content::Record(record) => record.holder.value,
            Content::Foreign { what, .. } => panic!("{what}"),
        };
        assert_eq!(advertised(GOLDEN[3].0).as_deref(), Some("http://10.0.0.7:8080"));
        assert_eq!(advertised(GOLDEN[0].0), None);
    }

    #[test]
    fn a_foreign_value_is_described_without_control_characters() {
        for foreign in [
            "",
            "\n",
            "1",
            "{}",
            "[]",
            "null",
            "{\"ID\":\"terraform\"}",
            "\u{1b}[2J",
            "{\"leasehold\":\"1\"}",
        ] {
            let Content::Foreign { what: described, .. } = parse(foreign.as_bytes()).unwrap() else {
                panic!("{foreign:?}")
            };
            assert!(!described.contains('\u{1b}') && !described.contains('\n'), "{described:?}");
        }
        assert!(
            matches!(parse(&[0xff; 100_000]), Ok(Content::Foreign { what: text, .. }) if text.len() < 300)
        );
        // A truncated record is no longer JSON. It counts as held by an unknown holder and is never granted over.
        assert!(matches!(parse(&GOLDEN[0].0.as_bytes()[..60]), Ok(Content::Foreign { .. })));
    }

    #[test]
    fn a_newer_format_asks_for_an_upgrade_and_damage_is_corrupt() {
        let newer = GOLDEN[0].0.replacen("\"leasehold\":1", "\"leasehold\":2", 1);
        let fault = parse(newer.as_bytes()).unwrap_err();
        assert_eq!(fault.kind, ErrorKind::Unsupported);
        assert!(fault.help.unwrap().contains("upgrade"));
        for (from, to) in [
            ("\"token\":1763654400000041", "\"token\":9007199254740992"),
            ("\"token\":1763654400000041", "\"token\":-1"),
            ("\"heartbeat\":3", "\"heartbeat\":18446744073709551615"),
            ("\"ttl_ms\":30000", "\"ttl_ms\":0"),
            ("\"state\":\"held\"", "\"state\":\"mine\""),
            ("\"grant\":\"", "\"grant\":\"x"),
            ("\"leasehold\":1", "\"leasehold\":0"),
            // A cooldown without a length would count as over.
            ("\"state\":\"held\"", "\"state\":\"cooldown\""),
        ] {
            let damaged = GOLDEN[0].0.replacen(from, to, 1);
            assert_ne!(damaged, GOLDEN[0].0, "{from}");
            assert_eq!(parse(damaged.as_bytes()).unwrap_err().kind, ErrorKind::Corrupt, "{to}");
        }
    }

    #[test]
    fn damage_is_reported_without_control_characters() {
        let hostile = GOLDEN[0].0.replacen("\"held\"", "\"\\u001b[2J\"", 1);
        let fault = parse(hostile.as_bytes()).unwrap_err();
        assert!(fault.message.contains("[2J") && !fault.message.contains('\u{1b}'), "{fault:?}");
    }

    #[test]
    fn a_mark_that_is_not_understood_is_another_protocol() {
        let marked = |mark: &str| protocol(GOLDEN[0].0.replacen('{', &format!("{{{mark},"), 1).as_bytes());
        assert_eq!(protocol(GOLDEN[0].0.as_bytes()), None);
        assert_eq!(marked(r#""protocol":"existence""#).as_deref(), Some("existence"));
        for unknown in [r#""protocol":2"#, r#""protocol":{}"#, r#""protocol":"existence","protocol":null"#] {
            assert_eq!(marked(unknown).as_deref(), Some("unknown"), "{unknown}");
        }
        assert_eq!(marked(r#""protocol":"\u001b""#).as_deref(), Some("\u{fffd}"));
    }

    proptest! {
        #[test]
        fn no_bytes_make_the_parser_panic(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
            let _ = parse(&bytes);
        }

        #[test]
        fn no_damage_to_a_record_makes_the_parser_panic(at in 0usize..500, byte in any::<u8>()) {
            let mut bytes = GOLDEN[0].0.as_bytes().to_vec();
            let at = at % bytes.len();
            bytes[at] = byte;
            let _ = parse(&bytes);
        }
    }
}
