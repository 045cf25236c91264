//! `acquire`, `renew`, `release`, `run --ticket`: locks without a process.

use std::fs::File;
use std::net::TcpListener;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use leasehold::clock::{Clock as _, SystemClock};
use rustix::process::Signal;
use serde_json::Value;

use crate::support::{Holder, Outcome, Sandbox, is_alive, wait_until};

#[test]
fn acquire_prints_only_a_ticket_that_renew_and_release_accept() {
    let sandbox = Sandbox::new();
    let acquired = sandbox.run("acquire -s sqlite: deploy/prod --ttl 10m").expect(0);
    assert_eq!(acquired.stderr, "");
    let ticket = acquired.stdout.trim();
    assert!(ticket.starts_with("lh2_") && !ticket.contains(char::is_whitespace), "{ticket}");
    // No process is left running, but the lock is held.
    sandbox.run("run -n deploy/prod -- true").expect(123);
    assert!(sandbox.run(&format!("renew {ticket}")).expect(0).stdout.starts_with("renewed deploy/prod"));
    let output = sandbox.leasehold(["renew"]).env("LEASEHOLD_TICKET", ticket).output().unwrap();
    Outcome::of(output).expect(0);
    let file = sandbox.write("ticket", &acquired.stdout);
    let output = sandbox.leasehold(["release", "-"]).stdin(File::open(file).unwrap()).output().unwrap();
    Outcome::of(output).expect(0);
    sandbox.run("run -n deploy/prod -- true").expect(0);
    // A released ticket is invalid.
    let again = sandbox.run(&format!("renew {ticket}")).expect(1);
    assert!(again.stderr.contains("lost"), "{again:?}");
    assert!(again.stderr.contains("\n  help: stop the work, and acquire the lock again\n"), "{again:?}");
    sandbox.run(&format!("release {ticket}")).expect(1);
}

#[test]
fn a_ticket_of_another_store_requires_the_store_option() {
    let sandbox = Sandbox::new();
    let url = format!("sqlite:{}", sandbox.path("other.db").display());
    let ticket = sandbox.run(&format!("-s {url} acquire x")).expect(0).stdout.trim().to_owned();
    for words in
        [format!("renew {ticket}"), format!("release {ticket}"), format!("run --ticket={ticket} -- true")]
    {
        let refused = sandbox.run(&words).expect(2);
        for part in [&url, "sqlite:\n", "--store URL", "LEASEHOLD_STORE", "config.toml"] {
            assert!(refused.stderr.contains(part), "{part}: {refused:?}");
        }
        assert!(!sandbox.path("state").exists());
    }
    // An explicit store is used, even if the lock is not there.
    sandbox.run(&format!("-s sqlite:{} release {ticket}", sandbox.path("third.db").display())).expect(1);
    sandbox.run(&format!("-s {url} renew {ticket}")).expect(0);
    let configured = sandbox.leasehold(["renew", &ticket]).env("LEASEHOLD_STORE", &url).output().unwrap();
    Outcome::of(configured).expect(0);
    sandbox.write(
        "config/leasehold/config.toml",
        &format!("[stores.a]\nurl = 'sqlite:a.db'\n[stores.b]\nurl = '{url}?margin=9s'\n"),
    );
    sandbox.run(&format!("run --ticket={ticket} -- true")).expect(0);
    sandbox.run(&format!("release {ticket}")).expect(0);
    assert!(!sandbox.path("a.db").exists() && !sandbox.path("state").exists());
}

/// Returns a ticket from an attacker who wants leasehold to open `store`.
fn forged(store: &str) -> String {
    let json = serde_json::json!({
        "lock": "x", "secret": "00112233445566778899aabbccddeeff", "token": 7, "ttl_ms": 30_000, "store": store,
    });
    format!("lh2_{}", URL_SAFE_NO_PAD.encode(json.to_string()))
}

