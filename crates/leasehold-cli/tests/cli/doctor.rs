//! `leasehold doctor` on stores that need no server.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;

use serde_json::Value;

use crate::support::{Outcome, Sandbox};

fn checks<'a>(report: &'a Value, verdict: &str) -> Vec<&'a str> {
    let findings = report["findings"].as_array().unwrap().iter();
    findings
        .filter(|finding| finding["verdict"] == verdict)
        .map(|finding| finding["check"].as_str().unwrap())
        .collect()
}

#[test]
fn the_doctor_passes_the_default_store_in_lines_for_people() {
    let sandbox = Sandbox::new();
    let healthy = sandbox.run("doctor").expect(0);
    for line in ["  ok    reachable", "  ok    claims-race", "  -     cost", "\nsafe for locks"] {
        assert!(healthy.stdout.contains(line), "{line}: {}", healthy.stdout);
    }
    assert!(!healthy.stdout.contains('\u{1b}'), "no colors in a pipe: {}", healthy.stdout);
    let colored = sandbox.run("doctor --color always").expect(0);
    assert!(colored.stdout.contains("\u{1b}[1;32mok"), "{}", colored.stdout);
    assert_eq!(sandbox.run("doctor -q").expect(0).stdout, "");
    assert_eq!(sandbox.run("ls").expect(0).stdout, "", "nothing is left");
}

#[test]
fn the_doctor_reports_one_json_document_with_stable_names() {
    let sandbox = Sandbox::new();
    let report = sandbox.run("doctor --json -s mem: --ttl 10s").expect(0).stdout;
    let report: Value = serde_json::from_str(&report).unwrap();
    assert_eq!(
        (&report["type"], &report["safe"], &report["kind"]),
        (&"report".into(), &true.into(), &"memory".into())
    );
    assert_eq!(checks(&report, "failed"), Vec::<&str>::new());
    let names: Vec<_> =
        report["round_trips"].as_array().unwrap().iter().map(|trip| trip["operation"].clone()).collect();
    assert_eq!(names, ["acquire", "renew", "inspect", "release"]);
    assert!(report["round_trips"][0]["p99_us"].is_u64() && report["smallest_ttl_ms"].is_u64(), "{report}");
}

#[test]
fn a_ttl_that_no_lock_can_have_is_refused() {
    let sandbox = Sandbox::new();
    sandbox.write("config/leasehold/config.toml", "ttl = \"100ms\"");
    let refused = sandbox.run("doctor").expect(2);
    assert!(refused.stderr.contains("between 500ms and 24h"), "{refused:?}");
}

/// Checks the message for a missing permission. Root has all permissions, so as root the test runs leasehold as
/// `nobody`.
#[test]
fn fault_34_the_doctor_names_the_unwritable_file_or_folder() {
    const NOBODY: u32 = 65_534;
    let sandbox = Sandbox::new();
    let open =
        |path: &std::path::Path, mode| fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    open(&sandbox.path(""), 0o755);
    // Copy the program to a folder where the user `nobody` can run it.
    let program = sandbox.path("leasehold");
    fs::copy(assert_cmd::cargo::cargo_bin!("leasehold"), &program).unwrap();
    open(&program, 0o755);
    let folder = sandbox.path("shared");
    fs::create_dir(&folder).unwrap();
    sandbox.run("init -s sqlite:shared/locks.db").expect(0);
    let examined = || {
        let mut command = std::process::Command::new(&program);
        command
            .args(["doctor", "--json", "-s", "sqlite:shared/locks.db"])
            .current_dir(sandbox.path(""))
            .env("HOME", sandbox.path(""))
            .env_remove("XDG_CONFIG_HOME");
        if rustix::process::geteuid().is_root() {
            command.uid(NOBODY).gid(NOBODY);
        }
        Outcome::of(command.output().unwrap())
    };
    for (folder_mode, file_mode, named) in
        [(0o555, 0o666, "shared cannot be written"), (0o777, 0o444, "locks.db cannot be read and written")]
    {
        open(&folder.join("locks.db"), file_mode);
        open(&folder, folder_mode);
        let outcome = examined();
        let report: Value = serde_json::from_str(&outcome.stdout).unwrap_or_else(|_| panic!("{outcome:?}"));
        assert_eq!((outcome.code, checks(&report, "failed")), (1, vec!["reachable"]), "{report:#}");
        let finding = &report["findings"][0];
        assert!(finding["seen"].as_str().unwrap().contains(named), "{finding}");
        assert!(!finding["help"].as_array().unwrap().is_empty(), "{finding}");
    }
    open(&folder, 0o777);
    open(&folder.join("locks.db"), 0o666);
    assert_eq!(examined().code, 0);
}

#[test]
fn the_doctor_refuses_a_file_that_is_not_a_store() {
    let sandbox = Sandbox::new();
    let diary = "dear diary, this is not a database and it is long enough to be told apart from one";
    sandbox.write("notes.db", diary);
    let refused = sandbox.run("doctor -s sqlite:notes.db").expect(1);
    assert!(refused.stdout.contains("FAIL  reachable") && refused.stdout.contains("help: "), "{refused:?}");
    assert!(refused.stdout.ends_with("NOT safe for locks: 1 check failed\n"), "{refused:?}");
    assert_eq!(sandbox.read("notes.db"), diary, "it was left alone");
}

/// A URL that does not parse is a usage error, not a finding.
#[test]
fn a_bad_url_is_an_error_without_a_diagnosis() {
    let sandbox = Sandbox::new();
    let refused = sandbox.run("doctor -s sqlite:locks.db?alow_network=on").expect(125);
    assert!(refused.stdout.is_empty() && refused.stderr.contains("alow_network"), "{refused:?}");
    sandbox.run("doctor --ttl 1ms").expect(2);
    sandbox.run("doctor extra").expect(2);
}
