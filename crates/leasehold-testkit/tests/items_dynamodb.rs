//! Items written by other clients, and tables of every kind, on real DynamoDB servers. The tests imitate other
//! clients' writes step by step; `interop_dynamodb.rs` runs those clients.

use std::collections::HashMap;
use std::time::Duration;

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::primitives::Blob;
use aws_sdk_dynamodb::types::{AttributeDefinition, KeySchemaElement};
use aws_sdk_dynamodb::types::{AttributeValue, BillingMode, KeyType, ScalarAttributeType};
use leasehold::clock::{Clock, SystemClock};
use leasehold::lease::{AcquireOutcome, Claim, Evicted, Id, Renewal, State, Ttl};
use leasehold::random::Random;
use leasehold::{ErrorKind, Holder, LockName, Locker, Token};
use leasehold_testkit::process::within;
use leasehold_testkit::servers::Server;
use leasehold_testkit::stores::dynamodb::client as dynamodb_client;

type Item = HashMap<String, AttributeValue>;

/// Generates a test for each case on each server.
macro_rules! cases {
    ($($case:ident)*) => {
        mod moto { $(#[tokio::test] async fn $case() { super::$case(&super::Table::on(super::Server::DYNAMODB_MOTO).await).await; })* }
        mod local { $(#[tokio::test] async fn $case() { super::$case(&super::Table::on(super::Server::DYNAMODB_LOCAL).await).await; })* }
    };
}

cases! {
    attributes_of_other_clients_stay_in_an_item
    tokens_rise_after_another_client_restores_an_old_one
    tokens_rise_after_another_client_removes_the_token
    tokens_rise_although_each_item_is_deleted_at_once
    each_heartbeat_of_another_client_prolongs_its_lease
    a_job_that_only_tries_takes_over_from_a_dead_client
    a_cooldown_keeps_another_client_waiting
    an_item_that_is_not_a_lock_is_never_taken
    another_clients_lock_can_be_evicted
    a_record_that_was_released_by_hand_is_free
    a_duplicated_request_does_not_restore_a_lost_lock
    a_missing_table_is_named_with_help
    several_lockers_create_one_table_at_once
    a_key_of_another_name_is_detected
    a_key_that_is_not_a_string_is_refused
}

struct Table {
    url: String,
    client: Client,
    table: String,
    key: String,
}

impl Table {
    async fn on(server: Server) -> Self {
        let url = server.fresh_url();
        let (client, table) = dynamodb_client(&url).await;
        let path = leasehold::url::StoreUrl::parse(&url).unwrap().path().to_owned();
        Self { url, client, table, key: format!("{}/lock", path.trim_matches('/')) }
    }

    /// Opens a new client, which has nothing in its cache.
    async fn locker(&self) -> Locker {
        self.with("").await
    }

    async fn with(&self, options: &str) -> Locker {
        Locker::open(&format!("{}{options}", self.url)).await.unwrap()
    }

    /// Acquires and releases the lock with a new client. Returns the token.
    async fn token(&self) -> Token {
        let guard = self.locker().await.lock("lock").try_acquire().await.unwrap();
        let token = guard.token().unwrap();
        guard.release().await.unwrap();
        token
    }

    async fn item(&self) -> Option<Item> {
        let request = self.client.get_item().table_name(&self.table).key("key", s(&self.key));
        request.consistent_read(true).send().await.unwrap().item
    }

    async fn put(&self, item: Item) {
        self.client.put_item().table_name(&self.table).set_item(Some(item)).send().await.unwrap();
    }

    async fn delete(&self) {
        let request = self.client.delete_item().table_name(&self.table).key("key", s(&self.key));
        request.send().await.unwrap();
    }

    /// Returns the item that AWS's client writes when it is granted the lock for `lease_ms`.
    fn theirs(&self, lease_ms: u64) -> Item {
        Item::from([
            ("key".to_owned(), s(&self.key)),
            ("ownerName".to_owned(), s("ci-7_4e9d")),
            ("leaseDuration".to_owned(), s(lease_ms.to_string())),
            ("recordVersionNumber".to_owned(), fresh_version()),
        ])
    }

    /// Sends a heartbeat as AWS's client does.
    async fn heartbeat(&self) {
        let request = self.client.update_item().table_name(&self.table).key("key", s(&self.key));
        request
            .update_expression("SET recordVersionNumber = :new")
            .expression_attribute_values(":new", fresh_version())
            .send()
            .await
            .unwrap();
    }

    /// Releases the lock as AWS's client does, which keeps the version.
    async fn mark_released(&self) {
        let request = self.client.update_item().table_name(&self.table).key("key", s(&self.key));
        request
            .update_expression("SET isReleased = :yes")
            .expression_attribute_values(":yes", s("1"))
            .send()
            .await
            .unwrap();
    }
}

fn s(text: impl Into<String>) -> AttributeValue {
    AttributeValue::S(text.into())
}

fn fresh_version() -> AttributeValue {
    s(Id::random(&Random::from_os()).to_string())
}

fn lock() -> LockName {
    LockName::new("lock").unwrap()
}

async fn attributes_of_other_clients_stay_in_an_item(table: &Table) {
    let mut theirs = table.theirs(20_000);
    let kept =
        [("data", AttributeValue::B(Blob::new(*b"theirs"))), ("team", s("payments")), ("isReleased", s("1"))];
    theirs.extend(kept.clone().map(|(name, value)| (name.to_owned(), value)));
    table.put(theirs).await;
    // The first grant takes a read and a write, and the second one takes no read. Each grant is renewed.
    for _ in 0..2 {
        let locker = table.locker().await;
        let guard = locker.lock("lock").acquire().await.unwrap();
        let ticket = guard.into_ticket().await.unwrap();
        locker.renew(&ticket).await.unwrap();
        locker.release(&ticket).await.unwrap();
    }
    let item = table.item().await.unwrap();
    for (name, value) in kept {
        assert_eq!(item.get(name), Some(&value), "{name}");
    }
}

/// The Go client copies what it has read into the item that it writes, however long ago it read that.
async fn tokens_rise_after_another_client_restores_an_old_one(table: &Table) {
    table.token().await;
    let old = table.item().await.unwrap();
    let mut last = table.token().await;
    for released in [true, false] {
        let mut copy = old.clone();
        copy.extend(table.theirs(500));
        if !released {
            copy.remove("isReleased");
        }
        table.put(copy).await;
        let locker = table.locker().await;
        let guard = within("a grant", locker.lock("lock").acquire()).await.unwrap();
        assert!(guard.token().unwrap() > last, "{} after {last}", guard.token().unwrap());
        last = guard.token().unwrap();
        guard.release().await.unwrap();
    }
}

/// AWS's lock client deletes the item of a lock that it releases.
async fn tokens_rise_although_each_item_is_deleted_at_once(table: &Table) {
    let mut last = table.token().await;
    for _ in 0..20 {
        table.delete().await;
        let token = table.token().await;
        assert!(token > last, "{token} after {last}");
        last = token;
    }
}

async fn tokens_rise_after_another_client_removes_the_token(table: &Table) {
    let last = table.token().await;
    let mut theirs = table.theirs(20_000);
    theirs.insert("isReleased".to_owned(), s("1"));
    table.put(theirs).await;
    assert!(table.token().await > last);
}

async fn each_heartbeat_of_another_client_prolongs_its_lease(table: &Table) {
    const LEASE: Duration = Duration::from_secs(8);
    const BEATS: usize = 6;
    table.put(table.theirs(LEASE.as_millis() as u64)).await;
    let locker = table.locker().await;
    let mut waiter = tokio::spawn(async move { locker.lock("lock").acquire().await });
    // This takes longer than a lease.
    for _ in 0..BEATS {
        SystemClock.sleep(LEASE / 4).await;
        assert!(!waiter.is_finished(), "granted while it was alive");
        table.heartbeat().await;
    }
    let last = SystemClock.now();
    let guard = within("the lapse", &mut waiter).await.unwrap().unwrap();
    assert!(SystemClock.now().longest_since(last) >= LEASE, "granted before the lease was over");
    guard.release().await.unwrap();
}

/// Each try is a new process, as with a cron job, and none watches for long. The items contain no time.
async fn a_job_that_only_tries_takes_over_from_a_dead_client(table: &Table) {
    table.put(table.theirs(1_000)).await;
    let began = SystemClock.now();
    let granted = async {
        loop {
            match table.with("&margin=0s").await.lock("lock").try_acquire().await {
                Ok(guard) => return guard,
                Err(error) => assert_eq!(error.kind(), ErrorKind::Held, "{error:?}"),
            }
            SystemClock.sleep(Duration::from_millis(200)).await;
        }
    };
    let guard = within("the lapse", granted).await;
    assert!(SystemClock.now().longest_since(began) >= Duration::from_secs(1));
    guard.release().await.unwrap();
}

/// AWS's client waits until it has seen no change for the item's leaseDuration. It takes an item with isReleased at
/// once.
async fn a_cooldown_keeps_another_client_waiting(table: &Table) {
    let locker = table.locker().await;
    let env = locker.store().env().clone();
    let ttl = leasehold::lease::Ttl::new(Duration::from_secs(60)).unwrap();
    let claim = leasehold::lease::Claim::new(&env, lock(), ttl, leasehold::Holder::this_process());
    let leasehold::lease::AcquireOutcome::Granted(mut grant) =
        locker.store().try_acquire(&claim).await.unwrap()
    else {
        panic!("refused")
    };
    locker.store().release(&mut grant, Some(Duration::from_secs(3_600))).await.unwrap();
    let item = table.item().await.unwrap();
    assert_eq!((item.get("leaseDuration"), item.get("isReleased")), (Some(&s("3600000")), None));
    let error = table.locker().await.lock("lock").try_acquire().await.unwrap_err();
    assert!(error.holder().unwrap().in_cooldown, "{error:?}");
}

async fn an_item_that_is_not_a_lock_is_never_taken(table: &Table) {
    let mut order = table.theirs(20_000);
    order.remove("ownerName");
    order.insert("isReleased".to_owned(), s("1"));
    order.insert("amount".to_owned(), AttributeValue::N("7".to_owned()));
    table.put(order.clone()).await;
    for _ in 0..2 {
        let error = table.locker().await.lock("lock").try_acquire().await.unwrap_err();
        let foreign = error.holder().and_then(|held| held.foreign.clone());
        assert!(foreign.is_some_and(|what| what.contains("ownerName")), "{error:?}");
    }
    assert_eq!(table.item().await, Some(order));
}

async fn another_clients_lock_can_be_evicted(table: &Table) {
    let last = table.token().await;
    table.put(table.theirs(3_600_000)).await;
    let locker = table.locker().await;
    let State::Held(held) = locker.inspect(&lock()).await.unwrap().state else { panic!("not held") };
    let evicted = locker.evict(&lock(), held.token.unwrap()).await.unwrap();
    assert_eq!(evicted, Evicted::Evicted);
    assert!(table.token().await > last);
}

/// An operator releases the record with AWS's client, which keeps the version.
async fn a_record_that_was_released_by_hand_is_free(table: &Table) {
    let holder = table.locker().await;
    let ticket = holder.lock("lock").try_acquire().await.unwrap().into_ticket().await.unwrap();
    table.mark_released().await;
    assert_eq!(table.locker().await.inspect(&lock()).await.unwrap().state, State::Free);
    assert!(table.token().await > ticket.token());
    let error = holder.renew(&ticket).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost, "{error:?}");
}

/// A duplicate of a grant restores an earlier `recordVersionNumber`, the one that its holder's next renewal expects.
/// But others were granted the lock in between.
async fn a_duplicated_request_does_not_restore_a_lost_lock(table: &Table) {
    table.token().await;
    let (one, two) = (table.locker().await, table.locker().await);
    let ttl = Ttl::new(Duration::from_secs(60)).unwrap();
    let claim = Claim::new(one.store().env(), lock(), ttl, Holder::this_process());
    let AcquireOutcome::Granted(mut grant) = one.store().try_acquire(&claim).await.unwrap() else {
        panic!("held")
    };
    let mut again = table.item().await.unwrap();
    assert_eq!(two.evict(&lock(), grant.token).await.unwrap(), Evicted::Evicted);
    let between = table.token().await;
    assert!(between > grant.token);
    again.insert("fencingToken".to_owned(), AttributeValue::N((between.get() + 1).to_string()));
    table.put(again).await;
    let renewal = one.store().renew(&mut grant).await.unwrap();
    assert!(matches!(renewal, Renewal::Lost(_)), "{renewal:?}");
}

fn elsewhere(table: &Table, name: &str) -> String {
    table.url.replacen(&table.table, name, 1)
}

fn unused_name() -> String {
    format!("made-{}", Id::random(&Random::from_os()))
}

async fn a_missing_table_is_named_with_help(table: &Table) {
    let name = unused_name();
    let locker = Locker::open(&elsewhere(table, &name)).await.unwrap();
    let error = locker.lock("lock").try_acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error:?}");
    let help = error.help().join(" ");
    assert!(
        help.contains(&name) && help.contains("leasehold init") && help.contains("create=true"),
        "{help}"
    );
}

async fn several_lockers_create_one_table_at_once(table: &Table) {
    let url = elsewhere(table, &unused_name());
    let create = format!("{url}&create=true");
    let all = tokio::join!(Locker::open(&create), Locker::open(&create), Locker::open(&create));
    for locker in [all.0, all.1, all.2] {
        locker.unwrap().lock("lock").acquire().await.unwrap().release().await.unwrap();
    }
    let locker = Locker::open(&url).await.unwrap();
    locker.init().await.unwrap();
    assert_eq!(locker.inspect(&lock()).await.unwrap().history.len(), 3, "what is there stays there");
}

/// Creates a table with a partition key of this name and type. Returns its store URL.
async fn with_key(table: &Table, name: &str, kind: ScalarAttributeType) -> String {
    let unused = unused_name();
    let key = KeySchemaElement::builder().attribute_name(name).key_type(KeyType::Hash).build().unwrap();
    let definition =
        AttributeDefinition::builder().attribute_name(name).attribute_type(kind).build().unwrap();
    let request = table.client.create_table().table_name(&unused).key_schema(key);
    let request = request.attribute_definitions(definition).billing_mode(BillingMode::PayPerRequest);
    request.send().await.unwrap();
    elsewhere(table, &unused)
}

async fn a_key_of_another_name_is_detected(table: &Table) {
    let url = with_key(table, "LockID", ScalarAttributeType::S).await;
    for url in [url.clone(), format!("{url}&create=true"), format!("{url}&partition_key=LockID")] {
        let locker = Locker::open(&url).await.unwrap();
        let guard = locker.lock("lock").try_acquire().await.unwrap();
        let other = Locker::open(&url).await.unwrap();
        assert_eq!(other.lock("lock").try_acquire().await.unwrap_err().kind(), ErrorKind::Held);
        guard.release().await.unwrap();
    }
    let error =
        Locker::open(&format!("{url}&partition_key=id")).await.unwrap().lock("lock").try_acquire().await;
    assert!(error.unwrap_err().to_string().contains("`LockID`"));
}

async fn a_key_that_is_not_a_string_is_refused(table: &Table) {
    let url = with_key(table, "id", ScalarAttributeType::N).await;
    let created = Locker::open(&format!("{url}&create=true")).await.map(|_| ());
    let used = Locker::open(&url).await.unwrap().lock("lock").try_acquire().await.map(|_| ());
    for error in [created.unwrap_err(), used.unwrap_err()] {
        assert!(error.kind() == ErrorKind::Invalid && error.to_string().contains("`id`"), "{error:?}");
        assert!(error.help().join(" ").contains("leasehold init"), "{error:?}");
    }
}
