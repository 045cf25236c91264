//! Acquiring, renewing, checking and releasing over HTTP.

use std::net::Shutdown;

use rustix::process::Signal;
use serde_json::{Value, json};

use super::{Answer, Server, key_of};
use crate::support::{Sandbox, wait_until};

#[test]
fn the_command_and_the_server_see_the_same_locks() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox, "");
    let held = server
        .acquire_with("a", &json!({ "lock": "deploy/prod", "ttl": "10m", "note": "by curl" }))
        .expect(201);
    assert_eq!(held.body["lock"], "deploy/prod");
    assert_eq!(held.body["ttl_ms"], 600_000);
    let token = held.body["token"].as_u64().unwrap();
    let listed = sandbox.run("ls").expect(0).stdout;
    assert!(listed.contains("deploy/prod") && listed.contains("by curl"), "{listed}");
    assert!(sandbox.run("show deploy/prod").expect(0).stdout.contains(&token.to_string()));
    sandbox.run("run -n deploy/prod -- true").expect(123);
    sandbox.run(&format!("renew {}", held.ticket())).expect(0);
    assert_eq!(server.release(&held.ticket()).expect(200).body["released"], true);
    sandbox.run("run -n deploy/prod -- true").expect(0);

    let holder = sandbox.hold("run deploy/prod --note by-command", "echo held; sleep 1000");
    let refused = server.acquire("deploy/prod", "b").problem(423, "held");
    assert_eq!(refused.body["held_by"]["holder"]["note"], "by-command");
    assert!(
        refused.header("retry-after").is_some() && refused.body["held_by"]["token"].as_u64().unwrap() > token
    );
    let all = server.get("/v1/locks?state=held").expect(200).body;
    assert_eq!(all["locks"][0]["held_by"]["holder"]["pid"], holder.pid());
    drop(holder);
    wait_until("the lock of a dead process is granted", || server.acquire("deploy/prod", "c").status == 201);
}

#[test]
fn a_hold_is_renewed_checked_and_released() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox, "");
    let held = server.acquire_with("a", &json!({ "lock": "x", "ttl": "10m" })).expect(201);
    let renewed = server.renew(&held.ticket()).expect(200).body;
    assert_eq!((&renewed["token"], &renewed["lock"]), (&held.body["token"], &held.body["lock"]));
    // The safety margin of the holder makes this less than the ttl.
    assert!((500_000..600_000).contains(&renewed["valid_ms"].as_u64().unwrap()), "{renewed}");
    let check = |ticket: &str| server.post("/v1/holds/check", &[], &json!({ "ticket": ticket }));
    check(&held.ticket()).expect(200);

    let other = server.acquire("y", "a").expect(201);
    let tickets = json!({ "tickets": [held.ticket(), "lh2_nonsense", other.ticket()] });
    let results = server.post("/v1/holds/renew-all", &[], &tickets).expect(200).body;
    assert_eq!(results["results"][0]["lock"], "x");
    assert_eq!(results["results"][1]["type"], "urn:leasehold:invalid");
    assert_eq!(results["results"][2]["lock"], "y");

    server.release(&held.ticket()).expect(200);
    // The response may have been lost, so the client may send the release again.
    server.release(&held.ticket()).expect(200);
    assert_eq!(check(&held.ticket()).problem(410, "lost").body["reason"], "ended");
    assert_eq!(server.renew(&held.ticket()).problem(410, "lost").body["reason"], "ended");
}

#[test]
fn a_hold_with_a_limit_is_not_renewed_after_it() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox, "");
    let request = json!({ "lock": "x", "ttl": "10m", "max_hold": "2s" });
    let held = server.acquire_with("a", &request).expect(201);
    let [valid, waited] = ["valid_ms", "waited_ms"].map(|field| held.body[field].as_u64().unwrap());
    // Counts from before the request.
    assert!(valid <= 2_000 + waited, "{held:?}");
    assert_eq!(server.state("x")["held_by"]["holder"]["max_hold_ms"], 2_000);
    wait_until("the limit is reached", || server.renew(&held.ticket()).status == 410);
    assert_eq!(server.renew(&held.ticket()).problem(410, "lost").body["reason"], "limit");
    // A repeated request does not renew the lease either.
    server.acquire_with("a", &request).problem(409, "key-spent");
    let body = json!({ "ticket": held.ticket(), "at_limit": true });
    server.post("/v1/holds/release", &[], &body).expect(200);
    assert_eq!(server.state("x")["history"][0]["end"], "limit");
    server.acquire_with("c", &json!({ "lock": "x", "max_hold": "0s" })).problem(400, "invalid");
}

