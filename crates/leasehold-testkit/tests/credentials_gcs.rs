//! Where GCS credentials come from if the store URL names none. Each case runs in its own process, because the
//! environment belongs to a process. All requests go to loopback.

use std::process::Stdio;

use leasehold_testkit::fakes::gcs::FakeGcs;
use tokio::process::Command;

/// Runs a worker that tries to lock in the store at `url`, with an empty home and only `set` in its environment.
async fn try_with(url: &str, set: &[(&str, String)]) -> (bool, String) {
    let home = tempfile::tempdir().unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_leasehold-testkit-worker"))
        .args(["try", "--store", url, "--lock", "lock"])
        .env_clear()
        .env("HOME", home.path())
        // Keep the worker away from the machine's own metadata server.
        .env("GCE_METADATA_HOST", "127.0.0.1:9")
        .envs(set.iter().map(|(name, value)| (name, value)))
        .stdin(Stdio::null())
        .output()
        .await
        .unwrap();
    let said = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8(said).unwrap())
}

fn endpoint(server: &FakeGcs) -> String {
    format!("gs://bucket/locks?endpoint=http%3A%2F%2F{}", server.address())
}

fn bearer() -> Vec<Option<String>> {
    vec![Some("Bearer fake".to_owned())]
}

#[tokio::test]
async fn on_google_machines_the_metadata_server_is_asked() {
    let server = FakeGcs::start().await;
    let metadata = ("GCE_METADATA_HOST", server.address().to_string());
    let (granted, said) = try_with(&endpoint(&server), &[metadata]).await;
    assert!(granted, "{said}");
    assert_eq!(Vec::from_iter(server.callers()), bearer());
}

#[tokio::test]
async fn a_key_file_is_named_by_the_environment_or_the_url() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("key.json").display().to_string();
    for in_url in [false, true] {
        let server = FakeGcs::start().await;
        let key = serde_json::json!({
            "type": "authorized_user",
            "client_id": "id",
            "client_secret": "hunter2",
            "refresh_token": "hunter2",
            "token_uri": format!("http://{}/token", server.address()),
        });
        std::fs::write(&path, key.to_string()).unwrap();
        let (url, set) = if in_url {
            (format!("{}&credentials={path}", endpoint(&server)), vec![])
        } else {
            (endpoint(&server), vec![("GOOGLE_APPLICATION_CREDENTIALS", path.clone())])
        };
        let (granted, said) = try_with(&url, &set).await;
        assert!(granted, "{said}");
        assert_eq!(Vec::from_iter(server.callers()), bearer());
    }
}

#[tokio::test]
async fn the_emulator_variable_names_a_server_without_a_login() {
    let server = FakeGcs::start().await;
    let (granted, said) =
        try_with("gs://bucket/locks", &[("STORAGE_EMULATOR_HOST", server.address().to_string())]).await;
    assert!(granted, "{said}");
    assert_eq!(Vec::from_iter(server.callers()), [None]);
}

/// A proxy would receive the access token unencrypted, although the token must be sent only to this machine.
#[tokio::test]
async fn proxies_of_the_environment_are_not_used() {
    let (server, proxy) = (FakeGcs::start().await, FakeGcs::start().await);
    let through = format!("http://{}", proxy.address());
    let mut set =
        ["HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "ALL_PROXY"].map(|name| (name, through.clone())).to_vec();
    // The credentials library has its own proxy rules when it contacts the metadata server.
    set.extend([
        ("NO_PROXY", "metadata.google.internal".to_owned()),
        ("GCE_METADATA_HOST", proxy.address().to_string()),
    ]);
    let (granted, said) = try_with(&endpoint(&server), &set).await;
    assert!(granted, "{said}");
    assert_eq!(Vec::from_iter(server.callers()), bearer());
    assert!(proxy.callers().is_empty(), "{:?}", proxy.callers());
}

#[tokio::test]
async fn without_credentials_the_error_says_what_to_do() {
    let server = FakeGcs::start().await;
    let (granted, said) = try_with(&endpoint(&server), &[]).await;
    assert!(!granted);
    assert!(
        said.contains("no credentials") && said.contains("gcloud auth application-default login"),
        "{said}"
    );
    assert!(server.callers().is_empty(), "nothing was sent");
}
