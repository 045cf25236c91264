//! Waiting for a lock: progress, limits and errors.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Stdio};

use serde_json::Value;

use crate::support::{Holder, Outcome, Sandbox};

fn held(sandbox: &Sandbox, words: &str) -> Holder {
    let mut command = sandbox.scripted(words, "echo $LEASEHOLD_TOKEN; cat");
    command.stdin(Stdio::piped());
    Holder::start(command)
}

/// Starts `leasehold` with `words` and waits for its first line on stderr.
fn waiting(sandbox: &Sandbox, words: &str) -> (Child, BufReader<std::process::ChildStderr>, String) {
    let mut command = sandbox.leasehold(words.split_whitespace());
    let mut process = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut stderr = BufReader::new(process.stderr.take().unwrap());
    let mut line = String::new();
    stderr.read_line(&mut line).unwrap();
    (process, stderr, line)
}

#[test]
fn the_second_run_waits_and_names_the_holder() {
    let sandbox = Sandbox::new();
    let mut first = held(&sandbox, "run deploy/prod --owner alice --note releasing");
    let (second, _stderr, line) = waiting(&sandbox, "run deploy/prod -- echo ran");
    assert!(line.starts_with("     Waiting for deploy/prod: alice@"), "{line}");
    assert!(line.contains(&format!(" pid {} \"releasing\", held ", first.pid())), "{line}");
    assert!(!line.contains("lease"), "the holder renews it unseen: {line}");
    assert!(line.ends_with("; first in line\n"), "{line}");
    drop(first.process.stdin.take());
    let ended = Outcome::of(second.wait_with_output().unwrap()).expect(0);
    assert_eq!(ended.stdout, "ran\n");
    first.end().expect(0);
}

#[test]
fn a_waiter_learns_who_is_directly_before_it() {
    let sandbox = Sandbox::new();
    let mut first = held(&sandbox, "run x --owner alice");
    let (second, _stderr, line) = waiting(&sandbox, "run x --owner bob --note backup -- true");
    assert!(line.ends_with("; first in line\n"), "{line}");
    let (third, _stderr, line) = waiting(&sandbox, "run x -- true");
    assert!(line.contains("; second in line, behind bob@"), "{line}");
    assert!(line.ends_with(&format!(" pid {}\n", second.id())), "without the note: {line}");
    let (fourth, _stderr, line) = waiting(&sandbox, "run x --json -- true");
    let document: Value = serde_json::from_str(&line).unwrap();
    assert_eq!(
        (&document["held_by"]["ahead"], &document["held_by"]["waiter_ahead"]["pid"]),
        (&2.into(), &third.id().into())
    );
    drop(first.process.stdin.take());
    for waiter in [second, third, fourth] {
        Outcome::of(waiter.wait_with_output().unwrap()).expect(0);
    }
}

#[test]
fn the_waiting_report_in_json_is_a_document() {
    let sandbox = Sandbox::new();
    let mut first = held(&sandbox, "run x --owner alice");
    let (second, _stderr, line) = waiting(&sandbox, "run x --json -- true");
    let document: Value = serde_json::from_str(&line).unwrap();
    assert_eq!((&document["type"], &document["lock"]), (&"waiting".into(), &"x".into()));
    assert_eq!(document["held_by"]["holder"]["name"], "alice");
    assert_eq!(document["held_by"]["token"].to_string(), first.first);
    drop(first.process.stdin.take());
    Outcome::of(second.wait_with_output().unwrap()).expect(0);
}

#[test]
fn quiet_prints_only_errors() {
    let sandbox = Sandbox::new();
    let _first = held(&sandbox, "run x");
    let outcome = sandbox.run("run -q -w 5s x -- true").expect(124);
    assert!(outcome.stderr.starts_with("error: "), "{outcome:?}");
    let outcome = sandbox.run("run -w 5s x -- true").expect(124);
    assert!(outcome.stderr.starts_with("     Waiting"), "{outcome:?}");
}

#[test]
fn wait_acquires_nothing() {
    let sandbox = Sandbox::new();
    sandbox.run("wait x").expect(0);
    let mut first = held(&sandbox, "run x");
    let late = sandbox.run("wait x -w 5s").expect(124);
    assert!(late.stderr.contains("did not become free within 5s"), "{late:?}");
    let (second, _stderr, line) = waiting(&sandbox, "wait x");
    assert!(line.contains("Waiting for x"), "{line}");
    drop(first.process.stdin.take());
    first.end().expect(0);
    Outcome::of(second.wait_with_output().unwrap()).expect(0);
    sandbox.run("run -n x -- true").expect(0);
}

#[test]
fn text_of_other_processes_cannot_move_the_cursor() {
    let sandbox = Sandbox::new();
    let mut command =
        sandbox.leasehold(["run", "x", "--note", "\u{1b}[2Jgone\n", "--", "sh", "-c", "echo ready; cat"]);
    command.stdin(Stdio::piped());
    let _first = Holder::start(command);
    for words in ["ls", "show x", "run -n x -- true"] {
        let outcome = sandbox.run(words);
        assert!(!format!("{}{}", outcome.stdout, outcome.stderr).contains('\u{1b}'), "{words}: {outcome:?}");
    }
}

