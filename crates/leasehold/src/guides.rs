//! The Rust code in `docs`, compiled and run as documentation tests.

#[doc = include_str!("../../../docs/guides/leader-election.md")]
struct LeaderElection;

#[doc = include_str!("../../../docs/observability.md")]
struct Observability;

#[doc = include_str!("../../../docs/rust.md")]
struct Rust;
