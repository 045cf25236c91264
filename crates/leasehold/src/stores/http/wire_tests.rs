//! Tests the client against a scripted server: the requests that it sends, and its results for every kind of response.

use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::TryStreamExt;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use super::answers::Described;
use super::config::BearerToken;
use super::*;
use crate::error::StoreError;
use crate::lease::{
    AcquireOutcome, Evicted, Holder, HolderInfo, LossReason, Released, Renewal, Secret, State, StoreOptions,
    Ttl, Watch,
};
use crate::stores::over_http::answer::tests::short;
use crate::stores::over_http::scripted::{Reply, Seen, Server, answer};
use crate::stores::over_http::transport::Transport;
use crate::ticket::Ticket;

const HEADERS: &str = "Content-Type: application/json\r\n";

fn described() -> Described {
    let text = r#"{"version":"1","store":"S","tokens":true,"cooldowns":true,"history":true,"principal":null,"rules":[]}"#;
    serde_json::from_str(text).unwrap()
}

type Store = NativeStore<HttpLeases>;

fn store(server: &Server) -> Store {
    let token = Some(BearerToken::for_tests("hunter2"));
    let config = Config { base: server.url.clone(), transport: Transport::default(), token };
    opened(Client::new(config, Env::system()).unwrap())
}

fn opened(client: Client) -> Store {
    NativeStore::new(HttpLeases::new(client, described()).unwrap())
}

fn name() -> LockName {
    LockName::new("a/ü").unwrap()
}

fn claim(store: &Store) -> Claim {
    let holder = Holder { name: "alice".into(), host: "h".into(), pid: 3, ..Holder::default() };
    let mut claim = Claim::new(store.env(), name(), Ttl::DEFAULT, holder);
    // Time for one request.
    claim.store_timeout = Duration::from_millis(1);
    claim
}

fn token(number: u64) -> Token {
    Token::new(number).unwrap()
}

/// Returns the grant of `claim` with the token `number`.
fn grant(store: &Store, claim: &Claim, number: u64) -> Grant {
    Grant {
        name: claim.name.clone(),
        token: token(number),
        after: None,
        id: claim.id,
        ttl: claim.ttl,
        deadline: crate::lease::deadline(claim.ttl, store.env().now()),
        at_limit: false,
        size: None,
        memo: None,
    }
}

fn body(seen: &Seen) -> Value {
    serde_json::from_slice(&seen.body).unwrap()
}

fn ok(body: &Value) -> Reply {
    Reply::Answer(answer("200 OK", HEADERS, &body.to_string()))
}

fn refused(status: &str, word: &str, more: &Value) -> String {
    let mut problem =
        json!({ "type": format!("urn:leasehold:{word}"), "detail": "why", "help": ["do this"] });
    problem.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    answer(status, HEADERS, &problem.to_string())
}

/// Returns the hold with the token `number` that a server grants for the request `seen`.
fn hold(seen: &Seen, number: u64) -> Value {
    let claim = body(seen);
    let store = Claim::new(&Env::system(), name(), Ttl::DEFAULT, Holder::default());
    let grant = Grant {
        name: name(),
        token: token(number),
        after: None,
        id: claim["claim"].as_str().unwrap().parse::<Secret>().unwrap().id(),
        ttl: Ttl::DEFAULT,
        deadline: crate::lease::deadline(store.ttl, Env::system().now()),
        at_limit: false,
        size: None,
        memo: None,
    };
    let ticket = Ticket::new(&grant, Some("s3://bucket".to_owned())).unwrap().to_string();
    json!({
        "ticket": ticket, "lock": name(), "token": number, "valid_ms": 29_000, "ttl_ms": 30_000, "waited_ms": 0,
    })
}

async fn acquired(
    answered: impl Fn(&Seen) -> Reply + Send + Sync + 'static,
) -> (Claim, Result<AcquireOutcome, StoreError>) {
    let server = Server::start(answered).await;
    let store = store(&server);
    let claim = claim(&store);
    let outcome = store.try_acquire(&claim).await;
    (claim, outcome)
}

