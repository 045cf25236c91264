//! The keeper of one guard: renews the lease, and reports its loss in time whatever the renewal does.
//!
//! Two tasks for each guard. The *keeper* is the only one who talks to the store about the grant, so that renewal and
//! release are never on the way at once (rule 6). The *watchdog* does nothing but wait for the deadline: a renewal that
//! hangs cannot delay it.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::select_all;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use crate::clock::{Deadline, Moment, RATE_ERROR, timeout};
use crate::env::Env;
use crate::error::{Error, Result};
use crate::lease::{Grant, LeaseStore, Loss, LossReason, Released, Renewal, attempt_limit};
use crate::queue::Turn;
use crate::ticket::Ticket;

/// Renewals come when this part of the ttl has passed: two more can fail before the lease is in danger.
pub(crate) const RENEW_AFTER: f64 = 1.0 / 3.0;
/// Renewals of many locks taken at once spread out.
pub(crate) const RENEW_SPREAD: f64 = 0.1;

/// A release that failed is tried again after this, and then ever less often.
const FIRST_RELEASE_PAUSE: Duration = Duration::from_secs(1);

/// What a guard and its tasks share: the truth about the lease, as far as this process may believe in it.
#[derive(Debug)]
pub(crate) struct Lease {
    env: Env,
    state: Mutex<State>,
    /// Cancelled as soon as the lease is not held any more, for whatever reason.
    over: CancellationToken,
}

#[derive(Debug)]
enum State {
    Held {
        deadline: Deadline,
        last_error: Option<String>,
    },
    Lost(Loss),
    /// Released, or handed on.
    Ended,
}

/// What a guard asks of its keeper.
#[derive(Debug)]
pub(crate) enum Command {
    Release(oneshot::Sender<Result<Released>>),
    /// With a rest until so long after the grant.
    Rest(Duration, oneshot::Sender<Result<Released>>),
    /// The ticket, with what says that somebody has it.
    HandOn(oneshot::Sender<Result<(Ticket, oneshot::Sender<()>)>>),
}

