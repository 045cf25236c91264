//! The NATS server in memory answers like the real one.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::TryStreamExt;
use futures_util::stream::{self, BoxStream, StreamExt};
use http::{HeaderMap, HeaderName};
use leasehold::clock::{Clock, SystemClock};
use leasehold::env::Env;
use leasehold::lease::StoreOptions;
use leasehold::stores::nats::simulated::{self, Carrier, RequestErrorKind};
use leasehold::{LockName, Locker};
use leasehold_testkit::fakes::nats::{EXPECTED, FakeNats};
use leasehold_testkit::stores;
use leasehold_testkit::stores::nats::{ask, from_base64, subject};
use serde_json::{Value, json};

/// A sequence that no message has.
const NONE: &str = "9000000000000000";

/// What both servers say with the same words.
const COMPARED: [&str; 10] = [
    "/error/code",
    "/error/err_code",
    "/stream",
    "/message/subject",
    "/message/data",
    "/total",
    "/state/subjects",
    "/config/name",
    "/config/retention",
    "/config/max_msgs_per_subject",
];

/// Both servers. Each request goes to both.
#[derive(Debug)]
struct Both {
    fake: FakeNats,
    url: String,
    /// The real server's sequences, by the fake's.
    sequences: Mutex<HashMap<String, String>>,
    /// Both servers get the requests in the same order.
    turn: tokio::sync::Mutex<()>,
    /// The kind of each request, and the error in its response.
    seen: Mutex<Vec<String>>,
}

impl Both {
    fn on(url: &str) -> Arc<Self> {
        let fake = FakeNats::new(Env::system(), |_, _, _| {});
        let sequences = Mutex::new(HashMap::from([("0".to_owned(), "0".to_owned())]));
        let (turn, seen) = Default::default();
        Arc::new(Self { fake, url: url.to_owned(), sequences, turn, seen })
    }

    /// Returns the response of the fake. That of the real server must be the same.
    async fn answer(&self, subject: &str, headers: &[(&str, &str)], payload: &str) -> Value {
        let _turn = self.turn.lock().await;
        let (mut map, mut text) = (HeaderMap::new(), String::new());
        for (name, value) in headers {
            map.insert(name.parse::<HeaderName>().unwrap(), value.parse().unwrap());
            let known = self.sequences.lock().unwrap().get(*value).cloned().unwrap_or(NONE.to_owned());
            text += &format!("{name}: {}\r\n", if *name == EXPECTED { &*known } else { *value });
        }
        let fake = self.fake.response(subject, &map, &payload.to_owned().into());
        let real: Value = serde_json::from_str(&ask(&self.url, subject, &text, payload).await).unwrap();
        for pointer in COMPARED {
            // One of them leaves out what is empty.
            let is_empty = |part: &Value| *part == json!({}) || *part == 0;
            let part = |of: &Value| of.pointer(pointer).filter(|part| !is_empty(part)).cloned();
            assert_eq!(part(&fake), part(&real), "{pointer} in the response to {subject} {text} {payload}");
        }
        assert_eq!(marks(&fake), marks(&real), "{subject}");
        for pointer in ["/seq", "/message/seq"] {
            let sequence = |of: &Value| of.pointer(pointer).map(Value::to_string);
            let (fake, real) = (sequence(&fake), sequence(&real));
            assert_eq!(fake.is_some(), real.is_some(), "{subject}");
            if let (Some(fake), Some(real)) = (fake, real) {
                let known = self.sequences.lock().unwrap().insert(fake, real.clone());
                assert_eq!(known.unwrap_or(real.clone()), real, "{subject}");
            }
        }
        let kind = ["STREAM.INFO", "STREAM.MSG.GET"].into_iter().find(|kind| subject.contains(kind));
        let error = fake["error"]["err_code"].to_string().replace("null", "");
        self.seen.lock().unwrap().push(format!("{} {error}", kind.unwrap_or("write")).trim().to_owned());
        fake
    }
}

/// Returns the headers of the message in a response, without the expected sequence.
fn marks(answer: &Value) -> Vec<String> {
    let headers = from_base64(answer["message"]["hdrs"].as_str().unwrap_or_default());
    let headers = String::from_utf8(headers).unwrap();
    headers.lines().filter(|line| !line.starts_with(EXPECTED)).map(str::to_owned).collect()
}

