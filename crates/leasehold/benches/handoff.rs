//! Hand-off within a process: tasks that all want one lock, and hold it for no time at all. The time is that of one
//! acquisition.
#![allow(clippy::unwrap_used, reason = "a benchmark that cannot run must stop")]

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use futures_util::future::join_all;
use leasehold::{Lock, Locker};
use tokio::runtime::Builder;

/// How often each task acquires the lock.
const ROUNDS: u64 = 20;

async fn contend(lock: &Lock, tasks: u64) {
    let tasks = (0..tasks).map(|_| {
        let lock = lock.clone();
        tokio::spawn(async move {
            for _ in 0..ROUNDS {
                lock.acquire().await.unwrap().release().await.unwrap();
            }
        })
    });
    for ended in join_all(tasks).await {
        ended.unwrap();
    }
}

fn handoff(c: &mut Criterion) {
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let mut urls = vec![("memory", "mem:".to_owned())];
    if cfg!(feature = "sqlite") {
        urls.push(("sqlite", format!("sqlite:{}", folder.path().join("locks.db").display())));
    }
    for (store, url) in urls {
        let mut group = c.benchmark_group(format!("hand-off/{store}"));
        group.sample_size(10);
        let locker = runtime.block_on(Locker::open(&url)).unwrap();
        let lock = locker.lock("deploy/prod");
        for tasks in [1, 2, 100] {
            group.throughput(Throughput::Elements(tasks * ROUNDS));
            group.bench_function(format!("{tasks} tasks"), |b| {
                b.to_async(&runtime).iter(|| contend(&lock, tasks));
            });
        }
    }
}

criterion_group!(benches, handoff);
criterion_main!(benches);
