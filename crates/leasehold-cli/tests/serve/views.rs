//! Reading: lists, one lock, changes, events, the fence check, probes.

use std::io::{BufRead as _, BufReader};
use std::net::TcpStream;

use serde_json::{Value, json};

use super::{Answer, Server, bearer};
use crate::support::Sandbox;

#[test]
fn locks_are_listed_page_by_page() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox, "");
    for name in ["a/1", "a/2", "a/3", "b"] {
        server.acquire(name, "k").expect(201);
    }
    let names = |answer: &Value| -> Vec<String> {
        let locks = answer["locks"].as_array().unwrap().iter();
        locks.map(|lock| lock["lock"].as_str().unwrap().to_owned()).collect()
    };
    let first = server.get("/v1/locks?prefix=a/&limit=2").expect(200).body;
    assert_eq!((names(&first), &first["next"]), (vec!["a/1".to_owned(), "a/2".to_owned()], &json!("a/2")));
    let second = server.get("/v1/locks?prefix=a/&limit=2&cursor=a/2").expect(200).body;
    assert_eq!((names(&second), &second["next"]), (vec!["a/3".to_owned()], &Value::Null));
    assert!(names(&server.get("/v1/locks?state=free").expect(200).body).is_empty());
}

#[test]
fn a_request_can_wait_for_a_change() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox, "");
    let held = server.acquire_with("a", &json!({ "lock": "x", "ttl": "10m" })).expect(201);
    let first = server.get("/v1/locks/x").expect(200);
    let tag = first.header("etag").unwrap().to_owned();
    let known = [("If-None-Match", &*tag)];
    server.ask("GET /v1/locks/x", &known, "").expect(304);
    server.renew(&held.ticket()).expect(200);
    server.ask("GET /v1/locks/x?wait=10ms", &known, "").expect(304);
    let waiting = server.send("GET /v1/locks/x?wait=60s", &known, "");
    server.release(&held.ticket()).expect(200);
    let changed = Answer::read(waiting).expect(200);
    assert_eq!(changed.body["state"], "free");
    assert_eq!(changed.body["history"][0]["end"], "released");
}

/// Reads events until one of `kind`.
fn event(stream: &mut BufReader<TcpStream>, kind: &str) -> (String, Value) {
    let (mut found, mut id, mut line) = (false, String::new(), String::new());
    loop {
        line.clear();
        assert_ne!(stream.read_line(&mut line).unwrap(), 0, "the stream ended");
        match line.trim_end().split_once(": ") {
            Some(("event", name)) => found = name == kind,
            Some(("id", text)) => id = text.to_owned(),
            Some(("data", data)) if found => return (id, serde_json::from_str(data).unwrap()),
            _ => {}
        }
    }
}

#[test]
fn viewers_see_what_happens_and_what_they_missed() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox, "");
    let mut stream = BufReader::new(server.send("GET /v1/events?prefix=x", &[], ""));
    let mut status = String::new();
    stream.read_line(&mut status).unwrap();
    assert!(status.contains("200"), "{status}");
    let held = server.acquire("x", "a").expect(201);
    server.acquire("y", "a").expect(201);
    let (first, acquired) = event(&mut stream, "acquired");
    assert_eq!((&acquired["lock"], &acquired["token"]), (&json!("x"), &held.body["token"]));
    server.release(&held.ticket()).expect(200);
    let (_, released) = event(&mut stream, "released");
    assert_eq!(released["lock"], "x");
    drop(stream);

    let mut again = BufReader::new(server.send("GET /v1/events", &[("Last-Event-ID", &first)], ""));
    let (_, missed) = event(&mut again, "acquired");
    assert_eq!(missed["lock"], "y");
    event(&mut again, "released");
    let mut other = BufReader::new(server.send("GET /v1/events", &[("Last-Event-ID", "another-7")], ""));
    event(&mut other, "reset");
}

#[test]
fn viewers_see_what_other_processes_do() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox, "");
    sandbox.run("run x -- true").expect(0);
    let mut stream = BufReader::new(server.send("GET /v1/events", &[], ""));
    let mut status = String::new();
    stream.read_line(&mut status).unwrap();
    // The first read may take any time, so the lock changes again and again until a change was seen.
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                sandbox.run("run x -- true").expect(0);
            }
        });
        let (_, seen) = event(&mut stream, "lock");
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        assert_eq!(seen["now"]["lock"], "x");
    });
}

#[test]
fn the_fence_check_compares_with_the_current_grant() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox, "");
    let fence = |token: &str| server.ask("GET /v1/fence/x", &[("Leasehold-Token", token)], "");
    fence("1").problem(412, "changed");
    let first = server.acquire("x", "a").expect(201);
    let token = |held: &Answer| held.body["token"].as_u64().unwrap();
    fence(&token(&first).to_string()).expect(204);
    fence(&(token(&first) + 1).to_string()).problem(412, "changed");
    server.release(&first.ticket()).expect(200);
    fence(&token(&first).to_string()).problem(412, "changed");
    let second = server.acquire("x", "b").expect(201);
    fence(&token(&first).to_string()).problem(412, "changed");
    fence(&token(&second).to_string()).expect(204);
    for bad in ["", "one", "-1", "9007199254740992"] {
        fence(bad).problem(400, "invalid");
    }
}

#[test]
fn an_eviction_needs_both_tokens_and_a_reason() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox, "");
    let held = server.acquire_with("a", &json!({ "lock": "x", "ttl": "10m" })).expect(201);
    let token = format!("\"{}\"", held.body["token"]);
    let operator = bearer(&server.operator);
    let evict = |headers: &[(&str, &str)], reason: &str| {
        server.post("/v1/evict", headers, &json!({ "lock": "x", "reason": reason }))
    };
    evict(&[("If-Match", &token)], "it hangs").problem(403, "forbidden");
    evict(&[("Authorization", &operator)], "it hangs").problem(428, "token-required");
    let stale =
        evict(&[("Authorization", &operator), ("If-Match", "\"7\"")], "it hangs").problem(412, "changed");
    assert_eq!(stale.body["token"], held.body["token"]);
    evict(&[("Authorization", &operator), ("If-Match", "W/x")], "it hangs").problem(400, "invalid");
    evict(&[("Authorization", &operator), ("If-Match", &token)], "  ").problem(400, "invalid");
    server.renew(&held.ticket()).expect(200);
    evict(&[("Authorization", &operator), ("If-Match", &token)], "it hangs").expect(200);
    assert_eq!(server.renew(&held.ticket()).problem(410, "lost").body["reason"], "ended");
    let state = server.state("x");
    let past = &state["history"][0];
    assert_eq!(
        (&past["end"], &past["evicted"]["reason"], &past["evicted"]["by"]),
        (&json!("evicted"), &json!("it hangs"), &json!("operator"))
    );
}

#[test]
fn the_description_names_every_route() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox, "");
    let description = server.get("/openapi.json").expect(200).body;
    let paths: Vec<&str> = description["paths"].as_object().unwrap().keys().map(|path| &**path).collect();
    for path in [
        "/v1/holds",
        "/v1/holds/renew",
        "/v1/holds/renew-all",
        "/v1/holds/release",
        "/v1/holds/check",
        "/v1/locks",
        "/v1/locks/{name}",
        "/v1/evict",
        "/v1/fence/{name}",
        "/v1/events",
    ] {
        assert!(paths.contains(&path), "{path}: {paths:?}");
    }
    server.get("/healthz").expect(204);
    server.get("/v1/nothing").problem(404, "not-found");
    server.ask("DELETE /v1/locks", &[], "").problem(405, "not-allowed");
}
