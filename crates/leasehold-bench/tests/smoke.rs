//! Checks that the benchmark runs and that its report is complete. It does not check the figures, because they need an
//! otherwise idle machine.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // A test fails by panicking.

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

fn bench(folder: &Path, arguments: &[&str]) -> Output {
    let out = folder.to_str().unwrap();
    let bench = env!("CARGO_BIN_EXE_leasehold-bench");
    Command::new(bench).args(arguments).args(["--out", out]).output().unwrap()
}

#[test]
fn sqlite_is_measured_and_reported() {
    let folder = tempfile::tempdir().unwrap();
    let output = bench(folder.path(), &["a", "b", "sqlite", "--rounds", "2", "--seconds", "1"]);
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    for part in ["(a) uncontended", "(b) tasks", "SQLite", "leasehold", "locks/s", "results.json"] {
        assert!(said.contains(part), "{part}: {said}");
    }

    let text = std::fs::read_to_string(folder.path().join("results.json")).unwrap();
    let results: Value = serde_json::from_str(&text).unwrap();
    let blocks = results["blocks"].as_array().unwrap();
    let scenarios: Vec<_> = blocks.iter().map(|block| block["scenario"].as_str().unwrap()).collect();
    assert_eq!(scenarios, ["a", "b"]);
    for block in blocks {
        let ours = block["rows"].as_array().unwrap().iter().find(|row| row["role"] == "ours").unwrap();
        assert_eq!(ours["trouble"], Value::Null);
        let samples = ours["samples"].as_array().unwrap();
        assert_eq!(samples.len(), 2);
        for sample in samples {
            assert!(sample["metrics"]["ops_per_s"].as_f64().unwrap() > 0.0, "{sample}");
            assert_eq!(sample["violations"], 0);
        }
    }
    for plot in ["uncontended.svg", "tasks.svg"] {
        assert!(folder.path().join(plot).exists(), "{plot}");
    }

    let report = bench(folder.path(), &["report", "tasks"]);
    let said = String::from_utf8(report.stdout).unwrap();
    assert!(report.status.success() && said.contains("tasks starved"), "{said}");
}

/// The servers of a cluster send clients to each other's proxies, which count the requests.
#[cfg(feature = "servers")]
#[test]
fn a_cluster_is_measured_through_a_proxy_for_each_server() {
    let folder = tempfile::tempdir().unwrap();
    let output =
        bench(folder.path(), &["d", "redis-cluster", "--rtt", "0,1", "--rounds", "2", "--seconds", "0.5"]);
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    let text = std::fs::read_to_string(folder.path().join("results.json")).unwrap();
    let results: Value = serde_json::from_str(&text).unwrap();
    let blocks = results["blocks"].as_array().unwrap();
    let rows: Vec<_> = blocks.iter().flat_map(|block| block["rows"].as_array().unwrap()).collect();
    assert_eq!(rows.len(), 4, "leasehold and redis-py: {said}");
    for row in rows {
        assert_eq!(row["trouble"], Value::Null);
        for sample in row["samples"].as_array().unwrap() {
            assert!(sample["metrics"]["requests_per_op"].as_f64().unwrap() > 1.5, "{row}");
        }
    }
}

/// A process that does not get all locks in time goes on with those that it holds, and says so.
#[test]
fn a_process_that_holds_too_few_locks_says_why() {
    let bench = env!("CARGO_BIN_EXE_leasehold-bench");
    let options = ["--locks", "1000000", "--ttl-ms", "30000", "--seconds", "0.1", "--within", "0"];
    let mut program = Command::new(bench)
        .args(["contender", "ours", "many", "--lock", "x", "--store", "mem:"])
        .args(options)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    program.stdin.take().unwrap().write_all(b"go\n").unwrap();
    let output = program.wait_with_output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<_> = said.lines().collect();
    assert!(output.status.success(), "{said}");
    let held: u64 = lines[2].strip_prefix("held ").unwrap().parse().unwrap();
    assert!((1..1_000_000).contains(&held), "{said}");
    let first_words: Vec<_> = lines.iter().map(|line| line.split(' ').next().unwrap()).collect();
    assert_eq!(first_words, ["ready", "short", "held", "renewals", "left", "done"]);
    assert_eq!(lines[1], "short it took longer than 0 s");
}

#[test]
fn bad_arguments_are_named_and_exit_with_2() {
    let folder = tempfile::tempdir().unwrap();
    for (wrong, says) in [
        (&["sqlit"][..], "`sqlit`"),
        (&["--rounds", "none"], "`none`"),
        (&["c", "mem"], "nothing to measure"),
        (&["a", "--rtt", "far"], "`far`"),
    ] {
        let output = bench(folder.path(), wrong);
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{wrong:?}: {said}");
        assert!(said.contains(says), "{wrong:?}: {said}");
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "nothing was measured");
}
