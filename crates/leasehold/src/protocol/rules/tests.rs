//! Tests of record contents and of releases. The rules themselves are tested in `tests/protocol.rs` and against the
//! model.

use super::*;
use crate::LockName;
use crate::env::Env;
use crate::lease::{Holder, State, Ttl};

const RULES: Rules = Rules { store_clock: true, margin: Duration::from_secs(5), lapsed_is_over: false };
const NOW_US: u64 = 1_000_000_000;

fn id(number: u8) -> Id {
    format!("{number:032x}").parse().unwrap()
}

fn store() -> StoreTime {
    StoreTime::between(NOW_US - 1_000, NOW_US)
}

fn claim() -> Claim {
    let holder = Holder { value: Some(String::from("a value")), ..Holder::this_process() };
    Claim { id: id(1), ..Claim::new(&Env::system(), LockName::new("x").unwrap(), Ttl::DEFAULT, holder) }
}

fn held_record() -> Record {
    grant(&claim(), None, Some(store()), Some(0), id(2)).unwrap()
}

#[test]
fn grants_and_renewals_carry_the_latest_store_time() {
    let granted = held_record();
    assert_eq!((granted.granted_at_us, granted.renewed_at_us), (Some(NOW_US), Some(NOW_US)));
    let unseen = unseen_grant(&claim(), Some(store()), id(2));
    assert_eq!((unseen.granted_at_us, unseen.renewed_at_us), (Some(NOW_US), Some(NOW_US)));
    let later = StoreTime::between(NOW_US, NOW_US + 5);
    let again = renewed(&granted, None, Some(later), id(3));
    assert_eq!((again.granted_at_us, again.renewed_at_us), (Some(NOW_US), Some(NOW_US + 5)));
}

/// The size of the first permit, from the first grant on.
#[test]
fn each_write_keeps_the_size_of_a_record_and_only_its_holder_changes_it() {
    let of = |size, number| Claim { size, id: id(number), ..claim() };
    let sized =
        |claim: &Claim, over: &Record| grant(claim, Some(over), Some(store()), Some(0), id(9)).unwrap().size;
    let first = grant(&of(Some(3), 1), None, Some(store()), Some(0), id(2)).unwrap();
    assert_eq!((first.size, held(&first, None, None).size), (3, Some(3)));
    assert_eq!(unseen_grant(&of(Some(3), 1), None, id(2)).size, 3, "if the record has none");
    let free = freed(&first, End::Released, None, Some(store()), id(3));
    for over in [&first, &free, &evicted(&first, None, Some(store()), id(3))] {
        assert_eq!([None, Some(3), Some(5)].map(|size| sized(&of(size, 4), over)), [3; 3], "{over:?}");
    }
    let repeated = Claim { repeatable: true, ..of(None, 1) };
    assert_eq!(sized(&repeated, &first), 3);
    assert_eq!([None, Some(5), Some(0)].map(|size| renewed(&first, size, None, id(5)).size), [3, 5, 0]);
    let unsized_record = held_record();
    assert_eq!([None, Some(5)].map(|size| sized(&of(size, 4), &unsized_record)), [0, 5]);
}

#[test]
fn a_write_is_early_by_the_stores_time_when_it_was_sent() {
    let sent = Moment::from_raw(0, 0);
    let second = 1_000_000_000;
    let answered = Moment::from_raw(2 * second, 2 * second.cast_signed());
    let record = held_record();
    // The store's clock reads 10 s more than the record shows. Two of these seconds have passed since the send, on a
    // clock that may be slow.
    let now = StoreTime::between(NOW_US + 10_000_000, u64::MAX);
    let early = written_early(&record, sent, Some(now), answered);
    let since_sent = Duration::from_secs(2).mul_f64(1.0 + RATE_ERROR);
    assert_eq!(early, Duration::from_secs(10) - since_sent);
    assert_eq!(written_early(&record, sent, Some(store()), answered), Duration::ZERO);
    assert_eq!(written_early(&record, sent, None, answered), Duration::ZERO);
}

