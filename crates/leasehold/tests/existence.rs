//! Locks that are objects (`protocol=existence`). A release deletes the object, so these tests cover late requests and
//! objects that other clients wrote.

mod late_writes;

use std::sync::Arc;
use std::time::Duration;

use crate::common::{Client, TTL, World, contender_span, granted, name};
use async_trait::async_trait;
use bytes::Bytes;
use futures_util::TryStreamExt;
use leasehold::clock::TestClock;
use leasehold::env::Env;
use leasehold::error::StoreError;
use leasehold::lease::{Evicted, Grant, LeaseStore, Released, Renewal, StoreOptions};
use leasehold::register::{
    Body, Deleted, Precondition, Register, RegisterCapabilities, Version, VersionedValue, Write,
};
use leasehold::stores::memory::MemoryRegister;
use leasehold::{ErrorKind, LockName, Locker, LossReason, RegisterLeases, Token};
use leasehold_testkit::fault::{FaultyRegister, Kind, Outcome};
use leasehold_testkit::layer::{Layer, Layered};
use leasehold_testkit::machine::Machine;

const SECOND: Duration = Duration::from_secs(1);
/// The key of the lock's object: the lock's name, unchanged.
const KEY: &str = "x";

impl World {
    async fn object(&self) -> Option<VersionedValue> {
        self.register.read(KEY).await.unwrap()
    }

    /// Creates the object as a plain client does, with content that leasehold does not understand.
    async fn foreign(&self, content: &'static str) -> Write {
        self.register
            .write(KEY, Precondition::Absent, Bytes::from_static(content.as_bytes()).into())
            .await
            .unwrap()
    }

    /// Deletes the object, as a plain client or an operator does.
    async fn remove(&self) {
        let cell = self.object().await.expect("there is no object");
        assert_eq!(self.register.delete(KEY, &cell.version).await.unwrap(), Deleted::Deleted);
    }
}

impl Client {
    async fn release(&self, grant: &mut Grant) -> Released {
        self.leases.release(grant, None).await.unwrap()
    }

    async fn renew(&self, grant: &mut Grant) {
        assert!(matches!(self.leases.renew(grant).await.unwrap(), Renewal::Renewed));
    }
}

#[tokio::test(start_paused = true)]
async fn a_lock_is_held_while_its_object_exists() {
    let world = World::by_existence();
    let (one, two) = (world.observer(1), world.observer(2));
    let mut grant = one.granted().await;
    assert_eq!(world.foreign("1").await, Write::Conflict, "a plain client's create is refused");
    two.held().await;
    assert_eq!(one.release(&mut grant).await, Released::Released);
    assert_eq!(world.object().await, None);
    assert!(matches!(world.foreign("1").await, Write::Committed(_)));
}

