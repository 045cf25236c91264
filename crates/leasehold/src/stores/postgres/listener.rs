//! Listens for notifications of released locks while this process waits for locks. Requests use the same connection.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::task::AbortHandle;

use super::sessions::Sessions;
use super::statements::{Sql, channel, text};
use crate::clock::timeout;
use crate::diagnosis::{CheckStatus, Finding};
use crate::env::Env;
use crate::error::{ErrorKind, Fault, StoreError};
use crate::stores::notifications::{Calls, UNUSED};
use crate::stores::pool::Purpose;
use crate::stores::table::Effect;

/// For how long the doctor waits for a notification.
const EXAMINATION: Duration = Duration::from_secs(2);

/// The pauses after a failed connection.
const SHORTEST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// Returns the statement that notifies the channel $1 of $2.
pub(super) fn notify() -> Sql {
    Sql { name: "notify", text: "SELECT pg_catalog.pg_notify($1, $2)::pg_catalog.text".to_owned() }
}

/// Receives notifications.
#[derive(Debug)]
pub(super) struct Listener {
    pub(super) calls: Arc<Calls>,
    sessions: Arc<Sessions>,
    env: Env,
    /// Set if a pooler is in front of the server, or if notifications are turned off.
    is_off: AtomicBool,
    task: Mutex<Option<AbortHandle>>,
}

impl Listener {
    pub(super) fn new(sessions: Arc<Sessions>, env: Env) -> Arc<Self> {
        let is_off = AtomicBool::new(!sessions.notifies());
        Arc::new(Self { calls: Calls::new(env.clone()), sessions, env, is_off, task: Mutex::default() })
    }

    /// Returns whether this process may be notified.
    pub(super) fn is_on(&self) -> bool {
        !self.is_off.load(Ordering::SeqCst)
    }

    /// Starts the task that listens, and returns true, unless it is already running.
    pub(super) fn begin(self: &Arc<Self>) -> bool {
        let mut task = self.task.lock().unwrap_or_else(PoisonError::into_inner);
        if !self.is_on() || task.as_ref().is_some_and(|task| !task.is_finished()) {
            return false;
        }
        let listener = self.clone();
        *task = Some(tokio::spawn(async move { listener.run().await }).abort_handle());
        true
    }

    pub(super) fn end(&self) {
        if let Some(task) = self.task.lock().unwrap_or_else(PoisonError::into_inner).take() {
            task.abort();
        }
    }

    /// Listens until no claim has waited for [`UNUSED`].
    async fn run(&self) {
        let mut pause = SHORTEST_PAUSE;
        while let Err(error) = self.receive(&mut pause).await {
            tracing::debug!(%error, "notifications of PostgreSQL are not received; waiters poll");
            if error.fault().kind == ErrorKind::Unsupported {
                self.is_off.store(true, Ordering::SeqCst);
                return;
            }
            if self.calls.are_unused() {
                return;
            }
            self.env.sleep(pause).await;
            pause = (2 * pause).min(LONGEST_PAUSE);
        }
    }

    /// Checks whether a notification arrives.
    pub(super) async fn examined(&self) -> Finding {
        const CHECK: &str = "notifications";
        const PROBE: &str = "probe";
        let table = self.sessions.table();
        if !self.sessions.notifies() {
            return Finding::passed(CHECK, "notify=off: waiters poll");
        }
        let tried = async {
            let channel = channel(&table.sql);
            let mut session = self.sessions.open().await?;
            let mut notifications = session.listen(&channel, &self.sessions).await?;
            let mut used = self.sessions.take(Purpose::Contend).await?;
            used.query(Effect::None, &notify(), &[text(&channel), text(&PROBE)]).await?;
            while notifications.recv().await.is_some_and(|key| key != PROBE) {}
            Ok::<_, StoreError>(())
        };
        match timeout(&*self.env.clock, EXAMINATION, tried).await {
            Some(Ok(())) => Finding::passed(CHECK, "a release wakes the first waiter at once"),
            Some(Err(error)) if error.fault().kind == ErrorKind::Unsupported => Finding::passed(
                CHECK,
                "a pooler is in front of the server: waiters poll, at least every 0.5 s",
            ),
            Some(Err(error)) if error.fault().kind == ErrorKind::Denied => {
                Finding::of_error(CHECK, CheckStatus::Failed, &error).with_help(
                    "or add notify=off to the store URL: without the permission to notify, releases fail",
                )
            }
            Some(Err(error)) => Finding::of_error(CHECK, CheckStatus::Warning, &error),
            None => {
                Finding::warning(CHECK, "a notification did not arrive: waiters poll, at least every 0.5 s")
            }
        }
    }

    async fn receive(&self, pause: &mut Duration) -> Result<(), StoreError> {
        let mut notifications = self.sessions.listen(&channel(&self.sessions.table().sql)).await?;
        *pause = SHORTEST_PAUSE;
        self.calls.call_all();
        loop {
            match timeout(&*self.env.clock, UNUSED, notifications.recv()).await {
                Some(Some(key)) => {
                    self.calls.call(&key);
                }
                Some(None) => {
                    return Err(Fault::unavailable("the connection to PostgreSQL was lost").not_applied());
                }
                None => {}
            }
            if self.calls.are_unused() && self.sessions.pool.stop_listening() {
                return Ok(());
            }
        }
    }
}
