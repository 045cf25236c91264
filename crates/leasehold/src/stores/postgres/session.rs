//! A connection to a server, and the statements on it.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::future::{join, poll_fn};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::task::AbortHandle;
use tokio_postgres::{AsyncMessage, Client, Connection, Error, Row, Statement};

use super::errors;
use super::statements::{Parameter, Sql};
use crate::stores::pool;

/// An open connection. It is closed when this is dropped.
pub(super) struct Session {
    pub(super) client: Client,
    /// Set when a commit did not wait for the standbys.
    doubt: Arc<AtomicBool>,
    driver: AbortHandle,
    /// The notifications that arrive, once the connection listens.
    pub(super) notifications: Option<UnboundedReceiver<String>>,
    /// The address of the server, for messages.
    host: String,
    /// The statements that were sent more than once, by name, unless a pooler is in front of the server.
    prepared: HashMap<&'static str, Option<Statement>>,
    /// Whether no pooler is in front of the server.
    pub(super) is_direct: bool,
    pub(super) has_table: bool,
    /// Whether a statement was sent, and the response has not arrived.
    is_running: bool,
}

impl pool::Session for Session {
    fn host(&self) -> &str {
        &self.host
    }

    fn has_table(&self) -> bool {
        self.has_table
    }

    fn is_open(&self) -> bool {
        !self.client.is_closed()
    }
}

impl Drop for Session {
    /// Closes the connection without waiting for the statement that it runs. Sends no cancel request, because canceling
    /// a wait for standbys would leave a commit that may be lost.
    fn drop(&mut self) {
        if self.is_running {
            self.driver.abort();
        }
    }
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session").field("host", &self.host).finish_non_exhaustive()
    }
}

impl Session {
    /// Starts the task that reads and writes the connection to `host`.
    pub(super) fn driven<S, T>((client, mut connection): (Client, Connection<S, T>), host: String) -> Self
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
        T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let doubt = Arc::<AtomicBool>::default();
        let noted = doubt.clone();
        let (notified, notifications) = unbounded_channel();
        let driver = tokio::spawn(async move {
            loop {
                match poll_fn(|context| connection.poll_message(context)).await {
                    // This notice arrives before the response to the statement.
                    Some(Ok(AsyncMessage::Notice(notice))) if errors::is_commit_in_doubt(&notice) => {
                        noted.store(true, Ordering::SeqCst);
                    }
                    Some(Ok(AsyncMessage::Notification(notification))) => {
                        let _ = notified.send(notification.payload().to_owned());
                    }
                    Some(Ok(_)) => {}
                    Some(Err(error)) => {
                        tracing::debug!(%error, "a connection to PostgreSQL ended");
                        return;
                    }
                    None => return,
                }
            }
        });
        let (driver, notifications) = (driver.abort_handle(), Some(notifications));
        let (prepared, is_direct, has_table, is_running) = Default::default();
        Self { client, doubt, driver, notifications, host, prepared, is_direct, has_table, is_running }
    }

    /// Returns whether a commit since the previous call did not wait for the standbys. The server sends that notice
    /// before it reports success.
    pub(super) fn take_doubt(&self) -> bool {
        self.doubt.swap(false, Ordering::SeqCst)
    }

    /// Sends a statement that is rarely sent.
    pub(super) async fn ask(&mut self, sql: &str, parameters: &[Parameter<'_>]) -> Result<Vec<Row>, Error> {
        self.is_running = true;
        let answer = self.client.query_typed(sql, parameters).await;
        self.is_running = false;
        answer
    }

    /// Sends `sql`. Prepares it, after its second use without waiting for it, so that the server plans it once.
    pub(super) async fn run(&mut self, sql: &Sql, parameters: &[Parameter<'_>]) -> Result<Vec<Row>, Error> {
        self.is_running = true;
        let client = &self.client;
        let answer = match self.prepared.get(sql.name) {
            _ if !self.is_direct => client.query_typed(&sql.text, parameters).await,
            Some(Some(statement)) => {
                let values: Vec<_> = parameters.iter().map(|(value, _)| *value).collect();
                client.query(statement, &values).await
            }
            Some(None) => {
                let kinds: Vec<_> = parameters.iter().map(|(_, kind)| kind.clone()).collect();
                let asked = client.query_typed(&sql.text, parameters);
                let (answer, statement) = join(asked, client.prepare_typed(&sql.text, &kinds)).await;
                self.prepared.insert(sql.name, statement.ok());
                answer
            }
            None => {
                self.prepared.insert(sql.name, None);
                client.query_typed(&sql.text, parameters).await
            }
        };
        self.is_running = false;
        if answer.is_err() {
            self.prepared.clear();
        }
        answer
    }
}
