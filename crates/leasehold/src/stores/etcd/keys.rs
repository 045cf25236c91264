//! The keys of locks: `<prefix><name>/<claim id>`, the layout of etcd's own lock recipes.
//!
//! All of these recipes (`client/v3/concurrency`, the lock service, `etcdctl lock`) order the keys below `<name>/` by
//! their create revision, and their keys end in the id of their lease. leasehold's keys end in the id of the claim
//! instead. So any number of claims can share one lease, and a ticket finds its key by its id.

use crate::lease::Id;
use crate::types::LockName;

/// The maximum number of digits at the end of a lock's key. The claim ids of leasehold have 32 digits, and lease ids
/// have up to 16.
const MAX_DIGITS: usize = 32;

/// Returns the first key after all keys that begin with `prefix`. If there is none, returns etcd's marker for "no end".
fn end_of(prefix: &[u8]) -> Vec<u8> {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if last < u8::MAX {
            end.push(last + 1);
            return end;
        }
    }
    vec![0]
}

/// The keys from `key` (inclusive) to `end` (exclusive). If `end` is empty, only `key`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Keyspace {
    pub(super) key: Vec<u8>,
    pub(super) end: Vec<u8>,
}

impl Keyspace {
    /// Returns the range of the single key `key`.
    pub(super) fn of(key: &[u8]) -> Self {
        Self { key: key.to_vec(), end: Vec::new() }
    }

    fn beginning_with(prefix: Vec<u8>) -> Self {
        let end = end_of(&prefix);
        // A key cannot be empty. The first possible key is a single zero byte.
        Self { key: if prefix.is_empty() { vec![0] } else { prefix }, end }
    }
}

/// The keys of one store.
#[derive(Clone, Debug)]
pub(super) struct Keys {
    prefix: String,
}

impl Keys {
    pub(super) fn new(prefix: String) -> Self {
        Self { prefix }
    }

    /// Returns the key of one claim.
    pub(super) fn of_claim(&self, name: &LockName, id: Id) -> Vec<u8> {
        format!("{}{name}/{id}", self.prefix).into_bytes()
    }

    /// Returns the range of the keys of all claims that hold `name` or wait for it. It also contains the keys of the
    /// locks whose names begin with `name/`, because a range cannot separate them.
    pub(super) fn line(&self, name: &LockName) -> Keyspace {
        Keyspace::beginning_with(format!("{}{name}/", self.prefix).into_bytes())
    }

    /// Returns whether `key`, a key in [`line`](Self::line), belongs to the queue of `name` itself. Keys of any form
    /// count, because a lock that another client may hold must not be granted.
    pub(super) fn is_in_line(&self, name: &LockName, key: &[u8]) -> bool {
        let rest = key.get(self.prefix.len() + name.as_str().len() + 1..);
        rest.is_some_and(|rest| !rest.contains(&b'/'))
    }

    /// Returns the key that records that another process ended the claim `id`. No lock's name begins with `./`.
    pub(super) fn mark(&self, id: Id) -> Vec<u8> {
        format!("{}./{id}", self.prefix).into_bytes()
    }

    /// Returns a range that contains the keys of all locks whose names begin with `prefix`, and possibly other keys.
    pub(super) fn of_locks(&self, prefix: &str) -> Keyspace {
        Keyspace::beginning_with(format!("{}{prefix}", self.prefix).into_bytes())
    }

    /// Returns the name of the lock that `key` belongs to. Returns `None` if `key` is not a lock's key.
    pub(super) fn lock_of(&self, key: &[u8]) -> Option<LockName> {
        let (name, ending) = std::str::from_utf8(key).ok()?.strip_prefix(&self.prefix)?.rsplit_once('/')?;
        let digits = ending.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
        let is_id = digits && (1..=MAX_DIGITS).contains(&ending.len());
        LockName::new(name).ok().filter(|_| is_id)
    }
}

/// Returns the next possible key after `key`.
pub(super) fn after(key: &[u8]) -> Vec<u8> {
    let mut next = key.to_vec();
    next.push(0);
    next
}

/// Removes duplicate names from a sorted listing of keys. Remembers only the names that can still recur: `a/1`,
/// `a/b/2`, `a/c` are keys of `a`, `a/b`, `a`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Names {
    open: Vec<LockName>,
}

impl Names {
    /// Returns `name`, unless it was returned before.
    pub(super) fn fresh(&mut self, name: LockName) -> Option<LockName> {
        let is_below = |above: &LockName| {
            name.as_str()
                .strip_prefix(above.as_str())
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        self.open.retain(is_below);
        if self.open.contains(&name) {
            return None;
        }
        self.open.push(name.clone());
        Some(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    fn name(text: &str) -> LockName {
        LockName::new(text).unwrap()
    }

    #[test]
    fn the_layout_is_that_of_the_recipes() {
        let keys = Keys::new("app/".into());
        let id = Id::random(&Random::seeded(1));
        assert_eq!(keys.of_claim(&name("a/b"), id), format!("app/a/b/{id}").into_bytes());
        let line = keys.line(&name("a"));
        assert_eq!((line.key.as_slice(), line.end.as_slice()), (&b"app/a/"[..], &b"app/a0"[..]));
        assert!(keys.is_in_line(&name("a"), b"app/a/694d"));
        assert!(keys.is_in_line(&name("a"), b"app/a/anything else"));
        assert!(!keys.is_in_line(&name("a"), b"app/a/b/694d"), "another lock's");
    }

    #[test]
    fn a_range_ends_after_its_prefix() {
        assert_eq!(end_of(b"a"), b"b");
        assert_eq!(end_of(b"a\xff"), b"b");
        assert_eq!(end_of(b"\xff\xff"), b"\0");
        assert_eq!(Keys::new(String::new()).of_locks("").key, b"\0");
    }

    #[test]
    fn keys_are_read_back_as_names_and_others_are_not() {
        let keys = Keys::new("app/".into());
        for (key, of) in [
            ("app/a/694d81", Some("a")),
            ("app/a/b/0", Some("a/b")),
            ("app/a/xyz", None),
            ("app/a/", None),
            ("app/a", None),
            ("app/./694d", None),
            ("app//694d", None),
            ("other/a/694d", None),
        ] {
            assert_eq!(keys.lock_of(key.as_bytes()).as_ref().map(LockName::as_str), of, "{key}");
        }
        assert!(keys.lock_of(&keys.mark(Id::random(&Random::seeded(1)))).is_none());
    }

    #[test]
    fn each_name_is_returned_once_even_if_not_adjacent() {
        let mut names = Names::default();
        let given: Vec<_> = ["a", "a/b", "a/b/c", "a/b", "a", "a-", "b", "b"]
            .into_iter()
            .filter_map(|text| names.fresh(name(text)))
            .map(|name| name.to_string())
            .collect();
        assert_eq!(given, ["a", "a/b", "a/b/c", "a-", "b"]);
    }
}
