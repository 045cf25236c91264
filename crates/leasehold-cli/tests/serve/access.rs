//! Who may do what.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use rustix::process::Signal;
use serde_json::{Value, json};

use super::{Answer, Server, bearer, key_of};
use crate::support::{Sandbox, wait_until};

/// Returns the SHA-256 of `token`, computed by another program.
pub(super) fn digest(token: &str) -> String {
    let mut program = Command::new("sha256sum").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    program.stdin.take().unwrap().write_all(token.as_bytes()).unwrap();
    let output = program.wait_with_output().unwrap();
    String::from_utf8(output.stdout).unwrap().split_whitespace().next().unwrap().to_owned()
}

/// Starts a server with an access file: the tokens of principals, and rules with a principal, a prefix and rights.
pub(super) fn with_access(
    sandbox: &Sandbox,
    tokens: &[(&str, &str)],
    rules: &[(&str, &str, &[&str])],
    arguments: &str,
) -> Server {
    let file = file(sandbox, tokens, rules);
    Server::start(sandbox, &format!("--access {} {arguments}", file.display()))
}

/// Writes an access file.
pub(super) fn file(sandbox: &Sandbox, tokens: &[(&str, &str)], rules: &[(&str, &str, &[&str])]) -> PathBuf {
    let mut text = String::new();
    for (principal, token) in tokens {
        text += &format!("[[token]]\nprincipal = \"{principal}\"\nsha256 = \"{}\"\n", digest(token));
    }
    for (principal, prefix, allow) in rules {
        text += &format!("[[rule]]\nprincipal = \"{principal}\"\nprefix = \"{prefix}\"\nallow = {allow:?}\n");
    }
    sandbox.write("access.toml", &text)
}

/// Starts a server with the tokens `token-of-ci` and `token-of-ops`.
pub(super) fn guarded(sandbox: &Sandbox, arguments: &str) -> Server {
    let tokens = [("ci", "token-of-ci"), ("ops", "token-of-ops")];
    let rules: [(&str, &str, &[&str]); 2] =
        [("ci", "ci/", &["read", "acquire"]), ("ops", "", &["read", "evict"])];
    with_access(sandbox, &tokens, &rules, arguments)
}

#[test]
fn a_ticket_of_several_locks_needs_the_right_for_each() {
    let sandbox = Sandbox::new();
    let server = guarded(&sandbox, "");
    let ci = bearer("token-of-ci");
    let post = |path: &str, body: &Value| {
        server.post(path, &[("Authorization", &*ci), ("Idempotency-Key", &*key_of("a"))], body)
    };
    post("/v1/holds", &json!({ "locks": ["ci/x", "prod"] })).problem(403, "forbidden");
    let held = post("/v1/holds", &json!({ "locks": ["ci/x", "ci/y"] })).expect(201);
    post("/v1/holds/renew", &json!({ "ticket": held.ticket() })).expect(200);
    let stolen = sandbox.run("acquire prod").expect(0).stdout;
    let fields = |ticket: &str| -> Value {
        let json = URL_SAFE_NO_PAD.decode(ticket.trim().strip_prefix("lh2_").unwrap()).unwrap();
        serde_json::from_slice(&json).unwrap()
    };
    let (mut forged, part) = (fields(&held.ticket()), fields(&stolen));
    forged["parts"] = json!([{ "lock": "prod", "secret": part["secret"], "token": part["token"] }]);
    let forged = format!("lh2_{}", URL_SAFE_NO_PAD.encode(forged.to_string()));
    for path in ["/v1/holds/renew", "/v1/holds/release", "/v1/holds/check"] {
        post(path, &json!({ "ticket": forged })).problem(403, "forbidden");
    }
    sandbox.run("run -n prod -- true").expect(123);
}

