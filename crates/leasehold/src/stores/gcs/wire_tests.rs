//! Tests the register against a scripted server: the requests that it sends, and its results for every kind of
//! response.

mod objects;
mod reaching;
mod refusing;
mod signing_in;

use std::collections::HashMap;
use std::sync::Mutex;

use futures_util::TryStreamExt;
use tokio::net::TcpListener;

use super::config::{Access, Source};
use super::*;
use crate::clock::micros;
use crate::proof::{probe, probe_deletes};
use crate::register::MAX_VALUE_BYTES;
use crate::stores::buckets::Protocol;
use crate::stores::over_http::scripted::{Reply, Seen, Server, answer};
use crate::stores::over_http::transport::Transport;
use crate::stores::over_http::wire_rules::{self, Row};

const DATE: &str = "Date: Sun, 06 Nov 1994 08:49:37 GMT\r\n";
const GENERATION: &str = "X-Goog-Generation: 1795234395579324\r\n";

fn register_at(endpoint: &str, source: Source) -> GcsRegister {
    let access = Access {
        target: Target { bucket: "bucket".into(), endpoint: endpoint.to_owned(), ..Target::default() },
        transport: Transport::default(),
        source,
        impersonate: None,
    };
    let location = Location { access, prefix: "pre/fix".into(), protocol: Protocol::Lease };
    GcsRegister::new(location, Contents::Records, Env::system()).unwrap()
}

fn at(url: &str) -> GcsRegister {
    register_at(url, Source::Anonymous)
}

fn register(server: &Server) -> GcsRegister {
    at(&server.url)
}

async fn written_at(url: &str) -> StoreError {
    at(url).write("x.lock", Precondition::Absent, value().into()).await.unwrap_err()
}

fn refused(status: &str, headers: &str, reason: &str) -> String {
    let body = format!(
        "{{\"error\":{{\"code\":0,\"message\":\"m\",\"errors\":[{{\"domain\":\"global\",\"reason\":\"{reason}\"}}]}}}}"
    );
    answer(status, headers, &body)
}

fn written() -> String {
    answer("200 OK", "", "{\"kind\":\"storage#object\",\"generation\":\"1795234395579324\"}")
}

fn value() -> Bytes {
    Bytes::from_static(b"{\"a\":1}")
}

fn v1() -> Version {
    Version::new("1795234395579324")
}

#[tokio::test]
async fn every_operation_is_one_request_with_its_preconditions() {
    let server = Server::start(|seen| {
        Reply::Answer(match seen.line.split(' ').next() {
            Some("GET") if seen.line.contains("prefix=") => answer("200 OK", "", "{}"),
            Some("GET") => answer("200 OK", GENERATION, "{\"a\":1}"),
            Some("DELETE") if seen.line.contains("=5") => refused("412 X", "", "conditionNotMet"),
            Some("DELETE") => answer("204 No Content", "", "").replace("Content-Length: 0\r\n", ""),
            _ => written(),
        })
    })
    .await;
    let register = register(&server);

    let cell = register.read("a b.lock").await.unwrap().unwrap();
    assert_eq!((cell.value, cell.version), (value(), v1()));
    let [get] = &server.requests()[..] else { panic!() };
    assert_eq!(get.line, "GET /storage/v1/b/bucket/o/pre%2Ffix%2Fa%2520b.lock?alt=media");
    assert!(!get.head.contains("authorization") && !get.head.contains("accept-encoding"), "{get:?}");

    assert_eq!(
        register.write("x.lock", Precondition::Absent, value().into()).await.unwrap(),
        Write::Committed(v1())
    );
    let [create] = &server.requests()[..] else { panic!() };
    let upload = "POST /upload/storage/v1/b/bucket/o?uploadType=multipart&ifGenerationMatch=";
    assert_eq!(create.line, format!("{upload}0&fields=generation"));
    assert!(create.head.contains("content-type: multipart/related; boundary="), "{create:?}");
    let body = String::from_utf8(create.body.clone()).unwrap();
    assert!(body.contains(
        "{\"name\":\"pre/fix/x.lock\",\"contentType\":\"application/json\",\"cacheControl\":\"no-store\"}"
    ));
    assert!(body.contains("\r\n\r\n{\"a\":1}\r\n--"), "{body}");

    register.write("x.lock", Precondition::Version(&v1()), value().into()).await.unwrap();
    let [replace] = &server.requests()[..] else { panic!() };
    assert_eq!(replace.line, format!("{upload}1795234395579324&fields=generation"));

    assert_eq!(register.delete("x.lock", &v1()).await.unwrap(), Deleted::Deleted);
    assert_eq!(register.delete("x.lock", &Version::new("5")).await.unwrap(), Deleted::Conflict);
    let [delete, _] = &server.requests()[..] else { panic!() };
    assert_eq!(
        delete.line,
        "DELETE /storage/v1/b/bucket/o/pre%2Ffix%2Fx.lock?generation=1795234395579324&ifGenerationMatch=1795234395579324"
    );

    assert_eq!(register.list("a b").try_collect::<Vec<_>>().await.unwrap(), Vec::<String>::new());
    let [list] = &server.requests()[..] else { panic!() };
    assert!(list.line.starts_with("GET /storage/v1/b/bucket/o?prefix=pre%2Ffix%2Fa%2520b&"), "{list:?}");

    for invalid in ["0", "", "\"etag\"", "1&x=2"] {
        let error = register
            .write("x.lock", Precondition::Version(&Version::new(invalid)), value().into())
            .await
            .unwrap_err();
        assert_eq!(error.fault().kind, ErrorKind::Invalid, "{invalid}");
        assert!(register.delete("x.lock", &Version::new(invalid)).await.is_err(), "{invalid}");
    }
    assert!(server.requests().is_empty());
}

