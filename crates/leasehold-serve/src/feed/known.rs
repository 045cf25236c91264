//! The latest looks at the locks that viewers watch, and the choice of the next request to the store.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use leasehold::LockName;
use leasehold::clock::Moment;
use leasehold::view::LockDetail;

use crate::view::version;

/// The shortest interval between two listings of the names.
const LIST_INTERVAL: Duration = Duration::from_secs(15);
/// The time between two listings per thousand names, which most stores list with one request.
const LIST_PAGE_INTERVAL: Duration = Duration::from_secs(3);
/// Maximum number of watched locks in total, and of those below one prefix.
pub(crate) const MAX_LOCKS: usize = 50_000;
/// The time for one round of looks at all watched locks, unless that takes more or less than the pauses below allow.
const ROUND: Duration = Duration::from_secs(100);
/// The shortest pause between two requests, which gives at most 50 requests per second.
const MIN_PAUSE: Duration = Duration::from_millis(20);
/// The longest pause between two requests, which gives at most 5 requests per second for 500 locks and fewer.
const MAX_PAUSE: Duration = Duration::from_millis(200);
/// A lock is not looked at again before this time has passed, unless this server has changed it.
const MIN_INTERVAL: Duration = Duration::from_secs(2);
/// After this time, a look at a lock is stale.
const MAX_AGE: Duration = Duration::from_secs(10);

/// The state of a lock at a moment.
#[derive(Clone, Debug)]
pub(crate) struct Look {
    pub(crate) detail: Arc<LockDetail>,
    pub(crate) at: Moment,
}

/// What is known about a lock.
#[derive(Clone, Debug)]
pub(crate) enum Latest {
    /// It has not been read yet.
    Unread,
    /// Its record cannot be read.
    Unreadable,
    Look(Look),
}

impl Latest {
    pub(crate) fn look(&self) -> Option<&Look> {
        match self {
            Self::Look(look) => Some(look),
            Self::Unread | Self::Unreadable => None,
        }
    }
}

/// The locks that viewers watch. Empty while there are no viewers, except for the former looks.
#[derive(Debug, Default)]
pub(super) struct Known {
    /// The prefixes that viewers watch, and the number of viewers of each.
    interests: HashMap<String, usize>,
    /// The prefixes whose names are listed.
    listed: BTreeMap<String, Listing>,
    locks: BTreeMap<LockName, Watched>,
    /// Looks at locks without a viewer, so that a viewer who goes from page to page does not wait for another
    /// round of looks.
    former: BTreeMap<LockName, Look>,
    /// Which kind of step is next.
    turn: usize,
    /// The lock with an announced change that was looked at last.
    last_due: Option<LockName>,
    /// Why the latest request to the store failed, if it did.
    outage: Option<&'static str>,
}

/// A lock that viewers watch.
#[derive(Debug, Default)]
struct Watched {
    /// `None` if the lock has not been seen yet.
    look: Option<Look>,
    /// When a read failed, if none has succeeded since. Such a lock waits for its turn like any other, so that a record
    /// that cannot be read does not keep the other locks from being read.
    failed: Option<Moment>,
    /// Whether the latest response of the store was a record that cannot be read.
    is_unreadable: bool,
    /// If set, viewers get the next look after this moment as a change, because this server has changed the lock or its
    /// name is new.
    due: Option<Moment>,
}

/// The latest listing of the names that begin with a prefix.
#[derive(Clone, Copy, Debug)]
struct Listing {
    at: Moment,
    /// The time until the next listing.
    pause: Duration,
    /// Whether it contains all names, not only the first [`MAX_LOCKS`].
    is_complete: bool,
    /// Whether these locks are watched. If not, there are too many other locks.
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
    /// Adds a viewer of the names that begin with `prefix`.
    pub(super) fn join(&mut self, prefix: &str) {
        *self.interests.entry(prefix.to_owned()).or_default() += 1;
    }

