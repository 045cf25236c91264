//! Changes the size in the store: how many permits a semaphore has, or how many readers a readers-writer lock.
//!
//! A holder of a permit has read the size after its grant. It relies on it while it holds the permit
//! ([`Permits::settled`]). So a resize holds all permits, up to the larger of both numbers, while the size changes:
//!
//! 1. It removes the size from the records of all permits but the first. This is a renewal of each, which shows that they
//!    are held. A resize that ends here has cost the next grant of each permit a read.
//! 2. It renews the first permit with the new size.
//! 3. It releases all permits.
//!
//! If its leases lapse after step 1, and the request of step 2 arrives still later, there can be holders by the old size:
//! see docs/guarantees.md.

use futures_util::future::try_join_all;

use crate::error::{Error, ErrorKind, Result};
use crate::guard::Guard;
use crate::lock::Lock;
use crate::primitives::blockers::Blockers;
use crate::primitives::permits::{Kind, Permits};
use crate::primitives::together::{Patience, Together, give_back};
use crate::runtime::task;

/// Changes the size of the permits of `kind` below the name of `lock` to `size`. Returns the size before.
pub(crate) async fn resize(lock: &Lock, kind: Kind, size: usize) -> Result<u64> {
    let name = lock.checked()?;
    let capabilities = lock.locker().capabilities();
    if !capabilities.sizes {
        return Err(kind.not_kept(capabilities.store));
    }
    let (first, size) = (kind.first(&name)?, size as u64);
    let Some(before) = lock.locker().inspect(&first).await?.size else {
        return Err(Error::invalid(format!("`{name}` has no number of {} in the store", kind.counted()))
            .with_help("the first acquisition sets it"));
    };
    let most = usize::try_from(before.max(size)).unwrap_or(usize::MAX);
    let (permits, lock) = (Permits::new(lock, kind, most)?, lock.clone());
    // It goes on when the caller is gone: if it stopped while the request of step 2 is under way, other clients could get
    // permits before that request arrives.
    task::finish(async move {
        let (together, seen) = (Together::new(&lock, vec![permits.names().to_vec()]), Blockers::default());
        let held = together.acquire(&Patience::None, &seen).await.map_err(|error| match error.kind() {
            ErrorKind::Held => Error::held_as(
                format!("`{name}` cannot be resized while it is held: {}", seen.described()),
                seen.soonest().unwrap_or_default(),
            ),
            _ => error,
        })?;
        let changed = match held.part(&first) {
            Some(first) if first.size() == Some(before) => change(&held, first, size).await,
            _ => Err(Error::new(ErrorKind::Conflict, format!("`{name}` was resized at the same time"))),
        };
        match changed {
            // A permit that was evicted meanwhile may have a holder by the old size.
            Ok(()) => held.release_held().await.map(|()| before),
            Err(error) => {
                give_back(&lock, vec![held]).await;
                Err(error)
            }
        }
    })
    .await
}

/// Writes `size` into the record of `first`, which is a part of `held`, all permits.
async fn change(held: &Guard, first: &Guard, size: u64) -> Result<()> {
    let others = std::iter::once(held).chain(held.parts()).filter(|permit| permit.name() != first.name());
    try_join_all(others.map(|permit| permit.record_size(0))).await?;
    held.check()?;
    first.record_size(size).await?;
    held.check()
}
