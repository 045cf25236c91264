//! How often the waiters in a line poll, and how long a free lock is kept for them.

use std::time::Duration;

use super::Ttl;

/// The maximum number of waiters in a line. Further waiters join when there is room.
pub(crate) const MAX_WAITERS: usize = 64;

/// The longest pause between two polls of a waiter.
pub(crate) const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// Returns the longest pause between two polls of a waiter in a line that asks for a lease of `ttl`. The waiter polls at least
/// about as often as it would renew that lease, so that a dead waiter delays the others for no longer than a dead
/// holder.
fn longest_pause(ttl: Ttl) -> Duration {
    LONGEST_PAUSE.min(ttl.get() / 3)
}

/// Returns the pause between two polls of a waiter with `ahead` waiters before it, if a single waiter would pause for
/// `pause`. As long as no pause reaches the limit, n waiters together poll about ln(n) times as often as one. A waiter
/// that does not fit into the line delays no other waiter, so only the limit for all waiters applies to it: it must join
/// before the line is empty.
pub(crate) fn pause(pause: Duration, ahead: usize, ttl: Ttl) -> Duration {
    let factor = u32::try_from(ahead).unwrap_or(u32::MAX).saturating_add(1);
    let longest = if ahead < MAX_WAITERS { longest_pause(ttl) } else { LONGEST_PAUSE };
    pause.saturating_mul(factor).min(longest)
}

/// Returns how long a free lock is kept for the waiters before a claim, which poll with these `pauses`. This is twice
/// the longest pause, so that each waiter finds the lock free even if a poll fails, plus half a second for the request
/// of each. They all wait at the same time, so their pauses do not add up.
pub(crate) fn reservation(pauses: impl IntoIterator<Item = Duration>) -> Duration {
    let (mut longest, mut count) = (Duration::ZERO, 0);
    for pause in pauses {
        (longest, count) = (longest.max(pause), count + 1);
    }
    2 * longest + Duration::from_millis(500) * count
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLL: Duration = Duration::from_secs(1);

    #[test]
    fn a_line_of_n_polls_about_ln_n_times_as_often_as_one() {
        let pause = |ahead| pause(POLL, ahead, Ttl::DEFAULT);
        let polls: f64 = (0..9).map(|ahead| POLL.div_duration_f64(pause(ahead))).sum();
        assert!((polls - 9_f64.ln()).abs() < 1.0, "{polls}");
        assert_eq!([pause(MAX_WAITERS - 1), pause(MAX_WAITERS)], [LONGEST_PAUSE; 2]);
    }

    #[test]
    fn a_waiter_polls_as_often_as_it_would_renew() {
        let ttl = Ttl::new(3 * POLL / 2).unwrap();
        assert_eq!(pause(POLL, 0, ttl), POLL / 2);
        assert_eq!(pause(POLL, 9, ttl), POLL / 2);
        assert_eq!(pause(POLL, MAX_WAITERS, ttl), LONGEST_PAUSE, "outside the line");
    }
}
