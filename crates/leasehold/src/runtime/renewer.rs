//! The renewer of one grant: renews the lease, and reports its loss in time whatever the renewal does.
//!
//! The *renewer* is the only one who talks to the store about the grant, so that renewal and release are never on the way
//! at once (rule 6). It also passes the lock on to the next task of this process ([`cohort`]): each has a
//! guard of its own, and the one before is dead by then. The *watchdog* of each guard does nothing but wait for the
//! deadline: a renewal that hangs cannot delay it.
//!
//! Both are tasks from shortly before the first renewal is due. Until then there is nothing to do but what the guard asks for,
//! and whoever asks does that ([`lease_table`]).

mod cohort;
mod lease_table;

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::select_all;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

pub(crate) use self::cohort::CohortGrant;
use self::lease_table::LeaseTable;
pub(crate) use self::lease_table::RenewerHandle;
use crate::clock::{Deadline, Moment, RATE_ERROR, timeout};
use crate::env::Env;
use crate::error::{Error, Fault, Result};
use crate::lease::{
    self, Capabilities, Grant, LeaseStore, Loss, LossReason, Released, Renewal, Ttl, attempt_limit,
};
use crate::runtime::limiter::{Limiter, RENEWALS};
use crate::runtime::queue::Served;
use crate::ticket::Ticket;
use crate::types::{RENEW_AFTER, RENEW_SPREAD};

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
    /// Boxed: seldom there, and larger than all else.
    Lost(Box<Loss>),
    /// Released, or handed on.
    Ended,
}

/// What a guard asks of its renewer.
#[derive(Debug)]
pub(crate) enum Command {
    Release(oneshot::Sender<Result<Released>>),
    /// With a rest until so long after the grant.
    Rest(Duration, oneshot::Sender<Result<Released>>),
    /// The ticket, with what says that somebody has it.
    HandOn(oneshot::Sender<Result<(Ticket, oneshot::Sender<()>)>>),
}

