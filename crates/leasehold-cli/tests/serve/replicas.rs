//! Several servers on one store.

use serde_json::json;

use super::Server;
use crate::support::Sandbox;

#[test]
fn any_server_serves_any_ticket() {
    let sandbox = Sandbox::new();
    let (one, two) = (Server::start(&sandbox, ""), Server::start(&sandbox, ""));
    let request = json!({ "lock": "x", "ttl": "10m" });
    let held = one.acquire_with("a", &request).expect(201);
    let again = two.acquire_with("a", &request).expect(201);
    assert_eq!(again.body["token"], held.body["token"]);
    two.acquire("x", "b").problem(423, "held");
    two.renew(&held.ticket()).expect(200);
    one.release(&held.ticket()).expect(200);
    for server in [&one, &two] {
        server.acquire_with("a", &request).problem(409, "key-spent");
        server.renew(&held.ticket()).problem(410, "lost");
    }
    two.acquire("x", "b").expect(201);
}

#[test]
fn a_hold_survives_the_server_that_granted_it() {
    let sandbox = Sandbox::new();
    let (one, two) = (Server::start(&sandbox, ""), Server::start(&sandbox, ""));
    let request = json!({ "lock": "x", "ttl": "10m" });
    let held = one.acquire_with("a", &request).expect(201);
    drop(one); // SIGKILL
    two.acquire("x", "b").problem(423, "held");
    two.renew(&held.ticket()).expect(200);
    let three = Server::start(&sandbox, "");
    assert_eq!(three.acquire_with("a", &request).expect(201).body["token"], held.body["token"]);
    three.release(&held.ticket()).expect(200);
}

#[test]
fn a_key_is_unknown_to_a_server_with_another_secret() {
    let sandbox = Sandbox::new();
    let one = Server::start(&sandbox, "");
    one.acquire("x", "a").expect(201);
    let file = sandbox.write("other-secret", &"f".repeat(32));
    let other = Server::start_with_secret(&sandbox, &file, "");
    other.acquire("x", "a").problem(423, "held");
    let short = sandbox.write("short-secret", "too short");
    let refused = sandbox.run(&format!("serve --secret-file {}", short.display())).expect(2);
    assert!(refused.stderr.contains("32 bytes") && refused.stderr.contains("openssl"), "{refused:?}");
}