#[tokio::test]
async fn every_operation_is_one_request() {
    let server = Server::start(|seen| {
        ok(&match seen.line.as_str() {
            "POST /v1/holds" => hold(seen, 7),
            "POST /v1/holds/renew" => {
                json!({ "lock": name(), "token": 7, "valid_ms": 29_500, "ttl_ms": 30_000 })
            }
            "POST /v1/evict" => json!({ "lock": name(), "token": 7, "evicted": true }),
            line if line.starts_with("GET /v1/locks?") => {
                json!({ "locks": [{ "lock": name() }], "next": null })
            }
            line if line.starts_with("GET /v1/locks/") => {
                json!({ "lock": name(), "state": "free", "token": null })
            }
            _ => json!({ "lock": name(), "released": true, "before": false }),
        })
    })
    .await;
    let store = store(&server);
    let claim = claim(&store);
    let AcquireOutcome::Granted(mut grant) = store.try_acquire(&claim).await.unwrap() else { panic!("held") };
    assert_eq!((grant.id, grant.token, grant.after), (claim.id, token(7), None));
    assert!(matches!(store.renew(&mut grant).await.unwrap(), Renewal::Renewed));
    let cooldown = Some(Duration::from_secs(9));
    assert_eq!(store.release(&mut grant, cooldown).await.unwrap(), Released::Released);
    let mut withdrawn = Grant { token: Token::default(), memo: None, ..grant };
    assert_eq!(store.release(&mut withdrawn, None).await.unwrap(), Released::Released);
    let why = Eviction::new("ignored: the server knows who asks", "it hangs");
    assert_eq!(store.evict(&name(), token(7), Some(&why)).await.unwrap(), Evicted::Evicted);
    assert_eq!(store.inspect(&name()).await.unwrap().state, State::Free);
    assert_eq!(store.list("a/").try_collect::<Vec<_>>().await.unwrap(), [name()]);

    let seen = server.requests();
    let lines: Vec<_> = seen.iter().map(|seen| seen.line.as_str()).collect();
    assert_eq!(
        lines,
        [
            "POST /v1/holds",
            "POST /v1/holds/renew",
            "POST /v1/holds/release",
            "POST /v1/holds/withdraw",
            "POST /v1/evict",
            "GET /v1/locks/a/%C3%BC",
            "GET /v1/locks?prefix=a%2F&cursor=&limit=200",
        ]
    );
    assert!(seen.iter().all(|seen| seen.has("authorization: bearer hunter2")));
    let holder = json!({ "name": "alice", "host": "h", "pid": 3, "value": null });
    let expected = json!({
        "lock": name(), "ttl": "30000ms", "wait": "0ms", "claim": claim.id.secret(), "holder": holder, "note": null,
        "lock_delay": "0ms", "barge": false,
    });
    assert_eq!(body(&seen[0]), expected);
    let ticket: Ticket = body(&seen[1])["ticket"].as_str().unwrap().parse().unwrap();
    assert_eq!((ticket.token(), ticket.grant(store.env().now()).id), (token(7), claim.id));
    assert_eq!(body(&seen[2])["cooldown"], "9000ms");
    assert_eq!(body(&seen[3]), json!({ "lock": name(), "claim": claim.id.secret() }));
    assert!(seen[4].has("if-match: \"7\"") && body(&seen[4])["reason"] == "it hangs");
}

