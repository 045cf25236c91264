//! A program that takes locks, for tests that need several processes. It prints a line for each step on its standard
//! output and reports failure by its exit code.
//!
//! ```text
//! leasehold-testkit-worker increment --store URL --lock LOCK --file FILE --times N [--order barge]
//! leasehold-testkit-worker hold --store URL --lock LOCK (--ttl SECONDS | --permits N)
//! leasehold-testkit-worker answer --store URL --lock LOCK --ttl SECONDS
//! leasehold-testkit-worker leave --store URL --lock LOCK --ttl SECONDS
//! leasehold-testkit-worker try --store URL --lock LOCK [--permits N]
//! leasehold-testkit-worker permit --store URL --lock LOCK --permits N --times N
//! leasehold-testkit-worker add --object URL --times N
//! ```
//!
//! - `increment` adds one to the number in a plain file, N times, each time under the lock. With `--order barge` it
//!   does not wait in line.
//! - `hold` holds the lock until it is killed or has lost the lock.
//! - `answer` holds the lock, and prints for each line of its input whether it still holds it.
//! - `leave` acquires the lock, detaches the grant and exits without a release.
//! - `try` exits with 1 if the lock is held.
//! - `permit` holds a permit, N times.
//! - `add` adds one to the number `n` in a JSON object, N times, without a lock.
//!
//! With `--permits N`, `hold` and `try` use one of N permits.

// A worker fails by panicking.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::HashMap;
use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

use leasehold::clock::{Clock, SystemClock};
use leasehold::{Error, ErrorKind, Guard, Locker, Object, Semaphore, Token};
use leasehold_testkit::process::end_at_panics;
use tokio::io::{AsyncBufReadExt, BufReader};

/// Long enough for holders to overlap.
const HOLD: Duration = Duration::from_millis(20);

#[tokio::main]
async fn main() -> ExitCode {
    end_at_panics();
    let mut arguments = std::env::args().skip(1);
    let verb = arguments.next().unwrap_or_default();
    let options = Options::read(arguments);
    if verb == "add" {
        add(&options).await;
        return ExitCode::SUCCESS;
    }
    let locker = Locker::open(options.text("store")).await.unwrap();
    match verb.as_str() {
        "increment" => increment(&locker, &options).await,
        "hold" => hold(&locker, &options).await,
        "answer" => answer(&locker, &options).await,
        "permit" => permit(&locker, &options).await,
        "leave" => leave(&locker, &options).await,
        "try" => return attempt(&locker, &options).await,
        other => panic!("there is no verb {other:?}"),
    }
    ExitCode::SUCCESS
}

/// Options of the form `--name value`, each at most once.
struct Options(HashMap<String, String>);

impl Options {
    fn read(mut arguments: impl Iterator<Item = String>) -> Self {
        let mut options = HashMap::new();
        while let Some(name) = arguments.next() {
            let name =
                name.strip_prefix("--").unwrap_or_else(|| panic!("{name:?} is not an option")).to_owned();
            let value = arguments.next().unwrap_or_else(|| panic!("--{name} has no value"));
            options.insert(name, value);
        }
        Self(options)
    }

    fn text(&self, name: &str) -> &str {
        self.0.get(name).unwrap_or_else(|| panic!("--{name} is missing"))
    }

    fn number(&self, name: &str) -> u64 {
        self.text(name).parse().unwrap_or_else(|_| panic!("--{name} is not a number"))
    }

    /// Returns the semaphore that `--permits` asks for, if that option is given.
    fn semaphore(&self, locker: &Locker) -> Option<Semaphore> {
        self.0
            .contains_key("permits")
            .then(|| locker.semaphore(self.text("lock"), self.number("permits").try_into().unwrap()))
    }

    fn lock(&self, locker: &Locker) -> leasehold::Lock {
        locker.lock(self.text("lock")).ttl(Duration::from_secs(self.number("ttl")))
    }
}

/// Prints `line` and flushes it, even into a pipe.
fn print(line: std::fmt::Arguments<'_>) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}").unwrap();
    out.flush().unwrap();
}