#[test]
fn a_repeated_request_has_the_same_hold_and_its_key_is_spent() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox, "");
    let first = server.acquire("x", "a").expect(201);
    let again = server.acquire("x", "a").expect(201);
    assert_eq!(first.body["token"], again.body["token"]);
    server.acquire("x", "b").problem(423, "held");
    // For another lock, the same key gives another hold.
    let other = server.acquire("y", "a").expect(201);
    assert_ne!(first.body["token"], other.body["token"]);
    server.release(&again.ticket()).expect(200);
    server.acquire("x", "a").problem(409, "key-spent");
    assert_eq!(server.state("x")["state"], "free");
}

#[test]
fn permits_and_readers_are_held_by_tickets_too() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox, "");
    let permit = |key: &str| server.acquire_with(key, &json!({ "lock": "gpu", "permits": 2 }));
    let (one, _two) = (permit("a").expect(201), permit("b").expect(201));
    permit("c").problem(423, "held");
    server.release(&one.ticket()).expect(200);
    permit("d").expect(201);
    let reader = |key: &str| server.acquire_with(key, &json!({ "lock": "index", "shared": true }));
    reader("a").expect(201);
    reader("b").expect(201);
    sandbox.run("run -n --exclusive index -- true").expect(123);
}

#[test]
fn one_ticket_holds_several_locks() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox, "");
    let several = |key: &str, names: Value| server.acquire_with(key, &json!({ "locks": names }));
    let held = several("a", json!(["b", "a"])).expect(201);
    assert_eq!((&held.body["lock"], &held.body["token"]), (&"a".into(), &Value::Null));
    for name in ["a", "b"] {
        assert_eq!(held.body["tokens"][name], server.state(name)["token"]);
    }
    let refused = several("b", json!(["b", "c"])).problem(423, "held");
    assert!(refused.body["detail"].as_str().unwrap().contains("`b` is held"), "{refused:?}");
    assert_eq!(server.state("c")["state"], "free");
    let renewed = server.renew(&held.ticket()).expect(200);
    assert_eq!(renewed.body["tokens"], held.body["tokens"]);
    let check = || server.post("/v1/holds/check", &[], &json!({ "ticket": held.ticket() }));
    check().expect(200);
    let token = held.body["tokens"]["b"].as_u64().unwrap();
    sandbox.run(&format!("evict b --token {token}")).expect(0);
    let lost = check().problem(410, "lost");
    assert!(lost.body["detail"].as_str().unwrap().contains("`b`"), "{lost:?}");
    server.renew(&held.ticket()).problem(410, "lost");
    assert_eq!(server.state("a")["state"], "held", "another user of the ticket may still work");
    server.release(&held.ticket()).problem(410, "lost");
    assert_eq!(server.state("a")["state"], "free", "the loss of one is the loss of all");
    let held = several("c", json!(["b", "a"])).expect(201);
    server.release(&held.ticket()).expect(200);
    assert_eq!((&server.state("a")["state"], &server.state("b")["state"]), (&"free".into(), &"free".into()));
    for body in [
        json!({ "lock": "a", "locks": ["b"] }),
        json!({ "locks": ["a", "a"] }),
        json!({ "locks": ["a", "b"], "shared": true }),
        json!({ "locks": ["a", "b"], "permits": 2 }),
        json!({ "locks": ["a", "b"], "claim": "0123456789abcdef0123456789abcdef" }),
        json!({ "locks": [] }),
        json!({ "locks": ["a", "b//c"] }),
    ] {
        server.acquire_with("d", &body).problem(400, "invalid");
    }
}