#[tokio::test(start_paused = true)]
async fn foreign_objects_are_never_taken_over() {
    for content in ["", "1", "{}", "{\"ID\":\"terraform\"}", "{\"protocol\":\"existence\"}"] {
        let world = World::by_existence();
        let client = world.dated(1);
        world.foreign(content).await;
        for _ in 0..3 {
            let held = client.held().await;
            assert!(held.foreign.is_some() && held.lapses_within.is_none(), "{held:?}");
            client.env.sleep(TTL * 1_000).await;
        }
        let error = client.leases.evict(&name(), Token::new(7).unwrap(), None).await.unwrap_err();
        assert_eq!(error.fault().kind, ErrorKind::Unsupported, "{error:?}");
        assert_eq!(world.object().await.unwrap().value, content);
        world.remove().await;
        client.granted().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_waiter_gets_a_lock_when_a_plain_client_deletes_it() {
    let world = World::by_existence();
    world.foreign("1").await;
    let client = world.observer(1);
    let lock = Locker::new(client.leases.clone()).lock("x");
    let refused = lock.try_acquire().await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Held);
    assert!(refused.to_string().contains("unknown holder"), "{refused}");
    let waiter = tokio::spawn(async move { lock.acquire().await });
    client.network.until(|counts| counts.reads >= 3).await;
    assert_eq!(client.network.counts().writes, 0, "it asks by reading");
    world.remove().await;
    waiter.await.unwrap().unwrap().check().unwrap();
}

#[tokio::test(start_paused = true)]
async fn tokens_are_generations_and_stay_when_the_lease_is_renewed() {
    let world = World::by_existence();
    let (one, two) = (world.observer(1), world.observer(2));
    let mut first = one.granted().await;
    assert_eq!(first.token.to_string(), world.object().await.unwrap().version.as_str());
    for _ in 0..3 {
        one.renew(&mut first).await;
        assert_eq!(two.held().await.token, Some(first.token));
    }
    let mut tokens = vec![first.token];
    // Two takeovers, for which the object exists throughout; then a deletion by hand, and then a release.
    for client in [&two, &one] {
        client.held().await;
        client.env.sleep(contender_span()).await;
        tokens.push(client.granted().await.token);
    }
    world.remove().await;
    let mut last = two.granted().await;
    tokens.push(last.token);
    two.release(&mut last).await;
    tokens.push(one.granted().await.token);
    assert!(tokens.is_sorted_by(|one, next| one < next), "{tokens:?}");
}

#[tokio::test(start_paused = true)]
async fn a_delete_with_a_lost_response_counts_as_done() {
    let world = World::by_existence();
    let (one, two) = (world.observer(1), world.observer(2));
    let mut grant = one.granted().await;
    one.network.next_delete(Outcome::AppliedLost);
    assert_eq!(one.release(&mut grant).await, Released::Released);
    // The same applies if another client has the lock by now.
    let mut grant = one.granted().await;
    one.network.next_delete(Outcome::AppliedLost);
    one.network.next_read(Outcome::Stalled);
    let release = {
        let leases = one.leases.clone();
        tokio::spawn(async move { leases.release(&mut grant, None).await })
    };
    one.network.until(|counts| counts.deletes == 2).await;
    let next = two.granted().await;
    one.network.deliver().await;
    assert_eq!(release.await.unwrap().unwrap(), Released::Released);
    one.network.next_delete(Outcome::AppliedLost);
    assert_eq!(one.leases.evict(&name(), next.token, None).await.unwrap(), Evicted::Evicted);
    assert_eq!(world.object().await, None);
    // If the object was deleted by hand, the release reports a loss.
    let mut grant = one.granted().await;
    world.remove().await;
    assert_eq!(one.release(&mut grant).await, Released::AlreadyLost);
}

#[tokio::test(start_paused = true)]
async fn a_create_with_a_lost_response_is_recognised() {
    let world = World::by_existence();
    let (one, two) = (world.observer(1), world.observer(2));
    one.network.next_write(Outcome::AppliedLost);
    let mut grant = one.granted().await;
    assert_eq!(one.network.counts().writes, 1, "it is not written again");
    one.env.sleep(SECOND * 4).await; // A search for late creates would have found it by now.
    assert_eq!(two.held().await.token, Some(grant.token));
    one.renew(&mut grant).await;
    assert_eq!(one.release(&mut grant).await, Released::Released);
}

/// As with a release whose response was lost, the named grant is over, and this eviction may have ended it.
#[tokio::test(start_paused = true)]
async fn an_eviction_with_a_lost_response_counts_despite_a_new_grant() {
    let world = World::by_existence();
    let (one, two) = (world.observer(1), world.observer(2));
    let holder = one.granted().await;
    two.network.next_delete(Outcome::AppliedLost);
    two.network.next_read(Outcome::Fine);
    two.network.next_read(Outcome::Stalled);
    let evict = {
        let leases = two.leases.clone();
        tokio::spawn(async move { leases.evict(&name(), holder.token, None).await })
    };
    two.network.until(|counts| counts.reads == 2).await;
    one.granted().await;
    two.network.deliver().await;
    assert_eq!(evict.await.unwrap().unwrap(), Evicted::Evicted);
}

/// Without tokens, grants have numbers. A number must identify one grant, because `evict` ends the grant with that
/// number. The store's time is not enough: a `Date` is exact to a second, and writes are microseconds apart.
#[tokio::test(start_paused = true)]
async fn without_generations_each_grant_has_its_own_number() {
    let world = World::by_existence();
    let mut numbers = Vec::new();
    for seed in 1..=4 {
        let client = without_generations(&world, seed);
        let mut grant = client.granted().await;
        numbers.push(grant.token);
        client.release(&mut grant).await;
    }
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len(), 4, "{numbers:?}");
}

