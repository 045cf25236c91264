//! The conformance suite: one named case for each behaviour that every store must have. It tests leasehold's stores
//! and can test yours.
//!
//! For a store that implements [`Register`](leasehold::Register), [`OnRegister`](crate::harness::OnRegister) is the
//! harness. For any other, implement [`Harness`]. [`conformance!`](crate::conformance!) then generates a test for each case:
//!
//! ```
//! # use leasehold_testkit::conformance::Harness;
//! # use leasehold::lease::LeaseStore;
//! # use leasehold::LockName;
//! # use std::sync::Arc;
//! struct MyStore { /* where the storage is */ }
//!
//! #[async_trait::async_trait]
//! impl Harness for MyStore {
//!     async fn open(&self) -> Arc<dyn LeaseStore> {
//!         todo!("a further client of the same storage, as another process would open it")
//!     }
//!     async fn delete_record(&self, name: &LockName) {
//!         todo!("delete what is stored under `name`, as an operator would with the store's own tools")
//!     }
//! }
//!
//! leasehold_testkit::conformance!(my_store, MyStore { /* fresh, empty storage */ });
//! leasehold_testkit::conformance!(my_store_threaded, MyStore {}, (flavor = "multi_thread"));
//! ```
//!
//! Each case gets fresh storage. No case sleeps for a guessed time. The cases await events that must happen. They
//! compare the time of events that must not happen early with the deadline that the holder was promised. A case fails
//! if anything takes longer than [`Harness::limit`]. The cases run on real servers, and on paused time with a store
//! that runs on a [`TestClock`](leasehold::clock::TestClock).
//!
//! The cases lose no responses ([`fault`](crate::fault) does), and they see only locks. A register that deletes whatever the
//! version is passes them: also call [`probe_deletes`](leasehold::doctor::probe_deletes).
//!
//! A store must refuse what it does not support ([`Capabilities`](leasehold::lease::Capabilities)) with
//! [`ErrorKind::Unsupported`](leasehold::ErrorKind::Unsupported). No case is skipped.

mod client;
mod deadlock;
mod election;
mod eviction;
mod frozen;
mod grants;
mod lapse;
mod listing;
mod locks;
mod once;
mod races;
mod release;
mod renewal;
mod repeatable;
mod semaphore;
mod shared;
mod status;
mod sweep;
mod tickets;
mod together;
mod tokens;
mod waiting;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::BoxFuture;
use leasehold::LockName;
use leasehold::lease::{LeaseStore, Ttl};

pub use self::deadlock::*;
pub use self::election::*;
pub use self::eviction::*;
pub use self::frozen::*;
pub use self::grants::*;
pub use self::lapse::*;
pub use self::listing::*;
pub use self::locks::*;
pub use self::once::*;
pub use self::races::*;
pub use self::release::*;
pub use self::renewal::*;
pub use self::repeatable::*;
pub use self::semaphore::*;
pub use self::shared::*;
pub use self::status::*;
pub use self::sweep::*;
pub use self::tickets::*;
pub use self::together::*;
pub use self::tokens::*;
pub use self::waiting::*;

/// The storage that a case runs on. Each case gets a fresh one.
#[async_trait]
pub trait Harness: Send + Sync {
    /// Opens another client of this storage. Like another process, it shares nothing with the others but the storage.
    async fn open(&self) -> Arc<dyn LeaseStore>;

    /// Deletes what is stored under `name`, as an operator would with the store's own tools.
    async fn delete_record(&self, name: &LockName);

    /// Returns everything that a reader of the storage can read about `name`, as text. Defaults to nothing. A case then
    /// uses what [`LeaseStore`] shows.
    async fn read_record(&self, name: &LockName) -> String {
        let _ = name;
        String::new()
    }

    /// Returns the ttl of leases that must lapse or be renewed during a case. Defaults to two seconds.
    fn ttl(&self) -> Duration {
        Duration::from_secs(2)
    }

    /// Returns the longest ttl that the store supports. Defaults to [`Ttl::MAX`].
    fn longest_ttl(&self) -> Duration {
        Ttl::MAX
    }

    /// Returns how long anything that must happen may take before the case fails. It must also suffice for the cases
    /// with many tasks. Defaults to a minute.
    fn limit(&self) -> Duration {
        Duration::from_secs(60)
    }

    /// Returns how much work the cases with many tasks do, in increments for each of 16 tasks. Defaults to five.
    fn rounds(&self) -> usize {
        5
    }
}

/// A case: its name and its function.
#[derive(Clone, Copy)]
pub struct Case {
    /// The name of the function.
    pub name: &'static str,
    /// The case itself. Panics if the store fails it.
    pub run: for<'a> fn(&'a dyn Harness) -> BoxFuture<'a, ()>,
}

macro_rules! cases {
    (store { $($store:ident)* } rules { $($rule:ident)* } library { $($library:ident)* }) => {
        /// All cases, for other test runners; [`conformance!`](crate::conformance!) generates a test for each.
        pub const CASES: &[Case] = &[
            $(Case { name: stringify!($store), run: |harness| Box::pin($store(harness)) },)*
            $(Case { name: stringify!($rule), run: |harness| Box::pin($rule(harness)) },)*
            $(Case { name: stringify!($library), run: |harness| Box::pin($library(harness)) },)*
        ];

        /// Generates a module with a test for each case. `$harness` is evaluated for each test and opens its storage.
        /// The optional third argument, in parentheses, is passed to `#[tokio::test(...)]`. A fourth argument selects
        /// cases: `store` leaves out those of the rules and of the library, `store rules` only those of the library.
        #[macro_export]
        macro_rules! conformance {
            ($module:ident, $harness:expr) => {
                $crate::conformance!($module, $harness, ());
            };
            ($module:ident, $harness:expr, $runtime:tt) => {
                $crate::__conformance_tests!($module $harness, $runtime, $($store)* $($rule)* $($library)*);
            };
            ($module:ident, $harness:expr, $runtime:tt, store) => {
                $crate::__conformance_tests!($module $harness, $runtime, $($store)*);
            };
            ($module:ident, $harness:expr, $runtime:tt, store rules) => {
                $crate::__conformance_tests!($module $harness, $runtime, $($store)* $($rule)*);
            };
        }
    };
}

