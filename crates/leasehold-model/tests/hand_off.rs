//! Local hand-off: a grant has several tokens, which the holder's process gives out one by one to its tasks. With its rules
//! no history breaks a promise, without any one of them some history does.
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
fn passed_on_within_a_process_no_counterexample_exists() {
    let large = Scope { any_clocks: true, renewals: 2, ..Scope::HAND_OFF };
    let coverage = holds(LeaseModel::new(scale(Scope::HAND_OFF, large)), 50_000);
    for event in [PassedOn, PassedOnUnsettled, ExpiredWhenPassedOn, TakenOverByObservation, GrantFoundByNonce]
    {
        assert!(coverage.of(event) > 0, "never happened: {event:?}");
    }
}

#[test]
fn passed_on_by_a_holder_that_was_evicted_no_counterexample_exists() {
    let large = Scope { any_clocks: true, unanswered: 1, ..Scope::HAND_OFF_EVICTED };
    let coverage = holds(LeaseModel::new(scale(Scope::HAND_OFF_EVICTED, large)), 50_000);
    assert!(coverage.of(PassedOn) > 0 && coverage.of(Gone) > 0);
}

#[test]
fn without_one_token_for_a_create_a_token_is_told_again_after_a_deletion() {
    let model = LeaseModel::new(Scope::BY_HAND);
    is_broken(
        TOLD_TOKENS_RISE,
        model.without_safeguard(|safeguards| safeguards.a_create_has_one_token = false),
    );
}

#[test]
fn without_one_token_over_a_newborn_record_a_token_is_told_again_after_a_late_create() {
    let model = LeaseModel::new(Scope::BY_HAND);
    let without = model.without_safeguard(|safeguards| safeguards.over_a_newborn_one_token = false);
    is_broken(TOLD_TOKENS_RISE, without);
}

#[test]
fn without_reserving_tokens_in_the_record_two_processes_issue_the_same() {
    let model = LeaseModel::new(Scope::HAND_OFF);
    is_broken(TOKENS_RISE, model.without_safeguard(|safeguards| safeguards.tokens_are_reserved = false));
}

#[test]
fn without_the_death_of_the_one_before_two_tasks_believe_at_once() {
    let model = LeaseModel::new(Scope::HAND_OFF);
    is_broken(EXCLUSION, model.without_safeguard(|safeguards| safeguards.dead_before_the_next = false));
}

#[test]
fn passing_on_what_the_store_calls_lost_gives_it_to_two() {
    let model = LeaseModel::new(Scope::HAND_OFF_EVICTED);
    is_broken(EXCLUSION, model.without_safeguard(|safeguards| safeguards.lost_goes_to_nobody = false));
}

#[test]
fn passing_on_with_a_deadline_of_its_own_outlives_the_grant() {
    let model = LeaseModel::new(Scope::HAND_OFF);
    is_broken(EXCLUSION, model.without_safeguard(|safeguards| safeguards.deadline_is_the_grants = false));
}
