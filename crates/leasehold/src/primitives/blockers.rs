//! [`Blockers`]: who prevents an acquisition of several locks, or of any of them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use crate::error::{Error, ErrorKind, Result};
use crate::guard::Guard;
use crate::lease::{HolderInfo, LossReason};
use crate::lock::Lock;
use crate::types::LockName;

/// The maximum number of holders that an error names.
const MAX_NAMED: usize = 4;

/// The known holders that prevent one acquisition. Clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Blockers {
    known: Arc<Mutex<BTreeMap<LockName, HolderInfo>>>,
    /// Notified when a holder becomes known.
    noted: Arc<Notify>,
}

impl Blockers {
    fn known(&self) -> MutexGuard<'_, BTreeMap<LockName, HolderInfo>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that `name` is held by `held`.
    pub(crate) fn note(&self, name: &LockName, held: HolderInfo) {
        self.known().insert(name.clone(), held);
        self.noted.notify_waiters();
    }

    /// Records that `name` no longer prevents the acquisition.
    pub(crate) fn forget(&self, name: &LockName) {
        self.known().remove(name);
    }

    /// Returns `lock`, renamed to `name`, with a callback that records its holder here.
    pub(crate) fn noting(&self, name: &LockName, lock: &Lock) -> Lock {
        let (seen, of) = (self.clone(), name.clone());
        lock.renamed(name).noting(move |held| seen.note(&of, held.clone()))
    }

    /// Evaluates an attempt to acquire `name`. If `name` is held, records the holder and returns `None`.
    pub(crate) fn free(&self, name: &LockName, tried: Result<Guard>) -> Result<Option<Guard>> {
        match tried.map_err(|error| self.explained(name, error)) {
            Ok(guard) => Ok(Some(guard)),
            Err(error) if error.kind() == ErrorKind::Held => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// If `error` says that `name` is held, records the holder. A lock that was granted unnoticed, and that another
    /// process then took over, counts as held.
    pub(crate) fn explained(&self, name: &LockName, error: Error) -> Error {
        let (error, by) = match (error.kind(), error.loss().map(|loss| &loss.reason)) {
            (ErrorKind::Held, _) => {
                let by = error.holder().cloned().unwrap_or_default();
                (error, by)
            }
            (ErrorKind::Lost, reason) => {
                let by = match reason {
                    Some(LossReason::TakenOver { by }) => (**by).clone(),
                    _ => HolderInfo::default(),
                };
                (Error::held(name, by.clone()), by)
            }
            _ => return error,
        };
        self.note(name, by);
        error
    }

    /// Returns the holder of `name`.
    pub(crate) fn of(&self, name: &LockName) -> Option<HolderInfo> {
        self.known().get(name).cloned()
    }

    /// Returns the holder whose lease can end first.
    pub(crate) fn soonest(&self) -> Option<HolderInfo> {
        let known = self.known();
        known.values().min_by_key(|held| held.lapses_within.unwrap_or(Duration::MAX)).cloned()
    }

    /// Returns a size other than `asked` that a held permit has. A permit that is held has the size of the first permit, or
    /// none.
    pub(crate) fn other_size(&self, asked: u64) -> Option<u64> {
        self.known().values().filter_map(|held| held.size).find(|size| *size != asked)
    }

    /// Waits until a held permit has a size other than `asked`, and returns it. Never completes if all are equal.
    pub(crate) async fn until_other_size(&self, asked: u64) -> u64 {
        loop {
            // A holder that is noted after this line is not missed.
            let noted = self.noted.notified();
            match self.other_size(asked) {
                Some(size) => return size,
                None => noted.await,
            }
        }
    }

    /// Returns a list of the holders, for people.
    pub(crate) fn described(&self) -> String {
        let known = self.known();
        let mut holders: Vec<_> =
            known.iter().take(MAX_NAMED).map(|(name, held)| format!("`{name}` by {held}")).collect();
        if let Some(more) = known.len().checked_sub(MAX_NAMED).filter(|more| *more > 0) {
            holders.push(format!("and {more} more"));
        }
        holders.join("; ")
    }
}
