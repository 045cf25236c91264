//! `run`: exit codes, environment, conflicts, reports.

use std::os::unix::fs::PermissionsExt as _;

use serde_json::Value;

use crate::support::{Holder, Outcome, Sandbox};

#[test]
fn the_exit_code_of_the_command_is_returned() {
    let sandbox = Sandbox::new();
    for code in [0, 1, 3, 122, 255] {
        sandbox.run_script("run x", &format!("exit {code}")).expect(code);
    }
    sandbox.run_script("run x", "kill -TERM $$").expect(128 + 15);
    sandbox.run_script("run x", "kill -KILL $$").expect(128 + 9);
}

#[test]
fn the_environment_contains_lock_token_and_store() {
    let sandbox = Sandbox::new();
    let script = "echo $LEASEHOLD_LOCK $LEASEHOLD_TOKEN $LEASEHOLD_STORE";
    let first = sandbox.run_script("run deploy/prod", script).expect(0).stdout;
    let second = sandbox.run_script("run deploy/prod", script).expect(0).stdout;
    let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let (first, second) = (words(&first), words(&second));
    assert_eq!((&*first[0], &*first[2]), ("deploy/prod", "sqlite:"));
    assert!(first[1].parse::<u64>().unwrap() < second[1].parse().unwrap(), "tokens rise");
    // The variables of the caller are overwritten.
    let output = sandbox.scripted("run x", script).env("LEASEHOLD_LOCK", "other").output().unwrap();
    assert!(Outcome::of(output).stdout.starts_with("x "));
}

#[test]
fn settings_of_one_run_are_not_inherited() {
    let sandbox = Sandbox::new();
    let of_one_run = ["REPORT", "METRICS_FILE", "VALUE", "ON_EXIT", "PER", "COUNT_FAILURES"];
    let values = ["report", "metrics", "http://h", "exit", "1ms", "1"];
    for words in ["run x", "once x", "elect x"] {
        let mut command = sandbox.scripted(words, "env");
        for (name, value) in of_one_run.into_iter().zip(values).chain([("TTL", "1m")]) {
            command.env(format!("LEASEHOLD_{name}"), value);
        }
        let ended = Outcome::of(command.output().unwrap()).expect(0);
        let left = of_one_run.map(|name| ended.stdout.contains(&format!("\nLEASEHOLD_{name}=")));
        assert_eq!(left, [false; 6], "{words}: {ended:?}");
        assert!(ended.stdout.contains("\nLEASEHOLD_TTL=1m\n"), "{ended:?}");
    }
}

#[test]
fn json_is_printed_without_what_a_terminal_interprets() {
    let sandbox = Sandbox::new();
    let value = "\u{9b}31m\u{202e}\u{7f}";
    let script = ["--", "sh", "-c", "echo ready; exec sleep 1000"];
    let _leader =
        Holder::start(sandbox.leasehold(["elect", "x", "--value", value].into_iter().chain(script)));
    for words in ["elect x --observe --once --json", "show x --json", "ls --json"] {
        let printed = sandbox.run(words).expect(0).stdout;
        assert!(!printed.contains(['\u{9b}', '\u{202e}', '\u{7f}']), "{printed:?}");
        assert!(printed.contains("\\u009b31m\\u202e\\u007f"), "{printed}");
        let parsed: Value = serde_json::from_str(&printed).unwrap();
        assert_eq!(*parsed.get("value").unwrap_or(&parsed["held_by"]["holder"]["value"]), value);
    }
}

#[test]
fn stdin_and_arguments_pass_through_untouched() {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt as _;
    let sandbox = Sandbox::new();
    let file = sandbox.write("in", "from stdin\n");
    let mut command = sandbox.leasehold(["run", "x", "--", "cat"]);
    let output = command.stdin(std::fs::File::open(file).unwrap()).output().unwrap();
    assert_eq!(Outcome::of(output).expect(0).stdout, "from stdin\n");
    let odd = [OsStr::new("run"), "x".as_ref(), "--".as_ref(), "printf".as_ref(), "%s|".as_ref()];
    let odd = odd.into_iter().chain([
        OsStr::new("a b"),
        "$HOME".as_ref(),
        "--json".as_ref(),
        OsStr::from_bytes(b"\xff"),
    ]);
    let output = sandbox.leasehold(odd).output().unwrap();
    assert_eq!(output.stdout, b"a b|$HOME|--json|\xff|");
}