#[test]
fn the_locks_that_a_waiter_holds_need_rights() {
    let sandbox = Sandbox::new();
    let tokens = [("ci", "token-of-ci"), ("ops", "token-of-ops")];
    let rules: [(&str, &str, &[&str]); 2] =
        [("ci", "ci/", &["read", "acquire"]), ("ops", "", &["read", "acquire"])];
    let server = with_access(&sandbox, &tokens, &rules, "");
    let (ci, ops, id) = (bearer("token-of-ci"), bearer("token-of-ops"), "0f".repeat(16));
    let post = |token: &str, key: &str, body: &Value| {
        server.post("/v1/holds", &[("Authorization", token), ("Idempotency-Key", &*key_of(key))], body)
    };
    post(&ops, "a", &json!({ "lock": "ci/a", "ttl": "10m" })).expect(201);
    let holds = json!([{ "name": "ci/b", "token": 1 }, { "name": "prod", "token": 2 }]);
    let nested = json!({ "holds": holds, "id": id, "seen": [id] });
    let holder = json!({ "name": "w", "host": "h", "pid": 1, "nested": nested });
    let waits = json!({ "lock": "ci/a", "wait": "60s", "holder": holder });
    let refused = post(&ci, "b", &waits).problem(403, "forbidden");
    assert!(refused.body["detail"].as_str().unwrap().contains("`prod`"), "{refused:?}");

    let key = key_of("c");
    let headers =
        [("Content-Type", "application/json"), ("Authorization", &*ops), ("Idempotency-Key", &*key)];
    let _waiting = server.send("POST /v1/holds", &headers, &waits.to_string());
    let get = |token: &str, path: &str| {
        server.ask(&format!("GET {path}"), &[("Authorization", token)], "").expect(200).body
    };
    let shown = |token: &str| get(token, "/v1/locks/ci/a")["waiters"][0]["holder"]["nested"].clone();
    wait_until("it waits in line", || shown(&ops) == nested);
    assert_eq!(shown(&ci)["holds"], json!([{ "name": "ci/b", "token": 1 }]));
    let refused = post(&ci, "d", &json!({ "lock": "ci/a" })).problem(423, "held");
    for body in [refused.body, get(&ci, "/v1/locks"), get(&ci, "/v1/locks/ci/a")] {
        assert!(!body.to_string().contains("prod"), "{body}");
    }
}

#[test]
fn each_principal_has_its_own_rights() {
    let sandbox = Sandbox::new();
    let server = guarded(&sandbox, "");
    let (ci, ops, wrong) = (bearer("token-of-ci"), bearer("token-of-ops"), bearer("token-of-nobody"));
    let acquire = |token: &str, lock: &str| {
        let headers = [("Authorization", token), ("Idempotency-Key", &*key_of("a"))];
        server.post("/v1/holds", &headers, &json!({ "lock": lock, "ttl": "10m" }))
    };
    let unauthorized = server.acquire("ci/x", "a").problem(401, "unauthorized");
    assert_eq!(unauthorized.header("www-authenticate"), Some("bearer"));
    acquire(&wrong, "ci/x").problem(401, "unauthorized");
    acquire("Basic dXNlcjpwYXNz", "ci/x").problem(401, "unauthorized");
    acquire(&ops, "ci/x").problem(403, "forbidden");
    acquire(&ci, "prod").problem(403, "forbidden");
    let held = acquire(&ci, "ci/x").expect(201);

    let with = |token: &str, line: &str| server.ask(line, &[("Authorization", token)], "");
    let shown = with(&ci, "GET /v1/locks/ci/x").expect(200);
    assert_eq!(shown.body["held_by"]["holder"]["name"], "ci", "the holder is the principal");
    with(&ci, "GET /v1/locks/prod").problem(403, "forbidden");
    with(&ci, "GET /v1/fence/prod").problem(403, "forbidden");
    sandbox.run("run prod -- true").expect(0);
    let listed =
        |token: &str| with(token, "GET /v1/locks").expect(200).body["locks"].as_array().unwrap().len();
    assert_eq!((listed(&ci), listed(&ops)), (1, 2));

    // A ticket alone is not enough. Its user also needs the right to acquire.
    let ticket = json!({ "ticket": held.ticket() });
    server.post("/v1/holds/renew", &[("Authorization", &ops)], &ticket).problem(403, "forbidden");
    server.post("/v1/holds/release", &[], &ticket).problem(401, "unauthorized");
    server.post("/v1/holds/renew", &[("Authorization", &ci)], &ticket).expect(200);
    let token = format!("\"{}\"", held.body["token"]);
    let evict = |who: &str| {
        let headers = [("Authorization", who), ("If-Match", &*token)];
        server.post("/v1/evict", &headers, &json!({ "lock": "ci/x", "reason": "stuck" }))
    };
    evict(&ci).problem(403, "forbidden");
    evict(&ops).expect(200);
    // Probes need no token.
    server.get("/healthz").expect(204);
}

