//! What the server has seen of the locks that viewers look at, and which lock it looks at next.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::time::Duration;

use leasehold::LockName;
use leasehold::clock::Moment;

use crate::view::LockDetail;

/// How often the names are listed.
const LIST: Duration = Duration::from_secs(15);
/// How many locks of a prefix are watched at most.
pub(crate) const MOST_LOCKS: usize = 500;
/// How many locks are watched in all: at five requests a second, one round takes minutes.
const MOST_WATCHED: usize = 10 * MOST_LOCKS;
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
    interests: HashMap<String, usize>,
    /// `None` for a lock that is not seen yet.
    looks: BTreeMap<LockName, Option<Look>>,
    /// The prefixes whose names are listed.
    listed: BTreeMap<String, Listing>,
    /// Locks that this server has changed, and names that are new.
    urgent: VecDeque<LockName>,
    /// Which kind of step is next.
    turn: usize,
    /// Why the store did not respond to the latest request.
    trouble: Option<String>,
}

/// The latest listing of the names that begin with a prefix.
#[derive(Clone, Copy, Debug)]
struct Listing {
    at: Moment,
    /// Whether these locks are watched. If not, there are too many others.
    is_watched: bool,
}

/// A request to the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// List the names that begin with this prefix.
    List(String),
    /// Look at this lock.
    Look(LockName),
}

impl Known {
    /// A viewer of the names that begin with `prefix` has come.
    pub(super) fn join(&mut self, prefix: &str) {
        *self.interests.entry(prefix.to_owned()).or_default() += 1;
    }

    /// A viewer of the names that begin with `prefix` has left.
    pub(super) fn leave(&mut self, prefix: &str) {
        let Some(viewers) = self.interests.get_mut(prefix) else { return };
        *viewers -= 1;
        if *viewers > 0 {
            return;
        }
        self.interests.remove(prefix);
        self.listed.remove(prefix);
        let interests = &self.interests;
        let is_wanted = |name: &str| interests.keys().any(|other| name.starts_with(&**other));
        self.looks.retain(|name, _| !name.as_str().starts_with(prefix) || is_wanted(name.as_str()));
    }

    /// Forgets what was seen.
    pub(super) fn clear(&mut self) {
        *self = Self { interests: std::mem::take(&mut self.interests), ..Self::default() };
    }

    /// This server has changed the lock `name`.
    pub(super) fn changed(&mut self, name: LockName) {
        if self.interests.keys().any(|prefix| name.as_str().starts_with(&**prefix)) {
            self.urge(name);
        }
    }

    /// If there are too many, the name is seen later: at its turn, or as a new one at the next listing.
    fn urge(&mut self, name: LockName) {
        if self.urgent.len() < MOST_LOCKS && !self.urgent.contains(&name) {
            self.urgent.push_back(name);
        }
    }

    /// Records the `names` that begin with `prefix`. Returns those that are gone since the last listing.
    pub(super) fn list(&mut self, prefix: &str, names: Vec<LockName>, now: Moment) -> Vec<LockName> {
        let was_watched = self.listed.get(prefix).is_some_and(|listing| listing.is_watched);
        let names: BTreeSet<LockName> = names.into_iter().collect();
        let is_gone = |name: &LockName| name.as_str().starts_with(prefix) && !names.contains(name);
        let mut gone: Vec<LockName> = self.looks.keys().filter(|name| is_gone(name)).cloned().collect();
        for name in &gone {
            self.looks.remove(name);
        }
        if !was_watched {
            gone.clear();
        }
        let new: Vec<LockName> = names.into_iter().filter(|name| !self.looks.contains_key(name)).collect();
        let is_watched = self.looks.len() + new.len() <= MOST_WATCHED;
        for name in new {
            match (is_watched, was_watched) {
                // Viewers get it as a change.
                (true, true) => self.urge(name),
                (true, false) => drop(self.looks.insert(name, None)),
                (false, _) => {}
            }
        }
        self.listed.insert(prefix.to_owned(), Listing { at: now, is_watched });
        gone
    }

