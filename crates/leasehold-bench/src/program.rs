//! A running contender: a program that starts on request and reports what it did.

use std::fmt;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use leasehold::clock::{SystemClock, timeout};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::task::JoinHandle;

use crate::events::Event;

/// How many bytes of the error output are kept.
const MAX_ERROR_OUTPUT: usize = 64 << 10;

/// The exit code if the client does not support the measurement.
const UNSUPPORTED: i32 = 3;

/// The reason why a contender was not measured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum MeasureError {
    /// The client does not support the measurement.
    Unsupported(String),
    /// An error.
    Failed(String),
}

impl fmt::Display for MeasureError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unsupported(why) => f.write_str(why),
            Self::Failed(why) => write!(f, "failed: {why}"),
        }
    }
}

/// A running program. Killed when this is dropped.
#[derive(Debug)]
pub(crate) struct Program {
    child: Child,
    input: Option<ChildStdin>,
    lines: Lines<BufReader<ChildStdout>>,
    error_output: JoinHandle<String>,
}

impl Program {
    /// Starts `command`, a program with its first arguments, and `more` arguments.
    pub(crate) fn start(command: &[String], more: &[String]) -> Result<Self, MeasureError> {
        let no_program = || MeasureError::Failed("its command line is empty".to_owned());
        let (program, first) = command.split_first().ok_or_else(no_program)?;
        let mut child = Command::new(program)
            .args(first)
            .args(more)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(|error| {
                MeasureError::Failed(format!("{} could not be started: {error}", file_name(program)))
            })?;
        let (Some(input), Some(output), Some(errors)) =
            (child.stdin.take(), child.stdout.take(), child.stderr.take())
        else {
            return Err(MeasureError::Failed(format!("{} has no input or output", file_name(program))));
        };
        let error_output = tokio::spawn(read_error_output(errors));
        Ok(Self { child, input: Some(input), lines: BufReader::new(output).lines(), error_output })
    }

    /// Returns the process id of the program while it runs.
    pub(crate) fn id(&self) -> Option<u32> {
        self.child.id()
    }

    /// Returns the next line that the program prints.
    pub(crate) async fn line(&mut self, limit: Duration) -> Result<String, MeasureError> {
        match timeout(&SystemClock, limit, self.lines.next_line()).await {
            Some(Ok(Some(line))) => Ok(line),
            Some(Ok(None)) => Err(self.exit_reason().await),
            Some(Err(error)) => Err(MeasureError::Failed(error.to_string())),
            None => Err(MeasureError::Failed(format!("it printed nothing for {} s", limit.as_secs_f64()))),
        }
    }

    /// Returns the rest of the next line, which must begin with `word`.
    pub(crate) async fn expect_line(&mut self, word: &str, limit: Duration) -> Result<String, MeasureError> {
        let line = self.line(limit).await?;
        match line.strip_prefix(word) {
            Some(rest) => Ok(rest.trim().to_owned()),
            None => Err(MeasureError::Failed(format!("it printed {line:?} instead of `{word}`"))),
        }
    }

    pub(crate) async fn send(&mut self, line: &str) -> Result<(), MeasureError> {
        let input =
            self.input.as_mut().ok_or_else(|| MeasureError::Failed("its input is closed".to_owned()))?;
        let sent = input.write_all(format!("{line}\n").as_bytes()).await;
        sent.map_err(|error| MeasureError::Failed(format!("it did not read its input: {error}")))
    }

    /// Returns the events that the program reports, up to `done`.
    pub(crate) async fn events(&mut self, process: u32, limit: Duration) -> Result<Vec<Event>, MeasureError> {
        let mut events = Vec::new();
        loop {
            let line = self.line(limit).await?;
            if line == "done" {
                return Ok(events);
            }
            let event = Event::read(&line, process);
            events.push(
                event.ok_or_else(|| {
                    MeasureError::Failed(format!("it printed {line:?} instead of an event"))
                })?,
            );
        }
    }