/// A response that does not match its request never counts as a grant.
#[tokio::test]
async fn a_grant_that_does_not_fit_the_request_is_refused() {
    type Spoil = fn(&mut Value, &Seen);
    let spoils: [Spoil; 7] = [
        |hold, _| hold["lock"] = json!("b"),
        |hold, _| hold["ticket"] = json!("lh2_x"),
        |hold, _| hold["token"] = json!(8),
        |hold, _| hold["token"] = Value::Null,
        |hold, _| hold["valid_ms"] = Value::Null,
        // The hold of another claim.
        |hold, seen| {
            let id = "1".repeat(32);
            let text = String::from_utf8(seen.body.clone()).unwrap();
            let own = body(seen)["claim"].as_str().unwrap().to_owned();
            let other = Seen { body: text.replace(&own, &id).into_bytes(), ..seen.clone() };
            hold["ticket"] = self::hold(&other, 7)["ticket"].clone();
        },
        // A token that no grant has.
        |hold, seen| *hold = self::hold(seen, 0),
    ];
    for (n, spoil) in spoils.into_iter().enumerate() {
        let (_, outcome) = acquired(move |seen| {
            let mut hold = hold(seen, 7);
            spoil(&mut hold, seen);
            ok(&hold)
        })
        .await;
        let error = outcome.unwrap_err();
        assert_eq!(short(&error), "maybe corrupt", "{n}: {error}");
    }
}

#[tokio::test]
async fn a_token_that_falls_is_refused() {
    let grants = AtomicUsize::new(0);
    let server = Server::start(move |seen| {
        let number = [7, 7, 6][grants.fetch_add(1, Ordering::Relaxed)];
        ok(&hold(seen, number))
    })
    .await;
    let store = store(&server);
    for is_fine in [true, true, false] {
        assert_eq!(store.try_acquire(&claim(&store)).await.is_ok(), is_fine);
    }
}

#[tokio::test]
async fn a_lease_lasts_at_most_its_ttl_and_the_servers_limit() {
    for (valid_ms, most) in [(12_345, 12_345), (29_550, 29_550), (86_400_000, 29_550), (0, 0)] {
        let server = Server::start(move |seen| {
            if seen.line != "POST /v1/holds" {
                return ok(&json!({ "lock": name(), "released": true }));
            }
            let mut hold = hold(seen, 7);
            hold["valid_ms"] = json!(valid_ms);
            ok(&hold)
        })
        .await;
        let store = store(&server);
        let asked = store.env().now();
        let left = match store.try_acquire(&claim(&store)).await.unwrap() {
            AcquireOutcome::Granted(grant) => grant.deadline.remaining(asked),
            // The grant came too late.
            AcquireOutcome::Lost(loss) => {
                assert!(matches!(loss.reason, LossReason::Expired { .. }));
                assert_eq!(server.requests().last().unwrap().line, "POST /v1/holds/withdraw");
                Duration::ZERO
            }
            AcquireOutcome::Held(held) => panic!("{held}"),
        };
        assert!(left <= Duration::from_millis(most), "{valid_ms}: {left:?}");
    }
}

#[tokio::test]
async fn a_refusal_names_the_holder_and_a_spent_claim_is_lost() {
    let by = json!({ "held_by": { "holder": { "name": "bob", "host": "h", "pid": 4 }, "token": 9, "held_ms": 1,
        "lapses_within_ms": 2, "in_cooldown": false, "reserved": true } });
    let (_, outcome) = acquired(move |_| Reply::Answer(refused("423 Locked", "held", &by))).await;
    let AcquireOutcome::Held(held) = outcome.unwrap() else { panic!("not held") };
    assert!(held.reserved && held.token == Some(token(9)) && held.holder.unwrap().name == "bob");
    let spent = json!({ "reason": "ended", "token": 5 });
    let (_, outcome) = acquired(move |_| Reply::Answer(refused("409 Conflict", "key-spent", &spent))).await;
    let AcquireOutcome::Lost(loss) = outcome.unwrap() else { panic!("not lost") };
    assert_eq!((loss.token, loss.reason), (token(5), LossReason::Ended));
}