/// An operator restores an old object (by an undelete, or as an older version). A takeover from its dead holder gets a
/// token above all those granted in between.
#[tokio::test(start_paused = true)]
async fn a_takeover_of_a_restored_object_gets_the_highest_token() {
    let world = World::by_existence();
    let (one, two) = (world.observer(1), world.observer(2));
    let mut dead = one.granted().await;
    one.renew(&mut dead).await;
    let old = world.object().await.unwrap().value;
    world.remove().await;
    let mut between = two.granted().await;
    two.release(&mut between).await;
    assert!(matches!(
        world.register.write(KEY, Precondition::Absent, old.into()).await.unwrap(),
        Write::Committed(_)
    ));
    two.held().await;
    two.env.sleep(contender_span()).await;
    let mut next = two.granted().await;
    assert!(next.token > between.token, "{:?} after {:?}", next.token, between.token);
    two.release(&mut next).await;
    assert!(one.granted().await.token > next.token);
}

async fn token_in_store(client: &Client) -> Token {
    client.leases.inspect(&name()).await.unwrap().token.unwrap()
}

/// Creates a machine on the same objects. The versions of its store are not generations, as on S3.
fn without_generations(world: &World, seed: u64) -> Client {
    let clock = Arc::new(TestClock::default());
    let env = Env::seeded(clock.clone(), seed + 1);
    let network = FaultyRegister::new(Arc::new(Layered(NoGenerations(world.register.clone()))));
    let mut options = StoreOptions::default();
    options.env = env.clone();
    options.store_clock = false;
    let machine = Machine::new(Arc::new(network.clone()), env.clone());
    let leases = Arc::new(RegisterLeases::by_existence(Arc::new(machine), options));
    Client { leases, network, clock, env }
}

#[derive(Debug)]
struct NoGenerations(Arc<MemoryRegister>);

impl Layer for NoGenerations {
    fn inner(&self) -> &dyn Register {
        &*self.0
    }
    fn capabilities(&self) -> RegisterCapabilities {
        let mut capabilities = self.0.capabilities();
        capabilities.generations = false;
        capabilities
    }
}

/// Rule 8: a client that saw the first grant of a claim does not mistake the second one for it.
#[tokio::test(start_paused = true)]
async fn grants_of_one_claim_have_different_heartbeats() {
    let world = World::by_existence();
    let one = world.observer(1);
    let claim = one.claim();
    let mut heartbeats = Vec::new();
    for _ in 0..3 {
        let mut grant = granted(one.leases.try_acquire(&claim).await.unwrap());
        let record: serde_json::Value = serde_json::from_slice(&world.object().await.unwrap().value).unwrap();
        heartbeats.push(record["heartbeat"].as_u64().unwrap());
        one.release(&mut grant).await;
    }
    heartbeats.sort_unstable();
    heartbeats.dedup();
    assert_eq!(heartbeats.len(), 3);
}

#[tokio::test(start_paused = true)]
async fn the_two_protocols_leave_each_others_objects_alone() {
    let world = World::by_existence();
    let by_existence = world.observer(1);
    let by_record = World { by_existence: false, ..world }.observer(2);
    let lock = |store: &Client, lock: &str| Locker::new(store.leases.clone()).lock(lock);
    // The object of the existence protocol's lock `x.lock` is also the record of the lease protocol's lock `x`.
    let theirs = lock(&by_record, "x").acquire().await.unwrap();
    let refused = async || lock(&by_existence, "x.lock").try_acquire().await.unwrap_err().to_string();
    assert!(refused().await.contains("protocol=lease"), "{}", refused().await);
    theirs.release().await.unwrap();
    assert!(refused().await.contains("protocol=lease"), "free there, and held here: {}", refused().await);
    let ours = lock(&by_existence, "y.lock").acquire().await.unwrap();
    let refused = lock(&by_record, "y").try_acquire().await.unwrap_err();
    assert!(refused.to_string().contains("protocol=existence"), "{refused}");
    ours.release().await.unwrap();
    lock(&by_record, "y").acquire().await.unwrap().check().unwrap();
}

