//! Tests with tokens of an issuer on this machine, whose keys each test creates.

mod issuer;

use std::sync::Arc;
use std::time::Duration;

use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use futures_util::{FutureExt as _, future};
use jsonwebtoken::{Algorithm, DecodingKey, EncodingKey, Header};
use leasehold::clock::{Clock as _, SystemClock, TestClock};
use leasehold::env::Env;
use serde_json::{Value, json};

use self::issuer::{Answers, TestIssuer, TestKey};
use super::super::{Access, Caller, Right};
use super::keys::{FETCH_TIMEOUT, Key, MAX_AGE, MIN_INTERVAL};
use super::{IssuerEntry, Issuers, LEEWAY, MAX_TOKEN};
use crate::problem::Problem;

/// The access of a server whose clock the test moves.
struct Server {
    access: Access,
    env: Env,
    clock: Arc<TestClock>,
    refreshing: tokio::task::JoinHandle<()>,
}

impl Server {
    fn new(file: &str) -> Self {
        let access = Access::parse(file).unwrap();
        let clock = Arc::new(TestClock::default());
        let env = Env::seeded(clock.clone(), 1);
        let refreshing = tokio::spawn({
            let (access, env) = (access.clone(), env.clone());
            async move { access.refresh_keys(&env).await }
        });
        Self { access, env, clock, refreshing }
    }

    fn now_s(&self) -> f64 {
        Duration::from_micros(self.env.now().wall_us()).as_secs_f64()
    }

    /// Returns the claims of a valid token.
    fn claims(&self, issuer: &TestIssuer) -> Value {
        json!({"iss": issuer.url, "aud": "locks", "sub": "s", "team": "my/app", "exp": self.now_s() + 300.0})
    }

    async fn ask(&self, token: &str) -> Result<Caller, Problem> {
        let value = HeaderValue::from_str(&format!("Bearer {token}")).unwrap();
        let headers = HeaderMap::from_iter([(header::AUTHORIZATION, value)]);
        self.access.caller(&headers, None, &self.env).await
    }