#[test]
fn unread_stdin_remains_for_the_next_process() {
    let sandbox = Sandbox::new();
    let file = sandbox.write("in", "one\ntwo\n");
    let script = "\"$LEASEHOLD\" run x -- sh -c 'read word; echo had $word'; cat
        \"$LEASEHOLD\" run x -- true <&- && echo and without";
    let mut command = std::process::Command::new("sh");
    command.args(["-c", script]).stdin(std::fs::File::open(file).unwrap());
    let ours = sandbox.leasehold([""; 0]);
    command.env("LEASEHOLD", ours.get_program());
    command.env("XDG_STATE_HOME", sandbox.path("state")).env("XDG_CONFIG_HOME", sandbox.path("config"));
    let ended = Outcome::of(command.output().unwrap()).expect(0);
    assert_eq!(ended.stdout, "had one\ntwo\nand without\n");
}

#[test]
fn a_shell_runs_the_command_only_when_asked_to() {
    let sandbox = Sandbox::new();
    let shell = sandbox.leasehold(["run", "x", "--shell", "--", "echo a; echo b | tr b c"]).output().unwrap();
    assert_eq!(Outcome::of(shell).expect(0).stdout, "a\nc\n");
    let none = sandbox.leasehold(["run", "x", "--", "echo a; echo b"]).output().unwrap();
    let none = Outcome::of(none).expect(127);
    assert!(none.stderr.contains("--shell"), "{none:?}");
}

#[test]
fn a_command_that_cannot_run_exits_126_or_127_without_a_lock() {
    let sandbox = Sandbox::new();
    let missing = sandbox.run("run x -- /no/such/command").expect(127);
    assert!(missing.stderr.contains("/no/such/command"), "{missing:?}");
    sandbox.run("run x -- no-such-command-anywhere").expect(127);
    sandbox.run("run x -- .").expect(126);
    let file = sandbox.write("script", "echo never");
    sandbox.run(&format!("run x -- {}", file.display())).expect(126);
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755)).unwrap();
    // Without a #! line, sh runs the script, as with execvp(3).
    assert_eq!(sandbox.run(&format!("run x -- {}", file.display())).expect(0).stdout, "never\n");
    let bad = sandbox.write("bad", "#!/no/such/interpreter\n");
    std::fs::set_permissions(&bad, std::fs::Permissions::from_mode(0o755)).unwrap();
    sandbox.run(&format!("run y -- {}", bad.display())).expect(127);
    assert_eq!(sandbox.run("history y").stdout.lines().count(), 2, "the lock was released");
}

#[test]
fn a_command_whose_execution_fails_has_not_run() {
    let sandbox = Sandbox::new();
    for (interpreter, code, kind) in [("/no/such", 127, "not_found"), ("/", 126, "not_executable")] {
        let file = sandbox.write("bad", &format!("#!{interpreter}\n"));
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755)).unwrap();
        let failed = sandbox.run("run -s sqlite: x --json --report out.json -- ./bad").expect(code);
        let error: Value = serde_json::from_str(&failed.stderr).unwrap();
        assert_eq!(error["kind"], kind, "{error}");
        assert!(error["message"].as_str().unwrap().contains("cannot run the command \"./bad\""), "{error}");
        let report: Value = serde_json::from_str(&sandbox.read("out.json")).unwrap();
        assert_eq!((&report["outcome"], &report["exit_code"]), (&kind.into(), &code.into()), "{report}");
        assert!(report["command_exit_code"].is_null() && report["released"] == true, "{report}");
        sandbox.run("once y --per 1h --count-failures -- ./bad").expect(code);
    }
    assert_eq!(sandbox.run("once y --per 1h -- echo ran").expect(0).stdout, "ran\n");
}

