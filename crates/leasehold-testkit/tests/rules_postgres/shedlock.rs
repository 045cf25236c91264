//! ShedLock's statements on the same table.

use super::*;
use crate::leases::refused_to;

/// ShedLock 7's own statements, as its JDBC provider sends them with the database's time.
struct ShedLock<'a>(&'a str);

impl ShedLock<'_> {
    async fn lock(&self, seconds: u32) -> bool {
        let (table, name) = (table(self.0), literal("lock"));
        let insert = format!(
            "INSERT INTO {table}(name, lock_until, locked_at, locked_by)
             VALUES({name}, timezone('utc', CURRENT_TIMESTAMP) + cast('{seconds} seconds' as interval),
                timezone('utc', CURRENT_TIMESTAMP), 'host-1')
             ON CONFLICT (name) DO UPDATE SET lock_until = timezone('utc', CURRENT_TIMESTAMP) + cast('{seconds} seconds' as interval),
                locked_at = timezone('utc', CURRENT_TIMESTAMP), locked_by = 'host-1'
             WHERE {table}.name = {name} AND {table}.lock_until <= timezone('utc', CURRENT_TIMESTAMP) RETURNING 1"
        );
        psql(self.0, &insert).await == "1"
    }

    async fn unlock(&self) -> bool {
        let sql = format!(
            "UPDATE {} SET lock_until = timezone('utc', CURRENT_TIMESTAMP)
             WHERE name = 'lock' AND locked_by = 'host-1' RETURNING 1",
            table(self.0)
        );
        psql(self.0, &sql).await == "1"
    }
}

#[tokio::test]
async fn shedlocks_statements_and_leasehold_exclude_each_other() {
    let fresh = fresh();
    let (store, shedlock) = (open(fresh.url()).await, ShedLock(fresh.url()));
    let mut first = granted(&*store).await;
    assert!(!shedlock.lock(60).await, "leasehold holds it");
    store.release(&mut first, None).await.unwrap();
    assert!(shedlock.lock(60).await, "leasehold has released it");
    let AcquireOutcome::Held(held) = store.try_acquire(&claim(&*store)).await.unwrap() else {
        panic!("ShedLock holds it")
    };
    assert!(held.foreign.as_ref().unwrap().contains("host-1") && held.token.is_none(), "{held:?}");
    // ShedLock has no grant that leasehold could end.
    assert!(matches!(store.renew(&mut first).await.unwrap(), Renewal::Lost(_)));
    assert_eq!(store.release(&mut first, None).await.unwrap(), Released::Released);
    store.evict(&lock(), first.token, None).await.unwrap_err();
    assert!(shedlock.unlock().await, "nothing has changed it");
    let second = granted(&*store).await;
    assert!(second.token > first.token && second.after >= Some(first.token));
    assert!(!shedlock.unlock().await && !shedlock.lock(60).await);
}

/// ShedLock's grant replaces the id of the one before, which must be in the history when the claim of that id arrives
/// late.
#[tokio::test]
async fn a_grant_that_shedlock_replaced_is_not_granted_again() {
    let fresh = fresh();
    let (store, shedlock) = (open(fresh.url()).await, ShedLock(fresh.url()));
    let first = repeatable(&*store);
    let grant = granted_to(&*store, &first).await;
    lapse(fresh.url()).await;
    let is_lost = async || matches!(store.try_acquire(&first).await.unwrap(), AcquireOutcome::Lost(_));
    assert!(shedlock.lock(60).await);
    refused_to(&*store, &first).await;
    assert!(shedlock.unlock().await);
    assert!(is_lost().await, "freed by ShedLock");
    let ended = async || {
        let history = store.inspect(&lock()).await.unwrap().history;
        history.iter().map(|past| (past.grant, past.token, past.end)).collect::<Vec<_>>()
    };
    let expected = vec![(first.id, grant.token, End::Lapsed)];
    assert_eq!(ended().await, expected);
    // A renewal that was under way all the time.
    let mut late = grant.without_memo();
    assert!(matches!(store.renew(&mut late).await.unwrap(), Renewal::Lost(_)));
    let mut second = granted(&*store).await;
    assert_eq!(ended().await, expected);
    assert!(is_lost().await, "taken by another claim");
    store.release(&mut second, None).await.unwrap();
    assert!(shedlock.lock(0).await);
    assert_eq!(ended().await.len(), 2, "a grant that was released is already there");
    assert!(is_lost().await, "freed by another claim");
}