#[test]
fn many_locks_with_long_names_fit_a_request() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox, "");
    let names: Vec<_> = (100..164).map(|number| format!("{number}{}", "é".repeat(126))).collect();
    // As JSON in ASCII, which some clients write.
    let escaped = json!({ "locks": names, "note": "x".repeat(200) }).to_string().replace('é', "\\u00e9");
    let headers = [("Content-Type", "application/json"), ("Idempotency-Key", "0123456789abcdef")];
    let held = server.ask("POST /v1/holds", &headers, &escaped).expect(201);
    assert_eq!(held.body["tokens"].as_object().unwrap().len(), 64);
    server.renew(&held.ticket()).expect(200);
    server.release(&held.ticket()).expect(200);
}

#[test]
fn a_release_of_several_locks_says_that_one_was_lost() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox, "");
    for lost in ["a", "b", "c"] {
        let held = server.acquire_with(lost, &json!({ "locks": ["a", "b", "c"] })).expect(201);
        let token = held.body["tokens"][lost].as_u64().unwrap();
        sandbox.run(&format!("evict {lost} --token {token}")).expect(0);
        for _ in 0..2 {
            let refused = server.release(&held.ticket()).problem(410, "lost");
            let names_it = refused.body["detail"].as_str().unwrap().contains(&format!("`{lost}`"));
            assert!(names_it && refused.body["token"] == token, "{refused:?}");
        }
        for name in ["a", "b", "c"] {
            assert_eq!(server.state(name)["state"], "free", "{name}");
        }
    }
}

#[test]
fn a_long_ticket_is_used_like_others() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox, "");
    let names: Vec<_> = (0..45).map(|number| format!("{number:02}{}", "x".repeat(250))).collect();
    let held = server.acquire_with("a", &json!({ "locks": names, "ttl": "10m" })).expect(201);
    assert!(held.ticket().len() > 16 * 1024);
    server.renew(&held.ticket()).expect(200);
    server.post("/v1/holds/check", &[], &json!({ "ticket": held.ticket() })).expect(200);
    server.release(&held.ticket()).expect(200);
}

#[test]
fn a_request_waits_for_the_lock() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox, "");
    let held = server.acquire("x", "a").expect(201);
    let body = json!({ "lock": "x", "wait": "60s" }).to_string();
    let headers = [("Content-Type", "application/json"), ("Idempotency-Key", &*key_of("b"))];
    let waiting = server.send("POST /v1/holds", &headers, &body);
    wait_until("it waits in line", || server.waiters("x") == 1);
    server.release(&held.ticket()).expect(200);
    let granted = Answer::read(waiting).expect(201);
    assert!(granted.body["token"].as_u64() > held.body["token"].as_u64());
    let refused = server.acquire_with("c", &json!({ "lock": "x", "wait": "5s" })).problem(423, "held");
    assert!(refused.body["held_by"]["token"] == granted.body["token"]);
    wait_until("the wait has left the line", || server.waiters("x") == 0);
}

#[test]
fn a_client_that_goes_away_stops_waiting() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox, "");
    let held = server.acquire_with("a", &json!({ "lock": "x", "ttl": "10m" })).expect(201);
    let body = json!({ "lock": "x", "wait": "60s" }).to_string();
    let headers = [("Content-Type", "application/json"), ("Idempotency-Key", &*key_of("b"))];
    let waiting = server.send("POST /v1/holds", &headers, &body);
    wait_until("it waits in line", || server.waiters("x") == 1);
    waiting.shutdown(Shutdown::Both).unwrap();
    drop(waiting);
    wait_until("its place is given up", || server.waiters("x") == 0);
    // The end of the connection released no hold of others.
    server.renew(&held.ticket()).expect(200);
}

#[test]
fn a_stopping_server_ends_waits_and_releases_nothing() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox, "");
    server.get("/readyz").expect(204);
    let held = server.acquire_with("a", &json!({ "lock": "x", "ttl": "10m" })).expect(201);
    let body = json!({ "lock": "x", "wait": "60s" }).to_string();
    let headers = [("Content-Type", "application/json"), ("Idempotency-Key", &*key_of("b"))];
    let waiting = server.send("POST /v1/holds", &headers, &body);
    wait_until("it waits in line", || server.waiters("x") == 1);
    server.signal(Signal::TERM);
    let stopped = Answer::read(waiting).problem(503, "stopping");
    assert!(stopped.header("retry-after").is_some());
    server.end().expect(0);
    sandbox.run(&format!("renew {}", held.ticket())).expect(0);
}
