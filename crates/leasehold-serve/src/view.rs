//! What the server adds to the [views](leasehold::view) of locks.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::time::Duration;

use leasehold::view::{HolderView, LockDetail, LockView, ms};

/// Removes from `held` what not every caller may see.
pub(crate) fn hide_in_holder(held: &mut HolderView) {
    let holders = held.holder.iter_mut().chain(&mut held.waiter_ahead);
    holders.for_each(|holder| holder.nested = None);
}

/// Returns a version that changes when the lock changes, but not as time passes.
pub(crate) fn version(lock: &LockView) -> String {
    let mut hasher = DefaultHasher::new();
    (lock.state as u8, lock.token).hash(&mut hasher);
    for waiter in &lock.waiters {
        (&waiter.holder.name, &waiter.holder.host, waiter.holder.pid).hash(&mut hasher);
    }
    format!("{:016x}", hasher.finish())
}

/// Returns how the lock looks after the time `later` if nothing has happened.
pub(crate) fn aged(mut detail: LockDetail, later: Duration) -> LockDetail {
    let later = ms(later);
    let grow = |time: &mut Option<u64>| *time = time.map(|time| time.saturating_add(later));
    if let Some(held) = &mut detail.lock.held_by {
        grow(&mut held.held_ms);
        grow(&mut held.free_ms);
        grow(&mut held.lapsed_ms);
        held.lapses_within_ms = held.lapses_within_ms.map(|left| left.saturating_sub(later));
    }
    detail.lock.waiters.iter_mut().for_each(|waiter| grow(&mut waiter.waited_ms));
    detail
}