    /// Removes a viewer of the names that begin with `prefix`.
    pub(super) fn leave(&mut self, prefix: &str) {
        let Some(viewers) = self.interests.get_mut(prefix) else { return };
        *viewers -= 1;
        if *viewers > 0 {
            return;
        }
        self.interests.remove(prefix);
        let interests = &self.interests;
        if let Some(listing) = self.listed.remove(prefix).filter(Listing::has_all) {
            // The longer prefixes were listed together with it.
            for other in interests.keys().filter(|other| other.starts_with(prefix)) {
                self.listed.entry(other.clone()).or_insert(listing);
            }
        }
        let is_wanted = |name: &str| interests.keys().any(|other| name.starts_with(&**other));
        let is_left = |name: &str| name.starts_with(prefix) && !is_wanted(name);
        let left: Vec<_> = self.locks.extract_if(.., |name, _| is_left(name.as_str())).collect();
        for (name, watched) in left {
            if let Some(look) = watched.look {
                self.keep(&name, look);
            }
        }
    }

    /// Keeps a look at a lock without a viewer, for its next viewer.
    pub(super) fn keep(&mut self, name: &LockName, look: Look) {
        let has_room = self.former.len() < MAX_LOCKS || self.former.contains_key(name);
        if has_room && !self.locks.contains_key(name) {
            self.former.insert(name.clone(), look);
        }
    }

    /// Forgets all locks and listings, but not the former looks.
    pub(super) fn clear(&mut self) {
        let (interests, former) = (std::mem::take(&mut self.interests), std::mem::take(&mut self.former));
        *self = Self { interests, former, ..Self::default() };
    }

    /// Forgets the former looks.
    pub(super) fn forget(&mut self) {
        self.former.clear();
    }

    /// Returns the pause between two requests.
    pub(super) fn pause(&self) -> Duration {
        pause(self.locks.len())
    }

    /// Returns whether the lock `name` is watched.
    pub(super) fn watches(&self, name: &LockName) -> bool {
        self.locks.contains_key(name)
    }

    /// Records that this server has changed the lock `name`, which has a record.
    pub(super) fn changed(&mut self, name: LockName, now: Moment) {
        let is_wanted = self.interests.keys().any(|prefix| name.as_str().starts_with(&**prefix));
        let has_room = self.locks.len() < MAX_LOCKS || self.locks.contains_key(&name);
        if is_wanted && has_room {
            self.locks.entry(name).or_default().due = Some(now);
        }
    }

    /// Records a listing that began at `began`: the `names` that begin with `prefix`, all of them if it `is_complete`.
    /// Returns the names that are gone since an earlier listing.
    pub(super) fn list(
        &mut self,
        prefix: &str,
        names: Vec<LockName>,
        is_complete: bool,
        began: Moment,
    ) -> Vec<LockName> {
        if !self.interests.contains_key(prefix) {
            return Vec::new();
        }
        let names: BTreeSet<LockName> = names.into_iter().collect();
        let mut gone = Vec::new();
        if is_complete {
            let is_gone = |name: &LockName, watched: &Watched| {
                let was_seen_since = watched.look.as_ref().is_some_and(|look| is_later(look.at, began))
                    || watched.due.is_some();
                name.as_str().starts_with(prefix) && !names.contains(name) && !was_seen_since
            };
            gone = self
                .locks
                .extract_if(.., |name, watched| is_gone(name, watched))
                .map(|(name, _)| name)
                .collect();
            gone.retain(|name| self.is_listed(name));
        }
        let pages = u32::try_from(names.len().div_ceil(1_000)).unwrap_or(u32::MAX);
        let pause = LIST_INTERVAL.max(LIST_PAGE_INTERVAL.saturating_mul(pages));
        let new: Vec<LockName> = names.into_iter().filter(|name| !self.locks.contains_key(name)).collect();
        let is_watched = self.locks.len() + new.len() <= MAX_LOCKS;
        if is_watched {
            for name in new {
                // The name was missing in the previous listing.
                let due = self.is_listed(&name).then_some(began);
                let look = self.former.remove(&name);
                self.locks.insert(name, Watched { look, due, ..Watched::default() });
            }
        }
        self.listed.insert(prefix.to_owned(), Listing { at: began, pause, is_complete, is_watched });
        gone
    }

