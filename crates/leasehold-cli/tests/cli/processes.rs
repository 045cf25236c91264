//! The processes of a command: signals, descriptors, and what happens to them at the end.

use std::collections::BTreeSet;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::Stdio;

use rustix::process::Signal;

use crate::support::{
    Holder, Outcome, Sandbox, as_process_1, children_of, guardian_of, is_alive, is_stopped, wait_for_file,
    wait_until,
};

#[test]
fn signals_are_passed_on() {
    let sandbox = Sandbox::new();
    for (signal, name) in [
        (Signal::TERM, "TERM"),
        (Signal::INT, "INT"),
        (Signal::HUP, "HUP"),
        (Signal::QUIT, "QUIT"),
        (Signal::USR1, "USR1"),
        (Signal::USR2, "USR2"),
    ] {
        let script =
            format!("trap 'echo got {name}; exit 7' {name}; echo ready; while :; do sleep 0.01; done");
        let holder = sandbox.hold(&format!("run {name}"), &script);
        holder.signal(signal);
        let ended = holder.end().expect(7);
        assert!(ended.stdout.contains(&format!("got {name}")), "{ended:?}");
    }
}

#[test]
fn a_command_ended_by_a_signal_exits_128_plus_the_signal() {
    let sandbox = Sandbox::new();
    let holder = sandbox.hold("run x", "echo ready; sleep 1000");
    holder.signal(Signal::TERM);
    // The whole group receives the signal: sh and sleep.
    holder.end().expect(143);
    sandbox.run("run -n x -- true").expect(0);
}

#[test]
fn ignored_signals_stay_ignored() {
    let sandbox = Sandbox::new();
    let script =
        "trap '' HUP; exec \"$LEASEHOLD\" run x -- sh -c 'echo ready; cat; grep SigIgn /proc/self/status'";
    let mut command = std::process::Command::new("sh");
    let ours = sandbox.leasehold([""; 0]);
    command.args(["-c", script]).env("LEASEHOLD", ours.get_program()).stdin(Stdio::piped());
    command.env("XDG_STATE_HOME", sandbox.path("state")).env("XDG_CONFIG_HOME", sandbox.path("config"));
    let mut holder = Holder::start(command);
    holder.signal(Signal::HUP);
    drop(holder.process.stdin.take());
    let ended = holder.end().expect(0);
    let mask = ended.stdout.split_whitespace().last().unwrap().to_owned();
    assert_eq!(u64::from_str_radix(&mask, 16).unwrap() & 1, 1, "{ended:?}");
}

#[test]
fn an_ignored_sigchld_does_not_hide_the_exit_code() {
    let sandbox = Sandbox::new();
    let run = |command: &[&str]| {
        // A shell would not pass an ignored SIGCHLD on.
        let mut ignoring = std::process::Command::new("env");
        ignoring.arg("--ignore-signal=CHLD").arg(sandbox.leasehold([""; 0]).get_program());
        ignoring.args(["run", "x", "--"]).args(command).stdin(Stdio::null());
        ignoring.env("XDG_STATE_HOME", sandbox.path("state")).env("XDG_CONFIG_HOME", sandbox.path("config"));
        Outcome::of(ignoring.output().unwrap())
    };
    run(&["sh", "-c", "exit 3"]).expect(3);
    let status = run(&["grep", "SigIgn", "/proc/self/status"]).expect(0).stdout;
    let mask = u64::from_str_radix(status.split_whitespace().last().unwrap(), 16).unwrap();
    assert_eq!(mask & (1 << (Signal::CHILD.as_raw() - 1)), 0, "the command ignores it: {status}");
}

#[test]
fn a_signal_while_waiting_exits_128_plus_and_runs_nothing() {
    let sandbox = Sandbox::new();
    let _holder = sandbox.hold("run x", "echo ready; sleep 1000");
    let mut second = sandbox.scripted("run x", "echo ran");
    let mut second = second.stderr(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(second.stderr.as_mut().unwrap()), &mut line)
        .unwrap();
    assert!(line.contains("Waiting"), "{line}");
    crate::support::send(i32::try_from(second.id()).unwrap(), Signal::TERM);
    let ended = Outcome::of(second.wait_with_output().unwrap()).expect(143);
    assert_eq!(ended.stdout, "");
}

