//! How many requests a lock costs on GCS with the existence protocol. `budgets.rs` has the other tests.

use leasehold_testkit::servers::with_option;

use crate::budgets::Counted;

/// Each step costs as many requests as with records. A release is a delete.
#[tokio::test]
async fn each_step_of_a_lock_that_is_an_object_costs_as_much() {
    let (counted, url) = Counted::on("gcs");
    let client = counted.client(&with_option(&url, "protocol=existence")).await;
    let mut grant = client.granted().await;
    assert_eq!(client.requests(), ["GET", "POST"], "a cold acquisition");
    client.proxy.reset();
    client.renewed(&mut grant).await;
    assert_eq!(client.requests(), ["POST"], "a renewal");
    client.proxy.reset();
    client.released(&mut grant).await;
    assert_eq!(client.requests(), ["DELETE"], "a release");
    client.proxy.reset();
    client.granted().await;
    assert_eq!(client.requests(), ["POST"], "a warm acquisition");
}
