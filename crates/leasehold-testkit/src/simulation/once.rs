//! A simulated job that all machines run once per period.

use std::time::Duration;

use leasehold::{Due, Register as _, Released};

use super::{Checker, Held, Player, Witness};

impl Player {
    /// Runs the job if it is due; it succeeds, fails or dies.
    pub(super) async fn run_once(&mut self, period: Duration) {
        let once = self.lock().once_per(period);
        let due = if self.random.u8(..3) == 0 { once.try_acquire().await } else { once.acquire().await };
        let guard = match due {
            Ok(Due::Now(guard)) => guard,
            Ok(Due::AlreadyRan(_)) => {
                self.checker.lock().history.already_ran += 1;
                return;
            }
            Err(_) => return,
        };
        let granted = self.register.true_time();
        self.checker.begun(granted);
        let before = self.suspended;
        self.hold(&guard, Held::Alone).await;
        let passed_for_us_alone = self.suspended - before;
        match self.random.u8(..4) {
            0 => drop(guard),
            1 => self.crash(guard),
            _ => {
                if let Ok(Released::Released) = guard.rest(period).await {
                    self.checker.rests((granted + period).saturating_sub(passed_for_us_alone));
                }
            }
        }
    }

    /// At the end of the history: until the job can run again.
    pub(super) async fn runs_at_last(&self, period: Duration) {
        while !matches!(self.lock().once_per(period).acquire().await, Ok(Due::Now(_))) {
            self.env.sleep(Duration::from_millis(100)).await;
        }
        self.checker.begun(self.register.true_time());
    }
}

impl Witness {
    fn true_time(&self) -> Duration {
        self.inner.env().now().since_boot()
    }
}

impl Checker {
    /// Somebody begins the job at `now`, in true time.
    fn begun(&self, now: Duration) {
        let until = self.lock().rests_until;
        if now < until {
            self.violated(format!("O1: the job begins {:?} before its period is over", until - now));
        }
    }

    /// The store knows that the job ran in the period that lasts until `until`, in true time.
    fn rests(&self, until: Duration) {
        let mut checked = self.lock();
        checked.history.runs += 1;
        checked.rests_until = checked.rests_until.max(until);
    }
}
