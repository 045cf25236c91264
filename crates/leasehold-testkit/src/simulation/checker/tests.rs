//! Each invariant, on a sequence of events that keeps it and on one that violates it.

use super::*;

const SECOND: Duration = Duration::from_secs(1);

/// Returns a grant for 10 s.
fn grant(token: u64, id: &str) -> Write<'_> {
    Write { token, grant: id, nonce: "", ttl_ms: 10_000, unconfirmed: false, note: Some(id), value: None }
}

/// Returns a checker that has seen a grant with token 5, then one with token 7.
fn two_grants() -> Checker {
    let checker = Checker::default();
    checker.committed("x", &grant(5, "a"), Duration::ZERO);
    checker.believed("x", 5, "a", SECOND);
    checker.committed("x", &grant(7, "b"), 2 * SECOND);
    checker
}

fn verdict(checker: &Checker) -> Option<&'static str> {
    checker.lock().violation.as_ref().map(|(invariant, _)| *invariant)
}

#[test]
fn i1_a_valid_guard_after_a_successors_grant_is_found() {
    let checker = two_grants();
    checker.believed("x", 5, "a", 3 * SECOND);
    checker.believed("x", 7, "b", 3 * SECOND);
    assert_eq!(verdict(&checker), None, "a committed successor is not believed in yet");
    checker.believed("x", 5, "a", 3 * SECOND);
    assert_eq!(verdict(&checker), Some("I1"));
}

#[test]
fn i1_only_an_eviction_or_a_deletion_by_hand_is_an_excuse() {
    let evicted = two_grants();
    evicted.evicting("x", 5);
    evicted.believed("x", 7, "b", 3 * SECOND);
    evicted.believed("x", 5, "a", 3 * SECOND);
    assert_eq!(verdict(&evicted), None);

    let deleted = Checker::default();
    deleted.committed("x", &grant(5, "a"), Duration::ZERO);
    deleted.deleted("x");
    deleted.committed("x", &grant(7, "b"), SECOND);
    deleted.committed("x", &grant(8, "c"), SECOND);
    deleted.believed("x", 7, "b", SECOND);
    deleted.believed("x", 5, "a", SECOND);
    assert_eq!(verdict(&deleted), None);
    deleted.believed("x", 8, "c", SECOND);
    deleted.believed("x", 7, "b", SECOND);
    assert_eq!(verdict(&deleted), Some("I1"), "granted after the deletion");
}

#[test]
fn i2_a_token_that_does_not_rise_is_found() {
    for token in [6, 7] {
        let checker = two_grants();
        checker.committed("x", &grant(7, "b"), 3 * SECOND);
        assert_eq!(verdict(&checker), None, "a renewal");
        checker.committed("y", &grant(6, "c"), 3 * SECOND);
        assert_eq!(verdict(&checker), None, "another lock");
        checker.committed("x", &grant(token, "c"), 3 * SECOND);
        assert_eq!(verdict(&checker), Some("I2"));
    }
}

#[test]
fn i2_a_valid_token_that_was_not_granted_in_time_is_found() {
    let checker = two_grants();
    checker.believed("x", 9, "b", 3 * SECOND);
    assert_eq!(verdict(&checker), Some("I2"));

    let checker = two_grants();
    checker.committed("x", &Write { unconfirmed: true, ..grant(6, "c") }, 3 * SECOND);
    assert_eq!(verdict(&checker), None, "no violation until it is believed in");
    checker.believed("x", 6, "c", 3 * SECOND);
    assert_eq!(verdict(&checker), Some("I2"));

    let checker = two_grants();
    checker.committed("x", &Write { unconfirmed: true, ..grant(7, "c") }, 3 * SECOND);
    checker.believed("x", 7, "b", 3 * SECOND);
    assert_eq!(verdict(&checker), None, "the token also belongs to an earlier grant");
}

#[test]
fn i2_tokens_of_a_grant_are_higher_than_before_and_unique() {
    let checker = two_grants();
    checker.given("x", 5, "a");
    checker.given("x", 6, "b");
    checker.believed("x", 6, "b", 3 * SECOND);
    checker.given("x", 7, "b");
    checker.believed("x", 7, "b", 3 * SECOND);
    assert_eq!(verdict(&checker), None);
    assert_eq!(checker.lock().history.handed, 1);
    checker.believed("x", 6, "b", 3 * SECOND);
    assert_eq!(verdict(&checker), Some("I1"), "among the tasks of a process too");

    let checker = two_grants();
    checker.given("x", 6, "b");
    checker.given("x", 6, "b");
    assert_eq!(verdict(&checker), Some("I2"));

    let checker = two_grants();
    checker.believed("x", 6, "a", 3 * SECOND);
    assert_eq!(verdict(&checker), Some("I2"), "the record names another");

    let checker = two_grants();
    checker.believed("x", 8, "b", 3 * SECOND);
    assert_eq!(verdict(&checker), Some("I2"), "not reserved");
}

