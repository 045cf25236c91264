//! Checks that the conformance suite can fail: each case fails on some flawed store, and each flaw fails some case.

use std::collections::BTreeSet;
use std::panic::AssertUnwindSafe;

use futures_util::FutureExt;
use leasehold_testkit::conformance::CASES;

use crate::fake::{FLAWS, Fake, Flaw};

leasehold_testkit::conformance!(without_a_flaw, Fake::new(None), (start_paused = true));

/// Returns the names of the cases that a store with `flaw` fails.
fn failed(flaw: Flaw) -> BTreeSet<&'static str> {
    let fails = |case: &&leasehold_testkit::conformance::Case| {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let fake = Fake::new(Some(flaw));
            AssertUnwindSafe((case.run)(&fake)).catch_unwind().await.is_err()
        })
    };
    CASES.iter().filter(fails).map(|case| case.name).collect()
}

#[test]
fn every_flaw_fails_a_case_and_every_case_is_failed_by_a_flaw() {
    let mut failable = BTreeSet::new();
    let mut harmless = Vec::new();
    for &flaw in FLAWS {
        let failed = failed(flaw);
        println!("{flaw:?} fails {failed:?}");
        if failed.is_empty() {
            harmless.push(flaw);
        }
        failable.extend(failed);
    }
    assert!(harmless.is_empty(), "no case notices {harmless:?}");
    let unfailable: Vec<_> =
        CASES.iter().map(|case| case.name).filter(|name| !failable.contains(name)).collect();
    assert!(unfailable.is_empty(), "no flaw fails {unfailable:?}");
}
