//! Faults that need real processes, servers and clocks, one at a time, on every store. `./chaos` combines them.

use std::time::Duration;

use futures_util::future::join_all;
use leasehold::clock::{Clock, SystemClock};
use leasehold::{ErrorKind, Guard, Locker, Token};
use leasehold_testkit::chaos::environment::Environment;
use leasehold_testkit::chaos::history::History;
use leasehold_testkit::chaos::plan::Kind as Fault;
use leasehold_testkit::chaos::resource::{Client, Resource};
use leasehold_testkit::chaos::scenario::Scenario;
use leasehold_testkit::harness::Fresh;
use leasehold_testkit::process::{Process, within};
use leasehold_testkit::proxy::{Harm, Proxy};
use leasehold_testkit::servers::{through, with_option};
use leasehold_testkit::stores::{fresh_on, scenarios};
use leasehold_testkit::test_store::{Kind, Reaper};
use tempfile::TempDir;

/// Long enough for a busy server to respond in time.
const TTL: Duration = Duration::from_secs(8);
const TTL_OPTION: &[&str] = &["--ttl", "8"];

/// Creates empty storage on the first server of each store that processes can share.
fn stores() -> Vec<Fresh> {
    fresh_on(Kind::Shared, true)
}

/// Runs `test` on all `places` at once.
async fn on_each<T>(places: impl IntoIterator<Item = T>, test: impl AsyncFn(T)) {
    join_all(places.into_iter().map(|place| test(place))).await;
}

fn worker(verb: &str, url: &str, more: &[&str], environment: &[&str]) -> Process {
    let program = env!("CARGO_BIN_EXE_leasehold-testkit-worker");
    let arguments = [program, verb, "--store", url, "--lock", "lock"].into_iter().chain(more.iter().copied());
    Process::start("env", environment.iter().copied().chain(arguments))
}

/// Returns the environment that `faketime` sets, which avoids its extra process. Fakes only the wall clock, unless
/// `all`.
fn clock(spec: &str, all: bool) -> Vec<String> {
    let preload = std::env::var("LEASEHOLD_TEST_FAKETIME").expect("./test says where faketime is");
    let mut environment =
        vec![format!("LD_PRELOAD={preload}"), format!("FAKETIME={spec}"), "NO_FAKE_STAT=1".to_owned()];
    environment.extend((!all).then(|| "FAKETIME_DONT_FAKE_MONOTONIC=1".to_owned()));
    environment
}

fn as_strs(strings: &[String]) -> Vec<&str> {
    strings.iter().map(String::as_str).collect()
}

async fn granted(process: &mut Process) -> u64 {
    let line = process.line().await.expect("the worker ended without output");
    line.strip_prefix("granted ").unwrap_or_else(|| panic!("{line}")).parse().unwrap()
}

async fn acquired(url: &str) -> Guard {
    acquired_for(url, TTL).await
}

async fn acquired_for(url: &str, ttl: Duration) -> Guard {
    let lock = Locker::open(url).await.unwrap().lock("lock").ttl(ttl);
    within("a grant", lock.acquire()).await.unwrap()
}

fn token(guard: &Guard) -> u64 {
    guard.token().map(Token::get).unwrap()
}

async fn resource() -> (Resource, TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let history = History::create(folder.path(), "counter").unwrap();
    (Resource::start(history).await.unwrap(), folder)
}

/// Writes with each token after the successor's read. The old holder's write must be refused.
async fn only_the_later_token_writes(old: u64, new: u64) {
    let (resource, _folder) = resource().await;
    let mut client = Client::connect(&resource.address().to_string(), "both").await.unwrap();
    let value = client.read("lock", old).await.unwrap().unwrap();
    client.read("lock", new).await.unwrap().unwrap();
    assert_eq!(client.write("lock", old, value + 1).await.unwrap(), None, "{old} after {new}");
    assert_eq!(client.write("lock", new, value + 1).await.unwrap(), Some(1));
}

