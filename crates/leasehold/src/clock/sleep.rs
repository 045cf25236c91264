//! Sleeping on a clock that counts through suspend, although timers stop while the machine is suspended.
//!
//! A sleep uses one timer for its whole length. The timer is wrong if the clock gets ahead of it: after a suspend,
//! after a restore from a snapshot, or after a step of the wall clock. One monitor for all sleepers of a
//! runtime checks this twice a second. If the clock is ahead, it wakes the sleepers. Each reads the clock itself, and
//! sleeps again if its time has not come. If each sleep checked the clock itself, ten thousand locks would wake up
//! forty thousand times a second.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::runtime::{Handle, Id};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::Moment;

/// The longest time for which a sleep relies on its timer alone.
pub(super) const SLICE: Duration = Duration::from_millis(500);

/// By how much the clock may get ahead of a timer before the sleepers are woken. A wall clock that is being slewed, by
/// 0.05 %, must not wake them twice a second. The tolerance is a tenth of the smallest slack of a lease.
const TOLERANCE_NS: i64 = 5_000_000;

/// A clock whose sleepers are woken by monitors.
pub(super) trait Watched: Clone + Send + Sync + 'static {
    /// Returns the current time on both clocks.
    fn moment(&self) -> Moment;

    /// Returns the monitors of this clock.
    fn monitors(&self) -> &ClockJumpMonitors;
}

/// Completes when at least `duration` has passed on the clock that shows the longer time. Cancel safe.
#[allow(clippy::disallowed_methods, reason = "only `clock` reads time and sleeps")]
pub(super) async fn sleep(clock: &impl Watched, duration: Duration) {
    let start = clock.moment();
    let left =
        |now: Moment| Some(duration.saturating_sub(now.longest_since(start))).filter(|left| !left.is_zero());
    if duration <= SLICE {
        while let Some(left) = left(clock.moment()) {
            tokio::time::sleep(left).await;
        }
        return;
    }
    let Sleeper(monitor) = &Sleeper::register(clock);
    loop {
        // Created before the clock is read, so that it notices every later jump.
        let ahead = monitor.ahead.notified();
        let now = clock.moment();
        let Some(left) = left(now) else { return };
        monitor.note(now);
        tokio::select! {
            biased;
            () = tokio::time::sleep(left) => {}
            () = ahead => {}
        }
    }
}

/// The monitors of one clock: one for each runtime in which a task sleeps on it.
#[derive(Debug, Default)]
pub(super) struct ClockJumpMonitors(Mutex<Vec<(Id, Arc<ClockJumpMonitor>)>>);

impl ClockJumpMonitors {
    pub(super) const fn new() -> Self {
        Self(Mutex::new(Vec::new()))
    }

    fn each(&self) -> MutexGuard<'_, Vec<(Id, Arc<ClockJumpMonitor>)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes `monitor` if it has no sleepers, and returns whether it did. The next sleeper gets a new one.
    fn dismissed(&self, monitor: &Arc<ClockJumpMonitor>) -> bool {
        let mut each = self.each();
        let idle = monitor.sleepers.load(Ordering::Relaxed) == 0;
        if idle {
            each.retain(|(_, other)| !Arc::ptr_eq(other, monitor));
        }
        idle
    }

    fn remove(&self, monitor: &Arc<ClockJumpMonitor>) {
        self.each().retain(|(_, other)| !Arc::ptr_eq(other, monitor));
    }
}

#[derive(Debug)]
struct ClockJumpMonitor {
    /// Incremented under the lock of [`ClockJumpMonitors`].
    sleepers: AtomicUsize,
    /// Wakes the sleepers when the clock has got ahead of their timers.
    ahead: Notify,
    /// When the monitor started, by the timers.
    since: Instant,
    /// The smallest lead of the clock over the timers since the sleepers were last woken. No sleeper started with a
    /// smaller lead.
    least: Mutex<Lead>,
}

/// By how many nanoseconds each clock is ahead of the timers, from an arbitrary origin.
#[derive(Clone, Copy, Debug)]
struct Lead {
    boot_ns: i64,
    wall_ns: i64,
}

impl ClockJumpMonitor {
    #[allow(clippy::disallowed_methods, reason = "only `clock` reads time and sleeps")]
    fn new(now: Moment) -> Self {
        Self {
            sleepers: AtomicUsize::new(0),
            ahead: Notify::new(),
            since: Instant::now(),
            least: Mutex::new(Lead { boot_ns: signed(now.boot_ns), wall_ns: now.wall_ns }),
        }
    }

