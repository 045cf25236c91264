//! Loss of the lock while the command runs (faults 10, 11, 15 and 37 in docs/evidence/faults.md).

use std::process::Stdio;

use rustix::process::Signal;
use serde_json::Value;

use crate::support::{Holder, Sandbox, is_alive, is_stopped, send, wait_for_file, wait_until};

/// A command that ignores SIGTERM, with a child that ignores it too, and a grandchild in another session.
const STUBBORN: &str = "trap '' TERM HUP INT; exec 0</dev/null
    sh -c 'trap \"\" TERM; echo $$ > second; sleep 1000' &
    setsid sh -c 'trap \"\" TERM; echo $$ > third; sleep 1000' &
    while ! [ -s second ] || ! [ -s third ]; do sleep 0.01; done
    echo $$; while :; do sleep 0.01; done";

/// The message for a lease that was not renewed, whether the command ended just before or just after the lease.
const NOT_RENEWED: &str = "was lost: its lease was not renewed in time";

fn processes(sandbox: &Sandbox, holder: &Holder) -> [String; 3] {
    [holder.first.clone(), sandbox.read("second").trim().to_owned(), sandbox.read("third").trim().to_owned()]
}

/// Starts a second `run`, which waits for the lock. When it holds the lock, it writes to the file `taken` which
/// processes of `pids` are alive.
fn successor(sandbox: &Sandbox, pids: &[String]) -> Holder {
    let check = format!(
        "for p in {}; do case $(cut -d' ' -f3 /proc/$p/stat 2>/dev/null) in ''|Z|X) ;; *) printf \"$p \";; esac; done > all
         echo \"alive: $(cat all)\" > taken.new; mv taken.new taken",
        pids.join(" ")
    );
    let mut command = sandbox.leasehold(["run", "x", "--", "sh", "-c", &check]);
    let mut process = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let stdout = std::io::BufReader::new(process.stdout.take().unwrap());
    Holder { process, stdout, first: String::new() }
}

#[test]
fn an_eviction_kills_all_processes_at_once_and_exits_122() {
    let sandbox = Sandbox::new();
    let script = format!("echo $LEASEHOLD_TOKEN > token; {STUBBORN}");
    let holder = sandbox.hold("run x --ttl 9s --report out.json", &script);
    let processes = processes(&sandbox, &holder);
    sandbox.run(&format!("evict x --reason stuck --token {}", sandbox.read("token").trim())).expect(0);
    let ended = holder.end().expect(122);
    for process in processes {
        assert!(!is_alive(&process), "{process}");
    }
    assert!(ended.stderr.contains(") was lost: it was evicted by tester@"), "{ended:?}");
    assert!(ended.stderr.contains(": stuck\n"), "{ended:?}");
    let report: Value = serde_json::from_str(&sandbox.read("out.json")).unwrap();
    assert_eq!((&report["outcome"], &report["exit_code"]), (&"lost".into(), &122.into()));
    assert_eq!(report["lost_reason"], "ended");
    assert_eq!(report["command_signal"], 9);
}

#[test]
fn a_loss_found_by_the_release_exits_122() {
    let sandbox = Sandbox::new();
    // The command ends before the next renewal can detect the eviction.
    let script = format!("{} evict x --token $LEASEHOLD_TOKEN", env!("CARGO_BIN_EXE_leasehold"));
    sandbox.run_script("run x --ttl 30s --report out.json", &script).expect(122);
    let report: Value = serde_json::from_str(&sandbox.read("out.json")).unwrap();
    assert_eq!((&report["outcome"], &report["lost_reason"]), (&"lost".into(), &"ended".into()));
    assert_eq!((&report["command_exit_code"], &report["released"]), (&0.into(), &false.into()));
}

#[test]
fn without_the_store_the_command_gets_sigterm_and_its_grace() {
    let sandbox = Sandbox::new();
    let script = "trap 'echo cleaned up; exit 0' TERM; echo ready; while :; do sleep 0.01; done";
    let mut holder = sandbox.hold("run x --ttl 12s --grace 6s --report out.json", script);
    let store = sandbox.cut_off();
    assert_eq!(holder.line(), "cleaned up");
    drop(store);
    // The command exits with 0, but its work was interrupted.
    let ended = holder.end().expect(122);
    assert!(ended.stderr.contains(NOT_RENEWED), "{ended:?}");
    let report: Value = serde_json::from_str(&sandbox.read("out.json")).unwrap();
    assert_eq!(report["command_exit_code"], 0);
}

#[test]
fn without_the_store_all_processes_die_before_the_next_grant() {
    let sandbox = Sandbox::new();
    let holder = sandbox.hold("run x --ttl 10s", STUBBORN);
    let processes = processes(&sandbox, &holder);
    let store = sandbox.cut_off();
    let mut successor = successor(&sandbox, &processes);
    wait_until("the command is killed", || !processes.iter().any(|pid| is_alive(pid)));
    // The command was killed by the local clock alone, because the store did not respond.
    drop(store);
    assert_eq!(wait_for_file(&sandbox.path("taken")), "alive: \n");
    holder.end().expect(122);
    successor.process.wait().unwrap();
}

