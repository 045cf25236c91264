//! How leasehold ends by a signal. A shell script stops after Ctrl-C only if the program that it runs is killed by
//! SIGINT.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Command, Stdio};

use rustix::process::Signal;

use crate::support::{Holder, Outcome, Sandbox, as_process_1, send};

const ENDING: [Signal; 4] = [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT];

#[test]
fn leasehold_is_killed_by_the_signal_that_kills_its_command() {
    let sandbox = Sandbox::new();
    for words in ["run x", "once x --per 1h", "elect x"] {
        for signal in ENDING {
            let holder = sandbox.hold(words, "echo ready; exec sleep 1000");
            holder.signal(signal);
            let ended = holder.end();
            assert_eq!(ended.signal, Some(signal.as_raw()), "{words}: {ended:?}");
        }
    }
    let mut ticket = sandbox.run("acquire x --ttl 1h").expect(0).stdout;
    ticket.insert_str(0, "run --ticket=");
    let ended = sandbox.run_script(&ticket, "kill -INT $$");
    assert_eq!(ended.signal, Some(2), "{ended:?}");
}

#[test]
fn leasehold_is_killed_by_the_signal_that_ends_its_wait() {
    let sandbox = Sandbox::new();
    let _holder = sandbox.hold("run x", "echo ready; exec sleep 1000");
    for words in ["run x -- true", "once x --per 1h -- true", "elect x -- true", "acquire x"] {
        for signal in ENDING {
            let mut waiter = sandbox.leasehold(words.split_whitespace());
            let mut waiter = waiter.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
            let mut line = String::new();
            BufReader::new(waiter.stderr.as_mut().unwrap()).read_line(&mut line).unwrap();
            assert!(line.contains("Waiting"), "{line}");
            send(i32::try_from(waiter.id()).unwrap(), signal);
            let ended = Outcome::of(waiter.wait_with_output().unwrap());
            assert_eq!(ended.signal, Some(signal.as_raw()), "{words}: {ended:?}");
        }
    }
}

#[test]
fn a_command_that_handles_a_signal_keeps_its_exit_code() {
    let sandbox = Sandbox::new();
    let holder = sandbox.hold("run x", "trap 'exit 130' INT; echo ready; while :; do sleep 0.01; done");
    holder.signal(Signal::INT);
    let ended = holder.end().expect(130);
    assert_eq!(ended.signal, None);
    let ended = sandbox.run_script("run x", "kill -KILL $$").expect(137);
    assert_eq!(ended.signal, None);
}

/// Signals that a process sends to itself do not end process 1.
#[test]
fn process_1_exits_with_128_plus_the_signal() {
    let sandbox = Sandbox::new();
    for (name, code) in [("INT", 130), ("TERM", 143), ("HUP", 129), ("QUIT", 131)] {
        let Some(mut command) = as_process_1(&sandbox.scripted("run x", &format!("kill -{name} $$"))) else {
            return;
        };
        let ended = Outcome::of(command.output().unwrap()).expect(code);
        assert_eq!(ended.signal, None, "{ended:?}");
    }
}

/// Runs `script`, whose first step prints `ready`, with bash on a terminal. Types Ctrl-C in its first step, and returns
/// what follows.
fn interrupted(sandbox: &Sandbox, script: &str) -> String {
    sandbox.write("script", script);
    let mut command = Command::new("script");
    command.args([
        "--quiet",
        "--return",
        "--command",
        "trap : INT; bash script; echo script: $?",
        "/dev/null",
    ]);
    command.current_dir(sandbox.path("")).stdin(Stdio::piped());
    command.env("LEASEHOLD", sandbox.leasehold([""; 0]).get_program());
    command.env("XDG_STATE_HOME", sandbox.path("state")).env("XDG_CONFIG_HOME", sandbox.path("config"));
    command.env("SHELL", "/bin/sh");
    let mut terminal = Holder::start(command);
    terminal.process.stdin.as_mut().unwrap().write_all(b"\x03").unwrap();
    terminal.end().stdout
}

#[test]
#[cfg(target_os = "linux")] // script(1) has other options elsewhere.
fn a_bash_script_stops_at_ctrl_c() {
    let sandbox = Sandbox::new();
    let _holder = sandbox.hold("run held", "echo ready; exec sleep 1000");
    let serve = cfg!(feature = "serve").then_some("serve --listen 127.0.0.1:0");
    let steps = [
        "run x -- sh -c 'echo ready; exec sleep 1000'",
        "once x --per 1h -- sh -c 'echo ready; exec sleep 1000'",
        "elect x -- sh -c 'echo ready; exec sleep 1000'",
        "run held --json -- true",
        "acquire held --json",
    ];
    for step in steps.into_iter().chain(serve) {
        let after = interrupted(&sandbox, &format!("\"$LEASEHOLD\" {step}\necho next step\n"));
        assert!(after.contains("script: 130") && !after.contains("next step"), "{step}: {after}");
    }
}
