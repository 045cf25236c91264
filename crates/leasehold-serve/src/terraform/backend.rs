//! The lock and the state behind Terraform's requests.
//!
//! - LOCK acquires a lease, which this process renews. It is answered after the command is certain to be stopped before
//!   the lease ends ([`StateBackend::changed`]).
//! - A state is written with the token of the lock: a holder whose lock was lost cannot write over the state of a later
//!   holder. A write also replaces only the state that was first read under the same lock. Without that, a late write could
//!   be lost that arrives before the first write of the later holder.
//! - The stored state ends with the token in whitespace, which JSON allows. So no two holders ever write the same bytes,
//!   which a fence on S3 requires, and this holder recognises its own writes.
//! - A read or write under a lock is answered before the command is ended for lack of a renewal, whether or not the
//!   store has answered. So Terraform has the time to save the state in a file.
//! - A request is finished even if its connection ends. Terraform repeats it, and each request may be repeated.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use leasehold::clock::{Clock, Deadline, timeout};
use leasehold::lease::State;
use leasehold::{
    Error, ErrorKind, Evicted, Eviction, Guard, HolderInfo, LockName, Locker, Object, Released, Token,
};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::lock_info::LockInfo;

/// Acquires the lock with a note.
pub type Acquire = Box<dyn Fn(String) -> BoxFuture<'static, leasehold::Result<Guard>> + Send + Sync>;
/// Tells the user of an error that Terraform does not show.
pub type Warn = Box<dyn Fn(&str) + Send + Sync>;

/// The time that remains while no lock is held. Longer than any command runs.
const UNLIMITED: Duration = Duration::from_secs(10 * 366 * 24 * 3_600);

/// How long to wait, when the command has ended, for a lock that has just been granted.
const GRANT_TIMEOUT: Duration = Duration::from_millis(500);

/// The maximum sleep between two looks at a lease, because timers can fire late.
const MAX_SLEEP: Duration = Duration::from_millis(250);

const CHANGED: &str = "another process has written the state since this one read it under its lock";

const ENDS: &str = "the lock was lost, or its lease ends soon because it was not renewed";

/// The lock and the state of one command.
pub struct StateBackend {
    locker: Locker,
    name: LockName,
    object: Object,
    acquire: Acquire,
    warn: Warn,
    /// When only this much of the lease remains, requests do not wait for the store any more.
    reserve: Duration,
    /// The words of the command, among which `force-unlock` names a lock.
    words: Vec<String>,
    /// The processes of the command, which must have ended before the lock is free.
    processes: OnceLock<Vec<u32>>,
    holding: Mutex<Holding>,
    /// Requests that change something are handled one after the other.
    turn: tokio::sync::Mutex<()>,
    /// Cancelled when the command has ended.
    closing: CancellationToken,
    unlimited: Deadline,
    /// How many locks were granted; how many of them the supervision of the command has seen, and has acted on.
    granted: watch::Sender<u64>,
    seen: watch::Sender<u64>,
    enforced: watch::Sender<u64>,
}

#[derive(Default)]
struct Holding {
    held: Option<Held>,
    /// The id of the lock that was released last.
    released: Option<String>,
    /// The first loss.
    loss: Option<Error>,
    token: Option<Token>,
    /// Whether there was a request.
    asked: bool,
    /// Whether a lock was granted under which the state was not asked for.
    unused: bool,
}

/// A lock that Terraform holds.
struct Held {
    guard: Guard,
    token: Token,
    info: LockInfo,
    /// The object as it was first read under this lock, if it was.
    read: Option<Option<Bytes>>,
    /// Whether the state was asked for.
    used: bool,
}

impl Holding {
    /// Takes the lock away, because it was released or lost.
    fn take(&mut self) -> Option<Held> {
        let held = self.held.take()?;
        self.unused |= !held.used;
        Some(held)
    }
}

/// What is left when the command has ended.
pub struct Closed {
    /// The lock that Terraform did not release.
    pub guard: Option<Guard>,
    /// The loss of a lock.
    pub loss: Option<Error>,
    /// The token of the last lock.
    pub token: Option<Token>,
    /// Whether there was a request.
    pub was_asked: bool,
    /// Whether a lock was granted under which the state was not asked for: the state is elsewhere.
    pub was_unused: bool,
}

/// A request.
pub(super) enum Asked {
    Read,
    Write { id: Option<String>, state: Bytes },
    Lock(Bytes),
    Unlock(Bytes),
}

/// A response.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Answer {
    Done,
    State(Option<Bytes>),
    /// Another process holds the lock: its description.
    Locked(String),
    Invalid(String),
    /// Repeating the request does not help.
    Refused(String),
    /// Repeating the request may help.
    Failed(String),
}

