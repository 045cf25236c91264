//! Counts the requests in the bytes that a MySQL client sends. A request of several statements is one.
//! <https://dev.mysql.com/doc/dev/mysql-server/latest/page_protocol_basic_packets.html>

use super::messages::Messages;

/// The command that sends SQL.
const QUERY: u8 = 3;

/// The parser of the packets. The kind of a request is the first word of its SQL.
#[derive(Debug, Default)]
pub(crate) struct Queries;

impl Messages for Queries {
    fn next<'a>(&mut self, bytes: &'a [u8]) -> Option<(Option<String>, &'a [u8])> {
        let &[low, middle, high, number] = bytes.first_chunk()?;
        let length = u32::from_le_bytes([low, middle, high, 0]) as usize;
        let (packet, rest) = bytes[4..].split_at_checked(length)?;
        // Packets with other numbers belong to the login.
        let sql = packet.strip_prefix(&[QUERY]).filter(|_| number == 0);
        let word = sql.and_then(|sql| sql.split(|byte| byte.is_ascii_whitespace()).next());
        Some((word.map(|word| String::from_utf8_lossy(word).to_uppercase()), rest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Counter as _;
    use crate::wire::messages::MessageCounter;

    #[test]
    fn queries_are_counted_however_the_bytes_are_cut() {
        let bytes =
            b"\x02\0\0\x01\x03u\x12\0\0\0\x03select 1;select 2\x0b\0\0\0\x03UPDATE\nt a\x01\0\0\0\x01";
        for size in [1, 4, bytes.len()] {
            let mut queries = MessageCounter::<Queries>::default();
            bytes.chunks(size).for_each(|part| queries.feed(part));
            let expected = ["SELECT", "UPDATE"].map(|name| (name.to_owned(), 1));
            assert_eq!(queries.take(), expected.into(), "{size}");
        }
    }
}
