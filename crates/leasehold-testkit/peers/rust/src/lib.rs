//! The common part of the benchmark contenders that use other clients. `../go/contender.go` describes their input and
//! output.

use std::collections::HashMap;
use std::future::Future;
use std::io::Write;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, anyhow, bail, ensure};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader, Stdin};
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};

pub mod dynamodb;
pub mod etcd;

/// How often `contend` acquires the warm-up lock at most.
const WARM_CYCLES: u32 = 50;
/// The time limit of the warm-up.
const WARM_TIME: Duration = Duration::from_secs(2);
/// How many locks `many` acquires or releases concurrently.
const AT_ONCE: usize = 64;

/// The client under test, one per process.
pub trait Client: Clone + Send + Sync + 'static {
    type Contender: Contender;

    /// Returns the contender of one task. Contenders of different tasks exclude each other.
    fn contender(&self, lock: String) -> impl Future<Output = Result<Self::Contender>> + Send;

    /// Returns the holder of one lock of many. Holders of different locks may share a session.
    fn holder(&self, lock: String) -> impl Future<Output = Result<Self::Contender>> + Send {
        self.contender(lock)
    }

    /// Frees the resources that holders share.
    fn close(&self) -> impl Future<Output = Result<()>> + Send {
        std::future::ready(Ok(()))
    }
}

/// Acquires one lock repeatedly.
pub trait Contender: Send + 'static {
    /// Waits for the lock, holds it while `during` runs, and releases it. Dropping the future gives up the wait.
    fn cohort<F, D>(&mut self, during: F) -> impl Future<Output = Result<()>> + Send
    where
        F: FnOnce(Lost) -> D + Send + 'static,
        D: Future<Output = ()> + Send + 'static;

    /// Frees the contender's own resources.
    fn close(self) -> impl Future<Output = Result<()>> + Send;
}

/// Returns whether the client knows the lock to be lost.
pub type Lost = Box<dyn Fn() -> bool + Send + Sync>;

/// The arguments after the verb.
#[derive(Clone, Debug)]
pub struct Options(HashMap<String, String>);

impl Options {
    fn read(mut arguments: impl Iterator<Item = String>) -> Result<Self> {
        let mut options = HashMap::new();
        while let Some(argument) = arguments.next() {
            let name = argument.strip_prefix("--").with_context(|| format!("{argument:?} is not an option"))?;
            let value = arguments.next().with_context(|| format!("--{name} has no value"))?;
            options.insert(name.to_owned(), value);
        }
        Ok(Self(options))
    }

    /// Returns a required option.
    pub fn text(&self, name: &str) -> Result<&str> {
        Ok(self.0.get(name).with_context(|| format!("--{name} is missing"))?)
    }

    fn number(&self, name: &str) -> Result<u64> {
        let text = self.text(name)?;
        text.parse().with_context(|| format!("--{name} {text:?} is not a number"))
    }

    fn seconds(&self) -> Result<Duration> {
        Ok(Duration::from_secs(self.number("seconds")?))
    }

    /// Returns the lease duration.
    pub fn ttl(&self) -> Result<Duration> {
        Ok(Duration::from_millis(self.number("ttl-ms")?))
    }

    /// Returns the lease duration for clients that count whole seconds.
    pub fn ttl_seconds(&self) -> Result<u32> {
        Ok(u32::try_from(self.number("ttl-ms")?.div_ceil(1000))?)
    }
}