    fn least(&self) -> MutexGuard<'_, Lead> {
        self.least.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lead(&self, now: Moment) -> Lead {
        let timers_ns = i64::try_from(self.since.elapsed().as_nanos()).unwrap_or(i64::MAX);
        Lead {
            boot_ns: signed(now.boot_ns).saturating_sub(timers_ns),
            wall_ns: now.wall_ns.saturating_sub(timers_ns),
        }
    }

    /// Records the lead at `now`, when a task starts to sleep.
    fn note(&self, now: Moment) {
        let mut least = self.least();
        let lead = self.lead(now);
        *least = Lead { boot_ns: lead.boot_ns.min(least.boot_ns), wall_ns: lead.wall_ns.min(least.wall_ns) };
    }

    /// Compares the clock with the timers, and wakes the sleepers if the clock is ahead.
    fn check(&self, now: Moment) {
        self.note(now);
        let mut least = self.least();
        let lead = self.lead(now);
        let ahead = |now_ns: i64, least_ns: i64| now_ns.saturating_sub(least_ns) > TOLERANCE_NS;
        if ahead(lead.boot_ns, least.boot_ns) || ahead(lead.wall_ns, least.wall_ns) {
            *least = lead;
            drop(least);
            self.ahead.notify_waiters();
        }
    }
}

/// A sleeper that is registered with the monitor of its runtime.
struct Sleeper(Arc<ClockJumpMonitor>);

