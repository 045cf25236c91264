//! Creates the table on request, and checks it before it is used for locks.

use std::time::Duration;

use aws_sdk_dynamodb::error::BuildError;
use aws_sdk_dynamodb::types::{
    AttributeDefinition, BillingMode, KeySchemaElement, KeyType, MultiRegionConsistency,
    PointInTimeRecoverySpecification, ScalarAttributeType, SseSpecification, SseType, TableDescription,
    TableStatus, Tag,
};

use super::DynamoDb;
use super::config::{NewTable, is_taken};
use super::errors::{Operation, meaning};
use super::item::KEY;
use crate::error::{ErrorKind, Fault, StoreError};
use crate::stores::over_http::{Meaning, failed};

/// How many times a new table is checked, and the pause between the checks. Amazon creates a table within about ten
/// seconds.
const ATTEMPTS: usize = 120;
const PAUSE: Duration = Duration::from_millis(500);

impl DynamoDb {
    /// Creates the table unless it exists, and waits until it can be used. Any number of processes may do this at the
    /// same time.
    pub(super) async fn make_table(&self) -> Result<(), StoreError> {
        for attempt in 0..ATTEMPTS {
            if attempt > 0 {
                self.requests.env().sleep(PAUSE).await;
            }
            match self.described().await? {
                Some(table) => {
                    self.check(&table)?;
                    if is_usable(&table) && self.has_recovery().await? {
                        return Ok(());
                    }
                }
                None => self.create_table().await?,
            }
        }
        Err(Fault::unavailable(format!("the table {:?} did not become active", self.target.table))
            .with_help("check its status: aws dynamodb describe-table")
            .not_applied())
    }

    pub(super) async fn described(&self) -> Result<Option<TableDescription>, StoreError> {
        let watch = self.requests.watch();
        let request = self.client.describe_table().table_name(&self.target.table);
        let result = request.customize().interceptor(watch.clone()).send().await;
        match self.requests.settle(&watch, result) {
            Ok(output) => Ok(output.table),
            Err(failure) => match meaning(Operation::DescribeTable, "", &self.target, failure) {
                Meaning::Absent => Ok(None),
                other => Err(failed(other)),
            },
        }
    }

    /// Returns the name of the table's partition key. The first call describes the table, if that is allowed, and
    /// refuses a table on which locks do not exclude each other.
    pub(super) async fn key_name(&self) -> Result<&str, StoreError> {
        if let Some(name) = self.key_name.get() {
            return Ok(name);
        }
        let assumed = self.given_key.as_deref().unwrap_or(KEY);
        let name = match self.described().await {
            Ok(Some(table)) => self.check(&table)?,
            // The request that needs the name will report the missing table.
            Ok(None) => return Ok(assumed),
            Err(error) if error.is_transient() => return Err(error),
            Err(error) => {
                tracing::debug!(%error, "the table could not be described");
                match error.fault().kind {
                    // Locks do not need this permission, so the assumed name is kept. It is not kept if the credentials
                    // were refused, because they may be accepted the next time.
                    ErrorKind::Denied | ErrorKind::Unsupported if is_about_this_request(&error) => {
                        assumed.to_owned()
                    }
                    _ => return Ok(assumed),
                }
            }
        };
        Ok(self.key_name.get_or_init(|| name))
    }

    /// Switches point-in-time recovery on, if that was requested. Returns `false` if it is not possible yet.
    async fn has_recovery(&self) -> Result<bool, StoreError> {
        if !self.new_table.recovery {
            return Ok(true);
        }
        let on = PointInTimeRecoverySpecification::builder().point_in_time_recovery_enabled(true).build();
        let on = on.map_err(|error| undescribed(&error))?;
        let watch = self.requests.watch();
        let request = self.client.update_continuous_backups().table_name(&self.target.table);
        let request = request.point_in_time_recovery_specification(on);
        let result = request.customize().interceptor(watch.clone()).send().await;
        match self.requests.settle(&watch, result) {
            Ok(_) => Ok(true),
            Err(failure) => match meaning(Operation::EnableRecovery, "", &self.target, failure) {
                // A new table does not support recovery immediately.
                Meaning::Failed(error) if error.is_transient() => Ok(false),
                other => Err(failed(other)),
            },
        }
    }

