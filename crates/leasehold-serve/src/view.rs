//! Locks as clients see them. Field names are those of `leasehold ls --json`, and those of durations end in the unit.

use std::time::Duration;

use leasehold::lease::End;
use leasehold::{Holder, HolderInfo, PastGrant, State, Status, Waiter};
use serde::Serialize;
use utoipa::ToSchema;

/// Converts a duration to whole milliseconds.
pub(crate) fn ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// The state of a lock, in one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, serde::Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum StateView {
    /// It can be acquired.
    Free,
    Held,
    /// It is free, but reserved for the first waiter.
    Reserved,
    /// It was released, but is not granted again yet.
    Cooldown,
    /// Its lease has lapsed, so the next contender gets it.
    Lapsed,
}

/// A lock.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct LockView {
    pub(crate) lock: String,
    pub(crate) state: StateView,
    /// The token of the current grant or of the latest one.
    pub(crate) token: Option<u64>,
    /// Who holds it; null if it is free.
    pub(crate) held: Option<HolderView>,
    /// The processes that wait in line, first to last.
    pub(crate) waiters: Vec<WaiterView>,
}

/// A lock with its latest grants.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct LockDetail {
    #[serde(flatten)]
    pub(crate) lock: LockView,
    /// The latest grants that have ended, newest first.
    pub(crate) history: Vec<PastView>,
}

/// Who has a lock.
#[derive(Clone, Debug, Default, Serialize, ToSchema)]
pub(crate) struct HolderView {
    /// Null if it is unknown.
    pub(crate) holder: Option<Person>,
    pub(crate) token: Option<u64>,
    /// How long it has been held; null if it is reserved.
    pub(crate) held_ms: Option<u64>,
    /// How long it has been free; null unless it is reserved.
    pub(crate) free_ms: Option<u64>,
    /// How long the lease can still last unless it is renewed. After that, the lock may be taken over.
    pub(crate) lapses_within_ms: Option<u64>,
    /// Whether the lock was released but is not granted again yet. `holder` is then the previous holder.
    pub(crate) in_cooldown: bool,
    /// Whether the lock is free, but reserved for `holder`, the first in line.
    pub(crate) reserved: bool,
    /// What was found instead of a record of leasehold.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) foreign: Option<String>,
}

/// A holder or a waiter, as it described itself. Text from others: show it as text, never as markup.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct Person {
    pub(crate) name: String,
    pub(crate) host: String,
    /// 0 if the lock is held by a ticket.
    pub(crate) pid: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) note: Option<String>,
    /// What a leader advertises.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) value: Option<String>,
}

#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct WaiterView {
    pub(crate) holder: Person,
    pub(crate) waited_ms: Option<u64>,
}

/// A grant that has ended.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct PastView {
    pub(crate) token: u64,
    /// The claim that was granted. It can no longer be used.
    pub(crate) claim: String,
    pub(crate) holder: Person,
    /// The start, in microseconds since the Unix epoch, on the store's clock.
    pub(crate) from_us: Option<u64>,
    /// The end, in the same unit and on the same clock.
    pub(crate) until_us: Option<u64>,
    /// `released`, `lapsed` or `evicted`.
    pub(crate) end: &'static str,
    /// For an evicted grant: who evicted the holder and why, if known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) evicted: Option<EvictionView>,
}

/// Why an operator evicted a holder. Text from others: show it as text, never as markup.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct EvictionView {
    /// Who evicted the holder.
    pub(crate) by: String,
    /// The reason. May be empty.
    pub(crate) reason: String,
}

impl HolderView {
    pub(crate) fn of(held: &HolderInfo) -> Self {
        Self {
            holder: held.holder.as_ref().or(held.last_holder.as_ref()).map(Person::of),
            token: held.token.map(|token| token.get()),
            held_ms: held.held_for.map(ms),
            free_ms: held.free_for.map(ms),
            lapses_within_ms: held.lapses_within.map(ms),
            in_cooldown: held.in_cooldown,
            reserved: held.reserved,
            foreign: held.foreign.clone(),
        }
    }
}

impl Person {
    fn of(holder: &Holder) -> Self {
        Self {
            name: holder.name.clone(),
            host: holder.host.clone(),
            pid: holder.pid,
            note: holder.note.clone(),
            value: holder.value.clone(),
        }
    }
}

impl LockView {
    pub(crate) fn of(status: &Status) -> Self {
        let (state, held) = match &status.state {
            State::Free => (StateView::Free, None),
            State::Held(held) if held.in_cooldown => (StateView::Cooldown, Some(held)),
            State::Held(held) if held.reserved => (StateView::Reserved, Some(held)),
            State::Held(held) => (StateView::Held, Some(held)),
            State::Lapsed(held) => (StateView::Lapsed, Some(held)),
        };
        Self {
            lock: status.name.to_string(),
            state,
            token: held.and_then(|held| held.token).or(status.token).map(|token| token.get()),
            held: held.map(HolderView::of),
            waiters: status.waiters.iter().map(WaiterView::of).collect(),
        }
    }

    /// Returns a version that changes when the lock changes, but not as time passes.
    pub(crate) fn version(&self) -> String {
        use std::hash::{DefaultHasher, Hash as _, Hasher as _};
        let mut hasher = DefaultHasher::new();
        (self.state as u8, self.token).hash(&mut hasher);
        for waiter in &self.waiters {
            (&waiter.holder.name, &waiter.holder.host, waiter.holder.pid).hash(&mut hasher);
        }
        format!("{:016x}", hasher.finish())
    }
}

impl LockDetail {
    /// Returns how the lock looks after the time `later` if nothing has happened.
    pub(crate) fn aged(mut self, later: Duration) -> Self {
        let later = ms(later);
        let grow = |time: &mut Option<u64>| *time = time.map(|time| time.saturating_add(later));
        if let Some(held) = &mut self.lock.held {
            grow(&mut held.held_ms);
            grow(&mut held.free_ms);
            held.lapses_within_ms = held.lapses_within_ms.map(|left| left.saturating_sub(later));
        }
        self.lock.waiters.iter_mut().for_each(|waiter| grow(&mut waiter.waited_ms));
        self
    }

    pub(crate) fn of(status: &Status) -> Self {
        Self { lock: LockView::of(status), history: status.history.iter().map(PastView::of).collect() }
    }
}

impl WaiterView {
    fn of(waiter: &Waiter) -> Self {
        Self { holder: Person::of(&waiter.holder), waited_ms: waiter.waited.map(ms) }
    }
}

impl PastView {
    fn of(past: &PastGrant) -> Self {
        Self {
            token: past.token.get(),
            claim: past.grant.to_string(),
            holder: Person::of(&past.holder),
            from_us: past.from_us,
            until_us: past.until_us,
            end: match past.end {
                End::Released => "released",
                End::Lapsed => "lapsed",
                End::Evicted => "evicted",
            },
            evicted: past
                .evicted
                .as_ref()
                .map(|why| EvictionView { by: why.by.clone(), reason: why.reason.clone() }),
        }
    }
}
