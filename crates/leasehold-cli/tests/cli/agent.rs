//! `leasehold agent`: the protocol, its limits, and the end of the host or the agent. The tests of the Python client
//! cover it too.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::{Sandbox, is_alive, send, wait_until};

/// An agent and its pipes. Killed when dropped.
struct Agent {
    process: Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
    last: u64,
}

impl Agent {
    fn start(sandbox: &Sandbox) -> Self {
        Self::start_with(sandbox, &[])
    }

    fn start_with(sandbox: &Sandbox, options: &[&str]) -> Self {
        let mut command = sandbox.leasehold(["agent"].iter().chain(options));
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let stdout = BufReader::new(process.stdout.take().unwrap());
        Self { stdin: process.stdin.take(), stdout, process, last: 0 }
    }

    /// Starts an agent whose host is this process.
    fn greeted(sandbox: &Sandbox) -> Self {
        Self::start(sandbox).greet()
    }

    /// Says that this process is the host.
    fn greet(mut self) -> Self {
        let hello = self.ask(json!({ "op": "hello", "protocol": 1, "pid": std::process::id() }));
        assert_eq!((&hello["ev"], &hello["protocol"]), (&json!("hello"), &json!(1)), "{hello}");
        self
    }

    fn write(&mut self, line: &[u8]) {
        let stdin = self.stdin.as_mut().unwrap();
        match stdin.write_all(line).and_then(|()| stdin.write_all(b"\n")) {
            // An agent that ends because of a line does not read all of it, so a write may fail. Tests read its
            // messages and its exit code.
            Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => {}
            written => written.unwrap(),
        }
    }

    /// Sends a request and returns its id.
    fn send(&mut self, mut request: Value) -> u64 {
        self.last += 1;
        request["id"] = self.last.into();
        self.write(request.to_string().as_bytes());
        self.last
    }

    /// Returns the next message, or null at the end of the file.
    fn read(&mut self) -> Value {
        let mut line = String::new();
        match self.stdout.read_line(&mut line).unwrap() {
            0 => Value::Null,
            _ => serde_json::from_str(&line).unwrap(),
        }
    }

    /// Waits for a message whose field `key` is `number`: the id of a request or the number of a hold.
    fn await_for(&mut self, key: &str, number: u64) -> Value {
        loop {
            let message = self.read();
            assert!(!message.is_null(), "the agent has ended");
            if message[key] == number {
                return message;
            }
        }
    }

    fn ask(&mut self, request: Value) -> Value {
        let id = self.send(request);
        self.await_for("id", id)
    }

    fn hold(&mut self, lock: &str) -> u64 {
        let held = self.ask(json!({ "op": "acquire", "lock": lock, "wait_ms": 60_000 }));
        assert_eq!(held["ev"], "held", "{held}");
        held["hold"].as_u64().unwrap()
    }

