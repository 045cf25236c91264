//! Safeguards besides the twelve rules, for clock rates, the store's clock, and records that are deleted by hand.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a failed expectation is a failed test"
)]

mod common;

use common::{holds, is_broken, scale};
use leasehold_model::LeaseModel;
use leasehold_model::coverage::Event;
use leasehold_model::properties::{EXCLUSION, EXPLAINED, HELD_IS_TRUE, TOLD_TOKENS_RISE};
use leasehold_model::scope::Scope;

#[test]
fn by_the_stores_clock_no_counterexample_exists() {
    let large = Scope { any_clocks: false, unanswered: 1, ..Scope::STORE_CLOCK };
    let coverage = holds(LeaseModel::new(scale(Scope::STORE_CLOCK, large)), 300_000);
    assert!(coverage.of(Event::TakenOverByStoreClock) > 0);
}

#[test]
fn with_records_deleted_by_hand_no_counterexample_exists() {
    let large = Scope { any_clocks: true, ..Scope::BY_HAND };
    let coverage = holds(LeaseModel::new(scale(Scope::BY_HAND, large)), 1_000_000);
    for event in [Event::CreateWrittenAgain, Event::LateWriteApplied, Event::PassedOn] {
        assert!(coverage.of(event) > 0, "never happened: {event:?}");
    }
}

/// This is the only case in which a token may be too low.
#[test]
fn a_record_deleted_within_the_tick_of_its_grant_lowers_a_token() {
    is_broken(TOLD_TOKENS_RISE, LeaseModel::new(Scope { deletes_new_grants: true, ..Scope::BY_HAND }));
}

#[test]
fn without_distances_for_clock_rates_a_fast_contender_overlaps() {
    let model = LeaseModel::new(Scope::NETWORK);
    is_broken(EXCLUSION, model.without_safeguard(|safeguards| safeguards.rate_distances = false));
}

#[test]
fn without_the_margin_a_front_end_ahead_ends_a_live_lease() {
    let model = LeaseModel::new(Scope::STORE_CLOCK);
    is_broken(EXCLUSION, model.without_safeguard(|safeguards| safeguards.margin = false));
}

#[test]
fn with_wrong_store_clock_bounds_a_live_lease_is_ended() {
    let model = LeaseModel::new(Scope::STORE_CLOCK);
    is_broken(EXCLUSION, model.without_safeguard(|safeguards| safeguards.outer_bounds = false));
}

#[test]
fn without_the_unconfirmed_mark_a_late_create_gives_a_low_token() {
    let model = LeaseModel::new(Scope::BY_HAND);
    is_broken(TOLD_TOKENS_RISE, model.without_safeguard(|safeguards| safeguards.unconfirmed_mark = false));
}

#[test]
fn without_writing_late_creates_again_a_low_token_is_reported() {
    let model = LeaseModel::new(Scope::BY_HAND);
    let without = model.without_safeguard(|safeguards| safeguards.late_creates_are_written_again = false);
    is_broken(TOLD_TOKENS_RISE, without);
}

#[test]
fn a_release_confirming_another_record_leads_to_a_low_token() {
    let model = LeaseModel::new(Scope::BY_HAND);
    let without =
        model.without_safeguard(|safeguards| safeguards.only_the_answered_record_is_confirmed = false);
    is_broken(TOLD_TOKENS_RISE, without);
}

#[test]
fn without_the_history_a_doubled_grant_gets_the_response_held() {
    let model = LeaseModel::new(Scope::OPERATOR);
    is_broken(HELD_IS_TRUE, model.without_safeguard(|safeguards| safeguards.history_tells = false));
}

#[test]
fn without_a_safeguard_trace_validation_does_not_explain_a_write() {
    let network = LeaseModel::new(Scope::NETWORK);
    is_broken(EXPLAINED, network.without_safeguard(|safeguards| safeguards.rate_distances = false));
    let store_clock = || LeaseModel::new(Scope::STORE_CLOCK);
    is_broken(EXPLAINED, store_clock().without_safeguard(|safeguards| safeguards.margin = false));
    is_broken(EXPLAINED, store_clock().without_safeguard(|safeguards| safeguards.outer_bounds = false));
    let by_hand = LeaseModel::new(Scope::BY_HAND);
    is_broken(EXPLAINED, by_hand.without_safeguard(|safeguards| safeguards.unconfirmed_mark = false));
}
