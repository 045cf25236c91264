//! Sleeps that are accurate to a tenth of a millisecond. The runtime rounds its own sleeps up to whole milliseconds,
//! which is too coarse for a delay of 2.5 ms.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use leasehold::clock::{Clock, SystemClock};
use tokio::sync::oneshot;

/// A handle to a thread that wakes sleepers. The thread ends when the last handle is dropped.
#[derive(Clone, Debug)]
pub(super) struct Timer(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    sleepers: Arc<Sleepers>,
}

#[derive(Debug, Default)]
struct Sleepers {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    queue: BinaryHeap<Reverse<Sleeper>>,
    /// Distinguishes sleepers that wake at the same time.
    count: u64,
    over: bool,
}

#[derive(Debug)]
struct Sleeper {
    due: Duration,
    number: u64,
    wake: oneshot::Sender<()>,
}

impl PartialEq for Sleeper {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
    }
}

impl Eq for Sleeper {}

impl PartialOrd for Sleeper {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Sleeper {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.due, self.number).cmp(&(other.due, other.number))
    }
}

/// Returns the time since the machine started.
pub(super) fn now() -> Duration {
    SystemClock.now().since_boot()
}

impl Timer {
    pub(super) fn start() -> Self {
        let sleepers = Arc::new(Sleepers::default());
        let of_thread = sleepers.clone();
        std::thread::spawn(move || of_thread.wake_all());
        Self(Arc::new(Shared { sleepers }))
    }

    /// Completes at `due`, in time since the machine started.
    pub(super) async fn sleep_until(&self, due: Duration) {
        if due <= now() {
            return;
        }
        let (wake, woken) = oneshot::channel();
        {
            let mut state = self.0.sleepers.state.lock().unwrap_or_else(PoisonError::into_inner);
            state.count += 1;
            let number = state.count;
            state.queue.push(Reverse(Sleeper { due, number, wake }));
        }
        self.0.sleepers.changed.notify_one();
        // The thread lives as long as `self`.
        let _ = woken.await;
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.sleepers.state.lock().unwrap_or_else(PoisonError::into_inner).over = true;
        self.sleepers.changed.notify_one();
    }
}

impl Sleepers {
    fn wake_all(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        while !state.over {
            let left = state.queue.peek().map(|Reverse(next)| next.due.saturating_sub(now()));
            state = match left {
                Some(Duration::ZERO) => {
                    if let Some(Reverse(next)) = state.queue.pop() {
                        // A sleeper that was dropped does not need a wake-up.
                        let _ = next.wake.send(());
                    }
                    state
                }
                Some(left) => {
                    self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0
                }
                None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn sleepers_wake_in_the_order_of_their_times_and_not_before() {
        let timer = Timer::start();
        let begin = now();
        let at = move |ms| begin + Duration::from_millis(ms);
        let (told, mut heard) = tokio::sync::mpsc::unbounded_channel();
        let tasks: Vec<_> = [30, 10, 20]
            .map(|ms| {
                let (timer, told) = (timer.clone(), told.clone());
                tokio::spawn(async move {
                    timer.sleep_until(at(ms)).await;
                    told.send((ms, now())).unwrap();
                })
            })
            .into_iter()
            .collect();
        for expected in [10, 20, 30] {
            let (ms, when) = heard.recv().await.unwrap();
            assert_eq!(ms, expected);
            assert!(when >= at(ms));
        }
        for task in tasks {
            task.await.unwrap();
        }
        timer.sleep_until(begin).await;
    }
}
