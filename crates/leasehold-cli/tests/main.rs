//! The integration tests of the command, in one binary. Server tests and guides need all stores: `./test` starts the
//! servers.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

#[cfg(feature = "sqlite")]
mod cli;
#[cfg(feature = "all-stores")]
mod doctor;
#[cfg(all(feature = "kubernetes", feature = "sqlite"))]
mod elect_kubernetes;
#[cfg(feature = "all-stores")]
mod guides;
#[cfg(all(feature = "sqlite", feature = "serve"))]
mod serve;
#[cfg(feature = "all-stores")]
mod servers;
#[cfg(feature = "sqlite")]
mod support;
#[cfg(all(feature = "all-stores", feature = "serve"))]
mod terraform;
