//! The tasks of one grant: the *renewer*, and a *watchdog* for each guard.
//!
//! Only the renewer sends requests about the grant, so a renewal and a release are never under way at the same time (rule
//! 6). It also passes the lock on to the next task of this process ([`cohort`]). Each such task has its own guard, and the
//! previous guard has ended by then. The watchdog waits for the deadline and does nothing else: a renewal that hangs
//! cannot delay it.

mod cohort;
mod lease;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::oneshot;

pub(crate) use self::cohort::CohortGrant;
pub(crate) use self::lease::{Identity, Lease, bind};
use self::lease::{State, watch};
use crate::clock::{Deadline, Moment, RATE_ERROR, timeout};
use crate::env::Env;
use crate::error::{Error, Fault, Result};
use crate::lease::{
    self as leases, Capabilities, Grant, LeaseStore, LossReason, Released, Renewal, Ttl, attempt_limit,
};
use crate::runtime::limiter::{Limiter, RENEWALS};
use crate::runtime::queue::Served;
use crate::ticket::Ticket;
use crate::types::{RENEW_AFTER, RENEW_SPREAD};

/// A release that failed is tried again after this, and then ever less often.
const FIRST_RELEASE_PAUSE: Duration = Duration::from_secs(1);

/// What a guard asks of its renewer.
#[derive(Debug)]
pub(crate) enum Command {
    Release(oneshot::Sender<Result<Released>>),
    /// With a rest until so long after the grant.
    Rest(Duration, oneshot::Sender<Result<Released>>),
    /// The ticket, with what says that somebody has it.
    HandOn(oneshot::Sender<Result<(Ticket, oneshot::Sender<()>)>>),
}

/// An open store, and what the renewers of all grants in it share.
pub(crate) struct Opened {
    pub(crate) store: Arc<dyn LeaseStore>,
    /// The URL that it was opened with, without passwords.
    pub(crate) url: Option<String>,
    renewals: Arc<Limiter>,
}

impl Opened {
    pub(crate) fn new(store: Arc<dyn LeaseStore>, url: Option<String>) -> Self {
        Self { store, url, renewals: Limiter::new(RENEWALS) }
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
    Box::new(renewer).start()
}

/// When `grant` is renewed next, from now on. Its deadline counts from before the send, so what is left says more than the ttl: an
/// answer may have come late, or the process stood still since.
fn next_renewal(grant: &Grant, env: &Env) -> Deadline {
    let now = env.now();
    let left = grant.deadline.remaining(now).div_duration_f64(grant.ttl.holder_span()).min(1.0);
    let pause = grant.ttl.get().mul_f64(RENEW_AFTER * left);
    Deadline::new(now, env.random.jittered(pause, RENEW_SPREAD))
}

/// The renewer of a grant.
struct Renewer {
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

/// A guard's connection to its renewer. If it is dropped, the lock is released, or passed on, in the background.
pub(crate) struct RenewerHandle {
    commands: oneshot::Sender<Command>,
    runtime: Handle,
}

impl RenewerHandle {
    /// Sends `command` and waits for its answer; `None` if the renewer has ended, or its runtime has shut down. If the future
    /// is dropped, the renewer still carries out the command.
    pub(crate) async fn tell<T>(self, command: Command, answer: oneshot::Receiver<T>) -> Option<T> {
        // If the renewer has ended, this drops the command, and the sender of the answer with it.
        drop(self.commands.send(command));
        answer.await.ok()
    }

    /// The runtime that its renewer works in.
    pub(crate) fn runtime(&self) -> Handle {
        self.runtime.clone()
    }
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
    /// Starts the renewer and the watchdog, and returns what the holder has. Must be called inside a tokio runtime.
    fn start(self: Box<Self>) -> Hold {
        let (commands, receiver) = oneshot::channel();
        let hold = Hold {
            identity: self.identity.clone(),
            capabilities: self.opened.store.capabilities(),
            lease: self.lease.clone(),
            renewer: Some(RenewerHandle { commands, runtime: Handle::current() }),
        };
        tokio::spawn(watch(self.lease.clone(), self.identity.clone()));
        tokio::spawn(self.run(receiver));
        hold
    }

    /// Waits most of the time. The rest is boxed, so that ten thousand waiting tasks stay small.
    async fn run(mut self: Box<Self>, mut commands: oneshot::Receiver<Command>) {
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
    async fn serve(mut self: Box<Self>, asked: Option<Command>) {
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
                leases::State::Held(held) if held.token == Some(self.grant.token) => {
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
        let _ = next.send(Served::Lock(self.start()));
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
mod tests;
