//! Many tasks share one lock, and each holds it for a while. At the end, the example prints the total time and the
//! number of requests per acquisition.
//!
//! ```text
//! cargo run --example hundred_tasks                              # in memory, 100 tasks, 5 ms each
//! cargo run --example hundred_tasks -- sqlite:/tmp/locks.db      # run it twice at once
//! cargo run --features s3 --example hundred_tasks -- 's3://bucket/locks?region=eu-west-1' 100 2000    # 2 s each
//! ```

use std::num::ParseIntError;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use leasehold::env::Env;
use leasehold::lease::StoreOptions;
use leasehold::register::Register;
use leasehold::stores::memory::MemoryRegister;
use leasehold::url::StoreUrl;
use leasehold::{Error, Locker, RegisterLeases, Result};
use leasehold_testkit::fault::FaultyRegister;

#[tokio::main]
async fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let url = arguments.next().unwrap_or_else(|| "mem:".to_owned());
    let tasks = number(arguments.next(), 100)?;
    let hold = Duration::from_millis(number(arguments.next(), 5)?);

    let requests = Arc::new(AtomicUsize::new(0));
    let (locker, counted) = open(&url, &requests).await?;
    let clock = locker.store().env().clock.clone();
    let start = clock.now();
    let mut running = tokio::task::JoinSet::new();
    for n in 0..tasks {
        let lock = locker.lock("examples/hundred-tasks").note(format!("task {n}"));
        let clock = clock.clone();
        running.spawn(async move {
            let guard = lock.acquire().await?;
            println!("task {n:>2} acquired, token {}", guard.token()?);
            clock.sleep(hold).await; // The work.
            println!("task {n:>2} releases");
            guard.release().await
        });
    }
    while let Some(done) = running.join_next().await {
        done.map_err(|panic| Error::invalid(panic.to_string()))??;
    }
    let took = clock.now().longest_since(start).as_secs_f64();
    let work = (hold * u32::try_from(tasks).unwrap_or(u32::MAX)).as_secs_f64();
    println!("all {tasks} tasks finished in {took:.1} s, {work:.1} s of it under the lock");
    if counted {
        // The count includes renewals and the check of an unknown store.
        let requests = requests.load(Ordering::Relaxed);
        println!("{requests} requests, {:.2} per acquisition", requests as f64 / tasks.max(1) as f64);
    }
    Ok(())
}

fn number(argument: Option<String>, default: u64) -> Result<u64> {
    let Some(text) = argument else { return Ok(default) };
    text.parse().map_err(|error: ParseIntError| {
        Error::invalid(format!("{text:?} is not a number: {error}"))
            .with_help("hundred_tasks [URL [TASKS [MILLISECONDS]]]")
    })
}

/// Opens the store that `url` names. Also returns whether its requests are counted, which is the case only for
/// registers.
async fn open(url: &str, requests: &Arc<AtomicUsize>) -> Result<(Locker, bool)> {
    let parsed = StoreUrl::parse(url)?;
    let register: Arc<dyn Register> = match parsed.scheme() {
        "mem" => Arc::new(MemoryRegister::new(Env::system())),
        #[cfg(feature = "s3")]
        "s3" => Arc::new(leasehold::stores::s3::S3Register::open(parsed, Env::system()).await?),
        _ => return Ok((Locker::open(url).await?, false)),
    };
    let requests = requests.clone();
    let counting = FaultyRegister::new(register).observed(move |_| {
        requests.fetch_add(1, Ordering::Relaxed);
    });
    let leases = RegisterLeases::new(Arc::new(counting), StoreOptions::default());
    Ok((Locker::new(Arc::new(leases)), true))
}
