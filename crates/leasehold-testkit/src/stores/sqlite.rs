//! SQLite, in a file.

#[cfg(feature = "chaos")]
use std::io;
use std::path::Path;
#[cfg(feature = "chaos")]
use std::path::PathBuf;
use std::time::Duration;

use async_trait::async_trait;
#[cfg(feature = "chaos")]
use futures_util::future::BoxFuture;
use leasehold::LockName;

#[cfg(feature = "chaos")]
use crate::chaos::scenario::{Clocks, Scenario};
#[cfg(feature = "chaos")]
use crate::chaos::servers::Servers;
#[cfg(feature = "chaos")]
use crate::chaos::worker::Kind as Lock;
use crate::conformance::Harness;
use crate::harness::{Fresh, read_database};
use crate::servers::parsed;
use crate::test_store::{Bench, Kind, Reaper, Storage, TestStore};

/// SQLite.
#[derive(Debug)]
pub struct Sqlite;

#[async_trait]
impl TestStore for Sqlite {
    fn name(&self) -> &'static str {
        "sqlite"
    }

    fn storages(&self) -> &'static [Storage] {
        const { &[Storage::local("sqlite", Kind::Shared)] }
    }

    fn fresh_url(&self, _storage: &Storage, folder: &Path) -> String {
        format!("sqlite:{}", folder.join("locks.db").display())
    }

    fn harness(&'static self, storage: &'static Storage) -> Box<dyn Harness> {
        Box::new(Fresh::on(self, storage))
    }

    async fn delete_record(&self, url: &str, name: &LockName) {
        let database = rusqlite::Connection::open(parsed(url).path()).unwrap();
        database.busy_timeout(Duration::from_secs(60)).unwrap();
        assert_eq!(database.execute("DELETE FROM lock WHERE name = ?1", [name.as_str()]).unwrap(), 1);
    }

    async fn read_record(&self, url: &str, _name: &LockName) -> String {
        read_database(Path::new(parsed(url).path()))
    }

    fn reaper(&self) -> Reaper {
        Reaper::Death
    }

    #[cfg(feature = "chaos")]
    fn scenarios(&self) -> &'static [Scenario] {
        const ALL: &[Scenario] = &[
            Scenario { clocks: Clocks::WallOnly, least_grants: 8, ..Scenario::store("sqlite", file, &[]) },
            Scenario {
                clocks: Clocks::WallOnly,
                ..Scenario::naive("naive-unchecked", Lock::Unchecked, file, &[])
            },
            Scenario {
                clocks: Clocks::WallOnly,
                ..Scenario::naive("naive-expiry-column", Lock::ExpiryColumn, file, &[])
            },
        ];
        ALL
    }

    fn bench(&self) -> Bench {
        Bench { title: "SQLite (a file)", scenarios: "abcdefgij", server: None }
    }
}

/// A SQLite file. It has no network that could fail.
#[cfg(feature = "chaos")]
#[derive(Debug)]
struct File(PathBuf);

#[cfg(feature = "chaos")]
impl Servers for File {
    fn url(&self, _n: usize) -> String {
        format!("sqlite:{}", self.0.display())
    }
}

#[cfg(feature = "chaos")]
fn file(folder: &Path, _workers: usize) -> BoxFuture<'_, io::Result<Box<dyn Servers>>> {
    Box::pin(async move { Ok(Box::new(File(folder.join("locks.db"))) as _) })
}
