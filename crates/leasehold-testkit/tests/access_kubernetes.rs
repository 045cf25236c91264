//! How leasehold signs in to a Kubernetes API server, and which permissions it needs there.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures_util::TryStreamExt;
use leasehold::clock::{Clock, SystemClock};
use leasehold::doctor::{CheckStatus, Examination};
use leasehold::{ErrorKind, Locker, Swept};
use leasehold_testkit::launch::program;
use leasehold_testkit::process::within;
use leasehold_testkit::servers::Server;
use leasehold_testkit::stores::fresh;
use leasehold_testkit::stores::kubernetes::{address, ask, ask_with, namespace};
use serde_json::json;

/// All verbs that `docs/stores/kubernetes.md` grants.
const ALL: [&str; 6] = ["get", "create", "patch", "list", "delete", "watch"];

/// Returns the path of the kubeconfig of the server that `./test` started.
fn kubeconfig() -> String {
    program("LEASEHOLD_TEST_KUBECONFIG")
}

/// Creates a namespace in which the user `lesser` may use `verbs` on Leases. Returns its name.
async fn namespace_with(verbs: &[&str]) -> String {
    let name = namespace(fresh("kubernetes").url());
    let subject = json!({ "kind": "User", "name": "lesser", "apiGroup": "rbac.authorization.k8s.io" });
    grant(&name, verbs, &subject, "lesser-token").await;
    name
}

