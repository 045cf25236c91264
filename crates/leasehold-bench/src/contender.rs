//! The contenders: programs that acquire and release locks. They all use one protocol, so that they are measured in the
//! same way. The contenders in Rust are this program itself. The others are in the folder `peers` of the testkit.
//!
//! ```text
//! PROGRAM contend --lock L --tasks N (--count C | --seconds S) --ttl-ms T --hold-us H  STORE-OPTIONS
//! PROGRAM hold    --lock L --ttl-ms T                                                  STORE-OPTIONS
//! PROGRAM many    --lock PREFIX --locks N --ttl-ms T --seconds S --within S            STORE-OPTIONS
//! ```
//!
//! Every program first acquires and releases another lock, `L-warm`, to open its connections. Then it prints `ready`
//! and waits for the line `go`.
//!
//! - `contend`: runs N tasks. Each one repeats a cycle of acquire, hold for H microseconds and release, C times or
//!   until S seconds have passed. A cycle in progress is completed, but a waiting acquisition is given up. At the end,
//!   it prints a line for each acquisition, `E TASK ASKED GRANTED RELEASING RELEASED`, in microseconds on the wall
//!   clock, and `done`.
//! - `hold`: acquires, prints `granted WALLCLOCK_US`, and holds the lock until its input ends.
//! - `many`: acquires N locks, prints `held`, holds them for S seconds, prints `lost K` if K of them were lost, then
//!   `done`. If it stops before it holds all of them, it prints `short WHY`, and the number after `held`: our programs
//!   stop after `--within` seconds, at the first failure, and when a lock is lost. Those that know it print, before
//!   `done`, `renewals N` (how many succeeded in these seconds) and `left S` (the shortest time that was left of a
//!   lease, looked at every second).
//!
//! An error is printed on standard error, with exit code 1. If the client does not support the request, the exit code
//! is 3, and a line says so.

#[cfg(feature = "servers")]
mod conditional;
#[cfg(feature = "servers")]
mod dir;
#[cfg(feature = "servers")]
mod dynamodb;
#[cfg(feature = "etcd")]
mod etcd;
#[cfg(feature = "servers")]
mod gcs;
#[cfg(any(feature = "etcd", feature = "serve"))]
mod http;
#[cfg(feature = "serve")]
mod http_api;
#[cfg(feature = "servers")]
mod mysql;
#[cfg(feature = "servers")]
mod nats;
mod ours;
#[cfg(feature = "servers")]
mod redis;
#[cfg(feature = "servers")]
mod s3;

use std::collections::HashMap;
use std::fmt::Write as _;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::stream::{self, StreamExt};
use leasehold::clock::{Clock, SystemClock};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio_util::sync::CancellationToken;

/// The exit code if the client does not support the request.
const UNSUPPORTED: u8 = 3;

/// How many locks `many` acquires concurrently.
const CONCURRENCY: usize = 64;

const SECOND: Duration = Duration::from_secs(1);

/// A lock client.
pub(crate) trait Client: Send + Sync + 'static {
    type Held: Send + 'static;

    /// Waits for the lock.
    fn acquire(&self, lock: &str) -> impl Future<Output = Result<Self::Held, String>> + Send;

    fn release(&self, held: Self::Held) -> impl Future<Output = Result<(), String>> + Send;

    /// Returns whether an acquired lock is still held, or `None` if the client does not know.
    fn is_held(&self, held: &Self::Held) -> Option<bool>;

    /// Returns how much of the lease of an acquired lock is left, if the client knows.
    fn left(&self, _held: &Self::Held) -> Option<Duration> {
        None
    }

    /// Returns how many renewals have succeeded, if the client counts them.
    fn renewals(&self) -> Option<u64> {
        None
    }
}

/// The contenders that are built into this program.
pub(crate) const BUILT_IN: &[&str] = &[
    "ours",
    #[cfg(feature = "serve")]
    "served",
    #[cfg(feature = "servers")]
    "plain-s3",
    #[cfg(feature = "servers")]
    "bare-s3",
    #[cfg(feature = "servers")]
    "conditional-s3",
    #[cfg(feature = "servers")]
    "bare-dynamodb",
    #[cfg(feature = "servers")]
    "conditional-dynamodb",
    #[cfg(feature = "etcd")]
    "etcd-http",
    #[cfg(feature = "servers")]
    "gcslock",
    #[cfg(feature = "servers")]
    "conditional-gcs",
    #[cfg(feature = "servers")]
    "flock-dir",
    #[cfg(feature = "servers")]
    "conditional-dir",
    #[cfg(feature = "servers")]
    "get-lock",
    #[cfg(feature = "servers")]
    "conditional-mysql",
    #[cfg(feature = "servers")]
    "plain-nats",
    #[cfg(feature = "servers")]
    "conditional-nats",
    #[cfg(feature = "servers")]
    "redis-py",
];

