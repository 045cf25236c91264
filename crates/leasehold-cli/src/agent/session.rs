//! [`Session`]: the pending requests and the held locks of one host.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::{BoxFuture, join, join_all};
use leasehold::clock::{Clock as _, SystemClock, timeout};
use leasehold::{Guard, Lock, Released};
use rustix::process::Pid;
use serde_json::{Value, json};
use tokio::sync::{Semaphore, SemaphorePermit, mpsc, oneshot};
use tokio::task::JoinSet;

use super::fields::{Fields, Unassignable, missing};
use super::hold::{HoldRequest, HoldTask};
use super::message::{self, Answer};
use super::pipe::{MAX_LINE, Outbox};
use super::refusal::Refusal;
use super::stores::{MAX_STORES, Stores};
use crate::config::Settings;
use crate::exit::USAGE;
use crate::mode::CANCEL_TIMEOUT;

/// The largest number of pending requests.
const MAX_PENDING: usize = 16_384;
/// The largest total length of pending requests, in bytes.
const MAX_PENDING_BYTES: usize = 64 << 20;
/// The largest number of held locks.
const MAX_HOLDS: usize = 16_384;
/// The largest number of concurrent operations that keep the content of an object in memory.
const MAX_OBJECTS: usize = 16;
/// How long the releases may take after the end of the host.
const END_TIMEOUT: Duration = Duration::from_secs(5);

/// What the agent must do after a line.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    Continue,
    /// Also watch for the end of this process.
    Watch(Pid),
    /// Release everything and exit with this code.
    End(u8),
}

/// The outcome of a request.
pub(super) enum Reply {
    Answer(Answer),
    Held(Guard, HoldPlace),
}

/// Counts as a hold, from before the grant until the hold has begun or the request has ended. So requests that run at
/// the same time cannot pass the limit.
pub(super) struct HoldPlace(Arc<Session>);

impl Drop for HoldPlace {
    fn drop(&mut self) {
        self.0.state(|state| state.hold_places -= 1);
    }
}

/// The work of a request.
pub(super) type Work = BoxFuture<'static, Result<Reply, Refusal>>;

/// Reads the fields of a request, with its id and its operation, and returns its work.
pub(super) type Begin = fn(&Arc<Session>, u64, &str, Fields) -> Work;

/// The version of the protocol.
const PROTOCOL: u64 = 1;

/// The session with one host.
pub(super) struct Session {
    pub(super) stores: Stores,
    pub(super) outbox: Outbox,
    /// Limits the operations that keep the content of an object in memory.
    objects: Semaphore,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    host: Option<Pid>,
    pending: HashMap<u64, Pending>,
    /// The total length of the pending requests, in bytes.
    bytes: usize,
    holds: HashMap<u64, mpsc::Sender<HoldRequest>>,
    /// The number of requests that may begin a hold.
    hold_places: usize,
    /// The releases that the host has requested. They outlive their requests.
    releases: JoinSet<()>,
    last_hold: u64,
    ending: bool,
}

/// A request that has no final response yet. Dropping it cancels the request.
struct Pending {
    bytes: usize,
    cancel: Option<oneshot::Sender<()>>,
    /// Takes the content that the host sends for an update.
    answer: Option<oneshot::Sender<Option<Vec<u8>>>>,
}

impl Session {
    /// Creates a session whose requests use `default_store` unless they name a store.
    pub(super) fn new(settings: Settings, default_store: Option<String>, outbox: Outbox) -> Self {
        Self {
            stores: Stores::new(settings, default_store),
            outbox,
            objects: Semaphore::new(MAX_OBJECTS),
            state: Mutex::default(),
        }
    }

