//! HTTPS, and clients with certificates. The client is curl.

use std::io::Write as _;
use std::process::{Command, Stdio};

use rustix::process::Signal;
use serde_json::Value;

use super::Server;
use crate::support::{Outcome, Sandbox};

/// Runs `openssl` in the sandbox.
fn openssl(sandbox: &Sandbox, words: &str) {
    let output =
        Command::new("openssl").args(words.split(' ')).current_dir(sandbox.path("")).output().unwrap();
    assert!(output.status.success(), "{output:?}");
}

const KEY: &str = "-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 30";

/// Creates the authority `NAME.crt`, `NAME.key`.
fn make_authority(sandbox: &Sandbox, name: &str) {
    openssl(sandbox, &format!("req -x509 {KEY} -subj /CN={name} -keyout {name}.key -out {name}.crt"));
}

/// Creates `NAME.key`, and `NAME.crt` with the alternative name `names`, signed by `authority`.
fn make_certificate(sandbox: &Sandbox, authority: &str, name: &str, names: &str) {
    openssl(
        sandbox,
        &format!(
            "req -x509 {KEY} -subj /CN={name} -addext subjectAltName={names} -addext basicConstraints=critical,CA:FALSE \
             -CA {authority}.crt -CAkey {authority}.key -keyout {name}.key -out {name}.crt"
        ),
    );
}

/// Requests `path` from the server with curl, which trusts `authority`. Prints the body and then the status.
fn curl(sandbox: &Sandbox, server: &Server, authority: &str, more: &str, path: &str) -> Outcome {
    let url = format!("https://{}{path}", server.address);
    let line = format!("-sS --max-time 60 --cacert {authority}.crt -w \n%{{http_code}} {more}");
    let words = line.split(' ').filter(|word| !word.is_empty());
    Outcome::of(Command::new("curl").args(words).arg(url).current_dir(sandbox.path("")).output().unwrap())
}

const FILES: &str = "--tls-cert server.crt --tls-key server.key";

#[test]
fn a_server_with_a_certificate_accepts_only_https() {
    let sandbox = Sandbox::new();
    make_authority(&sandbox, "ca");
    make_certificate(&sandbox, "ca", "server", "IP:127.0.0.1");
    let server = Server::start(&sandbox, FILES);
    let got = curl(&sandbox, &server, "ca", "", "/v1/locks").expect(0);
    assert!(got.stdout.ends_with("\n200"), "{got:?}");
    // A page in a browser also has an https origin.
    let own = format!("-H Origin:https://{}", server.address);
    assert!(curl(&sandbox, &server, "ca", &own, "/v1/locks").stdout.ends_with("\n200"));
    let plain = format!("-H Origin:http://{}", server.address);
    assert!(curl(&sandbox, &server, "ca", &plain, "/v1/locks").stdout.ends_with("\n403"));
    let form = format!("{own} -D - -d token={}", server.operator);
    let signed_in = curl(&sandbox, &server, "ca", &form, "/ui/sign-in").expect(0);
    assert!(signed_in.stdout.contains("SameSite=Strict; Secure"), "{signed_in:?}");
    let url = format!("http://{}/v1/locks", server.address);
    let plain = Command::new("curl").args(["-sS", "--max-time", "60", &url]).output().unwrap();
    assert!(!plain.status.success(), "{plain:?}");
    server.signal(Signal::TERM);
    server.end().expect(0);
}

#[test]
fn new_connections_use_a_new_certificate() {
    let sandbox = Sandbox::new();
    for authority in ["ca", "next"] {
        make_authority(&sandbox, authority);
        make_certificate(&sandbox, authority, &format!("server-of-{authority}"), "IP:127.0.0.1");
    }
    let install = |ending: &str, of: &str| {
        std::fs::copy(
            sandbox.path(&format!("server-of-{of}.{ending}")),
            sandbox.path(&format!("server.{ending}")),
        )
        .unwrap();
    };
    install("crt", "ca");
    install("key", "ca");
    let server = Server::start(&sandbox, FILES);
    let trusts = |authority: &str| curl(&sandbox, &server, authority, "", "/healthz").code == 0;
    assert!(trusts("ca") && !trusts("next"));
    // Only half of the pair has changed. The key does not match the certificate, so the previous pair stays in use.
    install("crt", "next");
    assert!(trusts("ca") && !trusts("next"));
    install("key", "next");
    assert!(!trusts("ca") && trusts("next"));
    std::fs::remove_file(sandbox.path("server.crt")).unwrap();
    assert!(trusts("next"), "a file that is missing for a moment");
}

