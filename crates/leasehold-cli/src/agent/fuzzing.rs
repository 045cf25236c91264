//! Properties that hold for any input of the agent: no panic, one final response to each request, bounded memory, and
//! no secret in a response.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a property fails by panicking")]

use std::collections::{HashMap, VecDeque};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use leasehold::clock::{SystemClock, timeout};
use serde_json::{Map, Value};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::mpsc;
use tokio::task::yield_now;

use super::fields::Fields;
use super::pipe::{self, Input};
use super::requests::begin;
use super::session::{Next, Session};
use crate::config::Settings;

/// A password or a ticket. Inputs contain `$SECRET` in its place.
const SECRET: &str = "hunter2-9f3k";
/// The maximum length of a message, in bytes. No request of the corpus, however long, gets a longer response.
const LONGEST: usize = 64 << 10;
/// More messages than any input causes.
const MESSAGES: usize = 1 << 16;
/// A time limit that is far longer than any response takes.
const LIMIT: Duration = Duration::from_secs(60);
/// How many times other tasks may run before the next line is sent.
const TURNS: usize = 64;

thread_local! {
    static RUNTIME: Runtime = Builder::new_current_thread().enable_all().build().unwrap();
}

/// Sends `data` to an agent as the lines of a host. If it contains no `hello`, sends one first.
pub(crate) fn agent_requests(data: &[u8]) {
    let mut text = String::from_utf8_lossy(data).replace("$SECRET", SECRET).into_bytes();
    // Text at the end without a newline would not be a line.
    text.push(b'\n');
    RUNTIME.with(|runtime| runtime.block_on(serve(&text)));
}

async fn serve(text: &[u8]) {
    // The default store is in memory.
    let settings = Settings::from_text(Path::new("/config.toml"), "store = \"mem:\"").unwrap();
    let (outbox, sent) = pipe::queue(MESSAGES);
    let session = Arc::new(Session::new(settings, None, outbox));
    let mut host = Host::new(sent);
    if !text.windows(5).any(|word| word == b"hello") {
        host.greet(&session).await;
    }
    let mut input = text;
    while let Some(input) = pipe::next_line(&mut input) {
        let goes_on = match input {
            Input::Line(line) if host.leaves_this_machine(&line) => true,
            Input::Line(line) => host.send(&session, &line).await,
            Input::TooLong => false,
        };
        if !goes_on {
            break;
        }
    }
    host.end(session).await;
}

/// The host, with its pending requests.
struct Host {
    sent: mpsc::Receiver<Value>,
    /// The operations of the requests without a final response, by id.
    pending: HashMap<u64, VecDeque<String>>,
    /// Whether the secret has occurred only in places that no response may show.
    hides: bool,
}

impl Host {
    fn new(sent: mpsc::Receiver<Value>) -> Self {
        Self { sent, pending: HashMap::new(), hides: true }
    }

