//! Tests the register against a scripted server: the requests that it sends, and its results for every kind of
//! response.
//!
//! These tests are inside the crate so that they can pass credentials. Tests cannot set environment variables.

// Only Linux responds on all addresses of 127.0.0.0/8 by default.
#[cfg(target_os = "linux")]
mod addresses;
mod options;

use std::collections::HashMap;
use std::sync::Mutex;

use bytes::Bytes;
use futures_util::TryStreamExt;
use tokio::net::TcpListener;

use super::*;
use crate::proof::{probe, probe_deletes};
use crate::register::{MAX_VALUE_BYTES, Metadata};
use crate::stores::aws::config::careful;
use crate::stores::aws::credentials::StoreCredentials;
use crate::stores::aws::wire::{in_file, machine, no_credentials, test_credentials, write_token};
use crate::stores::over_http::scripted::{Reply, Seen, Server, answer};
use crate::stores::over_http::wire_rules::{self, Row};

const DATE: &str = "Date: Sun, 06 Nov 1994 08:49:37 GMT\r\n";

impl Server {
    fn register(&self) -> S3Register {
        at(&self.url)
    }
}

fn at(url: &str) -> S3Register {
    register(url, test_credentials())
}

async fn written_at(url: &str) -> StoreError {
    at(url).write("x.lock", Precondition::Absent, value().into()).await.unwrap_err()
}

fn register(endpoint: &str, credentials: StoreCredentials) -> S3Register {
    let url = StoreUrl::parse("s3://bucket/pre/fix").unwrap();
    let location = Location::from_url(url, &mut StoreOptions::default()).unwrap();
    let env = Env::system();
    let sdk = careful(&machine(), &credentials);
    let client = Client::from_conf(location.client_config(&sdk, Some(endpoint)).build());
    let endpoint = Some(endpoint.to_owned());
    let target = Target { bucket: "bucket".into(), region: "eu-west-1".into(), endpoint, address: None };
    let requests = Requests::new(env, credentials, None);
    S3Register::new(client, requests, target, &location, Contents::Records)
}

fn refused(status: &str, headers: &str, code: &str) -> String {
    answer(status, headers, &format!("<Error><Code>{code}</Code><Message>m</Message></Error>"))
}

fn value() -> Bytes {
    Bytes::from_static(b"{\"a\":1}")
}

fn v1() -> Version {
    Version::new("\"d41d8-7\"")
}

#[tokio::test]
async fn every_operation_is_one_request_with_its_preconditions() {
    let server = Server::start(|seen| {
        Reply::Answer(match seen.line.split(' ').next() {
            Some("GET") if seen.line.contains("list-type") => {
                answer("200 OK", "", "<ListBucketResult></ListBucketResult>")
            }
            Some("DELETE") if seen.has("if-match: \"000\"") => refused("412 X", "", "PreconditionFailed"),
            Some("DELETE") => answer("204 No Content", "", "").replace("Content-Length: 0\r\n", ""),
            _ => answer("200 OK", "ETag: \"d41d8-7\"\r\n", "{\"a\":1}"),
        })
    })
    .await;
    let register = server.register();

    let cell = register.read("a b.lock").await.unwrap().unwrap();
    assert_eq!((cell.value, cell.version), (value(), v1()), "a multipart's or KMS's ETag, quotes and all");
    let [get] = &server.requests()[..] else { panic!() };
    assert_eq!(get.line, "GET /bucket/pre/fix/a%2520b.lock?x-id=GetObject");
    assert!(get.head.contains("authorization: aws4-hmac-sha256"), "{get:?}");

    assert_eq!(
        register.write("x.lock", Precondition::Absent, value().into()).await.unwrap(),
        Write::Committed(v1())
    );
    let [create] = &server.requests()[..] else { panic!() };
    assert_eq!(create.line, "PUT /bucket/pre/fix/x.lock?x-id=PutObject");
    assert!(create.has("if-none-match: *") && !create.head.contains("\nif-match"), "{create:?}");
    assert!(create.has("content-type: application/json") && create.body == value(), "{create:?}");
    assert!(!create.head.contains("checksum") && !create.head.contains("aws-chunked"), "{create:?}");

    register.write("x.lock", Precondition::Version(&v1()), value().into()).await.unwrap();
    let [replace] = &server.requests()[..] else { panic!() };
    assert!(replace.has("if-match: \"d41d8-7\"") && !replace.head.contains("if-none-match"), "{replace:?}");

    assert_eq!(register.delete("x.lock", &v1()).await.unwrap(), Deleted::Deleted);
    assert_eq!(register.delete("x.lock", &Version::new("\"000\"")).await.unwrap(), Deleted::Conflict);
    let [delete, _] = &server.requests()[..] else { panic!() };
    assert!(delete.line.starts_with("DELETE /bucket/pre/fix/x.lock") && delete.has("if-match: \"d41d8-7\""));

    assert_eq!(register.list("a b").try_collect::<Vec<_>>().await.unwrap(), Vec::<String>::new());
    let [list] = &server.requests()[..] else { panic!() };
    assert_eq!(list.line, "GET /bucket/?list-type=2&prefix=pre%2Ffix%2Fa%2520b");
}

