//! Converts the item of a lock to and from a record.
//!
//! `key`, `ownerName`, `leaseDuration`, `recordVersionNumber` and `isReleased` are attributes of AWS's lock client, in
//! its formats. The other attributes are ours. Another client that changes an item gives it a new `recordVersionNumber`
//! and ignores our attributes. It may keep them, delete them, or restore old ones (the Go port writes back what it read
//! earlier). So our attributes are valid only while `leasehold.version` equals the `recordVersionNumber`. Otherwise the
//! item belongs to another client.

use std::collections::HashMap;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::AttributeValue;
use super::dialect::Dialect;
use crate::clock::StoreTime;
use crate::error::{ErrorKind, Fault};
use crate::lease::{End, Holder, Id, PastGrant, Token, Ttl};
use crate::protocol::record::{Content, FORMAT, Record, RecordState};
use crate::protocol::records::{Found, foreign_id};
use crate::register::Version;

pub(super) const KEY: &str = "key";
pub(super) const OWNER: &str = "ownerName";
pub(super) const LEASE: &str = "leaseDuration";
pub(super) const VERSION: &str = "recordVersionNumber";
pub(super) const RELEASED: &str = "isReleased";
pub(super) const TOKEN: &str = "fencingToken";
pub(super) const RENEWED: &str = "renewedAt";
pub(super) const HOLDER: &str = "holder";
pub(super) const HISTORY: &str = "history";
/// A map with the other fields of our records, and the `recordVersionNumber` with which they were written.
pub(super) const OURS: &str = "leasehold";
/// A map with the `recordVersionNumber` and the time at which a client that found no `renewedAt` first saw it.
pub(super) const SEEN: &str = "lastSeen";

/// Whether processes wait for the lock. See [`Record::awaited`].
pub(super) const AWAITED: &str = "awaited";
/// See [`Record::served`].
pub(super) const SERVED: &str = "served";
/// See [`Record::size`].
pub(super) const SIZE: &str = "permits";
/// The line of waiters, in JSON, in a separate item.
pub(super) const LINE: &str = "line";

/// The end of the key of the line's item, after the lock's name. No lock name contains `//`.
pub(super) const LINE_SUFFIX: &str = "//line";

/// All attributes of locks and lines.
pub(super) const ATTRIBUTES: &[&str] = &[
    KEY, OWNER, LEASE, VERSION, RELEASED, TOKEN, RENEWED, HOLDER, HISTORY, OURS, SEEN, AWAITED, SERVED, SIZE,
    LINE,
];

/// The start of the names of the attributes that a global table of the legacy version adds to its items.
const REPLICATED: &str = "aws:rep:";