#[test]
fn a_held_lock_exits_with_123_124_or_the_given_code() {
    let sandbox = Sandbox::new();
    let mut command =
        sandbox.scripted("run deploy/prod --owner alice --note deploying", "echo $LEASEHOLD_TOKEN; cat");
    command.stdin(std::process::Stdio::piped());
    let mut holder = crate::support::Holder::start(command);
    let held = sandbox.run("run -n deploy/prod -- false").expect(123);
    let token = &holder.first;
    let lines: Vec<&str> = held.stderr.lines().collect();
    assert!(lines[0].starts_with("error: lock `deploy/prod` is held by alice@"), "{lines:?}");
    assert!(lines[0].contains(&format!(" pid {} \"deploying\" for ", holder.pid())), "{lines:?}");
    assert!(lines[0].ends_with(&format!(", token {token}")), "{lines:?}");
    assert_eq!(lines[1], "  help: to wait: leasehold run --wait 10m deploy/prod -- ...");
    let ends =
        "  help: when that process ends, the lock is free at once; if it ran in another container, in <= ";
    assert!(lines[2].starts_with(ends), "a lease ends earlier than its ttl here: {lines:?}");
    assert_eq!(
        lines[3],
        format!(
            "  help: to evict the holder now (unsafe while it runs): leasehold evict --token {token} deploy/prod"
        )
    );
    assert_eq!(held.stdout, "");
    assert!(sandbox.run("run --try -E 0 deploy/prod -- false").expect(0).stderr.contains("is held by"));
    assert_eq!(
        sandbox.run("run -q --try -E 0 deploy/prod -- false").expect(0).stderr,
        "",
        "cron would mail it"
    );
    assert!(sandbox.run("run -q --try deploy/prod -- false").expect(123).stderr.contains("is held by"));
    sandbox.run("run --wait 50ms deploy/prod -- false").expect(124);
    sandbox.run("run -w 50ms -E 9 deploy/prod -- false").expect(9);
    drop(holder.process.stdin.take());
    holder.end().expect(0);
    sandbox.run("run -n deploy/prod -- true").expect(0);
}

#[test]
fn the_report_has_details_that_the_exit_code_lacks() {
    let sandbox = Sandbox::new();
    let report = |words: &str, script: &str, code: i32| -> Value {
        sandbox.run_script(&format!("{words} --report out.json"), script).expect(code);
        serde_json::from_str(&sandbox.read("out.json")).unwrap()
    };
    let exited = report("run x", "exit 122", 122);
    assert_eq!(exited["outcome"], "exited");
    assert_eq!(exited["command_exit_code"], 122);
    assert_eq!(exited["lock"], "x");
    assert_eq!(exited["released"], true);
    assert!(exited["token"].is_u64() && exited["waited_ms"].is_u64() && exited["held_ms"].is_u64());
    assert!(exited["lost_reason"].is_null());
    let signaled = report("run x", "kill -KILL $$", 137);
    assert_eq!((&signaled["outcome"], &signaled["command_signal"]), (&"signaled".into(), &9.into()));
    sandbox.run("run x --report out.json -- /no/such").expect(127);
    assert!(sandbox.read("out.json").contains("\"outcome\": \"not_found\""));
    let names: Vec<_> =
        std::fs::read_dir(sandbox.path("")).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert!(!names.iter().any(|name| name.to_string_lossy().contains(".new")), "{names:?}");
    // It fails before the command runs.
    let bad = sandbox.run_script("run x --report no/such/folder/out.json", "echo ran").expect(125);
    assert_eq!(bad.stdout, "");
}

#[test]
fn metrics_of_the_last_run_are_in_a_file() {
    let sandbox = Sandbox::new();
    let run = |words: &str, script: &str, code: i32| {
        sandbox.run_script(&format!("{words} --metrics-file job.prom"), script).expect(code);
        sandbox.read("job.prom")
    };
    let good = run("run x/y --permits 2", "exit 0", 0);
    for wanted in [
        "# TYPE leasehold_last_run_exit_code gauge\nleasehold_last_run_exit_code{lock=\"x/y\"} 0\n",
        "leasehold_last_run_outcome{lock=\"x/y\",outcome=\"exited\"} 1\n",
        "leasehold_last_run_lost{lock=\"x/y\"} 0\n",
        "leasehold_last_run_timestamp_seconds{lock=\"x/y\"} ",
        "leasehold_last_success_timestamp_seconds{lock=\"x/y\"} ",
        "leasehold_last_run_acquire_duration_seconds{lock=\"x/y\"} ",
        "leasehold_last_run_hold_duration_seconds{lock=\"x/y\"} ",
    ] {
        assert!(good.contains(wanted), "{wanted}: {good}");
    }
    let failed = run("once x/y --per 1h", "exit 3", 3);
    let success = |text: &str| {
        text.lines().find(|line| line.starts_with("leasehold_last_success_timestamp")).map(str::to_owned)
    };
    assert!(failed.contains("exit_code{lock=\"x/y\"} 3\n") && success(&failed) == success(&good), "{failed}");
    let led = run("elect x/y --once", "exit 0", 0);
    assert!(led.contains("exit_code{lock=\"x/y\"} 0\n"), "{led}");
    let _holder = sandbox.hold("run x/y", "echo held; exec sleep 100");
    let held = run("run --try x/y", "exit 0", 123);
    assert!(held.contains("outcome=\"held\"} 1\n") && !held.contains("hold_duration"), "{held}");
    // It fails before the command runs.
    let bad = sandbox.run_script("run z --metrics-file no/such/folder/job.prom", "echo ran").expect(125);
    assert!(
        bad.stdout.is_empty() && bad.stderr.contains("cannot write the metrics no/such/folder"),
        "{bad:?}"
    );
}

