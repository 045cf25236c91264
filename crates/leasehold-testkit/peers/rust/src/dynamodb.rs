//! The common part of the DynamoDB contenders: the SDK's client, and the creation of a table with the layout that they
//! need.

use anyhow::{Context, Result};
use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::client::Waiters;
use aws_sdk_dynamodb::config::{BehaviorVersion, Config, Credentials, Region};
use aws_sdk_dynamodb::types::{
    AttributeDefinition, BillingMode, KeySchemaElement, KeyType, ScalarAttributeType, TimeToLiveSpecification,
};

use crate::Options;

/// Returns a client of the server that the options name.
pub fn client(options: &Options) -> Result<Client> {
    let variable = |name| std::env::var(name).with_context(|| format!("{name} is not set"));
    let (id, secret) = (variable("AWS_ACCESS_KEY_ID")?, variable("AWS_SECRET_ACCESS_KEY")?);
    let credentials = Credentials::new(id, secret, None, None, "environment");
    let config = Config::builder()
        .behavior_version(BehaviorVersion::latest())
        .endpoint_url(options.text("endpoint")?)
        .region(Region::from_static("us-east-1"))
        .credentials_provider(credentials)
        .build();
    Ok(Client::from_conf(config))
}

/// Creates a table if it does not exist. Several processes may do so at once.
pub async fn make_table(client: &Client, name: &str, key: &str, time_to_live: Option<&str>) -> Result<()> {
    let made = client
        .create_table()
        .table_name(name)
        .billing_mode(BillingMode::PayPerRequest)
        .attribute_definitions(
            AttributeDefinition::builder()
                .attribute_name(key)
                .attribute_type(ScalarAttributeType::S)
                .build()?,
        )
        .key_schema(KeySchemaElement::builder().attribute_name(key).key_type(KeyType::Hash).build()?)
        .send()
        .await;
    match made {
        Ok(_) => {}
        Err(error) if error.as_service_error().is_some_and(|error| error.is_resource_in_use_exception()) => {}
        Err(error) => return Err(error.into()),
    }
    client.wait_until_table_exists().table_name(name).wait(std::time::Duration::from_secs(60)).await?;
    let Some(attribute) = time_to_live else { return Ok(()) };
    let told = client.describe_time_to_live().table_name(name).send().await?;
    if told.time_to_live_description().and_then(|told| told.attribute_name()) == Some(attribute) {
        return Ok(());
    }
    let setting = TimeToLiveSpecification::builder().attribute_name(attribute).enabled(true).build()?;
    let set = client.update_time_to_live().table_name(name).time_to_live_specification(setting).send().await;
    // Another process may have enabled it already.
    let told = client.describe_time_to_live().table_name(name).send().await?;
    match told.time_to_live_description().and_then(|told| told.attribute_name()) == Some(attribute) {
        true => Ok(()),
        false => set.map(drop).context("the table gets no time to live"),
    }
}
