//! [`FaultyRegister`]: a register with a simulated network that tests control.
//!
//! ```
//! # use leasehold_testkit::fault::{FaultyRegister, Outcome};
//! # use leasehold::Register;
//! # use std::sync::Arc;
//! # async fn example(inner: Arc<dyn Register>) {
//! let faulty = FaultyRegister::new(inner);
//! faulty.next_write(Outcome::AppliedLost); // the write is applied, but its response is lost
//! faulty.next_read(Outcome::Stalled); //      the next read hangs
//! // ... the code under test runs in a task ...
//! faulty.sent(2).await; //                    waits until both requests are sent
//! faulty.deliver().await; //                  lets the read through
//! assert_eq!(faulty.counts().writes, 1);
//! # }
//! ```

mod chaos;
mod request;

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::{self, BoxStream};
use leasehold::ErrorKind;
use leasehold::clock::{Moment, StoreTime};
use leasehold::env::Env;
use leasehold::error::{Fault, StoreError};
use leasehold::register::{
    Body, Deleted, Head, Precondition, Register, RegisterCapabilities, Version, VersionedValue, Write,
};
use tokio::sync::{oneshot, watch};

pub use self::chaos::Chaos;
use self::request::{Answer, InNetwork, Reply, Request};

/// The outcome of one request.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// Applied, and the response arrives.
    Fine,
    /// Applied; the response is lost ([`StoreError::MaybeApplied`]).
    AppliedLost,
    /// Applied, but the caller gets the response to a duplicate that was refused for now
    /// ([`StoreError::NotApplied`]). This can happen behind a proxy that sends requests twice.
    AppliedRefused,
    /// Never applied; reported as unknown ([`StoreError::MaybeApplied`]).
    Dropped,
    /// Reported as [`StoreError::MaybeApplied`] at once; applied when the test calls [`FaultyRegister::deliver`].
    HeldBack,
    /// Neither applied nor responded to until [`FaultyRegister::deliver`]. The caller waits or gives up.
    Stalled,
    /// Applied at once; the response arrives at [`FaultyRegister::deliver`]. The caller may give up before that.
    AnswerStalled,
    /// Applied twice, one right after the other; the first response is reported.
    Twice,
    /// Applied twice; the second response is reported, as with a client that retries by itself.
    TwiceSecondAnswer,
    /// Applied, and the response arrives. A copy of the request stays in the network until [`FaultyRegister::deliver`].
    TwiceLate,
    /// Refused for now, without effect, like a 409 or 503 ([`StoreError::NotApplied`], worth another try).
    NotApplied,
    /// Refused for now, with a request to wait this long.
    Throttled(Duration),
    /// Refused for good, without effect ([`ErrorKind::Denied`]).
    Denied,
    /// Applied after this long on the register's clock; then the response arrives. It is applied even if the caller has
    /// given up.
    Delayed(Duration),
    /// Applied at once; the response arrives after this long on the register's clock.
    AnswerDelayed(Duration),
}

/// The kinds of request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// [`Register::read`] and [`Register::head`].
    Read,
    /// [`Register::write`].
    Write,
    /// [`Register::delete`].
    Delete,
    /// [`Register::list`], once for each listing.
    List,
}

/// How many requests of each kind were sent, regardless of their outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Reads.
    pub reads: usize,
    /// Conditional writes.
    pub writes: usize,
    /// Conditional deletes.
    pub deletes: usize,
    /// Listings.
    pub lists: usize,
}

impl Counts {
    /// Returns the sum of all kinds.
    pub fn total(&self) -> usize {
        self.reads + self.writes + self.deletes + self.lists
    }
}

/// A request that was sent.
#[derive(Clone, Debug)]
pub struct Sent {
    /// Its kind.
    pub kind: Kind,
    /// Its key, or the prefix of a listing.
    pub key: String,
    /// The value of a write.
    pub value: Option<Bytes>,
    /// When it was sent, on the register's clock.
    pub at: Moment,
    /// Its outcome.
    pub outcome: Outcome,
}

/// A [`Register`] that loses, delays, duplicates and holds back requests and responses.
///
/// The outcome of a request is the first of these that is set: the next scripted outcome for its kind, the standing
/// outcome for writes of its key ([`every_write_of`](Self::every_write_of)) or for its kind ([`every`](Self::every)),
/// a refusal by [`throttle`](Self::throttle), a random outcome ([`chaos`](Self::chaos)), [`Outcome::Fine`]. A request
/// that is delayed or stalled is in the network. It arrives whether or not its caller still waits.
///
/// Clones share one network. To give each client a separate network, wrap the inner register once for each.
#[derive(Clone, Debug)]
pub struct FaultyRegister {
    inner: Arc<dyn Register>,
    shared: Arc<Mutex<Script>>,
    counts: Arc<watch::Sender<Counts>>,
    observer: Option<Observer>,
}

