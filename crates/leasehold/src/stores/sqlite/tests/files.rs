//! Tests with a file that is missing, damaged or another program's, and without space or permission.

use super::super::identity::{Companions, FileId, Sharing};
use super::*;

#[tokio::test]
async fn unreadable_rows_are_never_granted_or_overwritten() {
    for edit in [
        "record = 'x'",
        "record = '{}'",
        "record = json_set(record, '$.token', -1)",
        "record = json_set(record, '$.token', 9007199254740992)",
        "record = json_set(record, '$.ttl_ms', 0)",
        "record = json_set(record, '$.grant', 'x')",
        "record = json_set(record, '$.holder', 'x')",
        "record = json_set(record, '$.history', 'x')",
        "record = json_set(record, '$.lock_delay_ms', -1)",
        "record = json_set(record, '$.state', 'cooldown')",
        "record = json_remove(record, '$.ttl_ms')",
        "record = json_remove(record, '$.renewed_at_us')",
        "renewed_ns = -5",
        "process = '{}'",
        "died_ns = -1",
    ] {
        let site = Site::new();
        let store = site.open().await;
        let mut first = grant(&store).await;
        site.sql(&format!("UPDATE lock SET {edit}"));
        for error in [
            store.try_acquire(&claim(&store)).await.err(),
            store.renew(&mut first).await.err(),
            store.release(&mut first, None).await.err(),
            store.inspect(&name()).await.err(),
            store.evict(&name(), first.token, None).await.err(),
        ] {
            let error = error.unwrap_or_else(|| panic!("{edit}: no error"));
            assert!(
                matches!(&error, StoreError::NotApplied(fault) if fault.kind == ErrorKind::Corrupt),
                "{edit}: {error}"
            );
            assert!(error.to_string().contains("deploy/prod"), "{error}");
        }
    }
}

#[tokio::test]
async fn a_counter_that_cannot_be_read_grants_nothing() {
    for edit in ["token = -1", "ceiling = -1", "token = 9007199254740991"] {
        let site = Site::new();
        let store = site.open().await;
        site.sql(&format!("UPDATE counter SET boot = 'boot 1', {edit}"));
        let error = store.try_acquire(&claim(&store)).await.unwrap_err();
        assert_eq!(error.fault().kind, ErrorKind::Corrupt, "{edit}");
    }
}

/// Returns the error of opening the file, and checks that the file was not changed.
async fn refusal(site: &Site) -> Fault {
    let before = fs::read(site.path()).ok();
    let (StoreError::NotApplied(fault) | StoreError::MaybeApplied(fault)) =
        site.try_open().await.unwrap_err();
    assert_eq!(fs::read(site.path()).ok(), before, "nothing was overwritten");
    assert!(fault.help.is_some(), "{fault:?}");
    assert!(fault.message.contains(site.folder.path().to_str().unwrap()), "{fault:?}");
    fault
}

