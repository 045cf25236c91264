//! The DynamoDB in memory answers like DynamoDB Local.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt;
use leasehold::clock::{Clock, SystemClock};
use leasehold::lease::{Id, StoreOptions};
use leasehold::random::Random;
use leasehold::stores::dynamodb::simulated;
use leasehold::url::StoreUrl;
use leasehold::{LockName, Locker};
use leasehold_testkit::fakes::dynamodb::FakeDynamoDb;
use leasehold_testkit::servers::Server;
use serde_json::{Value, json};

/// Both servers. Each request goes to both.
struct Both {
    fake: FakeDynamoDb,
    address: String,
    table: String,
    /// The operations, and the codes of errors, of all requests.
    seen: Mutex<Vec<String>>,
}

impl Both {
    fn start() -> Arc<Self> {
        let server = Server::DYNAMODB_LOCAL;
        let table = StoreUrl::parse(&server.url()).unwrap().authority().unwrap().to_owned();
        let (fake, address) = (FakeDynamoDb::new(|_, _, _| {}), server.address());
        Arc::new(Self { fake, address, table, seen: Mutex::default() })
    }

    /// Returns the response of the fake. That of DynamoDB Local must be the same.
    fn answer(&self, operation: &str, mut request: Value) -> (u16, Value) {
        request["TableName"] = json!(self.table);
        let (answer, mut real) = (self.fake.answer(operation, &request), self.real(operation, &request));
        let code =
            |body: &Value| body["__type"].as_str().map(|kind| kind.rsplit('#').next().unwrap().to_owned());
        let (status, body) = (answer.0, &answer.1);
        assert_eq!(
            (status, code(body)),
            (real.0, code(&real.1)),
            "{operation} {request}: {real:?}, not {body}"
        );
        if operation != "DescribeTable" {
            for part in ["Item", "Attributes"] {
                assert_eq!(body[part], real.1[part].take(), "{operation} {request}");
            }
        }
        let code = code(body).unwrap_or_default();
        self.seen.lock().unwrap().push(format!("{operation} {code}").trim().to_owned());
        answer
    }

    fn real(&self, operation: &str, request: &Value) -> (u16, Value) {
        let body = request.to_string();
        let mut connection = TcpStream::connect(&self.address).unwrap();
        let head = format!(
            "POST / HTTP/1.1\r\nHost: {}\r\nConnection: close\r\nContent-Length: {}\r\n\
             Content-Type: application/x-amz-json-1.0\r\nX-Amz-Target: DynamoDB_20120810.{operation}\r\n\
             Authorization: AWS4-HMAC-SHA256 Credential=id/20260101/us-east-1/dynamodb/aws4_request, \
             SignedHeaders=host, Signature=0\r\n\r\n",
            self.address,
            body.len()
        );
        connection.write_all(head.as_bytes()).unwrap();
        connection.write_all(body.as_bytes()).unwrap();
        let mut answer = String::new();
        connection.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head[9..12].parse().unwrap(), serde_json::from_str(body).unwrap())
    }

    /// Returns a process whose requests go to both servers.
    fn locker(self: &Arc<Self>) -> Locker {
        let both = self.clone();
        let carry = move |operation: String, body: bytes::Bytes| {
            let (status, body) = both.answer(&operation, serde_json::from_slice(&body).unwrap());
            let kind = ("content-type".to_owned(), "application/x-amz-json-1.0".to_owned());
            let date = ("date".to_owned(), "Sun, 06 Nov 1994 08:49:37 GMT".to_owned());
            async move { Some((status, vec![kind, date], body.to_string().into_bytes())) }.boxed()
        };
        let leases = simulated::leases(Arc::new(carry), StoreOptions::default()).unwrap();
        Locker::new(Arc::new(leases))
    }
}

fn unique() -> String {
    Id::random(&Random::from_os()).to_string()
}

/// The requests of the store itself: grants, refusals, renewals, waiters, releases, another client's item.
#[tokio::test]
async fn the_fake_answers_the_stores_requests_like_dynamodb_local() {
    let (both, name) = (Both::start(), unique());
    let (one, two) = (both.locker(), both.locker());
    for _ in 0..2 {
        let guard = one.lock(&name).acquire().await.unwrap();
        assert!(two.lock(&name).try_acquire().await.is_err());
        let waiter = two.clone();
        let waits = name.clone();
        let waiter = tokio::spawn(async move { waiter.lock(&waits).acquire().await });
        while both
            .fake
            .item(&format!("{name}//line"))
            .is_none_or(|line| !line["line"].to_string().contains("polls_ms"))
        {
            SystemClock.sleep(Duration::from_millis(10)).await;
        }
        let ticket = guard.into_ticket().await.unwrap();
        one.renew(&ticket).await.unwrap();
        one.release(&ticket).await.unwrap();
        waiter.await.unwrap().unwrap().release().await.unwrap();
    }
    let theirs = json!({
        "key": {"S": name}, "ownerName": {"S": "them"}, "leaseDuration": {"S": "60000"},
        "recordVersionNumber": {"S": "v1"}, "data": {"S": "kept"},
    });
    both.answer("PutItem", json!({"Item": theirs}));
    assert!(two.lock(&name).try_acquire().await.is_err());
    both.answer("DeleteItem", json!({"Key": {"key": {"S": name}}}));
    one.lock(&name).acquire().await.unwrap().release().await.unwrap();
    let status = one.inspect(&LockName::new(&name).unwrap()).await.unwrap();
    assert!(status.state.holder().is_none(), "{status:?}");
    let seen = both.seen.lock().unwrap();
    for expected in
        ["DescribeTable", "GetItem", "UpdateItem", "UpdateItem ConditionalCheckFailedException", "DeleteItem"]
    {
        assert!(seen.iter().any(|seen| seen == expected), "{expected} is missing: {seen:?}");
    }
}

