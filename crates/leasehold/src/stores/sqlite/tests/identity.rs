//! Files that are deleted, replaced or relinked while they are in use. `tests/sqlite_processes.rs` does the same with
//! two processes.

use std::os::unix::fs::symlink;
use std::path::Path;

use super::*;

async fn open_at(site: &Site, path: &Path) -> SqliteLeases {
    let location = Location { path: path.to_owned(), allow_network: false, is_default: false };
    let env = Env { clock: site.clock.clone(), random: Env::system().random };
    SqliteLeases::open(location, site.machine.clone(), env).await.unwrap()
}

fn point(link: &Path, to: &Path) {
    let _ = fs::remove_file(link);
    symlink(to, link).unwrap();
}

#[tokio::test]
async fn a_holder_learns_that_a_symbolic_link_leads_elsewhere() {
    let site = Site::new();
    let at = |path: &str| site.folder.path().join(path);
    for folder in ["one", "two"] {
        fs::create_dir(at(folder)).unwrap();
    }
    for (link, one, two, path) in [
        ("current", "one", "two", "current/locks.db"),
        ("linked.db", "one/linked.db", "two/linked.db", "linked.db"),
    ] {
        // A link to a file that does not exist yet.
        point(&at(link), &at(one));
        let holder = open_at(&site, &at(path)).await;
        let mut first = grant(&holder).await;
        point(&at(link), &at(two));
        let other = open_at(&site, &at(path)).await;
        let second = grant(&other).await;
        assert!(second.token > first.token, "{link}");
        assert!(matches!(lost_by(&holder, &mut first).await, LossReason::TakenOver { .. }), "{link}");
        assert_eq!(held(&holder).await.token, Some(second.token), "{link}: both see the same file");
        // A process that only reads also notices the change.
        point(&at(link), &at(one));
        assert_eq!(other.inspect(&name()).await.unwrap().token, Some(first.token), "{link}");
    }
}

const COMPANIONS: [&[&str]; 3] = [&["-wal", "-shm"], &["-wal"], &["-shm"]];

fn delete(site: &Site, suffixes: &[&str]) {
    for suffix in suffixes {
        fs::remove_file(format!("{}{suffix}", site.path().display())).unwrap();
    }
}

#[tokio::test]
async fn a_holder_whose_log_was_deleted_opens_the_file_again() {
    for suffixes in COMPANIONS {
        let site = Site::new();
        let store = site.open().await;
        let mut first = grant(&store).await;
        delete(&site, suffixes);
        match store.renew(&mut first).await.unwrap() {
            // The grant was in the log.
            Renewal::Lost(loss) if suffixes.contains(&"-wal") => assert_eq!(loss.reason, LossReason::Deleted),
            Renewal::Renewed if suffixes == ["-shm"] => {}
            other => panic!("{suffixes:?}: {other:?}"),
        }
        for suffix in ["-wal", "-shm"] {
            assert!(fs::exists(format!("{}{suffix}", site.path().display())).unwrap(), "{suffixes:?}");
        }
        verdict(&store).await;
    }
}

#[tokio::test]
async fn stores_of_one_process_reopen_together_after_a_deleted_log() {
    for suffixes in COMPANIONS {
        let site = Site::new();
        let (one, two) = (site.open().await, site.open().await);
        let mut first = grant(&one).await;
        held(&two).await;
        delete(&site, suffixes);
        // The other store does nothing in the meantime, and would keep the deleted files open.
        let state = one.renew(&mut first).await.unwrap();
        let token = match state {
            Renewal::Renewed => first.token,
            Renewal::Lost(_) => grant(&one).await.token,
        };
        assert_eq!(held(&two).await.token, Some(token), "{suffixes:?}");
    }
}

#[tokio::test]
async fn a_deleted_log_that_is_still_in_use_grants_nothing() {
    for suffixes in COMPANIONS {
        let site = Site::new();
        let (one, two) = (site.open().await, Arc::new(site.open().await));
        let mut first = grant(&one).await;
        let gate = Gate::close(&two).await;
        delete(&site, suffixes);
        for error in [one.renew(&mut first).await.err(), one.try_acquire(&claim(&one)).await.err()] {
            let error = error.unwrap_or_else(|| panic!("{suffixes:?}: no error"));
            assert_eq!(error.fault().kind, ErrorKind::Unavailable, "{error}");
            assert!(error.to_string().contains("-wal or -shm"), "{error}");
        }
        drop(gate);
        two.inspect(&name()).await.unwrap();
        verdict(&one).await;
    }
}

#[tokio::test]
async fn a_missing_folder_is_an_error_until_init_makes_it() {
    let site = Site::new();
    let path = site.folder.path().join("a/b/locks.db");
    let store = open_at(&site, &path).await;
    let error = store.try_acquire(&claim(&store)).await.unwrap_err();
    assert_eq!(error.fault().kind, ErrorKind::Invalid);
    assert!(error.fault().help.as_ref().unwrap().contains("leasehold init"), "{error:?}");
    assert!(!fs::exists(site.folder.path().join("a")).unwrap());
    store.init().await.unwrap();
    grant(&store).await;
}

#[tokio::test]
async fn a_store_that_was_opened_before_a_fork_is_refused() {
    let site = Site::new();
    let mut store = site.open().await;
    let mut first = grant(&store).await;
    // As if this process were a child of the one that opened the store.
    store.database.pid += 1;
    for error in [
        store.try_acquire(&claim(&store)).await.err(),
        store.renew(&mut first).await.err(),
        store.release(&mut first, None).await.err(),
        store.inspect(&name()).await.err(),
    ] {
        let error = error.unwrap();
        assert!(
            matches!(&error, StoreError::NotApplied(fault) if fault.kind == ErrorKind::Unsupported && fault.help.is_some()),
            "{error}"
        );
    }
    assert_eq!(held(&site.open().await).await.token, Some(first.token), "the parent holds it");
}
