//! The contenders, and the stores on which each one is measured.

use crate::contender;
use crate::scenario::{Scenario, Store};

/// A lock client, or a baseline.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Contender {
    /// The name in results and on the command line.
    pub(crate) name: &'static str,
    /// The title in tables.
    pub(crate) title: &'static str,
    /// The names of the stores that it works on. If empty, it works on all of them.
    stores: &'static [&'static str],
    pub(crate) scenarios: &'static [Scenario],
    program: ProgramOf,
    /// How the contender finds its server.
    pub(crate) place: Place,
    pub(crate) role: Role,
}

#[derive(Clone, Copy, Debug)]
enum ProgramOf {
    /// This program, started as the contender with this name.
    This(&'static str),
    /// The command line in this environment variable.
    Variable(&'static str),
    /// A command that is measured as a whole.
    Whole,
}

/// How a contender finds its server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// By a store URL.
    Url,
    /// By an endpoint and a bucket or table.
    Endpoint,
}

/// The role of a contender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Ours,
    /// Our command with default features, without the clients of other stores.
    OursByDefault,
    /// Our library through `leasehold serve` on the same store, or our command with several locks. It has no targets.
    OursServed,
    /// Another build of ours, to compare two versions. It has no targets.
    AnotherBuild,
    Peer,
    /// A baseline, not a lock: only the calls or the command.
    Limit,
    /// A baseline, not a lock: calls with the conditions and the sizes that any lock needs. No lock can be faster.
    Conditional,
}

use Scenario::{First, HandOff, Many, Processes, Recovery, Run, Tasks, Uncontended, Waiters};

/// The scenarios that every lock supports.
const LOCKS: &[Scenario] = &[Uncontended, Tasks, Processes, HandOff, Recovery, Waiters, First];
const LOCKS_AND_MANY: &[Scenario] = &[Uncontended, Tasks, Processes, HandOff, Recovery, Waiters, First, Many];

const fn peer(
    name: &'static str,
    title: &'static str,
    stores: &'static [&'static str],
    program: ProgramOf,
) -> Contender {
    Contender {
        name,
        title,
        stores,
        scenarios: LOCKS_AND_MANY,
        program,
        place: Place::Endpoint,
        role: Role::Peer,
    }
}

/// Returns a baseline: the calls that acquiring and releasing a lock needs, made with the store's client.
const fn calls(
    role: Role,
    name: &'static str,
    title: &'static str,
    stores: &'static [&'static str],
    program: ProgramOf,
) -> Contender {
    Contender { scenarios: &[Uncontended], role, ..peer(name, title, stores, program) }
}

/// Returns a client of a store that has no baseline for an uncontended lock.
const fn contended(
    name: &'static str,
    title: &'static str,
    stores: &'static [&'static str],
    variable: &'static str,
) -> Contender {
    let scenarios = &[Tasks, Processes, HandOff, Recovery, Waiters, First];
    Contender { scenarios, ..peer(name, title, stores, ProgramOf::Variable(variable)) }
}

