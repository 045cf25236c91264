mod costs;

use super::*;
use crate::random::Random;

const POLL_INTERVAL: PollInterval =
    PollInterval { min: Duration::from_millis(100), max: Duration::from_secs(2) };
const SECOND: Duration = Duration::from_secs(1);
const MILLISECOND: Duration = Duration::from_millis(1);

fn at(since: Duration) -> Moment {
    let ns = u64::try_from(since.as_nanos()).unwrap();
    Moment::from_raw(ns, i64::try_from(ns).unwrap())
}

/// Returns the pauses of a waiter while one holder renews its lease and never releases it.
fn pauses(age: Duration, count: usize, seed: u64) -> Vec<Duration> {
    let random = Random::seeded(seed);
    let mut pacing = Pacing::new(POLL_INTERVAL, at(Duration::ZERO));
    let mut now = Duration::ZERO;
    let next = |_| {
        // Renewed every ten seconds.
        let lapse = 30 * SECOND - Duration::from_secs(now.as_secs() % 10);
        let pause = pacing.pause(at(now), Token::new(7), age, Some(lapse), &random);
        now += pause;
        pacing.polled(false);
        pause
    };
    (0..count).map(next).collect()
}

#[test]
fn pauses_grow_with_the_hold_and_renewals_do_not_shorten_them() {
    for seed in 0..100 {
        let pauses = pauses(Duration::ZERO, 60, seed);
        assert!(
            pauses.iter().all(|pause| (POLL_INTERVAL.min..=POLL_INTERVAL.max).contains(pause)),
            "{pauses:?}"
        );
        // The longest pause is half of four seconds.
        assert!(pauses[..14].iter().sum::<Duration>() >= 4 * SECOND, "{pauses:?}");
        assert!(pauses[14..].iter().all(|pause| *pause >= POLL_INTERVAL.max.mul_f64(0.6)), "{pauses:?}");
        assert!(pauses[16..].iter().all(|pause| *pause >= POLL_INTERVAL.max.mul_f64(STEADY)), "{pauses:?}");
    }
}

#[test]
fn a_late_waiter_at_a_long_hold_skips_the_short_pauses() {
    for seed in 0..100 {
        // The first pause may have any length, so that waiters that start together do not stay synchronized.
        assert!(
            pauses(10 * SECOND, 10, seed)[1..]
                .iter()
                .all(|pause| *pause >= POLL_INTERVAL.max.mul_f64(STEADY))
        );
    }
}

#[test]
fn the_next_poll_is_just_after_the_lapse_with_jitter() {
    let lapse = 300 * MILLISECOND;
    let polls: Vec<_> = (0..1_000)
        .map(|seed| {
            let random = Random::seeded(seed);
            let mut pacing = Pacing::new(POLL_INTERVAL, at(Duration::ZERO));
            pacing.before = POLL_INTERVAL.max;
            pacing.pause(at(100 * SECOND), None, 100 * SECOND, Some(lapse), &random)
        })
        .collect();
    assert!(polls.iter().all(|poll| (lapse..lapse + POLL_INTERVAL.min / 2).contains(poll)));
    let in_one = |ms| polls.iter().filter(|poll| poll.as_millis() == ms).count();
    let most = (300..350).map(in_one).max().unwrap();
    assert!(most < 50, "{most} of a thousand in one millisecond of fifty");
}

#[test]
fn a_failing_store_is_polled_less_often_until_it_recovers() {
    let random = Random::seeded(1);
    let mut pacing = Pacing::new(POLL_INTERVAL, at(Duration::ZERO));
    let pause = |pacing: &mut Pacing| pacing.pause(at(Duration::ZERO), None, Duration::ZERO, None, &random);
    assert!(pause(&mut pacing) <= POLL_INTERVAL.min.mul_f64(1.25));
    for _ in 0..20 {
        pacing.polled(true);
        pause(&mut pacing);
    }
    assert!(pause(&mut pacing) >= POLL_INTERVAL.max.mul_f64(STEADY));
    for _ in 0..MAX_STRAIN {
        pacing.polled(false);
    }
    assert!(pause(&mut pacing) <= POLL_INTERVAL.min.mul_f64(1.25));
}

#[test]
fn an_unknown_hold_time_counts_as_zero() {
    let ms = Duration::from_millis;
    assert_eq!(held_for(Some(10_000_000), Some(StoreTime::exactly(10_050_000))), ms(50));
    assert_eq!(held_for(Some(10_000_000), Some(StoreTime::between(10_050_000, 10_250_000))), ms(50));
    assert_eq!(held_for(Some(10_000_000), Some(StoreTime::exactly(9_000_000))), Duration::ZERO);
    assert_eq!(held_for(Some(10_000_000), None), Duration::ZERO);
    assert_eq!(held_for(None, Some(StoreTime::exactly(10_050_000))), Duration::ZERO);
}

#[test]
fn any_poll_interval_is_valid() {
    for (first, most) in [(0, 0), (0, 10), (10, 10), (20, 10)] {
        let poll_interval =
            PollInterval { min: Duration::from_millis(first), max: Duration::from_millis(most) };
        let mut pacing = Pacing::new(poll_interval, at(Duration::ZERO));
        for s in 0..100 {
            let pause = pacing.pause(at(s * SECOND), None, Duration::MAX, None, &Random::seeded(1));
            assert!(pause <= poll_interval.max, "{pause:?} of {poll_interval:?}");
            pacing.polled(true);
        }
    }
}
