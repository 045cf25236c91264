//! A held lock: a task reports renewals and the loss to the host, until the guard is taken or lost.

use leasehold::Guard;
use leasehold::clock::Deadline;
use serde_json::Value;
use tokio::sync::{mpsc, oneshot};

use super::message;
use super::pipe::Outbox;

/// What a request asks the task of a hold.
pub(super) enum Ask {
    /// To give up the guard and end.
    Take(oneshot::Sender<Guard>),
    /// To renew at once.
    Renew(oneshot::Sender<leasehold::Result<Deadline>>),
}

/// The task of one hold.
pub(super) struct Keeper {
    pub(super) number: u64,
    pub(super) guard: Guard,
    /// The deadline that the host knows.
    pub(super) known: Deadline,
    pub(super) asks: mpsc::Receiver<Ask>,
    pub(super) outbox: Outbox,
}

impl Keeper {
    /// Runs until the lock is lost or taken. Returns the message about a loss, which is not sent yet.
    pub(super) async fn run(mut self) -> Option<Value> {
        loop {
            tokio::select! {
                biased;
                ask = self.asks.recv() => match ask {
                    Some(Ask::Renew(reply)) => {
                        let renewal = self.guard.renew();
                        tokio::spawn(async move { drop(reply.send(renewal.await)) });
                    }
                    Some(Ask::Take(reply)) => {
                        // If the request is gone, the guard is dropped, which releases the lock.
                        let _ = reply.send(self.guard);
                        return None;
                    }
                    None => return None,
                },
                loss = self.guard.lost() => return Some(message::lost(self.number, &loss)),
                place = renewed(&self.guard, self.known, &self.outbox) => {
                    // The latest deadline, however long the host has not read.
                    if let Ok(until) = self.guard.deadline() {
                        self.known = until;
                        place.send(message::renewed(self.number, until));
                    }
                }
            }
        }
    }
}

/// Completes when there is a new deadline and a place to send it.
async fn renewed<'a>(guard: &Guard, known: Deadline, outbox: &'a Outbox) -> super::pipe::Place<'a> {
    guard.renewed(known).await;
    outbox.place().await
}
