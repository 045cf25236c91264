//! [`Cycle`]: waiters that wait for each other.

use std::fmt;
use std::sync::Arc;

use crate::lease::{HeldLock, Holder, Id};
use crate::types::LockName;

/// Waiters that wait for each other, in the order in which each waits for the next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Cycle(pub(crate) Vec<Arc<CycleLink>>);

/// A waiter in a cycle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CycleLink {
    pub(crate) waiter: Arc<Holder>,
    pub(crate) waits_for: LockName,
    /// The lock that the previous waiter waits for.
    pub(crate) holds: HeldLock,
    pub(crate) id: Id,
    pub(crate) seen: Vec<Id>,
    pub(crate) stays: bool,
}

impl Cycle {
    /// Returns the id of the cycle. It depends only on the acquisitions, and each of them waits for one lock.
    pub(crate) fn id(&self) -> Id {
        self.0.iter().fold(Id::NONE, |id, link| id.combined(link.id))
    }

    /// Returns whether all waiters other than `own` have seen the cycle.
    pub(crate) fn is_seen_by_all(&self, own: Id) -> bool {
        let id = self.id();
        self.0.iter().all(|link| link.id == own || link.seen.contains(&id))
    }

    /// Returns which of the acquisitions gives up. All readers of the records agree on it.
    pub(crate) fn gives_up(&self) -> Option<Id> {
        let may = self.0.iter().filter(|link| !link.stays);
        may.max_by_key(|link| (link.holds.token, &link.holds.name)).map(|link| link.id)
    }
}

impl fmt::Display for Cycle {
    /// Writes ``bob@ci-8 pid 9 holds `b` (token 7) and waits for `a`; ...``.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, link) in self.0.iter().enumerate() {
            let CycleLink { waiter, waits_for, holds, .. } = &**link;
            let separator = if n == 0 { "" } else { "; " };
            let HeldLock { name, token } = holds;
            write!(f, "{separator}{waiter} holds `{name}` (token {token}) and waits for `{waits_for}`")?;
        }
        Ok(())
    }
}
