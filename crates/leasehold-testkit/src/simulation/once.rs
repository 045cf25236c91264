//! A simulated job that all machines run once per period.

use std::time::Duration;

use leasehold::{Due, Released};

use super::checker::Checker;
use super::checker::Held;
use super::client::Client;
use super::plan::Fault;

impl Client {
    /// Runs the job if it is due. The job succeeds or fails, or its process dies.
    pub(super) async fn run_once(&mut self, period: Duration) {
        let once = self.lock().once_per(period);
        let due = if self.random.u8(..3) == 0 { once.try_acquire().await } else { once.acquire().await };
        let guard = match due {
            Ok(Due::Now(guard)) => guard,
            Ok(Due::AlreadyRan(_)) => {
                self.world.checker.lock().history.already_ran += 1;
                return;
            }
            Err(_) => return,
        };
        let granted = self.world.now();
        self.begun(granted);
        let before = self.suspended;
        self.hold(&guard, Held::Alone).await;
        let passed_for_us_alone = self.suspended - before;
        match self.random.u8(..4) {
            0 => drop(guard),
            1 if self.plan().has(Fault::Crashes) => self.crash(guard),
            _ => {
                if let Ok(Released::Released) = guard.release_with_cooldown(period).await {
                    self.world.checker.rests((granted + period).saturating_sub(passed_for_us_alone));
                }
            }
        }
    }

    /// Waits at the end of the history until the job can run again.
    pub(super) async fn runs_at_last(&mut self, period: Duration) {
        while !matches!(self.lock().once_per(period).acquire().await, Ok(Due::Now(_))) {
            self.env.sleep(Duration::from_millis(100)).await;
        }
        self.begun(self.world.now());
    }

    /// Records that the job starts at `now`. A cooldown ends by the store's clock, so its length is only as exact as
    /// the front ends agree on the time.
    fn begun(&self, now: Duration) {
        self.world.checker.begun(now + 2 * self.plan().front_ends());
    }
}

impl Checker {
    /// Records that a process starts the job at `now`, in true time.
    fn begun(&self, now: Duration) {
        let until = self.lock().rests_until;
        if now < until {
            self.violated("O1", format!("the job begins {:?} before its period is over", until - now));
        }
    }

    /// Records that the store has recorded a run of the job, in the period that ends at `until`, in true time.
    fn rests(&self, until: Duration) {
        let mut checked = self.lock();
        checked.history.runs += 1;
        checked.rests_until = checked.rests_until.max(until);
    }
}
