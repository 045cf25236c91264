//! Amazon DynamoDB: one item for each lock, in the format of AWS's own lock client, so that the locks of both clients
//! exclude each other.
//!
//! `docs/stores/dynamodb.md` has the permissions and the limits, `dynamodb-safety.md` the layout.

mod cells;
mod config;
mod connect;
mod dialect;
mod errors;
mod examine;
mod expression;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing;
mod item;
#[doc(hidden)]
pub mod simulated;
mod table;
#[cfg(test)]
mod wire_tests;

use std::future::ready;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::error::SdkError;
use aws_sdk_dynamodb::operation::update_item::UpdateItemError;
use aws_sdk_dynamodb::types::{AttributeValue, ReturnValue, ReturnValuesOnConditionCheckFailure};
use aws_smithy_runtime_api::http::Response;
use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::stream::{BoxStream, StreamExt, TryStreamExt};

use self::config::{Location, NewTable, Target};
use self::dialect::Dialect;
use self::errors::{Operation, meaning};
use self::expression::Expression;
use self::item::{Item, LINE_SUFFIX, VERSION};
use super::aws::requests::Requests;
use super::over_http::{Meaning, failed};
use super::pages::{self, Page};
use crate::clock::StoreTime;
use crate::diagnosis::{Examination, Examined};
use crate::env::Env;
use crate::error::{Error, ErrorKind, Fault, StoreError};
use crate::lease::{Capabilities, Id, LeaseStore, PollInterval, StoreOptions};
use crate::proof::trust::Trust;
use crate::proof::{self, Subject};
use crate::protocol::RegisterLeases;
use crate::protocol::line::Line;
use crate::protocol::record::{Content, Record};
use crate::protocol::records::{Claims, Found, Records, Refusal, Written};
use crate::register::{Precondition, Version};
use crate::types::LockName;
use crate::url::StoreUrl;

/// A million reads cost $0.125, and a read takes about 5 ms. So even a waiter that polls at the shortest interval costs
/// less than half a cent an hour.
const POLL_INTERVAL: PollInterval =
    PollInterval { min: Duration::from_millis(100), max: Duration::from_secs(1) };

/// Opens leases on the table and prefix that `url` names:
/// `dynamodb://table/prefix?region=&endpoint=&profile=&create=&dialect=java|go&store_clock=&margin=`, and the options
/// in `docs/stores/dynamodb.md`.
///
/// Sends no request to DynamoDB unless the table is to be created. Credentials are loaded with the first request.
///
/// ```no_run
/// # async fn example() -> leasehold::Result<()> {
/// use leasehold::{Locker, lease::StoreOptions, stores::dynamodb, url::StoreUrl};
///
/// let url = StoreUrl::parse("dynamodb://locks?region=eu-west-1")?;
/// let store = dynamodb::open(url, StoreOptions::default()).await?;
/// store.init().await?; // creates the table if there is none
/// let guard = Locker::new(store).lock("deploy/prod").acquire().await?;
/// guard.release().await?;
/// # Ok(()) }
/// ```
///
/// # Errors
/// [`ErrorKind::Invalid`] for a bad URL or a missing region; [`ErrorKind::Unavailable`] if the machine's metadata
/// service was asked for the region and did not respond; with `create=true`, the errors of creating the table.
pub async fn open(url: StoreUrl, mut options: StoreOptions) -> Result<Arc<dyn LeaseStore>, Error> {
    let location = Location::from_url(url, &mut options)?;
    let (client, requests, target) = location.connect(&options.env, options.open_timeout).await?;
    let store = DynamoDb::new(client, requests, target, &location);
    if location.create {
        store.make_table().await?;
    }
    Ok(Arc::new(RegisterLeases::on(Arc::new(store), options)))
}

/// The items below one prefix of a table.
#[derive(Clone, Debug)]
struct DynamoDb {
    client: Client,
    target: Target,
    /// Empty, or ends with `/`.
    prefix: String,
    dialect: Dialect,
    new_table: NewTable,
    requests: Requests,
    /// The name of the partition key that the URL sets.
    given_key: Option<String>,
    /// The name of the partition key, once it is known.
    key_name: Arc<OnceLock<String>>,
    /// Whether a server that is not Amazon's was found to check conditions.
    probed: Arc<Trust>,
}

