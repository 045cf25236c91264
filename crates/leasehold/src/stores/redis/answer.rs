//! Reads and validates the responses of the scripts.

use std::time::Duration;

use redis::{PushInfo, PushKind, Value};

use crate::clock::micros;
use crate::error::{ErrorKind, Fault, StoreError};
use crate::lease::{Holder, LONGEST_PAUSE, MAX_WAITERS, PastGrant, Token, printable};
use crate::stores::on_server::record::{Record, State, Waiter};

/// The response of a script for a lock.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) outcome: String,
    pub(super) now_us: u64,
    /// For how long the server grants no lock.
    pub(super) recovers_within: Duration,
    /// The type of a key that another client has set, and its remaining time in milliseconds, which is negative if the
    /// key does not expire.
    foreign: Option<(String, i64)>,
    fields: Vec<(String, String)>,
}

impl Answer {
    pub(super) fn of(value: Value) -> Result<Self, StoreError> {
        read(value).ok_or_else(|| {
            Fault::new(ErrorKind::Corrupt, "the response of a script of leasehold cannot be read")
                .maybe_applied()
        })
    }

    /// Returns the content of the lock's keys, or `None` if there are none.
    pub(super) fn record(&self, key: &str) -> Result<Option<Record>, StoreError> {
        if self.fields.is_empty() && self.foreign.is_none() {
            return Ok(None);
        }
        self.parsed().map(Some).map_err(|what| garbled(&what, key))
    }

    /// Returns the ttl of the grant.
    pub(super) fn ttl_ms(&self) -> Option<u64> {
        self.number("ttl").ok().flatten()
    }

    fn field(&self, name: &str) -> Option<&str> {
        let mut fields = self.fields.iter().filter(|(field, _)| field == name);
        fields.next().map(|(_, value)| value.as_str()).filter(|value| !value.is_empty())
    }

    fn number(&self, name: &str) -> Result<Option<u64>, String> {
        let number = |text: &str| text.parse().map_err(|_| format!("{name} is {text:?}"));
        self.field(name).map(number).transpose()
    }

    fn token(&self, name: &str) -> Result<Option<Token>, String> {
        let token = |number| Token::new(number).ok_or_else(|| format!("{number} is not a fencing token"));
        self.number(name)?.map(token).transpose()
    }

    fn parsed(&self) -> Result<Record, String> {
        // Skips lines of the history that cannot be read. The script searches the history itself.
        let past = |line: &str| serde_json::from_str::<PastGrant>(line).ok();
        let waiters =
            self.field("waiters").unwrap_or("").lines().filter(|line| !line.is_empty()).take(MAX_WAITERS);
        let mut record = Record {
            now_us: self.now_us,
            is_live: false,
            until_us: self.number("until")?,
            from_us: self.number("from")?,
            token: self.token("token")?,
            previous: self.token("prev")?,
            past: self.field("past").unwrap_or("").lines().filter_map(past).collect(),
            state: self.state()?,
            waiters: waiters.map(waiter).collect(),
        };
        record.is_live = match record.state {
            State::Held { .. } | State::Cooldown { .. } => {
                record.until_us.is_some_and(|until| until > self.now_us)
            }
            State::Free { .. } | State::Foreign { .. } => false,
        };
        if let Some((kind, left_ms)) = &self.foreign {
            let name = match kind.as_str() {
                "string" => "another client".to_owned(),
                kind => format!("another client, with a key of type {}", printable(kind, 20)),
            };
            record.state = State::Foreign { holder: Holder { name, ..Holder::default() } };
            record.is_live = true;
            record.from_us = None;
            let left = u64::try_from(*left_ms).ok().map(|left_ms| micros(Duration::from_millis(left_ms)));
            record.until_us = left.map(|left| self.now_us.saturating_add(left));
        }
        Ok(record)
    }

    fn state(&self) -> Result<State, String> {
        let Some(grant) = self.field("grant") else {
            return Ok(State::Foreign { holder: Holder::default() });
        };
        let grant = grant.parse().map_err(|error| format!("grant: {error}"))?;
        let has_numbers = self.token("token")?.is_some()
            && self.number("until")?.is_some()
            && self.number("from")?.is_some()
            && self.number("lease")?.is_some();
        if !has_numbers || self.field("holder").is_none() || self.field("shown").is_none() {
            return Err("fields are missing".to_owned());
        }
        match self.field("state") {
            Some("free") => Ok(State::Free { grant }),
            Some("resting") => Ok(State::Cooldown { grant }),
            Some("held") => {
                let text = self.field("holder").ok_or("there is no holder")?;
                let holder = serde_json::from_str(text).map_err(|error| format!("holder: {error}"))?;
                Ok(State::Held { grant, holder })
            }
            other => Err(format!("unknown state {other:?}")),
        }
    }
}

