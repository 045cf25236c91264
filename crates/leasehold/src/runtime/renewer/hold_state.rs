//! [`HoldState`]: whether one task may still act on a grant. Its guard, its renewer and its watchdog share it.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use futures_util::future::select_all;
use tokio::sync::Notify;
use tokio::sync::futures::Notified;
use tokio_util::sync::CancellationToken;
use tracing::field::Empty;
use tracing::{Span, info_span};

use crate::clock::{Deadline, Moment};
use crate::env::Env;
use crate::lease::{Loss, LossReason};
use crate::observe::{Event, Observers, elapsed};
use crate::runtime::limit::Limit;

/// The state of a hold. Its guard, its renewer and its watchdog share it.
#[derive(Debug)]
pub(crate) struct HoldState {
    pub(super) env: Env,
    /// Boxed, because most holds have none.
    limit: OnceLock<Box<Limit>>,
    phase: Mutex<Phase>,
    /// Boxed, because only permits have one.
    size: OnceLock<Box<Mutex<RecordedSize>>>,
    /// Cancelled as soon as the hold is over, for any reason, or is no longer renewed because the runtime has shut down.
    pub(super) over: CancellationToken,
    /// Notified when the lease was renewed, and when the hold is over.
    renewed: Notify,
    /// Notified when the renewer should renew at once.
    pub(super) renewal_requested: Notify,
}

/// The [size](crate::lease::Grant::size) of the lock's record.
#[derive(Clone, Copy, Debug)]
struct RecordedSize {
    /// What the next renewal writes.
    next: Option<u64>,
    /// What the release writes. Not the size of [`HoldState::record_size`]: when the lock is released, other permits may
    /// be free already.
    on_release: Option<u64>,
    /// What the latest renewal has written, or what the grant found.
    written: Option<u64>,
}

fn recorded_size(size: Option<u64>) -> Box<Mutex<RecordedSize>> {
    Box::new(Mutex::new(RecordedSize { next: size, on_release: None, written: size }))
}

/// Whether a lock is held, or how the hold ended.
#[derive(Debug)]
pub(super) enum Phase {
    Held {
        /// When the lease ends. The hold may end earlier, at its limit.
        lease: Deadline,
        last_error: Option<Box<str>>,
        /// The span `leasehold.hold`. `None` if no subscriber wants it, which is the usual case.
        span: Option<Arc<Span>>,
    },
    /// Boxed, because it is rare and larger than the other variants.
    Lost(Box<Loss>),
    /// Released, handed on as a ticket, or passed on. Contains the time at which the guard ended.
    Ended(Moment),
}

impl HoldState {
    /// Creates the state of a hold until `lease`, and until `limit` at the latest. `span` is the span of the hold, and
    /// `size` that of the lock's record.
    pub(super) fn new(
        env: Env,
        lease: Deadline,
        limit: Option<Limit>,
        span: Span,
        size: Option<u64>,
    ) -> Self {
        let span = (!span.is_disabled()).then(|| Arc::new(span));
        let phase = Mutex::new(Phase::Held { lease, last_error: None, span });
        Self {
            env,
            limit: limit.map(|limit| OnceLock::from(Box::new(limit))).unwrap_or_default(),
            phase,
            size: size.map(|_| OnceLock::from(recorded_size(size))).unwrap_or_default(),
            over: CancellationToken::new(),
            renewed: Notify::new(),
            renewal_requested: Notify::new(),
        }
    }

