//! Tests of the format of the file. `tests/records/1-sqlite.sql` is a file as SQL.

use rusqlite::types::ValueRef;
use rusqlite::{Connection, Row as SqlRow};

use super::counter::Counter;
use super::machine::{Other, Process};
use super::row::{Row, load, store};
use super::schema;
use crate::golden::{assert_written, golden, golden_record};
use crate::protocol::record::Record;
use crate::types::LockName;

const BOOT: &str = "3d3b0d5c-6b0e-4b57-8e8f-9a3b1c5f7e21";

fn rows() -> Vec<(LockName, Row)> {
    let row = |record: Record| Row {
        record: Record { renewed_at_us: Some(1_763_654_430_000_041), ..record },
        boot: BOOT.to_owned(),
        renewed_ns: 86_410_000_000_000,
        died_ns: None,
        process: None,
    };
    let process =
        Process { namespace: "pid:[4026531836]".to_owned(), pid: 4121, start: 77, others: Vec::new() };
    let held = Row { process: Some(process), ..row(golden_record("1-held.json")) };
    [
        ("died", Row { died_ns: Some(86_411_000_000_000), ..held.clone() }),
        ("free", row(golden_record("1-free.json"))),
        ("held", held),
        ("cooldown", row(golden_record("1-cooldown.json"))),
    ]
    .map(|(name, row)| (LockName::new(name).unwrap(), row))
    .into()
}

fn counter() -> Counter {
    Counter { token: 1_763_654_400_000_041, ceiling: 1_763_654_410_000_000, boot: BOOT.to_owned() }
}

/// Returns SQL that creates the file again.
fn dump(file: &Connection) -> String {
    let mut lines = Vec::new();
    for pragma in ["application_id", "user_version"] {
        let number: i64 = file.pragma_query_value(None, pragma, |row| row.get(0)).unwrap();
        lines.push(format!("PRAGMA {pragma} = {number};"));
    }
    let mut tables =
        file.prepare("SELECT sql || ';' FROM sqlite_schema WHERE sql IS NOT NULL ORDER BY name").unwrap();
    lines.extend(tables.query_map((), |row| row.get(0)).unwrap().map(Result::unwrap));
    for table in ["counter", "lock"] {
        let mut all = file.prepare(&format!("SELECT * FROM {table} ORDER BY 1")).unwrap();
        let columns = all.column_count();
        let insert = |row: &SqlRow<'_>| Ok(format!("INSERT INTO {table} VALUES ({});", values(row, columns)));
        lines.extend(all.query_map((), insert).unwrap().map(Result::unwrap));
    }
    lines.join("\n")
}

fn values(row: &SqlRow<'_>, columns: usize) -> String {
    let value = |column| match row.get_ref(column).unwrap() {
        ValueRef::Null => "NULL".to_owned(),
        ValueRef::Integer(number) => number.to_string(),
        ValueRef::Text(text) => format!("'{}'", String::from_utf8_lossy(text).replace('\'', "''")),
        other => panic!("{other:?}"),
    };
    (0..columns).map(value).collect::<Vec<_>>().join(", ")
}

#[test]
fn the_golden_file_is_read_and_written() {
    let folder = tempfile::tempdir().unwrap();
    let mut written = Connection::open(folder.path().join("locks.db")).unwrap();
    assert!(schema::ensure(&mut written).is_ok());
    counter().store(&written).unwrap();
    for (name, row) in rows() {
        store(&written, &name, &row).unwrap();
    }
    assert_written("1-sqlite.sql", &dump(&written));

    let old = Connection::open_in_memory().unwrap();
    old.execute_batch(&golden("1-sqlite.sql")).unwrap();
    assert!(schema::check(&old).unwrap());
    assert_eq!(Counter::load(&old).unwrap(), counter());
    for (name, row) in rows() {
        assert_eq!(load(&old, &name).unwrap().unwrap(), row, "{name}");
    }
}

#[test]
fn several_processes_of_a_holder_are_read_and_written() {
    let others = vec![Other { pid: 4122, start: 78 }, Other { pid: 4123, start: 79 }];
    let process = Process { namespace: "pid:[4026531836]".to_owned(), pid: 4121, start: 77, others };
    assert_written("1-sqlite-processes.json", &serde_json::to_string(&process).unwrap());
    assert_eq!(serde_json::from_str::<Process>(&golden("1-sqlite-processes.json")).unwrap(), process);
}
