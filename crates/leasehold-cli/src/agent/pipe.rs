//! The lines between host and agent: a thread that reads stdin, a thread that writes stdout, and bounded queues.
//!
//! These are threads, because a pipe that is shared with other processes must not become non-blocking.

use std::io::{self, BufRead, Write as _};
use std::thread;

use serde_json::Value;
use tokio::sync::{mpsc, oneshot};

use crate::escape::escaped;

/// Maximum length of a line, in bytes, in both directions.
pub(super) const MAX_LINE: usize = 1 << 20;
/// Maximum number of requests that wait for the session.
const MAX_UNREAD: usize = 2;
/// Maximum number of messages that wait for the host.
const MAX_UNSENT: usize = 256;
/// How many bytes are collected before they are written.
const MAX_BATCH: usize = 64 << 10;

/// Input from the host.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Input {
    Line(Vec<u8>),
    /// A line with more than [`MAX_LINE`] bytes. Nothing is read after it.
    TooLong,
}

/// Starts to read stdin. The channel is closed at the end of the file.
pub(super) fn read() -> io::Result<mpsc::Receiver<Input>> {
    let (sender, receiver) = mpsc::channel(MAX_UNREAD);
    thread::Builder::new().name("stdin".into()).spawn(move || {
        let mut stdin = io::stdin().lock();
        while let Some(input) = next_line(&mut stdin) {
            let last = input == Input::TooLong;
            if sender.blocking_send(input).is_err() || last {
                return;
            }
        }
    })?;
    Ok(receiver)
}

/// Returns the next line without its end, or `None` at the end of the file. Ignores an incomplete line at the end of
/// the file.
pub(super) fn next_line(input: &mut impl BufRead) -> Option<Input> {
    let mut line = Vec::new();
    loop {
        let found = match input.fill_buf() {
            Ok([]) => return None,
            Ok(found) => found,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(_) => return None,
        };
        let end = found.iter().position(|byte| *byte == b'\n');
        let part = &found[..end.unwrap_or(found.len())];
        if line.len() + part.len() > MAX_LINE {
            return Some(Input::TooLong);
        }
        line.extend_from_slice(part);
        let used = part.len() + usize::from(end.is_some());
        input.consume(used);
        if end.is_some() {
            return Some(Input::Line(line));
        }
    }
}

/// The queue to the host. It is closed if the host no longer reads.
#[derive(Clone, Debug)]
pub(super) struct Outbox(mpsc::Sender<Value>);

/// A place in the queue to the host.
pub(super) struct Place<'a>(Option<mpsc::Permit<'a, Value>>);

impl Outbox {
    /// Waits for a place in the queue. Choose the message only afterwards, so that it contains the latest state.
    pub(super) async fn place(&self) -> Place<'_> {
        Place(self.0.reserve().await.ok())
    }

    pub(super) async fn send(&self, message: Value) {
        self.place().await.send(message);
    }
}

impl Place<'_> {
    pub(super) fn send(self, message: Value) {
        if let Some(permit) = self.0 {
            permit.send(message);
        }
    }
}

/// Creates a queue for `capacity` messages that a test reads.
#[cfg(any(test, fuzzing))]
pub(super) fn queue(capacity: usize) -> (Outbox, mpsc::Receiver<Value>) {
    let (sender, messages) = mpsc::channel(capacity);
    (Outbox(sender), messages)
}

/// A handle to the thread that writes.
pub(super) struct Writer(oneshot::Receiver<()>);

impl Writer {
    /// Waits until all messages are written, or the host no longer reads. Drop all outboxes first.
    pub(super) async fn finished(self) {
        let _ = self.0.await;
    }
}

/// Starts to write to stdout.
pub(super) fn write() -> io::Result<(Outbox, Writer)> {
    let (sender, mut messages) = mpsc::channel(MAX_UNSENT);
    let (finished, is_finished) = oneshot::channel();
    thread::Builder::new().name("stdout".into()).spawn(move || {
        let mut stdout = io::stdout().lock();
        let mut text = Vec::new();
        while let Some(message) = messages.blocking_recv() {
            add_line(&mut text, &message);
            while let Some(message) = (text.len() < MAX_BATCH).then(|| messages.try_recv().ok()).flatten() {
                add_line(&mut text, &message);
            }
            if stdout.write_all(&text).and_then(|()| stdout.flush()).is_err() {
                break;
            }
            text.clear();
            text.shrink_to(MAX_BATCH);
        }
        let _ = finished.send(());
    })?;
    Ok((Outbox(sender), Writer(is_finished)))
}

fn add_line(text: &mut Vec<u8>, message: &Value) {
    // JSON without an end of line.
    text.extend_from_slice(escaped(&message.to_string()).as_bytes());
    text.push(b'\n');
}

#[cfg(test)]
mod tests {
    use std::io::BufReader;

    use super::*;

    #[test]
    fn lines_are_read_whole_and_up_to_their_limit() {
        let mut text = b"one\n\ntwo\nthree".to_vec();
        let mut input = BufReader::with_capacity(2, &*text);
        for line in ["one", "", "two"] {
            assert_eq!(next_line(&mut input), Some(Input::Line(line.into())));
        }
        assert_eq!(next_line(&mut input), None, "a part of a line is not a line");

        text = vec![b'x'; MAX_LINE];
        text.push(b'\n');
        assert_eq!(next_line(&mut &*text), Some(Input::Line(vec![b'x'; MAX_LINE])));
        text.insert(0, b'x');
        assert_eq!(next_line(&mut &*text), Some(Input::TooLong));
    }
}
