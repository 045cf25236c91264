//! The hash slots of a Redis Cluster: which one a key has, which server has it, and the keys that are in the slot of a
//! lock.

use redis::{RedisError, Value};

use super::answer::text;
use crate::stores::hosts::Host;

const SLOTS: u16 = 16_384;

/// How many keys are tried to find one in a slot of a server. A server with one slot of 16,384 has one of them, except
/// once in ten million times.
const TRIES: u32 = 1 << 18;

/// The ranges of slots, and the primary of each.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Slots(Vec<(u16, u16, Host)>);

impl Slots {
    /// Reads the response of the server `asked` to `CLUSTER SLOTS`.
    pub(super) fn of(answer: Value, asked: &Host) -> Option<Self> {
        let Value::Array(ranges) = answer else { return None };
        let range = |range| {
            let Value::Array(range) = range else { return None };
            let [first, last, Value::Array(primary), ..] = range.as_slice() else { return None };
            let [name, port, ..] = primary.as_slice() else { return None };
            // A server that does not know its own name leaves it out.
            let name =
                text(name.clone()).filter(|name| !name.is_empty()).unwrap_or_else(|| asked.name.clone());
            let number = |value: &Value| match value {
                Value::Int(number) => u16::try_from(*number).ok(),
                _ => None,
            };
            Some((number(first)?, number(last)?, Host { name, port: number(port)? }))
        };
        ranges.into_iter().map(range).collect::<Option<_>>().map(Self)
    }

    fn host_of_slot(&self, slot: u16) -> Option<&Host> {
        let mut ranges = self.0.iter();
        ranges.find(|(first, last, _)| (*first..=*last).contains(&slot)).map(|(_, _, host)| host)
    }

    /// Returns the primary of the slot of `key`.
    pub(super) fn host_of(&self, key: &str) -> Option<&Host> {
        self.host_of_slot(slot_of(key))
    }

    /// Returns all primaries.
    pub(super) fn hosts(&self) -> Vec<Host> {
        let mut hosts: Vec<Host> = Vec::new();
        for (_, _, host) in &self.0 {
            if !hosts.contains(host) {
                hosts.push(host.clone());
            }
        }
        hosts
    }

    /// Returns how many slots have no server.
    pub(super) fn missing(&self) -> usize {
        (0..SLOTS).filter(|slot| self.host_of_slot(*slot).is_none()).count()
    }

    /// Returns a key of the form `PREFIX{NUMBER}SUFFIX` in a slot of `host`. All clients find the same one, and it rarely
    /// changes when slots move.
    pub(super) fn key_at(&self, host: &Host, prefix: &str, suffix: &str) -> String {
        let key = |number: u32| format!("{prefix}{{{number}}}{suffix}");
        let has_slots = self.0.iter().any(|(_, _, primary)| primary == host);
        // If the prefix has a hash tag, all numbers have the same slot.
        let tries = if has_slots && tag(prefix) == prefix { TRIES } else { 1 };
        (0..tries).map(key).find(|key| self.host_of(key) == Some(host)).unwrap_or_else(|| key(0))
    }
}

/// Returns the part of `key` that determines its slot: what is between the first `{` and the first `}` after it, or the
/// whole key.
fn tag(key: &str) -> &str {
    let tag = key.split_once('{').and_then(|(_, rest)| rest.split_once('}')).map(|(tag, _)| tag);
    tag.filter(|tag| !tag.is_empty()).unwrap_or(key)
}

fn slot_of(key: &str) -> u16 {
    // CRC-16/XMODEM.
    let crc = tag(key).bytes().fold(0_u16, |crc, byte| {
        (0..8).fold(crc ^ (u16::from(byte) << 8), |crc, _| {
            if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 }
        })
    });
    crc % SLOTS
}

