//! `elect`: one of several candidates runs its command, and observers see the leader.

use std::io::BufReader;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Stdio;

use rustix::process::Signal;
use serde_json::Value;

use crate::support::{Holder, Outcome, Sandbox, is_alive, line_with, send, wait_until};

/// Returns a script that prints its name and its term, and ends on SIGTERM.
fn member(name: &str) -> String {
    format!(
        "trap 'echo {name} ends; exit 7' TERM; echo {name} $LEASEHOLD_TOKEN; while :; do sleep 0.01; done"
    )
}

/// Starts a candidate that waits.
fn waiting(sandbox: &Sandbox, words: &str, script: &str) -> Waiting {
    let mut command = sandbox.scripted(words, script);
    let process = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    Waiting(process)
}

struct Waiting(std::process::Child);

impl Waiting {
    /// Waits until the candidate leads, which means that its command has printed the first line.
    fn leads(mut self) -> Holder {
        let stdout = BufReader::new(self.0.stdout.take().unwrap());
        let mut holder = Holder { process: self.0, stdout, first: String::new() };
        holder.first = holder.line();
        holder
    }
}

/// Starts an `elect --observe` process.
fn observer(sandbox: &Sandbox, words: &str) -> Holder {
    Holder::start(sandbox.leasehold(words.split_whitespace()))
}

fn json(line: &str) -> Value {
    serde_json::from_str(line).unwrap()
}

#[test]
fn a_leader_that_gets_sigterm_hands_over_at_once() {
    let sandbox = Sandbox::new();
    // The ttl is an hour, so only a leader that resigns can be replaced in time.
    let first = sandbox.hold("elect x --ttl 1h --value http://one --report one.json", &member("one"));
    let second = waiting(&sandbox, "elect x --ttl 1h --value http://two", &member("two"));
    let mut observer = observer(&sandbox, "elect x --observe --json");
    let leader = json(&observer.first);
    assert_eq!(
        (&leader["type"], &leader["lock"], &leader["value"]),
        (&"leader".into(), &"x".into(), &"http://one".into())
    );
    assert_eq!(format!("one {}", leader["term"]), first.first);
    assert_eq!(leader["holder"]["name"], "tester");
    assert!(sandbox.run("show x").expect(0).stdout.contains("http://one"));
    assert_eq!(json(&sandbox.run("ls --json").expect(0).stdout)["held_by"]["holder"]["value"], "http://one");

    first.signal(Signal::TERM);
    // The command receives the signal, and the candidate exits with the exit code of the command.
    let ended = first.end().expect(7);
    assert_eq!(ended.stdout, "one ends\n");
    let report = json(&sandbox.read("one.json"));
    assert_eq!((&report["outcome"], &report["released"]), (&"exited".into(), &true.into()));

    let second = second.leads();
    let follows = loop {
        let line = json(&observer.line());
        if line["type"] == "leader" {
            break line;
        }
        assert_eq!(line["type"], "no_leader");
    };
    assert_eq!(
        (&follows["value"], format!("two {}", follows["term"])),
        (&"http://two".into(), second.first.clone())
    );
    assert!(follows["term"].as_u64() > leader["term"].as_u64());
    second.signal(Signal::INT);
    second.end().expect(130);
    assert_eq!(json(&observer.line())["type"], "no_leader");
}

#[test]
fn a_killed_leader_is_replaced() {
    let sandbox = Sandbox::new();
    let first = sandbox.hold("elect x --ttl 1h", &member("one"));
    let second = waiting(&sandbox, "elect x --ttl 1h", &member("two"));
    // Kill the guardian too. It would only kill the command.
    send(first.guardian(), Signal::KILL);
    first.signal(Signal::KILL);
    assert!(second.leads().first.starts_with("two "));
}

#[test]
fn a_loss_kills_the_command_and_the_candidate_campaigns_again() {
    let sandbox = Sandbox::new();
    let script = "trap 'echo ignored' TERM; echo $$ $LEASEHOLD_TOKEN; while :; do sleep 0.01; done";
    let mut leader = sandbox.hold("elect x --ttl 9s", script);
    let (pid, term) =
        leader.first.split_once(' ').map(|(pid, term)| (pid.to_owned(), term.to_owned())).unwrap();
    sandbox.run(&format!("evict x --token {term}")).expect(0);
    let again = loop {
        let line = leader.line();
        if line != "ignored" {
            break line;
        }
    };
    assert!(!is_alive(&pid), "the command of the term that was lost");
    let (second, later) = again.split_once(' ').unwrap();
    assert!(later.parse::<u64>().unwrap() > term.parse::<u64>().unwrap());
    leader.signal(Signal::TERM);
    assert_eq!(leader.line(), "ignored", "an end before the signal would start another campaign");
    send(second.parse().unwrap(), Signal::KILL);
    let ended = leader.end().expect(137);
    assert!(ended.stderr.contains("error: lock `x`") && ended.stderr.contains("lost"), "{ended:?}");
}