#[test]
fn a_forged_ticket_opens_creates_and_sends_nothing() {
    let sandbox = Sandbox::new();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let files = sandbox.path("forged");
    let files = files.display();
    for store in [
        format!("sqlite:{files}/x.db"),
        format!("sqlite://{files}/x.db?allow_network=on"),
        format!("s3://bucket/p?endpoint=http://{address}&region=us-east-1&path_style=on"),
        format!("s3://bucket/p?endpoint=http://{address}&profile=admin&protocol=existence"),
        format!("dynamodb://table?endpoint=http://{address}&region=us-east-1&create=on"),
        format!("gs://bucket?endpoint=http://{address}"),
        format!("gs://bucket?endpoint=http://{address}&credentials=anonymous"),
        format!("gs://bucket?endpoint=http://{address}&credentials={files}/key.json&impersonate=a@b.example"),
        format!("gs://bucket?proxy=http://{address}&ca={files}/ca.pem&user_project=p&kms_key=k"),
        format!("etcd://{address}/p"),
        format!("etcd://user:password@{address}/p"),
        format!("etcd://{address}/p?tls=on&ca={files}/ca.pem&cert={files}/c.pem&key={files}/k.pem"),
        "mem:".to_owned(),
        format!("unknown://{address}"),
        "sqlite:\u{1b}[31m/x".to_owned(),
    ] {
        let ticket = forged(&store);
        for configured in
            ["", "sqlite:own.db", "gs://bucket", "s3://bucket/p?region=us-east-1", "dynamodb://table"]
        {
            for words in
                [vec!["release", &ticket], vec!["renew", &ticket], vec!["run", "--ticket", "--", "true"]]
            {
                let mut command = sandbox.leasehold(&words);
                command.env("LEASEHOLD_STORE", configured).env("LEASEHOLD_TICKET", &ticket);
                for (name, value) in [("AWS_ACCESS_KEY_ID", "id"), ("AWS_SECRET_ACCESS_KEY", "hunter2")] {
                    command.env(name, value);
                }
                if store.starts_with("gs://bucket?proxy") && configured == "gs://bucket" {
                    // This is the same store. leasehold reads the configured URL and fails before it sends a request.
                    command.env("STORAGE_EMULATOR_HOST", "user@host");
                    let outcome = Outcome::of(command.output().unwrap()).expect(125);
                    let why =
                        if cfg!(feature = "gcs") { "STORAGE_EMULATOR_HOST" } else { "has no `gs:` store" };
                    assert!(outcome.stderr.contains(why), "{outcome:?}");
                    continue;
                }
                let refused = Outcome::of(command.output().unwrap()).expect(2);
                assert!(refused.stderr.contains("the ticket is for a lock in the store "), "{refused:?}");
                assert!(
                    !refused.stderr.contains('\u{1b}') && !refused.stderr.contains("password"),
                    "{refused:?}"
                );
            }
        }
    }
    let mut left: Vec<_> =
        std::fs::read_dir(sandbox.path(".")).unwrap().map(|file| file.unwrap().path()).collect();
    left.retain(|path| !path.ends_with("config"));
    assert_eq!(left, Vec::<std::path::PathBuf>::new());
    listener.set_nonblocking(true).unwrap();
    assert_eq!(listener.accept().unwrap_err().kind(), std::io::ErrorKind::WouldBlock, "nothing connected");
}

#[test]
fn acquire_names_the_holder() {
    let sandbox = Sandbox::new();
    let first: Value = serde_json::from_str(&sandbox.run("acquire x --json").expect(0).stdout).unwrap();
    assert_eq!((&first["type"], &first["ttl_ms"]), (&"ticket".into(), &30_000.into()));
    let held = sandbox.run("acquire -n x").expect(123);
    assert!(held.stderr.contains("leasehold acquire --wait 10m x\n"), "{held:?}");
    assert_eq!(held.stdout, "");
    sandbox.run("acquire -w 20ms x").expect(124);
    let token = first["token"].as_u64().unwrap();
    assert!(sandbox.run(&format!("evict x --token {token}")).expect(0).stdout.contains("evicted"));
    sandbox.run("acquire -n x").expect(0);
}

#[test]
fn an_invalid_ticket_is_not_shown() {
    let sandbox = Sandbox::new();
    for bad in ["hunter2", "lh2_hunter2", "lh2_", "lh2_é"] {
        let outcome = sandbox.run(&format!("renew {bad}")).expect(2);
        assert!(
            !outcome.stderr.contains("hunter2") && outcome.stderr.contains("not a ticket"),
            "{outcome:?}"
        );
    }
    sandbox.run("renew").expect(2);
    let empty = sandbox.leasehold(["release", "-"]).output().unwrap();
    Outcome::of(empty).expect(2);
}

