//! Tests the store against a scripted server: the requests that it sends, and its results for every kind of response.
//!
//! These tests are inside the crate so that they can pass credentials. Tests cannot set environment variables.

mod probe;
mod table;

use std::sync::Mutex;

use futures_util::TryStreamExt;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use super::item::tests::record;
use super::*;
use crate::lease::{Claim, Holder, Id, Ttl};
use crate::stores::aws::config::careful;
use crate::stores::aws::credentials::StoreCredentials;
use crate::stores::aws::wire::{in_file, machine, no_credentials, test_credentials, write_token};
use crate::stores::over_http::scripted::{Reply, Seen, Server, answer};
use crate::stores::over_http::wire_rules::{self, Row};

const DATE: &str = "Date: Sun, 06 Nov 1994 08:49:37 GMT\r\n";

/// Returns a store that has already described its table.
fn store(endpoint: &str, credentials: StoreCredentials) -> DynamoDb {
    let store = opened("dynamodb://locks/pre/fix", Some(endpoint), credentials);
    store.key_name.set(item::KEY.to_owned()).unwrap();
    store
}

/// Opens the table of `url`, with a client that is created as usual.
fn opened(url: &str, endpoint: Option<&str>, credentials: StoreCredentials) -> DynamoDb {
    opened_in(Env::system(), url, endpoint, credentials)
}

fn opened_in(env: Env, url: &str, endpoint: Option<&str>, credentials: StoreCredentials) -> DynamoDb {
    let location = Location::from_url(StoreUrl::parse(url).unwrap(), &mut StoreOptions::default()).unwrap();
    let (sdk, network) = location.access.applied(&careful(&machine(), &credentials), None).unwrap();
    let client = Client::from_conf(connect::client_config(&sdk, endpoint).build());
    let endpoint = endpoint.map(str::to_owned);
    let target = Target { table: location.table.clone(), region: "eu-west-1".into(), endpoint };
    let requests = Requests::new(env, credentials, network);
    DynamoDb::new(client, requests, target, &location)
}

impl Server {
    fn store(&self) -> DynamoDb {
        at(&self.url)
    }
}

fn at(url: &str) -> DynamoDb {
    store(url, test_credentials())
}

async fn written_at(url: &str) -> StoreError {
    write(&at(url)).await.unwrap_err()
}

impl Seen {
    fn operation(&self) -> &str {
        let target = self.head.lines().find_map(|line| line.strip_prefix("x-amz-target: dynamodb_20120810."));
        target.unwrap()
    }

    fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap()
    }
}

fn ok(body: &Value) -> String {
    answer("200 OK", "Content-Type: application/x-amz-json-1.0\r\n", &body.to_string())
}

fn refused_with(status: &str, headers: &str, code: &str, more: &Value) -> String {
    let mut body = json!({"__type": format!("com.amazonaws.dynamodb.v20120810#{code}"), "message": "m"});
    for (name, value) in more.as_object().into_iter().flatten() {
        body[name] = value.clone();
    }
    answer(status, &format!("Content-Type: application/x-amz-json-1.0\r\n{headers}"), &body.to_string())
}

fn refused(status: &str, headers: &str, code: &str) -> String {
    refused_with(status, headers, code, &json!({}))
}

fn conflict(item: &Value) -> String {
    refused_with("400 Bad Request", "", "ConditionalCheckFailedException", item)
}

/// Returns an item of the Java client, in JSON.
fn java_item() -> Value {
    json!({
        "key": {"S": "pre/fix/x"}, "ownerName": {"S": "them"}, "leaseDuration": {"S": "20000"},
        "recordVersionNumber": {"S": "v1"},
    })
}

fn x() -> LockName {
    LockName::new("x").unwrap()
}

fn v1() -> Version {
    Version::new("v1")
}

async fn write(store: &DynamoDb) -> Result<Written, StoreError> {
    store.write(&x(), Precondition::Version(&v1()), None, &record()).await
}

