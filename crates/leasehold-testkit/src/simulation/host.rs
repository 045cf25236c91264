//! The clock of a simulated machine, which its processes use.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use leasehold::clock::{Clock, Moment, TestClock};
use tokio::sync::watch;

/// The clock of one process, on a machine that it may share.
///
/// In a process that is stopped, no sleep ends and no response is received (see
/// [`Machine`](crate::machine::Machine)). Nothing in it makes progress, but its clock runs.
#[derive(Debug)]
pub(super) struct Host {
    clock: Arc<TestClock>,
    /// How much time the boot clock has missed, in nanoseconds.
    missed_ns: AtomicU64,
    /// How much time both clocks have missed.
    still: Mutex<Still>,
    /// How many tasks of the process have stopped it.
    stopped: watch::Sender<u32>,
}

/// The state of a machine that is paused together with its clocks.
#[derive(Clone, Copy, Debug, Default)]
struct Still {
    missed_ns: u64,
    /// The moment that the stopped clocks show, and how many tasks have stopped them.
    since: Option<(Moment, u32)>,
}

impl Host {
    pub(super) fn new(clock: Arc<TestClock>) -> Self {
        let stopped = watch::Sender::new(0);
        Self { clock, missed_ns: AtomicU64::new(0), still: Mutex::default(), stopped }
    }

    fn still(&self) -> MutexGuard<'_, Still> {
        self.still.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stops the clocks of the machine.
    pub(super) fn stop_clocks(&self) {
        let mut still = self.still();
        let (since, tasks) = still.since.unwrap_or((self.clock.now(), 0));
        still.since = Some((since, tasks + 1));
    }

    /// Resumes the clocks, which have missed the time in between.
    pub(super) fn resume_clocks(&self) {
        let mut still = self.still();
        still.since = match still.since {
            Some((since, 1)) => {
                let missed = self.clock.now().since_boot().saturating_sub(since.since_boot());
                still.missed_ns += missed.as_nanos() as u64;
                None
            }
            others => others.map(|(since, tasks)| (since, tasks - 1)),
        };
    }

    pub(super) fn machine(&self) -> &TestClock {
        &self.clock
    }

    pub(super) fn stop_process(&self) {
        self.stopped.send_modify(|stopped| *stopped += 1);
    }

    pub(super) fn resume_process(&self) {
        self.stopped.send_modify(|stopped| *stopped -= 1);
    }

    /// Restores the machine from a snapshot that is this old. Only the wall clock shows it.
    pub(super) fn restored(&self, gap: Duration) {
        self.missed_ns.fetch_add(gap.as_nanos() as u64, Ordering::Relaxed);
    }
}

#[async_trait]
impl Clock for Host {
    fn now(&self) -> Moment {
        let Still { missed_ns: both_ns, since } = *self.still();
        let now = since.map_or_else(|| self.clock.now(), |(since, _)| since);
        let boot_ns = now.since_boot().as_nanos() as u64;
        match self.missed_ns.load(Ordering::Relaxed) {
            0 if both_ns == 0 => now,
            missed_ns => Moment::from_raw(
                boot_ns.saturating_sub(missed_ns).saturating_sub(both_ns),
                now.wall_us() as i64 * 1_000 - both_ns as i64,
            ),
        }
    }

    async fn sleep(&self, duration: Duration) {
        let start = self.now();
        let mut left = duration;
        loop {
            self.clock.sleep(left).await;
            // The sender lives as long as `self`, so this cannot fail.
            let _ = self.stopped.subscribe().wait_for(|stopped| *stopped == 0).await;
            left = duration.saturating_sub(self.now().longest_since(start));
            // A rounding error of less than a microsecond.
            if left < Duration::from_micros(1) {
                return;
            }
        }
    }
}
