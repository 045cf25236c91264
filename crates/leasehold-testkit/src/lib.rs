//! What it takes to test a store, and programs that use one: for leasehold itself and for stores by others.
//!
//! - `chaos`, with the feature of that name: processes, servers, networks and clocks that fail, and a checker.
//! - [`mod@conformance`]: what every store must do, a named case for each behaviour.
//! - [`harness`]: the storage that leasehold's own stores run the cases on.
//! - [`fault`]: a register whose requests and answers are lost, delayed, doubled or held back, as the test says.
//! - [`proxy`]: the same for HTTP, between a client and a real server; counts requests too.
//! - [`servers`]: the real servers that `./test` starts.
//! - [`peers`]: programs that take locks with other clients, and etcd's own programs.
//! - [`process`]: a running program that says lines.
//! - `etcd`, with the feature of that name: clusters of etcd that a test starts, kills and stops.
//! - [`s3_double`]: a server that speaks just enough S3, and ignores preconditions when told to.
//! - [`gcs_double`]: the same for GCS; takes one write a second for each object.
//! - [`layer`]: a register in front of another, of which only what it does otherwise is written down.
//! - [`machine`]: a client machine with a clock of its own, which learns the store's time as from a `Date` header.
//! - [`simulation`]: many machines, one store, a bad network, and a checker; replayable from a seed.

// A failed expectation here is a failed test: panicking is how a test says so.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[cfg(feature = "chaos")]
pub mod chaos;
pub mod conformance;
#[cfg(feature = "etcd")]
pub mod etcd;
pub mod fault;
pub mod gcs_double;
pub mod harness;
mod http;
pub mod layer;
pub mod machine;
pub mod peers;
pub mod process;
pub mod proxy;
pub mod s3_double;
pub mod servers;
pub mod simulation;
