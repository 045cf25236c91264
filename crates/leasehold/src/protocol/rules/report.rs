//! Descriptions of a lock for people. No decision depends on them.

use std::time::Duration;

use super::{Availability, Rules, availability, since_us};
use crate::clock::StoreTime;
use crate::lease::{HolderInfo, State};
use crate::protocol::record::{Content, Record, RecordState};

/// Describes a record that is not free, for people.
pub(in crate::protocol) fn held(
    record: &Record,
    store: Option<StoreTime>,
    lapses_within: Option<Duration>,
) -> HolderInfo {
    let in_cooldown = record.state == RecordState::Cooldown;
    // The record contains when its cooldown began. It does not contain when the grant was made if the grant was the
    // first request of its process.
    let from_us = record.granted_at_us.or(record.renewed_at_us.filter(|_| in_cooldown));
    let lease = match record.cooldown_ms {
        Some(cooldown) if in_cooldown => Duration::from_millis(cooldown),
        _ => record.ttl().get(),
    };
    HolderInfo {
        holder: (!in_cooldown).then(|| record.holder.clone()),
        token: Some(record.token),
        held_for: store.zip(from_us).map(|(store, from_us)| since_us(store.hi_us, from_us)),
        lapses_within,
        lease: Some(lease),
        in_cooldown,
        last_holder: in_cooldown.then(|| record.holder.clone()),
        size: recorded(record.size),
        ..HolderInfo::default()
    }
}

/// Returns the `size` of a record, unless it has none.
pub(crate) fn recorded(size: u64) -> Option<u64> {
    Some(size).filter(|size| *size != 0)
}

/// Describes a lock, for people.
pub(crate) fn state(
    found: Option<&Content>,
    unchanged_for: Duration,
    store: Option<StoreTime>,
    rules: Rules,
) -> State {
    match found {
        None => State::Free,
        Some(Content::Foreign { what, lasts, .. }) => State::Held(foreign(what, *lasts)),
        Some(Content::Record(record)) if record.state == RecordState::Free => State::Free,
        Some(Content::Record(record)) => match availability(record, unchanged_for, store, rules) {
            Availability::Grantable if record.state == RecordState::Cooldown => State::Free,
            Availability::Grantable => State::Lapsed(lapsed(record, store)),
            Availability::Taken { lapses_within } => State::Held(held(record, store, Some(lapses_within))),
        },
    }
}

fn lapsed(record: &Record, store: Option<StoreTime>) -> HolderInfo {
    let renewed = store.zip(record.renewed_at_us).map(|(store, at_us)| since_us(store.hi_us, at_us));
    HolderInfo {
        lapsed_for: renewed.map(|renewed| renewed.saturating_sub(record.ttl().get())),
        ..held(record, store, Some(Duration::ZERO))
    }
}

pub(super) fn foreign(what: &str, lapses_within: Option<Duration>) -> HolderInfo {
    HolderInfo { foreign: Some(what.to_owned()), lapses_within, ..HolderInfo::default() }
}
