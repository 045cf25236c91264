//! What a caller may see of the locks of others.

use leasehold::Holder;
use leasehold::lease::Id;
use leasehold::view::{LockDetail, LockView};

use crate::access::{Caller, Right};
use crate::view::hide_in_holder;

/// Removes from `detail` what `caller` may not see.
pub(crate) fn hide(mut detail: LockDetail, caller: &Caller) -> LockDetail {
    detail.history.iter_mut().for_each(|past| past.holder.nested = None);
    detail.lock = hide_in_lock(detail.lock, caller);
    detail
}

/// Removes from `lock` what `caller` may not see: the locks of waiters that it may not read. The ids in these entries,
/// with which waiters find deadlocks, are only for callers that may wait for the lock.
pub(crate) fn hide_in_lock(mut lock: LockView, caller: &Caller) -> LockView {
    lock.held_by.iter_mut().for_each(hide_in_holder);
    let may_wait = caller.may(Right::Acquire, &lock.lock);
    lock.waiters.iter_mut().for_each(|waiter| hide_in_waiter(&mut waiter.holder, may_wait, caller));
    lock
}

fn hide_in_waiter(waiter: &mut Holder, may_wait: bool, caller: &Caller) {
    let Some(mut nested) = waiter.nested.take() else { return };
    nested.holds.retain(|held| caller.may(Right::Read, held.name.as_str()));
    if nested.holds.is_empty() {
        return;
    }
    if !may_wait {
        nested.id = Id::NONE;
        nested.seen.clear();
    }
    waiter.nested = Some(nested);
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_caller_sees_only_locks_of_waiters_that_it_may_read() {
        let id = "0f".repeat(16);
        let waiter = json!({
            "name": "w", "host": "h", "pid": 1,
            "nested": {
                "holds": [{ "name": "pub/b", "token": 1 }, { "name": "secret/b", "token": 2 }],
                "id": id, "seen": [id], "stays": true,
            },
        });
        let detail: LockDetail = serde_json::from_value(json!({
            "lock": "pub/a", "state": "held",
            "held_by": { "holder": waiter, "waiter_ahead": waiter },
            "waiters": [{ "holder": waiter }],
        }))
        .unwrap();
        let seen = |rights: &[(&str, &[Right])]| {
            let rights = rights.iter().map(|(prefix, rights)| ((*prefix).to_owned(), rights.to_vec()));
            hide(detail.clone(), &Caller::with_rights("ci", rights.collect())).lock
        };
        let nested = |lock: LockView| lock.waiters[0].holder.nested.clone();

        let all = seen(&[("", &[Right::Read, Right::Acquire])]);
        assert_eq!(all.waiters, detail.lock.waiters);
        let held = all.held_by.unwrap();
        assert!(held.holder.unwrap().nested.is_none() && held.waiter_ahead.unwrap().nested.is_none());

        let some = nested(seen(&[("pub/", &[Right::Read, Right::Acquire])])).unwrap();
        assert_eq!((some.holds.len(), some.holds[0].name.as_str()), (1, "pub/b"));
        assert_eq!((some.id.to_string(), some.seen.len()), (id, 1));

        let read = nested(seen(&[("", &[Right::Read]), ("secret/", &[Right::Acquire])])).unwrap();
        assert_eq!((read.holds.len(), read.id, read.seen.len()), (2, Id::NONE, 0));
        assert_eq!(nested(seen(&[("pub/a", &[Right::Read, Right::Acquire])])), None);
    }
}
