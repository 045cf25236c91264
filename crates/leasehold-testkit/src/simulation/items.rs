//! Locks in a table of DynamoDB: the store's own requests travel through the networks of the simulation, and another
//! client takes the same locks.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use http::{HeaderValue, Request};
use leasehold::RegisterLeases;
use leasehold::env::Env;
use leasehold::lease::StoreOptions;
use leasehold::register::Register;
#[cfg(feature = "dynamodb")]
use leasehold::stores::dynamodb::simulated;
use serde_json::{Value, json};

use self::simulated::{Answer, Carry};
use super::LOCK;
use super::checker::Checker;
use super::plan::FOREIGN_LEASE;
use super::recorder::Recorder;
use super::wire::{Backend, Served, Wire};
use crate::fakes::dynamodb::{FakeDynamoDb, Item, TARGET};
use crate::machine::Machine;

#[cfg(not(feature = "dynamodb"))]
mod simulated {
    use super::*;
    pub(super) type Answer = (u16, Vec<(String, String)>, Vec<u8>);
    pub(super) type Carry =
        dyn Fn(String, Bytes) -> futures_util::future::BoxFuture<'static, Option<Answer>> + Send + Sync;
    pub(super) fn leases(_: Arc<Carry>, _: StoreOptions) -> leasehold::Result<RegisterLeases> {
        Err(leasehold::Error::new(leasehold::ErrorKind::Unsupported, "needs the feature `dynamodb`"))
    }
    pub(super) fn record(_: &Value) -> Option<Bytes> {
        None
    }
}

/// The table, and its end of the networks.
#[derive(Debug)]
pub(super) struct Items {
    served: Arc<Served>,
    server: Arc<FakeDynamoDb>,
}

impl Items {
    /// Creates the server of the locks, with the clock of `env`. Reports to `commits` what it commits.
    pub(super) fn new(env: Env, commits: Arc<Recorder>) -> Self {
        let server = FakeDynamoDb::new(move |key, before, after| {
            let Some(after) = after.filter(|after| !key.contains("//") && is_ours(after)) else { return };
            // A stamp changes nothing that matters.
            let is_stamp = |before: &&Item| {
                version(before) == version(after) && before.get("awaited") == after.get("awaited")
            };
            let record = |item: &Item| simulated::record(&item.clone().into());
            if before.filter(is_stamp).is_none()
                && let Some(after) = record(after)
            {
                commits.commits(key, before.and_then(record).as_deref(), &after, false);
            }
        });
        let server = Arc::new(server);
        Self { served: Arc::new(Served { server: server.clone(), env }), server }
    }
}

impl Backend for Items {
    fn leases(&self, network: Arc<Machine>, options: StoreOptions) -> RegisterLeases {
        let wire = Arc::new(Wire { network, served: self.served.clone() });
        let carry: Arc<Carry> = Arc::new(move |operation, body| {
            let wire = wire.clone();
            async move { exchange(&wire, &operation, body).await }.boxed()
        });
        simulated::leases(carry, options).unwrap_or_else(|error| unreachable!("no table: {error}"))
    }

    fn line(&self, lock: &str) -> Option<Value> {
        let item = self.server.item(&format!("{lock}//line"))?;
        serde_json::from_str(item.get("line")?["S"].as_str()?).ok()
    }

    fn served(&self) -> Arc<Served> {
        self.served.clone()
    }

    fn delete(&self) -> bool {
        let is_there = self.server.item(LOCK).is_some();
        self.server.answer("DeleteItem", &json!({"Key": {"key": {"S": LOCK}}}));
        is_there
    }
}

/// Returns whether leasehold has written `item` last.
fn is_ours(item: &Item) -> bool {
    item.get("leasehold").is_some_and(|ours| ours["M"].get("version") == item.get("recordVersionNumber"))
}

fn lease_of(item: &Item) -> Duration {
    let lease = item.get("leaseDuration").and_then(|lease| lease["S"].as_str()?.parse().ok());
    lease.map_or(Duration::MAX, Duration::from_millis)
}

fn version(item: &Item) -> Option<&str> {
    item.get("recordVersionNumber")?["S"].as_str()
}