    /// Kills the program with SIGKILL.
    pub(crate) async fn kill(&mut self) -> Result<(), MeasureError> {
        self.child.kill().await.map_err(|error| MeasureError::Failed(error.to_string()))
    }

    /// Closes the input of the program and waits until it has ended.
    pub(crate) async fn end(mut self, limit: Duration) -> Result<(), MeasureError> {
        self.input = None;
        let ended = timeout(&SystemClock, limit, async {
            // Read the rest of the output, because a full pipe would block the program.
            while let Ok(Some(_)) = self.lines.next_line().await {}
            self.child.wait().await
        });
        match ended.await {
            Some(Ok(status)) if status.success() => Ok(()),
            Some(_) => Err(self.exit_reason().await),
            None => Err(MeasureError::Failed(format!("it did not end within {} s", limit.as_secs_f64()))),
        }
    }

    async fn exit_reason(&mut self) -> MeasureError {
        let status = self.child.wait().await;
        let output = (&mut self.error_output).await.unwrap_or_default();
        let last = output.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("it printed no error");
        let last: String = last.chars().take(400).collect();
        match status {
            Ok(status) if status.code() == Some(UNSUPPORTED) => MeasureError::Unsupported(last),
            Ok(status) => MeasureError::Failed(format!("{status}: {last}")),
            Err(error) => MeasureError::Failed(format!("{error}: {last}")),
        }
    }
}

/// Returns the name of a program without its folder, which does not belong in a report.
pub(crate) fn file_name(program: impl AsRef<Path>) -> String {
    let program = program.as_ref();
    program.file_name().unwrap_or(program.as_os_str()).to_string_lossy().into_owned()
}

/// Reads the error output of a program and returns its end.
async fn read_error_output(mut errors: impl tokio::io::AsyncRead + Unpin) -> String {
    let (mut kept, mut read) = (Vec::new(), vec![0; 8 << 10]);
    while let Ok(count @ 1..) = errors.read(&mut read).await {
        kept.extend_from_slice(&read[..count]);
        if kept.len() > MAX_ERROR_OUTPUT {
            kept.drain(..kept.len() - MAX_ERROR_OUTPUT);
        }
    }
    String::from_utf8_lossy(&kept).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(60);

    fn shell(script: &str) -> Program {
        Program::start(&["sh".to_owned(), "-c".to_owned()], &[script.to_owned()]).unwrap()
    }

    #[tokio::test]
    async fn a_program_starts_on_request_and_reports_events() {
        let mut program = shell("echo ready; read go; echo E 0 1 2 3 4; echo done; cat >&2");
        program.expect_line("ready", LIMIT).await.unwrap();
        program.send("go").await.unwrap();
        assert_eq!(program.events(1, LIMIT).await.unwrap().len(), 1);
        program.end(LIMIT).await.unwrap();
    }

    #[tokio::test]
    async fn the_last_output_says_why_it_ended() {
        let mut program = shell("echo no reason >&2; echo the reason >&2; echo >&2; exit 1");
        let error = program.expect_line("ready", LIMIT).await.unwrap_err();
        assert_eq!(error, MeasureError::Failed("exit status: 1: the reason".to_owned()));
        let mut program = shell("echo it has no leases >&2; exit 3");
        assert_eq!(
            program.line(LIMIT).await.unwrap_err(),
            MeasureError::Unsupported("it has no leases".to_owned())
        );
        let mut program = shell("echo nonsense; cat");
        let error = program.events(0, LIMIT).await.unwrap_err();
        assert!(matches!(error, MeasureError::Failed(why) if why.contains("nonsense")));
        let missing = Program::start(&["./no-such-program".to_owned()], &[]).unwrap_err();
        assert!(matches!(missing, MeasureError::Failed(why) if why.contains("no-such-program")));
    }
}