#[tokio::test]
async fn no_error_is_retried_inside_the_client() {
    let rows: &[Row] = &[
        ("429 X", "Retry-After: 7\r\n", "rateLimitExceeded", false, ErrorKind::Unavailable, Some(7)),
        ("503 X", "Retry-After: 7\r\n", "backendError", true, ErrorKind::Unavailable, Some(7)),
        ("500 X", "", "internalError", true, ErrorKind::Unavailable, None),
        ("403 X", "", "forbidden", false, ErrorKind::Denied, None),
        ("308 X", "Location: /elsewhere\r\n", "", false, ErrorKind::Invalid, None),
        ("307 X", "Location: /elsewhere\r\n", "", false, ErrorKind::Invalid, None),
    ];
    wire_rules::no_error_is_retried_inside_the_client(refused, rows, written_at).await;
}

#[tokio::test]
async fn throttling_asks_for_a_jittered_pause_of_up_to_a_second() {
    let server = Server::always(refused("429 X", "", "rateLimitExceeded")).await;
    let register = register(&server);
    let mut pauses = Vec::new();
    for _ in 0..20 {
        let error = register.write("x.lock", Precondition::Version(&v1()), value().into()).await.unwrap_err();
        pauses.push(micros(error.fault().retry_after.unwrap()));
    }
    assert!(pauses.iter().all(|pause| (500_000..=1_000_000).contains(pause)), "{pauses:?}");
    pauses.dedup();
    assert!(pauses.len() > 15, "those who were refused together do not come back together: {pauses:?}");
}

#[tokio::test]
async fn conflicts_and_missing_objects_are_not_errors() {
    for missing in [answer("404 X", "", "No such object: bucket/x"), refused("404 X", "", "notFound")] {
        let server = Server::always(missing).await;
        assert_eq!(register(&server).read("x.lock").await.unwrap(), None);
    }
    let server = Server::always(refused("412 X", "", "conditionNotMet")).await;
    for expect in [Precondition::Absent, Precondition::Version(&v1())] {
        assert_eq!(register(&server).write("x.lock", expect, value().into()).await.unwrap(), Write::Conflict);
    }
}

#[tokio::test]
async fn only_a_write_that_was_sent_can_have_an_unknown_effect() {
    let read = async |url: &str| at(url).read("x.lock").await.unwrap_err();
    wire_rules::only_a_write_that_was_sent_can_have_an_unknown_effect(written_at, read).await;
    let server = Server::start(|_| Reply::Hang).await;
    let error = register(&server).delete("x.lock", &v1()).await.unwrap_err();
    assert!(matches!(error, StoreError::MaybeApplied(_)) && error.is_transient(), "{error:?}");
}

#[tokio::test]
async fn connections_are_used_again_and_may_be_closed() {
    let server = Server::always(written().replace("200 OK\r\n", "200 OK\r\nConnection: close\r\n")).await;
    let register = register(&server);
    for _ in 0..3 {
        register.write("x.lock", Precondition::Absent, value().into()).await.unwrap();
    }
    assert_eq!(server.requests().len(), 3);
}