#[test]
fn without_the_store_the_command_dies_before_another_leads() {
    let sandbox = Sandbox::new();
    let mut leader = sandbox.hold("elect x --ttl 1s", "trap '' TERM; echo $$; while :; do sleep 0.01; done");
    let pid = leader.first.clone();
    let store = sandbox.cut_off();
    wait_until("the command is killed", || !is_alive(&pid));
    drop(store);
    assert_ne!(leader.line(), pid, "it campaigns again");
    leader.signal(Signal::KILL);
}

/// The guardian finds its targets by descent, so a guardian of the previous term would kill the next command.
#[test]
fn a_starved_guardian_has_ended_before_the_next_term() {
    let sandbox = Sandbox::new();
    let mut leader = sandbox.hold("elect x --ttl 6s", "trap '' TERM; echo $$; while :; do sleep 0.01; done");
    let (guardian, pid) = (leader.guardian(), leader.first.clone());
    send(guardian, Signal::STOP);
    let store = sandbox.cut_off();
    wait_until("the command is killed", || !is_alive(&pid));
    drop(store);
    let next = leader.line();
    assert!(!is_alive(&guardian.to_string()), "the stopped guardian would continue now");
    assert!(is_alive(&next));
    leader.signal(Signal::KILL);
}

#[test]
fn the_delay_between_campaigns_grows() {
    let sandbox = Sandbox::new();
    let mut leader = sandbox.hold("elect x --ttl 1h", "echo $LEASEHOLD_TOKEN; exit 3");
    let mut stderr = BufReader::new(leader.process.stderr.take().unwrap());
    line_with(&mut stderr, "ended with exit code 3; campaigning again in 1s");
    // During the delay, another candidate can lead, and signals for the command are ignored.
    leader.signal(Signal::CONT);
    leader.signal(Signal::WINCH);
    sandbox.run_script("elect x --ttl 1h --on-exit exit", "exit 4").expect(4);
    let (first, second): (u64, u64) = (leader.first.parse().unwrap(), leader.line().parse().unwrap());
    assert!(second > first);
    line_with(&mut stderr, "campaigning again in 2s");
    leader.line();
    line_with(&mut stderr, "campaigning again in 4s");
    leader.signal(Signal::TERM);
    leader.process.stderr = Some(stderr.into_inner());
    leader.end().expect(143);
}

#[test]
fn with_on_exit_exit_elect_ends_with_the_command() {
    let sandbox = Sandbox::new();
    sandbox.run_script("elect x --on-exit exit", "exit 5").expect(5);
    sandbox.run_script("elect x --on-exit exit", "kill -9 $$").expect(137);
    let output = sandbox.scripted("elect x", "exit 6").env("LEASEHOLD_ON_EXIT", "exit").output().unwrap();
    Outcome::of(output).expect(6);
    // After a loss, it campaigns again.
    let script = format!(
        "[ -e again ] && exit 8; touch again; {} evict x --token $LEASEHOLD_TOKEN",
        env!("CARGO_BIN_EXE_leasehold")
    );
    sandbox.run_script("elect x --on-exit exit --ttl 1h", &script).expect(8);
}

/// A wait limit in the settings applies to the other subcommands, but not to a candidate.
#[test]
fn a_candidate_survives_store_outages_despite_a_wait_limit() {
    let sandbox = Sandbox::new();
    sandbox.run("run x -- true").expect(0);
    // The lock is free, but it cannot be written.
    let store = sandbox.cut_off();
    let mut candidate = sandbox
        .scripted("elect x --ttl 1h --store-timeout 1s", "true")
        .env("LEASEHOLD_WAIT", "1h")
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    line_with(&mut BufReader::new(candidate.stderr.take().unwrap()), "campaigning again");
    candidate.kill().unwrap();
    candidate.wait().unwrap();
    drop(store);
}

/// The program may be missing only while it is replaced.
#[test]
fn a_candidate_survives_a_program_that_cannot_run() {
    let sandbox = Sandbox::new();
    let file = sandbox.write("program", "#!/no/such\n");
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755)).unwrap();
    sandbox.run("elect x --on-exit exit -- ./program").expect(127);
    sandbox.run("elect x --once -- ./program").expect(127);
    let mut command = sandbox.leasehold(["elect", "x", "--metrics-file", "metrics", "--", "./program"]);
    let mut candidate = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut stderr = BufReader::new(candidate.stderr.take().unwrap());
    let line = line_with(&mut stderr, "campaigning again in 1s");
    assert!(line.contains("cannot run the command \"./program\""), "{line}");
    assert!(sandbox.read("metrics").contains("exit_code{lock=\"x\"} 127\n"), "{}", sandbox.read("metrics"));

    let mut other =
        sandbox.leasehold(["elect", "y", "--", "./program"]).stderr(Stdio::piped()).spawn().unwrap();
    let mut other_stderr = BufReader::new(other.stderr.take().unwrap());
    line_with(&mut other_stderr, "campaigning again in 1s");
    send(i32::try_from(other.id()).unwrap(), Signal::TERM);
    assert_eq!(Outcome::of(other.wait_with_output().unwrap()).code, 143);

    sandbox.write("program", "#!/bin/sh\necho leads\n");
    let mut stdout = BufReader::new(candidate.stdout.take().unwrap());
    let mut line = String::new();
    std::io::BufRead::read_line(&mut stdout, &mut line).unwrap();
    assert_eq!(line, "leads\n");
    candidate.kill().unwrap();
    candidate.wait().unwrap();
}

