//! Wrong guides fail.

use super::runner;

#[track_caller]
fn fails(guide: &str, errors: &[&str]) {
    let error = runner::follow(guide).err().expect("it should fail");
    for expected in errors {
        assert!(error.contains(expected), "{expected:?} is not in: {error}");
    }
}

#[test]
fn a_correct_guide_passes() {
    let run = runner::follow(
        "```sh\ncd \"$HOME\"\nx=1\n```\n\n```sh\necho $x two\nleasehold run a -- echo three >&2\n```\n\n```text\n1 ...\nthree\n```\n",
    );
    assert!(run.is_ok(), "{:?}", run.err());
}

#[test]
fn a_command_that_fails() {
    fails(
        "```sh\ntrue\n```\n\n```sh\necho before\nfalse\necho after\n```\n",
        &["line 5: exit code Some(1)", "before\n"],
    );
    fails("```sh\nfalse | true\n```\n", &["line 1: exit code Some(1)"]);
    fails("```sh\necho $unset\n```\n", &["line 1: exit code Some(1)", "unset"]);
    fails("```sh\nleasehold run a -- sh -c 'exit 3'\n```\n", &["exit code Some(3)"]);
}

#[test]
fn other_output() {
    fails("```sh\necho 1\n```\n\n```text\n2\n```\n", &["line 5: other output", "2\n\nand not:\n1\n"]);
}

#[test]
fn a_block_that_would_not_be_run() {
    fails("```sh\ntrue\n```\n\n```fish\ntrue\n```\n", &["line 5", "fish"]);
    fails("```\ntrue\n```\n", &["line 1", "\"\""]);
    fails("```text\ntrue\n```\n", &["line 1", "without a block before"]);
    fails("    leasehold ls\n", &["line 1", "without a fence"]);
}

#[test]
fn no_command() {
    fails("# Nothing\n", &["without a command"]);
    fails("```rust\n```\n", &["without a command"]);
}

#[test]
fn an_end_before_the_end() {
    fails("```sh\nexit 0\n```\n\n```sh\nfalse\n```\n", &["line 1: it ends the shell"]);
    fails("```sh\ncat <<END\nno end\n```\n\n```sh\nfalse\n```\n", &["line 1: it ends the shell"]);
    fails("```sh\nsleep 1000 &\n```\n", &["leaves this running", "sleep 1000"]);
}

#[test]
fn a_crontab_that_needs_what_cron_does_not_have() {
    fails(
        "```crontab\n0 3 * * * leasehold run a -- true\n```\n",
        &["line 1: exit code Some(127)", "not found"],
    );
}

#[test]
fn a_step_of_a_workflow_that_fails() {
    fails(
        "```yaml\njob:\n  script:\n    - echo 1\n    - false\n    - echo 2\n```\n",
        &["exit code Some(1)", "1\n"],
    );
    let passed = runner::follow(
        "```yaml\nenv:\n  A: b c\nsteps:\n  - run: echo \"T=t$A\" >> \"$GITHUB_ENV\"\n  - run: echo \"$T\"\n```\n\n```text\ntb c\n```\n",
    );
    assert!(passed.is_ok(), "{:?}", passed.err());
}