impl DynamoDb {
    fn new(client: Client, requests: Requests, target: Target, location: &Location) -> Self {
        Self {
            client,
            target,
            prefix: location.prefix.clone(),
            dialect: location.dialect,
            new_table: location.new_table.clone(),
            requests,
            given_key: location.partition_key.clone(),
            key_name: Arc::default(),
            probed: Arc::default(),
        }
    }

    fn key(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    /// Returns the key of the item with a lock's line of waiters.
    fn line_key(&self, name: &LockName) -> String {
        self.key(&format!("{name}{LINE_SUFFIX}"))
    }

    fn found(&self, key: &str, item: &Item) -> Result<Found, Fault> {
        item::read(item, self.dialect).map_err(|mut fault| {
            fault.message = format!("dynamodb://{}/{key}: {}", self.target.table, fault.message);
            fault
        })
    }
}

#[async_trait]
impl Records for DynamoDb {
    async fn read(&self, name: &LockName) -> Result<Option<Found>, StoreError> {
        let key = self.key(name.as_str());
        let item = self.read_item(&key).await?;
        item.map(|item| self.found(&key, &item)).transpose().map_err(Fault::not_applied)
    }

    async fn write(
        &self,
        name: &LockName,
        expect: Precondition<'_>,
        before: Option<&Record>,
        record: &Record,
    ) -> Result<Written, StoreError> {
        let key = self.key(name.as_str());
        let (record, attributes) = item::fitted(record, &key, self.dialect);
        let expression = expression::write(&record, attributes, expect, before);
        match self.update(&key, expression, ReturnValue::None).await? {
            Updated::Done(_) => {
                let version = item::version_of(&record);
                Ok(Written::Committed { record: Box::new(record), version })
            }
            // The item was deleted, or this endpoint returns no item with a refusal. The caller must read it.
            Updated::Refused(None) => Ok(Written::Conflict(Refusal::Unexplained)),
            Updated::Refused(there) => self.conflict(&key, there),
        }
    }

    async fn claim(
        &self,
        name: &LockName,
        record: &Record,
        _tokens: u64,
        _barges: bool,
    ) -> Result<Written, StoreError> {
        let key = self.key(name.as_str());
        let expression = expression::claim(record, self.dialect);
        let item = match self.update(&key, expression, ReturnValue::AllNew).await? {
            Updated::Done(item) => item,
            Updated::Refused(there) => return self.conflict(&key, there),
        };
        // The item was written, whatever the response contains. Without the item in the response, only a read can
        // return its token.
        let item = item.ok_or_else(|| unreadable(&key).maybe_applied())?;
        let Found { content, version, .. } = self.found(&key, &item).map_err(Fault::maybe_applied)?;
        match content {
            Content::Record(record) => Ok(Written::Committed { record, version }),
            Content::Foreign { .. } => Err(unreadable(&key).maybe_applied()),
        }
    }

    fn claims(&self) -> Claims {
        Claims::Free
    }

    /// AWS's client deletes the item of a lock that it releases, unless it is configured otherwise.
    fn others_delete(&self) -> bool {
        true
    }

    /// Counts in the item of the line, which no other client writes.
    async fn next_token(&self, name: &LockName) -> Result<Option<u64>, StoreError> {
        let Some(now) = self.store_time() else { return Ok(None) };
        let key = self.line_key(name);
        let line = Line::of(Vec::new()).to_bytes().map_err(Fault::not_applied)?;
        let line = String::from_utf8_lossy(&line).into_owned();
        let mut there = None;
        // The first update expects that no token is there.
        for _ in 0..2 {
            let (token, seen) = item::token_above(there.as_ref(), now);
            let version = Id::random(&self.env().random);
            let attributes = item::token(token, now, line.clone(), version, self.dialect);
            match self.update(&key, expression::token(attributes, seen), ReturnValue::None).await? {
                Updated::Done(_) => return Ok(Some(token)),
                Updated::Refused(Some(item)) => there = Some(item),
                Updated::Refused(None) => there = self.read_item(&key).await?,
            }
        }
        Err(Fault::contended("the token beside the line kept changing").not_applied())
    }

    async fn stamp(&self, name: &LockName, version: &Version, seen_us: u64) -> Result<bool, StoreError> {
        let key = self.key(name.as_str());
        let updated = self.update(&key, expression::stamp(version, seen_us), ReturnValue::None).await?;
        Ok(matches!(updated, Updated::Done(_)))
    }