#[test]
fn a_stopped_run_leaves_no_process_at_the_next_grant() {
    let sandbox = Sandbox::new();
    // The command has its own process group, so stopping leasehold does not stop it. A longer ttl gives the guardian
    // more time to be scheduled.
    let holder = sandbox.hold("run x --ttl 30s", STUBBORN);
    let processes = processes(&sandbox, &holder);
    holder.signal(Signal::STOP);
    wait_until("it is stopped", || is_stopped(holder.pid()));
    let successor = successor(&sandbox, &processes);
    assert_eq!(wait_for_file(&sandbox.path("taken")), "alive: \n");
    successor.end().expect(0);
    holder.signal(Signal::CONT);
    let ended = holder.end().expect(122);
    assert!(ended.stderr.contains(NOT_RENEWED), "{ended:?}");
}

#[test]
fn a_kill_by_the_guardian_before_the_lease_ends_is_a_loss() {
    let sandbox = Sandbox::new();
    let holder = sandbox.hold("run x --ttl 8s", "echo $$; exec sleep 1000");
    holder.signal(Signal::STOP);
    wait_until("the guardian kills the command", || !is_alive(&holder.first));
    holder.signal(Signal::CONT);
    let ended = holder.end().expect(122);
    assert!(ended.stderr.contains(NOT_RENEWED), "{ended:?}");
}

#[test]
fn a_stopped_command_is_killed_before_it_can_continue() {
    let sandbox = Sandbox::new();
    let script = "echo $$; while :; do if [ -e taken ]; then echo went on > late; fi; done";
    let holder = sandbox.hold("run x --ttl 10s", script);
    let child = holder.first.clone();
    let guardian = holder.guardian();
    for pid in [child.parse().unwrap(), guardian, holder.pid()] {
        send(pid, Signal::STOP);
        wait_until("it is stopped", || is_stopped(pid));
    }
    let successor = successor(&sandbox, &[]);
    wait_for_file(&sandbox.path("taken"));
    successor.end().expect(0);
    holder.signal(Signal::CONT);
    holder.end().expect(122);
    assert!(!is_alive(&child));
    wait_until("nothing of the run is left", || !is_alive(&guardian.to_string()));
    assert_eq!(sandbox.read("late"), "");
}

#[test]
fn a_hanging_release_ends_with_the_lease() {
    let sandbox = Sandbox::new();
    let mut command = sandbox.scripted("run x --ttl 8s --grace 100ms", "echo ready; cat");
    command.stdin(Stdio::piped());
    let mut holder = Holder::start(command);
    let _store = sandbox.cut_off();
    drop(holder.process.stdin.take());
    // The timeout of the store is ten seconds and has another message. The library and the command both give up at the
    // end of the lease, and either may be first.
    let ended = holder.end().expect(0);
    let messages = ["no response to the release within", "the store did not respond before the lease ended"];
    let messages = messages
        .map(|reason| format!("the lock was not released and stays held until its lease ends: {reason}"));
    assert!(messages.iter().any(|reason| ended.stderr.contains(reason)), "{ended:?}");
}

#[test]
fn a_hanging_release_is_announced() {
    let sandbox = Sandbox::new();
    let mut command = sandbox.scripted("run x -v --ttl 1h", "echo ready; cat");
    command.stdin(Stdio::piped());
    let mut holder = Holder::start(command);
    let store = sandbox.cut_off();
    drop(holder.process.stdin.take());
    let mut stderr = std::io::BufReader::new(holder.process.stderr.take().unwrap());
    let line = crate::support::line_with(&mut stderr, "Waiting for");
    assert_eq!(line, "     Waiting for the release of x: no response from the store for 2s\n");
    // The log must not fill the pipe.
    std::thread::spawn(move || std::io::copy(&mut stderr, &mut std::io::sink()));
    drop(store);
    assert!(holder.process.wait().unwrap().success());

    // Without -v and without a terminal, only the failure is reported.
    let mut command = sandbox.scripted("run x --ttl 1h --store-timeout 3s", "echo ready; cat");
    command.stdin(Stdio::piped());
    let mut holder = Holder::start(command);
    let _store = sandbox.cut_off();
    drop(holder.process.stdin.take());
    let ended = holder.end();
    assert!(ended.stderr.contains("not released") && !ended.stderr.contains("Waiting for"), "{ended:?}");
}

#[test]
fn an_unnoticed_loss_is_reported_when_the_command_ends() {
    let sandbox = Sandbox::new();
    // With --on-lost none, leasehold does not stop the command. Even so, its success must not be reported.
    let mut command = sandbox.scripted("run x --ttl 1s --on-lost none", "echo $LEASEHOLD_TOKEN; cat");
    command.stdin(Stdio::piped());
    let mut holder = Holder::start(command);
    holder.signal(Signal::STOP);
    wait_until("it is stopped", || is_stopped(holder.pid()));
    // Another process takes over, so the lease has ended for the holder too.
    sandbox.run("run x -- true").expect(0);
    drop(holder.process.stdin.take());
    holder.signal(Signal::CONT);
    holder.end().expect(122);
}
