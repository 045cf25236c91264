//! Tests on a terminal, with script(1) from util-linux. The command is in our process group and reads the terminal.
#![cfg(target_os = "linux")]

use std::io::Write as _;
use std::process::{Command, Stdio};

use rustix::process::Signal;

use crate::support::{Holder, Sandbox, is_alive, send, wait_until};

/// Runs `line` in a shell on a new terminal. The stdin of the returned process is the keyboard of the terminal.
fn on_terminal(sandbox: &Sandbox, line: &str) -> Holder {
    let ours = sandbox.leasehold([""; 0]);
    let mut command = Command::new("script");
    command.args(["--quiet", "--return", "--command", line, "/dev/null"]).current_dir(sandbox.path(""));
    command.env("LEASEHOLD", ours.get_program()).stdin(Stdio::piped());
    command.env("XDG_STATE_HOME", sandbox.path("state")).env("XDG_CONFIG_HOME", sandbox.path("config"));
    command.env("SHELL", "/bin/sh").env("TERM", "xterm");
    Holder::start(command)
}

fn type_in(holder: &mut Holder, text: &str) {
    holder.process.stdin.as_mut().unwrap().write_all(text.as_bytes()).unwrap();
}

#[test]
fn the_command_reads_the_terminal() {
    let sandbox = Sandbox::new();
    let line =
        "\"$LEASEHOLD\" run x -- sh -c 'echo ready; read word < /dev/tty; echo got $word'; echo code $?";
    let mut holder = on_terminal(&sandbox, line);
    type_in(&mut holder, "hello\n");
    let ended = holder.end().expect(0);
    assert!(ended.stdout.contains("got hello") && ended.stdout.contains("code 0"), "{ended:?}");
}

#[test]
fn ctrl_c_reaches_the_command() {
    let sandbox = Sandbox::new();
    let script = "trap \"echo interrupted\" INT; echo ready
        while ! [ -e done ]; do sleep 0.01; done; exit 4";
    let line = format!("\"$LEASEHOLD\" run x -- sh -c '{script}'; echo code $?");
    let mut holder = on_terminal(&sandbox, &line);
    type_in(&mut holder, "\u{3}");
    let mut line = holder.line();
    while !line.contains("interrupted") {
        line = holder.line();
    }
    sandbox.write("done", "");
    holder.end();
}

#[test]
fn an_interrupt_from_the_terminal_is_not_forwarded_again() {
    let sandbox = Sandbox::new();
    let script = "trap \"echo interrupted\" INT; trap \"exit 4\" USR1; echo ready
        kill -INT $PPID; kill -USR1 $PPID; while :; do sleep 0.01; done";
    let holder = on_terminal(&sandbox, &format!("\"$LEASEHOLD\" run x -- sh -c '{script}'; echo code $?"));
    let ended = holder.end();
    assert!(ended.stdout.contains("code 4") && !ended.stdout.contains("interrupted"), "{ended:?}");
}

#[test]
fn a_loss_kills_only_the_command_in_a_shared_group() {
    let sandbox = Sandbox::new();
    let script = "trap \"\" TERM INT HUP; sleep 1000 & echo $! > second; setsid sleep 1000 & echo $! > third
        echo $$ > first; echo $LEASEHOLD_TOKEN; while :; do sleep 0.01; done";
    let mut holder =
        on_terminal(&sandbox, &format!("\"$LEASEHOLD\" run x --ttl 9s -- sh -c '{script}'; echo code $?"));
    sandbox.run(&format!("evict x --token {}", holder.first)).expect(0);
    let mut line = holder.line();
    while !line.contains("code") {
        line = holder.line();
    }
    assert_eq!(line, "code 122");
    for file in ["first", "second", "third"] {
        assert!(!is_alive(sandbox.read(file).trim()), "{file}");
    }
    holder.end().expect(0);
}

#[test]
fn processes_left_by_a_command_end_before_leasehold() {
    let sandbox = Sandbox::new();
    let script = "sleep 1000 & echo $! > left; echo ready";
    let after = "kill -0 $(cat left) 2> /dev/null && echo it lives; echo over";
    let holder = on_terminal(&sandbox, &format!("\"$LEASEHOLD\" run x -- sh -c '{script}'; {after}"));
    let ended = holder.end();
    assert!(ended.stdout.contains("over") && !ended.stdout.contains("it lives"), "{ended:?}");
}

#[test]
fn a_command_in_a_pipeline_reads_the_terminal_too() {
    let sandbox = Sandbox::new();
    let script = "cat; echo ready; read word < /dev/tty; echo got $word";
    let line = format!("echo data | \"$LEASEHOLD\" run x -- sh -c '{script}'; echo code $?");
    let mut holder = on_terminal(&sandbox, &line);
    assert_eq!(holder.first, "data");
    type_in(&mut holder, "hello\n");
    let ended = holder.end().expect(0);
    assert!(ended.stdout.contains("got hello") && ended.stdout.contains("code 0"), "{ended:?}");
}

#[test]
fn only_the_command_dies_with_leasehold_in_a_shared_group() {
    let sandbox = Sandbox::new();
    let script = "sleep 1000 & echo $! > second; setsid sleep 1000 & echo $! > third
        echo $PPID; while :; do sleep 0.01; done";
    let line = format!("sleep 1000 & \"$LEASEHOLD\" run x -- sh -c '{script}'; kill $! && echo others live");
    let holder = on_terminal(&sandbox, &line);
    send(holder.first.parse().unwrap(), Signal::KILL);
    for file in ["second", "third"] {
        wait_until("it dies", || !is_alive(sandbox.read(file).trim()));
    }
    let ended = holder.end();
    assert!(ended.stdout.contains("others live"), "{ended:?}");
}