    async fn greet(&mut self, session: &Arc<Session>) {
        let hello = format!(r#"{{"id":0,"op":"hello","protocol":1,"pid":{}}}"#, std::process::id());
        assert!(matches!(session.take(hello.as_bytes(), begin).await, Next::Watch(_)));
        assert_eq!(self.sent.recv().await.unwrap()["ev"], "hello");
    }

    /// Returns whether a request would write a file or open a connection to another machine.
    fn leaves_this_machine(&self, line: &[u8]) -> bool {
        let fields = fields(line).unwrap_or_default();
        ["store", "object"].into_iter().filter_map(|name| fields.get(name)?.as_str()).any(|url| {
            let is_here = ["@127.0.0.1:1/", "=http://127.0.0.1:1&"].iter().any(|here| url.contains(here));
            url.contains(':') && !url.starts_with("mem:") && !is_here
        })
    }

    /// Sends `line` and gives its request some time. Returns whether the agent continues.
    async fn send(&mut self, session: &Arc<Session>, line: &[u8]) -> bool {
        self.hides &= fields(line).is_none_or(|fields| hides(&fields));
        let next = session.take(line, begin).await;
        let Ok((id, mut fields)) = Fields::parse(line) else {
            assert_eq!(next, Next::End(2));
            self.pending.entry(NO_REQUEST).or_default().push_back(String::new());
            return false;
        };
        let operation = fields.text("op").ok().flatten().unwrap_or_default();
        let goes_on = !matches!(next, Next::End(_));
        // The agent ends if the host reuses the id of a pending request or does not begin with `hello`.
        let (id, operation) = match next {
            Next::End(_) if !session.is_idle() => (NO_REQUEST, String::new()),
            _ => (id, operation),
        };
        self.pending.entry(id).or_default().push_back(operation);
        for _ in 0..TURNS {
            if session.is_idle() {
                break;
            }
            yield_now().await;
        }
        goes_on
    }

    /// Cancels all requests, reads their responses, and ends the agent.
    async fn end(mut self, session: Arc<Session>) {
        self.pending.keys().for_each(|id| session.cancel(*id));
        while !self.pending.is_empty() {
            let message = timeout(&SystemClock, LIMIT, self.sent.recv()).await.expect("no final answer");
            self.read(&message.unwrap());
        }
        assert!(session.is_idle(), "a request without a response counts towards the limits");
        session.end().await;
        drop(session);
        // The channel is closed when no task works for the host any more.
        while let Some(message) = timeout(&SystemClock, LIMIT, self.sent.recv()).await.expect("no end") {
            self.read(&message);
        }
    }

    fn read(&mut self, message: &Value) {
        let text = message.to_string();
        assert!(text.len() <= LONGEST, "{} bytes: {text:.200}", text.len());
        assert!(!self.hides || !text.contains(SECRET), "{text}");
        // Without an id, it is an event about a hold.
        let Some(id) = message.get("id") else { return };
        let id = id.as_u64().unwrap_or(NO_REQUEST);
        let pending = self.pending.get_mut(&id).unwrap_or_else(|| panic!("a response to no request: {text}"));
        if is_final(message, pending.front().unwrap()) {
            pending.pop_front();
        }
        self.pending.retain(|_, pending| !pending.is_empty());
    }
}

/// Takes the place of an id in a response to a line that belongs to no request.
const NO_REQUEST: u64 = u64::MAX;

fn is_final(message: &Value, operation: &str) -> bool {
    let event = message["ev"].as_str().unwrap();
    !matches!(event, "waiting" | "names" | "content") && (event != "leader" || operation == "leader")
}

fn fields(line: &[u8]) -> Option<Map<String, Value>> {
    match serde_json::from_slice(line).ok()? {
        Value::Object(fields) => Some(fields),
        _ => None,
    }
}

/// Returns whether the secret occurs in a request only in a ticket, or in the password or an option of a URL.
fn hides(fields: &Map<String, Value>) -> bool {
    fields.iter().all(|(name, value)| match (&**name, value) {
        ("ticket", _) => true,
        ("store" | "object", Value::String(url)) => {
            url.match_indices(SECRET).all(|(at, _)| is_secret(&url[..at], &url[at + SECRET.len()..]))
        }
        _ => !name.contains(SECRET) && !value.to_string().contains(SECRET),
    })
}

/// Returns whether the text between these two parts of a URL is a password or the value of an option.
fn is_secret(before: &str, after: &str) -> bool {
    let Some((_, before)) = before.split_once("://") else { return false };
    let is_password = before.ends_with(':') && !before.contains(['/', '?', '#', '@']);
    let is_option = before.ends_with('=') && before.contains('?');
    (is_password && after.starts_with('@')) || (is_option && (after.is_empty() || after.starts_with('&')))
}

#[cfg(test)]
mod tests {
    use leasehold::random::Random;

    use super::*;

    /// How many changed copies of each corpus file are also tested.
    const CHANGED: usize = 300;
    /// The length of the text that replaces a field.
    const LONG: usize = 128 << 10;

    fn corpus() -> Vec<Vec<u8>> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/agent_requests");
        let mut files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().path()).collect();
        files.sort();
        assert!(files.len() > 20);
        files.iter().map(|file| std::fs::read(file).unwrap()).collect()
    }

    /// Returns `text` with a few bytes changed, omitted or repeated.
    fn changed(text: &[u8], random: &Random) -> Vec<u8> {
        let below = |most: usize| usize::try_from(random.bits() % (most as u128 + 1)).unwrap();
        let mut bytes = text.to_vec();
        for _ in 0..=below(3) {
            let at = below(bytes.len());
            let end = (at + below(12)).min(bytes.len());
            match below(3) {
                0 => drop(bytes.drain(at..end)),
                1 => bytes.splice(at..at, bytes[at..end].to_vec()).for_each(drop),
                _ if at < bytes.len() => bytes[at] = b"0129-aef{}[]\":,/%\x1b\0\n"[below(19)],
                _ => {}
            }
        }
        bytes
    }

    #[test]
    fn every_line_gets_one_response_without_a_secret() {
        let random = Random::seeded(1);
        for text in corpus() {
            for copy in 0..=CHANGED {
                let text = if copy == 0 { text.clone() } else { changed(&text, &random) };
                println!("{:?}", String::from_utf8_lossy(&text));
                agent_requests(&text);
            }
        }
    }

    /// Tests texts that JSON escapes make six times as long.
    #[test]
    fn a_response_repeats_no_long_text() {
        let requests = corpus().into_iter().filter_map(|line| fields(&line));
        for fields in requests {
            for name in fields.keys().filter(|name| *name != "id") {
                let mut fields = fields.clone();
                fields[name] = "\u{1}".repeat(LONG / 6).into();
                println!("{name} of {:?}", fields.get("op"));
                agent_requests(Value::Object(fields).to_string().as_bytes());
            }
        }
    }
}
