//! What it takes to test a store, and programs that use one: for leasehold itself and for stores by others.
//!
//! - [`stores`]: what is known of each store: a file for each, and the table that everything else reads;
//!   [`test_store`]: what is asked of each.
//! - `chaos`, with the feature of that name: processes, servers, networks and clocks that fail, and a checker.
//! - [`mod@conformance`]: what every store must do, a named case for each behaviour.
//! - [`harness`]: the storage that leasehold's own stores run the cases on.
//! - [`fault`]: a register whose requests and answers are lost, delayed, doubled or held back, as the test says.
//! - [`proxy`]: the same for HTTP, between a client and a real server; counts requests too.
//! - [`servers`]: the real servers that `./test` starts; [`launch`]: those that chaos and the benchmark start themselves.
//! - [`peers`]: programs that take locks with other clients, and the stores' own programs.
//! - [`process`]: a running program that says lines.
//! - [`fakes`]: servers that speak just enough S3 or GCS, and ignore preconditions or throttle writes.
//! - [`layer`]: a register in front of another, of which only what it does otherwise is written down.
//! - [`machine`]: a client machine with a clock of its own, which learns the store's time as from a `Date` header.
//! - [`simulation`]: many machines, one store, a bad network, and a checker; replayable from a seed.

// A failed expectation here is a failed test: panicking is how a test says so.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[cfg(feature = "chaos")]
pub mod chaos;
pub mod conformance;
pub mod fakes;
pub mod fault;
pub mod harness;
mod http;
pub mod launch;
pub mod layer;
pub mod machine;
pub mod peers;
pub mod process;
pub mod proxy;
pub mod servers;
pub mod simulation;
pub mod stores;
pub mod test_store;
pub mod wire;