#[test]
fn i5_a_grant_that_is_passed_on_keeps_its_deadline() {
    let checker = two_grants();
    checker.given("x", 6, "b");
    checker.given("x", 7, "b");
    checker.believed("x", 7, "b", 12 * SECOND);
    assert_eq!(verdict(&checker), Some("I5"));
}

#[test]
fn i6_a_lost_grant_is_given_to_no_other_task() {
    let checker = two_grants();
    checker.given("x", 6, "b");
    checker.lost("x", 5);
    assert_eq!(verdict(&checker), None, "another grant");
    checker.lost("x", 6);
    checker.given("x", 7, "b");
    assert_eq!(verdict(&checker), Some("I6"));
}

#[test]
fn i3_a_resource_that_accepts_a_lower_token_is_found() {
    let checker = Checker::default();
    checker.accepted(5, "a");
    checker.accepted(7, "b");
    checker.accepted(7, "c");
    assert_eq!(verdict(&checker), None);
    checker.accepted(5, "d");
    assert_eq!(verdict(&checker), Some("I3"));
}

#[test]
fn i4_a_write_that_has_its_effect_twice_is_found() {
    let checker = Checker::default();
    checker.accepted(5, "a");
    checker.accepted(5, "a");
    assert_eq!(verdict(&checker), Some("I4"));

    let checker = Checker::default();
    checker.applied("x.lock", "1");
    checker.applied("y.lock", "1");
    assert_eq!(verdict(&checker), None);
    checker.applied("x.lock", "1");
    assert_eq!(verdict(&checker), Some("I4"));
}

#[test]
fn i5_a_guard_that_is_valid_past_its_deadline_is_found() {
    let checker = two_grants();
    // 10 s, less 0.5 %, less 100 ms, on a clock that is 0.5 % slow, after the commit at 2 s.
    checker.believed("x", 7, "b", Duration::from_millis(11_899));
    assert_eq!(verdict(&checker), None);
    checker.committed("x", &grant(7, "b"), 11 * SECOND);
    checker.believed("x", 7, "b", 20 * SECOND);
    assert_eq!(verdict(&checker), None, "it was renewed");
    checker.believed("x", 7, "b", Duration::from_millis(20_902));
    assert_eq!(verdict(&checker), Some("I5"));
}

#[test]
fn i6_a_renewal_that_is_sent_after_the_loss_is_found() {
    let checker = two_grants();
    checker.lost("x", 5);
    checker.sends("x", &grant(7, "b"), 3 * SECOND);
    checker.sends("x", &grant(5, "other"), 3 * SECOND);
    assert_eq!(verdict(&checker), None, "others may try with the same token");
    checker.sends("x", &grant(5, "a"), 3 * SECOND);
    assert_eq!(verdict(&checker), Some("I6"));
}

#[test]
fn i8_a_cancelled_acquisition_that_continues_is_found() {
    let checker = two_grants();
    checker.cancelled(Some("b"), 4 * SECOND);
    checker.sends("x", &grant(7, "b"), 4 * SECOND);
    assert_eq!(verdict(&checker), None);
    checker.sends("x", &grant(7, "b"), 5 * SECOND);
    assert_eq!(verdict(&checker), Some("I8"));
}

#[test]
fn i9_more_requests_than_are_needed_are_found() {
    let checker = Checker::default();
    checker.spent(7, 7);
    assert_eq!(verdict(&checker), None);
    checker.spent(8, 7);
    assert_eq!(verdict(&checker), Some("I9"));
}

#[test]
fn i10_a_renewal_after_that_of_a_copy_is_found() {
    let created = Write { unconfirmed: true, ..grant(5, "a") };
    let checker = Checker::default();
    checker.committed("x", &created, Duration::ZERO);
    checker.copy_renewed("x", 5, &"a".into());
    checker.committed("x", &created, 8 * SECOND);
    assert_eq!(verdict(&checker), None, "a late copy of the create, after a deletion by hand");
    checker.committed("x", &grant(5, "a"), 9 * SECOND);
    assert_eq!(verdict(&checker), Some("I10"));
}

#[test]
fn i5_a_late_copy_of_a_create_prolongs_nothing() {
    let created = Write { unconfirmed: true, ..grant(5, "a") };
    let checker = Checker::default();
    checker.committed("x", &created, Duration::ZERO);
    checker.committed("x", &created, 8 * SECOND);
    checker.believed("x", 5, "a", 9 * SECOND);
    assert_eq!(verdict(&checker), None);
    checker.believed("x", 5, "a", 11 * SECOND);
    assert_eq!(verdict(&checker), Some("I5"));
}

#[test]
fn f1_a_process_that_waits_for_too_long_is_found() {
    let checker = Checker::default();
    checker.waited(SECOND, Some(SECOND));
    assert_eq!(verdict(&checker), None);
    checker.waited(2 * SECOND, Some(SECOND));
    assert_eq!(verdict(&checker), Some("F1"));
}
