//! The twelve rules. With all of them, no history breaks a promise. Without any one of them, some history does.
//!
//! Each scope is also checked with all rules, to show that only the removal of a rule breaks the promise. `--nocapture`
//! prints the histories.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a failed expectation is a failed test"
)]

mod common;

use common::{holds, is_broken, scale};
use leasehold_model::LeaseModel;
use leasehold_model::coverage::Event::{self, *};
use leasehold_model::properties::{
    BACKED, ENDED_IS_SPENT, EXCLUSION, EXPLAINED, HELD_IS_TRUE, LOST_IS_FINAL, ONE_COPY_RENEWS,
    ONLY_THE_HOLDER_PROLONGS, TOKENS_RISE,
};
use leasehold_model::scope::Scope;

/// Checks a scope with all rules, and that each of `events` occurs in it.
fn all_rules(small: Scope, large: Scope, at_least: usize, events: &[Event]) {
    let coverage = holds(LeaseModel::new(scale(small, large)), at_least);
    for event in events {
        assert!(coverage.of(*event) > 0, "never happened: {event:?}");
    }
}

#[test]
fn with_all_rules_no_counterexample_exists() {
    let large = Scope { renewals: 3, unanswered: 2, ..Scope::NETWORK };
    let events =
        [Granted, Renewed, RenewalFoundByNonce, RenewedTooLate, Expired, Released, TakenOverByObservation];
    all_rules(Scope::NETWORK, large, 200_000, &events);
}

#[test]
fn with_all_rules_lost_responses_break_nothing() {
    let large = Scope { unanswered: 3, ..Scope::SILENCE };
    let events = [
        GrantFoundByNonce,
        GrantedTooLate,
        Gone,
        Held,
        LateWriteApplied,
        LateWriteRefused,
        ReleaseSettledByReading,
    ];
    all_rules(Scope::SILENCE, large, 400_000, &events);
}

#[test]
fn with_all_rules_operators_and_doubled_requests_break_nothing() {
    let large = Scope { renewals: 1, ..Scope::OPERATOR };
    all_rules(Scope::OPERATOR, large, 800_000, &[Granted, Doubled, LostInBetween, LateWriteApplied]);
}

#[test]
fn with_all_rules_evicted_holders_break_nothing() {
    let large = Scope { unanswered: 1, ..Scope::EVICTED };
    all_rules(Scope::EVICTED, large, 500_000, &[Granted, Gone, Renewed, TakenOverByObservation]);
}

#[test]
fn with_all_rules_retried_claims_break_nothing() {
    let large = Scope { any_clocks: true, renewals: 1, ..Scope::RETRIED };
    all_rules(Scope::RETRIED, large, 400_000, &[AdoptedByWrite, LateWriteApplied]);
}

#[test]
fn with_all_rules_clients_that_ask_twice_break_nothing() {
    let large = Scope { any_clocks: true, unanswered: 1, ..Scope::AGAIN };
    all_rules(Scope::AGAIN, large, 50_000, &[TakenOverByObservation]);
}

#[test]
fn with_all_rules_three_clients_break_nothing() {
    let large = Scope { evictions: 1, ..Scope::THREE };
    all_rules(Scope::THREE, large, 400_000, &[TakenOverByObservation, Expired, Held]);
}

#[test]
fn with_all_rules_two_servers_for_one_claim_break_nothing() {
    let large = Scope { unanswered: 1, ..Scope::REPLICAS };
    let events = [
        ActsForTheSameClaim,
        HoldRepeated,
        Spent,
        ServerGaveUp,
        Withdrawn,
        WithdrawalEndedAGrant,
        GrantedToNoOne,
        GrantedTooLate,
        TakenOverByObservation,
    ];
    all_rules(Scope::REPLICAS, large, 250_000, &events);
}

#[test]
fn with_all_rules_one_copy_of_a_holder_goes_on() {
    let large = Scope { any_clocks: true, ..Scope::COPIED };
    all_rules(Scope::COPIED, large, 10_000, &[Copied, RenewedByACopy, RenewalFoundByNonce]);
}

/// No record is mistaken for a record that a copy has written.
#[test]
fn without_copies_no_renewal_by_a_copy_is_found() {
    for scope in [Scope::NETWORK, Scope::EVICTED] {
        assert_eq!(holds(LeaseModel::new(scope), 0).of(RenewedByACopy), 0, "{scope:?}");
    }
}

#[test]
fn without_rule_1_a_holder_counting_from_the_response_overlaps() {
    let model = LeaseModel::new(Scope::NETWORK);
    is_broken(EXCLUSION, model.without(|rules| rules.holder_counts_from_before_the_send = false));
}

