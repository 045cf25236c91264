//! One acquisition: from when the caller enters the queue of this process until the store grants or refuses the lock,
//! or the caller gives up.
//!
//! It runs in its own task, because a caller may stop polling its future for any length of time while other tasks wait
//! behind it in the queue of this process, and other processes wait behind it in the line.

mod reply;

use std::ops::ControlFlow;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use tracing::field::Empty;
use tracing::{Instrument, Span};

use self::reply::{Reply, send};
use crate::clock::timeout;
use crate::error::{Error, ErrorKind, Result, StoreError};
use crate::lease::{
    AcquireOutcome, Claim, Grant, HolderInfo, LeaseStore, LossReason, Nested, Secret, State, Token,
};
use crate::observe::{Event, Waiting, elapsed};
use crate::runtime::deadlock::{Detector, Found};
use crate::runtime::hand_off::Terms;
use crate::runtime::limit::Limit;
use crate::runtime::open_store::OpenStore;
use crate::runtime::outage::{Outage, WaitLimit};
use crate::runtime::queue::{Entry, OnWait, Queue, Served, Turn, Wish};
use crate::runtime::renewer::{CohortGrant, Hold, keep};
use crate::runtime::task;
use crate::types::{LockName, set_span};

/// An acquisition ends with an error after this many grants in a row that came too late to be used.
const LATE_GRANTS: u32 = 3;

/// Whether an acquisition waits while the lock is held.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wait {
    No,
    Yes,
    /// Waits, but not for the end of a cooldown.
    UntilCooldown,
}

impl Wait {
    /// Returns whether the acquisition ends because the lock is `held`.
    fn is_over(self, held: &HolderInfo) -> bool {
        match self {
            Self::No => true,
            Self::Yes => false,
            Self::UntilCooldown => held.in_cooldown,
        }
    }
}

/// Returns the error for the lock `name` while another task of this process is acquiring it and the store has not
/// responded to that task yet.
pub(crate) fn unknown_holder(name: &LockName) -> Error {
    let message = format!("lock `{name}` is being acquired by another task of this process");
    Error::held_as(message, HolderInfo::default())
        .with_help("its holder is unknown: the store has not responded to that task yet")
}

/// Which lock to acquire, and how.
pub(crate) struct Request {
    pub(crate) opened: Arc<OpenStore>,
    pub(crate) claim: Claim,
    /// The settings with which another task of this process may pass the lock on to this one. `None` if only the store
    /// may grant the lock.
    pub(crate) terms: Option<Terms>,
    pub(crate) wait: Wait,
    /// Called with the holder of the lock, each time it becomes known.
    pub(crate) on_wait: Option<Arc<OnWait>>,
    /// The limit of the hold.
    pub(crate) max_hold: Option<Duration>,
    /// How long to keep trying a store that does not respond, if set.
    pub(crate) store_timeout: Option<Duration>,
    /// For how long to wait for other processes, and when the acquisition began.
    pub(crate) limit: WaitLimit,
    /// Looks for deadlocks.
    pub(crate) detector: Option<Detector>,
}

impl Request {
    /// Returns the settings with which another task may pass the lock on to this one, and when this acquisition began.
    fn wish(&self) -> Option<Wish<'_>> {
        self.terms.as_ref().map(|terms| (terms, self.limit.began))
    }
}

/// An acquisition that does not have the turn of its process yet.
pub(crate) struct Acquisition {
    request: Request,
    queue: Arc<Queue<Hold>>,
    entry: Entry<Hold>,
}

impl Acquisition {
    /// Takes the turn, or waits for it in `queue`.
    pub(crate) fn enter(request: Request, queue: Arc<Queue<Hold>>) -> Self {
        let entry = queue.enter(request.wish());
        Self { request, queue, entry }
    }

    /// Creates an acquisition with a `turn` that `queue` has already given.
    pub(crate) fn in_turn(request: Request, queue: Arc<Queue<Hold>>, turn: Turn<Hold>) -> Self {
        Self { request, queue, entry: Entry::Served(turn) }
    }

    /// Acquires the lock in a task. Dropping the future ends the task, but drops no request to the store. A grant that
    /// arrives afterwards is released.
    pub(crate) async fn outcome(self) -> Result<Hold> {
        self.answer(Reply::Hold, |hold, span| {
            // The hold's span is not a child of this span, because it may last much longer.
            if let Some(hold) = hold.state.span() {
                hold.follows_from(span);
            }
            hold.lock.token
        })
        .await
    }

