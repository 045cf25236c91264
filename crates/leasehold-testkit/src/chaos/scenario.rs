//! What chaos is made on: each store on each of its servers, and the locks that must be found out. The files of the
//! [stores](crate::stores) have them.

use std::time::Duration;

use super::checker::Rule;
use super::plan::Kind as Fault;
use super::servers::Start;
use super::worker::Kind;

/// What is done to the clocks of workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clocks {
    /// Rates within the bound, wall clocks an hour off, and steps.
    WithinBounds,
    /// Wall clocks an hour off, and steps: for a store whose processes share one machine, and so its boot clock.
    WallOnly,
    /// Half of them run at half the true rate, the others at twice that: beyond all bounds.
    TwiceTooFast,
}

/// Something to make chaos on.
#[derive(Clone, Copy, Debug)]
pub struct Scenario {
    /// What it is called.
    pub name: &'static str,
    /// Starts its servers.
    pub start: Start,
    /// What can be done to them: those that keep their data in memory are stopped, and not killed.
    pub server_faults: &'static [Fault],
    /// Options of the store URL.
    pub options: &'static str,
    /// Which lock workers take.
    pub kind: Kind,
    /// The leases' time to live.
    pub ttl: Duration,
    /// What is done to clocks.
    pub clocks: Clocks,
    /// The rules that must hold.
    pub promises: &'static [Rule],
    /// The rule that must be found broken: the lock is none, or the clocks are beyond what it can take.
    pub must_break: Option<Rule>,
    /// Fewer grants than this, in a short run, and nothing was tried.
    pub least_grants: u64,
}

/// Without tokens, nothing can keep a stopped process's write out.
pub const WITHOUT_TOKENS: &[Rule] = &[Rule::OneHolder, Rule::GrantedAgain, Rule::Readable];

/// With clocks beyond the bound, two may believe at once, and tokens keep them apart.
pub const FENCE_ONLY: &[Rule] =
    &[Rule::TokensAreUnique, Rule::FenceHolds, Rule::CounterIsExact, Rule::GrantedAgain, Rule::Readable];

/// Of a naive lock nothing is promised, but the history must be one.
const NOTHING: &[Rule] = &[Rule::Readable];

impl Scenario {
    /// A store of leasehold's, with everything that it promises where there are tokens.
    pub const fn store(name: &'static str, start: Start, server_faults: &'static [Fault]) -> Self {
        Self {
            name,
            start,
            server_faults,
            options: "",
            kind: Kind::Leasehold,
            ttl: Duration::from_secs(2),
            clocks: Clocks::WithinBounds,
            promises: Rule::ALL,
            must_break: None,
            least_grants: 3,
        }
    }

    /// A lock that is none.
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
