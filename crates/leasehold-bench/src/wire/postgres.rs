//! Counts the statements in the bytes that a PostgreSQL client sends.
//! <https://www.postgresql.org/docs/15/protocol-message-formats.html>

use std::collections::HashMap;

use super::messages::Messages;

/// The codes of requests before the startup message, for TLS and for GSS encryption.
const BEFORE_STARTUP: [u32; 2] = [80_877_103, 80_877_104];

/// The parser of the bytes that one client sends on one connection.
#[derive(Debug, Default)]
pub(crate) struct Statements {
    started: bool,
    /// The first words of the prepared statements, by name.
    prepared: HashMap<String, String>,
    /// The first word of the most recently bound statement.
    bound: String,
}

/// The kind of a request is the first word of its statement.
impl Messages for Statements {
    fn next<'a>(&mut self, bytes: &'a [u8]) -> Option<(Option<String>, &'a [u8])> {
        // The startup message has no type.
        let (message, rest) = split(bytes, usize::from(self.started))?;
        if self.started {
            return Some((self.statement(bytes[0], message), rest));
        }
        let code = message.first_chunk().map(|code| u32::from_be_bytes(*code));
        self.started = !code.is_some_and(|code| BEFORE_STARTUP.contains(&code));
        Some((None, rest))
    }
}

impl Statements {
    /// Returns the first word of the statement that this message runs, if it runs one.
    fn statement(&mut self, kind: u8, message: &[u8]) -> Option<String> {
        let mut texts = message.split(|byte| *byte == 0).map(String::from_utf8_lossy);
        let mut text = || texts.next().unwrap_or_default();
        match kind {
            b'Q' => Some(first_word(&text())),
            // The message contains a name and a statement.
            b'P' => {
                let (name, statement) = (text().into_owned(), text());
                self.prepared.insert(name, first_word(&statement));
                None
            }
            // The message contains the name of a portal and the name of a statement.
            b'B' => {
                let (_, name) = (text(), text());
                self.bound = self.prepared.get(&*name).cloned().unwrap_or_default();
                None
            }
            b'E' => Some(self.bound.clone()),
            _ => None,
        }
    }
}

/// Returns the body of the first message in `bytes`, and the bytes after it. The length of the message comes after
/// `skipped` bytes.
fn split(bytes: &[u8], skipped: usize) -> Option<(&[u8], &[u8])> {
    let from_length = bytes.get(skipped..)?;
    let length = usize::try_from(u32::from_be_bytes(*from_length.first_chunk()?)).ok()?;
    // The length includes itself.
    let (message, rest) = from_length.split_at_checked(length.max(4))?;
    Some((&message[4..], rest))
}

fn first_word(statement: &str) -> String {
    statement.split_whitespace().next().unwrap_or_default().to_uppercase()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Counter as _;
    use crate::wire::messages::MessageCounter;

    fn message(kind: &[u8], body: &[u8]) -> Vec<u8> {
        let length = u32::try_from(body.len() + 4).unwrap().to_be_bytes();
        [kind, &length, body].concat()
    }

    #[test]
    fn statements_are_counted_by_their_first_word_in_any_packets() {
        let bytes = [
            message(b"", &BEFORE_STARTUP[0].to_be_bytes()),
            message(b"", b"\0\x03\0\0user\0me\0\0"),
            message(b"Q", b"listen calls\0"),
            message(b"P", b"s1\0\n SELECT 1\0\0\0"),
            message(b"P", b"s2\0UPDATE t\0\0\0"),
            message(b"S", b""),
            [message(b"B", b"\0s2\0\0\0"), message(b"E", b"\0\0\0\0\0"), message(b"S", b"")].concat(),
            [message(b"B", b"\0s1\0\0\0"), message(b"E", b"\0\0\0\0\0"), message(b"S", b"")]
                .concat()
                .repeat(2),
        ]
        .concat();
        for size in [1, 3, bytes.len()] {
            let mut statements = MessageCounter::<Statements>::default();
            bytes.chunks(size).for_each(|part| statements.feed(part));
            let expected = [("LISTEN", 1), ("SELECT", 2), ("UPDATE", 1)];
            assert_eq!(statements.take(), expected.map(|(word, n)| (word.to_owned(), n)).into(), "{size}");
        }
    }
}