#[tokio::test]
async fn an_error_reports_whether_the_request_may_be_applied() {
    for (status, word, expected) in [
        ("400 Bad Request", "invalid", "not invalid"),
        ("401 Unauthorized", "unauthorized", "not denied"),
        ("403 Forbidden", "forbidden", "not denied"),
        ("404 Not Found", "", "not unsupported"),
        ("409 Conflict", "conflict", "maybe corrupt"),
        ("410 Gone", "lost", "maybe corrupt"),
        ("302 Found", "", "maybe corrupt"),
        ("421 Misdirected", "misdirected", "not invalid"),
        ("423 Locked", "", "maybe corrupt"),
        ("429 Too Many", "too-many-requests", "not unavailable"),
        ("500 Error", "failed", "maybe unavailable"),
        ("500 Error", "corrupt", "maybe corrupt"),
        ("501 Not Implemented", "unsupported", "not unsupported"),
        ("502 Bad Gateway", "store-denied", "maybe denied"),
        ("502 Bad Gateway", "", "maybe unavailable"),
        ("503 Unavailable", "stopping", "maybe unavailable"),
    ] {
        let answered = refused(status, word, &json!({}));
        let (_, outcome) = acquired(move |_| Reply::Answer(answered.clone())).await;
        let error = outcome.unwrap_err();
        assert_eq!(short(&error), expected, "{status}: {error}");
        assert!(!error.to_string().contains("hunter2"), "{error}");
    }
    let (_, outcome) = acquired(|_| Reply::Hang).await;
    assert_eq!(short(&outcome.unwrap_err()), "maybe unavailable");
    let (_, outcome) = acquired(|_| Reply::Answer(answer("200 OK", HEADERS, "<html>hunter2"))).await;
    let error = outcome.unwrap_err();
    assert!(short(&error) == "maybe corrupt" && !error.to_string().contains("hunter2"), "{error}");
}

#[tokio::test]
async fn each_request_has_the_token_that_is_in_the_file_now() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("token");
    let server = Server::start(|_| ok(&json!({ "lock": name(), "state": "free", "token": null }))).await;
    std::fs::write(&file, "one").unwrap();
    let url = StoreUrl::parse(&format!("{}?token_file={}", server.url, file.display())).unwrap();
    let client =
        Client::new(Config::from_url(url, &mut StoreOptions::default()).unwrap(), Env::system()).unwrap();
    let store = opened(client);
    store.inspect(&name()).await.unwrap();
    std::fs::write(&file, "two\n").unwrap();
    store.inspect(&name()).await.unwrap();
    let seen = server.requests();
    assert!(seen[0].has("authorization: bearer one") && seen[1].has("authorization: bearer two"));
}

/// The repetition has the same claim, so that the server recognises it.
#[tokio::test]
async fn a_request_without_a_response_is_repeated_with_its_claim() {
    let server = Server::unsteady(refused("503 Unavailable", "unavailable", &json!({})), |seen| {
        ok(&match seen.line.as_str() {
            "POST /v1/holds" => hold(seen, 7),
            "POST /v1/holds/renew" => {
                json!({ "lock": name(), "token": 7, "valid_ms": 29_500, "ttl_ms": 30_000 })
            }
            // The earlier request, which got no response, released the lock.
            _ => json!({ "lock": name(), "released": true, "before": true }),
        })
    })
    .await;
    let store = store(&server);
    let claim = Claim { store_timeout: Duration::from_secs(60), ..claim(&store) };
    let AcquireOutcome::Granted(mut grant) = store.try_acquire(&claim).await.unwrap() else { panic!("held") };
    assert!(matches!(store.renew(&mut grant).await.unwrap(), Renewal::Renewed));
    assert_eq!(store.release(&mut grant, None).await.unwrap(), Released::Released);
    let seen = server.requests();
    assert_eq!(seen.len(), 6);
    assert!(seen.chunks(2).all(|pair| (&pair[0].line, &pair[0].body) == (&pair[1].line, &pair[1].body)));
}