#[test]
fn pages_of_other_sites_are_refused() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox, "");
    let headers = |host: &str, origin: &str| -> Answer {
        server.ask("GET /v1/locks", &[("Host", host), ("Origin", origin)], "")
    };
    server.ask("GET /v1/locks", &[("Host", "evil.example")], "").problem(421, "misdirected");
    headers(&server.address, "http://evil.example").problem(403, "cross-origin");
    headers(&server.address, "null").problem(403, "cross-origin");
    headers(&server.address, &format!("http://{}", server.address)).expect(200);
    let named = Server::start(&sandbox, "--host locks.example");
    named.ask("GET /v1/locks", &[("Host", "locks.example")], "").expect(200);
}

#[test]
fn listening_beyond_this_machine_requires_protection() {
    let sandbox = Sandbox::new();
    let refused = sandbox.run("serve --listen 0.0.0.0:0").expect(125);
    assert!(
        refused.stderr.contains("no tokens and no TLS") && refused.stderr.contains("--insecure"),
        "{refused:?}"
    );
    let missing = sandbox.run("serve --access missing.toml").expect(2);
    assert!(missing.stderr.contains("missing.toml"), "{missing:?}");
    let file = sandbox.write("access.toml", "[[token]]\nprincipal = \"ci\"\nsha256 = \"abc\"\n");
    let wrong = sandbox.run(&format!("serve --access {}", file.display())).expect(2);
    assert!(wrong.stderr.contains("sha256sum"), "{wrong:?}");
}

#[test]
fn wrong_tokens_are_logged_counted_and_slowed() {
    let sandbox = Sandbox::new();
    let server = guarded(&sandbox, "--metrics 127.0.0.1:0");
    let wrong = [("Authorization", &*bearer("token-of-nobody"))];
    // More than may be answered at once. The last ones are slow, but a valid token is not.
    let mut slow = Vec::new();
    for number in 0..25 {
        let stream = server.send("GET /v1/locks", &wrong, "");
        match number {
            0..20 => drop(Answer::read(stream).problem(401, "unauthorized")),
            _ => slow.push(stream),
        }
    }
    server.ask("GET /v1/locks", &[("Authorization", &*bearer("token-of-ci"))], "").expect(200);
    server.get("/v1/locks").problem(401, "unauthorized");
    for stream in slow {
        Answer::read(stream).problem(401, "unauthorized");
    }
    let text = super::records::metrics(&server);
    for line in ["{reason=\"wrong\"} 25", "{reason=\"missing\"} 1"] {
        assert!(text.contains(&format!("leasehold_unauthorized_total{line}")), "{text}");
    }
    server.signal(Signal::TERM);
    let log = server.end().expect(0).stderr;
    assert!(log.contains("most_from=127.0.0.1") && !log.contains("token-of-nobody"), "{log}");
}

#[test]
fn the_log_has_no_secrets() {
    let sandbox = Sandbox::new();
    let server = guarded(&sandbox, "-vv");
    let ci = bearer("token-of-ci");
    let headers = [("Authorization", &*ci), ("Idempotency-Key", &*key_of("a"))];
    let held = server.post("/v1/holds", &headers, &json!({ "lock": "ci/x" })).expect(201);
    let ticket = json!({ "ticket": held.ticket() });
    server.post("/v1/holds/renew", &[("Authorization", &ci)], &ticket).expect(200);
    server.post("/v1/holds/release", &[("Authorization", &ci)], &ticket).expect(200);
    server.signal(Signal::TERM);
    let ended = server.end().expect(0);
    let log = format!("{}{}", ended.stdout, ended.stderr);
    for line in
        ["POST /v1/holds principal=\"ci\" status=201", "POST /v1/holds/renew", "POST /v1/holds/release"]
    {
        assert!(log.contains(line), "{line}: {log}");
    }
    for secret in [&*held.ticket(), "token-of-ci", super::SECRET, &*key_of("a")] {
        assert!(!log.contains(secret), "{secret}: {log}");
    }
}
