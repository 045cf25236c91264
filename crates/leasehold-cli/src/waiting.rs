//! What people see while a lock is waited for.

use std::convert::Infallible;
use std::io::Write as _;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use leasehold::clock::{Clock, Moment};
use leasehold::{Held, LockName};

use crate::output::{Output, human, json};

/// Most locks are had at once; nobody wants to read of a wait that is over.
const SILENCE: Duration = Duration::from_millis(400);
/// Where there is no terminal, a line so often.
const LINE_EVERY: Duration = Duration::from_secs(30);
/// How often the spinner turns.
const FRAME: Duration = Duration::from_millis(100);

/// Keeps what was last heard of the holder, and shows it.
#[derive(Clone, Debug)]
pub(crate) struct Waiting {
    name: LockName,
    /// What people are told is waited for.
    shown: String,
    clock: Arc<dyn Clock>,
    seen: Arc<Mutex<Option<(Held, Moment)>>>,
    /// Whether a line is to tell of each holder only once, in place of one now and then.
    once: bool,
}

impl Waiting {
    pub(crate) fn new(name: LockName, clock: Arc<dyn Clock>) -> Self {
        Self { shown: name.to_string(), name, clock, seen: Arc::default(), once: false }
    }

    /// The same, with another text for what is waited for.
    pub(crate) fn shown_as(self, shown: String) -> Self {
        Self { shown, ..self }
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
        self.clock.sleep(SILENCE).await;
        if self.now().is_some_and(|held| is_our_own(&self.name, &held)) {
            output.warning(&format!("{}: this will not end by itself", OWN_LOCK));
        }
        if output.spins() { self.spin(output).await } else { self.tell(output).await }
    }

    /// One line that changes, on a terminal.
    async fn spin(&self, output: &Output) -> Infallible {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
        let template = if output.colors() { "{spinner} {msg:.cyan}" } else { "{spinner} {msg}" };
        bar.set_style(
            ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_spinner()),
        );
        // Takes the line away whenever the wait ends or is dropped.
        let _cleared = Cleared(bar.clone());
        loop {
            if let Some(held) = self.now() {
                bar.set_message(format!("{:>10} {}", "Waiting", human::waiting(&self.shown, &held)));
                bar.tick();
            }
            self.clock.sleep(FRAME).await;
        }
    }

    /// A line now and then, into a log.
    async fn tell(&self, output: &Output) -> Infallible {
        let mut told = None;
        loop {
            let Some(held) = self.now().filter(|held| !self.once || told != Some(held.token)) else {
                self.clock.sleep(if told.is_some() { LINE_EVERY } else { FRAME }).await;
                continue;
            };
            told = Some(held.token);
            let line = if output.json {
                json::waiting(&self.name, &held).to_string()
            } else {
                format!("{:>12} {}", "Waiting", human::waiting(&self.shown, &held))
            };
            // Nobody who reads is nobody who is told.
            let _ = writeln!(std::io::stderr(), "{line}");
            self.clock.sleep(LINE_EVERY).await;
        }
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

/// Whether `held` is the grant of the `leasehold run` that started us, of the lock or a shared hold of it: it holds it until
/// we have ended.
pub(crate) fn is_our_own(name: &LockName, held: &Held) -> bool {
    let is = |variable, value: &str| std::env::var(variable).is_ok_and(|given| given == value);
    held.token.is_some_and(|token| is("LEASEHOLD_TOKEN", &token.to_string()))
        && std::env::var("LEASEHOLD_LOCK").is_ok_and(|lock| {
            lock.strip_prefix(name.as_str())
                .is_some_and(|slot| slot.is_empty() || slot.starts_with("/shared-"))
        })
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