#[test]
fn json_errors_are_documents_on_stderr() {
    let sandbox = Sandbox::new();
    let lines = |outcome: &Outcome| -> Vec<Value> {
        outcome.stderr.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    let missing = sandbox.run("--json run x -- /no/such").expect(127);
    let error = &lines(&missing)[0];
    assert_eq!((&error["type"], &error["kind"]), (&"error".into(), &"not_found".into()));
    let usage = sandbox.run("--json run").expect(2);
    assert_eq!(lines(&usage)[0]["kind"], "usage");
    let unknown = sandbox.run("--json --wat").expect(2);
    assert!(lines(&unknown)[0]["message"].as_str().unwrap().contains("--wat"));
}

#[test]
fn a_report_does_not_replace_a_pipe_or_a_device() {
    use std::os::unix::fs::FileTypeExt as _;
    let sandbox = Sandbox::new();
    // Use a link like /dev/stdout. With /dev/stdout itself, a defect could destroy it for the whole machine.
    std::os::unix::fs::symlink("/proc/self/fd/1", sandbox.path("stdout")).unwrap();
    let into_stdout = sandbox.run("run x --report stdout -- true").expect(0);
    assert!(into_stdout.stdout.contains("\"outcome\": \"exited\""), "{into_stdout:?}");
    assert!(std::fs::symlink_metadata(sandbox.path("stdout")).unwrap().is_symlink());
    let pipe = sandbox.path("pipe");
    let made = std::process::Command::new("mkfifo").arg(&pipe).status().unwrap();
    assert!(made.success());
    // A pipe without a reader leads to a warning, without a wait.
    let unread = sandbox.run("run x --report pipe -- true").expect(0);
    assert!(unread.stderr.contains("warning: cannot write the report pipe"), "{unread:?}");
    assert!(std::fs::metadata(&pipe).unwrap().file_type().is_fifo());
    sandbox.write("target", "");
    std::os::unix::fs::symlink("target", sandbox.path("link")).unwrap();
    sandbox.run("run x --report link -- true").expect(0);
    assert!(sandbox.read("target").contains("exited"));
    assert!(std::fs::symlink_metadata(sandbox.path("link")).unwrap().is_symlink());
}

#[test]
fn a_run_under_its_own_lock_reports_it() {
    let sandbox = Sandbox::new();
    let nested = |words: &str| {
        let script = format!("exec \"$LEASEHOLD\" run {words} x -- true");
        sandbox.run_script("run x", &script)
    };
    let tried = nested("-n").expect(123);
    assert!(tried.stderr.contains("help: this command runs under a `leasehold run`"), "{tried:?}");
    assert!(!tried.stderr.contains("evict"), "it would evict itself: {tried:?}");
    let waited = nested("-w 5s").expect(124);
    assert!(waited.stderr.starts_with("warning: this command runs under a `leasehold run`"), "{waited:?}");
}

#[test]
fn a_relative_store_is_the_same_one_in_another_folder() {
    let sandbox = Sandbox::new();
    std::fs::create_dir(sandbox.path("a%20?b")).unwrap();
    std::fs::create_dir(sandbox.path("a%20?b/other")).unwrap();
    let mut command =
        sandbox.scripted("-s sqlite:locks.db run x", "cd other; \"$LEASEHOLD\" run -n x -- echo twice");
    let output = command.current_dir(sandbox.path("a%20?b")).output().unwrap();
    Outcome::of(output).expect(123);
    assert!(!sandbox.path("a%20?b/other/locks.db").exists());
}
