//! Time: the only module of leasehold that reads a clock or sleeps.
//!
//! Leases depend on elapsed time. So the clock must continue to count while the machine is suspended, which Rust's
//! [`std::time::Instant`] and tokio's timers do not. It must also tolerate a wall clock that is stepped, and a virtual
//! machine that is restored from a snapshot. A [`Moment`] is therefore read on two clocks at once, and there are two
//! ways to compute elapsed time: a holder uses the longer of the two differences, a contender the shorter one. If one
//! clock is wrong, the result errs on the safe side.
//!
//! Another machine's clock is never compared with this one's. A reading of the *store's* clock is a pair of bounds
//! ([`StoreTime`]), which [`StoreClock`] derives from the `Date` of the store's responses.

mod sleep;
mod store;

use std::fmt;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use rustix::time::{ClockId, clock_gettime};

use self::sleep::{ClockJumpMonitors, Watched};
pub use self::store::{StoreClock, StoreTime};

/// The largest assumed deviation of a local clock's rate from true time: 0.5 % for the holder, and 0.5 % for the
/// contender.
///
/// Quartz oscillators stay within 0.01 %. The rest allows for a clock that is being slewed (`adjtime` slews by 0.05 %).
pub const RATE_ERROR: f64 = 0.005;

/// A point in time on this machine, read on two clocks at once.
///
/// ```
/// # use std::time::Duration;
/// use leasehold::clock::Moment;
///
/// let start = Moment::from_raw(0, 0);
/// let now = Moment::from_raw(10_000_000_000, 3_610_000_000_000); // the wall clock was set forward by an hour
/// assert_eq!(now.longest_since(start), Duration::from_secs(3_610));
/// assert_eq!(now.shortest_since(start), Duration::from_secs(10));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    /// Nanoseconds on the clock that counts through suspend.
    boot_ns: u64,
    /// Nanoseconds since the Unix epoch on the wall clock. Only differences are used.
    wall_ns: i64,
}

impl Moment {
    /// Creates a moment from raw readings, for your own [`Clock`].
    pub const fn from_raw(boot_ns: u64, wall_ns: i64) -> Self {
        Self { boot_ns, wall_ns }
    }

    /// Returns the time since the machine booted, including suspend. For stores that use the machine's own time.
    pub const fn since_boot(self) -> Duration {
        Duration::from_nanos(self.boot_ns)
    }

    /// Returns the microseconds since the Unix epoch on this machine's wall clock. For people, and for the lower bound
    /// of tokens in stores on this machine. Never compare it with the time of another machine.
    pub const fn wall_us(self) -> u64 {
        if self.wall_ns < 0 { 0 } else { self.wall_ns as u64 / 1_000 }
    }

    /// Returns both readings, which distinguish one moment from another.
    pub(crate) fn bits(self) -> u128 {
        u128::from(self.boot_ns) << 64 | u128::from(self.wall_ns as u64)
    }

    /// Returns the longest time that can have passed since `earlier`. A *holder* must use this.
    pub fn longest_since(self, earlier: Moment) -> Duration {
        let (boot, wall) = self.elapsed(earlier);
        boot.max(wall)
    }

    /// Returns the shortest time that can have passed since `earlier`. A *contender* must use this.
    pub fn shortest_since(self, earlier: Moment) -> Duration {
        let (boot, wall) = self.elapsed(earlier);
        boot.min(wall)
    }

    fn elapsed(self, earlier: Moment) -> (Duration, Duration) {
        let boot = self.boot_ns.saturating_sub(earlier.boot_ns);
        let wall = u64::try_from(self.wall_ns.saturating_sub(earlier.wall_ns)).unwrap_or(0);
        (Duration::from_nanos(boot), Duration::from_nanos(wall))
    }
}

/// The end of a lease for its holder. The span counts from *before* the first send of the request that was granted.
///
/// ```
/// # use std::time::Duration;
/// use leasehold::clock::{Deadline, Moment};
///
/// let deadline = Deadline::new(Moment::from_raw(0, 0), Duration::from_secs(30));
/// let now = Moment::from_raw(10_000_000_000, 10_000_000_000);
/// assert_eq!(deadline.remaining(now), Duration::from_secs(20));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadline {
    from: Moment,
    span: Duration,
}

