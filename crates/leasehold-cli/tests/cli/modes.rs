//! `--permits`, `--shared`, `--exclusive`: several holders of one name.

use std::io::{BufRead as _, BufReader};
use std::process::Stdio;

use serde_json::Value;

use crate::support::{Holder, Outcome, Sandbox};

const SHOW: &str = "echo $LEASEHOLD_LOCK $LEASEHOLD_PERMIT; cat";

fn held(sandbox: &Sandbox, words: &str) -> Holder {
    let mut command = sandbox.scripted(words, SHOW);
    command.stdin(Stdio::piped());
    Holder::start(command)
}

fn ended(mut holder: Holder) {
    drop(holder.process.stdin.take());
    holder.end().expect(0);
}

#[test]
fn a_refusal_names_the_holders_of_all_permits() {
    let sandbox = Sandbox::new();
    let first = held(&sandbox, "run render --permits 2 --owner alice");
    let second = held(&sandbox, "run render --permits 2 --owner bob");
    let mut permits = [first.first.clone(), second.first.clone()];
    permits.sort();
    assert_eq!(permits, ["render/permit-1 1", "render/permit-2 2"]);
    let refused = sandbox.run("run -n render --permits 2 -- true").expect(123);
    let lines: Vec<&str> = refused.stderr.lines().collect();
    assert!(
        lines[0].starts_with("error: all 2 permits of `render` are held: `render/permit-1` by "),
        "{lines:?}"
    );
    assert!(lines[0].contains("alice@") && lines[0].contains("bob@"), "{lines:?}");
    assert_eq!(lines[1], "  help: to wait: leasehold run --wait 10m --permits 2 render -- ...");
    assert!(lines[2].contains("when that process ends, the lock is free at once"), "{lines:?}");
    assert_eq!(lines[3], "  help: to list the holders: leasehold ls render");
    let late = sandbox.run("run -w 5s render --permits 2 -- true").expect(124);
    assert!(late.stderr.contains("are held") && late.stderr.contains("; timed out after 5s"), "{late:?}");
    sandbox.run("run -n -E 0 render --permits 2 -- false").expect(0);
    let listed = sandbox.run("ls render").expect(0).stdout;
    assert!(listed.contains("render/permit-1") && listed.contains("render/permit-2"), "{listed}");
    ended(first);
    sandbox.run("run -n render --permits 2 -- true").expect(0);
    ended(second);
}

#[test]
fn a_waiter_gets_the_permit_that_is_released() {
    let sandbox = Sandbox::new();
    let first = held(&sandbox, "run render --permits 1 --owner alice");
    let mut command = sandbox.scripted("run render --permits 1", "echo $LEASEHOLD_PERMIT");
    let mut process = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    let mut stderr = BufReader::new(process.stderr.take().unwrap());
    stderr.read_line(&mut line).unwrap();
    assert!(line.starts_with("     Waiting for render (the permit is held): alice@"), "{line}");
    ended(first);
    assert_eq!(Outcome::of(process.wait_with_output().unwrap()).expect(0).stdout, "1\n");
}

#[test]
fn the_report_names_the_permit_if_there_is_one() {
    let sandbox = Sandbox::new();
    let report = |words: &str| -> Value {
        let script = "test \"$LEASEHOLD_PERMIT\" = \"$EXPECTED\"";
        let mut command = sandbox.scripted(&format!("run {words} --report out.json"), script);
        command
            .env("LEASEHOLD_PERMIT", "7")
            .env("EXPECTED", if words.contains("permits") { "1" } else { "" });
        Outcome::of(command.output().unwrap()).expect(0);
        serde_json::from_str(&sandbox.read("out.json")).unwrap()
    };
    let permit = report("render --permits 1");
    assert_eq!((&permit["lock"], &permit["permit"]), (&"render/permit-1".into(), &1.into()));
    let plain = report("render/permit-3");
    assert_eq!((&plain["lock"], &plain["permit"]), (&"render/permit-3".into(), &Value::Null));
}

#[test]
fn readers_share_the_lock_and_a_writer_excludes_all() {
    let sandbox = Sandbox::new();
    let (first, second) =
        (held(&sandbox, "run index --shared --owner alice"), held(&sandbox, "run index --shared"));
    assert!(first.first.starts_with("index/shared-") && second.first.starts_with("index/shared-"));
    let refused = sandbox.run("run -n index --exclusive -- true").expect(123);
    assert!(refused.stderr.starts_with("error: lock `index` is held shared: `index/shared-"), "{refused:?}");
    assert!(
        refused.stderr.contains("alice@") && refused.stderr.contains("10m --exclusive index -- ..."),
        "{refused:?}"
    );
    // A plain lock does not wait for readers.
    sandbox.run("run -n index -- true").expect(0);
    ended(first);
    ended(second);
    let writer = held(&sandbox, "run index --exclusive --owner carol");
    assert_eq!(writer.first, "index");
    for words in ["--shared", "--exclusive", ""] {
        let refused = sandbox.run(&format!("run -n index {words} -- true")).expect(123);
        assert!(refused.stderr.starts_with("error: lock `index` is held by carol@"), "{refused:?}");
    }
    let late = sandbox.run("run -w 300ms index --shared -- true").expect(124);
    assert!(late.stderr.contains("held by carol@"), "{late:?}");
    ended(writer);
    sandbox.run("run -n index --shared -- true").expect(0);
}

