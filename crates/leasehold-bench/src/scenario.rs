//! What is measured, and on what.

use std::fmt;

/// A question that is put to every contender.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Scenario {
    Uncontended,
    Tasks,
    Processes,
    HandOff,
    Recovery,
    Many,
    Run,
    /// Has no run of its own: it is read off those of [`Tasks`](Self::Tasks) and [`Processes`](Self::Processes).
    Fairness,
}

impl Scenario {
    pub(crate) const ALL: &[Self] = &[
        Self::Uncontended,
        Self::Tasks,
        Self::Processes,
        Self::HandOff,
        Self::Recovery,
        Self::Many,
        Self::Run,
        Self::Fairness,
    ];

    /// How it is called for short.
    pub(crate) fn letter(self) -> &'static str {
        match self {
            Self::Uncontended => "a",
            Self::Tasks => "b",
            Self::Processes => "c",
            Self::HandOff => "d",
            Self::Recovery => "e",
            Self::Many => "f",
            Self::Run => "g",
            Self::Fairness => "h",
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Uncontended => "uncontended",
            Self::Tasks => "tasks",
            Self::Processes => "processes",
            Self::HandOff => "hand-off",
            Self::Recovery => "recovery",
            Self::Many => "many",
            Self::Run => "run",
            Self::Fairness => "fairness",
        }
    }

    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::Uncontended => "One task takes and releases a lock that nobody else wants",
            Self::Tasks => "100 tasks of one process want one lock",
            Self::Processes => "16 processes with 8 tasks each want one lock",
            Self::HandOff => "From a release to the grant of another process",
            Self::Recovery => "A holder is killed (-9) while another process waits",
            Self::Many => "One process holds 10,000 locks",
            Self::Run => "A command under a lock",
            Self::Fairness => "How evenly those who wait are served",
        }
    }

    /// On what it is measured unless the user says otherwise.
    pub(crate) fn stores(self) -> &'static [Store] {
        match self {
            Self::Uncontended | Self::Tasks => Store::ALL,
            Self::Processes | Self::HandOff | Self::Recovery => {
                &[Store::S3, Store::DynamoDb, Store::Gcs, Store::Etcd, Store::Sqlite]
            }
            Self::Many => &[Store::Memory, Store::Sqlite, Store::Etcd, Store::DynamoDb],
            Self::Run => &[Store::Sqlite, Store::Etcd],
            Self::Fairness => &[],
        }
    }

    /// Whether it matters how far away the server is.
    pub(crate) fn has_distances(self) -> bool {
        matches!(self, Self::Uncontended | Self::Tasks | Self::Processes | Self::HandOff)
    }

    /// How many rounds come first that do not count: a server that compiles what it does often (DynamoDB Local) gets faster
    /// for minutes, and requests are all that is measured here.
    pub(crate) fn rehearsals(self) -> u32 {
        u32::from(self == Self::Uncontended)
    }

    /// What has to be run for it.
    pub(crate) fn runs(self) -> &'static [Self] {
        match self {
            Self::Uncontended => &[Self::Uncontended],
            Self::Tasks => &[Self::Tasks],
            Self::Processes => &[Self::Processes],
            Self::HandOff => &[Self::HandOff],
            Self::Recovery => &[Self::Recovery],
            Self::Many => &[Self::Many],
            Self::Run => &[Self::Run],
            Self::Fairness => &[Self::Tasks, Self::Processes],
        }
    }

    /// The scenario of that letter or name.
    pub(crate) fn called(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|scenario| scenario.letter() == name || scenario.name() == name)
    }
}

impl fmt::Display for Scenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "({}) {}", self.letter(), self.name())
    }
}

/// Where the locks lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Store {
    S3,
    DynamoDb,
    Gcs,
    Etcd,
    Sqlite,
    Memory,
}

impl Store {
    pub(crate) const ALL: &[Self] =
        &[Self::S3, Self::DynamoDb, Self::Gcs, Self::Etcd, Self::Sqlite, Self::Memory];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::S3 => "s3",
            Self::DynamoDb => "dynamodb",
            Self::Gcs => "gcs",
            Self::Etcd => "etcd",
            Self::Sqlite => "sqlite",
            Self::Memory => "mem",
        }
    }

    /// The name, and the server that stands for it.
    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::S3 => "S3 (MinIO)",
            Self::DynamoDb => "DynamoDB (DynamoDB Local)",
            Self::Gcs => "GCS (fake-gcs-server)",
            Self::Etcd => "etcd (one member)",
            Self::Sqlite => "SQLite (a file)",
            Self::Memory => "memory",
        }
    }

    /// Whether requests go through the network.
    pub(crate) fn has_server(self) -> bool {
        !matches!(self, Self::Sqlite | Self::Memory)
    }

    pub(crate) fn called(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|store| store.name() == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_among_scenarios_and_stores() {
        let scenarios = Scenario::ALL.iter().flat_map(|scenario| [scenario.letter(), scenario.name()]);
        let names: Vec<&str> = scenarios.chain(Store::ALL.iter().map(|store| store.name())).collect();
        for (n, name) in names.iter().enumerate() {
            assert!(!names[..n].contains(name), "{name}");
        }
        for scenario in Scenario::ALL {
            assert_eq!(Scenario::called(scenario.letter()), Some(*scenario));
            assert_eq!(Scenario::called(scenario.name()), Some(*scenario));
        }
    }
}