/// A function that is called for each request when it is sent.
#[derive(Clone)]
struct Observer(Arc<dyn Fn(&Sent) + Send + Sync>);

impl fmt::Debug for Observer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Observer")
    }
}

#[derive(Debug, Default)]
struct Script {
    next: [VecDeque<Outcome>; 4],
    every: [Option<Outcome>; 4],
    every_write_of: Option<(String, Outcome)>,
    chaos: Option<Chaos>,
    throttled: Option<Duration>,
    held: VecDeque<InNetwork>,
    log: Vec<Sent>,
}

impl FaultyRegister {
    /// Wraps `inner` in a network without faults.
    pub fn new(inner: Arc<dyn Register>) -> Self {
        let counts = Arc::new(watch::Sender::new(Counts::default()));
        Self { inner, shared: Arc::default(), counts, observer: None }
    }

    /// Calls `observe` for each request when it is sent, instead of keeping a log. `observe` must send no requests
    /// itself.
    #[must_use]
    pub fn observed(mut self, observe: impl Fn(&Sent) + Send + Sync + 'static) -> Self {
        self.observer = Some(Observer(Arc::new(observe)));
        self
    }

    /// Sets the outcome of the next request of `kind` that has no scripted outcome yet. Calls queue up.
    pub fn next(&self, kind: Kind, outcome: Outcome) {
        self.script().next[kind as usize].push_back(outcome);
    }

    /// Sets the outcome of the next read.
    pub fn next_read(&self, outcome: Outcome) {
        self.next(Kind::Read, outcome);
    }

    /// Sets the outcome of the next write.
    pub fn next_write(&self, outcome: Outcome) {
        self.next(Kind::Write, outcome);
    }

    /// Sets the outcome of the next delete.
    pub fn next_delete(&self, outcome: Outcome) {
        self.next(Kind::Delete, outcome);
    }

    /// Sets the outcome of all further requests of `kind` that have no scripted outcome.
    pub fn every(&self, kind: Kind, outcome: Outcome) {
        self.script().every[kind as usize] = Some(outcome);
    }

    /// Sets the outcome of all further writes of `key` that have no scripted outcome.
    pub fn every_write_of(&self, key: &str, outcome: Outcome) {
        self.script().every_write_of = Some((key.into(), outcome));
    }

    /// Loses all further requests, as if the cable had been pulled.
    pub fn disconnect(&self) {
        self.script().every = [const { Some(Outcome::Dropped) }; 4];
    }

    /// Holds all further requests until [`deliver`](Self::deliver), like a network that hangs.
    pub fn stall(&self) {
        self.script().every = [const { Some(Outcome::Stalled) }; 4];
    }

    /// Ends all standing outcomes and chaos. Requests and responses that are in the network stay there.
    pub fn heal(&self) {
        let mut script = self.script();
        script.every = Default::default();
        script.every_write_of = None;
        script.chaos = None;
    }

    /// Draws a random outcome for all further requests that have no other outcome.
    pub fn chaos(&self, chaos: Chaos) {
        self.script().chaos = Some(chaos);
    }

    /// Refuses all further requests that have no scripted or standing outcome, and asks their callers to wait this
    /// long. Throttling takes precedence over chaos. A call with `None` ends it, but [`heal`](Self::heal) does not.
    pub fn throttle(&self, wait: Option<Duration>) {
        self.script().throttled = wait;
    }

    /// Lets through the oldest request or response that is held in the network, and completes when it has arrived.
    /// Returns the store's response to a write, even if its caller no longer waits. Returns `None` if nothing was
    /// held, if the request was not a write, or if the store failed.
    pub async fn deliver(&self) -> Option<Write> {
        let held = self.script().held.pop_front()?;
        held.arrive(&*self.inner).await
    }

    /// Like [`deliver`](Self::deliver), but lets through the newest one, which overtakes all others.
    pub async fn deliver_newest(&self) -> Option<Write> {
        let held = self.script().held.pop_back()?;
        held.arrive(&*self.inner).await
    }

