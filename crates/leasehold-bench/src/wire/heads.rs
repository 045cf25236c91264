//! Counts HTTP/1.1 requests in the bytes that a client sends, regardless of how they are split into packets.

use std::collections::BTreeMap;

use super::Counter;

/// The maximum length of a request's head, and of a line in a chunked body.
const LONGEST_HEAD: usize = 64 << 10;

/// The parser of the bytes that one client sends on one connection.
#[derive(Debug, Default)]
pub(crate) struct Heads {
    state: State,
    /// The incomplete head or line.
    partial: Vec<u8>,
    counts: BTreeMap<String, u64>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Head,
    /// This much of the body is left.
    Body(u64),
    /// The line with the length of the next chunk.
    ChunkSize,
    /// This much of the chunk is left, including its line break.
    Chunk(u64),
    /// The trailer after the last chunk, up to an empty line.
    Trailer,
    /// The client does not send HTTP/1.1.
    Unreadable,
}

/// The kind under which a connection that cannot be parsed is counted.
pub(crate) const UNREADABLE: &str = "unreadable";

impl Counter for Heads {
    /// Returns the requests whose heads are complete, by method, or by operation if a header names one.
    fn take(&mut self) -> BTreeMap<String, u64> {
        std::mem::take(&mut self.counts)
    }

    fn feed(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            bytes = match self.state {
                State::Unreadable => return,
                State::Head => self.until(b"\r\n\r\n", bytes, Self::head),
                State::Trailer | State::ChunkSize => self.until(b"\r\n", bytes, Self::line),
                State::Body(left) => {
                    let (skipped, rest) = skip(bytes, left);
                    self.state = if skipped == left { State::Head } else { State::Body(left - skipped) };
                    rest
                }
                State::Chunk(left) => {
                    let (skipped, rest) = skip(bytes, left);
                    self.state =
                        if skipped == left { State::ChunkSize } else { State::Chunk(left - skipped) };
                    rest
                }
            };
        }
    }
}

impl Heads {
    /// Collects `bytes` up to `end`, passes the collected bytes to `then`, and returns the rest.
    fn until<'a>(&mut self, end: &[u8], bytes: &'a [u8], then: fn(&mut Self, &[u8])) -> &'a [u8] {
        // `end` may span two packets.
        let before = self.partial.len();
        self.partial.extend_from_slice(bytes);
        let begin = before.saturating_sub(end.len() - 1);
        let found = self.partial[begin..].windows(end.len()).position(|window| window == end);
        let Some(found) = found else {
            if self.partial.len() > LONGEST_HEAD {
                self.give_up();
            }
            return &[];
        };
        let complete = begin + found + end.len();
        let collected = std::mem::take(&mut self.partial);
        then(self, &collected[..complete]);
        &bytes[complete - before..]
    }

    fn head(&mut self, head: &[u8]) {
        let head = String::from_utf8_lossy(head);
        let mut lines = head.trim_start_matches("\r\n").split("\r\n");
        let first = lines.next().unwrap_or_default();
        let (Some((method, _)), true) = (first.split_once(' '), first.ends_with("HTTP/1.1")) else {
            return self.give_up();
        };
        let (mut name, mut body) = (method.to_owned(), State::Head);
        for line in lines {
            let (header, value) = line.split_once(':').unwrap_or((line, ""));
            let value = value.trim();
            match header.to_ascii_lowercase().as_str() {
                "content-length" => match value.parse() {
                    Ok(0) => {}
                    Ok(length) => body = State::Body(length),
                    Err(_) => return self.give_up(),
                },
                "transfer-encoding" if value.eq_ignore_ascii_case("chunked") => body = State::ChunkSize,
                "transfer-encoding" => return self.give_up(),
                // All operations of DynamoDB are POST requests.
                "x-amz-target" => name = value.rsplit('.').next().unwrap_or(value).to_owned(),
                _ => {}
            }
        }
        *self.counts.entry(name).or_default() += 1;
        self.state = body;
    }

    /// Parses a line of a chunked body.
    fn line(&mut self, line: &[u8]) {
        let line = String::from_utf8_lossy(line);
        let line = line.trim();
        if self.state == State::Trailer {
            if line.is_empty() {
                self.state = State::Head;
            }
            return;
        }
        let size = line.split(';').next().unwrap_or(line);
        match u64::from_str_radix(size, 16) {
            Ok(0) => self.state = State::Trailer,
            Ok(size) => self.state = State::Chunk(size.saturating_add(2)),
            Err(_) => self.give_up(),
        }
    }

    fn give_up(&mut self) {
        *self.counts.entry(UNREADABLE.to_owned()).or_default() += 1;
        self.state = State::Unreadable;
        self.partial = Vec::new();
    }
}

