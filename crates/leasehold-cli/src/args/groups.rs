//! The groups of subcommands in `leasehold --help`. The argument parser knows only groups of options.

use std::ffi::OsString;
use std::fmt::Write as _;

use clap::builder::StyledStr;
use clap::{Command, CommandFactory as _, FromArgMatches as _};

use super::Cli;

/// The groups with their subcommands. A build without a subcommand shows none.
const GROUPS: [(&str, &[&str]); 7] = [
    ("Run a command under a lock", &["run", "once", "elect", "terraform"]),
    ("See locks", &["ls", "show", "history", "wait"]),
    ("Hold a lock across several commands", &["acquire", "renew", "release"]),
    ("Change locks by hand", &["evict", "resize", "sweep"]),
    ("Read and write objects", &["get", "update", "put"]),
    ("Prepare and serve a store", &["init", "doctor", "serve", "agent"]),
    ("Help", &["help", "man", "completions"]),
];

/// Returns the definition of the command line, whose help shows the subcommands in groups.
pub(crate) fn command() -> Command {
    let command = Cli::command();
    let template = template(&command);
    command.help_template(template)
}

impl Cli {
    /// Parses the words of a command line.
    pub(crate) fn parse_words(
        words: impl IntoIterator<Item: Into<OsString> + Clone>,
    ) -> clap::error::Result<Self> {
        let mut command = command();
        let matches = command.try_get_matches_from_mut(words)?;
        Self::from_arg_matches(&matches).map_err(|error| error.format(&mut command))
    }
}

fn template(command: &Command) -> StyledStr {
    let header = command.get_styles().get_header();
    let literal = command.get_styles().get_literal();
    let mut text = StyledStr::from("{about-with-newline}\n{usage-heading} {usage}\n");
    for (title, names) in GROUPS {
        let _ = writeln!(text, "\n{header}{title}:{header:#}");
        for subcommand in names.iter().filter_map(|name| command.find_subcommand(name)) {
            let about = subcommand.get_about().cloned().unwrap_or_default();
            let alias = subcommand.get_visible_aliases().next();
            let alias = alias.map_or_else(String::new, |alias| format!(" [alias: {alias}]"));
            let _ = writeln!(text, "  {literal}{:<11}{literal:#}  {about}{alias}", subcommand.get_name());
        }
    }
    let _ = write!(text, "\n{header}Options:{header:#}\n{{options}}{{after-help}}");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_subcommand_is_in_one_group_and_fits_80_columns() {
        let command = command();
        let mut grouped: Vec<&str> = GROUPS.iter().flat_map(|(_, names)| names.iter().copied()).collect();
        let mut all: Vec<&str> = command.get_subcommands().map(Command::get_name).collect();
        grouped.retain(|name| cfg!(feature = "serve") || !["serve", "terraform"].contains(name));
        all.sort_unstable();
        grouped.sort_unstable();
        assert_eq!(grouped, all);
        for line in command.clone().render_help().to_string().lines() {
            assert!(line.chars().count() <= 80, "{line}");
        }
    }

    /// A wrapped example cannot be copied.
    #[test]
    fn examples_fit_80_columns() {
        let mut command = command();
        command.build();
        for subcommand in command.get_subcommands().chain([&command]) {
            for help in [subcommand.get_after_help(), subcommand.get_after_long_help()].into_iter().flatten()
            {
                for line in help.to_string().lines().filter(|line| line.starts_with(' ')) {
                    assert!(line.chars().count() <= 80, "{}: {line}", subcommand.get_name());
                }
            }
        }
    }
}