#[tokio::test]
async fn every_operation_is_one_request_with_the_documented_condition() {
    let server = Server::start(|seen| {
        Reply::Answer(ok(&match seen.operation() {
            "getitem" => json!({"Item": java_item()}),
            "scan" => json!({"Items": []}),
            _ => json!({}),
        }))
    })
    .await;
    let store = server.store();

    let found = store.read(&x()).await.unwrap().unwrap();
    assert_eq!(found.version, v1());
    let [get] = &server.requests()[..] else { panic!() };
    assert!(get.head.contains("authorization: aws4-hmac-sha256"), "{get:?}");
    let read = json!({"TableName": "locks", "Key": {"key": {"S": "pre/fix/x"}}, "ConsistentRead": true});
    assert_eq!((get.operation(), get.json()), ("getitem", read));

    store.write(&x(), Precondition::Absent, None, &record()).await.unwrap();
    let [create] = &server.requests()[..] else { panic!() };
    assert_eq!(create.operation(), "updateitem", "a PutItem would wipe what others keep in the item");
    assert_eq!(create.json()["ConditionExpression"], "attribute_not_exists(#key)");
    assert_eq!(create.json()["ReturnValuesOnConditionCheckFailure"], "ALL_OLD");
    assert_eq!(create.json()["ExpressionAttributeNames"]["#key"], "key");

    let Written::Committed { version, .. } = write(&store).await.unwrap() else { panic!() };
    assert_eq!(version, item::version_of(&record()));
    let [replace] = &server.requests()[..] else { panic!() };
    assert_eq!(replace.json()["ConditionExpression"], "#recordVersionNumber = :seenVersion");
    assert_eq!(replace.json()["ExpressionAttributeValues"][":seenVersion"], json!({"S": "v1"}));
    let update = replace.json()["UpdateExpression"].as_str().unwrap().to_owned();
    let (set, remove) = update.split_once(" REMOVE ").unwrap();
    assert!(set.contains("#fencingToken = :fencingToken"), "{set}");
    assert_eq!(remove, "#isReleased, #lastSeen, #awaited, #served", "held: not released");

    assert!(store.stamp(&x(), &v1(), 7).await.unwrap());
    let [stamp] = &server.requests()[..] else { panic!() };
    assert_eq!(stamp.json()["UpdateExpression"], "SET #lastSeen = :lastSeen");
    assert_eq!(stamp.json()["ConditionExpression"], "#recordVersionNumber = :seenVersion");

    assert_eq!(store.list("a b").try_collect::<Vec<_>>().await.unwrap(), Vec::<LockName>::new());
    let [list] = &server.requests()[..] else { panic!() };
    assert_eq!(list.json()["ConsistentRead"], true);
    assert_eq!(list.json()["ExpressionAttributeValues"], json!({":prefix": {"S": "pre/fix/a b"}}));
}

/// The history is half of an item, and most writes do not change it.
#[tokio::test]
async fn an_unchanged_history_is_not_sent_again() {
    let server = Server::always(ok(&json!({}))).await;
    let store = server.store();
    let before = record();
    let mut longer = Record { nonce: Id::random(&Env::system().random), ..before.clone() };
    longer.remember(before.history[0].clone());
    let none = Record { history: Vec::new(), ..longer.clone() };
    let ours = item::version_of(&before);
    for (version, seen, written, sets, removes) in [
        (&ours, Some(&before), &before, false, false),
        (&ours, Some(&before), &longer, true, false),
        (&ours, Some(&before), &none, false, true),
        (&ours, None, &before, true, false),
        // Another client's version: that client may have kept old attributes of leasehold.
        (&v1(), Some(&before), &before, true, false),
    ] {
        let done = store.write(&x(), Precondition::Version(version), seen, written).await.unwrap();
        let Written::Committed { record, .. } = done else { panic!("{done:?}") };
        assert_eq!(record.history, written.history);
        let [write] = &server.requests()[..] else { panic!() };
        let update = write.json()["UpdateExpression"].as_str().unwrap().to_owned();
        let (set, remove) = update.split_once(" REMOVE ").unwrap();
        assert_eq!((set.contains("#history"), remove.contains("#history")), (sets, removes), "{update}");
    }
}

