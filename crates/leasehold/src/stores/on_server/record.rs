//! The record of a lock as the server returns it.

use std::time::Duration;

use crate::lease::{Holder, Id, PastGrant, Token};

/// The server's state of a lock, at the time of its response.
#[derive(Clone, Debug, PartialEq)]
pub(in super::super) struct Record {
    /// The reading of the server's clock, in microseconds since the Unix epoch.
    pub(in super::super) now_us: u64,
    /// Whether the lease or the cooldown has not ended, or another client holds the lock (*live*).
    pub(in super::super) is_live: bool,
    /// The end of the lease or of the cooldown, or when the lock was released. `None` if it never ends.
    pub(in super::super) until_us: Option<u64>,
    /// When the lock was granted.
    pub(in super::super) from_us: Option<u64>,
    /// The token of leasehold's current or latest grant.
    pub(in super::super) token: Option<Token>,
    /// The token of the previous grant.
    pub(in super::super) previous: Option<Token>,
    /// The latest ended grants, newest first.
    pub(in super::super) past: Vec<PastGrant>,
    pub(in super::super) state: State,
    /// The waiters, in the order of their arrival.
    pub(in super::super) waiters: Vec<Waiter>,
}

/// A waiter in the record.
#[derive(Clone, Debug, Default, PartialEq)]
pub(in super::super) struct Waiter {
    /// `None` if it cannot be read. It still delays the others.
    pub(in super::super) claim: Option<Id>,
    pub(in super::super) holder: Holder,
    /// When the waiter joined.
    pub(in super::super) since_us: u64,
    /// The longest time between two polls of the waiter.
    pub(in super::super) polls: Duration,
}

#[derive(Clone, Debug, PartialEq)]
pub(in super::super) enum State {
    /// Held by a grant of leasehold, whose lease may have ended.
    Held { grant: Id, holder: Holder },
    /// In a cooldown, or free again after one.
    Cooldown { grant: Id },
    /// Released or evicted.
    Free { grant: Id },
    /// Another client holds or held it.
    Foreign { holder: Holder },
}

impl Record {
    /// Returns the time left of the lease or the cooldown.
    pub(in super::super) fn left(&self) -> Duration {
        match self.until_us {
            Some(until_us) if self.is_live => Duration::from_micros(until_us.saturating_sub(self.now_us)),
            Some(_) => Duration::ZERO,
            None => Duration::MAX,
        }
    }

    /// Returns the latest grant, if it is a grant of leasehold.
    pub(in super::super) fn grant(&self) -> Option<Id> {
        match &self.state {
            State::Held { grant, .. } | State::Cooldown { grant } | State::Free { grant } => Some(*grant),
            State::Foreign { .. } => None,
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in super::super) const GRANT: &str = "00112233445566778899aabbccddeeff";

    /// Returns the record of a lock that is held for two more seconds.
    pub(in super::super) fn held() -> Record {
        Record {
            now_us: 10_000_000,
            is_live: true,
            until_us: Some(12_000_000),
            from_us: Some(4_000_000),
            token: Token::new(8),
            previous: Token::new(5),
            past: Vec::new(),
            state: State::Held {
                grant: GRANT.parse().unwrap(),
                holder: Holder { name: "alice".into(), host: "ci-7".into(), pid: 7, ..Holder::default() },
            },
            waiters: Vec::new(),
        }
    }
}
