//! Output for people ([`human`]) and for programs ([`json`]).

pub(crate) mod doctor;
pub(crate) mod human;
pub(crate) mod json;

use std::borrow::Cow;
use std::fmt::Write as _;
use std::io::{self, IsTerminal as _, Write as _};

use serde_json::Value;

use crate::args::ColorChoice;
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

fn write(text: &str) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(escaped(text).as_bytes()).and_then(|()| stdout.flush())
}

/// Prints `text` on stderr. A closed stderr is not an error.
pub(crate) fn print_on_stderr(text: &str) {
    let _ = io::stderr().write_all(escaped(text).as_bytes());
}

/// Replaces the control characters above ASCII, and characters that reorder or hide text, by their escapes in JSON.
/// Other machines write them into records, and JSON may contain them. The text for people has none.
pub(crate) fn escaped(text: &str) -> Cow<'_, str> {
    if text.is_ascii() && !text.contains('\u{7f}') {
        return text.into();
    }
    let printable = leasehold::lease::printable(text, text.len());
    let mut escaped = String::with_capacity(text.len());
    for (c, shown) in text.chars().zip(printable.chars()) {
        if c == shown || c < '\u{7f}' {
            escaped.push(c);
            continue;
        }
        for unit in c.encode_utf16(&mut [0; 2]) {
            // Writing to a string does not fail.
            let _ = write!(escaped, "\\u{unit:04x}");
        }
    }
    escaped.into()
}

fn write_error(error: &io::Error) -> Failure {
    Failure::new(crate::exit::FAILED, "failed", format!("cannot write to stdout: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_has_no_character_that_a_terminal_interprets() {
        let text = "a\u{9b}31m\u{7f}\u{85}\u{202e}\u{2066}\u{200b}\u{2028}\u{feff}\u{e0041}\u{1f600}é\n\"";
        let json = serde_json::json!({ "lock": text, "list": [text] });
        for printed in [escaped(&json.to_string()).into_owned(), escaped(&format!("{json:#}\n")).into_owned()]
        {
            let lines: String = printed.chars().filter(|c| *c != '\n').collect();
            assert_eq!(leasehold::lease::printable(&lines, lines.len()), lines);
            assert!(printed.contains('\u{1f600}') && printed.contains('é'), "{printed}");
            assert_eq!(serde_json::from_str::<Value>(&printed).unwrap(), json);
        }
        assert_eq!(escaped("\u{1b}[1merror:\u{1b}[0m a\n"), "\u{1b}[1merror:\u{1b}[0m a\n", "colors stay");
    }
}
