//! Wrong command lines: words of other tools, and a command without `--` before it.

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, Command, Error};

use crate::args::command;

const RUN: &str = "to run a command under a lock: leasehold run LOCK -- CMD";

const TIMEOUTS: &[&str] = &["--timeout", "--lock-timeout", "--wait-timeout", "--max-wait"];

/// Options of other tools, and what to use instead, for the subcommands that [have it](has_recommended).
const OPTIONS: [(&[&str], &str); 10] = [
    (TIMEOUTS, "--wait limits the wait for the lock, and --max-hold how long it is held"),
    (TIMEOUTS, "use --wait"),
    (
        &["--per", "--every", "--period", "--interval", "--cooldown"],
        "to run a command once per period: leasehold once LOCK --per 12h -- CMD",
    ),
    (&["--lease", "--lease-time", "--expire", "--expires", "--expiry", "--duration"], "use --ttl"),
    (&["--nonblock", "--non-blocking", "--nb", "--no-wait", "--nowait", "--fail-fast"], "use --try"),
    (&["--limit", "--count", "--max", "--concurrency", "--slots"], "to admit N holders: --permits N"),
    (&["--read", "--reader"], "use --shared"),
    (&["--write", "--writer"], "use --exclusive"),
    (&["--url", "--backend", "--database", "--db"], "use --store"),
    (&["--command", "--cmd", "--exec"], "put the command after `--`"),
];

/// Subcommands of other tools, and what to use instead.
const SUBCOMMANDS: [(&[&str], &str); 12] = [
    (&["list", "locks"], "to list locks: leasehold ls"),
    (
        &["status", "info", "describe", "inspect", "state", "holder", "who"],
        "to see one lock: leasehold show LOCK; to see all: leasehold ls",
    ),
    (
        &["lock"],
        "to run a command under a lock: leasehold run LOCK -- CMD; to hold it across commands: leasehold acquire LOCK",
    ),
    (
        &["unlock", "free"],
        "to release the lock of a ticket: leasehold release; to end the hold of a process: leasehold evict LOCK --token N",
    ),
    (
        &["force-unlock", "force-release", "steal", "break", "kill"],
        "to end the hold of a process: leasehold evict LOCK --token N, with the token from leasehold show LOCK",
    ),
    (&["watch", "monitor", "top"], "to see locks as they change: leasehold ls --watch"),
    (&["exec", "with"], RUN),
    (&["cron", "job"], "to run a command once per period: leasehold once LOCK --per 12h -- CMD"),
    (&["leader", "campaign", "lead"], "to run a command while leading: leasehold elect NAME -- CMD"),
    (
        &["delete", "remove", "rm", "prune", "gc", "clean"],
        "to delete old records: leasehold sweep --older-than 30d",
    ),
    (&["check", "test", "verify", "ping"], "to check the store: leasehold doctor"),
    (&["log", "logs", "events"], "to see the latest grants of a lock: leasehold history LOCK"),
];

/// Adds to `error` what to write instead, if it is known. Otherwise, the suggestions of the argument parser stay.
pub(crate) fn suggest(error: &mut Error) {
    if let Some(help) = help(error) {
        error.remove(ContextKind::SuggestedArg);
        error.remove(ContextKind::SuggestedSubcommand);
        // It contains the option that the parser suggested.
        error.remove(ContextKind::Usage);
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![help.to_owned().into()]));
    }
}

