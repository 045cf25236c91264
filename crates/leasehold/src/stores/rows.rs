//! The rows of a table of locks, which ShedLock shares: PostgreSQL and MySQL.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::{ErrorKind, Fault, StoreError};
use crate::lease::{Holder, Id, MAX_WAITERS, Token, printable};
use crate::protocol::line::{Line, Waiter};
use crate::protocol::record::{Content, Record, RecordState};
use crate::protocol::records::Found;
use crate::register::Version;
use crate::stores::columns;

/// The numbers of waiters are below this.
const MOST: f64 = Token::LIMIT as f64;

/// The prefix of a grant's id in `locked_by`. Another client has a row without it.
pub(super) const OURS: &str = "leasehold:";

/// The name of the row that records which server is the primary. No lock has this name.
pub(super) const EPOCH: &str = "//leasehold/epoch";

/// The value of `locked_by` in that row. It tells other clients that leasehold wrote the row.
pub(super) const EPOCH_BY: &str = "leasehold:epoch";

/// Returns the value of `locked_by` for the grant `id`.
pub(super) fn locked_by(id: Id) -> String {
    format!("{OURS}{id}")
}

/// Returns the version of a row that leasehold wrote with `version`.
pub(super) fn version_of(version: &Version, locked_by: &str) -> Version {
    Version::new(format!("{} {locked_by}", version.as_str()))
}

/// Returns whether leasehold wrote the row of this version last.
pub(super) fn is_ours(version: &Version) -> bool {
    version.as_str().split_once(' ').is_some_and(|(_, locked_by)| locked_by.starts_with(OURS))
}

/// The unparsed columns.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Cells {
    pub(super) now_us: i64,
    pub(super) locked_by: String,
    /// `None` if the lock of another client has no end.
    pub(super) until_us: Option<i64>,
    pub(super) version: Option<String>,
    pub(super) token: Option<i64>,
    pub(super) prev_token: Option<i64>,
    pub(super) served: Option<i64>,
    pub(super) size: Option<i64>,
    pub(super) written_us: Option<i64>,
    pub(super) record: Option<String>,
    pub(super) history: Option<String>,
    pub(super) line: Option<String>,
}

impl Cells {
    /// Returns the content of the row of the lock `name`. Returns `None` if only another client has ever had the lock,
    /// and has it no longer.
    pub(super) fn found(&self, name: &str, table: &str) -> Result<Option<Found>, StoreError> {
        self.content().map_err(|what| garbled(&what, name, table))
    }

    fn content(&self) -> Result<Option<Found>, String> {
        let is_ours = self.locked_by.starts_with(OURS);
        let line = self.line();
        if !is_ours && self.until_us.is_none_or(|until_us| until_us > self.now_us) {
            let what = format!("another client: {}", printable(&self.locked_by, 255));
            let left = self.until_us.map(|us| Duration::from_micros(time(us.saturating_sub(self.now_us))));
            let history = columns::history(self.history.as_deref().unwrap_or_default());
            let (content, version) = (Content::Foreign { what, lasts: left, history }, Version::new(""));
            return Ok(Some(Found { content, version, line: Some(line) }));
        }
        let record = match &self.version {
            Some(_) => {
                let mut record = self.record()?;
                if is_ours && self.locked_by != locked_by(record.grant) {
                    return Err("its columns contradict each other".to_owned());
                }
                if !is_ours {
                    end(&mut record, self.until_us.map(time));
                }
                record
            }
            None if is_ours => return Err("there is no version".to_owned()),
            None if line.is_empty() => return Ok(None),
            None => Record::never_granted(),
        };
        let version = Version::new(self.version.clone().unwrap_or_default());
        let version = version_of(&version, &self.locked_by);
        Ok(Some(Found { content: Content::Record(Box::new(record)), version, line: Some(line) }))
    }

    /// Returns the line. Entries whose number or claim cannot be read do not count, as in the statements.
    fn line(&self) -> Line {
        let entry = |entry: Value| {
            let number = entry["number"].as_f64().filter(|number| (0.0..MOST).contains(number))?;
            let polls_ms = entry["polls_ms"].as_f64().unwrap_or(0.0).clamp(0.0, MOST);
            Some(Waiter {
                // The server rounds it like this.
                number: number.round() as u64,
                claim: entry["claim"].as_str()?.parse().ok()?,
                holder: Holder::deserialize(&entry["holder"]).unwrap_or_default(),
                since_us: entry["since_us"].as_u64(),
                polls_ms: polls_ms as u64,
            })
        };
        let text = self.line.as_deref().unwrap_or("[]");
        let entries: Vec<Value> = serde_json::from_str(text).unwrap_or_default();
        Line::of(entries.into_iter().filter_map(entry).take(MAX_WAITERS).collect())
    }