    /// Sets a single attribute. The other attributes may be another client's, so they are not written again.
    async fn mark_awaited(
        &self,
        name: &LockName,
        version: &Version,
        record: &Record,
    ) -> Result<Written, StoreError> {
        let key = self.key(name.as_str());
        match self.update(&key, expression::mark(version), ReturnValue::None).await? {
            Updated::Done(_) => {
                let record = Record { awaited: true, ..record.clone() };
                let is_ours = item::expected(version).1.is_some();
                let version = if is_ours { item::version_of(&record) } else { version.clone() };
                Ok(Written::Committed { record: Box::new(record), version })
            }
            Updated::Refused(_) => Ok(Written::Conflict(Refusal::Unexplained)),
        }
    }

    fn has_lines(&self) -> bool {
        true
    }

    async fn read_line(&self, name: &LockName) -> Result<Option<(Bytes, Version)>, StoreError> {
        let item = self.read_item(&self.line_key(name)).await?;
        Ok(item.map(|item| {
            let (line, version) = item::read_line(&item);
            (line.into(), version)
        }))
    }

    async fn write_line(
        &self,
        name: &LockName,
        expect: Precondition<'_>,
        line: Bytes,
    ) -> Result<bool, StoreError> {
        let line = String::from_utf8_lossy(&line).into_owned();
        let line = item::line(line, Id::random(&self.env().random), self.dialect);
        let line = expression::line(line, expect);
        let updated = self.update(&self.line_key(name), line, ReturnValue::None).await?;
        Ok(matches!(updated, Updated::Done(_)))
    }

    async fn delete_line(&self, name: &LockName, version: &Version) -> Result<(), StoreError> {
        self.delete(&self.line_key(name), expression::discard(version)).await.map(drop)
    }

    fn list(&self, prefix: &str) -> BoxStream<'_, Result<LockName, StoreError>> {
        let prefix: Arc<str> = self.key(prefix).into();
        let fetch = move |start| {
            let prefix = prefix.clone();
            async move { self.page(&prefix, start).await }
        };
        let keys = pages::items(self.env(), fetch, endless_listing);
        // An item whose key is not a valid lock name is not a lock.
        let name = |key: String| LockName::new(key.strip_prefix(&*self.prefix)?).ok();
        keys.try_filter_map(move |key| ready(Ok(name(key)))).boxed()
    }

    async fn prepare(&self) -> Result<(), StoreError> {
        self.key_name().await.map(|_| ())
    }

    async fn trust(&self) -> Result<(), StoreError> {
        self.prepare().await?;
        if self.target.endpoint.is_none() {
            return Ok(());
        }
        let store = self.clone();
        let prove = || -> BoxFuture<'static, _> {
            Box::pin(async move { proof::prove(&store, Subject::Writes).await })
        };
        self.probed.settle(self.env(), proof::LIMIT, prove).await
    }

    async fn init(&self) -> Result<(), StoreError> {
        self.make_table().await
    }

    async fn discard(&self, name: &LockName, version: &Version) -> Result<bool, StoreError> {
        self.deleted(name, version).await
    }

    async fn trust_deletes(&self) -> Result<(), StoreError> {
        self.trust().await
    }

    async fn examine(&self, examination: &Examination) -> Examined {
        self.examined(examination.thorough).await
    }

    fn store_time(&self) -> Option<StoreTime> {
        self.requests.store_time()
    }

    fn env(&self) -> &Env {
        self.requests.env()
    }

    fn capabilities(&self) -> Capabilities {
        let mut capabilities = Capabilities::new("DynamoDB", POLL_INTERVAL);
        capabilities.sizes = true;
        capabilities.line = Some("the item `NAME//line`");
        (capabilities.permits_in_order, capabilities.queues_permits) = (true, true);
        capabilities
    }
}

/// The result of a conditional update.
enum Updated {
    /// Updated, with the item if it was requested.
    Done(Option<Item>),
    /// The condition does not hold for this item. `None` if there is no item, or if the server did not return it.
    Refused(Option<Item>),
}

impl DynamoDb {
    async fn read_item(&self, key: &str) -> Result<Option<Item>, StoreError> {
        let key_name = self.key_name().await?;
        let watch = self.requests.watch();
        let request = self
            .client
            .get_item()
            .table_name(&self.target.table)
            .key(key_name, item::s(key))
            // An eventually consistent read may return data from a second ago, and so show a held lock as free.
            .consistent_read(true);
        let result = request.customize().interceptor(watch.clone()).send().await;
        let output = self
            .requests
            .settle(&watch, result)
            .map_err(|failure| failed(meaning(Operation::Read, key, &self.target, failure)))?;
        Ok(output.item)
    }