pub(super) type Item = HashMap<String, AttributeValue>;
pub(super) type Attributes = Vec<(&'static str, AttributeValue)>;

/// Reads `item`. Never guesses: an item that is not certainly a lock is foreign or an error.
pub(super) fn read(item: &Item, dialect: Dialect) -> Result<Found, Fault> {
    if item.keys().any(|name| name.starts_with(REPLICATED)) {
        return Err(replicated());
    }
    let (Some(owner), Some(version)) = (text(item, OWNER), text(item, VERSION)) else {
        let what = "an item without ownerName and recordVersionNumber, which is not a lock";
        return Ok(Found { content: Content::foreign(what), version: Version::new(""), line: None });
    };
    let ours = map(item, OURS).filter(|ours| text(ours, "version") == Some(version));
    Ok(match ours {
        Some(ours) => {
            let record = Box::new(own(item, ours, version)?);
            Found { version: version_of(&record), content: Content::Record(record), line: None }
        }
        None => Found {
            content: others(item, owner, version, dialect)?,
            version: Version::new(version),
            line: None,
        },
    })
}

/// Returns the version that the next write over `record` expects. It consists of the `recordVersionNumber`, the token,
/// and whether the record is awaited. A duplicated request can restore an earlier `recordVersionNumber`, but not the
/// token, which has been incremented since. A waiter that marks the record as awaited does not change the
/// `recordVersionNumber`.
pub(super) fn version_of(record: &Record) -> Version {
    let mark = if record.awaited { MARKED } else { "" };
    Version::new(format!("{} {}{mark}", uuid(record.nonce), record.token))
}

/// The end of the version of an awaited record.
const MARKED: &str = " awaited";

/// Returns the `recordVersionNumber` of a version. For a record of ours, also returns its token and whether it is
/// awaited.
pub(super) fn expected(version: &Version) -> (&str, Option<(Token, bool)>) {
    let text = version.as_str();
    let (rest, awaited) = text.strip_suffix(MARKED).map_or((text, false), |rest| (rest, true));
    let ours = rest.rsplit_once(' ').and_then(|(number, token)| {
        from_uuid(number)?;
        Some((number, Token::new(token.parse().ok()?)?))
    });
    match ours {
        Some((number, token)) => (number, Some((token, awaited))),
        None => (text, None),
    }
}

/// Reads a record of ours that no other client has changed since, except to release it.
fn own(item: &Item, ours: &Item, version: &str) -> Result<Record, Fault> {
    let format = number(ours, "format").ok_or_else(|| corrupt("leasehold.format"))?;
    if format > FORMAT {
        let message = format!(
            "the lock's item has format {format}, and this version of leasehold reads up to {FORMAT}"
        );
        return Err(Fault::new(ErrorKind::Unsupported, message).with_help(
            "upgrade leasehold here; the item was written by a newer version and was left as it is",
        ));
    }
    if format == 0 {
        return Err(corrupt("leasehold.format"));
    }
    let ttl_ms = number(ours, "ttl").filter(|&ms| Ttl::from_millis(ms).is_ok());
    let cooldown_ms = optional_number(ours, "cooldown")?;
    let mut record = Record {
        leasehold: format,
        state: match (item.contains_key(RELEASED), cooldown_ms) {
            (true, _) => RecordState::Free,
            (false, Some(_)) => RecordState::Cooldown,
            (false, None) => RecordState::Held,
        },
        token: number(item, TOKEN).and_then(Token::new).ok_or_else(|| corrupt(TOKEN))?,
        grant: text(ours, "grant")
            .and_then(|id| id.parse().ok())
            .ok_or_else(|| corrupt("leasehold.grant"))?,
        // A larger value would overflow when it is incremented.
        heartbeat: number(ours, "heartbeat")
            .filter(|&heartbeat| heartbeat < Token::LIMIT)
            .ok_or_else(|| corrupt("leasehold.heartbeat"))?,
        nonce: from_uuid(version).ok_or_else(|| corrupt(VERSION))?,
        ttl_ms: ttl_ms.ok_or_else(|| corrupt("leasehold.ttl"))?,
        lock_delay_ms: optional_number(ours, "lockDelay")?.unwrap_or(0),
        holder: json(item, HOLDER).ok_or_else(|| corrupt(HOLDER))?,
        granted_at_us: optional_number(ours, "grantedAt")?,
        renewed_at_us: optional_number(item, RENEWED)?.or_else(|| seen(item, version)),
        cooldown_ms,
        unconfirmed: ours.contains_key("unconfirmed"),
        awaited: item.contains_key(AWAITED),
        served: served(item).ok_or_else(|| corrupt(SERVED))?,
        size: optional_number(item, SIZE)?.unwrap_or(0),
        history: history(item).ok_or_else(|| corrupt(HISTORY))?,
    };
    if record.state == RecordState::Free {
        // Another client may have marked the item as released.
        record.remember_replaced();
    }
    Ok(record)
}

/// Reads another client's lock. The record is valid until the `recordVersionNumber` of the item changes.
///
/// The record counts as unconfirmed, because its token may be missing or come from an old copy. So the next grant takes
/// its token from the store's clock.
fn others(item: &Item, owner: &str, version: &str, dialect: Dialect) -> Result<Content, Fault> {
    let lease = text(item, LEASE);
    let Some(lease_ms) = lease.and_then(|lease| dialect.millis(lease)) else {
        if let Some(lease) = lease
            && dialect.other().millis(lease).is_some()
        {
            return Err(other_dialect(dialect.other(), lease));
        }
        return Ok(Content::foreign("an item whose leaseDuration is missing or not a duration"));
    };
    let ttl = Duration::from_millis(lease_ms).clamp(Ttl::MIN, Ttl::MAX);
    let ttl = Ttl::new(ttl).map_err(|_| corrupt(LEASE))?;
    let id = foreign_id(version).ok_or_else(|| corrupt(VERSION))?;
    let earlier = map(item, OURS).and_then(|ours| own(item, ours, text(ours, "version")?).ok());
    let earlier = earlier.map(|mut earlier| {
        earlier.remember_replaced();
        earlier.history
    });
    Ok(Content::Record(Box::new(Record {
        leasehold: FORMAT,
        state: if item.contains_key(RELEASED) { RecordState::Free } else { RecordState::Held },
        token: number(item, TOKEN).and_then(Token::new).unwrap_or_default(),
        // Each heartbeat of another client looks like a new grant. Like a heartbeat of ours, it shows that the holder
        // is alive.
        grant: id,
        heartbeat: 0,
        nonce: id,
        ttl_ms: ttl.as_millis(),
        // The part that exceeds our longest ttl. It is extended for clock rate errors, because it is part of the lease.
        lock_delay_ms: (lease_ms - lease_ms.min(ttl.as_millis())).saturating_mul(51) / 50,
        holder: Holder { name: owner.to_owned(), ..Holder::default() },
        granted_at_us: None,
        renewed_at_us: seen(item, version),
        cooldown_ms: None,
        unconfirmed: true,
        awaited: item.contains_key(AWAITED),
        served: served(item).unwrap_or(0),
        size: number(item, SIZE).unwrap_or(0),
        history: earlier.or_else(|| history(item)).unwrap_or_default(),
    })))
}

fn other_dialect(written_in: Dialect, lease: &str) -> Fault {
    let lease: String = lease.chars().filter(|c| !crate::types::is_unprintable(*c)).take(40).collect();
    Fault::new(
        ErrorKind::Invalid,
        format!("the lock was written by {}: its leaseDuration is {lease:?}", written_in.client()),
    )
    .with_help(format!(
        "add ?dialect={} to the store URL: the Java client and the Go port write lease durations in a form that the \
         other cannot read, so a table can serve only one of them",
        written_in.name()
    ))
}

/// Returns when `version` was first seen, by the store's clock.
fn seen(item: &Item, version: &str) -> Option<u64> {
    let seen = map(item, SEEN)?;
    (text(seen, "version")? == version).then(|| number(seen, "at"))?
}

/// Returns the attributes of `record`, both AWS's and ours, except the token and the history.
pub(super) fn attributes(record: &Record, dialect: Dialect) -> Attributes {
    let lease_ms = match record.state {
        // Other clients wait until they have seen no change for the `leaseDuration`. They support neither lock delays
        // nor cooldowns, so the `leaseDuration` contains them.
        RecordState::Cooldown => record.cooldown_ms.unwrap_or(0),
        RecordState::Held | RecordState::Free => record.ttl_ms.saturating_add(record.lock_delay_ms),
    };
    let Holder { name, host, pid, .. } = &record.holder;
    let mut attributes = vec![
        (OWNER, s(format!("{name}@{host} {pid} {}", record.grant))),
        (LEASE, s(dialect.text(lease_ms))),
        (VERSION, s(uuid(record.nonce))),
        (HOLDER, s(to_json(&record.holder))),
        (OURS, AttributeValue::M(ours(record))),
    ];
    attributes.extend(record.renewed_at_us.map(|us| (RENEWED, n(us))));
    attributes.extend(record.awaited.then_some((AWAITED, AttributeValue::Bool(true))));
    attributes.extend((record.served > 0).then(|| (SERVED, n(record.served))));
    attributes.extend((record.size > 0).then(|| (SIZE, n(record.size))));
    if record.state == RecordState::Free {
        attributes.push((RELEASED, s("1")));
    }
    attributes
}

fn ours(record: &Record) -> Item {
    let required = [
        ("format", n(record.leasehold)),
        ("version", s(uuid(record.nonce))),
        ("grant", s(record.grant.to_string())),
        ("heartbeat", n(record.heartbeat)),
        ("ttl", n(record.ttl_ms)),
    ];
    let optional = [
        ("lockDelay", (record.lock_delay_ms != 0).then(|| n(record.lock_delay_ms))),
        ("cooldown", record.cooldown_ms.filter(|_| record.state == RecordState::Cooldown).map(n)),
        ("grantedAt", record.granted_at_us.map(n)),
        ("unconfirmed", record.unconfirmed.then_some(AttributeValue::Bool(true))),
    ];
    let optional = optional.into_iter().filter_map(|(name, value)| Some((name, value?)));
    required.into_iter().chain(optional).map(|(name, value)| (name.to_owned(), value)).collect()
}

/// DynamoDB charges for each 1,024 bytes of an item that is written.
const WRITE_UNIT_BYTES: usize = 1_024;
/// The minimum number of past grants to keep, whatever they cost.
const LEAST_HISTORY: usize = 3;

/// Returns `record` with as many of its latest past grants as fit into one write unit together with the rest of the
/// item. Also returns its [`attributes`].
pub(super) fn fitted(record: &Record, key: &str, dialect: Dialect) -> (Record, Attributes) {
    let token = TOKEN.len() + size(&n(record.token.get()));
    let attributes = attributes(record, dialect);
    let others: usize = attributes.iter().map(|(name, value)| name.len() + size(value)).sum();
    let mut left =
        WRITE_UNIT_BYTES.saturating_sub(KEY.len() + key.len() + token + others + HISTORY.len() + 3);
    let mut kept = 0;
    for past in record.history.iter().map(past) {
        let bytes = size(&past) + 1;
        if bytes > left && kept >= LEAST_HISTORY {
            break;
        }
        left = left.saturating_sub(bytes);
        kept += 1;
    }
    let mut record = record.clone();
    record.history.truncate(kept);
    (record, attributes)
}

/// Whether the attribute `name` of `record` is the same as in an item that contains `before`, a record of the same
/// grant.
pub(super) fn stays(name: &str, before: &Record, record: &Record) -> bool {
    let lease =
        |record: &Record| (record.state == RecordState::Cooldown, record.ttl_ms, record.lock_delay_ms);
    match name {
        OWNER | HOLDER => before.holder == record.holder,
        LEASE => lease(before) == lease(record) && before.cooldown_ms == record.cooldown_ms,
        TOKEN => before.token == record.token,
        SIZE => before.size == record.size,
        _ => false,
    }
}

/// Returns the past grants. Returns `None` if there are none.
pub(super) fn history_of(record: &Record) -> Option<AttributeValue> {
    let history: Vec<_> = record.history.iter().map(past).collect();
    (!history.is_empty()).then_some(AttributeValue::L(history))
}

/// Returns the number up to which waiters were served. Returns `None` if it is damaged, or so large that it would
/// overflow when it is incremented.
fn served(item: &Item) -> Option<u64> {
    let served = optional_number(item, SERVED).ok()?.unwrap_or(0);
    (served < Token::LIMIT).then_some(served)
}

/// Returns the attributes of an item with a `line` of waiters. The item looks like a released lock to AWS's clients,
/// which can list all items of a table.
pub(super) fn line(line: String, version: Id, dialect: Dialect) -> Attributes {
    vec![
        (OWNER, s("leasehold: waiters")),
        (LEASE, s(dialect.text(Ttl::DEFAULT.as_millis()))),
        (VERSION, s(uuid(version))),
        (RELEASED, s("1")),
        (LINE, s(line)),
    ]
}

/// Returns the attributes of an item with a line that has the `token` of a new record, if it has no other `line`. The
/// store's clock reads `now`.
pub(super) fn token(token: u64, now: StoreTime, line: String, version: Id, dialect: Dialect) -> Attributes {
    let mut attributes = self::line(line, version, dialect);
    attributes.extend([(TOKEN, n(token)), (RENEWED, n(now.lo_us))]);
    attributes
}

/// How long ago a token was written that is later than the store's clock, which was set back.
const SINCE_UNKNOWN_US: u64 = 16_000_000;

/// Returns a token that is above all that were granted before the store's clock read `now`, and the token in `item`, the
/// item with the line.
///
/// A token was at most the store's time when it was granted, or it was counted from a token that this function
/// returned, which may be ahead of that time. It is assumed that a lock uses less than a token each 8 microseconds.
pub(super) fn token_above(item: Option<&Item>, now: StoreTime) -> (u64, Option<u64>) {
    let seen = item.and_then(|item| number(item, TOKEN));
    let at = item.and_then(|item| number(item, RENEWED));
    let since_us = at.map_or(0, |at| now.hi_us.checked_sub(at).unwrap_or(SINCE_UNKNOWN_US));
    let counted = seen.map_or(0, |seen| seen.saturating_add(since_us / 8));
    (counted.max(now.hi_us).saturating_add(1), seen)
}

/// Returns the line of waiters in `item`, and its version. Each is empty if it is missing.
pub(super) fn read_line(item: &Item) -> (String, Version) {
    let text = |name| text(item, name).unwrap_or_default();
    (text(LINE).to_owned(), Version::new(text(VERSION)))
}

fn past(past: &PastGrant) -> AttributeValue {
    let mut entry = Item::from([
        ("token".to_owned(), n(past.token.get())),
        ("grant".to_owned(), s(past.grant.to_string())),
        ("holder".to_owned(), s(to_json(&past.holder))),
        ("end".to_owned(), s(past.end.as_str())),
    ]);
    entry.extend(past.from_us.map(|us| ("from".to_owned(), n(us))));
    entry.extend(past.until_us.map(|us| ("until".to_owned(), n(us))));
    entry.extend(past.evicted.as_ref().map(|why| ("evicted".to_owned(), s(to_json(why)))));
    AttributeValue::M(entry)
}

/// Reads the past grants. Returns `None` if the history is damaged.
fn history(item: &Item) -> Option<Vec<PastGrant>> {
    let Some(history) = item.get(HISTORY) else { return Some(Vec::new()) };
    let entry = |value: &AttributeValue| {
        let entry = value.as_m().ok()?;
        Some(PastGrant {
            token: Token::new(number(entry, "token")?)?,
            grant: text(entry, "grant")?.parse().ok()?,
            holder: json(entry, "holder")?,
            from_us: number(entry, "from"),
            until_us: number(entry, "until"),
            end: match text(entry, "end")? {
                "released" => End::Released,
                "lapsed" => End::Lapsed,
                "evicted" => End::Evicted,
                "limit" => End::Limit,
                _ => return None,
            },
            evicted: json(entry, "evicted"),
        })
    };
    history.as_l().ok()?.iter().map(entry).collect()
}

/// Returns approximately how many bytes DynamoDB counts for `value`.
fn size(value: &AttributeValue) -> usize {
    match value {
        AttributeValue::S(text) => text.len(),
        AttributeValue::N(digits) => digits.len().div_ceil(2) + 1,
        AttributeValue::M(map) => {
            3 + map.iter().map(|(name, value)| 1 + name.len() + size(value)).sum::<usize>()
        }
        AttributeValue::L(list) => 3 + list.iter().map(|value| 1 + size(value)).sum::<usize>(),
        _ => 1,
    }
}

/// Formats an id as a UUID, like the Java client's own ids.
pub(super) fn uuid(id: Id) -> String {
    let hex = id.to_string();
    let parts: Vec<&str> =
        [0..8, 8..12, 12..16, 16..20, 20..32].into_iter().filter_map(|part| hex.get(part)).collect();
    parts.join("-")
}

fn from_uuid(text: &str) -> Option<Id> {
    let id: Id = text.replace('-', "").parse().ok()?;
    (uuid(id) == text).then_some(id)
}

pub(super) fn s(text: impl Into<String>) -> AttributeValue {
    AttributeValue::S(text.into())
}

pub(super) fn n(number: u64) -> AttributeValue {
    AttributeValue::N(number.to_string())
}

fn text<'a>(item: &'a Item, name: &str) -> Option<&'a str> {
    item.get(name)?.as_s().ok().map(String::as_str)
}

