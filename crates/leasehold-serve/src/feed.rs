//! Events about the locks, for viewers. The server reports its own operations at once, and finds those of other
//! processes by reading the locks.
//!
//! Without viewers, the feed sends no requests to the store. With any number of viewers, it sends at most 5 requests per
//! second for up to 500 locks, and at most 50 for more.

mod known;
mod meter;

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::{StreamExt as _, TryStreamExt as _};
use leasehold::clock;
use leasehold::lease::Id;
use leasehold::random::Random;
use leasehold::view::{LockDetail, LockView};
use leasehold::{Error, ErrorKind, LockName, Locker, Token};
use serde::Serialize;
use tokio::sync::{broadcast, watch};
use utoipa::ToSchema;

use self::known::{Known, Step};
pub(crate) use self::known::{Latest, Look, MAX_LOCKS, pause};
pub(crate) use self::meter::{Measured, Meter};
use crate::view::version;
use crate::words::{self, EventType};

/// How many events are kept for viewers that reconnect.
const MAX_EVENTS: usize = 1_000;
/// How long the looks are kept after the last viewer has left.
const KEPT: Duration = Duration::from_secs(300);

/// Something that happened to a lock, or to the store.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = Event)]
pub(crate) struct FeedEvent {
    /// What happened.
    #[serde(rename = "type")]
    #[schema(value_type = EventType)]
    pub(crate) kind: &'static str,
    /// The lock's name; empty for an event of the store.
    pub(crate) lock: String,
    /// The token of the grant.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Token>)]
    pub(crate) token: Option<u64>,
    /// The caller whose request caused it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) by: Option<String>,
    /// The reason, for `evicted`, `lost` and `unavailable`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reason: Option<String>,
    /// The state of the lock, for `lock` and `look`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) now: Option<LockView>,
    /// The `ETag` of the state in `now`, without its quotation marks.
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
    /// The number of viewers.
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
    prefixes: Vec<String>,
    /// Events that the viewer missed.
    pub(crate) missed: Vec<Numbered>,
    /// Whether the viewer missed more events than are kept, so that it must read everything again.
    pub(crate) has_gap: bool,
    pub(crate) receiver: broadcast::Receiver<Numbered>,
}

impl Drop for Viewer {
    fn drop(&mut self) {
        let mut known = self.feed.known();
        for prefix in &self.prefixes {
            known.leave(prefix);
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
            sender: broadcast::channel(MAX_EVENTS).0,
            recent: Mutex::default(),
            viewers: watch::channel(0).0,
            known: Mutex::default(),
            meter,
        }
    }

    /// Returns the locker whose requests are counted.
    #[cfg(test)]
    pub(crate) fn locker(&self) -> &Locker {
        &self.locker
    }

    fn recent(&self) -> MutexGuard<'_, Recent> {
        self.recent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the meter of the requests to the store for viewers.
    pub(crate) fn meter(&self) -> &Meter {
        &self.meter
    }

    /// Reads a lock for a page. The viewers of the lock also get the result, without another request.
    pub(crate) async fn inspect(&self, name: &LockName) -> leasehold::Result<LockDetail> {
        let look = self.read(name).await?;
        let detail = LockDetail::clone(&look.detail);
        self.record(name, look);
        Ok(detail)
    }

    /// Reads a lock that has a record, like [`inspect`](Self::inspect). Its next viewers also get the result.
    pub(crate) async fn look(&self, name: &LockName) -> leasehold::Result<Look> {
        let look = self.read(name).await?;
        self.record(name, look.clone());
        self.known().keep(name, look.clone());
        Ok(look)
    }

    async fn read(&self, name: &LockName) -> leasehold::Result<Look> {
        let at = self.locker.store().env().now();
        let status = self.locker.inspect(name).await?;
        Ok(Look { detail: Arc::new(LockDetail::of(&status)), at })
    }

    /// Returns at most `most` names that begin with `prefix`, in order.
    pub(crate) async fn names(&self, prefix: &str, most: usize) -> leasehold::Result<Vec<LockName>> {
        let mut names: Vec<LockName> = self.locker.list(prefix).take(most).try_collect().await?;
        names.sort_unstable();
        Ok(names)
    }