    fn record(&self) -> Result<Record, String> {
        let number = |number: Option<i64>, what: &str| {
            let number = number.and_then(|number| u64::try_from(number).ok());
            number.ok_or_else(|| format!("{what} is not a number"))
        };
        columns::read(
            self.record.as_deref().unwrap_or_default(),
            number(self.token, "token")?,
            number(self.served, "served")?,
            number(self.size.or(Some(0)), "size")?,
            number(self.written_us, "written_us")?,
            self.history.as_deref().unwrap_or_default(),
        )
    }

    /// Returns the token of the previous grant.
    pub(super) fn previous(&self) -> Option<Token> {
        self.prev_token.and_then(|token| u64::try_from(token).ok()).and_then(Token::new)
    }
}

/// Changes `record` to that of a free lock whose grant has lapsed at `until_us` at the latest. A repetition of its claim
/// must be refused, because another client may have had the lock since.
fn end(record: &mut Record, until_us: Option<u64>) {
    if record.state == RecordState::Held {
        record.remember_replaced();
    }
    (record.state, record.cooldown_ms, record.renewed_at_us) = (RecordState::Free, None, until_us);
}

/// Returns the error for a row that cannot be parsed. Such a row is never overwritten and never granted.
fn garbled(what: &str, name: &str, table: &str) -> StoreError {
    // The message may contain text of the row.
    let what = printable(what, 300);
    Fault::new(
        ErrorKind::Corrupt,
        format!("the table {table:?} has a row for {name:?} that cannot be read: {what}"),
    )
    .with_help("the row was edited by hand: delete it while the lock is free; tokens keep rising")
    .not_applied()
}

/// Converts a number of microseconds. Times before 1970 become 0, because they are long past.
pub(super) fn time(us: i64) -> u64 {
    u64::try_from(us).unwrap_or(0)
}

