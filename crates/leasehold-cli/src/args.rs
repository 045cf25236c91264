//! The command line. This one definition drives parsing, help, the man page and completions.

mod groups;
mod listing;
mod objects;
mod running;
#[cfg(feature = "serve")]
mod serving;
#[cfg(feature = "serve")]
mod terraform;

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::NonEmptyStringValueParser;
use clap::{Args, Parser, ValueEnum, ValueHint};
use clap_complete::engine::ArgValueCompleter;

pub(crate) use self::groups::command;
pub(crate) use self::listing::{LsArgs, SweepArgs};
pub(crate) use self::objects::{GetArgs, ObjectArgs, PutArgs, UpdateArgs};
pub(crate) use self::running::{
    CommandArgs, ElectArgs, IN_VARIABLE, OnExit, OnLost, OnceArgs, ReportArgs, RunArgs,
};
#[cfg(feature = "serve")]
pub(crate) use self::serving::{ServeArgs, Ui};
#[cfg(feature = "serve")]
pub(crate) use self::terraform::TerraformArgs;
use crate::complete::lock_names;
use crate::mode::Mode;

/// Distributed locks on the storage you already have.
#[derive(Debug, Parser)]
#[command(
    name = "leasehold",
    version,
    disable_help_subcommand = true,
    max_term_width = 80,
    after_help = "Examples:
  leasehold run deploy/prod -- make deploy
  leasehold run --try nightly -- ./report.sh
  leasehold once nightly --per 12h -- ./report.sh
  leasehold -s s3://my-bucket/locks run deploy/prod --wait 10m -- make deploy
  leasehold update s3://my-bucket/counter.json -- jq '.n += 1'
  leasehold ls

More:
  leasehold help COMMAND        everything about a command
  leasehold help environment    variables, and config.toml
  leasehold help exit-codes
  leasehold help stores         store URLs, and their options"
)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) common: Common,
    #[command(subcommand)]
    pub(crate) subcommand: Subcommand,
}

/// The options of every subcommand. They come last among the options without a group.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct Common {
    /// URL, or alias in config.toml [default: sqlite:]
    #[arg(short, long, global = true, display_order = 900, value_name = "URL|ALIAS", value_parser = NonEmptyStringValueParser::new())]
    pub(crate) store: Option<String>,
    /// Print results, errors and progress as JSON
    ///
    /// Results go to stdout, errors and progress to stderr.
    #[arg(long, global = true, display_order = 901)]
    pub(crate) json: bool,
    /// Print only results and errors
    #[arg(short, long, global = true, display_order = 902)]
    pub(crate) quiet: bool,
    /// Log to stderr; -vv logs more
    #[arg(short, long, global = true, display_order = 903, action = clap::ArgAction::Count)]
    pub(crate) verbose: u8,
    /// Colors: auto, always or never [default: auto]
    ///
    /// auto: on a terminal, unless NO_COLOR is set. Also for the spinner.
    #[arg(long, global = true, display_order = 904, hide_possible_values = true, value_name = "WHEN")]
    pub(crate) color: Option<ColorChoice>,
}

/// When to use colors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum ColorChoice {
    /// On a terminal, unless NO_COLOR is set
    #[default]
    Auto,
    /// Always, also in files and pipes
    Always,
    /// Never
    Never,
}

#[derive(Debug, clap::Subcommand)]
// Define only the requested subcommand in full, because defining all of them takes longer than acquiring a lock.
#[command(defer = true)]
pub(crate) enum Subcommand {
    /// Run a command while holding LOCK
    Run(RunArgs),
    /// Run a command while this process is the elected leader of NAME
    Elect(ElectArgs),
    /// Run a command once per period, on one of several machines
    Once(OnceArgs),
    /// Acquire LOCK and print a ticket that renews and releases it
    Acquire(AcquireArgs),
    /// Renew the lease of a ticket once
    Renew(TicketArgs),
    /// Release the lock of a ticket
    Release(TicketArgs),
    /// List locks
    Ls(LsArgs),
    /// Show the state of LOCK
    Show(LockArgs),
    /// Show the most recent ended grants of LOCK
    History(LockArgs),
    /// Wait until LOCK is free, without acquiring it
    Wait(WaitArgs),
    /// Evict the holder of LOCK if its token is still N
    Evict(EvictArgs),
    /// Change the number of permits or readers of LOCK in the store
    Resize(ResizeArgs),
    /// Delete the records of locks that have been free for a long time
    Sweep(SweepArgs),
    /// Print the content of an object
    Get(GetArgs),
    /// Replace an object by the output of a command; retry on a conflict
    Update(UpdateArgs),
    /// Write an object unless a higher token has already written it
    Put(PutArgs),
    /// Run Terraform or OpenTofu on a state in the store
    #[cfg(feature = "serve")]
    #[command(visible_alias = "tofu")]
    Terraform(TerraformArgs),
    /// Hold locks for a client library, over stdin and stdout
    #[command(
        after_help = "For programs: a client library starts the agent and exchanges lines of JSON with it. \
docs/agent.md describes the protocol. The agent exits when its stdin is closed."
    )]
    Agent,
    /// Serve the locks of the store over HTTP
    #[cfg(feature = "serve")]
    Serve(ServeArgs),
    /// Create what the store needs: a folder or a table
    Init,
    /// Check whether the store is safe for locks, and what to fix
    Doctor(DoctorArgs),
    /// Print a shell completion script
    Completions(CompletionsArgs),
    /// Print the manual page in roff format
    Man(ManArgs),
    /// Print help for a subcommand, or: exit-codes, environment, stores
    Help(HelpArgs),
}

