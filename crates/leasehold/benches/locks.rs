//! What a program calls: names, acquisition and release through the whole library, checks of a guard.
#![allow(clippy::unwrap_used, reason = "a benchmark that cannot run must stop")]

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use leasehold::{LockName, Locker};
use tokio::runtime::{Builder, Runtime};

fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

fn names(c: &mut Criterion) {
    let mut group = c.benchmark_group("name");
    for (case, name) in [("short", "deploy/prod"), ("256 bytes", &*"größe/".repeat(32)[..255].to_owned())] {
        group.bench_function(case, |b| b.iter(|| LockName::new(black_box(name)).unwrap()));
    }
}

/// With the queue, the keeper and the watchdog of each guard.
fn acquire_and_release(c: &mut Criterion) {
    let runtime = runtime();
    let folder = tempfile::tempdir().unwrap();
    let mut group = c.benchmark_group("acquire and release");
    for (case, url) in stores(&folder) {
        let locker = runtime.block_on(Locker::open(&url)).unwrap();
        let lock = locker.lock("deploy/prod");
        group.bench_function(case, |b| {
            b.to_async(&runtime).iter(async || lock.acquire().await.unwrap().release().await.unwrap());
        });
    }
}

fn check(c: &mut Criterion) {
    let runtime = runtime();
    let guard = runtime.block_on(async {
        let locker = Locker::open("mem:").await.unwrap();
        locker.lock("deploy/prod").acquire().await.unwrap()
    });
    c.bench_function("check", |b| b.iter(|| black_box(&guard).check().unwrap()));
    runtime.block_on(guard.release()).unwrap();
}

/// Those that need no server.
fn stores(folder: &tempfile::TempDir) -> Vec<(&'static str, String)> {
    let mut stores = vec![("memory", "mem:".to_owned())];
    if cfg!(feature = "sqlite") {
        stores.push(("sqlite", format!("sqlite:{}", folder.path().join("locks.db").display())));
    }
    stores
}

criterion_group!(benches, names, acquire_and_release, check);
criterion_main!(benches);