    /// Deletes the item `key` on the condition of `expression`. Returns `false` if the condition does not hold.
    async fn delete(&self, key: &str, expression: Expression) -> Result<bool, StoreError> {
        let key_name = self.key_name().await?;
        let watch = self.requests.watch();
        let request = self
            .client
            .delete_item()
            .table_name(&self.target.table)
            .key(key_name, item::s(key))
            .condition_expression(expression.condition)
            .set_expression_attribute_names(Some(expression.names))
            .set_expression_attribute_values(Some(expression.values));
        let result = request.customize().interceptor(watch.clone()).send().await;
        match self.requests.settle(&watch, result) {
            Ok(_) => Ok(true),
            Err(failure) => match meaning(Operation::Delete, key, &self.target, failure) {
                Meaning::Conflict => Ok(false),
                other => Err(failed(other)),
            },
        }
    }

    async fn update(
        &self,
        key: &str,
        mut expression: Expression,
        returned: ReturnValue,
    ) -> Result<Updated, StoreError> {
        let key_name = self.key_name().await?;
        if let Some(name) = expression.names.get_mut("#key") {
            key_name.clone_into(name);
        }
        let watch = self.requests.watch();
        let request = self
            .client
            .update_item()
            .table_name(&self.target.table)
            .key(key_name, item::s(key))
            .set_update_expression(expression.update)
            .condition_expression(expression.condition)
            .set_expression_attribute_names(Some(expression.names))
            .set_expression_attribute_values(Some(expression.values))
            .return_values(returned)
            .return_values_on_condition_check_failure(ReturnValuesOnConditionCheckFailure::AllOld);
        let result = request.customize().interceptor(watch.clone()).send().await;
        let there = result.as_ref().err().and_then(item_there);
        match self.requests.settle(&watch, result) {
            Ok(output) => Ok(Updated::Done(output.attributes)),
            Err(failure) => match meaning(Operation::Write, key, &self.target, failure) {
                Meaning::Conflict => Ok(Updated::Refused(there)),
                other => Err(failed(other)),
            },
        }
    }

    fn conflict(&self, key: &str, there: Option<Item>) -> Result<Written, StoreError> {
        let refusal = match there {
            Some(item) => Refusal::Found(self.found(key, &item).map_err(Fault::not_applied)?),
            None => Refusal::Absent,
        };
        Ok(Written::Conflict(refusal))
    }

    async fn page(&self, prefix: &str, start: Option<Item>) -> Result<Page<String, Item>, StoreError> {
        let key_name = self.key_name().await?;
        let watch = self.requests.watch();
        let mut request = self
            .client
            .scan()
            .table_name(&self.target.table)
            .consistent_read(true)
            .projection_expression("#key")
            .expression_attribute_names("#key", key_name)
            .expression_attribute_names("#version", VERSION)
            .set_exclusive_start_key(start);
        request = if prefix.is_empty() {
            request.filter_expression("attribute_exists(#version)")
        } else {
            request
                .filter_expression("attribute_exists(#version) AND begins_with(#key, :prefix)")
                .expression_attribute_values(":prefix", item::s(prefix))
        };
        let result = request.customize().interceptor(watch.clone()).send().await;
        let output = self
            .requests
            .settle(&watch, result)
            .map_err(|failure| failed(meaning(Operation::List, prefix, &self.target, failure)))?;
        let items = output.items.unwrap_or_default().into_iter();
        Ok(Page {
            items: items.filter_map(|mut item| item.remove(key_name)?.as_s().ok().cloned()).collect(),
            next: output.last_evaluated_key,
        })
    }
}

/// Returns the item that did not meet a condition.
fn item_there(error: &SdkError<UpdateItemError, Response>) -> Option<Item> {
    match error.as_service_error()? {
        UpdateItemError::ConditionalCheckFailedException(refused) => refused.item.clone(),
        _ => None,
    }
}

fn endless_listing() -> StoreError {
    Fault::new(
        ErrorKind::Corrupt,
        "the table's listing has more pages, but the position of the next one is missing",
    )
    .with_help("check that the endpoint is a DynamoDB endpoint")
    .not_applied()
}

fn unreadable(key: &str) -> Fault {
    Fault::unavailable(format!("the lock {key:?} was granted, and the response does not contain its item"))
        .with_help("check that the endpoint is a DynamoDB endpoint")
}