// How a lock can be shared. Flattened structs have no doc comment, because clap would use it as the subcommand's
// description.
#[derive(Debug, Args)]
pub(crate) struct ModeArgs {
    /// Acquire one of N permits: at most N holders at a time
    #[arg(long, help_heading = SHARING, value_name = "N", conflicts_with = "reading", value_parser = clap::value_parser!(u8).range(1..=MAX_PERMITS))]
    pub(crate) permits: Option<u8>,
    /// Acquire LOCK as one of at most eight readers
    ///
    /// At most eight --shared holders at a time, and no --exclusive holder.
    #[arg(long, help_heading = SHARING, group = "reading")]
    pub(crate) shared: bool,
    /// Acquire LOCK as the only writer, without readers
    ///
    /// There is no other --exclusive or --shared holder.
    #[arg(long, help_heading = SHARING, group = "reading")]
    pub(crate) exclusive: bool,
    /// The limit for --shared and --exclusive [default: 8]
    ///
    /// At most N readers at a time.
    #[arg(long, help_heading = SHARING, value_name = "N", requires = "reading", value_parser = clap::value_parser!(u8).range(1..=MAX_READERS))]
    pub(crate) readers: Option<u8>,
}

impl ModeArgs {
    /// Returns the mode that these arguments select.
    pub(crate) fn mode(&self) -> Mode {
        let readers = self.readers.map_or(leasehold::RwLock::DEFAULT_READERS, usize::from);
        match self.permits {
            Some(permits) => Mode::Permit(permits.into()),
            None if self.shared => Mode::Shared(readers),
            None if self.exclusive => Mode::Exclusive(readers),
            None => Mode::Lock,
        }
    }
}

const MAX_PERMITS: i64 = leasehold::Semaphore::MAX_PERMITS as i64;
const MAX_READERS: i64 = leasehold::RwLock::MAX_READERS as i64;

// How to acquire a lock.
#[derive(Debug, Default, Args)]
pub(crate) struct ClaimArgs {
    /// Do not wait: exit with 123 if the lock is held
    #[arg(short = 'n', long = "try", conflicts_with = "wait")]
    pub(crate) try_once: bool,
    /// Wait at most this long, then exit with 124
    ///
    /// 0s means --try [default: no limit].
    #[arg(short, long, value_name = "DURATION", value_parser = duration)]
    pub(crate) wait: Option<Duration>,
    /// Take the lock out of turn
    ///
    /// As soon as it is free, even if other processes have waited for longer.
    #[arg(long, help_heading = WAITING)]
    pub(crate) barge: bool,
    /// In a deadlock, fail (default) or wait
    ///
    /// In a deadlock, a run around this one holds LOCK, or this run holds a lock for which another waits, and the other
    /// holds LOCK. With fail, the inner run, or the run that got its other lock last, exits with 120.
    #[arg(long, help_heading = WAITING, hide_possible_values = true, value_name = "ACTION")]
    pub(crate) on_deadlock: Option<OnDeadlock>,
    /// Exit with N instead of 123 or 124
    ///
    /// With 0 and --quiet, leasehold also prints no error.
    #[arg(short = 'E', long, help_heading = WAITING, value_name = "N")]
    pub(crate) conflict_exit_code: Option<u8>,
}

/// What a run does that is in a cycle of waiters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnDeadlock {
    /// The run that got its other lock last exits with 120
    #[default]
    Fail,
    /// Print the cycle and wait
    Wait,
}

