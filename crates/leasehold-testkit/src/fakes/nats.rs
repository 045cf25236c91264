//! A NATS server in memory, with just enough of JetStream for a key-value bucket. It knows nothing of locks.
//!
//! A request is an HTTP request whose path is the subject, so that it can travel through the networks of the simulation.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ::http::{HeaderMap, Request, Response};
use bytes::Bytes;
use leasehold::env::Env;
use serde_json::{Value, json};
use tokio::sync::broadcast;

use super::Server;
use crate::http::rfc3339;

/// The header that marks a key as deleted.
const OPERATION: &str = "KV-Operation";

/// The header with the sequence that the last message with the subject must have.
pub const EXPECTED: &str = "Nats-Expected-Last-Subject-Sequence";

/// Where a client receives what it sends itself.
pub(crate) const INBOX: &str = "/_INBOX";

/// Called with the key, and its values before and after each write. A deleted key has none.
type OnCommit = dyn Fn(&str, Option<&[u8]>, Option<&[u8]>) + Send + Sync;

/// The server.
pub struct FakeNats {
    env: Env,
    on_commit: Box<OnCommit>,
    state: Mutex<State>,
    copies: broadcast::Sender<(String, Bytes)>,
}

#[derive(Debug, Default)]
struct State {
    /// The last message with each subject.
    messages: BTreeMap<String, Message>,
    /// Of all messages.
    sequence: u64,
}

#[derive(Clone, Debug)]
struct Message {
    sequence: u64,
    headers: String,
    payload: Bytes,
    stored_us: u64,
}

impl Message {
    fn value(&self) -> Option<&[u8]> {
        (!self.headers.contains(OPERATION)).then_some(&*self.payload)
    }
}

impl fmt::Debug for FakeNats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FakeNats").field("state", &*self.state()).finish_non_exhaustive()
    }
}

