//! Local hand-off: a grant has several tokens, which the holder's process issues to its tasks one by one. With all
//! rules of the hand-off, no history breaks a promise. Without any one of them, some history does.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a failed expectation is a failed test"
)]

mod common;

use common::{holds, is_broken, scale};
use leasehold_model::LeaseModel;
use leasehold_model::coverage::Event::*;
use leasehold_model::properties::{EXCLUSION, TOKENS_RISE, TOLD_TOKENS_RISE};
use leasehold_model::scope::Scope;

#[test]
fn hand_off_within_a_process_has_no_counterexample() {
    let large = Scope { any_clocks: true, renewals: 2, ..Scope::HAND_OFF };
    let coverage = holds(LeaseModel::new(scale(Scope::HAND_OFF, large)), 50_000);
    for event in [PassedOn, PassedOnUnsettled, ExpiredWhenPassedOn, TakenOverByObservation, GrantFoundByNonce]
    {
        assert!(coverage.of(event) > 0, "never happened: {event:?}");
    }
}

#[test]
fn hand_off_under_eviction_has_no_counterexample() {
    let large = Scope { any_clocks: true, unanswered: 1, ..Scope::HAND_OFF_EVICTED };
    let coverage = holds(LeaseModel::new(scale(Scope::HAND_OFF_EVICTED, large)), 50_000);
    assert!(coverage.of(PassedOn) > 0 && coverage.of(Gone) > 0);
}

#[test]
fn without_one_token_for_a_create_a_low_token_is_issued() {
    let model = LeaseModel::new(Scope::BY_HAND);
    is_broken(
        TOLD_TOKENS_RISE,
        model.without_safeguard(|safeguards| safeguards.a_create_has_one_token = false),
    );
}

#[test]
fn without_one_token_over_an_unconfirmed_record_a_low_one_comes() {
    let model = LeaseModel::new(Scope::BY_HAND);
    let without = model.without_safeguard(|safeguards| safeguards.over_an_unconfirmed_one_token = false);
    is_broken(TOLD_TOKENS_RISE, without);
}

#[test]
fn without_reserving_tokens_in_the_record_tokens_do_not_rise() {
    let model = LeaseModel::new(Scope::HAND_OFF);
    is_broken(TOKENS_RISE, model.without_safeguard(|safeguards| safeguards.tokens_are_reserved = false));
}

#[test]
fn without_ending_the_previous_guard_two_tasks_hold_the_lock() {
    let model = LeaseModel::new(Scope::HAND_OFF);
    is_broken(
        EXCLUSION,
        model.without_safeguard(|safeguards| safeguards.invalidated_before_the_next = false),
    );
}

#[test]
fn passing_on_a_lock_the_store_reports_lost_gives_two_holders() {
    let model = LeaseModel::new(Scope::HAND_OFF_EVICTED);
    is_broken(EXCLUSION, model.without_safeguard(|safeguards| safeguards.lost_is_not_passed_on = false));
}

#[test]
fn passing_on_a_lock_with_its_own_deadline_gives_two_holders() {
    let model = LeaseModel::new(Scope::HAND_OFF);
    is_broken(EXCLUSION, model.without_safeguard(|safeguards| safeguards.deadline_is_the_grants = false));
}