/// Runs the contender named by the first argument.
pub(crate) async fn run(arguments: &[String]) -> ExitCode {
    let name = arguments.first().map(String::as_str).unwrap_or_default();
    let options = match Options::read(arguments.get(1..).unwrap_or_default()) {
        Ok(options) => options,
        Err(error) => return failed(&error),
    };
    match name {
        "ours" => serve(ours::Ours::open(&options).await, &options).await,
        #[cfg(feature = "serve")]
        "served" => serve(http_api::Served::open(&options).await, &options).await,
        #[cfg(feature = "etcd")]
        "etcd-http" => serve(etcd::Gateway::open(&options).await, &options).await,
        #[cfg(feature = "servers")]
        "plain-s3" => serve(s3::Plain::open(&options).await, &options).await,
        #[cfg(feature = "servers")]
        "bare-s3" => serve(s3::Bare::open(&options).await, &options).await,
        #[cfg(feature = "servers")]
        "conditional-s3" => {
            serve(s3::Bare::open(&options).await.map(conditional::Conditional::new), &options).await
        }
        #[cfg(feature = "servers")]
        "bare-dynamodb" => serve(dynamodb::Bare::open(&options).await, &options).await,
        #[cfg(feature = "servers")]
        "conditional-dynamodb" => {
            serve(dynamodb::Bare::open(&options).await.map(conditional::Conditional::new), &options).await
        }
        #[cfg(feature = "servers")]
        "gcslock" => serve(gcs::GcsLock::open(&options), &options).await,
        #[cfg(feature = "servers")]
        "conditional-gcs" => {
            serve(gcs::Uploads::open(&options).map(conditional::Conditional::new), &options).await
        }
        #[cfg(feature = "servers")]
        "flock-dir" => serve(dir::Folder::open(&options), &options).await,
        #[cfg(feature = "servers")]
        "conditional-dir" => {
            serve(dir::Folder::open(&options).map(conditional::Conditional::new), &options).await
        }
        #[cfg(feature = "servers")]
        "get-lock" => serve(mysql::Connections::open(&options).await, &options).await,
        #[cfg(feature = "servers")]
        "conditional-mysql" => {
            serve(mysql::Connections::open(&options).await.map(conditional::Conditional::new), &options).await
        }
        #[cfg(feature = "servers")]
        "plain-nats" => serve(nats::Bucket::open(&options).await, &options).await,
        #[cfg(feature = "servers")]
        "conditional-nats" => {
            serve(nats::Bucket::open(&options).await.map(conditional::Conditional::new), &options).await
        }
        #[cfg(feature = "servers")]
        "redis-py" => serve(redis::RedisPy::open(&options).await, &options).await,
        other => failed(&format!("unknown contender `{other}`; the contenders are: {}", BUILT_IN.join(", "))),
    }
}

fn failed(error: &str) -> ExitCode {
    eprintln!("contender: {error}");
    ExitCode::FAILURE
}

async fn serve<C: Client>(client: Result<C, String>, options: &Options) -> ExitCode {
    let served = async {
        let client = Arc::new(client?);
        match options.verb.as_str() {
            "contend" => contend(&client, options).await.map(|()| ExitCode::SUCCESS),
            "hold" => hold(&client, options).await.map(|()| ExitCode::SUCCESS),
            "many" => many(&client, options).await,
            other => Err(format!("unknown verb `{other}`")),
        }
    };
    served.await.unwrap_or_else(|error: String| failed(&error))
}

// --- the verbs ------------------------------------------------------------------------------------------------------