#[tokio::test]
async fn no_error_is_retried_inside_the_client() {
    let rows: &[Row] = &[
        ("409 Conflict", "", "ConditionalRequestConflict", false, ErrorKind::Unavailable, None),
        ("503 Slow Down", "Retry-After: 7\r\n", "SlowDown", false, ErrorKind::Unavailable, Some(7)),
        ("500 Internal Server Error", "", "InternalError", true, ErrorKind::Unavailable, None),
        ("403 Forbidden", "", "AccessDenied", false, ErrorKind::Denied, None),
        ("501 Not Implemented", "", "NotImplemented", false, ErrorKind::Unsupported, None),
    ];
    wire_rules::no_error_is_retried_inside_the_client(refused, rows, written_at).await;
}

#[tokio::test]
async fn conflicts_and_missing_objects_are_not_errors() {
    let gone = Server::always(refused("404 Not Found", "", "NoSuchKey")).await;
    assert_eq!(gone.register().read("x.lock").await.unwrap(), None);
    assert_eq!(
        gone.register().write("x.lock", Precondition::Version(&v1()), value().into()).await.unwrap(),
        Write::Conflict
    );
    let deleted =
        Server::always(refused("404 Not Found", "x-amz-delete-marker: true\r\n", "NoSuchKey")).await;
    assert_eq!(deleted.register().read("x.lock").await.unwrap(), None);
    let failed = Server::always(refused("412 Precondition Failed", "", "PreconditionFailed")).await;
    for expect in [Precondition::Absent, Precondition::Version(&v1())] {
        assert_eq!(failed.register().write("x.lock", expect, value().into()).await.unwrap(), Write::Conflict);
    }
}

#[tokio::test]
async fn only_a_write_that_was_sent_can_have_an_unknown_effect() {
    let read = async |url: &str| at(url).read("x.lock").await.unwrap_err();
    wire_rules::only_a_write_that_was_sent_can_have_an_unknown_effect(written_at, read).await;
}

#[tokio::test]
async fn connections_that_the_store_closes_cost_no_second_request() {
    // The server closes the connection after every response, as moto does.
    let server =
        Server::start(|_| Reply::Answer(answer("200 OK", "ETag: \"a\"\r\nConnection: close\r\n", ""))).await;
    let register = server.register();
    for _ in 0..3 {
        register.write("x.lock", Precondition::Absent, value().into()).await.unwrap();
    }
    assert_eq!(server.requests().len(), 3);
}

