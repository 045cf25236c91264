//! JSON for programs: one document, or one per line, each with a `type`. Field names are stable, and those of durations
//! end in the unit.

use std::time::Duration;

use leasehold::lease::Waiter;
use leasehold::{HolderInfo, Leader, LockName, Status};
use serde_json::{Map, Value, json};

use super::human;
use crate::exit::Failure;
use crate::report::{EarlierRun, ms};

/// Returns `{"type":"error","kind","message","help"}`
pub(crate) fn error(failure: &Failure) -> Value {
    json!({ "type": "error", "kind": failure.kind, "message": failure.message, "help": failure.help })
}

/// Returns `{"type":"waiting","lock",...}`
pub(crate) fn waiting(name: &LockName, held: &HolderInfo) -> Value {
    let mut object = object("waiting", name);
    add_holder(&mut object, held);
    Value::Object(object)
}

/// Returns `{"type":"unanswered","lock","for_ms","trying_for_ms"}`, without `trying_for_ms` if there is no limit
pub(crate) fn unanswered(name: &LockName, passed: Duration, left: Option<Duration>) -> Value {
    let mut object = object("unanswered", name);
    object.insert("for_ms".into(), ms(passed).into());
    if let Some(left) = left {
        object.insert("trying_for_ms".into(), ms(left).into());
    }
    Value::Object(object)
}

/// Returns `{"type":"leftovers","for_ms","killing_in_ms"}`
pub(crate) fn leftovers(passed: Duration, left: Duration) -> Value {
    json!({ "type": "leftovers", "for_ms": ms(passed), "killing_in_ms": ms(left) })
}

/// Returns `{"type":"already_ran","lock","holder","token","ago_ms","again_within_ms"}`
pub(crate) fn already_ran(name: &LockName, ran: &EarlierRun) -> Value {
    let mut object = object("already_ran", name);
    if let Value::Object(ran) = json!(ran) {
        object.extend(ran);
    }
    Value::Object(object)
}

/// Returns `{"type":"lock","lock","state",...,"waiters":[{"holder","waited_ms"}]}`
pub(crate) fn lock(status: &Status) -> Value {
    let mut object = object("lock", &status.name);
    object.insert("state".into(), human::state(&status.state).into());
    if let Some(held) = human::holder_of(&status.state) {
        add_holder(&mut object, held);
    }
    object.insert("token".into(), json!(human::token_of(status)));
    if !status.waiters.is_empty() {
        let waiter = |waiter: &Waiter| json!({ "holder": waiter.holder, "waited_ms": waiter.waited.map(ms) });
        object.insert("waiters".into(), status.waiters.iter().map(waiter).collect());
    }
    Value::Object(object)
}

/// Returns `{"type":"leader","lock","term","value","holder"}`, or `{"type":"no_leader","lock"}`
pub(crate) fn leader(election: &str, leader: Option<&Leader>) -> Value {
    match leader {
        None => json!({ "type": "no_leader", "lock": election }),
        Some(Leader { term, value, holder, .. }) => {
            json!({ "type": "leader", "lock": election, "term": term, "value": value, "holder": holder })
        }
    }
}

/// Returns `{"type":"grant","lock","token","end","from_us","until_us","holder","evicted":{"by","reason"}}` for each
/// ended grant.
pub(crate) fn history(status: &Status) -> Vec<Value> {
    let grant = |past: &leasehold::lease::PastGrant| {
        let mut object = object("grant", &status.name);
        object.insert("token".into(), json!(past.token));
        object.insert("end".into(), json!(past.end));
        object.insert("from_us".into(), json!(past.from_us));
        object.insert("until_us".into(), json!(past.until_us));
        object.insert("holder".into(), json!(past.holder));
        if let Some(why) = &past.evicted {
            object.insert("evicted".into(), json!(why));
        }
        Value::Object(object)
    };
    status.history.iter().map(grant).collect()
}

/// Returns an object of `kind` about lock `name`.
pub(crate) fn object(kind: &str, name: &LockName) -> Map<String, Value> {
    Map::from_iter([("type".to_owned(), kind.into()), ("lock".to_owned(), name.as_str().into())])
}

fn add_holder(object: &mut Map<String, Value>, held: &HolderInfo) {
    object.insert("holder".into(), json!(held.holder));
    object.insert("token".into(), json!(held.token));
    object.insert("held_ms".into(), json!(held.held_for.map(ms)));
    object.insert("lapses_within_ms".into(), json!(held.lapses_within.map(ms)));
    if let Some(foreign) = &held.foreign {
        object.insert("foreign".into(), json!(foreign));
    }
    if held.reserved {
        object.insert("reserved".into(), true.into());
        object.insert("free_ms".into(), json!(held.free_for.map(ms)));
    }
    if let Some(ahead) = held.ahead {
        object.insert("ahead".into(), ahead.into());
    }
    if let Some(behind) = &held.waiter_ahead {
        object.insert("behind".into(), json!(behind));
    }
}
