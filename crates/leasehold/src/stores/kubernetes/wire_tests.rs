//! Tests the store against a scripted server: the requests that it sends, and its results for every kind of response.

use futures_util::TryStreamExt;

use super::access::Source;
use super::*;
use crate::golden::golden_record;
use crate::stores::over_http::scripted::{Reply, Seen, Server, answer};
use crate::stores::over_http::transport::Transport;

const HEADERS: &str = "Date: Sun, 06 Nov 1994 08:49:37 GMT\r\nAudit-Id: a\r\n";
const LEASE: &str = r#"{"metadata":{"name":"x","resourceVersion":"8"},"spec":null}"#;

fn store_with(server: &Server, source: Source) -> Kubernetes {
    let transport = Transport::default();
    let access = Access { server: server.url.clone(), transport, authorities: None, identity: None, source };
    let again = access.clone();
    let location = Location { access, namespace: "jobs".into() };
    Kubernetes::new(location, move || Ok(again.clone()), Env::system()).unwrap()
}

fn store(server: &Server) -> Kubernetes {
    store_with(server, Source::Connection)
}

fn refused(status: &str, reason: &str, kind: &str) -> String {
    let body = json!({ "kind": "Status", "reason": reason, "message": "m", "details": { "kind": kind } });
    answer(status, HEADERS, &body.to_string())
}

fn name() -> LockName {
    LockName::new("x").unwrap()
}

fn version() -> Version {
    Version::new("7 1 0")
}

async fn write(store: &Kubernetes, expect: Precondition<'_>) -> Result<Written, StoreError> {
    store.write(&name(), expect, None, &golden_record("1-held.json")).await
}

