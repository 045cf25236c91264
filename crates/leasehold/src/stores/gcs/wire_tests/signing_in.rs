//! Tests credentials, and the token server that exchanges them.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::super::credentials::SCOPE;
use super::*;

/// Writes a key file to a temporary folder. Its token server need not be running yet.
fn key_file(key: serde_json::Value) -> (tempfile::TempDir, Source) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("key.json");
    std::fs::write(&path, key.to_string()).unwrap();
    (folder, Source::File(path))
}

fn user(token_server: &str) -> serde_json::Value {
    serde_json::json!({
        "type": "authorized_user",
        "client_id": "client",
        "client_secret": "hunter2-client",
        "refresh_token": "hunter2-refresh",
        "token_uri": format!("{token_server}/token"),
    })
}

/// Starts a server that is both GCS and a token server, which issues `token-1`, `token-2` and so on.
async fn signing_in(store: impl Fn(&str) -> String + Send + Sync + 'static) -> Server {
    let tokens = AtomicUsize::new(0);
    Server::start(move |seen| {
        Reply::Answer(if seen.line.ends_with("/token") {
            let n = tokens.fetch_add(1, Ordering::SeqCst) + 1;
            answer(
                "200 OK",
                "Content-Type: application/json\r\n",
                &format!(
                    "{{\"access_token\":\"token-{n}\",\"expires_in\":3600,\"token_type\":\"Bearer\",\
                     \"issued_token_type\":\"urn:ietf:params:oauth:token-type:access_token\"}}"
                ),
            )
        } else {
            let bearer = seen.head.lines().find_map(|line| line.strip_prefix("authorization: bearer "));
            store(bearer.unwrap_or_default())
        })
    })
    .await
}

#[tokio::test]
async fn requests_carry_a_key_files_token_and_debug_hides_secrets() {
    let server = signing_in(|_| written()).await;
    let (_folder, source) = key_file(user(&server.url));
    let register = register_at(&server.url, source);
    for _ in 0..2 {
        register.write("x.lock", Precondition::Absent, value().into()).await.unwrap();
    }
    let [token, first, second] = &server.requests()[..] else { panic!() };
    assert_eq!(token.line, "POST /token");
    for write in [first, second] {
        assert!(write.has("authorization: bearer token-1"), "{write:?}");
    }
    let shown = format!("{register:?}");
    assert!(!shown.contains("hunter2") && !shown.contains("token-1"), "{shown}");
}

#[tokio::test]
async fn a_workload_identity_exchanges_its_token() {
    let server = signing_in(|_| written()).await;
    let (folder, source) = key_file(serde_json::Value::Null);
    let subject = folder.path().join("subject");
    std::fs::write(&subject, "hunter2-subject").unwrap();
    let key = serde_json::json!({
        "type": "external_account",
        "audience": "//iam.googleapis.com/projects/1/locations/global/workloadIdentityPools/p/providers/q",
        "subject_token_type": "urn:ietf:params:oauth:token-type:jwt",
        "token_url": format!("{}/token", server.url),
        "credential_source": { "file": subject },
    });
    let Source::File(path) = &source else { panic!() };
    std::fs::write(path, key.to_string()).unwrap();
    register_at(&server.url, source).write("x.lock", Precondition::Absent, value().into()).await.unwrap();
    let [exchange, write] = &server.requests()[..] else { panic!() };
    assert!(String::from_utf8_lossy(&exchange.body).contains("hunter2-subject"), "{exchange:?}");
    assert!(write.has("authorization: bearer token-1"), "{write:?}");
}

/// Returns a register at a server that accepts the first token for one request only. This also happens after a suspend,
/// which the library's clock does not notice.
async fn expiring() -> (tempfile::TempDir, GcsRegister) {
    let uses = AtomicUsize::new(0);
    let server = signing_in(move |token| match (token, uses.fetch_add(1, Ordering::SeqCst)) {
        ("token-1", 1..) => refused("401 X", "", "authError"),
        _ => written(),
    })
    .await;
    let (folder, source) = key_file(user(&server.url));
    let register = register_at(&server.url, source);
    (folder, register)
}