#[tokio::test]
async fn a_claim_raises_the_token_and_reads_the_record_in_one_request() {
    let granted = Record { token: crate::Token::new(8).unwrap(), ..record() };
    let attributes: serde_json::Map<String, Value> =
        item::tests::item(&granted).into_iter().map(|(name, value)| (name, wire(&value))).collect();
    let server = Server::always(ok(&json!({"Attributes": attributes}))).await;
    let Written::Committed { record: written, .. } =
        server.store().claim(&x(), &record(), 1, false).await.unwrap()
    else {
        panic!()
    };
    assert_eq!(*written, granted, "with the stored token and history");
    let [claim] = &server.requests()[..] else { panic!() };
    let claim = claim.json();
    assert_eq!(
        claim["ConditionExpression"],
        "#isReleased = :released AND #leasehold.#version = #recordVersionNumber AND #leasehold.#format = :format \
         AND attribute_not_exists(#leasehold.#unconfirmed) AND #fencingToken < :lastToken \
         AND #leasehold.#grant <> :grant AND attribute_not_exists(#awaited)"
    );
    let update = claim["UpdateExpression"].as_str().unwrap();
    assert!(
        update.contains("#fencingToken = #fencingToken + :one") && !update.contains("#history"),
        "{update}"
    );
    assert_eq!(
        (&claim["ReturnValues"], &claim["ReturnValuesOnConditionCheckFailure"]),
        (&json!("ALL_NEW"), &json!("ALL_OLD"))
    );

    for useless in [json!({}), json!({"Attributes": {}}), json!({"Attributes": {"ownerName": {"N": "1"}}})] {
        let server = Server::always(ok(&useless)).await;
        let error = server.store().claim(&x(), &record(), 1, false).await.unwrap_err();
        assert!(matches!(error, StoreError::MaybeApplied(_)), "it was granted: {error:?}");
    }
}