/// Reads a waiter: its id, its longest pause, when it joined, and its process. Unreadable fields get default values.
fn waiter(line: &str) -> Waiter {
    let mut parts = line.splitn(4, ' ');
    let mut next = || parts.next().unwrap_or("");
    let (claim, polls, since, holder) = (next(), next(), next(), next());
    Waiter {
        claim: claim.parse().ok(),
        holder: serde_json::from_str(holder).unwrap_or_default(),
        since_us: since.parse().unwrap_or(0),
        polls: Duration::from_millis(polls.parse().unwrap_or(0)).min(LONGEST_PAUSE),
    }
}

/// Returns the error for a record that cannot be parsed. Such a record is never overwritten and never granted.
fn garbled(what: &str, key: &str) -> StoreError {
    // The message may contain text of the record.
    let what = printable(what, 300);
    Fault::new(ErrorKind::Corrupt, format!("the Redis hash {key:?} cannot be read: {what}"))
        .with_help("it was edited by hand: delete it while the lock is free; tokens keep rising")
        .not_applied()
}

fn read(value: Value) -> Option<Answer> {
    let Value::Array(parts) = value else { return None };
    let Ok([outcome, now, kind, left_ms, recovers, fields]) = <[Value; 6]>::try_from(parts) else {
        return None;
    };
    let (Value::Int(left_ms), Value::Array(fields)) = (left_ms, fields) else { return None };
    let mut fields: Vec<_> = fields.into_iter().map(text).collect::<Option<_>>()?;
    let mut pairs = Vec::new();
    while let Some(value) = fields.pop() {
        pairs.push((fields.pop()?, value));
    }
    let kind = text(kind)?;
    Some(Answer {
        outcome: text(outcome)?,
        now_us: text(now)?.parse().ok()?,
        recovers_within: Duration::from_micros(text(recovers)?.parse().ok()?),
        foreign: (!kind.is_empty()).then_some((kind, left_ms)),
        fields: pairs,
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

    const GRANT: &str = "00112233445566778899aabbccddeeff";

    fn answer(fields: &[(&str, &str)]) -> Answer {
        let holder = r#"{"name":"alice","host":"ci-7","pid":7}"#;
        let mut all = vec![
            ("grant", GRANT),
            ("token", "8"),
            ("state", "held"),
            ("from", "4"),
            ("until", "12"),
            ("lease", "8"),
            ("holder", holder),
            ("shown", holder),
        ];
        all.retain(|(name, _)| !fields.iter().any(|(other, _)| name == other));
        all.extend(fields);
        Answer {
            outcome: "found".into(),
            now_us: 10,
            recovers_within: Duration::ZERO,
            foreign: None,
            fields: all.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect(),
        }
    }

    #[test]
    fn a_record_is_live_until_its_end() {
        let live = |fields: &[(&str, &str)]| answer(fields).record("k").unwrap().unwrap().is_live;
        assert!(live(&[]) && live(&[("state", "resting")]));
        assert!(!live(&[("until", "10")]) && !live(&[("state", "free")]));
    }

    #[test]
    fn a_record_that_does_not_parse_is_an_error() {
        for (field, value) in [
            ("grant", "x"),
            ("token", ""),
            ("token", "-1"),
            ("token", "9007199254740992"),
            ("state", "?"),
            ("until", ""),
            ("from", "1e3"),
            ("lease", ""),
            ("holder", "7"),
            ("shown", ""),
        ] {
            let error = answer(&[(field, value)]).record("k").unwrap_err();
            assert_eq!(error.fault().kind, ErrorKind::Corrupt, "{field} {value}");
        }
        assert!(answer(&[("past", "{"), ("waiters", "x y")]).record("k").is_ok());
    }

    #[test]
    fn a_line_with_ten_thousand_entries_counts_as_a_full_line() {
        let line = format!("\n{GRANT} 500 1 {{}}\n").repeat(10_000);
        let record = answer(&[("waiters", &line)]).record("k").unwrap().unwrap();
        assert_eq!(record.waiters.len(), MAX_WAITERS);
    }

    #[test]
    fn the_key_of_another_client_outweighs_the_record() {
        let mut answer = answer(&[]);
        for (kind, left_ms, until_us) in [("string", 7, Some(7_010)), ("hash", -1, None)] {
            answer.foreign = Some((kind.to_owned(), left_ms));
            let record = answer.record("k").unwrap().unwrap();
            assert!(record.is_live && matches!(record.state, State::Foreign { .. }));
            assert_eq!(record.until_us, until_us);
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
            values in proptest::collection::vec((0_usize..11, any::<String>()), 0..6),
            kind in any::<String>(),
            left_ms in any::<i64>(),
            is_foreign in any::<bool>(),
        ) {
            const NAMES: [&str; 11] = [
                "grant", "token", "state", "from", "until", "lease", "holder", "shown", "past", "waiters", "prev",
            ];
            let fields: Vec<_> = values.iter().map(|(n, value)| (NAMES[*n], value.as_str())).collect();
            let mut answer = answer(&fields);
            answer.foreign = is_foreign.then_some((kind, left_ms));
            if let Ok(Some(record)) = answer.record("k") {
                let _ = record.left();
            }
        }
    }
}
