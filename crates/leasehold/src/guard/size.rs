//! The size in the record of a permit that is held: see [`Grant::size`](crate::lease::Grant::size).

use super::Guard;
use crate::error::{Error, Result};
use crate::types::LockName;

impl Guard {
    /// Returns the guard of the lock called `name`, which is this guard or one of its parts.
    pub(crate) fn part(&self, name: &LockName) -> Option<&Guard> {
        self.each().find(|guard| guard.hold.lock.name == *name)
    }

    /// Returns the parts, without this guard's own lock.
    pub(crate) fn parts(&self) -> &[Guard] {
        &self.parts
    }

    /// Returns the size in the record of this guard's own lock.
    pub(crate) fn size(&self) -> Option<u64> {
        self.hold.state.size()
    }

    /// Makes the next renewal or release write `size` into the record of this guard's own lock.
    pub(crate) fn set_size(&self, size: u64) {
        self.hold.state.set_size(size);
    }

    /// Writes `size` into the record of this guard's own lock by a renewal, unless the record has it. Returns once the
    /// store has confirmed it.
    ///
    /// # Errors
    /// Returns [`ErrorKind::Lost`](crate::ErrorKind::Lost) if the lock was lost. The size may then have been written.
    pub(crate) async fn record_size(&self, size: u64) -> Result<()> {
        let state = &self.hold.state;
        state.record_size(size).await.map_err(|()| Error::lost(state.loss_of(&self.hold.lock)))
    }
}
