//! A running program of its own that says what it does on its standard output, a line each.

use std::ffi::OsStr;
use std::io;
use std::process::Stdio;
use std::time::Duration;

use leasehold::clock::{SystemClock, timeout};
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

/// Far more than anything takes: for tests that hang.
const LIMIT: Duration = Duration::from_secs(300);

/// A running program. Killed when dropped.
#[derive(Debug)]
pub struct Process {
    process: Child,
    input: Option<ChildStdin>,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Process {
    /// Starts `program`.
    ///
    /// # Panics
    /// When it cannot be started.
    pub fn start(program: impl AsRef<OsStr>, arguments: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Self {
        let program = program.as_ref();
        let mut process = Command::new(program)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap_or_else(|error| panic!("{} does not start: {error}", program.display()));
        let input = process.stdin.take();
        let lines = BufReader::new(process.stdout.take().unwrap()).lines();
        Self { process, input, lines }
    }

    /// Its process id.
    ///
    /// # Panics
    /// When it has ended.
    pub fn id(&self) -> u32 {
        self.process.id().expect("the program has ended")
    }

    /// What it says next; `None` when it has ended.
    ///
    /// # Panics
    /// When it says nothing for five minutes.
    pub async fn line(&mut self) -> Option<String> {
        within("a program to say something", self.lines.next_line()).await.unwrap()
    }

    /// Waits until it says `line`.
    ///
    /// # Panics
    /// When it says anything else, or nothing.
    pub async fn says(&mut self, line: &str) {
        assert_eq!(self.line().await.as_deref(), Some(line));
    }

    /// Writes a line to its standard input.
    ///
    /// # Panics
    /// When that has ended.
    pub async fn tell(&mut self, line: &str) {
        let input = self.input.as_mut().expect("its input has ended");
        input.write_all(format!("{line}\n").as_bytes()).await.unwrap();
    }

    /// Stops it (SIGSTOP): it does nothing, and does not know.
    ///
    /// # Panics
    /// When it has ended.
    pub fn stop(&self) {
        signal(&self.process, Signal::STOP).unwrap();
    }

    /// Lets it go on (SIGCONT), as if no time had passed.
    ///
    /// # Panics
    /// When it has ended.
    pub fn go_on(&self) {
        signal(&self.process, Signal::CONT).unwrap();
    }

    /// Ends its standard input: what tells a peer to release the lock that it holds.
    pub fn end_input(&mut self) {
        self.input = None;
    }

    /// `kill -9`, and waits until it is gone.
    ///
    /// # Panics
    /// When it cannot be killed.
    pub async fn kill(&mut self) {
        self.process.kill().await.unwrap();
    }

    /// What else it says, and its exit code.
    ///
    /// # Panics
    /// When it does not end.
    pub async fn end(mut self) -> (Vec<String>, Option<i32>) {
        self.end_input();
        let mut said = Vec::new();
        while let Some(line) = self.line().await {
            said.push(line);
        }
        let status = within("a program to end", self.process.wait()).await.unwrap();
        (said, status.code())
    }
}

/// From now on this process ends with 101 at any panic, also of a task that nobody awaits: it would go on with less.
pub fn end_at_panics() {
    let tell = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        tell(info);
        std::process::exit(101);
    }));
}

/// Sends a signal to a process that was not waited for yet, so that its id is still its own.
///
/// # Errors
/// When it was, or the signal cannot be sent.
pub(crate) fn signal(process: &Child, signal: Signal) -> io::Result<()> {
    let id = process.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
    Ok(kill_process(id.ok_or(io::ErrorKind::NotFound)?, signal)?)
}

/// What `future` completes with.
///
/// # Panics
/// When it takes five minutes: far more than anything takes, and how a test that hangs fails.
pub async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    timeout(&SystemClock, LIMIT, future).await.unwrap_or_else(|| panic!("{what} took longer than {LIMIT:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_program_is_listened_to_and_told_to_end() {
        let mut process = Process::start("sh", ["-c", "echo granted; cat; echo released; exit 3"]);
        process.says("granted").await;
        process.end_input();
        assert_eq!(process.end().await, (vec!["released".to_owned()], Some(3)));
    }
}
