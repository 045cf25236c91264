//! Wrong requests: each one gets a clear problem and changes nothing.

use serde_json::{Value, json};

use super::{Server, key_of};
use crate::support::Sandbox;

const JSON: (&str, &str) = ("Content-Type", "application/json");

#[test]
fn wrong_fields_are_refused_with_their_names() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox, "");
    let long = "x".repeat(201);
    let name = "n".repeat(257);
    for (request, named) in [
        (json!({ "lock": "" }), "name"),
        (json!({ "lock": name }), "256"),
        (json!({ "lock": "a//b" }), "a//b"),
        (json!({ "lock": "../x" }), ".."),
        (json!({ "lock": "a\nb" }), "name"),
        (json!({ "lock": "x", "ttl": "5" }), "ttl"),
        (json!({ "lock": "x", "ttl": "499ms" }), "500ms"),
        (json!({ "lock": "x", "ttl": "25h" }), "ttl"),
        (json!({ "lock": "x", "ttl": "-1s" }), "ttl"),
        (json!({ "lock": "x", "ttl": "99999999999999999999y" }), "ttl"),
        (json!({ "lock": "x", "wait": "61s" }), "wait"),
        (json!({ "lock": "x", "note": long }), "note"),
        (json!({ "lock": "x", "permits": 0 }), "permits"),
        (json!({ "lock": "x", "permits": 65_000 }), "permits"),
        (json!({ "lock": "x", "permits": 2, "shared": true }), "shared"),
        (json!({ "lock": "x", "permits": -1 }), "wrong type"),
        (json!({ "lock": "x", "ttl": 30 }), "wrong type"),
        (json!({ "lock": "x", "surprise": true }), "unknown"),
        (json!({ "lock": null }), "wrong type"),
        (json!({}), "missing"),
        (json!([]), "wrong type"),
        (json!("x"), "wrong type"),
    ] {
        let refused = server.acquire_with("a", &request).problem(400, "invalid");
        let text = refused.body.to_string();
        assert!(text.contains(named), "{request}: {text}");
    }
    assert_eq!(server.get("/v1/locks").expect(200).body["locks"], json!([]));
}

#[test]
fn wrong_bodies_are_refused() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox, "");
    let key = key_of("a");
    let post = |path: &str, headers: &[(&str, &str)], body: &str| {
        let headers = [headers, &[("Idempotency-Key", &*key)]].concat();
        server.ask(&format!("POST {path}"), &headers, body)
    };
    for path in ["/v1/holds", "/v1/holds/renew", "/v1/holds/release", "/v1/holds/check", "/v1/evict"] {
        for body in ["{", "nonsense", "{\"lock\":\"x\"", "\u{0}", "{}{}", "{\"ticket\":1}"] {
            post(path, &[JSON], body).problem(400, "invalid");
        }
        post(path, &[JSON], "").problem(400, "invalid");
        for kind in
            ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "application/jsonp"]
        {
            post(path, &[("Content-Type", kind)], "{\"lock\":\"x\"}").problem(415, "invalid");
        }
        post(path, &[], "{\"lock\":\"x\"}").problem(415, "invalid");
        let is_long = ["/holds", "/renew", "/release", "/check"].iter().any(|end| path.ends_with(end));
        let most = if is_long { 65 * 1024 } else { 16 * 1024 };
        let refused =
            post(path, &[JSON], &format!("{{\"ticket\":\"{}\"}}", "x".repeat(most))).problem(413, "invalid");
        assert_eq!(refused.body["detail"], "the body is longer than this route accepts");
        assert!(refused.body.to_string().contains("the limit is 66560 bytes to acquire"), "{refused:?}");
        // A body that is nested deeper than any parser should follow.
        post(path, &[JSON], &"[".repeat(10_000)).problem(400, "invalid");
    }
    // A body that was announced but never arrives does not block other requests.
    let slow = server.send("POST /v1/holds", &[JSON, ("Content-Length", "100")], "");
    server.acquire("x", "b").expect(201);
    drop(slow);
}