#[tokio::test]
async fn a_holder_stopped_beyond_its_lease_fails_its_first_check() {
    on_each(stores(), async |fresh| {
        let url = fresh.url();
        let mut holder = worker("answer", url, TTL_OPTION, &[]);
        let old = granted(&mut holder).await;
        holder.tell("do you hold it?").await;
        holder.says("held").await;
        holder.stop();
        let next = acquired(url).await;
        holder.tell("do you hold it?").await;
        holder.resume();
        holder.says("Lost").await;
        next.check().unwrap();
        only_the_later_token_writes(old, token(&next)).await;
        next.release().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_wall_clock_an_hour_off_has_no_effect_on_exclusion() {
    on_each(stores(), async |fresh| {
        let url = fresh.url();
        for (holder, contender) in [("+0s", "+3600s"), ("+3600s", "-3600s")] {
            let (of_holder, of_contender) = (clock(holder, false), clock(contender, false));
            // This ttl is longer, because another process starts while the lock is held.
            let mut holder = worker("answer", url, &["--ttl", "20"], &as_strs(&of_holder));
            let old = granted(&mut holder).await;
            let contender = worker("try", url, &[], &as_strs(&of_contender));
            let (said, code) = contender.end().await;
            assert_eq!(code, Some(1), "{url}: {of_holder:?} {of_contender:?} {said:?}");
            holder.tell("do you hold it?").await;
            holder.says("held").await;
            holder.kill().await;
            let next = acquired(url).await;
            assert!(token(&next) > old, "{url}: {of_holder:?}");
            next.release().await.unwrap();
        }
    })
    .await;
}

/// The holder's clock is outside the bound. It runs at a fifth of the true rate, so the holder renews far too late and
/// relies on its lock for far too long.
#[tokio::test]
async fn a_holder_with_a_far_too_slow_clock_is_kept_out_by_its_token() {
    // SQLite is left out, because its processes share one machine's clock.
    let stores = stores().into_iter().filter(|fresh| fresh.store().reaper() != Reaper::Death);
    on_each(stores, async |fresh| {
        // PostgreSQL's margin prolongs the lease so far that even this holder would renew in time.
        let url = match fresh.store().reaper() {
            Reaper::StoreClock => with_option(fresh.url(), "margin=0s"),
            _ => fresh.url().to_owned(),
        };
        let slow = clock("+0s x0.2", true);
        let mut holder = worker("answer", &url, TTL_OPTION, &as_strs(&slow));
        let old = granted(&mut holder).await;
        let next = acquired(&url).await;
        only_the_later_token_writes(old, token(&next)).await;
        next.release().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_cut_off_holder_stops_before_a_successor_is_granted() {
    on_each(fresh_on(Kind::Serial, false), async |fresh| {
        let url = fresh.url();
        let proxy = Proxy::start(fresh.server().address()).await;
        let guard = acquired(&through(url, proxy.address())).await;
        let old = token(&guard);
        proxy.every(Harm::Cut);
        let next = acquired(url).await;
        assert_eq!(guard.check().unwrap_err().kind(), ErrorKind::Lost, "{url}: two hold the lock");
        assert_eq!(within("the loss", guard.lost()).await.token.get(), old);
        // Reconnecting does not give the lock back.
        proxy.every(Harm::None);
        assert!(guard.check().is_err());
        next.check().unwrap();
        next.release().await.unwrap();
    })
    .await;
}

/// The server is killed (-9) and restarted on the same data and port while one client holds the lock and another
/// waits.
#[tokio::test]
async fn a_restarted_server_loses_no_grant_and_adds_no_second_holder() {
    // In these scenarios, another server takes over, or the server loses its data.
    const NOT_DURABLE: [&str; 4] = ["-forgetting", "-sentinel", "-failover", "redis-cluster"];
    let durable = |scenario: &&Scenario| {
        scenario.server_faults.contains(&Fault::KillServer)
            && scenario.must_break.is_none()
            && !NOT_DURABLE.iter().any(|end| scenario.name.ends_with(end))
    };
    let scenarios: Vec<_> = scenarios().into_iter().filter(durable).collect();
    assert!(scenarios.len() >= 3, "{scenarios:?}");
    on_each(scenarios, outlives_its_server).await;
}

async fn outlives_its_server(scenario: &Scenario) {
    // Longer than a JVM takes to start on a busy machine.
    const LONG: Duration = Duration::from_secs(90);
    let folder = tempfile::tempdir().unwrap();
    let environment = Environment::start(scenario, 2, folder.path()).await.unwrap();
    let lock = async |n| Locker::open(&environment.url(n)).await.unwrap().lock("lock").ttl(LONG);
    let guard = within("a grant", lock(0).await.acquire()).await.unwrap();
    // The server may be killed before it has responded to the waiter. It is then unavailable until it has started
    // again.
    let waiter = lock(1).await.store_timeout(LONG);
    let waiting = tokio::spawn(async move { waiter.acquire().await });
    environment.kill(Duration::from_millis(300)).await.unwrap();
    // A renewal after the restart shows that the server still has the grant.
    let restarted = SystemClock.now();
    let renewed = async {
        while guard.remaining() < LONG.saturating_sub(SystemClock.now().longest_since(restarted)) {
            SystemClock.sleep(Duration::from_millis(50)).await;
        }
    };
    within("a renewal", renewed).await;
    guard.check().unwrap_or_else(|error| panic!("{}: not renewed after the restart: {error}", scenario.name));
    assert!(!waiting.is_finished(), "{}: the waiter was granted the lock, or gave up", scenario.name);
    let old = token(&guard);
    guard.release().await.unwrap();
    let next = within("the successor", waiting).await.unwrap().unwrap();
    assert!(token(&next) > old, "{}", scenario.name);
    next.release().await.unwrap();
}
