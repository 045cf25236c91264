//! Child processes of tests, which report progress as lines on their standard output.

use std::ffi::OsStr;
use std::io;
use std::process::Stdio;
use std::time::Duration;

use leasehold::clock::{SystemClock, timeout};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

/// How long a test waits before it fails: far longer than anything should take.
const LIMIT: Duration = Duration::from_secs(300);

/// A child process, which is killed on drop.
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
    /// When the program cannot be started.
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

    /// Returns the process id.
    ///
    /// # Panics
    /// When the process has ended.
    pub fn id(&self) -> u32 {
        self.process.id().expect("the program has ended")
    }

    /// Returns the next line, or `None` when the process has ended.
    ///
    /// # Panics
    /// When there is no line for five minutes.
    pub async fn line(&mut self) -> Option<String> {
        within("a program to say something", self.lines.next_line()).await.unwrap()
    }

    /// Waits for the next line, which must be `line`.
    ///
    /// # Panics
    /// When the next line is a different one, or when there is none.
    pub async fn says(&mut self, line: &str) {
        assert_eq!(self.line().await.as_deref(), Some(line));
    }

    /// Writes a line to the standard input of the process.
    ///
    /// # Panics
    /// When the input of the process is closed.
    pub async fn tell(&mut self, line: &str) {
        let input = self.input.as_mut().expect("its input has ended");
        input.write_all(format!("{line}\n").as_bytes()).await.unwrap();
    }

    /// Stops the process (SIGSTOP). The process does not notice.
    ///
    /// # Panics
    /// When the process has ended.
    pub fn stop(&self) {
        signal(&self.process, Signal::STOP).unwrap();
    }

    /// Resumes the process (SIGCONT).
    ///
    /// # Panics
    /// When the process has ended.
    pub fn resume(&self) {
        signal(&self.process, Signal::CONT).unwrap();
    }

    /// Closes the standard input of the process, which makes a peer release the lock that it holds.
    pub fn end_input(&mut self) {
        self.input = None;
    }

    /// Kills the process with `kill -9`, and waits until it has ended.
    ///
    /// # Panics
    /// When the process cannot be killed.
    pub async fn kill(&mut self) {
        self.process.kill().await.unwrap();
    }

    /// Closes the standard input and waits until the process has ended. Returns the remaining lines and the exit
    /// code.
    ///
    /// # Panics
    /// When the process does not end.
    pub async fn end(mut self) -> (Vec<String>, Option<i32>) {
        self.end_input();
        let mut lines = Vec::new();
        while let Some(line) = self.line().await {
            lines.push(line);
        }
        let status = within("a program to end", self.process.wait()).await.unwrap();
        (lines, status.code())
    }
}

/// Makes any panic end this process with exit code 101, even in a task that is never awaited.
pub fn end_at_panics() {
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        hook(info);
        std::process::exit(101);
    }));
}

/// Sends a signal to a child that has not been waited for and whose id is therefore still valid. If the signal is STOP,
/// waits until the child has stopped: its other threads run until one of them receives the signal.
///
/// # Errors
/// When the child has been waited for, or the signal cannot be sent.
pub(crate) fn signal(process: &Child, signal: Signal) -> io::Result<()> {
    let id = process.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
    let id = id.ok_or(io::ErrorKind::NotFound)?;
    kill_process(id, signal)?;
    if signal == Signal::STOP {
        let stopped = WaitIdOptions::STOPPED | WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        waitid(WaitId::Pid(id), stopped)?;
    }
    Ok(())
}

/// Awaits `future`.
///
/// # Panics
/// When it takes more than five minutes. This is how a test that hangs fails.
pub async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    timeout(&SystemClock, LIMIT, future).await.unwrap_or_else(|| panic!("{what} took longer than {LIMIT:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_program_prints_lines_and_ends_when_its_input_does() {
        let mut process = Process::start("sh", ["-c", "echo granted; cat; echo released; exit 3"]);
        process.says("granted").await;
        process.end_input();
        assert_eq!(process.end().await, (vec!["released".to_owned()], Some(3)));
    }
}