    /// Lets through everything that is held in the network, oldest first.
    pub async fn deliver_all(&self) {
        while self.held() > 0 {
            self.deliver().await;
        }
    }

    /// Discards the oldest request or response that is held in the network. A caller that still waits gets
    /// [`StoreError::MaybeApplied`].
    pub fn discard(&self) {
        self.script().held.pop_front();
    }

    /// Returns how many requests and responses are held in the network.
    pub fn held(&self) -> usize {
        self.script().held.len()
    }

    /// Returns how many requests were sent since the start or the last [`reset_counts`](Self::reset_counts).
    pub fn counts(&self) -> Counts {
        *self.counts.borrow()
    }

    /// Resets the counts and the log.
    pub fn reset_counts(&self) {
        self.script().log.clear();
        self.counts.send_replace(Counts::default());
    }

    /// Returns the requests sent since the start or the last [`reset_counts`](Self::reset_counts), in order.
    pub fn log(&self) -> Vec<Sent> {
        self.script().log.clone()
    }

    /// Completes when `total` requests have been sent. Cancel safe.
    pub async fn sent(&self, total: usize) {
        self.until(|counts| counts.total() >= total).await;
    }

    /// Completes when the counts satisfy `reached`. Cancel safe.
    pub async fn until(&self, mut reached: impl FnMut(&Counts) -> bool) {
        // The sender lives as long as `self`, so this cannot fail.
        let _ = self.counts.subscribe().wait_for(|counts| reached(counts)).await;
    }

    fn script(&self) -> MutexGuard<'_, Script> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Logs a request and returns its outcome.
    fn outcome(&self, kind: Kind, key: &str, value: Option<&Bytes>) -> Outcome {
        let at = self.inner.env().now();
        let mut script = self.script();
        let outcome = script.next[kind as usize]
            .pop_front()
            .or_else(|| {
                let of = script.every_write_of.as_ref().filter(|(of, _)| kind == Kind::Write && of == key);
                of.map(|(_, outcome)| outcome.clone())
            })
            .or_else(|| script.every[kind as usize].clone())
            .or_else(|| script.throttled.map(Outcome::Throttled))
            .or_else(|| script.chaos.as_mut().map(Chaos::draw))
            .unwrap_or(Outcome::Fine);
        let sent = Sent { kind, key: key.into(), value: value.cloned(), at, outcome: outcome.clone() };
        match &self.observer {
            Some(Observer(observe)) => observe(&sent),
            None => script.log.push(sent),
        }
        outcome
    }

    /// Counts a request and wakes the tasks that wait for a count. Called after the request has entered the network,
    /// so that these tasks find it there.
    fn count(&self, kind: Kind) {
        self.counts.send_modify(|counts| match kind {
            Kind::Read => counts.reads += 1,
            Kind::Write => counts.writes += 1,
            Kind::Delete => counts.deletes += 1,
            Kind::List => counts.lists += 1,
        });
    }

    async fn send(&self, request: Request) -> Reply {
        let kind = request.kind();
        let outcome = self.outcome(kind, request.key(), request.value());
        let (answer_to, answer) = oneshot::channel();
        let parked = match outcome {
            Outcome::HeldBack => Some(InNetwork::Request(request.clone(), None)),
            Outcome::Stalled => Some(InNetwork::Request(request.clone(), Some(answer_to))),
            Outcome::AnswerStalled => {
                Some(InNetwork::Answer(request.apply(&*self.inner).await, Some(answer_to)))
            }
            _ => None,
        };
        self.script().held.extend(parked);
        self.count(kind);
        match outcome {
            Outcome::Fine => request.apply(&*self.inner).await,
            Outcome::AppliedLost => {
                let _ = request.apply(&*self.inner).await;
                Err(lost("the response was lost"))
            }
            Outcome::AppliedRefused => {
                let _ = request.apply(&*self.inner).await;
                Err(refusal(&outcome))
            }
            Outcome::Dropped => Err(lost("the request was lost")),
            Outcome::HeldBack => Err(lost("the request is under way")),
            Outcome::Stalled | Outcome::AnswerStalled => {
                answer.await.unwrap_or_else(|_| Err(lost("the connection broke")))
            }
            Outcome::Twice => {
                let first = request.apply(&*self.inner).await;
                let _ = request.apply(&*self.inner).await;
                first
            }
            Outcome::TwiceSecondAnswer => {
                let _ = request.apply(&*self.inner).await;
                request.apply(&*self.inner).await
            }
            Outcome::TwiceLate => {
                let reply = request.apply(&*self.inner).await;
                // The duplicate may arrive only after the first copy has.
                self.script().held.push_back(InNetwork::Request(request, None));
                reply
            }
            Outcome::Delayed(delay) => self.delayed(request, delay).await,
            Outcome::AnswerDelayed(delay) => {
                let reply = request.apply(&*self.inner).await;
                self.inner.env().sleep(delay).await;
                reply
            }
            Outcome::NotApplied | Outcome::Throttled(_) | Outcome::Denied => Err(refusal(&outcome)),
        }
    }