#[test]
fn a_ticket_for_a_relative_path_is_good_in_every_folder() {
    let sandbox = Sandbox::new();
    let ticket = sandbox.run("-s sqlite:locks.db acquire x").expect(0).stdout.trim().to_owned();
    std::fs::create_dir(sandbox.path("other")).unwrap();
    let elsewhere = |store: &str| {
        let mut command = sandbox.leasehold(["release", &ticket]);
        command.env("LEASEHOLD_STORE", store).current_dir(sandbox.path("other"));
        Outcome::of(command.output().unwrap())
    };
    // In that folder, the same relative URL names another file.
    elsewhere("sqlite:locks.db").expect(2);
    elsewhere(&format!("sqlite:{}", sandbox.path("locks.db").display())).expect(0);
    assert!(!sandbox.path("other/locks.db").exists());
}

#[test]
fn a_refusal_names_a_ticket_instead_of_a_process() {
    let sandbox = Sandbox::new();
    sandbox.run("acquire x --owner alice --ttl 1h").expect(0);
    let refused = sandbox.run("run -n x -- true").expect(123);
    assert!(refused.stderr.contains("alice@") && refused.stderr.contains(" by ticket"), "{refused:?}");
    assert!(refused.stderr.contains("help: a ticket holds the lock; the lease ends in <= "), "{refused:?}");
}

#[test]
fn a_ticket_that_cannot_be_printed_is_released() {
    let sandbox = Sandbox::new();
    let full = File::options().write(true).open("/dev/full").unwrap();
    let output = sandbox.leasehold(["acquire", "x"]).stdout(full).output().unwrap();
    Outcome::of(output).expect(125);
    sandbox.run("run -n x -- true").expect(0);
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let output = sandbox.leasehold(["acquire", "x", "--json"]).stdout(writer).output().unwrap();
    Outcome::of(output).expect(125);
    sandbox.run("run -n x -- true").expect(0);
}

fn ticket(sandbox: &Sandbox, words: &str) -> String {
    sandbox.run(&format!("acquire {words}")).expect(0).stdout.trim().to_owned()
}

#[test]
fn a_script_runs_each_step_by_its_ticket_and_releases_it() {
    let sandbox = Sandbox::new();
    // No other process gets the lock between the steps.
    let script = r#"set -eu
        leasehold() { "$LEASEHOLD" "$@"; }
        others() { leasehold run -n steps -- true && exit 99 || [ $? -eq 123 ]; }
        LEASEHOLD_TICKET=$(leasehold acquire steps --ttl 10m); export LEASEHOLD_TICKET
        others
        leasehold run --ticket -- sh -c 'echo 1 $LEASEHOLD_LOCK $LEASEHOLD_TOKEN'
        others
        leasehold renew -q
        leasehold run --ticket="$LEASEHOLD_TICKET" -- sh -c 'echo 2 $LEASEHOLD_LOCK $LEASEHOLD_TOKEN'
        others
        printf %s "$LEASEHOLD_TICKET" | leasehold run --ticket=- -- sh -c 'echo 3 $LEASEHOLD_LOCK $LEASEHOLD_TOKEN'
        others
        leasehold run --ticket -- sh -c 'exit 9' || [ $? -eq 9 ]
        others
        leasehold release -q
        leasehold run -n steps -- true"#;
    let mut shell = std::process::Command::new("sh");
    let mut as_here = sandbox.leasehold(["-V"]);
    as_here.args(["-V"]);
    shell.args(["-c", script]).current_dir(sandbox.path("."));
    for (key, value) in as_here.get_envs() {
        match value {
            Some(value) => shell.env(key, value),
            None => shell.env_remove(key),
        };
    }
    let ran = Outcome::of(shell.stdin(std::process::Stdio::null()).output().unwrap()).expect(0);
    let lines: Vec<_> = ran.stdout.lines().map(|line| line.split(' ').collect::<Vec<_>>()).collect();
    assert_eq!(lines.iter().map(|words| words[0]).collect::<Vec<_>>(), ["1", "2", "3"], "{ran:?}");
    assert!(lines.iter().all(|words| words[1] == "steps" && words[2] == lines[0][2]), "one grant: {ran:?}");
}

#[test]
fn a_run_by_ticket_renews_and_keeps_the_lock() {
    let sandbox = Sandbox::new();
    let ticket = ticket(&sandbox, "x --ttl 6s");
    // The script takes longer than the lease.
    let words = format!("run --ticket={ticket} --grace 100ms --report out.json");
    sandbox.run_script(&words, "sleep 7").expect(0);
    sandbox.run("run -n x -- true").expect(123);
    let report: Value = serde_json::from_str(&sandbox.read("out.json")).unwrap();
    assert_eq!(
        (&report["outcome"], &report["released"], &report["lock"]),
        (&"exited".into(), &false.into(), &"x".into())
    );
    sandbox.run(&format!("run --ticket={ticket} --release -- false")).expect(1);
    sandbox.run("run -n x -- true").expect(0);
}