cases! {
    // How a store carries out each operation of `LeaseStore`.
    store {
        a_free_lock_is_granted_and_granted_again_after_its_release
        a_second_claimant_sees_the_holder
        locks_of_different_names_are_independent
        one_claim_tried_twice_is_granted_to_itself
        tokens_rise_from_grant_to_grant
        tokens_rise_when_a_lease_lapses
        tokens_rise_when_the_record_is_deleted_by_hand
        a_lapsed_lease_is_taken_over_and_not_before
        renewal_keeps_a_lease_beyond_its_first_deadline
        renewal_after_the_record_was_deleted_is_lost
        release_frees_at_once
        release_after_the_record_was_deleted_is_already_lost
        a_cooldown_keeps_the_lock_from_being_granted_early
        eviction_frees_at_once
        inspection_shows_free_held_and_history
        inspection_shows_a_lapsed_lease_and_not_too_early
        history_shows_how_grants_ended
        names_with_odd_characters_are_listed_as_they_are
        names_that_look_alike_are_different_locks
        listing_goes_by_prefix
        listing_goes_beyond_a_thousand_locks
        a_sweep_deletes_only_what_has_been_free_for_long
        a_waiter_is_woken_by_a_release
        a_waiter_that_comes_after_the_release_is_not_left_waiting
        waiters_are_granted_the_lock_in_order
        the_line_shows_the_locks_that_a_waiter_holds
        a_waiter_is_woken_by_an_eviction
        one_of_many_racing_claims_is_granted
        one_of_many_racing_takeovers_succeeds
        a_counter_under_the_lock_is_exact_and_tokens_rise_with_it
        a_ticket_renews_and_releases
        a_reader_of_the_store_cannot_release
    }
    // What follows from the rules that decide about a lease. On a store with records, the protocol decides.
    rules {
        a_grant_is_for_at_most_its_ttl
        tokens_rise_when_a_grant_is_evicted
        a_lock_delay_lengthens_a_lapse_and_not_a_release
        renewal_after_a_takeover_is_lost
        renewal_after_an_eviction_is_lost
        a_second_release_changes_nothing
        release_after_a_takeover_does_not_free_the_successor
        eviction_with_another_token_changes_nothing
        a_ticket_with_another_token_is_invalid
        a_detached_grant_is_a_grant_like_any_other
        a_repeated_acquisition_has_the_same_hold
        a_repetition_with_a_shorter_ttl_shortens_no_lease
        a_renewal_is_valid_no_longer_than_the_record_shows
        a_spent_id_is_refused
        a_wait_given_up_frees_no_repetition
    }
    // What the library and the protocol do on top of these operations, whatever the store.
    library {
        a_contender_with_a_shorter_ttl_waits_for_that_of_the_record
        a_contender_with_a_longer_ttl_waits_no_longer_for_it
        a_waiter_that_died_is_passed_over
        a_hundred_tasks_share_a_lock
        one_of_two_waiters_in_a_cycle_fails
        dropping_a_guard_releases_its_lock
        an_acquisition_given_up_leaves_nothing_behind
        with_holds_the_lock_while_its_body_runs
        frozen_futures_delay_no_other_lock
        a_holder_learns_that_it_was_evicted
        a_guard_keeps_its_lease_alive
        a_ticket_hands_a_lock_on
        no_more_permits_are_held_at_once_than_exist
        a_released_permit_goes_to_a_waiter
        a_wait_for_a_permit_that_is_given_up_leaves_nothing_behind
        waiters_are_granted_permits_in_order
        clients_with_different_numbers_of_permits_learn_it
        shared_holders_are_together_and_an_exclusive_one_is_alone
        shared_holders_do_not_starve_an_exclusive_one
        the_loss_of_one_part_is_the_loss_of_an_exclusive_hold
        several_locks_are_held_and_lost_together
        a_ticket_is_taken_up_and_handed_on_again
        one_candidate_leads_and_another_follows_when_it_resigns
        an_observer_sees_each_leader_and_each_vacancy
        an_observer_sees_a_leader_that_follows_at_once
        the_value_of_a_leader_survives_its_renewals
        no_leader_is_reported_once_its_lease_has_ended
        one_of_many_runs_a_job_and_the_others_learn_that_it_ran
        a_job_that_failed_is_run_by_another_in_the_same_period
        a_job_of_a_dead_machine_is_run_by_another_in_the_same_period
        a_job_runs_again_after_its_period_and_not_before
    }
}

/// Used by [`conformance!`](crate::conformance!) only.
#[doc(hidden)]
#[macro_export]
macro_rules! __conformance_tests {
    ($module:ident $harness:expr, $runtime:tt, $($case:ident)*) => {
        mod $module {
            #[allow(unused_imports)]
            use super::*;
            $(
                #[tokio::test $runtime]
                async fn $case() {
                    $crate::conformance::$case(&$harness).await;
                }
            )*
        }
    };
}
