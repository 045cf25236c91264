//! Checks `docs/evidence.md` and the pages in `docs/evidence`, which name the tests of each invariant and fault.

use std::path::{Path, PathBuf};

/// The number of faults in the list.
const FAULTS: usize = 93;

const FAULT_LIST: &str = "evidence/faults.md";

/// A link whose text is the name of a test: `` [`name`](path) ``.
#[derive(Debug)]
struct Named<'a> {
    test: &'a str,
    path: &'a str,
}

#[test]
fn every_fault_names_tests_that_exist() {
    let page = std::fs::read_to_string(docs().join(FAULT_LIST)).unwrap();
    let rows: Vec<_> = page.lines().filter_map(row).collect();
    let numbers: Vec<_> = rows.iter().map(|(number, _)| *number).collect();
    assert_eq!(numbers, (1..=FAULTS).collect::<Vec<_>>(), "one row for each fault, in order");
    for (number, line) in rows {
        let named = named(line);
        assert!(!named.is_empty(), "fault {number} names no test");
        for test in named {
            assert!(is_there(FAULT_LIST, &test), "fault {number}: there is no {test:?}");
        }
    }
}

#[test]
fn every_test_that_a_page_names_anywhere_exists() {
    for page in ["evidence.md", FAULT_LIST, "evidence/mutants.md"] {
        let text = std::fs::read_to_string(docs().join(page)).unwrap();
        let missing: Vec<_> = text.lines().flat_map(named).filter(|test| !is_there(page, test)).collect();
        assert!(missing.is_empty(), "{page}: {missing:#?}");
    }
}

#[test]
fn a_name_without_a_test_is_noticed() {
    let line = "| 1 | x | [`every_fault_names_tests_that_exist`](../crates/leasehold-testkit/tests/evidence.rs)<br>\
                [`no_such_test_here`](../crates/leasehold-testkit/tests/evidence.rs) [a page](evidence.md) |";
    assert_eq!(row(line).unwrap().0, 1);
    let found: Vec<_> = named(line).iter().map(|test| is_there("evidence.md", test)).collect();
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

/// Returns whether the file, relative to the page, has a function with exactly this name.
fn is_there(page: &str, named: &Named<'_>) -> bool {
    let file = docs().join(page).with_file_name(named.path);
    let code = std::fs::read_to_string(file).unwrap_or_default();
    code.contains(&format!("fn {}(", named.test))
}

fn docs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs")
}
