//! The log of this process, on stderr.

use std::io::Write as _;
use std::sync::OnceLock;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::Duration;

use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::{Layer, SubscriberExt as _};
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Registry};

use crate::output::Output;

/// Maximum number of log lines that wait for a slow stderr. Further lines are dropped.
const BACKLOG: usize = 1_024;

/// How long the end of this process waits for a slow stderr.
const LIMIT: Duration = Duration::from_millis(500);

static LOG: OnceLock<Log> = OnceLock::new();

/// A layer that receives spans and events.
pub(crate) type LogLayer = Box<dyn Layer<Registry> + Send + Sync>;

/// Logs what has at least `level`, unless the environment variable `RUST_LOG` says otherwise.
pub(crate) fn log_to_stderr(level: &str, output: Output, spans: Option<LogLayer>) {
    // This prefix also matches `leasehold_serve`.
    let filter = std::env::var("RUST_LOG").unwrap_or_else(|_| format!("leasehold={level}"));
    let log = LOG.get_or_init(|| {
        Log::start(|line| {
            let _ = std::io::stderr().write_all(line);
        })
    });
    let log = tracing_subscriber::fmt::layer()
        .with_ansi(output.colors())
        .with_writer(log.clone())
        .with_filter(EnvFilter::new(filter))
        .boxed();
    let layers: Vec<LogLayer> = [log].into_iter().chain(spans).collect();
    // Fails only if a subscriber is already set.
    let _ = Registry::default().with(layers).try_init();
}

/// Waits until all lines are written. Without this, the last ones, which say why this process ends, could be lost.
pub(crate) fn finish() {
    if let Some(log) = LOG.get() {
        log.finish(LIMIT);
    }
}

/// Passes log lines to a thread that writes them. A stopped terminal (Ctrl-S) or a full pipe must not block the task
/// that renews the lease.
#[derive(Clone, Debug)]
struct Log(SyncSender<Entry>);

#[derive(Debug)]
enum Entry {
    Line(Vec<u8>),
    /// Respond when all earlier lines are written.
    Finish(SyncSender<()>),
}

impl Log {
    fn start(mut write: impl FnMut(&[u8]) + Send + 'static) -> Self {
        let (sender, entries) = sync_channel(BACKLOG);
        // Without the thread, there is no log.
        let _ = std::thread::Builder::new().spawn(move || {
            for entry in entries {
                match entry {
                    Entry::Line(line) => write(&line),
                    Entry::Finish(done) => {
                        let _ = done.try_send(());
                    }
                }
            }
        });
        Self(sender)
    }

    /// Waits until all lines are written, for at most `limit`.
    fn finish(&self, limit: Duration) {
        let (done, is_done) = sync_channel(1);
        if self.0.try_send(Entry::Finish(done)).is_ok() {
            let _ = is_done.recv_timeout(limit);
        }
    }
}

impl std::io::Write for Log {
    fn write(&mut self, line: &[u8]) -> std::io::Result<usize> {
        let _ = self.0.try_send(Entry::Line(line.to_vec()));
        Ok(line.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl MakeWriter<'_> for Log {
    type Writer = Self;

    fn make_writer(&self) -> Self {
        self.clone()
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsFd as _;
    use std::process::Command;
    use std::sync::mpsc::channel;

    use super::*;
    use crate::ending;

    /// In the process that the test below starts.
    const PANICS: &str = "LEASEHOLD_TEST_PANICS";

    #[test]
    fn a_panic_comes_after_all_lines_of_the_log() {
        if std::env::var_os(PANICS).is_some() {
            let (panics, panicked) = channel();
            let mut panicked = Some(panicked);
            // Without the lock of `stderr`, for which the message of the panic would wait.
            let mut stderr = File::from(std::io::stderr().as_fd().try_clone_to_owned().unwrap());
            let mut log = Log::start(move |line| {
                panicked.take().into_iter().for_each(|panicked| panicked.recv().unwrap());
                stderr.write_all(line).unwrap();
            });
            LOG.set(log.clone()).unwrap();
            (0..1_000).for_each(|n| log.write_all(format!("line {n}\n").as_bytes()).unwrap());
            ending::fail_on_panic();
            let ends = std::panic::take_hook();
            std::panic::set_hook(Box::new(move |panic| {
                panics.send(()).unwrap();
                ends(panic);
            }));
            // A test has a thread of its own.
            let main = std::thread::Builder::new().name("main".to_owned());
            main.spawn(|| panic!("at the end")).unwrap().join().unwrap();
        }
        let ended = Command::new(std::env::current_exe().unwrap())
            .args(["--nocapture", "--exact", "log::tests::a_panic_comes_after_all_lines_of_the_log"])
            .env(PANICS, "1")
            .output()
            .unwrap();
        let told = String::from_utf8(ended.stderr).unwrap();
        let last: Vec<_> = told.lines().rev().take(2).collect();
        assert!(last[0].starts_with("error: leasehold stopped: at the end"), "{last:?}");
        assert_eq!(last[1], "line 999");
    }

    #[test]
    fn the_end_waits_until_all_lines_are_written() {
        let ((go, wait), (written, lines)) = (channel::<()>(), channel());
        let mut log = Log::start(move |line| {
            wait.recv().unwrap();
            written.send(line.to_vec()).unwrap();
        });
        log.write_all(b"one").unwrap();
        log.write_all(b"two").unwrap();
        let finishing = std::thread::spawn(move || log.finish(Duration::from_secs(60)));
        (0..2).for_each(|_| go.send(()).unwrap());
        finishing.join().unwrap();
        assert_eq!(lines.try_iter().collect::<Vec<_>>(), [b"one", b"two"]);
    }

    #[test]
    fn the_end_does_not_wait_for_a_stopped_terminal() {
        let (_go, wait) = channel::<()>();
        let mut log = Log::start(move |_| {
            let _ = wait.recv();
        });
        log.write_all(b"one").unwrap();
        log.finish(Duration::from_millis(10));
        // It does not wait at all if no line fits.
        (0..2 * BACKLOG).for_each(|_| log.write_all(b"more").unwrap());
        log.finish(Duration::from_secs(3_600));
    }
}
