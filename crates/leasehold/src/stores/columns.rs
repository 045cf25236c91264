//! A lock record in the columns or fields of a store: JSON, and beside it what the store itself compares or computes.

use serde_json::Value;

use crate::error::{ErrorKind, Fault};
use crate::lease::{PastGrant, Token};
use crate::protocol::record::{Content, Record, RecordState, parse};
use crate::register::Version;

/// The columns of a record that is written.
pub(super) struct Columns {
    pub(super) version: Version,
    pub(super) record: String,
    /// `None` if the history has not changed.
    pub(super) history: Option<String>,
    /// Whether the lock is free. It can then be granted without reading the record.
    pub(super) is_open: bool,
}

impl Columns {
    /// Returns the columns of `record`, which replaces `before`. The line alone says whether the lock is awaited.
    pub(super) fn of(record: &Record, before: Option<&Record>) -> Result<Self, Fault> {
        let unwritten = |error: serde_json::Error| {
            Fault::new(ErrorKind::Invalid, format!("the lock record cannot be written: {error}"))
        };
        let history = match before.is_some_and(|before| before.history == record.history) {
            true => None,
            false => Some(serde_json::to_string(&record.history).map_err(unwritten)?),
        };
        // These have columns of their own.
        let bare = Record {
            token: Token::default(),
            served: 0,
            size: 0,
            awaited: false,
            renewed_at_us: None,
            history: vec![],
            ..record.clone()
        };
        let text = serde_json::to_string(&bare).map_err(unwritten)?;
        let is_open = record.state == RecordState::Free && !record.unconfirmed;
        Ok(Self { version: Version::new(record.nonce.to_string()), record: text, history, is_open })
    }
}

/// Reads the history from its column. Entries that cannot be read are left out.
pub(super) fn history(text: &str) -> Vec<PastGrant> {
    let history = serde_json::from_str::<Vec<Value>>(text).unwrap_or_default();
    history.into_iter().filter_map(|past| serde_json::from_value(past).ok()).collect()
}

/// Reads a record from its columns. Entries of the history that cannot be read are left out: they are for people and for
/// repeated claims, and the lock can still be used.
///
/// # Errors
/// Says what cannot be read.
pub(super) fn read(
    record: &str,
    token: u64,
    served: u64,
    size: u64,
    written_us: u64,
    history: &str,
) -> Result<Record, String> {
    let record = match parse(record.as_bytes()) {
        Ok(Content::Record(record)) => *record,
        Ok(Content::Foreign { what, .. }) => return Err(what),
        Err(fault) => return Err(fault.message),
    };
    if served >= Token::LIMIT {
        return Err("its number of served waiters is out of range".to_owned());
    }
    Ok(Record {
        token: Token::new(token).ok_or_else(|| format!("{token} is not a fencing token"))?,
        served,
        size,
        renewed_at_us: Some(written_us),
        history: self::history(history),
        ..record
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::golden::golden_record;

    #[test]
    fn a_record_is_read_as_it_was_written() {
        let record = golden_record("1-held.json");
        let columns = Columns::of(&record, None).unwrap();
        assert_eq!(columns.version.as_str(), record.nonce.to_string());
        let read = read(&columns.record, record.token.get(), 3, 5, 12, &columns.history.unwrap()).unwrap();
        assert_eq!(read, Record { served: 3, size: 5, renewed_at_us: Some(12), ..record.clone() });
        assert_eq!(Columns::of(&record, Some(&record)).unwrap().history, None, "it has not changed");
    }

    #[test]
    fn only_a_free_record_is_open() {
        let free = golden_record("1-free.json");
        let is_open = |record: Record| Columns::of(&record, None).unwrap().is_open;
        assert!(is_open(free.clone()));
        assert!(is_open(Record { awaited: true, ..free.clone() }), "the line says who is next");
        assert!(!is_open(Record { unconfirmed: true, ..free }));
        assert!(!is_open(golden_record("1-held.json")));
    }

    #[test]
    fn the_readable_entries_of_a_damaged_history_are_read() {
        let record = golden_record("1-held.json");
        let Columns { record, history, .. } = Columns::of(&record, None).unwrap();
        let of = |history: &str| read(&record, 1, 0, 0, 0, history).unwrap().history.len();
        let one = of(history.as_deref().unwrap());
        assert!(one > 0);
        assert_eq!(of(&history.unwrap().replacen('[', "[7,{\"token\":1},", 1)), one);
        assert_eq!([of("{}"), of("null"), of("")], [0, 0, 0]);
    }

    proptest! {
        #[test]
        fn no_columns_cause_a_panic(texts in any::<(String, String)>(), numbers in any::<(u64, u64, u64, u64)>()) {
            let _ = read(&texts.0, numbers.0, numbers.1, numbers.2, numbers.3, &texts.1);
        }
    }
}
