//! Checks `docs/evidence.md` and the pages in `docs/evidence`, which name the tests that cover each fault and invariant.

use std::path::{Path, PathBuf};

/// The number of faults in the list.
const FAULTS: usize = 81;

/// A link whose text is the name of a test: `` [`name`](path) ``.
#[derive(Debug)]
struct Named<'a> {
    test: &'a str,
    path: &'a str,
}

#[test]
fn every_fault_names_tests_that_exist() {
    let page = Page::read("evidence/faults.md");
    let rows: Vec<_> = page.text.lines().filter_map(row).collect();
    let numbers: Vec<_> = rows.iter().map(|(number, _)| *number).collect();
    assert_eq!(numbers, (1..=FAULTS).collect::<Vec<_>>(), "one row for each fault, in order");
    for (number, line) in rows {
        let named = named(line);
        assert!(!named.is_empty(), "fault {number} names no test");
        for test in named {
            assert!(page.knows(&test), "fault {number}: there is no {test:?}");
        }
    }
}

#[test]
fn every_test_that_a_page_names_anywhere_exists() {
    for name in ["evidence.md", "evidence/faults.md", "evidence/mutants.md"] {
        let page = Page::read(name);
        let missing: Vec<_> = page.text.lines().flat_map(named).filter(|test| !page.knows(test)).collect();
        assert!(missing.is_empty(), "{name}: {missing:#?}");
    }
}

#[test]
fn a_name_without_a_test_is_noticed() {
    let line = "| 1 | x | [`every_fault_names_tests_that_exist`](../crates/leasehold-testkit/tests/evidence.rs)<br>\
                [`no_such_test_here`](../crates/leasehold-testkit/tests/evidence.rs) [a page](evidence.md) |";
    assert_eq!(row(line).unwrap().0, 1);
    let page = Page::read("evidence.md");
    let found: Vec<_> = named(line).iter().map(|test| page.knows(test)).collect();
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

struct Page {
    folder: PathBuf,
    text: String,
}

impl Page {
    fn read(name: &str) -> Self {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(name);
        let text = std::fs::read_to_string(&path).unwrap();
        Self { folder: path.parent().unwrap().to_owned(), text }
    }

    /// Returns whether the file, relative to the page, has a function with exactly this name.
    fn knows(&self, named: &Named<'_>) -> bool {
        let code = std::fs::read_to_string(self.folder.join(named.path)).unwrap_or_default();
        code.contains(&format!("fn {}(", named.test))
    }
}
