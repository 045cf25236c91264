//! Writes that were reported survive a crash and a promotion.

use super::*;

/// A commit that does not wait for the disk is lost when the server is killed.
#[tokio::test]
async fn a_grant_survives_a_crash_with_synchronous_commit_off() {
    let (mut server, url, _folder) = server(&["synchronous_commit=off", "wal_writer_delay=10s"]).await;
    let store = open(&url).await;
    let grant = granted(&*store).await;
    server.kill().await.unwrap();
    server.restart().await.unwrap();
    assert_eq!(cells(&url, "token").await, grant.token.to_string());
}

/// PostgreSQL reports success after such a commit, with a warning. leasehold must see the warning even if the server's
/// settings request only errors, and must wait even if they do not.
#[tokio::test]
async fn a_commit_that_did_not_wait_for_its_standby_is_not_a_grant() {
    for (of_server, of_role) in [
        ("client_min_messages=error", "client_min_messages = error"),
        ("synchronous_commit=local", "synchronous_commit = local"),
        ("synchronous_commit=on", "synchronous_commit = off"),
    ] {
        let (_server, url, _folder) = server(&[of_server]).await;
        psql(&url, &format!("ALTER ROLE leasehold SET {of_role}")).await;
        let store = open(&url).await;
        store.release(&mut granted(&*store).await, None).await.unwrap();
        wait_for_a_standby(&url).await;
        let mut claim = claim(&*store);
        claim.store_timeout = Duration::from_secs(2);
        let error = while_canceling(&url, store.try_acquire(&claim)).await.unwrap_err();
        assert!(matches!(error, StoreError::MaybeApplied(_)), "{of_role}: {error:?}");
        assert!(error.to_string().contains("standbys"), "{of_role}: {error:?}");
    }
}

/// The primary has the renewal, but a promoted standby may not, so the holder must not rely on it.
#[tokio::test]
async fn a_renewal_that_did_not_wait_for_its_standby_prolongs_nothing() {
    let (_server, url, _folder) = server(&[]).await;
    let store = open(&url).await;
    let claim = claim_of(&*store, "lock", TTL / 3);
    let mut grant = granted_to(&*store, &claim).await;
    wait_for_a_standby(&url).await;
    let deadline = grant.deadline;
    let renewed = while_canceling(&url, store.renew(&mut grant)).await;
    assert!(matches!(renewed, Err(StoreError::MaybeApplied(_))), "{renewed:?}");
    assert_eq!(grant.deadline, deadline);
}

/// The primary has the end of the grant, but a promoted standby may not.
#[tokio::test]
async fn an_end_that_did_not_wait_for_its_standby_is_in_doubt() {
    let (_server, url, _folder) = server(&[]).await;
    let store = open(&url).await;
    let mut grant = granted(&*store).await;
    let mut other = claim(&*store);
    other.name = LockName::new("other").unwrap();
    let evicted = granted_to(&*store, &other).await;
    wait_for_a_standby(&url).await;
    let released = while_canceling(&url, store.release(&mut grant, None)).await;
    assert!(matches!(released, Err(StoreError::MaybeApplied(_))), "{released:?}");
    let evicted = while_canceling(&url, store.evict(&other.name, evicted.token, None)).await;
    assert!(matches!(evicted, Err(StoreError::MaybeApplied(_))), "{evicted:?}");
}

/// Runs `work` while an operator cancels every wait for a standby.
async fn while_canceling<T>(url: &str, work: impl Future<Output = T>) -> T {
    let canceled = async {
        loop {
            psql(url, CANCEL).await;
            SystemClock.sleep(PAUSE).await;
        }
    };
    tokio::select! {
        output = work => output,
        () = canceled => unreachable!(),
    }
}

const CANCEL: &str =
    "SELECT count(pg_cancel_backend(pid)) FROM pg_stat_activity WHERE wait_event = 'SyncRep'";

/// Makes commits wait for a standby from now on, although there is none.
async fn wait_for_a_standby(url: &str) {
    let names = "SET synchronous_commit = local; CREATE TABLE other (n int);
                 ALTER SYSTEM SET synchronous_standby_names = '*'";
    psql(url, names).await;
    psql(url, "SELECT pg_reload_conf()").await;
    // The server applies the setting a little later.
    let waits = async {
        loop {
            let commit = "SET synchronous_commit = on; INSERT INTO other VALUES (1)";
            let mut commit = Box::pin(psql(url, commit));
            let waits = async {
                while psql(url, CANCEL).await != "1" {
                    SystemClock.sleep(PAUSE).await;
                }
            };
            tokio::select! {
                _ = &mut commit => {}
                () = waits => {
                    commit.await;
                    return;
                }
            }
        }
    };
    within("commits to wait for a standby", waits).await;
}

/// A deletion that was reported survives a crash.
#[tokio::test]
async fn a_sweep_survives_a_crash_with_synchronous_commit_off() {
    let (mut server, url, _folder) = server(&["synchronous_commit=off", "wal_writer_delay=10s"]).await;
    let store = open(&url).await;
    store.release(&mut granted(&*store).await, None).await.unwrap();
    store.sweep(&lock(), Duration::ZERO, false).await.unwrap();
    server.kill().await.unwrap();
    server.restart().await.unwrap();
    assert_eq!(state(&url).await, "");
}
