//! `ls`, `show`, `history`, `evict`, `init`.

use std::process::Stdio;

use serde_json::Value;

use crate::support::{Holder, Outcome, Sandbox};

fn held(sandbox: &Sandbox, words: &str) -> Holder {
    let mut command = sandbox.scripted(words, "echo $LEASEHOLD_TOKEN; cat");
    Holder::start({
        command.stdin(Stdio::piped());
        command
    })
}

fn documents(outcome: &Outcome) -> Vec<Value> {
    outcome.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn ls_shows_held_and_free_locks() {
    let sandbox = Sandbox::new();
    assert_eq!(sandbox.run("ls").expect(0).stdout, "");
    let holder = held(&sandbox, "run deploy/prod --owner alice --note releasing");
    sandbox.run("run deploy/test -- true").expect(0);
    sandbox.run("run nightly -- true").expect(0);
    let all = sandbox.run("ls").expect(0).stdout;
    let lines: Vec<&str> = all.lines().collect();
    assert_eq!(lines.len(), 4, "{all}");
    assert!(lines[0].starts_with("LOCK") && lines[0].ends_with("HOLDER"), "{all}");
    assert!(lines[1].starts_with("deploy/prod  held") && lines[1].ends_with("\"releasing\""), "{all}");
    assert!(lines[1].contains("alice@") && lines[1].contains("<= "), "{all}");
    assert!(lines[2].starts_with("deploy/test  free"), "{all}");
    let some = documents(&sandbox.run("ls deploy/ --json").expect(0));
    assert_eq!(some.len(), 2);
    assert_eq!((&some[0]["lock"], &some[0]["state"]), (&"deploy/prod".into(), &"held".into()));
    assert_eq!(some[0]["token"].to_string(), holder.first);
    assert_eq!(some[0]["held_by"]["holder"]["name"], "alice");
    assert_eq!(some[0]["held_by"]["holder"]["pid"], holder.pid());
    assert!(some[0]["held_by"]["held_ms"].is_u64() && some[0]["held_by"]["lapses_within_ms"].is_u64());
    assert_eq!(some[1]["state"], "free");
    assert_eq!(sandbox.run("ls nothing --json").expect(0).stdout, "");
}

#[test]
fn ls_skips_a_damaged_record_and_then_fails() {
    let sandbox = Sandbox::new();
    for name in ["a", "b", "c"] {
        sandbox.run(&format!("run {name} -- true")).expect(0);
    }
    let store = rusqlite::Connection::open(sandbox.path("state/leasehold/locks.db")).unwrap();
    store.execute("UPDATE lock SET record = 'damaged' WHERE name = 'b'", ()).unwrap();
    let listed = sandbox.run("ls").expect(125);
    let lines: Vec<&str> = listed.stdout.lines().collect();
    assert!(lines.len() == 3 && lines[1].starts_with("a ") && lines[2].starts_with("c "), "{listed:?}");
    assert!(listed.stderr.starts_with("warning: skipped lock `b`: "), "{listed:?}");
    assert!(listed.stderr.contains("error: 1 of the records could not be read"), "{listed:?}");
    let json = sandbox.run("ls --json").expect(125);
    assert_eq!(documents(&json).iter().map(|lock| &lock["lock"]).collect::<Vec<_>>(), ["a", "c"]);
    let errors: Vec<Value> = json.stderr.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((&errors[0]["type"], &errors[1]["kind"]), (&"warning".into(), &"corrupt".into()), "{json:?}");
}

#[test]
fn show_and_history_describe_one_lock() {
    let sandbox = Sandbox::new();
    sandbox.run("run x --note first -- true").expect(0);
    let holder = held(&sandbox, "run x --note second");
    let shown = sandbox.run("show x").expect(0).stdout;
    assert!(shown.contains("state   held\n") && shown.contains("second"), "{shown}");
    let history = sandbox.run("history x").expect(0).stdout;
    assert!(history.lines().nth(1).unwrap().contains("released"), "{history}");
    sandbox.run(&format!("evict x --reason stuck --token {}", holder.first)).expect(0);
    let history = sandbox.run("history x").expect(0).stdout;
    assert!(history.contains("evicted by tester@") && history.contains(": stuck"), "{history}");
    let grants = documents(&sandbox.run("history x --json").expect(0));
    assert_eq!((&grants[0]["end"], &grants[1]["end"]), (&"evicted".into(), &"released".into()));
    assert_eq!(grants[0]["holder"]["note"], "second");
    assert_eq!(grants[0]["evicted"]["reason"], "stuck");
}

#[test]
fn show_tells_a_lock_that_was_never_seen_from_one_that_is_free() {
    let sandbox = Sandbox::new();
    let unseen = sandbox.run("show never/seen").expect(0).stdout;
    assert_eq!(unseen, "lock   never/seen\nstate  the store has no record of a lock of this name\n");
    let json = documents(&sandbox.run("show never/seen --json").expect(0));
    assert_eq!((&json[0]["state"], json[0]["token"].is_null()), (&"free".into(), true), "as in the API");
    sandbox.run("run x -- true").expect(0);
    assert!(sandbox.run("show x").expect(0).stdout.contains("state  free\n"));
    sandbox.run("run render --permits 2 -- true").expect(0);
    let semaphore = sandbox.run("show render").expect(0).stdout;
    assert!(
        semaphore.contains("no record as a plain lock; locks below it: leasehold ls render/"),
        "{semaphore}"
    );
}

#[test]
fn show_needs_no_listing() {
    let sandbox = Sandbox::new();
    sandbox.run("-s dir:locks init").expect(0);
    sandbox.run("-s dir:locks run a/b -- true").expect(0);
    // A folder instead of the latest generation cannot be read.
    let latest = sandbox.path("locks/a%2fb%2elock/00000000000000000002");
    std::fs::remove_file(&latest).unwrap();
    std::fs::create_dir(&latest).unwrap();
    sandbox.run("-s dir:locks ls").expect(125);
    assert!(sandbox.run("-s dir:locks show a").expect(0).stdout.contains("no record of a lock of this name"));
}

#[test]
fn ls_filters_by_state_and_counts_waiters() {
    let sandbox = Sandbox::new();
    let _holder = held(&sandbox, "run deploy/prod");
    sandbox.run("run deploy/test -- true").expect(0);
    sandbox.run("once nightly --per 1h -- true").expect(0);
    let names = |words: &str| -> Vec<String> {
        let documents = documents(&sandbox.run(&format!("ls --json {words}")).expect(0));
        documents.iter().map(|lock| lock["lock"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(names("--state held,lapsed"), ["deploy/prod"]);
    assert_eq!(names("--state held --state cooldown"), ["deploy/prod", "nightly"]);
    assert_eq!(names("--state free deploy/"), ["deploy/test"]);
    let cooldown = sandbox.run("ls nightly").expect(0).stdout;
    assert!(cooldown.contains("  after tester@"), "{cooldown}");
    let cooldown = sandbox.run("show nightly").expect(0).stdout;
    assert!(cooldown.contains("\nafter    tester@") && cooldown.contains("\nends in  <= "), "{cooldown}");
    let none = sandbox.run("ls --state lapsed").expect(0);
    assert_eq!((&*none.stdout, &*none.stderr), ("", "no locks are lapsed\n"));
    let wrong = sandbox.run("ls --state busy").expect(2);
    assert!(wrong.stderr.contains("held, lapsed, reserved, cooldown, free"), "{wrong:?}");
    let mut waiter = sandbox.leasehold(["run", "deploy/prod", "--", "true"]).spawn().unwrap();
    crate::support::wait_until("it is counted", || {
        let table = sandbox.run("ls --state held").expect(0).stdout;
        let line = table.lines().nth(1).unwrap().split_whitespace().collect::<Vec<_>>();
        // deploy/prod held 85ms <= 30s 1 tester@...
        table.contains("WAITERS") && line[5] == "1"
    });
    waiter.kill().unwrap();
    waiter.wait().unwrap();
}

/// Without a terminal, each look is a table after a line with its time.
#[test]
fn ls_watches() {
    let sandbox = Sandbox::new();
    sandbox.run("ls --watch --json").expect(2);
    let interval = sandbox.run("ls --watch 10s").expect(2);
    assert!(interval.stderr.contains("for an interval: --watch=10s"), "{interval:?}");
    sandbox.run("run x -- true").expect(0);
    let mut watch = Holder::start(sandbox.leasehold(["ls", "--watch=100ms"]));
    let is_time = |line: &str| line.contains("T") && line.ends_with("Z, every 100ms");
    assert!(is_time(&watch.first), "{}", watch.first);
    assert!(watch.line().starts_with("LOCK") && watch.line().starts_with("x "));
    assert_eq!(watch.line(), "");
    assert!(is_time(&watch.line()));
    sandbox.run("run y -- true").expect(0);
    while !watch.line().starts_with("y ") {}
    watch.signal(rustix::process::Signal::INT);
    watch.end().expect(130);
}

#[test]
fn evict_is_compare_and_set() {
    let sandbox = Sandbox::new();
    sandbox.run("evict x").expect(2);
    let holder = held(&sandbox, "run x");
    let stale = sandbox.run("evict x --token 1").expect(1);
    assert!(stale.stderr.contains("nothing was changed"), "{stale:?}");
    sandbox.run("run -n x -- true").expect(123);
    sandbox.run(&format!("evict x --token {}", holder.first)).expect(0);
    sandbox.run(&format!("evict x --token {}", holder.first)).expect(1);
    sandbox.run("run -n x -- true").expect(0);
    sandbox.run("evict x --token 99999999999999999").expect(2);
    // `evict` does not read the token from the environment of a command.
    let output = sandbox.leasehold(["evict", "x"]).env("LEASEHOLD_TOKEN", "1").output().unwrap();
    Outcome::of(output).expect(2);
}

#[test]
fn init_makes_the_store() {
    let sandbox = Sandbox::new();
    let url = format!("sqlite:{}", sandbox.path("new.db").display());
    assert!(sandbox.run(&format!("-s {url} init")).expect(0).stdout.contains("ready"));
    assert!(sandbox.path("new.db").exists());
    sandbox.run(&format!("-s {url} init")).expect(0);
    let unmounted = sandbox.run("-s dir:mnt/locks init").expect(125);
    assert!(unmounted.stderr.contains("help: create the folder above it"), "{unmounted:?}");
}

#[test]
fn a_reader_that_closes_its_pipe_causes_no_panic() {
    let sandbox = Sandbox::new();
    sandbox.run("run x -- true").expect(0);
    for words in ["ls", "show x", "man", "help stores", "completions bash", "--help"] {
        let mut command = sandbox.leasehold(words.split_whitespace());
        let mut process = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        drop(process.stdout.take());
        let ended = Outcome::of(process.wait_with_output().unwrap()).expect(0);
        assert_eq!(ended.stderr, "", "{words}");
    }
}

#[test]
fn ls_reads_no_further_locks_after_its_pipe_was_closed() {
    let sandbox = Sandbox::new();
    sandbox.run("run a -- true").expect(0);
    sandbox.run("run b -- true").expect(0);
    let store = rusqlite::Connection::open(sandbox.path("state/leasehold/locks.db")).unwrap();
    store.execute("UPDATE lock SET record = 'damaged' WHERE name = 'b'", ()).unwrap();
    let (reader, closed) = std::io::pipe().unwrap();
    drop(reader);
    let ended = Outcome::of(sandbox.leasehold(["ls", "--json"]).stdout(closed).output().unwrap()).expect(0);
    assert_eq!(ended.stderr, "", "the damaged record is not reported");
}

#[test]
fn sweep_deletes_only_locks_that_were_free_for_long() {
    let sandbox = Sandbox::new();
    let holder = held(&sandbox, "run deploy/prod");
    sandbox.run("run deploy/test -- true").expect(0);
    sandbox.run("run nightly -- true").expect(0);
    assert_eq!(sandbox.run("sweep --older-than 1h").expect(0).stdout, "deleted 0 of 3 records\n");
    let dry = documents(&sandbox.run("sweep --older-than 1ms --dry-run --json").expect(0));
    assert_eq!((dry.len(), &dry[0]["type"], &dry[0]["lock"]), (3, &"swept".into(), &"deploy/test".into()));
    assert_eq!(
        (&dry[2]["type"], &dry[2]["deleted"], &dry[2]["looked_at"]),
        (&"sweep".into(), &2.into(), &3.into())
    );
    assert_eq!(dry[2]["dry_run"], true);
    let swept = sandbox.run("sweep deploy/ --older-than 1ms").expect(0).stdout;
    assert_eq!(swept, "deleted deploy/test\ndeleted 1 of 2 records\n");
    let left: Vec<_> = documents(&sandbox.run("ls --json").expect(0));
    assert_eq!(left.iter().map(|lock| &lock["lock"]).collect::<Vec<_>>(), ["deploy/prod", "nightly"]);
    holder.signal(rustix::process::Signal::TERM);
    holder.end().expect(143);
}