async fn contend<C: Client>(client: &Arc<C>, options: &Options) -> Result<(), String> {
    let hold = Duration::from_micros(options.number("hold-us")?);
    let (tasks, count) = (options.number("tasks")?, options.number("count").ok());
    get_ready(&**client, options).await?;
    let stop = CancellationToken::new();
    if count.is_none() {
        let (stop, limit) = (stop.clone(), options.seconds()?);
        tokio::spawn(async move {
            SystemClock.sleep(limit).await;
            stop.cancel();
        });
    }
    let tasks: Vec<_> = (0..tasks)
        .map(|_| {
            let (client, lock, stop) = (client.clone(), options.lock.clone(), stop.clone());
            tokio::spawn(async move { cycle(&*client, &lock, hold, count.unwrap_or(u64::MAX), &stop).await })
        })
        .collect();
    let mut lines = String::new();
    let mut out = tokio::io::stdout();
    for (task, cycles) in tasks.into_iter().enumerate() {
        for [requested, granted, releasing, released] in cycles.await.map_err(|error| error.to_string())?? {
            // Writing to a string does not fail.
            let _ = writeln!(lines, "E {task} {requested} {granted} {releasing} {released}");
        }
        out.write_all(lines.as_bytes()).await.map_err(|error| error.to_string())?;
        lines.clear();
    }
    // Flush now, because `done` is printed through another handle and could come first.
    out.flush().await.map_err(|error| error.to_string())?;
    print_line("done").await
}

/// Runs the acquisitions of one task.
async fn cycle<C: Client>(
    client: &C,
    lock: &str,
    hold: Duration,
    count: u64,
    stop: &CancellationToken,
) -> Result<Vec<[u64; 4]>, String> {
    let mut cycles = Vec::new();
    while (cycles.len() as u64) < count && !stop.is_cancelled() {
        let requested = now_us();
        let held = tokio::select! {
            biased;
            held = client.acquire(lock) => held?,
            () = stop.cancelled() => break,
        };
        let granted = now_us();
        if !hold.is_zero() {
            SystemClock.sleep(hold).await;
        }
        let releasing = now_us();
        client.release(held).await?;
        cycles.push([requested, granted, releasing, now_us()]);
    }
    Ok(cycles)
}

async fn hold<C: Client>(client: &Arc<C>, options: &Options) -> Result<(), String> {
    let mut input = get_ready(&**client, options).await?;
    let held = client.acquire(&options.lock).await?;
    print_line(&format!("granted {}", now_us())).await?;
    let mut rest = String::new();
    while input.read_line(&mut rest).await.map_err(|error| error.to_string())? > 0 {
        rest.clear();
    }
    client.release(held).await
}

async fn many<C: Client>(client: &Arc<C>, options: &Options) -> Result<ExitCode, String> {
    let (locks, seconds, within) = (options.number("locks")?, options.seconds()?, options.number("within")?);
    get_ready(&**client, options).await?;
    let began = SystemClock.now();
    // Why it stops to acquire.
    let short = Mutex::new(None);
    let acquired =
        stream::iter(0..locks).take_while(|_| std::future::ready(reason(&short).is_none())).map(|n| {
            let (client, lock) = (client.clone(), format!("{}{n}", options.lock));
            async move { client.acquire(&lock).await }
        });
    let mut held = Vec::new();
    let mut acquired = acquired.buffer_unordered(CONCURRENCY);
    let mut looked = began;
    while let Some(acquired) = acquired.next().await {
        let stop = |why: String| {
            reason(&short).get_or_insert(why);
        };
        match acquired {
            Ok(acquired) => held.push(acquired),
            Err(error) => stop(error),
        }
        let now = SystemClock.now();
        if now.longest_since(looked) > SECOND {
            looked = now;
            let lost = lost(&**client, &held);
            if lost > 0 {
                stop(format!("{lost} of {} locks were lost", held.len()));
            } else if now.longest_since(began) > Duration::from_secs(within) {
                stop(format!("it took longer than {within} s"));
            }
        }
    }
    drop(acquired);
    if held.iter().any(|lock| client.is_held(lock).is_none()) {
        eprintln!("contender: this client does not renew leases");
        return Ok(ExitCode::from(UNSUPPORTED));
    }
    let why = reason(&short).take();
    if let Some(why) = why {
        print_line(&format!("short {}", why.replace('\n', " "))).await?;
    }
    print_line(&format!("held {}", held.len())).await?;
    let (renewals, mut rest, mut left) = (client.renewals(), seconds, None);
    while !rest.is_zero() {
        let pause = SECOND.min(rest);
        SystemClock.sleep(pause).await;
        rest -= pause;
        left = held.iter().filter_map(|lock| client.left(lock)).chain(left).min();
    }
    if let Some(renewed) = client.renewals().zip(renewals).map(|(now, before)| now - before) {
        print_line(&format!("renewals {renewed}")).await?;
    }
    if let Some(left) = left {
        print_line(&format!("left {}", left.as_secs_f64())).await?;
    }
    let lost = lost(&**client, &held);
    if lost > 0 {
        print_line(&format!("lost {lost}")).await?;
    }
    print_line("done").await?;
    let released = stream::iter(held).map(|lock| client.release(lock)).buffer_unordered(CONCURRENCY);
    released.for_each(|_| std::future::ready(())).await;
    Ok(ExitCode::SUCCESS)
}