fn help(error: &Error) -> Option<&'static str> {
    let text = |kind| error.get(kind).map(ToString::to_string).unwrap_or_default();
    let (argument, usage) = (text(ContextKind::InvalidArg), text(ContextKind::Usage));
    let instead = |table: &[(&[&str], &'static str)], word: &str, fits: &dyn Fn(&str) -> bool| {
        table.iter().find(|(words, help)| words.contains(&word) && fits(help)).map(|(_, help)| *help)
    };
    const DASHES: &str = "put `--` before the command, as in: leasehold run deploy/prod -- ./deploy.sh";
    match error.kind() {
        ErrorKind::InvalidSubcommand => {
            instead(&SUBCOMMANDS, &text(ContextKind::InvalidSubcommand), &|_| true).or_else(|| {
                // Probably the name of a lock.
                error.get(ContextKind::SuggestedSubcommand).is_none().then_some(RUN)
            })
        }
        // A word that is no option, of a subcommand that takes a command after `--`.
        ErrorKind::UnknownArgument if !argument.starts_with('-') => {
            usage.contains("-- <CMD>").then_some(DASHES)
        }
        ErrorKind::UnknownArgument => {
            let mut command = command();
            command.build();
            let subcommand = usage.split_whitespace().find_map(|word| command.find_subcommand(word));
            instead(&OPTIONS, &argument, &|help| has_recommended(subcommand.unwrap_or(&command), help))
        }
        // The words of the command were taken for names of locks.
        ErrorKind::MissingRequiredArgument
            if argument.starts_with("<CMD>") && usage.contains("<LOCK>... -- <CMD>") =>
        {
            Some(DASHES)
        }
        ErrorKind::MissingRequiredArgument if argument.contains("--token") => {
            Some("the token of the holder is in leasehold show LOCK")
        }
        _ => None,
    }
}

/// Returns whether `command` has the options in `help`, or takes a command after `--` if there are none. What `help`
/// says about another subcommand is for `run`.
fn has_recommended(command: &Command, help: &str) -> bool {
    let has = |option: &str| command.get_arguments().any(|argument| argument.get_long() == Some(option));
    let mut options = options_in(help).peekable();
    match options.peek() {
        None => command.get_arguments().any(Arg::is_last_set),
        Some(_) => options.all(has) || command.get_name() == "run" && help.contains("leasehold "),
    }
}

/// Returns the names of the options in `help`.
fn options_in(help: &str) -> impl Iterator<Item = &str> {
    let options = help.split(' ').filter_map(|word| word.strip_prefix("--"));
    options.map(|option| option.trim_end_matches([':', ';', ','])).filter(|option| !option.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A word in a table is not accepted by the parser, and what a table recommends is.
    #[test]
    fn recommended_words_are_ours_and_the_others_are_not() {
        let mut command = command();
        command.build();
        let run = command.find_subcommand("run").unwrap();
        let is_option = |word: &str| {
            command
                .get_subcommands()
                .any(|subcommand| subcommand.get_arguments().any(|option| option.get_long() == Some(word)))
        };
        for (words, help) in OPTIONS {
            assert!(words.iter().all(|word| {
                !run.get_arguments().any(|option| option.get_long() == Some(word.trim_start_matches("--")))
            }));
            assert!(options_in(help).all(is_option), "{help}");
        }
        for (words, help) in SUBCOMMANDS {
            assert!(words.iter().all(|word| command.find_subcommand(word).is_none()));
            for recommended in help.split("leasehold ").skip(1) {
                let word = recommended.split([' ', ';', ',']).next().unwrap();
                assert!(command.find_subcommand(word).is_some(), "{help}");
            }
            assert!(options_in(help).all(is_option));
        }
    }

    /// What is recommended to a subcommand exists there, or is another subcommand instead of `run`.
    #[test]
    fn a_subcommand_is_recommended_only_what_it_has() {
        let mut all = command();
        all.build();
        let mut given = std::collections::BTreeMap::new();
        for subcommand in all.get_subcommands() {
            let name = subcommand.get_name();
            let has = |option: &str| subcommand.get_arguments().any(|arg| arg.get_long() == Some(option));
            for word in OPTIONS.iter().flat_map(|(words, _)| *words).filter(|word| !has(&word[2..])) {
                let error = command().try_get_matches_from(["leasehold", name, word]).unwrap_err();
                let Some(help) = help(&error) else { continue };
                let is_other = name == "run" && help.contains("leasehold once");
                assert!(is_other || options_in(help).all(has), "{name} {word}: {help}");
                given.insert(format!("{name} {word}"), help);
            }
        }
        for none in ["ls --interval", "ls --limit", "ls --command", "renew --duration", "show --timeout"] {
            assert_eq!(given.get(none), None, "{none}");
        }
        assert_eq!(given["wait --timeout"], "use --wait");
        assert!(given["run --timeout"].contains("--max-hold"));
        assert!(
            given["run --interval"].contains("leasehold once") && given["once --every"].contains("--per")
        );
        assert_eq!((given["ls --url"], given["acquire --expire"]), ("use --store", "use --ttl"));
        assert!(given["update --exec"].contains("after `--`"));
    }
}