impl StateBackend {
    /// Creates the backend of a command with these `words`. `acquire` acquires the lock `name` in `locker`, and the
    /// state is `object`. When only `reserve` of the lease remains, requests for the state are refused.
    pub fn new(
        locker: Locker,
        name: LockName,
        object: Object,
        words: Vec<String>,
        acquire: Acquire,
        warn: Warn,
        reserve: Duration,
    ) -> Arc<Self> {
        let unlimited = Deadline::new(locker.store().env().now(), UNLIMITED);
        let counter = || watch::Sender::new(0);
        Arc::new(Self {
            locker,
            name,
            object: object.content_type("application/json"),
            acquire,
            warn,
            reserve,
            words,
            processes: OnceLock::new(),
            holding: Mutex::default(),
            turn: tokio::sync::Mutex::default(),
            closing: CancellationToken::new(),
            unlimited,
            granted: counter(),
            seen: counter(),
            enforced: counter(),
        })
    }

    /// Sets the processes of the command. A store that watches processes does not free the lock while one of them lives.
    pub fn set_processes(&self, pids: Vec<u32>) {
        // Only one command is started.
        let _ = self.processes.set(pids);
    }

    pub(super) fn clock(&self) -> Arc<dyn Clock> {
        self.locker.store().env().clock.clone()
    }

    /// Tells the user of a request that is not handled.
    pub(super) fn refuse(&self, why: &str) {
        self.holding().asked = true;
        (self.warn)(why);
    }

    fn holding(&self) -> MutexGuard<'_, Holding> {
        self.holding.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns how long the command may run without a renewal.
    pub fn remaining(&self) -> Duration {
        self.seen.send_replace(*self.granted.borrow());
        match &self.holding().held {
            Some(held) => held.guard.remaining(),
            None => self.unlimited.remaining(self.clock().now()),
        }
    }

    /// Completes when a lock was granted since the last call of [`remaining`](Self::remaining). The caller must have
    /// acted on the result of that call before it calls this, because a lock is used from then on. Cancel safe.
    pub async fn changed(&self) {
        let seen = *self.seen.borrow();
        self.enforced.send_replace(seen);
        // Fails only without a sender.
        let _ = self.granted.subscribe().wait_for(|granted| *granted > seen).await;
    }

    /// Completes when the lock that is held is lost. Cancel safe.
    pub async fn lost(&self) {
        loop {
            let over = self.holding().held.as_ref().map(|held| held.guard.cancellation());
            match over {
                Some(over) => over.cancelled().await,
                None => std::future::pending().await,
            }
            // It is also over after a release, which takes it away first.
            if self.holding().held.as_ref().is_some_and(|held| held.guard.check().is_err()) {
                return;
            }
        }
    }

    /// Ends the backend, because the command has ended. Waits for a write in progress, at most until the lease ends.
    pub async fn close(&self) -> Closed {
        self.closing.cancel();
        let limit = if self.holding().held.is_some() { self.remaining() } else { GRANT_TIMEOUT };
        let turn = timeout(&*self.clock(), limit, self.turn.lock()).await;
        let mut holding = self.holding();
        let mut guard = holding.take().map(|held| held.guard);
        if turn.is_none()
            && let Some(guard) = guard.take_if(|guard| guard.check().is_ok())
        {
            // A write is under way, which must not be that of a free lock.
            guard.lapse();
        }
        Closed {
            guard,
            loss: holding.loss.take(),
            token: holding.token,
            was_asked: holding.asked,
            was_unused: holding.unused,
        }
    }

