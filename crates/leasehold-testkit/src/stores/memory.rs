//! Storage in the memory of the test process.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use leasehold::LockName;
use leasehold::env::Env;
use leasehold::lease::StoreOptions;
use leasehold::stores::memory::MemoryRegister;

use crate::conformance::Harness;
use crate::harness::OnRegister;
use crate::test_store::{Bench, Kind, Storage, TestStore};

/// Storage in the memory of the test process.
#[derive(Debug)]
pub struct Memory;

/// Creates leases on a new [`MemoryRegister`] that runs on `env`.
pub fn on(env: Env) -> OnRegister {
    let mut options = StoreOptions::default();
    options.env = env.clone();
    options.margin = Duration::ZERO;
    OnRegister::new(Arc::new(MemoryRegister::new(env)), options)
}

#[async_trait]
impl TestStore for Memory {
    fn name(&self) -> &'static str {
        "mem"
    }

    fn storages(&self) -> &'static [Storage] {
        const { &[Storage::local("memory", Kind::Alone)] }
    }

    fn fresh_url(&self, _storage: &Storage, _folder: &Path) -> String {
        "mem:".to_owned()
    }

    fn harness(&'static self, _storage: &'static Storage) -> Box<dyn Harness> {
        Box::new(on(Env::system()))
    }

    async fn delete_record(&self, url: &str, _name: &LockName) {
        panic!("no two clients share `{url}`");
    }

    async fn read_record(&self, _url: &str, _name: &LockName) -> String {
        String::new()
    }

    fn bench(&self) -> Bench {
        Bench { title: "memory", scenarios: "abf", server: None }
    }
}
