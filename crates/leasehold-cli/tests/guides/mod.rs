//! Every command of the guides in `docs/guides`, as it stands there, with the servers that `./test` starts.
//!
//! A guide's blocks are run in order, by one shell, in a folder of their own:
//!
//! | block | what is done with it |
//! |---|---|
//! | `sh` | it is run by `bash -euo pipefail` |
//! | `text` | it is what the block before it has printed; `...` stands for anything |
//! | `crontab` | the command of each entry is run as cron runs it |
//! | `yaml` | the commands of a workflow (GitHub Actions, GitLab) are run, each step in a shell of its own |
//! | `rust` | it is an example in the library's documentation (`crates/leasehold/src/guides.rs`), and so run there |
//!
//! Any other block fails, since nobody would run it. What readers have and this machine has not stands in one table:
//! `environment.rs`.

mod document;
mod environment;
mod output;
mod recipes;
mod runner;
mod script;
mod self_test;
mod workflow;

use std::path::{Path, PathBuf};
use std::{env, fs};

use self::runner::GuideRun;

/// The guides, each with its test.
macro_rules! guides {
    ($($name:ident: $file:literal,)*) => {
        const FILES: &[&str] = &[$($file),*];
        $(
            #[test]
            fn $name() {
                follow($file);
            }
        )*
    };
}

/// Those whose tests go on where the guide ends.
const TESTED_ELSEWHERE: &[&str] = &[recipes::FILE];

guides! {
    cron: "cron.md",
    deploy_lock_in_ci: "deploy-lock-in-ci.md",
    leader_election: "leader-election.md",
    one_writer_per_json: "one-writer-per-json.md",
    migrating: "migrating.md",
}

/// Does what the guide says, and gives the folder in which it was done.
#[track_caller]
fn follow(file: &str) -> GuideRun {
    let text = fs::read_to_string(folder().join(file)).unwrap();
    runner::follow(&text).unwrap_or_else(|error| panic!("docs/guides/{file}: {error}"))
}

fn folder() -> PathBuf {
    root().join("docs/guides")
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

fn tested() -> impl Iterator<Item = &'static str> {
    FILES.iter().chain(TESTED_ELSEWHERE).copied()
}

#[test]
fn every_guide_has_its_test() {
    let mut there: Vec<String> = fs::read_dir(folder())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name != INDEX)
        .collect();
    there.sort();
    let mut tested: Vec<&str> = tested().collect();
    tested.sort_unstable();
    assert_eq!(there, tested);
}

/// Only names the others.
const INDEX: &str = "README.md";

#[test]
fn the_index_names_every_guide() {
    let index = fs::read_to_string(folder().join(INDEX)).unwrap();
    for file in tested() {
        assert!(index.contains(&format!("]({file})")), "{file}");
    }
}

#[test]
fn the_librarys_documentation_has_every_guide_with_rust_in_it() {
    let examples = fs::read_to_string(root().join("crates/leasehold/src/guides.rs")).unwrap_or_default();
    for file in tested() {
        let text = fs::read_to_string(folder().join(file)).unwrap();
        let has_rust = document::blocks(&text).unwrap().iter().any(|block| block.kind == "rust");
        assert_eq!(has_rust, examples.contains(&format!("docs/guides/{file}\"")), "{file}");
    }
}