#[test]
fn the_command_inherits_no_descriptor_of_leasehold() {
    let sandbox = Sandbox::new();
    // The test may have inherited descriptors, so compare with a command that leasehold did not start.
    let list = "for fd in /proc/self/fd/*; do readlink $fd; done | sort; true";
    let plain = std::process::Command::new("sh").args(["-c", list]).stdin(Stdio::null()).output().unwrap();
    let plain = Outcome::of(plain).stdout;
    let ours = sandbox.run_script("run x", list).expect(0).stdout;
    let kinds = |text: &str| -> Vec<String> {
        let kind =
            |line: &str| line.split(|c: char| c.is_ascii_digit()).next().unwrap_or_default().to_owned();
        text.lines().filter(|line| !line.starts_with("/proc")).map(kind).collect()
    };
    assert!(!ours.contains("locks.db") && !ours.contains("eventpoll"), "{ours}");
    assert_eq!(kinds(&ours), kinds(&plain), "{ours}\n{plain}");
}

#[test]
fn group_leftovers_end_before_the_release_but_daemons_live() {
    let sandbox = Sandbox::new();
    let script = "sh -c 'trap \"\" TERM; echo $$ > stubborn; exec sleep 1000' > /dev/null 2>&1 &
        setsid sh -c 'echo $$ > daemon; exec sleep 1000' > /dev/null 2>&1 &
        while ! [ -s stubborn ] || ! [ -s daemon ]; do sleep 0.01; done";
    let mut command = sandbox.scripted("run x --grace 200ms", script);
    let ended = Outcome::of(command.stdout(Stdio::null()).output().unwrap()).expect(0);
    assert!(
        ended.stderr.contains("warning: terminated processes that the command left running"),
        "{ended:?}"
    );
    assert!(!is_alive(sandbox.read("stubborn").trim()));
    let daemon = sandbox.read("daemon").trim().to_owned();
    assert!(is_alive(&daemon));
    crate::support::send(daemon.parse().unwrap(), Signal::KILL);
}

#[test]
fn a_long_wait_for_processes_left_behind_is_announced() {
    let sandbox = Sandbox::new();
    let script =
        "rm -f stubborn; sh -c 'trap \"\" TERM; echo $$ > stubborn; exec sleep 1000' > /dev/null 2>&1 &
        while ! [ -s stubborn ]; do sleep 0.01; done";
    let notice = |flag: &str, word: &str| {
        let mut command = sandbox.scripted(&format!("run x -v --ttl 1h --grace 1m {flag}"), script);
        let mut process = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let mut stderr = std::io::BufReader::new(process.stderr.take().unwrap());
        let line = crate::support::line_with(&mut stderr, word);
        std::thread::spawn(move || std::io::copy(&mut stderr, &mut std::io::sink()));
        crate::support::send(sandbox.read("stubborn").trim().parse().unwrap(), Signal::KILL);
        assert!(process.wait().unwrap().success());
        line
    };
    let text = "     Waiting for processes that the command left running, killing them in 58s\n";
    assert_eq!(notice("", "Waiting for"), text);
    let document: serde_json::Value = serde_json::from_str(&notice("--json", "leftovers")).unwrap();
    assert_eq!((&document["type"], &document["killing_in_ms"]), (&"leftovers".into(), &58_000.into()));
}

