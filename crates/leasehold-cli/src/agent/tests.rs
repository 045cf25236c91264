//! Properties of any input: no panic, one final answer for each request, and no secret in an answer.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use leasehold::clock::{SystemClock, timeout};
use leasehold::random::Random;
use serde_json::Value;
use tokio::sync::mpsc;

use super::fields::Fields;
use super::pipe;
use super::requests::begin;
use super::session::{Next, Session};
use crate::config::Settings;

/// A password or a ticket. Corpus files contain `$SECRET` in its place.
const SECRET: &str = "hunter2-9f3k";
/// How many changed copies of each kept input are also tested.
const CHANGED: usize = 300;
/// Far longer than an answer takes.
const LIMIT: Duration = Duration::from_secs(60);

/// An agent that was greeted, and what it sends. Its default store is in memory.
async fn agent() -> (Arc<Session>, mpsc::Receiver<Value>) {
    let settings = Settings::from_text(Path::new("/config.toml"), "store = \"mem:\"").unwrap();
    let (outbox, mut sent) = pipe::queue();
    let session = Arc::new(Session::new(settings, outbox));
    let hello = format!(r#"{{"id":0,"op":"hello","protocol":1,"pid":{}}}"#, std::process::id());
    assert!(matches!(session.take(hello.as_bytes(), begin).await, Next::Watch(_)));
    assert_eq!(sent.recv().await.unwrap()["ev"], "hello");
    (session, sent)
}

fn is_final(message: &Value, operation: &str) -> bool {
    let event = message["ev"].as_str().unwrap();
    !matches!(event, "waiting" | "names" | "content") && (event != "leader" || operation == "leader")
}

/// Sends `line`, cancels the request, and reads its final answer. Returns false if the agent ends.
async fn property(
    session: &Arc<Session>,
    sent: &mut mpsc::Receiver<Value>,
    line: &[u8],
    cancel: u64,
) -> bool {
    // Other stores than the one in memory write files or open connections.
    let text = String::from_utf8_lossy(line);
    if text.contains("sqlite") || text.contains("\"doctor\"") {
        return true;
    }
    let parsed = Fields::parse(line).ok().filter(|_| line.len() <= pipe::MAX_LINE);
    let next = session.take(line, begin).await;
    let Some((id, mut fields)) = parsed else {
        assert_eq!(next, Next::End(2));
        assert!(sent.recv().await.unwrap()["id"].is_null());
        return false;
    };
    assert_eq!(next, Next::Continue);
    let operation = fields.text("op").ok().flatten().unwrap_or_default();
    let request = format!(r#"{{"id":{cancel},"op":"cancel","request":{id}}}"#);
    assert_eq!(session.take(request.as_bytes(), begin).await, Next::Continue);
    // Names of fields and operations are shown.
    let shown = format!("{:?}", serde_json::from_slice::<Value>(line).unwrap().as_object().unwrap().keys());
    // So are names of hosts and options: a changed line can have the secret where one of them stands.
    let as_value = text.match_indices(SECRET).all(|(at, _)| {
        text[..at].ends_with([':', '=', '"']) && text[at + SECRET.len()..].starts_with(['@', '&', '"'])
    });
    let hidden = as_value && !shown.contains(SECRET) && !operation.contains(SECRET);
    let (mut answered, mut cancelled) = (false, false);
    while !(answered && cancelled) {
        let message = timeout(&SystemClock, LIMIT, sent.recv()).await.expect("no final answer").unwrap();
        let own = message["id"] == id;
        assert!(!own || !answered, "{text}: a message after the final answer: {message}");
        answered |= own && is_final(&message, &operation);
        cancelled |= message["id"] == cancel;
        assert!(!hidden || !message.to_string().contains(SECRET), "{text}: {message}");
    }
    true
}

/// `line` with a few bytes changed, left out or repeated.
fn changed(line: &[u8], random: &Random) -> Vec<u8> {
    let below = |most: usize| usize::try_from(random.bits() % (most as u128 + 1)).unwrap();
    let mut bytes = line.to_vec();
    for _ in 0..=below(3) {
        let at = below(bytes.len());
        let end = (at + below(12)).min(bytes.len());
        match below(3) {
            0 => drop(bytes.drain(at..end)),
            1 => bytes.splice(at..at, bytes[at..end].to_vec()).for_each(drop),
            _ if at < bytes.len() => bytes[at] = b"0129-aef{}[]\":,/%\x1b\0\xff"[below(19)],
            _ => {}
        }
    }
    bytes
}

#[tokio::test]
async fn any_line_gets_one_answer_without_a_secret() {
    let random = Random::seeded(1);
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/agent_requests");
    let mut files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().path()).collect();
    files.sort();
    assert!(files.len() > 20);
    let (mut session, mut sent) = agent().await;
    let mut cancel = 1 << 50;
    for file in files {
        let line = std::fs::read_to_string(&file).unwrap().replace("$SECRET", SECRET).into_bytes();
        for copy in 0..=CHANGED {
            let line = if copy == 0 { line.clone() } else { changed(&line, &random) };
            println!("{} {:?}", file.display(), String::from_utf8_lossy(&line));
            cancel += 1;
            if line.contains(&b'\n') || property(&session, &mut sent, &line, cancel).await {
                continue;
            }
            session.end().await;
            (session, sent) = agent().await;
        }
    }
}
