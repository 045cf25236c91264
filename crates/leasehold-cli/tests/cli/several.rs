//! `run` and `acquire` with several locks: all or none.

use std::io::{BufRead as _, BufReader};
use std::process::Stdio;

use serde_json::{Value, json};

use crate::support::{Holder, Outcome, Sandbox};

fn token(sandbox: &Sandbox, lock: &str) -> Value {
    let shown = sandbox.run(&format!("show {lock} --json")).expect(0).stdout;
    serde_json::from_str::<Value>(&shown).unwrap()["token"].clone()
}

fn held(sandbox: &Sandbox, words: &str) -> Holder {
    let mut command = sandbox.scripted(words, "echo ready; cat");
    command.stdin(Stdio::piped());
    Holder::start(command)
}

fn ended(mut holder: Holder) -> Outcome {
    drop(holder.process.stdin.take());
    holder.end()
}

/// Asserts that none of the locks is held.
fn all_free(sandbox: &Sandbox, locks: &[&str]) {
    for lock in locks {
        sandbox.run(&format!("run -n {lock} -- true")).expect(0);
    }
}

#[test]
fn a_run_holds_all_locks_and_tells_the_command_their_tokens() {
    let sandbox = Sandbox::new();
    let script = "echo \"$LEASEHOLD_TOKENS\"; echo \"<$LEASEHOLD_LOCK$LEASEHOLD_TOKEN>\"; cat";
    let mut command = sandbox.scripted("run deploy/us deploy/eu --report out.json", script);
    command.env("LEASEHOLD_LOCK", "outer").env("LEASEHOLD_TOKEN", "1").stdin(Stdio::piped());
    let mut holder = Holder::start(command);
    let tokens: Value = serde_json::from_str(&holder.first).unwrap();
    let expected =
        json!({ "deploy/eu": token(&sandbox, "deploy/eu"), "deploy/us": token(&sandbox, "deploy/us") });
    assert_eq!(tokens, expected);
    assert_eq!(holder.line(), "<>", "one of several tokens is ambiguous");
    for lock in ["deploy/eu", "deploy/us", "deploy/us deploy/eu", "deploy/us x"] {
        let refused = sandbox.run(&format!("run -n {lock} -- true")).expect(123);
        assert!(refused.stderr.contains("is held by tester@"), "{refused:?}");
    }
    ended(holder).expect(0);
    let report: Value = serde_json::from_str(&sandbox.read("out.json")).unwrap();
    assert_eq!((&report["lock"], &report["token"]), (&"deploy/eu, deploy/us".into(), &Value::Null));
    assert_eq!((&report["tokens"], &report["released"]), (&tokens, &true.into()));
    all_free(&sandbox, &["deploy/eu", "deploy/us", "x"]);
}

#[test]
fn a_run_of_one_lock_also_has_its_token_by_name() {
    let sandbox = Sandbox::new();
    let shown = sandbox.run_script("run x", "echo \"$LEASEHOLD_TOKENS=$LEASEHOLD_TOKEN\"").expect(0).stdout;
    let (tokens, token) = shown.trim().split_once('=').unwrap();
    assert_eq!(tokens, format!("{{\"x\":{token}}}"));
}

#[test]
fn a_wait_for_several_says_what_it_holds_and_leaves_nothing() {
    let sandbox = Sandbox::new();
    let other = held(&sandbox, "run b --owner alice");
    let words = "run c b a -w 4s --json -- true";
    let mut command = sandbox.leasehold(words.split_whitespace());
    let mut process = command.stderr(Stdio::piped()).spawn().unwrap();
    let mut stderr = BufReader::new(process.stderr.take().unwrap());
    let mut line = String::new();
    stderr.read_line(&mut line).unwrap();
    let waiting: Value = serde_json::from_str(&line).unwrap();
    assert_eq!(
        (&waiting["type"], &waiting["lock"], &waiting["holding"]),
        (&"waiting".into(), &"b".into(), &json!(["a"]))
    );
    sandbox.run("run -n a -- true").expect(123);
    sandbox.run("run -n c -- true").expect(0);
    assert_eq!(process.wait().unwrap().code(), Some(124));
    all_free(&sandbox, &["a", "c"]);

    let mut command = sandbox.leasehold("run c b a -- true".split_whitespace());
    let mut process = command.stderr(Stdio::piped()).spawn().unwrap();
    let mut stderr = BufReader::new(process.stderr.take().unwrap());
    let mut line = String::new();
    stderr.read_line(&mut line).unwrap();
    assert!(line.starts_with("     Waiting for b (holding a): alice@"), "{line}");
    ended(other).expect(0);
    assert!(process.wait().unwrap().success());
}

