//! Shows the progress while waiting for a lock.

use std::convert::Infallible;
use std::io::stderr;
use std::sync::Arc;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use leasehold::clock::{Clock, Moment, timeout};
use leasehold::{ErrorKind, HolderInfo, LockName, Locker};
use serde_json::Value;
use tokio::sync::watch;

use crate::exit::{DEADLOCK, Failure};
use crate::mode::Mode;
use crate::names::Names;
use crate::nesting::{self, Outer};
use crate::output::{Output, columns, human, json};

/// Shorter waits are not shown.
const SHOW_AFTER: Duration = Duration::from_millis(400);
/// The interval between two lines without a terminal.
const LINE_INTERVAL: Duration = Duration::from_secs(30);
/// A store that does not respond, and any other long wait, is reported after this time.
const REPORT_SILENCE_AFTER: Duration = Duration::from_secs(2);
/// Frame time of the spinner.
const FRAME_INTERVAL: Duration = Duration::from_millis(100);

/// The columns before the text on a terminal: the spinner, and the word `Waiting`.
const INDENT: usize = 10;

/// Keeps the latest known holder, and shows it.
#[derive(Clone, Debug)]
pub(crate) struct WaitProgress {
    names: Names,
    /// How the lock will be held.
    mode: Mode,
    clock: Arc<dyn Clock>,
    /// The locks of the runs around this process.
    outer: Vec<Outer>,
    /// The lock that the acquisition waits for, and its holder.
    latest: Arc<watch::Sender<Option<(LockName, HolderInfo, Moment)>>>,
    /// Whether to log each holder once, instead of one line per interval.
    once_per_holder: bool,
    /// How long the store may take to respond, if there is a limit.
    limit: Option<Duration>,
}

impl WaitProgress {
    pub(crate) fn new(names: impl Into<Names>, clock: Arc<dyn Clock>) -> Self {
        Self {
            names: names.into(),
            mode: Mode::Lock,
            clock,
            outer: Vec::new(),
            latest: Arc::default(),
            once_per_holder: false,
            limit: None,
        }
    }

    /// Like [`new`](Self::new), for a wait in the store of `locker`.
    pub(crate) fn on(locker: &Locker, names: impl Into<Names>) -> Self {
        Self { outer: nesting::outer(locker), ..Self::new(names, locker.store().env().clock.clone()) }
    }

    /// Sets how long the store may take to respond. `None` means no limit.
    pub(crate) fn within(self, limit: Option<Duration>) -> Self {
        Self { limit, ..self }
    }

    /// Sets the mode.
    pub(crate) fn mode(self, mode: Mode) -> Self {
        Self { mode, ..self }
    }

    /// Makes the progress log each holder only once if there is no terminal. For waits of any length.
    pub(crate) fn once_per_holder(self) -> Self {
        Self { once_per_holder: true, ..self }
    }

