//! An open connection to a server. The thread of the store drives it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_nats::{Client, Event, HeaderMap, Request, ServerError};
use bytes::Bytes;
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;

use super::errors;
use crate::clock::Moment;
use crate::error::StoreError;
use crate::stores::on_demand::Connection;

/// How many events a request may have to read at once. It does not matter if it misses refusals of other requests.
const EVENTS: usize = 64;

/// What happens to a connection.
#[derive(Debug)]
pub(super) struct Events {
    /// The server's error messages. `None` when the connection is lost.
    sender: broadcast::Sender<Option<String>>,
    is_lost: AtomicBool,
}

impl Default for Events {
    fn default() -> Self {
        Self { sender: broadcast::channel(EVENTS).0, is_lost: AtomicBool::default() }
    }
}

impl Events {
    pub(super) fn note(&self, event: Event) {
        let event = match event {
            Event::Disconnected | Event::Closed => {
                self.is_lost.store(true, Ordering::SeqCst);
                None
            }
            Event::ServerError(ServerError::Other(text)) => Some(text),
            _ => return,
        };
        // There is no receiver while no request waits.
        let _ = self.sender.send(event);
    }
}

/// An open connection. It is closed when this is dropped.
#[derive(Debug)]
pub(super) struct Link {
    client: Client,
    events: Arc<Events>,
    /// The server, for messages.
    pub(super) host: String,
    /// When the bucket was last asked for.
    asked: Mutex<Option<Moment>>,
}

impl Connection for Link {
    fn is_open(&self) -> bool {
        !self.events.is_lost.load(Ordering::SeqCst)
    }
}

impl Link {
    pub(super) fn new(client: Client, events: Arc<Events>, host: String) -> Self {
        Self { client, events, host, asked: Mutex::default() }
    }

    pub(super) fn asked(&self) -> MutexGuard<'_, Option<Moment>> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends one request. Returns the payload of the response. Ends without a response if the connection is lost, or if
    /// the server refuses the request because of a missing permission: it reports that beside the responses.
    pub(super) async fn request(
        &self,
        subject: String,
        headers: HeaderMap,
        payload: Bytes,
    ) -> Result<Bytes, StoreError> {
        let mut events = self.events.sender.subscribe();
        if !self.is_open() {
            return Err(errors::lost().not_applied());
        }
        let refused = async {
            loop {
                match events.recv().await {
                    Ok(Some(text)) if errors::concerns(&text, &subject) => return errors::denied(&text),
                    Ok(Some(_)) | Err(RecvError::Lagged(_)) if self.is_open() => {}
                    _ => return errors::lost().maybe_applied(),
                }
            }
        };
        let request = Request::new().headers(headers).payload(payload).timeout(None);
        tokio::select! {
            biased;
            response = self.client.send_request(subject.clone(), request) => {
                response.map(|response| response.payload).map_err(|error| errors::of_request(&error, &subject))
            }
            error = refused => Err(error),
        }
    }
}