/// Adds one to the number in the file, each time under the lock. Prints, for each addition, the token (0 without one)
/// and the interval in which the lock was held, in nanoseconds on the machine's clock.
async fn increment(locker: &Locker, options: &Options) {
    let file = std::path::Path::new(options.text("file"));
    let lock = locker.lock(options.text("lock"));
    let lock = if options.0.contains_key("order") { lock.barge() } else { lock };
    for _ in 0..options.number("times") {
        let guard = lock.acquire().await.unwrap();
        let from = SystemClock.now().since_boot().as_nanos();
        let number: u64 = std::fs::read_to_string(file).unwrap().trim().parse().unwrap();
        // This is neither atomic nor locked. Two processes that do it at once lose an addition or read half a number.
        std::fs::write(file, (number + 1).to_string()).unwrap();
        let until = SystemClock.now().since_boot().as_nanos();
        guard.check().unwrap();
        print(format_args!("{} {from} {until}", token(&guard)));
        release(guard).await;
    }
}

/// Holds a permit, each time for a while. Prints, for each hold, the permit's number, then what `increment` prints.
async fn permit(locker: &Locker, options: &Options) {
    let semaphore = options.semaphore(locker).unwrap();
    for _ in 0..options.number("times") {
        let guard = semaphore.acquire().await.unwrap();
        let from = SystemClock.now().since_boot().as_nanos();
        SystemClock.sleep(HOLD).await;
        let until = SystemClock.now().since_boot().as_nanos();
        guard.check().unwrap();
        let number = guard.name().as_str().rsplit_once("/permit-").unwrap().1;
        print(format_args!("{number} {} {from} {until}", token(&guard)));
        release(guard).await;
    }
}

/// Releases the lock. If the server is too slow to respond, the lease ends by itself, and no promise is broken.
async fn release(guard: Guard) {
    if let Err(error) = guard.release().await {
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
        eprintln!("not released: {error}");
    }
}

/// Returns the token, or 0 if the store has none.
fn token(guard: &Guard) -> u64 {
    guard.token().map_or(0, Token::get)
}

async fn hold(locker: &Locker, options: &Options) {
    let guard = match options.semaphore(locker) {
        Some(semaphore) => semaphore.acquire().await.unwrap(),
        None => options.lock(locker).acquire().await.unwrap(),
    };
    print(format_args!("granted {}", token(&guard)));
    let loss = guard.lost().await;
    print(format_args!("lost {loss}"));
}

/// Checks the guard only after it has read a question, so that no answer is from before a pause.
async fn answer(locker: &Locker, options: &Options) {
    let guard = options.lock(locker).acquire().await.unwrap();
    print(format_args!("granted {}", token(&guard)));
    let mut questions = BufReader::new(tokio::io::stdin()).lines();
    while questions.next_line().await.unwrap().is_some() {
        match guard.check() {
            Ok(()) => print(format_args!("held")),
            Err(error) => print(format_args!("{:?}", error.kind())),
        }
    }
}

async fn leave(locker: &Locker, options: &Options) {
    let ticket = options.lock(locker).acquire().await.unwrap().into_ticket().await.unwrap();
    print(format_args!("granted {}", ticket.token()));
}

/// Adds one to the number in the object, each time without a lock. Prints how many attempts each addition took.
async fn add(options: &Options) {
    let object = Object::open(options.text("object")).await.unwrap().attempts(10_000);
    let object = object.within(Duration::from_secs(250));
    for _ in 0..options.number("times") {
        let make = async |content: Option<bytes::Bytes>| {
            let mut json = match content {
                Some(bytes) => serde_json::from_slice::<serde_json::Value>(&bytes).unwrap(),
                None => serde_json::json!({ "n": 0 }),
            };
            json["n"] = (json["n"].as_u64().unwrap() + 1).into();
            Ok::<_, Error>(Some(json.to_string().into()))
        };
        print(format_args!("{}", object.update(make).await.unwrap().attempts));
    }
}

async fn attempt(locker: &Locker, options: &Options) -> ExitCode {
    let tried = match options.semaphore(locker) {
        Some(semaphore) => semaphore.try_acquire().await,
        None => locker.lock(options.text("lock")).try_acquire().await,
    };
    match tried {
        Ok(guard) => {
            print(format_args!("granted {}", token(&guard)));
            guard.release().await.unwrap();
            ExitCode::SUCCESS
        }
        Err(error) if error.kind() == ErrorKind::Held => {
            print(format_args!("held {error}"));
            ExitCode::FAILURE
        }
        Err(error) => panic!("{error:?}"),
    }
}