    /// Returns why the store cannot be read, if it did not respond to the latest request for viewers.
    pub(crate) fn outage(&self) -> Option<&'static str> {
        self.known().outage()
    }

    /// Returns the locks under `prefixes`, or `None` if those of one prefix are not watched.
    pub(crate) fn seen(&self, prefixes: &[String]) -> Option<Vec<(LockName, Latest)>> {
        let known = self.known();
        let seen: Option<Vec<_>> = prefixes.iter().map(|prefix| known.under(prefix)).collect();
        seen.map(|seen| seen.concat())
    }

    /// Returns the latest look at the lock `name`, or `None` if it is not watched.
    pub(crate) fn seen_one(&self, name: &LockName) -> Option<Look> {
        self.known().one(name)
    }

    /// Adds to `names` what is known about these locks, even without a viewer.
    pub(crate) fn latest_of(&self, names: Vec<LockName>) -> Vec<(LockName, Latest)> {
        let known = self.known();
        let with_latest = |name: LockName| (known.latest(&name), name);
        names.into_iter().map(with_latest).map(|(latest, name)| (name, latest)).collect()
    }

    /// Sends `event` to viewers without keeping it.
    fn show(&self, mut event: FeedEvent) {
        debug_assert!(words::EVENTS.contains(&event.kind), "{event:?}");
        event.at_us = self.locker.store().env().now().wall_us();
        let _ = self.sender.send(Numbered { number: 0, event: Arc::new(event) });
    }

    /// Sends `event` to viewers.
    pub(crate) fn publish(&self, event: FeedEvent) {
        debug_assert!(words::EVENTS.contains(&event.kind), "{event:?}");
        if event.now.is_none()
            && self.viewers() > 0
            && let Ok(name) = LockName::new(&event.lock)
        {
            let mut known = self.known();
            // The lock that was lost may have no record any more.
            if event.kind != "lost" || known.watches(&name) {
                known.changed(name, self.locker.store().env().now());
            }
        }
        let mut recent = self.recent();
        recent.last += 1;
        let numbered = Numbered { number: recent.last, event: Arc::new(event) };
        recent.events.push_back(numbered.clone());
        if recent.events.len() > MAX_EVENTS {
            recent.events.pop_front();
        }
        // Send the event while the numbers are locked, so that viewers get the events in order. This fails if there are
        // no viewers.
        let _ = self.sender.send(numbered);
    }

    /// Returns the latest events, oldest first.
    pub(crate) fn latest(&self) -> Vec<Numbered> {
        self.recent().events.iter().cloned().collect()
    }

    /// Returns whether the latest `acquired` event of the lock `name` is about the grant with this `token`. An event
    /// that is no longer kept does not count.
    pub(crate) fn has_shown_grant(&self, name: &LockName, token: u64) -> bool {
        let recent = self.recent();
        let mut events = recent.events.iter().rev().map(|numbered| &numbered.event);
        let latest = events.find(|event| event.kind == "acquired" && event.lock == name.as_str());
        latest.is_some_and(|event| event.token == Some(token))
    }

    /// Returns the id of an event for `Last-Event-ID`.
    pub(crate) fn id(&self, number: u64) -> String {
        format!("{}-{number}", self.run)
    }

    /// Returns the number of the event with the id `text`, if the event is from this run.
    fn number(&self, text: &str) -> Option<u64> {
        let (run, number) = text.split_once('-')?;
        number.parse().ok().filter(|_| run == self.run)
    }

    /// Returns the number of viewers.
    pub(crate) fn viewers(&self) -> usize {
        *self.viewers.borrow()
    }

    /// Adds a viewer of the locks under `prefixes`, which has seen all events up to the one with the id `seen`.
    pub(crate) fn view(self: &Arc<Self>, prefixes: Vec<String>, seen: Option<&str>) -> Viewer {
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
        let mut known = self.known();
        for prefix in &prefixes {
            known.join(prefix);
        }
        drop(known);
        self.viewers.send_modify(|viewers| *viewers += 1);
        Viewer { feed: self.clone(), prefixes, missed, has_gap, receiver }
    }

    /// Reads the locks while there are viewers, and sends them the changes. Never ends.
    pub(crate) async fn watch(&self) {
        let env = self.locker.store().env();
        let mut viewers = self.viewers.subscribe();
        loop {
            let some = async { viewers.wait_for(|viewers| *viewers > 0).await.is_ok() };
            match clock::timeout(&*env.clock, KEPT, some).await {
                Some(true) => {}
                Some(false) => return,
                None => {
                    self.known().forget();
                    continue;
                }
            }
            tokio::select! {
                () = self.poll_locks() => {}
                _ = viewers.wait_for(|viewers| *viewers == 0) => {}
            }
            // The looks are outdated from now on, even if the next viewer has already joined.
            self.known().clear();
        }
    }

    /// Sends requests with [pauses](Known::pause) between them.
    async fn poll_locks(&self) {
        let env = self.locker.store().env();
        let mut took = Duration::ZERO;
        loop {
            // Pause even before the first request, so that viewers that come and go do not cost more requests.
            let pause = self.known().pause().saturating_sub(took);
            env.sleep(pause).await;
            let began = env.now();
            let step = self.known().next(env.now());
            match step {
                Some(Step::List(prefix)) => self.list(&prefix).await,
                Some(Step::Look(name)) => match self.read(&name).await {
                    Ok(look) => {
                        self.record_response(None);
                        self.record(&name, look);
                    }
                    Err(error) => self.not_read(&name, &error),
                },
                None => {}
            }
            took = env.now().shortest_since(began);
        }
    }

    async fn list(&self, prefix: &str) {
        let began = self.locker.store().env().now();
        let mut names = match self.names(prefix, MAX_LOCKS + 1).await {
            Ok(names) => names,
            Err(error) => {
                self.known().not_listed(prefix, self.locker.store().env().now());
                return self.record_response(Some(&error));
            }
        };
        self.record_response(None);
        let is_complete = names.len() <= MAX_LOCKS;
        names.truncate(MAX_LOCKS);
        let mut known = self.known();
        for name in &known.list(prefix, names, is_complete, began) {
            self.show(FeedEvent::new("gone", name));
        }
    }

    /// Records that a lock could not be read.
    fn not_read(&self, name: &LockName, error: &Error) {
        tracing::debug!(lock = %name, %error, "a lock could not be read for viewers");
        self.known().not_read(name, is_of_record(error), self.locker.store().env().now());
        // An error about this record does not show whether other records can be read.
        if !is_of_record(error) {
            self.record_response(Some(error));
        }
    }

    /// Records a look at a lock and notifies viewers, if the lock is watched.
    fn record(&self, name: &LockName, look: Look) {
        let (view, at) = (look.detail.lock.clone(), look.at);
        // Keep the lock until the event is sent, so that viewers get the looks in order.
        let mut known = self.known();
        let Some(has_changed) = known.record(name, look) else { return };
        let kind = if has_changed { "lock" } else { "look" };
        let event = FeedEvent {
            token: view.token.map(Token::get),
            version: Some(version(&view)),
            now: Some(view),
            at_us: at.wall_us(),
            ..FeedEvent::new(kind, name)
        };
        if has_changed {
            self.publish(event);
        } else {
            self.show(event);
        }
    }

    /// Records whether the store responded, and notifies viewers of a change.
    pub(crate) fn record_response(&self, error: Option<&Error>) {
        let reason = error.map(reason);
        let before = self.known().record_response(reason);
        if before.is_some() == reason.is_some() {
            return;
        }
        let kind = if error.is_some() { "unavailable" } else { "available" };
        if let Some(error) = error {
            tracing::warn!(%error, "the store cannot be read for viewers");
        }
        let reason = reason.map(str::to_owned);
        self.show(FeedEvent { kind, reason, ..FeedEvent::of_the_store() });
    }
}

