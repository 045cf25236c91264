//! Lists of words that clients find in a field, for the description of the API.

use std::borrow::Cow;

use utoipa::openapi::schema::{ObjectBuilder, Type};
use utoipa::openapi::{RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

/// The kinds of the events that viewers get.
pub(crate) const EVENTS: [&str; 9] =
    ["acquired", "released", "lost", "evicted", "lock", "look", "gone", "unavailable", "available"];
/// The words of [`leasehold::LossReason`].
pub(crate) const LOSS_REASONS: [&str; 6] =
    ["expired", "taken_over", "ended", "deleted", "renewed_elsewhere", "limit"];

/// One of [`EVENTS`].
pub(crate) struct EventType;
/// One of [`LOSS_REASONS`].
pub(crate) struct LossReason;

impl PartialSchema for EventType {
    fn schema() -> RefOr<Schema> {
        one_of(
            &EVENTS,
            "`acquired`, `released`, `lost`, `evicted`: done by this server. `lock`: a lock has changed. With `looks`: \
            `look`, `gone` for a lock whose record was deleted, and `unavailable` or `available` for the store. A later \
            version may add words.",
        )
    }
}

impl ToSchema for EventType {
    fn name() -> Cow<'static, str> {
        "EventType".into()
    }
}

impl PartialSchema for LossReason {
    fn schema() -> RefOr<Schema> {
        one_of(&LOSS_REASONS, "How a lock was lost. A later version may add words.")
    }
}

impl ToSchema for LossReason {
    fn name() -> Cow<'static, str> {
        "LossReason".into()
    }
}

fn one_of(words: &[&'static str], description: &str) -> RefOr<Schema> {
    let text = ObjectBuilder::new().schema_type(Type::String).description(Some(description));
    text.enum_values(Some(words.iter().copied())).build().into()
}