/// Runs the verb on the command line.
pub async fn run<C: Client>(connect: impl AsyncFnOnce(&Options) -> Result<C>) -> ExitCode {
    match obey(connect).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("peer: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn obey<C: Client>(connect: impl AsyncFnOnce(&Options) -> Result<C>) -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    ensure!(arguments.next().as_deref() == Some("bench"), "the first word has to be bench");
    let verb = arguments.next().context("there is no verb after bench")?;
    let options = Options::read(arguments)?;
    let client = connect(&options).await?;
    let input = BufReader::new(tokio::io::stdin());
    match verb.as_str() {
        "contend" => contend(client, options, input).await,
        "hold" => hold(client, options, input).await,
        "many" => many(client, options, input).await,
        _ => bail!("there is no verb {verb:?}"),
    }
}

/// Acquires another lock as a warm-up, reports that it is ready, and waits for the start.
async fn ready<C: Client>(
    client: &C,
    options: &Options,
    input: &mut BufReader<Stdin>,
    cycles: u32,
) -> Result<()> {
    let mut lock = client.contender(format!("{}-warm-{}", options.text("lock")?, std::process::id())).await?;
    let began = Instant::now();
    for _ in 0..cycles {
        lock.cohort(|_| async {}).await?;
        if began.elapsed() > WARM_TIME {
            break;
        }
    }
    lock.close().await?;
    println!("ready");
    let mut line = String::new();
    input.read_line(&mut line).await?;
    ensure!(line == "go\n", "{line:?} came instead of the line go");
    Ok(())
}

/// The times of one acquisition, in microseconds on the wall clock. A time is zero if it was not reached.
#[derive(Default)]
struct Event {
    asked: u64,
    granted: AtomicU64,
    releasing: AtomicU64,
    released: AtomicU64,
}

async fn contend<C: Client>(client: C, options: Options, mut input: BufReader<Stdin>) -> Result<()> {
    let hold = Duration::from_micros(options.number("hold-us")?);
    let (count, time) = match options.0.contains_key("count") {
        true => (options.number("count")?, None),
        false => (u64::MAX, Some(options.seconds()?)),
    };
    let mut contenders = Vec::new();
    for _ in 0..options.number("tasks")? {
        contenders.push(client.contender(options.text("lock")?.to_owned()).await?);
    }
    ready(&client, &options, &mut input, WARM_CYCLES).await?;
    let until = time.map(|time| Instant::now() + time);
    let mut running = JoinSet::new();
    for (task, contender) in contenders.into_iter().enumerate() {
        running.spawn(async move { cycles(contender, count, until, hold).await.map(|done| (task, done)) });
    }
    let (mut lines, mut contenders) = (Vec::new(), Vec::new());
    while let Some(ended) = running.join_next().await {
        let (task, (contender, events)) = ended??;
        contenders.push(contender);
        for event in events {
            let [granted, releasing, released] = [&event.granted, &event.releasing, &event.released]
                .map(|moment| moment.load(Ordering::Relaxed));
            let asked = event.asked;
            writeln!(lines, "E {task} {asked} {granted} {releasing} {released}")?;
        }
    }
    std::io::stdout().write_all(&lines)?;
    println!("done");
    let mut closing = JoinSet::new();
    for contender in contenders {
        closing.spawn(contender.close());
    }
    closing.join_all().await.into_iter().collect()
}

/// Runs the loop of one task.
async fn cycles<C: Contender>(
    mut contender: C,
    count: u64,
    until: Option<Instant>,
    hold: Duration,
) -> Result<(C, Vec<Arc<Event>>)> {
    let mut events = Vec::new();
    for _ in 0..count {
        let event = Arc::new(Event { asked: now(), ..Event::default() });
        {
            let own = event.clone();
            let during = move |_| async move {
                own.granted.store(now(), Ordering::Relaxed);
                if !hold.is_zero() {
                    sleep(hold).await;
                }
                own.releasing.store(now(), Ordering::Relaxed);
            };
            let mut cohort = std::pin::pin!(contender.cohort(during));
            tokio::select! {
                biased;
                ended = &mut cohort => ended?,
                () = over(until) => {
                    if event.granted.load(Ordering::Relaxed) == 0 {
                        break;
                    }
                    cohort.await?;
                }
            }
        }
        event.released.store(now(), Ordering::Relaxed);
        events.push(event);
    }
    Ok((contender, events))
}

async fn over(until: Option<Instant>) {
    match until {
        Some(until) => sleep_until(until).await,
        None => std::future::pending().await,
    }
}

async fn hold<C: Client>(client: C, options: Options, mut input: BufReader<Stdin>) -> Result<()> {
    let mut lock = client.contender(options.text("lock")?.to_owned()).await?;
    ready(&client, &options, &mut input, 1).await?;
    lock.cohort(async move |_| {
        println!("granted {}", now());
        // A read error ends the wait like the end of input.
        let _ = input.read_to_end(&mut Vec::new()).await;
    })
    .await?;
    lock.close().await
}

async fn many<C: Client>(client: C, options: Options, mut input: BufReader<Stdin>) -> Result<()> {
    let count = usize::try_from(options.number("locks")?)?;
    ready(&client, &options, &mut input, 1).await?;
    let turns = Arc::new(Semaphore::new(AT_ONCE));
    let (told, mut granted) = mpsc::channel(AT_ONCE);
    let (release, released) = watch::channel(false);
    let mut running = JoinSet::new();
    for number in 0..count {
        let name = format!("{}{number}", options.text("lock")?);
        let (client, turns, told, mut released) =
            (client.clone(), turns.clone(), told.clone(), released.clone());
        running.spawn(async move {
            let turn = turns.clone().acquire_owned().await?;
            let mut lock = client.holder(name).await?;
            let turn_to_release = Arc::new(OnceLock::new());
            let releasing = turn_to_release.clone();
            lock.cohort(async move |lost: Lost| {
                drop(turn);
                // If the receiver is gone, it has failed, and the program ends.
                let lost = Arc::new(lost);
                let _ = told.send(lost.clone()).await;
                drop(told);
                let _ = released.wait_for(|released| *released).await;
                if let Ok(turn) = turns.acquire_owned().await {
                    let _ = releasing.set(turn);
                }
                // Some clients can release the lock only after this check of its loss was dropped.
                drop(lost);
            })
            .await?;
            let closed = lock.close().await;
            drop(turn_to_release);
            closed
        });
    }
    drop(told);
    let mut held = Vec::new();
    while held.len() < count {
        tokio::select! {
            Some(lost) = granted.recv() => held.push(lost),
            Some(ended) = running.join_next() => ended?.and_then(|()| Err(anyhow!("a lock was released")))?,
            else => bail!("locks are missing"),
        }
    }
    println!("held");
    sleep(options.seconds()?).await;
    let lost = held.iter().filter(|lost| lost()).count();
    if lost > 0 {
        println!("lost {lost}");
    }
    println!("done");
    drop(held);
    release.send_replace(true);
    while let Some(ended) = running.join_next().await {
        // A lost lock cannot be released.
        let ended = ended?;
        if lost == 0 {
            ended?;
        }
    }
    client.close().await
}

fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}
