//! Checks `docs/evidence.md`, which lists the tests that cover each fault.

use std::path::{Path, PathBuf};

/// The number of faults in the list.
const FAULTS: usize = 79;

/// A link whose text is the name of a test: `` [`name`](path) ``.
#[derive(Debug)]
struct Named<'a> {
    test: &'a str,
    path: &'a str,
}

#[test]
fn every_fault_names_tests_that_exist() {
    let page = std::fs::read_to_string(docs().join("evidence.md")).unwrap();
    let rows: Vec<_> = page.lines().filter_map(row).collect();
    let numbers: Vec<_> = rows.iter().map(|(number, _)| *number).collect();
    assert_eq!(numbers, (1..=FAULTS).collect::<Vec<_>>(), "one row for each fault, in order");
    for (number, line) in rows {
        let named = named(line);
        assert!(!named.is_empty(), "fault {number} names no test");
        for test in named {
            assert!(is_there(&test), "fault {number}: there is no {test:?}");
        }
    }
}

#[test]
fn every_test_that_the_page_names_anywhere_exists() {
    let page = std::fs::read_to_string(docs().join("evidence.md")).unwrap();
    let missing: Vec<_> = page.lines().flat_map(named).filter(|test| !is_there(test)).collect();
    assert!(missing.is_empty(), "{missing:#?}");
}

#[test]
fn a_name_without_a_test_is_noticed() {
    let line = "| 1 | x | [`every_fault_names_tests_that_exist`](../crates/leasehold-testkit/tests/evidence.rs)<br>\
                [`no_such_test_here`](../crates/leasehold-testkit/tests/evidence.rs) [a page](evidence.md) |";
    assert_eq!(row(line).unwrap().0, 1);
    let found: Vec<_> = named(line).iter().map(is_there).collect();
    assert_eq!(found, [true, false]);
}

/// Returns the number of a fault, and its line in the table.
fn row(line: &str) -> Option<(usize, &str)> {
    let number = line.strip_prefix("| ")?.split(" |").next()?;
    Some((number.parse().ok()?, line))
}

fn named(line: &str) -> Vec<Named<'_>> {
    let links = line.split("[`").skip(1).filter_map(|rest| rest.split_once("`]("));
    links.filter_map(|(test, rest)| Some(Named { test, path: rest.split_once(')')?.0 })).collect()
}

/// Returns whether the file has a function with exactly this name.
fn is_there(named: &Named<'_>) -> bool {
    let code = std::fs::read_to_string(docs().join(named.path)).unwrap_or_default();
    code.contains(&format!("fn {}(", named.test))
}

fn docs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs")
}
