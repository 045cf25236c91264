//! Retries of one logical operation, with a time limit and full-jitter backoff.
//!
//! leasehold runs the retry loop itself instead of the client library, because only leasehold knows the nonce and the
//! deadline (rule 4).

use std::future::Future;
use std::time::Duration;

use crate::clock::{Moment, timeout};
use crate::env::Env;
use crate::error::{Fault, StoreError};
use crate::lease::LastError;

/// The upper bound of the first pause. The bound doubles with each pause, up to `LONGEST_PAUSE`.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// The shortest time limit of a request. With less time, a request would be sent only to be given up.
const SHORTEST_REQUEST: Duration = Duration::from_millis(250);

/// The time limit of a request that is safe to repeat, with all its retries. `ANSWER` is the limit of each try.
const QUESTION: Duration = Duration::from_secs(15);
const ANSWER: Duration = Duration::from_secs(5);

/// Repeats a request that is safe to repeat after transient errors, such as throttling or a lost response.
///
/// It has its own time limit. Use [`repeated`] in an operation whose caller sets the limit.
pub(crate) async fn retry<T, F>(env: &Env, ask: impl FnMut() -> F) -> Result<T, StoreError>
where
    F: Future<Output = Result<T, StoreError>>,
{
    repeated(&mut RetryBudget::of_question(env), ask).await
}

/// Does the same as [`retry`] within `budget`.
pub(crate) async fn repeated<T, F>(
    budget: &mut RetryBudget<'_>,
    mut ask: impl FnMut() -> F,
) -> Result<T, StoreError>
where
    F: Future<Output = Result<T, StoreError>>,
{
    loop {
        match budget.request(ask()).await {
            Ok(answer) => return Ok(answer),
            Err(error) => budget.pause_after(error).await?,
        }
    }
}

/// The time and the retries that an operation has left.
#[derive(Debug)]
pub(crate) struct RetryBudget<'a> {
    env: &'a Env,
    began: Moment,
    limit: Duration,
    attempt_limit: Duration,
    failures: u32,
    /// The message and the help text of the latest error.
    cause: Option<(String, Option<String>)>,
    last_error: LastError,
    /// The longest pause that the store may ask for.
    longest_asked: Duration,
}

impl<'a> RetryBudget<'a> {
    /// Creates the budget of an operation that may take `limit` in all and `attempt_limit` for each request.
    pub(crate) fn new(env: &'a Env, limit: Duration, attempt_limit: Duration) -> Self {
        Self {
            env,
            began: env.now(),
            limit,
            attempt_limit,
            failures: 0,
            cause: None,
            last_error: LastError::default(),
            longest_asked: Duration::MAX,
        }
    }

    /// Waits no longer than other pauses, even if the store asks for more. For a write that matters more than the load.
    pub(crate) fn urgent(self) -> Self {
        Self { longest_asked: LONGEST_PAUSE, ..self }
    }

    /// Records the latest error in `last_error`.
    pub(crate) fn noting(self, last_error: &LastError) -> Self {
        Self { last_error: last_error.clone(), ..self }
    }

    /// Returns the record of the latest error.
    pub(crate) fn last_error(&self) -> &LastError {
        &self.last_error
    }

    /// Creates the budget of a request that no lease depends on, such as a request of an examination or a page of a
    /// listing.
    pub(crate) fn of_question(env: &'a Env) -> Self {
        Self::of_question_within(env, QUESTION)
    }

    /// Creates the budget of a request that no lease depends on, in an operation that may take `limit`.
    pub(crate) fn of_question_within(env: &'a Env, limit: Duration) -> Self {
        Self::new(env, limit, ANSWER)
    }

    /// Returns the time that is left.
    pub(crate) fn left(&self) -> Duration {
        self.limit.saturating_sub(self.env.now().longest_since(self.began))
    }

    /// Returns whether a request was refused with a transient error or got no response.
    pub(crate) fn had_trouble(&self) -> bool {
        self.failures > 0
    }

