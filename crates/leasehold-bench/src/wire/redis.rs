//! Counts the commands in the bytes that a Redis client sends.
//! <https://redis.io/docs/latest/develop/reference/protocol-spec/>

use super::messages::Messages;

/// The parser of the commands. The kind of a request is the name of its command.
#[derive(Debug, Default)]
pub(crate) struct Commands;

impl Messages for Commands {
    fn next<'a>(&mut self, bytes: &'a [u8]) -> Option<(Option<String>, &'a [u8])> {
        let (name, rest) = command(bytes)?;
        Some((Some(String::from_utf8_lossy(name).to_uppercase()), rest))
    }
}

/// Returns the name of the first command in `bytes`, which is an array of strings, and the bytes after the command.
fn command(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (count, mut rest) = number(bytes)?;
    let mut name = None;
    for _ in 0..count {
        let (length, after) = number(rest)?;
        let (word, after) = after.split_at_checked(length)?;
        rest = after.get(2..)?;
        name.get_or_insert(word);
    }
    Some((name.unwrap_or_default(), rest))
}

/// Returns the number in the first line of `bytes`, which follows the type, and the bytes after that line.
fn number(bytes: &[u8]) -> Option<(usize, &[u8])> {
    let end = bytes.windows(2).position(|two| two == b"\r\n")?;
    let number = std::str::from_utf8(bytes.get(1..end)?).ok()?.parse().ok()?;
    Some((number, &bytes[end + 2..]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Counter as _;
    use crate::wire::messages::MessageCounter;

    #[test]
    fn commands_are_counted_however_the_bytes_are_cut() {
        let bytes = b"*2\r\n$3\r\nget\r\n$5\r\n*1\r\n-\r\n*1\r\n$4\r\nPING\r\n*2\r\n$3\r\nGET\r\n$0\r\n\r\n*1\r\n$4\r\nPI";
        for size in [1, 4, bytes.len()] {
            let mut commands = MessageCounter::<Commands>::default();
            bytes.chunks(size).for_each(|part| commands.feed(part));
            let expected = [("GET", 2), ("PING", 1)].map(|(name, n)| (name.to_owned(), n));
            assert_eq!(commands.take(), expected.into(), "{size}");
        }
    }
}