    /// Acquires the lock in a task, and returns the grant as the store made it. Dropping the future ends the task. A
    /// grant that arrives afterwards stays, and lapses.
    pub(crate) async fn grant(self) -> Result<Grant> {
        self.answer(Reply::Grant, |grant, _| grant.token).await
    }

    /// Acquires the lock in a new span whose parent is the caller's current span. The new span is also passed to
    /// `token`.
    async fn answer<T>(
        self,
        reply: fn(Option<oneshot::Sender<Result<T>>>) -> Reply,
        token: fn(&T, &Span) -> Token,
    ) -> Result<T> {
        let lock = &self.request.claim.name;
        let span = tracing::info_span!("leasehold.acquire", %lock, token = Empty, outcome = Empty);
        let answer =
            task::answer_of(|sender| self.queue_up(reply(Some(sender)))).instrument(span.clone()).await;
        let outcome = answer.flatten();
        match &outcome {
            Ok(acquired) => span.record("token", token(acquired, &span).get()).record("outcome", "acquired"),
            Err(error) => span.record("outcome", error.kind().as_str()),
        };
        outcome
    }

    /// Waits for the turn, or for another task of this process to pass the lock on.
    async fn queue_up(self, mut reply: Reply) {
        let Self { request, queue, entry } = self;
        let mut waiting =
            Waiting::of(&request.opened.observers, request.opened.store.env(), &request.claim.name);
        let queues = matches!(entry, Entry::Waiting(..));
        if queues {
            waiting.begin();
        }
        // Not dropped before the error is known: the last task that leaves the queue makes it forget the holder.
        let served = {
            let mut served = pin!(queue.served(entry, request.wish(), request.on_wait.as_deref()));
            tokio::select! {
                biased;
                () = reply.closed() => return,
                () = request.limit.passed(), if queues => {
                    reply.fail(timed_out(&request, &queue));
                    return;
                }
                served = served.as_mut() => served,
                held = queue.cooldown(), if request.wait == Wait::UntilCooldown => {
                    reply.fail(Error::held(&request.claim.name, held));
                    return;
                }
            }
        };
        match served {
            // No task passes the lock on to a request without terms.
            Served::Lock(hold) => {
                waiting.acquired = true;
                if let Some(max_hold) = request.max_hold {
                    hold.state.limit_to(Limit::new(max_hold, hold.state.now()));
                }
                drop(waiting);
                match &mut reply {
                    Reply::Hold(reply) => send(reply, Ok(hold)),
                    Reply::Grant(_) => drop(hold),
                }
            }
            Served::Turn(turn) => {
                let Request { opened, claim, terms, wait, on_wait, max_hold, store_timeout, limit, detector } =
                    request;
                let store = opened.store.clone();
                let contender = Contender {
                    opened,
                    store,
                    claim,
                    terms,
                    turn,
                    wait,
                    on_wait,
                    max_hold,
                    store_timeout,
                    reply,
                    limit,
                    detector,
                    waiting,
                    late: 0,
                };
                contender.contend().await;
            }
        }
    }
}

/// Returns the error for a task that did not get its turn in `queue` in time.
fn timed_out(request: &Request, queue: &Queue<Hold>) -> Error {
    let name = &request.claim.name;
    match (queue.latest(), queue.last_error().failure()) {
        (Some(held), _) => Error::held(name, held),
        (None, Some(cause)) => request.limit.unanswered(name, &request.opened.shown(), Some(cause)),
        (None, None) => unknown_holder(name),
    }
}

/// An acquisition that has the turn of its process.
struct Contender {
    opened: Arc<OpenStore>,
    store: Arc<dyn LeaseStore>,
    claim: Claim,
    terms: Option<Terms>,
    turn: Turn<Hold>,
    wait: Wait,
    on_wait: Option<Arc<OnWait>>,
    max_hold: Option<Duration>,
    store_timeout: Option<Duration>,
    reply: Reply,
    limit: WaitLimit,
    detector: Option<Detector>,
    waiting: Waiting,
    /// How many grants in a row came too late to be used.
    late: u32,
}

/// The next step of a contender after a response of the store.
enum Next {
    Granted(Grant),
    /// Wait, then ask again.
    Wait(HolderInfo),
    Again,
    /// The store did not respond, but may respond later.
    Trouble(Error),
    Over(Error),
}

