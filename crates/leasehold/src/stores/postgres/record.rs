//! Reads and validates the rows of the table.

use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;
use tokio_postgres::Row;

use super::config::Table;
use super::statements::OURS;
use crate::error::{ErrorKind, Fault, StoreError};
use crate::lease::{Holder, Id, LONGEST_PAUSE, Token, printable};
use crate::stores::on_server::record::{Record, State, Waiter};

/// Returns the value of `locked_by` for the grant `id`.
pub(super) fn locked_by(id: Id) -> String {
    format!("{OURS}{id}")
}

/// Reads the record from the columns of `row`.
pub(super) fn parse(row: &Row, name: &str, table: &Table) -> Result<Record, StoreError> {
    let cells = Cells::of(row).map_err(|error| garbled(&error.to_string(), name, table))?;
    cells.record().map_err(|what| garbled(&what, name, table))
}

/// Returns the error for a row that cannot be parsed. Such a row is never overwritten and never granted.
fn garbled(what: &str, name: &str, table: &Table) -> StoreError {
    // The message may contain text of the row.
    let what = printable(what, 300);
    Fault::new(
        ErrorKind::Corrupt,
        format!("the table {:?} has a row for {name:?} that cannot be read: {what}", table.name),
    )
    .with_help("the row was edited by hand: delete it while the lock is free; tokens keep rising")
    .not_applied()
}

/// The unparsed columns.
#[derive(Clone, Debug, Default)]
pub(super) struct Cells {
    pub(super) now_us: i64,
    pub(super) locked_by: String,
    pub(super) is_live: bool,
    pub(super) until_us: Option<i64>,
    pub(super) from_us: Option<i64>,
    pub(super) token: Option<i64>,
    pub(super) previous: Option<i64>,
    pub(super) state: Option<String>,
    pub(super) holder: Option<String>,
    pub(super) past: Option<String>,
    pub(super) waiters: Option<String>,
}

impl Cells {
    fn of(row: &Row) -> Result<Self, tokio_postgres::Error> {
        Ok(Self {
            now_us: row.try_get("now_us")?,
            locked_by: row.try_get("locked_by")?,
            is_live: row.try_get("is_live")?,
            until_us: row.try_get("until_us")?,
            from_us: row.try_get("from_us")?,
            token: row.try_get("token")?,
            previous: row.try_get("prev_token")?,
            state: row.try_get("state")?,
            holder: row.try_get("holder")?,
            past: row.try_get("past")?,
            waiters: row.try_get("waiters")?,
        })
    }

    pub(super) fn record(self) -> Result<Record, String> {
        // Times before 1970 become 0, because they are long past.
        let time = |us: i64| u64::try_from(us).unwrap_or(0);
        // Leaves out entries that cannot be read. The next grants replace them.
        let past = self.past.as_deref().and_then(|text| serde_json::from_str::<Vec<Value>>(text).ok());
        let past = past.unwrap_or_default().into_iter().filter_map(|past| serde_json::from_value(past).ok());
        Ok(Record {
            now_us: time(self.now_us),
            is_live: self.is_live,
            until_us: self.until_us.map(time),
            from_us: self.from_us.map(time),
            token: self.token.map(token).transpose()?,
            previous: self.previous.map(token).transpose()?,
            past: past.collect(),
            state: self.state()?,
            waiters: self.waiters(),
        })
    }

    fn waiters(&self) -> Vec<Waiter> {
        let text = self.waiters.as_deref().unwrap_or("[]");
        let waiters: Vec<Value> = serde_json::from_str(text).unwrap_or_default();
        waiters.iter().map(waiter).collect()
    }

    fn state(&self) -> Result<State, String> {
        let Some(id) = self.locked_by.strip_prefix(OURS) else {
            let holder = Holder { name: printable(&self.locked_by, 255), ..Holder::default() };
            return Ok(State::Foreign { holder });
        };
        let grant = id.parse().map_err(|error| format!("locked_by: {error}"))?;
        if self.token.is_none() {
            return Err("there is no token".to_owned());
        }
        match self.state.as_deref() {
            Some("free") => Ok(State::Free { grant }),
            Some("resting") => Ok(State::Cooldown { grant }),
            Some("held") => {
                let text = self.holder.as_deref().ok_or("there is no holder")?;
                let holder = serde_json::from_str(text).map_err(|error| format!("holder: {error}"))?;
                Ok(State::Held { grant, holder })
            }
            other => Err(format!("unknown state {other:?}")),
        }
    }
}

/// Reads a waiter. Unreadable fields get default values.
fn waiter(waiter: &Value) -> Waiter {
    let polls_ms = waiter["polls_ms"].as_f64().unwrap_or(0.0).clamp(0.0, LONGEST_PAUSE.as_secs_f64() * 1e3);
    Waiter {
        claim: waiter["claim"].as_str().and_then(|id| id.parse().ok()),
        holder: Holder::deserialize(&waiter["holder"]).unwrap_or_default(),
        since_us: waiter["since_us"].as_u64().unwrap_or(0),
        polls: Duration::from_secs_f64(polls_ms / 1e3),
    }
}

