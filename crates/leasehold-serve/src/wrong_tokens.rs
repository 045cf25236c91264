//! Requests with a token that is unknown, invalid or expired: they are counted and logged, and answered slowly if many
//! come from one address.
//!
//! Only such requests are slow. A request with a valid token is not affected by others from the same address, which may
//! be that of a proxy.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use leasehold::clock::Moment;

use crate::peer::network;
use crate::rates::Rates;

/// How many requests with a wrong token from one address are answered without a delay: per second, and at once.
const RATE: f64 = 1.0;
const BURST: f64 = 20.0;
/// The delay of the others.
pub(crate) const DELAY: Duration = Duration::from_secs(1);
/// The interval between two log lines.
const LOG_INTERVAL: Duration = Duration::from_secs(10);
/// How many addresses are counted between two log lines.
const MAX_ADDRESSES: usize = 1_000;

#[derive(Debug)]
pub(crate) struct WrongTokens {
    rates: Rates<IpAddr>,
    not_logged: Mutex<NotLogged>,
}

/// The requests since the last log line.
#[derive(Debug, Default)]
struct NotLogged {
    count: u64,
    by_address: HashMap<IpAddr, u64>,
    logged: Option<Moment>,
}

impl Default for WrongTokens {
    fn default() -> Self {
        Self { rates: Rates::new(RATE, BURST), not_logged: Mutex::default() }
    }
}

impl WrongTokens {
    /// Counts a request with a wrong token from `address`. Returns whether it must be answered slowly.
    pub(crate) fn count(&self, address: IpAddr, now: Moment) -> bool {
        let address = network(address);
        let mut not_logged = self.not_logged();
        not_logged.count += 1;
        let by_address = &mut not_logged.by_address;
        if by_address.len() < MAX_ADDRESSES || by_address.contains_key(&address) {
            *by_address.entry(address).or_default() += 1;
        }
        not_logged.log(now);
        drop(not_logged);
        !self.rates.take(address, now)
    }

    fn not_logged(&self) -> MutexGuard<'_, NotLogged> {
        self.not_logged.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Logs the requests since the last log line, if that is not too recent.
    pub(crate) fn log(&self, now: Moment) {
        self.not_logged().log(now);
    }
}

impl NotLogged {
    fn log(&mut self, now: Moment) {
        let is_recent = self.logged.is_some_and(|logged| now.longest_since(logged) < LOG_INTERVAL);
        let most = self.by_address.iter().max_by_key(|(_, count)| **count);
        let Some((address, _)) = most.filter(|_| !is_recent) else { return };
        tracing::warn!(
            requests = self.count,
            most_from = %address,
            "requests had a token that is unknown, invalid or expired"
        );
        *self = Self { logged: Some(now), ..Self::default() };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Moment {
        Moment::from_raw(seconds * 1_000_000_000, (seconds * 1_000_000_000).cast_signed())
    }

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn many_from_one_address_are_slow() {
        let wrong = WrongTokens::default();
        let slow = |address: &str, now: Moment| {
            (0..100).filter(|_| wrong.count(self::address(address), now)).count()
        };
        assert_eq!((slow("192.0.2.1", at(1)), slow("192.0.2.2", at(1))), (80, 80));
        assert_eq!(slow("::ffff:192.0.2.1", at(11)), 90);
        // A client may have all addresses of such a network.
        assert_eq!((slow("2001:db8::1", at(1)), slow("2001:db8::ffff:2", at(1))), (80, 100));
        assert_eq!(slow("2001:db8:0:1::1", at(1)), 80);
    }

    #[test]
    fn the_log_has_one_line_per_interval() {
        let mut not_logged = NotLogged::default();
        let add = |not_logged: &mut NotLogged, now: Moment| {
            not_logged.count += 1;
            *not_logged.by_address.entry(address("192.0.2.1")).or_default() += 1;
            not_logged.log(now);
        };
        add(&mut not_logged, at(1));
        assert_eq!(not_logged.count, 0, "the first one is logged at once");
        for _ in 0..5 {
            add(&mut not_logged, at(2));
        }
        assert_eq!(not_logged.count, 5);
        not_logged.log(at(12));
        assert_eq!((not_logged.count, not_logged.by_address.len()), (0, 0));
    }
}
