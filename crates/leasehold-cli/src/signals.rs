//! Signals that people and programs send us.

use std::io;
use std::task::{Context, Poll};

use rustix::process::Signal;
use tokio::signal::unix::{self, SignalKind};

use crate::exit::{FAILED, Failure, SIGNAL_BASE};

/// What ends us while we wait for a lock, and is passed on to a command that runs.
const ENDING: [Signal; 4] = [Signal::HUP, Signal::INT, Signal::QUIT, Signal::TERM];
/// Passed on to a command that runs.
const OTHERS: [Signal; 5] = [Signal::USR1, Signal::USR2, Signal::WINCH, Signal::TSTP, Signal::CONT];

/// Receives signals in place of their default actions, until the process ends.
#[derive(Debug)]
pub(crate) struct Signals {
    streams: Vec<(Signal, unix::Signal)>,
    ending_signal: Option<Signal>,
    /// What [`ignored`] said at first.
    ignored: u64,
}

impl Signals {
    /// Those that end a process.
    pub(crate) fn ending() -> io::Result<Self> {
        let mut signals = Self { streams: Vec::new(), ending_signal: None, ignored: ignored_signals() };
        signals.add(&ENDING)?;
        Ok(signals)
    }

    /// Adds those that only a command knows what to do with. `stop`: also SIGTSTP, which then no longer stops us.
    pub(crate) fn add_others(&mut self, stop: bool) -> io::Result<()> {
        let others: Vec<Signal> = OTHERS.into_iter().filter(|&s| stop || s != Signal::TSTP).collect();
        self.add(&others)
    }

    fn add(&mut self, signals: &[Signal]) -> io::Result<()> {
        for &signal in signals {
            if self.streams.iter().any(|(received, _)| *received == signal) {
                continue;
            }
            // What our parent had us ignore (nohup, `&` in a script) stays ignored, and so it does for the command:
            // installing a handler would undo that.
            if self.ignored & (1 << (signal.as_raw() - 1)) == 0 {
                self.streams.push((signal, unix::signal(SignalKind::from_raw(signal.as_raw()))?));
            }
        }
        Ok(())
    }

    /// The next signal. Cancel safe.
    pub(crate) async fn next(&mut self) -> Signal {
        std::future::poll_fn(|context| self.poll(context)).await
    }

    /// The next signal that ends a process. Cancel safe.
    pub(crate) async fn next_ending(&mut self) -> Signal {
        loop {
            let signal = self.next().await;
            if ENDING.contains(&signal) {
                return signal;
            }
        }
    }

    /// The latest signal so far that ends a process, whoever received it here, and also if it was forgotten; SIGHUP, which
    /// may mean something else, only when there was no other.
    pub(crate) fn ending_signal(&self) -> Option<Signal> {
        self.ending_signal
    }

    /// Forgets those that have arrived.
    pub(crate) fn discard_pending(&mut self) {
        let mut context = Context::from_waker(std::task::Waker::noop());
        while self.poll(&mut context).is_ready() {}
    }

    /// Does `work`, unless a signal comes first. Cancels `work`.
    pub(crate) async fn unless<T>(
        &mut self,
        work: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        tokio::select! {
            biased;
            outcome = work => outcome,
            signal = self.next() => Err(interrupted(signal)),
        }
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Signal> {
        for (signal, stream) in &mut self.streams {
            if stream.poll_recv(context).is_ready() {
                if ENDING.contains(signal) && (*signal != Signal::HUP || self.ending_signal.is_none()) {
                    self.ending_signal = Some(*signal);
                }
                return Poll::Ready(*signal);
            }
        }
        Poll::Pending
    }
}

/// The signals that this process was started ignoring, a bit each; none where that cannot be read.
fn ignored_signals() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

/// What a signal that came before there was anything to pass it on to means.
pub(crate) fn interrupted(signal: Signal) -> Failure {
    let number = signal.as_raw();
    let code = u8::try_from(number).ok().and_then(|number| SIGNAL_BASE.checked_add(number)).unwrap_or(FAILED);
    Failure::new(code, "interrupted", format!("interrupted by signal {number} while waiting"))
}