fn number(item: &Item, name: &str) -> Option<u64> {
    item.get(name)?.as_n().ok()?.parse().ok()
}

/// Returns `None` if the attribute does not exist, and an error if it is not a number.
fn optional_number(item: &Item, name: &'static str) -> Result<Option<u64>, Fault> {
    match item.get(name) {
        None => Ok(None),
        Some(_) => number(item, name).map(Some).ok_or_else(|| corrupt(name)),
    }
}

fn map<'a>(item: &'a Item, name: &str) -> Option<&'a Item> {
    item.get(name)?.as_m().ok()
}

fn json<T: DeserializeOwned>(item: &Item, name: &str) -> Option<T> {
    serde_json::from_str(text(item, name)?).ok()
}

fn to_json(value: &impl Serialize) -> String {
    // Serializing strings and a number cannot fail.
    serde_json::to_string(value).unwrap_or_default()
}

fn replicated() -> Fault {
    Fault::new(
        ErrorKind::Unsupported,
        "the lock's item is in a global table (version 2017.11.29), where the last writer wins: two regions can grant \
         one lock at once",
    )
    .with_help(
        "use a table of one region; if the table is no longer replicated, delete the item by hand when no process \
         holds the lock",
    )
}

fn corrupt(attribute: &str) -> Fault {
    Fault::new(
        ErrorKind::Corrupt,
        format!("the lock's item is damaged: {attribute} is missing or not readable"),
    )
    .with_help("inspect the item in the AWS console; delete it by hand when no process holds the lock")
}

#[cfg(test)]
pub(super) mod tests;