#[test]
fn a_writer_that_loses_one_part_is_stopped() {
    let sandbox = Sandbox::new();
    let writer = held(&sandbox, "run index --exclusive --ttl 15s");
    let shown = sandbox.run("show --json index/shared-5").expect(0).stdout;
    let token = serde_json::from_str::<Value>(&shown).unwrap()["token"].as_u64().unwrap();
    sandbox.run(&format!("evict index/shared-5 --token {token}")).expect(0);
    let ended = writer.end().expect(122);
    assert!(ended.stderr.contains("index/shared-5"), "{ended:?}");
    sandbox.run("run -w 30s index --exclusive -- true").expect(0);
}

#[test]
fn tickets_exist_for_permits_shared_and_exclusive_holds() {
    let sandbox = Sandbox::new();
    let acquired = sandbox.run("--json acquire render --permits 1").expect(0).stdout;
    let acquired: Value = serde_json::from_str(&acquired).unwrap();
    assert_eq!((&acquired["lock"], &acquired["permit"]), (&"render/permit-1".into(), &1.into()));
    let refused = sandbox.run("acquire -n render --permits 1").expect(123);
    assert!(refused.stderr.contains("by ticket"), "{refused:?}");
    sandbox.run(&format!("release {}", acquired["ticket"].as_str().unwrap())).expect(0);
    sandbox.run("run -n render --permits 1 -- true").expect(0);
    let ticket = sandbox.run("acquire index --shared").expect(0).stdout;
    sandbox.run("run -n index --exclusive -- true").expect(123);
    sandbox.run(&format!("release {ticket}")).expect(0);
    let ticket = sandbox.run("acquire index --exclusive").expect(0).stdout;
    sandbox.run("run -n index --shared -- true").expect(123);
    sandbox.run(&format!("run --ticket={} -- true", ticket.trim())).expect(0);
    sandbox.run(&format!("renew {ticket}")).expect(0);
    sandbox.run(&format!("release {ticket}")).expect(0);
    sandbox.run("run -n index --shared -- true").expect(0);
}

#[test]
fn conflicting_options_are_usage_errors() {
    let sandbox = Sandbox::new();
    for words in
        ["--permits 0", "--permits 65", "--permits x", "--permits 2 --shared", "--shared --exclusive"]
    {
        let refused = sandbox.run(&format!("run x {words} -- true")).expect(2);
        assert!(refused.stderr.starts_with("error: "), "{refused:?}");
        sandbox.run(&format!("acquire x {words}")).expect(2);
    }
    let long = "x".repeat(250);
    let refused = sandbox.run(&format!("run -s sqlite: {long} --permits 2 -- true"));
    assert!(refused.stderr.contains("longer than 256 bytes"), "{refused:?}");
    assert_eq!(refused.stderr.lines().count(), 2, "{refused:?}");
}

#[test]
fn a_run_blocked_by_its_parent_reports_it() {
    let sandbox = Sandbox::new();
    for (outer, inner) in
        [("--shared", "--exclusive"), ("--exclusive", "--shared"), ("--permits 1", "--permits 1")]
    {
        let script = format!("exec \"$LEASEHOLD\" run -n x {inner} -- true");
        let tried = sandbox.run_script(&format!("run x {outer}"), &script).expect(123);
        assert!(
            tried.stderr.contains("help: this command runs under a `leasehold run` that holds the same lock"),
            "{outer}: {tried:?}"
        );
    }
}

#[test]
fn another_number_of_permits_or_readers_is_refused_until_a_resize() {
    let sandbox = Sandbox::new();
    sandbox.run("run render --permits 2 -- true").expect(0);
    let refused = sandbox.run("run render --permits 3 -- true").expect(125).stderr;
    let says = "error: `render` has 2 permits in the store, and this acquisition asks for 3\n";
    assert!(refused.starts_with(says) && refused.contains("leasehold resize render 3"), "{refused}");
    let holder = held(&sandbox, "run render --permits 2 --owner alice");
    let refused = sandbox.run("resize render 3").expect(123).stderr;
    assert!(
        refused.contains("`render` cannot be resized while it is held") && refused.contains("alice@"),
        "{refused}"
    );
    ended(holder);
    sandbox.run("run render -s sqlite:other.db --permits 2 -- true").expect(0);
    let refused = sandbox.run("run render -s sqlite:other.db --permits 3 -- true").expect(125).stderr;
    assert!(refused.contains("leasehold -s sqlite:other.db resize render 3"), "{refused}");
    assert_eq!(sandbox.run("resize render 3").expect(0).stdout, "render has 3 permits; it had 2\n");
    sandbox.run("run -n render --permits 3 -- true").expect(0);
    sandbox.run("run index --shared --readers 2 -- true").expect(0);
    let refused = sandbox.run("run index --exclusive -- true").expect(125).stderr;
    assert!(refused.contains("to resize it: leasehold resize --readers index 8\n"), "{refused}");
    let resized: Value =
        serde_json::from_str(&sandbox.run("resize index 3 --json").expect(0).stdout).unwrap();
    assert_eq!((&resized["before"], &resized["readers"]), (&2.into(), &3.into()));
    sandbox.run("run index --exclusive --readers 3 -- true").expect(0);
    let nothing = sandbox.run("resize nothing 3").expect(125).stderr;
    assert!(nothing.contains("`nothing` has no number of permits or readers in the store"), "{nothing}");
    for wrong in ["run x --readers 3 -- true", "run x --permits 2 --readers 3 -- true", "resize render 65"] {
        sandbox.run(wrong).expect(2);
    }
}