fn wire(value: &aws_sdk_dynamodb::types::AttributeValue) -> Value {
    use aws_sdk_dynamodb::types::AttributeValue::{Bool, L, M, N, S};
    match value {
        S(text) => json!({"S": text}),
        N(number) => json!({"N": number}),
        Bool(yes) => json!({"BOOL": yes}),
        L(list) => json!({"L": list.iter().map(wire).collect::<Vec<_>>()}),
        M(map) => {
            let map: serde_json::Map<_, _> =
                map.iter().map(|(name, value)| (name.clone(), wire(value))).collect();
            json!({"M": map})
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_conflict_returns_the_stored_item() {
    let there = Server::always(conflict(&json!({"Item": java_item()}))).await;
    for result in [write(&there.store()).await, there.store().claim(&x(), &record(), 1, false).await] {
        let Ok(Written::Conflict(Refusal::Found(found))) = result else { panic!("{result:?}") };
        assert_eq!(found.version, v1());
    }
    let nothing = Server::always(conflict(&json!({}))).await;
    // A create follows, which the server refuses if there is an item after all.
    let result = nothing.store().claim(&x(), &record(), 1, false).await;
    assert!(matches!(result, Ok(Written::Conflict(Refusal::Absent))), "{result:?}");
    // A refusal without an item does not prove that there is none, because not every server returns the item. Otherwise
    // a holder's request would report a deleted record, although the item exists.
    let result = write(&nothing.store()).await;
    assert!(matches!(result, Ok(Written::Conflict(Refusal::Unexplained))), "{result:?}");
    let result = nothing.store().write(&x(), Precondition::Absent, None, &record()).await;
    assert!(matches!(result, Ok(Written::Conflict(Refusal::Unexplained))), "{result:?}");
    assert!(!nothing.store().stamp(&x(), &v1(), 7).await.unwrap());
}

/// The first token of a lock takes one request. Then the item of its line has one.
#[tokio::test]
async fn a_next_token_replaces_the_one_that_was_seen() {
    // AWS's clients delete items and drop tokens, so the driver must ask for it.
    assert!(at("http://127.0.0.1:1").others_delete());
    let there = json!({"fencingToken": {"N": "4000000000000000"}, "renewedAt": {"N": "784111777000000"}});
    for (refusals, tokens) in [(0, Some(784_111_778)), (1, Some(4_000_000_000)), (2, None)] {
        let there = there.clone();
        let server = Server::start(move |seen| {
            let Some(condition) = seen.json()["ConditionExpression"].as_str().map(str::to_owned) else {
                let headers = format!("{DATE}Content-Type: application/x-amz-json-1.0\r\n");
                return Reply::Answer(answer("200 OK", &headers, "{}"));
            };
            let first = condition == "attribute_not_exists(#fencingToken)";
            assert!(first || condition == "#fencingToken = :seenToken", "{condition}");
            let update = seen.json()["UpdateExpression"].as_str().unwrap().to_owned();
            assert!(update.contains("#line = if_not_exists(#line, :line)"), "{update}");
            assert_eq!(seen.json()["Key"]["key"]["S"], "pre/fix/x//line");
            let is_refused = refusals == 2 || refusals == 1 && first;
            Reply::Answer(if is_refused { conflict(&json!({"Item": there})) } else { ok(&json!({})) })
        })
        .await;
        let store = server.store();
        store.read(&x()).await.unwrap(); // The response contains the time.
        let next = store.next_token(&x()).await;
        match tokens {
            Some(seconds) => assert_eq!(next.unwrap().unwrap() / 1_000_000, seconds),
            None => assert!(next.unwrap_err().to_string().contains("kept changing")),
        }
    }
}

#[tokio::test]
async fn no_error_is_retried_inside_the_client() {
    let rows: &[Row] = &[
        ("400 X", "", "ProvisionedThroughputExceededException", false, ErrorKind::Unavailable, None),
        ("400 X", "Retry-After: 7\r\n", "ThrottlingException", false, ErrorKind::Unavailable, Some(7)),
        ("400 X", "", "RequestLimitExceeded", false, ErrorKind::Unavailable, None),
        ("400 X", "", "TransactionConflictException", false, ErrorKind::Unavailable, None),
        ("500 X", "", "InternalServerError", true, ErrorKind::Unavailable, None),
        ("503 X", "", "ServiceUnavailable", true, ErrorKind::Unavailable, None),
        ("400 X", "", "AccessDeniedException", false, ErrorKind::Denied, None),
        ("400 X", "", "ResourceNotFoundException", false, ErrorKind::Invalid, None),
    ];
    let claimed = async |url: &str| at(url).claim(&x(), &record(), 1, false).await.unwrap_err();
    wire_rules::no_error_is_retried_inside_the_client(refused, rows, written_at).await;
    wire_rules::no_error_is_retried_inside_the_client(refused, rows, claimed).await;
}

#[tokio::test]
async fn only_a_write_that_was_sent_can_have_an_unknown_effect() {
    let read = async |url: &str| at(url).read(&x()).await.unwrap_err();
    wire_rules::only_a_write_that_was_sent_can_have_an_unknown_effect(written_at, read).await;
}

#[tokio::test]
async fn only_responses_of_the_store_show_its_time() {
    let id = "x-amzn-RequestId: U4QDJ0MSNLR4LGHIHNVQKKHSK3VV4KQNSO5AEMVJF66Q9ASUAAJG\r\n";
    let dated = |body: String| body.replacen("\r\n", &format!("\r\n{DATE}{id}"), 1);
    let page = |status: &str, headers: &str| {
        answer(status, &format!("{DATE}Content-Type: text/html\r\n{headers}"), "<html>Bad Gateway</html>")
    };
    let json = "Content-Type: application/json\r\n";
    let rows = [
        (dated(ok(&json!({}))), true),
        (dated(conflict(&json!({}))), true),
        (dated(refused("500 X", "", "InternalServerError")), true),
        (page("502 Bad Gateway", ""), false),
        (page("502 Bad Gateway", id), false),
        (page("503 Service Unavailable", ""), false),
        (page("200 OK", ""), false),
        (answer("503 X", &format!("{DATE}{json}"), "{\"code\":\"busy\"}"), false),
        (ok(&json!({})), false),
    ];
    wire_rules::only_responses_of_the_store_show_its_time(rows, async |url| {
        let store = at(url);
        let before = store.store_time();
        drop(write(&store).await);
        [before, store.store_time()]
    })
    .await;
}

#[tokio::test]
async fn signatures_follow_the_stores_clock_once_it_has_refused_ours() {
    let server = Server::always(refused("400 X", DATE, "InvalidSignatureException")).await;
    let store = server.store();
    let error = write(&store).await.unwrap_err();
    assert!(matches!(error, StoreError::NotApplied(_)) && error.is_transient(), "{error:?}");
    assert!(error.fault().help.as_ref().unwrap().contains("clock"), "{error:?}");
    drop(store.read(&x()).await);
    let [first, second] = &server.requests()[..] else { panic!() };
    assert!(
        !first.head.contains("x-amz-date: 1994") && second.head.contains("x-amz-date: 19941106t"),
        "{second:?}"
    );
}

#[tokio::test]
async fn responses_not_from_dynamodb_do_not_mean_an_absent_lock() {
    for (reply, kind) in [
        (answer("404 Not Found", "", "<html>nginx</html>"), ErrorKind::Invalid),
        (answer("403 Forbidden", "", "<html>proxy"), ErrorKind::Denied),
        (answer("502 Bad Gateway", "", "\u{0}\u{1}garbage"), ErrorKind::Unavailable),
        (answer("200 OK", "", "not JSON"), ErrorKind::Unavailable),
        ("garbage\r\n\r\n".to_owned(), ErrorKind::Unavailable),
    ] {
        let error = Server::always(reply.clone()).await.store().read(&x()).await.unwrap_err();
        assert_eq!(error.fault().kind, kind, "{reply}: {error:?}");
    }
    let nothing = Server::always(ok(&json!({}))).await;
    assert!(nothing.store().read(&x()).await.unwrap().is_none());
}

/// The token of another client's item is unreliable, and without a `Date` there is no other source of tokens.
#[tokio::test]
async fn without_the_stores_time_another_clients_item_is_not_taken() {
    let mut free = java_item();
    free["isReleased"] = json!({"S": "1"});
    let server = Server::start(move |seen| {
        // The server accepts every write that is not a claim.
        let careless = seen.json()["ExpressionAttributeValues"].get(":ownerName").is_some()
            && seen.json()["ConditionExpression"] == "#recordVersionNumber = :seenVersion";
        Reply::Answer(if careless { ok(&json!({})) } else { conflict(&json!({"Item": free})) })
    })
    .await;
    let store = server.store();
    store.probed.pass();
    let leases = RegisterLeases::on(Arc::new(store), StoreOptions::default());
    let claim = Claim::new(leases.env(), x(), Ttl::DEFAULT, Holder::default());
    let error = leases.try_acquire(&claim).await.unwrap_err();
    assert_eq!(error.fault().kind, ErrorKind::Unsupported, "{error:?}");
    assert!(error.to_string().contains("has shown no time"), "{error:?}");
}

#[tokio::test]
async fn an_item_that_cannot_be_read_is_an_error_that_names_it() {
    let mut go = java_item();
    go["leaseDuration"]["S"] = json!("20s");
    let server = Server::always(ok(&json!({"Item": go}))).await;
    let error = server.store().read(&x()).await.unwrap_err();
    assert!(error.to_string().contains("dynamodb://locks/pre/fix/x") && !error.is_transient(), "{error:?}");
    let server = Server::always(conflict(&json!({"Item": go}))).await;
    let error = write(&server.store()).await.unwrap_err();
    assert!(matches!(error, StoreError::NotApplied(_)), "refused, whatever is there: {error:?}");
}

#[tokio::test]
async fn listings_are_read_page_by_page() {
    let keys = |keys: &[&str]| keys.iter().map(|key| json!({"key": {"S": key}})).collect::<Vec<_>>();
    let last = json!({"key": {"S": "pre/fix/a"}});
    let first = json!({"Items": keys(&["pre/fix/a", "pre/fix/no//lock"]), "LastEvaluatedKey": last});
    let second = json!({"Items": keys(&["pre/fix/b/c"])});
    let refusal = refused("400 Bad Request", "", "ProvisionedThroughputExceededException");
    wire_rules::listings_are_read_page_by_page(
        [ok(&first), ok(&second)],
        |seen| seen.json().get("ExclusiveStartKey").is_some(),
        refusal,
        ["a", "b/c"],
        async |url| at(url).list("").map_ok(|name| name.to_string()).try_collect().await,
    )
    .await;
}

#[tokio::test]
async fn without_credentials_nothing_is_sent() {
    let server = Server::always("").await;
    let error = write(&store(&server.url, no_credentials())).await.unwrap_err();
    assert!(matches!(error, StoreError::NotApplied(_)), "{error:?}");
    assert_eq!(error.fault().kind, ErrorKind::Denied, "{error:?}");
    assert!(error.to_string().contains("no profile"), "{error:?}");
    assert!(error.fault().help.as_ref().unwrap().contains("no credentials found"), "{error:?}");
    assert!(server.requests().is_empty());
}

#[tokio::test]
async fn credentials_are_never_shown() {
    let server = Server::always(refused("400 X", "", "InvalidSignatureException")).await;
    let store = server.store();
    let error = write(&store).await.unwrap_err();
    // The secret of `test_credentials`.
    for shown in [format!("{store:?}"), format!("{error:?}"), error.to_string()] {
        assert!(!shown.contains("\"secret\"") && !shown.contains("AWS4-HMAC"), "{shown}");
    }
}

#[tokio::test]
async fn a_private_authority_is_trusted_only_with_its_ca_file() {
    let (folder, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let [authority, wrong] = [&folder, &other].map(|folder| folder.path().join("ca.pem"));
    let server = Server::start_tls(folder.path(), |_| Reply::Answer(ok(&json!({"Item": java_item()})))).await;
    let _other = Server::start_tls(other.path(), |_| Reply::Hang).await;
    let trusting = |authority: &std::path::Path| {
        let url = format!("dynamodb://locks/pre/fix?ca={}", authority.display());
        let store = opened(&url, Some(&server.url), test_credentials());
        store.key_name.set(item::KEY.to_owned()).unwrap();
        store
    };
    trusting(&authority).read(&x()).await.unwrap().unwrap();
    assert_eq!(server.requests().len(), 1);
    let error = write(&trusting(&wrong)).await.unwrap_err();
    assert!(matches!(error, StoreError::NotApplied(_)) && error.is_transient(), "{error:?}");
    assert!(error.to_string().contains(&format!("{wrong:?}")), "{error:?}");
    assert!(server.requests().is_empty(), "nothing is sent to an untrusted server");
}

#[tokio::test]
async fn credentials_that_are_replaced_in_their_file_are_read() {
    for code in ["ExpiredTokenException", "UnrecognizedClientException", "InvalidSignatureException"] {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("credentials");
        write_token(&file, "one");
        let valid = std::sync::Arc::new(Mutex::new("one"));
        let accepted = valid.clone();
        let server = Server::start(move |seen| {
            let valid = seen.has(&format!("x-amz-security-token: {}", accepted.lock().unwrap()));
            Reply::Answer(if valid { ok(&json!({})) } else { refused("400 Bad Request", "", code) })
        })
        .await;
        let store = store(&server.url, in_file(&file));
        write(&store).await.unwrap();
        *valid.lock().unwrap() = "two";
        // The new token comes late.
        for _ in 0..3 {
            let error = write(&store).await.unwrap_err();
            assert!(matches!(error, StoreError::NotApplied(_)) && error.is_transient(), "{code}: {error:?}");
            assert!(error.to_string().contains(code) && error.fault().help.is_some(), "{error:?}");
        }
        write_token(&file, "two");
        write(&store).await.unwrap();
    }
}

#[tokio::test]
async fn a_ca_file_that_is_replaced_is_read_again() {
    let (folder, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let script = |_: &Seen| Reply::Answer(ok(&json!({"Item": java_item()})));
    let server = Server::start_tls(folder.path(), script).await;
    let _other = Server::start_tls(other.path(), |_| Reply::Hang).await;
    let ca = folder.path().join("trusted.pem");
    std::fs::copy(other.path().join("ca.pem"), &ca).unwrap();
    let url = format!("dynamodb://locks/pre/fix?ca={}", ca.display());
    let store = opened(&url, Some(&server.url), test_credentials());
    store.key_name.set(item::KEY.to_owned()).unwrap();
    assert!(store.read(&x()).await.unwrap_err().to_string().contains("invalid peer certificate"));
    std::fs::copy(folder.path().join("ca.pem"), &ca).unwrap();
    drop(store.read(&x()).await);
    store.read(&x()).await.unwrap();
}

/// The table is described before the first write, within the time that the caller sets.
#[tokio::test(start_paused = true)]
async fn a_claim_on_a_dead_port_takes_the_time_that_it_has() {
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    for limit in [2, 25] {
        let endpoint = format!("http://{closed}");
        let env = Env::seeded(std::sync::Arc::new(crate::clock::TestClock::default()), 7);
        let store = opened_in(env.clone(), "dynamodb://locks", Some(&endpoint), test_credentials());
        let leases = RegisterLeases::on(std::sync::Arc::new(store), StoreOptions::default());
        let name = LockName::new("x").unwrap();
        let mut claim = Claim::new(&env, name, Ttl::DEFAULT, Holder::default());
        claim.store_timeout = Duration::from_secs(limit);
        let began = env.now();
        let error = leases.try_acquire(&claim).await.unwrap_err();
        let (took, limit) = (env.now().shortest_since(began), claim.store_timeout);
        assert!(took <= limit && took >= limit.saturating_sub(Duration::from_secs(3)), "{limit:?}: {took:?}");
        assert!(error.to_string().contains("refused"), "{error:?}");
    }
}

#[tokio::test]
async fn a_response_of_another_server_is_recognised() {
    let page = || answer("200 OK", "Content-Type: text/html\r\n", "<!DOCTYPE html><title>hunter2</title>");
    let login =
        "HTTP/1.1 302 Found\r\nLocation: https://login.example/?token=hunter2\r\nContent-Length: 0\r\n\r\n";
    let go = answer("400 Bad Request", "", "Client sent an HTTP request to an HTTPS server.\n");
    for (reply, named, help) in [
        (page(), "web page", "login page"),
        (login.to_owned(), "redirects to https://login.example/", "login page"),
        (go, "expects TLS", "https://"),
    ] {
        let error = Server::always(reply).await.store().read(&x()).await.unwrap_err();
        let told = error.fault().help.clone().unwrap_or_default();
        assert!(error.to_string().contains(named) && told.contains(help), "{error:?}");
        assert!(!format!("{error:?}").contains("hunter2"), "{error:?}");
    }
}