#[tokio::test]
async fn a_refused_token_is_replaced_but_an_error_if_it_never_worked() {
    let (_folder, register) = expiring().await;
    let write = async || register.write("x.lock", Precondition::Absent, value().into()).await;
    write().await.unwrap();
    let error = write().await.unwrap_err();
    assert!(matches!(error, StoreError::NotApplied(_)) && error.is_transient(), "{error:?}");
    write().await.unwrap();

    // Two requests with the same token both fail, and neither reports that the credentials were never accepted.
    let (_folder, register) = expiring().await;
    let write = async || register.write("x.lock", Precondition::Absent, value().into()).await;
    write().await.unwrap();
    let (one, two) = futures_util::future::join(write(), write()).await;
    for error in [one.unwrap_err(), two.unwrap_err()] {
        assert!(matches!(error, StoreError::NotApplied(_)) && error.is_transient(), "{error:?}");
    }
    write().await.unwrap();

    let server = signing_in(|_| refused("401 X", "", "authError")).await;
    let (_folder, source) = key_file(user(&server.url));
    let register = register_at(&server.url, source);
    for _ in 0..2 {
        let error = register.read("x.lock").await.unwrap_err();
        assert_eq!(error.fault().kind, ErrorKind::Denied, "{error:?}");
    }
    assert_eq!(server.requests().len(), 4, "each time with a new token");
}

#[tokio::test]
async fn with_bad_credentials_nothing_is_sent_and_no_secret_leaks() {
    let server = Server::always(answer(
        "401 X",
        "Content-Type: application/json\r\n",
        "{\"error\":\"invalid_grant\",\"error_description\":\"hunter2\"}",
    ))
    .await;
    let unknown_type = serde_json::json!({"type": "hunter2", "private_key": "hunter2"});
    let broken = serde_json::json!({"type": "service_account", "private_key": "hunter2", "client_email": "a@b",
        "private_key_id": "i", "project_id": "p"});
    for (key, named) in [
        (user(&server.url), "token"),
        (unknown_type, "not a key file"),
        (broken, "key.json"),
        (serde_json::json!({}), "not a key file"),
    ] {
        let (_folder, source) = key_file(key);
        let register = register_at(&server.url, source);
        let error = register.write("x.lock", Precondition::Absent, value().into()).await.unwrap_err();
        assert!(matches!(error, StoreError::NotApplied(_)), "{error:?}");
        assert_eq!(error.fault().kind, ErrorKind::Denied, "{error:?}");
        assert!(error.to_string().contains(named), "{named}: {error:?}");
        assert!(error.fault().help.as_ref().unwrap().contains("no credentials found"), "{error:?}");
        assert!(!format!("{error:?} {register:?}").contains("hunter2"), "{error:?}");
    }
    assert!(server.requests().iter().all(|seen| seen.line == "POST /token"));
    let nowhere = Source::File("/nowhere/key.json".into());
    let error = register_at(&server.url, nowhere).read("x.lock").await.unwrap_err();
    assert!(error.to_string().contains("/nowhere/key.json"), "{error:?}");
}

const ACCOUNT: &str = "locks@project.iam.gserviceaccount.com";

/// Returns a register that impersonates [`ACCOUNT`] with the credentials of `source`.
fn register_as_account(server: &Server, source: Source) -> GcsRegister {
    let register = register_at(&server.url, source.clone());
    let identity = Identity { source, impersonated: Some(Impersonated::at(ACCOUNT, &server.url)) };
    GcsRegister { credentials: Credentials::new(identity, Env::system()), ..register }
}

#[tokio::test]
async fn a_service_account_is_impersonated_by_a_key_file() {
    let server = Server::start(|seen| {
        let json = "Content-Type: application/json\r\n";
        Reply::Answer(if seen.line.ends_with("/token") {
            answer(
                "200 OK",
                json,
                "{\"access_token\":\"mine\",\"expires_in\":3600,\"token_type\":\"Bearer\"}",
            )
        } else if seen.line.contains(":generateAccessToken") {
            let body = "{\"accessToken\":\"hunter2-its\",\"expireTime\":\"2999-01-01T00:00:00Z\"}";
            answer("200 OK", json, body)
        } else {
            written()
        })
    })
    .await;
    let (_folder, source) = key_file(user(&server.url));
    let register = register_as_account(&server, source);
    for _ in 0..2 {
        register.write("x.lock", Precondition::Absent, value().into()).await.unwrap();
    }
    let [token, exchange, first, second] = &server.requests()[..] else { panic!() };
    assert_eq!(token.line, "POST /token");
    assert_eq!(exchange.line, format!("POST /v1/projects/-/serviceAccounts/{ACCOUNT}:generateAccessToken"));
    assert!(exchange.has("authorization: bearer mine"), "{exchange:?}");
    assert!(String::from_utf8_lossy(&exchange.body).contains(SCOPE), "{exchange:?}");
    for write in [first, second] {
        assert!(write.has("authorization: bearer hunter2-its"), "{write:?}");
    }
    assert!(!format!("{register:?}").contains("hunter2"), "{register:?}");
}

