//! Bad input leads to a clear error, never to a panic.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;

use crate::support::{Outcome, Sandbox};

#[test]
fn hostile_lock_names_are_usage_errors_on_one_line() {
    let sandbox = Sandbox::new();
    let long = "x".repeat(10_000);
    for name in ["", "../x", "/x", "x/", "a//b", "a\nb", "a\u{1b}[31mb", "\u{202e}x", ".", &long] {
        for subcommand in [&["run"][..], &["acquire"], &["show"], &["history"], &["wait"]] {
            let mut words: Vec<&str> = subcommand.to_vec();
            words.push(name);
            if subcommand == ["run"] {
                words.extend(["--", "true"]);
            }
            let outcome = Outcome::of(sandbox.leasehold(&words).output().unwrap()).expect(2);
            assert!(outcome.stderr.starts_with("error: lock name"), "{outcome:?}");
            assert!(outcome.stderr.contains("  help: ") && outcome.stderr.len() < 600, "{outcome:?}");
            assert!(!outcome.stderr.contains('\u{1b}') && outcome.stderr.lines().count() == 2, "{outcome:?}");
        }
    }
    let words = [OsStr::new("show"), OsStr::from_bytes(b"a\xffb")];
    let outcome = Outcome::of(sandbox.leasehold(words).output().unwrap()).expect(2);
    assert!(outcome.stderr.contains("not UTF-8"), "{outcome:?}");
}

#[test]
fn bad_store_urls_exit_with_125_and_name_the_error() {
    let sandbox = Sandbox::new();
    sandbox.write("a-file", "not a folder");
    for (url, named) in [
        ("nosuch", "nosuch"),
        ("nosuch://x", "nosuch"),
        ("sqlite:a.db?wat=1", "wat"),
        ("mem:?store_clock=maybe", "store_clock"),
        ("mem:?margin=5", "margin"),
        ("mem:?margin=1s&margin=2s", "margin"),
        ("sqlite:%00", "NUL"),
        ("s3://%ff", "UTF-8"),
        ("sqlite:a-file/locks.db", "a-file"),
        ("C:", "URL"),
    ] {
        let outcome = sandbox.run(&format!("-s {url} run x -- true")).expect(125);
        assert!(
            outcome.stderr.contains(named) && outcome.stderr.starts_with("error: "),
            "{url}: {outcome:?}"
        );
    }
    for words in ["run x -- true", "once x --per 1h -- true", "elect x --once -- true", "acquire x", "wait x"]
    {
        let outcome = sandbox.run(&format!("-s mem: {words}")).expect(125);
        assert!(outcome.stderr.contains("it excludes no other process"), "{words}: {outcome:?}");
    }
    let secret = sandbox.run("-s nosuch://id:hunter2@host?secret=hunter2 ls").expect(125);
    assert!(!secret.stderr.contains("hunter2"), "{secret:?}");
    if !cfg!(feature = "s3") {
        let absent = sandbox.run("-s s3://bucket ls").expect(125);
        assert!(absent.stderr.contains("--features s3"), "{absent:?}");
    }
}

#[test]
fn bad_options_are_usage_errors() {
    let sandbox = Sandbox::new();
    for words in [
        "",
        "--wat",
        "wat",
        "run",
        "run x",
        "run x true",
        "run x --",
        "run x --wat -- true",
        "run x --ttl 0s -- true",
        "run x --ttl 1y -- true",
        "run x --ttl soon -- true",
        "run x --ttl -5s -- true",
        "run x -n -w 5s -- true",
        "run x -E 256 -- true",
        "run x -E -1 -- true",
        "run x --on-lost panic -- true",
        "run x --color red -- true",
        "evict x --token abc",
        "evict x --token -1",
        "completions tcsh",
        "sweep",
        "sweep --older-than 30",
        "help wat",
        "man wat",
    ] {
        let outcome = sandbox.run(words).expect(2);
        assert!(!outcome.stderr.contains("panicked") && !outcome.stderr.is_empty(), "{words}: {outcome:?}");
    }
    for words in ["run x true", "once x --per 1h true", "elect x true"] {
        let outcome = sandbox.run(words).expect(2);
        assert!(
            outcome.stderr.contains("tip: put `--` before the command, as in: leasehold run"),
            "{outcome:?}"
        );
    }
    assert!(!sandbox.run("ls x y").expect(2).stderr.contains("put `--`"));
    let grace = sandbox.run("run x --ttl 10s --grace 6s -- true").expect(2);
    assert!(grace.stderr.contains("grace 6s is too long for ttl 10s (maximum 5s)"), "{grace:?}");
    assert!(grace.stderr.contains("renews the lease"), "{grace:?}");
    sandbox.run("run x --ttl 10s --grace 5s -- true").expect(0);
}