#[test]
fn all_processes_die_with_leasehold_when_it_is_killed() {
    let sandbox = Sandbox::new();
    let script = "trap '' TERM; sh -c 'trap \"\" TERM; echo $$ > grandchild; sleep 1000' &
        setsid sh -c 'trap \"\" TERM; echo $$ > daemon; sleep 1000' &
        while ! [ -s grandchild ] || ! [ -s daemon ]; do sleep 0.01; done; echo $$; wait";
    let holder = sandbox.hold("run x", script);
    let child = holder.first.clone();
    let [grandchild, daemon] = ["grandchild", "daemon"].map(|file| sandbox.read(file).trim().to_owned());
    assert!(is_alive(&child) && is_alive(&grandchild) && is_alive(&daemon));
    holder.signal(Signal::KILL);
    wait_until("the command dies", || !is_alive(&child));
    wait_until("what it started dies", || !is_alive(&grandchild));
    wait_until("what left its group dies", || !is_alive(&daemon));
}

#[test]
fn the_command_dies_with_leasehold_and_its_guardian() {
    let sandbox = Sandbox::new();
    let holder = sandbox.hold("run x", "trap '' TERM; echo $$; while :; do sleep 0.01; done");
    let child = holder.first.clone();
    crate::support::send(holder.guardian(), Signal::KILL);
    holder.signal(Signal::KILL);
    wait_until("the command dies", || !is_alive(&child));
}

#[test]
fn a_killed_guardian_does_not_affect_the_run() {
    let sandbox = Sandbox::new();
    let mut command = sandbox.scripted("run x", "echo ready; cat; echo done");
    command.stdin(Stdio::piped());
    let mut holder = Holder::start(command);
    crate::support::send(holder.guardian(), Signal::KILL);
    drop(holder.process.stdin.take());
    assert_eq!(holder.end().expect(0).stdout, "done\n");
}

#[test]
fn a_guardian_killed_before_the_command_starts_is_replaced() {
    let sandbox = Sandbox::new();
    let first = sandbox.hold("run x", "echo ready; sleep 1000");
    let mut second = sandbox.scripted("run x", "echo $$; exec sleep 1000");
    let mut second = second.process_group(0).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let pid = i32::try_from(second.id()).unwrap();
    let mut guardian = None;
    wait_until("it has a guardian", || {
        guardian = guardian_of(pid);
        guardian.is_some()
    });
    crate::support::send(guardian.unwrap(), Signal::KILL);
    wait_until("it is dead", || !is_alive(&guardian.unwrap().to_string()));
    first.signal(Signal::TERM);
    first.end().expect(143);
    let mut line = String::new();
    let stdout = second.stdout.as_mut().unwrap();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(stdout), &mut line).unwrap();
    assert!(guardian_of(pid).is_some(), "the command runs without one");
    crate::support::send(pid, Signal::TERM);
    second.wait().unwrap();
}

#[test]
fn a_stop_by_a_terminal_stops_the_command_too() {
    let sandbox = Sandbox::new();
    // The script starts no process, because a shell that is stopped between vfork(2) and exec is never reported as
    // stopped.
    let holder = sandbox.hold("run x", "trap 'exit 5' USR1; echo $$; while :; do :; done");
    let child: i32 = holder.first.parse().unwrap();
    holder.signal(Signal::TSTP);
    wait_until("both stop", || is_stopped(holder.pid()) && is_stopped(child));
    holder.signal(Signal::CONT);
    wait_until("both continue", || !is_stopped(holder.pid()) && !is_stopped(child));
    holder.signal(Signal::USR1);
    holder.end().expect(5);
}

#[test]
fn a_killed_nested_run_leaves_no_process() {
    let sandbox = Sandbox::new();
    let daemon = "setsid sh -c 'echo $$ > daemon; exec sleep 1000' & echo $$; exec sleep 1000";
    let inner = format!("exec \"$LEASEHOLD\" run y -- sh -c \"{}\"", daemon.replace('$', "\\$"));
    let command = sandbox.scripted("run x", &inner);
    let holder = Holder::start(command);
    let (child, daemon) = (holder.first.clone(), wait_for_file(&sandbox.path("daemon")));
    // The guardian of the outer run kills the inner run and all processes with its mark, except the guardian of the
    // inner run.
    holder.signal(Signal::KILL);
    wait_until("the command dies", || !is_alive(&child));
    wait_until("what left its group dies", || !is_alive(daemon.trim()));
}

