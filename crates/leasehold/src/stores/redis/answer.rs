//! Reads and validates the responses of the scripts.

use std::time::Duration;

use redis::{PushInfo, PushKind, Value};

use super::scripts::FIELDS;
use crate::error::{ErrorKind, Fault, StoreError};
use crate::lease::{MAX_WAITERS, Token, printable};
use crate::protocol::line::{Line, Waiter};
use crate::protocol::record::{Content, Record};
use crate::protocol::records::Found;
use crate::register::Version;
use crate::stores::columns;

/// The response of a script for a record.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) outcome: String,
    pub(super) now_us: u64,
    /// For how many microseconds the server grants no lock, or the token before a grant.
    detail: String,
    /// The type of a key that another client has set, and its remaining time in milliseconds, which is negative if the
    /// key does not expire.
    foreign: Option<(String, i64)>,
    fields: Vec<Option<String>>,
}

impl Answer {
    pub(super) fn of(value: Value) -> Result<Self, StoreError> {
        read(value).ok_or_else(|| unreadable().maybe_applied())
    }

    /// Returns the number that comes with the outcome.
    pub(super) fn detail(&self) -> Option<u64> {
        self.detail.parse().ok()
    }

    /// Returns the content of the lock's keys, or `None` if there are none.
    pub(super) fn found(&self, key: &str) -> Result<Option<Found>, Fault> {
        if let Some((kind, left_ms)) = &self.foreign {
            let what = match kind.as_str() {
                "string" => "another client".to_owned(),
                kind => format!("another client, with a key of type {}", printable(kind, 20)),
            };
            let left = u64::try_from(*left_ms).ok().map(Duration::from_millis);
            let history = columns::history(self.field("history").unwrap_or_default());
            let (content, line) = (Content::Foreign { what, lasts: left, history }, Some(self.line()));
            return Ok(Some(Found { content, version: Version::new(""), line }));
        }
        let line = Some(self.line());
        let Some(version) = self.field("version") else {
            // Processes wait for a lock that only other clients have held.
            let awaited = self.field("line").is_some_and(|line| !line.is_empty());
            let content = Content::Record(Box::new(Record::never_granted()));
            return Ok(awaited.then(|| Found { content, version: Version::new(""), line }));
        };
        let record = self.record().map_err(|why| garbled(&why, key))?;
        Ok(Some(Found { content: Content::Record(Box::new(record)), version: Version::new(version), line }))
    }

    /// Returns the line. Entries whose beginning cannot be read do not count, as in the scripts.
    fn line(&self) -> Line {
        let entry = |entry: &str| {
            let (number, rest) = entry.split_once(' ')?;
            let (polls_ms, rest) = rest.split_once(' ')?;
            let (claim, waiter) = rest.split_once(' ')?;
            let waiter: Option<Waiter> = serde_json::from_str(waiter).ok();
            let holder = waiter.as_ref().map(|waiter| waiter.holder.clone()).unwrap_or_default();
            let since_us = waiter.and_then(|waiter| waiter.since_us);
            let number = number.parse().ok().filter(|number| *number < Token::LIMIT)?;
            let polls_ms = polls_ms.parse().ok()?;
            Some(Waiter { number, claim: claim.parse().ok()?, holder, since_us, polls_ms })
        };
        let entries = self.field("line").unwrap_or("").split('\n').filter_map(entry);
        Line::of(entries.take(MAX_WAITERS).collect())
    }

    fn field(&self, name: &str) -> Option<&str> {
        let at = FIELDS.iter().position(|field| *field == name)?;
        self.fields.get(at)?.as_deref()
    }

    fn number(&self, name: &str) -> Result<u64, String> {
        self.field(name).and_then(|text| text.parse().ok()).ok_or_else(|| format!("{name} is not a number"))
    }

    fn record(&self) -> Result<Record, String> {
        let [record, history] = ["record", "history"].map(|name| self.field(name).unwrap_or_default());
        let [served, size] = ["served", "size"].map(|name| self.number(name).unwrap_or(0));
        let record = columns::read(record, self.number("token")?, served, size, self.number("at")?, history)?;
        if self.field("grant") != Some(&record.grant.to_string()) {
            return Err("its fields contradict each other".to_owned());
        }
        Ok(record)
    }
}

/// Returns the error for a record that cannot be parsed. Such a record is never overwritten and never granted.
fn garbled(what: &str, key: &str) -> Fault {
    // The message may contain text of the record.
    let what = printable(what, 300);
    Fault::new(ErrorKind::Corrupt, format!("the Redis hash {key:?} cannot be read: {what}"))
        .with_help("it was edited by hand: delete it while the lock is free; tokens keep rising")
}

pub(super) fn unreadable() -> Fault {
    Fault::new(ErrorKind::Corrupt, "the response of a script of leasehold cannot be read")
}

fn read(value: Value) -> Option<Answer> {
    let Value::Array(parts) = value else { return None };
    let Ok([outcome, now, kind, left_ms, detail, fields]) = <[Value; 6]>::try_from(parts) else {
        return None;
    };
    let (Value::Int(left_ms), Value::Array(fields)) = (left_ms, fields) else { return None };
    let kind = text(kind)?;
    Some(Answer {
        outcome: text(outcome)?,
        now_us: text(now)?.parse().ok()?,
        detail: text(detail)?,
        foreign: (!kind.is_empty()).then_some((kind, left_ms)),
        fields: fields.into_iter().map(text).collect(),
    })
}

