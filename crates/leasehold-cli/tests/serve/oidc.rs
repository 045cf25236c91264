//! JWTs of an issuer instead of tokens.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpListener;
use std::process::{Command, Stdio};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use leasehold::clock::{Clock as _, SystemClock};
use rustix::process::Signal;
use serde_json::{Value, json};

use super::{Server, bearer, key_of};
use crate::support::Sandbox;

/// An issuer on this machine. openssl creates its key and its signatures.
struct Issuer<'a> {
    sandbox: &'a Sandbox,
    url: String,
}

impl<'a> Issuer<'a> {
    fn start(sandbox: &'a Sandbox) -> Self {
        let openssl = |line: &str| {
            let output = Command::new("openssl").args(line.split(' ')).current_dir(sandbox.path("")).output();
            let output = output.unwrap();
            assert!(output.status.success(), "{output:?}");
            String::from_utf8(output.stdout).unwrap()
        };
        openssl("genpkey -algorithm RSA -pkeyopt rsa_keygen_bits:2048 -out issuer.key");
        let modulus = openssl("rsa -in issuer.key -noout -modulus");
        let hex = modulus.trim().strip_prefix("Modulus=").unwrap();
        let bytes: Vec<u8> =
            (0..hex.len() / 2).map(|at| u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).unwrap()).collect();
        let key = json!({"kty": "RSA", "kid": "k1", "use": "sig", "n": BASE64.encode(bytes), "e": "AQAB"});
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let configuration = json!({"issuer": url, "jwks_uri": format!("{url}/keys")});
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let mut lines = BufReader::new(stream.try_clone().unwrap()).lines().map_while(Result::ok);
                let line = lines.next().unwrap_or_default();
                lines.take_while(|line| !line.is_empty()).for_each(drop);
                let body = match line.split(' ').nth(1) {
                    Some("/.well-known/openid-configuration") => configuration.to_string(),
                    Some("/keys") => json!({ "keys": [key] }).to_string(),
                    _ => String::new(),
                };
                let head = format!("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {}", body.len());
                let _ = stream.write_all(format!("{head}\r\n\r\n{body}").as_bytes());
            }
        });
        Self { sandbox, url }
    }

    /// Returns the token of a job of `repository` that expires in `seconds`.
    fn token(&self, repository: &str, seconds: i64) -> String {
        let now = i64::try_from(SystemClock.now().wall_us() / 1_000_000).unwrap();
        let claims = json!({
            "iss": self.url, "aud": "https://locks.example", "sub": format!("repo:{repository}"), "repository": repository,
            "repository_owner": repository.split('/').next(), "nbf": now - 600, "exp": now + seconds,
        });
        let part = |value: Value| BASE64.encode(value.to_string());
        let signed = format!("{}.{}", part(json!({"alg": "RS256", "kid": "k1", "typ": "JWT"})), part(claims));
        let mut openssl = Command::new("openssl")
            .args(["dgst", "-sha256", "-sign", "issuer.key"])
            .current_dir(self.sandbox.path(""))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        openssl.stdin.take().unwrap().write_all(signed.as_bytes()).unwrap();
        format!("{signed}.{}", BASE64.encode(openssl.wait_with_output().unwrap().stdout))
    }

    /// Starts a server that accepts the tokens of this issuer.
    fn server(&self, arguments: &str) -> Server {
        let text = format!(
            r#"
            [[issuer]]
            name = "github"
            url = "{}"
            audience = "https://locks.example"
            principal = "{{repository}}"
            [[rule]]
            issuer = "github"
            claims = {{ repository_owner = "my-org" }}
            prefix = "ci/{{repository:2}}/"
            allow = ["read", "acquire"]
            "#,
            self.url
        );
        let file = self.sandbox.write("access.toml", &text);
        Server::start(self.sandbox, &format!("--access {} {arguments}", file.display()))
    }
}

