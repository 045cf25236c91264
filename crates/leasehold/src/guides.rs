//! The Rust code in `docs/guides`, which is compiled and run as documentation tests.

#[doc = include_str!("../../../docs/guides/leader-election.md")]
struct LeaderElection;
