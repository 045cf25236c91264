//! What happens to the locks, for viewers: the server's own operations at once, and those of other processes by reading
//! the locks.
//!
//! While there are no viewers, the store gets no requests. With viewers, however many, it gets a few in a second.

mod known;
mod meter;

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::{StreamExt as _, TryStreamExt as _};
use leasehold::lease::Id;
use leasehold::random::Random;
use leasehold::{LockName, Locker};
use serde::Serialize;
use tokio::sync::{broadcast, watch};
use utoipa::ToSchema;

use self::known::Known;
pub(crate) use self::known::Look;
pub(crate) use self::meter::{Measured, Meter};
use crate::view::{LockDetail, LockView};

/// How many events a viewer that comes back can still get.
const KEPT: usize = 1_000;
/// The pause between two looks at a lock: five requests in a second.
const LOOK: Duration = Duration::from_millis(200);
/// How often the names are listed.
const LIST: Duration = Duration::from_secs(15);
/// How many locks of a prefix are watched at most.
pub(crate) const MOST_LOCKS: usize = 500;

/// Something that happened to a lock.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct FeedEvent {
    /// `acquired`, `released`, `lost`, `evicted`: done by this server. `lock`: a lock looks different from before.
    /// With `looks`: `look`, `gone` for a lock whose record was deleted, and `unavailable` or `available` for the
    /// store.
    #[serde(rename = "type")]
    pub(crate) kind: &'static str,
    pub(crate) lock: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) token: Option<u64>,
    /// The caller that caused it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) by: Option<String>,
    /// Why, for `evicted` and `lost`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reason: Option<String>,
    /// How the lock looks now, for `lock` and `look`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) now: Option<LockView>,
    /// The `ETag` of what `now` shows, without its quotation marks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) version: Option<String>,
    /// Microseconds since the Unix epoch, by this server's clock.
    pub(crate) at_us: u64,
}

impl FeedEvent {
    pub(crate) fn new(kind: &'static str, lock: &LockName) -> Self {
        Self { kind, lock: lock.to_string(), ..Self::of_the_store() }
    }

    fn of_the_store() -> Self {
        Self {
            kind: "",
            lock: String::new(),
            token: None,
            by: None,
            reason: None,
            now: None,
            version: None,
            at_us: 0,
        }
    }
}

/// An event with its number.
#[derive(Clone, Debug)]
pub(crate) struct Numbered {
    pub(crate) number: u64,
    pub(crate) event: Arc<FeedEvent>,
}

/// The events of a server.
pub(crate) struct Feed {
    locker: Locker,
    /// Distinguishes the events of this run of the server from those of other runs.
    run: String,
    sender: broadcast::Sender<Numbered>,
    recent: Mutex<Recent>,
    /// How many viewers there are.
    viewers: watch::Sender<usize>,
    known: Mutex<Known>,
    meter: Arc<Meter>,
}

#[derive(Default)]
struct Recent {
    last: u64,
    events: VecDeque<Numbered>,
}

/// A viewer. Dropping it ends the view.
pub(crate) struct Viewer {
    feed: Arc<Feed>,
    prefix: String,
    /// Events that it missed.
    pub(crate) missed: Vec<Numbered>,
    /// Whether it missed more than are kept, so that it must read everything again.
    pub(crate) has_gap: bool,
    pub(crate) receiver: broadcast::Receiver<Numbered>,
}

impl Drop for Viewer {
    fn drop(&mut self) {
        let mut known = self.feed.known();
        if let Some(viewers) = known.interests.get_mut(&self.prefix) {
            *viewers -= 1;
            if *viewers == 0 {
                known.interests.remove(&self.prefix);
            }
        }
        drop(known);
        self.feed.viewers.send_modify(|viewers| *viewers -= 1);
    }
}