// How this process appears to the others, and how long the store may take to respond.
#[derive(Debug, Default, Args)]
pub(crate) struct ClientArgs {
    #[command(flatten)]
    pub(crate) holder: HolderArgs,
    #[command(flatten)]
    pub(crate) timeout: TimeoutArgs,
}

// How long a store may take to respond.
#[derive(Debug, Default, Args)]
pub(crate) struct TimeoutArgs {
    /// Give up on a silent store [default: 15s]
    ///
    /// Exits with 125 if the store does not respond for this long.
    #[arg(long, help_heading = WAITING, value_name = "DURATION", value_parser = duration)]
    pub(crate) store_timeout: Option<Duration>,
}

// The description of the holder that other processes see.
#[derive(Debug, Default, Args)]
pub(crate) struct HolderArgs {
    /// Your name, for other processes [default: the user]
    #[arg(long, help_heading = REPORTING, value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    pub(crate) owner: Option<String>,
    /// Note for other processes [default: CMD's name]
    ///
    /// `command-line` shows CMD with its arguments.
    #[arg(long, help_heading = REPORTING, value_name = "TEXT")]
    pub(crate) note: Option<String>,
}

// The groups of options in the help, in the order of their first option.
const WAITING: &str = "Waiting";
const ENDING: &str = "The command and its end";
const SHARING: &str = "Several holders";
const TICKETS: &str = "Tickets";
const REPORTING: &str = "Reporting";

#[derive(Debug, Args)]
#[command(after_help = "No process renews the lease: the lease ends after --ttl unless you renew the ticket.
A ticket is a secret: anyone who has it can renew and release the lock. One ticket holds several LOCKs.

Examples:
  LEASEHOLD_TICKET=$(leasehold acquire deploy/prod --ttl 10m)
  export LEASEHOLD_TICKET
  leasehold renew
  leasehold release
  ticket=$(leasehold acquire render --permits 3)")]
pub(crate) struct AcquireArgs {
    /// Name of the lock, for example deploy/prod; with several names, hold all of them or none
    #[arg(value_name = "LOCK", required = true, add = ArgValueCompleter::new(lock_names))]
    pub(crate) locks: Vec<OsString>,
    #[command(flatten)]
    pub(crate) claim: ClaimArgs,
    /// How long the lease lasts without a renewal [default: 30s]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) ttl: Option<Duration>,
    /// Refuse renewals after this time [default: no limit]
    ///
    /// Counts from the grant, like ShedLock's lockAtMostFor.
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) max_hold: Option<Duration>,
    #[command(flatten)]
    pub(crate) mode: ModeArgs,
    #[command(flatten)]
    pub(crate) client: ClientArgs,
}

#[derive(Debug, Args)]
#[command(
    after_help = "The ticket must belong to the configured store or to an alias in config.toml. For any other store, \
add --store.

A ticket is a secret, and `ps` shows the arguments of a process to all users. So pass the ticket in the environment or \
on stdin.

Examples:
  LEASEHOLD_TICKET=$ticket leasehold renew
  printf %s \"$ticket\" | leasehold release -"
)]
pub(crate) struct TicketArgs {
    /// Ticket from `leasehold acquire`; - reads it from stdin [default: $LEASEHOLD_TICKET]
    #[arg(value_name = "TICKET|-")]
    pub(crate) ticket: Option<OsString>,
}

#[derive(Debug, Args)]
pub(crate) struct LockArgs {
    /// Name of the lock, for example deploy/prod
    #[arg(value_name = "LOCK", add = ArgValueCompleter::new(lock_names))]
    pub(crate) lock: OsString,
}

#[derive(Debug, Args)]
#[command(after_help = "Example:
  leasehold wait deploy/prod --wait 5m && echo 'no deploy is running'")]
pub(crate) struct WaitArgs {
    #[command(flatten)]
    pub(crate) lock: LockArgs,
    /// Wait at most this long, then exit with 124; 0s means one look [default: no limit]
    #[arg(short, long, value_name = "DURATION", value_parser = duration)]
    pub(crate) wait: Option<Duration>,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Unsafe while the holder is still running, unless the resource checks tokens: the holder detects the \
eviction only at its next renewal. If the lock is not held with that token, leasehold changes nothing and exits with 1.

Example:
  leasehold show deploy/prod
  leasehold evict deploy/prod --token 1763654400000041"
)]
pub(crate) struct EvictArgs {
    #[command(flatten)]
    pub(crate) lock: LockArgs,
    /// Token of the grant to end, from `leasehold show`
    #[arg(long, value_name = "N", required = true)]
    pub(crate) token: u64,
    /// Reason, kept in the history of the lock
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: Option<String>,
}