const fn command(name: &'static str, stores: &'static [&'static str], role: Role) -> Contender {
    Contender { scenarios: &[Run], role, ..peer(name, name, stores, ProgramOf::Whole) }
}

/// All contenders.
pub(crate) const CONTENDERS: &[Contender] = &[
    Contender {
        place: Place::Url,
        role: Role::Ours,
        ..peer("leasehold", "leasehold", &[], ProgramOf::This("ours"))
    },
    Contender {
        place: Place::Url,
        role: Role::AnotherBuild,
        ..peer("another-build", "another build of leasehold", &[], ProgramOf::Variable(ANOTHER_BUILD))
    },
    Contender {
        scenarios: &[Uncontended],
        place: Place::Url,
        role: Role::OursServed,
        ..peer(
            "leasehold-serve",
            "leasehold through its server (leasehold serve)",
            &["sqlite", "etcd"],
            ProgramOf::This("served"),
        )
    },
    Contender {
        scenarios: LOCKS,
        ..peer("plain-s3", "plain loop (If-None-Match, sleep, delete)", &["s3"], ProgramOf::This("plain-s3"))
    },
    calls(Role::Limit, "bare-s3", "two bare puts (no lock)", &["s3"], ProgramOf::This("bare-s3")),
    calls(
        Role::Conditional,
        "conditional-s3",
        "two conditional puts of as many bytes (no lock)",
        &["s3"],
        ProgramOf::This("conditional-s3"),
    ),
    peer(
        "dynamodb-java",
        "AWS lock client (Java)",
        &["dynamodb"],
        ProgramOf::Variable("LEASEHOLD_BENCH_PEER_DYNAMODB_JAVA"),
    ),
    peer(
        "dynamodb-go",
        "dynamolock (Go)",
        &["dynamodb"],
        ProgramOf::Variable("LEASEHOLD_BENCH_PEER_DYNAMODB_GO"),
    ),
    peer(
        "dlock-rust",
        "dlock (Rust)",
        &["dynamodb"],
        ProgramOf::Variable("LEASEHOLD_BENCH_PEER_DYNAMODB_RUST"),
    ),
    peer(
        "dynamodb-lease-rust",
        "dynamodb-lease (Rust)",
        &["dynamodb"],
        ProgramOf::Variable("LEASEHOLD_BENCH_PEER_DYNAMODB_LEASE_RUST"),
    ),
    calls(
        Role::Limit,
        "bare-dynamodb",
        "two bare updates (no lock)",
        &["dynamodb"],
        ProgramOf::This("bare-dynamodb"),
    ),
    calls(
        Role::Conditional,
        "conditional-dynamodb",
        "two conditional updates of as many bytes (no lock)",
        &["dynamodb"],
        ProgramOf::This("conditional-dynamodb"),
    ),
    Contender {
        scenarios: LOCKS,
        ..peer("gcslock", "gcslock's algorithm", &["gcs"], ProgramOf::This("gcslock"))
    },
    calls(
        Role::Conditional,
        "conditional-gcs",
        "two conditional uploads of as many bytes (no lock)",
        &["gcs"],
        ProgramOf::This("conditional-gcs"),
    ),
    peer(
        "etcd-go",
        "etcd's concurrency package (Go)",
        &["etcd"],
        ProgramOf::Variable("LEASEHOLD_BENCH_PEER_ETCD_GO"),
    ),
    peer(
        "etcd-rust",
        "etcd-client's lock API (Rust)",
        &["etcd"],
        ProgramOf::Variable("LEASEHOLD_BENCH_PEER_ETCD_RUST"),
    ),
    Contender {
        scenarios: &[Uncontended],
        ..peer("etcd-http", "etcd's HTTP API (JSON gateway)", &["etcd"], ProgramOf::This("etcd-http"))
    },
    calls(
        Role::Conditional,
        "conditional-etcd",
        "two transactions with a condition, of as many bytes (no lock)",
        &["etcd"],
        ProgramOf::Variable("LEASEHOLD_BENCH_CALLS_ETCD"),
    ),
    Contender {
        place: Place::Url,
        scenarios: LOCKS,
        ..peer("flock-dir", "flock", &["dir"], ProgramOf::This("flock-dir"))
    },
    Contender {
        place: Place::Url,
        ..calls(
            Role::Conditional,
            "conditional-dir",
            "two files of as many bytes, each with fsync and a link (no lock)",
            &["dir"],
            ProgramOf::This("conditional-dir"),
        )
    },
    Contender {
        place: Place::Url,
        scenarios: LOCKS,
        ..peer("get-lock", "GET_LOCK, RELEASE_LOCK", &["mysql"], ProgramOf::This("get-lock"))
    },
    Contender {
        place: Place::Url,
        ..calls(
            Role::Conditional,
            "conditional-mysql",
            "two conditional updates of as many bytes (no lock)",
            &["mysql"],
            ProgramOf::This("conditional-mysql"),
        )
    },
    Contender {
        place: Place::Url,
        scenarios: LOCKS,
        ..peer("plain-nats", "plain loop (create, sleep, delete)", &["nats"], ProgramOf::This("plain-nats"))
    },
    Contender {
        place: Place::Url,
        ..calls(
            Role::Conditional,
            "conditional-nats",
            "two conditional updates of as many bytes (no lock)",
            &["nats"],
            ProgramOf::This("conditional-nats"),
        )
    },
    Contender {
        place: Place::Url,
        // It does not renew, so it cannot hold the lock until it is killed.
        scenarios: &[Tasks, Processes, HandOff, Waiters],
        ..peer("redis-py", "redis-py's algorithm", &["redis", "redis-cluster"], ProgramOf::This("redis-py"))
    },
    contended("redsync", "redsync (Go)", &["redis"], "LEASEHOLD_BENCH_PEER_REDSYNC"),
    contended("redisson", "Redisson's lock (Java)", &["redis"], "LEASEHOLD_BENCH_PEER_REDISSON"),
    contended(
        "redisson-fair",
        "Redisson's fair lock (Java)",
        &["redis"],
        "LEASEHOLD_BENCH_PEER_REDISSON_FAIR",
    ),
    contended(
        "client-go",
        "client-go's leader election (Go)",
        &["kubernetes"],
        "LEASEHOLD_BENCH_PEER_CLIENT_GO",
    ),
    command("leasehold run", &["sqlite", "etcd"], Role::Ours),
    command("leasehold run, SQLite alone", &["sqlite"], Role::OursByDefault),
    command("leasehold run, three locks at once", &["sqlite", "etcd"], Role::OursServed),
    command("leasehold run, three nested runs", &["sqlite", "etcd"], Role::OursServed),
    command("flock", &["sqlite"], Role::Peer),
    command("etcdctl lock", &["etcd"], Role::Peer),
    command("no lock", &["sqlite", "etcd"], Role::Limit),
];

/// Another build of this program, to compare two versions of leasehold in one run. It takes part if this variable is
/// set.
const ANOTHER_BUILD: &str = "LEASEHOLD_BENCH_ANOTHER_BUILD";

impl Contender {
    /// Returns the contenders of `scenario` on `store`.
    pub(crate) fn of(scenario: Scenario, store: Store) -> Vec<&'static Self> {
        let asked_for =
            |one: &Self| one.role != Role::AnotherBuild || std::env::var_os(ANOTHER_BUILD).is_some();
        let takes_part =
            |one: &&Self| one.works_on(store) && one.scenarios.contains(&scenario) && asked_for(one);
        CONTENDERS.iter().filter(takes_part).collect()
    }

    /// Returns whether the contender supports this store.
    pub(crate) fn works_on(&self, store: Store) -> bool {
        self.stores.is_empty() || self.stores.contains(&store.name())
    }

    /// Returns the command line that starts the contender, or why there is none.
    pub(crate) fn command(&self) -> Result<Vec<String>, String> {
        match self.program {
            ProgramOf::This(name) if contender::BUILT_IN.contains(&name) => {
                let this = std::env::current_exe().map_err(|error| error.to_string())?;
                Ok(vec![this.display().to_string(), "contender".to_owned(), name.to_owned()])
            }
            ProgramOf::This(name) => Err(format!("`{name}` is not built in: build with --all-features")),
            ProgramOf::Variable(variable) => {
                let line = std::env::var(variable).unwrap_or_default();
                let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
                if words.is_empty() {
                    Err(format!("{variable} is not set: the client is not installed"))
                } else {
                    Ok(words)
                }
            }
            ProgramOf::Whole => Err("it is a command, not a contender".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ours_is_measured_on_every_store() {
        for scenario in Scenario::ALL {
            for store in scenario.stores() {
                let all = Contender::of(*scenario, store);
                assert_eq!(
                    all.iter().filter(|one| one.role == Role::Ours).count(),
                    1,
                    "{scenario} {store:?}"
                );
            }
        }
        for (n, one) in CONTENDERS.iter().enumerate() {
            assert!(CONTENDERS[..n].iter().all(|other| other.name != one.name), "{}", one.name);
        }
    }

    /// The verdict compares with these calls on every store that has other clients.
    #[test]
    fn calls_with_conditions_are_measured_beside_every_peer() {
        for store in Scenario::Uncontended.stores() {
            let all = Contender::of(Scenario::Uncontended, store);
            let count = |role: Role| all.iter().filter(|one| one.role == role).count();
            assert_eq!(count(Role::Conditional), usize::from(count(Role::Peer) > 0), "{store:?}");
        }
    }

    #[cfg(feature = "servers")]
    #[test]
    fn contenders_of_this_program_are_built_in() {
        for one in CONTENDERS.iter().filter(|one| matches!(one.program, ProgramOf::This(_))) {
            one.command().unwrap();
        }
    }

    #[test]
    fn a_client_that_is_not_installed_is_reported() {
        for one in CONTENDERS.iter().filter(|one| one.name == "etcd-rust") {
            if let Err(why) = one.command() {
                assert!(why.contains("LEASEHOLD_BENCH_PEER_ETCD_RUST"), "{why}");
            }
        }
    }
}
