//! Golden files: every format that leasehold has ever written to a store, in `tests/records`. Those of PostgreSQL and
//! Redis are in the testkit's `tests/rules_postgres.rs` and `tests/rules_redis.rs`, because only the server writes them.
//!
//! The files are never edited, because all formats must remain readable. Formats change only by additions. A changed
//! format gets a new file.

use std::fs;
use std::path::Path;

use crate::protocol::record::{Content, Record, parse};

/// Returns the content of the golden file `name`, without the newline at its end, which exists only for editors.
pub(crate) fn golden(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/records").join(name);
    let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    text.trim_end_matches('\n').to_owned()
}

/// Returns the record in `1-held.json`, `1-free.json` or `1-cooldown.json`. The other golden files were written from
/// these records.
pub(crate) fn golden_record(name: &str) -> Record {
    match parse(golden(name).as_bytes()).unwrap() {
        Content::Record(record) => *record,
        Content::Foreign { what, .. } => panic!("{what}"),
    }
}

/// Asserts that `written`, which the current code wrote, equals the golden file `name`.
pub(crate) fn assert_written(name: &str, written: &str) {
    assert_eq!(
        written,
        golden(name),
        "the written format has changed: keep {name} and a test that reads it, and add a file of the new format"
    );
}

/// Every written format has a golden file, and at least one test reads each golden file.
#[test]
fn every_format_has_its_golden_files() {
    let mut found: Vec<String> = fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/records"))
        .unwrap()
        .map(|file| file.unwrap().file_name().into_string().unwrap())
        .collect();
    found.sort();
    assert_eq!(
        found,
        [
            "1-awaited.json",
            "1-azure-lease.txt",
            "1-cooldown.json",
            "1-dynamodb-cooldown.json",
            "1-dynamodb-free.json",
            "1-dynamodb-held.json",
            "1-etcd-cooldown.json",
            "1-etcd-granted.json",
            "1-etcd-waiting.json",
            "1-evicted.json",
            "1-existence.json",
            "1-free.json",
            "1-held.json",
            "1-kubernetes-held.json",
            "1-leading.json",
            "1-limit.json",
            "1-line-nested.json",
            "1-line.json",
            "1-probe-marker.json",
            "1-size.json",
            "1-sqlite-processes.json",
            "1-sqlite.sql",
            "1-update-marks.txt",
            "2-probe-marker-since.json",
            "2-probe-marker.json",
            "2-ticket-limit.txt",
            "2-ticket-several.txt",
            "2-ticket.txt",
        ]
    );
}
