//! Sweeping: which records are deleted, and which are kept.

use std::time::Duration;

use futures_util::TryStreamExt;
use leasehold::error::StoreError;
use leasehold::lease::Swept;
use leasehold::{ErrorKind, LockName};

use super::Harness;
use super::client::{Client, LONG, name};

/// The pause between two checks of whether the store's clock has advanced.
const PAUSE: Duration = Duration::from_millis(100);

/// A sweep deletes the record of a lock that has been free for long. It keeps the records of a held lock and of a
/// lock that was just released. The next token is higher. A store that cannot sweep refuses.
pub async fn a_sweep_deletes_only_what_has_been_free_for_long(harness: &dyn Harness) {
    const LATE: Duration = Duration::from_secs(1);
    const NEVER: Duration = Duration::from_secs(3_600);
    let (one, two) = (Client::open(harness, "one").await, Client::open(harness, "two").await);
    let (old, held) = (name("old"), name("held"));
    let mut first = one.granted(&old, LONG).await;
    let mut holder = one.granted(&held, LONG).await;
    one.release(&mut first).await;
    let sweep = async |name: &LockName, older_than: Duration, dry_run: bool| {
        two.within("sweep", two.store.sweep(name, older_than, dry_run)).await
    };
    let is_refused = |swept: &Result<Swept, StoreError>| matches!(swept, Err(StoreError::NotApplied(fault)) if fault.kind == ErrorKind::Unsupported);
    let first_sweep = sweep(&old, Duration::ZERO, false).await;
    if is_refused(&first_sweep) {
        return two.assert_free(&old).await;
    }
    first_sweep.unwrap();
    let mut again = one.granted(&old, LONG).await;
    one.assert_rises(first.token, again.token);
    one.release(&mut again).await;
    assert_eq!(sweep(&old, NEVER, false).await.unwrap(), Swept::Kept, "it was free a moment ago");
    assert_eq!(sweep(&held, Duration::ZERO, false).await.unwrap(), Swept::Kept, "it is held");
    assert_eq!(sweep(&name("nothing"), Duration::ZERO, false).await.unwrap(), Swept::Kept);
    let listed = async || {
        let names: Vec<LockName> = two.within("list", two.store.list("").try_collect()).await.unwrap();
        names.contains(&old)
    };
    // If a release deletes the record, there is nothing to sweep.
    if listed().await {
        let due = async {
            while sweep(&old, LATE, true).await.unwrap() == Swept::Kept {
                two.env().sleep(PAUSE).await;
            }
        };
        two.within("until it is old", due).await;
        assert!(listed().await, "a dry run deletes nothing");
        // A store that is slow to respond may keep the record for now.
        let deleted = async {
            loop {
                let swept = sweep(&old, LATE, false).await;
                if is_refused(&swept) || !listed().await {
                    return swept;
                }
                assert_eq!(swept.unwrap(), Swept::Kept, "it is still there");
                two.env().sleep(PAUSE).await;
            }
        };
        // The store refuses before the first delete.
        if is_refused(&two.within("until it is swept", deleted).await) {
            return two.assert_free(&old).await;
        }
        assert!(!listed().await);
    }
    assert_eq!(sweep(&old, Duration::ZERO, false).await.unwrap(), Swept::Kept, "there is nothing");
    let last = one.granted(&old, LONG).await;
    one.assert_rises(again.token, last.token);
    one.renewed(&mut holder).await;
}
