//! What chaos is made on: each store on each of its servers, and the locks that must be found out.

use std::time::Duration;

use super::checker::Rule;
use super::worker::Kind;

/// Where the locks lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// A SQLite file.
    Sqlite,
    /// MinIO, which keeps what it was told over `kill -9`.
    MinIo,
    /// moto, in memory: it can be stopped, and not be killed.
    Moto,
    /// DynamoDB Local, with its data on the disk.
    DynamoDbLocal,
    /// DynamoDB Local with its data in memory, which chaos is not made on: it would be gone.
    DynamoDbInMemory,
    /// moto's DynamoDB, in memory.
    DynamoDbMoto,
    /// fake-gcs-server, in memory.
    FakeGcs,
    /// etcd, with so many members.
    Etcd(usize),
    /// A bucket of moto's, for a naive lock.
    Bucket,
    /// A file, for a naive lock.
    File,
}

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
    /// Where the locks lie.
    pub place: Place,
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

/// What leasehold promises on a store with tokens.
const ALL: &[Rule] = Rule::ALL;

/// Without tokens, nothing can keep a stopped process's write out.
const WITHOUT_TOKENS: &[Rule] = &[Rule::OneHolder, Rule::GrantedAgain, Rule::Readable];

/// With clocks beyond the bound, two may believe at once, and tokens keep them apart.
const FENCE_ONLY: &[Rule] =
    &[Rule::TokensAreUnique, Rule::FenceHolds, Rule::CounterIsExact, Rule::GrantedAgain, Rule::Readable];

/// Of a naive lock nothing is promised, but the history must be one.
const NOTHING: &[Rule] = &[Rule::Readable];

const TTL: Duration = Duration::from_secs(2);

/// A store of leasehold's.
const fn store(name: &'static str, place: Place, least_grants: u64) -> Scenario {
    Scenario {
        name,
        place,
        options: "",
        kind: Kind::Leasehold,
        ttl: TTL,
        clocks: Clocks::WithinBounds,
        promises: ALL,
        must_break: None,
        least_grants,
    }
}

/// A lock that is none.
const fn naive(name: &'static str, place: Place, kind: Kind) -> Scenario {
    Scenario { kind, promises: NOTHING, must_break: Some(Rule::OneHolder), ..store(name, place, 1) }
}

/// Every scenario.
pub const SCENARIOS: &[Scenario] = &[
    Scenario { clocks: Clocks::WallOnly, ..store("sqlite", Place::Sqlite, 8) },
    store("s3-minio", Place::MinIo, 3),
    store("s3-moto", Place::Moto, 3),
    Scenario {
        options: "protocol=existence",
        promises: WITHOUT_TOKENS,
        ..store("s3-moto-existence", Place::Moto, 3)
    },
    store("dynamodb-local", Place::DynamoDbLocal, 3),
    store("dynamodb-moto", Place::DynamoDbMoto, 3),
    store("gcs", Place::FakeGcs, 3),
    Scenario { options: "protocol=existence", ..store("gcs-existence", Place::FakeGcs, 3) },
    store("etcd", Place::Etcd(1), 3),
    Scenario { ttl: Duration::from_secs(3), ..store("etcd-cluster", Place::Etcd(3), 3) },
    Scenario {
        promises: FENCE_ONLY,
        clocks: Clocks::TwiceTooFast,
        ..store("clocks-twice-too-fast", Place::Moto, 3)
    },
    Scenario { clocks: Clocks::WallOnly, ..naive("naive-unchecked", Place::Sqlite, Kind::Unchecked) },
    naive("naive-plain-object", Place::Bucket, Kind::PlainObject),
    Scenario { clocks: Clocks::WallOnly, ..naive("naive-expiry-column", Place::File, Kind::ExpiryColumn) },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_every_store_of_ours_promises_one_holder() {
        for (n, scenario) in SCENARIOS.iter().enumerate() {
            assert!(SCENARIOS[..n].iter().all(|other| other.name != scenario.name));
            let naive = scenario.kind != Kind::Leasehold;
            assert_eq!(naive, scenario.must_break.is_some(), "{}", scenario.name);
            if !naive && scenario.clocks != Clocks::TwiceTooFast {
                assert!(scenario.promises.contains(&Rule::OneHolder), "{}", scenario.name);
            }
        }
    }
}
