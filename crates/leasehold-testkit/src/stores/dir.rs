//! A directory on this machine, which stands in for one that machines share.

#[cfg(feature = "chaos")]
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use async_trait::async_trait;
#[cfg(feature = "chaos")]
use futures_util::future::BoxFuture;
use leasehold::LockName;

#[cfg(feature = "chaos")]
use crate::chaos::checker::Rule;
#[cfg(feature = "chaos")]
use crate::chaos::scenario::Scenario;
#[cfg(feature = "chaos")]
use crate::chaos::servers::Servers;
#[cfg(feature = "chaos")]
use crate::chaos::worker::Kind as Lock;
use crate::conformance::Harness;
use crate::harness::Fresh;
use crate::servers::parsed;
use crate::test_store::{Bench, Kind, Reaper, Storage, TestStore};

/// A shared directory.
#[derive(Debug)]
pub struct Dir;

#[async_trait]
impl TestStore for Dir {
    fn name(&self) -> &'static str {
        "dir"
    }

    fn storages(&self) -> &'static [Storage] {
        // A write waits for the disk twice.
        const { &[Storage::local("dir", Kind::Shared).with_ttl(Duration::from_secs(4))] }
    }

    fn fresh_url(&self, _storage: &Storage, folder: &Path) -> String {
        prepared(&folder.join("locks"))
    }

    fn harness(&'static self, storage: &'static Storage) -> Box<dyn Harness> {
        Box::new(Fresh::on(self, storage))
    }

    async fn delete_record(&self, url: &str, name: &LockName) {
        std::fs::remove_dir_all(folder(url, name)).unwrap();
    }

    async fn read_record(&self, url: &str, name: &LockName) -> String {
        let files = std::fs::read_dir(folder(url, name)).unwrap();
        let contents = files.map(|file| std::fs::read(file.unwrap().path()).unwrap());
        contents.map(|content| String::from_utf8_lossy(&content).into_owned()).collect()
    }

    fn reaper(&self) -> Reaper {
        Reaper::Waiters
    }

    #[cfg(feature = "chaos")]
    fn scenarios(&self) -> &'static [Scenario] {
        const ALL: &[Scenario] = &[
            Scenario::store("dir", start, &[]),
            Scenario {
                must_break: Some(Rule::Linearizable),
                ..Scenario::naive("naive-lagging-register", Lock::LaggingRegister, start, &[])
            },
            Scenario {
                must_break: Some(Rule::Linearizable),
                ..Scenario::naive("naive-two-step-register", Lock::TwoStepRegister, start, &[])
            },
        ];
        ALL
    }

    fn bench(&self) -> Bench {
        Bench { title: "a directory", scenarios: "abcdefij", server: None }
    }
}

/// Prepares the directory at `path` as `leasehold init` does. Returns its URL.
fn prepared(path: &Path) -> String {
    std::fs::create_dir_all(path.join(".leasehold")).unwrap();
    format!("dir:{}", path.display())
}

/// Returns the folder of a lock with a short, plain name.
fn folder(url: &str, name: &LockName) -> PathBuf {
    Path::new(parsed(url).path()).join(format!("{name}%2elock"))
}

/// A directory. It has no network that could fail.
#[cfg(feature = "chaos")]
#[derive(Debug)]
struct Directory(String);

#[cfg(feature = "chaos")]
impl Servers for Directory {
    fn url(&self, _n: usize) -> String {
        self.0.clone()
    }
}

#[cfg(feature = "chaos")]
fn start(folder: &Path, _workers: usize) -> BoxFuture<'_, io::Result<Box<dyn Servers>>> {
    Box::pin(async move { Ok(Box::new(Directory(prepared(&folder.join("locks")))) as _) })
}
