//! The connection of a store. All requests share it. It is opened on demand, and replaced when it is lost or does not
//! respond. The thread of the store drives it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_nats::{Client, Event, HeaderMap, Message, Request, ServerError};
use bytes::Bytes;
use futures_util::future::join;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{broadcast, oneshot};

use super::bucket::{self, Bucket};
use super::connect::Connector;
use super::errors;
use crate::clock::{Moment, StoreClock, timeout};
use crate::env::Env;
use crate::error::{Fault, StoreError};

/// If no response arrives for this long after the first abandoned request was sent, later requests use another
/// connection.
const STALLED: Duration = Duration::from_millis(500);

/// How long a reading of the server's clock is used. Then the next request asks for another one.
const CLOCK_USED: Duration = Duration::from_secs(10);

/// The time limit of that question.
const CLOCK_LIMIT: Duration = Duration::from_millis(500);

/// The resolution of the server's clock.
const RESOLUTION: Duration = Duration::from_micros(1);

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
        // Nobody listens while there is no request.
        let _ = self.sender.send(event);
    }
}

/// An open connection.
#[derive(Debug)]
pub(super) struct Link {
    client: Client,
    events: Arc<Events>,
    /// The server, for messages.
    pub(super) host: String,
    /// When the first abandoned request since the latest response was sent.
    unanswered: Mutex<Option<Moment>>,
}

impl Link {
    pub(super) fn new(client: Client, events: Arc<Events>, host: String) -> Self {
        Self { client, events, host, unanswered: Mutex::default() }
    }

    pub(super) fn version(&self) -> String {
        self.client.server_info().version
    }

    fn is_open(&self) -> bool {
        !self.events.is_lost.load(Ordering::SeqCst)
    }

    fn unanswered(&self) -> MutexGuard<'_, Option<Moment>> {
        self.unanswered.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends one request. Ends without a response if the connection is lost, or if the server refuses the request
    /// because of a missing permission: it reports that beside the responses.
    pub(super) async fn request(
        &self,
        subject: String,
        headers: Option<HeaderMap>,
        payload: Bytes,
    ) -> Result<Message, StoreError> {
        let mut events = self.events.sender.subscribe();
        if !self.is_open() {
            return Err(errors::lost().not_applied());
        }
        let mut request = Request::new().payload(payload).timeout(None);
        if let Some(headers) = headers {
            request = request.headers(headers);
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
        tokio::select! {
            biased;
            response = self.client.send_request(subject.clone(), request) => {
                response.map_err(|error| errors::of_request(&error, &subject))
            }
            error = refused => Err(error),
        }
    }
}

/// The connections of a store: the one in use.
#[derive(Debug)]
pub(super) struct Links {
    pub(super) connector: Connector,
    pub(super) env: Env,
    /// The clock of the stream's leader.
    pub(super) clock: StoreClock,
    /// When that clock was last asked for.
    asked: Mutex<Option<Moment>>,
    current: Mutex<Option<Arc<Link>>>,
    opening: tokio::sync::Mutex<()>,
}

impl Links {
    pub(super) fn new(connector: Connector, env: Env) -> Self {
        Self {
            connector,
            env,
            clock: StoreClock::default(),
            asked: Mutex::default(),
            current: Mutex::default(),
            opening: tokio::sync::Mutex::default(),
        }
    }

    fn current(&self) -> MutexGuard<'_, Option<Arc<Link>>> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn asked(&self) -> MutexGuard<'_, Option<Moment>> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn opened(&self) -> Option<Arc<Link>> {
        self.current().clone().filter(|link| link.is_open())
    }

    /// Returns the connection. Opens it in a separate task, so that if the request is abandoned, the next request gets
    /// the connection.
    async fn link(self: &Arc<Self>) -> Result<Arc<Link>, StoreError> {
        if let Some(link) = self.opened() {
            return Ok(link);
        }
        let (give, given) = oneshot::channel();
        let links = self.clone();
        tokio::spawn(async move {
            let _opening = links.opening.lock().await;
            let link = match links.opened() {
                Some(link) => Ok(link),
                None if give.is_closed() => return,
                None => links.connect().await,
            };
            let _ = give.send(link);
        });
        given.await.unwrap_or_else(|_| Err(Fault::unavailable("the program is ending").not_applied()))
    }

    async fn connect(&self) -> Result<Arc<Link>, StoreError> {
        let sent = self.env.now();
        let (link, response) = self.connector.connect(&self.env).await?;
        self.note(&link, &response, sent)?;
        let link = Arc::new(link);
        *self.current() = Some(link.clone());
        Ok(link)
    }

    /// Notes the time in a response about the bucket, and checks the settings.
    fn note(&self, link: &Link, response: &[u8], sent: Moment) -> Result<(), StoreError> {
        let bucket = Bucket::of(response, link, &self.connector.location.keys)?;
        if let Some(us) = bucket.time_us() {
            self.clock.observe(us, RESOLUTION, sent, self.env.now());
            *self.asked() = Some(sent);
        }
        bucket.check().map_err(Fault::not_applied)
    }

    /// Asks for the time again if the latest reading is old. A bucket whose settings have become unsafe is refused from
    /// the next request on.
    async fn refresh(&self, link: &Arc<Link>) {
        let sent = self.env.now();
        if self.asked().is_some_and(|asked| sent.longest_since(asked) < CLOCK_USED) {
            return;
        }
        // Other requests need not ask too.
        *self.asked() = Some(sent);
        let asking = bucket::ask(link, &self.connector.location.keys);
        if let Some(Ok(response)) = timeout(&*self.env.clock, CLOCK_LIMIT, asking).await
            && self.note(link, &response, sent).is_err()
        {
            self.give_up(link);
        }
    }

    /// Makes later requests use another connection. Requests that wait for a response on this one continue.
    fn give_up(&self, link: &Arc<Link>) {
        self.current().take_if(|current| Arc::ptr_eq(current, link));
    }

    pub(super) fn close(&self) {
        self.current().take();
    }

    /// Sends a request over the connection.
    pub(super) async fn ask(
        self: &Arc<Self>,
        subject: String,
        headers: Option<HeaderMap>,
        payload: Bytes,
    ) -> Result<Message, StoreError> {
        let link = self.link().await?;
        let mut running = Running { links: self, link: &link, began: self.env.now(), answered: false };
        let (answer, ()) = join(link.request(subject, headers, payload), self.refresh(&link)).await;
        running.answered = true;
        link.unanswered().take();
        answer
    }
}

/// A request that waits for its response.
struct Running<'a> {
    links: &'a Links,
    link: &'a Arc<Link>,
    began: Moment,
    answered: bool,
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        if self.answered {
            return;
        }
        let since = *self.link.unanswered().get_or_insert(self.began);
        if self.links.env.now().shortest_since(since) > STALLED {
            self.links.give_up(self.link);
        }
    }
}
