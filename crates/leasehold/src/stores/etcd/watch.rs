//! One stream of watches for all tasks that wait until a key, or any key of a lock's queue, is deleted or written.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use futures_util::stream::{self, Stream};
use tokio::sync::{mpsc, oneshot};
use tonic::Streaming;

use super::client::Client;
use super::keys::Keyspace;
use super::wire::{
    WatchAsk, WatchCancelRequest, WatchCreateRequest, WatchFilter, WatchRequest, WatchResponse,
};
use crate::clock::timeout;
use crate::env::Env;

/// The time limit for a member to open a stream.
const OPENING_LIMIT: Duration = Duration::from_secs(5);

/// Why a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fired {
    /// The key was deleted, or written if that was requested, in the given revision or later.
    Happened,
    /// The stream broke, or etcd has compacted the revisions from the given one on. The caller must read again.
    Lost,
}

/// The handle of the watch task, which ends when this value is dropped. The first wait opens the stream.
#[derive(Debug)]
pub(super) struct Watcher {
    commands: mpsc::UnboundedSender<Command>,
    next: AtomicI64,
}

#[derive(Debug)]
enum Command {
    Watch { create: WatchCreateRequest, fired: oneshot::Sender<Fired> },
    Forget(i64),
}

/// The events of a key that a watch reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Events {
    Deletions,
    All,
}

impl Watcher {
    pub(super) fn new(client: Arc<Client>, env: Env) -> Self {
        let (commands, asked) = mpsc::unbounded_channel();
        tokio::spawn(Watches::new(client, env).run(asked));
        Self { commands, next: AtomicI64::new(0) }
    }

    /// Completes when `key` is deleted in revision `from` or later. Cancel safe.
    pub(super) async fn deleted(&self, key: &[u8], from: i64) -> Fired {
        self.watch_deletion(key, from).fired().await
    }

    /// Watches for a deletion of `key` in revision `from` or later.
    pub(super) fn watch_deletion(&self, key: &[u8], from: i64) -> Watch {
        self.watch(Keyspace::of(key), from, Events::Deletions)
    }

    /// Completes when `key` is deleted or written in revision `from` or later. Cancel safe.
    pub(super) async fn touched(&self, key: &[u8], from: i64) -> Fired {
        self.happened(Keyspace::of(key), from, Events::All).await
    }

    /// Completes when a key of `space` is deleted or written in revision `from` or later. Cancel safe.
    pub(super) async fn touched_in(&self, space: Keyspace, from: i64) -> Fired {
        self.happened(space, from, Events::All).await
    }

    async fn happened(&self, space: Keyspace, from: i64, events: Events) -> Fired {
        self.watch(space, from, events).fired().await
    }

    fn watch(&self, space: Keyspace, from: i64, events: Events) -> Watch {
        let id = self.next.fetch_add(1, Ordering::Relaxed) + 1;
        let (fired, answer) = oneshot::channel();
        let unwanted = Some(WatchFilter::NoPut.into()).filter(|_| events == Events::Deletions);
        let create = WatchCreateRequest {
            key: space.key,
            range_end: space.end,
            start_revision: from,
            filters: unwanted.into_iter().collect(),
            watch_id: id,
        };
        // If the task has ended, this drops `fired`, and the watch is lost.
        let _ = self.commands.send(Command::Watch { create, fired });
        Watch { commands: self.commands.clone(), id, answer }
    }
}

/// A watch. It ends when this value is dropped.
#[derive(Debug)]
pub(super) struct Watch {
    commands: mpsc::UnboundedSender<Command>,
    id: i64,
    answer: oneshot::Receiver<Fired>,
}

impl Watch {
    /// Completes once, when the watch fires or is lost. Cancel safe.
    pub(super) async fn fired(&mut self) -> Fired {
        (&mut self.answer).await.unwrap_or(Fired::Lost)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let _ = self.commands.send(Command::Forget(self.id));
    }
}