#[tokio::test]
async fn an_eviction_with_a_lost_response_is_found_in_the_history() {
    for (end, expected) in [("evicted", Evicted::Evicted), ("released", Evicted::Changed)] {
        let evictions = AtomicUsize::new(0);
        let server = Server::start(move |seen| match seen.line.as_str() {
            "POST /v1/evict" if evictions.fetch_add(1, Ordering::Relaxed) == 0 => Reply::Hang,
            "POST /v1/evict" => Reply::Answer(refused("412 Failed", "changed", &json!({ "token": null }))),
            _ => {
                let holder = json!({ "name": "bob", "host": "h", "pid": 4 });
                let past = json!({ "token": 7, "grant": "0".repeat(32), "holder": holder, "end": end });
                ok(&json!({ "lock": name(), "state": "free", "token": 7, "history": [past] }))
            }
        })
        .await;
        assert_eq!(store(&server).evict(&name(), token(7), None).await.unwrap(), expected, "{end}");
    }
}

/// Another user of the ticket released the lock, unless an earlier request of this release got no response.
#[tokio::test]
async fn a_release_by_another_is_a_loss_unless_it_is_a_repetition() {
    for (first, expected) in [(None, Released::AlreadyLost), (Some(Reply::Hang), Released::Released)] {
        let first = Mutex::new(first);
        let server = Server::start(move |_| {
            let before = || ok(&json!({ "lock": name(), "released": true, "before": true }));
            first.lock().unwrap().take().unwrap_or_else(before)
        })
        .await;
        let store = store(&server);
        let mut grant = grant(&store, &claim(&store), 7);
        assert_eq!(store.release(&mut grant, None).await.unwrap(), expected);
    }
}

#[tokio::test]
async fn a_renewal_reports_the_loss_and_accepts_no_other_hold() {
    let by = json!({ "holder": { "name": "bob", "host": "h", "pid": 4 }, "token": 9 });
    for (reason, more) in [("taken_over", by.clone()), ("ended", Value::Null), ("deleted", Value::Null)] {
        let problem = refused("410 Gone", "lost", &json!({ "reason": reason, "held_by": more, "token": 7 }));
        let server = Server::always(problem).await;
        let store = store(&server);
        let mut grant = grant(&store, &claim(&store), 7);
        let Renewal::Lost(loss) = store.renew(&mut grant).await.unwrap() else { panic!("renewed") };
        assert_eq!(loss.token, token(7));
        match loss.reason {
            LossReason::TakenOver { by } => assert_eq!((reason, by.token), ("taken_over", Some(token(9)))),
            LossReason::Ended => assert_eq!(reason, "ended"),
            LossReason::Deleted => assert_eq!(reason, "deleted"),
            other => panic!("{other:?}"),
        }
    }
    for (lock, number) in [("b", 7), ("a/ü", 8)] {
        let server = Server::start(move |_| {
            ok(&json!({ "lock": lock, "token": number, "valid_ms": 29_500, "ttl_ms": 30_000 }))
        })
        .await;
        let store = store(&server);
        let mut grant = grant(&store, &claim(&store), 7);
        let before = grant.deadline;
        assert_eq!(short(&store.renew(&mut grant).await.unwrap_err()), "maybe corrupt");
        assert_eq!(grant.deadline, before);
    }
}