#[test]
fn a_token_of_a_create_is_outdated_after_three_seconds() {
    let token = Token::new(NOW_US).unwrap();
    let reads_up_to = |us: u64| Some(StoreTime::between(NOW_US, NOW_US + us));
    assert!(!is_outdated(token, reads_up_to(3_000_000)));
    assert!(is_outdated(token, reads_up_to(3_000_001)));
    assert!(is_outdated(token, None));
}

#[test]
fn a_token_from_the_clock_is_above_those_of_earlier_creates() {
    let attempt = |token: u64, created| Attempt {
        nonce: id(3),
        sent: Moment::from_raw(0, 0),
        token: Token::new(token).unwrap(),
        after: None,
        created,
        unknown: true,
    };
    let store = StoreTime::between(7, 9);
    assert_eq!(first_token(store, &[]), 7);
    assert_eq!(first_token(store, &[attempt(8, true), attempt(3, true)]), 9);
    assert_eq!(first_token(store, &[attempt(8, false)]), 7);
}

#[test]
fn a_freed_record_has_its_time_and_no_value() {
    let later = StoreTime::between(NOW_US, NOW_US + 5);
    let free = freed(&held_record(), End::Released, None, Some(later), id(3));
    assert_eq!((free.state, free.renewed_at_us), (RecordState::Free, Some(NOW_US + 5)));
    assert_eq!(free.holder.value, None);
    let past = free.history.last().unwrap();
    assert_eq!((past.grant, past.end, past.until_us), (id(1), End::Released, Some(NOW_US + 5)));
    assert_eq!(past.holder.value, None);
}

#[test]
fn a_release_landed_if_the_record_or_its_history_shows_it() {
    let attempt = Attempt {
        nonce: id(3),
        sent: Moment::from_raw(0, 0),
        token: Token::default(),
        after: None,
        created: false,
        unknown: true,
    };
    let settle =
        |record: &Record| settle_release(id(1), &[attempt], Some(&Content::Record(Box::new(record.clone()))));
    let held = held_record();
    assert_eq!(settle(&held), Freed::StillOurs);
    // The bytes that were sent, whatever their content.
    let ours = Record { history: Vec::new(), ..freed(&held, End::Released, None, None, id(3)) };
    assert_eq!(settle(&ours), Freed::Applied);
    // Granted to another claim since.
    let released = freed(&held, End::Released, None, None, id(4));
    assert_eq!(
        settle(&Record { grant: id(5), state: RecordState::Held, ..released.clone() }),
        Freed::Applied
    );
    // Ended by another client, or another claim's release.
    assert_eq!(settle(&freed(&held, End::Evicted, None, None, id(4))), Freed::Gone);
    let mut of_another = released;
    of_another.grant = id(5);
    of_another.history[0].grant = id(5);
    assert_eq!(settle(&of_another), Freed::Gone);
    assert_eq!(settle_release(id(1), &[attempt], None), Freed::Gone);
}

#[test]
fn a_cooldown_names_the_last_holder_and_ends() {
    let cooldown = Duration::from_secs(60);
    let in_cooldown = freed(&held_record(), End::Released, Some(cooldown), Some(store()), id(3));
    let content = Content::Record(Box::new(in_cooldown.clone()));
    let State::Held(told) = state(Some(&content), Duration::ZERO, Some(store()), RULES) else {
        panic!("it is in its cooldown");
    };
    assert!(told.in_cooldown && told.holder.is_none());
    assert_eq!(told.lease, Some(cooldown));
    assert_eq!(told.last_holder.unwrap().pid, std::process::id());
    let over = StoreTime::between(NOW_US + 61_000_000, NOW_US + 61_000_000);
    assert!(matches!(state(Some(&content), Duration::ZERO, Some(over), RULES), State::Free));
}

