//! Tests of the rules at their limits, where one nanosecond or one token decides. `sqlite/tests` has tests of the store
//! itself.

use std::sync::Arc;

use super::super::machine::Process;
use super::*;
use crate::clock::TestClock;
use crate::env::Env;
use crate::lease::{Holder, Ttl};

const TOKEN: u64 = 41;

fn machine() -> Machine {
    let me = Process { namespace: "pid:[1]".into(), pid: 4121, start: 77, others: Vec::new() };
    Machine { boot: "boot 1".into(), me: Some(me) }
}

/// Returns the moment `seconds` after the boot. The wall clock is zero, so it does not determine tokens.
fn at(seconds: u64) -> Moment {
    Moment::from_raw(seconds * 1_000_000_000, 0)
}

fn claim() -> Claim {
    let env = Env::seeded(Arc::new(TestClock::default()), 1);
    Claim::new(&env, LockName::new("a").unwrap(), Ttl::DEFAULT, Holder::default())
}

fn held_since(now: Moment) -> Record {
    granted(&claim(), Token::new(TOKEN).unwrap(), Vec::new(), &machine(), now)
}

#[cfg(target_os = "linux")]
fn hold(record: &mut Record) -> &mut Hold {
    match &mut record.state {
        State::Held(hold) => hold,
        other => panic!("{other:?}"),
    }
}

/// Returns a record whose holder's process has ended.
#[cfg(target_os = "linux")]
fn of_the_dead(now: Moment, lock_delay: Duration) -> (Record, Machine) {
    let machine = Machine::this().unwrap();
    let me = machine.me.clone().unwrap();
    let mut record = granted(&claim(), Token::new(TOKEN).unwrap(), Vec::new(), &machine, now);
    // This process started later, so the earlier process with its id has ended.
    hold(&mut record).process = Some(Process { start: me.start.wrapping_sub(1), ..me });
    hold(&mut record).lock_delay = lock_delay;
    (record, machine)
}

#[cfg(target_os = "linux")]
#[test]
fn a_death_need_not_be_written_without_a_delay() {
    let (record, machine) = of_the_dead(at(100), Duration::ZERO);
    assert_eq!(standing(&record, &machine, at(101)), Standing::Lapsed(Some(101_000_000_000)));
    let (record, machine) = of_the_dead(at(100), Duration::from_nanos(1));
    assert_eq!(standing(&record, &machine, at(101)), Standing::JustDied);
}

#[cfg(target_os = "linux")]
#[test]
fn a_death_need_not_be_written_once_the_lease_has_lapsed() {
    let delay = Duration::from_secs(5);
    let (record, machine) = of_the_dead(at(0), delay);
    let lapse = Ttl::DEFAULT.contender_span();
    let lapsed = Moment::from_raw(nanos(lapse), 0);
    assert_eq!(standing(&record, &machine, lapsed), Standing::Taken(delay));
    let before = Moment::from_raw(nanos(lapse) - 1, 0);
    assert_eq!(standing(&record, &machine, before), Standing::JustDied);
}

fn counter(token: u64, ceiling: u64) -> Counter {
    Counter { token, ceiling, boot: machine().boot }
}

#[test]
fn a_grant_has_as_many_tokens_as_its_claim_wants() {
    for (wanted, got) in [(0, 1), (1, 1), (5, 5), (u64::MAX, MAX_TOKENS)] {
        let minted = next_token(&mut counter(TOKEN, 1_000_000), 0, wanted, &machine(), at(1)).unwrap();
        assert_eq!(minted.after, Token::new(TOKEN), "{wanted}");
        assert_eq!(minted.token.get(), TOKEN + got, "{wanted}");
    }
}

#[test]
fn a_token_is_used_up_to_the_ceiling_and_not_beyond() {
    for (ceiling, beyond) in [(TOKEN + 2, false), (TOKEN + 1, false), (TOKEN, true)] {
        let mut counter = counter(TOKEN, ceiling);
        let minted = next_token(&mut counter, 0, 1, &machine(), at(1)).unwrap();
        assert_eq!((minted.token.get(), minted.beyond_ceiling), (TOKEN + 1, beyond), "{ceiling}");
        assert_eq!(counter.ceiling, if beyond { RESERVE } else { ceiling });
    }
}