/// Old versions of ShedLock unlock by the name alone, even when their own lock has expired.
#[tokio::test]
async fn an_unlock_of_another_clients_row_ends_no_lease() {
    let fresh = fresh();
    let store = open(fresh.url()).await;
    let mut grant = granted(&*store).await;
    let unlock = format!("UPDATE {} SET lock_until = timezone('utc', clock_timestamp())", table(fresh.url()));
    psql(fresh.url(), &unlock).await;
    refused(&*store).await;
    psql(fresh.url(), &unlock).await;
    assert!(matches!(store.renew(&mut grant).await.unwrap(), Renewal::Renewed));
    psql(fresh.url(), &unlock).await;
    assert_eq!(store.release(&mut grant, Some(TTL)).await.unwrap(), Released::Released);
    psql(fresh.url(), &unlock).await;
    refused(&*store).await;
}

/// ShedLock's own table, with its types.
#[tokio::test]
async fn init_adds_its_columns_to_a_table_of_shedlock() {
    let fresh = fresh();
    let name = format!("{}_shedlock", table(fresh.url()));
    let url = fresh.url().replace(&table(fresh.url()), &name);
    let sql = format!(
        "CREATE TABLE {name}(name VARCHAR(64) NOT NULL, lock_until TIMESTAMP NOT NULL, locked_at TIMESTAMP NOT NULL,
            locked_by VARCHAR(255) NOT NULL, PRIMARY KEY (name))"
    );
    psql(&url, &sql).await;
    let store = open(&url).await;
    let error = store.try_acquire(&claim(&*store)).await.unwrap_err();
    assert!(error.fault().help.as_ref().unwrap().contains("leasehold init"), "{error:?}");
    make_table(&url);
    let (shedlock, mut grant) = (ShedLock(&url), granted(&*store).await);
    assert!(!shedlock.lock(60).await);
    store.release(&mut grant, None).await.unwrap();
    assert!(shedlock.lock(60).await);
    refused(&*store).await;
    let long = LockName::new("x".repeat(65)).unwrap();
    let claim = Claim::new(store.env(), long, Ttl::DEFAULT, Holder::this_process());
    let error = store.try_acquire(&claim).await.unwrap_err();
    assert!(error.fault().kind == ErrorKind::Invalid && error.fault().help.is_some(), "{error:?}");
}

/// ShedLock remembers which names have rows, and runs no job whose row was deleted.
#[tokio::test]
async fn a_table_that_shedlock_shares_is_not_swept() {
    let fresh = fresh();
    let (store, shedlock) = (open(fresh.url()).await, ShedLock(fresh.url()));
    assert!(shedlock.lock(0).await);
    let other = LockName::new("other").unwrap();
    let claim = Claim::new(store.env(), other.clone(), Ttl::DEFAULT, Holder::this_process());
    store.release(&mut granted_to(&*store, &claim).await, None).await.unwrap();
    let name = format!("{}_shedlock", table(fresh.url()));
    let url = fresh.url().replace(&table(fresh.url()), &name);
    let columns =
        "name VARCHAR(64) PRIMARY KEY, lock_until TIMESTAMP, locked_at TIMESTAMP, locked_by VARCHAR(255)";
    psql(&url, &format!("CREATE TABLE {name}({columns})")).await;
    make_table(&url);
    for dry_run in [true, false] {
        for store in [&store, &open(&url).await] {
            let error = store.sweep(&other, Duration::ZERO, dry_run).await.unwrap_err();
            let fault = error.fault();
            assert_eq!(fault.kind, ErrorKind::Unsupported, "{error:?}");
            assert!(fault.help.as_ref().unwrap().contains("ShedLock"), "{error:?}");
        }
    }
    let count = format!("SELECT count(*) FROM {}", table(fresh.url()));
    assert_eq!(psql(fresh.url(), &count).await, "2");
}