#[test]
fn a_job_with_a_token_of_an_issuer_takes_its_locks() {
    let sandbox = Sandbox::new();
    let issuer = Issuer::start(&sandbox);
    let audit = sandbox.path("audit.jsonl");
    let server = issuer.server(&format!("-vv --audit {}", audit.display()));
    let acquire = |token: &str, lock: &str| {
        let headers = [("Authorization", &*bearer(token)), ("Idempotency-Key", &*key_of("a"))];
        server.post("/v1/holds", &headers, &json!({ "lock": lock, "ttl": "10m" }))
    };
    let token = issuer.token("my-org/app", 300);
    let held = acquire(&token, "ci/my-org/app/deploy").expect(201);
    for other in ["ci/my-org/application/deploy", "ci/my-org/app", "prod"] {
        acquire(&token, other).problem(403, "forbidden");
    }
    acquire(&issuer.token("other/app", 300), "ci/other/app/deploy").problem(403, "forbidden");
    let ask = |line: &str| server.ask(line, &[("Authorization", &*bearer(&token))], "").expect(200).body;
    let shown = ask("GET /v1/locks/ci/my-org/app/deploy");
    assert_eq!(shown["held_by"]["holder"]["name"], "github:my-org/app", "the holder is the principal");
    let rules = json!([{ "prefix": "ci/my-org/app/", "allow": ["read", "acquire"] }]);
    assert_eq!(ask("GET /v1/store")["rules"], rules);

    // The use of a ticket requires a valid token.
    let ticket = json!({ "ticket": held.ticket() });
    let renew = |token: &str| server.post("/v1/holds/renew", &[("Authorization", &bearer(token))], &ticket);
    let expired = issuer.token("my-org/app", -60);
    let refused = renew(&expired).problem(401, "unauthorized");
    assert!(refused.body["detail"].as_str().unwrap().contains("expired"), "{refused:?}");
    let forged = format!("{}x.{}", token.rsplit_once('.').unwrap().0, token.rsplit_once('.').unwrap().1);
    renew(&forged).problem(401, "unauthorized");
    let next = issuer.token("my-org/app", 200);
    renew(&next).expect(200);
    server.post("/v1/holds/release", &[("Authorization", &bearer(&next))], &ticket).expect(200);

    server.signal(Signal::TERM);
    let ended = server.end().expect(0);
    let audit = std::fs::read_to_string(audit).unwrap();
    assert!(audit.contains(r#""principal":"github:my-org/app""#), "{audit}");
    let log = format!("{audit}{}{}", ended.stdout, ended.stderr);
    for secret in token.split('.').chain(expired.split('.')).chain(next.split('.')) {
        assert!(!log.contains(secret), "{secret}: {log}");
    }
}

#[test]
fn an_issuer_that_is_down_does_not_prevent_the_start() {
    let sandbox = Sandbox::new();
    let mut issuer = Issuer::start(&sandbox);
    // Nothing listens at this address.
    issuer.url = format!("http://{}", TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap());
    let server = issuer.server("");
    server.get("/readyz").expect(204);
    let token = bearer(&issuer.token("my-org/app", 300));
    let refused = server.ask("GET /v1/store", &[("Authorization", &token)], "").problem(503, "unavailable");
    assert!(refused.body["detail"].as_str().unwrap().contains("`github`"), "{refused:?}");
    server.signal(Signal::TERM);
    let ended = server.end().expect(0);
    assert!(ended.stderr.contains(&issuer.url) && ended.stderr.contains("github"), "{}", ended.stderr);
}

#[cfg(feature = "http")]
#[test]
fn the_command_takes_a_token_of_an_issuer_from_a_file() {
    let sandbox = Sandbox::new();
    let issuer = Issuer::start(&sandbox);
    let server = issuer.server("");
    let file = sandbox.write("token", &issuer.token("my-org/app", 300));
    let run = || {
        let store = format!("http://{}?token_file={}", server.address, file.display());
        sandbox.run(&format!("-s {store} run ci/my-org/app/x -- true"))
    };
    run().expect(0);
    sandbox.write("token", &issuer.token("my-org/app", -60));
    let refused = run();
    assert!(refused.code != 0 && refused.stderr.contains("expired"), "{refused:?}");
}
