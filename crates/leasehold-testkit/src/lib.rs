//! What it takes to test a store, and programs that use one: for leasehold itself and for stores by others.
//!
//! - [`fault`]: a register whose requests and answers are lost, delayed, doubled or held back, as the test says.
//! - [`machine`]: a client machine with a clock of its own, which learns the store's time as from a `Date` header.
//! - [`simulation`]: many machines, one store, a bad network, and a checker; replayable from a seed.

// A failed expectation here is a failed test: panicking is how a test says so.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

pub mod fault;
pub mod machine;
pub mod simulation;