/// Skips up to `most` bytes. Returns how many were skipped, and the rest.
fn skip(bytes: &[u8], most: u64) -> (u64, &[u8]) {
    let count = usize::try_from(most).unwrap_or(usize::MAX).min(bytes.len());
    (count as u64, &bytes[count..])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Requests of each kind, pipelined.
    const PIPELINED: &str = "PUT /b/k HTTP/1.1\r\nHost: h\r\nContent-Length: 12\r\n\r\nGET / HTTP/1DELETE /b/k HTTP/1.1\r\nhost: h\r\n\r\n\
        PUT /c HTTP/1.1\r\ntransfer-encoding: Chunked\r\n\r\n4;x=y\r\nab\r\n\r\n0\r\nTrailer: t\r\n\r\n\
        POST / HTTP/1.1\r\nX-Amz-Target: DynamoDB_20120810.UpdateItem\r\ncontent-length: 2\r\n\r\n{}\
        POST / HTTP/1.1\r\ncontent-length: 0\r\n\r\nGET /last HTTP/1.1\r\n\r\n";

    fn counted(parts: &[&[u8]]) -> Vec<(String, u64)> {
        let mut heads = Heads::default();
        parts.iter().for_each(|part| heads.feed(part));
        heads.take().into_iter().collect()
    }

    fn expected() -> Vec<(String, u64)> {
        [("DELETE", 1), ("GET", 1), ("POST", 1), ("PUT", 2), ("UpdateItem", 1)]
            .map(|(name, count)| (name.to_owned(), count))
            .to_vec()
    }

    #[test]
    fn pipelined_requests_are_counted_and_bodies_are_not() {
        assert_eq!(counted(&[PIPELINED.as_bytes()]), expected());
    }

    #[test]
    fn requests_are_counted_however_the_bytes_are_cut() {
        let bytes = PIPELINED.as_bytes();
        for at in 0..bytes.len() {
            assert_eq!(counted(&[&bytes[..at], &bytes[at..]]), expected(), "cut at {at}");
        }
        let single: Vec<&[u8]> = bytes.chunks(1).collect();
        assert_eq!(counted(&single), expected());
    }

    #[test]
    fn a_head_counts_once_it_is_complete() {
        assert_eq!(counted(&[b"GET / HTTP/1.1\r\nhost: h\r\n"]), []);
    }

    #[test]
    fn a_connection_without_http_counts_as_unreadable() {
        for wrong in [
            "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            "GET / HTTP/1.1\r\ncontent-length: x\r\n\r\n",
            "PUT / HTTP/1.1\r\ntransfer-encoding: gzip\r\n\r\n",
            "PUT / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\nxyz\r\n",
        ] {
            let mut heads = Heads::default();
            heads.feed(wrong.as_bytes());
            assert_eq!(heads.take().get(UNREADABLE), Some(&1), "{wrong}");
        }
        let mut heads = Heads::default();
        heads.feed(&vec![b'x'; LONGEST_HEAD + 1]);
        assert_eq!(heads.take().get(UNREADABLE), Some(&1));
    }
}
