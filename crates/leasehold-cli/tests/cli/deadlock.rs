//! Runs that wait for each other.

use std::io::Write as _;
use std::process::Stdio;

use crate::support::{Holder, Sandbox, line_with, wait_until};

/// Starts a run that holds `outer`. Once it gets a line, it runs a command under `inner`.
pub(crate) fn nested(sandbox: &Sandbox, url: &str, outer: &str, inner: &str) -> Holder {
    let script = format!("echo ready; read line; \"$LEASEHOLD\" run {inner} -- echo got it");
    let mut command = sandbox.scripted(&format!("-s {url} run {outer}"), &script);
    command.stdin(Stdio::piped());
    Holder::start(command)
}

/// Two runs take two locks in opposite order. The one whose first lock has the higher token gives up, and the other
/// goes on. Which one that is depends on the clock of the store, which may be read in whole seconds.
pub(crate) fn opposite_orders(sandbox: &Sandbox, url: &str) {
    let mut first = nested(sandbox, url, "dead/a", "dead/b");
    let mut second = nested(sandbox, url, "dead/b", "dead/a");
    for holder in [&mut first, &mut second] {
        holder.process.stdin.take().unwrap().write_all(b"go\n").unwrap();
    }
    let mut ends = [first.end(), second.end()];
    ends.sort_by_key(|end| end.code);
    let [got_it, gave_up] = ends;
    let ended = gave_up.expect(120);
    for part in
        ["error: deadlock: ", " holds `dead/b` (token ", "waits for `dead/a`", " holds `dead/a` (token "]
    {
        assert!(ended.stderr.contains(part), "{part}: {ended:?}");
    }
    assert_eq!(got_it.expect(0).stdout, "got it\n");
}

#[test]
fn runs_in_opposite_order_end() {
    let sandbox = Sandbox::new();
    opposite_orders(&sandbox, "sqlite:locks.db");
}

#[test]
fn a_run_within_itself_fails_at_once() {
    let sandbox = Sandbox::new();
    let script = "\"$LEASEHOLD\" run x --report report.json -- true";
    let ended = sandbox.run_script("run x", script).expect(120);
    assert!(
        ended.stderr.contains("deadlock: the lock `x` is held by the `leasehold run` around"),
        "{ended:?}"
    );
    assert!(sandbox.read("report.json").contains("\"outcome\": \"deadlock\""));
}

/// These waits would not end: the outer run renews its lock until its command ends.
#[test]
fn a_wait_for_the_lock_of_an_outer_run_fails() {
    let sandbox = Sandbox::new();
    let ticket = sandbox.run("acquire t --ttl 60s").expect(0).stdout;
    let by_ticket = format!("--ticket={}", ticket.trim());
    for (outer, inner) in [
        (&*by_ticket, "run t -- true"),
        (&by_ticket, "run a t -- true"),
        (&by_ticket, "acquire t"),
        (&by_ticket, "wait t"),
        ("x --shared", "run x --exclusive -- true"),
        ("x --exclusive", "run x --shared -- true"),
        ("x --permits 1", "run x --permits 1 -- true"),
    ] {
        let ended =
            sandbox.run_script(&format!("run {outer}"), &format!("exec \"$LEASEHOLD\" {inner}")).expect(120);
        assert!(
            ended.stderr.contains("is held by the `leasehold run` around this command"),
            "{inner}: {ended:?}"
        );
    }
    // The same lock in another store is another lock.
    sandbox
        .run_script(&format!("run {by_ticket}"), "exec \"$LEASEHOLD\" -s sqlite:b run t -- true")
        .expect(0);
}

#[test]
fn a_lock_of_another_store_is_not_shown() {
    let sandbox = Sandbox::new();
    let mut first = nested(&sandbox, "sqlite:locks.db", "x", "-s sqlite:other.db x");
    let second = sandbox.hold("-s sqlite:other.db run x", "echo ready; while :; do sleep 0.05; done");
    first.process.stdin.take().unwrap().write_all(b"go\n").unwrap();
    let shown = || sandbox.run("-s sqlite:other.db show x").expect(0).stdout;
    wait_until("it waits", || shown().contains("waiter 1"));
    assert!(!shown().contains("holds"), "{}", shown());
    second.signal(rustix::process::Signal::TERM);
    second.end();
    first.end().expect(0);
}

#[test]
fn show_names_the_locks_that_a_waiter_holds() {
    let sandbox = Sandbox::new();
    let mut first = nested(&sandbox, "sqlite:locks.db", "a", "b");
    let second = sandbox.hold("-s sqlite:locks.db run b", "echo ready; while :; do sleep 0.05; done");
    first.process.stdin.take().unwrap().write_all(b"go\n").unwrap();
    let shown = || sandbox.run("-s sqlite:locks.db show b").expect(0).stdout;
    wait_until("it waits", || shown().contains("waiter 1"));
    assert!(
        shown().lines().any(|line| line.starts_with("waiter 1") && line.ends_with(", holds a")),
        "{}",
        shown()
    );
    let json = sandbox.run("-s sqlite:locks.db show b --json").expect(0).stdout;
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["waiters"][0]["holder"]["nested"]["holds"][0]["name"], "a");
    second.signal(rustix::process::Signal::TERM);
    second.end();
    first.end().expect(0);
}

#[test]
fn with_wait_a_deadlock_is_only_printed() {
    let sandbox = Sandbox::new();
    let url = "sqlite:locks.db";
    let mut first = nested(&sandbox, url, "a", "--on-deadlock wait b");
    let mut second = nested(&sandbox, url, "b", "--on-deadlock wait a");
    for holder in [&mut first, &mut second] {
        holder.process.stdin.take().unwrap().write_all(b"go\n").unwrap();
    }
    for holder in [&mut first, &mut second] {
        let mut stderr = std::io::BufReader::new(holder.process.stderr.take().unwrap());
        line_with(&mut stderr, "warning: deadlock: ");
    }
    for mut holder in [first, second] {
        holder.signal(rustix::process::Signal::TERM);
        holder.process.wait().unwrap();
    }
}

/// Others may release the lock of a ticket before the command ends, so its command is in no cycle.
#[test]
fn a_waiter_within_a_ticket_tells_of_no_hold() {
    let sandbox = Sandbox::new();
    let ticket = sandbox.run("acquire x --ttl 60s").expect(0).stdout;
    let holder = sandbox.hold("run y", "echo ready; while :; do sleep 0.05; done");
    let script = "echo ready; exec \"$LEASEHOLD\" run y -- echo \"$LEASEHOLD_HOLDS\"";
    let command = sandbox.scripted(&format!("run --ticket={}", ticket.trim()), script);
    let waiter = Holder::start(command);
    let shown = || sandbox.run("show y").expect(0).stdout;
    wait_until("it waits", || shown().contains("waiter 1"));
    assert!(!shown().contains("holds"), "{}", shown());
    holder.signal(rustix::process::Signal::TERM);
    holder.end();
    let held = waiter.end().expect(0).stdout;
    for part in ["\"lock\":\"x\"", "\"store\":\"sqlite:", "\"by_ticket\":true"] {
        assert!(held.contains(part), "{held}");
    }
}