    /// Closes stdin and returns the exit code.
    fn end(mut self) -> i32 {
        drop(self.stdin.take());
        self.process.wait().unwrap().code().unwrap()
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A process for which an agent works. Killed when dropped.
struct Host(Child);

impl Host {
    fn start() -> Self {
        Self(std::process::Command::new("sleep").arg("1000").spawn().unwrap())
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[track_caller]
fn assert_error(answer: &Value, kind: &str, text: &str) {
    assert_eq!((&answer["ev"], &answer["kind"]), (&json!("error"), &json!(kind)), "{answer}");
    assert!(answer["message"].as_str().unwrap().contains(text), "{answer}");
}

#[test]
fn a_lock_is_held_renewed_and_released() {
    let sandbox = Sandbox::new();
    let mut agent = Agent::greeted(&sandbox);
    let held = agent.ask(json!({ "op": "acquire", "lock": "deploy/prod", "ttl_ms": 6_000 }));
    assert!(held["token"].as_u64().unwrap() > 0, "{held}");
    let span = held["span_us"].as_u64().unwrap();
    assert!((1..6_000_000).contains(&span), "shorter than the ttl: {held}");
    let renewed = agent.await_for("hold", 1);
    assert_eq!(renewed["ev"], "renewed");
    assert!(renewed["boot_us"].as_u64() > held["boot_us"].as_u64(), "{held} {renewed}");
    let confirmed = agent.ask(json!({ "op": "renew", "hold": 1 }));
    assert!(confirmed["boot_us"].as_u64() > renewed["boot_us"].as_u64(), "{confirmed}");
    assert_eq!(agent.ask(json!({ "op": "release", "hold": 1 }))["was_held"], true);
    assert_eq!(agent.ask(json!({ "op": "release", "hold": 1 }))["was_held"], false);
    assert_error(&agent.ask(json!({ "op": "renew", "hold": 1 })), "lost", "has ended");
    assert_error(&agent.ask(json!({ "op": "release", "hold": 2 })), "invalid", "no hold 2");
    assert_eq!(agent.end(), 0);
}

#[test]
fn a_deadline_says_whether_it_is_the_limit_of_the_hold() {
    let sandbox = Sandbox::new();
    let mut agent = Agent::greeted(&sandbox);
    let acquire = |lock: &str, ttl: u64, limit: u64| json!({ "op": "try", "lock": lock, "ttl_ms": ttl, "max_hold_ms": limit });
    let held = agent.ask(acquire("short", 60_000, 30_000));
    assert_eq!(held["at_limit"], true, "{held}");
    assert_eq!(agent.ask(json!({ "op": "renew", "hold": 1 }))["at_limit"], true);
    assert_eq!(agent.ask(acquire("long", 6_000, 60_000))["at_limit"], Value::Null);
    assert_eq!(agent.ask(json!({ "op": "renew", "hold": 2 }))["at_limit"], Value::Null);
    let held = agent.ask(acquire("renewed", 1_000, 1_500));
    assert_eq!((&held["ev"], &held["at_limit"]), (&json!("held"), &Value::Null), "{held}");
    loop {
        let renewed = agent.await_for("hold", 3);
        assert_eq!(renewed["ev"], "renewed", "lost before the limit was shown: {renewed}");
        if renewed["at_limit"] == true {
            break;
        }
    }
}

#[test]
fn requests_without_a_store_use_the_store_option() {
    let sandbox = Sandbox::new();
    let mut agent = Agent::start_with(&sandbox, &["-s", "sqlite:other.db"]).greet();
    agent.hold("x");
    sandbox.run("-s sqlite:other.db run -n x -- true").expect(123);
    sandbox.run("run -n x -- true").expect(0);
    let elsewhere = agent.ask(json!({ "op": "try", "lock": "x", "store": "mem:" }));
    assert_eq!(elsewhere["ev"], "held", "{elsewhere}");
}

#[test]
fn an_eviction_is_reported_and_ends_the_hold() {
    let sandbox = Sandbox::new();
    let mut agent = Agent::greeted(&sandbox);
    let held = agent.ask(json!({ "op": "try", "lock": "x", "ttl_ms": 6_000 }));
    let evicted = agent.ask(json!({ "op": "evict", "lock": "x", "token": held["token"] }));
    assert_eq!(evicted["was_held"], true, "{evicted}");
    loop {
        let news = agent.await_for("hold", 1);
        if news["ev"] == "lost" {
            assert_eq!(news["reason"], "ended", "{news}");
            break;
        }
    }
    assert_eq!(agent.ask(json!({ "op": "release", "hold": 1 }))["was_held"], false);
}

#[test]
fn a_waiting_request_reports_its_holder_and_is_cancelled() {
    let sandbox = Sandbox::new();
    let (mut holder, mut waiter) = (Agent::greeted(&sandbox), Agent::greeted(&sandbox));
    holder.hold("x");
    let waits = waiter.send(json!({ "op": "acquire", "lock": "x", "report_waiting": true }));
    let waiting = waiter.await_for("id", waits);
    assert_eq!(waiting["held_by"]["holder"]["pid"], holder.process.id(), "{waiting}");
    let mut next = Agent::greeted(&sandbox);
    let waits_next = next.send(json!({ "op": "acquire", "lock": "x", "report_waiting": true }));
    let told = next.await_for("id", waits_next);
    assert_eq!(
        (&told["held_by"]["ahead"], &told["held_by"]["waiter_ahead"]["pid"]),
        (&json!(1), &json!(waiter.process.id()))
    );
    let cancel = waiter.send(json!({ "op": "cancel", "request": waits }));
    assert_error(&waiter.await_for("id", waits), "cancelled", "");
    assert_eq!(waiter.await_for("id", cancel)["ev"], "done");
    assert_error(&waiter.ask(json!({ "op": "acquire", "lock": "x", "wait_ms": 5_000 })), "held", "held by");
    let look = |lock: &str| json!({ "op": "wait_free", "lock": lock, "wait_ms": 0 });
    assert_error(&waiter.ask(look("x")), "held", "still held");
    assert_eq!(waiter.ask(look("y"))["ev"], "done");
}

#[test]
fn the_first_request_is_hello_in_a_known_protocol() {
    let sandbox = Sandbox::new();
    for (request, kind) in [
        (json!({ "op": "status", "lock": "x" }), "invalid"),
        (json!({ "op": "hello", "pid": 1 }), "invalid"),
        (json!({ "op": "hello", "protocol": 1 }), "invalid"),
        (json!({ "op": "hello", "protocol": 1, "pid": 0 }), "invalid"),
        (json!({ "op": "hello", "protocol": 1, "pid": 1, "x": 1 }), "invalid"),
        (json!({ "op": "hello", "protocol": 2, "pid": 1 }), "unsupported"),
    ] {
        let mut agent = Agent::start(&sandbox);
        assert_error(&agent.ask(request), kind, "");
        assert_eq!(agent.read(), Value::Null);
        assert_eq!(agent.process.wait().unwrap().code(), Some(2));
    }
}

#[test]
fn an_invalid_line_ends_the_agent_and_its_holds() {
    let sandbox = Sandbox::new();
    let long = format!(r#"{{"id":9,"op":"status","lock":"{}"}}"#, "x".repeat(1 << 20));
    for line in ["hunter2", "[]", "7", r#"{"op":"status"}"#, r#"{"id":"hunter2"}"#, "\u{0}", &long] {
        let mut agent = Agent::greeted(&sandbox);
        agent.hold("x");
        agent.write(line.as_bytes());
        let refused = agent.read();
        assert!(refused["id"].is_null() && !refused.to_string().contains("hunter2"), "{refused}");
        assert_error(&refused, "invalid", "the agent stops");
        assert_eq!(agent.read(), Value::Null);
        assert_eq!(agent.process.wait().unwrap().code(), Some(2));
        sandbox.run("run -n x -- true").expect(0);
    }
}

#[test]
fn the_id_of_a_pending_request_is_not_used_again() {
    let sandbox = Sandbox::new();
    let mut agent = Agent::greeted(&sandbox);
    agent.hold("x");
    agent.write(br#"{"id":7,"op":"acquire","lock":"x"}"#);
    agent.write(br#"{"id":7,"op":"status","lock":"x"}"#);
    assert_error(&agent.read(), "invalid", "pending");
    assert_eq!(agent.process.wait().unwrap().code(), Some(2));
}

#[test]
fn bad_requests_are_refused_without_their_values() {
    let sandbox = Sandbox::new();
    let mut agent = Agent::greeted(&sandbox);
    for (request, text) in [
        (json!({ "op": "destroy" }), "no operation `destroy`"),
        (json!({ "op": 7 }), "`op`"),
        (json!({}), "`op` is missing"),
        (json!({ "op": "acquire" }), "`lock` is missing"),
        (json!({ "op": "acquire", "lock": "a//b" }), "a//b"),
        (json!({ "op": "acquire", "lock": "x", "ttl": 5 }), "no field `ttl`"),
        (json!({ "op": "acquire", "lock": "x", "ttl_ms": 499 }), "`ttl` is not from 500ms to "),
        (json!({ "op": "acquire", "lock": "x", "ttl_ms": "hunter2" }), "`ttl_ms` is not a number"),
        (json!({ "op": "acquire", "lock": "x", "mode": "hunter2" }), "`mode`"),
        (json!({ "op": "acquire", "lock": "x", "mode": "permit" }), "`permits` is missing"),
        (json!({ "op": "acquire", "lock": "x", "mode": "permit", "permits": 65 }), "64"),
        (json!({ "op": "acquire", "lock": "x", "permits": 2 }), "no field `permits`"),
        (json!({ "op": "try", "lock": "x", "wait_ms": 5 }), "no field `wait_ms`"),
        (json!({ "op": "once", "lock": "x" }), "`period_ms` is missing"),
        (json!({ "op": "acquire", "lock": "x", "store": "" }), "`store` is empty"),
        (json!({ "op": "acquire", "lock": "x", "store": "ftp://u:hunter2@h/p" }), "ftp"),
        (json!({ "op": "acquire", "lock": "x", "store": "x".repeat(9_000) }), "`store` is longer"),
        (json!({ "op": "release_ticket", "ticket": "lh2_hunter2" }), "not a ticket"),
        (json!({ "op": "evict", "lock": "x", "token": "7" }), "`token` is not an integer"),
        (json!({ "op": "evict", "lock": "x", "token": -7 }), "`token` is not an integer"),
        (json!({ "op": "put", "object": "s3://b/k", "fence": 7, "content": "!" }), "`content` is not base64"),
        (json!({ "op": "answer", "request": 3, "content": null }), "is not waiting"),
        (json!({ "op": "hello", "protocol": 1, "pid": 1 }), "first request"),
    ] {
        let answer = agent.ask(request.clone());
        assert!(!answer.to_string().contains("hunter2"), "{answer}");
        let kind = if text == "ftp" { answer["kind"].as_str().unwrap().to_owned() } else { "invalid".into() };
        assert_error(&answer, &kind, text);
    }
    agent.hold("x");
}

#[test]
fn signals_do_not_end_the_agent_while_its_host_lives() {
    let sandbox = Sandbox::new();
    let mut agent = Agent::greeted(&sandbox);
    agent.hold("x");
    let pid = i32::try_from(agent.process.id()).unwrap();
    let session = rustix::process::getsid(rustix::process::Pid::from_raw(pid)).unwrap();
    assert_eq!(session.as_raw_pid(), pid, "Ctrl-C is for the host, which ends the agent");
    for signal in [Signal::INT, Signal::TERM, Signal::HUP] {
        send(pid, signal);
    }
    assert_eq!(agent.ask(json!({ "op": "release", "hold": 1 }))["was_held"], true);
    assert_eq!(agent.end(), 0);
}

#[test]
fn the_end_of_stdin_releases_all_locks_and_withdraws_requests() {
    let sandbox = Sandbox::new();
    let mut agent = Agent::greeted(&sandbox);
    for lock in ["a", "b", "c"] {
        agent.hold(lock);
    }
    agent.send(json!({ "op": "acquire", "lock": "a" }));
    assert_eq!(agent.end(), 0);
    for lock in ["a", "b", "c"] {
        sandbox.run(&format!("run -n {lock} -- true")).expect(0);
    }
}

#[test]
fn the_end_of_the_host_ends_the_agent() {
    let sandbox = Sandbox::new();
    let mut host = Host::start();
    let mut agent = Agent::start(&sandbox);
    agent.ask(json!({ "op": "hello", "protocol": 1, "pid": host.0.id() }));
    agent.hold("x");
    host.0.kill().unwrap();
    // The host has not been reaped yet, and stdin is still open.
    assert_eq!(agent.process.wait().unwrap().code(), Some(0));
    drop(host);
    sandbox.run("run -n x -- true").expect(0);
}

#[test]
fn a_killed_agents_lock_is_not_granted_while_its_host_lives() {
    let sandbox = Sandbox::new();
    let host = Host::start();
    let mut agent = Agent::start(&sandbox);
    agent.ask(json!({ "op": "hello", "protocol": 1, "pid": host.0.id() }));
    let held = agent.ask(json!({ "op": "acquire", "lock": "x", "ttl_ms": 3_600_000 }));
    assert_eq!(held["ev"], "held", "{held}");
    agent.process.kill().unwrap();
    agent.process.wait().unwrap();
    // The host may still be in a step that it began after a check of the lock.
    sandbox.run("run -n x -- true").expect(123);
    drop(host);
    sandbox.run("run --wait 1m x -- true").expect(0);
}

#[test]
fn a_host_that_does_not_read_keeps_its_locks() {
    let sandbox = Sandbox::new();
    let mut agent = Agent::greeted(&sandbox);
    agent.hold("x");
    // Cause more responses than the pipe and the queues can hold.
    for _ in 0..2_000 {
        agent.send(json!({ "op": "status", "lock": "x", "store": "mem:" }));
    }
    let release = agent.send(json!({ "op": "release", "hold": 1 }));
    // The release is carried out although nothing has been read.
    wait_until("the lock is free", || sandbox.run("run -n x -- true").code == 0);
    assert_eq!(agent.await_for("id", release)["was_held"], true);
    assert_eq!(agent.end(), 0);
}

#[test]
fn the_end_of_a_host_is_noticed_while_output_is_unread() {
    let sandbox = Sandbox::new();
    let mut host = Host::start();
    let mut agent = Agent::start(&sandbox);
    agent.ask(json!({ "op": "hello", "protocol": 1, "pid": host.0.id() }));
    agent.hold("x");
    for _ in 0..2_000 {
        agent.send(json!({ "op": "status", "lock": "x", "store": "mem:" }));
    }
    host.0.kill().unwrap();
    // This process has both pipes open, as a child of the host may have.
    assert_eq!(agent.process.wait().unwrap().code(), Some(0));
    drop(host);
    sandbox.run("run -n x -- true").expect(0);
}

#[test]
fn thousands_of_locks_are_held_over_one_pipe() {
    const LOCKS: u64 = 3_000;
    let sandbox = Sandbox::new();
    let mut agent = Agent::greeted(&sandbox);
    for n in 0..LOCKS {
        agent.send(json!({ "op": "acquire", "store": "mem:", "lock": format!("x{n}"), "ttl_ms": 600_000 }));
    }
    let mut holds = std::collections::BTreeSet::new();
    for _ in 0..LOCKS {
        let held = agent.read();
        assert!(held["ev"] == "held" && holds.insert(held["hold"].as_u64().unwrap()), "{held}");
    }
    for hold in holds {
        assert_eq!(agent.ask(json!({ "op": "release", "hold": hold }))["was_held"], true);
    }
    assert_eq!(agent.end(), 0);
}

#[test]
fn a_lock_is_passed_on_as_a_ticket() {
    let sandbox = Sandbox::new();
    let mut agent = Agent::greeted(&sandbox);
    let hold = agent.hold("x");
    let ticket = agent.ask(json!({ "op": "ticket", "hold": hold }))["ticket"].clone();
    assert!(agent.ask(json!({ "op": "renew_ticket", "ticket": ticket }))["remaining_ms"].as_u64() > Some(0));
    let resumed = agent.ask(json!({ "op": "resume", "ticket": ticket }));
    assert_eq!(resumed["ev"], "held", "{resumed}");
    assert_eq!(agent.ask(json!({ "op": "release", "hold": resumed["hold"] }))["was_held"], true);
    assert_eq!(agent.ask(json!({ "op": "release_ticket", "ticket": ticket }))["was_held"], false);
}

#[test]
fn the_agent_leaves_no_process_behind() {
    let sandbox = Sandbox::new();
    let mut agent = Agent::greeted(&sandbox);
    agent.hold("x");
    let pid = agent.process.id().to_string();
    drop(agent);
    assert!(!is_alive(&pid));
}

#[test]
fn the_agent_holds_several_locks_together() {
    let sandbox = Sandbox::new();
    let mut agent = Agent::greeted(&sandbox);
    let held = agent.ask(json!({ "op": "acquire", "locks": ["b", "a"] }));
    assert_eq!((&held["ev"], &held["lock"], &held["token"]), (&json!("held"), &json!("a"), &Value::Null));
    assert_eq!(held["locks"], json!(["a", "b"]));
    for lock in ["a", "b"] {
        let status = agent.ask(json!({ "op": "status", "lock": lock }));
        assert_eq!(held["tokens"][lock], status["token"], "{held}");
        assert_eq!(agent.ask(json!({ "op": "try", "lock": lock }))["kind"], "held");
    }
    let refused = agent.ask(json!({ "op": "try", "locks": ["b", "c"] }));
    assert!(refused["message"].as_str().unwrap().contains("`b` is held"), "{refused}");
    assert_eq!(agent.ask(json!({ "op": "status", "lock": "c" }))["state"], "free");
    let ticket = agent.ask(json!({ "op": "ticket", "hold": held["hold"] }));
    assert_eq!(ticket["tokens"], held["tokens"]);
    let released = agent.ask(json!({ "op": "release_ticket", "ticket": ticket["ticket"] }));
    assert_eq!(released["was_held"], true);
    for wrong in [
        json!({ "op": "acquire", "lock": "a", "locks": ["b"] }),
        json!({ "op": "acquire", "locks": "a" }),
        json!({ "op": "acquire", "locks": [] }),
        json!({ "op": "acquire", "locks": ["a", 7] }),
        json!({ "op": "acquire", "locks": ["a", "a"] }),
        json!({ "op": "acquire", "locks": ["a", "b"], "mode": "shared" }),
        json!({ "op": "once", "locks": ["a", "b"], "period_ms": 1_000 }),
    ] {
        assert_eq!(agent.ask(wrong.clone())["kind"], "invalid", "{wrong}");
    }
    let one = agent.ask(json!({ "op": "acquire", "locks": ["a"] }));
    assert_eq!(one["tokens"]["a"], one["token"]);
}

#[test]
fn the_agent_tells_both_numbers_of_permits_and_changes_that_of_the_store() {
    let sandbox = Sandbox::new();
    let mut agent = Agent::greeted(&sandbox);
    let permit =
        |permits: u64| json!({ "op": "try", "lock": "render", "mode": "permit", "permits": permits });
    let held = agent.ask(permit(2));
    let refused = agent.ask(permit(3));
    assert_eq!(
        (&refused["kind"], &refused["sizes"]),
        (&json!("invalid"), &json!({ "asked": 3, "stored": 2 }))
    );
    let resize = json!({ "op": "resize", "lock": "render", "mode": "permit", "permits": 3 });
    assert_eq!(agent.ask(resize.clone())["kind"], "held");
    agent.ask(json!({ "op": "release", "hold": held["hold"] }));
    let resized = agent.ask(resize);
    assert_eq!((&resized["ev"], &resized["before"]), (&json!("resized"), &json!(2)));
    assert_eq!(agent.ask(permit(3))["ev"], "held");
    let reader = json!({ "op": "try", "lock": "index", "mode": "shared", "readers": 12 });
    assert_eq!(agent.ask(reader)["ev"], "held");
    let writer = agent.ask(json!({ "op": "try", "lock": "index", "mode": "exclusive" }));
    assert_eq!(writer["sizes"], json!({ "asked": 8, "stored": 12 }));
    for wrong in
        [json!({ "op": "resize", "lock": "x" }), json!({ "op": "resize", "lock": "x", "mode": "permit" })]
    {
        assert_eq!(agent.ask(wrong.clone())["kind"], "invalid", "{wrong}");
    }
}
