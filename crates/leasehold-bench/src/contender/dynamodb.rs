//! Baselines on DynamoDB: the two calls that any lock needs, without conditions and with them.

use std::collections::HashMap;

use aws_config::BehaviorVersion;
use aws_config::retry::RetryConfig;
use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::config::{Builder, Region};
use aws_sdk_dynamodb::types::{AttributeValue, ReturnValue, ReturnValuesOnConditionCheckFailure};

use super::Options;
use super::conditional::Replace;

/// A baseline, not a lock: updates an item twice, without a condition.
pub(super) struct Bare {
    client: Client,
    table: String,
}

impl Bare {
    pub(super) async fn open(options: &Options) -> Result<Self, String> {
        let shared = aws_config::load_defaults(BehaviorVersion::latest()).await;
        let config = Builder::from(&shared)
            .endpoint_url(options.text("endpoint")?)
            .region(Region::new("us-east-1"))
            // leasehold disables retries too.
            .retry_config(RetryConfig::disabled())
            .build();
        Ok(Self { client: Client::from_conf(config), table: options.text("table")?.to_owned() })
    }

    async fn update(&self, lock: &str, state: &str) -> Result<(), String> {
        let update = self.client.update_item().table_name(&self.table).key("key", text(lock));
        let update = update.update_expression("SET #s = :s").expression_attribute_names("#s", "state");
        let update = update.expression_attribute_values(":s", text(state)).send().await;
        update.map(|_| ()).map_err(|error| format!("{error:?}"))
    }
}

impl super::Client for Bare {
    type Held = String;

    async fn acquire(&self, lock: &str) -> Result<String, String> {
        self.update(lock, "held").await?;
        Ok(lock.to_owned())
    }

    async fn release(&self, held: String) -> Result<(), String> {
        self.update(&held, "free").await
    }

    fn is_held(&self, _: &String) -> Option<bool> {
        None
    }
}

/// The values that the next update expects to find.
pub(super) struct Written {
    version: String,
    token: u64,
}

impl Replace for Bare {
    type Version = Written;

    /// Writes an item like that of a lock.
    async fn replace(&self, lock: &str, held: bool, seen: Option<Written>) -> Result<Written, String> {
        let version = format!("{:036x}", fastrand::u128(..));
        let token = seen.as_ref().map_or(1_800_000_000_000_000, |seen| seen.token + u64::from(held));
        let mut set = vec![
            ("recordVersionNumber", text(&version)),
            ("leasehold", AttributeValue::M(about_grant(&version))),
            ("renewedAt", number(token)),
        ];
        let remove: &[&str] = if held { &["isReleased", "lastSeen"] } else { &["lastSeen"] };
        if held {
            set.push(("ownerName", text(&format!("somebody@somewhere 12345 {}", id()))));
            set.push(("fencingToken", number(token)));
        } else {
            set.push(("isReleased", text("1")));
            set.push(("history", AttributeValue::L((0..4).map(|_| past(token)).collect())));
        }
        let mut names: Vec<&str> = set.iter().map(|(name, _)| *name).chain(remove.iter().copied()).collect();
        let changes: Vec<String> = set.iter().map(|(name, _)| format!("#{name} = :{name}")).collect();
        let removals: Vec<String> = remove.iter().map(|name| format!("#{name}")).collect();
        let mut update = self.client.update_item().table_name(&self.table);
        update = update.key("key", text(lock)).return_values(ReturnValue::None);
        update =
            update.update_expression(format!("SET {} REMOVE {}", changes.join(", "), removals.join(", ")));
        for (name, value) in set {
            update = update.expression_attribute_values(format!(":{name}"), value);
        }
        if let Some(seen) = seen {
            names.push("fencingToken");
            update = update
                .condition_expression("#recordVersionNumber = :seenVersion AND #fencingToken = :seenToken")
                .expression_attribute_values(":seenVersion", text(&seen.version))
                .expression_attribute_values(":seenToken", number(seen.token))
                .return_values_on_condition_check_failure(ReturnValuesOnConditionCheckFailure::AllOld);
        }
        for name in names {
            update = update.expression_attribute_names(format!("#{name}"), name);
        }
        update.send().await.map(|_| Written { version, token }).map_err(|error| format!("{error:?}"))
    }
}

fn about_grant(version: &str) -> HashMap<String, AttributeValue> {
    let entries = [
        ("format", number(1)),
        ("version", text(version)),
        ("grant", text(&id())),
        ("heartbeat", number(0)),
        ("ttl", number(30_000)),
        ("grantedAt", number(1_800_000_000_000_000)),
    ];
    entries.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

/// Returns one of the past grants in a record.
fn past(token: u64) -> AttributeValue {
    let entries = [
        ("token", number(token)),
        ("grant", text(&id())),
        ("holder", text(r#"{"name":"somebody","host":"somewhere","pid":12345}"#)),
        ("end", text("released")),
        ("from", number(1_800_000_000_000_000)),
        ("until", number(1_800_000_000_000_000)),
    ];
    AttributeValue::M(entries.into_iter().map(|(name, value)| (name.to_owned(), value)).collect())
}

fn id() -> String {
    format!("{:032x}", fastrand::u128(..))
}

fn text(text: &str) -> AttributeValue {
    AttributeValue::S(text.to_owned())
}

fn number(number: u64) -> AttributeValue {
    AttributeValue::N(number.to_string())
}
