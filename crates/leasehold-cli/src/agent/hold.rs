//! A held lock. A task reports its renewals and its loss to the host, until the guard is taken or the lock is lost.

use leasehold::clock::Deadline;
use leasehold::{Guard, Lock};
use serde_json::Value;
use tokio::sync::{mpsc, oneshot};

use super::message;
use super::pipe::Outbox;

/// A request to the task of a hold.
pub(super) enum HoldRequest {
    /// Give up the guard and end.
    Take(oneshot::Sender<Guard>),
    /// Return the lock as one for which the host waits while it holds this one.
    Nest(Lock, oneshot::Sender<Lock>),
    /// Renew at once, and return the message `renewed`.
    Renew(oneshot::Sender<leasehold::Result<Value>>),
}

/// The task of one hold.
pub(super) struct HoldTask {
    pub(super) number: u64,
    pub(super) guard: Guard,
    /// The latest deadline that was sent to the host.
    pub(super) known: Deadline,
    pub(super) requests: mpsc::Receiver<HoldRequest>,
    pub(super) outbox: Outbox,
}

impl HoldTask {
    /// Runs until the lock is lost or taken. Returns the message about a loss, which the caller must send.
    pub(super) async fn run(mut self) -> Option<Value> {
        loop {
            tokio::select! {
                biased;
                request = self.requests.recv() => match request {
                    Some(HoldRequest::Renew(reply)) => {
                        let (hold, limit, renewal) = (self.number, self.guard.limit(), self.guard.renew());
                        let renewed = move |until| message::renewed(hold, until, limit);
                        tokio::spawn(async move { drop(reply.send(renewal.await.map(renewed))) });
                    }
                    Some(HoldRequest::Nest(lock, reply)) => drop(reply.send(lock.while_holding(&self.guard))),
                    Some(HoldRequest::Take(reply)) => {
                        // If nothing waits for the reply, the guard is dropped, which releases the lock.
                        let _ = reply.send(self.guard);
                        return None;
                    }
                    None => return None,
                },
                loss = self.guard.lost() => {
                    // The host's work may still run, so nothing is released.
                    self.guard.lapse();
                    return Some(message::lost(self.number, &loss));
                }
                place = renewed(&self.guard, self.known, &self.outbox) => {
                    // Send the latest deadline, however long the host has not read.
                    if let Ok(until) = self.guard.deadline() {
                        self.known = until;
                        place.send(message::renewed(self.number, until, self.guard.limit()));
                    }
                }
            }
        }
    }
}

/// Completes when there is a new deadline and a place in the queue.
async fn renewed<'a>(guard: &Guard, known: Deadline, outbox: &'a Outbox) -> super::pipe::Place<'a> {
    guard.renewed(known).await;
    outbox.place().await
}