impl Feed {
    pub(crate) fn new(locker: &Locker) -> Self {
        let meter = Arc::new(Meter::new(locker.store().env().clone()));
        Self {
            locker: locker.observed_by(meter.clone()),
            run: Id::random(&Random::from_os()).to_string().chars().take(8).collect(),
            sender: broadcast::channel(KEPT).0,
            recent: Mutex::default(),
            viewers: watch::channel(0).0,
            known: Mutex::default(),
            meter,
        }
    }

    fn recent(&self) -> MutexGuard<'_, Recent> {
        self.recent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The requests to the store for viewers.
    pub(crate) fn meter(&self) -> &Meter {
        &self.meter
    }

    /// Looks at a lock for a viewer.
    pub(crate) async fn inspect(&self, name: &LockName) -> leasehold::Result<LockDetail> {
        self.locker.inspect(name).await.map(|status| LockDetail::of(&status))
    }

    /// The names that begin with `prefix` in order, at most `most`.
    pub(crate) async fn names(&self, prefix: &str, most: usize) -> leasehold::Result<Vec<LockName>> {
        let mut names: Vec<LockName> = self.locker.list(prefix).take(most).try_collect().await?;
        names.sort_unstable();
        Ok(names)
    }

    /// The locks under `prefix` as they were seen lately; `None` if they are not watched.
    pub(crate) fn seen(&self, prefix: &str) -> Option<Vec<Look>> {
        self.known().under(prefix)
    }

    /// The lock `name` as it was seen lately; `None` if it is not watched.
    pub(crate) fn seen_one(&self, name: &LockName) -> Option<Look> {
        self.known().one(name)
    }

    /// Sends `event`, which is not kept, to viewers.
    fn show(&self, mut event: FeedEvent) {
        event.at_us = self.locker.store().env().now().wall_us();
        let _ = self.sender.send(Numbered { number: 0, event: Arc::new(event) });
    }

    /// Sends `event` to viewers.
    pub(crate) fn publish(&self, event: FeedEvent) {
        if event.now.is_none()
            && self.viewers() > 0
            && let Ok(name) = LockName::new(&event.lock)
        {
            let mut known = self.known();
            let is_watched = known.interests.keys().any(|prefix| name.as_str().starts_with(&**prefix));
            if is_watched && !known.urgent.contains(&name) {
                known.urgent.push_back(name);
            }
        }
        let mut recent = self.recent();
        recent.last += 1;
        let numbered = Numbered { number: recent.last, event: Arc::new(event) };
        recent.events.push_back(numbered.clone());
        if recent.events.len() > KEPT {
            recent.events.pop_front();
        }
        // While the numbers are locked, so that viewers get the events in order. Fails if there are no viewers.
        let _ = self.sender.send(numbered);
    }

    /// The latest events, oldest first.
    pub(crate) fn latest(&self) -> Vec<Numbered> {
        self.recent().events.iter().cloned().collect()
    }

    /// The id of an event for `Last-Event-ID`.
    pub(crate) fn id(&self, number: u64) -> String {
        format!("{}-{number}", self.run)
    }

    /// The number of the event with the id `text`, if it is of this run.
    fn number(&self, text: &str) -> Option<u64> {
        let (run, number) = text.split_once('-')?;
        number.parse().ok().filter(|_| run == self.run)
    }

    /// How many viewers there are.
    pub(crate) fn viewers(&self) -> usize {
        *self.viewers.borrow()
    }

    /// A new viewer of the locks under `prefix`, which has seen everything up to the event with the id `seen`.
    pub(crate) fn view(self: &Arc<Self>, prefix: &str, seen: Option<&str>) -> Viewer {
        let recent = self.recent();
        let receiver = self.sender.subscribe();
        let (missed, has_gap) = match seen.map(|seen| self.number(seen)) {
            None => (Vec::new(), false),
            Some(None) => (Vec::new(), true),
            Some(Some(seen)) => {
                let missed: Vec<_> =
                    recent.events.iter().filter(|event| event.number > seen).cloned().collect();
                let has_gap = missed.first().map_or(recent.last != seen, |first| first.number != seen + 1);
                (missed, has_gap)
            }
        };
        drop(recent);
        *self.known().interests.entry(prefix.to_owned()).or_default() += 1;
        self.viewers.send_modify(|viewers| *viewers += 1);
        Viewer { feed: self.clone(), prefix: prefix.to_owned(), missed, has_gap, receiver }
    }

