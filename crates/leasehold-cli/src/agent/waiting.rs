//! Reports to the host about the holder of the lock that it waits for.

use leasehold::view::HolderView;
use leasehold::{HolderInfo, LockName};
use serde_json::json;
use tokio::sync::watch;

use super::message::Answer;
use super::pipe::Outbox;

/// Sends reports for one request.
pub(super) struct Reports {
    id: u64,
    outbox: Outbox,
    seen: watch::Receiver<Option<(LockName, HolderInfo)>>,
}

/// Returns a callback for the holders that a waiting acquisition sees, and the reports about them for the request `id`.
/// If the host does not read, only the latest holder is kept.
pub(super) fn reports(
    id: u64,
    outbox: &Outbox,
) -> (impl Fn(&LockName, &HolderInfo) + Send + Sync + use<>, Reports) {
    let (see, seen) = watch::channel(None);
    let see = move |name: &LockName, held: &HolderInfo| drop(see.send(Some((name.clone(), held.clone()))));
    (see, Reports { id, outbox: outbox.clone(), seen })
}

impl Reports {
    /// Sends reports until `work` ends.
    pub(super) async fn during<T>(mut self, work: impl Future<Output = T>) -> T {
        tokio::pin!(work);
        loop {
            tokio::select! {
                biased;
                output = &mut work => return output,
                place = next(&mut self.seen, &self.outbox) => {
                    let Some((lock, held)) = self.seen.borrow_and_update().clone() else { continue };
                    let report = json!({ "lock": lock, "held_by": HolderView::of(&held) });
                    place.send(Answer::new("waiting", report).to(self.id));
                }
            }
        }
    }
}

/// Completes when there is a new holder to report and a place in the queue. Never completes if there will be no more
/// holders.
async fn next<'a>(
    seen: &mut watch::Receiver<Option<(LockName, HolderInfo)>>,
    outbox: &'a Outbox,
) -> super::pipe::Place<'a> {
    if seen.changed().await.is_err() {
        std::future::pending::<()>().await;
    }
    // If this future is dropped while it waits for a place, the holder must not count as seen.
    seen.mark_changed();
    outbox.place().await
}
