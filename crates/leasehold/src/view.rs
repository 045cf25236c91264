//! Locks as JSON, the same for the `leasehold` command (`--json`), `leasehold agent`, `leasehold serve` and the store
//! that reads from it. For people and programs that show locks, never for decisions.
//!
//! Durations end in `_ms`, points in time in `_us` (since the Unix epoch, on the store's clock). Tokens are numbers
//! below 2^53, which JavaScript represents exactly.
//!
//! ```
//! use leasehold::view::LockDetail;
//!
//! # tokio::runtime::Runtime::new().unwrap().block_on(async {
//! let locker = leasehold::Locker::open("mem:").await?;
//! let guard = locker.lock("deploy").owner("alice").acquire().await?;
//! let json = serde_json::to_value(LockDetail::of(&locker.inspect(guard.name()).await?)).unwrap();
//! assert_eq!(json["state"], "held");
//! assert_eq!(json["held_by"]["holder"]["name"], "alice");
//! # Ok::<_, leasehold::Error>(())
//! # }).unwrap();
//! ```

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::types::{Holder, HolderInfo, LockName, PastGrant, State, Status, Token, Waiter};
pub use crate::types::{span, span_up};

/// Converts a duration to whole milliseconds.
///
/// ```
/// assert_eq!(leasehold::view::ms(std::time::Duration::from_micros(2_900)), 2);
/// ```
pub fn ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Returns how long a grant lasted, in whole milliseconds. `None` if the store does not know it.
pub fn lasted_ms(past: &PastGrant) -> Option<u64> {
    Some(past.until_us?.saturating_sub(past.from_us?) / 1_000)
}

/// A hold is not longer than usual before this time.
const SHORTEST_LONG_HOLD: u64 = 60_000;

/// Returns whether a lock has been held for ten times as long as half of the latest grants lasted. `false` with fewer
/// than three such grants.
fn is_longer_than_usual(status: &Status) -> bool {
    let State::Held(HolderInfo { held_for: Some(held_for), in_cooldown: false, .. }) = &status.state else {
        return false;
    };
    let mut lasted: Vec<_> = status.history.iter().filter_map(lasted_ms).collect();
    lasted.sort_unstable();
    let median = lasted.get(lasted.len() / 2).filter(|_| lasted.len() >= 3);
    median.is_some_and(|median| ms(*held_for) > median.saturating_mul(10).max(SHORTEST_LONG_HOLD))
}

/// The state of a lock, in one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "_schema", derive(utoipa::ToSchema), schema(as = LockState))]
#[serde(rename_all = "lowercase")]
pub enum StateView {
    /// It can be acquired.
    Free,
    /// It is held.
    Held,
    /// It is free, but reserved for the first waiter.
    Reserved,
    /// It was released, but is not granted again yet.
    Cooldown,
    /// Its lease has lapsed, so the next contender gets it.
    Lapsed,
}

impl StateView {
    /// Returns the word for `state`.
    pub const fn of(state: &State) -> Self {
        match state {
            State::Free => Self::Free,
            State::Held(held) if held.in_cooldown => Self::Cooldown,
            State::Held(held) if held.reserved => Self::Reserved,
            State::Held(_) => Self::Held,
            State::Lapsed(_) => Self::Lapsed,
        }
    }

    /// Returns the word, such as `held`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Free => "free",
            Self::Held => "held",
            Self::Reserved => "reserved",
            Self::Cooldown => "cooldown",
            Self::Lapsed => "lapsed",
        }
    }
}

/// A lock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "_schema", derive(utoipa::ToSchema), schema(as = Lock))]
#[non_exhaustive]
pub struct LockView {
    /// The name.
    pub lock: String,
    /// Whether it is free, held, reserved, in a cooldown or lapsed.
    pub state: StateView,
    /// The token of the current grant or of the latest one.
    #[cfg_attr(feature = "_schema", schema(required))]
    pub token: Option<Token>,
    /// Who holds it; null if it is free.
    #[cfg_attr(feature = "_schema", schema(required))]
    pub held_by: Option<HolderView>,
    /// The processes that wait in line, first to last.
    #[serde(default)]
    #[cfg_attr(feature = "_schema", schema(required))]
    pub waiters: Vec<WaiterView>,
    /// For the first permit of a semaphore or a readers-writer lock: how many permits there are; absent if the record
    /// does not say it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
    /// Whether it has been held for more than a minute, and for more than ten times the median of its latest grants.
    /// Missing if it has not.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub longer_than_usual: bool,
}