    /// Handles one line from the host.
    pub(super) async fn take(self: &Arc<Self>, line: &[u8], begin: Begin) -> Next {
        let (id, mut fields) = match Fields::parse(line) {
            Ok(parsed) => parsed,
            Err(Unassignable(what)) => return self.refuse_line(what).await,
        };
        let greeted = self.state(|state| state.host.is_some());
        let operation = match fields.text("op").and_then(|op| op.ok_or_else(|| missing("op"))) {
            Ok(operation) => operation,
            Err(refusal) if greeted => return self.refuse(id, &refusal).await,
            Err(_) => String::new(),
        };
        if !greeted {
            return self.greet(id, &operation, fields).await;
        }
        // Without these two, the host could not end what it has begun.
        let ends = matches!(&*operation, "release" | "cancel");
        if let Err(full) = self.state(|state| state.admit(id, line.len(), ends)) {
            return match full {
                Some(refusal) => self.refuse(id, &refusal).await,
                None => self.refuse_line("a request with the id of a pending request").await,
            };
        }
        let (cancel, cancelled) = oneshot::channel();
        self.state(|state| state.pending.get_mut(&id).map(|pending| pending.cancel.replace(cancel)));
        let (session, work) = (self.clone(), begin(self, id, &operation, fields));
        tokio::spawn(async move {
            let outcome = tokio::select! {
                biased;
                outcome = work => outcome,
                _ = cancelled => Err(Refusal::cancelled()),
            };
            session.answer(id, outcome).await;
        });
        Next::Continue
    }

    /// Handles the first request.
    async fn greet(&self, id: u64, operation: &str, mut fields: Fields) -> Next {
        let mut read = || {
            if operation != "hello" {
                return Err(Refusal::invalid("the first request must be `hello`"));
            }
            let protocol = fields.number("protocol")?;
            if protocol != PROTOCOL {
                return Err(Refusal::new(
                    "unsupported",
                    format!("this agent does not support protocol {protocol}"),
                )
                .with_help(format!(
                    "it supports protocol {PROTOCOL}; use a client and a command of the same version"
                )));
            }
            let pid = i32::try_from(fields.number("pid")?).ok().and_then(Pid::from_raw);
            fields.text("client")?;
            pid.ok_or_else(|| Refusal::invalid("`pid` is not the id of a process"))
        };
        let pid = match read().and_then(|pid| fields.finish("hello").map(|()| pid)) {
            Ok(pid) => pid,
            Err(refusal) => {
                self.refuse(id, &refusal).await;
                return Next::End(USAGE);
            }
        };
        self.state(|state| state.host = Some(pid));
        let mut hello = json!({
            "protocol": PROTOCOL,
            "version": env!("CARGO_PKG_VERSION"),
            "pid": std::process::id(),
            "limits": {
                "line_bytes": MAX_LINE,
                "pending": MAX_PENDING,
                "pending_bytes": MAX_PENDING_BYTES,
                "holds": MAX_HOLDS,
                "stores": MAX_STORES,
            },
        });
        if let (Value::Object(hello), Value::Object(now)) = (&mut hello, message::moment(SystemClock.now())) {
            hello.extend(now);
        }
        self.outbox.send(Answer::new("hello", hello).to(id)).await;
        Next::Watch(pid)
    }

    /// Reports a line that belongs to no request. The agent then ends, because the host and the agent may disagree
    /// about what was requested.
    pub(super) async fn refuse_line(&self, what: &str) -> Next {
        let refusal = Refusal::invalid(format!("the agent stops because it read {what}"));
        self.outbox.send(Answer::error(&refusal).unassigned()).await;
        Next::End(USAGE)
    }

    async fn refuse(&self, id: u64, refusal: &Refusal) -> Next {
        self.outbox.send(Answer::error(refusal).to(id)).await;
        Next::Continue
    }

    /// Sends the final response to a request.
    async fn answer(self: Arc<Self>, id: u64, outcome: Result<Reply, Refusal>) {
        let place = self.outbox.place().await;
        // From here on, the host can use the id again.
        self.state(|state| state.remove_pending(id));
        let outcome = outcome.and_then(|reply| match reply {
            Reply::Answer(answer) => Ok(answer.to(id)),
            Reply::Held(guard, place) => Ok(self.start_hold(id, guard, place)?),
        });
        place.send(outcome.unwrap_or_else(|refusal| Answer::error(&refusal).to(id)));
    }