    /// Extends the limit by `more`, the time that something other than the store took.
    pub(crate) fn extend(&mut self, more: Duration) {
        self.limit = self.limit.saturating_add(more);
    }

    /// Restarts the time limit after another client made progress. That is contention, but the limit is for trouble
    /// with the store.
    pub(crate) fn progressed(&mut self) {
        self.began = self.env.now();
        self.failures = self.failures.min(1);
    }

    /// Awaits one request up to the limit. A request that was given up may still take effect.
    pub(crate) async fn request<T>(
        &self,
        request: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let limit = self.attempt_limit.min(self.left().max(SHORTEST_REQUEST));
        self.request_within(limit, request).await
    }

    /// Sends a request like [`request`](Self::request), with a separate limit. For a request with a large body, and for
    /// one that gets its full time even at the end of the budget.
    pub(crate) async fn request_within<T>(
        &self,
        limit: Duration,
        request: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        match timeout(&*self.env.clock, limit, request).await {
            Some(answer) => {
                if answer.is_ok() {
                    self.last_error.answered();
                }
                answer
            }
            None => {
                // The last request may have had less time than it needs. The earlier error then explains more.
                let (message, help) = match &self.cause {
                    Some(cause) if limit < self.attempt_limit => cause.clone(),
                    _ => (format!("no response within {limit:.1?}"), None),
                };
                let mut fault = Fault::unavailable(message);
                fault.help = help;
                Err(fault.maybe_applied())
            }
        }
    }

    /// Waits before the next try after `error`. Returns the error if another try is pointless.
    pub(crate) async fn pause_after(&mut self, error: StoreError) -> Result<(), StoreError> {
        if !error.is_transient() {
            return Err(error);
        }
        self.last_error.set(&error);
        self.cause = Some((error.to_string(), error.fault().help.clone()));
        let asked = error.fault().retry_after.unwrap_or(Duration::ZERO).min(self.longest_asked);
        let pause = self.next_pause().max(asked);
        if pause >= self.left() {
            return Err(error);
        }
        tracing::debug!(%error, ?pause, "trying again");
        self.env.sleep(pause).await;
        Ok(())
    }

    /// Waits after a conflict. The first conflict is retried at once, because it means that another client made
    /// progress. Later ones wait, to protect a store that refuses every write with a conflict.
    pub(crate) async fn pause_after_conflict(&mut self) -> Result<(), StoreError> {
        if self.failures == 0 {
            self.failures = 1;
            return Ok(());
        }
        self.pause_after(Fault::contended("the record kept changing while it was written").not_applied())
            .await
    }

    /// Returns the next pause, with full jitter: uniform between zero and a bound that doubles
    /// (<https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/>).
    fn next_pause(&mut self) -> Duration {
        let bound = (FIRST_PAUSE * 2_u32.pow(self.failures.min(10))).min(LONGEST_PAUSE);
        self.failures += 1;
        bound.mul_f64(self.env.random.fraction())
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::sync::Arc;

    use super::*;
    use crate::clock::TestClock;

    #[tokio::test(start_paused = true)]
    async fn the_last_error_and_its_help_explain_a_try_that_was_cut_short() {
        let env = Env::seeded(Arc::new(TestClock::default()), 7);
        let mut budget = RetryBudget::new(&env, Duration::from_secs(3), Duration::from_secs(2));
        let refused = Fault::unavailable("wrong certificate").with_help("name it with ca=FILE");
        budget.pause_after(refused.not_applied()).await.unwrap();
        let silent = budget.request(pending::<Result<(), _>>()).await.unwrap_err();
        assert_eq!(
            (silent.to_string().as_str(), silent.fault().help.as_deref()),
            ("no response within 2.0s", None)
        );
        let cut_short = budget.request(pending::<Result<(), _>>()).await.unwrap_err();
        assert_eq!(cut_short.to_string(), "wrong certificate");
        assert_eq!(cut_short.fault().help.as_deref(), Some("name it with ca=FILE"));
    }
}
