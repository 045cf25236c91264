//! Tests on a terminal, with script(1) from util-linux. The command is in our process group and reads the terminal.
#![cfg(target_os = "linux")]

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Command, Stdio};

use rustix::process::Signal;

use crate::support::{Holder, Sandbox, is_alive, line_with, send, wait_until};

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

/// Runs `line` on a terminal of 80 columns and 24 lines, and returns what it printed.
fn on_80_columns(sandbox: &Sandbox, line: &str) -> String {
    let holder = on_terminal(sandbox, &format!("stty cols 80 rows 24; echo begin; {line}"));
    holder.end().expect(0).stdout
}

/// Returns the lines that a terminal shows for `text`, one after another, without colors.
fn shown_lines(text: &str) -> Vec<String> {
    let parts = text.split(['\r', '\n']);
    parts.map(without_colors).filter(|line| !line.trim().is_empty()).collect()
}

fn without_colors(text: &str) -> String {
    let mut parts = text.split('\u{1b}');
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| {
        text + part.split_once(|c: char| c.is_ascii_alphabetic()).map_or("", |(_, after)| after)
    })
}

#[test]
fn the_waiting_line_fits_80_columns_and_is_renewed() {
    let sandbox = Sandbox::new();
    let note = "release_1.2.3_of_the_web_shop_and_all_of_its_many_services";
    let _first =
        sandbox.hold(&format!("run deploy/prod --owner alice --note {note}"), "echo ready; sleep 1000");
    let mut before = sandbox.leasehold(["run", "deploy/prod", "--", "true"]);
    let mut before = before.stderr(Stdio::piped()).spawn().unwrap();
    line_with(&mut BufReader::new(before.stderr.take().unwrap()), "first in line");
    let mut waiter = on_terminal(
        &sandbox,
        "stty cols 80 rows 24; echo begin; \"$LEASEHOLD\" run deploy/prod --wait 5s -- true; echo over",
    );
    let mut printed = Vec::new();
    while !String::from_utf8_lossy(&printed).contains("second in line") {
        assert!(waiter.stdout.read_until(b'\r', &mut printed).unwrap() > 0, "it ended");
    }
    // The place is renewed when a waiter before it gives up.
    send(i32::try_from(before.id()).unwrap(), Signal::INT);
    before.wait().unwrap();
    let printed = String::from_utf8(printed).unwrap() + &waiter.end().expect(0).stdout;
    let lines = shown_lines(&printed);
    let waiting: Vec<&String> = lines.iter().filter(|line| line.contains("Waiting for")).collect();
    assert!(!waiting.is_empty() && waiting.iter().all(|line| line.chars().count() <= 80), "{lines:?}");
    assert!(waiting[0].contains("deploy/prod: alice@") && waiting[0].contains(", held "), "{waiting:?}");
    assert!(waiting.iter().any(|line| line.contains("\u{2026}\"")), "the note is cut: {waiting:?}");
    assert!(waiting.iter().any(|line| line.contains("; first in line")), "{waiting:?}");
    assert!(waiting.iter().any(|line| line.contains(", held 3s")), "{waiting:?}");
    let error = lines.iter().find(|line| line.starts_with("error: ")).unwrap();
    assert!(error.contains(note), "{error}");
    let age = error.split("\" for ").nth(1).and_then(|rest| rest.split("s, token").next());
    assert!(age.unwrap().parse::<u64>().unwrap() >= 5, "as of now, not when it was last read: {error}");
}

#[test]
fn ls_fits_a_terminal_and_has_colors_there() {
    let sandbox = Sandbox::new();
    let _holder = sandbox.hold(&format!("run x --note {}", "n".repeat(100)), "echo ready; sleep 1000");
    let printed = on_80_columns(&sandbox, "\"$LEASEHOLD\" ls; NO_COLOR=1 \"$LEASEHOLD\" ls");
    let lines = shown_lines(&printed);
    assert!(lines.iter().all(|line| line.chars().count() <= 80), "{lines:?}");
    assert_eq!(lines.iter().filter(|line| line.ends_with('\u{2026}')).count(), 2, "{lines:?}");
    assert_eq!(printed.matches("\u{1b}[1;32mheld\u{1b}[0m").count(), 1, "{printed:?}");
    let piped = sandbox.run("ls").expect(0).stdout;
    assert!(piped.contains(&"n".repeat(100)) && !piped.contains('\u{1b}'), "{piped}");
}

#[test]
fn ls_repaints_a_terminal() {
    let sandbox = Sandbox::new();
    for n in 0..30 {
        sandbox.run(&format!("run lock-{n} -- true")).expect(0);
    }
    let line = "timeout --foreground -s INT 2 \"$LEASEHOLD\" ls --watch=100ms || true";
    let printed = on_80_columns(&sandbox, line);
    let frames: Vec<&str> = printed.split("\u{1b}[H").skip(1).collect();
    assert!(frames.len() > 1, "{printed:?}");
    for frame in &frames[..frames.len() - 1] {
        assert!(frame.matches('\n').count() < 24, "the head line scrolls away: {frame:?}");
        assert!(frame.contains("... and 11 more lines") && frame.ends_with("\u{1b}[J"), "{frame:?}");
    }
    let sandbox = Sandbox::new();
    sandbox.run("run x -- true").expect(0);
    let store = rusqlite::Connection::open(sandbox.path("state/leasehold/locks.db")).unwrap();
    store.execute("UPDATE lock SET record = 'damaged'", ()).unwrap();
    let lines = shown_lines(&on_80_columns(&sandbox, line));
    let warnings: Vec<&String> = lines.iter().filter(|line| line.starts_with("warning: skipped")).collect();
    assert!(!warnings.is_empty(), "{lines:?}");
    assert!(
        warnings.iter().all(|line| line.chars().count() == 80 && line.ends_with('\u{2026}')),
        "{lines:?}"
    );
}

#[test]
fn a_terminal_gets_the_announcement_only_if_there_are_others() {
    let sandbox = Sandbox::new();
    let quiet = on_80_columns(&sandbox, "\"$LEASEHOLD\" run x -- true");
    assert!(!quiet.contains("no store is chosen"), "{quiet}");
    sandbox.write("config/leasehold/config.toml", "[stores.prod]\nurl = \"sqlite:/x.db\"\n");
    let warned = on_80_columns(&sandbox, "\"$LEASEHOLD\" run x -- true; \"$LEASEHOLD\" run x -- true");
    assert_eq!(warned.matches("no store is chosen").count(), 1, "{warned}");
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