    /// Records that the names that begin with `prefix` could not be listed.
    pub(super) fn not_listed(&mut self, prefix: &str, now: Moment) {
        let none = Listing { at: now, pause: MIN_INTERVAL, is_complete: false, is_watched: false };
        let listing = self.listed.entry(prefix.to_owned()).or_insert(none);
        (listing.at, listing.pause) = (now, MIN_INTERVAL);
    }

    /// Returns whether an earlier listing would have contained the name.
    fn is_listed(&self, name: &LockName) -> bool {
        self.listed
            .iter()
            .any(|(prefix, listing)| listing.has_all() && name.as_str().starts_with(prefix.as_str()))
    }

    /// Records a look at the lock `name`. Returns whether the lock has changed, or `None` if it is not watched or a
    /// later state is known.
    pub(super) fn record(&mut self, name: &LockName, look: Look) -> Option<bool> {
        let Some(watched) = self.locks.get_mut(name) else {
            if let Some(former) = self.former.get_mut(name) {
                *former = look;
            }
            return None;
        };
        let is_old = |at: Moment| is_later(at, look.at);
        if watched.due.is_some_and(is_old) || watched.look.as_ref().is_some_and(|before| is_old(before.at)) {
            return None;
        }
        let before = watched.look.as_ref().map(|before| version(&before.detail.lock));
        let has_changed =
            watched.due.take().is_some() || before.is_some_and(|before| before != version(&look.detail.lock));
        watched.look = Some(look);
        (watched.failed, watched.is_unreadable) = (None, false);
        Some(has_changed)
    }

    /// Records that the lock `name` could not be read, because of its record if it `is_unreadable`.
    pub(super) fn not_read(&mut self, name: &LockName, is_unreadable: bool, now: Moment) {
        if let Some(watched) = self.locks.get_mut(name) {
            watched.failed = Some(now);
            watched.is_unreadable |= is_unreadable;
        }
    }

    /// Records why a request to the store failed, if it did. Returns the same about the previous request.
    pub(super) fn record_response(&mut self, outage: Option<&'static str>) -> Option<&'static str> {
        std::mem::replace(&mut self.outage, outage)
    }

    /// Returns why the store cannot be read, if the latest request failed.
    pub(super) fn outage(&self) -> Option<&'static str> {
        self.outage
    }

    /// Returns whether the names that begin with `prefix` are listed and watched.
    fn covers(&self, prefix: &str) -> bool {
        let is_listed = self.listed.get(prefix).is_some_and(|listing| listing.is_watched);
        let covers =
            |(listed, listing): (&String, &Listing)| listing.has_all() && prefix.starts_with(listed.as_str());
        is_listed || self.listed.iter().any(covers)
    }

    /// Returns the locks whose names begin with `prefix`, or `None` if they are not watched.
    pub(super) fn under(&self, prefix: &str) -> Option<Vec<(LockName, Latest)>> {
        if !self.covers(prefix) {
            return None;
        }
        let under = self.locks.iter().filter(|(name, _)| name.as_str().starts_with(prefix));
        Some(under.map(|(name, watched)| (name.clone(), watched.latest())).collect())
    }

    /// Returns what is known about the lock `name`, even without a viewer.
    pub(super) fn latest(&self, name: &LockName) -> Latest {
        let watched = self.locks.get(name).map_or(Latest::Unread, Watched::latest);
        match self.former.get(name) {
            Some(former) if matches!(watched, Latest::Unread) => Latest::Look(former.clone()),
            _ => watched,
        }
    }

    /// Returns the look at the lock `name`, if it has been seen.
    pub(super) fn one(&self, name: &LockName) -> Option<Look> {
        self.locks.get(name)?.look.clone()
    }

    /// Returns the next request to the store. The three kinds take turns, so that none of them blocks the others.
    pub(super) fn next(&mut self, now: Moment) -> Option<Step> {
        (0..3).find_map(|_| {
            self.turn = (self.turn + 1) % 3;
            match self.turn {
                1 => self.unlisted(now).map(Step::List),
                2 => self.due(now).map(Step::Look),
                _ => self.outdated(now).map(Step::Look),
            }
        })
    }