    pub(super) fn phase<T>(&self, body: impl FnOnce(&mut Phase) -> T) -> T {
        body(&mut self.phase.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn with_size<T>(&self, body: impl FnOnce(&mut RecordedSize) -> T) -> T {
        let size = self.size.get_or_init(|| recorded_size(None));
        body(&mut size.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns what is known about the size. `None` for most locks, which have none.
    fn recorded(&self) -> Option<RecordedSize> {
        self.size.get().map(|size| *size.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns the size that the next renewal writes. `None` if it keeps that of the record.
    pub(crate) fn size(&self) -> Option<u64> {
        self.recorded()?.next
    }

    /// Returns the size that the release writes. `None` if it keeps that of the record.
    pub(super) fn size_on_release(&self) -> Option<u64> {
        self.recorded()?.on_release
    }

    /// Makes the next renewal or release write `size`.
    pub(crate) fn set_size(&self, size: u64) {
        self.with_size(|recorded| (recorded.next, recorded.on_release) = (Some(size), Some(size)));
    }

    /// Requests renewals until one has written `size`, unless the record has it. Returns an error if the hold is over.
    pub(crate) async fn record_size(&self, size: u64) -> Result<(), ()> {
        self.with_size(|recorded| (recorded.next, recorded.on_release) = (Some(size), None));
        loop {
            // A renewal after this line is not missed.
            let renewed = self.renewed();
            // A renewal that began before may have written the old size.
            if self.with_size(|recorded| recorded.written) == Some(size) {
                return Ok(());
            }
            self.request_renewal();
            tokio::select! {
                biased;
                () = self.over.cancelled() => return Err(()),
                () = renewed => {}
            }
        }
    }

    /// Notes that a renewal has written `size`.
    pub(super) fn wrote_size(&self, size: Option<u64>) {
        if size.is_some() {
            self.with_size(|recorded| recorded.written = size);
        }
    }

    /// Returns the span of the hold, or `None` if the hold is over.
    pub(crate) fn span(&self) -> Option<Arc<Span>> {
        self.phase(|phase| match phase {
            Phase::Held { span, .. } => span.clone(),
            Phase::Lost(_) | Phase::Ended(_) => None,
        })
    }

    /// Returns for how long the lock is certain to be held. Returns zero if the hold is over.
    pub(crate) fn remaining(&self) -> Duration {
        let now = self.env.now();
        self.deadline().map_or(Duration::ZERO, |deadline| deadline.remaining(now))
    }

    /// Returns the deadline, or `None` if the hold is known to be over. It is never later than the limit.
    pub(crate) fn deadline(&self) -> Option<Deadline> {
        Some(Limit::of_lease(self.limit(), self.lease()?))
    }

    /// Returns when the lease ends, or `None` if the hold is known to be over.
    fn lease(&self) -> Option<Deadline> {
        self.phase(|phase| match phase {
            Phase::Held { lease, .. } => Some(*lease),
            Phase::Lost(_) | Phase::Ended(_) => None,
        })
    }

    /// Returns the limit of the hold.
    pub(crate) fn limit(&self) -> Option<Limit> {
        self.limit.get().map(|limit| **limit)
    }

    /// Sets the limit of a hold that has none.
    pub(crate) fn limit_to(&self, limit: Limit) {
        drop(self.limit.set(Box::new(limit)));
        self.renewed.notify_waiters();
    }

    pub(crate) fn now(&self) -> Moment {
        self.env.now()
    }

    /// Completes at the next renewal after this call, or when the hold is over.
    pub(crate) fn renewed(&self) -> Notified<'_> {
        self.renewed.notified()
    }

    /// Requests renewals until one was sent at `moment` or later, and returns its deadline. Returns an error if the hold
    /// is over.
    pub(crate) async fn renewed_since(&self, moment: Moment) -> Result<Deadline, ()> {
        loop {
            // A renewal after this line is not missed.
            let renewed = self.renewed();
            match self.lease() {
                Some(lease) if lease.starts_since(moment) => {
                    return Ok(Limit::of_lease(self.limit(), lease));
                }
                Some(_) => {
                    // Each round requests another renewal. The deadline of the previous one may count from an earlier
                    // request: from one whose response was lost, or from one that renewed several locks.
                    self.request_renewal();
                    tokio::select! {
                        biased;
                        // The watchdog cancels this at the deadline, or when its runtime shuts down.
                        () = self.over.cancelled() => return Err(()),
                        () = renewed => {}
                    }
                }
                None => return Err(()),
            }
        }
    }

    /// Returns how a hold that is over has ended, or will end because its runtime has shut down.
    pub(crate) fn loss_of(&self, lock: &LockAndToken) -> Loss {
        self.loss(lock).unwrap_or_else(|| {
            let last_error = Some("the tokio runtime in which the lock was acquired has shut down".into());
            lock.loss(LossReason::Expired { last_error })
        })
    }

    /// Asks the renewer for one renewal. If one is under way, another one follows.
    fn request_renewal(&self) {
        self.renewal_requested.notify_one();
    }

    /// Returns how the hold ended, or `None` if it is not over. Reads the clock, because a timer may fire late.
    pub(crate) fn loss(&self, lock: &LockAndToken) -> Option<Loss> {
        let now = self.env.now();
        let mut recorded = None;
        let loss = self.phase(|phase| match phase {
            Phase::Held { lease, last_error, .. } => {
                let limit = self.limit().filter(|limit| limit.until.passed(now));
                let reason = match limit {
                    // Both may have passed while the machine was suspended. The first one ended the hold.
                    Some(limit) if limit.until.rank() <= lease.rank() => LossReason::Limit,
                    _ if lease.passed(now) => {
                        LossReason::Expired { last_error: last_error.take().map(Into::into) }
                    }
                    Some(_) => LossReason::Limit,
                    None => return None,
                };
                let loss = lock.loss(reason);
                recorded = phase.lose(&loss);
                Some(loss)
            }
            Phase::Lost(loss) => Some(Loss::clone(loss)),
            Phase::Ended(_) => Some(lock.loss(LossReason::Ended)),
        });
        if let (Some(recorded), Some(loss)) = (recorded, &loss) {
            self.cancel();
            recorded.report(loss);
        }
        loss
    }

    /// Completes when the hold is lost. Never completes if the lock was released.
    pub(crate) async fn lost(&self, lock: &LockAndToken) -> Loss {
        loop {
            // A change after this line is not missed. A renewal may also bring the deadline forward.
            let changed = self.renewed();
            match self.loss(lock) {
                Some(_) if self.phase(|phase| matches!(phase, Phase::Ended(_))) => {
                    std::future::pending().await
                }
                Some(loss) => return loss,
                None => {}
            }
            // This timer is separate from the watchdog's, so that it works even if the runtime of the tasks has shut
            // down.
            tokio::select! {
                () = changed => {}
                () = self.env.sleep(self.remaining()) => {}
            }
        }
    }

    pub(crate) fn over(&self) -> CancellationToken {
        self.over.clone()
    }

    /// Ends the hold. Must be called before any request is sent. Returns the loss if the lock was lost before.
    pub(crate) fn end(&self) -> Option<Loss> {
        self.end_as("released")
    }

    /// Does the same as [`end`](Self::end), for a hold that becomes a ticket.
    pub(crate) fn detach(&self) -> Option<Loss> {
        self.end_as("handed_on")
    }

    /// Ends the hold, and records `outcome` in its span.
    fn end_as(&self, outcome: &str) -> Option<Loss> {
        let now = self.env.now();
        let mut closed = None;
        let lost = self.phase(|phase| match phase {
            Phase::Lost(loss) => Some(Loss::clone(loss)),
            Phase::Held { span, .. } => {
                closed = span.take();
                *phase = Phase::Ended(now);
                None
            }
            Phase::Ended(_) => None,
        });
        self.cancel();
        close(closed, outcome);
        lost
    }

    /// Wakes all tasks that wait for the end of the hold.
    fn cancel(&self) {
        self.over.cancel();
        self.renewed.notify_waiters();
    }

    /// Returns when the guard ended, or `None` if the lock is held or was lost before.
    pub(super) fn ended(&self) -> Option<Moment> {
        self.phase(|phase| match phase {
            Phase::Ended(at) => Some(*at),
            Phase::Held { .. } | Phase::Lost(_) => None,
        })
    }

    /// Returns the loss, if the lock is known to be lost. Does not read the clock.
    pub(super) fn known_loss(&self) -> Option<Loss> {
        self.phase(|phase| match phase {
            Phase::Lost(loss) => Some(Loss::clone(loss)),
            Phase::Held { .. } | Phase::Ended(_) => None,
        })
    }

    /// Returns whether the hold was lost at its limit.
    pub(super) fn is_at_limit(&self) -> bool {
        self.phase(|phase| matches!(phase, Phase::Lost(loss) if loss.reason == LossReason::Limit))
    }

    /// Waits until the hold is lost at its limit.
    pub(super) async fn at_limit(&self) {
        self.over.cancelled().await;
        if !self.is_at_limit() {
            std::future::pending::<()>().await;
        }
    }

    /// Records a loss, unless the hold is over.
    pub(super) fn lose(&self, loss: Loss) {
        let recorded = self.phase(|phase| phase.lose(&loss));
        self.cancel();
        if let Some(recorded) = recorded {
            recorded.report(&loss);
        }
    }

    /// Sets the deadline after a renewal. A loss is final: a renewal that is confirmed after the loss changes nothing
    /// (rule 9). Returns the time that was left of the lease, or `None` if the hold was over.
    pub(super) fn prolong(&self, prolonged: Deadline) -> Option<Duration> {
        let now = self.env.now();
        let left = self.phase(|phase| match phase {
            Phase::Held { lease, last_error, .. } if !Limit::of_lease(self.limit(), *lease).passed(now) => {
                *last_error = None;
                Some(std::mem::replace(lease, prolonged).remaining(now))
            }
            _ => None,
        });
        self.renewed.notify_waiters();
        left
    }

    /// Records the error of a renewal, for the loss that may follow.
    pub(super) fn note(&self, error: &impl ToString) {
        self.phase(|phase| {
            if let Phase::Held { last_error, .. } = phase {
                *last_error = Some(error.to_string().into());
            }
        });
    }
}

impl Phase {
    /// Records a loss, unless the hold is over.
    fn lose(&mut self, loss: &Loss) -> Option<Recorded> {
        let Self::Held { span, .. } = self else { return None };
        let span = span.take();
        *self = Self::Lost(Box::new(loss.clone()));
        Some(Recorded { span })
    }
}

/// A loss that was recorded and is not reported yet.
struct Recorded {
    span: Option<Arc<Span>>,
}

impl Recorded {
    /// Reports the loss. Must not be called while the phase is locked, because a subscriber may do anything.
    fn report(self, loss: &Loss) {
        tracing::warn!(%loss, "lock lost");
        close(self.span, "lost");
    }
}

/// Closes the span of a hold. Must not be called while the phase is locked, because a subscriber may do anything.
fn close(span: Option<Arc<Span>>, outcome: &str) {
    if let Some(span) = span {
        span.record("outcome", outcome);
    }
}

/// The name and the token of a lock that is held.
#[derive(Clone, Debug)]
pub(crate) struct LockAndToken {
    pub(crate) name: crate::LockName,
    pub(crate) token: crate::Token,
}

impl LockAndToken {
    /// Creates a span for this hold. It has no parent, because a hold may outlast every span of its caller.
    pub(super) fn span(&self) -> Span {
        info_span!(parent: None, "leasehold.hold", lock = %self.name, token = self.token.get(), outcome = Empty)
    }

    pub(crate) fn loss(&self, reason: LossReason) -> Loss {
        Loss::new(self.name.clone(), self.token, reason)
    }
}

/// Binds holds together: as soon as one of them is lost, the others are lost. Must be called inside a tokio runtime.
pub(crate) fn bind(holds: Vec<Arc<HoldState>>) {
    tokio::spawn(async move {
        select_all(holds.iter().map(|hold| Box::pin(hold.over.cancelled()))).await;
        // `None` if their guard has ended them.
        if let Some(loss) = holds.iter().find_map(|hold| hold.known_loss()) {
            for hold in &holds {
                hold.lose(loss.clone());
            }
        }
    });
}

/// The watchdog of a hold.
pub(super) struct Watchdog {
    pub(super) hold: Arc<HoldState>,
    pub(super) lock: LockAndToken,
    /// When it became known that the task has the lock.
    pub(super) granted: Moment,
    pub(super) observers: Observers,
}

impl Watchdog {
    /// Records a loss when the deadline passes. Reports every loss, including one that the renewer has recorded.
    pub(super) async fn watch(self) {
        let Self { hold, lock, granted, observers } = &self;
        loop {
            // A change after this line is not missed. A renewal may also bring the deadline forward.
            let changed = hold.renewed();
            if hold.loss(lock).is_some() {
                break;
            }
            tokio::select! {
                () = changed => {}
                () = hold.env.sleep(hold.remaining()) => {}
            }
        }
        if let Some(Loss { reason, .. }) = hold.known_loss() {
            let (lock, token, held) = (&lock.name, lock.token, elapsed(*granted, hold.env.now()));
            observers.report(&Event::Lost { lock, token, held, reason: &reason });
        }
    }
}

impl Drop for Watchdog {
    /// Wakes the tasks that wait for the end of the hold, also if the runtime shuts down during the hold: tasks of other
    /// runtimes would otherwise wait forever, because the renewer ends too. The guard stays valid until its deadline.
    fn drop(&mut self) {
        self.hold.cancel();
    }
}
