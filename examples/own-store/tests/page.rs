//! The page of this example shows its code, and its program prints rising tokens.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::process::Command;

const PAGE: &str = include_str!("../../../docs/own-stores.md");
const CODE: [&str; 2] = [include_str!("../src/lib.rs"), include_str!("conformance.rs")];

/// Returns `code` without the spaces at the beginning of its lines.
fn flat(code: &str) -> String {
    code.lines().map(|line| format!("{}\n", line.trim_start())).collect()
}

#[test]
fn the_page_shows_the_code_of_this_example() {
    let blocks: Vec<&str> =
        PAGE.split("```rust\n").skip(1).map(|rest| rest.split("```").next().unwrap()).collect();
    assert_eq!(blocks.len(), 3);
    for block in blocks {
        assert!(CODE.iter().any(|code| flat(code).contains(&flat(block))), "not in the example:\n{block}");
    }
}

#[test]
fn the_program_acquires_a_lock_and_loses_it_and_the_token_rises() {
    let output = Command::new(env!("CARGO_BIN_EXE_own-store")).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let token = |who: &str| -> u64 {
        let line = text.lines().find_map(|line| line.strip_prefix(&format!("{who} has token ")));
        line.unwrap_or_else(|| panic!("{text}")).parse().unwrap()
    };
    assert!(token("one") < token("two"), "{text}");
    assert!(text.contains("was lost"), "{text}");
}