/// Returns the key of the form `{LOCK}SUFFIX` or `LOCK SUFFIX` that has the slot of the key `lock`. Returns `None` if the
/// braces in `lock` allow neither, and if the key is that of another lock: `{x}SUFFIX` is the key of `x`, not of `{x}`.
pub(super) fn beside(lock: &str, suffix: &str) -> Option<String> {
    let has_slot = |key: &str, lock: &str| tag(key) == tag(lock);
    let around = |lock: &str| Some(format!("{{{lock}}}{suffix}")).filter(|key| has_slot(key, lock));
    let inner = lock.strip_prefix('{').and_then(|lock| lock.strip_suffix('}'));
    let behind = Some(format!("{lock}{suffix}")).filter(|key| has_slot(key, lock));
    around(lock).or(behind.filter(|key| inner.and_then(around).as_ref() != Some(key)))
}

/// Where a server sends a request on to.
pub(super) struct Redirect {
    pub(super) host: Host,
    /// Whether this request only, because the slot moves there.
    pub(super) asks: bool,
}

impl Redirect {
    /// Reads an error of the server `asked`.
    pub(super) fn of(error: &RedisError, asked: &Host) -> Option<Self> {
        let (name, port) = error.redirect_node()?.0.rsplit_once(':')?;
        let name = if name.is_empty() { &asked.name } else { name };
        let host = Host { name: name.trim_matches(['[', ']']).to_owned(), port: port.parse().ok()? };
        Some(Self { host, asks: error.code() == Some("ASK") })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_has_the_slot_that_redis_computes() {
        // As `CLUSTER KEYSLOT` reports.
        for (key, slot) in [("123456789", 12_739), ("foo", 12_182), ("{foo}bar", 12_182), ("", 0)] {
            assert_eq!(slot_of(key), slot, "{key}");
        }
        for (key, part) in [
            ("a{b}c{d}", "b"),
            ("a{}b", "a{}b"),
            ("{", "{"),
            ("}{", "}{"),
            ("a}b", "a}b"),
            ("a{b{c}d", "b{c"),
        ] {
            assert_eq!(tag(key), part);
        }
    }

    #[test]
    fn the_record_of_a_lock_has_the_slot_of_its_name() {
        for (lock, record) in [
            ("a/b", Some("{a/b}//leasehold")),
            ("{a}/b", Some("{a}/b//leasehold")),
            ("a{b", Some("{a{b}//leasehold")),
            ("a}b", None),
            ("a{}b", None),
            ("{}", None),
            ("{a}", None),
            ("{a{b}", None),
            ("{a}/{b}", Some("{a}/{b}//leasehold")),
            ("{a}{a}", Some("{a}{a}//leasehold")),
        ] {
            let key = beside(lock, "//leasehold");
            assert_eq!(key.as_deref(), record, "{lock}");
            assert!(key.is_none_or(|key| slot_of(&key) == slot_of(lock)), "{lock}");
        }
    }

    #[test]
    fn slots_are_read_and_each_server_has_a_key() {
        let server = |name: &str, port| Value::Array(vec![Value::BulkString(name.into()), Value::Int(port)]);
        let range = |first, last, primary| Value::Array(vec![Value::Int(first), Value::Int(last), primary]);
        let asked = Host { name: "asked".into(), port: 1 };
        let answer = [
            range(0, 99, server("h", 7)),
            range(100, 16_382, server("", 8)),
            range(16_383, 16_383, server("h", 9)),
        ];
        let slots = Slots::of(Value::Array(answer.into()), &asked).unwrap();
        let hosts: Vec<_> = slots.hosts().iter().map(ToString::to_string).collect();
        assert_eq!((hosts, slots.missing()), (vec!["h:7".into(), "asked:8".into(), "h:9".to_owned()], 0));
        for host in slots.hosts() {
            assert_eq!(slots.host_of(&slots.key_at(&host, "locks/", "//x")), Some(&host));
        }
        assert_eq!(slots.key_at(&asked, "{a}", "//x"), "{a}{0}//x");
        for bad in [
            Value::Nil,
            Value::Array(vec![Value::Int(1)]),
            Value::Array(vec![range(0, 70_000, server("h", 7))]),
        ] {
            assert_eq!(Slots::of(bad, &asked), None);
        }
        let none = Slots::of(Value::Array(vec![]), &asked).unwrap();
        assert_eq!((none.host_of("x"), none.missing()), (None, 16_384));
    }
}