#[tokio::test]
async fn only_responses_of_the_store_show_its_time() {
    let ok = |headers: &str| answer("200 OK", &format!("ETag: \"a\"\r\n{headers}"), "");
    let page = |status: &str, headers: &str| {
        answer(status, &format!("{DATE}Content-Type: text/html\r\n{headers}"), "<html>Bad Gateway</html>")
    };
    let aged = format!("{DATE}Age: 3\r\n");
    let id = format!("{DATE}x-amz-request-id: 4442587FB7D0A2F9\r\n");
    let xml = format!("{DATE}Content-Type: application/xml\r\n");
    let rows = [
        (ok(DATE), true),
        (answer("200 OK", &id, ""), true),
        (refused("404 Not Found", &id, "NoSuchKey"), true),
        (refused("404 Not Found", &xml, "NoSuchKey"), true),
        (refused("503 Slow Down", &id, "SlowDown"), true),
        (page("502 Bad Gateway", ""), false),
        (page("502 Bad Gateway", "x-amz-request-id: 1\r\n"), false),
        (refused("502 Bad Gateway", &id, "InternalError"), false),
        (page("504 Gateway Timeout", ""), false),
        (page("503 Service Unavailable", ""), false),
        (page("403 Forbidden", ""), false),
        (page("404 Not Found", ""), false),
        (page("200 OK", ""), false),
        (answer("503 X", &xml, "<problem>busy</problem>"), false),
        (ok(""), false),
        (ok(&aged), false),
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
async fn signatures_follow_the_stores_clock_once_it_has_refused_ours() {
    let server = Server::always(refused("403 Forbidden", DATE, "RequestTimeTooSkewed")).await;
    let register = server.register();
    let error = register.write("x.lock", Precondition::Absent, value().into()).await.unwrap_err();
    assert!(matches!(error, StoreError::NotApplied(_)) && error.is_transient(), "{error:?}");
    drop(register.read("x.lock").await);
    let [first, second] = &server.requests()[..] else { panic!() };
    assert!(
        !first.head.contains("x-amz-date: 1994") && second.head.contains("x-amz-date: 19941106t"),
        "{second:?}"
    );
}

#[tokio::test]
async fn a_wrong_region_is_named_with_the_right_one() {
    let server =
        Server::always(refused("301 Moved", "x-amz-bucket-region: us-west-2\r\n", "PermanentRedirect")).await;
    let error = server.register().read("x.lock").await.unwrap_err();
    assert_eq!(error.fault().kind, ErrorKind::Invalid);
    assert!(error.fault().help.as_ref().unwrap().contains("?region=us-west-2"), "{error:?}");
    assert_eq!(server.requests().len(), 1, "redirects are not followed with a signed request");
}

#[tokio::test]
async fn a_huge_or_broken_body_is_an_error() {
    let huge = MAX_VALUE_BYTES + 1;
    let announced = Server::always(answer("200 OK", "ETag: \"a\"\r\n", &"x".repeat(huge))).await;
    let error = announced.register().read("x.lock").await.unwrap_err();
    assert_eq!(error.fault().kind, ErrorKind::Corrupt);
    assert!(error.to_string().contains(&huge.to_string()), "{error:?}");

    let chunk = format!("{:x}\r\n{}\r\n", 1 << 16, "x".repeat(1 << 16)).repeat(17);
    let chunked =
        format!("HTTP/1.1 200 OK\r\nETag: \"a\"\r\nTransfer-Encoding: chunked\r\n\r\n{chunk}0\r\n\r\n");
    let error = Server::always(chunked).await.register().read("x.lock").await.unwrap_err();
    assert_eq!(error.fault().kind, ErrorKind::Corrupt);

    for (end, detail) in [("Connection: close\r\n", "was interrupted"), ("", "stalled")] {
        let cut = format!("HTTP/1.1 200 OK\r\nETag: \"a\"\r\n{end}Content-Length: 9\r\n\r\nabc");
        let error = Server::always(cut).await.register().read("x.lock").await.unwrap_err();
        assert!(matches!(error, StoreError::NotApplied(_)) && error.is_transient(), "{error:?}");
        assert!(error.to_string().contains(detail), "{error:?}");
    }
}

#[tokio::test]
async fn responses_not_from_s3_do_not_mean_an_absent_lock() {
    for (reply, kind) in [
        (answer("404 Not Found", "", "<html>nginx</html>"), ErrorKind::Invalid),
        (answer("403 Forbidden", "", "<html>proxy"), ErrorKind::Denied),
        (answer("502 Bad Gateway", "", "\u{0}\u{1}garbage"), ErrorKind::Unavailable),
        ("garbage\r\n\r\n".to_owned(), ErrorKind::Unavailable),
    ] {
        let error = Server::always(reply.clone()).await.register().read("x.lock").await.unwrap_err();
        assert_eq!(error.fault().kind, kind, "{reply}: {error:?}");
    }
    let listing = Server::always(answer("200 OK", "", "not XML")).await;
    assert!(listing.register().list("").try_collect::<Vec<_>>().await.is_err());
}

#[tokio::test]
async fn a_response_without_a_usable_version_is_refused() {
    for headers in ["", "ETag: W/\"a\"\r\n"] {
        let register = Server::always(answer("200 OK", headers, "")).await.register();
        let error = register.write("x.lock", Precondition::Absent, value().into()).await.unwrap_err();
        assert!(matches!(error, StoreError::MaybeApplied(_)), "it may be there: {error:?}");
        assert_eq!(error.fault().kind, ErrorKind::Unsupported);
        let error = register.read("x.lock").await.unwrap_err();
        assert_eq!(error.fault().kind, ErrorKind::Unsupported);
    }
}

#[tokio::test]
async fn listings_are_read_page_by_page() {
    let page = |key: &str, more: &str| {
        let keys = format!(
            "<Contents><Key>pre/fix/{key}</Key></Contents><Contents><Key>pre/fix/not ours</Key></Contents>"
        );
        answer("200 OK", "", &format!("<ListBucketResult>{keys}{more}</ListBucketResult>"))
    };
    let truncated = "<IsTruncated>true</IsTruncated><NextContinuationToken>t1</NextContinuationToken>";
    let pages = [page("a%20b.lock", truncated), page("c.lock", "<IsTruncated>false</IsTruncated>")];
    let refusal = refused("500 Internal Server Error", "", "InternalError");
    wire_rules::listings_are_read_page_by_page(
        pages,
        |seen| seen.line.contains("continuation-token=t1"),
        refusal,
        ["a b.lock", "c.lock"],
        async |url| at(url).list("").try_collect().await,
    )
    .await;
}

/// Starts an S3 server that ignores preconditions and accepts every write and every delete.
async fn careless() -> Server {
    let objects: Mutex<HashMap<String, (usize, String)>> = Mutex::default();
    Server::start(move |seen| {
        let mut objects = objects.lock().unwrap();
        let (method, target) = seen.line.split_once(' ').unwrap();
        let key = target.split('?').next().unwrap().to_owned();
        Reply::Answer(match method {
            "PUT" => {
                let n = objects.len() + objects.get(&key).map_or(0, |(n, _)| n + 1);
                objects.insert(key, (n, String::from_utf8(seen.body.clone()).unwrap()));
                answer("200 OK", &format!("ETag: \"{n}\"\r\n"), "")
            }
            "DELETE" => {
                objects.remove(&key);
                "HTTP/1.1 204 No Content\r\n\r\n".to_owned()
            }
            _ => match objects.get(&key) {
                Some((n, body)) => answer("200 OK", &format!("ETag: \"{n}\"\r\n"), body),
                None => refused("404 Not Found", "", "NoSuchKey"),
            },
        })
    })
    .await
}

#[tokio::test]
async fn a_store_ignoring_conditions_is_refused_and_no_lock_deleted() {
    let server = careless().await;
    let register = server.register();
    assert!(!register.capabilities().trusted);
    for _ in 0..2 {
        let error = probe(&register).await.unwrap_err();
        assert_eq!(error.fault().kind, ErrorKind::Unsupported, "{error:?}");
    }
    register.write("x.lock", Precondition::Absent, value().into()).await.unwrap();
    let error = probe_deletes(&register).await.unwrap_err();
    assert_eq!(error.fault().kind, ErrorKind::Unsupported, "{error:?}");
    assert!(register.read("x.lock").await.unwrap().is_some());
}

#[tokio::test]
async fn without_credentials_nothing_is_sent() {
    let server = Server::always("").await;
    let register = register(&server.url, no_credentials());
    let error = register.write("x.lock", Precondition::Absent, value().into()).await.unwrap_err();
    assert!(matches!(error, StoreError::NotApplied(_)), "{error:?}");
    assert_eq!(error.fault().kind, ErrorKind::Denied, "{error:?}");
    assert!(error.to_string().contains("no profile"), "{error:?}");
    assert!(error.fault().help.as_ref().unwrap().contains("no credentials found"), "{error:?}");
    assert!(server.requests().is_empty());
}

#[tokio::test]
async fn an_objects_metadata_is_written_and_read() {
    let headers = "ETag: \"d41d8-7\"\r\nContent-Type: text/plain\r\nCache-Control: no-cache\r\n\
                   Content-Encoding: gzip\r\nContent-Disposition: inline\r\nContent-Language: de\r\n\
                   x-amz-meta-owner: ann\r\nx-amz-meta-leasehold-token: 7\r\n";
    let server = Server::always(answer("200 OK", headers, "{\"a\":1}")).await;
    let register = S3Register { contents: Contents::Objects, ..server.register() };
    let cell = register.read("x").await.unwrap().unwrap();
    let Metadata { content_type, user, .. } = &cell.metadata;
    assert_eq!((content_type.as_deref(), user["owner"].as_str(), user.len()), (Some("text/plain"), "ann", 2));
    server.requests();
    let body = Body { bytes: value(), metadata: cell.metadata };
    register.write("x", Precondition::Version(&v1()), body).await.unwrap();
    let [put] = &server.requests()[..] else { panic!() };
    for line in headers.lines().filter(|line| !line.starts_with("ETag")) {
        assert!(put.has(&line.to_lowercase()), "{line}: {put:?}");
    }
    let head = answer("200 OK", &format!("{headers}x-amz-missing-meta: 1\r\n"), "");
    let error = Server::always(head).await.register().head("x").await.unwrap_err();
    assert_eq!(error.fault().kind, ErrorKind::Unsupported, "what cannot be read would be lost");
    let gone = Server::always(answer("404 Not Found", "", "")).await;
    assert_eq!(gone.register().head("x").await.unwrap(), None);
    assert_eq!(register.version_of(b"").unwrap().as_str(), "\"d41d8cd98f00b204e9800998ecf8427e\"");
}

#[tokio::test]
async fn an_object_may_be_larger_than_a_record_but_not_than_256_mib() {
    let large = "x".repeat(MAX_VALUE_BYTES + 1);
    let server = Server::always(answer("200 OK", "ETag: \"d41d8-7\"\r\n", &large)).await;
    let register = S3Register { contents: Contents::Objects, ..server.register() };
    let cell = register.read("x").await.unwrap().unwrap();
    assert_eq!(cell.value.len(), large.len());
    let body = Body { bytes: cell.value, metadata: cell.metadata };
    assert_eq!(register.write("x", Precondition::Absent, body).await.unwrap(), Write::Committed(v1()));
    let huge = format!("HTTP/1.1 200 OK\r\nETag: \"d41d8-7\"\r\nContent-Length: {}\r\n\r\n", 300 << 20);
    let register = S3Register { contents: Contents::Objects, ..Server::always(huge).await.register() };
    let error = register.read("x").await.unwrap_err();
    assert!(
        error.fault().kind == ErrorKind::Unsupported && error.to_string().contains("268435456"),
        "{error:?}"
    );
}

/// Each refusal of credentials, and the status with which S3 or a compatible store sends it.
const REFUSALS: [(&str, &str); 6] = [
    ("400 Bad Request", "ExpiredToken"),
    ("400 Bad Request", "TokenRefreshRequired"),
    ("400 Bad Request", "InvalidToken"),
    ("403 Forbidden", "InvalidAccessKeyId"),
    ("403 Forbidden", "SignatureDoesNotMatch"),
    ("403 Forbidden", "InvalidTokenId"),
];

#[tokio::test]
async fn credentials_that_are_replaced_in_their_file_are_read() {
    for (status, code) in REFUSALS {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("credentials");
        write_token(&file, "one");
        let valid = Arc::new(Mutex::new("one"));
        let accepted = valid.clone();
        let server = Server::start(move |seen| {
            let valid = seen.has(&format!("x-amz-security-token: {}", accepted.lock().unwrap()));
            Reply::Answer(if valid {
                answer("200 OK", "ETag: \"a\"\r\n", "")
            } else {
                refused(status, "", code)
            })
        })
        .await;
        let register = register(&server.url, in_file(&file));
        let write = || register.write("x.lock", Precondition::Absent, value().into());
        write().await.unwrap();
        *valid.lock().unwrap() = "two";
        // The new token comes late.
        for _ in 0..3 {
            let error = write().await.unwrap_err();
            assert!(matches!(error, StoreError::NotApplied(_)) && error.is_transient(), "{code}: {error:?}");
            assert!(error.to_string().contains(code) && error.fault().help.is_some(), "{error:?}");
        }
        write_token(&file, "two");
        write().await.unwrap();
    }
}

#[tokio::test]
async fn credentials_that_were_never_accepted_are_denied() {
    for (status, code) in REFUSALS {
        let server = Server::always(refused(status, "", code)).await;
        let register = server.register();
        for _ in 0..2 {
            let error = register.read("x.lock").await.unwrap_err();
            assert_eq!(error.fault().kind, ErrorKind::Denied, "{code}: {error:?}");
        }
    }
}