#[tokio::test]
async fn files_that_are_not_ours_are_refused_and_left_alone() {
    let site = Site::new();
    fs::write(site.path(), "#!/bin/sh\n".repeat(1_000)).unwrap();
    assert_eq!(refusal(&site).await.kind, ErrorKind::Corrupt);

    let site = Site::new();
    site.sql("CREATE TABLE customer (name)");
    assert_eq!(refusal(&site).await.kind, ErrorKind::Invalid);

    let site = Site::new();
    site.sql("PRAGMA application_id = 7");
    assert_eq!(refusal(&site).await.kind, ErrorKind::Invalid);

    let site = Site::new();
    drop(site.open().await);
    site.sql("PRAGMA user_version = 2");
    let fault = refusal(&site).await;
    assert_eq!(fault.kind, ErrorKind::Unsupported);
    assert!(fault.help.unwrap().contains("upgrade"));

    let site = Site::new();
    fs::create_dir(site.path()).unwrap();
    assert_eq!(refusal(&site).await.kind, ErrorKind::Invalid);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn concurrent_creates_of_a_file_make_one_store() {
    for _ in 0..20 {
        let site = Arc::new(Site::new());
        let opening: Vec<_> = (0..8)
            .map(|_| {
                let site = site.clone();
                tokio::spawn(async move { site.open().await })
            })
            .collect();
        let mut stores = Vec::new();
        for store in opening {
            stores.push(store.await.unwrap());
        }
        let first = grant(&stores[0]).await;
        for store in &stores {
            assert_eq!(held(store).await.token, Some(first.token));
        }
    }
}

#[tokio::test]
async fn an_empty_file_becomes_a_store() {
    let site = Site::new();
    fs::write(site.path(), "").unwrap();
    grant(&site.open().await).await;
}

#[tokio::test]
async fn damage_is_reported_and_a_repaired_file_is_used_again() {
    let site = Site::new();
    let store = site.open().await;
    store.release(&mut grant(&store).await, None).await.unwrap();
    site.sql("PRAGMA wal_checkpoint(TRUNCATE); DROP TABLE counter");
    let error = store.try_acquire(&claim(&store)).await.unwrap_err();
    assert_eq!(error.fault().kind, ErrorKind::Corrupt, "{error}");
    drop(store);

    let damaged = fs::read(site.path()).unwrap();
    let half: Vec<u8> =
        damaged.iter().enumerate().map(|(at, &byte)| if at > 100 { 0x55 } else { byte }).collect();
    fs::write(site.path(), half).unwrap();
    let (StoreError::NotApplied(fault) | StoreError::MaybeApplied(fault)) = match site.try_open().await {
        Err(error) => error,
        Ok(store) => store.try_acquire(&claim(&store)).await.unwrap_err(),
    };
    assert_eq!(fault.kind, ErrorKind::Corrupt, "{fault:?}");
    site.delete();
    grant(&site.open().await).await;
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn without_permission_to_write_the_error_names_the_cause() {
    let site = Site::new();
    let store = site.open().await;
    let refuse = |connection: &mut Connection| Ok(connection.pragma_update(None, "query_only", "ON")?);
    store.database.run(&store.env, STORE_TIMEOUT, Purpose::Read, refuse).await.unwrap();
    let error = store.try_acquire(&claim(&store)).await.unwrap_err();
    assert!(
        matches!(&error, StoreError::NotApplied(fault) if fault.kind == ErrorKind::Denied && fault.help.is_some()),
        "{error}"
    );
    // A place where not even root can create a file.
    let location = Location { path: "/proc/locks.db".into(), allow_network: true, is_default: false };
    let error = SqliteLeases::open(location, site.machine.clone(), store.env.clone()).await.unwrap_err();
    assert_eq!(error.fault().kind, ErrorKind::Denied, "{error}");
}

#[tokio::test]
async fn a_full_disk_is_reported_and_grants_nothing() {
    let site = Site::new();
    let store = site.open().await;
    let fill = |connection: &mut Connection| {
        let pages: i64 = connection.pragma_query_value(None, "page_count", |row| row.get(0))?;
        Ok(connection.pragma_update_and_check(None, "max_page_count", pages, |_| Ok(()))?)
    };
    store.database.run(&store.env, STORE_TIMEOUT, Purpose::Read, fill).await.unwrap();
    let mut large = claim(&store);
    large.holder.note = Some("x".repeat(100_000));
    let error = store.try_acquire(&large).await.unwrap_err();
    assert!(
        matches!(&error, StoreError::NotApplied(fault) if fault.kind == ErrorKind::Unavailable),
        "{error}"
    );
    assert!(error.fault().help.as_ref().unwrap().contains("full"), "{error:?}");
    assert_eq!(store.inspect(&name()).await.unwrap().state, State::Free);
    grant(&store).await;
}

#[tokio::test]
async fn a_busy_file_is_waited_for_and_given_up_if_it_stays_busy() {
    let site = Site::new();
    let store = site.open().await;
    let mut other = rusqlite::Connection::open(site.path()).unwrap();
    let writer = other.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate).unwrap();
    let mut claim = claim(&store);
    claim.store_timeout = Duration::from_millis(150);
    let error = store.try_acquire(&claim).await.unwrap_err();
    assert_eq!(error.fault().kind, ErrorKind::Unavailable, "{error}");
    assert_eq!(store.inspect(&name()).await.unwrap().state, State::Free, "reading goes on");
    claim.store_timeout = STORE_TIMEOUT;
    let (verdict, ()) = tokio::join!(store.try_acquire(&claim), async {
        tokio::task::yield_now().await;
        writer.rollback().unwrap();
    });
    assert!(matches!(verdict.unwrap(), AcquireOutcome::Granted(_)));
}

#[tokio::test]
async fn the_url_opens_the_file_and_refuses_what_it_does_not_know() {
    let site = Site::new();
    let path = site.path().display().to_string();
    for url in
        [format!("sqlite:{path}"), format!("sqlite://{path}?store_clock=off&margin=1s&allow_network=off")]
    {
        let store = open(StoreUrl::parse(&url).unwrap(), StoreOptions::default()).await.unwrap();
        assert_eq!(store.inspect(&name()).await.unwrap().state, State::Free);
    }
    let url = StoreUrl::parse(&format!("sqlite:{path}?mode=ro")).unwrap();
    assert_eq!(open(url, StoreOptions::default()).await.unwrap_err().kind(), ErrorKind::Invalid);
}

/// The system may give the inode number of a deleted file to the next file as soon as the deleted one is closed. The
/// store must not mistake the new file for the old one.
#[tokio::test]
async fn a_new_file_with_the_inode_of_a_closing_one_is_opened() {
    let (old, new) = (Site::new(), Site::new());
    let _open = old.open().await;
    std::fs::File::create(new.path()).unwrap();
    let sharing = Sharing::of(FileId::of(&new.path()).unwrap());
    let closing = sharing.lock().begin(Companions::of(&old.path()).unwrap());
    let closer = std::thread::spawn(move || {
        std::thread::park_timeout(Duration::from_millis(5));
        drop(closing);
    });
    new.open().await;
    closer.join().unwrap();
}

#[tokio::test]
async fn a_new_file_is_for_its_owner_only() {
    let site = Site::new();
    let _store = site.open().await;
    assert_eq!(modes(&site), [0o600; 3]);
}

#[tokio::test]
async fn a_file_of_a_group_keeps_its_mode() {
    use std::os::unix::fs::PermissionsExt as _;
    let site = Site::new();
    fs::write(site.path(), "").unwrap();
    fs::set_permissions(site.path(), fs::Permissions::from_mode(0o660)).unwrap();
    let _store = site.open().await;
    assert_eq!(modes(&site), [0o660; 3]);
}

/// Returns the modes of the file and of its -wal and -shm files.
fn modes(site: &Site) -> [u32; 3] {
    use std::os::unix::fs::PermissionsExt as _;
    let mode = |path: String| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    ["", "-wal", "-shm"].map(|suffix| mode(format!("{}{suffix}", site.path().display())))
}
