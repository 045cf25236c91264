//! `--max-hold`: a command that hangs loses its lock (fault 75 in docs/evidence/faults.md).

use serde_json::Value;

use crate::support::Sandbox;

fn report(sandbox: &Sandbox) -> Value {
    serde_json::from_str(&sandbox.read("out.json")).unwrap()
}

#[test]
fn a_command_that_ignores_the_limit_is_killed() {
    let sandbox = Sandbox::new();
    let script = "trap '' TERM; echo ready; while :; do sleep 0.01; done";
    let holder = sandbox.hold("run x --ttl 5m --max-hold 8s --grace 2s --report out.json", script);
    let shown = sandbox.run("show x").expect(0).stdout;
    assert!(shown.contains(", limit 8s"), "{shown}");
    assert!(sandbox.run("ls").expect(0).stdout.contains(", limit 8s"));
    let json: Value = serde_json::from_str(&sandbox.run("show x --json").expect(0).stdout).unwrap();
    assert_eq!(json["held_by"]["holder"]["max_hold_ms"], 8_000);
    // The next process gets the lock long before the lease would end.
    let waited = sandbox.run("run x --wait 60s -- true");
    waited.expect(0);
    let ended = holder.end().expect(121);
    assert!(ended.stderr.contains("reached its limit: it may be held for 8s"), "{ended:?}");
    let report = report(&sandbox);
    assert_eq!((&report["outcome"], &report["exit_code"]), (&"limit".into(), &121.into()));
    assert_eq!((&report["lost_reason"], &report["released"]), (&"limit".into(), &true.into()));
    assert_eq!(report["command_signal"], 9);
    assert!(report["held_ms"].as_u64().unwrap() < 8_000, "{report}");
    let history = sandbox.run("history x").expect(0).stdout;
    assert!(history.contains(" limit "), "{history}");
}

#[test]
fn a_command_that_obeys_sigterm_ends_before_the_limit() {
    let sandbox = Sandbox::new();
    let script = "trap 'echo cleaned up; exit 0' TERM; echo ready; while :; do sleep 0.01; done";
    let mut holder = sandbox.hold("run x --max-hold 4s --grace 2s --report out.json", script);
    assert_eq!(holder.line(), "cleaned up");
    holder.end().expect(121);
    assert_eq!(
        (report(&sandbox)["command_exit_code"].clone(), report(&sandbox)["outcome"].clone()),
        (0.into(), "limit".into())
    );
}

#[test]
fn a_command_that_ends_in_time_has_its_own_exit_code() {
    let sandbox = Sandbox::new();
    sandbox.run_script("run x --max-hold 1h", "exit 7").expect(7);
    sandbox.run("once y --per 1h --max-hold 1h -- true").expect(0);
    let history = sandbox.run("history x").expect(0).stdout;
    assert!(history.contains(" released "), "{history}");
}

#[test]
fn the_limit_of_a_ticket_is_that_of_its_command() {
    let sandbox = Sandbox::new();
    let ticket = sandbox.run("acquire x --max-hold 3s").expect(0).stdout.trim().to_owned();
    sandbox.run(&format!("run --ticket={ticket} --grace 1s -- sleep 1000")).expect(121);
    // The command is stopped a little before the limit.
    let lost = loop {
        let renewal = sandbox.run(&format!("renew {ticket}"));
        if renewal.code != 0 {
            break renewal.expect(1);
        }
    };
    assert!(lost.stderr.contains("lost"), "{lost:?}");
    // Another process may use the ticket, so the lock lapses.
    sandbox.run("run x --try -- true").expect(123);
}

/// SIGKILL comes a moment before the limit, also without a grace.
#[test]
fn without_a_grace_the_end_is_the_limits_too() {
    let sandbox = Sandbox::new();
    sandbox.run("run x --max-hold 1s --grace 0s --report out.json -- sleep 1000").expect(121);
    assert_eq!(report(&sandbox)["outcome"], "limit");
    sandbox.run("run x --try -- true").expect(0);
}

#[test]
fn a_limit_that_is_not_longer_than_the_grace_is_refused() {
    let sandbox = Sandbox::new();
    for (words, named) in [
        ("run x --max-hold 10s -- true", ["max-hold 10s", "grace 10s"]),
        ("run x --max-hold 1s --grace 2s -- true", ["max-hold 1s", "grace 2s"]),
        ("acquire x --max-hold 400ms", ["max hold 400ms", "500ms"]),
        ("acquire x --max-hold 367days", ["max hold", "366 days"]),
    ] {
        let outcome = sandbox.run(words);
        assert!([2, 125].contains(&outcome.code), "{words}: {outcome:?}");
        assert!(named.iter().all(|part| outcome.stderr.contains(part)), "{words}: {outcome:?}");
    }
    sandbox.write("config/leasehold/config.toml", "max_hold = \"5s\"\n");
    assert!(sandbox.run("run x -- true").expect(2).stderr.contains("max-hold 5s"));
    sandbox.run("run x --max-hold 0s -- true").expect(0);
}