/// Returns whether the error is about one record, which is damaged or not supported. A few errors about the whole store
/// have the same kinds.
pub(crate) fn is_of_record(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Unsupported)
}

/// The reason of an error for which the store has not responded.
pub(crate) const NO_RESPONSE: &str = "the store does not respond";

/// Returns why the store cannot be read. The message of the error may name a lock, or tell more about the store than
/// each caller may know.
pub(crate) fn reason(error: &Error) -> &'static str {
    match error.kind() {
        ErrorKind::Unavailable => NO_RESPONSE,
        ErrorKind::Denied => "the store denied access",
        _ => "the store cannot be read",
    }
}

/// Opens a store in memory whose clock a test with paused time moves.
#[cfg(test)]
pub(crate) async fn paused_store() -> Locker {
    let mut options = leasehold::lease::StoreOptions::default();
    options.env = leasehold::env::Env::seeded(Arc::new(leasehold::clock::TestClock::default()), 1);
    Locker::open_with("mem:", options).await.unwrap()
}

#[cfg(test)]
mod tests {
    use tokio::sync::broadcast::error::TryRecvError;

    use super::*;

    async fn feed() -> Arc<Feed> {
        Arc::new(Feed::new(&Locker::open("mem:").await.unwrap()))
    }

    fn name(text: &str) -> LockName {
        LockName::new(text).unwrap()
    }

