//! Releasing a grant: the attempts, the pauses between them, and the reports to the observers.

use std::time::Duration;

use tokio::sync::oneshot;

use super::Renewer;
use crate::clock::{RATE_ERROR, timeout};
use crate::error::{Error, Fault, Result};
use crate::lease::{Released, Ttl, attempt_limit};
use crate::observe::{Event, ReleaseResult, elapsed};

/// The first pause after a release that failed. Further pauses are longer.
const FIRST_RELEASE_PAUSE: Duration = Duration::from_secs(1);

impl Renewer {
    /// Releases the lock. Reports the first error to the caller, and then retries in the background until the lease has
    /// lapsed.
    pub(super) async fn release(&mut self, mut reply: Option<oneshot::Sender<Result<Released>>>) {
        let mut pause = FIRST_RELEASE_PAUSE;
        loop {
            let outcome = self.try_release(None).await;
            let done = outcome.is_ok();
            if let Ok(released) = outcome {
                self.report_released(released.into());
                self.leave();
            }
            if let Some(reply) = reply.take() {
                let _ =
                    reply.send(outcome.map_err(|error| error.with_help("the lease ends without a release")));
            }
            if done {
                return;
            }
            if !self.pause_release(&mut pause).await {
                return self.report_released(ReleaseResult::Unconfirmed);
            }
        }
    }

    /// Releases the lock because the hold is at its limit. Never passes it on, so that all processes see the end.
    pub(super) async fn release_at_limit(&mut self, reply: oneshot::Sender<Result<Released>>) {
        self.grant.at_limit = true;
        self.release(Some(reply)).await;
    }

    /// Releases the lock after its deadline. A renewal may have been applied unnoticed, and the next holder need not wait
    /// until it lapses. But a release would end the lock delay.
    pub(super) async fn free_lapsed(&mut self) {
        if self.frees_lapsed {
            drop(self.try_release(None).await);
        }
    }

    /// Releases the lock with a cooldown. Retries until the lease has lapsed. Reports only the final result to the
    /// caller, because no other process knows of the cooldown until the store has recorded it.
    pub(super) async fn cooldown(&mut self, period: Duration, reply: oneshot::Sender<Result<Released>>) {
        let mut pause = FIRST_RELEASE_PAUSE;
        let outcome = loop {
            // Subtract a lower bound of the time since the grant, so that the cooldown is not too short if this clock
            // runs fast.
            let passed = self.state.env.now().shortest_since(self.granted).mul_f64(1.0 - RATE_ERROR);
            let cooldown = Some(period.saturating_sub(passed)).filter(|cooldown| !cooldown.is_zero());
            match self.try_release(cooldown).await {
                Ok(released) => break Ok(released),
                Err(error) if !self.pause_release(&mut pause).await => {
                    break Err(error.with_help("the lock may be granted again before its cooldown ends"));
                }
                Err(_) => {}
            }
        };
        self.report_released(
            outcome.as_ref().map_or(ReleaseResult::Unconfirmed, |&released| released.into()),
        );
        self.leave();
        let _ = reply.send(outcome);
    }

    /// Reports the end of the hold, unless its loss was reported.
    pub(super) fn report_released(&self, result: ReleaseResult) {
        if let Some(held) = self.held() {
            let (lock, token) = (&self.lock.name, self.lock.token);
            self.opened.observers.report(&Event::Released { lock, token, held, result });
        }
    }

    /// Returns how long the lock was held until its guard ended, or `None` if it was lost before.
    pub(super) fn held(&self) -> Option<Duration> {
        self.state.ended().map(|ended| elapsed(self.granted, ended))
    }

    /// Releases the lock once, with `cooldown` if it is set.
    pub(super) async fn try_release(&mut self, cooldown: Option<Duration>) -> Result<Released> {
        // After the end of the lease, a release makes no difference to other processes, so it gets only the time of one
        // request.
        let env = self.state.env.clone();
        // The guard may have been dropped right after the loss.
        self.grant.at_limit |= self.state.is_at_limit();
        self.grant.size = self.state.size_on_release();
        let limit = self.grant.deadline.remaining(env.now()).max(attempt_limit(self.grant.ttl));
        let release = self.opened.store.release(&mut self.grant, cooldown);
        let outcome = timeout(&*env.clock, limit, release).await.unwrap_or_else(|| {
            Err(Fault::unavailable(format!("no response to the release within {limit:.1?}")).maybe_applied())
        });
        match &outcome {
            Ok(released) => {
                tracing::debug!(lock = %self.grant.name, token = %self.grant.token, ?released, "lock released");
            }
            Err(error) => tracing::debug!(lock = %self.grant.name, %error, "the lock was not released"),
        }
        outcome.map_err(Error::from)
    }

    /// Waits before the next attempt. Returns `false` if the lease has lapsed.
    async fn pause_release(&self, pause: &mut Duration) -> bool {
        let env = &self.state.env;
        if self.grant.deadline.passed(env.now()) {
            return false;
        }
        env.sleep(env.random.jittered(*pause, 0.5)).await;
        *pause = next_release_pause(*pause, self.grant.ttl);
        true
    }
}

/// Returns the pause between attempts to release that follows `pause`.
fn next_release_pause(pause: Duration, ttl: Ttl) -> Duration {
    (pause * 2).min(ttl.get() / 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn release_retries_double_their_pause_up_to_a_tenth_of_the_ttl() {
        let ttl = Ttl::from_millis(30_000).unwrap();
        let first = next_release_pause(FIRST_RELEASE_PAUSE, ttl);
        assert_eq!([first, next_release_pause(first, ttl)], [2, 3].map(Duration::from_secs));
    }
}
