//! Waiting: who is told what, and when it ends.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Stdio};

use serde_json::Value;

use crate::support::{Holder, Outcome, Place};

fn held(place: &Place, words: &str) -> Holder {
    let mut command = place.scripted(words, "echo $LEASEHOLD_TOKEN; cat");
    command.stdin(Stdio::piped());
    Holder::start(command)
}

/// Starts `leasehold` with `words` and waits for its first line on stderr.
fn waiting(place: &Place, words: &str) -> (Child, BufReader<std::process::ChildStderr>, String) {
    let mut command = place.leasehold(words.split_whitespace());
    let mut process = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut stderr = BufReader::new(process.stderr.take().unwrap());
    let mut line = String::new();
    stderr.read_line(&mut line).unwrap();
    (process, stderr, line)
}

#[test]
fn the_second_waits_says_for_whom_and_goes_on() {
    let place = Place::new();
    let mut first = held(&place, "run deploy/prod --owner alice --note releasing");
    let (second, _stderr, line) = waiting(&place, "run deploy/prod -- echo ran");
    assert!(line.starts_with("     Waiting for deploy/prod: alice@"), "{line}");
    assert!(line.contains(&format!(" pid {} \"releasing\", held ", first.pid())), "{line}");
    assert!(line.contains(", lease <= "), "{line}");
    assert!(line.ends_with(&format!(", token {}\n", first.first)), "{line}");
    drop(first.process.stdin.take());
    let ended = Outcome::of(second.wait_with_output().unwrap()).expect(0);
    assert_eq!(ended.stdout, "ran\n");
    first.end().expect(0);
}

#[test]
fn as_json_it_is_a_document() {
    let place = Place::new();
    let mut first = held(&place, "run x --owner alice");
    let (second, _stderr, line) = waiting(&place, "run x --json -- true");
    let document: Value = serde_json::from_str(&line).unwrap();
    assert_eq!((&document["type"], &document["lock"]), (&"waiting".into(), &"x".into()));
    assert_eq!(document["holder"]["name"], "alice");
    assert_eq!(document["token"].to_string(), first.first);
    drop(first.process.stdin.take());
    Outcome::of(second.wait_with_output().unwrap()).expect(0);
}

#[test]
fn quiet_is_quiet() {
    let place = Place::new();
    let _first = held(&place, "run x");
    let outcome = place.run("run -q -w 700ms x -- true").expect(124);
    assert!(outcome.stderr.starts_with("error: "), "{outcome:?}");
    let outcome = place.run("run -w 700ms x -- true").expect(124);
    assert!(outcome.stderr.starts_with("     Waiting"), "{outcome:?}");
}

#[test]
fn wait_takes_nothing() {
    let place = Place::new();
    place.run("wait x").expect(0);
    let mut first = held(&place, "run x");
    let late = place.run("wait x -w 30ms").expect(124);
    assert!(late.stderr.contains("not free within 30ms"), "{late:?}");
    let (second, _stderr, line) = waiting(&place, "wait x");
    assert!(line.contains("Waiting for x"), "{line}");
    drop(first.process.stdin.take());
    first.end().expect(0);
    Outcome::of(second.wait_with_output().unwrap()).expect(0);
    place.run("run -n x -- true").expect(0);
}

#[test]
fn what_others_wrote_cannot_move_the_cursor() {
    let place = Place::new();
    let mut command =
        place.leasehold(["run", "x", "--note", "\u{1b}[2Jgone\n", "--", "sh", "-c", "echo ready; cat"]);
    command.stdin(Stdio::piped());
    let _first = Holder::start(command);
    for words in ["ls", "show x", "run -n x -- true"] {
        let outcome = place.run(words);
        assert!(!format!("{}{}", outcome.stdout, outcome.stderr).contains('\u{1b}'), "{words}: {outcome:?}");
    }
}

#[test]
fn whoever_waited_in_vain_is_told_for_whom() {
    let place = Place::new();
    let first = held(&place, "run x --owner alice");
    // At moments that have nothing to do with those at which the store is asked.
    for limit in [60, 110, 170, 230] {
        let late = place.run(&format!("run -w {limit}ms x -- true")).expect(124);
        assert!(late.stderr.contains("is held by alice@"), "{late:?}");
        assert!(late.stderr.contains(&format!("break x --token {}", first.first)), "{late:?}");
    }
}

#[test]
fn a_store_that_does_not_answer_is_not_said_to_have_a_holder() {
    let place = Place::new();
    place.run("run x -- true").expect(0);
    let _store = place.cut_off();
    let late = place.run("run -w 100ms -E 0 --report out.json x -- true").expect(125);
    assert!(late.stderr.contains("nothing was heard of a holder"), "{late:?}");
    assert!(place.read("out.json").contains("\"outcome\": \"failed\""));
}

#[test]
fn a_store_that_is_silent_is_told_of_when_asked_for() {
    let place = Place::new();
    place.run("run x -- true").expect(0);
    let _store = place.cut_off();
    let (second, _stderr, line) = waiting(&place, "run x -v --store-timeout 1h -- true");
    assert!(line.contains("for x: no answer from the store for 2"), "{line}");
    assert!(line.contains("trying for another 59m"), "{line}");
    crate::support::send(i32::try_from(second.id()).unwrap(), rustix::process::Signal::TERM);
    Outcome::of(second.wait_with_output().unwrap()).expect(143);
}

#[test]
fn a_wait_for_a_silent_store_ends_with_its_limit_and_is_not_prolonged() {
    let place = Place::new();
    place.run("run x -- true").expect(0);
    let _store = place.cut_off();
    // After a shorter limit the store is asked once more; what that hears would be another message.
    let late = place.run("run -w 2100ms x -- true").expect(125);
    assert!(late.stderr.contains("within 2.1s, and nothing was heard of a holder"), "{late:?}");
}