#[test]
fn misspelled_words_get_a_suggestion() {
    let sandbox = Sandbox::new();
    for (words, meant) in [
        ("rum x -- true", "'run'"),
        ("relase", "'release'"),
        ("run x --wiat 5s -- true", "'--wait'"),
        ("elect x --onec -- true", "'--once'"),
        ("ls --jsn", "'--json'"),
        ("run x --on-lost trem -- true", "'term'"),
        ("help swep", "sweep"),
        ("man exect", "elect"),
    ] {
        let outcome = sandbox.run(words).expect(2);
        assert!(outcome.stderr.contains(meant), "{words}: {outcome:?}");
    }
}

#[test]
fn bad_objects_are_usage_errors_with_a_reason() {
    let sandbox = Sandbox::new();
    for (object, named) in
        [("counter.json", "s3://"), ("sqlite:locks.db", "s3://"), ("mem:", "s3://"), ("etcd://h/x", "s3://")]
    {
        for words in [format!("update {object} -- cat"), format!("put {object} - --fence 1")] {
            let outcome = sandbox.run(&words).expect(2);
            assert!(outcome.stderr.contains(named) && outcome.stderr.starts_with("error: "), "{outcome:?}");
            assert!(object != "counter.json" || outcome.stderr.contains(r#""counter.json""#), "{outcome:?}");
        }
    }
    if cfg!(feature = "s3") {
        for (object, named) in [
            ("s3://bucket?region=x", "names no object"),
            ("s3://bucket/folder/?region=x", "segment"),
            ("s3://bucket/../x?region=x", "segment"),
            ("s3://bucket/x?region=x&protocol=existence", "protocol"),
        ] {
            let outcome = sandbox.run(&format!("update {object} -- cat")).expect(2);
            assert!(outcome.stderr.contains(named), "{outcome:?}");
        }
    }
    for words in [
        "put s3://b/x",
        "put s3://b/x - --fence x",
        "put s3://b/x -",
        "update s3://b/x",
        "update s3://b/x --attempts 0 -- cat",
    ] {
        sandbox.run(words).expect(2);
    }
    let large = sandbox.run("put s3://bucket/x - --fence 9007199254740992").expect(2);
    assert!(large.stderr.contains("2^53"), "{large:?}");
    let secret = sandbox.run("update s3://id:hunter2@bucket/x -- cat").stderr;
    assert!(!secret.contains("hunter2"), "{secret}");
}

#[test]
fn only_init_creates_the_missing_folder_of_a_store() {
    let sandbox = Sandbox::new();
    for subcommand in ["ls", "show x", "run x -- true", "acquire x"] {
        let refused = sandbox.run(&format!("-s sqlite:no/such/locks.db {subcommand}")).expect(125);
        let folder = sandbox.path("no/such").display().to_string();
        assert!(refused.stderr.contains(&format!("the folder {folder} does not exist")), "{refused:?}");
        assert!(refused.stderr.contains("leasehold init --store sqlite:"), "{refused:?}");
    }
    sandbox.run("doctor -s sqlite:no/such/locks.db").expect(1);
    assert!(!sandbox.path("no").exists());
    sandbox.run("init -s sqlite:no/such/locks.db").expect(0);
    sandbox.run("-s sqlite:no/such/locks.db run x -- true").expect(0);
}

/// Amazon's SDKs use this file for all requests, so it must not be ignored.
#[cfg(feature = "s3")]
#[test]
fn the_machines_bundle_of_authorities_is_used() {
    let sandbox = Sandbox::new();
    sandbox.write("aws", "[default]\nca_bundle = /not/of-profile.pem\n");
    for (variable, value) in [
        ("AWS_CA_BUNDLE", "/not/of-variable.pem"),
        ("AWS_CONFIG_FILE", sandbox.path("aws").to_str().unwrap()),
    ] {
        for url in ["s3://bkt?region=us-east-1", "dynamodb://tabl?region=us-east-1"] {
            let mut command = sandbox.leasehold(["-s", url, "show", "x"]);
            for unset in ["AWS_CA_BUNDLE", "AWS_PROFILE"] {
                command.env_remove(unset);
            }
            command.env("AWS_CONFIG_FILE", "/dev/null").env("AWS_SHARED_CREDENTIALS_FILE", "/dev/null");
            let outcome = Outcome::of(command.env(variable, value).output().unwrap()).expect(125);
            assert!(outcome.stderr.contains("/not/of-"), "{outcome:?}");
            assert!(outcome.stderr.contains("AWS_CA_BUNDLE"), "{outcome:?}");
        }
    }
}

/// An open port that never responds.
#[cfg(feature = "http")]
#[test]
fn opening_a_silent_server_ends_after_the_store_timeout() {
    use leasehold::clock::{Clock as _, SystemClock};

    let sandbox = Sandbox::new();
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", silent.local_addr().unwrap());
    let words = ["-s", &url, "run", "--try", "--store-timeout", "500ms", "x", "--", "true"];
    let began = SystemClock.now();
    let outcome = Outcome::of(sandbox.leasehold(words).output().unwrap()).expect(125);
    // Far below the default of 15 s.
    assert!(SystemClock.now().longest_since(began) < std::time::Duration::from_secs(10), "{outcome:?}");
    assert!(outcome.stderr.contains("no response within"), "{outcome:?}");
}