    async fn create_table(&self) -> Result<(), StoreError> {
        let name = self.given_key.as_deref().unwrap_or(KEY);
        let (key, definition) = key_schema(name).map_err(|error| undescribed(&error))?;
        let NewTable { kms, kms_key, deletion_protection, tags, .. } = &self.new_table;
        let encryption = SseSpecification::builder().enabled(true).sse_type(SseType::Kms);
        let encryption = encryption.set_kms_master_key_id(kms_key.clone()).build();
        let tags = tags.iter().map(|(name, value)| Tag::builder().key(name).value(value).build());
        let tags = tags.collect::<Result<Vec<_>, _>>().map_err(|error| undescribed(&error))?;
        let watch = self.requests.watch();
        let request = self
            .client
            .create_table()
            .table_name(&self.target.table)
            .billing_mode(BillingMode::PayPerRequest)
            .set_sse_specification(kms.then_some(encryption))
            .set_deletion_protection_enabled(deletion_protection.then_some(true))
            .set_tags((!tags.is_empty()).then_some(tags))
            .key_schema(key)
            .attribute_definitions(definition);
        let result = request.customize().interceptor(watch.clone()).send().await;
        match self.requests.settle(&watch, result) {
            Ok(_) => Ok(()),
            Err(failure) => match meaning(Operation::CreateTable, "", &self.target, failure) {
                // Another process created the table first.
                Meaning::Conflict => Ok(()),
                other => Err(failed(other)),
            },
        }
    }

    /// Checks that locks on `table` exclude each other. Returns the name of the table's key.
    pub(super) fn check(&self, table: &TableDescription) -> Result<String, StoreError> {
        let name = &self.target.table;
        let keys = table.key_schema();
        let key = match keys {
            [key] if *key.key_type() == KeyType::Hash => Some(key.attribute_name()),
            _ => None,
        };
        let string = table.attribute_definitions().iter().any(|definition| {
            Some(definition.attribute_name()) == key && *definition.attribute_type() == ScalarAttributeType::S
        });
        let Some(key) = key.filter(|key| string && !is_taken(key)) else {
            let found: Vec<_> = keys.iter().map(|key| format!("`{}`", key.attribute_name())).collect();
            let message = format!(
                "locks cannot be stored under the key of the table {name:?}: {}",
                found.join(" and ")
            );
            return Err(Fault::new(ErrorKind::Invalid, message)
                .with_help(
                    "leasehold needs a partition key that is a string and is not the name of an attribute of locks, \
                     and no sort key: name another table, and create it with `leasehold init`",
                )
                .not_applied());
        };
        if let Some(given) = self.given_key.as_deref().filter(|given| *given != key) {
            let message = format!("the partition key of the table {name:?} is `{key}`, not `{given}`");
            let help = "leave out the option `partition_key`: leasehold reads the key from the table";
            return Err(Fault::new(ErrorKind::Invalid, message).with_help(help).not_applied());
        }
        let strong = table.multi_region_consistency() == Some(&MultiRegionConsistency::Strong);
        if !table.replicas().is_empty() && !strong {
            return Err(Fault::new(
                ErrorKind::Unsupported,
                format!("{name:?} is a global table, where the last writer wins: two regions can grant one lock at once"),
            )
            .with_help(
                "use a table of one region, or a new one with multi-Region strong consistency, which an existing global \
                 table cannot be given (aws dynamodb update-table --multi-region-consistency STRONG)",
            )
            .not_applied());
        }
        Ok(key.to_owned())
    }
}

/// Whether only this request was refused, and not the credentials in general.
fn is_about_this_request(error: &StoreError) -> bool {
    error.fault().kind == ErrorKind::Unsupported || error.fault().message.contains("AccessDenied")
}

fn undescribed(error: &BuildError) -> StoreError {
    Fault::new(ErrorKind::Invalid, format!("the table cannot be described: {error}")).not_applied()
}

/// Whether the table can be used. It can be used while it is updated.
fn is_usable(table: &TableDescription) -> bool {
    matches!(table.table_status(), Some(TableStatus::Active | TableStatus::Updating))
}

fn key_schema(name: &str) -> Result<(KeySchemaElement, AttributeDefinition), BuildError> {
    let key = KeySchemaElement::builder().attribute_name(name).key_type(KeyType::Hash).build()?;
    let definition =
        AttributeDefinition::builder().attribute_name(name).attribute_type(ScalarAttributeType::S).build()?;
    Ok((key, definition))
}