/// Allows `subject` to use `verbs` on the Leases of a namespace, and waits until the server applies this.
async fn grant(namespace: &str, verbs: &[&str], subject: &serde_json::Value, token: &str) {
    let server = address(&Server::KUBERNETES.url());
    let api = "rbac.authorization.k8s.io";
    let rules = json!([{ "apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": verbs }]);
    let metadata = json!({ "name": "leasehold" });
    let role =
        json!({ "apiVersion": format!("{api}/v1"), "kind": "Role", "metadata": metadata, "rules": rules });
    let binding = json!({
        "apiVersion": format!("{api}/v1"), "kind": "RoleBinding", "metadata": metadata, "subjects": [subject],
        "roleRef": { "apiGroup": api, "kind": "Role", "name": "leasehold" },
    });
    for (what, object) in [("roles", &role), ("rolebindings", &binding)] {
        let path = format!("/apis/{api}/v1/namespaces/{namespace}/{what}");
        let (status, answer) = ask(&server, "POST", &path, Some(object)).await.unwrap();
        assert_eq!(status, 201, "{answer}");
    }
    let attributes = json!({ "namespace": namespace, "verb": verbs[0], "group": "coordination.k8s.io", "resource": "leases" });
    let review = json!({
        "apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
        "spec": { "resourceAttributes": attributes },
    });
    let path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
    let headers = format!("accept: application/json\r\nauthorization: Bearer {token}\r\n");
    within("the permissions", async {
        while ask_with(&server, "POST", path, &headers, Some(&review)).await.unwrap().1["status"]["allowed"]
            != true
        {
            SystemClock.sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
}

fn as_lesser(namespace: &str) -> String {
    format!("k8s://{namespace}?kubeconfig={}&context=lesser", kubeconfig())
}

async fn locks(url: &str) -> leasehold::Result<()> {
    let lock = Locker::open(url).await?.lock("lock").store_timeout(Duration::from_secs(30));
    lock.try_acquire().await?.release().await?;
    Ok(())
}

async fn refused(url: &str) -> leasehold::Error {
    let error = locks(url).await.unwrap_err();
    assert!(!error.help().is_empty() && !format!("{error} {error:?}").contains("lesser-token"), "{error:?}");
    error
}

/// Does everything that leasehold does with Leases.
async fn everything(url: &str) -> leasehold::Result<()> {
    let locker = Locker::open(url).await?;
    let guard = locker.lock("lock").acquire().await?;
    let name = guard.name().clone();
    let other = Locker::open(url).await?;
    let waiting = tokio::spawn(async move { other.lock("lock").acquire().await?.release().await });
    within("a waiter", async {
        while !waiting.is_finished()
            && locker.inspect(&name).await.is_ok_and(|status| status.waiters.is_empty())
        {
            SystemClock.sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
    guard.release().await?;
    waiting.await.unwrap()?;
    let guard = locker.lock("lock").acquire().await?;
    locker.evict(&name, guard.token()?).await?;
    locker.list("").try_collect::<Vec<_>>().await?;
    // A sweep deletes the record only once the server's clock is certainly past the token.
    while locker.sweep(&name, Duration::ZERO, false).await? == Swept::Kept {
        SystemClock.sleep(Duration::from_millis(100)).await;
    }
    Ok(())
}

#[tokio::test]
async fn a_user_with_the_least_permissions_can_do_everything() {
    let namespace = namespace_with(&ALL).await;
    let url = as_lesser(&namespace);
    everything(&url).await.unwrap();
    let report = Locker::open(&url).await.unwrap().examine(&Examination::default()).await;
    let bad: Vec<_> =
        report.findings.iter().filter(|finding| finding.verdict == CheckStatus::Failed).collect();
    assert!(bad.is_empty(), "{bad:?}");
    assert_eq!(report.finding("permissions").unwrap().verdict, CheckStatus::Passed);
    for check in [
        "create-if-absent",
        "new-version",
        "stale-version",
        "missing-key",
        "conditional-delete",
        "delete-marker",
    ] {
        assert_eq!(report.finding(check).unwrap().verdict, CheckStatus::Passed, "{check}");
    }
    // In another namespace, the user may do nothing.
    assert_eq!(refused(&as_lesser("default")).await.kind(), ErrorKind::Denied);
}

#[tokio::test]
async fn each_permission_of_the_page_is_needed() {
    for dropped in ["get", "create", "patch", "list", "delete"] {
        let rest: Vec<_> = ALL.into_iter().filter(|verb| *verb != dropped).collect();
        let url = as_lesser(&namespace_with(&rest).await);
        let error = everything(&url).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Denied, "{dropped}: {error:?}");
        let report = Locker::open(&url).await.unwrap().examine(&Examination::default()).await;
        let finding = report.finding("permissions").unwrap();
        assert_ne!(finding.verdict, CheckStatus::Passed, "{dropped}");
        assert!(finding.seen.contains(dropped), "{finding:?}");
    }
}

#[tokio::test]
async fn locks_need_three_permissions() {
    let url = as_lesser(&namespace_with(&["get", "create", "patch"]).await);
    locks(&url).await.unwrap();
    locks(&url).await.unwrap();
}

#[tokio::test]
async fn a_client_certificate_signs_in() {
    let namespace = namespace_with(&ALL).await;
    let url = format!("k8s://{namespace}?kubeconfig={}&context=certificate", kubeconfig());
    locks(&url).await.unwrap();
}

/// Signs in as a pod does. The kubelet replaces the token's file.
#[tokio::test]
async fn a_service_account_signs_in_and_its_token_is_replaced() {
    let namespace = namespace(fresh("kubernetes").url());
    let server = address(&Server::KUBERNETES.url());
    let account = json!({ "apiVersion": "v1", "kind": "ServiceAccount", "metadata": { "name": "jobs" } });
    let path = format!("/api/v1/namespaces/{namespace}/serviceaccounts");
    let (status, answer) = ask(&server, "POST", &path, Some(&account)).await.unwrap();
    assert_eq!(status, 201, "{answer}");
    let request = json!({ "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {} });
    let (status, answer) = ask(&server, "POST", &format!("{path}/jobs/token"), Some(&request)).await.unwrap();
    assert_eq!(status, 201, "{answer}");
    let token = answer["status"]["token"].as_str().unwrap().to_owned();
    let subject = json!({ "kind": "ServiceAccount", "name": "jobs", "namespace": namespace });
    grant(&namespace, &ALL, &subject, &token).await;

    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("token");
    let (secure, authority) = secure_server();
    std::fs::write(&file, &token).unwrap();
    let url = format!(
        "k8s://{namespace}?endpoint={secure}&token_file={}&ca={}",
        file.display(),
        authority.display()
    );
    let locker = Locker::open(&url).await.unwrap();
    locker.lock("lock").acquire().await.unwrap().release().await.unwrap();
    std::fs::write(&file, "not-a-token").unwrap();
    assert_eq!(refused(&url).await.kind(), ErrorKind::Denied, "a process that starts with it");
    std::fs::write(&file, token).unwrap();
    locks(&url).await.unwrap();
}

/// Returns the encoded URL of the server and the path of its certificate authority.
fn secure_server() -> (String, PathBuf) {
    let file = kubeconfig();
    let text = std::fs::read_to_string(&file).unwrap();
    let server = text.lines().find_map(|line| line.trim().strip_prefix("server: https://")).unwrap();
    let authority = Path::new(&file).with_file_name("certificates").join("apiserver.crt");
    (format!("https%3A%2F%2F{server}"), authority)
}

#[tokio::test]
async fn a_plugin_signs_in() {
    let namespace = namespace_with(&ALL).await;
    let folder = tempfile::tempdir().unwrap();
    let plugin = folder.path().join("get-token");
    let script = "#!/bin/sh\necho \"{\\\"status\\\":{\\\"token\\\":\\\"$1\\\"}}\"\n";
    std::fs::write(&plugin, script).unwrap();
    std::fs::set_permissions(&plugin, std::fs::Permissions::from_mode(0o700)).unwrap();
    let text = std::fs::read_to_string(kubeconfig()).unwrap();
    let exec = "{exec: {apiVersion: client.authentication.k8s.io/v1, command: ./get-token, args: [TOKEN]}}";
    let with = |token: &str| {
        let text = text.replace("{token: lesser-token}", &exec.replace("TOKEN", token));
        let file = folder.path().join(token);
        std::fs::write(&file, text).unwrap();
        format!("k8s://{namespace}?kubeconfig={}&context=lesser", file.display())
    };
    locks(&with("lesser-token")).await.unwrap();
    assert_eq!(refused(&with("other-token")).await.kind(), ErrorKind::Denied);
    assert_eq!(refused(&with("no-token")).await.kind(), ErrorKind::Denied);
    std::fs::remove_file(plugin).unwrap();
    let error = refused(&with("lesser-token")).await;
    assert!(error.to_string().contains("get-token"), "{error}");
}

#[tokio::test]
async fn a_server_with_an_unknown_certificate_is_refused() {
    let (secure, _) = secure_server();
    let error = refused(&format!("k8s://default?endpoint={secure}")).await;
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.help().iter().any(|help| help.contains("ca=FILE")), "{error:?}");
}

#[tokio::test]
async fn a_missing_namespace_is_named() {
    let error = refused(&format!("k8s://none?kubeconfig={}", kubeconfig())).await;
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.help().iter().any(|help| help.contains("kubectl create namespace none")), "{error:?}");
}
