//! Receives and forwards signals.

use std::io;
use std::task::{Context, Poll};

use rustix::process::Signal;
use tokio::signal::unix::{self, SignalKind};

use crate::exit::{ENDING, Exit, Failure};

/// Signals that are only forwarded to a running command.
const OTHERS: [Signal; 5] = [Signal::USR1, Signal::USR2, Signal::WINCH, Signal::TSTP, Signal::CONT];

/// Receives signals instead of their default actions, until the process ends.
#[derive(Debug)]
pub(crate) struct Signals {
    streams: Vec<(Signal, unix::Signal)>,
    ending_signal: Option<Signal>,
    /// The signals that were ignored at the start.
    ignored: u64,
}

impl Signals {
    /// Receives the signals that end a process.
    pub(crate) fn ending() -> io::Result<Self> {
        let mut signals = Self { streams: Vec::new(), ending_signal: None, ignored: ignored_signals() };
        signals.add(&ENDING)?;
        Ok(signals)
    }

    /// Also receives the signals that are only forwarded. With `stop`, these include SIGTSTP, which then no longer
    /// stops leasehold.
    pub(crate) fn add_others(&mut self, stop: bool) -> io::Result<()> {
        let others: Vec<Signal> = OTHERS.into_iter().filter(|&s| stop || s != Signal::TSTP).collect();
        self.add(&others)
    }

    fn add(&mut self, signals: &[Signal]) -> io::Result<()> {
        for &signal in signals {
            if self.streams.iter().any(|(received, _)| *received == signal) {
                continue;
            }
            // A signal that the parent process ignores (nohup, `&` in a script) stays ignored, for the command as well.
            // A handler would undo that.
            if self.ignored & (1 << (signal.as_raw() - 1)) == 0 {
                self.streams.push((signal, unix::signal(SignalKind::from_raw(signal.as_raw()))?));
            }
        }
        Ok(())
    }

    /// Returns the next signal. Cancel safe.
    pub(crate) async fn next(&mut self) -> Signal {
        std::future::poll_fn(|context| self.poll(context)).await
    }

    /// Returns the next signal that ends a process. Cancel safe.
    pub(crate) async fn next_ending(&mut self) -> Signal {
        loop {
            let signal = self.next().await;
            if ENDING.contains(&signal) {
                return signal;
            }
        }
    }

    /// Returns the latest signal that ends a process, even if it was discarded. SIGHUP, which can have another meaning,
    /// counts only if there was no other.
    pub(crate) fn ending_signal(&self) -> Option<Signal> {
        self.ending_signal
    }

    /// Discards signals that have arrived.
    pub(crate) fn discard_pending(&mut self) {
        let mut context = Context::from_waker(std::task::Waker::noop());
        while self.poll(&mut context).is_ready() {}
    }

    /// Runs `work` until it ends or a signal arrives. A signal cancels `work`.
    pub(crate) async fn unless_interrupted<T>(
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

/// Returns the signals that were ignored when this process started, as a bit mask, or 0 if unknown.
fn ignored_signals() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

/// Returns the failure for a signal that arrived before there was a command to forward it to.
pub(crate) fn interrupted(signal: Signal) -> Failure {
    let message = format!("interrupted by signal {} while waiting", signal.as_raw());
    Failure::ending(Exit::By(signal), "interrupted", message)
}
