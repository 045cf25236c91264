//! The events as a stream.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::sse::{Event, KeepAlive, Sse};
use futures_util::{Stream, stream};
use serde::Deserialize;
use tokio::sync::broadcast::error::RecvError;
use utoipa::IntoParams;

use crate::access::Right;
use crate::app::{App, Arrival, Shared};
use crate::body::Parameters;
use crate::feed::{FeedEvent, Numbered, Viewer};
use crate::problem::Problem;

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct EventsQuery {
    /// Only locks whose names begin with this.
    #[serde(default)]
    prefix: String,
    /// Also send `look` when the server has looked at a lock that is as it was, with what remains of its lease, and
    /// `unavailable` and `available` when the store stops or begins to answer.
    #[serde(default)]
    looks: bool,
}

/// How many streams may be open.
const MOST_VIEWERS: usize = 200;

/// Sends what happens to locks, as server-sent events.
///
/// With `Last-Event-ID`, it begins after that event. If too much has happened since, or the id is another server's, the
/// first event is `reset`: read the locks again.
#[utoipa::path(get, path = "/v1/events", params(EventsQuery, ("Last-Event-ID" = Option<String>, Header)), responses(
    (status = 200, content_type = "text/event-stream", body = FeedEvent), (status = 400, body = Problem, content_type = "application/problem+json"), (status = 401, body = Problem, content_type = "application/problem+json"),
    (status = 429, body = Problem, content_type = "application/problem+json")))]
pub(crate) async fn events(
    State(app): Shared,
    arrival: Arrival,
    headers: HeaderMap,
    Parameters(query): Parameters<EventsQuery>,
) -> Result<Sse<impl Stream<Item = Result<Event, Infallible>>>, Problem> {
    if app.feed.viewers() >= MOST_VIEWERS {
        return Err(Problem::new(
            StatusCode::TOO_MANY_REQUESTS,
            "too-many-viewers",
            format!("{MOST_VIEWERS} streams are open"),
        )
        .retry_after(Duration::from_secs(10)));
    }
    let seen = headers.get("last-event-id").and_then(|seen| seen.to_str().ok());
    let mut viewer = app.feed.view(&query.prefix, seen);
    let missed = std::mem::take(&mut viewer.missed).into();
    let reset = viewer.has_gap;
    let streaming =
        Streaming { app, arrival, prefix: query.prefix, looks: query.looks, viewer, missed, reset };
    let stream =
        stream::unfold(
            streaming,
            |mut streaming| async move { Some((Ok(streaming.next().await?), streaming)) },
        );
    Ok(Sse::new(stream).keep_alive(KeepAlive::new().interval(Duration::from_secs(15))))
}

struct Streaming {
    app: Arc<App>,
    arrival: Arrival,
    prefix: String,
    looks: bool,
    viewer: Viewer,
    missed: VecDeque<Numbered>,
    reset: bool,
}

impl Streaming {
    /// The next event; `None` when the server stops.
    async fn next(&mut self) -> Option<Event> {
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
            // Without a number: not kept, so that no viewer can have missed it.
            let is_look = numbered.number == 0;
            if is_look && !self.looks {
                continue;
            }
            let is_of_store = event.lock.is_empty();
            let may_see = is_of_store || self.arrival.caller.may(Right::Read, &event.lock);
            if may_see && (is_of_store || event.lock.starts_with(&self.prefix)) {
                let data = serde_json::to_string(event).unwrap_or_default();
                let sent = Event::default().event(event.kind);
                let sent = if is_look { sent } else { sent.id(self.app.feed.id(numbered.number)) };
                return Some(sent.data(data));
            }
        }
    }
}
