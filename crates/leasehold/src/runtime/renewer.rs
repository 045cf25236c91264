//! The tasks of one grant: the *renewer*, and a *watchdog* for each guard.
//!
//! Only the renewer sends requests about the grant, and it sends a release only after the last renewal has ended or has
//! timed out (rule 6). A renewal that the store applies after the release fails its precondition. The renewer also passes
//! the lock on to the next task of this process ([`cohort`]). Each such task has its own guard, and the previous guard
//! has ended by then. The watchdog waits for the deadline and sends no requests, so a renewal that hangs cannot delay
//! it.
//!
//! The response to a renewal is processed in these steps:
//!
//! 1. The store judges it in [`LeaseStore::renew`](crate::lease::LeaseStore::renew). On records, `send` in
//!    `protocol/driver/send.rs` determines whether the write was applied, and `renew_with` in `protocol/driver/hold.rs`
//!    whether the lease is renewed. If it is, the store writes the new deadline into the grant.
//! 2. `Renewer::renew` in this file gets the result, and calls [`HoldState::prolong`], [`HoldState::lose`] or
//!    [`HoldState::note`] (`renewer/hold_state.rs`). They store the deadline, the loss or the error. If the deadline
//!    has passed, the hold is lost, even if the store has renewed the lease. A loss wakes the tasks that wait in
//!    `Guard::lost`.
//! 3. `Guard::check` and `Guard::lost` (`guard.rs`) read them there.
//! 4. If the lease was not lost, `Renewer::renew` sets when the next renewal is due.

mod cohort;
mod hold_state;
mod release;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tracing::{Instrument, Span};

pub(crate) use self::cohort::CohortGrant;
pub(crate) use self::hold_state::{HoldState, LockAndToken, bind};
use self::hold_state::{Phase, Watchdog};
use crate::clock::{Deadline, Moment, timeout};
use crate::env::Env;
use crate::error::Result;
use crate::lease::{Capabilities, Grant, LossReason, Released, Renewal, State, Token, Ttl, attempt_limit};
use crate::observe::{Event, ReleaseResult, elapsed};
use crate::runtime::limit::Limit;
use crate::runtime::open_store::OpenStore;
use crate::runtime::queue::Served;
use crate::ticket::Ticket;
use crate::types::{RENEW_AFTER, RENEW_SPREAD};

/// A request of a guard to its renewer.
#[derive(Debug)]
pub(crate) enum Command {
    Release(oneshot::Sender<Result<Released>>),
    /// Release the lock because the hold is at its limit.
    ReleaseAtLimit(oneshot::Sender<Result<Released>>),
    /// End the renewals, and wait for the end of the lease.
    Lapse,
    /// Release the lock with a cooldown that ends this long after the grant.
    Cooldown(Duration, oneshot::Sender<Result<Released>>),
    /// Return a ticket, together with a sender with which the caller confirms that it has the ticket.
    Detach(oneshot::Sender<Result<(Ticket, oneshot::Sender<()>)>>),
}

/// A command, and the span of its caller. Boxed in the channel, because the tasks of ten thousand locks may wait for
/// one.
pub(crate) struct SentCommand {
    command: Command,
    caller: Span,
}

/// A lock that one task holds, and its connection to the renewer. Dropping it releases the lock in the background, or
/// passes it on.
pub(crate) struct Hold {
    pub(crate) lock: LockAndToken,
    pub(crate) capabilities: Capabilities,
    /// The token of the grant in the store. The tasks that pass the lock on have tokens up to this one.
    pub(crate) granted: Token,
    pub(crate) opened: Arc<OpenStore>,
    pub(crate) state: Arc<HoldState>,
    pub(crate) renewer: Option<RenewerHandle>,
}

impl Drop for Hold {
    fn drop(&mut self) {
        // End the hold first. The renewer then finds its command channel closed, and releases the lock.
        self.state.end();
    }
}

impl fmt::Debug for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hold").field("lock", &self.lock).finish_non_exhaustive()
    }
}