#[test]
fn a_lock_of_a_dead_holder_is_reported_as_lapsed() {
    let held = held_record();
    let content = Content::Record(Box::new(held.clone()));
    let State::Held(told) = state(Some(&content), Duration::ZERO, Some(store()), RULES) else {
        panic!("it is held");
    };
    assert!(!told.in_cooldown && told.last_holder.is_none());
    assert_eq!(told.holder, Some(held.holder));
    assert_eq!(told.held_for, Some(Duration::ZERO));
    let unchanged_for = Ttl::DEFAULT.contender_span();
    let State::Lapsed(told) = state(Some(&content), unchanged_for, None, RULES) else {
        panic!("it has lapsed")
    };
    assert_eq!((told.lease, told.lapsed_for), (Some(Ttl::DEFAULT.get()), None), "without the store's clock");
    let later = StoreTime::between(NOW_US + 40_000_000, NOW_US + 40_000_000);
    let State::Lapsed(told) = state(Some(&content), Duration::ZERO, Some(later), RULES) else {
        panic!("it has lapsed")
    };
    assert_eq!(told.lapsed_for, Some(Duration::from_secs(10)), "40 s after a renewal for 30 s");
    let free = Content::Record(Box::new(freed(&held_record(), End::Released, None, None, id(3))));
    assert!(matches!(state(Some(&free), Duration::ZERO, None, RULES), State::Free));
}

/// Another client may have held the lock since, and leaves no trace.
#[test]
fn a_lapsed_grant_is_over_if_others_leave_no_trace() {
    let record = held_record();
    let claim = Claim { id: record.grant, repeatable: true, ..claim() };
    let content = Content::Record(Box::new(Record { unconfirmed: false, ..record }));
    let judged = |unchanged_for, lapsed_is_over| {
        judge(&claim, &[], Some(&content), unchanged_for, None, Rules { lapsed_is_over, ..RULES })
    };
    assert!(matches!(judged(Duration::MAX, true), Claimed::Lost(_)));
    assert!(matches!(judged(Duration::ZERO, true), Claimed::Grantable { .. }), "it has not lapsed");
    assert!(matches!(judged(Duration::MAX, false), Claimed::Grantable { .. }), "nobody held the lock since");
}

#[test]
fn the_history_beside_another_client_shows_how_a_grant_ended() {
    let released = freed(&held_record(), End::Released, None, None, id(3));
    let foreign =
        Content::Foreign { what: "another client".to_owned(), lasts: None, history: released.history };
    assert_eq!(settle_release(id(1), &[], Some(&foreign)), Freed::Applied);
    assert_eq!(settle_release(id(9), &[], Some(&foreign)), Freed::Gone);
    let judged = |repeatable| {
        let claim = Claim { repeatable, ..claim() };
        judge(&claim, &[], Some(&foreign), Duration::ZERO, None, RULES)
    };
    assert!(matches!(judged(true), Claimed::Lost(_)), "rule 12");
    assert!(matches!(judged(false), Claimed::Taken(_)));
}

/// Contradicting readings of the store's clock, and `store_clock=off`, leave observation only. A cooldown has no holder
/// to protect, so the option does not apply to it.
#[test]
fn the_stores_clock_decides_only_if_its_readings_agree_within_the_margin() {
    let (tick, cooldown) = (Duration::from_millis(1), Duration::from_secs(10));
    let held = held_record();
    let cooling = freed(&held, End::Released, Some(cooldown), Some(store()), id(3));
    for (record, apart, store_clock, ended) in [
        (&held, RULES.margin, true, true),
        (&held, RULES.margin + tick, true, false),
        (&held, Duration::ZERO, false, false),
        (&cooling, RULES.margin, false, true),
        (&cooling, RULES.margin + tick, false, false),
    ] {
        let now = StoreTime { apart, ..StoreTime::exactly(NOW_US + 60_000_000) };
        let rules = Rules { store_clock, ..RULES };
        let found = availability(record, Duration::ZERO, Some(now), rules);
        assert_eq!(found == Availability::Grantable, ended, "{:?}, {apart:?}, {store_clock}", record.state);
    }
    // By observation, a cooldown lasts until it is over on a fast clock too.
    let left = availability(&cooling, cooldown, None, RULES);
    let lapses_within = cooldown.mul_f64(1.0 + RATE_ERROR) - cooldown;
    assert_eq!(left, Availability::Taken { lapses_within });
}

