//! Properties of the items of a table, whichever client wrote them.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a property fails by panicking")]

use serde_json::Value as Json;

use super::AttributeValue;
use super::config::Location;
use super::dialect::Dialect;
use super::item::{self, Item};
use crate::error::{ErrorKind, Result};
use crate::fuzzing::{assert_readable, assert_readable_fault};
use crate::lease::{StoreOptions, Token, Ttl};
use crate::protocol::record::{Content, FORMAT, Record, RecordState};
use crate::url::StoreUrl;

pub(in crate::stores) fn reading(url: &StoreUrl, options: &mut StoreOptions) -> Result<String> {
    Location::from_url(url.clone(), options).map(|location| format!("{location:?}"))
}

/// Checks that a record of leasehold is written back as it was read, and that an item is free only if a client marked
/// it as released.
///
/// The bytes are an item in DynamoDB's JSON, `{"key":{"S":"a"},...}`.
pub fn dynamodb_item(data: &[u8]) {
    let Some(Json::Object(json)) = serde_json::from_slice(data).ok() else { return };
    let Some(item) = map(&json) else { return };
    for dialect in [Dialect::Java, Dialect::Go] {
        match item::read(&item, dialect) {
            Err(fault) => {
                assert_readable_fault(&fault);
                assert!(matches!(
                    fault.kind,
                    ErrorKind::Corrupt | ErrorKind::Unsupported | ErrorKind::Invalid
                ));
            }
            Ok(found) => match found.content {
                Content::Foreign { what, .. } => assert_readable(&what),
                Content::Record(record) => {
                    assert!(record.state != RecordState::Free || item.contains_key(item::RELEASED));
                    assert!(Ttl::from_millis(record.ttl_ms).is_ok() && record.heartbeat < Token::LIMIT);
                    assert_readable(&record.holder.to_string());
                    if record.unconfirmed && item::version_of(&record) != found.version {
                        assert_not_ours(&item, &record);
                    } else {
                        assert_round_trip(&item, &record, dialect);
                    }
                }
            },
        }
    }
}

fn assert_not_ours(item: &Item, record: &Record) {
    assert!(record.unconfirmed, "its token is not trusted");
    assert_ne!(record.state, RecordState::Cooldown);
    let version = item[item::VERSION].as_s().unwrap();
    let repeated = |ours: &AttributeValue| ours.as_m().ok()?.get("version")?.as_s().ok().cloned();
    assert_ne!(
        item.get(item::OURS).and_then(repeated).as_ref(),
        Some(version),
        "a record of ours was read as another client's"
    );
}

fn assert_round_trip(item: &Item, record: &Record, dialect: Dialect) {
    let format = item[item::OURS].as_m().unwrap()["format"].as_n().unwrap();
    assert_eq!((record.leasehold, format.parse()), (FORMAT, Ok(FORMAT)), "nothing newer, or of no format");
    let (fitted, set) = item::fitted(record, "a", dialect);
    let history = item::history_of(&fitted).map(|history| (item::HISTORY, history));
    let token = (item::TOKEN, item::n(record.token.get()));
    let written: Item =
        set.into_iter().chain([token]).chain(history).map(|(name, value)| (name.to_owned(), value)).collect();
    let again = item::read(&written, dialect).unwrap();
    assert_eq!(again.version, item::version_of(record));
    let Content::Record(mut again) = again.content else { panic!("{written:?}") };
    assert!(record.history.starts_with(&again.history));
    again.history.clone_from(&record.history);
    // `cooldown_ms` is written only during a cooldown.
    again.cooldown_ms = record.cooldown_ms;
    assert_eq!(*again, *record);
}

/// Parses an item in DynamoDB's JSON.
pub(super) fn map(json: &serde_json::Map<String, Json>) -> Option<Item> {
    json.iter().map(|(name, value)| Some((name.clone(), attribute(value)?))).collect()
}

fn attribute(json: &Json) -> Option<AttributeValue> {
    let (kind, value) = json.as_object().filter(|json| json.len() == 1)?.iter().next()?;
    Some(match (kind.as_str(), value) {
        ("S", Json::String(text)) => AttributeValue::S(text.clone()),
        ("N", Json::String(digits)) => AttributeValue::N(digits.clone()),
        ("BOOL", Json::Bool(value)) => AttributeValue::Bool(*value),
        ("M", Json::Object(entries)) => AttributeValue::M(map(entries)?),
        ("L", Json::Array(values)) => AttributeValue::L(values.iter().map(attribute).collect::<Option<_>>()?),
        _ => return None,
    })
}

/// Returns an item in DynamoDB's JSON, sorted.
#[cfg(test)]
pub(super) fn to_json(item: &Item) -> Json {
    let one = |value: &AttributeValue| match value {
        AttributeValue::S(text) => serde_json::json!({ "S": text }),
        AttributeValue::N(digits) => serde_json::json!({ "N": digits }),
        AttributeValue::Bool(value) => serde_json::json!({ "BOOL": value }),
        AttributeValue::M(entries) => serde_json::json!({ "M": to_json(entries) }),
        AttributeValue::L(values) => {
            let entries =
                values.iter().map(|value| serde_json::json!({ "M": to_json(value.as_m().unwrap()) }));
            serde_json::json!({ "L": entries.collect::<Vec<_>>() })
        }
        #[allow(unreachable_patterns, reason = "the SDK's type has more kinds")]
        other => panic!("{other:?}"),
    };
    item.iter().map(|(name, value)| (name.clone(), one(value))).collect::<serde_json::Map<_, _>>().into()
}
