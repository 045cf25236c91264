//! Counts the requests of a protocol that consists of complete messages.

use std::collections::BTreeMap;

use super::Counter;

/// The parser of the messages that one client sends on one connection.
pub(crate) trait Messages: Send {
    /// Parses the first message in `bytes`. Returns the kind of the request, if the message is one, and the bytes after
    /// the message. Returns `None` if the message is incomplete.
    fn next<'a>(&mut self, bytes: &'a [u8]) -> Option<(Option<String>, &'a [u8])>;
}

/// Counts the requests that `M` finds.
#[derive(Debug, Default)]
pub(crate) struct MessageCounter<M> {
    messages: M,
    /// An incomplete message.
    partial: Vec<u8>,
    counts: BTreeMap<String, u64>,
}

impl<M: Messages> Counter for MessageCounter<M> {
    fn feed(&mut self, bytes: &[u8]) {
        self.partial.extend_from_slice(bytes);
        let partial = std::mem::take(&mut self.partial);
        let mut rest = partial.as_slice();
        while let Some((request, after)) = self.messages.next(rest) {
            if let Some(kind) = request {
                *self.counts.entry(kind).or_default() += 1;
            }
            rest = after;
        }
        self.partial = rest.to_vec();
    }

    fn take(&mut self) -> BTreeMap<String, u64> {
        std::mem::take(&mut self.counts)
    }
}