fn reason(short: &Mutex<Option<String>>) -> MutexGuard<'_, Option<String>> {
    short.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns how many of the locks the client knows to be lost.
fn lost<C: Client>(client: &C, held: &[C::Held]) -> usize {
    held.iter().filter(|lock| client.is_held(lock) == Some(false)).count()
}

/// Opens the connections, prints `ready`, and waits for `go`.
async fn get_ready<C: Client>(client: &C, options: &Options) -> Result<BufReader<tokio::io::Stdin>, String> {
    let held = client.acquire(&format!("{}-warm", options.lock)).await?;
    client.release(held).await?;
    print_line("ready").await?;
    let mut input = BufReader::new(tokio::io::stdin());
    let mut line = String::new();
    input.read_line(&mut line).await.map_err(|error| error.to_string())?;
    if line.trim() == "go" { Ok(input) } else { Err(format!("{line:?} is not `go`")) }
}

async fn print_line(line: &str) -> Result<(), String> {
    let mut out = tokio::io::stdout();
    let written = async {
        out.write_all(format!("{line}\n").as_bytes()).await?;
        out.flush().await
    };
    written.await.map_err(|error| error.to_string())
}

fn now_us() -> u64 {
    SystemClock.now().wall_us()
}

// --- the arguments --------------------------------------------------------------------------------------------------

/// A verb, and options of the form `--name value`.
pub(crate) struct Options {
    verb: String,
    lock: String,
    values: HashMap<String, String>,
}

impl Options {
    fn read(arguments: &[String]) -> Result<Self, String> {
        let verb = arguments.first().ok_or("the verb is missing")?.clone();
        let mut values = HashMap::new();
        for pair in arguments[1..].chunks(2) {
            let name = pair[0].strip_prefix("--").ok_or_else(|| format!("`{}` is not an option", pair[0]))?;
            let value = pair.get(1).ok_or_else(|| format!("--{name} has no value"))?;
            values.insert(name.to_owned(), value.clone());
        }
        let lock = values.get("lock").cloned().ok_or("--lock is missing")?;
        Ok(Self { verb, lock, values })
    }

    fn text(&self, name: &str) -> Result<&str, String> {
        self.values.get(name).map(String::as_str).ok_or_else(|| format!("--{name} is missing"))
    }

    /// Returns the store URL without its options, which are those of leasehold.
    #[cfg(feature = "servers")]
    fn store(&self) -> Result<&str, String> {
        let url = self.text("store")?;
        Ok(url.split_once('?').map_or(url, |(store, _)| store))
    }

    fn number(&self, name: &str) -> Result<u64, String> {
        self.text(name)?.parse().map_err(|_| format!("--{name} is not a number"))
    }

    fn seconds(&self) -> Result<Duration, String> {
        let seconds = self.text("seconds")?.parse().ok();
        let seconds = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
        seconds.ok_or_else(|| "--seconds is not a number of seconds".to_owned())
    }

    fn ttl(&self) -> Result<Duration, String> {
        Ok(Duration::from_millis(self.number("ttl-ms")?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(arguments: &[&str]) -> Result<Options, String> {
        Options::read(&arguments.iter().map(|argument| (*argument).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn options_are_pairs() {
        let options = read(&["contend", "--lock", "l", "--seconds", "0.5", "--ttl-ms", "1000"]).unwrap();
        assert_eq!((options.verb.as_str(), options.lock.as_str()), ("contend", "l"));
        assert_eq!(options.seconds(), Ok(Duration::from_millis(500)));
        assert_eq!(options.ttl(), Ok(Duration::from_secs(1)));
        assert_eq!(options.number("tasks"), Err("--tasks is missing".to_owned()));
        for wrong in [&[][..], &["hold"], &["hold", "--lock"], &["hold", "lock", "l"]] {
            assert!(read(wrong).is_err(), "{wrong:?}");
        }
        assert!(read(&["hold", "--lock", "l", "--seconds", "-1"]).unwrap().seconds().is_err());
    }
}
