//! The Rust of `docs/guides`: compiled and run with the documentation's examples.

#[doc = include_str!("../../../docs/guides/leader-election.md")]
struct LeaderElection;