impl FakeNats {
    /// Creates a server with the clock of `env` on which every bucket exists. Calls `on_commit` with the key, and its
    /// values before and after each write of a request.
    pub fn new(
        env: Env,
        on_commit: impl Fn(&str, Option<&[u8]>, Option<&[u8]>) + Send + Sync + 'static,
    ) -> Self {
        // A subscriber that lags behind misses messages.
        let copies = broadcast::Sender::new(16);
        Self { env, on_commit: Box::new(on_commit), state: Mutex::default(), copies }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the value of the last message with `subject`.
    pub(crate) fn value(&self, subject: &str) -> Option<Bytes> {
        self.state().messages.get(subject).and_then(Message::value).map(Bytes::copy_from_slice)
    }

    /// Returns the copies of all messages from now on, with their subjects.
    #[cfg_attr(not(feature = "nats"), allow(dead_code, reason = "only the store for NATS watches"))]
    pub(crate) fn copies(&self) -> broadcast::Receiver<(String, Bytes)> {
        self.copies.subscribe()
    }

    /// Deletes a key by hand: with a marker, like `nats kv del` and `nats kv purge`, or without, like `nats stream
    /// purge`. Returns whether it had a value.
    pub(crate) fn delete(&self, subject: &str) -> bool {
        let had_value = self.value(subject).is_some();
        let operation = ["DEL", "PURGE"].get((3.0 * self.env.random.fraction()) as usize);
        let mut state = self.state();
        match operation {
            Some(operation) => {
                self.put(&mut state, subject, format!("{OPERATION}: {operation}\r\n"), Bytes::new());
            }
            None => drop(state.messages.remove(subject)),
        }
        had_value
    }

    /// Returns the server's response to a message with `subject`.
    pub fn response(&self, subject: &str, headers: &HeaderMap, payload: &Bytes) -> Value {
        let question: Value = serde_json::from_slice(payload).unwrap_or_default();
        let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        let mut state = self.state();
        if let Some(stream) = subject.strip_prefix("$JS.API.STREAM.INFO.") {
            return self.info(&state, stream, &question);
        } else if subject.starts_with("$JS.API.STREAM.MSG.GET.") {
            let subject = question["last_by_subj"].as_str().unwrap_or_default();
            return match state.messages.get(subject) {
                Some(Message { sequence, headers, payload, stored_us }) => {
                    let hdrs = base64(format!("NATS/1.0\r\n{headers}\r\n").as_bytes());
                    let mut message = json!({
                        "subject": subject, "seq": sequence, "hdrs": hdrs, "time": rfc3339(*stored_us),
                    });
                    if !payload.is_empty() {
                        message["data"] = base64(payload).into();
                    }
                    json!({ "message": message })
                }
                None => refusal(404, 10_037, "no message found"),
            };
        }
        let Some((bucket, key)) = subject.strip_prefix("$KV.").and_then(|rest| rest.split_once('.')) else {
            return refusal(400, 10_000, "not a subject of a bucket");
        };
        let before = state.messages.get(subject).cloned();
        let sequence = before.as_ref().map_or(0, |message| message.sequence);
        if text(EXPECTED).is_some_and(|expected| expected != sequence.to_string()) {
            let mut answer = refusal(400, 10_071, &format!("wrong last sequence: {sequence}"));
            (answer["stream"], answer["seq"]) = (json!(format!("KV_{bucket}")), json!(0));
            return answer;
        }
        // The server keeps the names as the client writes them.
        let kept = [EXPECTED, OPERATION].into_iter().filter_map(|name| text(name).map(|text| (name, text)));
        let headers = kept.map(|(name, text)| format!("{name}: {text}\r\n")).collect();
        let after = self.put(&mut state, subject, headers, payload.clone());
        (self.on_commit)(key, before.as_ref().and_then(Message::value), after.value());
        json!({ "stream": format!("KV_{bucket}"), "seq": after.sequence })
    }

    /// Stores a message, and publishes its copy.
    fn put(&self, state: &mut State, subject: &str, headers: String, payload: Bytes) -> Message {
        state.sequence += 1;
        let stored_us = self.env.now().wall_us();
        let message = Message { sequence: state.sequence, headers, payload: payload.clone(), stored_us };
        state.messages.insert(subject.to_owned(), message.clone());
        // There may be no subscriber.
        let _ = self.copies.send((subject.replacen("$KV", "leasehold", 1), payload));
        message
    }

    /// Returns the settings that leasehold looks at, the time, and the subjects that `question` asks for.
    fn info(&self, state: &State, stream: &str, question: &Value) -> Value {
        let bucket = stream.trim_start_matches("KV_");
        let filter = question["subjects_filter"].as_str().map(|filter| filter.trim_end_matches('>'));
        let subjects =
            state.messages.keys().filter(|subject| filter.is_some_and(|all| subject.starts_with(all)));
        let (total, offset) = (subjects.clone().count(), question["offset"].as_u64().unwrap_or(0));
        let page: BTreeMap<_, _> = subjects.skip(offset as usize).map(|subject| (subject, 1)).collect();
        json!({
            "config": {
                "name": stream, "retention": "limits", "storage": "file", "num_replicas": 3,
                "max_msgs_per_subject": 1, "metadata": { "_nats.ver": "2.12.1" },
                "republish": { "src": format!("$KV.{bucket}.>"), "dest": format!("leasehold.{bucket}.>") },
            },
            "cluster": { "leader": "one" },
            "state": { "subjects": page },
            "total": total,
            "ts": rfc3339(self.env.now().wall_us()),
        })
    }
}

impl Server for FakeNats {
    fn answer(&self, request: &Request<Bytes>) -> Response<Bytes> {
        let (path, payload) = (request.uri().path(), request.body());
        if path == INBOX {
            return Response::new(payload.clone());
        }
        let subject = path.trim_start_matches('/');
        Response::new(self.response(subject, request.headers(), payload).to_string().into())
    }

    /// Nobody responds: the stream has no leader.
    fn refuses(&self, _is_denied: bool, _wait: Option<Duration>) -> Response<Bytes> {
        let mut response = Response::default();
        *response.status_mut() = ::http::StatusCode::SERVICE_UNAVAILABLE;
        response
    }
}

/// Returns a response with an error.
pub(crate) fn refusal(code: u16, err_code: u32, description: &str) -> Value {
    json!({ "error": { "code": code, "err_code": err_code, "description": description } })
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let digits = |chunk: &[u8]| {
        let bits = (0..3).fold(0, |bits, n| bits << 8 | u32::from(chunk.get(n).copied().unwrap_or(0)));
        let length = chunk.len();
        (0..4).map(move |n| match n {
            n if n <= length => char::from(DIGITS[(bits >> (18 - 6 * n) & 63) as usize]),
            _ => '=',
        })
    };
    bytes.chunks(3).flat_map(digits).collect()
}
