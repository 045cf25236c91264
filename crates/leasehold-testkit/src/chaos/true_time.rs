//! True time, even for a process whose clocks are faked.
//!
//! faketime replaces the C library's clock functions, but not the contents of `/proc/uptime`: the seconds that the
//! machine has been up, including suspend, rounded down to hundredths. Because the value is always rounded down, an
//! event lies between the lower bound that was read before it and the upper bound that was read after it.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// The resolution of `/proc/uptime`.
const GRAIN_MS: u64 = 10;

/// Reads the time since the machine booted, in milliseconds.
#[derive(Debug)]
pub struct TrueTime(File);

impl TrueTime {
    /// Opens `/proc/uptime`.
    ///
    /// # Errors
    /// When the file does not exist, because the system is not Linux.
    pub fn open() -> io::Result<Self> {
        File::open("/proc/uptime").map(Self)
    }

    /// Returns a lower bound of the current time. Call this before an event.
    ///
    /// # Panics
    /// When `/proc/uptime` cannot be read.
    pub fn at_least_ms(&self) -> u64 {
        let mut text = [0; 64];
        let length = self.0.read_at(&mut text, 0).expect("/proc/uptime is readable");
        let text = std::str::from_utf8(&text[..length]).unwrap_or_default();
        in_ms(text).unwrap_or_else(|| panic!("/proc/uptime says {text:?}"))
    }

    /// Returns an upper bound of the current time. Call this after an event.
    ///
    /// # Panics
    /// When `/proc/uptime` cannot be read.
    pub fn at_most_ms(&self) -> u64 {
        self.at_least_ms() + GRAIN_MS
    }
}

/// Parses a text such as `35923.34 25410.17`: the uptime in seconds with two decimals, and the idle time.
fn in_ms(text: &str) -> Option<u64> {
    let (seconds, hundredths) = text.split_whitespace().next()?.split_once('.')?;
    let (seconds, hundredths): (u64, u64) = (seconds.parse().ok()?, hundredths.parse().ok()?);
    (hundredths < 100).then_some(seconds * 1_000 + hundredths * GRAIN_MS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use leasehold::clock::{Clock, SystemClock};

    #[test]
    fn proc_uptime_is_parsed() {
        assert_eq!(in_ms("35923.34 25410.17\n"), Some(35_923_340));
        assert_eq!(in_ms("7.05 1.00"), Some(7_050));
        assert_eq!(in_ms("7 1"), None);
    }

    #[test]
    fn true_time_bounds_the_clock_of_the_machine() {
        let time = TrueTime::open().unwrap();
        let before = time.at_least_ms();
        let now = SystemClock.now().since_boot();
        assert!(
            u128::from(before) <= now.as_millis() + 1 && now.as_millis() <= u128::from(time.at_most_ms()) + 1
        );
    }
}
