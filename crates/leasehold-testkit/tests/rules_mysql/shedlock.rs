//! Statements as another client sends them, on rows that leasehold shares with it.

use std::time::Duration;

use leasehold::ErrorKind;
use leasehold::lease::{Released, Renewal};
use leasehold_testkit::stores;
use leasehold_testkit::stores::mysql::{query, table};

use crate::leases::{granted, lock, open, refused};

/// Old versions of ShedLock unlock whatever row has the name.
#[tokio::test]
async fn an_unlock_by_another_client_ends_no_lease_of_ours() {
    let fresh = stores::fresh("mysql");
    let store = open(fresh.url()).await;
    let mut grant = granted(&*store).await;
    let unlock =
        format!("UPDATE {} SET lock_until = UTC_TIMESTAMP(3) WHERE name = 'lock'", table(fresh.url()));
    query(fresh.url(), &unlock).await;
    refused(&*open(fresh.url()).await).await;
    assert!(matches!(store.renew(&mut grant).await.unwrap(), Renewal::Renewed));
}

/// The row that was read allowed the grant. Then another client takes the lock, or prolongs its own lease.
#[tokio::test]
async fn a_lock_that_another_client_takes_is_lost_and_kept() {
    let fresh = stores::fresh("mysql");
    let store = open(fresh.url()).await;
    let mut grant = granted(&*store).await;
    let taken = "locked_by = 'host-1', lock_until = TIMESTAMPADD(SECOND, 60, UTC_TIMESTAMP(3))";
    let theirs = format!("UPDATE {} SET {taken} WHERE name = 'lock'", table(fresh.url()));
    query(fresh.url(), &theirs).await;
    assert!(matches!(store.renew(&mut grant).await.unwrap(), Renewal::Lost(_)));
    assert_eq!(store.release(&mut grant, None).await.unwrap(), Released::AlreadyLost);
    assert!(refused(&*store).await.foreign.unwrap().contains("host-1"));
    let error = store.sweep(&lock(), Duration::ZERO, false).await.unwrap_err();
    assert_eq!(error.fault().kind, ErrorKind::Unsupported, "{error:?}");
}

/// Rows that leasehold has never written.
#[tokio::test]
async fn a_lock_of_another_client_is_granted_when_it_ends() {
    let fresh = stores::fresh("mysql");
    let store = open(fresh.url()).await;
    let insert = format!(
        "INSERT INTO {} (name, lock_until, locked_at, locked_by)
         VALUES ('lock', TIMESTAMPADD(SECOND, 60, UTC_TIMESTAMP(3)), UTC_TIMESTAMP(3), 'host-1')",
        table(fresh.url())
    );
    query(fresh.url(), &insert).await;
    refused(&*store).await;
    let ends = format!("UPDATE {} SET lock_until = UTC_TIMESTAMP(3) WHERE name = 'lock'", table(fresh.url()));
    query(fresh.url(), &ends).await;
    let mut grant = granted(&*store).await;
    assert_eq!(store.release(&mut grant, None).await.unwrap(), Released::Released);
}