/// Converts a number for a column, which has no unsigned type.
pub(super) fn number(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::golden::golden_record;
    use crate::lease::End;
    use crate::stores::columns::Columns;

    /// Returns the row of `record`.
    fn row(record: &Record) -> Cells {
        let columns = Columns::of(record, None).unwrap();
        Cells {
            now_us: 10_000_000,
            locked_by: locked_by(record.grant),
            until_us: Some(12_000_000),
            version: Some(columns.version.as_str().to_owned()),
            token: Some(number(record.token.get())),
            prev_token: Some(5),
            served: Some(3),
            size: Some(5),
            written_us: Some(4_000_000),
            record: Some(columns.record),
            history: columns.history,
            line: None,
        }
    }

    fn held() -> Cells {
        row(&golden_record("1-held.json"))
    }

    fn read(cells: &Cells) -> Record {
        match cells.content().unwrap().unwrap().content {
            Content::Record(record) => *record,
            Content::Foreign { what, .. } => panic!("{what}"),
        }
    }

    #[test]
    fn a_row_is_read_as_it_was_written() {
        let record = golden_record("1-held.json");
        assert_eq!(read(&held()), Record { served: 3, size: 5, renewed_at_us: Some(4_000_000), ..record });
    }

    #[test]
    fn a_row_that_does_not_parse_is_an_error() {
        for bad in [
            Cells { locked_by: format!("{OURS}x"), ..held() },
            Cells { version: None, ..held() },
            Cells { token: None, ..held() },
            Cells { token: Some(-1), ..held() },
            Cells { token: Some(1 << 53), ..held() },
            Cells { served: None, ..held() },
            Cells { served: Some(1 << 53), ..held() },
            Cells { size: Some(-1), ..held() },
            Cells { written_us: None, ..held() },
            Cells { record: None, ..held() },
            Cells { record: Some("{}".into()), ..held() },
        ] {
            assert!(bad.content().is_err(), "{bad:?}");
        }
        assert!(Cells { history: None, ..held() }.content().is_ok(), "only for people");
    }

    #[test]
    fn another_client_holds_a_lock_until_its_time() {
        let theirs = Cells { locked_by: "host-1".into(), ..held() };
        let left = |until_us| match (Cells { until_us, ..theirs.clone() }).content().unwrap().unwrap().content
        {
            Content::Foreign { what, lasts: left, .. } => {
                assert!(what.contains("host-1"), "{what}");
                Some(left)
            }
            Content::Record(_) => None,
        };
        assert_eq!(left(Some(12_000_000)), Some(Some(Duration::from_secs(2))));
        assert_eq!(left(None), Some(None), "it has no end");
        assert_eq!(left(Some(10_000_000)), None, "it has ended");
        let never_ours = Cells { version: None, until_us: Some(0), ..theirs };
        assert!(never_ours.content().unwrap().is_none());
        let awaited = Cells { line: Some(entry(1, "500", "{}")), ..never_ours };
        assert_eq!(read(&awaited), Record::never_granted());
    }

    #[test]
    fn a_grant_that_another_client_replaced_has_ended() {
        let before = read(&held());
        let theirs = Cells { locked_by: "host-1".into(), until_us: Some(9_000_000), ..held() };
        let record = read(&theirs);
        assert_eq!((record.state, record.renewed_at_us), (RecordState::Free, Some(9_000_000)));
        assert_eq!((record.history[0].grant, record.history[0].end), (before.grant, End::Lapsed));
        assert_eq!(record.history[1..], before.history[..]);
        let version = |cells: &Cells| cells.content().unwrap().unwrap().version;
        assert_ne!(version(&theirs), version(&held()), "no renewal that comes late has this version");
        assert!(is_ours(&version(&held())) && !is_ours(&version(&theirs)));
        let free =
            Cells { locked_by: "host-1".into(), until_us: Some(0), ..row(&golden_record("1-free.json")) };
        assert_eq!(read(&free).history, golden_record("1-free.json").history, "already there");
    }

    /// Returns a line with one waiter.
    fn entry(number: u64, polls_ms: &str, holder: &str) -> String {
        format!(r#"[{{"number":{number},"claim":"{CLAIM}","holder":{holder},"polls_ms":{polls_ms}}}]"#)
    }

    const CLAIM: &str = "11112222333344445555666677778888";

    #[test]
    fn the_entries_of_a_line_that_can_be_read_count() {
        let record = golden_record("1-free.json");
        let of = |line: &str| {
            let found = Cells { line: Some(line.to_owned()), ..row(&record) }.content().unwrap().unwrap();
            let waiting: Vec<_> = found.line.unwrap().waiting(&record).cloned().collect();
            waiting
                .into_iter()
                .map(|waiter| (waiter.number, waiter.polls_ms, waiter.holder.name))
                .collect::<Vec<_>>()
        };
        let carol = r#"{"name":"carol","host":"h","pid":1}"#;
        assert_eq!(of(&entry(4, "500", carol)), [(4, 500, "carol".to_owned())]);
        assert_eq!(of(&entry(4, "\"x\"", "7")), [(4, 0, String::new())]);
        assert_eq!(of(&entry(4, "-1e300", "{}")), [(4, 0, String::new())]);
        for bad in ["7", "{}", "null", r#"[7,{"number":"x"},{"number":1e300},{"number":4,"claim":"x"}]"#] {
            assert_eq!(of(bad), [], "{bad}");
        }
        let many = entry(4, "1", "{}").trim_matches(['[', ']']).to_owned();
        assert_eq!(of(&format!("[{}]", vec![many; 10_000].join(","))).len(), MAX_WAITERS);
    }

    proptest! {
        #[test]
        fn no_row_causes_a_panic(
            texts in any::<(Option<String>, Option<String>, Option<String>, Option<String>)>(),
            numbers in any::<(i64, Option<i64>, Option<i64>, Option<i64>, Option<i64>, Option<i64>, Option<i64>)>(),
            locked_by in prop_oneof![Just(held().locked_by), any::<String>()],
        ) {
            let (version, record, history, line) = texts;
            let (now_us, until_us, token, prev_token, served, size, written_us) = numbers;
            let cells = Cells {
                now_us, locked_by, until_us, version, token, prev_token, served, size, written_us, record, history, line,
            };
            let _ = (cells.content(), cells.previous());
        }
    }
}