impl Deadline {
    /// Creates the deadline `span` after `from`.
    pub const fn new(from: Moment, span: Duration) -> Self {
        Self { from, span }
    }

    /// Returns when the span begins: before the first send of the request that was granted.
    pub const fn start(self) -> Moment {
        self.from
    }

    /// Returns the time from [`start`](Self::start) to the deadline.
    pub const fn span(self) -> Duration {
        self.span
    }

    /// Returns the deadline that passes as soon as one of the two passes.
    pub(crate) fn earliest(self, other: Self) -> Self {
        let span = self.span.min(other.span);
        // On each clock, `span` before the moment at which `deadline` ends.
        let start = |deadline: Self| {
            let longer = deadline.span.saturating_sub(span);
            let wall_ns = i64::try_from(longer.as_nanos()).unwrap_or(i64::MAX);
            let boot_ns = u64::try_from(longer.as_nanos()).unwrap_or(u64::MAX);
            let from = deadline.from;
            Moment {
                boot_ns: from.boot_ns.saturating_add(boot_ns),
                wall_ns: from.wall_ns.saturating_add(wall_ns),
            }
        };
        let (one, two) = (start(self), start(other));
        let from = Moment { boot_ns: one.boot_ns.min(two.boot_ns), wall_ns: one.wall_ns.min(two.wall_ns) };
        Self { from, span }
    }

    /// Returns whether the span begins no earlier than `moment`.
    pub(crate) fn starts_since(self, moment: Moment) -> bool {
        self.from.boot_ns >= moment.boot_ns
    }

    /// Returns this deadline, made earlier by `by`.
    pub(crate) const fn sooner(self, by: Duration) -> Self {
        Self { span: self.span.saturating_sub(by), ..self }
    }

    /// Returns the time until the deadline. Returns zero if it has passed.
    pub fn remaining(self, now: Moment) -> Duration {
        self.span.saturating_sub(now.longest_since(self.from))
    }

    /// Returns the deadline in nanoseconds on the boot clock. This orders the deadlines of this machine.
    pub(crate) fn rank(self) -> u64 {
        self.from.boot_ns.saturating_add(u64::try_from(self.span.as_nanos()).unwrap_or(u64::MAX))
    }

    /// Returns whether the deadline has passed.
    pub fn passed(self, now: Moment) -> bool {
        self.remaining(now).is_zero()
    }
}

/// A source of time: [`SystemClock`] outside tests, [`TestClock`] in tests.
///
/// ```
/// use leasehold::clock::{Clock, TestClock};
/// # use std::time::Duration;
///
/// async fn pause(clock: &dyn Clock) -> Duration {
///     let start = clock.now();
///     clock.sleep(Duration::from_secs(60)).await;
///     clock.now().longest_since(start)
/// }
///
/// # tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap().block_on(async {
/// let clock = TestClock::default(); // in the program: SystemClock
/// assert_eq!(pause(&clock).await, Duration::from_secs(60)); // at once, if tokio's clock is paused
/// # });
/// ```
#[async_trait]
pub trait Clock: fmt::Debug + Send + Sync + 'static {
    /// Returns the current time on both clocks.
    fn now(&self) -> Moment;

    /// Completes when at least `duration` has passed on the clock of [`now`](Self::now) that shows the longer time.
    ///
    /// Cancel safe: dropping the future ends the sleep.
    async fn sleep(&self, duration: Duration);
}

/// Runs `future` for at most `limit`. Returns `None` if the time runs out first.
///
/// Cancel safe if `future` is.
///
/// ```
/// # use std::time::Duration;
/// use leasehold::clock::{SystemClock, timeout};
///
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// let answer = timeout(&SystemClock, Duration::from_secs(5), async { 42 }).await;
/// assert_eq!(answer, Some(42));
///
/// let silence = timeout(&SystemClock, Duration::from_millis(10), std::future::pending::<()>()).await;
/// assert_eq!(silence, None);
/// # });
/// ```
pub async fn timeout<F: Future>(clock: &dyn Clock, limit: Duration, future: F) -> Option<F::Output> {
    tokio::select! {
        biased;
        output = future => Some(output),
        () = clock.sleep(limit) => None,
    }
}

