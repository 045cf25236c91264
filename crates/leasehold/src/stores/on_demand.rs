//! A connection that all requests of a store share. It is opened on demand, and replaced when it is lost or given up.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

use crate::error::{Fault, StoreError};

/// A connection of [`OnDemand`].
pub(super) trait Connection: Send + Sync + 'static {
    /// Returns whether the connection is not lost.
    fn is_open(&self) -> bool;
}

/// The connection in use, if there is one.
#[derive(Debug)]
pub(super) struct OnDemand<C> {
    current: Mutex<Option<Arc<C>>>,
    opening: tokio::sync::Mutex<()>,
}

impl<C> Default for OnDemand<C> {
    fn default() -> Self {
        Self { current: Mutex::default(), opening: tokio::sync::Mutex::default() }
    }
}

impl<C: Connection> OnDemand<C> {
    fn current(&self) -> MutexGuard<'_, Option<Arc<C>>> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the connection if it is open.
    pub(super) fn opened(&self) -> Option<Arc<C>> {
        self.current().clone().filter(|connection| connection.is_open())
    }

    /// Returns the connection. If it is not open, calls `open` for another one, and `in_use` when it is the current one.
    /// This happens in a separate task, so that if the request is abandoned, the next request gets the connection.
    pub(super) async fn get<F>(
        self: &Arc<Self>,
        open: impl FnOnce() -> F + Send + 'static,
        in_use: impl FnOnce() + Send + 'static,
    ) -> Result<Arc<C>, StoreError>
    where
        F: Future<Output = Result<C, StoreError>> + Send,
    {
        if let Some(connection) = self.opened() {
            return Ok(connection);
        }
        let (give, given) = oneshot::channel();
        let this = self.clone();
        tokio::spawn(async move {
            let _opening = this.opening.lock().await;
            let connection = match this.opened() {
                Some(connection) => Ok(connection),
                None if give.is_closed() => return,
                None => open().await.map(|connection| {
                    let connection = Arc::new(connection);
                    *this.current() = Some(connection.clone());
                    in_use();
                    connection
                }),
            };
            let _ = give.send(connection);
        });
        given.await.unwrap_or_else(|_| Err(Fault::unavailable("the program is ending").not_applied()))
    }

    /// Makes later requests use another connection. Requests that wait for a response on this one continue.
    pub(super) fn give_up(&self, connection: &Arc<C>) {
        self.current().take_if(|current| Arc::ptr_eq(current, connection));
    }

    pub(super) fn close(&self) {
        self.current().take();
    }
}