#[test]
fn the_fake_evaluates_expressions_like_dynamodb_local() {
    let (both, name) = (Both::start(), unique());
    let key = json!({"key": {"S": name}});
    let item = json!({
        "key": {"S": name}, "n": {"N": "10"}, "s": {"S": "b"}, "yes": {"BOOL": true},
        "m": {"M": {"inner": {"S": "b"}, "deep": {"M": {"n": {"N": "2"}}}}}, "l": {"L": [{"N": "1"}]},
    });
    let values = json!({
        ":n": {"N": "10"}, ":more": {"N": "11"}, ":s": {"S": "b"}, ":t": {"S": "c"}, ":yes": {"BOOL": true},
        ":l": {"L": [{"N": "1"}]}, ":two": {"N": "2"},
    });
    let names = json!({"#n": "n", "#s": "s", "#m": "m", "#inner": "inner", "#key": "key", "#none": "none", "#gone": "gone"});
    // Only what an expression uses may be defined.
    let used = |all: &Value, text: &str| {
        let is_word = |c: char| c.is_ascii_alphanumeric() || "#:_".contains(c);
        let words: Vec<_> = text.split(|c| !is_word(c)).collect();
        let all = all.as_object().unwrap().clone().into_iter();
        let used: serde_json::Map<_, _> = all.filter(|(name, _)| words.contains(&&**name)).collect();
        if used.is_empty() { Value::Null } else { used.into() }
    };
    let send = |operation: &str, update: Option<&str>, condition: Option<&str>| {
        let text = format!("{} {}", update.unwrap_or(""), condition.unwrap_or(""));
        let mut request = json!({
            "Key": key, "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
            "ReturnValues": if operation == "UpdateItem" { "ALL_NEW" } else { "ALL_OLD" },
        });
        for (part, text) in [("UpdateExpression", update), ("ConditionExpression", condition)] {
            if let Some(text) = text {
                request[part] = json!(text);
            }
        }
        for (part, all) in [("ExpressionAttributeNames", &names), ("ExpressionAttributeValues", &values)] {
            if !used(all, &text).is_null() {
                request[part] = used(all, &text);
            }
        }
        both.answer(operation, request)
    };
    for there in [true, false] {
        for condition in [
            "attribute_exists(#key)",
            "attribute_not_exists(#key)",
            "attribute_not_exists(#m.#inner) OR #n = :n",
            "NOT #n = :n AND #s = :s",
            "NOT (#n = :n AND #s = :t)",
            "#n = :n AND #s = :t OR #s = :s",
            "#n = :n AND (#s = :t OR #s = :s)",
            "#n < :more",
            "#n <= :n AND #n >= :n",
            "#n > :n",
            "#s < :t",
            "#s < :n",
            "#n <> :s",
            "#none <> :n",
            "#none = :n",
            "#none < :n",
            "#m.#inner = #s",
            "#m.#inner <> #s",
            "#none = #gone",
            "#none <> #gone",
            "m.deep.n = :two",
            "yes = :yes AND l = :l",
            "#n.#inner = :n",
            "(#n = :n",
            "#n = ",
            "#undefined = :n",
            "#n = :undefined",
        ] {
            if there {
                both.answer("PutItem", json!({ "Item": item }));
            } else {
                both.answer("DeleteItem", json!({ "Key": key }));
            }
            send("UpdateItem", Some("SET extra = :s"), Some(condition));
            send("DeleteItem", None, Some(condition));
        }
        for update in [
            "SET #n = #n + :two",
            "SET #n = :two - #n, #s = #n REMOVE yes, l",
            "SET #none = if_not_exists(#none, :s), #s = if_not_exists(#s, :t)",
            "SET extra = if_not_exists(#none, :n) + :two",
            "SET extra = #m.#inner",
            "REMOVE #none",
            "SET #none = #gone",
            "SET #n = #s + :two",
            "SET #n = :n REMOVE #n",
            "SET #key = :s",
            "SET #n = ",
            "#n = :n",
        ] {
            both.answer(if there { "PutItem" } else { "DeleteItem" }, json!({ "Item": item, "Key": key }));
            send("UpdateItem", Some(update), None);
        }
    }
    both.answer("GetItem", json!({"Key": key, "ConsistentRead": true}));
    both.answer("GetItem", json!({"Key": {"key": {"S": ""}}, "ConsistentRead": true}));
    let unused = json!({"Key": key, "UpdateExpression": "REMOVE a", "ExpressionAttributeNames": {"#b": "b"}});
    both.answer("UpdateItem", unused);
    let empty = json!({"Key": key, "UpdateExpression": "REMOVE a", "ExpressionAttributeValues": {}});
    both.answer("UpdateItem", empty);
    let long = format!("REMOVE {}", "a".repeat(4_096));
    both.answer("UpdateItem", json!({"Key": key, "UpdateExpression": long}));
}
