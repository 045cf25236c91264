//! Output for people ([`human`]) and for programs ([`json`]).

pub(crate) mod doctor;
pub(crate) mod human;
pub(crate) mod json;

use std::io::{self, IsTerminal as _, Write as _};
use std::os::fd::AsFd;

use serde_json::Value;

use crate::args::ColorChoice;
use crate::escape::escaped;
use crate::exit::Failure;

/// The output settings.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Output {
    pub(crate) json: bool,
    pub(crate) quiet: bool,
    pub(crate) color: ColorChoice,
    /// Whether logging is on.
    pub(crate) verbose: bool,
}

impl Output {
    /// Returns whether to use colors on stderr.
    pub(crate) fn colors(&self) -> bool {
        self.colors_on(&io::stderr())
    }

    /// Returns whether to use colors on stdout.
    pub(crate) fn colors_on_stdout(&self) -> bool {
        self.colors_on(&io::stdout())
    }

    fn colors_on(&self, stream: &impl io::IsTerminal) -> bool {
        match self.color {
            ColorChoice::Always => true,
            ColorChoice::Never => false,
            ColorChoice::Auto => {
                let wanted = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
                wanted && stream.is_terminal() && std::env::var_os("TERM").is_none_or(|t| t != "dumb")
            }
        }
    }

    /// Returns whether stderr can show a spinner.
    pub(crate) fn animates(&self) -> bool {
        let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        !self.json && !dumb && io::stderr().is_terminal()
    }

    /// Prints the error of a subcommand.
    pub(crate) fn failure(&self, failure: &Failure) {
        // With `-E 0`, a held lock is not an error, and cron would send a mail for each line.
        if self.quiet && failure.code == 0 {
            return;
        }
        let text = if self.json {
            format!("{}\n", json::error(failure))
        } else {
            human::error(failure, self.colors())
        };
        print_on_stderr(&text);
    }

    /// Returns whether to say that an operation takes long. Not in the output of a job without a terminal, where a busy
    /// machine would add lines to it.
    pub(crate) fn tells_of_delays(&self) -> bool {
        !self.quiet && (self.verbose || self.animates())
    }

    /// Prints one line about a wait, unless the output is quiet.
    pub(crate) fn waiting(&self, text: &str, document: &Value) {
        if self.quiet {
            return;
        }
        let line = if self.json { format!("{document}\n") } else { format!("{:>12} {text}\n", "Waiting") };
        print_on_stderr(&line);
    }

    /// Prints a warning.
    pub(crate) fn warning(&self, message: &str) {
        let text = if self.json {
            format!("{}\n", serde_json::json!({ "type": "warning", "message": message }))
        } else if self.colors() {
            format!("\u{1b}[1;33mwarning:\u{1b}[0m {message}\n")
        } else {
            format!("warning: {message}\n")
        };
        print_on_stderr(&text);
    }
}

/// Returns the width of the terminal `stream`, or `None` if it is no terminal.
pub(crate) fn columns(stream: &(impl io::IsTerminal + AsFd)) -> Option<usize> {
    size(stream).map(|(_, columns)| columns)
}

/// Returns the lines and columns of the terminal `stream`, or `None` if it is no terminal.
pub(crate) fn size(stream: &(impl io::IsTerminal + AsFd)) -> Option<(usize, usize)> {
    let size = rustix::termios::tcgetwinsize(stream).ok().filter(|_| stream.is_terminal())?;
    // Terminals of unknown size report 0.
    let known = |size: u16, default| if size == 0 { default } else { usize::from(size) };
    Some((known(size.ws_row, 24), known(size.ws_col, 80)))
}

/// Prints `text` on stdout. A closed stdout (`| head`) is not an error.
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    print_unless_closed(text).map(|_| ())
}

/// Prints `text` on stdout. Returns false if stdout is closed.
pub(crate) fn print_unless_closed(text: &str) -> Result<bool, Failure> {
    match write(text) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(write_error(&error)),
    }
}

/// Prints `text` on stdout. A closed stdout is an error, because this output is the result of the subcommand.
pub(crate) fn print_all(text: &str) -> Result<(), Failure> {
    write(text).map_err(|error| write_error(&error))
}

/// Prints `bytes` on stdout as they are. A closed stdout is an error.
pub(crate) fn print_bytes(bytes: &[u8]) -> Result<(), Failure> {
    write_bytes(bytes).map_err(|error| write_error(&error))
}

fn write(text: &str) -> io::Result<()> {
    write_bytes(escaped(text).as_bytes())
}

fn write_bytes(bytes: &[u8]) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(bytes).and_then(|()| stdout.flush())
}

/// Prints `text` on stderr. A closed stderr is not an error.
pub(crate) fn print_on_stderr(text: &str) {
    let _ = io::stderr().write_all(escaped(text).as_bytes());
}

fn write_error(error: &io::Error) -> Failure {
    Failure::new(crate::exit::FAILED, "failed", format!("cannot write to stdout: {error}"))
}
