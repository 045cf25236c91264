mod drain;

use super::*;
use crate::lease::{End, Id};

const POLL_INTERVAL: PollInterval =
    PollInterval { min: Duration::from_millis(100), max: Duration::from_secs(2) };
const SECOND: Duration = Duration::from_secs(1);
const MILLISECOND: Duration = Duration::from_millis(1);

fn at(since: Duration) -> Moment {
    let ns = u64::try_from(since.as_nanos()).unwrap();
    Moment::from_raw(ns, i64::try_from(ns).unwrap())
}

fn process(pid: u32) -> Holder {
    Holder { name: "ci".into(), host: "build".into(), pid, note: None, value: None }
}

fn past(pid: u32, from: Duration, until: Duration) -> PastGrant {
    PastGrant {
        token: Token::default(),
        grant: Id::random(&Random::seeded(u64::from(pid))),
        holder: process(pid),
        from_us: Some(micros(from)),
        until_us: Some(micros(until)),
        end: End::Released,
    }
}

/// The pauses of a waiter beside one holder that renews and never releases.
fn pauses(turns: Turns, count: usize, seed: u64) -> Vec<Duration> {
    let random = Random::seeded(seed);
    let mut pacing = Pacing::new(POLL_INTERVAL, at(Duration::ZERO));
    let mut now = Duration::ZERO;
    let next = |_| {
        // Renewed every ten seconds.
        let lapse = 30 * SECOND - Duration::from_secs(now.as_secs() % 10);
        let pause = pacing.pause(at(now), Token::new(7), turns, Some(lapse), &random);
        now += pause;
        pacing.looked(false);
        pause
    };
    (0..count).map(next).collect()
}

#[test]
fn pauses_grow_with_the_hold_and_renewals_do_not_shorten_them() {
    for seed in 0..100 {
        let pauses = pauses(Turns::default(), 60, seed);
        assert!(
            pauses.iter().all(|pause| (POLL_INTERVAL.min..=POLL_INTERVAL.max).contains(pause)),
            "{pauses:?}"
        );
        // Half of four seconds is the longest.
        assert!(pauses[..14].iter().sum::<Duration>() >= 4 * SECOND, "{pauses:?}");
        assert!(pauses[14..].iter().all(|pause| *pause >= POLL_INTERVAL.max.mul_f64(0.6)), "{pauses:?}");
        assert!(pauses[16..].iter().all(|pause| *pause >= POLL_INTERVAL.max.mul_f64(STEADY)), "{pauses:?}");
    }
}

#[test]
fn a_late_waiter_at_a_long_hold_skips_the_short_pauses() {
    let turns = Turns { age: 10 * SECOND, contenders: 1, ..Turns::default() };
    for seed in 0..100 {
        // Any value within the first pause, so that waiters that start together do not stay together.
        assert!(pauses(turns, 10, seed)[1..].iter().all(|pause| *pause >= POLL_INTERVAL.max.mul_f64(STEADY)));
    }
}

#[test]
fn the_next_look_is_just_after_the_lapse_and_spread_out() {
    let lapse = 300 * MILLISECOND;
    let turns = Turns { age: 100 * SECOND, contenders: 1, ..Turns::default() };
    let looks: Vec<_> = (0..1_000)
        .map(|seed| {
            let random = Random::seeded(seed);
            let mut pacing = Pacing::new(POLL_INTERVAL, at(Duration::ZERO));
            pacing.before = POLL_INTERVAL.max;
            pacing.pause(at(100 * SECOND), None, turns, Some(lapse), &random)
        })
        .collect();
    assert!(looks.iter().all(|look| (lapse..lapse + POLL_INTERVAL.min / 2).contains(look)));
    let in_one = |ms| looks.iter().filter(|look| look.as_millis() == ms).count();
    let most = (300..350).map(in_one).max().unwrap();
    assert!(most < 50, "{most} of a thousand in one millisecond of fifty");
}