#[tokio::test]
async fn only_responses_of_the_store_show_its_time() {
    let ok = |headers: &str| answer("200 OK", &format!("{GENERATION}{headers}"), "");
    let page = |status: &str, headers: &str| {
        answer(status, &format!("{DATE}Content-Type: text/html\r\n{headers}"), "<html>Bad Gateway</html>")
    };
    let upload = "X-GUploader-UploadID: ABPtcPo\r\n";
    let rows = [
        (ok(DATE), true),
        (answer("200 OK", &format!("{DATE}Content-Type: application/json; charset=UTF-8\r\n"), "{}"), true),
        (answer("404 X", &format!("{DATE}{upload}"), "No such object: bucket/x.lock"), true),
        (refused("404 X", DATE, "notFound"), true),
        (refused("503 X", DATE, "backendError"), true),
        (page("502 Bad Gateway", ""), false),
        (page("502 Bad Gateway", upload), false),
        (page("504 Gateway Timeout", ""), false),
        (refused("502 Bad Gateway", DATE, "backendError"), false),
        (page("503 Service Unavailable", ""), false),
        (page("403 Forbidden", ""), false),
        // Emulators send such a response; Google does not.
        (page("404 Not Found", ""), true),
        (page("200 OK", ""), false),
        (
            answer("503 X", &format!("{DATE}Content-Type: application/json\r\n"), "{\"error\":\"busy\"}"),
            false,
        ),
        (ok(""), false),
        (ok(&format!("{DATE}Age: 3\r\n")), false),
        (ok("Date: today\r\n"), false),
    ];
    wire_rules::only_responses_of_the_store_show_its_time(rows, async |url| {
        let register = at(url);
        let before = register.store_time();
        drop(register.read("x.lock").await);
        [before, register.store_time()]
    })
    .await;
}

#[tokio::test]
async fn a_huge_or_broken_body_is_an_error() {
    let server = Server::always(answer("200 OK", GENERATION, &"x".repeat(MAX_VALUE_BYTES + 1))).await;
    let error = register(&server).read("x.lock").await.unwrap_err();
    assert_eq!(error.fault().kind, ErrorKind::Corrupt, "{error:?}");

    for end in ["Connection: close\r\n", ""] {
        let cut = format!("HTTP/1.1 200 OK\r\n{GENERATION}{end}Content-Length: 9\r\n\r\nabc");
        let server = Server::always(cut).await;
        let error = register(&server).read("x.lock").await.unwrap_err();
        assert!(matches!(error, StoreError::NotApplied(_)) && error.is_transient(), "{error:?}");
        let error =
            register(&server).write("x.lock", Precondition::Absent, value().into()).await.unwrap_err();
        assert!(matches!(error, StoreError::MaybeApplied(_)) && error.is_transient(), "{error:?}");
    }
}

#[tokio::test]
async fn responses_not_from_gcs_do_not_mean_an_absent_lock() {
    for (reply, kind) in [
        (answer("404 Not Found", "", "<html>nginx</html>"), ErrorKind::Invalid),
        (answer("404 Not Found", "", "The specified bucket does not exist."), ErrorKind::Invalid),
        (answer("403 Forbidden", "", "<html>proxy"), ErrorKind::Denied),
        (answer("502 Bad Gateway", "", "\u{0}\u{1}garbage"), ErrorKind::Unavailable),
        (answer("200 OK", "", "no generation"), ErrorKind::Unsupported),
        ("garbage\r\n\r\n".to_owned(), ErrorKind::Unavailable),
    ] {
        let server = Server::always(reply.clone()).await;
        let error = register(&server).read("x.lock").await.unwrap_err();
        assert_eq!(error.fault().kind, kind, "{reply}: {error:?}");
    }
    for body in ["{}", "{\"generation\":\"0\"}", "<html>"] {
        let server = Server::always(answer("200 OK", "", body)).await;
        let error =
            register(&server).write("x.lock", Precondition::Absent, value().into()).await.unwrap_err();
        assert!(matches!(error, StoreError::MaybeApplied(_)), "it may be there: {error:?}");
        assert_eq!(error.fault().kind, ErrorKind::Unsupported);
    }
    let listing = Server::always(answer("200 OK", "", "<html>")).await;
    assert!(register(&listing).list("").try_collect::<Vec<_>>().await.is_err());
}

