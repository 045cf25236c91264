//! An open connection to a server. The thread of the store drives it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_nats::{Client, Event, HeaderMap, Request, RequestError, RequestErrorKind, ServerError};
use bytes::Bytes;
use futures_util::stream::{self, BoxStream, StreamExt};
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;

use super::carrier::Carrier;
use super::errors;
use super::keys::Copies;
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
    /// Whether the user may not receive copies. Each attempt would be an error in the server's log.
    is_watch_refused: AtomicBool,
}

impl Default for Events {
    fn default() -> Self {
        let sender = broadcast::channel(EVENTS).0;
        Self { sender, is_lost: AtomicBool::default(), is_watch_refused: AtomicBool::default() }
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

    /// Waits until the server refuses, from now on, what concerns `subject`, because of a missing permission. It
    /// reports that beside the responses. Returns its message, or `None` when the connection is lost.
    fn refusal(self: &Arc<Self>, subject: &str) -> impl Future<Output = Option<String>> + use<> {
        let (this, subject, mut events) = (self.clone(), subject.to_owned(), self.sender.subscribe());
        async move {
            while !this.is_lost.load(Ordering::SeqCst) {
                match events.recv().await {
                    Ok(Some(text)) if errors::concerns(&text, &subject) => return Some(text),
                    Ok(Some(_)) | Err(RecvError::Lagged(_)) => {}
                    _ => break,
                }
            }
            None
        }
    }
}

/// How requests reach the server.
#[derive(Debug)]
pub(super) enum Way {
    Client(Client),
    /// In the simulation.
    Carried(Arc<dyn Carrier>),
}

impl Way {
    async fn send(&self, subject: String, request: Request) -> Result<Bytes, RequestError> {
        match self {
            Self::Client(client) => {
                client.send_request(subject, request.timeout(None)).await.map(|response| response.payload)
            }
            Self::Carried(carrier) => {
                let headers = request.headers.iter().flat_map(HeaderMap::iter);
                let headers = headers.flat_map(|(name, values)| {
                    values.iter().map(|value| (name.to_string(), value.to_string()))
                });
                let response =
                    carrier.request(subject, headers.collect(), request.payload.unwrap_or_default());
                response.await.map_err(RequestError::new)
            }
        }
    }

    async fn subscribe(&self, subject: String) -> Result<BoxStream<'static, Bytes>, StoreError> {
        match self {
            Self::Client(client) => {
                let messages = client.subscribe(subject).await.map_err(|_| errors::lost().not_applied())?;
                Ok(messages.map(|message| message.payload).boxed())
            }
            Self::Carried(carrier) => Ok(carrier.subscribe(subject)),
        }
    }
}

/// An open connection. It is closed when this is dropped.
#[derive(Debug)]
pub(super) struct Link {
    way: Way,
    events: Arc<Events>,
    /// The server, for messages.
    pub(super) host: String,
    /// What the server publishes copies of.
    pub(super) copies: Option<Copies>,
    /// When the bucket was last asked for.
    asked: Mutex<Option<Moment>>,
}

impl Drop for Link {
    /// Ends what still waits for copies, which keeps the connection open.
    fn drop(&mut self) {
        self.events.note(Event::Closed);
    }
}

impl Connection for Link {
    fn is_open(&self) -> bool {
        !self.events.is_lost.load(Ordering::SeqCst)
    }
}

impl Link {
    pub(super) fn new(way: Way, events: Arc<Events>, host: String) -> Self {
        Self { way, events, host, copies: None, asked: Mutex::default() }
    }

    pub(super) fn asked(&self) -> MutexGuard<'_, Option<Moment>> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends one request. Returns the payload of the response. Ends without a response if the connection is lost, or if
    /// the server refuses the request because of a missing permission.
    pub(super) async fn request(
        &self,
        subject: String,
        headers: HeaderMap,
        payload: Bytes,
    ) -> Result<Bytes, StoreError> {
        let refusal = self.events.refusal(&subject);
        let request = Request::new().headers(headers).payload(payload);
        self.response(subject, request, refusal).await
    }

    /// Sends a question whose response arrives in the place of a copy of a message. Fails if the user may not receive
    /// copies.
    pub(super) async fn rehearse(&self, question: String, copy: String) -> Result<(), StoreError> {
        let refusal = self.events.refusal(&copy);
        self.response(question, Request::new().inbox(copy), refusal).await.map(drop)
    }

    async fn response(
        &self,
        subject: String,
        request: Request,
        refusal: impl Future<Output = Option<String>>,
    ) -> Result<Bytes, StoreError> {
        if !self.is_open() {
            return Err(errors::lost().not_applied());
        }
        tokio::select! {
            biased;
            response = self.way.send(subject.clone(), request) => response.map_err(|error| {
                // The client itself reports this when it loses the connection.
                if error.kind() == RequestErrorKind::Other && matches!(self.way, Way::Carried(_)) {
                    self.events.note(Event::Disconnected);
                }
                errors::of_request(&error, &subject)
            }),
            refused = refusal => Err(match refused {
                Some(text) => errors::denied(&text),
                None => errors::lost().maybe_applied(),
            }),
        }
    }

    /// Returns the values that are written with `subject` from now on, from the copies that the server publishes.
    /// Reports none if it publishes none, or if the user may not receive them. Ends with the connection.
    pub(super) async fn watch(&self, subject: &str) -> Result<BoxStream<'static, Bytes>, StoreError> {
        let is_refused = self.events.is_watch_refused.load(Ordering::SeqCst);
        let copy = self.copies.as_ref().and_then(|copies| copies.of(subject));
        let Some(copy) = copy.filter(|_| !is_refused) else { return Ok(stream::pending().boxed()) };
        let (events, refusal) = (self.events.clone(), self.events.refusal(&copy));
        let copies = self.way.subscribe(copy).await?;
        let end = async move {
            if refusal.await.is_some() {
                events.is_watch_refused.store(true, Ordering::SeqCst);
                std::future::pending::<()>().await;
            }
        };
        Ok(copies.take_until(end).boxed())
    }
}
