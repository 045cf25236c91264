//! `once`: runs a command once per period.

use std::process::Stdio;

use rustix::process::Signal;
use serde_json::Value;

use crate::support::{Outcome, Sandbox, send, wait_until};

fn report(sandbox: &Sandbox) -> Value {
    serde_json::from_str(&sandbox.read("out.json")).unwrap()
}

#[test]
fn one_of_four_concurrent_starts_runs_the_command() {
    let sandbox = Sandbox::new();
    let start = |_| {
        let mut command = sandbox.scripted("once nightly --per 1h", "echo ran; sleep 0.3");
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let four: Vec<_> = (0..4).map(start).collect();
    let four: Vec<_> =
        four.into_iter().map(|process| Outcome::of(process.wait_with_output().unwrap()).expect(0)).collect();
    assert_eq!(four.iter().filter(|outcome| outcome.stdout == "ran\n").count(), 1, "{four:#?}");
    for other in four.iter().filter(|outcome| outcome.stdout.is_empty()) {
        let line = other.stderr.lines().last().unwrap();
        assert!(line.starts_with("nightly already ran ") && line.contains(" ago (tester@"), "{other:?}");
        assert!(line.contains(", next run in <= 59m") || line.ends_with(", next run in <= 1h"), "{other:?}");
    }
    let tried = sandbox.run("once -n nightly --per 1h -- echo never").expect(0);
    assert!(tried.stdout.is_empty() && tried.stderr.starts_with("nightly already ran "), "{tried:?}");
    let quiet = sandbox.run("once -q nightly --per 1h -- echo never").expect(0);
    assert_eq!((&*quiet.stdout, &*quiet.stderr), ("", ""));
    let json = sandbox.run("once --json nightly --per 1h -- echo never").expect(0);
    let line: Value = serde_json::from_str(&json.stderr).unwrap();
    assert_eq!((&line["type"], &line["lock"]), (&"already_ran".into(), &"nightly".into()));
    assert_eq!(line["holder"]["name"], "tester");
    assert!(line["token"].is_u64() && line["ago_ms"].is_u64(), "{line}");
    assert!(line["again_within_ms"].as_u64().unwrap() <= 3_600_000, "{line}");
    // An operator can end the cooldown.
    sandbox.run(&format!("evict nightly --token {}", line["token"])).expect(0);
    assert_eq!(sandbox.run("once nightly --per 1h -- echo again").expect(0).stdout, "again\n");
}

#[test]
fn a_failure_may_be_tried_again_unless_failures_count() {
    let sandbox = Sandbox::new();
    sandbox.run_script("once x --per 1h", "exit 3").expect(3);
    sandbox.run_script("once x --per 1h", "kill -KILL $$").expect(137);
    // A process that waits for a run runs the command next if that run fails.
    let failing = sandbox.hold("once x --per 1h", "echo held; until test -e go; do sleep 0.01; done; exit 4");
    let mut waiting = sandbox.scripted("once x --per 1h --report out.json", "echo mine");
    let mut waiting = waiting.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(waiting.stderr.as_mut().unwrap()), &mut line)
        .unwrap();
    assert!(line.contains("Waiting for x: tester@"), "{line}");
    sandbox.write("go", "");
    failing.end().expect(4);
    assert_eq!(Outcome::of(waiting.wait_with_output().unwrap()).expect(0).stdout, "mine\n");
    let ran = report(&sandbox);
    assert_eq!(
        (&ran["outcome"], &ran["cooldown"], &ran["released"]),
        (&"exited".into(), &true.into(), &true.into())
    );
    assert!(ran["already_ran"].is_null());

    sandbox.run_script("once y --per 1h --count-failures --report out.json", "exit 3").expect(3);
    assert_eq!(
        (&report(&sandbox)["outcome"], &report(&sandbox)["cooldown"]),
        (&"exited".into(), &true.into())
    );
    // So does one that hangs, until the limit of the hold.
    let hangs = "--per 1h --max-hold 2s --grace 1s --report out.json";
    sandbox.run(&format!("once h --count-failures {hangs} -- sleep 1000")).expect(121);
    assert_eq!(
        (&report(&sandbox)["outcome"], &report(&sandbox)["cooldown"]),
        (&"limit".into(), &true.into())
    );
    assert!(sandbox.run("once h --per 1h -- echo never").expect(0).stdout.is_empty());
    sandbox.run(&format!("once i {hangs} -- sleep 1000")).expect(121);
    assert_eq!(sandbox.run("once i --per 1h -- echo again").expect(0).stdout, "again\n");

    sandbox.run("once y --per 1h --report out.json -- echo never").expect(0);
    let earlier = report(&sandbox);
    assert_eq!((&earlier["outcome"], &earlier["exit_code"]), (&"already_ran".into(), &0.into()));
    assert_eq!(earlier["already_ran"]["holder"]["name"], "tester");
    assert!(earlier["already_ran"]["again_within_ms"].is_u64() && earlier["command_exit_code"].is_null());
    assert!(earlier["message"].as_str().unwrap().starts_with("y already ran "));
    let output = sandbox.scripted("once z --per 1h", "exit 3").env("LEASEHOLD_COUNT_FAILURES", "1").output();
    Outcome::of(output.unwrap()).expect(3);
    sandbox.run("once -n z --per 1h -- echo never").expect(0);
    // A command that did not start does not count as a run.
    sandbox.run("once v --per 1h --count-failures -- /no/such").expect(127);
    sandbox.run("once v --per 1h -- true").expect(0);
}

