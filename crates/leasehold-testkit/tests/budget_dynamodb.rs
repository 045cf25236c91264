//! How many requests a lock costs on DynamoDB, counted on the wire.

use std::time::Duration;

use aws_sdk_dynamodb::types::AttributeValue;
use leasehold::lease::{AcquireOutcome, Claim, Grant, Held};
use leasehold::url::StoreUrl;
use leasehold::{Holder, LockName, Locker, lease};
use leasehold_testkit::harness::dynamodb_client;
use leasehold_testkit::proxy::{Harm, Proxy, Seen};
use leasehold_testkit::servers::{self, Server};

const SERVER: Server = Server::DynamoDbLocal;

/// A client whose requests go through a proxy of its own.
async fn counted(url: &str) -> (Proxy, Locker) {
    let proxy = Proxy::start(SERVER.address()).await;
    let locker = Locker::open(&servers::through(url, proxy.address())).await.unwrap();
    (proxy, locker)
}

/// The operations on the lock's item, in order. A fresh client looks at its table first, and examines an endpoint that is
/// not Amazon's own by other items.
fn operations(proxy: &Proxy) -> Vec<String> {
    proxy.log().iter().filter_map(operation).collect()
}

fn operation(seen: &Seen) -> Option<String> {
    let body: serde_json::Value = serde_json::from_slice(&seen.body).unwrap();
    let key = body["Key"]["key"]["S"].as_str()?;
    let (_, operation) = seen.target.as_ref()?.rsplit_once('.')?;
    key.ends_with("/lock").then(|| operation.to_owned())
}

fn claim(locker: &Locker) -> Claim {
    let ttl = lease::Ttl::new(Duration::from_secs(60)).unwrap();
    Claim::new(locker.store().env(), LockName::new("lock").unwrap(), ttl, Holder::this_process())
}

async fn granted(locker: &Locker) -> Grant {
    match locker.store().try_acquire(&claim(locker)).await.unwrap() {
        AcquireOutcome::Granted(grant) => grant,
        other => panic!("{other:?}"),
    }
}

async fn refused(locker: &Locker) -> Held {
    match locker.store().try_acquire(&claim(locker)).await.unwrap() {
        AcquireOutcome::Held(held) => held,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn each_step_of_a_lock_costs_what_the_documentation_says() {
    let url = SERVER.fresh_url();
    let (proxy, locker) = counted(&url).await;
    let store = locker.store();

    let mut grant = granted(&locker).await;
    // The first finds that there is no item, whose token could be counted on, and tells the time; the second creates it;
    // the third gives it a token that is certainly new.
    assert_eq!(operations(&proxy), ["UpdateItem"; 3], "the first acquisition ever");
    proxy.reset();
    store.renew(&mut grant).await.unwrap();
    store.renew(&mut grant).await.unwrap();
    assert_eq!(operations(&proxy), ["UpdateItem", "UpdateItem"], "two renewals");
    proxy.reset();
    store.release(&mut grant, None).await.unwrap();
    assert_eq!(operations(&proxy), ["UpdateItem"], "a release");
    proxy.reset();
    let mut warm = granted(&locker).await;
    assert_eq!(operations(&proxy), ["UpdateItem"], "a warm acquisition");

    let (proxy, other) = counted(&url).await;
    let held = refused(&other).await;
    assert_eq!(operations(&proxy), ["UpdateItem"], "a refusal");
    assert_eq!((held.holder, held.token), (Some(Holder::this_process()), Some(warm.token)));
    store.release(&mut warm, None).await.unwrap();

    let (proxy, other) = counted(&url).await;
    let cold = granted(&other).await;
    assert_eq!(operations(&proxy), ["UpdateItem"], "a cold acquisition");
    assert!(grant.token < warm.token && warm.token < cold.token);
}

/// Its token cannot be counted on, so the item is granted over as it was read; the refusal has brought it along.
#[tokio::test]
async fn a_lock_that_another_client_released_costs_no_read() {
    let url = SERVER.fresh_url();
    let (client, table) = dynamodb_client(&url).await;
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
    let (proxy, locker) = counted(&url).await;
    granted(&locker).await;
    assert_eq!(operations(&proxy), ["UpdateItem", "UpdateItem"]);
}

#[tokio::test]
async fn a_waiter_reads_and_never_writes() {
    let url = SERVER.fresh_url();
    let holder = Locker::open(&url).await.unwrap();
    let mut grant = granted(&holder).await;
    let (proxy, locker) = counted(&url).await;
    let waiter = tokio::spawn(async move { locker.lock("lock").acquire().await });
    proxy.until(|log| log.iter().filter_map(operation).count() >= 4).await;
    let asked = operations(&proxy);
    assert_eq!(asked[0], "UpdateItem", "the try that found it held");
    assert!(asked[1..].iter().all(|operation| operation == "GetItem"), "{asked:?}");
    holder.store().release(&mut grant, None).await.unwrap();
    waiter.await.unwrap().unwrap().release().await.unwrap();
    let writes = operations(&proxy).iter().filter(|operation| *operation == "UpdateItem").count();
    assert_eq!(writes, 3, "the try, one write to acquire, one to release");
}

/// An applied write whose answer was lost is not sent again as if it had not been: it is read back and recognised.
#[tokio::test]
async fn a_lost_answer_costs_one_read_more() {
    let url = SERVER.fresh_url();
    let (proxy, locker) = counted(&url).await;
    let mut grant = granted(&locker).await;
    locker.store().release(&mut grant, None).await.unwrap();
    proxy.reset();
    proxy.next("POST", Harm::AnswerLost);
    let mut warm = granted(&locker).await;
    assert_eq!(operations(&proxy), ["UpdateItem", "GetItem"], "the write is resolved by a read");
    assert!(warm.token > grant.token);
    locker.store().release(&mut warm, None).await.unwrap();

    // A grant over an item that was not read: the token is what the item says.
    let (proxy, other) = counted(&url).await;
    // The proxy is an endpoint that nobody has examined yet: that comes first.
    other.lock("another").try_acquire().await.unwrap().release().await.unwrap();
    proxy.reset();
    proxy.next("POST", Harm::AnswerLost);
    let cold = granted(&other).await;
    assert_eq!(operations(&proxy), ["UpdateItem", "GetItem"]);
    assert_eq!(cold.token.get(), warm.token.get() + 1, "counted on, once");
}