/// Starts the tasks that keep `grant`, and returns the hold. Must be called inside a tokio runtime. `limit` ends the hold,
/// however often the grant is renewed. `cohort` ends when the grant is settled. `waited` is the time that it took to
/// acquire the lock, or `None` if it was resumed from a ticket. `frees_lapsed` is whether others may get the lock as soon
/// as its deadline has passed.
pub(crate) fn keep(
    opened: Arc<OpenStore>,
    grant: Grant,
    limit: Option<Limit>,
    mut cohort: Option<CohortGrant>,
    waited: Option<Duration>,
    frees_lapsed: bool,
) -> Hold {
    let token = cohort.as_mut().map_or(grant.token, |cohort| cohort.begin(&grant));
    tracing::debug!(lock = %grant.name, %token, "lock acquired");
    let env = opened.store.env();
    let granted = env.now();
    let lock = LockAndToken { name: grant.name.clone(), token };
    let renewer = Renewer {
        granted,
        renewal: next_renewal(&grant, env),
        state: Arc::new(HoldState::new(env.clone(), grant.deadline, limit, lock.span(), grant.size)),
        lock,
        opened,
        grant,
        cohort,
        last_confirmed: None,
        passes_on: true,
        frees_lapsed,
    };
    Box::new(renewer).start(waited)
}

/// Returns when `grant` is renewed next. This depends on the remaining time and not only on the ttl, because the
/// deadline counts from before the send. Since then, the response may have come late, or the process may have been
/// paused.
fn next_renewal(grant: &Grant, env: &Env) -> Deadline {
    let now = env.now();
    let left = grant.deadline.remaining(now).div_duration_f64(grant.ttl.holder_span()).min(1.0);
    let pause = grant.ttl.get().mul_f64(RENEW_AFTER * left);
    Deadline::new(now, env.random.jittered(pause, RENEW_SPREAD))
}

/// The renewer of a grant.
struct Renewer {
    opened: Arc<OpenStore>,
    grant: Grant,
    /// When it became known that the current task has the lock. This is never before the store granted it.
    granted: Moment,
    /// When the next renewal is due.
    renewal: Deadline,
    /// The state of the hold of the task that has the lock now.
    state: Arc<HoldState>,
    lock: LockAndToken,
    /// Ended when the grant is settled, before the caller gets its result, because the caller may try again at once.
    cohort: Option<CohortGrant>,
    /// When the store last confirmed the grant without renewing it. The time was taken before the request was sent.
    last_confirmed: Option<Moment>,
    /// `false` once the store failed to report whether the grant is still valid.
    passes_on: bool,
    /// Whether others may get the lock as soon as its deadline has passed. `false` if they may have to wait for a lock
    /// delay.
    frees_lapsed: bool,
}

/// A guard's connection to its renewer. Dropping it releases the lock in the background, or passes it on.
pub(crate) struct RenewerHandle {
    commands: oneshot::Sender<Box<SentCommand>>,
    runtime: Handle,
}

impl RenewerHandle {
    /// Sends `command` and waits for its result. Returns `None` if the renewer has ended, or if its runtime has shut
    /// down. If the future is dropped, the renewer still carries out the command.
    pub(crate) async fn send<T>(self, command: Command, answer: oneshot::Receiver<T>) -> Option<T> {
        // If the renewer has ended, this drops the command and the sender of its result.
        self.post(command);
        answer.await.ok()
    }

    /// Sends `command`, which has no result.
    pub(crate) fn post(self, command: Command) {
        drop(self.commands.send(Box::new(SentCommand { command, caller: Span::current() })));
    }

    /// Returns the runtime of the renewer.
    pub(crate) fn runtime(&self) -> Handle {
        self.runtime.clone()
    }
}

/// Why the renewals ended.
enum Over {
    /// The guard sent a command, or was dropped.
    Command(Option<Box<SentCommand>>),
    /// The deadline passed. Or the lease has not ended, but the hold is lost: it reached its limit, or another lock was lost
    /// that belongs to it.
    Lost,
    /// The deadline passed after the guard had ended, so no command will follow.
    Lapsed,
    /// The store reported the loss of the grant.
    Gone,
}