impl Sleeper {
    fn register(clock: &impl Watched) -> Self {
        let runtime = Handle::current();
        let mut each = clock.monitors().each();
        let on_duty = each.iter().find(|(id, _)| *id == runtime.id()).map(|(_, monitor)| monitor.clone());
        let monitor = on_duty.clone().unwrap_or_else(|| Arc::new(ClockJumpMonitor::new(clock.moment())));
        monitor.sleepers.fetch_add(1, Ordering::Relaxed);
        if on_duty.is_none() {
            each.push((runtime.id(), monitor.clone()));
            // Release the lock first, because `spawn` drops the duty if the runtime is shutting down, and that takes
            // the lock.
            drop(each);
            runtime.spawn(Duty { clock: clock.clone(), monitor: monitor.clone() }.keep());
        }
        Self(monitor)
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        self.0.sleepers.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The task of a monitor. Runs for as long as there are sleepers and the runtime runs.
struct Duty<C: Watched> {
    clock: C,
    monitor: Arc<ClockJumpMonitor>,
}

impl<C: Watched> Duty<C> {
    #[allow(clippy::disallowed_methods, reason = "only `clock` reads time and sleeps")]
    async fn keep(self) {
        loop {
            tokio::time::sleep(SLICE).await;
            if self.clock.monitors().dismissed(&self.monitor) {
                return;
            }
            self.monitor.check(self.clock.moment());
        }
    }
}

impl<C: Watched> Drop for Duty<C> {
    fn drop(&mut self) {
        self.clock.monitors().remove(&self.monitor);
    }
}

fn signed(ns: u64) -> i64 {
    i64::try_from(ns).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::super::{Clock, TestClock};
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// Sleeps on `clock`, and returns how late it woke.
    fn sleeper(clock: &Arc<TestClock>, duration: Duration) -> tokio::task::JoinHandle<Duration> {
        let (clock, start) = (clock.clone(), clock.now());
        tokio::spawn(async move {
            clock.sleep(duration).await;
            clock.now().longest_since(start) - duration
        })
    }

    #[tokio::test(start_paused = true)]
    async fn a_sleep_ends_within_a_slice_of_waking_from_suspend() {
        let clock = Arc::new(TestClock::default());
        let sleeper = sleeper(&clock, SECOND * 60);
        tokio::task::yield_now().await;
        clock.suspend(SECOND * 3_600);
        let woken = clock.now();
        sleeper.await.unwrap();
        assert!(clock.now().longest_since(woken) <= SLICE);
    }

    #[tokio::test(start_paused = true)]
    async fn no_sleeper_wakes_before_its_time() {
        let clock = Arc::new(TestClock::default());
        let wakes = Arc::new(AtomicUsize::new(0));
        let sleepers = (0..1_000).map(|_| {
            let (clock, wakes) = (clock.clone(), wakes.clone());
            tokio::spawn(async move {
                let mut asleep = clock.sleep(SECOND * 60);
                std::future::poll_fn(|context| {
                    wakes.fetch_add(1, Ordering::Relaxed);
                    asleep.as_mut().poll(context)
                })
                .await;
            })
        });
        futures_util::future::join_all(sleepers).await;
        let wakes = wakes.load(Ordering::Relaxed);
        assert!(wakes <= 3 * 1_000, "falls asleep, wakes, perhaps a moment early: {wakes}");
    }

    #[tokio::test(start_paused = true)]
    async fn sleepers_wake_neither_early_nor_late_across_many_jumps() {
        let clock = Arc::new(TestClock::default());
        let sleepers: Vec<_> = (1..=100).map(|n| sleeper(&clock, SECOND * 60 * n)).collect();
        for jump in 1..=5 {
            clock.sleep(SECOND * 10).await;
            match jump % 2 {
                0 => clock.suspend(SECOND * 600),
                _ => clock.step_wall(600),
            }
        }
        for sleeper in sleepers {
            let late = sleeper.await.unwrap();
            assert!(late <= SECOND * 600 + SLICE, "{late:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_sleeper_at_a_set_back_clock_wakes_when_it_is_corrected() {
        let clock = Arc::new(TestClock::default());
        let _other = sleeper(&clock, SECOND * 1_000);
        clock.sleep(SECOND).await;
        // The wall clock goes back and forth between two checks, and a task starts to sleep in between.
        clock.step_wall(-30);
        let sleeper = sleeper(&clock, SECOND * 60);
        tokio::task::yield_now().await;
        clock.step_wall(60);
        assert!(sleeper.await.unwrap() <= SLICE, "30 s were left");
    }

    #[tokio::test(start_paused = true)]
    async fn a_sleep_on_a_fast_or_slow_clock_ends_on_time() {
        for rate in [0.99, 1.0, 1.01] {
            let clock = Arc::new(TestClock::with_rate(rate));
            let late = sleeper(&clock, SECOND * 600).await.unwrap();
            assert!(late <= Duration::from_millis(20), "{rate}: {late:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_monitor_ends_when_no_long_sleep_is_left() {
        let clock = Arc::new(TestClock::default());
        let on_duty = || clock.0.monitors.each().len();
        clock.sleep(SLICE).await;
        assert_eq!(on_duty(), 0, "short sleeps need none");
        let sleepers: Vec<_> = (0..10).map(|_| sleeper(&clock, SECOND * 60)).collect();
        tokio::task::yield_now().await;
        assert_eq!(on_duty(), 1);
        sleepers.iter().for_each(tokio::task::JoinHandle::abort);
        clock.sleep(SLICE).await;
        clock.sleep(SLICE).await;
        assert_eq!(on_duty(), 0);
        assert_eq!(Handle::current().metrics().num_alive_tasks(), 0);
        assert!(sleeper(&clock, SECOND * 2).await.unwrap() < SLICE);
    }

    #[test]
    fn each_runtime_has_its_own_monitor_and_drops_it() {
        let runtime = || {
            let mut builder = tokio::runtime::Builder::new_current_thread();
            builder.enable_time().start_paused(true).build().unwrap()
        };
        let first = runtime();
        let clock = first.block_on(async { Arc::new(TestClock::default()) });
        let asleep = |clock: &Arc<TestClock>| {
            let clock = clock.clone();
            async move {
                drop(sleeper(&clock, SECOND * 3_600));
                tokio::task::yield_now().await;
            }
        };
        first.block_on(asleep(&clock));
        // The first runtime no longer runs. A sleeper in another runtime must not wait for it.
        let second = runtime();
        second.block_on(async {
            let sleeper = sleeper(&clock, SECOND * 60);
            tokio::task::yield_now().await;
            assert_eq!(clock.0.monitors.each().len(), 2);
            clock.suspend(SECOND * 3_600);
            let woken = clock.now();
            sleeper.await.unwrap();
            assert!(clock.now().longest_since(woken) <= SLICE);
        });
        drop(second);
        assert_eq!(clock.0.monitors.each().len(), 1);
        drop(first);
        assert_eq!(clock.0.monitors.each().len(), 0);
    }
}
