//! JSON for programs: one document, or one per line, each with a `type`. Locks have the shape of [`leasehold::view`].

use std::time::Duration;

use leasehold::view::{HolderView, LockView, ms};
use leasehold::{HolderInfo, Leader, LockName, Status, Ticket};
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::exit::Failure;
use crate::report::EarlierRun;

/// Returns `{"type":"error","kind","message","help"}`
pub(crate) fn error(failure: &Failure) -> Value {
    json!({ "type": "error", "kind": failure.kind, "message": failure.message, "help": failure.help })
}

/// Returns `{"type":"waiting","lock","held_by"}`
pub(crate) fn waiting(name: &LockName, held: &HolderInfo, holding: &[&LockName]) -> Value {
    let mut object = object("waiting", name);
    object.insert("held_by".into(), json!(HolderView::of(held)));
    if !holding.is_empty() {
        object.insert("holding".into(), json!(holding));
    }
    Value::Object(object)
}

/// Inserts the tokens of `ticket`. `token` is missing if there are several.
pub(crate) fn insert_tokens(document: &mut Map<String, Value>, ticket: &Ticket) {
    let tokens = ticket.tokens();
    if let [token] = tokens.values().collect::<Vec<_>>()[..] {
        document.insert("token".into(), json!(token));
    }
    document.insert("tokens".into(), json!(tokens));
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
    typed("already_ran", name, ran)
}

/// Returns a lock with `"type":"lock"`.
pub(crate) fn lock(status: &Status) -> Value {
    typed("lock", &status.name, LockView::of(status))
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

/// Returns each ended grant with `"type":"grant"` and `lock`.
pub(crate) fn history(status: &Status) -> impl Iterator<Item = Value> {
    status.history.iter().map(|past| typed("grant", &status.name, past))
}

/// Returns `fields` in an object of `kind` about lock `name`.
fn typed(kind: &str, name: &LockName, fields: impl Serialize) -> Value {
    let mut object = object(kind, name);
    if let Value::Object(fields) = json!(fields) {
        object.extend(fields);
    }
    Value::Object(object)
}

/// Returns an object of `kind` about lock `name`.
pub(crate) fn object(kind: &str, name: &LockName) -> Map<String, Value> {
    Map::from_iter([("type".to_owned(), kind.into()), ("lock".to_owned(), name.as_str().into())])
}