#[tokio::test]
async fn every_operation_is_one_request_with_its_preconditions() {
    let server = Server::start(|seen| {
        let is_list = seen.line.contains("?limit=");
        Reply::Answer(answer(
            "200 OK",
            HEADERS,
            if is_list { r#"{"metadata":{},"items":null}"# } else { LEASE },
        ))
    })
    .await;
    let store = store(&server);
    let found = store.read(&name()).await.unwrap().unwrap();
    assert_eq!(found.version, Version::new("8 0 0"));
    write(&store, Precondition::Absent).await.unwrap();
    write(&store, Precondition::Version(&version())).await.unwrap();
    store.mark_awaited(&name(), &version(), &golden_record("1-held.json")).await.unwrap();
    assert!(store.discard(&name(), &version()).await.unwrap());
    assert_eq!(store.list("").try_collect::<Vec<_>>().await.unwrap(), []);

    let [get, create, patch, mark, delete, list] = &server.requests()[..] else { panic!() };
    let leases = "/apis/coordination.k8s.io/v1/namespaces/jobs/leases";
    let body = |seen: &Seen| serde_json::from_slice::<Value>(&seen.body).unwrap();
    assert_eq!(get.line, format!("GET {leases}/x"));
    assert_eq!(create.line, format!("POST {leases}?fieldManager=leasehold"));
    assert_eq!(body(create)["metadata"]["name"], "x");
    assert_eq!(body(create)["metadata"]["resourceVersion"], Value::Null);
    assert_eq!(patch.line, format!("PATCH {leases}/x?fieldManager=leasehold"));
    assert!(patch.has("content-type: application/merge-patch+json"), "{patch:?}");
    assert_eq!(body(patch)["metadata"]["resourceVersion"], "7");
    assert_eq!(body(patch)["spec"]["leaseTransitions"], 2);
    // The patch has only the annotation with the record, so it changes no other client's fields or lock.
    assert_eq!(body(mark).as_object().unwrap().len(), 1);
    let marked = body(mark)["metadata"]["annotations"].as_object().unwrap().clone();
    assert_eq!(marked.keys().collect::<Vec<_>>(), [lease::RECORD]);
    assert_eq!(delete.line, format!("DELETE {leases}/x"));
    assert_eq!(body(delete)["preconditions"]["resourceVersion"], "7");
    assert_eq!(list.line, format!("GET {leases}?limit=500"));
}

#[tokio::test]
async fn a_refused_precondition_is_a_conflict() {
    let server = Server::start(|seen| {
        Reply::Answer(match seen.line.split(' ').next() {
            Some("POST") => refused("409 Conflict", "AlreadyExists", "leases"),
            Some("PATCH") => refused("409 Conflict", "Conflict", "leases"),
            _ => refused("404 Not Found", "NotFound", "leases"),
        })
    })
    .await;
    let store = store(&server);
    for expect in [Precondition::Absent, Precondition::Version(&version())] {
        let written = write(&store, expect).await.unwrap();
        assert!(matches!(written, Written::Conflict(Refusal::Unexplained)), "{written:?}");
    }
    assert!(store.read(&name()).await.unwrap().is_none());
    assert!(!store.discard(&name(), &version()).await.unwrap());
    assert!(
        store.write_line(&name(), Precondition::Absent, Bytes::new()).await.is_ok_and(|written| !written)
    );
}

#[tokio::test]
async fn a_change_of_a_deleted_lease_is_a_conflict() {
    let server = Server::start(|_| Reply::Answer(refused("404 Not Found", "NotFound", "leases"))).await;
    let written = write(&store(&server), Precondition::Version(&version())).await.unwrap();
    assert!(matches!(written, Written::Conflict(Refusal::Absent)), "{written:?}");
}

#[tokio::test]
async fn a_lost_or_garbled_response_leaves_the_outcome_unknown() {
    for script in [
        (|_: &Seen| Reply::Hang) as fn(&Seen) -> Reply,
        |_| Reply::Answer(answer("200 OK", HEADERS, "{}")),
        |_| Reply::Answer(answer("502 Bad Gateway", "", "")),
        |_| Reply::Answer(refused("504 Gateway Timeout", "Timeout", "")),
    ] {
        let server = Server::start(script).await;
        let error = write(&store(&server), Precondition::Version(&version())).await.unwrap_err();
        assert!(matches!(error, StoreError::MaybeApplied(_)), "{error:?}");
        assert_eq!(server.requests().len(), 1, "it is not sent again");
    }
}

#[tokio::test]
async fn a_replaced_token_is_read_after_a_refusal() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("token");
    std::fs::write(&path, "hunter2").unwrap();
    let server = Server::start(|seen| {
        Reply::Answer(match seen.has("authorization: bearer hunter2") {
            true if seen.line.starts_with("GET") => refused("404 Not Found", "NotFound", "leases"),
            true => refused("401 Unauthorized", "Unauthorized", ""),
            false => answer("200 OK", HEADERS, LEASE),
        })
    })
    .await;
    let store = store_with(&server, Source::File(path.clone()));
    assert!(store.read(&name()).await.unwrap().is_none());
    std::fs::write(&path, "next").unwrap();
    let error = write(&store, Precondition::Absent).await.unwrap_err();
    // The server accepted the token before, so the next attempt may succeed.
    assert_eq!(error.fault().kind, ErrorKind::Unavailable);
    assert!(!format!("{store:?} {error:?}").contains("hunter2"));
    write(&store, Precondition::Absent).await.unwrap();
}

#[tokio::test]
async fn only_an_api_server_tells_the_time() {
    for (headers, known) in [(HEADERS, true), ("Date: Sun, 06 Nov 1994 08:49:37 GMT\r\n", false)] {
        let server = Server::start(move |_| Reply::Answer(answer("200 OK", headers, LEASE))).await;
        let store = store(&server);
        store.read(&name()).await.unwrap();
        assert_eq!(store.store_time().is_some(), known);
    }
}

#[tokio::test]
async fn a_listing_has_the_names_of_locks() {
    let server = Server::start(|seen| {
        let item = |name: &str, lock: Option<&str>| {
            let annotations = lock.map(|lock| json!({ NAME: lock }));
            json!({ "metadata": { "name": name, "annotations": annotations } })
        };
        let (items, next) = match seen.line.contains("&continue=n") {
            false => (json!([item("a", None), item("lh--line.a", None)]), "n"),
            true => (json!([item("lh--c5fm4", Some("a_b")), item("lh--x", None), item("b", None)]), ""),
        };
        let page = json!({ "metadata": { "continue": next }, "items": items });
        Reply::Answer(answer("200 OK", HEADERS, &page.to_string()))
    })
    .await;
    let store = store(&server);
    let names = store.list("a").map_ok(|name| name.to_string()).try_collect::<Vec<_>>().await.unwrap();
    assert_eq!(names, ["a", "a_b"]);
}