/// The client sends at most two waiting requests per second to a server that does not wait.
#[tokio::test]
async fn a_wait_that_returns_at_once_is_paced() {
    let server = Server::start(|seen| match seen.line.as_str() {
        "POST /v1/holds" => Reply::Answer(refused("423 Locked", "held", &json!({ "held_by": null }))),
        line if line.contains("?wait=") => Reply::Answer(answer("304 Not Modified", "", "")),
        _ => Reply::Answer(answer(
            "200 OK",
            "ETag: \"v\"\r\n",
            &json!({ "lock": name(), "state": "held", "token": 7, "held_by": { "token": 7 } }).to_string(),
        )),
    })
    .await;
    let store = store(&server);
    let claim = Claim { waits: true, ..claim(&store) };
    let seen = HolderInfo { token: Some(token(7)), ..HolderInfo::default() };
    let began = store.env().now();
    store.turn(&claim, &seen).await.unwrap();
    store.changed(&name(), &seen).await.unwrap();
    assert!(store.env().now().longest_since(began) >= Duration::from_millis(900));
    let requests = server.requests();
    assert!(requests.iter().any(|seen| seen.has("if-none-match: \"v\"")));
    let waits = requests.iter().filter(|seen| seen.line == "POST /v1/holds");
    // If this process is frozen, it does not confirm the grant, which then ends soon.
    assert!(waits.map(body).all(|body| body["wait"] == "50000ms" && body["ttl"] == "6000ms"));
}

#[tokio::test]
async fn a_listing_goes_from_page_to_page_and_ends() {
    let server = Server::start(|seen| {
        let (name, next) = match seen.line.split('&').nth(1).unwrap() {
            "cursor=" => ("a", Some("a")),
            "cursor=a" => ("b", Some("b")),
            _ => ("c", None),
        };
        ok(&json!({ "locks": [{ "lock": name }], "next": next }))
    })
    .await;
    let names: Vec<LockName> = store(&server).list("").try_collect().await.unwrap();
    assert_eq!(names.iter().map(LockName::as_str).collect::<Vec<_>>(), ["a", "b", "c"]);
    for (lock, next) in [("a", "a"), ("b", "")] {
        // A page that repeats, and a name without the prefix.
        let page = json!({ "locks": [{ "lock": lock }], "next": if next.is_empty() { Value::Null } else { json!(next) } });
        let server = Server::always(answer("200 OK", HEADERS, &page.to_string())).await;
        let listed: Result<Vec<LockName>, _> = store(&server).list("a").try_collect().await;
        assert_eq!(short(&listed.unwrap_err()), "not corrupt");
    }
}

#[tokio::test]
async fn a_server_without_history_is_refused() {
    let server = Server::start(|_| {
        ok(&json!({ "version": "1", "store": "S", "tokens": true, "cooldowns": true, "history": false, "principal": null }))
    })
    .await;
    let url = StoreUrl::parse(&server.url).unwrap();
    let error = open(url, StoreOptions::default()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
}

#[tokio::test]
async fn no_type_shows_a_secret() {
    let server = Server::start(|seen| ok(&hold(seen, 7))).await;
    let store = store(&server);
    let claim = claim(&store);
    let AcquireOutcome::Granted(grant) = store.try_acquire(&claim).await.unwrap() else { panic!("held") };
    let (secret, ticket) = (String::from(claim.id.secret().unwrap()), Ticket::new(&grant, None).unwrap());
    let shown = format!("{store:?} {claim:?} {ticket:?} {:?}", AcquireOutcome::Granted(grant));
    for secret in [&*secret, "hunter2", &ticket.to_string()] {
        assert!(!shown.contains(secret), "{shown}");
    }
}

#[tokio::test]
async fn a_token_that_is_replaced_late_is_accepted_again() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("token");
    std::fs::write(&file, "one").unwrap();
    let valid = Arc::new(Mutex::new("one"));
    let accepted = valid.clone();
    let server = Server::start(move |seen| {
        match seen.has(&format!("authorization: bearer {}", accepted.lock().unwrap())) {
            true => ok(&json!({ "lock": name(), "state": "free", "token": null })),
            false => Reply::Answer(refused("401 Unauthorized", "unauthorized", &json!({}))),
        }
    })
    .await;
    let url = StoreUrl::parse(&format!("{}?token_file={}", server.url, file.display())).unwrap();
    let client =
        Client::new(Config::from_url(url, &mut StoreOptions::default()).unwrap(), Env::system()).unwrap();
    client.shown(&name()).await.unwrap();
    *valid.lock().unwrap() = "two";
    for _ in 0..2 {
        let error = client.shown(&name()).await.unwrap_err();
        assert!(error.is_transient() && error.to_string().contains("401"), "{error:?}");
    }
    std::fs::write(&file, "two").unwrap();
    client.shown(&name()).await.unwrap();
}

