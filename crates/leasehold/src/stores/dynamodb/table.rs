//! The table: made on request, and looked at before it is trusted to be one of locks.

use std::time::Duration;

use aws_sdk_dynamodb::error::BuildError;
use aws_sdk_dynamodb::types::{
    AttributeDefinition, BillingMode, KeySchemaElement, KeyType, MultiRegionConsistency, ScalarAttributeType,
    TableDescription, TableStatus,
};

use super::DynamoDb;
use super::errors::{Meaning, Operation, meaning};
use super::item::KEY;
use crate::error::{ErrorKind, Fault, StoreError};

/// Amazon makes a table within some ten seconds.
const LOOKS: usize = 120;
const PAUSE: Duration = Duration::from_millis(500);

impl DynamoDb {
    /// Makes the table unless it is there, and waits until it can be used. Any number may do so at once.
    pub(super) async fn make_table(&self) -> Result<(), StoreError> {
        for look in 0..LOOKS {
            if look > 0 {
                self.requests.env().sleep(PAUSE).await;
            }
            match self.described().await? {
                Some(table) => {
                    self.check(&table)?;
                    if is_usable(&table) {
                        return Ok(());
                    }
                }
                None => self.create_table().await?,
            }
        }
        Err(Fault::unavailable(format!("the table {:?} does not become active", self.place.table))
            .with_help("look at its status: aws dynamodb describe-table")
            .not_applied())
    }

    pub(super) async fn described(&self) -> Result<Option<TableDescription>, StoreError> {
        let watch = self.requests.watch();
        let request = self.client.describe_table().table_name(&self.place.table);
        let result = request.customize().interceptor(watch.clone()).send().await;
        match self.requests.settle(&watch, result) {
            Ok(output) => Ok(output.table),
            Err(trouble) => match meaning(Operation::DescribeTable, "", &self.place, trouble) {
                Meaning::NoTable => Ok(None),
                other => Err(super::failed(other)),
            },
        }
    }

    async fn create_table(&self) -> Result<(), StoreError> {
        let (key, definition) = key_schema().map_err(|error| {
            Fault::new(ErrorKind::Invalid, format!("the table cannot be described: {error}")).not_applied()
        })?;
        let watch = self.requests.watch();
        let request = self
            .client
            .create_table()
            .table_name(&self.place.table)
            .billing_mode(BillingMode::PayPerRequest)
            .key_schema(key)
            .attribute_definitions(definition);
        let result = request.customize().interceptor(watch.clone()).send().await;
        match self.requests.settle(&watch, result) {
            Ok(_) => Ok(()),
            Err(trouble) => match meaning(Operation::CreateTable, "", &self.place, trouble) {
                // Somebody else was faster.
                Meaning::TableExists => Ok(()),
                other => Err(super::failed(other)),
            },
        }
    }

    /// Whether locks on `table` exclude each other.
    pub(super) fn check(&self, table: &TableDescription) -> Result<(), StoreError> {
        let name = &self.place.table;
        let keys = table.key_schema();
        let types = table.attribute_definitions();
        let string = types.iter().any(|definition| {
            definition.attribute_name() == KEY && *definition.attribute_type() == ScalarAttributeType::S
        });
        let ours = matches!(keys, [key] if key.attribute_name() == KEY && *key.key_type() == KeyType::Hash);
        if !ours || !string {
            let found: Vec<_> = keys.iter().map(|key| format!("`{}`", key.attribute_name())).collect();
            let message = format!("the table {name:?} has another key: {}", found.join(" and "));
            return Err(Fault::new(ErrorKind::Invalid, message)
                .with_help(format!(
                    "leasehold needs the partition key `{KEY}`, a string, and no sort key: name another table, and make it \
                     with `leasehold init`"
                ))
                .not_applied());
        }
        let strong = table.multi_region_consistency() == Some(&MultiRegionConsistency::Strong);
        if !table.replicas().is_empty() && !strong {
            return Err(Fault::new(
                ErrorKind::Unsupported,
                format!("{name:?} is a global table, where the last writer wins: two regions can grant one lock at once"),
            )
            .with_help("use a table of one region, or one with multi-Region strong consistency")
            .not_applied());
        }
        Ok(())
    }
}

/// An update of the table does not hinder requests.
fn is_usable(table: &TableDescription) -> bool {
    matches!(table.table_status(), Some(TableStatus::Active | TableStatus::Updating))
}

fn key_schema() -> Result<(KeySchemaElement, AttributeDefinition), BuildError> {
    let key = KeySchemaElement::builder().attribute_name(KEY).key_type(KeyType::Hash).build()?;
    let definition =
        AttributeDefinition::builder().attribute_name(KEY).attribute_type(ScalarAttributeType::S).build()?;
    Ok((key, definition))
}
