//! A simulated machine's clock, which is also what its processes run by.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use leasehold::clock::{Clock, Moment, TestClock};
use tokio::sync::watch;

/// The clock of one process, on a machine that others may share.
///
/// A process that is stopped wakes from no sleep, and takes in no answer (see [`Machine`](crate::machine::Machine)): so
/// nothing in it goes on, while its clock does.
#[derive(Debug)]
pub(super) struct Host {
    clock: Arc<TestClock>,
    /// What the boot clock has missed, in nanoseconds.
    missed_ns: AtomicU64,
    /// By how many of its tasks.
    stopped: watch::Sender<u32>,
}

impl Host {
    pub(super) fn new(clock: Arc<TestClock>) -> Self {
        Self { clock, missed_ns: AtomicU64::new(0), stopped: watch::Sender::new(0) }
    }

    pub(super) fn machine(&self) -> &TestClock {
        &self.clock
    }

    pub(super) fn stop(&self) {
        self.stopped.send_modify(|stopped| *stopped += 1);
    }

    pub(super) fn go_on(&self) {
        self.stopped.send_modify(|stopped| *stopped -= 1);
    }

    /// The machine was restored from a snapshot that was taken so long ago: only the wall clock knows.
    pub(super) fn restored(&self, gap: Duration) {
        self.missed_ns.fetch_add(gap.as_nanos() as u64, Ordering::Relaxed);
    }
}

#[async_trait]
impl Clock for Host {
    fn now(&self) -> Moment {
        let now = self.clock.now();
        match self.missed_ns.load(Ordering::Relaxed) {
            0 => now,
            missed_ns => {
                let boot_ns = now.since_boot().as_nanos() as u64;
                Moment::from_raw(boot_ns.saturating_sub(missed_ns), now.wall_us() as i64 * 1_000)
            }
        }
    }

    async fn sleep(&self, duration: Duration) {
        self.clock.sleep(duration).await;
        // The sender lives as long as `self`, so this cannot fail.
        let _ = self.stopped.subscribe().wait_for(|stopped| *stopped == 0).await;
    }
}