async fn exchange(wire: &Wire, operation: &str, body: Bytes) -> Option<Answer> {
    let request = Request::post("/").header(TARGET, operation).body(body).ok()?;
    match wire.exchange(request).await {
        Some(response) => {
            let (head, body) = response.into_parts();
            let text = |value: &HeaderValue| value.to_str().unwrap_or_default().to_owned();
            let headers = head.headers.iter().map(|(name, value)| (name.to_string(), text(value))).collect();
            Some((head.status.as_u16(), headers, body.to_vec()))
        }
        // A front end may still respond when it does not know whether the request was applied.
        None if wire.network.env().random.fraction() < 0.5 => {
            let body = json!({"__type": "com.amazonaws.dynamodb.v20120810#InternalServerError"});
            Some((500, Vec::new(), body.to_string().into_bytes()))
        }
        None => None,
    }
}

/// AWS's lock client, or its port to Go, in a process with an exact clock and a good network.
#[derive(Debug, Default)]
pub(super) struct Stranger {
    /// The version that it saw last, and when it saw it first.
    seen: Option<(String, Duration)>,
    /// The version of its lock, and the end of its lease.
    holds: Option<(String, Duration)>,
    /// An item that it read earlier, which the port to Go writes back.
    copy: Option<Item>,
}

impl Stranger {
    /// Does the next thing: takes the lock if it can, or sends a heartbeat, releases the lock, or dies.
    pub(super) fn act(
        &mut self,
        items: &Items,
        checker: &Checker,
        now: Duration,
        random: &mut fastrand::Rng,
    ) {
        let item = items.server.item(LOCK);
        let there = item.as_ref().and_then(version).map(str::to_owned);
        let lease = Duration::from_millis(random.u64(200..FOREIGN_LEASE.as_millis() as u64));
        let fresh = format!("{:032x}", random.u128(..));
        let key = json!({"key": {"S": LOCK}});
        if let Some((held, until)) = self.holds.take() {
            if there.as_ref() != Some(&held) || now >= until {
                return;
            }
            let condition = json!({
                "Key": key, "ConditionExpression": "recordVersionNumber = :held",
                "ExpressionAttributeValues": {":held": {"S": held}},
            });
            let update = |expression: &str, value: &str| {
                let mut update = condition.clone();
                update["UpdateExpression"] = json!(expression);
                update["ExpressionAttributeValues"][":new"] = json!({"S": value});
                update
            };
            match random.u8(..4) {
                0 => drop(items.server.answer("DeleteItem", &condition)),
                1 => drop(items.server.answer("UpdateItem", &update("SET isReleased = :new", "1"))),
                2 => {
                    let sets = "SET recordVersionNumber = :new";
                    items.server.answer("UpdateItem", &update(sets, &fresh));
                    let until = now + item.as_ref().map_or(Duration::ZERO, lease_of);
                    self.holds = Some((fresh, until));
                    return checker.taken_until(LOCK, until);
                }
                _ => return self.holds = Some((held, until)),
            }
            return checker.taken_until(LOCK, now);
        }
        let idles = random.bool();
        let is_released = item.as_ref().is_some_and(|item| item.contains_key("isReleased"));
        let (condition, values) = match (&item, &there) {
            (Some(_), None) => return,
            _ if idles && (is_released || item.is_none()) => return,
            (None, _) => ("attribute_not_exists(key)", None),
            (Some(_), _) if is_released => {
                ("attribute_exists(key) AND isReleased = :seen", Some(json!({":seen": {"S": "1"}})))
            }
            (Some(item), Some(there)) => {
                let seen = self.seen.take().filter(|(seen, _)| seen == there);
                let (_, since) = self.seen.insert(seen.unwrap_or_else(|| (there.clone(), now)));
                if now - *since < lease_of(item) {
                    return;
                }
                let condition = "attribute_exists(key) AND recordVersionNumber = :seen";
                (condition, Some(json!({":seen": {"S": there}})))
            }
        };
        let mut put = self.copy.clone().filter(|_| random.bool()).unwrap_or_default();
        put.remove("isReleased");
        let texts = [("key", LOCK), ("ownerName", "stranger"), ("recordVersionNumber", &fresh)];
        put.extend(texts.map(|(name, text)| (name.to_owned(), json!({"S": text}))));
        put.insert("leaseDuration".to_owned(), json!({"S": lease.as_millis().to_string()}));
        let mut request = json!({"Item": put, "ConditionExpression": condition});
        if let Some(values) = values {
            request["ExpressionAttributeValues"] = values;
        }
        let (status, _) = items.server.answer("PutItem", &request);
        if status == 200 {
            checker.taken(LOCK, now + lease);
            self.holds = Some((fresh, now + lease));
        }
        if item.as_ref().is_some_and(is_ours) && (self.copy.is_none() || random.u8(..4) == 0) {
            self.copy = item;
        }
    }
}
