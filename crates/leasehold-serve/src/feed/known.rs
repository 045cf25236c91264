//! What the server has seen of the locks that viewers look at, and which lock it looks at next.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::Duration;

use leasehold::LockName;
use leasehold::clock::Moment;

use crate::view::LockDetail;

/// A lock is not looked at again before this has passed, unless this server changed it.
const SHORTEST: Duration = Duration::from_secs(2);
/// After this, what was seen of a lock is stale.
const LONGEST: Duration = Duration::from_secs(10);

/// How a lock looked at a moment.
#[derive(Clone, Debug)]
pub(crate) struct Look {
    pub(crate) detail: LockDetail,
    pub(crate) at: Moment,
}

/// The locks that viewers look at. Empty while there are no viewers.
#[derive(Debug, Default)]
pub(super) struct Known {
    /// The prefixes that viewers look at, and how many viewers each has.
    pub(super) interests: HashMap<String, usize>,
    /// `None` for a lock that is not seen yet.
    pub(super) looks: BTreeMap<LockName, Option<Look>>,
    /// The prefixes whose names are listed.
    pub(super) listed: Vec<String>,
    /// Locks that this server has changed.
    pub(super) urgent: VecDeque<LockName>,
    /// Why the store did not respond to the latest request.
    pub(super) trouble: Option<String>,
}

impl Known {
    /// The prefixes that viewers look at, without those that another one covers.
    pub(super) fn prefixes(&self) -> Vec<String> {
        let covered =
            |prefix: &str| self.interests.keys().any(|other| other != prefix && prefix.starts_with(&**other));
        let mut prefixes: Vec<String> =
            self.interests.keys().filter(|prefix| !covered(prefix)).cloned().collect();
        prefixes.sort_unstable();
        prefixes
    }

    /// Whether the names that begin with `prefix` are listed.
    fn covers(&self, prefix: &str) -> bool {
        self.trouble.is_none() && self.listed.iter().any(|listed| prefix.starts_with(&**listed))
    }

    /// The locks whose names begin with `prefix`, if each of them was seen.
    pub(super) fn under(&self, prefix: &str) -> Option<Vec<Look>> {
        if !self.covers(prefix) {
            return None;
        }
        let under = self.looks.iter().filter(|(name, _)| name.as_str().starts_with(prefix));
        under.map(|(_, look)| look.clone()).collect()
    }

    /// The lock `name`, if it was seen.
    pub(super) fn one(&self, name: &LockName) -> Option<Look> {
        if self.trouble.is_some() {
            return None;
        }
        self.looks.get(name)?.clone()
    }

    /// The lock to look at next: one that this server changed, one that was not seen yet, or the most outdated one.
    pub(super) fn next(&mut self, now: Moment) -> Option<LockName> {
        if let Some(urgent) = self.urgent.pop_front() {
            return Some(urgent);
        }
        if let Some((name, _)) = self.looks.iter().find(|(_, look)| look.is_none()) {
            return Some(name.clone());
        }
        let outdated = self.looks.iter().filter_map(|(name, look)| {
            let look = look.as_ref()?;
            let age = now.longest_since(look.at);
            (age >= SHORTEST).then(|| (name, age.as_secs_f64() / stale_after(&look.detail).as_secs_f64()))
        });
        let most = outdated.max_by(|(_, one), (_, other)| one.total_cmp(other));
        most.map(|(name, _)| name.clone())
    }
}

/// A lease that ends soon is renewed soon, or the lock is free soon.
fn stale_after(detail: &LockDetail) -> Duration {
    let lapses = detail.lock.held.as_ref().and_then(|held| held.lapses_within_ms);
    let half = lapses.map_or(LONGEST, |ms| Duration::from_millis(ms) / 2);
    half.clamp(SHORTEST / 2, LONGEST)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::{HolderView, LockView, StateView};

    fn at(seconds: u64) -> Moment {
        Moment::from_raw(seconds * 1_000_000_000, (seconds * 1_000_000_000).cast_signed())
    }

    fn look(name: &str, lapses_within_ms: u64, at: Moment) -> (LockName, Option<Look>) {
        let held = HolderView { lapses_within_ms: Some(lapses_within_ms), ..HolderView::default() };
        let lock = LockView {
            lock: name.to_owned(),
            state: StateView::Held,
            token: Some(1),
            held: Some(held),
            waiters: Vec::new(),
        };
        (LockName::new(name).unwrap(), Some(Look { detail: LockDetail { lock, history: Vec::new() }, at }))
    }

    #[test]
    fn the_most_outdated_lock_is_next() {
        let mut known =
            Known { looks: [look("a", 30_000, at(0)), look("b", 4_000, at(1))].into(), ..Known::default() };
        assert_eq!(known.next(at(2)).unwrap().as_str(), "a", "`b` was seen less than two seconds ago");
        assert_eq!(known.next(at(5)).unwrap().as_str(), "b", "its lease ends soon");
        assert!(known.next(at(1)).is_none());
        known.looks.insert(LockName::new("c").unwrap(), None);
        assert_eq!(known.next(at(5)).unwrap().as_str(), "c", "it was not seen yet");
        known.urgent.push_back(LockName::new("d").unwrap());
        assert_eq!(known.next(at(5)).unwrap().as_str(), "d", "this server changed it");
    }

    #[test]
    fn what_was_seen_counts_only_for_listed_prefixes() {
        let mut known =
            Known { looks: [look("a/1", 1, at(0))].into(), listed: vec!["a/".into()], ..Known::default() };
        assert_eq!(known.under("a/").unwrap().len(), 1);
        assert!(known.under("").is_none() && known.under("b").is_none());
        known.trouble = Some("down".into());
        assert!(known.under("a/").is_none() && known.one(&LockName::new("a/1").unwrap()).is_none());
        known.interests = [("a/".to_owned(), 1), ("a/b".to_owned(), 1), ("c".to_owned(), 2)].into();
        assert_eq!(known.prefixes(), ["a/", "c"]);
    }
}