    /// Reads the locks as long as there are viewers, and sends them what has changed. Never ends.
    pub(crate) async fn look(&self) {
        let mut viewers = self.viewers.subscribe();
        loop {
            if viewers.wait_for(|viewers| *viewers > 0).await.is_err() {
                return;
            }
            tokio::select! {
                () = self.look_around() => {}
                _ = viewers.wait_for(|viewers| *viewers == 0) => {}
            }
            // What was seen is outdated from now on. The next viewer may be there already.
            let mut known = self.known();
            *known = Known { interests: std::mem::take(&mut known.interests), ..Known::default() };
        }
    }

    /// Lists the names at intervals, and reads one lock after the other: at most five requests a second.
    async fn look_around(&self) {
        let env = self.locker.store().env();
        let mut listed_at = None;
        loop {
            let now = env.now();
            let is_old = listed_at.is_none_or(|at| now.longest_since(at) >= LIST);
            let prefixes = self.known().prefixes();
            if is_old || self.known().listed != prefixes {
                self.list(prefixes).await;
                listed_at = Some(now);
            } else {
                let next = self.known().next(now);
                if let Some(name) = next {
                    self.look_at(&name).await;
                }
            }
            env.sleep(LOOK).await;
        }
    }

    async fn list(&self, prefixes: Vec<String>) {
        let mut names = Vec::new();
        for prefix in &prefixes {
            match self.names(prefix, MOST_LOCKS).await {
                Ok(found) => names.extend(found),
                Err(error) => return self.note(Some(error.to_string())),
            }
        }
        let mut gone = Vec::new();
        let mut known = self.known();
        let can_be_gone = known.listed == prefixes;
        known.looks.retain(|name, _| {
            let is_there = names.contains(name);
            if !is_there && can_be_gone {
                gone.push(name.clone());
            }
            is_there
        });
        // A name that was not there at the last listing is new: viewers get it as a change.
        let can_be_new = known.listed == prefixes;
        for name in names {
            if known.looks.contains_key(&name) || known.urgent.contains(&name) {
                continue;
            }
            if can_be_new {
                known.urgent.push_back(name);
            } else {
                known.looks.insert(name, None);
            }
        }
        known.listed = prefixes;
        drop(known);
        for name in &gone {
            self.show(FeedEvent::new("gone", name));
        }
    }

    /// Reads a lock, and notifies viewers.
    async fn look_at(&self, name: &LockName) {
        let detail = match self.inspect(name).await {
            Ok(detail) => detail,
            Err(error) => return self.note(Some(error.to_string())),
        };
        self.note(None);
        let (view, version) = (detail.lock.clone(), detail.lock.version());
        let at = self.locker.store().env().now();
        let before = self.known().looks.insert(name.clone(), Some(Look { detail, at }));
        // `before` is `None` for a name that this server has just learned of, by changing its lock.
        let has_changed = match before {
            Some(Some(before)) => before.detail.lock.version() != version,
            Some(None) => false,
            None => true,
        };
        let kind = if has_changed { "lock" } else { "look" };
        let token = view.token;
        let event = FeedEvent {
            token,
            now: Some(view),
            version: Some(version),
            at_us: at.wall_us(),
            ..FeedEvent::new(kind, name)
        };
        if has_changed {
            self.publish(event);
        } else {
            self.show(event);
        }
    }

    /// Records whether the store responded, and notifies viewers if this has changed.
    fn note(&self, trouble: Option<String>) {
        let before = std::mem::replace(&mut self.known().trouble, trouble.clone());
        if before.is_some() != trouble.is_some() {
            let kind = if trouble.is_some() { "unavailable" } else { "available" };
            self.show(FeedEvent { kind, reason: trouble, ..FeedEvent::of_the_store() });
        }
    }
}