#[test]
fn a_run_by_a_lost_ticket_exits_122_without_running() {
    let sandbox = Sandbox::new();
    let ticket = ticket(&sandbox, "x --ttl 1h");
    sandbox.run(&format!("release {ticket}")).expect(0);
    let lost = sandbox.run(&format!("run --ticket={ticket} --report out.json -- touch ran")).expect(122);
    assert!(lost.stderr.contains("lost") && lost.stderr.contains("the command was not run"), "{lost:?}");
    assert!(!sandbox.path("ran").exists());
    let report: Value = serde_json::from_str(&sandbox.read("out.json")).unwrap();
    assert_eq!((&report["outcome"], &report["command_exit_code"]), (&"lost".into(), &Value::Null));
}

#[test]
fn a_loss_kills_a_run_by_ticket_and_exits_122() {
    let sandbox = Sandbox::new();
    let ticket = ticket(&sandbox, "x --ttl 6s");
    let stubborn = "trap '' TERM; echo $$; while :; do sleep 0.01; done";
    let running = sandbox.hold(&format!("run --ticket={ticket}"), stubborn);
    let pid = running.first.clone();
    let store = sandbox.cut_off();
    wait_until("the command is killed", || !is_alive(&pid));
    drop(store);
    running.end().expect(122);
    // The renewal after the command detects a release during the run.
    let script = format!("{} release {{}}", env!("CARGO_BIN_EXE_leasehold"));
    let ticket = self::ticket(&sandbox, "y --ttl 1h");
    sandbox.run_script(&format!("run --ticket={ticket}"), &script.replace("{}", &ticket)).expect(122);
}

#[test]
fn a_release_ends_all_concurrent_runs_by_one_ticket() {
    let sandbox = Sandbox::new();
    let ticket = ticket(&sandbox, "x --ttl 8s");
    let start = |name: &str| {
        let script = format!("echo $$; while ! [ -e {name} ]; do sleep 0.01; done");
        let words =
            format!("run --ticket={ticket} --grace 100ms {}", if name == "two" { "--release" } else { "" });
        Holder::start(sandbox.scripted(&words, &script))
    };
    let (one, two) = (start("one"), start("two"));
    // Both runs renew, so neither loses the lock.
    let began = SystemClock.now();
    wait_until("the first lease is over", || SystemClock.now().longest_since(began).as_secs() >= 9);
    assert!(is_alive(&one.first) && is_alive(&two.first));
    sandbox.run("run -n x -- true").expect(123);
    sandbox.write("two", "x");
    two.end().expect(0);
    let pid = one.first.clone();
    one.end().expect(122);
    assert!(!is_alive(&pid));
    sandbox.run("run -n x -- true").expect(0);
}

#[test]
fn a_run_by_ticket_that_is_killed_leaves_the_ticket_valid() {
    let sandbox = Sandbox::new();
    let ticket = ticket(&sandbox, "x --ttl 1h");
    let running =
        sandbox.hold(&format!("run --ticket={ticket}"), "echo running; while :; do sleep 0.01; done");
    running.signal(Signal::KILL);
    running.end();
    sandbox.run("run -n x -- true").expect(123);
    sandbox.run(&format!("run --ticket={ticket} --release -- true")).expect(0);
    sandbox.run("run -n x -- true").expect(0);
}

#[test]
fn a_ticket_conflicts_with_the_options_of_an_acquisition() {
    let sandbox = Sandbox::new();
    let ticket = ticket(&sandbox, "x --ttl 1h");
    for words in
        ["y", "--permits 3", "--shared", "-n", "-w 1s", "-E 0", "--owner me", "--note text", "--ttl 1m"]
    {
        let outcome = sandbox.run(&format!("run --ticket={ticket} {words} -- true")).expect(2);
        assert!(outcome.stderr.contains("cannot be used with"), "{words}: {outcome:?}");
    }
    sandbox.run("run -- true").expect(2);
    sandbox.run("run --release x -- true").expect(2);
    let none = sandbox.run("run --ticket -- true").expect(2);
    assert!(none.stderr.contains("LEASEHOLD_TICKET"), "{none:?}");
    sandbox.run("run --ticket= -- true").expect(2);
    let bad = sandbox.run("run --ticket=hunter2 -- true").expect(2);
    assert!(!bad.stderr.contains("hunter2") && bad.stderr.contains("not a ticket"), "{bad:?}");
}