fn token(number: i64) -> Result<Token, String> {
    let token = u64::try_from(number).ok().and_then(Token::new);
    token.ok_or_else(|| format!("{number} is not a fencing token"))
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;

    use super::*;

    pub(in super::super) const GRANT: &str = "00112233445566778899aabbccddeeff";

    /// Returns the row of a lock that is held for two more seconds.
    pub(in super::super) fn held() -> Cells {
        Cells {
            now_us: 10_000_000,
            locked_by: format!("{OURS}{GRANT}"),
            is_live: true,
            until_us: Some(12_000_000),
            from_us: Some(4_000_000),
            token: Some(8),
            previous: Some(5),
            state: Some("held".into()),
            holder: Some(r#"{"name":"alice","host":"ci-7","pid":7}"#.into()),
            past: Some("[]".into()),
            waiters: None,
        }
    }

    #[test]
    fn a_row_that_does_not_parse_is_an_error() {
        assert!(held().record().is_ok());
        for bad in [
            Cells { locked_by: format!("{OURS}x"), ..held() },
            Cells { token: None, ..held() },
            Cells { token: Some(-1), ..held() },
            Cells { token: Some(1 << 53), ..held() },
            Cells { previous: Some(-1), ..held() },
            Cells { state: None, ..held() },
            Cells { state: Some("?".into()), ..held() },
            Cells { holder: None, ..held() },
            Cells { holder: Some("7".into()), ..held() },
            Cells { holder: Some("{}".into()), ..held() },
        ] {
            assert!(bad.clone().record().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn the_readable_entries_of_a_damaged_history_are_read() {
        let of = |past: &str| Cells { past: Some(past.into()), ..held() }.record().unwrap().past.len();
        let good = format!(
            r#"{{"token":7,"grant":"{GRANT}","holder":{{"name":"bob","host":"h","pid":1}},"end":"released"}}"#
        );
        assert_eq!(of(&format!(r#"[7, {good}, {{"token":1}}]"#)), 1);
        assert_eq!([of("{}"), of("null"), of("")], [0, 0, 0]);
    }

    #[test]
    fn the_readable_fields_of_a_damaged_waiter_are_read() {
        let of = |waiters: &str| Cells { waiters: Some(waiters.into()), ..held() }.record().unwrap().waiters;
        let good =
            format!(r#"{{"claim":"{GRANT}","holder":{{"name":"bob","host":"h","pid":1}},"polls_ms":500}}"#);
        let waiters = of(&format!(r#"[7, {{"claim":"x","polls_ms":-1}}, {{"polls_ms":1e300}}, {good}]"#));
        let polls: Vec<_> = waiters.iter().map(|waiter| waiter.polls.as_millis()).collect();
        assert_eq!(polls, [0, 0, 10_000, 500]);
        let claims: Vec<_> = waiters.iter().map(|waiter| waiter.claim.is_some()).collect();
        assert_eq!(claims, [false, false, false, true]);
        for damaged in ["", "{}", "null"] {
            assert!(of(damaged).is_empty(), "{damaged}");
        }
    }

    #[test]
    fn columns_of_another_clients_row_do_not_count() {
        let theirs = Cells { locked_by: "host-1".into(), state: Some("?".into()), holder: None, ..held() };
        let record = theirs.record().unwrap();
        assert!(matches!(&record.state, State::Foreign { holder } if holder.name == "host-1"));
        assert_eq!((record.token, record.left()), (Token::new(8), Duration::from_secs(2)));
        let for_ever = Cells { until_us: None, ..held() }.record().unwrap();
        assert_eq!(for_ever.left(), Duration::MAX);
    }

    proptest! {
        #[test]
        fn no_row_causes_a_panic(
            numbers in any::<(i64, Option<i64>, Option<i64>, Option<i64>, Option<i64>)>(),
            locked_by in prop_oneof![Just(format!("{OURS}{GRANT}")), any::<String>()],
            state in proptest::option::of(prop_oneof![Just("held".to_owned()), Just("free".to_owned()), any::<String>()]),
            holder in proptest::option::of(any::<String>()),
            past in proptest::option::of(prop_oneof![Just("[]".to_owned()), any::<String>()]),
            waiters in proptest::option::of(any::<String>()),
            is_live in any::<bool>(),
        ) {
            let (now_us, until_us, from_us, token, previous) = numbers;
            let cells = Cells { now_us, locked_by, is_live, until_us, from_us, token, previous, state, holder, past, waiters };
            if let Ok(record) = cells.record() {
                let _ = record.left();
            }
        }
    }
}