impl Contender {
    async fn contend(mut self) {
        let (capabilities, now) = (self.store.capabilities(), self.store.env().now());
        self.turn.policy(|policy, _| policy.requested(now, &capabilities, self.claim.ttl));
        self.turn.notes_errors_in(&self.claim.last_error);
        let reads_line = || self.turn.policy(|policy, _| policy.reads_line(now, capabilities.poll_interval));
        self.claim.reads_line = capabilities.fifo() && reads_line().unwrap_or_default();
        // A claim in the line does not learn that the lock is in a cooldown, so only a plain wait joins the line.
        self.claim.waits = self.wait == Wait::Yes;
        // Whether the store may still grant this claim after this contender has stopped, because the claim has a place
        // in the line or a request got no response.
        let mut pending = false;
        let error = match self.try_until_over(&mut pending).await {
            ControlFlow::Break(Some(Next::Granted(grant))) => return self.granted(grant),
            ControlFlow::Break(Some(Next::Over(error))) => Some(error),
            _ => None,
        };
        // Give up the turn first, because the caller may try again as soon as it has the outcome.
        if pending && self.claim.repeatable {
            stop_waiting(self.store, self.claim, self.turn);
        } else if pending {
            withdraw(self.store, self.claim, self.turn);
        } else {
            drop(self.turn);
        }
        drop(self.waiting);
        if let Some(error) = error {
            self.reply.fail(error);
        }
    }

    fn granted(mut self, grant: Grant) {
        let now = self.store.env().now();
        self.turn.policy(|policy, _| policy.granted(&grant, now));
        self.waiting.acquired = true;
        let waited = elapsed(self.limit.began, now);
        match &mut self.reply {
            Reply::Hold(reply) => {
                let limit = self.max_hold.map(|limit| Limit::new(limit, grant.deadline.start()));
                let no_delay = self.claim.lock_delay.is_zero();
                let cohort = CohortGrant::new(self.turn, self.terms, self.claim.holder);
                let hold = keep(self.opened, grant, limit, Some(cohort), Some(waited), no_delay);
                drop(self.waiting);
                // If the caller is gone, the hold is dropped here, which releases the lock.
                send(reply, Ok(hold));
            }
            Reply::Grant(reply) => {
                drop(self.turn);
                let (lock, token, ttl) = (&grant.name, grant.token, grant.ttl);
                let observers = &self.opened.observers;
                observers.report(&Event::Acquired { lock, token, ttl, waited });
                observers.report(&Event::HandedOn { lock, token, held: Duration::ZERO });
                drop(self.waiting);
                send(reply, Ok(grant));
            }
        }
    }

    /// Asks the store until there is an outcome. Breaks with the grant or the error, or with `None` if the caller is
    /// gone.
    async fn try_until_over(&mut self, pending: &mut bool) -> ControlFlow<Option<Next>> {
        let mut seen = if self.wait == Wait::Yes { self.back_off().await? } else { None };
        let mut outage = Outage::new(&self.opened, self.claim.name.as_str(), self.store_timeout);
        loop {
            let next = match seen.take() {
                Some(held) => Next::Wait(held),
                None => self.send_request(&outage, pending).await,
            };
            match next {
                next @ (Next::Granted(_) | Next::Over(_)) => return ControlFlow::Break(Some(next)),
                Next::Again => outage.end(),
                Next::Trouble(error) => tokio::select! {
                    biased;
                    () = self.reply.closed() => return ControlFlow::Break(None),
                    () = self.limit.passed() => {
                        return ControlFlow::Break(Some(Next::Over(self.timed_out())));
                    }
                    given_up = outage.pause_after(error) => if let Err(error) = given_up {
                        return ControlFlow::Break(Some(Next::Over(error)));
                    },
                },
                Next::Wait(held) => {
                    outage.end();
                    self.limit_requests(&outage);
                    self.waiting.begin();
                    self.turn.policy(|policy, _| policy.refused());
                    self.turn.report_holder(held.clone());
                    if let Some(on_wait) = &self.on_wait {
                        on_wait(&held);
                    }
                    let itself =
                        self.detector.as_ref().and_then(|detector| detector.with_itself(&self.claim, &held));
                    // Some stores give a place in the line with the first refusal.
                    *pending |= self.store.may_have_place(&self.claim);
                    if let Some(error) = itself.filter(|_| self.wait == Wait::Yes) {
                        return ControlFlow::Break(Some(Next::Over(error)));
                    }
                    let due = tokio::select! {
                        biased;
                        () = self.reply.closed() => Err(None),
                        () = self.limit.passed() => Err(Some(Next::Over(self.timed_out()))),
                        due = self.store.turn(&self.claim, &held) => Ok(due),
                        found = deadlocks(&mut self.detector, &self.opened, &self.claim) => match found {
                            Found::News(nested) => {
                                self.start_over(nested).await;
                                continue;
                            }
                            Found::Deadlock(error) => Err(Some(Next::Over(error))),
                        },
                    };
                    *pending |= self.store.may_have_place(&self.claim);
                    let due = match due {
                        Ok(due) => due,
                        Err(over) => return ControlFlow::Break(over),
                    };
                    // The time was spent waiting for the holder, except for the last poll if that failed.
                    outage.end();
                    match due {
                        Ok(()) => {}
                        // The next request has its own timeout.
                        Err(error) if error.is_transient() => self.claim.last_error.set(&error),
                        Err(error) => return ControlFlow::Break(Some(Next::Over(error.into()))),
                    }
                }
            }
            if self.reply.is_closed() {
                return ControlFlow::Break(None);
            }
        }
    }