#[test]
fn a_timeout_names_the_holder() {
    let sandbox = Sandbox::new();
    let first = held(&sandbox, "run x --owner alice");
    // The limits do not coincide with the polls of the store.
    for limit in [60, 110, 170, 230] {
        let late = sandbox.run(&format!("run -w {limit}ms x -- true")).expect(124);
        assert!(late.stderr.contains("is held by alice@"), "{late:?}");
        assert!(late.stderr.contains(&format!("evict --token {} x", first.first)), "{late:?}");
    }
}

#[test]
fn a_silent_store_is_not_reported_as_a_held_lock() {
    let sandbox = Sandbox::new();
    sandbox.run("run x -- true").expect(0);
    let _store = sandbox.cut_off();
    let late = sandbox.run("run -w 100ms -E 0 --report out.json x -- true").expect(125);
    assert!(late.stderr.contains("the holder of lock `x` is unknown"), "{late:?}");
    assert!(sandbox.read("out.json").contains("\"outcome\": \"failed\""));
}

#[test]
fn verbose_output_reports_a_silent_store() {
    let sandbox = Sandbox::new();
    sandbox.run("run x -- true").expect(0);
    let _store = sandbox.cut_off();
    let (second, _stderr, line) = waiting(&sandbox, "run x -v --store-timeout 1h -- true");
    let (_, silent_for) = line.split_once("for x: no response from the store for ").unwrap();
    let seconds: u32 = silent_for.split('s').next().unwrap().parse().unwrap();
    assert!(seconds >= 2 && line.contains("giving up in 59m"), "{line}");
    crate::support::send(i32::try_from(second.id()).unwrap(), rustix::process::Signal::TERM);
    Outcome::of(second.wait_with_output().unwrap()).expect(143);
}

#[test]
fn a_wait_for_a_silent_store_ends_at_its_limit() {
    let sandbox = Sandbox::new();
    sandbox.run("run x -- true").expect(0);
    let _store = sandbox.cut_off();
    // With a limit below two seconds, leasehold would wait for longer.
    let late = sandbox.run("run -w 2100ms x -- true").expect(125);
    assert!(late.stderr.contains("within 2.1s; the holder of lock `x` is unknown"), "{late:?}");
}

#[test]
#[cfg(feature = "http")]
fn opening_a_silent_store_is_shown_and_limited() {
    let sandbox = Sandbox::new();
    // The kernel accepts the connections, but no program responds.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", silent.local_addr().unwrap());
    let late = sandbox.run(&format!("-s {url} run x -v --store-timeout 3s -- true")).expect(125);
    assert!(late.stderr.contains("     Waiting for x: no response from the store for "), "{late:?}");
    assert!(!late.stderr.contains("giving up"), "the store may give up earlier: {late:?}");
    let error = format!("error: the store {url} cannot be opened: no response within 3.0s\n");
    assert!(late.stderr.ends_with(&error), "{late:?}");
    for words in ["acquire x --wait 1s", "wait x --wait 1s"] {
        let late = sandbox.run(&format!("-s {url} {words}")).expect(125);
        assert!(
            late.stderr.contains(&format!("the store {url} cannot be opened: no response within 5.0s")),
            "{late:?}"
        );
    }
    let mut command = sandbox.leasehold(["-s", &url, "wait", "x", "-v", "--json"]);
    let mut process = command.stderr(Stdio::piped()).spawn().unwrap();
    let line = crate::support::line_with(&mut BufReader::new(process.stderr.take().unwrap()), "unanswered");
    process.kill().unwrap();
    process.wait().unwrap();
    let document: Value = serde_json::from_str(&line).unwrap();
    assert_eq!((&document["type"], &document["lock"]), (&"unanswered".into(), &"x".into()));
    assert!(document["for_ms"].is_u64() && document["trying_for_ms"].is_null(), "there is no limit: {line}");
}

#[test]
fn a_limit_of_zero_means_one_try() {
    let sandbox = Sandbox::new();
    sandbox.run("wait x --wait 0s").expect(0);
    sandbox.run("run x --wait 0s -- true").expect(0);
    let _first = held(&sandbox, "-s sqlite:locks.db run x");
    let refused = sandbox.run("-s sqlite:locks.db wait x --wait 0s").expect(124);
    assert!(refused.stderr.contains("lock `x` is not free"), "{refused:?}");
    assert!(refused.stderr.contains("leasehold -s sqlite:locks.db show x"), "{refused:?}");
    sandbox.run("-s sqlite:locks.db run x --wait 0s -- true").expect(123);
    let mut command = sandbox.leasehold(["-s", "sqlite:locks.db", "run", "x", "--", "true"]);
    Outcome::of(command.env("LEASEHOLD_WAIT", "0s").output().unwrap()).expect(123);
}