#[test]
fn wrong_keys_are_refused() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox, "");
    let body = json!({ "lock": "x" });
    server.post("/v1/holds", &[], &body).problem(400, "invalid");
    for key in ["", "short", &"k".repeat(129), "with a space in the key", "not-ascii-ä-0123456789"] {
        let refused = server.post("/v1/holds", &[("Idempotency-Key", key)], &body).problem(400, "invalid");
        assert!(refused.body["help"].to_string().contains("uuidgen"), "{refused:?}");
    }
    assert_eq!(server.state("x")["state"], "free");
}

/// Returns the ticket with one of its fields changed.
fn forged(ticket: &str, field: &str, value: Value) -> String {
    use base64::Engine as _;
    let engine = base64::engine::general_purpose::URL_SAFE_NO_PAD;
    let bytes = engine.decode(ticket.strip_prefix("lh2_").unwrap()).unwrap();
    let mut fields: Value = serde_json::from_slice(&bytes).unwrap();
    fields[field] = value;
    format!("lh2_{}", engine.encode(fields.to_string()))
}

#[test]
fn stale_and_forged_tickets_change_nothing() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox, "");
    let held = server.acquire_with("a", &json!({ "lock": "x", "ttl": "10m" })).expect(201);
    let ticket = held.ticket();
    let stale = server.acquire("y", "a").expect(201);
    server.release(&stale.ticket()).expect(200);
    let token = held.body["token"].as_u64().unwrap();
    for (forgery, status, kind) in [
        (String::new(), 400, "invalid"),
        ("lh2_".to_owned(), 400, "invalid"),
        (format!("lh2_{}", "A".repeat(9_000)), 400, "invalid"),
        (ticket.replace("lh2_", "lh1_"), 400, "invalid"),
        (ticket[..ticket.len() - 5].to_owned(), 400, "invalid"),
        (forged(&ticket, "ttl_ms", json!(1)), 400, "invalid"),
        (forged(&ticket, "lock", json!("../x")), 400, "invalid"),
        (forged(&ticket, "store", json!("mem:")), 400, "invalid"),
        (forged(&ticket, "secret", json!("0".repeat(32))), 410, "lost"),
        (forged(&ticket, "lock", json!("z")), 410, "lost"),
    ] {
        for path in ["/v1/holds/renew", "/v1/holds/release"] {
            let refused = server.post(path, &[], &json!({ "ticket": forgery })).problem(status, kind);
            assert!(forgery.len() < 10 || !refused.body.to_string().contains(&forgery[4..]), "{refused:?}");
        }
    }
    assert_eq!(server.renew(&ticket).expect(200).body["token"], token);
    let too_many = json!({ "tickets": vec![""; 101] });
    for tickets in [too_many, json!({ "tickets": [] }), json!({ "ticket": ticket }), json!({})] {
        server.post("/v1/holds/renew-all", &[], &tickets).problem(400, "invalid");
    }
    for renewal in [json!({ "ticket": ticket, "tickets": [] }), json!({})] {
        server.post("/v1/holds/renew", &[], &renewal).problem(400, "invalid");
    }
}

#[test]
fn no_path_reaches_anything_but_locks() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox, "");
    for path in [
        "/v1/locks/../../etc/passwd",
        "/v1/locks/%2e%2e/%2e%2e/etc/passwd",
        "/v1/locks/..%2f..%2fetc%2fpasswd",
        "/v1/locks//etc/passwd",
        "/v1/locks/a%00b",
        "/v1/locks/a%0d%0ab",
        "/v1/locks/%ff%fe",
        "/v1/locks/a//b",
        "/v1/locks/a/./b",
        "/v1/fence/../locks",
    ] {
        let answer = server.ask(&format!("GET {path}"), &[("Leasehold-Token", "1")], "");
        assert!(answer.status == 400 || answer.status == 404, "{path}: {answer:?}");
        assert!(answer.body["type"].is_string(), "{path}: {answer:?}");
    }
    for query in ["limit=0", "limit=1001", "limit=x", "state=open", "surprise=1", "wait=1s"] {
        server.get(&format!("/v1/locks?{query}")).problem(400, "invalid");
    }
    for query in ["wait=61s", "wait=1", "wait=", "limit=1"] {
        server.get(&format!("/v1/locks/x?{query}")).problem(400, "invalid");
    }
}
