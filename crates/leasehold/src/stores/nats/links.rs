//! The connection of a store. All requests share it. It is opened on demand, and replaced when it is lost or does not
//! respond.

use std::sync::Arc;
use std::time::Duration;

use async_nats::HeaderMap;
use bytes::Bytes;
use futures_util::stream::BoxStream;

use super::bucket::{self, Bucket};
use super::config::Location;
use super::errors::Refusal;
use super::link::Link;
use crate::clock::{Moment, StoreClock, timeout};
use crate::env::Env;
use crate::error::{Fault, StoreError};
use crate::stores::on_demand::OnDemand;
use crate::stores::password::Accepted;

/// How long a reading of the server's clock is used. Then the next request asks for another one.
const CLOCK_USED: Duration = Duration::from_secs(10);

/// The time limit of that question.
const CLOCK_LIMIT: Duration = Duration::from_millis(500);

/// The connection of a store.
#[derive(Debug)]
pub(super) struct Links {
    pub(super) location: Location,
    pub(super) accepted: Accepted,
    pub(super) env: Env,
    /// The clock of the stream's leader.
    pub(super) clock: StoreClock,
    current: Arc<OnDemand<Link>>,
}

impl Links {
    pub(super) fn new(location: Location, env: Env) -> Self {
        let (accepted, clock) = Default::default();
        Self { location, accepted, clock, current: OnDemand::new(env.clone()), env }
    }

    async fn link(self: &Arc<Self>) -> Result<Arc<Link>, StoreError> {
        let links = self.clone();
        self.current.get(async move { links.open().await }, || {}).await
    }

    async fn open(&self) -> Result<Link, StoreError> {
        let sent = self.env.now();
        let (link, bucket) = self.connect().await?;
        self.note(bucket, sent)?;
        *link.asked() = Some(sent);
        Ok(link)
    }

    /// Notes the time in a response about the bucket, and checks the settings.
    fn note(&self, bucket: Result<Bucket, Refusal>, sent: Moment) -> Result<(), StoreError> {
        let keys = &self.location.keys;
        let bucket = bucket.map_err(|refusal| refusal.error(&keys.bucket))?;
        if let Some(us) = bucket.time_us() {
            self.clock.observe_us(us, sent, self.env.now());
        }
        bucket.check(keys).map_err(Fault::not_applied)
    }

    /// Asks for the time again if the latest reading is old. Does not wait for the response: it holds up no request.
    /// After it, a bucket whose settings have become unsafe is refused, and a server that is cut off is left.
    fn refresh(self: &Arc<Self>, link: &Arc<Link>) {
        let sent = self.env.now();
        {
            let mut asked = link.asked();
            if asked.is_some_and(|asked| sent.longest_since(asked) < CLOCK_USED) {
                return;
            }
            // Other requests need not ask too.
            *asked = Some(sent);
        }
        let (links, link) = (self.clone(), link.clone());
        tokio::spawn(async move {
            let asking = bucket::ask(&link, &links.location.keys);
            let asked = timeout(&*links.env.clock, CLOCK_LIMIT, asking).await;
            if asked.is_some_and(|asked| asked.and_then(|bucket| links.note(bucket, sent)).is_err()) {
                links.current.give_up(&link);
            }
        });
    }

    /// Returns the values that are written with `subject` from now on.
    pub(super) async fn watch(
        self: &Arc<Self>,
        subject: &str,
    ) -> Result<BoxStream<'static, Bytes>, StoreError> {
        self.link().await?.watch(subject).await
    }

    pub(super) fn close(&self) {
        self.current.close();
    }

    /// Sends a request over the connection. Returns the payload of the response.
    pub(super) async fn ask(
        self: &Arc<Self>,
        subject: String,
        headers: HeaderMap,
        payload: Bytes,
    ) -> Result<Bytes, StoreError> {
        let link = self.link().await?;
        self.refresh(&link);
        self.current.response(&link, link.request(subject, headers, payload)).await
    }
}