#[tokio::test(start_paused = true)]
async fn operations_that_this_protocol_lacks_are_refused() {
    let world = World::by_existence();
    let one = world.observer(1);
    let capabilities = one.leases.capabilities();
    assert!(capabilities.tokens && !capabilities.history && !capabilities.cooldowns);
    let mut grant = one.granted().await;
    let error = one.leases.release(&mut grant, Some(SECOND)).await.unwrap_err();
    assert_eq!(error.fault().kind, ErrorKind::Unsupported);
    one.renew(&mut grant).await;
    let reserved =
        Locker::new(one.leases.clone()).lock(".leasehold-probe-x").try_acquire().await.unwrap_err();
    assert_eq!(reserved.kind(), ErrorKind::Invalid);
    let names: Vec<LockName> = one.leases.list("").try_collect().await.unwrap();
    assert_eq!(names, [name()]);
}

/// The flaw of a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flaw {
    /// No flaw, but versions are not numbers.
    NoGenerations,
    /// Deletes are unconditional.
    DeletesBlindly,
    /// Deletes are not atomic: the register checks the version first and deletes later.
    DeletesLate,
    /// Conditional deletes never succeed.
    NeverDeletes,
}

#[derive(Debug)]
struct Flawed {
    inner: MemoryRegister,
    flaw: Flaw,
}

#[async_trait]
impl Layer for Flawed {
    fn inner(&self) -> &dyn Register {
        &self.inner
    }
    async fn write(&self, key: &str, expect: Precondition<'_>, body: Body) -> Result<Write, StoreError> {
        tokio::task::yield_now().await;
        self.inner.write(key, expect, body).await
    }
    async fn delete(&self, key: &str, version: &Version) -> Result<Deleted, StoreError> {
        let found = self.inner.read(key).await?.map(|cell| cell.version);
        match (self.flaw, found) {
            (Flaw::NeverDeletes, _) => Ok(Deleted::Conflict),
            (Flaw::DeletesBlindly, Some(found)) => self.inner.delete(key, &found).await,
            (Flaw::DeletesLate, Some(found)) if found == *version => {
                for _ in 0..10 {
                    tokio::task::yield_now().await;
                }
                if let Some(now) = self.inner.read(key).await? {
                    self.inner.delete(key, &now.version).await?;
                }
                Ok(Deleted::Deleted)
            }
            _ => self.inner.delete(key, version).await,
        }
    }
    fn capabilities(&self) -> RegisterCapabilities {
        let mut capabilities = self.inner.capabilities();
        capabilities.trusted = false;
        capabilities.generations = self.flaw != Flaw::NoGenerations;
        capabilities
    }
}

fn flawed(flaw: Flaw) -> (Arc<Layered<Flawed>>, Arc<RegisterLeases>) {
    let env = Env::seeded(World::new().clock, 1);
    let mut options = StoreOptions::default();
    options.env = env.clone();
    let register = Arc::new(Layered(Flawed { inner: MemoryRegister::new(env), flaw }));
    (register.clone(), Arc::new(RegisterLeases::by_existence(register, options)))
}

/// The store is refused before the first grant, not at the first release.
#[tokio::test(start_paused = true)]
async fn a_store_with_unsafe_deletes_is_refused_before_it_grants() {
    for flaw in [Flaw::DeletesBlindly, Flaw::DeletesLate, Flaw::NeverDeletes] {
        let (register, leases) = flawed(flaw);
        for _ in 0..2 {
            let error = Locker::new(leases.clone()).lock("x").try_acquire().await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{flaw:?}: {error:?}");
            assert!(error.help()[0].contains("leave out ?protocol"), "{error:?}");
        }
        assert_eq!(register.read("x").await.unwrap(), None);
    }
}

/// A correct store is accepted. Its examination leaves only the markers.
#[tokio::test(start_paused = true)]
async fn without_generations_there_are_no_tokens() {
    let (register, leases) = flawed(Flaw::NoGenerations);
    assert!(!leases.capabilities().tokens);
    let guard = Locker::new(leases).lock("x").try_acquire().await.unwrap();
    let error = guard.token().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("no fencing tokens") && !error.help().is_empty(), "{error:?}");
    guard.release().await.unwrap();
    let keys: Vec<String> = register.list("").try_collect().await.unwrap();
    assert_eq!(keys, [".leasehold-probe", ".leasehold-probe-delete"]);
}