#[test]
fn an_attempt_that_finds_one_lock_held_leaves_nothing() {
    let sandbox = Sandbox::new();
    let other = held(&sandbox, "run b --owner alice");
    let refused = sandbox.run("run -n c b a -- true").expect(123);
    let lines: Vec<_> = refused.stderr.lines().collect();
    assert!(lines[0].starts_with("error: lock `b` is held by alice@"), "{lines:?}");
    assert_eq!(lines[1], "  help: to wait: leasehold run --wait 10m a b c -- ...");
    assert!(!refused.stderr.contains("evict"), "{lines:?}");
    all_free(&sandbox, &["a", "c"]);
    sandbox.run("run -n -E 0 -q c b a -- false").expect(0);
    sandbox.run("acquire -n c b a").expect(123);
    all_free(&sandbox, &["a", "c"]);
    ended(other).expect(0);
}

#[test]
fn a_run_that_loses_one_of_its_locks_is_stopped() {
    let sandbox = Sandbox::new();
    let holder = held(&sandbox, "run a b c --ttl 3s");
    let of_b = token(&sandbox, "b");
    sandbox.run(&format!("evict b --token {of_b}")).expect(0);
    let lost = holder.end().expect(122);
    assert!(lost.stderr.contains("lock `b`"), "{lost:?}");
    all_free(&sandbox, &["a", "b", "c"]);
}

#[test]
fn the_limit_of_several_locks_ends_their_command() {
    let sandbox = Sandbox::new();
    let holder = sandbox.hold("run a b --max-hold 4s --grace 1s", "echo ready; exec sleep 60");
    let ended = holder.end().expect(121);
    assert!(ended.stderr.contains("lock `a, b` reached its limit"), "{ended:?}");
    all_free(&sandbox, &["a", "b"]);
}

#[test]
fn one_ticket_renews_runs_and_releases_several_locks() {
    let sandbox = Sandbox::new();
    let acquired = sandbox.run("acquire b a --json").expect(0).stdout;
    let acquired: Value = serde_json::from_str(&acquired).unwrap();
    assert_eq!(acquired["tokens"], json!({ "a": token(&sandbox, "a"), "b": token(&sandbox, "b") }));
    assert_eq!(acquired["token"], Value::Null);
    let ticket = acquired["ticket"].as_str().unwrap();
    let renewed = sandbox.run(&format!("renew {ticket}")).expect(0).stdout;
    assert!(renewed.starts_with("renewed a, b, held for another "), "{renewed}");
    let script = "echo $LEASEHOLD_TOKENS";
    let shown = sandbox.run_script(&format!("run --ticket={ticket}"), script).expect(0).stdout;
    assert_eq!(serde_json::from_str::<Value>(&shown).unwrap(), acquired["tokens"]);
    sandbox.run("run -n b -- true").expect(123);
    assert_eq!(sandbox.run(&format!("release {ticket}")).expect(0).stdout, "released a, b\n");
    let again = sandbox.run(&format!("release {ticket}")).expect(1);
    assert!(again.stderr.contains("the locks a, b are no longer all held"), "{again:?}");
    all_free(&sandbox, &["a", "b"]);
}

#[test]
fn names_and_options_that_make_no_sense_are_usage_errors() {
    let sandbox = Sandbox::new();
    let many: Vec<_> = (0..65).map(|number| format!("n{number}")).collect();
    for (words, part) in [
        ("b a b", "the lock `b` is named twice"),
        ("a --shared b", "--shared cannot be used with several locks"),
        ("a --exclusive b", "--exclusive cannot be used with several locks"),
        ("a b --permits 2", "--permits 2 cannot be used with several locks"),
        (&*many.join(" "), "a hold of 65 locks"),
        ("a b//c", "b//c"),
    ] {
        for words in [format!("run {words} -- true"), format!("acquire {words}")] {
            let refused = sandbox.run(&words).expect(2);
            assert!(refused.stderr.contains(part), "{words}: {refused:?}");
        }
    }
    sandbox.run("once a b --per 1h -- true").expect(2);
    sandbox.run("run --ticket a b -- true").expect(2);
}

#[test]
fn a_nested_run_of_one_of_several_locks_reports_its_parent() {
    let sandbox = Sandbox::new();
    for inner in ["b", "a b"] {
        let script = format!("exec \"$LEASEHOLD\" run -n {inner} -- true");
        let tried = sandbox.run_script("run a b", &script).expect(123);
        assert!(tried.stderr.contains("under a `leasehold run` that holds the same lock"), "{tried:?}");
    }
}