#[async_trait]
impl Carrier for Both {
    async fn request(
        &self,
        subject: String,
        headers: Vec<(String, String)>,
        payload: Bytes,
    ) -> Result<Bytes, RequestErrorKind> {
        let headers: Vec<_> = headers.iter().map(|(name, value)| (&**name, &**value)).collect();
        let answer = self.answer(&subject, &headers, std::str::from_utf8(&payload).unwrap()).await;
        Ok(answer.to_string().into())
    }

    fn subscribe(&self, _subject: String) -> BoxStream<'static, Bytes> {
        stream::pending().boxed()
    }
}

#[tokio::test]
async fn the_fake_answers_single_requests_like_nats() {
    let fresh = stores::fresh("nats");
    let (both, url) = (Both::on(fresh.url()), fresh.url());
    let [x, y] = ["x", "y"].map(|name| subject(url, name));
    let (keys, _) = x.rsplit_once("x.lock").unwrap();
    let stream = format!("KV_{}", x.split('.').nth(1).unwrap());
    let write = async |expected: &str, value: &str| both.answer(&x, &[(EXPECTED, expected)], value).await;
    let delete =
        async |expected: &str| both.answer(&x, &[(EXPECTED, expected), ("KV-Operation", "DEL")], "").await;
    let read = async |subject: &str| {
        let question = json!({ "last_by_subj": subject }).to_string();
        both.answer(&format!("$JS.API.STREAM.MSG.GET.{stream}"), &[], &question).await
    };
    let refused = json!(10_071);
    assert_eq!(read(&x).await["error"]["err_code"], 10_037, "there is no message");
    assert_eq!(delete("5").await["error"]["err_code"], refused);
    assert_eq!(write("0", "a").await["seq"], 1);
    assert_eq!(write("0", "b").await["error"]["err_code"], refused, "it exists");
    assert_eq!(write("5", "b").await["error"]["err_code"], refused, "not its revision");
    assert_eq!(write("1", "b").await["seq"], 2);
    assert_eq!(read(&x).await["message"]["seq"], 2);
    assert_eq!(delete("1").await["error"]["err_code"], refused, "an old revision");
    assert_eq!(delete("2").await["seq"], 3);
    assert_eq!(marks(&read(&x).await), ["NATS/1.0", "KV-Operation: DEL", ""]);
    assert_eq!(delete("2").await["error"]["err_code"], refused);
    assert_eq!(write("0", "c").await["error"]["err_code"], refused, "there is a marker");
    assert_eq!(write("3", "c").await["seq"], 4);
    both.answer(&y, &[(EXPECTED, "0")], "").await;
    for offset in 0..3 {
        let question = json!({ "subjects_filter": format!("{keys}>"), "offset": offset }).to_string();
        let info = both.answer(&format!("$JS.API.STREAM.INFO.{stream}"), &[], &question).await;
        assert_eq!(info["total"], 2);
    }
}

/// Grants, refusals, renewals, waiters, releases, and a listing.
#[tokio::test]
async fn the_fake_answers_the_stores_requests_like_nats() {
    let fresh = stores::fresh("nats");
    let both = Both::on(fresh.url());
    let locker = || {
        let leases = simulated::leases(fresh.url(), both.clone(), StoreOptions::default()).unwrap();
        Locker::new(Arc::new(leases))
    };
    let (one, two) = (locker(), locker());
    let name = LockName::new("a/b").unwrap();
    for _ in 0..2 {
        let guard = one.lock("a/b").acquire().await.unwrap();
        assert!(two.lock("a/b").try_acquire().await.is_err());
        let waiter = two.clone();
        let waiter = tokio::spawn(async move { waiter.lock("a/b").acquire().await });
        while one.inspect(&name).await.unwrap().waiters.is_empty() {
            SystemClock.sleep(Duration::from_millis(10)).await;
        }
        let ticket = guard.into_ticket().await.unwrap();
        one.renew(&ticket).await.unwrap();
        one.release(&ticket).await.unwrap();
        waiter.await.unwrap().unwrap().release().await.unwrap();
    }
    let names: Vec<_> = two.list("a/").try_collect().await.unwrap();
    assert_eq!(names.len(), 1);
    let seen = both.seen.lock().unwrap();
    for expected in ["STREAM.INFO", "STREAM.MSG.GET", "STREAM.MSG.GET 10037", "write", "write 10071"] {
        assert!(seen.iter().any(|seen| seen == expected), "{expected} is missing: {seen:?}");
    }
}
