//! Tests of tokens at their limits, where one token decides.

use std::sync::Arc;
use std::time::Duration;

use super::super::acquire::must_reach_disk;
use super::super::machine::Process;
use super::super::row::Row;
use super::*;
use crate::clock::TestClock;
use crate::env::Env;
use crate::golden::golden_record;
use crate::lease::{Claim, Holder, Ttl};
use crate::types::LockName;

const TOKEN: u64 = 41;

fn machine() -> Machine {
    Machine { boot: "boot 1".into(), me: None }
}

/// Returns the moment `seconds` after the boot. The wall clock is zero, so it does not determine tokens.
fn at(seconds: u64) -> Moment {
    Moment::from_raw(seconds * 1_000_000_000, 0)
}

fn claim() -> Claim {
    let env = Env::seeded(Arc::new(TestClock::default()), 1);
    Claim::new(&env, LockName::new("a").unwrap(), Ttl::DEFAULT, Holder::default())
}

fn counter(token: u64, ceiling: u64) -> Counter {
    Counter { token, ceiling, boot: machine().boot }
}

#[test]
fn a_grant_has_as_many_tokens_as_its_claim_wants() {
    for (wanted, got) in [(0, 1), (1, 1), (5, 5), (u64::MAX, MAX_TOKENS)] {
        let minted = counter(TOKEN, 1_000_000).mint(0, wanted, &machine(), at(1)).unwrap();
        assert_eq!(minted.after, Token::new(TOKEN), "{wanted}");
        assert_eq!(minted.token.get(), TOKEN + got, "{wanted}");
    }
}

#[test]
fn a_token_is_used_up_to_the_ceiling_and_not_beyond() {
    for (ceiling, beyond) in [(TOKEN + 2, false), (TOKEN + 1, false), (TOKEN, true)] {
        let mut counter = counter(TOKEN, ceiling);
        let minted = counter.mint(0, 1, &machine(), at(1)).unwrap();
        assert_eq!((minted.token.get(), minted.beyond_ceiling), (TOKEN + 1, beyond), "{ceiling}");
        assert_eq!(counter.ceiling, if beyond { RESERVE } else { ceiling });
    }
}

/// Each change of the boot id starts above the ceiling. So tokens would run ahead of the wall clock without limit if the
/// ceiling rose from the token.
#[test]
fn containers_in_turn_keep_tokens_near_the_wall_clock() {
    let mut counter = counter(0, 0);
    for turn in 0..10_000 {
        let machine = Machine { boot: format!("container:{}", turn % 2), me: None };
        let now = Moment::from_raw(0, turn * 10_000_000);
        let before = counter.token;
        let minted = counter.mint(0, 1, &machine, now).unwrap();
        assert!(minted.beyond_ceiling && minted.token.get() > before);
        assert!(minted.token.get() <= now.wall_us() + RESERVE + SPARE, "{turn}: {:?}", minted.token);
    }
    // Tokens that are far ahead of the wall clock rise by a few only.
    let ahead = 1_000_000_000_000;
    let mut counter = Counter { token: ahead, ceiling: ahead, boot: machine().boot };
    counter.mint(0, 1, &machine(), at(0)).unwrap();
    assert_eq!((counter.token, counter.ceiling), (ahead + 1, ahead + 1 + SPARE));
}

#[test]
fn a_grant_with_a_lock_delay_must_reach_the_disk() {
    assert!(!must_reach_disk(&claim(), None));
    assert!(must_reach_disk(&Claim { lock_delay: Duration::from_millis(1), ..claim() }, None));
    let minted = counter(TOKEN, 1_000).mint(0, 1, &machine(), at(1)).unwrap();
    assert!(!minted.beyond_ceiling);
    let minted = counter(TOKEN, TOKEN).mint(0, 1, &machine(), at(1)).unwrap();
    assert!(minted.beyond_ceiling);
}

/// A power failure does not end a lease that another machine may hold.
#[test]
fn a_grant_that_outlives_the_boot_must_reach_the_disk() {
    assert!(must_reach_disk(&Claim { detached: true, ..claim() }, None));
    let held = golden_record("1-held.json");
    let detached = Row::written(held, &machine(), at(1));
    assert!(must_reach_disk(&claim(), Some(&detached)));
    let process = Some(Process { namespace: "pid:[1]".into(), pid: 7, start: 1, others: vec![] });
    assert!(!must_reach_disk(&claim(), Some(&Row { process, ..detached })));
    let free = Row::written(golden_record("1-free.json"), &machine(), at(1));
    assert!(!must_reach_disk(&claim(), Some(&free)));
}

#[test]
fn a_token_is_above_the_one_in_the_row() {
    let minted = counter(TOKEN, 1_000).mint(TOKEN + 9, 1, &machine(), at(1)).unwrap();
    assert_eq!(minted.token.get(), TOKEN + 9);
}
