//! The messages of the agent.

use leasehold::clock::{Deadline, Moment, micros};
use leasehold::error::Sizes;
use leasehold::view::HolderView;
use leasehold::{Loss, Released};
use serde_json::{Map, Value, json};

use super::refusal::Refusal;
use crate::report::EarlierRun;

/// A response without its id.
#[derive(Debug)]
pub(super) struct Answer {
    event: &'static str,
    fields: Map<String, Value>,
}

impl Answer {
    pub(super) fn new(event: &'static str, fields: Value) -> Self {
        let fields = match fields {
            Value::Object(fields) => fields,
            _ => Map::new(),
        };
        Self { event, fields }
    }

    pub(super) fn done() -> Self {
        Self::new("done", Value::Null)
    }

    pub(super) fn released(released: Released) -> Self {
        Self::new("released", json!({ "was_held": released == Released::Released }))
    }

    pub(super) fn already_ran(ran: leasehold::AlreadyRan) -> Self {
        Self::new("already_ran", json!(EarlierRun::from(ran)))
    }

    pub(super) fn error(refusal: &Refusal) -> Self {
        let mut error = Self::new(
            "error",
            json!({ "kind": refusal.kind, "message": refusal.message, "help": refusal.help }),
        );
        if let Some(held) = &refusal.held_by {
            error.fields.insert("held_by".into(), json!(HolderView::of(held)));
        }
        if refusal.refused_by.is_some() {
            error.fields.insert("refused_by".into(), json!(refusal.refused_by));
        }
        if let Some(Sizes { asked, stored, .. }) = refusal.sizes {
            error.fields.insert("sizes".into(), json!({ "asked": asked, "stored": stored }));
        }
        if refusal.maybe_applied {
            error.fields.insert("maybe_applied".into(), true.into());
        }
        error
    }

    /// Returns the message for the request `id`.
    pub(super) fn to(self, id: u64) -> Value {
        let Self { event, mut fields } = self;
        fields.insert("id".into(), id.into());
        fields.insert("ev".into(), event.into());
        Value::Object(fields)
    }

    /// Returns the message for a line that belongs to no request.
    pub(super) fn unassigned(self) -> Value {
        let Self { event, mut fields } = self;
        fields.insert("id".into(), Value::Null);
        fields.insert("ev".into(), event.into());
        Value::Object(fields)
    }
}

/// Returns the fields of a deadline: the start of its span, on both clocks, and the span.
pub(super) fn deadline(deadline: Deadline) -> Value {
    let mut fields = moment(deadline.start());
    fields["span_us"] = micros(deadline.span()).into();
    fields
}

/// Returns the fields of a moment: its time on both clocks.
pub(super) fn moment(moment: Moment) -> Value {
    json!({ "boot_us": micros(moment.since_boot()), "wall_us": moment.wall_us() })
}

/// Adds the fields of the deadline of a hold with this limit to `fields`.
pub(super) fn with_deadline(mut fields: Value, until: Deadline, limit: Option<Deadline>) -> Value {
    if let (Value::Object(fields), Value::Object(until)) = (&mut fields, deadline(until)) {
        fields.extend(until);
    }
    let end = |deadline: Deadline| deadline.start().since_boot() + deadline.span();
    if limit.is_some_and(|limit| end(limit) == end(until)) {
        fields["at_limit"] = true.into();
    }
    fields
}

pub(super) fn renewed(hold: u64, until: Deadline, limit: Option<Deadline>) -> Value {
    with_deadline(json!({ "hold": hold, "ev": "renewed" }), until, limit)
}

pub(super) fn lost(hold: u64, loss: &Loss) -> Value {
    json!({ "hold": hold, "ev": "lost", "reason": loss.reason.as_str(), "message": loss.to_string() })
}
