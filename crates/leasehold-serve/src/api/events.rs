//! The events as a stream.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::sse::{Event, KeepAlive, Sse};
use futures_util::{Stream, stream};
use leasehold::clock::timeout;
use serde::Deserialize;
use tokio::sync::broadcast::error::RecvError;
use utoipa::IntoParams;

use crate::access::Right;
use crate::app::{App, Arrival, Shared};
use crate::body::Parameters;
use crate::capacity::StaysOpen;
use crate::feed::{FeedEvent, Numbered, Viewer};
use crate::problem::Problem;
use crate::visible::hide_in_lock;

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct EventsQuery {
    /// Only locks whose names begin with this prefix.
    #[serde(default)]
    prefix: String,
    /// Also send `look` when the server has read an unchanged lock, with the remaining time of its lease, and
    /// `unavailable` and `available` when the store stops or starts responding.
    #[serde(default)]
    looks: bool,
}

/// Streams events about locks, as server-sent events.
///
/// With `Last-Event-ID`, the stream begins after that event. If too many events have followed it, or the id is from
/// another server, the first event is `reset`: read the locks again. The stream ends when the caller's token expires.
#[utoipa::path(get, path = "/v1/events", operation_id = "streamEvents", tag = "locks",
    params(EventsQuery,
        ("Last-Event-ID" = Option<String>, Header, description = "The id of the last event that the client got")),
    responses((status = 200, description = "Events, each with this document as its data; the data of `reset` is `{}`",
        content_type = "text/event-stream", body = FeedEvent)))]
pub(crate) async fn events(
    State(app): Shared,
    arrival: Arrival,
    headers: HeaderMap,
    Parameters(query): Parameters<EventsQuery>,
) -> Result<Sse<impl Stream<Item = Result<Event, Infallible>>>, Problem> {
    let prefixes = arrival.caller.require_readable(&query.prefix)?;
    let open = app.capacity.streams.enter(&arrival.caller, None)?;
    let seen = headers.get("last-event-id").and_then(|seen| seen.to_str().ok());
    let mut viewer = app.feed.view(prefixes, seen);
    let missed = std::mem::take(&mut viewer.missed).into();
    let reset = viewer.has_gap;
    let events = EventStream {
        app,
        arrival,
        prefix: query.prefix,
        looks: query.looks,
        viewer,
        missed,
        reset,
        _open: open,
    };
    let stream = stream::unfold(events, |mut events| async move { Some((Ok(events.next().await?), events)) });
    Ok(Sse::new(stream).keep_alive(KeepAlive::new().interval(Duration::from_secs(15))))
}

struct EventStream {
    app: Arc<App>,
    arrival: Arrival,
    prefix: String,
    looks: bool,
    viewer: Viewer,
    missed: VecDeque<Numbered>,
    reset: bool,
    _open: StaysOpen,
}

impl EventStream {
    /// Returns the next event, or `None` when the server stops or the caller's token or session has ended.
    async fn next(&mut self) -> Option<Event> {
        let (app, session) = (self.app.clone(), self.arrival.caller.session.clone());
        tokio::select! {
            biased;
            () = app.sessions.ended(session.as_ref()) => None,
            event = self.until_expired() => event,
        }
    }

    /// Returns the next event, or `None` when the server stops or the caller's token or session has expired.
    async fn until_expired(&mut self) -> Option<Event> {
        let Some(valid) = self.arrival.caller.valid_for(self.app.now()) else {
            return self.following().await;
        };
        let app = self.app.clone();
        let event = timeout(&*app.locker.store().env().clock, valid, self.following()).await??;
        // Check again, because the timer can be late.
        let has_expired = self.arrival.caller.valid_for(app.now()).is_some_and(|valid| valid.is_zero());
        (!has_expired).then_some(event)
    }