#[test]
fn a_sighup_that_the_command_handles_does_not_end_elect() {
    let sandbox = Sandbox::new();
    let script = "trap 'echo reloads' HUP; trap 'exit 7' TERM; echo leads
        until test -e end; do sleep 0.01; done; rm end";
    let mut candidate = sandbox.hold("elect x", script);
    candidate.signal(Signal::HUP);
    assert_eq!(candidate.line(), "reloads");
    sandbox.write("end", "");
    assert_eq!(candidate.line(), "leads", "it campaigns again");
    candidate.signal(Signal::TERM);
    candidate.end().expect(7);

    let candidate = sandbox.hold("elect x", "echo leads; while :; do sleep 0.01; done");
    candidate.signal(Signal::HUP);
    candidate.end().expect(129);
}

#[test]
fn a_candidate_that_gets_sigterm_leaves_nothing() {
    let sandbox = Sandbox::new();
    let leader = sandbox.hold("elect x --ttl 1h", &member("one"));
    let candidate = waiting(&sandbox, "elect x --ttl 1h", "echo leads > leads");
    let mut candidate = candidate.0;
    wait_until("it waits", || {
        sandbox.run("show x").stdout.contains("held") && candidate.try_wait().unwrap().is_none()
    });
    send(i32::try_from(candidate.id()).unwrap(), Signal::TERM);
    let ended = Outcome::of(candidate.wait_with_output().unwrap());
    assert!(ended.code == 143, "{ended:?}");
    leader.signal(Signal::TERM);
    leader.end().expect(7);
    sandbox.run("run -n x -- true").expect(0);
    assert_eq!(sandbox.read("leads"), "");
}

#[test]
fn observe_prints_no_control_characters() {
    let sandbox = Sandbox::new();
    let mut observer = observer(&sandbox, "elect x --observe");
    assert_eq!(observer.first, "no leader");
    let mut command = sandbox.leasehold([
        "elect",
        "x",
        "--value",
        "a\u{1b}[2J\u{202e}b",
        "--note",
        "serves",
        "--",
        "sh",
        "-c",
    ]);
    command.arg(member("one"));
    let leader = Holder::start(command);
    let line = observer.line();
    assert!(line.starts_with("tester@") && line.contains("\"serves\", term "), "{line}");
    assert!(line.ends_with("value a\u{fffd}[2J\u{fffd}b"), "{line}");
    assert!(!sandbox.run("show x").expect(0).stdout.contains('\u{1b}'));
    drop(leader);
}

#[test]
fn conflicting_arguments_are_usage_errors() {
    let sandbox = Sandbox::new();
    for line in [
        "elect x",
        "elect",
        "elect x --observe -- true",
        "elect x --observe --value v",
        "elect x --observe --ttl 1s",
        "elect x --observe --owner me",
        "elect x --on-exit wat -- true",
        "elect x -n -- true",
        "elect a//b -- true",
        "elect a//b --observe",
    ] {
        sandbox.run(line).expect(2);
    }
    let long = "v".repeat(1_025);
    let refused =
        Outcome::of(sandbox.leasehold(["elect", "x", "--value", &long, "--", "true"]).output().unwrap())
            .expect(2);
    assert!(refused.stderr.contains("1025 characters"), "{refused:?}");
    sandbox.run("-s nosuch://x elect x -- true").expect(125);
    sandbox.run("elect x -- no-such-command").expect(127);
}

#[test]
fn with_once_a_candidate_leads_and_an_observer_prints_once() {
    let sandbox = Sandbox::new();
    assert_eq!(sandbox.run("elect x --observe --once").expect(0).stdout, "no leader\n");
    let ended = sandbox.run_script("elect x --once", "echo led; exit 3").expect(3);
    assert_eq!(ended.stdout, "led\n");
    // Without --once, a candidate campaigns again after a loss, whatever --on-exit says.
    let holder = sandbox.hold("elect x --once --ttl 9s", "echo $LEASEHOLD_TOKEN; exec sleep 1000");
    let seen = json(&sandbox.run("elect x --observe --once --json").expect(0).stdout);
    assert_eq!(seen["term"].to_string(), holder.first);
    sandbox.run(&format!("evict x --token {}", holder.first)).expect(0);
    holder.end().expect(122);
    sandbox.run("elect x --once --on-exit exit -- true").expect(2);
}
