//! Tests the register against a scripted server: the requests that it sends, and its results for every kind of
//! response.

use futures_util::TryStreamExt;

use super::config::{Secret, Source};
use super::*;
use crate::clock::micros;
use crate::stores::over_http::scripted::{Reply, Seen, Server, answer};
use crate::stores::over_http::transport::Transport;

pub(super) const HEADERS: &str =
    "Date: Sun, 06 Nov 1994 08:49:37 GMT\r\nx-ms-request-id: r\r\nETag: \"0x8DB\"\r\n";
const DATE_US: u64 = 784_111_777_000_000;

fn register_with(server: &Server, source: Source) -> AzureRegister {
    register_in(server, source, Env::system())
}

pub(super) fn register_in(server: &Server, source: Source, env: Env) -> AzureRegister {
    let target =
        Target { account: "acct1".into(), container: "locks".into(), base: format!("{}/acct1", server.url) };
    let access = Access { target, transport: Transport::default(), source };
    AzureRegister::new(access, Keys::below("pre/fix"), Contents::Records, env).unwrap()
}

fn register(server: &Server) -> AzureRegister {
    register_with(server, Source::Anonymous)
}

pub(super) fn refused(status: &str, code: &str) -> String {
    let body = format!(
        "\u{feff}<?xml version=\"1.0\"?><Error><Code>{code}</Code><Message>m\nRequestId:1</Message></Error>"
    );
    answer(status, &format!("{HEADERS}x-ms-error-code: {code}\r\n"), &body)
}

fn value() -> Bytes {
    Bytes::from_static(b"{\"a\":1}")
}

fn v1() -> Version {
    Version::new("\"0x8DB\"")
}

#[tokio::test]
async fn every_operation_is_one_request_with_its_preconditions() {
    let server = Server::start(|seen| {
        Reply::Answer(match seen.line.split(' ').next() {
            Some("GET") if seen.line.contains("comp=list") => {
                answer("200 OK", HEADERS, "<EnumerationResults><Blobs/><NextMarker/></EnumerationResults>")
            }
            Some("GET") => answer("200 OK", HEADERS, "{\"a\":1}"),
            Some("PUT") => answer("201 Created", HEADERS, ""),
            _ => answer("202 Accepted", HEADERS, ""),
        })
    })
    .await;
    let register = register(&server);

    let cell = register.read("a b.lock").await.unwrap().unwrap();
    assert_eq!((cell.value, cell.version), (value(), v1()));
    let [get] = &server.requests()[..] else { panic!() };
    assert_eq!(get.line, "GET /acct1/locks/pre/fix/a%2520b.lock");
    assert!(get.has("x-ms-version: 2023-11-03") && !get.head.contains("authorization"), "{get:?}");

    let written = register.write("x.lock", Precondition::Absent, value().into()).await.unwrap();
    assert_eq!(written, Write::Committed(v1()));
    let [create] = &server.requests()[..] else { panic!() };
    assert_eq!(create.line, "PUT /acct1/locks/pre/fix/x.lock");
    for header in ["if-none-match: *", "x-ms-blob-type: blockblob", "x-ms-blob-cache-control: no-store"] {
        assert!(create.has(header), "{create:?}");
    }
    assert_eq!(create.body, value());

    // Azure refuses a write without a `Content-Length`.
    register.write("x.lock", Precondition::Absent, Bytes::new().into()).await.unwrap();
    let [empty] = &server.requests()[..] else { panic!() };
    assert!(empty.has("content-length: 0"), "{empty:?}");

    register.write("x.lock", Precondition::Version(&v1()), value().into()).await.unwrap();
    let [replace] = &server.requests()[..] else { panic!() };
    assert!(replace.has("if-match: \"0x8db\"") && !replace.head.contains("if-none-match"), "{replace:?}");

    assert_eq!(register.delete("x.lock", &v1()).await.unwrap(), Deleted::Deleted);
    let [delete] = &server.requests()[..] else { panic!() };
    assert!(delete.line.starts_with("DELETE ") && delete.has("if-match: \"0x8db\""), "{delete:?}");

    assert_eq!(register.list("a b").try_collect::<Vec<_>>().await.unwrap(), Vec::<String>::new());
    let [list] = &server.requests()[..] else { panic!() };
    assert_eq!(list.line, "GET /acct1/locks?restype=container&comp=list&prefix=pre%2Ffix%2Fa%2520b");

    for invalid in ["*", "", "0x8DB", "\"a\", \"b\""] {
        let version = Version::new(invalid);
        let error =
            register.write("x.lock", Precondition::Version(&version), value().into()).await.unwrap_err();
        assert_eq!(error.fault().kind, ErrorKind::Invalid, "{invalid}");
        assert!(register.delete("x.lock", &version).await.is_err(), "{invalid}");
    }
    assert!(server.requests().is_empty());
}

