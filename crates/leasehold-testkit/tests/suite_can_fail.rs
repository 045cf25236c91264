//! Checks that the conformance suite can fail: each case fails on some flawed store, and each flaw fails some case.

use std::panic::AssertUnwindSafe;

use futures_util::FutureExt;
use leasehold_testkit::conformance::{CASES, Case};

use crate::fake::{FLAWS, Fake, Flaw};

leasehold_testkit::conformance!(without_a_flaw, Fake::new(None), (start_paused = true));

/// Returns whether a store with `flaw` fails the case.
fn fails(flaw: Flaw, case: &Case) -> bool {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    runtime.block_on(async {
        let fake = Fake::new(Some(flaw));
        AssertUnwindSafe((case.run)(&fake)).catch_unwind().await.is_err()
    })
}

#[test]
fn every_flaw_fails_a_case_and_every_case_is_failed_by_a_flaw() {
    let mut unfailable: Vec<&Case> = CASES.iter().collect();
    let mut harmless = Vec::new();
    for &flaw in FLAWS {
        // Once a flaw is noticed, only the cases that no flaw has failed yet are of interest.
        let before = unfailable.len();
        unfailable.retain(|case| !fails(flaw, case));
        if unfailable.len() == before && !CASES.iter().any(|case| fails(flaw, case)) {
            harmless.push(flaw);
        }
    }
    assert!(harmless.is_empty(), "no case notices {harmless:?}");
    let unfailable: Vec<_> = unfailable.iter().map(|case| case.name).collect();
    assert!(unfailable.is_empty(), "no flaw fails {unfailable:?}");
}