#[test]
fn without_rule_1_a_contender_counting_from_the_send_overlaps() {
    let model = LeaseModel::new(Scope::NETWORK);
    is_broken(EXCLUSION, model.without(|rules| rules.contender_counts_from_the_answer = false));
}

#[test]
fn without_rule_2_an_earlier_write_passes_for_a_later_one() {
    is_broken(EXCLUSION, LeaseModel::new(Scope::NETWORK).without(|rules| rules.fresh_nonces = false));
}

#[test]
fn without_rule_3_a_late_create_brings_back_what_was_released() {
    let model = LeaseModel::new(Scope::NETWORK);
    is_broken(TOKENS_RISE, model.without(|rules| rules.release_keeps_the_record = false));
}

#[test]
fn without_rule_4_a_granted_client_gets_the_response_held() {
    let model = LeaseModel::new(Scope::NETWORK);
    is_broken(HELD_IS_TRUE, model.without(|rules| rules.unknown_until_read_back = false));
}

#[test]
fn without_rule_5_a_grant_adopted_by_a_read_overlaps() {
    let model = LeaseModel::new(Scope::RETRIED);
    is_broken(EXCLUSION, model.without(|rules| rules.adopted_only_by_a_write = false));
}

#[test]
fn without_rule_6_a_releasing_holder_overlaps_with_the_next_one() {
    let model = LeaseModel::new(Scope::NETWORK);
    is_broken(EXCLUSION, model.without(|rules| rules.belief_ends_before_the_release = false));
}

#[test]
fn without_rule_7_a_heartbeat_steals_back_and_tokens_fall() {
    let model = LeaseModel::new(Scope::EVICTED);
    is_broken(TOKENS_RISE, model.without(|rules| rules.renewal_is_no_acquisition = false));
}

#[test]
fn without_rule_7_a_heartbeat_steals_the_record_of_a_holder() {
    let model = LeaseModel::new(Scope::EVICTED);
    is_broken(BACKED, model.without(|rules| rules.renewal_is_no_acquisition = false));
}

#[test]
fn without_rule_8_edits_by_others_prolong_a_dead_lease() {
    let model = LeaseModel::new(Scope::EVICTED);
    is_broken(ONLY_THE_HOLDER_PROLONGS, model.without(|rules| rules.alive_by_grant_and_beat = false));
}

#[test]
fn without_rule_9_a_guard_that_was_lost_comes_back() {
    is_broken(LOST_IS_FINAL, LeaseModel::new(Scope::NETWORK).without(|rules| rules.lost_is_final = false));
}

#[test]
fn without_rule_10_a_holder_in_between_gets_the_response_held() {
    let model = LeaseModel::new(Scope::OPERATOR);
    is_broken(HELD_IS_TRUE, model.without(|rules| rules.may_have_held_is_lost = false));
}

#[test]
fn without_rule_11_a_holder_and_its_copy_renew_forever() {
    let model = LeaseModel::new(Scope::COPIED);
    is_broken(ONE_COPY_RENEWS, model.without(|rules| rules.what_a_copy_renews_is_lost = false));
}

#[test]
fn without_rule_12_a_claim_is_granted_again_after_its_end() {
    let model = LeaseModel::new(Scope::REPLICAS);
    is_broken(ENDED_IS_SPENT, model.without(|rules| rules.ended_claims_are_spent = false));
}

#[test]
fn without_rule_12_a_repetition_replaces_a_reported_token() {
    let model = LeaseModel::new(Scope::REPLICAS);
    is_broken(BACKED, model.without(|rules| rules.repetitions_keep_the_token = false));
}

#[test]
fn without_rule_12_a_server_frees_what_another_reported() {
    let model = LeaseModel::new(Scope::REPLICAS);
    is_broken(EXCLUSION, model.without(|rules| rules.servers_end_no_grant_by_id = false));
}

#[test]
fn without_a_rule_trace_validation_does_not_explain_a_write() {
    let model = || LeaseModel::new(Scope::NETWORK);
    is_broken(EXPLAINED, model().without(|rules| rules.contender_counts_from_the_answer = false));
    is_broken(EXPLAINED, model().without(|rules| rules.fresh_nonces = false));
    is_broken(EXPLAINED, model().without(|rules| rules.release_keeps_the_record = false));
    let evicted = LeaseModel::new(Scope::EVICTED);
    is_broken(EXPLAINED, evicted.without(|rules| rules.renewal_is_no_acquisition = false));
}
