//! Tests with a server that gives no response to a request and refuses its repetition.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use super::*;
use crate::error::{ErrorKind, Fault};
use crate::lease::{Holder, PollInterval};

/// Gives no response to the first request, and refuses all others. Evictions have responses of their own, if there are
/// any.
#[derive(Debug)]
struct Refuses {
    env: Env,
    was_asked: AtomicBool,
    evictions: Mutex<VecDeque<Result<EvictionAnswer, StoreError>>>,
}

impl Refuses {
    fn new() -> Self {
        Self { env: Env::system(), was_asked: AtomicBool::new(false), evictions: Mutex::default() }
    }

    fn error<T>(&self) -> Result<T, StoreError> {
        Err(match self.was_asked.swap(true, Ordering::Relaxed) {
            false => Fault::unavailable("the connection was closed").maybe_applied(),
            true => Fault::new(ErrorKind::Denied, "permission denied").not_applied(),
        })
    }
}

#[async_trait]
impl ServerLeases for Refuses {
    fn env(&self) -> &Env {
        &self.env
    }

    fn capabilities(&self) -> Capabilities {
        let ms = Duration::from_millis(1);
        Capabilities::new("a server", PollInterval { min: ms, max: ms })
    }

    async fn contend(&self, _: &Claim, _: Duration) -> Result<Contended, StoreError> {
        self.error()
    }

    async fn renew(&self, _: &Grant) -> Result<(Changed, Deadline), StoreError> {
        self.error()
    }

    async fn release(&self, _: &Grant, _: Duration) -> Result<Changed, StoreError> {
        self.error()
    }

    async fn evict(
        &self,
        _: &LockName,
        _: Token,
        _: Option<&Eviction>,
    ) -> Result<EvictionAnswer, StoreError> {
        let answer = self.evictions.lock().unwrap().pop_front();
        answer.unwrap_or_else(|| self.error())
    }

    async fn settle(&self, _: &LockName) -> Result<(), StoreError> {
        Ok(())
    }

    async fn read(&self, _: &LockName) -> Result<Option<Record>, StoreError> {
        self.error()
    }

    async fn join(&self, _: &Claim) -> Result<Changed, StoreError> {
        self.error()
    }

    async fn leave(&self, _: &LockName, _: Id) -> Result<(), StoreError> {
        self.error()
    }

    fn calls(&self) -> &Arc<Calls> {
        unreachable!("no claim waits")
    }

    fn listen(&self) {}

    async fn names(&self, _: &str, _: Option<String>) -> Result<Page, StoreError> {
        self.error()
    }

    async fn init(&self) -> Result<(), StoreError> {
        self.error()
    }

    async fn sweep(&self, _: &LockName, _: Duration, _: bool) -> Result<Swept, StoreError> {
        self.error()
    }

    async fn discard(&self, _: &LockName) -> Result<bool, StoreError> {
        self.error()
    }

    async fn examine(&self) -> Examined {
        Examined::default()
    }

    fn close(&self) {}
}

/// A statement of PostgreSQL that waits for an earlier one changes nothing, and returns what it read before that wait.
#[tokio::test(start_paused = true)]
async fn an_eviction_behind_an_unanswered_one_asks_again() {
    let lost = || Err(Fault::unavailable("the connection was closed").maybe_applied());
    let answer = |is_over| Ok(EvictionAnswer { is_changed: false, is_over });
    for (answers, evicted) in [
        (vec![lost(), answer(false), answer(true)], Evicted::Evicted),
        (vec![lost(), answer(false), lost(), answer(false), answer(true)], Evicted::Evicted),
        (vec![lost(), answer(false), answer(false)], Evicted::Changed),
        (vec![answer(false)], Evicted::Changed),
    ] {
        let server = Refuses { evictions: Mutex::new(answers.into()), ..Refuses::new() };
        let outcome =
            hold::end_by_token(&server, &LockName::new("x").unwrap(), Token::new(1).unwrap(), None).await;
        assert_eq!(outcome.unwrap(), evicted);
        assert!(server.evictions.lock().unwrap().is_empty());
    }
}

/// The first request may have been applied, so the whole operation may have been applied.
#[tokio::test]
async fn a_refusal_after_a_lost_response_may_be_applied() {
    let (name, ttl) = (LockName::new("x").unwrap(), Ttl::DEFAULT);
    let claim = Claim::new(&Env::system(), name.clone(), ttl, Holder::this_process());
    let mut grant = Grant::withdrawn(name.clone(), claim.id, ttl, Env::system().now());
    for error in [
        acquire::acquire(&Refuses::new(), &claim).await.unwrap_err(),
        hold::end(&Refuses::new(), &mut grant, None).await.unwrap_err(),
        hold::end_by_token(&Refuses::new(), &name, Token::new(1).unwrap(), None).await.unwrap_err(),
    ] {
        assert!(
            matches!(&error, StoreError::MaybeApplied(fault) if fault.kind == ErrorKind::Denied),
            "{error:?}"
        );
    }
}