    /// Takes a new place in the line, which shows `nested`. The lock may have been granted meanwhile, and is then asked
    /// for once more.
    async fn start_over(&mut self, nested: Box<Nested>) {
        let Claim { name, id, ttl, .. } = &self.claim;
        let mut grant = Grant::withdrawn(name.clone(), *id, *ttl, self.store.env().now());
        if let Err(error) = self.store.release(&mut grant, None).await {
            tracing::debug!(lock = %name, %error, "the place in the line was not given up; others will pass it over");
        }
        self.claim.id = Secret::new(self.store.env()).id();
        self.claim.nested = Some(nested);
    }

    /// Sets how long the next request, or each poll of a wait, may try.
    fn limit_requests(&mut self, outage: &Outage) {
        // A waiter limits the time of each request, so that it notices between requests if the caller is gone.
        let slice = if self.wait == Wait::No { Duration::MAX } else { Claim::DEFAULT_STORE_TIMEOUT };
        self.claim.store_timeout = outage.left().min(slice);
    }

    /// Sends one request for the lock.
    async fn send_request(&mut self, outage: &Outage, pending: &mut bool) -> Next {
        // One token for this task, and one for each task to which the lock will be passed on.
        self.claim.tokens = self.terms.as_ref().map_or(1, |terms| self.turn.demand(terms));
        self.limit_requests(outage);
        let sent = self.store.env().now();
        let verdict = {
            let mut request = self.store.try_acquire(&self.claim);
            tokio::select! {
                biased;
                verdict = &mut request => verdict,
                () = self.limit.given_up(&self.claim.last_error) => {
                    self.reply.fail(self.unanswered());
                    // The request may still be granted.
                    request.await
                }
            }
        };
        let now = self.store.env().now();
        if verdict.is_ok() {
            self.claim.last_error.clear();
        }
        match verdict {
            Ok(AcquireOutcome::Granted(grant)) => Next::Granted(grant),
            Ok(AcquireOutcome::Held(held)) if self.wait.is_over(&held) => {
                Next::Over(Error::held(&self.claim.name, held))
            }
            Ok(AcquireOutcome::Held(held)) => Next::Wait(held),
            Ok(AcquireOutcome::Lost(loss)) => {
                // The caller may have been granted the lock elsewhere with the same id, so a new claim would not help.
                if self.claim.repeatable {
                    return Next::Over(Error::lost(loss));
                }
                let too_late = matches!(loss.reason, LossReason::Expired { .. });
                self.late = if too_late { self.late + 1 } else { 0 };
                if self.late >= LATE_GRANTS {
                    return Next::Over(self.too_late(now.longest_since(sent)));
                }
                // Another process has the lock by now. An attempt that does not wait reports the loss of its grant.
                if self.wait == Wait::No && !too_late {
                    return Next::Over(Error::lost(loss));
                }
                tracing::warn!(%loss, "lost before it was reported as acquired");
                // The next grant belongs to a new claim.
                self.claim.id = Secret::new(self.store.env()).id();
                Next::Again
            }
            Err(error) => {
                *pending |= matches!(error, StoreError::MaybeApplied(_));
                let transient = error.is_transient();
                self.claim.last_error.set(&error);
                match Error::from(error) {
                    // A transient error does not end a wait before its timeout.
                    error if transient && self.wait != Wait::No => Next::Trouble(error),
                    error if transient => Next::Over(outage.gave_up(error)),
                    error => Next::Over(error),
                }
            }
        }
    }