    /// Returns the next event, even after the token or session has expired, or `None` when the server stops.
    async fn following(&mut self) -> Option<Event> {
        if std::mem::take(&mut self.reset) {
            return Some(Event::default().event("reset").data("{}"));
        }
        loop {
            let numbered = match self.missed.pop_front() {
                Some(missed) => missed,
                None => tokio::select! {
                    () = self.app.stopping.cancelled() => return None,
                    received = self.viewer.receiver.recv() => match received {
                        Ok(numbered) => numbered,
                        Err(RecvError::Lagged(_)) => return Some(Event::default().event("reset").data("{}")),
                        Err(RecvError::Closed) => return None,
                    }
                },
            };
            let event: &FeedEvent = &numbered.event;
            // An event without a number is not kept, so no viewer can have missed it.
            let is_look = numbered.number == 0;
            if is_look && !self.looks {
                continue;
            }
            let is_of_store = event.lock.is_empty();
            let may_see = is_of_store || self.arrival.caller.may(Right::Read, &event.lock);
            if may_see && (is_of_store || event.lock.starts_with(&self.prefix)) {
                let mut shown = event.clone();
                shown.now = shown.now.map(|lock| hide_in_lock(lock, &self.arrival.caller));
                let data = serde_json::to_string(&shown).unwrap_or_default();
                let sent = Event::default().event(event.kind);
                let sent = if is_look { sent } else { sent.id(self.app.feed.id(numbered.number)) };
                return Some(sent.data(data));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use axum::body::{Body, to_bytes};
    use axum::http::HeaderValue;
    use axum::response::IntoResponse as _;
    use futures_util::FutureExt as _;
    use leasehold::clock::{self, TestClock};
    use leasehold::env::Env;
    use leasehold::lease::StoreOptions;
    use leasehold::{LockName, Locker};

    use super::*;
    use crate::access::{Access, Caller};
    use crate::app::Settings;

    const VALID: Duration = Duration::from_secs(60);

    struct Server {
        app: Arc<App>,
        clock: Arc<TestClock>,
    }

    impl Server {
        async fn new() -> Self {
            let clock = Arc::new(TestClock::default());
            let mut options = StoreOptions::default();
            options.env = Env::seeded(clock.clone(), 1);
            let locker = Locker::open_with("mem:", options).await.unwrap();
            let address = "127.0.0.1:7420".parse().unwrap();
            let settings = Settings::new(address, Access::local("t"), b"s".to_vec());
            Self { app: Arc::new(App::new(locker, settings, address, None)), clock }
        }

        fn publish(&self) {
            self.app.feed.publish(FeedEvent::new("acquired", &LockName::new("a").unwrap()));
        }

        /// Returns the stream for a caller whose token remains valid for `valid`.
        async fn stream(&self, valid: Option<Duration>, seen: Option<u64>) -> Body {
            let at = self.app.now();
            let mut caller = Access::local("t")
                .caller(&HeaderMap::new(), None, self.app.locker.store().env())
                .await
                .unwrap();
            caller.valid_until_us = valid.map(|valid| at.wall_us() + clock::micros(valid));
            let seen = seen.map(|seen| HeaderValue::from_str(&self.app.feed.id(seen)).unwrap());
            let headers = seen.map(|seen| ("last-event-id".parse().unwrap(), seen)).into_iter().collect();
            let query = Parameters(EventsQuery { prefix: String::new(), looks: false });
            let stream = events(State(self.app.clone()), Arrival { at, caller }, headers, query).await;
            stream.map(|stream| stream.into_response().into_body()).unwrap()
        }
    }

    async fn text(body: Body) -> String {
        String::from_utf8(to_bytes(body, usize::MAX).await.unwrap().to_vec()).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn a_stream_ends_when_its_token_expires() {
        let server = Server::new().await;
        let (begin, stream) = (server.app.now(), server.stream(Some(VALID), None).await);
        let endless = server.stream(None, None).await;
        server.publish();
        let ended = clock::timeout(&*server.clock, 2 * VALID, text(stream)).await;
        assert!(ended.expect("it does not end").contains("event: acquired"));
        let lasted = server.app.now().longest_since(begin);
        assert!(lasted >= VALID && lasted < VALID + Duration::from_secs(1), "{lasted:?}");
        let mut endless = Box::pin(text(endless));
        tokio::select! {
            text = &mut endless => panic!("{text}"),
            () = server.app.sleep(100 * VALID) => {}
        }
        server.app.stopping.cancel();
        assert!(endless.await.contains("event: acquired"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_stream_ends_when_its_user_signs_out() {
        let server = Server::new().await;
        let (app, now_us) = (server.app.clone(), server.app.now().wall_us());
        let cookie = HeaderValue::from_str(&app.sessions.open("t", now_us).unwrap()).unwrap();
        let headers = HeaderMap::from_iter([("cookie".parse().unwrap(), cookie)]);
        let mut caller = Caller::with_rights("operator", vec![(String::new(), vec![Right::Read])]);
        caller.session = app.sessions.of(&headers, now_us);
        assert!(caller.session.is_some());
        let query = Parameters(EventsQuery { prefix: String::new(), looks: false });
        let arrival = Arrival { at: app.now(), caller };
        let stream = events(State(app.clone()), arrival, HeaderMap::new(), query).await;
        let mut stream = Box::pin(text(stream.map(|stream| stream.into_response().into_body()).unwrap()));
        assert!(stream.as_mut().now_or_never().is_none());
        app.sessions.end(&headers, now_us);
        server.publish();
        assert_eq!(stream.now_or_never().as_deref(), Some(""));
    }

    #[tokio::test(start_paused = true)]
    async fn an_expired_token_gets_no_missed_event() {
        let server = Server::new().await;
        server.publish();
        server.publish();
        assert!(text(server.stream(Some(VALID), Some(1)).await).await.contains("event: acquired"));
        for seen in [Some(1), None] {
            let stream = server.stream(Some(VALID), seen).await;
            server.publish();
            server.clock.suspend(VALID);
            assert_eq!(text(stream).now_or_never().as_deref(), Some(""));
        }
    }
}
