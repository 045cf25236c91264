//! What happens to the locks, for viewers: own operations at once, and those of other processes by looking.
//!
//! While there are no viewers, the store gets no requests. With viewers, however many, it gets a few in a second.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::StreamExt as _;
use leasehold::lease::Id;
use leasehold::random::Random;
use leasehold::{LockName, Locker};
use serde::Serialize;
use tokio::sync::{broadcast, watch};
use utoipa::ToSchema;

use crate::view::LockView;

/// How many events a viewer that comes back can still get.
const KEPT: usize = 1_000;
/// The pause between two looks at a lock: five requests in a second.
const LOOK: Duration = Duration::from_millis(200);
/// How often the names are listed.
const LIST: Duration = Duration::from_secs(15);
/// How many locks are watched at most.
const MOST_LOCKS: usize = 10_000;

/// Something that happened to a lock.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct FeedEvent {
    /// `acquired`, `released`, `lost`, `evicted`: done by this server. `lock`: a lock looks different from before.
    #[serde(rename = "type")]
    pub(crate) kind: &'static str,
    pub(crate) lock: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) token: Option<u64>,
    /// Who did it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) by: Option<String>,
    /// Why, for `evicted` and `lost`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reason: Option<String>,
    /// How the lock looks now, for `lock`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) now: Option<LockView>,
    /// Microseconds since the Unix epoch, by this server's clock.
    pub(crate) at_us: u64,
}

impl FeedEvent {
    pub(crate) fn new(kind: &'static str, lock: &LockName) -> Self {
        Self { kind, lock: lock.to_string(), token: None, by: None, reason: None, now: None, at_us: 0 }
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
    /// Tells the events of this run of the server from those of others.
    run: String,
    sender: broadcast::Sender<Numbered>,
    recent: Mutex<Recent>,
    /// How many viewers there are.
    viewers: watch::Sender<usize>,
}

#[derive(Default)]
struct Recent {
    last: u64,
    events: VecDeque<Numbered>,
}

/// A viewer. Dropping it ends the view.
pub(crate) struct Viewer {
    feed: Arc<Feed>,
    /// Events that it missed.
    pub(crate) missed: Vec<Numbered>,
    /// Whether it missed more than are kept, so that it must read everything again.
    pub(crate) has_gap: bool,
    pub(crate) receiver: broadcast::Receiver<Numbered>,
}

impl Drop for Viewer {
    fn drop(&mut self) {
        self.feed.viewers.send_modify(|viewers| *viewers -= 1);
    }
}

impl Feed {
    pub(crate) fn new(locker: &Locker) -> Self {
        Self {
            locker: locker.clone(),
            run: Id::random(&Random::from_os()).to_string().chars().take(8).collect(),
            sender: broadcast::channel(KEPT).0,
            recent: Mutex::default(),
            viewers: watch::channel(0).0,
        }
    }

    fn recent(&self) -> MutexGuard<'_, Recent> {
        self.recent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells viewers of `event`.
    pub(crate) fn publish(&self, event: FeedEvent) {
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
    #[allow(dead_code, reason = "used by the dashboard's pages")]
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

    /// A new viewer, which has seen everything up to the event with the id `seen`.
    pub(crate) fn view(self: &Arc<Self>, seen: Option<&str>) -> Viewer {
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
        self.viewers.send_modify(|viewers| *viewers += 1);
        Viewer { feed: self.clone(), missed, has_gap, receiver }
    }

    /// Looks at the locks for as long as there are viewers, and tells them what has changed. Never ends.
    pub(crate) async fn look(&self) {
        let mut viewers = self.viewers.subscribe();
        loop {
            if viewers.wait_for(|viewers| *viewers > 0).await.is_err() {
                return;
            }
            let mut seen = HashMap::new();
            tokio::select! {
                () = self.look_around(&mut seen) => {}
                _ = viewers.wait_for(|viewers| *viewers == 0) => {}
            }
        }
    }

    /// Looks at each lock in turn. Lists the names now and then.
    async fn look_around(&self, seen: &mut HashMap<LockName, String>) {
        let env = self.locker.store().env();
        loop {
            let listed_at = env.now();
            let names = self.locker.list("").take(MOST_LOCKS).filter_map(async |name| name.ok());
            let names: Vec<LockName> = names.collect().await;
            seen.retain(|name, _| names.contains(name));
            loop {
                for name in &names {
                    env.sleep(LOOK).await;
                    self.look_at(name, seen).await;
                    if env.now().longest_since(listed_at) >= LIST && names.len() <= 75 {
                        break;
                    }
                }
                if names.is_empty() {
                    env.sleep(Duration::from_secs(2)).await;
                }
                if names.is_empty() || env.now().longest_since(listed_at) >= LIST {
                    break;
                }
            }
        }
    }

    async fn look_at(&self, name: &LockName, seen: &mut HashMap<LockName, String>) {
        let Ok(status) = self.locker.inspect(name).await else { return };
        let view = LockView::of(&status);
        let version = view.version();
        let before = seen.insert(name.clone(), version.clone());
        if before.is_some_and(|before| before != version) {
            let token = view.token;
            let at_us = self.locker.store().env().now().wall_us();
            self.publish(FeedEvent { now: Some(view), token, at_us, ..FeedEvent::new("lock", name) });
        }
    }
}