#[test]
fn a_record_shows_how_old_it_is_and_how_long_it_has_been_free() {
    let (second, free) =
        (Duration::from_secs(1), freed(&held_record(), End::Released, None, Some(store()), id(3)));
    let now = Some(StoreTime::between(NOW_US + 9_000_000, NOW_US + 10_000_000));
    assert_eq!(available_for(&free, 7 * second, None, RULES), 7 * second, "as observed");
    assert_eq!(available_for(&free, 7 * second, now, RULES), 9 * second, "by the store's clock");
    assert_eq!(available_for(&held_record(), 7 * second, now, RULES), Duration::ZERO, "it is held");

    let written_at = |us| Record { renewed_at_us: us, ..held_record() };
    let ahead = NOW_US + micros(RULES.margin);
    for (record, store, known) in [
        (written_at(Some(ahead)), Some(store()), true),
        (written_at(Some(ahead + 1)), Some(store()), false), // The clock was set back.
        (written_at(None), Some(store()), false),
        (written_at(Some(NOW_US)), None, false),
    ] {
        assert_eq!(knows_age(&record, store, RULES), known, "{:?}, {store:?}", record.renewed_at_us);
    }
}

#[test]
fn the_wait_for_a_time_of_the_store_covers_the_error_of_clocks() {
    let second = Duration::from_secs(1);
    assert_eq!(until_store_reads(NOW_US, StoreTime::exactly(NOW_US)), Duration::ZERO);
    let wait = until_store_reads(NOW_US + 1_000_000, StoreTime::exactly(NOW_US));
    assert_eq!(wait, second.mul_f64(1.0 + 2.0 * RATE_ERROR) + Duration::from_millis(1));
}

/// A repetition renews the lease, so it ends with the limit. Another claim's repetition has nothing to do with it.
#[test]
fn a_repeated_claim_is_lost_once_its_limit_has_certainly_passed() {
    let mut record = Record { unconfirmed: false, ..held_record() };
    record.holder.max_hold_ms = Some(10_000);
    let content = Content::Record(Box::new(record));
    let judged = |held_us: u64, repeatable| {
        let claim = Claim { repeatable, ..claim() };
        let now = StoreTime::between(NOW_US + held_us, u64::MAX);
        match judge(&claim, &[], Some(&content), Duration::ZERO, Some(now), RULES) {
            Claimed::Lost(loss) => Some(loss.reason),
            _ => None,
        }
    };
    assert!(judged(9_999_999, true).is_none());
    assert!(matches!(judged(10_000_000, true), Some(LossReason::Limit)));
    assert!(judged(10_000_000, false).is_none());
}

/// A failover restored an earlier record of the grant. Any other unexpected record may be a copy's.
#[test]
fn a_lower_heartbeat_on_a_store_that_loses_writes_is_an_earlier_write() {
    let record = Record { heartbeat: 4, ..held_record() };
    let content = Content::Record(Box::new(record));
    let settle = |lost_below| settle_renewal(id(1), Some(id(9)), lost_below, &[], Some(&content));
    assert!(matches!(settle(5), Settled::Earlier));
    assert!(matches!(settle(4), Settled::Foreign));
}

/// Contenders use the ttl of the record.
#[test]
fn a_repetition_never_shortens_the_ttl_of_the_record() {
    let own = held_record();
    let ttl_of = |ms| {
        let claim = Claim { ttl: Ttl::from_millis(ms).unwrap(), repeatable: true, ..claim() };
        granted_again(&own, &claim, None, id(4)).ttl_ms
    };
    assert_eq!([ttl_of(own.ttl_ms / 2), ttl_of(own.ttl_ms * 2)], [own.ttl_ms, own.ttl_ms * 2]);
}

#[test]
fn a_foreign_record_is_held_and_shows_its_description() {
    let lasts = Some(Duration::from_secs(5));
    let foreign = Content::Foreign { what: "a JSON of others".to_owned(), lasts, history: Vec::new() };
    let State::Held(told) = state(Some(&foreign), Duration::MAX, None, RULES) else { panic!("it is held") };
    assert_eq!((told.foreign.as_deref(), told.lapses_within), (Some("a JSON of others"), lasts));
}

#[test]
fn without_a_grant_time_the_length_of_a_hold_is_unknown() {
    let held_since = |record: &Record| held(record, Some(store()), None).held_for;
    let unknown = Record { granted_at_us: None, ..held_record() };
    assert_eq!(held_since(&unknown), None);
    // A cooldown begins with the write that records it.
    let in_cooldown = Record { state: RecordState::Cooldown, ..unknown };
    assert_eq!(held_since(&in_cooldown), Some(Duration::ZERO));
}
