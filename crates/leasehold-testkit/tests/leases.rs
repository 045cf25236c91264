//! Steps of the tests that use the leases of a store directly, without a `Lock`, or wait for a renewal of a guard.

use std::sync::Arc;
use std::time::Duration;

use leasehold::clock::{Clock, SystemClock};
use leasehold::lease::{
    AcquireOutcome, Claim, Grant, HolderInfo, LeaseStore, State, Status, StoreOptions, Token, Ttl,
};
use leasehold::url::StoreUrl;
use leasehold::{Guard, Holder, LockName};
use leasehold_testkit::process::within;

/// The ttl of [`claim`].
pub(crate) const TTL: Duration = Duration::from_secs(30);

pub(crate) async fn open(url: &str) -> Arc<dyn LeaseStore> {
    leasehold::stores::open(StoreUrl::parse(url).unwrap(), StoreOptions::default()).await.unwrap()
}

/// Returns the name of the lock of [`claim`].
pub(crate) fn lock() -> LockName {
    LockName::new("lock").unwrap()
}

pub(crate) fn claim_of(store: &dyn LeaseStore, name: &str, ttl: Duration) -> Claim {
    let name = LockName::new(name).unwrap();
    Claim::new(store.env(), name, Ttl::new(ttl).unwrap(), Holder::this_process())
}

pub(crate) fn claim(store: &dyn LeaseStore) -> Claim {
    claim_of(store, "lock", TTL)
}

pub(crate) async fn granted_to(store: &dyn LeaseStore, claim: &Claim) -> Grant {
    match store.try_acquire(claim).await.unwrap() {
        AcquireOutcome::Granted(grant) => grant,
        other => panic!("{other:?}"),
    }
}

pub(crate) async fn granted(store: &dyn LeaseStore) -> Grant {
    granted_to(store, &claim(store)).await
}

/// Waits until the lock of `guard` is renewed.
pub(crate) async fn until_renewed(guard: &Guard) {
    let renewed = async {
        let mut left = guard.remaining();
        while guard.remaining() <= left {
            left = guard.remaining();
            SystemClock.sleep(Duration::from_millis(50)).await;
        }
    };
    within("a renewal", renewed).await;
}

/// Returns the holder in the first stored formats.
pub(crate) fn alice() -> Holder {
    let mut alice = Holder::new("alice", "ci-7", 4121);
    alice.note = Some("make deploy".into());
    alice
}

/// Asserts that the store reads the lock as the first version wrote it: `holder` has it, and bob had it before.
pub(crate) async fn shows_the_first_format(store: &dyn LeaseStore, holder: &Holder) -> Status {
    let status = store.inspect(&lock()).await.unwrap();
    let State::Held(held) = &status.state else { panic!("{status:?}") };
    assert_eq!(held.holder.as_ref(), Some(holder));
    assert_eq!(status.token.map(Token::get), Some(1_763_654_400_000_041));
    assert_eq!((status.history.len(), status.history[0].holder.name.as_str()), (1, "bob"));
    status
}

/// Asserts that `claim` is not granted. Returns what the store reports about the holder.
pub(crate) async fn refused_to(store: &dyn LeaseStore, claim: &Claim) -> HolderInfo {
    match store.try_acquire(claim).await.unwrap() {
        AcquireOutcome::Held(held) => held,
        other => panic!("{other:?}"),
    }
}

pub(crate) async fn refused(store: &dyn LeaseStore) -> HolderInfo {
    refused_to(store, &claim(store)).await
}

/// Asserts that a claim which already holds the lock gets no lease that is longer than the grace.
#[cfg(any(feature = "mysql", feature = "postgres"))]
pub(crate) async fn assert_repetition_cannot_outlast(store: &dyn LeaseStore, grace: Duration) {
    let mut claim = claim(store);
    claim.repeatable = true;
    granted_to(store, &claim).await;
    claim.ttl = Ttl::new(2 * grace).unwrap();
    let error = store.try_acquire(&claim).await.unwrap_err();
    assert_eq!(error.fault().kind, leasehold::ErrorKind::Invalid, "{error}");
    claim.ttl = Ttl::new(TTL).unwrap();
    granted_to(store, &claim).await;
}

/// Returns a claim whose client gives up soon.
#[cfg(any(feature = "mysql", feature = "postgres"))]
pub(crate) fn hasty(store: &dyn LeaseStore) -> Claim {
    let mut claim = claim_of(store, "lock", Ttl::MIN);
    claim.store_timeout = Duration::from_millis(500);
    claim
}