/// The state of the watch task.
struct Watches {
    client: Arc<Client>,
    env: Env,
    waiting: HashMap<i64, oneshot::Sender<Fired>>,
    open: Option<Open>,
}

/// A stream in both directions.
struct Open {
    asks: mpsc::UnboundedSender<WatchRequest>,
    answers: Streaming<WatchResponse>,
}

impl Watches {
    fn new(client: Arc<Client>, env: Env) -> Self {
        Self { client, env, waiting: HashMap::new(), open: None }
    }

    async fn run(mut self, mut commands: mpsc::UnboundedReceiver<Command>) {
        loop {
            let command = match &mut self.open {
                None => commands.recv().await,
                Some(open) => tokio::select! {
                    command = commands.recv() => command,
                    answer = open.answers.message() => {
                        self.take_in(answer.ok().flatten());
                        continue;
                    }
                },
            };
            match command {
                None => return,
                Some(Command::Watch { create, fired }) => self.watch(create, fired).await,
                Some(Command::Forget(id)) => self.forget(id),
            }
        }
    }

    async fn watch(&mut self, create: WatchCreateRequest, fired: oneshot::Sender<Fired>) {
        if fired.is_closed() {
            return;
        }
        self.waiting.insert(create.watch_id, fired);
        let ask = WatchRequest { ask: Some(WatchAsk::Create(create)) };
        match &self.open {
            Some(open) => {
                if open.asks.send(ask).is_err() {
                    self.take_in(None);
                }
            }
            None => self.begin(ask).await,
        }
    }

    /// Opens the stream.
    async fn begin(&mut self, first: WatchRequest) {
        let latest = std::sync::Mutex::new(None);
        let asked = || {
            let (asks, requests) = mpsc::unbounded_channel();
            let _ = asks.send(first.clone());
            *latest.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Some(asks);
            received(requests)
        };
        let answers = timeout(&*self.env.clock, OPENING_LIMIT, self.client.watch(asked)).await;
        let asks = latest.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
        match (asks, answers) {
            (Some(asks), Some(Ok(answers))) => self.open = Some(Open { asks, answers }),
            (_, Some(Ok(_)) | None) => self.take_in(None),
            (_, Some(Err(error))) => {
                tracing::debug!(error = %error.into_store_error(), "no watch could be opened");
                self.take_in(None);
            }
        }
    }

    /// Handles one message of etcd. `None` means that the stream has broken.
    fn take_in(&mut self, answer: Option<WatchResponse>) {
        // If the login with which the stream was opened has expired, etcd refuses a watch without naming it.
        let answer = answer.filter(|answer| !(answer.canceled && answer.watch_id < 0));
        let Some(answer) = answer else {
            self.open = None;
            for (_, fired) in self.waiting.drain() {
                let _ = fired.send(Fired::Lost);
            }
            return;
        };
        let fired = if answer.canceled {
            tracing::debug!(reason = answer.cancel_reason, "etcd ended a watch");
            Fired::Lost
        } else if answer.events.is_empty() {
            // A confirmation of the watch, or a progress message.
            return;
        } else {
            Fired::Happened
        };
        if let Some(waiting) = self.waiting.remove(&answer.watch_id) {
            let _ = waiting.send(fired);
            if fired == Fired::Happened {
                self.cancel(answer.watch_id);
            }
        }
    }

    fn forget(&mut self, id: i64) {
        if self.waiting.remove(&id).is_some() {
            self.cancel(id);
        }
    }

    fn cancel(&self, watch_id: i64) {
        if let Some(open) = &self.open {
            let _ =
                open.asks.send(WatchRequest { ask: Some(WatchAsk::Cancel(WatchCancelRequest { watch_id })) });
        }
    }
}

fn received<T: Send + 'static>(
    receiver: mpsc::UnboundedReceiver<T>,
) -> impl Stream<Item = T> + Send + 'static {
    stream::unfold(receiver, async |mut receiver| receiver.recv().await.map(|item| (item, receiver)))
}