/// A lock with its latest grants.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "_schema", derive(utoipa::ToSchema))]
#[non_exhaustive]
pub struct LockDetail {
    /// The lock.
    #[serde(flatten)]
    pub lock: LockView,
    /// The latest grants that have ended, newest first.
    #[serde(default)]
    #[cfg_attr(feature = "_schema", schema(required))]
    pub history: Vec<PastGrant>,
}

/// Who has a lock.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "_schema", derive(utoipa::ToSchema), schema(as = HeldBy))]
#[non_exhaustive]
pub struct HolderView {
    /// Null if it is unknown.
    #[cfg_attr(feature = "_schema", schema(required))]
    pub holder: Option<Holder>,
    /// The token; null if it is unknown.
    #[cfg_attr(feature = "_schema", schema(required))]
    pub token: Option<Token>,
    /// How long it has been held; null if it is reserved.
    #[cfg_attr(feature = "_schema", schema(required))]
    pub held_ms: Option<u64>,
    /// How long it has been free; null unless it is reserved.
    #[cfg_attr(feature = "_schema", schema(required))]
    pub free_ms: Option<u64>,
    /// How long the lease can still last unless it is renewed, rounded up. After that, the lock may be taken over.
    #[cfg_attr(feature = "_schema", schema(required))]
    pub lapses_within_ms: Option<u64>,
    /// The length of the whole lease or, in a cooldown, of the cooldown; absent if the store does not record it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease_ms: Option<u64>,
    /// How long ago the lease has lapsed; absent if it has not, or if that is unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lapsed_ms: Option<u64>,
    /// Whether the lock was released but is not granted again yet. `holder` is then the previous holder.
    #[serde(default)]
    #[cfg_attr(feature = "_schema", schema(required))]
    pub in_cooldown: bool,
    /// Whether the lock is free, but reserved for `holder`, the first in line.
    #[serde(default)]
    #[cfg_attr(feature = "_schema", schema(required))]
    pub reserved: bool,
    /// What was found instead of a record of leasehold.
    #[cfg_attr(feature = "_schema", schema(required))]
    pub foreign: Option<String>,
    /// For a waiter: how many waiters of other processes are before it; null if it is unknown.
    #[cfg_attr(feature = "_schema", schema(required))]
    pub ahead: Option<usize>,
    /// For a waiter: the one directly before it; null if it is the first, or if it is unknown.
    #[cfg_attr(feature = "_schema", schema(required))]
    pub waiter_ahead: Option<Holder>,
    /// For a permit: how many permits its record says there are; absent if it does not say it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
}

/// A process that waits in line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "_schema", derive(utoipa::ToSchema), schema(as = Waiter))]
#[non_exhaustive]
pub struct WaiterView {
    /// The process.
    pub holder: Holder,
    /// How long it has been in the line; null if it is unknown.
    #[cfg_attr(feature = "_schema", schema(required))]
    pub waited_ms: Option<u64>,
}

impl HolderView {
    /// Returns the view of a holder.
    pub fn of(held: &HolderInfo) -> Self {
        // Rounded down, a lease would seem to end before it does.
        let up = |left: Duration| ms(left.saturating_add(Duration::from_nanos(999_999)));
        Self {
            holder: held.holder.as_ref().or(held.last_holder.as_ref()).cloned(),
            token: held.token,
            held_ms: held.held_for.map(ms),
            free_ms: held.free_for.map(ms),
            lapses_within_ms: held.lapses_within.map(up),
            lease_ms: held.lease.map(ms),
            lapsed_ms: held.lapsed_for.map(ms),
            in_cooldown: held.in_cooldown,
            reserved: held.reserved,
            foreign: held.foreign.clone(),
            ahead: held.ahead,
            waiter_ahead: held.waiter_ahead.clone(),
            size: held.size,
        }
    }

    /// Returns the holder that this view shows.
    pub fn info(self) -> HolderInfo {
        let (holder, last_holder) = if self.in_cooldown { (None, self.holder) } else { (self.holder, None) };
        HolderInfo {
            holder,
            last_holder,
            token: self.token,
            held_for: self.held_ms.map(Duration::from_millis),
            free_for: self.free_ms.map(Duration::from_millis),
            lapses_within: self.lapses_within_ms.map(Duration::from_millis),
            lease: self.lease_ms.map(Duration::from_millis),
            lapsed_for: self.lapsed_ms.map(Duration::from_millis),
            in_cooldown: self.in_cooldown,
            withheld: false,
            reserved: self.reserved,
            foreign: self.foreign,
            ahead: self.ahead,
            waiter_ahead: self.waiter_ahead,
            size: self.size,
        }
    }
}