/// The machine's own clocks: `CLOCK_BOOTTIME` on Linux, `CLOCK_MONOTONIC` on macOS (which counts sleep there), and the
/// wall clock.
///
/// ```
/// use leasehold::clock::{Clock, SystemClock};
///
/// let start = SystemClock.now();
/// // ... the work ...
/// let now = SystemClock.now();
/// println!("took {:?}", now.longest_since(start));
/// assert!(now.since_boot() >= start.since_boot());
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

#[cfg(any(target_os = "linux", target_os = "android"))]
const SUSPEND_AWARE: ClockId = ClockId::Boottime;
// On macOS, it counts sleep. FreeBSD has no such clock: there, a holder notices a suspend by its wall clock alone.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
const SUSPEND_AWARE: ClockId = ClockId::Monotonic;

/// Shared by all values of [`SystemClock`], because they are the same clock.
static SYSTEM_MONITORS: ClockJumpMonitors = ClockJumpMonitors::new();

#[async_trait]
impl Clock for SystemClock {
    fn now(&self) -> Moment {
        let boot = clock_gettime(SUSPEND_AWARE);
        let wall = clock_gettime(ClockId::Realtime);
        Moment {
            boot_ns: u64::try_from(boot.tv_sec).unwrap_or(0) * 1_000_000_000
                + u64::try_from(boot.tv_nsec).unwrap_or(0),
            wall_ns: wall.tv_sec.saturating_mul(1_000_000_000).saturating_add(wall.tv_nsec),
        }
    }

    async fn sleep(&self, duration: Duration) {
        sleep::sleep(self, duration).await;
    }
}

impl Watched for SystemClock {
    fn moment(&self) -> Moment {
        self.now()
    }

    fn monitors(&self) -> &ClockJumpMonitors {
        &SYSTEM_MONITORS
    }
}

/// A clock for tests. It follows tokio's clock, paused or not, at a rate and with steps that the test chooses.
///
/// ```
/// # use leasehold::clock::{Clock, TestClock};
/// # use std::time::Duration;
/// # tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap().block_on(async {
/// let clock = TestClock::default();
/// let start = clock.now();
/// clock.sleep(Duration::from_secs(5)).await;
/// clock.suspend(Duration::from_secs(60)); // the machine was suspended: no timer moved
/// assert_eq!(clock.now().longest_since(start), Duration::from_secs(65));
/// # });
/// ```
#[derive(Debug)]
pub struct TestClock(Arc<TestTime>);

#[derive(Debug)]
struct TestTime {
    origin: tokio::time::Instant,
    rate: f64,
    jumps: Mutex<Jumps>,
    monitors: ClockJumpMonitors,
}

#[derive(Debug, Default)]
struct Jumps {
    boot: Duration,
    wall_ns: i64,
    /// The time that the clock missed while it stood still.
    missed: Duration,
    /// When the clock was stopped, in time elapsed since `origin`; `None` while it runs.
    still: Option<Duration>,
}

/// The arbitrary start date of [`TestClock`]: 2025-01-01T00:00:00Z.
const TEST_EPOCH_NS: i64 = 1_735_689_600_000_000_000;

impl TestClock {
    /// Creates a clock that runs at `rate` times the speed of tokio's clock.
    ///
    /// # Panics
    /// Panics only where [`tokio::time::Instant::now`] does.
    #[allow(clippy::disallowed_methods, reason = "only `clock` reads time and sleeps")]
    pub fn with_rate(rate: f64) -> Self {
        let origin = tokio::time::Instant::now();
        Self(Arc::new(TestTime {
            origin,
            rate,
            jumps: Mutex::default(),
            monitors: ClockJumpMonitors::default(),
        }))
    }