#[tokio::test]
async fn without_the_right_to_impersonate_nothing_is_written() {
    let server = Server::start(|seen| {
        let json = "Content-Type: application/json\r\n";
        Reply::Answer(if seen.line.ends_with("/token") {
            answer(
                "200 OK",
                json,
                "{\"access_token\":\"hunter2\",\"expires_in\":3600,\"token_type\":\"Bearer\"}",
            )
        } else {
            answer("403 Forbidden", json, "{\"error\":{\"code\":403,\"message\":\"hunter2\"}}")
        })
    })
    .await;
    let (_folder, source) = key_file(user(&server.url));
    let of_another = serde_json::json!({"type": "impersonated_service_account"});
    let (_other_folder, chained) = key_file(of_another);
    for (source, named) in [(source, "roles/iam.serviceAccountTokenCreator"), (chained, "in turn")] {
        let register = register_as_account(&server, source);
        let error = register.write("x.lock", Precondition::Absent, value().into()).await.unwrap_err();
        assert_eq!(error.fault().kind, ErrorKind::Denied, "{error:?}");
        assert!(error.to_string().contains(named) && error.to_string().contains(ACCOUNT), "{error:?}");
        assert!(!format!("{error:?} {register:?}").contains("hunter2"), "{error:?}");
    }
    let lines: Vec<_> = server.requests().into_iter().map(|seen| seen.line).collect();
    assert!(
        lines.iter().all(|line| line.starts_with("POST /token") || line.contains(":generate")),
        "{lines:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_load_survives_its_request_and_restarts_if_its_runtime_ends() {
    let (go, gone) = (Arc::new(tokio::sync::Notify::new()), Arc::new(tokio::sync::Notify::new()));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let token_server = format!("http://{}", listener.local_addr().unwrap());
    let loads = Arc::new(AtomicUsize::new(0));
    let (signal, told, count) = (go.clone(), gone.clone(), loads.clone());
    tokio::spawn(async move {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut buffer = vec![0; 4_096];
            assert!(stream.read(&mut buffer).await.unwrap() > 0);
            count.fetch_add(1, Ordering::SeqCst);
            told.notify_one();
            signal.notified().await;
            let body = "{\"access_token\":\"t\",\"expires_in\":3600,\"token_type\":\"Bearer\"}";
            let head = "Content-Type: application/json\r\nConnection: close\r\n";
            stream.write_all(answer("200 OK", head, body).as_bytes()).await.unwrap();
        }
    });
    let (_folder, source) = key_file(user(&token_server));
    let credentials = Arc::new(Credentials::new(Identity { source, impersonated: None }, Env::system()));
    let given_up = tokio::spawn({
        let credentials = credentials.clone();
        async move { credentials.proof().await }
    });
    gone.notified().await;
    given_up.abort();
    go.notify_one();
    let headers = credentials.proof().await.unwrap().proof;
    assert!(headers["authorization"].is_sensitive() && headers["authorization"] == "Bearer t");
    assert_eq!(loads.load(Ordering::SeqCst), 1, "one load served both");

    // If the runtime of a load ends before there is a response, the load is started again and not awaited forever.
    credentials.refused(1);
    let begun = credentials.clone();
    let asked = gone.clone();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            tokio::select! {
                _ = begun.proof() => panic!("there is no answer yet"),
                () = asked.notified() => {}
            }
        });
    })
    .join()
    .unwrap();
    go.notify_one();
    go.notify_one();
    let again = credentials.proof();
    let (signed, ()) = futures_util::future::join(again, async {
        gone.notified().await;
        go.notify_one();
    })
    .await;
    assert_eq!(signed.unwrap().proof["authorization"], "Bearer t");
}
