//! How many requests a lock costs on DynamoDB beside other clients and after a lost response. `budgets.rs` has the
//! other tests.

use aws_sdk_dynamodb::types::AttributeValue;
use leasehold::url::StoreUrl;
use leasehold_testkit::proxy::Harm;
use leasehold_testkit::stores::dynamodb;

use crate::budgets::Counted;

/// The token of the released item may be stale, so the grant is conditional on the item as it was read. The refused
/// write returned the item.
#[tokio::test]
async fn a_lock_that_another_client_released_costs_no_read() {
    let (counted, url) = Counted::on("dynamodb_local");
    let (client, table) = dynamodb::client(&url).await;
    let path = StoreUrl::parse(&url).unwrap().path().trim_matches('/').to_owned();
    let attributes = [
        ("key", format!("{path}/lock")),
        ("ownerName", "them".to_owned()),
        ("leaseDuration", "20000".to_owned()),
        ("recordVersionNumber", "v1".to_owned()),
        ("isReleased", "1".to_owned()),
    ];
    let item = attributes.map(|(name, text)| (name.to_owned(), AttributeValue::S(text)));
    client.put_item().table_name(table).set_item(Some(item.into())).send().await.unwrap();
    let client = counted.client(&url).await;
    client.granted().await;
    assert_eq!(client.requests(), ["UpdateItem", "UpdateItem"]);
}

/// If the response to an applied write is lost, one read finds that the write was applied.
#[tokio::test]
async fn a_grant_with_a_lost_response_increments_its_token_once() {
    let (counted, url) = Counted::on("dynamodb_local");
    let client = counted.client(&url).await;
    let mut grant = client.granted().await;
    client.released(&mut grant).await;
    client.proxy.reset();
    client.proxy.next("POST", Harm::AnswerLost);
    let mut warm = client.granted().await;
    assert_eq!(client.requests(), ["UpdateItem", "GetItem"], "the write is resolved by a read");
    assert!(warm.token > grant.token);
    client.released(&mut warm).await;

    // This grant is over an item that the client has not read. The token is in the item.
    let other = counted.client(&url).await;
    // The proxy's endpoint has not been examined yet, so another lock triggers that first.
    other.locker.lock("another").try_acquire().await.unwrap().release().await.unwrap();
    other.proxy.reset();
    other.proxy.next("POST", Harm::AnswerLost);
    let cold = other.granted().await;
    assert_eq!(other.requests(), ["UpdateItem", "GetItem"]);
    assert_eq!(cold.token.get(), warm.token.get() + 1, "counted on, once");
}