    fn jump(&self, jump: impl FnOnce(&mut Jumps)) {
        jump(&mut self.0.jumps.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Simulates a suspend of the machine for `duration`: both clocks advance, and no timer does.
    pub fn suspend(&self, duration: Duration) {
        self.jump(|jumps| {
            jumps.boot += duration;
            jumps.wall_ns += i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX);
        });
    }

    /// Simulates a machine that is paused together with its clocks, as a virtual machine can be. Its clocks do not
    /// count the time until [`resume`](Self::resume).
    pub fn stand_still(&self) {
        let elapsed = self.0.elapsed();
        self.jump(|jumps| jumps.still = jumps.still.or(Some(elapsed)));
    }

    /// Lets the clock continue from where it [stood still](Self::stand_still).
    pub fn resume(&self) {
        let elapsed = self.0.elapsed();
        self.jump(|jumps| {
            if let Some(since) = jumps.still.take() {
                jumps.missed += elapsed.saturating_sub(since);
            }
        });
    }

    /// Sets the wall clock forward (`seconds > 0`) or back.
    pub fn step_wall(&self, seconds: i64) {
        self.jump(|jumps| jumps.wall_ns += seconds * 1_000_000_000);
    }
}

impl Default for TestClock {
    fn default() -> Self {
        Self::with_rate(1.0)
    }
}

#[async_trait]
impl Clock for TestClock {
    fn now(&self) -> Moment {
        self.0.moment()
    }

    async fn sleep(&self, duration: Duration) {
        sleep::sleep(&self.0, duration).await;
    }
}

impl TestTime {
    #[allow(clippy::disallowed_methods, reason = "only `clock` reads time and sleeps")]
    fn elapsed(&self) -> Duration {
        tokio::time::Instant::now().duration_since(self.origin).mul_f64(self.rate)
    }
}

impl Watched for Arc<TestTime> {
    fn moment(&self) -> Moment {
        let elapsed = self.elapsed();
        let jumps = self.jumps.lock().unwrap_or_else(PoisonError::into_inner);
        let elapsed = jumps.still.unwrap_or(elapsed).saturating_sub(jumps.missed);
        let elapsed_ns = i64::try_from(elapsed.as_nanos()).unwrap_or(i64::MAX);
        Moment {
            boot_ns: u64::try_from((elapsed + jumps.boot).as_nanos()).unwrap_or(u64::MAX),
            wall_ns: TEST_EPOCH_NS + elapsed_ns + jumps.wall_ns,
        }
    }

    fn monitors(&self) -> &ClockJumpMonitors {
        &self.monitors
    }
}

/// Returns `duration` in whole microseconds, saturating.
///
/// ```
/// # use std::time::Duration;
/// use leasehold::clock::micros;
///
/// assert_eq!(micros(Duration::from_millis(3)), 3_000);
/// assert_eq!(micros(Duration::from_nanos(1_999)), 1);
/// assert_eq!(micros(Duration::MAX), u64::MAX);
/// ```
pub fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) const SECOND: Duration = Duration::from_secs(1);

    pub(super) fn moment(boot_s: u64, wall_s: i64) -> Moment {
        Moment::from_raw(boot_s * 1_000_000_000, wall_s * 1_000_000_000)
    }

    #[test]
    fn a_stepped_wall_clock_only_shortens_holds_and_lengthens_waits() {
        let start = moment(100, 5_000);
        let forward = moment(110, 5_000 + 3_610);
        assert_eq!(forward.longest_since(start), SECOND * 3_610);
        assert_eq!(forward.shortest_since(start), SECOND * 10);
        let back = moment(110, 5_000 - 3_590);
        assert_eq!(back.longest_since(start), SECOND * 10);
        assert_eq!(back.shortest_since(start), Duration::ZERO);
    }

    #[test]
    fn the_earliest_of_two_deadlines_passes_with_either() {
        let one = Deadline::new(moment(100, 5_000), SECOND * 30);
        let two = Deadline::new(moment(110, 5_004), SECOND * 25);
        for both in [one.earliest(two), two.earliest(one)] {
            // On the boot clock, `one` ends first, at 130. On the wall clock `two` does, at 5,029.
            assert!(!both.passed(moment(129, 5_028)));
            assert!(both.passed(moment(130, 5_028)));
            assert!(both.passed(moment(129, 5_029)));
        }
        assert_eq!(one.earliest(one), one);
    }

    #[test]
    fn a_machine_restored_from_a_snapshot_finds_its_deadline_passed() {
        // The boot clock continues from the snapshot. Only the wall clock shows the gap.
        let deadline = Deadline::new(moment(100, 5_000), SECOND * 30);
        assert!(!deadline.passed(moment(105, 5_005)));
        assert!(deadline.passed(moment(105, 9_000)));
    }
}