#[test]
fn a_crashed_run_is_repeated_by_the_next_process() {
    let sandbox = Sandbox::new();
    let dead = sandbox.hold("once x --per 1h --ttl 30s", "echo held; while :; do sleep 0.05; done");
    let held = sandbox.run("once -n x --per 1h -- echo never").expect(123);
    assert!(held.stderr.contains("is held by tester@"), "{held:?}");
    assert!(held.stderr.contains("leasehold once --wait 10m x --per ... -- ..."), "{held:?}");
    sandbox.run("once -n -E 0 x --per 1h -- echo never").expect(0);
    let timed_out = sandbox.run("once -w 100ms x --per 1h -- echo never").expect(124);
    assert!(
        timed_out.stderr.contains("timed out after 100ms") && timed_out.stdout.is_empty(),
        "{timed_out:?}"
    );
    send(dead.guardian(), Signal::KILL);
    dead.signal(Signal::KILL);
    assert_eq!(sandbox.run("once -w 60s x --per 1h -- echo ran").expect(0).stdout, "ran\n");
    sandbox.run("once -w 60s x --per 1h -- echo never").expect(0);
}

#[test]
fn the_command_runs_again_after_its_period() {
    let sandbox = Sandbox::new();
    let env = leasehold::env::Env::system();
    let start = env.now();
    assert_eq!(sandbox.run("once x --per 1s -- echo ran").expect(0).stdout, "ran\n");
    wait_until("it runs again", || sandbox.run("once x --per 1s -- echo ran").expect(0).stdout == "ran\n");
    let took = env.now().longest_since(start);
    assert!(took >= std::time::Duration::from_millis(995), "{took:?}");
    // If a run takes longer than its period, the waiting process runs after it, not at the same time.
    let first = sandbox.hold("once y --per 50ms", "echo $$; sleep 0.3");
    let pid = first.first.clone();
    let next =
        sandbox.run_script("once y --per 1h", &format!("kill -0 {pid} 2>/dev/null || echo ran")).expect(0);
    assert_eq!(next.stdout, "ran\n");
    first.end().expect(0);
}

#[test]
fn an_unrecorded_success_exits_125() {
    let sandbox = Sandbox::new();
    sandbox.run("init").expect(0);
    let words = "once x --per 1h --ttl 8s --grace 100ms --report out.json";
    let holder = sandbox.hold(words, "echo held; until test -e go; do sleep 0.01; done");
    let cut_off = sandbox.cut_off();
    sandbox.write("go", "");
    let ended = holder.end().expect(125);
    drop(cut_off);
    assert!(
        ended.stderr.contains("`x` succeeded, but the run could not be recorded in the store"),
        "{ended:?}"
    );
    assert!(ended.stderr.contains("help: the command may run again within its period"), "{ended:?}");
    let report = report(&sandbox);
    assert_eq!((&report["outcome"], &report["exit_code"]), (&"not_recorded".into(), &125.into()), "{report}");
    assert_eq!((&report["command_exit_code"], &report["cooldown"]), (&0.into(), &false.into()), "{report}");
    sandbox.run("once -w 60s x --per 1h -- echo ran").expect(0);
}

#[test]
fn a_lost_lock_exits_122_and_is_not_counted_as_a_run() {
    let sandbox = Sandbox::new();
    let holder = sandbox.hold(
        "once x --per 1h --count-failures --ttl 9s --report out.json",
        "echo $LEASEHOLD_TOKEN; while :; do sleep 0.05; done",
    );
    sandbox.run(&format!("evict x --token {}", holder.first)).expect(0);
    holder.end().expect(122);
    assert_eq!((&report(&sandbox)["outcome"], &report(&sandbox)["cooldown"]), (&"lost".into(), &Value::Null));
    assert_eq!(sandbox.run("once x --per 1h -- echo ran").expect(0).stdout, "ran\n");
}

#[test]
fn a_bad_period_is_a_usage_error_and_nothing_runs() {
    let sandbox = Sandbox::new();
    for (words, says) in [
        ("once x", "--per is missing"),
        ("once x --per 0s", "period 0ms is out of range"),
        ("once x --per 367d", "at most 366 days"),
        ("once x --per soon", "expected a duration like"),
        ("once x --per 5", "expected a duration like"),
    ] {
        let refused = sandbox.run(&format!("{words} -- echo ran")).expect(2);
        assert!(refused.stderr.contains(says) && refused.stdout.is_empty(), "{words}: {refused:?}");
    }
    let by_variable = |value: &str| {
        let mut command = sandbox.leasehold(["once", "x", "--", "echo", "ran"]);
        Outcome::of(command.env("LEASEHOLD_PER", value).output().unwrap())
    };
    assert!(by_variable("soon").expect(2).stderr.contains("LEASEHOLD_PER"));
    assert_eq!(by_variable("366d").expect(0).stdout, "ran\n");
    assert!(
        by_variable("10m").expect(0).stderr.contains("next run in <= 36"),
        "the cooldown has the period of its run"
    );
}

#[test]
fn a_refusal_in_the_cooldown_says_when_it_ends() {
    let sandbox = Sandbox::new();
    sandbox.run("once x --per 1h -- true").expect(0);
    let refused = sandbox.run("run -n x -- true").expect(123);
    assert!(refused.stderr.starts_with("error: lock `x` is in its cooldown, token "), "{refused:?}");
    assert!(refused.stderr.contains("help: the cooldown ends in <= "), "{refused:?}");
    assert!(
        refused.stderr.contains("help: to end the cooldown now: leasehold evict --token "),
        "{refused:?}"
    );
}
