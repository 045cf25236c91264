//! What a server records: the audit log and the metrics.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use serde_json::{Value, json};

use super::{Server, bearer, key_of};
use crate::support::Sandbox;

pub(super) fn metrics(server: &Server) -> String {
    let mut stream = TcpStream::connect(&server.metrics).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

#[test]
fn the_audit_log_has_who_did_what_and_no_secrets() {
    let sandbox = Sandbox::new();
    let file = sandbox.path("audit.jsonl");
    let server = Server::start(&sandbox, &format!("--audit {}", file.display()));
    let held = server.acquire("x", "a").expect(201);
    server.renew(&held.ticket()).expect(200);
    let token = format!("\"{}\"", held.body["token"]);
    let headers = [("Authorization", &*bearer(&server.operator)), ("If-Match", &*token)];
    server.post("/v1/evict", &headers, &json!({ "lock": "x", "reason": "it hangs" })).expect(200);
    server.renew(&held.ticket()).problem(410, "lost");
    server.acquire("x", "a").problem(409, "key-spent");
    let text = sandbox.read("audit.jsonl");
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let told: Vec<_> = lines.iter().map(|line| (line["type"].as_str(), line["principal"].as_str())).collect();
    assert_eq!(
        told,
        [("acquired", "anonymous"), ("evicting", "operator"), ("evicted", "operator"), ("lost", "anonymous")]
            .map(|(a, b)| (Some(a), Some(b)))
    );
    for line in &lines[1..3] {
        assert_eq!((&line["reason"], &line["token"]), (&json!("it hangs"), &held.body["token"]));
    }
    assert_eq!((&lines[0]["previous"], lines[1]["previous"].as_str().unwrap().len()), (&json!(""), 64));
    for secret in [&*held.ticket(), &*server.operator, &*key_of("a"), super::SECRET] {
        assert!(!text.contains(secret), "{text}");
    }
    let folder = sandbox.path("missing/audit.jsonl");
    let refused =
        sandbox.run(&format!("serve --listen 127.0.0.1:0 --audit {}", folder.display())).expect(125);
    assert!(refused.stderr.contains("missing/audit.jsonl"), "{refused:?}");
}

#[test]
fn servers_share_one_audit_log_and_follow_its_renaming() {
    let sandbox = Sandbox::new();
    let file = sandbox.path("audit.jsonl");
    let arguments = format!("--audit {}", file.display());
    let servers = [Server::start(&sandbox, &arguments), Server::start(&sandbox, &arguments)];
    let acquire = |number: usize| {
        servers[number % 2].acquire(&format!("lock-{number}"), "a").expect(201);
    };
    (0..4).for_each(acquire);
    let old = sandbox.path("audit.jsonl.1");
    std::fs::rename(&file, &old).unwrap();
    (4..8).for_each(acquire);
    let texts = [sandbox.read("audit.jsonl.1"), sandbox.read("audit.jsonl")];
    assert_eq!(texts.each_ref().map(|text| text.lines().count()), [4, 4]);
    let mut before = String::new();
    for line in texts.iter().flat_map(|text| text.lines()) {
        let parsed: Value = serde_json::from_str(line).unwrap();
        assert_eq!(parsed["previous"], before, "{texts:?}");
        before = super::access::digest(line);
    }
}

/// A client that waits sends its request again to take the grant.
#[test]
fn a_repeated_acquisition_is_recorded_once() {
    let sandbox = Sandbox::new();
    let file = sandbox.path("audit.jsonl");
    let server = Server::start(&sandbox, &format!("--metrics 127.0.0.1:0 --audit {}", file.display()));
    let first = server.acquire("x", "a").expect(201);
    let again = server.acquire("x", "a").expect(201);
    assert_eq!(first.body["token"], again.body["token"]);
    server.release(&again.ticket()).expect(200);
    server.acquire("x", "b").expect(201);
    let text = sandbox.read("audit.jsonl");
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let kinds: Vec<_> = lines.iter().map(|line| line["type"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["acquired", "released", "acquired"]);
    let text = metrics(&server);
    for line in
        ["leasehold_acquisitions_total{outcome=\"granted\"} 3", "leasehold_acquire_duration_seconds_count 2"]
    {
        assert!(text.contains(line), "{line}: {text}");
    }
}

#[test]
fn metrics_count_outcomes_and_name_no_lock() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox, "--metrics 127.0.0.1:0");
    let held = server.acquire("a-lock-with-a-name", "a").expect(201);
    server.acquire("a-lock-with-a-name", "b").problem(423, "held");
    server.renew(&held.ticket()).expect(200);
    server.release(&held.ticket()).expect(200);
    server.renew(&held.ticket()).problem(410, "lost");
    let text = metrics(&server);
    for line in [
        "leasehold_acquisitions_total{outcome=\"granted\"} 1",
        "leasehold_acquisitions_total{outcome=\"held\"} 1",
        "leasehold_renewals_total{outcome=\"renewed\"} 1",
        "leasehold_renewals_total{outcome=\"lost\"} 1",
        "leasehold_losses_total{reason=\"ended\"} 1",
        "leasehold_waiters 0",
        "leasehold_store_requests_total{operation=\"renew\",outcome=\"done\"} 1",
        "leasehold_store_requests_total{operation=\"renew\",outcome=\"lost\"} 1",
        "leasehold_store_requests_total{operation=\"acquire\",outcome=\"held\"} 1",
        "leasehold_store_request_duration_seconds_count{operation=\"renew\"} 2",
        "leasehold_renewal_slack_ratio_count 1",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
    assert!(!text.contains("a-lock-with-a-name"), "{text}");
    // The metrics are only on their own listener.
    server.get("/metrics").problem(404, "not-found");
}
