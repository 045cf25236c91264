//! The doctor's checks of a table: the permissions, the key, and whether time to live deletes items.

use aws_sdk_dynamodb::types::TimeToLiveStatus;

use super::item;
use super::{DynamoDb, expression};
use crate::diagnosis::{CheckStatus, Examined, Finding};
use crate::error::{ErrorKind, StoreError};
use crate::proof::examine_cells;
use crate::register::Version;
use crate::types::LockName;

impl DynamoDb {
    pub(super) async fn examined(&self, thorough: bool) -> Examined {
        let mut examined = Examined {
            listed_prices: self.target.endpoint.is_none(),
            least_permissions: self.least_permissions(),
            ..Examined::default()
        };
        examined = examine_cells(self, thorough, examined).await;
        examined.push(self.table().await);
        examined.push(self.time_to_live().await);
        examined
    }

    fn least_permissions(&self) -> Vec<String> {
        let table = self.target.arn();
        vec![
            "the minimum that leasehold needs; dynamodb:Scan is only for `leasehold ls`, dynamodb:DescribeTable \
             only to detect a global table and to read the name of the key:"
                .to_owned(),
            format!(
                r#"{{"Effect":"Allow","Action":["dynamodb:GetItem","dynamodb:UpdateItem","dynamodb:DescribeTable","dynamodb:Scan"],"Resource":"{table}"}}"#
            ),
        ]
    }

    async fn table(&self) -> Finding {
        const CHECK: &str = "table";
        match self.described().await {
            Ok(Some(table)) => match self.check(&table) {
                Ok(name) => {
                    let regions = if table.replicas().is_empty() {
                        "it is in one region"
                    } else {
                        "it has multi-Region strong consistency"
                    };
                    Finding::passed(CHECK, format!("its key is `{name}`, a string, and {regions}"))
                }
                Err(error) => Finding::of_error(CHECK, CheckStatus::Failed, &error),
            },
            Ok(None) => Finding::failed(CHECK, format!("there is no table {:?}", self.target.table))
                .with_help("create it: leasehold init"),
            Err(error) if error.fault().kind == ErrorKind::Denied => Finding::warning(
                CHECK,
                "not checked: it may be a global table, on which two regions can grant one lock at once",
            )
            .with_help(format!(
                "allow dynamodb:DescribeTable on {}, or make sure that the table has no replicas",
                self.target.arn()
            )),
            Err(error) => Finding::of_error(CHECK, CheckStatus::Warning, &error),
        }
    }

    /// Checks time to live. An item that DynamoDB deletes may be a held lock.
    async fn time_to_live(&self) -> Finding {
        const CHECK: &str = "time-to-live";
        let watch = self.requests.watch();
        let request = self.client.describe_time_to_live().table_name(&self.target.table);
        let result = request.customize().interceptor(watch.clone()).send().await;
        let Ok(output) = self.requests.settle(&watch, result) else {
            return Finding::not_applicable(
                CHECK,
                "not checked: this needs dynamodb:DescribeTimeToLive, which locks do not need",
            );
        };
        let on = output.time_to_live_description.filter(|description| {
            matches!(
                description.time_to_live_status(),
                Some(TimeToLiveStatus::Enabled | TimeToLiveStatus::Enabling)
            )
        });
        let attribute = on.and_then(|description| description.attribute_name);
        deletes_by(attribute.as_deref())
    }

    /// Deletes the item of a lock that no other client knows of.
    pub(super) async fn deleted(&self, name: &LockName, version: &Version) -> Result<bool, StoreError> {
        self.delete(&self.key(name.as_str()), expression::discard(version)).await
    }
}

/// Checks whether time to live by `attribute` deletes items of leasehold.
fn deletes_by(attribute: Option<&str>) -> Finding {
    const CHECK: &str = "time-to-live";
    match attribute {
        None => Finding::passed(CHECK, "off"),
        Some(attribute) if item::ATTRIBUTES.contains(&attribute) => Finding::failed(
            CHECK,
            format!("DynamoDB deletes items of this table by their attribute `{attribute}`"),
        )
        .with_help("it may delete locks that are held: switch off time to live, or use another table"),
        Some(attribute) => Finding::passed(CHECK, format!("by `{attribute}`, which locks do not have")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_to_live_on_an_attribute_of_locks_is_refused() {
        assert_eq!(deletes_by(Some("renewedAt")).verdict, CheckStatus::Failed);
        assert_eq!(deletes_by(Some("expires")).verdict, CheckStatus::Passed);
        assert_eq!(deletes_by(None).verdict, CheckStatus::Passed);
    }
}