#[test]
fn a_run_has_two_more_processes_than_its_command() {
    let sandbox = Sandbox::new();
    let holder = sandbox.hold("run x", "echo $$; exec sleep 1000");
    let mut children = children_of(holder.pid());
    children.sort_unstable();
    let mut expected = [holder.first.parse().unwrap(), holder.guardian()];
    expected.sort_unstable();
    assert_eq!(children, expected, "beside leasehold itself its command and a guardian");
}

#[test]
fn a_long_wait_keeps_no_prepared_process() {
    let sandbox = Sandbox::new();
    let first = sandbox.hold("run x", "echo ready; sleep 1000");
    let mut second = sandbox.scripted("run x", "echo ran");
    let mut second = second.stderr(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    // By now it has prepared a process, in case the lock becomes free soon.
    let mut waiting = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(second.stderr.as_mut().unwrap()), &mut waiting)
        .unwrap();
    assert!(waiting.contains("Waiting"), "{waiting}");
    wait_until("it is alone", || children_of(i32::try_from(second.id()).unwrap()).is_empty());
    first.signal(Signal::TERM);
    first.end().expect(143);
    let mut line = String::new();
    std::io::Read::read_to_string(second.stdout.as_mut().unwrap(), &mut line).unwrap();
    assert_eq!((line.as_str(), second.wait().unwrap().code()), ("ran\n", Some(0)));
}

#[test]
fn with_on_lost_none_nothing_is_killed() {
    let sandbox = Sandbox::new();
    let holder = sandbox.hold("run x --on-lost none", "echo $$; exec sleep 1000");
    let child = holder.first.clone();
    assert_eq!(children_of(holder.pid()), [child.parse::<i32>().unwrap()], "it has no guardian");
    holder.signal(Signal::KILL);
    wait_until("leasehold dies", || !is_alive(&holder.pid().to_string()));
    assert!(is_alive(&child));
    crate::support::send(child.parse().unwrap(), Signal::KILL);
}

/// Returns the processes in the row of `x`. The lock ends when all of them have ended.
fn processes_of_x(sandbox: &Sandbox) -> Vec<i64> {
    let store = rusqlite::Connection::open(sandbox.path("state/leasehold/locks.db")).unwrap();
    let text: String =
        store.query_row("SELECT process FROM lock WHERE name = 'x'", (), |row| row.get(0)).unwrap();
    let process: serde_json::Value = serde_json::from_str(&text).unwrap();
    let others = process["others"].as_array().cloned().unwrap_or_default();
    std::iter::once(&process).chain(&others).map(|process| process["pid"].as_i64().unwrap()).collect()
}

#[test]
fn the_lock_of_a_killed_run_ends_with_its_last_process() {
    let sandbox = Sandbox::new();
    let script =
        "trap '' TERM; setsid sh -c 'trap \"\" TERM; echo $$ > daemon; while :; do sleep 0.01; done' &
        while ! [ -s daemon ]; do sleep 0.01; done; echo $$; while :; do sleep 0.01; done";
    let holder = sandbox.hold("run x --ttl 1h", script);
    let (child, guardian) = (holder.first.clone(), holder.guardian());
    let daemon = sandbox.read("daemon").trim().to_owned();
    let all = [holder.pid(), guardian, child.parse().unwrap()].map(i64::from);
    assert_eq!(processes_of_x(&sandbox), all);
    // A stopped guardian acts like a starved one, so the descendants of the command outlive leasehold.
    crate::support::send(guardian, Signal::STOP);
    wait_until("the guardian is stopped", || is_stopped(guardian));
    holder.signal(Signal::KILL);
    wait_until("leasehold dies", || !is_alive(&holder.pid().to_string()));
    wait_until("the command dies", || !is_alive(&child));
    let held = sandbox.run("run -n x -- true").expect(123);
    assert!(is_alive(&daemon), "{held:?}");
    crate::support::send(guardian, Signal::CONT);
    let check = format!("! kill -0 {daemon} 2> /dev/null || grep -q '^State:.Z' /proc/{daemon}/status");
    sandbox.run_script("run x", &check).expect(0);
}

