//! What people see while a lock is waited for.

use std::convert::Infallible;
use std::io::Write as _;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use leasehold::clock::{Clock, Moment};
use leasehold::{Held, LockName};

use crate::output::{Output, human, json};
use crate::sharing::Sharing;

/// Most locks are had at once; nobody wants to read of a wait that is over.
const SILENCE: Duration = Duration::from_millis(400);
/// Where there is no terminal, a line so often.
const LINE_EVERY: Duration = Duration::from_secs(30);
/// A store that has said nothing for so long is told of.
const UNANSWERED: Duration = Duration::from_secs(2);
/// How often the spinner turns.
const FRAME: Duration = Duration::from_millis(100);

/// Keeps what was last heard of the holder, and shows it.
#[derive(Clone, Debug)]
pub(crate) struct Waiting {
    name: LockName,
    /// What of it is waited for.
    sharing: Sharing,
    clock: Arc<dyn Clock>,
    seen: Arc<Mutex<Option<(Held, Moment)>>>,
    /// Whether a line is to tell of each holder only once, in place of one now and then.
    once: bool,
    /// How long a store that says nothing is asked.
    limit: Duration,
}

impl Waiting {
    pub(crate) fn new(name: LockName, clock: Arc<dyn Clock>) -> Self {
        Self { name, sharing: Sharing::Lock, clock, seen: Arc::default(), once: false, limit: Duration::MAX }
    }

    /// The same, given up after `limit` when the store says nothing.
    pub(crate) fn within(self, limit: Duration) -> Self {
        Self { limit, ..self }
    }

    /// The same, waiting to hold it with those whom `sharing` allows.
    pub(crate) fn sharing(self, sharing: Sharing) -> Self {
        Self { sharing, ..self }
    }

    /// For a wait that may take months: into a log, a line for each holder.
    pub(crate) fn for_months(self) -> Self {
        Self { once: true, ..self }
    }

    /// What to call each time the holder is heard of.
    pub(crate) fn observer(&self) -> impl Fn(&Held) + Send + Sync + 'static {
        let this = self.clone();
        move |held| {
            let seen = Some((held.clone(), this.clock.now()));
            *this.seen.lock().unwrap_or_else(PoisonError::into_inner) = seen;
        }
    }

    /// Runs `wait`, showing what is waited for. Cancel safe if `wait` is.
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
        self.clock.sleep(SILENCE).await;
        if self.now().is_some_and(|held| is_our_own(&self.name, self.sharing, &held)) {
            output.warning(&format!("{}: this will not end by itself", OWN_LOCK));
        }
        if output.spins() { self.spin(output, start).await } else { self.tell(output, start).await }
    }

    /// One line that changes, on a terminal.
    async fn spin(&self, output: &Output, start: Moment) -> Infallible {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
        let template = if output.colors() { "{spinner} {msg:.cyan}" } else { "{spinner} {msg}" };
        bar.set_style(
            ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_spinner()),
        );
        // Takes the line away whenever the wait ends or is dropped.
        let _cleared = Cleared(bar.clone());
        let shown = self.sharing.awaited(&self.name);
        loop {
            let message = match self.now() {
                Some(held) => Some(human::waiting(&shown, &held)),
                None => self.unanswered(start).map(|(passed, left)| human::unanswered(&shown, passed, left)),
            };
            if let Some(message) = message {
                bar.set_message(format!("{:>10} {message}", "Waiting"));
                bar.tick();
            }
            self.clock.sleep(FRAME).await;
        }
    }

    /// A line now and then, into a log.
    async fn tell(&self, output: &Output, start: Moment) -> Infallible {
        let mut told = None;
        let mut told_of_silence = !output.verbose;
        let shown = self.sharing.awaited(&self.name);
        loop {
            if self.now().is_none()
                && !told_of_silence
                && let Some((passed, left)) = self.unanswered(start)
            {
                told_of_silence = true;
                let line = if output.json {
                    json::unanswered(&self.name, passed, left).to_string()
                } else {
                    format!("{:>12} {}", "Waiting", human::unanswered(&shown, passed, left))
                };
                let _ = writeln!(std::io::stderr(), "{line}");
            }
            let Some(held) = self.now().filter(|held| !self.once || told != Some(held.token)) else {
                self.clock.sleep(if told.is_some() { LINE_EVERY } else { FRAME }).await;
                continue;
            };
            told = Some(held.token);
            let line = if output.json {
                json::waiting(&self.name, &held).to_string()
            } else {
                format!("{:>12} {}", "Waiting", human::waiting(&shown, &held))
            };
            // Nobody who reads is nobody who is told.
            let _ = writeln!(std::io::stderr(), "{line}");
            self.clock.sleep(LINE_EVERY).await;
        }
    }

    /// For how long the store has said nothing, if that is long, and for how long it is still asked.
    fn unanswered(&self, start: Moment) -> Option<(Duration, Duration)> {
        let passed = self.clock.now().shortest_since(start);
        (passed >= UNANSWERED).then(|| (passed, self.limit.saturating_sub(passed)))
    }

    /// What was last heard, with its durations moved on to now.
    pub(crate) fn now(&self) -> Option<Held> {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let (mut held, at) = seen?;
        let since = self.clock.now().shortest_since(at);
        held.held_for = held.held_for.map(|age| age + since);
        // Over, and it is not ours: it has been renewed since it was last heard of.
        held.lapses_within =
            held.lapses_within.map(|left| left.saturating_sub(since)).filter(|left| !left.is_zero());
        Some(held)
    }
}

/// What to say of [`is_our_own`].
pub(crate) const OWN_LOCK: &str = "this very command runs under the lock that it waits for";

/// Whether `held` is the grant of the `leasehold run` that started us, and keeps out who asks for `name` as `sharing` says:
/// it holds it until we have ended.
pub(crate) fn is_our_own(name: &LockName, sharing: Sharing, held: &Held) -> bool {
    let is = |variable, value: &str| std::env::var(variable).is_ok_and(|given| given == value);
    held.token.is_some_and(|token| is("LEASEHOLD_TOKEN", &token.to_string()))
        && std::env::var("LEASEHOLD_LOCK").is_ok_and(|lock| sharing.is_kept_out_by(name, &lock))
}

struct Cleared(ProgressBar);

impl Drop for Cleared {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use leasehold::clock::TestClock;

    #[test]
    fn a_lease_that_has_run_out_on_the_display_was_renewed() {
        let clock = Arc::new(TestClock::default());
        let waiting = Waiting::new(LockName::new("x").unwrap(), clock.clone());
        let mut held = Held::default();
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
