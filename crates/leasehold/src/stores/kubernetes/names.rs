//! The names of Lease objects. If Kubernetes accepts the name of a lock, its Lease has the same name. Other names are
//! encoded.

use sha2::{Digest, Sha256};

use crate::types::LockName;
use crate::url::is_name;

/// The longest name of an object.
const MAX_BYTES: usize = 253;

/// The beginning of encoded names and of lines' names.
const OURS: &str = "lh--";

/// The beginning of the name of the Lease with a lock's line of waiters.
pub(super) const LINE: &str = "lh--line.";

/// Returns the name of the Lease of the lock `name`. The name of the lock's line contains it too.
///
/// An encoded name is `lh--` and the lock's name in base32hex if that is short enough, and otherwise `lh---` and the
/// name's SHA-256 in base32hex. No two locks have the same Lease.
pub(super) fn lease(name: &LockName) -> String {
    let name = name.as_str();
    let most = MAX_BYTES - LINE.len();
    if is_subdomain(name) && !name.starts_with(OURS) && name.len() <= most {
        return name.to_owned();
    }
    let encoded = format!("{OURS}{}", base32hex(name.as_bytes()));
    if encoded.len() <= most { encoded } else { format!("{OURS}-{}", base32hex(&Sha256::digest(name))) }
}

/// Returns the name of the Lease with the line of the lock `name`.
pub(super) fn line(name: &LockName) -> String {
    format!("{LINE}{}", lease(name))
}

/// Returns whether the name of a Lease is encoded, or is that of a line.
pub(super) fn is_encoded(lease: &str) -> bool {
    lease.starts_with(OURS)
}

/// Returns whether `text` consists of labels of any length, like the name of an object.
fn is_subdomain(text: &str) -> bool {
    text.split('.').all(|label| is_name(label, 1..=usize::MAX, b"-"))
}

/// Encodes `bytes` in base32hex (RFC 4648, section 7), without padding and in lower case.
fn base32hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 32] = b"0123456789abcdefghijklmnopqrstuv";
    let digit = |chunk: &[u8], n: usize| {
        let bits =
            chunk.iter().fold(0u64, |bits, byte| bits << 8 | u64::from(*byte)) << (8 * (5 - chunk.len()));
        char::from(DIGITS[(bits >> (35 - 5 * n)) as usize & 31])
    };
    let digits =
        |chunk: &[u8]| (0..(chunk.len() * 8).div_ceil(5)).map(|n| digit(chunk, n)).collect::<String>();
    bytes.chunks(5).map(digits).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn of(name: &str) -> String {
        lease(&LockName::new(name).unwrap())
    }

    /// Other programs may compute these names, so they must not change.
    #[test]
    fn names_are_kept_or_encoded() {
        for (name, expected) in [
            ("leader", "leader"),
            ("my.app-1", "my.app-1"),
            ("deploy/prod", "lh--chin0r3ff4nn0sjfcg"),
            ("Deploy", "lh--8hin0r3ff4"),
            ("a_b", "lh--c5fm4"),
            ("-a", "lh--5lgg"),
            ("a..b", "lh--c4n2sog"),
            ("lh--x", "lh--dhk2qbbo"),
        ] {
            assert_eq!(of(name), expected);
        }
    }

    /// The examples from the RFC.
    #[test]
    fn base32hex_is_that_of_the_rfc() {
        for (text, expected) in [
            ("", ""),
            ("f", "co"),
            ("fo", "cpng"),
            ("foo", "cpnmu"),
            ("foob", "cpnmuog"),
            ("fooba", "cpnmuoj1"),
            ("foobar", "cpnmuoj1e8"),
        ] {
            assert_eq!(base32hex(text.as_bytes()), expected);
        }
    }

    #[test]
    fn no_two_locks_share_a_lease() {
        let long = "x".repeat(256);
        let other = format!("{}y", "x".repeat(255));
        let names = ["a", "A", "a/b", "a.b", "lh--a", "lh--", "lh--line.a", "lh---a", &long, &other];
        let leases: HashSet<_> = names.iter().map(|name| of(name)).collect();
        let lines = names.iter().map(|name| line(&LockName::new(name).unwrap()));
        let all: HashSet<_> = leases.iter().cloned().chain(lines).collect();
        assert_eq!(all.len(), 2 * names.len());
        assert!(all.iter().all(|name| is_subdomain(name) && name.len() <= MAX_BYTES), "{all:?}");
    }
}