    /// Starts the task of a hold, and returns the response to the request `id`. The caller must send it before any
    /// other message.
    fn start_hold(
        self: &Arc<Self>,
        id: u64,
        guard: Guard,
        place: HoldPlace,
    ) -> Result<Value, leasehold::Error> {
        let known = guard.deadline()?;
        let (sender, requests) = mpsc::channel(1);
        let number = self.state(|state| {
            state.last_hold += 1;
            // Dropping `sender` ends the hold.
            if !state.ending {
                state.holds.insert(state.last_hold, sender);
            }
            state.last_hold
        });
        drop(place);
        let (token, tokens) = (guard.token().ok(), guard.tokens().ok());
        let locks: Vec<_> = guard.names().collect();
        let held =
            json!({ "hold": number, "lock": guard.name(), "token": token, "locks": locks, "tokens": tokens });
        let held = Answer::new("held", message::with_deadline(held, known, guard.limit()));
        let task = HoldTask { number, guard, known, requests, outbox: self.outbox.clone() };
        let session = self.clone();
        tokio::spawn(async move {
            if let Some(lost) = task.run().await {
                session.state(|state| state.holds.remove(&number));
                session.outbox.send(lost).await;
            }
        });
        Ok(held.to(id))
    }

    /// Takes the guard of a hold. Returns `None` if the hold is over.
    pub(super) async fn take_guard(&self, hold: u64) -> Result<Option<Guard>, Refusal> {
        Ok(match self.take_hold(hold)? {
            Some(sender) => take(sender).await,
            None => None,
        })
    }

    fn take_hold(&self, hold: u64) -> Result<Option<mpsc::Sender<HoldRequest>>, Refusal> {
        let sender = self.state(|state| {
            let known = (1..=state.last_hold).contains(&hold);
            known.then(|| state.holds.remove(&hold))
        });
        sender.ok_or_else(|| Refusal::invalid(format!("there is no hold {hold}")))
    }

    /// Starts to release a hold. The release continues even if its request is cancelled or the host ends, because
    /// dropping the guard would release the lock without its cooldown.
    pub(super) fn release(
        &self,
        hold: u64,
        cooldown: Option<Duration>,
    ) -> Result<oneshot::Receiver<leasehold::Result<Released>>, Refusal> {
        let sender = self.take_hold(hold)?;
        let (reply, released) = oneshot::channel();
        let release = async move {
            let guard = match sender {
                Some(sender) => take(sender).await,
                None => None,
            };
            let released = match (guard, cooldown) {
                (None, _) => Ok(Released::AlreadyLost),
                (Some(guard), None) => guard.release().await,
                (Some(guard), Some(cooldown)) => guard.release_with_cooldown(cooldown).await,
            };
            let _ = reply.send(released);
        };
        self.state(|state| {
            // Forget the releases that have ended.
            while state.releases.try_join_next().is_some() {}
            state.releases.spawn(release);
        });
        Ok(released)
    }

    /// Returns the task of a hold, or `None` if the hold is over.
    fn task_of(&self, hold: u64) -> Result<Option<mpsc::Sender<HoldRequest>>, Refusal> {
        let sender = self
            .state(|state| (1..=state.last_hold).contains(&hold).then(|| state.holds.get(&hold).cloned()));
        sender.ok_or_else(|| Refusal::invalid(format!("there is no hold {hold}")))
    }

    /// Returns `lock` as one for which the host waits while it has these holds.
    pub(super) async fn nested(&self, mut lock: Lock, holds: Vec<u64>) -> Result<Lock, Refusal> {
        for hold in holds {
            let Some(sender) = self.task_of(hold)? else { continue };
            let (reply, nested) = oneshot::channel();
            if sender.send(HoldRequest::Nest(lock.clone(), reply)).await.is_ok() {
                lock = nested.await.unwrap_or(lock);
            }
        }
        Ok(lock)
    }

    /// Renews a hold at once, and returns the message `renewed`. Returns `None` if the hold is over.
    pub(super) async fn renew(&self, hold: u64) -> Result<Option<Value>, Refusal> {
        let Some(sender) = self.task_of(hold)? else { return Ok(None) };
        let (reply, renewed) = oneshot::channel();
        if sender.send(HoldRequest::Renew(reply)).await.is_err() {
            return Ok(None);
        }
        Ok(renewed.await.ok().transpose()?)
    }

