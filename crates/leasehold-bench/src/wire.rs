//! The connection between a contender and its server. Every contender uses the same kind of proxy, which adds a round
//! trip and counts requests.

pub(crate) mod heads;
mod messages;
mod mysql;
mod postgres;
pub(crate) mod proxy;
mod redis;
mod timer;

use std::collections::BTreeMap;

/// Counts the requests in the bytes that one client sends on one connection, regardless of how they are split into
/// packets.
pub(crate) trait Counter: Send {
    /// Parses the next bytes.
    fn feed(&mut self, bytes: &[u8]);

    /// Returns the complete requests since the last call, by kind.
    fn take(&mut self) -> BTreeMap<String, u64>;
}