    /// Records how the lock `name` looked. Returns whether it has changed; `None` if a later look is known.
    pub(super) fn record(&mut self, name: &LockName, look: Look) -> Option<bool> {
        let before = self.looks.get(name);
        if let Some(Some(before)) = before
            && !before.at.shortest_since(look.at).is_zero()
        {
            return None;
        }
        let has_changed = match before {
            Some(Some(before)) => before.detail.lock.version() != look.detail.lock.version(),
            Some(None) => false,
            // This server has just learned of it, by changing it or by a listing.
            None => true,
        };
        self.looks.insert(name.clone(), Some(look));
        Some(has_changed)
    }

    /// Records whether the store responded. Returns whether it did before.
    pub(super) fn note(&mut self, trouble: Option<String>) -> bool {
        std::mem::replace(&mut self.trouble, trouble).is_none()
    }

    /// Whether the lock `name` is watched.
    pub(super) fn watches(&self, name: &LockName) -> bool {
        self.looks.contains_key(name)
    }

    /// Whether the names that begin with `prefix` are listed and watched.
    fn covers(&self, prefix: &str) -> bool {
        let covers = |(listed, listing): (&String, &Listing)| {
            listing.is_watched && prefix.starts_with(listed.as_str())
        };
        self.trouble.is_none() && self.listed.iter().any(covers)
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

    /// The next request to the store. The three kinds take turns, so that none of them keeps the others waiting.
    pub(super) fn next(&mut self, now: Moment) -> Option<Step> {
        (0..3).find_map(|_| {
            self.turn = (self.turn + 1) % 3;
            match self.turn {
                1 => self.unlisted(now).map(Step::List),
                2 => self.urgent.pop_front().map(Step::Look),
                _ => self.outdated(now).map(Step::Look),
            }
        })
    }

    /// The prefix whose listing is missing, or the oldest one that is too old. Prefixes that another one covers are not
    /// listed.
    fn unlisted(&self, now: Moment) -> Option<String> {
        let is_covered =
            |prefix: &str| self.interests.keys().any(|other| other != prefix && prefix.starts_with(&**other));
        let age = |prefix: &String| {
            self.listed.get(prefix).map_or(Duration::MAX, |listing| now.longest_since(listing.at))
        };
        let due = self.interests.keys().map(|prefix| (age(prefix), prefix)).filter(|(age, _)| *age >= LIST);
        due.filter(|(_, prefix)| !is_covered(prefix)).max().map(|(_, prefix)| prefix.clone())
    }

    /// A lock that was not seen yet, or the most outdated one.
    fn outdated(&self, now: Moment) -> Option<LockName> {
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

    fn name(text: &str) -> LockName {
        LockName::new(text).unwrap()
    }

    fn names(texts: &[&str]) -> Vec<LockName> {
        texts.iter().map(|text| name(text)).collect()
    }

    /// A viewer of `prefix`, under which these locks were seen.
    fn seen(prefix: &str, looks: impl IntoIterator<Item = (LockName, Option<Look>)>, now: Moment) -> Known {
        let mut known = Known { looks: looks.into_iter().collect(), ..Known::default() };
        known.join(prefix);
        known.list(prefix, known.looks.keys().cloned().collect(), now);
        known
    }

    #[test]
    fn the_most_outdated_lock_is_next() {
        let mut known = seen("", [look("a", 30_000, at(0)), look("b", 4_000, at(1))], at(0));
        let lock = |text: &str| Some(Step::Look(name(text)));
        assert_eq!(known.next(at(2)), lock("a"), "`b` was seen less than two seconds ago");
        assert_eq!(known.next(at(5)), lock("b"), "its lease ends soon");
        assert_eq!(known.next(at(1)), None);
        known.looks.insert(name("c"), None);
        assert_eq!(known.next(at(5)), lock("c"), "it was not seen yet");
    }

    #[test]
    fn changes_listings_and_outdated_locks_take_turns() {
        let mut known = seen("", [look("a", 1, at(0))], at(0));
        for number in 0..10 {
            known.changed(name(&format!("changed-{number}")));
        }
        let steps: Vec<_> = (0..6).map(|_| known.next(at(60)).unwrap()).collect();
        let count = |is_of: fn(&Step) -> bool| steps.iter().filter(|step| is_of(step)).count();
        assert_eq!(count(|step| *step == Step::List(String::new())), 2);
        assert_eq!(count(|step| matches!(step, Step::Look(name) if name.as_str() == "a")), 2);
        assert_eq!(count(|step| matches!(step, Step::Look(name) if name.as_str() != "a")), 2);
    }

    #[test]
    fn changes_that_wait_are_limited() {
        let mut known = seen("", [], at(0));
        for number in 0..3 * MOST_LOCKS {
            known.changed(name(&format!("changed-{number}")));
        }
        assert_eq!(known.urgent.len(), MOST_LOCKS);
        known.urgent.clear();
        known.changed(name("a"));
        known.changed(name("a"));
        assert_eq!(known.urgent.len(), 1);
    }

    #[test]
    fn a_prefix_is_listed_when_it_has_a_viewer_and_then_at_intervals() {
        let mut known = Known::default();
        assert_eq!(known.next(at(0)), None);
        known.join("a/");
        known.join("a/b");
        assert_eq!(known.next(at(0)), Some(Step::List("a/".to_owned())), "it covers the other prefix");
        assert!(known.list("a/", Vec::new(), at(0)).is_empty());
        assert_eq!(known.next(at(14)), None);
        assert_eq!(known.next(at(15)), Some(Step::List("a/".to_owned())));
        known.leave("a/");
        assert_eq!(known.next(at(15)), Some(Step::List("a/b".to_owned())));
    }

    #[test]
    fn a_listing_shows_what_is_new_and_what_is_gone() {
        let mut known = Known::default();
        known.join("a/");
        assert!(known.list("a/", names(&["a/1", "a/2"]), at(0)).is_empty());
        assert!(known.urgent.is_empty(), "the first listing shows no changes");
        assert_eq!(known.list("a/", names(&["a/2", "a/3"]), at(15)), names(&["a/1"]));
        assert_eq!(known.urgent, names(&["a/3"]));
        known.join("b/");
        assert!(known.list("b/", names(&["b/1"]), at(15)).is_empty(), "other prefixes are not concerned");
    }

    #[test]
    fn locks_without_viewers_are_forgotten() {
        let mut known = seen("a/", [look("a/1", 1, at(0)), look("a/b/1", 1, at(0))], at(0));
        known.join("a/b/");
        known.join("a/");
        known.leave("a/");
        assert_eq!(known.looks.len(), 2, "there is another viewer");
        known.leave("a/");
        assert_eq!(known.looks.keys().cloned().collect::<Vec<_>>(), names(&["a/b/1"]));
    }

    #[test]
    fn the_number_of_watched_locks_is_limited() {
        let mut known = Known::default();
        for prefix in 0..2 * MOST_WATCHED / MOST_LOCKS {
            let prefix = format!("{prefix}/");
            known.join(&prefix);
            known.list(
                &prefix,
                (0..MOST_LOCKS).map(|number| name(&format!("{prefix}{number}"))).collect(),
                at(0),
            );
        }
        assert_eq!(known.looks.len(), MOST_WATCHED);
        assert!(known.covers("0/") && !known.covers("11/"));
        known.leave("0/");
        known.list("11/", names(&["11/1"]), at(15));
        assert!(known.covers("11/"));
    }

    #[test]
    fn an_older_look_changes_nothing() {
        let (lock, later) = look("a", 1, at(5));
        let mut known = seen("", [(lock.clone(), later)], at(5));
        let earlier = |seconds| look("a", 2, at(seconds)).1.unwrap();
        assert_eq!(known.record(&lock, earlier(4)), None);
        assert_eq!(known.record(&lock, earlier(6)), Some(false), "only the time that is left is another one");
        assert_eq!(known.record(&name("b"), look("b", 1, at(6)).1.unwrap()), Some(true), "it is new");
    }

    #[test]
    fn what_was_seen_counts_only_for_listed_prefixes() {
        let mut known = seen("a/", [look("a/1", 1, at(0))], at(0));
        assert_eq!(known.under("a/").unwrap().len(), 1);
        assert!(known.under("").is_none() && known.under("b").is_none());
        assert!(known.note(Some("down".into())), "it responded before");
        assert!(known.under("a/").is_none() && known.one(&name("a/1")).is_none());
        assert!(!known.note(None));
    }
}