    /// Returns the callback for reports about the holder.
    pub(crate) fn observer(&self) -> impl Fn(&HolderInfo) + Send + Sync + 'static {
        let (names, observer) = (self.names.clone(), self.observer_of_several());
        move |held| {
            // Of several locks, this one may be any.
            if !names.are_several() {
                observer(names.first(), held);
            }
        }
    }

    /// Returns the callback for reports about the holders of several locks.
    pub(crate) fn observer_of_several(&self) -> impl Fn(&LockName, &HolderInfo) + Send + Sync + use<> {
        let this = self.clone();
        move |name, held| {
            this.latest.send_replace(Some((name.clone(), held.clone(), this.clock.now())));
        }
    }

    /// Returns the lock that the acquisition waits for. If it is not known, the first one.
    fn awaited(&self) -> LockName {
        self.latest.borrow().as_ref().map_or_else(|| self.names.first().clone(), |(name, ..)| name.clone())
    }

    /// Describes what the acquisition waits for, and the locks that it holds meanwhile.
    fn description(&self) -> String {
        if !self.names.are_several() {
            return self.mode.description(self.names.first());
        }
        let name = self.awaited();
        match self.names.before(&name)[..] {
            [] => name.to_string(),
            [held] => format!("{name} (holding {held})"),
            [first, .., last] => {
                format!("{name} (holding {} locks, {first} to {last})", self.names.before(&name).len())
            }
        }
    }

    /// Runs `wait` and shows its progress. Cancel safe if `wait` is.
    pub(crate) async fn show_during<F: Future>(&self, output: &Output, wait: F) -> F::Output {
        tokio::select! {
            biased;
            done = wait => done,
            never = self.show(output) => match never {},
        }
    }

    async fn show(&self, output: &Output) -> Infallible {
        if output.quiet {
            return std::future::pending().await;
        }
        let start = self.clock.now();
        self.clock.sleep(SHOW_AFTER).await;
        if self.deadlock().is_some() {
            output.warning(&format!("{HELD_BY_OUTER}: this wait cannot succeed; {USE_ANOTHER}"));
        }
        if output.animates() { self.spin(output, start).await } else { self.log_lines(output, start).await }
    }

    /// Shows the progress on a terminal, in one line that changes.
    async fn spin(&self, output: &Output, start: Moment) -> Infallible {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
        let template = if output.colors() { "{spinner} {msg:.cyan}" } else { "{spinner} {msg}" };
        bar.set_style(
            ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_spinner()),
        );
        // Removes the line when the wait ends or is dropped.
        let _clear = ClearOnDrop(bar.clone());
        loop {
            let shown = self.description();
            let message = match self.now() {
                Some(held) => {
                    Some(human::waiting(&shown, &held, columns(&stderr()).map(|all| all - INDENT.min(all))))
                }
                None => self.unanswered(start).map(|(passed, left)| human::unanswered(&shown, passed, left)),
            };
            if let Some(message) = message {
                bar.set_message(format!("Waiting {message}"));
                bar.tick();
            }
            self.clock.sleep(FRAME_INTERVAL).await;
        }
    }

    /// Shows the progress without a terminal, in one line per interval.
    async fn log_lines(&self, output: &Output, start: Moment) -> Infallible {
        let mut reported = None;
        let mut reported_silence = !output.tells_of_delays();
        loop {
            let (name, shown) = (self.awaited(), self.description());
            if self.now().is_none()
                && !reported_silence
                && let Some((passed, left)) = self.unanswered(start)
            {
                reported_silence = true;
                let document = json::unanswered(&name, passed, left);
                output.waiting(&human::unanswered(&shown, passed, left), &document);
            }
            let Some(held) = self.now().filter(|held| !self.once_per_holder || reported != Some(held.token))
            else {
                self.clock.sleep(if reported.is_some() { LINE_INTERVAL } else { FRAME_INTERVAL }).await;
                continue;
            };
            reported = Some(held.token);
            output.waiting(
                &human::waiting(&shown, &held, None),
                &json::waiting(&name, &held, &self.names.before(&name)),
            );
            self.clock.sleep(LINE_INTERVAL).await;
        }
    }

    /// Returns how long the store has not responded, and how long it may still take if there is a limit, or `None` if
    /// the first of the two is short. Only for a store that has not responded yet.
    fn unanswered(&self, start: Moment) -> Option<(Duration, Option<Duration>)> {
        let passed = self.clock.now().shortest_since(start);
        let left = self.limit.map(|limit| limit.saturating_sub(passed));
        (passed >= REPORT_SILENCE_AFTER).then_some((passed, left))
    }

    /// Completes when this process waits for a lock that is held until it ends. Cancel safe.
    pub(crate) async fn deadlocked(&self) -> Failure {
        let mut latest = self.latest.subscribe();
        loop {
            if let Some(failure) = self.deadlock() {
                return failure;
            }
            // Fails only without a sender, and `self` has it.
            let _ = latest.changed().await;
        }
    }

    /// Returns the failure if the awaited lock is held until this process ends.
    pub(crate) fn deadlock(&self) -> Option<Failure> {
        let Outer { lock, token, .. } = self.held_by_outer(&self.now()?)?;
        let message = format!(
            "deadlock: the lock `{lock}` is held by the `leasehold run` around this command (token {token})"
        );
        Some(Failure::new(DEADLOCK, ErrorKind::Deadlock.as_str(), message).with_help(USE_ANOTHER))
    }

    /// Returns the grant of a `leasehold run` around this process if `held` is that grant and blocks this acquisition.
    pub(crate) fn held_by_outer(&self, held: &HolderInfo) -> Option<&Outer> {
        let blocks = |outer: &&Outer| {
            held.token == Some(outer.token)
                && self.names.iter().any(|name| self.mode.is_blocked_by(name, outer.lock.as_str()))
        };
        let is_over = held.in_cooldown || held.reserved;
        self.outer.iter().filter(|_| !is_over).find(blocks)
    }

    /// Returns the latest known holder, with durations as of now.
    pub(crate) fn now(&self) -> Option<HolderInfo> {
        let (_, mut held, at) = self.latest.borrow().clone()?;
        let since = self.clock.now().shortest_since(at);
        held.held_for = held.held_for.map(|age| age + since);
        held.free_for = held.free_for.map(|age| age + since);
        // If the time is over and the lock is still held, the holder has renewed its lease.
        held.lapses_within =
            held.lapses_within.map(|left| left.saturating_sub(since)).filter(|left| !left.is_zero());
        Some(held)
    }
}

/// Runs `wait`, which begins after the command has ended. If it takes long, prints one line about it on a terminal or
/// with `-v`: `notice` returns the text and the document for the time that has passed. Cancel safe if `wait` is.
pub(crate) async fn announce<F: Future>(
    output: &Output,
    clock: &dyn Clock,
    wait: F,
    notice: impl FnOnce(Duration) -> (String, Value),
) -> F::Output {
    if !output.tells_of_delays() {
        return wait.await;
    }
    let mut wait = std::pin::pin!(wait);
    if let Some(done) = timeout(clock, REPORT_SILENCE_AFTER, &mut wait).await {
        return done;
    }
    let (output, (text, document)) = (*output, notice(REPORT_SILENCE_AFTER));
    // In a thread, because a stopped terminal (Ctrl-S) must not delay the SIGKILL to processes that the command left
    // running, or the release.
    let _ = std::thread::Builder::new().spawn(move || output.waiting(&text, &document));
    wait.await
}

/// The message for [`WaitProgress::held_by_outer`].
pub(crate) const HELD_BY_OUTER: &str = "this command runs under a `leasehold run` that holds the same lock";
/// What helps then.
pub(crate) const USE_ANOTHER: &str = "remove the inner run, or use another lock";

struct ClearOnDrop(ProgressBar);

impl Drop for ClearOnDrop {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use leasehold::clock::TestClock;

    #[test]
    fn an_elapsed_remaining_time_is_no_longer_shown() {
        let clock = Arc::new(TestClock::default());
        let waiting = WaitProgress::new(LockName::new("x").unwrap(), clock.clone());
        let mut held = HolderInfo::default();
        held.lapses_within = Some(Duration::from_secs(18));
        held.held_for = Some(Duration::ZERO);
        waiting.observer()(&held);
        clock.suspend(Duration::from_secs(10));
        assert!(waiting.now().unwrap().lapses_within.is_some_and(|left| left < Duration::from_secs(9)));
        clock.suspend(Duration::from_secs(10));
        let now = waiting.now().unwrap();
        assert_eq!(now.lapses_within, None);
        assert!(now.held_for >= Some(Duration::from_secs(20)));
    }
}
