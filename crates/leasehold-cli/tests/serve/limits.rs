//! What clients cannot take from others: connections, event streams, and the store.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::TcpStream;

use rustix::process::Signal;
use serde_json::json;

use super::access::{guarded, with_access};
use super::records::metrics;
use super::{Answer, Server, bearer, key_of};
use crate::support::{Sandbox, wait_until};

/// Sends `line` to another listener of the server.
fn ask_at(address: &str, line: &str, host: &str) -> Answer {
    let mut stream = TcpStream::connect(address).unwrap();
    stream
        .write_all(format!("{line} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n").as_bytes())
        .unwrap();
    Answer::read(stream)
}

/// Opens connections that only cost the server something: silent ones, ones with half a head, and ones that send
/// requests and never read.
fn open_connections(address: &str, path: &str, number: usize) -> Vec<TcpStream> {
    let open = |number| {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_nonblocking(true).unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\n\r\n");
        // A connection may be closed at any time.
        let _ = match number % 3 {
            0 => Ok(()),
            1 => stream.write_all(&request.as_bytes()[..request.len() - 2]),
            _ => stream.write_all(request.repeat(1_000).as_bytes()),
        };
        stream
    };
    (0..number).map(open).collect()
}

#[test]
fn strangers_do_not_keep_others_from_the_server() {
    let sandbox = Sandbox::new();
    let server = guarded(&sandbox, "--max-connections 32 --metrics 127.0.0.1:0");
    let ci = bearer("token-of-ci");
    let acquire = |key: &str, wait: &str| {
        let headers = [
            ("Authorization", &*ci),
            ("Content-Type", "application/json"),
            ("Idempotency-Key", &*key_of(key)),
        ];
        server.send("POST /v1/holds", &headers, &json!({ "lock": "ci/x", "wait": wait }).to_string())
    };
    let held = Answer::read(acquire("a", "0s")).expect(201);
    let waiting = acquire("b", "60s");
    let is_waiting = || {
        let shown = server.ask("GET /v1/locks/ci/x", &[("Authorization", &ci)], "").expect(200);
        shown.body["waiters"].as_array().unwrap().len() == 1
    };
    wait_until("it waits in line", is_waiting);

    let page = server.send("GET /ui/sign-in", &[], "");
    let text = std::io::read_to_string(page).unwrap();
    let (_, script) = text.split_once("src=\"/ui/assets/dashboard-").unwrap();
    let script = format!("/ui/assets/dashboard-{}", script.split_once('"').unwrap().0);
    let _api = open_connections(&server.address, &script, 100);
    let _metrics = open_connections(&server.metrics, "/metrics", 200);
    server.get("/healthz").expect(204);
    ask_at(&server.metrics, "GET /readyz", &server.metrics).expect(204);
    ask_at(&server.metrics, "GET /metrics", &server.metrics).expect(200);

    let ticket = json!({ "ticket": held.ticket() });
    server.post("/v1/holds/release", &[("Authorization", &ci)], &ticket).expect(200);
    Answer::read(waiting).expect(201);
    server.signal(Signal::TERM);
    server.end().expect(0);
}

#[test]
fn metrics_are_only_for_this_machine_and_its_names() {
    let sandbox = Sandbox::new();
    let refused = sandbox.run("serve --metrics 0.0.0.0:0").expect(125);
    assert!(refused.stderr.contains("--metrics") && refused.stderr.contains("--insecure"), "{refused:?}");
    let server = Server::start(&sandbox, "--metrics 127.0.0.1:0");
    // Such a name may resolve to this machine (DNS rebinding).
    ask_at(&server.metrics, "GET /metrics", "evil.example").problem(421, "misdirected");
    let insecure = Server::start(&sandbox, "--insecure --metrics 0.0.0.0:0");
    assert!(insecure.metrics.starts_with("0.0.0.0:"), "{}", insecure.metrics);
}

#[test]
fn streams_need_a_right_and_leave_room_for_others() {
    let sandbox = Sandbox::new();
    let tokens = [("norules", "token-1"), ("reader", "token-2"), ("admin", "token-3")];
    let read: &[&str] = &["read"];
    let rules = [("reader", "a/", read), ("admin", "", read)];
    let server = with_access(&sandbox, &tokens, &rules, "--max-connections 64");
    let open = |token: &str, path: &str| {
        let mut stream = server.send(&format!("GET {path}"), &[("Authorization", &bearer(token))], "");
        let mut status = [0; 12];
        stream.read_exact(&mut status).unwrap();
        (String::from_utf8_lossy(&status[9..]).into_owned(), stream)
    };
    assert_eq!(open("token-1", "/v1/events").0, "403");
    assert_eq!(open("token-2", "/v1/events?prefix=b/").0, "403");
    // With 64 connections, there may be 4 streams, and 2 of one principal.
    let streams: Vec<_> = (0..4).map(|_| open("token-2", "/v1/events")).collect();
    assert_eq!(streams.iter().map(|(status, _)| &**status).collect::<Vec<_>>(), ["200", "200", "429", "429"]);
    assert_eq!(open("token-3", "/v1/events").0, "200");
    server.signal(Signal::TERM);
    server.end().expect(0);
}

#[test]
fn a_body_that_does_not_arrive_takes_no_room_of_others() {
    let sandbox = Sandbox::new();
    // One address may have 4 connections.
    let server = Server::start(&sandbox, "--max-connections 16");
    let head = [("Content-Type", "application/json"), ("Content-Length", "16000")];
    let mut slow: Vec<_> = (0..4).map(|_| server.send("POST /v1/holds/renew", &head, "")).collect();
    server.acquire("x", "a").expect(201);
    // A connection that was not closed for the new one gets a response after 30 s.
    wait_until("one is closed", || {
        slow.iter_mut().any(|stream| {
            stream.set_nonblocking(true).unwrap();
            match stream.read(&mut [0]) {
                Ok(length) => {
                    assert_eq!(length, 0, "a response");
                    true
                }
                Err(error) => error.kind() != ErrorKind::WouldBlock,
            }
        })
    });
}

#[test]
fn requests_that_wait_for_a_change_are_no_waiters() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox, "--max-connections 16 --metrics 127.0.0.1:0");
    server.acquire_with("a", &json!({ "lock": "x", "ttl": "10m" })).expect(201);
    let tag = server.get("/v1/locks/x").expect(200).header("etag").unwrap().to_owned();
    let known = [("If-None-Match", &*tag)];
    // With 16 connections, two requests may wait for a change.
    let _polls: Vec<_> = (0..2).map(|_| server.send("GET /v1/locks/x?wait=60s", &known, "")).collect();
    wait_until("the polls wait", || metrics(&server).contains("leasehold_polls 2\n"));
    server.ask("GET /v1/locks/x?wait=60s", &known, "").problem(429, "too-many-waiters");
    server.acquire_with("b", &json!({ "lock": "y", "wait": "60s" })).expect(201);
}

#[test]
fn probes_do_not_say_what_the_store_said() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox, "");
    server.acquire("x", "a").expect(201);
    let file = rusqlite::Connection::open(sandbox.path("state/leasehold/locks.db")).unwrap();
    file.execute_batch("DROP TABLE lock").unwrap();
    let unready = server.get("/readyz").problem(503, "unready");
    assert_eq!(unready.body["detail"], "the store cannot be read");
    server.signal(Signal::TERM);
    let ended = server.end().expect(0);
    assert!(ended.stderr.contains("not ready") && ended.stderr.contains("no such table"), "{ended:?}");
}