#[tokio::test]
async fn lost_races_are_conflicts_and_a_missing_blob_is_absent() {
    for (status, code) in [("409 X", "BlobAlreadyExists"), ("412 X", "ConditionNotMet")] {
        let server = Server::always(refused(status, code)).await;
        let register = register(&server);
        let created = register.write("x", Precondition::Absent, value().into()).await.unwrap();
        assert_eq!(created, Write::Conflict, "{code}");
    }
    let server = Server::always(refused("404 X", "BlobNotFound")).await;
    let register = register(&server);
    assert_eq!(register.read("x").await.unwrap(), None);
    assert_eq!(
        register.write("x", Precondition::Version(&v1()), value().into()).await.unwrap(),
        Write::Conflict
    );
    assert_eq!(register.delete("x", &v1()).await.unwrap(), Deleted::Conflict);
}

#[tokio::test]
async fn a_write_is_sent_once_and_a_lost_response_is_unknown() {
    let server = Server::start(|_| Reply::Hang).await;
    let error = register(&server).write("x", Precondition::Absent, value().into()).await.unwrap_err();
    assert!(matches!(error, StoreError::MaybeApplied(_)), "{error:?}");
    assert_eq!(server.requests().len(), 1);
    // The blob was written, but its version is unknown.
    let server = Server::always(answer("201 Created", "x-ms-request-id: r\r\n", "")).await;
    let error = register(&server).write("x", Precondition::Absent, value().into()).await.unwrap_err();
    assert!(matches!(error, StoreError::MaybeApplied(_)), "{error:?}");
}

#[tokio::test]
async fn only_azure_tells_the_time() {
    let server = Server::always(answer("200 OK", HEADERS, "{}")).await;
    let store = register(&server);
    store.read("x").await.unwrap();
    let time = store.store_time().unwrap();
    assert!(time.lo_us >= DATE_US && time.hi_us < DATE_US + micros(Duration::from_secs(60)), "{time:?}");
    for other in [HEADERS.replace("x-ms-request-id: r\r\n", ""), format!("{HEADERS}Age: 1\r\n")] {
        let server = Server::always(answer("200 OK", &other, "{}")).await;
        let store = register(&server);
        store.read("x").await.unwrap();
        assert_eq!(store.store_time(), None, "{other}");
    }
}

/// Azure refuses the first request, which is dated by this machine's clock. The refusal contains the right date.
#[tokio::test]
async fn requests_are_dated_by_azures_clock() {
    let dated = |seen: &Seen| seen.head.contains("x-ms-date: sun, 06 nov 1994 08:49");
    let server = Server::start(move |seen| {
        Reply::Answer(if dated(seen) {
            answer("200 OK", HEADERS, "{}")
        } else {
            refused("403 X", "AuthenticationFailed")
        })
    })
    .await;
    let store = register_with(&server, Source::Key(Secret::Text("a2V5".into())));
    let error = store.read("x").await.unwrap_err();
    assert_eq!(error.fault().kind, ErrorKind::Unavailable, "{error:?}");
    assert!(error.fault().help.as_deref().unwrap().contains("clock"), "{error:?}");
    store.read("x").await.unwrap().unwrap();
    assert!(server.requests().iter().all(|seen| seen.head.contains("authorization: sharedkey acct1:")));
}

/// A signature and a key are read again when Azure no longer accepts them.
#[tokio::test]
async fn replaced_secrets_are_read_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("sas");
    std::fs::write(&path, "?sv=1&sig=one\n").unwrap();
    let server = Server::start(|seen| {
        Reply::Answer(if seen.line.ends_with("sig=two") {
            answer("200 OK", HEADERS, "{}")
        } else {
            refused("403 X", "AuthenticationFailed")
        })
    })
    .await;
    let store = register_with(&server, Source::Sas(Secret::File(path.clone())));
    assert_eq!(store.read("x").await.unwrap_err().fault().kind, ErrorKind::Denied);
    std::fs::write(&path, "sv=1&sig=two").unwrap();
    store.read("x").await.unwrap().unwrap();
    assert_eq!(server.requests()[1].line, "GET /acct1/locks/pre/fix/x?sv=1&sig=two");
    assert!(!format!("{store:?}").contains("sig="));
}

#[tokio::test]
async fn bad_secrets_are_errors_that_name_their_place() {
    let server = Server::always(answer("200 OK", HEADERS, "{}")).await;
    let text = |text: &str| Secret::Text(text.to_owned());
    for (source, named) in [
        (Source::Key(text("hunter2!")), "AZURE_STORAGE_KEY"),
        (Source::Sas(text("hunter2")), "AZURE_STORAGE_SAS_TOKEN"),
        (Source::Key(Secret::File("/nowhere/key".into())), "/nowhere/key"),
    ] {
        let error = register_with(&server, source).read("x").await.unwrap_err();
        assert_eq!(error.fault().kind, ErrorKind::Denied, "{error:?}");
        assert!(error.to_string().contains(named) && !format!("{error:?}").contains("hunter2"), "{error:?}");
    }
    assert!(server.requests().is_empty());
}