#[test]
fn a_client_certificate_takes_the_place_of_a_token() {
    let sandbox = Sandbox::new();
    make_authority(&sandbox, "ca");
    make_authority(&sandbox, "foreign");
    make_certificate(&sandbox, "ca", "server", "IP:127.0.0.1");
    make_certificate(&sandbox, "ca", "ci", "URI:spiffe://example/ci,DNS:ci.example");
    make_certificate(&sandbox, "ca", "other", "DNS:other.example");
    make_certificate(&sandbox, "ca", "host", "DNS:host.example");
    make_certificate(&sandbox, "ca", "disguised", "URI:host.example");
    make_certificate(&sandbox, "foreign", "forged", "DNS:ci.example");
    let rules = r#"
        [[certificate]]
        principal = "ci"
        name = "spiffe://example/ci"
        [[certificate]]
        principal = "ci"
        name = "host.example"
        [[rule]]
        principal = "ci"
        prefix = "ci/"
        allow = ["read", "acquire"]
    "#;
    sandbox.write("access.toml", rules);
    let server = Server::start(&sandbox, &format!("{FILES} --client-ca ca.crt --access access.toml"));
    let status = |who: &str, path: &str| -> String {
        let certificate =
            if who.is_empty() { String::new() } else { format!("--cert {who}.crt --key {who}.key") };
        let got = curl(&sandbox, &server, "ca", &certificate, path);
        got.stdout.rsplit('\n').next().unwrap().to_owned()
    };
    assert_eq!(status("ci", "/v1/locks/ci/a"), "200");
    assert_eq!(status("ci", "/v1/locks/prod"), "403");
    assert_eq!(status("other", "/v1/locks/ci/a"), "401", "a name that no principal has");
    assert_eq!(status("host", "/v1/locks/ci/a"), "200");
    assert_eq!(status("disguised", "/v1/locks/ci/a"), "401", "a URI that looks like a DNS name");
    assert_eq!(status("", "/v1/locks/ci/a"), "401");
    assert_eq!(status("ci", "/ui/lock/ci/a"), "200", "the dashboard");
    assert_eq!(status("forged", "/v1/locks/ci/a"), "000", "another authority has signed it");
    let body = "--cert ci.crt --key ci.key -H Content-Type:application/json -H Idempotency-Key:0123456789abcdef -d {\"lock\":\"ci/a\"}";
    let held = curl(&sandbox, &server, "ca", body, "/v1/holds").expect(0);
    assert!(held.stdout.ends_with("\n201"), "{held:?}");
    let shown = curl(&sandbox, &server, "ca", "--cert ci.crt --key ci.key", "/v1/locks/ci/a").expect(0);
    let shown: Value = serde_json::from_str(shown.stdout.rsplit_once('\n').unwrap().0).unwrap();
    assert_eq!(shown["held_by"]["holder"]["name"], "ci", "the holder is the principal");
}

/// A session must not be resumed, because the server would not verify the certificate again.
#[test]
fn a_session_of_a_client_certificate_is_not_resumed() {
    let sandbox = Sandbox::new();
    make_authority(&sandbox, "ca");
    make_certificate(&sandbox, "ca", "server", "IP:127.0.0.1");
    make_certificate(&sandbox, "ca", "ci", "DNS:ci.example");
    sandbox.write("access.toml", "[[certificate]]\nprincipal = \"ci\"\nname = \"ci.example\"\n");
    let server = Server::start(&sandbox, &format!("{FILES} --client-ca ca.crt --access access.toml"));
    let line = format!(
        "s_client -connect {} -CAfile ca.crt -cert ci.crt -key ci.key -sess_out session -quiet -ign_eof",
        server.address
    );
    let mut client = Command::new("openssl")
        .args(line.split(' '))
        .current_dir(sandbox.path(""))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let request = format!("GET /readyz HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", server.address);
    client.stdin.as_mut().unwrap().write_all(request.as_bytes()).unwrap();
    let output = client.wait_with_output().unwrap();
    assert!(output.stdout.starts_with(b"HTTP/1.1 204"), "{output:?}");
    assert!(!sandbox.path("session").exists(), "the server gave out a session");
}

#[test]
fn wrong_tls_files_are_refused_at_the_start() {
    let sandbox = Sandbox::new();
    make_authority(&sandbox, "ca");
    make_authority(&sandbox, "other");
    sandbox.write("empty", "");
    sandbox
        .write("access.toml", &format!("[[token]]\nprincipal = \"ci\"\nsha256 = \"{}\"\n", "ab".repeat(32)));
    for (words, code, named) in [
        ("--tls-cert ca.crt", 2, "--tls-key"),
        ("--tls-key ca.key", 2, "--tls-cert"),
        ("--client-ca ca.crt", 2, "--tls-cert"),
        ("--tls-cert missing.crt --tls-key ca.key", 2, "missing.crt"),
        ("--tls-cert empty --tls-key ca.key", 2, "empty: it contains no certificate"),
        ("--tls-cert ca.crt --tls-key empty", 2, "empty: it contains no private key"),
        ("--tls-cert ca.crt --tls-key other.key", 2, "other.key"),
        (
            "--tls-cert ca.crt --tls-key ca.key --access access.toml --client-ca empty",
            2,
            "empty: it contains no certificate",
        ),
        (
            "--tls-cert ca.crt --tls-key ca.key --access access.toml --client-ca ca.crt",
            125,
            "[[certificate]]",
        ),
        ("--listen 0.0.0.0:0 --tls-cert ca.crt --tls-key ca.key", 125, "tokens"),
        ("--listen 0.0.0.0:0 --access access.toml", 125, "TLS"),
    ] {
        let refused = sandbox.run(&format!("serve {words}")).expect(code);
        assert!(
            refused.stderr.contains(named) && !refused.stderr.contains("PRIVATE KEY"),
            "{words}: {refused:?}"
        );
    }
    // With TLS and an access file, the server may listen beyond this machine.
    let server =
        Server::start(&sandbox, "--listen 0.0.0.0:0 --access access.toml --tls-cert ca.crt --tls-key ca.key");
    assert!(server.address.starts_with("0.0.0.0:"), "{}", server.address);
}
