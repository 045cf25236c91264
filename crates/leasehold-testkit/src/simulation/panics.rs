//! Detects panics in the tasks of a history. Most tasks are never awaited, so without this a panic would end a task
//! unnoticed, and the history would prove less.

use std::cell::RefCell;
use std::panic;
use std::sync::{Arc, Mutex, Once, PoisonError};

/// The first panic of a history, on any of its threads. It has its own mutex, because the panicking thread may hold
/// the checker's.
#[derive(Clone, Debug, Default)]
pub(super) struct Panics(Arc<Mutex<Option<String>>>);

thread_local! {
    /// The history that this thread belongs to.
    static HISTORY: RefCell<Option<Panics>> = const { RefCell::new(None) };
}

impl Panics {
    /// Records panics on this thread from now on, for this history instead of any other.
    pub(super) fn listen(&self) {
        install();
        HISTORY.set(Some(self.clone()));
    }

    /// Detaches this thread from its history. Returns the first panic.
    pub(super) fn conclude(&self) -> Option<String> {
        HISTORY.set(None);
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// Installs a panic hook. The previous hook still reports all panics.
fn install() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            before(info);
            // A thread that is ending no longer has a history.
            let history = HISTORY.try_with(|history| history.borrow().clone()).ok().flatten();
            if let Some(Panics(first)) = history {
                let mut first = first.lock().unwrap_or_else(PoisonError::into_inner);
                first.get_or_insert_with(|| info.to_string().replace('\n', " "));
            }
        }));
    });
}

#[cfg(test)]
mod tests {
    use tokio::task::{JoinSet, spawn_blocking, yield_now};

    use super::super::{History, Plan, Violation, examine};

    fn outcome(history: impl Future<Output = ()>) -> Result<History, Box<Violation>> {
        examine(&Plan::from_seed(1), |_| history)
    }

    fn found(history: impl Future<Output = ()>) {
        let violation = outcome(history).unwrap_err();
        assert_eq!(violation.invariant, "P1");
        assert!(violation.what.ends_with("on purpose"), "{violation}");
    }

    #[test]
    fn a_task_that_panics_is_detected() {
        found(async {
            drop(tokio::spawn(async { panic!("on purpose") }));
            yield_now().await;
        });
        // Like the clients, whose tasks are shut down.
        found(async {
            let mut tasks = JoinSet::new();
            tasks.spawn(async { panic!("on purpose") });
            yield_now().await;
            tasks.shutdown().await;
        });
        // Like SQLite's calls, on a blocking thread.
        found(async { drop(spawn_blocking(|| panic!("on purpose"))) });
    }

    #[test]
    fn a_panic_is_reported_to_its_own_history_only() {
        let panicking = std::thread::spawn(|| panic!("on another thread, on purpose"));
        outcome(async {
            drop(tokio::spawn(async {}));
            yield_now().await;
        })
        .unwrap();
        assert!(panicking.join().is_err());
    }
}
