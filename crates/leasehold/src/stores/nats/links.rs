//! The connection of a store. All requests share it. It is opened on demand, and replaced when it is lost or does not
//! respond.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_nats::HeaderMap;
use bytes::Bytes;
use tokio::sync::oneshot;

use super::bucket::{self, Bucket};
use super::connect::Connector;
use super::errors::Refusal;
use super::link::Link;
use crate::clock::{Moment, StoreClock, timeout};
use crate::env::Env;
use crate::error::{Fault, StoreError};

/// If a request is given up, and no response has arrived for this long since it was sent, later requests use another
/// connection.
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
        let (link, bucket) = self.connector.connect(&self.env).await?;
        self.note(bucket, sent)?;
        let link = Arc::new(link);
        *self.current() = Some((link.clone(), sent));
        Ok(link)
    }

    /// Notes the time in a response about the bucket, and checks the settings.
    fn note(&self, bucket: Result<Bucket, Refusal>, sent: Moment) -> Result<(), StoreError> {
        let keys = &self.connector.location.keys;
        let bucket = bucket.map_err(|refusal| refusal.error(&keys.bucket))?;
        if let Some(us) = bucket.time_us() {
            self.clock.observe(us, RESOLUTION, sent, self.env.now());
        }
        bucket.check(keys).map_err(Fault::not_applied)
    }

    /// Asks for the time again if the latest reading is old. Does not wait for the response: it holds up no request. After
    /// it, a bucket whose settings have become unsafe is refused, and a server that is cut off is left.
    fn refresh(self: &Arc<Self>, link: &Arc<Link>) {
        let sent = self.env.now();
        match &mut *self.current() {
            // Other requests need not ask too.
            Some((_, asked)) if sent.longest_since(*asked) >= CLOCK_USED => *asked = sent,
            _ => return,
        }
        let (links, link) = (self.clone(), link.clone());
        tokio::spawn(async move {
            let asking = bucket::ask(&link, &links.connector.location.keys);
            let asked = timeout(&*links.env.clock, CLOCK_LIMIT, asking).await;
            if asked.is_some_and(|asked| asked.and_then(|bucket| links.note(bucket, sent)).is_err()) {
                links.give_up(&link);
            }
        });
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
        self.refresh(&link);
        let answer = link.request(subject, headers, payload).await;
        waiting.since = None;
        *link.heard() = Some(self.env.now());
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
        let (now, heard) = (self.links.env.now(), *self.link.heard());
        let is_long_ago = |moment: Moment| now.shortest_since(moment) > STALLED;
        if self.since.is_some_and(is_long_ago) && heard.is_none_or(is_long_ago) {
            self.links.give_up(self.link);
        }
    }
}
