//! The connection of a store. All requests share it. It is opened on demand, and replaced when it is lost or does not
//! respond.

use std::sync::Arc;
use std::time::Duration;

use async_nats::HeaderMap;
use bytes::Bytes;
use futures_util::stream::BoxStream;

use super::bucket::{self, Bucket};
use super::carrier::Carrier;
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
    /// In the simulation, the way to the server.
    pub(super) carrier: Option<Arc<dyn Carrier>>,
}

impl Links {
    pub(super) fn new(location: Location, env: Env) -> Self {
        let (accepted, clock) = Default::default();
        Self { location, accepted, clock, current: OnDemand::new(env.clone()), env, carrier: None }
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

    /// Asks for the time again if the latest reading is old. After that, a bucket whose settings have become unsafe is
    /// refused, and a server that is cut off is left.
    ///
    /// Does not wait for the response, so that it holds up no request, unless the age of the reading is in doubt: the
    /// first token of a lock comes from this clock, and the responses to other requests do not contain the time.
    async fn refresh(self: &Arc<Self>, link: &Arc<Link>) -> Result<(), StoreError> {
        let sent = self.env.now();
        let in_doubt = self.clock.is_age_in_doubt(sent);
        {
            let mut asked = link.asked();
            if !in_doubt && asked.is_some_and(|asked| sent.longest_since(asked) < CLOCK_USED) {
                return Ok(());
            }
            // Other requests need not ask too.
            *asked = Some(sent);
        }
        let (links, asked) = (self.clone(), link.clone());
        let asking = async move {
            let bucket = bucket::ask(&asked, &links.location.keys).await;
            let noted = bucket.and_then(|bucket| links.note(bucket, sent));
            noted.inspect_err(|_| links.current.give_up(&asked))
        };
        if in_doubt {
            return self.current.response(link, asking).await.map_err(StoreError::of_read);
        }
        let clock = self.env.clock.clone();
        tokio::spawn(async move { timeout(&*clock, CLOCK_LIMIT, asking).await });
        Ok(())
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
        self.refresh(&link).await?;
        self.current.response(&link, link.request(subject, headers, payload)).await
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use async_nats::RequestErrorKind;
    use async_trait::async_trait;
    use futures_util::stream::{self, StreamExt};
    use serde_json::json;

    use super::*;
    use crate::clock::{Clock, TestClock};
    use crate::lease::StoreOptions;
    use crate::url::StoreUrl;

    /// A server whose clock is that of the test. It keeps the subjects of the requests.
    #[derive(Debug, Default)]
    struct Script(Mutex<Vec<String>>);

    #[async_trait]
    impl Carrier for Script {
        async fn request(
            &self,
            subject: String,
            _headers: Vec<(String, String)>,
            _payload: Bytes,
        ) -> Result<Bytes, RequestErrorKind> {
            self.0
                .lock()
                .unwrap()
                .push(subject.rsplit_once(".KV_b").map_or(&*subject, |(api, _)| api).to_owned());
            let mut config = bucket::settings(&crate::stores::nats::keys::Keys::below("b", ""), 1, 1);
            config["metadata"] = json!({ "_nats.ver": "2.12.1" });
            Ok(json!({ "config": config, "ts": "2026-01-01T00:00:00Z" }).to_string().into())
        }

        fn subscribe(&self, _subject: String) -> BoxStream<'static, Bytes> {
            stream::pending().boxed()
        }
    }

    /// Else the first token of a lock may be below those of a record that was deleted.
    #[tokio::test(start_paused = true)]
    async fn a_request_waits_for_the_time_if_the_age_of_the_reading_is_in_doubt() {
        let (clock, script) = (Arc::new(TestClock::default()), Arc::new(Script::default()));
        let url = StoreUrl::parse("nats://h/b").unwrap();
        let location = Location::from_url(url, &mut StoreOptions::default()).unwrap();
        let mut links = Links::new(location, Env::seeded(clock.clone(), 1));
        links.carrier = Some(script.clone());
        let links = Arc::new(links);
        let sent = async || {
            links.ask("write".to_owned(), HeaderMap::new(), Bytes::new()).await.unwrap();
            std::mem::take(&mut *script.0.lock().unwrap())
        };
        let question = "$JS.API.STREAM.INFO";
        assert_eq!(sent().await, [question, "write"], "with the connection");
        assert_eq!(sent().await, ["write"]);
        for seconds in [-3_600, 3_600] {
            clock.step_wall(seconds);
            clock.sleep(Duration::from_secs(2)).await;
            assert_eq!(sent().await, [question, "write"], "{seconds}");
            assert_eq!(sent().await, ["write"], "{seconds}");
        }
    }
}