/// Returns the key of the claim that a message calls.
pub(super) fn called(mut message: PushInfo) -> Option<String> {
    message.data.pop().filter(|_| message.kind == PushKind::Message).and_then(text)
}

/// Reads text. Replaces bytes that are not UTF-8, which leasehold did not write.
pub(super) fn text(value: Value) -> Option<String> {
    match value {
        Value::BulkString(bytes) => Some(String::from_utf8_lossy(&bytes).into_owned()),
        Value::SimpleString(text) => Some(text),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::golden::golden_record;
    use crate::stores::columns::Columns;

    /// Returns the response with these fields of a record instead of its own.
    fn answer(record: &Record, other: &[(&str, &str)]) -> Answer {
        let fields = Columns::of(record, None).unwrap();
        let (token, grant) = (record.token.get().to_string(), record.grant.to_string());
        let history = fields.history.unwrap();
        let all =
            [fields.version.as_str(), &grant, &token, "0", "3", "12", &fields.record, &history, "", "5"];
        let own = FIELDS.iter().zip(all).map(|(name, value)| {
            let other = other.iter().find(|(other, _)| other == name);
            Some(other.map_or(value, |(_, value)| value).to_owned())
        });
        Answer {
            outcome: "found".to_owned(),
            now_us: 10,
            detail: String::new(),
            foreign: None,
            fields: own.collect(),
        }
    }

    #[test]
    fn a_record_is_read_as_it_was_written() {
        let record = golden_record("1-held.json");
        let found = answer(&record, &[]).found("k").unwrap().unwrap();
        assert_eq!(found.version.as_str(), record.nonce.to_string());
        let Content::Record(read) = found.content else { panic!("foreign") };
        assert_eq!(*read, Record { served: 3, size: 5, renewed_at_us: Some(12), ..record.clone() });
    }

    #[test]
    fn a_damaged_record_is_an_error() {
        let record = golden_record("1-held.json");
        for (name, value) in [
            ("token", "x"),
            ("token", ""),
            ("token", "9007199254740992"),
            ("at", "soon"),
            ("grant", "x"),
            ("record", ""),
            ("record", "{}"),
        ] {
            let error = answer(&record, &[(name, value)]).found("k").unwrap_err();
            assert_eq!(error.kind, ErrorKind::Corrupt, "{name} {value}");
        }
        assert!(answer(&record, &[("history", "x")]).found("k").is_ok(), "only for people");
    }

    #[test]
    fn the_entries_of_a_line_that_can_be_read_count() {
        let record = golden_record("1-free.json");
        let claim = "11112222333344445555666677778888";
        let entry = format!(
            r#"{{"number":0,"claim":"{claim}","holder":{{"name":"carol","host":"h","pid":1}},"polls_ms":1}}"#
        );
        let line = format!("4 500 {claim} {entry}\nx\n5 y {claim} {entry}\n9 700 {claim} x\n");
        let line = answer(&record, &[("line", &line)]).found("k").unwrap().unwrap().line.unwrap();
        let read: Vec<_> =
            line.waiting(&record).map(|one| (one.number, one.polls_ms, &*one.holder.name)).collect();
        assert_eq!(read, [(4, 500, "carol"), (9, 700, "")]);
    }

    #[test]
    fn waiters_without_a_record_wait_for_a_lock_never_granted() {
        let mut answer =
            answer(&golden_record("1-free.json"), &[("line", "1 500 11112222333344445555666677778888 x")]);
        answer.fields[0] = None;
        let found = answer.found("k").unwrap().unwrap();
        assert_eq!(
            (found.version.as_str(), found.content),
            ("", Content::Record(Box::new(Record::never_granted())))
        );
        answer.fields[8] = None;
        assert!(answer.found("k").unwrap().is_none());
    }

    #[test]
    fn the_key_of_another_client_outweighs_the_record() {
        let mut answer = answer(&golden_record("1-held.json"), &[]);
        for (kind, left_ms, left) in [("string", 7, Some(Duration::from_millis(7))), ("hash", -1, None)] {
            answer.foreign = Some((kind.to_owned(), left_ms));
            let found = answer.found("k").unwrap().unwrap();
            assert!(matches!(found.content, Content::Foreign { lasts, .. } if lasts == left));
        }
    }

    #[test]
    fn a_response_of_another_form_is_an_error() {
        for value in [Value::Nil, Value::Int(1), Value::Array(vec![Value::Int(1); 6]), Value::Array(vec![])] {
            assert!(Answer::of(value).is_err());
        }
    }

    proptest! {
        #[test]
        fn no_record_causes_a_panic(
            fields in proptest::collection::vec(proptest::option::of(any::<String>()), 0..10),
            kind in any::<String>(),
            left_ms in any::<i64>(),
            is_foreign in any::<bool>(),
        ) {
            let mut answer = answer(&golden_record("1-held.json"), &[]);
            answer.foreign = is_foreign.then_some((kind, left_ms));
            answer.fields = fields;
            let _ = answer.found("k");
        }
    }
}
