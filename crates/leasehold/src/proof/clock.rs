//! The doctor's check of the store's clock, as its responses show it.

use std::time::Duration;

use crate::clock::StoreTime;
use crate::diagnosis::Finding;
use crate::env::Env;
use crate::error::StoreError;
use crate::retry::retry;

/// The number of responses that are compared.
const RESPONSES: usize = 12;

/// The difference above which people should check this machine's clock.
const WALL_CLOCK_OFF: Duration = Duration::from_secs(60);

const CHECK: &str = "store-clock";

/// Checks whether the store's clock can be trusted: its responses must agree within the `margin`. `read` sends a request
/// and returns the clock's bounds. `is_used` is whether decisions depend on this clock.
pub(crate) async fn store_clock<F>(
    env: &Env,
    margin: Duration,
    is_used: bool,
    read: impl Fn() -> F,
) -> Finding
where
    F: Future<Output = Result<Option<StoreTime>, StoreError>>,
{
    match readings(env, read).await {
        Err(error) => Finding::stopped(CHECK, &error),
        Ok((readings, _)) if readings.is_empty() => {
            Finding::warning(CHECK, "the store's responses contain no time (no Date header)")
                .with_help("only a process that waits can take over from a dead holder; `--try` cannot")
        }
        // Earlier responses may have contradicted each other too. This process then uses observation only.
        Ok((readings, earlier)) => judge(&readings, earlier, margin, is_used),
    }
}

/// A reading of the store's clock from one response, in microseconds, less the time that has passed since the start of
/// the check.
#[derive(Clone, Copy, Debug)]
struct ClockReading {
    lo_us: i128,
    hi_us: i128,
    /// The reading of this machine's wall clock, likewise.
    wall_us: i128,
}

/// Returns the readings, and how far the clock's responses have been apart so far.
async fn readings<F>(env: &Env, read: impl Fn() -> F) -> Result<(Vec<ClockReading>, Duration), StoreError>
where
    F: Future<Output = Result<Option<StoreTime>, StoreError>>,
{
    let start = env.now();
    let (mut readings, mut apart) = (Vec::new(), Duration::ZERO);
    for _ in 0..RESPONSES {
        let Some(time) = retry(env, &read).await? else { continue };
        let now = env.now();
        let passed = now.since_boot().saturating_sub(start.since_boot()).as_micros() as i128;
        readings.push(ClockReading {
            lo_us: i128::from(time.lo_us) - passed,
            hi_us: i128::from(time.hi_us) - passed,
            wall_us: i128::from(now.wall_us()) - passed,
        });
        apart = time.apart;
    }
    Ok((readings, apart))
}

fn judge(readings: &[ClockReading], earlier: Duration, margin: Duration, is_used: bool) -> Finding {
    let lo = readings.iter().map(|reading| reading.lo_us).max().unwrap_or(0);
    let hi = readings.iter().map(|reading| reading.hi_us).min().unwrap_or(0);
    // Each reading is a range. If all ranges overlap, they can come from one clock.
    let apart = us(lo - hi).max(earlier);
    let off = readings.last().map_or(0, |last| (last.lo_us - last.wall_us).max(last.wall_us - last.hi_us));
    let off = us(off);
    let responses = readings.len();
    if apart > margin && !is_used {
        let seen = format!("{responses} responses are {apart:?} apart; unused because of ?store_clock=off");
        return Finding::warning(CHECK, seen)
            .with_help("locks are safe as long as every process uses ?store_clock=off");
    }
    if apart > margin {
        return Finding::failed(CHECK, format!("{responses} responses are {apart:?} apart, more than the margin of {margin:?}"))
            .with_help(format!(
                "a dead holder's lock could be taken over too early: add ?margin={}s or ?store_clock=off to the store URL",
                2 * apart.as_secs() + 1
            ));
    }
    if !is_used {
        return Finding::not_applicable(CHECK, "not used: leases end by observation only");
    }
    if off > WALL_CLOCK_OFF {
        return Finding::warning(CHECK, format!("this machine's wall clock is {} s off", off.as_secs())).with_help(
            "locks are not affected, but clouds refuse the signatures of machines that are 5 or 15 minutes off: set the clock",
        );
    }
    if apart > Duration::from_secs(1) {
        return Finding::warning(
            CHECK,
            format!("{responses} responses are {apart:?} apart; the margin is {margin:?}"),
        )
        .with_help("synchronize the clocks of the store's machines, or set a larger ?margin=");
    }
    Finding::passed(CHECK, format!("{responses} responses agree; the margin for differences is {margin:?}"))
}

fn us(difference: i128) -> Duration {
    Duration::from_micros(u64::try_from(difference).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diagnosis::CheckStatus;

    fn reading(lo_s: i128) -> ClockReading {
        ClockReading { lo_us: lo_s * 1_000_000, hi_us: (lo_s + 1) * 1_000_000, wall_us: 1_000_000_000 }
    }

    #[test]
    fn clocks_that_disagree_by_more_than_the_margin_fail() {
        let margin = Duration::from_secs(5);
        for (readings, verdict) in [
            (vec![reading(1_000), reading(1_000)], CheckStatus::Passed),
            // One clock can give readings that are a second apart, because a Date is accurate to a second.
            (vec![reading(1_000), reading(1_001)], CheckStatus::Passed),
            (vec![reading(1_000), reading(1_003), reading(1_000)], CheckStatus::Warning),
            (vec![reading(1_000), reading(1_007), reading(1_000)], CheckStatus::Failed),
            (vec![reading(1_100), reading(1_100)], CheckStatus::Warning),
        ] {
            let finding = judge(&readings, Duration::ZERO, margin, true);
            assert_eq!(finding.verdict, verdict, "{finding:?}");
            assert_eq!(finding.help.is_empty(), verdict == CheckStatus::Passed, "{finding:?}");
        }
        let apart = [reading(1_000), reading(1_007)];
        assert!(judge(&apart, Duration::ZERO, margin, true).help[0].contains("?margin=13s"));
        let earlier = Duration::from_secs(7);
        assert_eq!(
            judge(&[reading(1_000)], earlier, margin, true).verdict,
            CheckStatus::Failed,
            "the clock was set in the meantime"
        );
        // With `store_clock=off`, no decision depends on that clock.
        assert_eq!(judge(&apart, Duration::ZERO, margin, false).verdict, CheckStatus::Warning);
    }
}