#[tokio::test]
async fn a_long_page_is_not_taken_for_a_response_of_gcs() {
    let page = format!("<html>{}</html>", "x".repeat(100_000));
    let server = Server::always(answer("404 Not Found", "", &page)).await;
    let error = register(&server).read("x.lock").await.unwrap_err();
    assert_eq!(error.fault().kind, ErrorKind::Invalid, "{error:?}");

    let server = Server::always(answer("412 Precondition Failed", "", &page)).await;
    let error = register(&server).write("x.lock", Precondition::Absent, value().into()).await.unwrap_err();
    assert_eq!(error.fault().kind, ErrorKind::Invalid, "{error:?}");
}

#[tokio::test]
async fn a_refusal_that_is_cut_off_counts_as_no_response() {
    let cut = |status: &str| format!("HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: 9\r\n\r\n");
    let server = Server::always(cut("404 Not Found")).await;
    let error = register(&server).read("x.lock").await.unwrap_err();
    assert!(matches!(error, StoreError::NotApplied(_)) && error.is_transient(), "{error:?}");

    let server = Server::always(cut("412 Precondition Failed")).await;
    let error = register(&server).write("x.lock", Precondition::Absent, value().into()).await.unwrap_err();
    assert!(matches!(error, StoreError::MaybeApplied(_)) && error.is_transient(), "{error:?}");
}

#[tokio::test]
async fn listings_are_read_page_by_page() {
    let page = |name: &str, more: &str| {
        let body = format!(
            "{{\"items\":[{{\"name\":\"pre/fix/{name}\"}},{{\"name\":\"pre/fix/not ours\"}}]{more}}}"
        );
        answer("200 OK", "", &body)
    };
    let pages = [page("a%20b.lock", ",\"nextPageToken\":\"t1\""), page("c.lock", "")];
    let refusal = refused("429 Too Many Requests", "", "rateLimitExceeded");
    wire_rules::listings_are_read_page_by_page(
        pages,
        |seen| seen.line.contains("pageToken=t1"),
        refusal,
        ["a b.lock", "c.lock"],
        async |url| at(url).list("").try_collect().await,
    )
    .await;
}

/// Starts a GCS server that ignores preconditions and accepts every write and every delete.
async fn careless() -> Server {
    let objects: Mutex<HashMap<String, u64>> = Mutex::default();
    Server::start(move |seen| {
        let mut objects = objects.lock().unwrap();
        let (method, target) = seen.line.split_once(' ').unwrap();
        let body = String::from_utf8_lossy(&seen.body);
        Reply::Answer(match method {
            "POST" => {
                let name = body.split("\"name\":\"pre/fix/").nth(1).unwrap().split('"').next().unwrap();
                let generation = objects.get(name).map_or(100, |generation| generation + 1);
                objects.insert(name.to_owned(), generation);
                answer("200 OK", "", &format!("{{\"generation\":\"{generation}\"}}"))
            }
            "DELETE" => answer("200 OK", "", "null"),
            _ => {
                let name = target.rsplit("%2F").next().unwrap().split('?').next().unwrap();
                match objects.get(name) {
                    Some(generation) => {
                        answer("200 OK", &format!("X-Goog-Generation: {generation}\r\n"), "{}")
                    }
                    None => answer("404 X", "", "Not Found"),
                }
            }
        })
    })
    .await
}

#[tokio::test]
async fn a_store_ignoring_conditions_is_refused_and_no_lock_deleted() {
    let server = careless().await;
    let register = register(&server);
    assert!(!register.capabilities().trusted);
    for _ in 0..2 {
        let error = probe(&register).await.unwrap_err();
        assert_eq!(error.fault().kind, ErrorKind::Unsupported, "{error:?}");
    }
    server.requests();
    register.write("x.lock", Precondition::Absent, value().into()).await.unwrap();
    let error = probe_deletes(&register).await.unwrap_err();
    assert_eq!(error.fault().kind, ErrorKind::Unsupported, "{error:?}");
    let deletes = server.requests().into_iter().filter(|seen| seen.line.starts_with("DELETE"));
    assert!(deletes.into_iter().all(|delete| delete.line.contains(".leasehold-probe")));
}
