//! Listens for notifications of released locks while this process waits for locks. Requests use the same connection.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::mpsc::UnboundedReceiver;

use super::errors;
use super::session::Session;
use super::statements::{Sql, text};
use super::store::{Listener, PostgresTable};
use crate::clock::timeout;
use crate::diagnosis::{CheckStatus, Finding};
use crate::env::Env;
use crate::error::{ErrorKind, Fault, StoreError};
use crate::stores::notifications::{Calls, UNUSED};
use crate::stores::pool::Purpose;
use crate::stores::table::{CHECK_LIMIT, Effect, Table};

/// For how long the doctor waits for a notification.
const EXAMINATION: Duration = Duration::from_secs(2);

/// The pauses after a failed connection.
const SHORTEST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// Returns the statement that notifies the channel $1 of $2.
pub(super) fn notify() -> Sql {
    Sql { name: "notify", text: "SELECT pg_catalog.pg_notify($1, $2)::pg_catalog.text".to_owned() }
}

impl Listener {
    pub(super) fn new(env: Env, channel: Option<String>) -> Self {
        let is_off = AtomicBool::new(channel.is_none());
        Self { calls: Calls::new(env), channel, is_off, task: Mutex::default() }
    }

    /// Returns whether this process may be notified.
    pub(super) fn is_on(&self) -> bool {
        !self.is_off.load(Ordering::SeqCst)
    }

    pub(super) fn end(&self) {
        if let Some(task) = self.task.lock().unwrap_or_else(PoisonError::into_inner).take() {
            task.abort();
        }
    }
}

impl PostgresTable {
    /// Starts the task that listens, and returns true, unless it is already running.
    pub(super) fn begin_to_listen(self: &Arc<Self>) -> bool {
        let mut task = self.listener.task.lock().unwrap_or_else(PoisonError::into_inner);
        if !self.listener.is_on() || task.as_ref().is_some_and(|task| !task.is_finished()) {
            return false;
        }
        let table = self.clone();
        *task = Some(tokio::spawn(async move { table.hear().await }).abort_handle());
        true
    }

    /// Listens until no claim has waited for [`UNUSED`].
    async fn hear(self: &Arc<Self>) {
        let mut pause = SHORTEST_PAUSE;
        while let Err(error) = self.receive(&mut pause).await {
            tracing::debug!(%error, "notifications of PostgreSQL are not received; waiters poll");
            if error.fault().kind == ErrorKind::Unsupported {
                self.listener.is_off.store(true, Ordering::SeqCst);
                return;
            }
            if self.listener.calls.are_unused() {
                return;
            }
            self.env().sleep(pause).await;
            pause = (2 * pause).min(LONGEST_PAUSE);
        }
    }

    /// Receives calls on one of the connections, which requests use too. So a process that waits needs a single connection.
    async fn receive(self: &Arc<Self>, pause: &mut Duration) -> Result<(), StoreError> {
        let Listener { calls, channel, .. } = &self.listener;
        let mut used = self.take(Purpose::Contend).await?;
        let mut running = used.begin()?;
        let listens = self.subscribe(running.session()?, channel.as_deref().unwrap_or_default()).await;
        running.end(true);
        match &listens {
            Ok(_) => used.listens(),
            Err(error) if error.fault().kind == ErrorKind::Unsupported => {}
            Err(_) => used.close(),
        }
        drop(used);
        let mut notifications = listens?;
        *pause = SHORTEST_PAUSE;
        calls.call_all();
        loop {
            match timeout(&*self.env().clock, UNUSED, notifications.recv()).await {
                Some(Some(key)) => {
                    calls.call(&key);
                }
                Some(None) => {
                    return Err(Fault::unavailable("the connection to PostgreSQL was lost").not_applied());
                }
                None => {}
            }
            if calls.are_unused() && self.connections().pool.stop_listening() {
                return Ok(());
            }
        }
    }

    /// Subscribes to `channel`. Fails behind a pooler, where `LISTEN` would apply to one of the pooler's connections.
    async fn subscribe(
        &self,
        session: &mut Session,
        channel: &str,
    ) -> Result<UnboundedReceiver<String>, StoreError> {
        let Some(notifications) = session.notifications.take().filter(|_| session.is_direct) else {
            let message = "a pooler is in front of the server";
            return Err(Fault::new(ErrorKind::Unsupported, message).not_applied());
        };
        let listen = format!("LISTEN {channel}");
        match timeout(&*self.env().clock, CHECK_LIMIT, session.client.batch_execute(&listen)).await {
            Some(Ok(())) => Ok(notifications),
            Some(Err(error)) => Err(errors::of_statement(&error, Effect::None, self.table())),
            None => Err(Fault::unavailable("PostgreSQL did not respond").not_applied()),
        }
    }

    /// Checks whether a notification arrives.
    pub(super) async fn notifications(self: &Arc<Self>) -> Finding {
        const CHECK: &str = "notifications";
        const PROBE: &str = "probe";
        let Some(channel) = &self.listener.channel else {
            return Finding::passed(CHECK, "notify=off: waiters poll");
        };
        let tried = async {
            let mut session = self.open().await?;
            let mut notifications = self.subscribe(&mut session, channel).await?;
            self.rows(Effect::None, &notify(), &[text(channel), text(&PROBE)]).await?;
            while notifications.recv().await.is_some_and(|key| key != PROBE) {}
            Ok::<_, StoreError>(())
        };
        match timeout(&*self.env().clock, EXAMINATION, tried).await {
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
}
