//! [`Waiting`]: reports when an acquisition waits.

use super::{Event, Observers, elapsed};
use crate::clock::Moment;
use crate::env::Env;
use crate::types::LockName;

/// Reports the wait of an acquisition, if there is one. Dropping this value reports the end of the wait.
pub(crate) struct Waiting {
    /// The observers to report to, the clock, and the lock. `None` if there are no observers.
    reports: Option<(Observers, Env, LockName)>,
    /// When the wait began. `None` if the acquisition does not wait.
    began: Option<Moment>,
    /// Whether the lock was acquired.
    pub(crate) acquired: bool,
}

impl Waiting {
    pub(crate) fn of(observers: &Observers, env: &Env, lock: &LockName) -> Self {
        let reports = (!observers.is_empty()).then(|| (observers.clone(), env.clone(), lock.clone()));
        Self { reports, began: None, acquired: false }
    }

    /// Reports, at most once, that the acquisition waits.
    pub(crate) fn begin(&mut self) {
        if let Some((observers, env, lock)) = &self.reports
            && self.began.is_none()
        {
            self.began = Some(env.now());
            observers.report(&Event::WaitBegan { lock });
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if let Some(((observers, env, lock), began)) = self.reports.as_ref().zip(self.began) {
            let (waited, acquired) = (elapsed(began, env.now()), self.acquired);
            observers.report(&Event::WaitEnded { lock, waited, acquired });
        }
    }
}