#[test]
fn the_lock_of_a_killed_run_ends_with_its_command() {
    let sandbox = Sandbox::new();
    let holder = sandbox.hold("run x --ttl 1h --on-lost none", "echo $$; exec sleep 1000");
    let child = holder.first.clone();
    holder.signal(Signal::KILL);
    wait_until("leasehold dies", || !is_alive(&holder.pid().to_string()));
    sandbox.run("run -n x -- true").expect(123);
    crate::support::send(child.parse().unwrap(), Signal::KILL);
    sandbox.run("run x -- true").expect(0);
}

/// If the machine permits no cgroup, this test checks the error.
#[test]
fn nothing_in_a_cgroup_outlives_its_command() {
    let sandbox = Sandbox::new();
    // Nothing links the daemon to its command: it has another group, an empty environment, and another parent.
    let daemon = "setsid env -i sh -c 'echo $$ > daemon; exec sleep 1000' > /dev/null 2>&1 &
        while ! [ -s daemon ]; do sleep 0.01; done";
    let first = Outcome::of(sandbox.scripted("run x --cgroup", daemon).output().unwrap());
    if first.code != 0 {
        assert!(first.stderr.contains("--cgroup") && first.code == 125, "{first:?}");
        return;
    }
    let pid = sandbox.read("daemon").trim().to_owned();
    assert!(!is_alive(&pid), "it outlived its command");
    std::fs::remove_file(sandbox.path("daemon")).unwrap();

    let holder = sandbox.hold("run x --cgroup --ttl 1h", &format!("{daemon}; echo ready; exec sleep 1000"));
    let pid = sandbox.read("daemon").trim().to_owned();
    let group = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
    let group = group.lines().find_map(|line| line.strip_prefix("0::")).unwrap().to_owned();
    assert!(group.contains("leasehold-"), "{group}");
    holder.signal(Signal::KILL);
    sandbox.run("run x -- true").expect(0);
    assert!(!is_alive(&pid), "the daemon outlived its lock");
    let folder = folder_of_cgroup(&group);
    wait_until("the cgroup is removed", || !folder.exists());
}

fn folder_of_cgroup(group: &str) -> PathBuf {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let mount = mounts.lines().find(|line| line.contains(" - cgroup2 ")).unwrap();
    PathBuf::from(format!("{}{group}", mount.split(' ').nth(4).unwrap()))
}

/// If the machine permits no cgroup, this test checks nothing.
#[test]
fn a_command_that_does_not_run_leaves_no_cgroup() {
    let sandbox = Sandbox::new();
    if sandbox.run("run x --cgroup -- true").code != 0 {
        return;
    }
    let ours = std::fs::read_to_string("/proc/self/cgroup").unwrap();
    let folder = folder_of_cgroup(ours.lines().find_map(|line| line.strip_prefix("0::")).unwrap());
    let cgroups = || -> BTreeSet<_> {
        let names = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name());
        names.filter(|name| name.to_string_lossy().starts_with("leasehold-")).collect()
    };
    let before = cgroups();
    let _holder = sandbox.hold("run x", "echo ready; sleep 1000");
    sandbox.run("run -n x --cgroup -- true").expect(123);
    sandbox.run("once y --per 1h -- true").expect(0);
    sandbox.run("once y --per 1h --cgroup -- true").expect(0);
    let ticket = sandbox.run("acquire z").expect(0).stdout.trim().to_owned();
    sandbox.run(&format!("release {ticket}")).expect(0);
    sandbox.run(&format!("run --ticket={ticket} --cgroup -- true")).expect(122);
    sandbox.run("-s sqlite:no/such/folder/locks.db run z --cgroup -- true").expect(125);
    // Other tests have cgroups for a short time.
    wait_until("the cgroups are removed", || cgroups().is_subset(&before));
}