#[test]
fn a_store_in_trouble_is_asked_less_often_and_then_as_before() {
    let random = Random::seeded(1);
    let mut pacing = Pacing::new(POLL_INTERVAL, at(Duration::ZERO));
    let pause = |pacing: &mut Pacing| pacing.pause(at(Duration::ZERO), None, Turns::default(), None, &random);
    assert!(pause(&mut pacing) <= POLL_INTERVAL.min.mul_f64(1.25));
    for _ in 0..20 {
        pacing.looked(true);
        pause(&mut pacing);
    }
    assert!(pause(&mut pacing) >= POLL_INTERVAL.max.mul_f64(STEADY));
    for _ in 0..MOST_STRAIN {
        pacing.looked(false);
    }
    assert!(pause(&mut pacing) <= POLL_INTERVAL.min.mul_f64(1.25));
}

#[test]
fn the_more_contenders_the_less_often_each_asks_before_its_turn() {
    let turns = |contenders| Turns { age: Duration::ZERO, typical: 400 * MILLISECOND, contenders };
    let target = |waited: Duration, turns: Turns| {
        Pacing::new(POLL_INTERVAL, at(Duration::ZERO)).next(at(waited), turns)
    };
    let of = |contenders| Pacing::new(POLL_INTERVAL, at(SECOND)).next(at(SECOND), turns(contenders));
    assert_eq!([of(1), of(4), of(8)], [200, 800, 1_600].map(Duration::from_millis));
    // The hold has lasted for as long as the wait. The longer of the two counts.
    assert_eq!(target(SECOND, turns(1)), 500 * MILLISECOND);
    let mut pacing = Pacing::new(POLL_INTERVAL, at(Duration::ZERO));
    let mut after = |waited: Duration| {
        pacing.hold.1 = at(waited);
        pacing.next(at(waited), turns(8))
    };
    let waited = [0, 400, 1_200, 2_800, 10_000].map(|ms| after(Duration::from_millis(ms)));
    assert_eq!(waited, [1_600, 1_400, 1_000, 400, 400].map(Duration::from_millis));
}

#[test]
fn the_history_shows_recent_contenders_and_the_length_of_turns() {
    let ms = Duration::from_millis;
    let poll_interval = PollInterval { min: ms(10), max: ms(100) };
    let exactly = |now: Duration| Some(StoreTime::exactly(micros(now)));
    // Three processes, one of them twice, and a grant from long before.
    let history = [
        past(1, ms(9_800), ms(9_900)),
        past(2, ms(9_600), ms(9_700)),
        past(1, ms(9_400), ms(9_590)),
        past(4, ms(1_000), ms(9_190)),
    ];
    let turns = |now| Turns::of(&process(3), Some(micros(ms(10_000))), &history, now, poll_interval);
    assert_eq!(turns(exactly(ms(10_050))), Turns { age: ms(50), typical: ms(200), contenders: 3 });
    // If the clock is accurate to 200 ms, each of the two ends and the age may be off by that much.
    let now = micros(ms(10_250));
    let doubtful = turns(Some(StoreTime::between(now - 200_000, now)));
    assert_eq!((doubtful.age, doubtful.contenders), (ms(50), 4));
    assert_eq!(doubtful.typical, (ms(9_000) - ms(200)) / 4);
    // A clock that was set back, or that is not known.
    assert_eq!(turns(exactly(ms(9_000))).age, Duration::ZERO);
    assert_eq!(turns(None), Turns::default());
    assert_eq!(Turns::of(&process(3), None, &history, exactly(ms(10_050)), poll_interval), Turns::default());
}

#[test]
fn any_pace_will_do() {
    for (first, most) in [(0, 0), (0, 10), (10, 10), (20, 10)] {
        let poll_interval =
            PollInterval { min: Duration::from_millis(first), max: Duration::from_millis(most) };
        let mut pacing = Pacing::new(poll_interval, at(Duration::ZERO));
        for s in 0..100 {
            let turns = Turns { age: Duration::MAX, typical: Duration::MAX, contenders: u32::MAX };
            let pause = pacing.pause(at(s * SECOND), None, turns, None, &Random::seeded(1));
            assert!(pause <= poll_interval.max, "{pause:?} of {poll_interval:?}");
            pacing.looked(true);
        }
    }
}
