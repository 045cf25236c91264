//! Retrying: one logical operation, bounded in time, with full-jitter backoff.
//!
//! The retry loop is ours, not the client library's: it alone knows the nonce and the deadline (rule 4).

use std::future::Future;
use std::time::Duration;

use crate::clock::{Moment, timeout};
use crate::env::Env;
use crate::error::{Fault, StoreError};
use crate::lease::StoreTrouble;

/// Pauses start at up to this,
const FIRST_PAUSE: Duration = Duration::from_millis(50);
/// double, and stay at up to this.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// A request is given at least this, or it would be sent only to be given up.
const SHORTEST_REQUEST: Duration = Duration::from_millis(250);

/// How long a question is asked again, and how long one answer is waited for.
const QUESTION: Duration = Duration::from_secs(15);
const ANSWER: Duration = Duration::from_secs(5);

/// Asks again after what passes: a throttled request, a lost answer. For questions that may be asked twice.
pub(crate) async fn retry<T, F>(env: &Env, mut ask: impl FnMut() -> F) -> Result<T, StoreError>
where
    F: Future<Output = Result<T, StoreError>>,
{
    let mut effort = RetryBudget::of_question(env);
    loop {
        match effort.request(ask()).await {
            Ok(answer) => return Ok(answer),
            Err(error) => effort.pause_after(error).await?,
        }
    }
}

/// The time and the tries that one operation may still take.
#[derive(Debug)]
pub(crate) struct RetryBudget<'a> {
    env: &'a Env,
    began: Moment,
    limit: Duration,
    attempt_limit: Duration,
    failures: u32,
    /// What went wrong last.
    cause: Option<String>,
    trouble: StoreTrouble,
}

impl<'a> RetryBudget<'a> {
    /// An operation that may take `limit` in all and `attempt_limit` for each request.
    pub(crate) fn new(env: &'a Env, limit: Duration, attempt_limit: Duration) -> Self {
        Self {
            env,
            began: env.now(),
            limit,
            attempt_limit,
            failures: 0,
            cause: None,
            trouble: StoreTrouble::default(),
        }
    }

    /// Notes what keeps the store from answering in `trouble`.
    pub(crate) fn noting(self, trouble: &StoreTrouble) -> Self {
        Self { trouble: trouble.clone(), ..self }
    }

    /// A question that nobody's lease depends on: of an examination, or a page of a listing.
    pub(crate) fn of_question(env: &'a Env) -> Self {
        Self::new(env, QUESTION, ANSWER)
    }

    /// What is left of the time.
    pub(crate) fn left(&self) -> Duration {
        self.limit.saturating_sub(self.env.now().longest_since(self.began))
    }

    /// Whether a request was refused for now, or not answered.
    pub(crate) fn had_trouble(&self) -> bool {
        self.failures > 0
    }

    /// Gives `more` time: what has passed was not the store's doing.
    pub(crate) fn extend(&mut self, more: Duration) {
        self.limit = self.limit.saturating_add(more);
    }

    /// Somebody else went on: that is contention, and no trouble with the store, which is what patience is for.
    pub(crate) fn progressed(&mut self) {
        self.began = self.env.now();
        self.failures = self.failures.min(1);
    }

    /// Awaits one request, but not for ever. A request that was given up on may still have its effect.
    pub(crate) async fn request<T>(
        &self,
        request: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let limit = self.attempt_limit.min(self.left().max(SHORTEST_REQUEST));
        self.request_within(limit, request).await
    }

    /// The same with a limit of its own: for a request with a large body, and one that is worth its time also at the end.
    pub(crate) async fn request_within<T>(
        &self,
        limit: Duration,
        request: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        match timeout(&*self.env.clock, limit, request).await {
            Some(answer) => answer,
            None => {
                // The last request of an effort may have less time than it needs: what went wrong before says more.
                let message = match &self.cause {
                    Some(cause) if limit < self.attempt_limit => cause.clone(),
                    _ => format!("no answer within {limit:.1?}"),
                };
                Err(Fault::unavailable(message).maybe_applied())
            }
        }
    }

    /// After `error`: waits before the next try, or gives the error back when another try would be pointless.
    pub(crate) async fn pause_after(&mut self, error: StoreError) -> Result<(), StoreError> {
        if !error.is_transient() {
            return Err(error);
        }
        self.trouble.note(&error);
        self.cause = Some(error.to_string());
        let asked = error.fault().retry_after.unwrap_or(Duration::ZERO);
        let pause = self.next_pause().max(asked);
        if pause >= self.left() {
            return Err(error);
        }
        tracing::debug!(%error, ?pause, "trying again");
        self.env.sleep(pause).await;
        Ok(())
    }

    /// After a conflict: the first costs nothing, since it means that somebody else went on. A store that only ever
    /// conflicts must not be hammered.
    pub(crate) async fn pause_after_conflict(&mut self) -> Result<(), StoreError> {
        if self.failures == 0 {
            self.failures = 1;
            return Ok(());
        }
        self.pause_after(
            Fault::unavailable("the lock's record kept changing while it was written").not_applied(),
        )
        .await
    }

    /// Full jitter: uniform between nothing and a bound that doubles
    /// (<https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/>).
    fn next_pause(&mut self) -> Duration {
        let bound = (FIRST_PAUSE * 2_u32.pow(self.failures.min(10))).min(LONGEST_PAUSE);
        self.failures += 1;
        bound.mul_f64(self.env.random.fraction())
    }
}
