//! Runs every command of the guides in `docs/guides`, with the servers that `./test` starts.
//!
//! One shell runs the blocks of a guide in order, in a new folder:
//!
//! | block | use |
//! |---|---|
//! | `sh` | run by `bash -euo pipefail` |
//! | `text` | expected output of the block before; `...` matches anything |
//! | `crontab` | the command of each entry is run as cron runs it |
//! | `yaml` | the commands of a workflow (GitHub Actions, GitLab) are run, each step in a new shell |
//! | `python FILE`, `ruby FILE`, `js FILE` | written to the file |
//! | `rust` | run as a documentation test of the library (`crates/leasehold/src/guides.rs`) |
//!
//! Any other block is an error. `environment.rs` contains the substitutes for things that readers have and the test
//! machine lacks.

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

/// Defines a test for each guide.
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

/// Guides with further tests in another module.
const TESTED_ELSEWHERE: &[&str] = &[recipes::FILE];

guides! {
    cron: "cron.md",
    jobs_that_hang: "jobs-that-hang.md",
    several_locks: "several-locks.md",
    deploy_lock_in_ci: "deploy-lock-in-ci.md",
    terraform: "terraform.md",
    leader_election: "leader-election.md",
    one_writer_per_json: "one-writer-per-json.md",
    migrating: "migrating.md",
    celery: "celery.md",
    lambda: "lambda.md",
    leader_in_node: "leader-in-node.md",
    migrating_libraries: "migrating-libraries.md",
    go: "go.md",
    java: "java.md",
    ruby: "ruby.md",
    nginx: "nginx.md",
    team_server: "team-server.md",
    gitlab: "gitlab.md",
    jenkins: "jenkins.md",
    systemd_timers: "systemd-timers.md",
    kubernetes_cronjob: "kubernetes-cronjob.md",
    airflow: "airflow.md",
    apscheduler: "apscheduler.md",
    django: "django.md",
    fastapi: "fastapi.md",
    spring: "spring.md",
}

/// Runs a guide.
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

/// Runs the session in `docs/serve.md`. The document has blocks of other kinds after the session.
#[test]
#[cfg(feature = "serve")]
fn serve() {
    let text = fs::read_to_string(root().join("docs/serve.md")).unwrap();
    let (_, session) = text.split_once("## A session").unwrap();
    let (session, _) = session.split_once("\n## ").unwrap();
    runner::follow(session).unwrap_or_else(|error| panic!("docs/serve.md: {error}"));
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

/// The index is not a guide.
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