impl Lease {
    fn new(env: Env, deadline: Deadline) -> Self {
        let state = Mutex::new(State::Held { deadline, last_error: None });
        Self { env, state, over: CancellationToken::new() }
    }

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
                *state = State::Lost(Box::new(loss.clone()));
                self.over.cancel();
                Some(loss)
            }
            State::Lost(loss) => Some(Loss::clone(loss)),
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
            State::Lost(loss) => Some(Loss::clone(loss)),
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
            State::Lost(loss) => Some(Loss::clone(loss)),
            State::Held { .. } | State::Ended => None,
        })
    }

    fn lose(&self, loss: Loss) {
        self.state(|state| {
            if let State::Held { .. } = state {
                tracing::warn!(%loss, "lock lost");
                *state = State::Lost(Box::new(loss));
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

/// An open store, and what the renewers of all grants in it share.
pub(crate) struct Opened {
    pub(crate) store: Arc<dyn LeaseStore>,
    /// The URL that it was opened with, without passwords.
    pub(crate) url: Option<String>,
    renewals: Arc<Limiter>,
    lease_table: Arc<LeaseTable>,
}

impl Opened {
    pub(crate) fn new(store: Arc<dyn LeaseStore>, url: Option<String>) -> Self {
        Self { store, url, renewals: Limiter::new(RENEWALS), lease_table: Arc::default() }
    }

    /// The store, for messages: its URL, or its kind.
    pub(crate) fn shown(&self) -> String {
        self.url.clone().unwrap_or_else(|| self.store.capabilities().store.to_owned())
    }
}

/// A lock that one task holds, and the way to its renewer. Dropping it releases the lock, or passes it on, in the background.
pub(crate) struct Hold {
    pub(crate) identity: Identity,
    pub(crate) capabilities: Capabilities,
    pub(crate) lease: Arc<Lease>,
    pub(crate) renewer: Option<RenewerHandle>,
}

impl Drop for Hold {
    fn drop(&mut self) {
        // Dead first; then the renewer, whose commands end here, releases.
        self.lease.end();
    }
}

impl fmt::Debug for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hold").field("identity", &self.identity).finish_non_exhaustive()
    }
}

/// Keeps `grant` from now on. Must be called inside a tokio runtime. What `cohort` stands for is given up once the grant is
/// settled.
pub(crate) fn keep(opened: Arc<Opened>, grant: Grant, mut cohort: Option<CohortGrant>) -> Hold {
    let token = cohort.as_mut().map_or(grant.token, |cohort| cohort.begin(&grant));
    tracing::debug!(lock = %grant.name, %token, "lock acquired");
    let env = opened.store.env();
    let granted = env.now();
    let renewer = Renewer {
        granted,
        renewal: next_renewal(&grant, env),
        lease: Arc::new(Lease::new(env.clone(), grant.deadline)),
        identity: Identity { name: grant.name.clone(), token },
        opened,
        grant,
        cohort,
        asked: None,
        passes_on: true,
    };
    Box::new(renewer).held()
}

/// When `grant` is renewed next, from now on. Its deadline counts from before the send, so what is left says more than the ttl: an
/// answer may have come late, or the process stood still since.
fn next_renewal(grant: &Grant, env: &Env) -> Deadline {
    let now = env.now();
    let left = grant.deadline.remaining(now).div_duration_f64(grant.ttl.holder_span()).min(1.0);
    let pause = grant.ttl.get().mul_f64(RENEW_AFTER * left);
    Deadline::new(now, env.random.jittered(pause, RENEW_SPREAD))
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

/// The renewer of a grant, with a task ([`start`](Renewer::start)) or without one ([`lease_table`]).
pub(crate) struct Renewer {
    opened: Arc<Opened>,
    grant: Grant,
    /// When it was known that the task that has it now has it: not before the store granted it.
    granted: Moment,
    /// When the next renewal is due.
    renewal: Deadline,
    /// Of the task that has it now.
    lease: Arc<Lease>,
    identity: Identity,
    /// Ended when the grant is settled, before whoever asked for that hears of it: they may try again at once.
    cohort: Option<CohortGrant>,
    /// When the store last confirmed the grant without prolonging it: taken before it was asked.
    asked: Option<Moment>,
    /// Not once the store could not be asked whether the grant still stands.
    passes_on: bool,
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

impl Renewer {
    /// What the task has that has it now.
    fn held(self: Box<Self>) -> Hold {
        let opened = self.opened.clone();
        Hold {
            identity: self.identity.clone(),
            capabilities: opened.store.capabilities(),
            lease: self.lease.clone(),
            renewer: Some(opened.lease_table.keep(opened.store.env(), self)),
        }
    }

    /// Whether there is something to do, or will be before `ahead` has passed: a renewal, or what is done when a lease is over.
    pub(crate) fn is_due(&self, now: Moment, ahead: Duration) -> bool {
        // A store that watches may tell of the end at any time.
        self.opened.store.capabilities().watches
            || self.renewal.remaining(now) <= ahead
            || self.grant.deadline.remaining(now) <= ahead
            || self.lease.over.is_cancelled()
    }

    /// Goes on in a task, which does what it is told by what this gives, and with a watchdog. Must be called inside a tokio
    /// runtime.
    pub(crate) fn start(self: Box<Self>) -> oneshot::Sender<Command> {
        let (asks, commands) = oneshot::channel();
        tokio::spawn(watch(self.lease.clone(), self.identity.clone()));
        tokio::spawn(self.keep(commands));
        asks
    }

    /// Waits, nearly all the time. What it does in between is boxed, or ten thousand of these would have room for it all the time.
    async fn keep(mut self: Box<Self>, mut commands: oneshot::Receiver<Command>) {
        match self.renew_until_over(&mut commands).await {
            Over::Gone => self.leave(),
            // A renewal may have landed without our hearing of it: the next holder need not wait for that to lapse.
            Over::Expired => {
                let _ = self.try_release(None).await;
                self.leave();
            }
            Over::Asked(asked) => Box::pin(self.serve(asked)).await,
        }
    }

    /// Does what the guard asks for; without a command it was dropped.
    pub(crate) async fn serve(mut self: Box<Self>, asked: Option<Command>) {
        let reply = match asked {
            Some(Command::Rest(period, reply)) => return self.rest(period, reply).await,
            Some(Command::HandOn(reply)) => return self.hand_on(reply).await,
            Some(Command::Release(reply)) => Some(reply),
            None => None,
        };
        if self.has_successor() && self.was_ended_by_others().await {
            self.leave();
            if let Some(reply) = reply {
                let _ = reply.send(Ok(Released::AlreadyLost));
            }
        } else if let Some(mut renewer) = self.pass_on() {
            renewer.release(reply).await;
        } else if let Some(reply) = reply {
            let _ = reply.send(Ok(Released::Released));
        }
    }

    /// Whether another task of this process would have the lock next by the same grant.
    fn has_successor(&self) -> bool {
        let (now, capabilities) = (self.lease.env.now(), self.opened.store.capabilities());
        self.cohort.as_ref().is_some_and(|cohort| cohort.has_successor(&self.grant, now, &capabilities))
    }

    /// Whether the store says that the grant is over: evicted, or its record deleted. It is asked if it has confirmed nothing for
    /// longer than a poll. Without an answer the lock is not passed on; a release then settles what became of the grant.
    async fn was_ended_by_others(&mut self) -> bool {
        let (store, env) = (self.opened.store.clone(), self.lease.env.clone());
        let now = env.now();
        let since_sent = self.grant.ttl.holder_span().saturating_sub(self.grant.deadline.remaining(now));
        let since_asked = self.asked.map_or(Duration::MAX, |asked| now.longest_since(asked));
        if since_sent.min(since_asked) <= store.capabilities().pace.min {
            return false;
        }
        let asked =
            timeout(&*env.clock, attempt_limit(self.grant.ttl), store.inspect(&self.grant.name)).await;
        match asked {
            Some(Ok(status)) => match status.state {
                lease::State::Held(held) if held.token == Some(self.grant.token) => {
                    self.asked = Some(now);
                    false
                }
                _ => true,
            },
            _ => {
                self.passes_on = false;
                false
            }
        }
    }

    /// Passes the lock on to the next task of this process, if it may have it by the same grant; else gives the renewer back.
    fn pass_on(mut self: Box<Self>) -> Option<Box<Self>> {
        // The belief of the one before ends here at the latest, before there is another token.
        if self.lease.end().is_some() {
            return Some(self);
        }
        let env = self.lease.env.clone();
        let now = env.now();
        let capabilities = self.opened.store.capabilities();
        let cohort = self.cohort.as_mut().filter(|_| self.passes_on);
        let successor = cohort.and_then(|cohort| cohort.successor(&self.grant, now, &capabilities));
        let Some((next, token)) = successor else { return Some(self) };
        tracing::debug!(lock = %self.grant.name, %token, "lock passed on within the process");
        self.granted = now;
        self.lease = Arc::new(Lease::new(env, self.grant.deadline));
        self.identity.token = token;
        // If that task is gone, the guard is dropped here, and its turn to be passed on comes next.
        let _ = next.send(Served::Lock(self.held()));
        None
    }

    /// Makes way for others.
    fn leave(&mut self) {
        if let Some(cohort) = self.cohort.take() {
            cohort.end(&self.grant, self.lease.env.now(), &self.opened.store.capabilities());
        }
    }

    async fn renew_until_over(&mut self, commands: &mut oneshot::Receiver<Command>) -> Over {
        // A false alarm costs one renewal, and the next is heard only after a pause.
        let mut alarmed = false;
        loop {
            let env = &self.lease.env;
            tokio::select! {
                biased;
                command = &mut *commands => return Over::Asked(command.ok()),
                () = self.lease.over.cancelled() => return self.cancelled(commands).await,
                () = self.opened.store.ended(&self.grant), if !alarmed => alarmed = true,
                () = env.sleep(self.renewal.remaining(env.now())) => alarmed = false,
            }
            if let Some(over) = Box::pin(self.renew(commands)).await {
                return over;
            }
        }
    }

    /// One renewal; `None` when there is another to come.
    async fn renew(&mut self, commands: &mut oneshot::Receiver<Command>) -> Option<Over> {
        let ttl = self.grant.ttl;
        let (opened, env) = (self.opened.clone(), self.lease.env.clone());
        // As long as nothing is sent, nothing has to be settled.
        let place = tokio::select! {
            biased;
            command = &mut *commands => return Some(Over::Asked(command.ok())),
            () = self.lease.over.cancelled() => return Some(self.cancelled(commands).await),
            place = opened.renewals.place_for_renewal(&env, self.grant.deadline) => place,
        };
        let (renewal, asked) = {
            let renewal = place.lent_to(&env, opened.store.renew(&mut self.grant));
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
        self.renewal = match renewal {
            Some(Ok(Renewal::Renewed)) => {
                tracing::trace!(lock = %self.grant.name, "lease renewed");
                self.lease.prolong(self.grant.deadline);
                next_renewal(&self.grant, &env)
            }
            Some(Ok(Renewal::Lost(loss))) => {
                let expired = matches!(loss.reason, LossReason::Expired { .. });
                // Of a deadline that passed, the lease knows more: the last error.
                if !expired || self.lease.loss(&self.identity).is_none() {
                    self.lease.lose(loss);
                }
                // A command that came meanwhile is dropped here, and its guard hears of the loss by that.
                return Some(if expired { Over::Expired } else { Over::Gone });
            }
            Some(Err(error)) => {
                tracing::debug!(lock = %self.grant.name, %error, "the lease was not renewed");
                self.lease.note(&error);
                Deadline::new(env.now(), pause_after_failure(self.lease.remaining(), ttl))
            }
            None => Deadline::new(env.now(), Duration::ZERO),
        };
        asked.map(Over::Asked)
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
                self.leave();
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
        self.leave();
        let _ = reply.send(outcome);
    }

    async fn try_release(&mut self, rest: Option<Duration>) -> Result<Released> {
        // Once the lease is over, a release changes nothing for others: no longer than one request takes.
        let env = self.lease.env.clone();
        let limit = self.grant.deadline.remaining(env.now()).max(attempt_limit(self.grant.ttl));
        let release = self.opened.store.release(&mut self.grant, rest);
        let outcome = timeout(&*env.clock, limit, release).await.unwrap_or_else(|| {
            Err(Fault::unavailable(format!("no answer to the release within {limit:.1?}")).maybe_applied())
        });
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
        *pause = next_release_pause(*pause, self.grant.ttl);
        true
    }

    async fn hand_on(&mut self, reply: oneshot::Sender<Result<(Ticket, oneshot::Sender<()>)>>) {
        let handed = self.opened.store.detach(&mut self.grant).await;
        let (taken, is_taken) = oneshot::channel();
        let ticket =
            handed.map(|()| (Ticket::new(&self.grant, self.opened.url.clone()), taken)).map_err(Error::from);
        // Nobody takes it, or it would die with this process: free for others at once. An answer that was sent may still
        // be dropped unread, with its future.
        // Nor does a caller that stops polling keep it for longer than its lease.
        let env = self.lease.env.clone();
        let left = self.grant.deadline.remaining(env.now());
        let is_taken = async {
            reply.send(ticket).is_ok() && matches!(timeout(&*env.clock, left, is_taken).await, Some(Ok(())))
        };
        if !is_taken.await {
            self.release(None).await;
        }
    }
}

/// How long after a renewal that failed the next one is tried, when `left` is left of the lease: ever more often towards the
/// deadline, but never in a storm.
fn pause_after_failure(left: Duration, ttl: Ttl) -> Duration {
    (left / 4).clamp(Duration::from_millis(50), ttl.get() / 10)
}

/// The pause after the one of `pause`, between tries to release.
fn next_release_pause(pause: Duration, ttl: Ttl) -> Duration {
    (pause * 2).min(ttl.get() / 10)
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[test]
    fn failed_renewals_are_tried_again_more_often_towards_the_deadline() {
        let ttl = Ttl::from_millis(10_000).unwrap();
        let pause = |left| pause_after_failure(Duration::from_millis(left), ttl).as_millis();
        assert_eq!([pause(9_000), pause(2_000), pause(400), pause(10)], [1_000, 500, 100, 50]);
    }

    #[test]
    fn failed_releases_are_tried_again_at_doubling_pauses_up_to_a_tenth_of_the_ttl() {
        let ttl = Ttl::from_millis(30_000).unwrap();
        let first = next_release_pause(FIRST_RELEASE_PAUSE, ttl);
        assert_eq!([first, next_release_pause(first, ttl)], [2, 3].map(Duration::from_secs));
    }

    #[tokio::test(start_paused = true)]
    async fn a_loss_is_told_of_a_lost_lease_and_not_of_a_released_one() {
        let clock = Arc::new(TestClock::default());
        let env = Env { clock, ..Env::system() };
        let grant = Identity { name: crate::LockName::new("x").unwrap(), token: crate::Token::default() };
        let lease = || Lease::new(env.clone(), Deadline::new(env.now(), Duration::from_secs(10)));
        let released = lease();
        assert!(released.end().is_none());
        assert!(released.lost(&grant).now_or_never().is_none());
        let lost = lease();
        lost.lose(grant.loss(LossReason::Ended));
        assert!(lost.lost(&grant).now_or_never().is_some());
    }
    use crate::clock::{Clock, TestClock};

    /// Ten thousand locks that are held are as many of these. What a renewal or a release needs has to stay out of them.
    #[test]
    fn a_task_that_waits_has_no_room_for_what_it_seldom_does() {
        fn task<A, B, T>(_: impl FnOnce(A, B) -> T) -> usize {
            size_of::<T>()
        }
        let sizes = [task(Renewer::keep), size_of::<Renewer>(), task(watch), size_of::<Lease>()];
        let most = [400, 640, 300, 160];
        assert!(sizes.iter().zip(most).all(|(size, most)| *size <= most), "{sizes:?}, at most {most:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn the_next_renewal_is_due_after_a_third_of_what_is_left() {
        let clock = Arc::new(TestClock::default());
        let env = Env::seeded(clock.clone(), 1);
        let ttl = crate::lease::Ttl::from_millis(10_000).unwrap();
        let grant = Grant {
            name: crate::LockName::new("x").unwrap(),
            token: crate::Token::default(),
            after: None,
            id: crate::lease::Id::random(&env.random),
            ttl,
            deadline: crate::lease::deadline(ttl, clock.now()),
            memo: None,
        };
        let start = clock.now();
        for passed_ms in [0, 3_000, 7_000, 9_500, 20_000] {
            let passed = clock.now().longest_since(start);
            clock.sleep(Duration::from_millis(passed_ms).saturating_sub(passed)).await;
            let left = grant.deadline.remaining(clock.now()).as_secs_f64();
            let due = next_renewal(&grant, &env).remaining(clock.now()).as_secs_f64();
            let third = left * 10.0 / 9.85 / 3.0;
            assert!((due - third).abs() <= third * 0.101, "{left} s left, due in {due} s");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn rule_9_a_lease_whose_deadline_has_passed_is_not_prolonged_although_nobody_has_looked_yet() {
        let clock = Arc::new(TestClock::default());
        let deadline = Deadline::new(clock.now(), Duration::from_secs(30));
        let lease = Lease::new(Env::seeded(clock.clone(), 1), deadline);
        let identity = Identity { name: crate::LockName::new("x").unwrap(), token: crate::Token::default() };
        lease.prolong(Deadline::new(clock.now(), Duration::from_secs(40)));
        assert_eq!(lease.remaining(), Duration::from_secs(40));
        clock.suspend(Duration::from_secs(41));
        lease.prolong(Deadline::new(clock.now(), Duration::from_secs(40)));
        assert!(lease.loss(&identity).is_some());
    }
}