impl Renewer {
    /// Starts the renewer and the watchdog, and returns the hold. Must be called inside a tokio runtime.
    fn start(self: Box<Self>, waited: Option<Duration>) -> Hold {
        let (commands, receiver) = oneshot::channel();
        let hold = Hold {
            lock: self.lock.clone(),
            capabilities: self.opened.store.capabilities(),
            granted: self.grant.token,
            opened: self.opened.clone(),
            state: self.state.clone(),
            renewer: Some(RenewerHandle { commands, runtime: Handle::current() }),
        };
        let (lock, token, ttl) = (&self.lock.name, self.lock.token, self.grant.ttl);
        self.opened.observers.report(&match waited {
            Some(waited) => Event::Acquired { lock, token, ttl, waited },
            None => Event::Resumed { lock, token, ttl },
        });
        let watchdog = Watchdog {
            hold: self.state.clone(),
            lock: self.lock.clone(),
            granted: self.granted,
            observers: self.opened.observers.clone(),
        };
        tokio::spawn(watchdog.watch());
        tokio::spawn(self.run(receiver));
        hold
    }

    /// Runs until the grant is settled. The renewals and the commands are boxed, so that ten thousand waiting tasks
    /// stay small.
    async fn run(mut self: Box<Self>, mut commands: oneshot::Receiver<Box<SentCommand>>) {
        match self.renew_until_over(&mut commands).await {
            Over::Command(sent) => return Box::pin(self.serve(sent)).await,
            // The work may not have ended, although its guard is lost. So release the lock only when the guard is
            // released or dropped, or when the lease is over.
            Over::Lost => {
                let left = self.grant.deadline.remaining(self.state.env.now());
                match timeout(&*self.state.env.clock, left, commands).await {
                    Some(sent) => return Box::pin(self.serve(sent.ok())).await,
                    None => self.free_lapsed().await,
                }
            }
            Over::Lapsed => self.free_lapsed().await,
            Over::Gone => {}
        }
        // The store may have reported the loss after the guard had ended.
        self.report_released(ReleaseResult::AlreadyLost);
        self.leave();
    }

    /// Carries out the guard's command. `None` means that the guard was dropped.
    async fn serve(mut self: Box<Self>, sent: Option<Box<SentCommand>>) {
        let (command, caller) = sent.map_or((None, Span::none()), |sent| (Some(sent.command), sent.caller));
        let (lock, token) = (self.lock.name.clone(), self.lock.token.get());
        let span = || tracing::info_span!(parent: &caller, "leasehold.release", %lock, token);
        match command {
            Some(Command::Cooldown(period, reply)) => self.cooldown(period, reply).instrument(span()).await,
            Some(Command::Lapse) => {
                let env = self.state.env.clone();
                env.sleep(self.grant.deadline.remaining(env.now())).await;
                self.free_lapsed().await;
                self.report_released(ReleaseResult::Unconfirmed);
                self.leave();
            }
            Some(Command::ReleaseAtLimit(reply)) => {
                self.release_at_limit(reply).instrument(span()).await;
            }
            Some(Command::Release(reply)) => self.pass_on_or_release(Some(reply)).instrument(span()).await,
            None => self.pass_on_or_release(None).instrument(span()).await,
            Some(Command::Detach(reply)) => self.detach(reply).instrument(caller).await,
        }
    }