#[derive(Debug, Args)]
#[command(
    after_help = "The first acquisition with --permits, or with --shared or --exclusive, records the number of permits \
or readers in the store. Acquisitions with another number fail. To change it, nobody may hold LOCK: leasehold acquires \
all permits for the change, and fails with 123 if one is held. If it is killed meanwhile, they are held until --ttl \
has passed. It must not be suspended for longer than --ttl.

Examples:
  leasehold resize render 5
  leasehold resize index 16    # readers, if LOCK is a readers-writer lock"
)]
pub(crate) struct ResizeArgs {
    #[command(flatten)]
    pub(crate) lock: LockArgs,
    /// The new number of permits or readers
    #[arg(value_name = "N", value_parser = clap::value_parser!(u8).range(1..=MAX_PERMITS))]
    pub(crate) size: u8,
    /// Change the number of readers, if LOCK is also the name of a semaphore
    #[arg(long)]
    pub(crate) readers: bool,
    /// How long the permits stay held if leasehold is killed
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "5m")]
    pub(crate) ttl: Duration,
}

#[derive(Debug, Args)]
#[command(after_help = "The completions include the names of locks in the configured store.

Examples:
  source <(leasehold completions bash)                      # in ~/.bashrc
  source <(leasehold completions zsh)                       # in ~/.zshrc
  leasehold completions fish > ~/.config/fish/completions/leasehold.fish")]
pub(crate) struct CompletionsArgs {
    /// Shell to complete for
    pub(crate) shell: Shell,
}

/// The supported shells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Shell {
    Bash,
    Elvish,
    Fish,
    Powershell,
    Zsh,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  leasehold man | man -l -
  leasehold man --dir /usr/local/share/man/man1")]
pub(crate) struct ManArgs {
    /// Print the page of this subcommand
    #[arg(conflicts_with = "dir")]
    pub(crate) subcommand: Option<String>,
    /// Write all pages to this folder
    #[arg(long, value_hint = ValueHint::DirPath)]
    pub(crate) dir: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Sends requests that the store must refuse, runs concurrent writes against each other, and measures \
latency. This takes some seconds, and up to about 1,700 requests to a bucket. It writes only names that begin with \
leasehold-doctor- or .leasehold-probe, and does not touch other locks. It prints one line per check, with the result \
and, if needed, the fix.

Exits with 0 if the store is safe, even with warnings, and with 1 if the store is unsafe or unreachable.

Examples:
  leasehold doctor
  leasehold doctor -s 's3://my-bucket/locks?region=eu-west-1'
  leasehold doctor -s prod --ttl 5s --locks 200 --acquisitions 50000
  leasehold doctor --thorough --json |
    jq -r '.findings[] | select(.verdict == \"failed\") | .check'"
)]
pub(crate) struct DoctorArgs {
    /// The ttl of your locks [default: 30s]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) ttl: Option<Duration>,
    /// Number of locks held at all times, to estimate the cost
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) locks: u32,
    /// Number of acquisitions per day, to estimate the cost
    #[arg(long, value_name = "N", default_value_t = 1_000)]
    pub(crate) acquisitions: u32,
    /// Run more races and measurements: takes a few minutes, and up to about 10,000 requests to a bucket
    #[arg(long)]
    pub(crate) thorough: bool,
    /// Another endpoint of the same store, to include in the races; can be repeated (S3 only)
    #[arg(long, value_name = "URL")]
    pub(crate) endpoint: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct HelpArgs {
    /// Subcommand, or topic: exit-codes, environment, stores
    #[arg(value_name = "SUBCOMMAND|TOPIC")]
    pub(crate) topic: Option<String>,
}

/// Parses a duration such as `30s`, `10m` or `1h 30m`.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    humantime::parse_duration(text.trim())
        .map_err(|error| format!("{error}; expected a duration like 30s, 10m or 1h 30m"))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_command_line_definition_is_valid() {
        Cli::command().debug_assert();
    }

    #[test]
    fn human_readable_durations_are_parsed() {
        assert_eq!(duration("1h 30m").unwrap(), Duration::from_secs(5_400));
        assert_eq!(duration("250ms").unwrap(), Duration::from_millis(250));
        for bad in ["", "5", "-1s", "1y2", "99999999999999999999y", "s"] {
            assert!(duration(bad).unwrap_err().contains("30s"), "{bad}");
        }
    }
}