    #[tokio::test]
    async fn a_loss_adds_no_lock_to_those_that_are_watched() {
        let feed = feed().await;
        let _viewer = feed.view(vec![String::new()], None);
        feed.publish(FeedEvent::new("lost", &name("gone")));
        feed.publish(FeedEvent::new("acquired", &name("new")));
        let known = feed.known();
        assert!(!known.watches(&name("gone")) && known.watches(&name("new")));
    }

    #[tokio::test]
    async fn the_reason_of_an_outage_names_no_lock() {
        let feed = feed().await;
        let mut viewer = feed.view(vec![String::new()], None);
        let error = Error::new(ErrorKind::Denied, "cannot read s3://bucket/prod/secret.json");
        feed.not_read(&name("prod/secret"), &error);
        let seen = viewer.receiver.try_recv().unwrap().event;
        assert_eq!((seen.kind, seen.reason.as_deref()), ("unavailable", Some("the store denied access")));
        assert!(!serde_json::to_string(&*seen).unwrap().contains("secret"));
        feed.record_response(None);
        assert_eq!(viewer.receiver.try_recv().unwrap().event.kind, "available");
    }

    #[tokio::test]
    async fn a_record_that_cannot_be_read_is_no_outage() {
        let feed = feed().await;
        let mut viewer = feed.view(vec![String::new()], None);
        for kind in [ErrorKind::Corrupt, ErrorKind::Unsupported] {
            feed.not_read(&name("a"), &Error::new(kind, "a newer format"));
            assert_eq!(viewer.receiver.try_recv().unwrap_err(), TryRecvError::Empty);
        }
        // Nor is it the end of one.
        feed.not_read(&name("a"), &Error::new(ErrorKind::Unavailable, "no response"));
        feed.not_read(&name("a"), &Error::new(ErrorKind::Corrupt, "a newer format"));
        assert_eq!(viewer.receiver.try_recv().unwrap().event.kind, "unavailable");
        assert_eq!(viewer.receiver.try_recv().unwrap_err(), TryRecvError::Empty);
    }

    #[tokio::test]
    async fn a_repeated_grant_is_found_among_the_latest_events() {
        let feed = feed().await;
        let acquired = |lock: &str, token| {
            feed.publish(FeedEvent { token: Some(token), ..FeedEvent::new("acquired", &name(lock)) });
        };
        assert!(!feed.has_shown_grant(&name("a"), 1));
        acquired("a", 1);
        acquired("b", 2);
        feed.publish(FeedEvent { token: Some(3), ..FeedEvent::new("released", &name("a")) });
        assert!(feed.has_shown_grant(&name("a"), 1));
        assert!(!feed.has_shown_grant(&name("a"), 2) && !feed.has_shown_grant(&name("a"), 3));
        acquired("a", 4);
        assert!(!feed.has_shown_grant(&name("a"), 1), "only the latest grant counts");
    }
}
