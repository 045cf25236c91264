//! Properties of the parsers of external data. The fuzz targets in `fuzz/` check them on arbitrary bytes, and every
//! test run checks them on the corpus. See docs/fuzzing.md.
//!
//! A property is a function that takes arbitrary bytes and panics if the property does not hold.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a property reports a failure by a panic"
)]

#[cfg(test)]
mod corpus;
mod name;
mod ticket;
mod url;

use std::sync::Mutex;
use std::time::Duration;

use async_trait::async_trait;

pub use self::name::{lock_name, printable};
pub use self::ticket::ticket;
pub use self::url::store_url;
use crate::clock::{Clock, Moment};
use crate::error::{Error, Fault};
pub use crate::protocol::fuzzing::{existence_record, probe_marker, record, update_marks};
#[cfg(any(fuzzing, feature = "dynamodb"))]
pub use crate::stores::dynamodb::fuzzing::dynamodb_item;
#[cfg(any(fuzzing, feature = "etcd"))]
pub use crate::stores::etcd::fuzzing::etcd_key;
#[cfg(feature = "sqlite")]
pub use crate::stores::sqlite::fuzzing::sqlite_row;

/// A property that must hold for arbitrary bytes.
pub type Property = fn(&[u8]);

/// All properties. Each name is that of the fuzz target and of the corpus folder.
pub const TARGETS: &[(&str, Property)] = &[
    #[cfg(any(fuzzing, feature = "dynamodb"))]
    ("dynamodb_item", dynamodb_item),
    #[cfg(any(fuzzing, feature = "etcd"))]
    ("etcd_key", etcd_key),
    ("existence_record", existence_record),
    ("lock_name", lock_name),
    ("printable", printable),
    ("probe_marker", probe_marker),
    ("record", record),
    #[cfg(feature = "sqlite")]
    ("sqlite_row", sqlite_row),
    ("store_url", store_url),
    ("ticket", ticket),
    ("update_marks", update_marks),
];

/// Asserts that `text` cannot move the cursor of a terminal, and cannot reorder or hide text.
pub(crate) fn assert_readable(text: &str) {
    let hostile = |c: char| {
        c.is_control()
            || matches!(c, '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    assert!(!text.contains(hostile), "{text:?}");
}

pub(crate) fn assert_readable_fault(fault: &Fault) {
    assert_readable(&fault.message);
    assert_readable(fault.help.as_deref().unwrap_or_default());
}

pub(crate) fn assert_readable_error(error: &Error) {
    assert_readable(&error.to_string());
    error.help().iter().for_each(|help| assert_readable(help));
}

/// A clock that advances only when a task sleeps. A sleep returns at once.
#[derive(Debug)]
pub(crate) struct StandingClock(Mutex<Duration>);

/// 2026-01-01T00:00:00Z.
pub(crate) const NOW_US: u64 = 1_767_225_600_000_000;

/// The uptime of the machine at [`NOW_US`].
const UP: Duration = Duration::from_secs(86_400);

impl Default for StandingClock {
    fn default() -> Self {
        Self(Mutex::new(Duration::ZERO))
    }
}

#[async_trait]
impl Clock for StandingClock {
    fn now(&self) -> Moment {
        let slept = *self.0.lock().unwrap();
        let ns = |duration: Duration| u64::try_from(duration.as_nanos()).unwrap();
        Moment::from_raw(ns(UP + slept), i64::try_from(NOW_US * 1_000 + ns(slept)).unwrap())
    }

    async fn sleep(&self, duration: Duration) {
        // External input must never cause a very long sleep.
        assert!(duration < Duration::from_secs(3_600), "{duration:?}");
        *self.0.lock().unwrap() += duration;
    }
}

/// Returns a seed that depends on the whole input, so that no input can predict it.
pub(crate) fn seed(data: &[u8]) -> u64 {
    data.iter().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3).rotate_left(23)
    })
}