    /// Cancels a pending request.
    pub(super) fn cancel(&self, id: u64) {
        self.state(|state| state.pending.get_mut(&id).and_then(|pending| pending.cancel.take()));
    }

    /// Waits until there is memory for the content of another object.
    pub(super) async fn object_permit(&self) -> Option<SemaphorePermit<'_>> {
        self.objects.acquire().await.ok()
    }

    /// Makes the update `id` expect one `answer` from the host.
    pub(super) fn expect_answer(&self, id: u64) -> oneshot::Receiver<Option<Vec<u8>>> {
        let (sender, answer) = oneshot::channel();
        self.state(|state| state.pending.get_mut(&id).map(|pending| pending.answer.replace(sender)));
        answer
    }

    /// Passes an `answer` from the host to the update `id`. Returns false if the update does not expect one.
    pub(super) fn answer_update(&self, id: u64, content: Option<Vec<u8>>) -> bool {
        let expects = self.state(|state| state.pending.get_mut(&id)?.answer.take());
        expects.is_some_and(|answer| answer.send(content).is_ok())
    }

    /// Returns a place for another hold, or an error if too many locks are held or being acquired.
    pub(super) fn hold_place(self: &Arc<Self>) -> Result<HoldPlace, Refusal> {
        let is_free = self.state(|state| {
            let is_free = state.holds.len() + state.hold_places < MAX_HOLDS;
            state.hold_places += usize::from(is_free);
            is_free
        });
        match is_free {
            true => Ok(HoldPlace(self.clone())),
            false => {
                let message = format!("too many locks are held or being acquired (maximum {MAX_HOLDS})");
                Err(Refusal::limit(message))
            }
        }
    }

    /// Returns the process id of the host.
    pub(super) fn host(&self) -> Option<u32> {
        self.state(|state| state.host).and_then(|pid| u32::try_from(pid.as_raw_nonzero().get()).ok())
    }

    /// Withdraws all requests except releases, and releases all locks.
    pub(super) async fn end(&self) {
        let (pending, holds, mut requested) = self.state(|state| {
            state.ending = true;
            let requested = std::mem::take(&mut state.releases);
            (std::mem::take(&mut state.pending), std::mem::take(&mut state.holds), requested)
        });
        let waits = !pending.is_empty();
        // Dropping the requests cancels them.
        drop(pending);
        let releases = join_all(holds.into_values().map(async |sender| {
            if let Some(guard) = take(sender).await {
                drop(guard.release().await);
            }
        }));
        let requested = async { while requested.join_next().await.is_some() {} };
        timeout(&SystemClock, END_TIMEOUT, join(releases, requested)).await;
        if waits {
            // Allow time to leave the lines of waiters. Otherwise other processes wait for this one.
            SystemClock.sleep(CANCEL_TIMEOUT).await;
        }
    }

    /// Returns whether no request is pending and none counts towards the limits.
    #[cfg(any(test, fuzzing))]
    pub(super) fn is_idle(&self) -> bool {
        self.state(|state| state.pending.is_empty() && state.bytes == 0)
    }

    fn state<T>(&self, body: impl FnOnce(&mut State) -> T) -> T {
        body(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl State {
    /// Adds a pending request. The limits do not apply to one that `ends` another request or a hold. Returns `Err(None)`
    /// if a request with this id is already pending.
    fn admit(&mut self, id: u64, bytes: usize, ends: bool) -> Result<(), Option<Refusal>> {
        if self.pending.contains_key(&id) {
            return Err(None);
        }
        if !ends && (self.pending.len() >= MAX_PENDING || self.bytes + bytes > MAX_PENDING_BYTES) {
            return Err(Some(Refusal::limit("too many requests are pending")));
        }
        self.bytes += bytes;
        self.pending.insert(id, Pending { bytes, cancel: None, answer: None });
        Ok(())
    }

    fn remove_pending(&mut self, id: u64) {
        if let Some(removed) = self.pending.remove(&id) {
            self.bytes -= removed.bytes;
        }
    }
}

async fn take(sender: mpsc::Sender<HoldRequest>) -> Option<Guard> {
    let (reply, guard) = oneshot::channel();
    sender.send(HoldRequest::Take(reply)).await.ok()?;
    guard.await.ok()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use leasehold::{LockName, State};

    use super::super::pipe;
    use super::super::requests::begin;
    use super::*;

    const RELEASE: &str = r#"{"id":2,"op":"release","hold":1,"cooldown_ms":3600000}"#;

    /// Returns a session that holds the lock `x`, and the messages that it sends.
    async fn holding() -> (Arc<Session>, mpsc::Receiver<Value>) {
        let settings = Settings::from_text(Path::new("/config.toml"), "store = \"mem:\"").unwrap();
        let (outbox, mut sent) = pipe::queue(16);
        let session = Arc::new(Session::new(settings, None, outbox));
        let hello = format!(r#"{{"id":0,"op":"hello","protocol":1,"pid":{}}}"#, std::process::id());
        assert!(matches!(session.take(hello.as_bytes(), begin).await, Next::Watch(_)));
        session.take(br#"{"id":1,"op":"acquire","lock":"x"}"#, begin).await;
        while sent.recv().await.unwrap()["ev"] != "held" {}
        (session, sent)
    }

    async fn is_in_cooldown(session: &Session) -> bool {
        let locker = session.stores.open(None).await.unwrap();
        let status = locker.inspect(&LockName::new("x").unwrap()).await.unwrap();
        matches!(status.state, State::Held(held) if held.in_cooldown)
    }

    #[tokio::test]
    async fn a_cancelled_release_keeps_its_cooldown() {
        let (session, mut sent) = holding().await;
        session.take(RELEASE.as_bytes(), begin).await;
        session.take(br#"{"id":3,"op":"cancel","request":2}"#, begin).await;
        let answers = [sent.recv().await.unwrap(), sent.recv().await.unwrap()];
        assert!(answers.iter().any(|answer| answer["kind"] == "cancelled"), "{answers:?}");
        session.end().await;
        assert!(is_in_cooldown(&session).await);
    }

    #[tokio::test]
    async fn the_end_of_the_host_leaves_a_release_its_cooldown() {
        let (session, _sent) = holding().await;
        session.take(RELEASE.as_bytes(), begin).await;
        session.end().await;
        assert!(is_in_cooldown(&session).await);
    }

    /// Begins a request that never completes.
    fn hangs(_: &Arc<Session>, _: u64, _: &str, _: Fields) -> Work {
        Box::pin(std::future::pending())
    }

    #[tokio::test]
    async fn an_acquisition_counts_as_a_hold_before_its_grant() {
        let (session, mut sent) = holding().await;
        let places: Vec<_> = (2..MAX_HOLDS).map(|_| session.hold_place().unwrap()).collect();
        // It takes the last place, and waits.
        session.take(br#"{"id":2,"op":"acquire","lock":"x"}"#, begin).await;
        session.take(br#"{"id":3,"op":"try","lock":"y"}"#, begin).await;
        let refused = sent.recv().await.unwrap();
        assert_eq!((&refused["id"], &refused["kind"]), (&3.into(), &"limit".into()), "{refused}");
        session.take(br#"{"id":4,"op":"release","hold":1}"#, begin).await;
        while sent.recv().await.unwrap()["ev"] != "held" {}
        assert_eq!(session.state(|state| (state.holds.len(), state.hold_places)), (1, places.len()));
        drop(places);
        session.take(br#"{"id":5,"op":"try","lock":"y"}"#, begin).await;
        while sent.recv().await.unwrap()["ev"] != "held" {}
    }

    #[tokio::test]
    async fn a_host_with_too_many_requests_can_still_release_and_cancel() {
        let (session, mut sent) = holding().await;
        let mut id = 10;
        let mut request = async |operation: &str| {
            id += 1;
            let line = format!(r#"{{"id":{id},"op":"{operation}"}}"#);
            assert_eq!(session.take(line.as_bytes(), hangs).await, Next::Continue);
            session.state(|state| state.pending.contains_key(&id))
        };
        for _ in 0..MAX_PENDING {
            assert!(request("acquire").await);
        }
        assert!(!request("acquire").await);
        while sent.recv().await.unwrap()["kind"] != "limit" {}
        assert!(request("release").await && request("cancel").await);
    }
}