impl LockView {
    /// Returns the view of a lock.
    pub fn of(status: &Status) -> Self {
        let held = status.state.holder();
        let waiter =
            |waiter: &Waiter| WaiterView { holder: waiter.holder.clone(), waited_ms: waiter.waited.map(ms) };
        Self {
            lock: status.name.to_string(),
            state: StateView::of(&status.state),
            token: status.latest_token(),
            held_by: held.map(HolderView::of),
            waiters: status.waiters.iter().map(waiter).collect(),
            size: status.size,
            longer_than_usual: is_longer_than_usual(status),
        }
    }
}

impl LockDetail {
    /// Returns the view of a lock with its history.
    pub fn of(status: &Status) -> Self {
        Self { lock: LockView::of(status), history: status.history.clone() }
    }

    /// Returns the status of the lock `name`, or `None` if this view shows another lock.
    pub fn status(self, name: &LockName) -> Option<Status> {
        let Self { lock, history } = self;
        if lock.lock != name.as_str() {
            return None;
        }
        let info = lock.held_by.map(HolderView::info).unwrap_or_default();
        let state = match lock.state {
            StateView::Free => State::Free,
            StateView::Held => State::Held(info),
            StateView::Reserved => State::Held(HolderInfo { reserved: true, ..info }),
            StateView::Cooldown => State::Held(HolderInfo { in_cooldown: true, ..info }),
            StateView::Lapsed => State::Lapsed(info),
        };
        let waiter = |waiter: WaiterView| Waiter {
            holder: waiter.holder,
            waited: waiter.waited_ms.map(Duration::from_millis),
        };
        let waiters = lock.waiters.into_iter().map(waiter).collect();
        let (token, size) = (lock.token, lock.size);
        Some(Status { token, history, waiters, size, ..Status::new(name.clone(), state) })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::types::{End, Eviction, HeldLock, Id, Nested};

    fn name() -> LockName {
        LockName::new("a").unwrap()
    }

    #[test]
    fn a_hold_is_longer_than_usual_after_ten_times_the_median() {
        let past = |seconds: u64| PastGrant {
            token: Token::new(seconds).unwrap(),
            grant: Id::NONE,
            holder: person("bob"),
            from_us: Some(1_000_000),
            until_us: Some(1_000_000 + seconds * 1_000_000),
            end: End::Released,
            evicted: None,
        };
        let held =
            |seconds| HolderInfo { held_for: Some(Duration::from_secs(seconds)), ..HolderInfo::default() };
        let marked = |state: State, history: &[PastGrant]| {
            let status = Status { history: history.to_vec(), ..Status::new(name(), state) };
            LockView::of(&status).longer_than_usual
        };
        let shows = |seconds, history: &[PastGrant]| marked(State::Held(held(seconds)), history);
        // The median is 20 s, whatever the one that hung.
        let history = [past(20), past(30_000), past(10)];
        assert!(shows(201, &history) && !shows(200, &history));
        assert!(!shows(3_000, &history[1..]), "too few to know what is usual");
        let unknown = PastGrant { from_us: None, ..past(10) };
        assert!(!shows(3_000, &[past(20), past(30), unknown]));
        let short = [past(1), past(1), past(1)];
        assert!(shows(61, &short) && !shows(60, &short), "not before a minute");
        let cooldown = HolderInfo { in_cooldown: true, ..held(3_000) };
        assert!(!marked(State::Held(cooldown), &short) && !marked(State::Lapsed(held(3_000)), &short));
    }

    fn person(name: &str) -> Holder {
        Holder { name: name.into(), host: "h".into(), pid: 3, ..Holder::default() }
    }

    fn nested() -> Nested {
        let id = "0f".repeat(16).parse::<Id>().unwrap();
        let holds = vec![HeldLock { name: LockName::new("b").unwrap(), token: Token::new(9).unwrap() }];
        Nested { holds, id, seen: vec![id], stays: true }
    }

    /// A status in which each field has a value.
    fn status() -> Status {
        let grant = "00112233445566778899aabbccddeeff".parse::<Id>().unwrap();
        Status {
            token: Token::new(7),
            history: vec![PastGrant {
                token: Token::new(6).unwrap(),
                grant,
                holder: person("eve"),
                from_us: Some(1_500),
                until_us: Some(2_501),
                end: End::Evicted,
                evicted: Some(Eviction::new("root", "gone")),
            }],
            waiters: vec![Waiter {
                holder: Holder { nested: Some(Box::new(nested())), ..person("bob") },
                waited: Some(Duration::from_millis(2)),
            }],
            ..Status::new(
                name(),
                State::Held(HolderInfo {
                    holder: Some(Holder {
                        note: Some("n".into()),
                        value: Some("v".into()),
                        max_hold_ms: Some(8),
                        ..person("alice")
                    }),
                    token: Token::new(7),
                    held_for: Some(Duration::from_millis(5)),
                    lapses_within: Some(Duration::from_millis(9)),
                    lease: Some(Duration::from_millis(10)),
                    lapsed_for: Some(Duration::from_millis(4)),
                    ahead: Some(2),
                    waiter_ahead: Some(person("carol")),
                    ..HolderInfo::default()
                }),
            )
        }
    }

    fn shape() -> Value {
        json!({
            "lock": "a",
            "state": "held",
            "token": 7,
            "held_by": {
                "holder": { "name": "alice", "host": "h", "pid": 3, "note": "n", "value": "v", "max_hold_ms": 8 },
                "token": 7, "held_ms": 5, "free_ms": null, "lapses_within_ms": 9, "lease_ms": 10, "lapsed_ms": 4,
                "in_cooldown": false, "reserved": false, "foreign": null,
                "ahead": 2, "waiter_ahead": { "name": "carol", "host": "h", "pid": 3 },
            },
            "waiters": [{
                "holder": {
                    "name": "bob", "host": "h", "pid": 3,
                    "nested": {
                        "holds": [{ "name": "b", "token": 9 }], "id": "0f".repeat(16), "seen": ["0f".repeat(16)],
                        "stays": true,
                    },
                },
                "waited_ms": 2,
            }],
            "history": [{
                "token": 6, "grant": "00112233445566778899aabbccddeeff",
                "holder": { "name": "eve", "host": "h", "pid": 3 },
                "from_us": 1_500, "until_us": 2_501, "end": "evicted",
                "evicted": { "by": "root", "reason": "gone" },
            }],
        })
    }

    #[test]
    fn a_lock_has_this_shape() {
        assert_eq!(serde_json::to_value(LockDetail::of(&status())).unwrap(), shape());
    }

    #[test]
    fn a_view_is_read_back_without_loss() {
        let in_state = |state: State| Status { state, ..status() };
        let held = |info: HolderInfo| in_state(State::Held(info));
        let some = || Some(person("alice"));
        let ms = |ms| Some(Duration::from_millis(ms));
        for status in [
            status(),
            Status::new(name(), State::Free),
            in_state(State::Lapsed(HolderInfo { holder: some(), ..HolderInfo::default() })),
            held(HolderInfo { holder: some(), reserved: true, free_for: ms(3), ..HolderInfo::default() }),
            held(HolderInfo { last_holder: some(), in_cooldown: true, ..HolderInfo::default() }),
            held(HolderInfo { foreign: Some("an object".into()), ..HolderInfo::default() }),
        ] {
            let text = serde_json::to_string(&LockDetail::of(&status)).unwrap();
            let read: LockDetail = serde_json::from_str(&text).unwrap();
            assert_eq!(read.status(&name()), Some(status), "{text}");
        }
    }

    #[test]
    fn a_lease_does_not_seem_to_end_too_early() {
        let info = HolderInfo { lapses_within: Some(Duration::from_micros(1_001)), ..HolderInfo::default() };
        assert_eq!(HolderView::of(&info).lapses_within_ms, Some(2));
        let longest = HolderInfo { lapses_within: Some(Duration::MAX), ..HolderInfo::default() };
        assert_eq!(HolderView::of(&longest).lapses_within_ms, Some(u64::MAX));
    }

    #[test]
    fn what_is_no_view_of_this_lock_is_refused() {
        let read = |field: &str, value: Value| {
            let mut shape = shape();
            shape[field] = value;
            serde_json::from_value::<LockDetail>(shape).ok()?.status(&name())
        };
        assert!(read("later", json!(1)).is_some());
        for (field, value) in [
            ("lock", json!("b")),
            ("state", json!("gone")),
            ("token", json!(Token::LIMIT)),
            ("held_by", json!("x")),
        ] {
            assert!(read(field, value).is_none(), "{field}");
        }
    }
}
