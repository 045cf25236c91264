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
    assert_eq!(first.size, 3);
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

#[test]
fn a_foreign_record_is_held_and_shows_its_description() {
    let foreign = Content::foreign("a JSON of others");
    let State::Held(told) = state(Some(&foreign), Duration::MAX, None, RULES) else { panic!("it is held") };
    assert_eq!(told.foreign.as_deref(), Some("a JSON of others"));
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
