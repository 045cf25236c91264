//! Tools for testing stores and programs that use them, in leasehold itself and in crates with their own stores.
//!
//! - [`stores`]: one file per store, which describes the store to the tests; [`test_store`]: the trait that these
//!   files implement.
//! - `chaos`, with the feature of that name: tests on real servers with failing processes, servers, networks and
//!   clocks.
//! - [`mod@conformance`]: the conformance suite, one named case for each required behaviour.
//! - [`harness`]: the storage on which leasehold's own stores run the cases.
//! - [`fault`]: a register that loses, delays, duplicates or holds back requests and responses, as the test chooses.
//! - [`proxy`]: a proxy that does the same between an HTTP client and a real server, and counts requests;
//!   [`tcp_proxy`]: a proxy for servers that do not speak HTTP.
//! - [`servers`]: the real servers that `./test` starts; [`launch`]: the servers that chaos and the benchmark start
//!   themselves.
//! - [`peers`]: other lock clients that take the same locks, and the stores' command-line tools.
//! - [`process`]: a child process that prints lines.
//! - [`fakes`]: in-memory servers for DynamoDB, NATS, S3 and GCS; the latter two can ignore preconditions or throttle writes.
//! - [`layer`]: a wrapper that changes some methods of a register.
//! - [`machine`]: a client machine with its own clock, which learns the store's time from a `Date` header.
//! - [`simulation`]: many machines on one store and a bad network, judged by a checker; replayable from a seed.

// Test code fails by panicking.
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
pub mod tcp_proxy;
pub mod test_store;