    /// Sends the request after `delay`. A separate task does this, because the request arrives even if its caller has
    /// given up.
    async fn delayed(&self, request: Request, delay: Duration) -> Reply {
        let inner = self.inner.clone();
        let carrier = tokio::spawn(async move {
            inner.env().sleep(delay).await;
            request.apply(&*inner).await
        });
        carrier.await.unwrap_or_else(|_| Err(lost("the connection broke")))
    }
}

fn lost(how: &str) -> StoreError {
    Fault::unavailable(format!("injected: {how}")).maybe_applied()
}

/// Returns the error of an outcome that refuses the request without effect.
fn refusal(outcome: &Outcome) -> StoreError {
    match outcome {
        Outcome::Denied => Fault::new(ErrorKind::Denied, "injected: access denied")
            .with_help("this is a test: no permission will help"),
        Outcome::Throttled(wait) => Fault::unavailable("injected: slow down").with_retry_after(*wait),
        _ => Fault::unavailable("injected: refused for now"),
    }
    .not_applied()
}

#[async_trait]
impl Register for FaultyRegister {
    async fn read(&self, key: &str) -> Result<Option<VersionedValue>, StoreError> {
        match self.send(Request::Read(key.into())).await? {
            Answer::VersionedValue(cell) => Ok(cell),
            other => unreachable!("{other:?} is not for reads"),
        }
    }

    async fn head(&self, key: &str) -> Result<Option<Head>, StoreError> {
        match self.send(Request::Head(key.into())).await? {
            Answer::Head(head) => Ok(head),
            other => unreachable!("{other:?} tells nothing of a key"),
        }
    }

    async fn write(&self, key: &str, expect: Precondition<'_>, body: Body) -> Result<Write, StoreError> {
        let expect = match expect {
            Precondition::Absent => None,
            Precondition::Version(version) => Some(version.clone()),
        };
        match self.send(Request::Write(key.into(), expect, body)).await? {
            Answer::Write(write) => Ok(write),
            other => unreachable!("{other:?} is not for writes"),
        }
    }

    async fn delete(&self, key: &str, version: &Version) -> Result<Deleted, StoreError> {
        match self.send(Request::Delete(key.into(), version.clone())).await? {
            Answer::Deleted(deleted) => Ok(deleted),
            other => unreachable!("{other:?} is not for deletes"),
        }
    }

    fn list(&self, prefix: &str) -> BoxStream<'_, Result<String, StoreError>> {
        let outcome = self.outcome(Kind::List, prefix, None);
        self.count(Kind::List);
        match outcome {
            Outcome::NotApplied | Outcome::AppliedRefused | Outcome::Throttled(_) | Outcome::Denied => {
                stream::iter([Err(refusal(&outcome))]).boxed()
            }
            Outcome::AppliedLost | Outcome::Dropped | Outcome::HeldBack => {
                stream::iter([Err(lost("the listing was lost"))]).boxed()
            }
            Outcome::Stalled | Outcome::AnswerStalled => stream::pending().boxed(),
            Outcome::Delayed(delay) | Outcome::AnswerDelayed(delay) => {
                let keys = self.inner.list(prefix);
                let wait = self.inner.env().sleep(delay);
                stream::once(wait).filter_map(async |()| None).chain(keys).boxed()
            }
            Outcome::Fine | Outcome::Twice | Outcome::TwiceSecondAnswer | Outcome::TwiceLate => {
                self.inner.list(prefix)
            }
        }
    }

    fn version_of(&self, bytes: &[u8]) -> Option<Version> {
        self.inner.version_of(bytes)
    }

    fn store_time(&self) -> Option<StoreTime> {
        self.inner.store_time()
    }

    fn env(&self) -> &Env {
        self.inner.env()
    }

    fn capabilities(&self) -> RegisterCapabilities {
        self.inner.capabilities()
    }
}

#[cfg(test)]
mod tests;
