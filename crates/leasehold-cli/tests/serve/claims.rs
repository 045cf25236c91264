//! Acquisitions with a claim chosen by the client. The client is the command itself.

use serde_json::{Value, json};

use super::access::guarded;
use super::{Answer, Server, bearer};
use crate::support::{Sandbox, wait_until};

const CLAIM: &str = "00112233445566778899aabbccddeeff";

fn request(lock: &str) -> Value {
    json!({ "lock": lock, "ttl": "10m", "claim": CLAIM, "holder": { "name": "alice", "host": "h", "pid": 7 } })
}

#[test]
fn a_claim_means_the_same_to_servers_with_different_secrets() {
    let sandbox = Sandbox::new();
    let one = Server::start(&sandbox, "");
    let two = Server::start_with_secret(&sandbox, &sandbox.write("other-secret", &"f".repeat(32)), "");
    let held = one.post("/v1/holds", &[], &request("x")).expect(201);
    assert_eq!(one.state("x")["held_by"]["holder"]["name"], "alice");
    let again = two.post("/v1/holds", &[], &request("x")).expect(201);
    assert_eq!(again.body["token"], held.body["token"]);
    let withdrawal = json!({ "lock": "x", "claim": CLAIM });
    let withdrawn = two.post("/v1/holds/withdraw", &[], &withdrawal).expect(200);
    assert_eq!(withdrawn.body["released"], true);
    assert_eq!(one.post("/v1/holds/withdraw", &[], &withdrawal).expect(200).body["released"], false);
    let spent = one.post("/v1/holds", &[], &request("x")).problem(409, "key-spent");
    assert_eq!((&spent.body["reason"], &spent.body["token"]), (&json!("ended"), &held.body["token"]));
}

/// The connection of the waiting request stays open, as behind a proxy that does not report that the client is gone.
#[test]
fn a_withdrawal_ends_the_request_that_waits() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox, "");
    let held = server.acquire("x", "a").expect(201);
    let mut waiting = request("x");
    waiting["wait"] = json!("60s");
    let headers = [("Content-Type", "application/json")];
    let connection = server.send("POST /v1/holds", &headers, &waiting.to_string());
    wait_until("it waits in line", || server.waiters("x") == 1);
    server.post("/v1/holds/withdraw", &[], &json!({ "lock": "x", "claim": CLAIM })).expect(200);
    let ended = Answer::read(connection).problem(409, "key-spent");
    assert_eq!(ended.body["reason"], "ended");
    wait_until("its place is given up", || server.waiters("x") == 0);
    server.release(&held.ticket()).expect(200);
    assert_eq!(server.state("x")["state"], "free");
}

#[test]
fn a_waiter_that_repeats_its_request_keeps_its_place() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox, "");
    let held = server.acquire("x", "a").expect(201);
    let headers = [("Content-Type", "application/json")];
    let ask = |claim: &str, wait: &str| {
        let body = json!({ "lock": "x", "ttl": "10m", "claim": claim, "wait": wait });
        server.send("POST /v1/holds", &headers, &body.to_string())
    };
    let first = ask(CLAIM, "5s");
    wait_until("it waits in line", || server.waiters("x") == 1);
    let second = ask(&"f".repeat(32), "60s");
    let refused = Answer::read(first).problem(423, "held");
    assert_eq!(refused.body["held_by"]["token"], held.body["token"], "{refused:?}");
    // The command sends a request that does not wait before it waits again.
    Answer::read(ask(CLAIM, "0s")).problem(423, "held");
    let first = ask(CLAIM, "60s");
    server.release(&held.ticket()).expect(200);
    let granted = Answer::read(first).expect(201);
    server.release(&granted.ticket()).expect(200);
    let next = Answer::read(second).expect(201);
    assert!(next.body["token"].as_u64() > granted.body["token"].as_u64());
}

#[test]
fn a_bad_claim_is_refused_and_not_repeated() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox, "");
    for claim in ["hunter2", &CLAIM.to_uppercase()] {
        let refused =
            server.post("/v1/holds", &[], &json!({ "lock": "x", "claim": claim })).problem(400, "invalid");
        assert!(!refused.body.to_string().contains(claim), "{refused:?}");
    }
    let several = json!({ "lock": "x", "claim": CLAIM, "permits": 2 });
    server.post("/v1/holds", &[], &several).problem(400, "invalid");
    server.post("/v1/holds", &[], &json!({ "lock": "x" })).problem(400, "invalid");
}

#[test]
fn with_an_access_file_the_holder_is_the_principal() {
    let sandbox = Sandbox::new();
    let server = guarded(&sandbox, "");
    let ci = bearer("token-of-ci");
    let headers = [("Authorization", &*ci)];
    server.post("/v1/holds", &headers, &request("ci/x")).expect(201);
    let shown = server.ask("GET /v1/locks/ci/x", &headers, "").expect(200);
    let holder = &shown.body["held_by"]["holder"];
    assert_eq!((&holder["name"], &holder["host"], &holder["pid"]), (&json!("ci"), &json!("h"), &json!(7)));
    let store = server.ask("GET /v1/store", &headers, "").expect(200).body;
    assert_eq!(store["principal"], "ci");
    assert_eq!(store["rules"], json!([{ "prefix": "ci/", "allow": ["read", "acquire"] }]));
    server.get("/v1/store").problem(401, "unauthorized");
    for path in ["/v1/holds", "/v1/holds/withdraw"] {
        server.post(path, &headers, &json!({ "lock": "prod", "claim": CLAIM })).problem(403, "forbidden");
    }
}

#[test]
#[cfg(feature = "http")]
fn the_command_takes_locks_of_a_server() {
    let sandbox = Sandbox::new();
    let server = guarded(&sandbox, "");
    let url = format!("http://{}", server.address);
    let with = |token: &str, words: &str| {
        let mut command = sandbox.leasehold(["-s", &url].into_iter().chain(words.split_whitespace()));
        crate::support::Outcome::of(command.env("LEASEHOLD_HTTP_TOKEN", token).output().unwrap())
    };
    let ci = "token-of-ci";
    // The lock is acquired through the server, and is seen both through the server and directly in the store.
    let ticket = with(ci, "acquire ci/x --ttl 10m").expect(0).stdout;
    let ticket = ticket.trim();
    for refused in [with(ci, "run --try ci/x -- true"), sandbox.run("run --try ci/x -- true")] {
        assert!(refused.expect(123).stderr.contains("ci@"));
    }
    assert!(with(ci, "ls").expect(0).stdout.contains("ci/x"));
    with(ci, &format!("release {ticket}")).expect(0);
    with(ci, "run ci/x -- true").expect(0);
    // No message contains a secret.
    let wrong = with("hunter2", "run ci/x -- true").expect(125);
    assert!(wrong.stderr.contains("401") && !wrong.stderr.contains("hunter2"), "{wrong:?}");
    let forbidden = with(ci, "run prod -- true").expect(125);
    assert!(forbidden.stderr.contains("may not acquire"), "{forbidden:?}");
}