#[test]
fn a_signal_interrupts_a_hanging_release() {
    let sandbox = Sandbox::new();
    let mut holder = sandbox.hold("run x --ttl 1h", "echo ready; sleep 1000");
    let _store = sandbox.cut_off();
    // The first signal ends the command, and a later one ends the release.
    wait_until("it has ended", || {
        holder.signal(Signal::TERM);
        holder.process.try_wait().unwrap().is_some()
    });
    let ended = holder.end().expect(143);
    assert!(ended.stderr.contains("not released") && ended.stderr.contains("interrupted"), "{ended:?}");
}

/// Starts orphans that end at once, and exits with 7 when they are reaped, or with 8 after some seconds. Before, leasehold
/// looked for them every ten seconds.
const ORPHANS: &str = "for n in 1 2 3 4 5; do (sh -c 'echo $$ >> orphans' &); done
    for n in $(seq 100); do
        sleep 0.05
        [ $(wc -l < orphans) = 5 ] || continue
        for pid in $(cat orphans); do ! [ -e /proc/$pid ] || continue 2; done
        exit 7
    done
    exit 8";

#[test]
fn orphans_are_reaped() {
    let sandbox = Sandbox::new();
    for words in ["run a", "once b --per 1h", "elect c --once", "run d --on-lost none"] {
        sandbox.write("orphans", "");
        let mut command = sandbox.scripted(words, ORPHANS);
        if words.ends_with("none") {
            // Without protection, leasehold adopts orphans only as process 1.
            let Some(as_first) = as_process_1(&command) else { return };
            command = as_first;
        }
        Outcome::of(command.output().unwrap()).expect(7);
    }
}

#[test]
fn orphans_are_reaped_while_process_1_waits() {
    let sandbox = Sandbox::new();
    let _holder = sandbox.hold("run held", "echo ready; exec sleep 1000");
    let ours = sandbox.leasehold([""; 0]);
    // The shell is process 1, becomes the parent of the orphans, and then leasehold.
    let script = "for n in 1 2 3 4 5; do
            (sh -c 'echo $$ >> orphans; while ! [ -e end ]; do sleep 0.01; done' &)
        done
        while [ $(wc -l < orphans) != 5 ]; do sleep 0.01; done
        exec \"$0\" run held -- true";
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", script]).arg(ours.get_program()).current_dir(sandbox.path(""));
    shell.envs(ours.get_envs().filter_map(|(key, value)| Some((key, value?))));
    sandbox.write("orphans", "");
    let Some(mut command) = as_process_1(&shell) else { return };
    let mut waiter = command.stderr(Stdio::piped()).spawn().unwrap();
    let mut stderr = std::io::BufReader::new(waiter.stderr.take().unwrap());
    crate::support::line_with(&mut stderr, "Waiting");
    let init = children_of(i32::try_from(waiter.id()).unwrap())[0];
    assert!(children_of(init).len() >= 5);
    sandbox.write("end", "");
    wait_until("the orphans are reaped", || children_of(init).is_empty());
    crate::support::send(init, Signal::KILL);
    waiter.wait().unwrap();
}

#[test]
fn a_small_limit_of_descriptors_is_an_error() {
    let sandbox = Sandbox::new();
    let program = sandbox.leasehold([""; 0]).get_program().to_owned();
    for words in ["run x -- true", "acquire y --try", "elect x --once -- true", "ls"] {
        for limit in 5..30 {
            let script = format!("ulimit -n {limit}; exec \"$0\" {words}");
            let mut command = std::process::Command::new("sh");
            command.arg("-c").arg(script).arg(&program).stdin(Stdio::null());
            command
                .env("XDG_STATE_HOME", sandbox.path("state"))
                .env("XDG_CONFIG_HOME", sandbox.path("config"));
            let ended = Outcome::of(command.output().unwrap());
            // `y` is held after the first success.
            assert!([0, 123, 125].contains(&ended.code), "{words} {limit}: {ended:?}");
            assert!(!ended.stderr.contains("panicked"), "{words} {limit}: {ended:?}");
        }
    }
}
