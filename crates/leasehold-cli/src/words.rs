//! Wrong command lines: words of other tools, and a command without `--` before it.

use clap::Error;
use clap::error::{ContextKind, ContextValue, ErrorKind};

const RUN: &str = "to run a command under a lock: leasehold run LOCK -- CMD";

/// Options of other tools, and what to use instead.
const OPTIONS: [(&[&str], &str); 9] = [
    (
        &["--timeout", "--lock-timeout", "--wait-timeout", "--max-wait"],
        "--wait limits the wait for the lock, and --max-hold how long it is held",
    ),
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
        &["status", "info", "describe", "inspect", "state", "get", "holder", "who"],
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
    let instead = |table: &[(&[&str], &'static str)], word: &str| {
        table.iter().find(|(words, _)| words.contains(&word)).map(|(_, help)| *help)
    };
    const DASHES: &str = "put `--` before the command, as in: leasehold run deploy/prod -- ./deploy.sh";
    match error.kind() {
        ErrorKind::InvalidSubcommand => {
            instead(&SUBCOMMANDS, &text(ContextKind::InvalidSubcommand)).or_else(|| {
                // Probably the name of a lock.
                error.get(ContextKind::SuggestedSubcommand).is_none().then_some(RUN)
            })
        }
        // A word that is no option, of a subcommand that takes a command after `--`.
        ErrorKind::UnknownArgument if !argument.starts_with('-') => {
            usage.contains("-- <CMD>").then_some(DASHES)
        }
        ErrorKind::UnknownArgument => instead(&OPTIONS, &argument),
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::command;

    /// A word in a table is not accepted by the parser, and what a table recommends is.
    #[test]
    fn the_words_of_other_tools_are_not_ours_and_the_recommended_ones_are() {
        let mut command = command();
        command.build();
        let run = command.find_subcommand("run").unwrap();
        let is_option = |word: &str| {
            let word = word.trim_end_matches([':', ';', ',']).trim_start_matches("--");
            command
                .get_subcommands()
                .any(|subcommand| subcommand.get_arguments().any(|option| option.get_long() == Some(word)))
        };
        for (words, help) in OPTIONS {
            assert!(words.iter().all(|word| {
                !run.get_arguments().any(|option| option.get_long() == Some(word.trim_start_matches("--")))
            }));
            for word in help.split(' ').filter(|word| word.starts_with("--") && *word != "--") {
                assert!(is_option(word), "{help}");
            }
        }
        for (words, help) in SUBCOMMANDS {
            assert!(words.iter().all(|word| command.find_subcommand(word).is_none()));
            for recommended in help.split("leasehold ").skip(1) {
                let word = recommended.split([' ', ';', ',']).next().unwrap();
                assert!(command.find_subcommand(word).is_some(), "{help}");
            }
            assert!(help.split(' ').filter(|word| word.starts_with("--") && *word != "--").all(is_option));
        }
    }
}
