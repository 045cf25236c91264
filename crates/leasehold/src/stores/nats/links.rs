//! The connection of a store. All requests share it. It is opened on demand, and replaced when it is lost or does not
//! respond.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_nats::HeaderMap;
use bytes::Bytes;
use futures_util::future::join;
use tokio::sync::oneshot;

use super::bucket::{self, Bucket};
use super::connect::Connector;
use super::link::Link;
use crate::clock::{Moment, StoreClock, timeout};
use crate::env::Env;
use crate::error::{Fault, StoreError};

/// If a request is given up after it has waited for this long, later requests use another connection.
const STALLED: Duration = Duration::from_millis(200);

/// How long a reading of the server's clock is used. Then the next request asks for another one.
const CLOCK_USED: Duration = Duration::from_secs(10);

/// The time limit of that question.
const CLOCK_LIMIT: Duration = Duration::from_millis(500);

/// The resolution of the server's clock.
const RESOLUTION: Duration = Duration::from_micros(1);

/// The connection in use, and when the bucket was last asked for through it.
type Current = Option<(Arc<Link>, Moment)>;

/// The connection of a store.
#[derive(Debug)]
pub(super) struct Links {
    pub(super) connector: Connector,
    pub(super) env: Env,
    /// The clock of the stream's leader.
    pub(super) clock: StoreClock,
    current: Mutex<Current>,
    opening: tokio::sync::Mutex<()>,
}

impl Links {
    pub(super) fn new(connector: Connector, env: Env) -> Self {
        let (current, opening) = (Mutex::default(), tokio::sync::Mutex::default());
        Self { connector, env, clock: StoreClock::default(), current, opening }
    }

    fn current(&self) -> MutexGuard<'_, Current> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn opened(&self) -> Option<Arc<Link>> {
        self.current().as_ref().map(|(link, _)| link.clone()).filter(|link| link.is_open())
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
        *self.current() = Some((link.clone(), sent));
        Ok(link)
    }

    /// Notes the time in a response about the bucket, and checks the settings.
    fn note(&self, link: &Link, response: &[u8], sent: Moment) -> Result<(), StoreError> {
        let bucket = Bucket::of(response, link, &self.connector.location.keys)?;
        if let Some(us) = bucket.time_us() {
            self.clock.observe(us, RESOLUTION, sent, self.env.now());
        }
        bucket.check().map_err(Fault::not_applied)
    }

    /// Asks for the time again if the latest reading is old. A bucket whose settings have become unsafe is refused from
    /// the next request on.
    async fn refresh(&self, link: &Arc<Link>) {
        let sent = self.env.now();
        match &mut *self.current() {
            // Other requests need not ask too.
            Some((_, asked)) if sent.longest_since(*asked) >= CLOCK_USED => *asked = sent,
            _ => return,
        }
        let asking = bucket::ask(link, &self.connector.location.keys);
        if let Some(Ok(response)) = timeout(&*self.env.clock, CLOCK_LIMIT, asking).await
            && self.note(link, &response, sent).is_err()
        {
            self.give_up(link);
        }
    }

    /// Makes later requests use another connection. Requests that wait for a response on this one continue.
    fn give_up(&self, link: &Arc<Link>) {
        self.current().take_if(|(current, _)| Arc::ptr_eq(current, link));
    }

    pub(super) fn close(&self) {
        self.current().take();
    }

    /// Sends a request over the connection. Returns the payload of the response.
    pub(super) async fn ask(
        self: &Arc<Self>,
        subject: String,
        headers: HeaderMap,
        payload: Bytes,
    ) -> Result<Bytes, StoreError> {
        let link = self.link().await?;
        let mut waiting = Waiting { links: self, link: &link, since: Some(self.env.now()) };
        let (answer, ()) = join(link.request(subject, headers, payload), self.refresh(&link)).await;
        waiting.since = None;
        answer
    }
}

/// A request that waits for its response.
struct Waiting<'a> {
    links: &'a Links,
    link: &'a Arc<Link>,
    since: Option<Moment>,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if self.since.is_some_and(|since| self.links.env.now().shortest_since(since) > STALLED) {
            self.links.give_up(self.link);
        }
    }
}
