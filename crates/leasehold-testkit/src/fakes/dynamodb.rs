//! An in-memory DynamoDB with one table and just enough operations for a lock. It knows nothing of locks.
//!
//! It refuses what it does not implement. A read that is not strongly consistent returns the item as it was before its
//! latest write.

mod expression;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ::http::{Request, Response};
use bytes::Bytes;
use serde_json::{Map, Value, json};

use self::expression::Expressions;
use super::Server;

/// An item in the form of DynamoDB's API: attributes such as `{"S": "text"}`.
pub type Item = Map<String, Value>;

/// The header that names the operation.
pub(crate) const TARGET: &str = "x-amz-target";

/// The name of the partition key.
const KEY: &str = "key";

/// Called with the key of an item, the item before, and the item after.
type OnCommit = dyn Fn(&str, Option<&Item>, Option<&Item>) + Send + Sync;

/// The server.
pub struct FakeDynamoDb {
    rows: Mutex<BTreeMap<String, Row>>,
    on_commit: Box<OnCommit>,
}

/// What is under a key, and what was there before the latest write.
#[derive(Default)]
struct Row {
    item: Option<Item>,
    before: Option<Item>,
}

/// An error of the server.
pub(crate) struct Refusal {
    code: &'static str,
    message: String,
    item: Option<Item>,
}

impl Refusal {
    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self { code: "ValidationException", message: message.into(), item: None }
    }

    fn body(self) -> Value {
        let space = if self.code == "ValidationException" { "coral.validate" } else { "dynamodb.v20120810" };
        let mut body =
            json!({"__type": format!("com.amazon.{space}#{}", self.code), "message": self.message});
        if let Some(item) = self.item {
            body["Item"] = item.into();
        }
        body
    }
}

impl fmt::Debug for FakeDynamoDb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FakeDynamoDb").field("items", &self.rows().len()).finish_non_exhaustive()
    }
}

impl FakeDynamoDb {
    /// Creates an empty table. `on_commit` is called for each change of an item, in the order of the changes.
    pub fn new(on_commit: impl Fn(&str, Option<&Item>, Option<&Item>) + Send + Sync + 'static) -> Self {
        Self { rows: Mutex::default(), on_commit: Box::new(on_commit) }
    }

    fn rows(&self) -> MutexGuard<'_, BTreeMap<String, Row>> {
        self.rows.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the item with this key.
    pub fn item(&self, key: &str) -> Option<Item> {
        self.rows().get(key)?.item.clone()
    }

    /// Returns the status and the body of the response to an operation, such as `UpdateItem`.
    pub fn answer(&self, operation: &str, request: &Value) -> (u16, Value) {
        let answer = match operation {
            "GetItem" => self.get(request),
            "UpdateItem" | "PutItem" | "DeleteItem" => self.write(operation, request),
            "DescribeTable" => Ok(json!({"Table": {
                "TableStatus": "ACTIVE",
                "KeySchema": [{"AttributeName": KEY, "KeyType": "HASH"}],
                "AttributeDefinitions": [{"AttributeName": KEY, "AttributeType": "S"}],
            }})),
            _ => Err(Refusal::invalid(format!("{operation} is not implemented"))),
        };
        answer.map_or_else(|refusal| (400, refusal.body()), |body| (200, body))
    }

    fn get(&self, request: &Value) -> Result<Value, Refusal> {
        let rows = self.rows();
        let row = rows.get(&key(&request["Key"])?);
        let is_consistent = request["ConsistentRead"] == true;
        let item = row.and_then(|row| if is_consistent { row.item.as_ref() } else { row.before.as_ref() });
        Ok(item.map_or_else(|| json!({}), |item| json!({ "Item": item })))
    }

    fn write(&self, operation: &str, request: &Value) -> Result<Value, Refusal> {
        let key = key(if operation == "PutItem" { &request["Item"] } else { &request["Key"] })?;
        let mut rows = self.rows();
        let before = rows.get(&key).and_then(|row| row.item.clone());
        let mut expressions = Expressions::of(request, before.as_ref());
        let holds = match request["ConditionExpression"].as_str() {
            Some(condition) => expressions.holds(condition)?,
            None => true,
        };
        let after = match operation {
            "UpdateItem" => {
                let mut item = before.clone().unwrap_or_default();
                item.insert(KEY.to_owned(), json!({"S": key}));
                if let Some(update) = request["UpdateExpression"].as_str() {
                    for (name, value) in expressions.changes(update)? {
                        match (name == KEY, value) {
                            (true, _) => return Err(Refusal::invalid("the update changes the key")),
                            (_, Some(value)) => drop(item.insert(name, value)),
                            (_, None) => drop(item.remove(&name)),
                        }
                    }
                }
                Some(item)
            }
            "PutItem" => request["Item"].as_object().cloned(),
            _ => None,
        };
        expressions.all_used()?;
        if !holds {
            let shows = request["ReturnValuesOnConditionCheckFailure"] == "ALL_OLD";
            let (code, message) =
                ("ConditionalCheckFailedException", "The conditional request failed".to_owned());
            return Err(Refusal { code, message, item: before.filter(|_| shows) });
        }
        expressions.failed()?;
        if before != after {
            (self.on_commit)(&key, before.as_ref(), after.as_ref());
        }
        let shown = match request["ReturnValues"].as_str() {
            Some("ALL_NEW") => after.clone(),
            Some("ALL_OLD") => before.clone(),
            _ => None,
        };
        rows.insert(key, Row { item: after, before });
        Ok(shown.map_or_else(|| json!({}), |item| json!({ "Attributes": item })))
    }
}

impl Server for FakeDynamoDb {
    fn answer(&self, request: &Request<Bytes>) -> Response<Bytes> {
        let target =
            request.headers().get(TARGET).and_then(|target| target.to_str().ok()).unwrap_or_default();
        let operation = target.rsplit('.').next().unwrap_or_default();
        let (status, body) =
            self.answer(operation, &serde_json::from_slice(request.body()).unwrap_or_default());
        response(status, &body, None)
    }

    fn refuses(&self, is_denied: bool, wait: Option<Duration>) -> Response<Bytes> {
        let code = match (is_denied, wait) {
            (true, _) => "AccessDeniedException",
            (_, Some(_)) => "ThrottlingException",
            (_, None) => "ProvisionedThroughputExceededException",
        };
        response(400, &Refusal { code, message: "refused".to_owned(), item: None }.body(), wait)
    }
}

fn response(status: u16, body: &Value, wait: Option<Duration>) -> Response<Bytes> {
    let response = Response::builder().status(status).header("content-type", "application/x-amz-json-1.0");
    let response = match wait {
        Some(wait) => response.header("retry-after", wait.as_secs_f64().ceil().to_string()),
        None => response,
    };
    response.body(body.to_string().into()).unwrap()
}

fn key(item: &Value) -> Result<String, Refusal> {
    let key = item[KEY]["S"].as_str().filter(|key| !key.is_empty());
    key.map(str::to_owned).ok_or_else(|| Refusal::invalid("the key is missing or not a string"))
}