    /// Returns a prefix whose listing is missing, or the one with the oldest overdue listing. Prefixes that another
    /// listing includes are not listed separately.
    fn unlisted(&self, now: Moment) -> Option<String> {
        let covers = |other: &String, prefix: &str| {
            other != prefix
                && prefix.starts_with(other.as_str())
                && self.listed.get(other).is_none_or(Listing::has_all)
        };
        let overdue = self.interests.keys().filter_map(|prefix| {
            let Some(listing) = self.listed.get(prefix) else { return Some((Duration::MAX, prefix)) };
            let age = now.longest_since(listing.at);
            (age >= listing.pause).then_some((age, prefix))
        });
        let own = overdue.filter(|(_, prefix)| !self.interests.keys().any(|other| covers(other, prefix)));
        own.max().map(|(_, prefix)| prefix.clone())
    }

    /// Returns a lock whose next look is a change. Such locks take turns.
    fn due(&mut self, now: Moment) -> Option<LockName> {
        let is_due = |watched: &Watched| {
            let has_just_failed = watched.failed.is_some_and(|at| now.longest_since(at) < MIN_INTERVAL);
            watched.due.is_some() && !has_just_failed
        };
        let due = |range: (Bound<&LockName>, Bound<&LockName>)| {
            self.locks.range::<LockName, _>(range).find(|(_, watched)| is_due(watched))
        };
        let begin = self.last_due.as_ref().map_or(Bound::Unbounded, Bound::Excluded);
        let next = due((begin, Bound::Unbounded)).or_else(|| due((Bound::Unbounded, Bound::Unbounded)));
        let name = next.map(|(name, _)| name.clone())?;
        self.last_due = Some(name.clone());
        Some(name)
    }

    /// Returns a lock that no read has been tried for yet, or else the most outdated one.
    fn outdated(&self, now: Moment) -> Option<LockName> {
        let known = || self.locks.iter().filter(|(_, watched)| watched.due.is_none());
        if let Some((name, _)) = known().find(|(_, watched)| watched.tried().is_none()) {
            return Some(name.clone());
        }
        let outdated = known().filter_map(|(name, watched)| {
            let age = now.longest_since(watched.tried()?);
            (age >= MIN_INTERVAL).then(|| (name, age.as_secs_f64() / watched.stale_after().as_secs_f64()))
        });
        let most = outdated.max_by(|(_, one), (_, other)| one.total_cmp(other));
        most.map(|(name, _)| name.clone())
    }
}

impl Watched {
    fn latest(&self) -> Latest {
        match &self.look {
            _ if self.is_unreadable => Latest::Unreadable,
            Some(look) => Latest::Look(look.clone()),
            None => Latest::Unread,
        }
    }

    /// Returns when the lock was read last, with or without success. A failure is kept only until the next look, so it
    /// is later than the look.
    fn tried(&self) -> Option<Moment> {
        self.failed.or_else(|| self.look.as_ref().map(|look| look.at))
    }

    /// Returns how long after a read the next one is due. A lease that ends soon is renewed soon, or the lock becomes
    /// free soon.
    fn stale_after(&self) -> Duration {
        let held = self.look.as_ref().and_then(|look| look.detail.lock.held_by.as_ref());
        let half = held.and_then(|held| held.lapses_within_ms).map(|ms| Duration::from_millis(ms) / 2);
        half.unwrap_or(MAX_AGE).clamp(MIN_INTERVAL / 2, MAX_AGE)
    }
}

impl Listing {
    /// Returns whether all locks whose names begin with the prefix are known and watched.
    fn has_all(&self) -> bool {
        self.is_complete && self.is_watched
    }
}

/// Returns the pause between two requests if so many locks are watched.
pub(crate) fn pause(locks: usize) -> Duration {
    let locks = u32::try_from(locks).unwrap_or(u32::MAX);
    (ROUND / locks.max(1)).clamp(MIN_PAUSE, MAX_PAUSE)
}

/// Returns whether `one` is later than `other` on both clocks.
fn is_later(one: Moment, other: Moment) -> bool {
    !one.shortest_since(other).is_zero()
}

#[cfg(test)]
mod tests;