/// Each change of the boot id starts above the ceiling. So tokens would run ahead of the wall clock without limit if the
/// ceiling rose from the token.
#[test]
fn containers_in_turn_keep_tokens_near_the_wall_clock() {
    let mut counter = counter(0, 0);
    for turn in 0..10_000 {
        let machine = Machine { boot: format!("container:{}", turn % 2), me: None };
        let now = Moment::from_raw(0, turn * 10_000_000);
        let before = counter.token;
        let minted = next_token(&mut counter, 0, 1, &machine, now).unwrap();
        assert!(minted.beyond_ceiling && minted.token.get() > before);
        assert!(minted.token.get() <= now.wall_us() + RESERVE + SPARE, "{turn}: {:?}", minted.token);
    }
    // Tokens that are far ahead of the wall clock rise by a few only.
    let ahead = 1_000_000_000_000;
    let mut counter = Counter { token: ahead, ceiling: ahead, boot: machine().boot };
    next_token(&mut counter, 0, 1, &machine(), at(0)).unwrap();
    assert_eq!((counter.token, counter.ceiling), (ahead + 1, ahead + 1 + SPARE));
}

#[test]
fn a_grant_with_a_lock_delay_must_reach_the_disk() {
    let minted = next_token(&mut counter(TOKEN, 1_000), 0, 1, &machine(), at(1)).unwrap();
    assert!(!must_reach_disk(&claim(), &minted));
    assert!(must_reach_disk(&Claim { lock_delay: Duration::from_millis(1), ..claim() }, &minted));
    let minted = next_token(&mut counter(TOKEN, TOKEN), 0, 1, &machine(), at(1)).unwrap();
    assert!(must_reach_disk(&claim(), &minted));
}

#[test]
fn a_token_is_above_the_one_in_the_row() {
    let minted = next_token(&mut counter(TOKEN, 1_000), TOKEN + 9, 1, &machine(), at(1)).unwrap();
    assert_eq!(minted.token.get(), TOKEN + 9);
}

fn past(token: u64, grant: Id, end: End) -> PastGrant {
    let token = Token::new(token).unwrap();
    let holder = Holder { name: format!("holder of {token}"), ..Holder::default() };
    PastGrant { token, grant, holder, from_us: Some(10_000_000), until_us: None, end, evicted: None }
}

#[test]
fn the_age_of_a_hold_of_another_boot_is_by_the_wall_clock() {
    let record = held_since(at(100));
    // 9 seconds on the boot clock, 50 on the wall clock.
    let now = Moment::from_raw(109_000_000_000, 50_000_000_000);
    let another = Machine { boot: "boot 2".into(), ..machine() };
    for (machine, seconds) in [(machine(), 9), (another, 50)] {
        assert_eq!(held(&record, &machine, now).held_for, Some(Duration::from_secs(seconds)));
    }
}

#[test]
fn a_lock_in_its_cooldown_names_its_last_holder() {
    let cooldown = Cooldown { boot: machine().boot, until_ns: u64::MAX, until_us: u64::MAX };
    let grant = claim().id;
    let history = vec![past(TOKEN + 1, grant, End::Released), past(TOKEN, grant, End::Lapsed)];
    for (token, named) in [(TOKEN + 1, Some("holder of 42")), (TOKEN, Some("holder of 41")), (7, None)] {
        let token = Token::new(token).unwrap();
        let record = Record { token, history: history.clone(), state: State::Cooldown(cooldown.clone()) };
        let held = held(&record, &machine(), Moment::from_raw(0, 50_000_000_000));
        assert_eq!(held.last_holder.map(|holder| holder.name).as_deref(), named);
        assert_eq!(held.held_for, named.map(|_| Duration::from_secs(40)));
    }
}

#[test]
fn a_loss_is_reported_if_the_next_holder_has_released() {
    let lost = claim().id;
    let told = |ended: Option<End>, state: State| {
        let past = ended.map(|end| past(TOKEN, lost, end));
        let record =
            Record { token: Token::new(TOKEN + 1).unwrap(), history: past.into_iter().collect(), state };
        loss(&claim().name, lost, Token::new(TOKEN).unwrap(), Some(&record), &machine(), at(9)).reason
    };
    let held = || held_since(at(1)).state;
    assert_eq!(told(Some(End::Lapsed), State::Free), LossReason::Expired { last_error: None });
    assert!(matches!(told(Some(End::Lapsed), held()), LossReason::TakenOver { .. }));
    // Too many later grants have replaced it in the history, so how it ended is no longer known.
    assert_eq!(told(None, State::Free), LossReason::Expired { last_error: None });
    assert!(matches!(told(None, held()), LossReason::TakenOver { .. }));
    assert_eq!(told(Some(End::Released), held()), LossReason::Ended);
    assert_eq!(told(Some(End::Evicted), State::Free), LossReason::Ended);
}

#[test]
fn waiters_learn_how_long_the_lock_has_been_held() {
    let mut record = held_since(Moment::from_raw(0, 10_000_000_000));
    let now = Moment::from_raw(0, 19_000_000_000);
    assert_eq!(held_for(&record, now), Duration::from_secs(9));
    record.state = State::Free;
    assert_eq!(held_for(&record, now), Duration::ZERO);
}
