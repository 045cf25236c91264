//! Waiting: the server waits on behalf of the waiter.

use std::time::Duration;

use async_trait::async_trait;
use reqwest::header::IF_NONE_MATCH;

use super::HttpLeases;
use super::client::{Answer, Request, duration, lock_path};
use crate::clock::{Moment, timeout};
use crate::error::{Fault, StoreError};
use crate::lease::{Claim, HolderInfo, State, Watch};
use crate::native::Claimed;
use crate::retry::{RetryBudget, repeated};
use crate::types::LockName;

/// The longest wait on the server. It is shorter than the minute after which many proxies give up.
const WAIT: Duration = Duration::from_secs(50);

/// How much later than requested the server may respond.
const GRACE: Duration = Duration::from_secs(15);

/// The shortest time between two requests that ask the server to wait.
const LEAST_PAUSE: Duration = Duration::from_millis(500);

#[async_trait]
impl Watch for HttpLeases {
    /// Waits in the server's line. If the server grants the lock during the wait, the next attempt returns that grant
    /// with the whole ttl, because the server recognises the claim.
    async fn turn(&self, claim: &Claim, seen: &HolderInfo) -> Result<(), StoreError> {
        if !claim.waits {
            return self.changed_within(claim.poll_timeout(), &claim.name, seen).await;
        }
        let sent = self.client.env.now();
        let waited = self.limited(WAIT, self.acquire(claim, WAIT)).await;
        match waited {
            Ok(Claimed::Granted(..) | Claimed::Lost(_) | Claimed::Again) => Ok(()),
            Ok(Claimed::Held(_)) => {
                self.pace(sent, LEAST_PAUSE).await;
                Ok(())
            }
            Err(error) => self.asked_to_pause(sent, error).await,
        }
    }

    async fn changed(&self, name: &LockName, seen: &HolderInfo) -> Result<(), StoreError> {
        self.changed_within(Claim::DEFAULT_STORE_TIMEOUT, name, seen).await
    }
}

fn is_same(held: &HolderInfo, seen: &HolderInfo) -> bool {
    (held.token, held.in_cooldown) == (seen.token, seen.in_cooldown)
}

impl HttpLeases {
    /// Waits until the holder of `name` is no longer `seen`. Keeps trying a server that does not respond for `limit`.
    async fn changed_within(
        &self,
        limit: Duration,
        name: &LockName,
        seen: &HolderInfo,
    ) -> Result<(), StoreError> {
        let mut sent = self.client.env.now();
        let mut budget = RetryBudget::of_question_within(&self.client.env, limit);
        let (status, tag) = repeated(&mut budget, || self.client.shown(name)).await?;
        let pause = match (status.state, tag) {
            (State::Held(held), Some(tag)) if is_same(&held, seen) => {
                sent = self.client.env.now();
                if let Err(error) = self.until_changed(name, tag, held.lapses_within).await {
                    return self.asked_to_pause(sent, error).await;
                }
                LEAST_PAUSE
            }
            (State::Held(held), None) if is_same(&held, seen) => self.capabilities.poll_interval.max,
            // The lock may be reserved, which its state does not show. The server would then refuse the next request at
            // once.
            _ => LEAST_PAUSE,
        };
        self.pace(sent, pause).await;
        Ok(())
    }

    /// Asks the server to wait until the lock is no longer at the version `tag`, or its lease may have lapsed.
    async fn until_changed(
        &self,
        name: &LockName,
        tag: String,
        lapses_within: Option<Duration>,
    ) -> Result<(), StoreError> {
        // The server's store may not report that a lease has lapsed.
        let wait = lapses_within.map_or(WAIT, |left| left.min(WAIT));
        let target = format!("{}?wait={}", lock_path(name), duration(wait));
        let request = Request::get(target, format!("cannot wait for {name}")).with_header(IF_NONE_MATCH, tag);
        match self.limited(wait, self.client.send(&request)).await? {
            Answer::Done(..) | Answer::Same => Ok(()),
            _ => Err(self.client.unexpected(&request)),
        }
    }

    /// Awaits `answer` for slightly longer than the `wait` of its request.
    async fn limited<T>(
        &self,
        wait: Duration,
        answer: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let limit = wait + GRACE;
        match timeout(&*self.client.env.clock, limit, answer).await {
            Some(answer) => answer,
            None => Err(Fault::unavailable(format!("no response within {limit:?}")).maybe_applied()),
        }
    }

    /// Waits for the pause that the server asked for in `error`, or else for [`LEAST_PAUSE`]. Returns `error` if the
    /// server asked for no pause, or if `error` is not transient.
    async fn asked_to_pause(&self, sent: Moment, error: StoreError) -> Result<(), StoreError> {
        let asked = error.fault().retry_after.filter(|_| error.is_transient());
        self.pace(sent, asked.unwrap_or(LEAST_PAUSE)).await;
        asked.map(|_| ()).ok_or(error)
    }

    /// Waits until `pause` has passed since `sent`, so that a server that does not wait does not get requests without a
    /// pause.
    async fn pace(&self, sent: Moment, pause: Duration) {
        let env = &self.client.env;
        let left = pause.saturating_sub(env.now().shortest_since(sent));
        if !left.is_zero() {
            env.sleep(env.random.jittered(left, 0.1)).await;
        }
    }
}
