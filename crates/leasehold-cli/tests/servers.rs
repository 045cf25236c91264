//! The command on every store that is a server, as its page in `docs/stores` shows it. `./test` starts the servers.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // A panic is how a test fails.
#![allow(dead_code, reason = "of what the tests of the command share, this uses a part")]

#[path = "cli/support.rs"]
mod support;

use leasehold_testkit::servers::Server;
use rustix::process::Signal;

use self::support::{Holder, Place};

/// What a user of any store does in a day.
fn a_day_on(url: &str) {
    let place = Place::new();
    let on = |words: &str| place.run(&words.replacen(' ', &format!(" -s {url} "), 1));
    place.run(&format!("init -s {url}")).expect(0);
    // A job, twice.
    for _ in 0..2 {
        let job =
            place.run_script(&format!("run -s {url} deploy/prod"), "echo lock $LEASEHOLD_LOCK").expect(0);
        assert_eq!(job.stdout, "lock deploy/prod\n");
    }
    an_eviction(&place, url);
    a_job_once_per_period(&place, url);
    // A lock that outlives its process, and is handed on.
    let ticket = on("acquire steps --ttl 60s").expect(0).stdout;
    let refused = on("run -n steps -- true").expect(123);
    assert!(refused.stderr.contains("by ticket"), "{refused:?}");
    place.run(&format!("renew -s {url} {ticket}")).expect(0);
    place.run(&format!("release -s {url} {ticket}")).expect(0);
    place.run(&format!("release -s {url} {ticket}")).expect(1);
    // Who had it before.
    let history = on("history deploy/prod");
    match history.code {
        0 => assert!(history.stdout.contains("evicted") && history.stdout.contains("tester@"), "{history:?}"),
        _ => assert!(history.stderr.contains("keep no history"), "{history:?}"),
    }
    // A holder that dies, with all that it started.
    let dead = held(&place, url, "nightly --ttl 2s");
    support::send(dead.guardian(), Signal::KILL);
    dead.signal(Signal::KILL);
    on("run -w 60s nightly -- true").expect(0);
}

fn an_eviction(place: &Place, url: &str) {
    let holder = held(place, url, "deploy/prod --ttl 3s");
    let refused = place.run(&format!("run -n -s {url} deploy/prod -- true")).expect(123);
    assert!(refused.stderr.contains("tester@"), "{refused:?}");
    let listed = place.run(&format!("ls -s {url}")).expect(0).stdout;
    assert!(listed.contains("deploy/prod") && listed.contains("tester@"), "{listed}");
    let shown = place.run(&format!("show --json -s {url} deploy/prod")).expect(0).stdout;
    let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
    let token = shown["token"].as_u64().unwrap();
    place.run(&format!("break -s {url} deploy/prod --token {}", token + 1)).expect(1);
    place.run(&format!("break -s {url} deploy/prod --token {token}")).expect(0);
    let evicted = holder.end();
    assert_eq!(evicted.code, 122, "{evicted:?}");
}

fn a_job_once_per_period(place: &Place, url: &str) {
    let once = |script: &str| place.run_script(&format!("once -s {url} hourly --per 1h"), script);
    if url.contains("protocol=existence") {
        let refused = once("echo ran").expect(125);
        assert!(refused.stdout.is_empty() && refused.stderr.contains("cannot rest"), "{refused:?}");
        return;
    }
    once("exit 3").expect(3);
    assert_eq!(once("echo ran").expect(0).stdout, "ran\n");
    let again = once("echo never").expect(0);
    assert!(again.stdout.is_empty() && again.stderr.contains("hourly already ran"), "{again:?}");
    assert!(again.stderr.contains("(tester@") && again.stderr.contains(", again in <= "), "{again:?}");
}

fn held(place: &Place, url: &str, words: &str) -> Holder {
    place.hold(&format!("run -s {url} {words}"), "echo held; while :; do sleep 0.05; done")
}

#[test]
fn s3() {
    a_day_on(&Server::Moto.fresh_url());
}

#[test]
fn s3_by_existence() {
    a_day_on(&format!("{}&protocol=existence", Server::Moto.fresh_url()));
}

#[test]
fn gcs() {
    a_day_on(&Server::FakeGcs.fresh_url());
}

#[test]
fn gcs_by_existence() {
    a_day_on(&format!("{}&protocol=existence", Server::FakeGcs.fresh_url()));
}

#[test]
fn dynamodb() {
    a_day_on(&Server::DynamoDbLocal.fresh_url());
}

#[test]
fn etcd() {
    a_day_on(&Server::Etcd.fresh_url());
}
