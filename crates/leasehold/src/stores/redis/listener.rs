//! Listens for messages about released locks on the connection of the store.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::links::Links;
use crate::stores::notifications::UNUSED;

impl Links {
    /// Subscribes to the channel on the current connection, unless it has tried before. Ends the subscription when no
    /// claim has waited for [`UNUSED`].
    pub(super) fn listen(self: &Arc<Self>) {
        let Some(link) = self.opened().filter(|_| self.connector.location.notifies) else { return };
        if link.listens.swap(true, Ordering::SeqCst) {
            return;
        }
        let (calls, env, channel) = (self.calls.clone(), self.env.clone(), self.connector.location.channel());
        let (mut connection, link) = (link.connection.clone(), Arc::downgrade(&link));
        tokio::spawn(async move {
            if let Err(error) = connection.subscribe(&channel).await {
                // The user may lack the permission. Does not try again on this connection.
                tracing::debug!(%error, "messages of Redis are not received; waiters poll");
                return;
            }
            calls.call_all();
            while link.strong_count() > 0 && !calls.are_unused() {
                env.sleep(UNUSED).await;
            }
            let ended = connection.unsubscribe(&channel).await;
            if let Some(link) = link.upgrade().filter(|_| ended.is_ok()) {
                link.listens.store(false, Ordering::SeqCst);
            }
        });
    }
}