    /// Returns the error for an acquisition whose time is over: who has the lock, unless the store fails.
    fn timed_out(&self) -> Error {
        match (self.turn.latest(), self.claim.last_error.failure()) {
            (Some(held), _) => Error::held(&self.claim.name, held),
            (None, Some(_)) => self.unanswered(),
            (None, None) => Error::held(&self.claim.name, HolderInfo::default()),
        }
    }

    fn unanswered(&self) -> Error {
        let cause = self.claim.last_error.get();
        self.limit.unanswered(&self.claim.name, &self.opened.shown(), cause)
    }

    fn too_late(&self, took: Duration) -> Error {
        let (name, ttl) = (&self.claim.name, set_span(self.claim.ttl.get()));
        Error::new(
            ErrorKind::Unavailable,
            format!(
                "lock `{name}`: {LATE_GRANTS} grants in a row expired before they arrived: the last one took \
                 {took:.1?}, and the ttl is {ttl}"
            ),
        )
        .with_help("use a ttl of several round trips to the store")
    }

    /// Returns for how long this process backs off.
    fn backoff(&self) -> Duration {
        self.turn.policy(|policy, _| policy.backoff(self.store.env().now())).unwrap_or_default()
    }

    /// If this process has to back off, leaves the lock to other processes for that time, or until another process has
    /// had it. Returns the holder if the lock is then held. Breaks if the caller is gone.
    async fn back_off(&mut self) -> ControlFlow<Option<Next>, Option<HolderInfo>> {
        let mut pause = self.store.capabilities().poll_interval.min;
        loop {
            let backoff = self.backoff();
            if backoff.is_zero() {
                return ControlFlow::Continue(None);
            }
            self.waiting.begin();
            self.turn.report_holder(HolderInfo {
                holder: Some(self.claim.holder.clone()),
                ..HolderInfo::default()
            });
            let env = self.store.env();
            let look = async {
                env.sleep(env.random.jittered(pause, 0.1)).await;
                self.store.inspect(&self.claim.name).await
            };
            let status = tokio::select! {
                biased;
                () = self.reply.closed() => return ControlFlow::Break(None),
                () = self.limit.passed() => return ControlFlow::Break(Some(Next::Over(self.timed_out()))),
                status = timeout(&*env.clock, backoff, look) => status,
            };
            // An error here is ignored, because the next request reports it.
            if let Some(Ok(status)) = status
                && self.turn.policy(|policy, _| policy.saw(&status)).unwrap_or_default()
            {
                return ControlFlow::Continue(match status.state {
                    State::Held(held) => Some(held),
                    State::Free | State::Lapsed(_) => None,
                });
            }
            pause *= 2;
        }
    }
}

/// Completes when a waiter with a `detector` has to do something about deadlocks.
async fn deadlocks(detector: &mut Option<Detector>, opened: &OpenStore, claim: &Claim) -> Found {
    match detector {
        Some(detector) if claim.waits => detector.look(opened, claim).await,
        _ => std::future::pending().await,
    }
}

/// Gives up the place of `claim` in the line in the background, and then the turn. A grant that the store made
/// unnoticed stays, because a repetition of the claim may have it.
fn stop_waiting(store: Arc<dyn LeaseStore>, claim: Claim, turn: Turn<Hold>) {
    let gone = async move {
        if let Err(error) = store.stop_waiting(&claim).await {
            tracing::debug!(lock = %claim.name, %error, "the place in the line could not be given up; other waiters will pass it over");
        }
        drop(turn);
    };
    tokio::spawn(gone.in_current_span());
}

/// Withdraws `claim` in the background: gives up its place in the line, and releases a grant that the store may still
/// make.
///
/// If the store keeps no line, the turn is given up at once, because a late grant is recognised by its id. If the store
/// keeps a line, the turn is given up afterwards, because the next task must not find the place of this claim in the
/// line.
fn withdraw(store: Arc<dyn LeaseStore>, claim: Claim, turn: Turn<Hold>) {
    let turn = Some(turn).filter(|_| store.capabilities().fifo());
    let gone = async move {
        let mut grant = Grant::withdrawn(claim.name, claim.id, claim.ttl, store.env().now());
        if let Err(error) = store.release(&mut grant, None).await {
            tracing::debug!(lock = %grant.name, %error, "an unanswered request was not withdrawn; it lapses");
        }
        drop(turn);
    };
    tokio::spawn(gone.in_current_span());
}