impl Lease {
    fn state<T>(&self, body: impl FnOnce(&mut State) -> T) -> T {
        body(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// How long the lease is still certain; zero when it is over.
    pub(crate) fn remaining(&self) -> Duration {
        let now = self.env.now();
        self.state(|state| match state {
            State::Held { deadline, .. } => deadline.remaining(now),
            State::Lost(_) | State::Ended => Duration::ZERO,
        })
    }

    /// How the lease came to an end, if it has: by the clock, and not by a timer that should have fired.
    pub(crate) fn loss(&self, grant: &Identity) -> Option<Loss> {
        let now = self.env.now();
        self.state(|state| match state {
            State::Held { deadline, .. } if !deadline.passed(now) => None,
            State::Held { last_error, .. } => {
                let loss = grant.loss(LossReason::Expired { last_error: last_error.take() });
                tracing::warn!(%loss, "lock lost");
                *state = State::Lost(loss.clone());
                self.over.cancel();
                Some(loss)
            }
            State::Lost(loss) => Some(loss.clone()),
            State::Ended => Some(grant.loss(LossReason::Ended)),
        })
    }

    /// Completes when the lease was lost. Never when it was released.
    pub(crate) async fn lost(&self, grant: &Identity) -> Loss {
        loop {
            // Its own timer, beside the watchdog's: right also when the runtime of the tasks is gone.
            tokio::select! {
                () = self.over.cancelled() => {}
                () = self.env.sleep(self.remaining()) => {}
            }
            match self.loss(grant) {
                Some(_) if self.state(|state| matches!(state, State::Ended)) => std::future::pending().await,
                Some(loss) => return loss,
                None => {}
            }
        }
    }

    pub(crate) fn over(&self) -> CancellationToken {
        self.over.clone()
    }

    /// The user's belief ends here, before anything is sent. Gives the loss, if the lease was lost before.
    pub(crate) fn end(&self) -> Option<Loss> {
        let lost = self.state(|state| match state {
            State::Lost(loss) => Some(loss.clone()),
            State::Held { .. } | State::Ended => {
                *state = State::Ended;
                None
            }
        });
        self.over.cancel();
        lost
    }

    /// The loss, if the lease is known to be lost. Does not read the clock.
    fn known_loss(&self) -> Option<Loss> {
        self.state(|state| match state {
            State::Lost(loss) => Some(loss.clone()),
            State::Held { .. } | State::Ended => None,
        })
    }

    fn lose(&self, loss: Loss) {
        self.state(|state| {
            if let State::Held { .. } = state {
                tracing::warn!(%loss, "lock lost");
                *state = State::Lost(loss);
            }
        });
        self.over.cancel();
    }

    /// Lost is final: a renewal that is answered after that changes nothing (rule 9).
    fn prolong(&self, prolonged: Deadline) {
        let now = self.env.now();
        self.state(|state| match state {
            State::Held { deadline, last_error } if !deadline.passed(now) => {
                *deadline = prolonged;
                *last_error = None;
            }
            _ => {}
        });
    }

    fn note(&self, error: &impl ToString) {
        self.state(|state| {
            if let State::Held { last_error, .. } = state {
                *last_error = Some(error.to_string());
            }
        });
    }
}

/// What a grant is called, for losses.
#[derive(Clone, Debug)]
pub(crate) struct Identity {
    pub(crate) name: crate::LockName,
    pub(crate) token: crate::Token,
}

impl Identity {
    pub(crate) fn loss(&self, reason: LossReason) -> Loss {
        Loss::new(self.name.clone(), self.token, reason)
    }
}

/// Starts the tasks that keep `grant`. Must be called inside a tokio runtime.
///
/// When the returned sender is dropped, the grant is released in the background. `turn` is given up once the grant is
/// settled.
pub(crate) fn start(
    store: Arc<dyn LeaseStore>,
    grant: Grant,
    turn: Option<Turn>,
    store_url: Option<String>,
) -> (Arc<Lease>, oneshot::Sender<Command>) {
    let (sender, commands) = oneshot::channel();
    let lease = Arc::new(Lease {
        env: store.env().clone(),
        state: Mutex::new(State::Held { deadline: grant.deadline, last_error: None }),
        over: CancellationToken::new(),
    });
    let identity = Identity { name: grant.name.clone(), token: grant.token };
    tracing::debug!(lock = %grant.name, token = %grant.token, "lock acquired");
    tokio::spawn(watch(lease.clone(), identity.clone()));
    let granted = store.env().now();
    let keeper = Keeper { store, grant, granted, lease: lease.clone(), identity, store_url, turn };
    tokio::spawn(keeper.keep(commands));
    (lease, sender)
}

/// From now on the leases are lost together: what else is held ends, and is released, as soon as one of them is lost.
/// Must be called inside a tokio runtime.
pub(crate) fn bind(leases: Vec<Arc<Lease>>) {
    tokio::spawn(async move {
        select_all(leases.iter().map(|lease| Box::pin(lease.over.cancelled()))).await;
        // None when their guard has ended them.
        if let Some(loss) = leases.iter().find_map(|lease| lease.known_loss()) {
            for lease in &leases {
                lease.lose(loss.clone());
            }
        }
    });
}

/// The watchdog.
async fn watch(lease: Arc<Lease>, identity: Identity) {
    while lease.loss(&identity).is_none() {
        tokio::select! {
            () = lease.over.cancelled() => return,
            () = lease.env.sleep(lease.remaining()) => {}
        }
    }
}

struct Keeper {
    store: Arc<dyn LeaseStore>,
    grant: Grant,
    /// When that was known: not before the store granted it.
    granted: Moment,
    lease: Arc<Lease>,
    identity: Identity,
    store_url: Option<String>,
    /// Given up when the grant is settled, before whoever asked for that hears of it: they may try again at once.
    turn: Option<Turn>,
}

/// Why the renewals ended.
enum Over {
    /// The guard asked for something, or was dropped.
    Asked(Option<Command>),
    /// The deadline passed.
    Expired,
    /// The store says that it is ours no more.
    Gone,
}

impl Keeper {
    async fn keep(mut self, mut commands: oneshot::Receiver<Command>) {
        match self.renew_until_over(&mut commands).await {
            Over::Gone => {}
            // A renewal may have landed without our hearing of it: the next holder need not wait for that to lapse.
            Over::Expired => {
                if let Err(error) = self.store.release(&mut self.grant, None).await {
                    tracing::debug!(lock = %self.grant.name, %error, "a lost lock was not released");
                }
            }
            Over::Asked(Some(Command::Release(reply))) => self.release(Some(reply)).await,
            Over::Asked(Some(Command::Rest(period, reply))) => self.rest(period, reply).await,
            Over::Asked(Some(Command::HandOn(reply))) => self.hand_on(reply).await,
            Over::Asked(None) => self.release(None).await,
        }
    }

    async fn renew_until_over(&mut self, commands: &mut oneshot::Receiver<Command>) -> Over {
        let ttl = self.grant.ttl;
        let env = self.lease.env.clone();
        let regular = env.random.jittered(ttl.get().mul_f64(RENEW_AFTER), RENEW_SPREAD);
        let mut pause = regular;
        // A false alarm costs one renewal, and the next is heard only after a pause.
        let mut alarmed = false;
        loop {
            tokio::select! {
                biased;
                command = &mut *commands => return Over::Asked(command.ok()),
                () = self.lease.over.cancelled() => return self.cancelled(commands).await,
                () = self.store.ended(&self.grant), if !alarmed => alarmed = true,
                () = env.sleep(pause) => alarmed = false,
            }
            let (renewal, asked) = {
                let renewal = self.store.renew(&mut self.grant);
                tokio::pin!(renewal);
                tokio::select! {
                    biased;
                    renewal = &mut renewal => (Some(renewal), None),
                    // Settled before anything else is sent, but a store that hangs cannot hold up a release for long:
                    // what is still on the way fails its condition once the release is there.
                    command = &mut *commands => {
                        (timeout(&*env.clock, attempt_limit(ttl), renewal).await, Some(command.ok()))
                    }
                }
            };
            pause = match renewal {
                Some(Ok(Renewal::Renewed)) => {
                    tracing::trace!(lock = %self.grant.name, "lease renewed");
                    self.lease.prolong(self.grant.deadline);
                    regular
                }
                Some(Ok(Renewal::Lost(loss))) => {
                    let expired = matches!(loss.reason, LossReason::Expired { .. });
                    // Of a deadline that passed, the lease knows more: the last error.
                    if !expired || self.lease.loss(&self.identity).is_none() {
                        self.lease.lose(loss);
                    }
                    // A command that came meanwhile is dropped here, and its guard hears of the loss by that.
                    return if expired { Over::Expired } else { Over::Gone };
                }
                Some(Err(error)) => {
                    tracing::debug!(lock = %self.grant.name, %error, "the lease was not renewed");
                    self.lease.note(&error);
                    // Ever more often towards the deadline, but never in a storm.
                    (self.lease.remaining() / 4).clamp(Duration::from_millis(50), ttl.get() / 10)
                }
                None => Duration::ZERO,
            };
            if let Some(command) = asked {
                return Over::Asked(command);
            }
        }
    }

    /// The lease is over: because its guard ended it (the command is on its way), or because its time was up.
    async fn cancelled(&self, commands: &mut oneshot::Receiver<Command>) -> Over {
        if self.lease.state(|state| matches!(state, State::Lost(_))) {
            return Over::Expired;
        }
        Over::Asked(commands.await.ok())
    }

    /// Whoever asked hears of the first trouble; the release is tried again without them, until the lease has lapsed anyway.
    async fn release(&mut self, mut reply: Option<oneshot::Sender<Result<Released>>>) {
        let mut pause = FIRST_RELEASE_PAUSE;
        loop {
            let outcome = self.try_release(None).await;
            let done = outcome.is_ok();
            if done {
                self.turn = None;
            }
            if let Some(reply) = reply.take() {
                let _ = reply.send(outcome.map_err(|error| error.with_help("the lease ends by itself")));
            }
            if done || !self.pause_release(&mut pause).await {
                return;
            }
        }
    }

    /// Whoever asked hears of nothing but the end: until it has been told, nobody knows that the lock is to rest.
    async fn rest(&mut self, period: Duration, reply: oneshot::Sender<Result<Released>>) {
        let mut pause = FIRST_RELEASE_PAUSE;
        let outcome = loop {
            // What has passed since the grant is not rested again; at least that, if this clock goes too fast.
            let passed = self.lease.env.now().shortest_since(self.granted).mul_f64(1.0 - RATE_ERROR);
            let rest = Some(period.saturating_sub(passed)).filter(|rest| !rest.is_zero());
            match self.try_release(rest).await {
                Ok(released) => break Ok(released),
                Err(error) if !self.pause_release(&mut pause).await => {
                    break Err(error.with_help("the lock may be granted again before its time"));
                }
                Err(_) => {}
            }
        };
        self.turn = None;
        let _ = reply.send(outcome);
    }

    async fn try_release(&mut self, rest: Option<Duration>) -> Result<Released> {
        let outcome = self.store.release(&mut self.grant, rest).await;
        match &outcome {
            Ok(released) => {
                tracing::debug!(lock = %self.grant.name, token = %self.grant.token, ?released, "lock released");
            }
            Err(error) => tracing::debug!(lock = %self.grant.name, %error, "the lock was not released"),
        }
        outcome.map_err(Error::from)
    }

    /// Waits before another try; `false` when the lease has lapsed anyway.
    async fn pause_release(&self, pause: &mut Duration) -> bool {
        let env = &self.lease.env;
        if self.grant.deadline.passed(env.now()) {
            return false;
        }
        env.sleep(env.random.jittered(*pause, 0.5)).await;
        *pause = (*pause * 2).min(self.grant.ttl.get() / 10);
        true
    }

    async fn hand_on(&mut self, reply: oneshot::Sender<Result<(Ticket, oneshot::Sender<()>)>>) {
        let handed = self.store.detach(&mut self.grant).await;
        let (taken, is_taken) = oneshot::channel();
        let ticket =
            handed.map(|()| (Ticket::new(&self.grant, self.store_url.clone()), taken)).map_err(Error::from);
        // Nobody takes it, or it would die with this process: free for others at once. An answer that was sent may still
        // be dropped unread, with its future.
        if reply.send(ticket).is_err() || is_taken.await.is_err() {
            self.release(None).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::{Clock, TestClock};

    #[tokio::test(start_paused = true)]
    async fn rule_9_a_lease_whose_deadline_has_passed_is_not_prolonged_although_nobody_has_looked_yet() {
        let clock = Arc::new(TestClock::default());
        let deadline = Deadline::new(clock.now(), Duration::from_secs(30));
        let lease = Lease {
            env: Env::seeded(clock.clone(), 1),
            state: Mutex::new(State::Held { deadline, last_error: None }),
            over: CancellationToken::new(),
        };
        let identity = Identity { name: crate::LockName::new("x").unwrap(), token: crate::Token::default() };
        lease.prolong(Deadline::new(clock.now(), Duration::from_secs(40)));
        assert_eq!(lease.remaining(), Duration::from_secs(40));
        clock.suspend(Duration::from_secs(41));
        lease.prolong(Deadline::new(clock.now(), Duration::from_secs(40)));
        assert!(lease.loss(&identity).is_some());
    }
}