#[tokio::test]
async fn a_ca_file_that_is_replaced_is_read_again() {
    let (folder, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let _other = Server::start_tls(other.path(), |_| Reply::Hang).await;
    let script = |_: &Seen| ok(&json!({ "lock": name(), "state": "free", "token": null }));
    let server = Server::start_tls(folder.path(), script).await;
    let ca = folder.path().join("trusted.pem");
    std::fs::copy(other.path().join("ca.pem"), &ca).unwrap();
    let url = StoreUrl::parse(&format!("{}?ca={}", server.url, ca.display())).unwrap();
    let client =
        Client::new(Config::from_url(url, &mut StoreOptions::default()).unwrap(), Env::system()).unwrap();
    let error = client.shown(&name()).await.unwrap_err();
    assert!(error.is_transient() && error.fault().help.as_ref().unwrap().contains("ca=FILE"), "{error:?}");
    std::fs::copy(folder.path().join("ca.pem"), &ca).unwrap();
    drop(client.shown(&name()).await);
    client.shown(&name()).await.unwrap();
}

#[tokio::test]
async fn a_response_of_another_server_is_recognised() {
    let page = answer("200 OK", "Content-Type: text/html\r\n", "<!DOCTYPE html><title>hunter2</title>");
    let login =
        "HTTP/1.1 302 Found\r\nLocation: https://login.example/?token=hunter2\r\nContent-Length: 0\r\n\r\n";
    let go = answer("400 Bad Request", "", "Client sent an HTTP request to an HTTPS server.\n");
    for (reply, named, help) in [
        (Reply::Answer(page), "web page", "login page"),
        (Reply::Answer(login.to_owned()), "redirects to https://login.example/", "login page"),
        (Reply::Answer(go), "expects TLS", "https://"),
        (Reply::Answer("\u{15}\u{3}\u{3}\0\u{2}\u{2}F".to_owned()), "invalid HTTP", "https://"),
        (Reply::Hang, "connection closed", "https://"),
    ] {
        let reply = Arc::new(Mutex::new(Some(reply)));
        let server = Server::start(move |_| reply.lock().unwrap().take().unwrap()).await;
        let url = StoreUrl::parse(&server.url).unwrap();
        let client =
            Client::new(Config::from_url(url, &mut StoreOptions::default()).unwrap(), Env::system()).unwrap();
        let error = client.described().await.map(drop).unwrap_err();
        let told = error.fault().help.clone().unwrap_or_default();
        assert!(error.to_string().contains(named) && told.contains(help), "{error:?}");
        assert!(!format!("{error:?}").contains("hunter2"), "{error:?}");
    }
}

/// The caller's limit counts, and the error has the cause.
#[tokio::test(start_paused = true)]
async fn opening_takes_the_time_that_the_caller_sets() {
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    for limit in [2, 25] {
        let env = Env::seeded(Arc::new(crate::clock::TestClock::default()), 7);
        let began = env.now();
        let mut options = StoreOptions { env: env.clone(), ..StoreOptions::default() };
        options.open_timeout = Duration::from_secs(limit);
        let url = StoreUrl::parse(&format!("http://{closed}")).unwrap();
        let error = super::open(url, options).await.unwrap_err();
        let took = env.now().shortest_since(began);
        let limit = Duration::from_secs(limit);
        assert!(took <= limit && took >= limit.saturating_sub(Duration::from_secs(3)), "{limit:?}: {took:?}");
        assert!(error.to_string().contains("refused"), "{error:?}");
    }
}