    #[cfg(test)]
    pub(super) async fn turn_of_a_write(&self) -> tokio::sync::MutexGuard<'_, ()> {
        self.turn.lock().await
    }

    /// Handles a request, also if the caller stops waiting.
    pub(super) async fn handle(self: &Arc<Self>, asked: Asked) -> Answer {
        let this = self.clone();
        let handled = tokio::spawn(async move {
            this.holding().asked = true;
            let answer = match asked {
                Asked::Read => this.read().await,
                Asked::Write { id, state } => this.write(id, &state).await,
                Asked::Lock(body) => this.lock(&body).await,
                Asked::Unlock(body) => this.unlock(&body).await,
            };
            if let Answer::Invalid(why) | Answer::Refused(why) | Answer::Failed(why) = &answer {
                (this.warn)(why);
            }
            answer
        });
        handled.await.unwrap_or_else(|_| Answer::Failed("the request was not finished".to_owned()))
    }

    async fn read(&self) -> Answer {
        let token = self.holding().held.as_mut().map(|held| {
            held.used = true;
            held.token
        });
        let content = match self.while_held(token, self.object.read()).await {
            Ok(Ok(found)) => found.map(|found| found.value),
            Ok(Err(error)) => return failed("the state was not read", &error),
            Err(why) => return Answer::Refused(format!("the state was not read: {why}")),
        };
        if let Some(held) = self.holding().held.as_mut().filter(|held| Some(held.token) == token) {
            // A later read must not make changes of others look known: Terraform reads a new state again just before it
            // writes, and takes over the serial of what it finds.
            let is_own = content.as_ref().is_some_and(|content| content.ends_with(&mark(held.token)));
            if *held.read.get_or_insert_with(|| content.clone()) != content && !is_own {
                return Answer::Refused(format!("the state was not read: {CHANGED}"));
            }
        }
        Answer::State(content.filter(|content| !content.trim_ascii().is_empty()))
    }

    async fn write(&self, id: Option<String>, state: &[u8]) -> Answer {
        let _turn = self.turn.lock().await;
        let (token, read) = match &mut self.holding().held {
            None => {
                let why = "the state was not written: a write needs the lock, so do not use -lock=false";
                return Answer::Refused(why.to_owned());
            }
            Some(held) if id.as_ref() != Some(&held.info.id) => {
                return Answer::Refused(format!(
                    "the state was not written: its lock is held by {}, ID {}",
                    held.info.who, held.info.id
                ));
            }
            Some(held) if held.guard.remaining() <= self.reserve => {
                held.used = true;
                return Answer::Refused(format!("the state was not written: {ENDS}"));
            }
            Some(held) => {
                held.used = true;
                (held.token, held.read.clone())
            }
        };
        let content = marked(state, token);
        let written = self.object.update_fenced(token, async |current| {
            self.check()?;
            let is_own = current.as_ref().is_some_and(|current| current.ends_with(&mark(token)));
            if !is_own && read.as_ref().is_some_and(|read| *read != current) {
                return Err(Error::new(ErrorKind::Conflict, CHANGED));
            }
            Ok::<_, Error>(Some(content.clone()))
        });
        match self.while_held(Some(token), written).await {
            Ok(Ok(_)) => Answer::Done,
            Ok(Err(error)) => failed("the state was not written", &error),
            Err(why) => Answer::Refused(format!("it is not certain that the state was written: {why}")),
        }
    }

    /// Waits for `work` on the state while the lock with this `token` is held, if one is. Returns an error when the lock
    /// is lost or only the reserve of its lease remains: the command is about to be stopped, and Terraform saves its
    /// state in a file only if it gets a response before.
    async fn while_held<T>(
        &self,
        token: Option<Token>,
        work: impl Future<Output = T>,
    ) -> Result<T, &'static str> {
        let mut work = std::pin::pin!(work);
        loop {
            let left = match &self.holding().held {
                Some(held) if Some(held.token) == token => held.guard.remaining(),
                // It was released.
                _ => break,
            };
            let Some(left) = left.checked_sub(self.reserve).filter(|left| !left.is_zero()) else {
                return Err(ENDS);
            };
            let clock = self.clock();
            tokio::select! {
                biased;
                done = &mut work => return Ok(done),
                () = self.lost() => {}
                () = clock.sleep(left.min(MAX_SLEEP)) => {}
            }
        }
        Ok(work.await)
    }

    /// Checks that the lock is held.
    fn check(&self) -> Result<(), Error> {
        match &self.holding().held {
            Some(held) => held.guard.check(),
            None => Err(Error::new(ErrorKind::Lost, "the lock is not held any more")),
        }
    }

    async fn lock(&self, body: &[u8]) -> Answer {
        let Some(info) = LockInfo::parse(body) else {
            return Answer::Invalid("LOCK has no lock info with an ID of at most 60 characters".to_owned());
        };
        let _turn = self.turn.lock().await;
        if let Some(answer) = self.already_held(&info) {
            return answer;
        }
        let acquired = tokio::select! {
            biased;
            () = self.closing.cancelled() => return closed(),
            acquired = (self.acquire)(info.note()) => acquired,
        };
        let guard = match acquired {
            Ok(guard) => guard,
            Err(error) => {
                return match error.holder() {
                    Some(held) => Answer::Locked(self.described(held).json()),
                    None => not_acquired(&error),
                };
            }
        };
        let token = match guard.token() {
            Ok(token) => token,
            Err(error) => return not_acquired(&error),
        };
        let added = self.locker.add_processes(&guard, self.processes.get().map_or(&[], Vec::as_slice)).await;
        if let Err(error) = added {
            return not_acquired(&error);
        }
        {
            let mut holding = self.holding();
            holding.token = Some(token);
            holding.held = Some(Held { guard, token, info, read: None, used: false });
        }
        self.granted.send_modify(|granted| *granted += 1);
        let granted = *self.granted.borrow();
        let mut enforced = self.enforced.subscribe();
        tokio::select! {
            biased;
            () = self.closing.cancelled() => closed(),
            _ = enforced.wait_for(|enforced| *enforced >= granted) => match self.check() {
                Ok(()) => Answer::Done,
                Err(error) => not_acquired(&error),
            },
        }
    }

    /// Returns the response to LOCK if this process holds the lock. Forgets a lock that was lost.
    fn already_held(&self, info: &LockInfo) -> Option<Answer> {
        let mut holding = self.holding();
        let held = holding.held.as_ref()?;
        match held.guard.check() {
            // The response to the first request was lost.
            Ok(()) if held.info.id == info.id => Some(Answer::Done),
            Ok(()) => Some(Answer::Locked(held.info.json())),
            Err(error) => {
                holding.loss.get_or_insert(error);
                holding.take();
                None
            }
        }
    }

    fn described(&self, held: &HolderInfo) -> LockInfo {
        LockInfo::of_holder(held, self.clock().now())
    }

    async fn unlock(&self, body: &[u8]) -> Answer {
        let _turn = self.turn.lock().await;
        let Some(info) = LockInfo::parse(body) else { return self.force_unlock(None).await };
        let held = {
            let mut holding = self.holding();
            match &holding.held {
                Some(held) if held.info.id == info.id => {
                    holding.released = Some(info.id.clone());
                    holding.take()
                }
                // The response to the first request was lost.
                _ if holding.released.as_ref() == Some(&info.id) => return Answer::Done,
                _ => None,
            }
        };
        let Some(held) = held else { return self.force_unlock(Some(&info.id)).await };
        match held.guard.release().await {
            Ok(Released::Released) => Answer::Done,
            Ok(Released::AlreadyLost) => {
                let message = format!("lock `{}` was lost before Terraform released it", self.name);
                self.holding().loss.get_or_insert(Error::new(ErrorKind::Lost, message.clone()));
                Answer::Refused(message)
            }
            Err(error) => {
                (self.warn)(&format!(
                    "the lock was not released and stays held until its lease ends: {error}"
                ));
                Answer::Done
            }
        }
    }

    /// Evicts the holder for `force-unlock`. Some versions say which lock they mean in the request: `id`. Otherwise the
    /// command says it.
    async fn force_unlock(&self, id: Option<&str>) -> Answer {
        let status = match self.locker.inspect(&self.name).await {
            Ok(status) => status,
            Err(error) => return failed("the lock was not read", &error),
        };
        let State::Held(held) = &status.state else {
            return Answer::Refused(format!("lock `{}` is not held", self.name));
        };
        let info = self.described(held);
        let mut words = self.words.iter().flat_map(|word| word.split_whitespace());
        let is_meant = id.map_or_else(|| words.any(|word| word == info.id), |id| id == info.id);
        let (Some(token), true) = (held.token, is_meant) else {
            return Answer::Refused(format!(
                "lock `{}` is held by {} with the ID {}, which is not the one to unlock; nothing was unlocked",
                self.name, info.who, info.id
            ));
        };
        let why = Eviction::by_this_process("force-unlock");
        match self.locker.evict_for(&self.name, token, &why).await {
            Ok(Evicted::Changed) => {
                Answer::Refused(format!("lock `{}` has another holder by now", self.name))
            }
            Ok(_) => Answer::Done,
            Err(error) => failed("the lock was not unlocked", &error),
        }
    }
}

fn closed() -> Answer {
    Answer::Failed("the command has ended".to_owned())
}

/// Returns the response for an error. Terraform repeats requests only if that may help.
fn failed(what: &str, error: &Error) -> Answer {
    let help: String = error.help().iter().map(|help| format!("; {help}")).collect();
    let why = format!("{what}: {error}{help}");
    match error.kind() {
        ErrorKind::Unavailable => Answer::Failed(why),
        _ => Answer::Refused(why),
    }
}

/// Returns the response for an error of LOCK. Terraform takes a refusal for a lock that another process holds.
fn not_acquired(error: &Error) -> Answer {
    match failed("the lock was not acquired", error) {
        Answer::Refused(why) => Answer::Invalid(why),
        answer => answer,
    }
}

/// Returns the state with the mark of a token.
fn marked(state: &[u8], token: Token) -> Bytes {
    [state, &mark(token)].concat().into()
}

/// Returns a line of whitespace that encodes the token.
fn mark(token: Token) -> Vec<u8> {
    let bit = |n: u32| if token.get() >> n & 1 == 0 { b' ' } else { b'\t' };
    [b'\n'].into_iter().chain((0..53).rev().map(bit)).chain([b'\n']).collect()
}