    /// Expects a refusal with this status that contains `wanted` and does not repeat the token.
    #[track_caller]
    fn refused(outcome: Result<Caller, Problem>, token: &str, status: u16, wanted: &str) {
        let problem = outcome.unwrap_err();
        let text = format!("{problem:?}");
        assert!(problem.status() == status && problem.detail().contains(wanted), "{wanted}: {text}");
        for part in token.split('.').filter(|part| part.len() > 8) {
            assert!(!text.contains(part), "{text}");
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.refreshing.abort();
    }
}

#[tokio::test]
async fn a_token_has_the_rights_of_the_rules_it_meets() {
    for key in [TestKey::ed25519("a"), TestKey::p256("b")] {
        let issuer = TestIssuer::start(&[&key]).await;
        let server = Server::new(&issuer.file());
        let caller = server.ask(&key.sign(&server.claims(&issuer))).await.unwrap();
        assert_eq!(caller.name(), "test:s");
        assert!(!caller.names_holders);
        let valid = caller.valid_for(server.env.now()).unwrap();
        let most = Duration::from_secs(300) + LEEWAY;
        assert!(valid <= most && valid > most - Duration::from_secs(60), "{valid:?}");
        assert!(caller.may(Right::Read, "ci/my/app/x") && caller.may(Right::Acquire, "ci/my/app/x"));
        for other in ["ci/my/app", "ci/my/application/x", "ci/my/ap", "ci/other/x", "x"] {
            assert!(!caller.may(Right::Read, other), "{other}");
        }
        assert!(!caller.may(Right::Evict, "ci/my/app/x"));
        let mut claims = server.claims(&issuer);
        claims["aud"] = json!(["others", "locks"]);
        claims["nbf"] = json!(server.now_s());
        assert!(server.ask(&key.sign(&claims)).await.is_ok());
    }
}

#[tokio::test]
async fn a_token_with_a_flaw_is_refused() {
    let (key, other) = (TestKey::ed25519("a"), TestKey::ed25519("a"));
    let issuer = TestIssuer::start(&[&key]).await;
    let server = Server::new(&issuer.file());
    let now = server.now_s();
    let with = |name: &str, value: Value| {
        let mut claims = server.claims(&issuer);
        claims[name] = value;
        key.sign(&claims)
    };
    let without = |name: &str| {
        let mut claims = server.claims(&issuer);
        claims.as_object_mut().unwrap().remove(name);
        key.sign(&claims)
    };
    let good = key.sign(&server.claims(&issuer));
    assert!(server.ask(&good).await.is_ok());
    let (head, rest) = good.split_once('.').unwrap();
    let (claims, signature) = rest.split_once('.').unwrap();
    let others = without("team");
    let other_claims = others.split('.').nth(1).unwrap();
    let header =
        |header: Header| jsonwebtoken::encode(&header, &server.claims(&issuer), &key.secret).unwrap();
    let leeway = LEEWAY.as_secs_f64();
    for (flaw, token, wanted) in [
        ("another key", other.sign(&server.claims(&issuer)), "signature"),
        ("other claims", format!("{head}.{other_claims}.{signature}"), "signature"),
        ("no signature", format!("{head}.{claims}."), "signature"),
        ("another audience", with("aud", json!("others")), "`aud`"),
        ("a longer audience", with("aud", json!("locks2")), "`aud`"),
        ("other audiences", with("aud", json!(["others"])), "`aud`"),
        ("no audience", without("aud"), "`aud`"),
        ("an audience that is not text", with("aud", json!(7)), "`aud`"),
        ("another issuer", with("iss", json!("https://other.example")), "`iss`"),
        ("a longer issuer", with("iss", json!(format!("{}/", issuer.url))), "`iss`"),
        ("a list of issuers", with("iss", json!([issuer.url])), "`iss`"),
        ("no issuer", without("iss"), "`iss`"),
        ("expired", with("exp", json!(now - leeway - 1.0)), "expired"),
        ("an end at the epoch", with("exp", json!(0)), "expired"),
        ("no end", without("exp"), "`exp`"),
        ("an end that is not a number", with("exp", json!("never")), "`exp`"),
        ("not yet valid", with("nbf", json!(now + leeway + 60.0)), "`nbf`"),
        ("a beginning that is not a number", with("nbf", json!("soon")), "`nbf`"),
        ("no key", header(Header { kid: None, ..key.header() }), "`kid`"),
        ("an extension", header(Header { crit: Some(vec!["b64".into()]), ..key.header() }), "`crit`"),
        ("too long", with("more", json!("x".repeat(MAX_TOKEN))), "longer"),
        ("no text", "a.b.c".to_owned(), "header"),
        ("no token of an issuer", "opaque".to_owned(), "unknown"),
        ("four parts", format!("{good}.x"), "unknown"),
    ] {
        let outcome = server.ask(&token).await;
        assert!(outcome.is_err(), "{flaw}");
        Server::refused(outcome, &token, 401, wanted);
    }
    assert!(server.ask(&with("exp", json!(now - leeway + 5.0))).await.is_ok(), "clocks differ");
    assert!(server.ask(&with("exp", json!(1e15))).await.is_ok());
    assert!(server.ask(&with("nbf", json!(now + leeway - 5.0))).await.is_ok(), "clocks differ");
}

#[tokio::test]
async fn an_algorithm_that_the_key_does_not_have_is_refused() {
    let key = TestKey::ed25519("a");
    let issuer = TestIssuer::start(&[&key]).await;
    let server = Server::new(&issuer.file());
    let claims = server.claims(&issuer);
    // {"alg":"none","kid":"a"} and {"kid":"a"}
    for head in ["eyJhbGciOiJub25lIiwia2lkIjoiYSJ9", "eyJraWQiOiJhIn0"] {
        let good = key.sign(&claims);
        let token = format!("{head}.{}.", good.split('.').nth(1).unwrap());
        Server::refused(server.ask(&token).await, &token, 401, "`alg`");
    }
    // Use the public key, which everyone has, as a shared secret.
    let public = key.public();
    let x = public["x"].as_str().unwrap();
    let decoded = EncodingKey::from_urlsafe_base64_secret(&format!("{x}=")).unwrap();
    for secret in [decoded, EncodingKey::from_secret(x.as_bytes()), EncodingKey::from_secret(b"")] {
        for algorithm in [Algorithm::HS256, Algorithm::HS384, Algorithm::HS512] {
            let header = Header { kid: Some("a".to_owned()), ..Header::new(algorithm) };
            let token = jsonwebtoken::encode(&header, &claims, &secret).unwrap();
            Server::refused(server.ask(&token).await, &token, 401, "`alg`");
        }
    }
    // Use another type of key.
    let ec = TestKey::p256("a").sign(&claims);
    Server::refused(server.ask(&ec).await, &ec, 401, "`alg`");
}

#[tokio::test]
async fn unknown_keys_cause_one_fetch_in_a_pause() {
    let (key, other) = (TestKey::ed25519("a"), TestKey::ed25519("b"));
    let issuer = TestIssuer::start(&[&key]).await;
    let server = Server::new(&issuer.file());
    let claims = server.claims(&issuer);
    let (good, unknown) = (key.sign(&claims), other.sign(&claims));
    assert!(server.ask(&good).await.is_ok());
    for _ in 0..20 {
        Server::refused(server.ask(&unknown).await, &unknown, 401, "`kid`");
    }
    assert_eq!(issuer.fetches(), 1, "the last fetch was a moment ago");
    server.clock.suspend(MIN_INTERVAL);
    let many = (0..100).map(|_| server.ask(&unknown));
    for refused in future::join_all(many).await {
        Server::refused(refused, &unknown, 401, "`kid`");
    }
    assert_eq!(issuer.fetches(), 2, "all of them share one fetch");
    server.clock.suspend(MIN_INTERVAL);
    assert!(server.ask(&good).await.is_ok());
    assert_eq!(issuer.fetches(), 2, "a known key causes none");
}

#[tokio::test]
async fn new_keys_are_fetched_when_a_token_names_one() {
    let (old, new) = (TestKey::ed25519("a"), TestKey::ed25519("b"));
    let issuer = TestIssuer::start(&[&old]).await;
    let server = Server::new(&issuer.file());
    let claims = server.claims(&issuer);
    assert!(server.ask(&old.sign(&claims)).await.is_ok());
    issuer.publish(&[&new]);
    server.clock.suspend(MIN_INTERVAL);
    assert!(server.ask(&new.sign(&claims)).await.is_ok());
    let withdrawn = old.sign(&claims);
    Server::refused(server.ask(&withdrawn).await, &withdrawn, 401, "`kid`");
}

#[tokio::test]
async fn withdrawn_keys_end_without_a_request() {
    let (old, new) = (TestKey::ed25519("a"), TestKey::ed25519("b"));
    let issuer = TestIssuer::start(&[&old]).await;
    let server = Server::new(&issuer.file());
    let good = |key: &TestKey| {
        let mut claims = server.claims(&issuer);
        claims["exp"] = json!(server.now_s() + 1e6);
        key.sign(&claims)
    };
    assert!(server.ask(&good(&old)).await.is_ok());
    issuer.publish(&[&new]);
    server.clock.suspend(MAX_AGE);
    issuer.fetched(2).await;
    // The new key is known once that fetch has ended.
    assert!(server.ask(&good(&new)).await.is_ok());
    assert!(server.ask(&good(&old)).await.is_err());
}

#[tokio::test]
async fn a_known_key_does_not_wait_for_a_fetch() {
    let (key, new) = (TestKey::ed25519("a"), TestKey::ed25519("b"));
    let issuer = TestIssuer::start(&[&key]).await;
    let server = Server::new(&issuer.file());
    let claims = server.claims(&issuer);
    let (good, other) = (key.sign(&claims), new.sign(&claims));
    assert!(server.ask(&good).await.is_ok());
    issuer.is_open.send_replace(false);
    server.clock.suspend(MIN_INTERVAL);
    let mut waiting = Box::pin(server.ask(&other));
    assert!(waiting.as_mut().now_or_never().is_none());
    // The fetch begins with the configuration, and the issuer does not respond.
    assert!(server.ask(&good).now_or_never().expect("it waits").is_ok());
    // The waiting client disconnects, but the fetch continues.
    drop(waiting);
    issuer.publish(&[&key, &new]);
    issuer.is_open.send_replace(true);
    issuer.fetched(2).await;
    assert!(server.ask(&other).await.is_ok());
    assert_eq!(issuer.fetches(), 2);
}

#[tokio::test]
async fn without_its_keys_an_issuer_gives_no_access() {
    let (key, other) = (TestKey::ed25519("a"), TestKey::ed25519("b"));
    let issuer = TestIssuer::start(&[]).await;
    let elsewhere = TestIssuer::start(&[&key]).await;
    elsewhere.set(Answers::new(&[&key]).with(json!({"issuer": issuer.url})));
    let good = || Answers::new(&[&key]);
    let down = || Answers { status: StatusCode::SERVICE_UNAVAILABLE, ..good() };
    let server = Server::new(&issuer.file());
    let claims = server.claims(&issuer);
    let (token, unknown) = (key.sign(&claims), other.sign(&claims));
    for (flaw, answers) in [
        ("no keys", Answers::new(&[])),
        ("an error", down()),
        ("a redirect", Answers { elsewhere: Some(elsewhere.url.clone()), ..good() }),
        ("another issuer", good().with(json!({"issuer": format!("{}/", issuer.url)}))),
        ("no `jwks_uri`", good().with(json!({"jwks_uri": null}))),
        ("keys without TLS", good().with(json!({"jwks_uri": "http://192.0.2.1/keys"}))),
        ("too long", good().with(json!({"more": "x".repeat(2 << 20)}))),
    ] {
        issuer.set(answers);
        server.clock.suspend(MIN_INTERVAL);
        let outcome = server.ask(&token).await;
        assert!(outcome.is_err(), "{flaw}");
        Server::refused(outcome, &token, 503, "`test`");
    }
    assert_eq!(elsewhere.fetches(), 0);
    issuer.publish(&[&key]);
    server.clock.suspend(MIN_INTERVAL);
    assert!(server.ask(&token).await.is_ok());
    // From now on, an outage does not end the access of anyone.
    issuer.set(down());
    server.clock.suspend(MIN_INTERVAL);
    Server::refused(server.ask(&unknown).await, &unknown, 503, "`test`");
    assert!(server.ask(&token).await.is_ok());
}

#[tokio::test]
async fn keys_come_from_a_file_or_another_url_too() {
    let key = TestKey::ed25519("a");
    let (issuer, elsewhere) = (TestIssuer::start(&[]).await, TestIssuer::start(&[&key]).await);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("keys.json");
    std::fs::write(&file, json!({"keys": [key.public()]}).to_string()).unwrap();
    for jwks in [format!("{}/keys", elsewhere.url), file.display().to_string()] {
        let text = issuer.file().replace("[[rule]]", &format!("jwks = \"{jwks}\"\n[[rule]]"));
        let server = Server::new(&text);
        assert!(server.ask(&key.sign(&server.claims(&issuer))).await.is_ok(), "{jwks}");
    }
    assert_eq!(issuer.fetches(), 0);
}

#[cfg(unix)]
#[tokio::test]
async fn a_stuck_file_of_keys_stops_no_other_issuer() {
    let key = TestKey::ed25519("a");
    let (stuck, good) = (TestIssuer::start(&[]).await, TestIssuer::start(&[&key]).await);
    let folder = tempfile::tempdir().unwrap();
    // Without a writer, a read of the FIFO never ends.
    let fifo = folder.path().join("keys.json");
    assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let jwks = format!("jwks = \"{}\"\n[[rule]]", fifo.display());
    let first = stuck.file().replace("\"test\"", "\"stuck\"").replace("[[rule]]", &jwks);
    let server = Server::new(&format!("{first}{}", good.file()));
    assert!(server.ask(&key.sign(&server.claims(&good))).await.is_ok());
    let mut claims = server.claims(&stuck);
    claims["exp"] = json!(server.now_s() + 1e6);
    let token = key.sign(&claims);
    let mut waiting = Box::pin(server.ask(&token));
    assert!(waiting.as_mut().now_or_never().is_none());
    server.clock.suspend(FETCH_TIMEOUT);
    Server::refused(waiting.await, &token, 503, "`stuck`");
    // The same read is still in progress.
    std::fs::write(&fifo, json!({"keys": [key.public()]}).to_string()).unwrap();
    server.clock.suspend(MIN_INTERVAL);
    assert!(server.ask(&token).await.is_ok());
}

#[tokio::test]
async fn a_token_without_a_rule_that_fits_is_refused() {
    let key = TestKey::ed25519("a");
    let issuer = TestIssuer::start(&[&key]).await;
    let server = Server::new(&issuer.file());
    let with = |name: &str, value: Value| {
        let mut claims = server.claims(&issuer);
        claims[name] = value;
        key.sign(&claims)
    };
    for team in [
        json!("others/app"),
        json!("my"),
        json!("my/app/x"),
        json!("my/.."),
        json!("my/a\nb"),
        json!(7),
        json!(null),
    ] {
        let token = with("team", team);
        Server::refused(server.ask(&token).await, &token, 403, "no rule");
    }
    for subject in [json!(null), json!(7), json!("a\u{1b}[31m")] {
        let token = with("sub", subject);
        Server::refused(server.ask(&token).await, &token, 401, "principal");
    }
}

#[tokio::test]
async fn two_issuers_share_no_key_and_no_rule() {
    let (key, forged) = (TestKey::ed25519("a"), TestKey::ed25519("b"));
    let (one, two) = (TestIssuer::start(&[&key]).await, TestIssuer::start(&[&forged]).await);
    let second = two.file().replace("\"test\"", "\"second\"").replace("ci/", "second/");
    let server = Server::new(&format!("{}{second}", one.file()));
    let caller = server.ask(&forged.sign(&server.claims(&two))).await.unwrap();
    assert_eq!(caller.name(), "second:s");
    assert!(caller.may(Right::Read, "second/my/app/x") && !caller.may(Right::Read, "ci/my/app/x"));
    assert!(server.ask(&key.sign(&server.claims(&one))).await.is_ok());
    let token = forged.sign(&server.claims(&one));
    Server::refused(server.ask(&token).await, &token, 401, "`kid`");
}

/// `caller` chooses the issuer by a claim that is not verified, so the issuer itself must check it.
#[test]
fn an_issuer_verifies_no_token_of_another_one() {
    let key = TestKey::ed25519("a");
    let url = "https://issuer.example".to_owned();
    let entry = IssuerEntry {
        name: "a".to_owned(),
        url: url.clone(),
        audience: "locks".to_owned(),
        principal: super::subject(),
        jwks: None,
        ca: None,
    };
    let issuers = Issuers::new(vec![entry]).unwrap();
    let decoding = DecodingKey::from_jwk(&serde_json::from_value(key.public()).unwrap()).unwrap();
    let decoding = Key { decoding, algorithms: vec![key.algorithm] };
    let now = SystemClock.now();
    let verified = |issuer: Value| {
        let claims = json!({"iss": issuer, "aud": "locks", "exp": now.wall_us() / 1_000_000 + 300});
        issuers.0[0].verified(&key.sign(&claims), &decoding, now)
    };
    assert!(verified(json!(url)).is_ok());
    for other in [json!("https://other.example"), json!(null), json!([]), json!(["https://other.example"])] {
        assert!(verified(other.clone()).is_err(), "{other}");
    }
}

#[tokio::test]
async fn a_token_of_the_file_counts_before_an_issuer() {
    let key = TestKey::ed25519("a");
    let issuer = TestIssuer::start(&[&key]).await;
    issuer.is_open.send_replace(false);
    // The SHA-256 of "a.b.c".
    let digest: String = super::super::digest("a.b.c").iter().map(|byte| format!("{byte:02x}")).collect();
    let server = Server::new(&format!(
        "{}[[token]]\nprincipal = \"fixed\"\nsha256 = \"{digest}\"\n[[rule]]\nprincipal = \"fixed\"\nallow = [\"read\"]",
        issuer.file()
    ));
    let caller = server.ask("a.b.c").now_or_never().expect("it waits").unwrap();
    assert_eq!(caller.name(), "fixed");
    assert_eq!(caller.valid_for(server.env.now()), None);
    assert!(server.access.needs_token());
    assert!(server.access.caller(&HeaderMap::new(), None, &server.env).await.is_err());
}

#[test]
fn a_bad_issuer_is_refused_with_its_reason() {
    let good = "[[issuer]]\nname = \"a\"\nurl = \"https://a.example\"\naudience = \"b\"\n";
    assert!(Access::parse(good).is_ok());
    let digest = "ab".repeat(32);
    let rule = |more: &str| format!("{good}[[rule]]\nissuer = \"a\"\n{more}\nallow = [\"read\"]");
    for (text, wanted) in [
        (good.replace("audience = \"b\"\n", ""), "audience"),
        (good.replace("\"b\"", "\"\""), "`audience`"),
        (good.replace("\"a\"", "\"A:\""), "`name`"),
        (good.replace("https:", "http:"), "https://"),
        (good.replace("https://", "https://hunter2@"), "user name"),
        (format!("{good}principal = \"{{sub\""), "braces"),
        (format!("{good}principal = \"{{sub:0}}\""), "from 1 to 9"),
        (format!("{good}principal = \"{{a}}{{b}}\""), "between the claims"),
        (format!("{good}jwks = \"http://b.example\""), "https://"),
        (format!("{good}jwks = \"keys.json\""), "keys.json"),
        (format!("{good}ca = \"/nowhere/ca.pem\""), "/nowhere/ca.pem"),
        #[cfg(unix)]
        (format!("{good}ca = \"/dev/zero\""), "more than"),
        (format!("{good}secret = \"hunter2\""), "line 5"),
        (good.repeat(2), "as another issuer"),
        (rule(""), "`claims`"),
        (rule("claims = { a = \"b*\" }"), "`b*`"),
        (rule("claims = {}\nprefix = \"ci\""), "end with `/`"),
        (rule("claims = {}\nprefix = \"{a}-{b}/\""), "a whole segment"),
        (
            format!("{good}[[token]]\nprincipal = \"a:x\"\nsha256 = \"{digest}\""),
            "begins with the name of an issuer",
        ),
        (
            format!("{good}[[certificate]]\nprincipal = \"a:x\"\nname = \"x\""),
            "begins with the name of an issuer",
        ),
    ] {
        let error = Access::parse(&text).unwrap_err().to_string();
        assert!(error.contains(wanted) && !error.contains("hunter2"), "{text}: {error}");
    }
    assert!(Access::parse(&rule("claims = {}\nprefix = \"{/a/b}/\"")).is_ok());
}

#[test]
fn the_access_files_of_the_documentation_are_valid() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/serve/access.md");
    let text = std::fs::read_to_string(page).unwrap();
    let (_, section) = text.split_once("\n## OIDC").unwrap();
    let blocks = section.split("```toml").skip(1).map(|block| block.split_once("```").unwrap().0);
    // The file of `ca` exists only in pods.
    let file: String = blocks
        .flat_map(str::lines)
        .filter(|line| !line.starts_with("ca ="))
        .map(|line| format!("{line}\n"))
        .collect();
    assert!(file.contains("cluster") && file.contains("github"));
    Access::parse(&file).unwrap();
}
