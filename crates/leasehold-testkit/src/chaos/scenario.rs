//! The scenarios: each store on each of its servers, and the incorrect locks whose flaws the checker must find. The
//! files of the [stores](crate::stores) define them.

use std::time::Duration;

use super::checker::Rule;
use super::plan::Kind as Fault;
use super::servers::Start;
use super::worker::Kind;

/// How workers' clocks are wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clocks {
    /// Rates within the bound; wall clocks that are an hour off and are stepped.
    WithinBounds,
    /// Wall clocks that are an hour off and are stepped. For a store whose processes share one machine, and so its
    /// boot clock.
    WallOnly,
    /// Half of the clocks run at half the true rate, the others at twice the true rate. Both are far beyond the
    /// bound.
    TwiceTooFast,
}

/// The language of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Language {
    /// Rust, with the library.
    Rust,
    /// The Python client, with asyncio.
    Python,
    /// The client for Node.
    Node,
}

/// A setup that chaos runs on.
#[derive(Clone, Copy, Debug)]
pub struct Scenario {
    /// The name.
    pub name: &'static str,
    /// Starts its servers.
    pub start: Start,
    /// The faults of the servers. Servers that keep their data in memory are stopped but not killed.
    pub server_faults: &'static [Fault],
    /// How long no fault hits a server after another one did. If servers are replaced more often than their grace is
    /// long, they grant nothing at all.
    pub rest: Duration,
    /// Options of the store URL.
    pub options: &'static str,
    /// The kind of lock that workers acquire.
    pub kind: Kind,
    /// The language of three in four workers. The others are in Rust.
    pub language: Language,
    /// The leases' time to live.
    pub ttl: Duration,
    /// How the workers' clocks are wrong.
    pub clocks: Clocks,
    /// The rules that must hold.
    pub promises: &'static [Rule],
    /// The rule that the checker must find broken, because the lock is incorrect or the clocks exceed the bound.
    pub must_break: Option<Rule>,
    /// With fewer grants than this, even in a short run, the run has tested nothing.
    pub least_grants: u64,
}

/// Without tokens, nothing can reject the late write of a stopped process.
pub const WITHOUT_TOKENS: &[Rule] = &[
    Rule::OneHolder,
    Rule::GrantedAgain,
    Rule::Linearizable,
    Rule::LinearizableBetweenFailovers,
    Rule::Readable,
];

/// A failover can lose the latest writes. The failover grace protects the locks, but not registers.
pub const LOSES_WRITES: &[Rule] = &[
    Rule::OneHolder,
    Rule::TokensRise,
    Rule::TokensAreUnique,
    Rule::FenceHolds,
    Rule::CounterIsExact,
    Rule::GrantedAgain,
    Rule::LinearizableBetweenFailovers,
    Rule::Readable,
];

/// If clocks exceed the bound, two holders may believe in their locks at once. Tokens still order their writes.
pub const FENCE_ONLY: &[Rule] = &[
    Rule::TokensAreUnique,
    Rule::FenceHolds,
    Rule::CounterIsExact,
    Rule::GrantedAgain,
    Rule::Linearizable,
    Rule::LinearizableBetweenFailovers,
    Rule::Readable,
];

/// An incorrect lock promises nothing, but its history must be readable.
const NOTHING: &[Rule] = &[Rule::Readable];

impl Scenario {
    /// Defines a scenario for a store of leasehold, which promises everything that a store with tokens promises.
    pub const fn store(name: &'static str, start: Start, server_faults: &'static [Fault]) -> Self {
        Self {
            name,
            start,
            server_faults,
            rest: Duration::ZERO,
            options: "",
            kind: Kind::Leasehold,
            language: Language::Rust,
            ttl: Duration::from_secs(2),
            clocks: Clocks::WithinBounds,
            promises: Rule::ALL,
            must_break: None,
            least_grants: 3,
        }
    }

    /// Returns for how long after a server fault writes may still be lost: the failover grace, by which leasehold's
    /// locks are safe from it.
    pub fn failover_grace(&self) -> Duration {
        let grace = self.options.split('&').find_map(|option| option.strip_prefix("failover_grace="));
        let seconds = grace.map_or(Ok(0), |grace| grace.trim_end_matches('s').parse());
        Duration::from_secs(seconds.expect("whole seconds"))
    }

    /// Defines a scenario for an incorrect lock.
    pub const fn naive(
        name: &'static str,
        kind: Kind,
        start: Start,
        server_faults: &'static [Fault],
    ) -> Self {
        Self {
            kind,
            promises: NOTHING,
            must_break: Some(Rule::OneHolder),
            least_grants: 1,
            ..Self::store(name, start, server_faults)
        }
    }
}
