//! Records: read and parsed by `inspect`, made and written by `renew`, on a register in memory that costs next to nothing.
//!
//! What a record itself costs is the difference to `inspect/nothing`. One that is held with a full history is the longest
//! that there is without a note.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a benchmark that cannot run must stop")]

use std::hint::black_box;
use std::sync::Arc;

use criterion::{Criterion, criterion_group, criterion_main};
use leasehold::env::Env;
use leasehold::lease::{AcquireOutcome, Claim, Grant, Holder, LeaseStore, StoreOptions, Ttl};
use leasehold::register::{Precondition, Register};
use leasehold::stores::memory::MemoryRegister;
use leasehold::{LockName, RegisterLeases};
use tokio::runtime::{Builder, Runtime};

/// More grants than a record remembers.
const GRANTS: usize = 9;

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

fn name(text: &str) -> LockName {
    LockName::new(text).unwrap()
}

/// Leases on a new register, and the register.
fn leases() -> (RegisterLeases, Arc<MemoryRegister>) {
    let register = Arc::new(MemoryRegister::new(Env::system()));
    (RegisterLeases::new(register.clone(), StoreOptions::default()), register)
}

async fn grant(leases: &RegisterLeases, name: &LockName) -> Grant {
    let mut holder = Holder::this_process();
    holder.note = Some("make deploy".to_owned());
    let claim = Claim::new(leases.env(), name.clone(), Ttl::DEFAULT, holder);
    match leases.try_acquire(&claim).await.unwrap() {
        AcquireOutcome::Granted(grant) => grant,
        other => panic!("{other:?}"),
    }
}

/// A lock with a full history, that is held.
async fn held(leases: &RegisterLeases, name: &LockName) -> Grant {
    for _ in 0..GRANTS {
        free(leases, name).await;
    }
    grant(leases, name).await
}

/// A lock that was held once.
async fn free(leases: &RegisterLeases, name: &LockName) {
    leases.release(&mut grant(leases, name).await, None).await.unwrap();
}

fn inspect(c: &mut Criterion) {
    let runtime = runtime();
    let (leases, register) = leases();
    runtime.block_on(async {
        held(&leases, &name("held")).await;
        free(&leases, &name("free")).await;
        let foreign = r#"{"ID":"2b6a6738-5dd5-50d6-c0ae-f6352977666b","Operation":"OperationTypeApply"}"#;
        register.write("foreign.lock", Precondition::Absent, foreign.to_owned().into()).await.unwrap();
    });
    let mut group = c.benchmark_group("inspect");
    for case in ["nothing", "free", "held", "foreign"] {
        let name = name(case);
        group.bench_function(case, |b| b.to_async(&runtime).iter(|| leases.inspect(black_box(&name))));
    }
}

fn renew(c: &mut Criterion) {
    let runtime = runtime();
    let (leases, _) = leases();
    let mut grant = runtime.block_on(held(&leases, &name("held")));
    c.bench_function("renew", |b| b.iter(|| runtime.block_on(leases.renew(&mut grant)).unwrap()));
}

/// Warm: what is there is known, so both send one conditional write.
fn acquire_and_release(c: &mut Criterion) {
    let runtime = runtime();
    let (leases, _) = leases();
    let name = name("held");
    runtime.block_on(async {
        let mut grant = held(&leases, &name).await;
        leases.release(&mut grant, None).await.unwrap();
    });
    c.bench_function("acquire and release on a register", |b| {
        b.to_async(&runtime).iter(|| free(&leases, black_box(&name)));
    });
}

criterion_group!(benches, inspect, renew, acquire_and_release);
criterion_main!(benches);