    async fn pass_on_or_release(mut self: Box<Self>, reply: Option<oneshot::Sender<Result<Released>>>) {
        if self.has_successor() && self.was_ended_by_others().await {
            self.report_released(ReleaseResult::AlreadyLost);
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

    /// Returns whether another task of this process can hold the lock next by the same grant.
    fn has_successor(&self) -> bool {
        let (now, capabilities) = (self.state.env.now(), self.opened.store.capabilities());
        self.cohort.as_ref().is_some_and(|cohort| cohort.has_successor(&self.grant, now, &capabilities))
    }

    /// Returns whether the store reports that the grant has ended, because it was evicted or its record was deleted.
    /// Asks the store only if it has not confirmed the grant for longer than its shortest poll pause. Without a
    /// response, the lock is not passed on, and a release finds out what happened to the grant.
    async fn was_ended_by_others(&mut self) -> bool {
        let (store, env) = (self.opened.store.clone(), self.state.env.clone());
        let now = env.now();
        let since_sent = self.grant.ttl.holder_span().saturating_sub(self.grant.deadline.remaining(now));
        let since_confirmed = self.last_confirmed.map_or(Duration::MAX, |last| now.longest_since(last));
        if since_sent.min(since_confirmed) <= store.capabilities().poll_interval.min {
            return false;
        }
        let status =
            timeout(&*env.clock, attempt_limit(self.grant.ttl), store.inspect(&self.grant.name)).await;
        match status {
            Some(Ok(status)) => match status.state {
                State::Held(held) if held.token == Some(self.grant.token) => {
                    self.last_confirmed = Some(now);
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

    /// Passes the lock on to the next task of this process, if that task may hold it by the same grant. Otherwise
    /// returns the renewer.
    fn pass_on(mut self: Box<Self>) -> Option<Box<Self>> {
        // The previous guard is invalidated here at the latest, before the next token is issued.
        if self.state.end().is_some() {
            return Some(self);
        }
        let env = self.state.env.clone();
        let now = env.now();
        let capabilities = self.opened.store.capabilities();
        let cohort = self.cohort.as_mut().filter(|_| self.passes_on);
        let successor = cohort.and_then(|cohort| cohort.successor(&self.grant, now, &capabilities));
        let Some((next, token, began)) = successor else { return Some(self) };
        tracing::debug!(lock = %self.grant.name, %token, "lock passed on within the process");
        self.report_released(ReleaseResult::PassedOn);
        self.granted = now;
        self.lock.token = token;
        // The next task sets its own limit.
        self.state =
            Arc::new(HoldState::new(env, self.grant.deadline, None, self.lock.span(), self.state.size()));
        // If that task is gone, the hold is dropped here, and the lock is then passed on to the next one or released.
        let _ = next.send(Served::Lock(self.start(Some(elapsed(began, now)))));
        None
    }

    /// Ends the cohort, which gives the turn to the next task.
    fn leave(&mut self) {
        if let Some(cohort) = self.cohort.take() {
            cohort.end(&self.grant, self.state.env.now(), &self.opened.store.capabilities());
        }
    }

    async fn renew_until_over(&mut self, commands: &mut oneshot::Receiver<Box<SentCommand>>) -> Over {
        // A false alarm costs one renewal. The next alarm counts only after a pause.
        let mut alarmed = false;
        loop {
            let env = &self.state.env;
            tokio::select! {
                biased;
                command = &mut *commands => return Over::Command(command.ok()),
                () = self.state.over.cancelled() => return self.cancelled(commands).await,
                () = self.opened.store.ended(&self.grant), if !alarmed => alarmed = true,
                () = self.state.renewal_requested.notified() => alarmed = false,
                () = env.sleep(self.renewal.remaining(env.now())) => alarmed = false,
            }
            if let Some(over) = Box::pin(self.renew(commands)).await {
                return over;
            }
        }
    }

    /// Renews once. Returns `None` if the renewals continue.
    async fn renew(&mut self, commands: &mut oneshot::Receiver<Box<SentCommand>>) -> Option<Over> {
        let ttl = self.grant.ttl;
        let (opened, env) = (self.opened.clone(), self.state.env.clone());
        // Nothing has been sent yet, so there is nothing to settle.
        let permit = tokio::select! {
            biased;
            command = &mut *commands => return Some(Over::Command(command.ok())),
            () = self.state.over.cancelled() => return Some(self.cancelled(commands).await),
            permit = opened.renewals.permit_for_renewal(&env, self.grant.deadline) => permit,
        };
        let (renewal, command) = {
            let (lock, token) = (&self.lock.name, self.lock.token);
            // Kept in a variable, because the parent must be open when the span is created.
            let hold = self.state.span();
            let parent = hold.as_ref().and_then(|hold| hold.id());
            let span = tracing::info_span!(parent: parent, "leasehold.renew", %lock, token = token.get());
            self.grant.size = self.state.size();
            let renewal = permit.lent_to(&env, opened.store.renew(&mut self.grant).instrument(span));
            // At its limit the hold is lost, and nothing may prolong its lease any more.
            let renewal = async {
                tokio::select! {
                    biased;
                    () = self.state.at_limit() => None,
                    renewal = renewal => Some(renewal),
                }
            };
            tokio::pin!(renewal);
            tokio::select! {
                biased;
                renewal = &mut renewal => (renewal, None),
                // Settle the renewal before anything else is sent. But a store that hangs must not delay a release for
                // long. Once the release is applied, a renewal that is still under way fails its precondition.
                command = &mut *commands => {
                    (timeout(&*env.clock, attempt_limit(ttl), renewal).await.flatten(), Some(command.ok()))
                }
            }
        };
        self.renewal = match renewal {
            Some(Ok(Renewal::Renewed)) => {
                tracing::trace!(lock = %self.grant.name, "lease renewed");
                self.state.wrote_size(self.grant.size);
                if let Some(left) = self.state.prolong(self.grant.deadline) {
                    let (lock, token) = (&self.lock.name, self.lock.token);
                    opened.observers.report(&Event::Renewed { lock, token, left, ttl });
                } else {
                    // The renewal came too late. Record the loss here, because the watchdog may not have run yet.
                    drop(self.state.loss(&self.lock));
                }
                next_renewal(&self.grant, &env)
            }
            Some(Ok(Renewal::Lost(loss))) => {
                let expired = matches!(loss.reason, LossReason::Expired { .. });
                // If the deadline passed, prefer the loss of the hold, because it contains the last error.
                if !expired || self.state.loss(&self.lock).is_none() {
                    self.state.lose(loss);
                }
                // A command that arrived in the meantime is dropped here, which reports the loss to its guard.
                return Some(match command {
                    _ if !expired => Over::Gone,
                    Some(_) => Over::Lapsed,
                    None => Over::Lost,
                });
            }
            Some(Err(error)) => {
                tracing::debug!(lock = %self.grant.name, %error, "the lease was not renewed");
                self.state.note(&error);
                Deadline::new(env.now(), pause_after_failure(self.state.remaining(), ttl))
            }
            None => Deadline::new(env.now(), Duration::ZERO),
        };
        command.map(Over::Command)
    }

    /// Returns why the hold has ended. Either its time was over, or its guard ended it and the command is on its way.
    async fn cancelled(&self, commands: &mut oneshot::Receiver<Box<SentCommand>>) -> Over {
        if self.state.phase(|phase| matches!(phase, Phase::Lost(_))) {
            return Over::Lost;
        }
        Over::Command(commands.await.ok())
    }

    /// Returns a ticket of the grant.
    async fn ticket(&self) -> Result<Ticket> {
        let ticket = Ticket::new(&self.grant, self.opened.store_id.clone())?;
        let ticket = ticket.with_max_hold(self.state.limit().map(|limit| limit.max_hold));
        // Without the time of the grant, no renewal could keep the limit.
        let limit = Limit::of_ticket(&ticket, &self.opened).await?;
        Limit::check(limit, &self.lock.name, self.lock.token, self.state.env.now())?;
        Ok(ticket)
    }

    async fn detach(&mut self, reply: oneshot::Sender<Result<(Ticket, oneshot::Sender<()>)>>) {
        let handed = self.opened.store.detach(&mut self.grant).await;
        let (taken, is_taken) = oneshot::channel();
        let ticket = match handed {
            Ok(()) => self.ticket().await,
            Err(error) => Err(error.into()),
        };
        let ticket = ticket.map(|ticket| (ticket, taken));
        // If the caller does not take the ticket, the lock is released, so that it is free for others at once. A result
        // that was sent may still be dropped unread, together with the caller's future. A caller that stops polling
        // keeps the lock for no longer than the lease.
        let env = self.state.env.clone();
        let left = self.grant.deadline.remaining(env.now());
        let is_taken = async {
            reply.send(ticket).is_ok() && matches!(timeout(&*env.clock, left, is_taken).await, Some(Ok(())))
        };
        if !is_taken.await {
            self.release(None).await;
        } else if let Some(held) = self.held() {
            let (lock, token) = (&self.lock.name, self.lock.token);
            self.opened.observers.report(&Event::HandedOn { lock, token, held });
        }
    }
}

/// Returns the pause after a failed renewal if the lease lasts for another `left`. The pauses become shorter towards
/// the deadline, but never so short that the retries overload the store.
fn pause_after_failure(left: Duration, ttl: Ttl) -> Duration {
    (left / 4).clamp(Duration::from_millis(50), ttl.get() / 10)
}

#[cfg(test)]
mod tests;