#[tokio::test]
async fn a_watch_ends_when_the_lock_may_be_free() {
    let event = |holder: &str| {
        let object = json!({ "metadata": { "name": "x" }, "spec": { "holderIdentity": holder } });
        format!("{}\n", json!({ "type": "MODIFIED", "object": object }))
    };
    let (held, free) = (event("a"), event(""));
    for events in [free.clone(), format!("{held}{free}"), held.clone(), String::new(), "<html>\n".to_owned()]
    {
        let server = Server::start(move |_| Reply::Answer(answer("200 OK", HEADERS, &events))).await;
        assert_eq!(store(&server).watched("x").await, Some(()));
        assert!(server.requests()[0].line.contains("?watch=1&"), "{:?}", server.requests());
    }
    // Without the permission, waiters only poll.
    let server = Server::start(|_| Reply::Answer(refused("403 Forbidden", "Forbidden", "leases"))).await;
    assert_eq!(store(&server).watched("x").await, None);
}

/// A kubeconfig with the token itself, as clusters' own commands write it, and one that names a client certificate.
#[tokio::test]
async fn a_kubeconfig_that_is_replaced_late_is_read_again() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("config");
    let valid = std::sync::Arc::new(std::sync::Mutex::new("one"));
    let accepted = valid.clone();
    let server = Server::start(move |seen| {
        Reply::Answer(match seen.has(&format!("authorization: bearer {}", accepted.lock().unwrap())) {
            true => answer("200 OK", HEADERS, LEASE),
            false => refused("401 Unauthorized", "Unauthorized", ""),
        })
    })
    .await;
    let written = |server: &str, token: &str| {
        let text = json!({
            "current-context": "c",
            "clusters": [{ "name": "c", "cluster": { "server": server } }],
            "contexts": [{ "name": "c", "context": { "cluster": "c", "user": "u" } }],
            "users": [{ "name": "u", "user": { "token": token } }],
        });
        std::fs::write(&file, text.to_string()).unwrap();
    };
    written(&server.url, "one");
    let url = StoreUrl::parse(&format!("k8s://jobs?kubeconfig={}", file.display())).unwrap();
    let read = move || Location::from_url(url.clone(), &mut StoreOptions::default(), |_| None);
    let (location, again) = (read().unwrap(), move || Ok(read()?.access));
    let store = Kubernetes::new(location, again, Env::system()).unwrap();
    store.read(&name()).await.unwrap();
    *valid.lock().unwrap() = "two";
    for _ in 0..2 {
        let error = write(&store, Precondition::Absent).await.unwrap_err();
        assert!(matches!(error, StoreError::NotApplied(_)) && error.is_transient(), "{error:?}");
    }
    // A kubeconfig that is cut off, or that names another server, changes nothing.
    std::fs::write(&file, "{").unwrap();
    assert!(write(&store, Precondition::Absent).await.is_err());
    written("http://127.0.0.1:1", "two");
    assert!(write(&store, Precondition::Absent).await.unwrap_err().to_string().contains("401"));
    written(&server.url, "two");
    write(&store, Precondition::Absent).await.unwrap();
}

#[tokio::test]
async fn the_authority_in_a_kubeconfig_is_read_again() {
    let (folder, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let _other = Server::start_tls(other.path(), |_| Reply::Hang).await;
    let script = |_: &Seen| Reply::Answer(answer("200 OK", HEADERS, LEASE));
    let server = Server::start_tls(folder.path(), script).await;
    let access = |folder: &std::path::Path| Access {
        server: server.url.clone(),
        transport: Transport::default(),
        authorities: Some(std::fs::read(folder.join("ca.pem")).unwrap()),
        identity: None,
        source: Source::Connection,
    };
    let trusted = std::sync::Arc::new(std::sync::Mutex::new(access(other.path())));
    let (current, location) =
        (trusted.clone(), Location { access: access(other.path()), namespace: "jobs".into() });
    let store =
        Kubernetes::new(location, move || Ok(current.lock().unwrap().clone()), Env::system()).unwrap();
    assert!(store.read(&name()).await.unwrap_err().to_string().contains("invalid peer certificate"));
    *trusted.lock().unwrap() = access(folder.path());
    drop(store.read(&name()).await);
    store.read(&name()).await.unwrap();
}
