//! The command line. This one definition drives parsing, help, the man page and completions.

mod objects;
mod running;

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::NonEmptyStringValueParser;
use clap::{Args, Parser, ValueEnum, ValueHint};
use clap_complete::engine::ArgValueCompleter;

pub(crate) use self::objects::{ObjectArgs, PutArgs, UpdateArgs};
pub(crate) use self::running::{CommandArgs, ElectArgs, IN_VARIABLE, OnExit, OnLost, OnceArgs, RunArgs};
use crate::complete::lock_names;

/// Distributed locks on the storage you already have.
#[derive(Debug, Parser)]
#[command(
    name = "leasehold",
    version,
    disable_help_subcommand = true,
    max_term_width = 100,
    after_help = "Examples:
  leasehold run deploy/prod -- make deploy
  leasehold run --try nightly -- ./report.sh
  leasehold once nightly --per 23h -- ./report.sh
  leasehold -s s3://my-bucket/locks run deploy/prod --wait 10m -- make deploy
  leasehold update s3://my-bucket/counter.json -- jq '.n += 1'
  leasehold ls

Most long flags can be set as LEASEHOLD_<FLAG> or in config.toml: see `leasehold help environment`.
Exit codes: `leasehold help exit-codes`. Store URLs: `leasehold help stores`."
)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) common: Common,
    #[command(subcommand)]
    pub(crate) subcommand: Subcommand,
}

/// What every verb understands.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Common options")]
pub(crate) struct Common {
    /// Where the locks live: a URL, or an alias from config.toml [default: sqlite:]
    #[arg(short, long, global = true, value_name = "URL|ALIAS", value_parser = NonEmptyStringValueParser::new())]
    pub(crate) store: Option<String>,
    /// Print JSON: results on stdout, errors and progress on stderr
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// Print nothing but results and errors
    #[arg(short, long, global = true)]
    pub(crate) quiet: bool,
    /// Log what happens to stderr; -vv logs more
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub(crate) verbose: u8,
    /// When to use colors and a spinner; NO_COLOR is honoured [default: auto]
    #[arg(long, global = true, value_name = "WHEN")]
    pub(crate) color: Option<ColorChoice>,
}

/// When to use colors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum ColorChoice {
    /// On a terminal, unless NO_COLOR is set
    #[default]
    Auto,
    /// Also into files and pipes
    Always,
    /// Not at all
    Never,
}

#[derive(Debug, clap::Subcommand)]
// Only the verb that was asked for is defined in full: to define them all takes longer than to take a lock.
#[command(defer = true)]
pub(crate) enum Subcommand {
    /// Hold LOCK while a command runs
    Run(RunArgs),
    /// Run a command while leading, one of all candidates for NAME
    Elect(ElectArgs),
    /// Run a command once per period, on whichever machine comes first
    Once(OnceArgs),
    /// Take LOCK and print a ticket to renew and release it with
    Acquire(AcquireArgs),
    /// Prolong the lease of a ticket once
    Renew(TicketArgs),
    /// Release the lock of a ticket
    Release(TicketArgs),
    /// List locks
    Ls(LsArgs),
    /// Show the state of LOCK
    Show(LockArgs),
    /// Show the latest grants of LOCK that are over
    History(LockArgs),
    /// Wait until LOCK is free, without taking it
    Wait(WaitArgs),
    /// Evict the holder of LOCK, if it is still the one with this token
    Break(BreakArgs),
    /// Delete the records of locks that have been free for long
    Sweep(SweepArgs),
    /// Pass an object through a command and write what comes out, unless it changed meanwhile: then again
    Update(UpdateArgs),
    /// Write an object, unless a higher token wrote it before
    Put(PutArgs),
    /// Create what the store needs: a folder, a table
    Init,
    /// Examine whether the store is safe for locks, and say what to do where it is not
    Doctor(DoctorArgs),
    /// Print a shell's completion script
    Completions(CompletionsArgs),
    /// Print the manual page, in roff
    Man(ManArgs),
    /// Explain a verb, or exit-codes, environment or stores
    Help(HelpArgs),
}

// With whom a lock is held. Structs that are flattened have no doc comment: it would become the verb's description.
#[derive(Debug, Args)]
#[group(multiple = false)]
pub(crate) struct ModeArgs {
    /// Take one of N permits: at most N hold LOCK at once
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=MAX_PERMITS))]
    pub(crate) permits: Option<u8>,
    /// Hold LOCK together with up to seven others who say --shared, and never beside one who says --exclusive
    #[arg(long)]
    pub(crate) shared: bool,
    /// Hold LOCK alone, also without anybody who says --shared
    #[arg(long)]
    pub(crate) exclusive: bool,
}

const MAX_PERMITS: i64 = leasehold::Semaphore::MAX_PERMITS as i64;

// How a lock is asked for.
#[derive(Debug, Default, Args)]
pub(crate) struct ClaimArgs {
    /// Do not wait when another holds it: exit 123
    #[arg(short = 'n', long = "try", conflicts_with = "wait")]
    pub(crate) try_once: bool,
    /// Wait at most this long, then exit 124 [default: as long as it takes]
    #[arg(short, long, value_name = "DURATION", value_parser = duration)]
    pub(crate) wait: Option<Duration>,
    /// Exit with N instead of 123 and 124; with 0, and --quiet, nothing is said about it either
    #[arg(short = 'E', long, value_name = "N")]
    pub(crate) conflict_exit_code: Option<u8>,
    #[command(flatten)]
    pub(crate) timeout: TimeoutArgs,
    #[command(flatten)]
    pub(crate) holder: HolderArgs,
}

// How long to put up with a store.
#[derive(Debug, Default, Args)]
pub(crate) struct TimeoutArgs {
    /// Give up when the store has not answered for so long: exit 125 [default: 15s]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) store_timeout: Option<Duration>,
}

// What others are shown of who holds a lock.
#[derive(Debug, Default, Args)]
pub(crate) struct HolderArgs {
    /// Who holds it, for others to see [default: the user]
    #[arg(long, value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    pub(crate) owner: Option<String>,
    /// What it is held for, for others to see; `command-line` for CMD with its arguments [default: the name of CMD]
    #[arg(long, value_name = "TEXT")]
    pub(crate) note: Option<String>,
}

#[derive(Debug, Args)]
#[command(
    after_help = "No process stays behind: the lease ends by itself after --ttl unless the ticket is renewed.
A ticket is a secret: who has it can renew and release the lock.

Examples:
  ticket=$(leasehold acquire deploy/prod --ttl 10m)
  printf %s \"$ticket\" | leasehold renew -
  printf %s \"$ticket\" | leasehold release -
  ticket=$(leasehold acquire render --permits 3)"
)]
pub(crate) struct AcquireArgs {
    #[command(flatten)]
    pub(crate) lock: LockArgs,
    #[command(flatten)]
    pub(crate) mode: ModeArgs,
    #[command(flatten)]
    pub(crate) claim: ClaimArgs,
    /// How long the lease lasts unless it is renewed [default: 30s]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) ttl: Option<Duration>,
}

#[derive(Debug, Args)]
#[command(
    after_help = "The ticket has to be of the configured store or of an alias in config.toml; --store names another.

Examples:
  leasehold renew \"$ticket\"
  printf %s \"$ticket\" | leasehold release -           # other users cannot see it in the list of processes
  LEASEHOLD_TICKET=$ticket leasehold release"
)]
pub(crate) struct TicketArgs {
    /// What `leasehold acquire` printed; - reads it from stdin [default: $LEASEHOLD_TICKET]
    #[arg(value_name = "TICKET|-")]
    pub(crate) ticket: Option<OsString>,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  leasehold ls
  leasehold ls deploy/ --json | jq -r 'select(.state == \"held\") | .lock'")]
pub(crate) struct LsArgs {
    /// Only locks whose names start with this
    #[arg(add = ArgValueCompleter::new(lock_names))]
    pub(crate) prefix: Option<OsString>,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Only locks that are free, and have been for so long by the store's own clock; a lock that a dead holder left \
behind is not free. The next token of a name is higher than all before, and who acquires a lock while it is swept has it. Refused \
where the store does not delete conditionally, or the permission to delete is missing. On etcd nothing is left to sweep.

Examples:
  leasehold sweep --older-than 30d --dry-run
  leasehold sweep builds/ --older-than 7d"
)]
pub(crate) struct SweepArgs {
    /// Only locks whose names start with this
    #[arg(add = ArgValueCompleter::new(lock_names))]
    pub(crate) prefix: Option<OsString>,
    /// For how long a lock has been free at least
    #[arg(long, value_name = "DURATION", value_parser = duration, required = true)]
    pub(crate) older_than: Duration,
    /// Say what would be deleted, and delete nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
}

#[derive(Debug, Args)]
pub(crate) struct LockArgs {
    /// The lock's name, like deploy/prod
    #[arg(value_name = "LOCK", add = ArgValueCompleter::new(lock_names))]
    pub(crate) lock: OsString,
}

#[derive(Debug, Args)]
#[command(after_help = "Example:
  leasehold wait deploy/prod --wait 5m && echo 'nobody deploys'")]
pub(crate) struct WaitArgs {
    #[command(flatten)]
    pub(crate) lock: LockArgs,
    /// Wait at most this long, then exit 124 [default: as long as it takes]
    #[arg(short, long, value_name = "DURATION", value_parser = duration)]
    pub(crate) wait: Option<Duration>,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Unsafe while the holder runs, unless the resource checks tokens: it learns of it only when \
it renews next. Exits 1, having changed nothing, when the lock is not held with that token.

Example:
  leasehold show deploy/prod
  leasehold break deploy/prod --token 1763654400000041"
)]
pub(crate) struct BreakArgs {
    #[command(flatten)]
    pub(crate) lock: LockArgs,
    /// The token of the grant to end, as shown by `leasehold show`
    #[arg(long, value_name = "N", required = true)]
    pub(crate) token: u64,
}

#[derive(Debug, Args)]
#[command(after_help = "Names of locks are completed too, from the store that is configured.

Examples:
  source <(leasehold completions bash)                      # in ~/.bashrc
  source <(leasehold completions zsh)                       # in ~/.zshrc
  leasehold completions fish > ~/.config/fish/completions/leasehold.fish")]
pub(crate) struct CompletionsArgs {
    /// Whose script
    pub(crate) shell: Shell,
}

/// The shells that completions exist for.
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
    /// Of this verb instead of the whole command
    #[arg(conflicts_with = "dir")]
    pub(crate) subcommand: Option<String>,
    /// Write all pages into this folder
    #[arg(long, value_hint = ValueHint::DirPath)]
    pub(crate) dir: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Asks the store for what it must refuse, races it, and measures it: some hundred requests, in a few seconds, under \
names of its own that begin with leasehold-doctor-. Nobody's locks are touched. A line for each check: what was seen, and \
what to do about it.

Exits with 0 when the store is safe, warnings or not, and with 1 when it is not or cannot be reached.

Examples:
  leasehold doctor                                                # the default store
  leasehold doctor -s 's3://my-bucket/locks?region=eu-west-1'
  leasehold doctor -s prod --ttl 5s --locks 200 --acquisitions 50000
  leasehold doctor --thorough --json | jq -r '.findings[] | select(.verdict == \"failed\") | .check'"
)]
pub(crate) struct DoctorArgs {
    /// The ttl that locks will have [default: 30s]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) ttl: Option<Duration>,
    /// How many locks will be held all the time, for the cost
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) locks: u32,
    /// How often locks will be acquired and released per day, for the cost
    #[arg(long, value_name = "N", default_value_t = 1_000)]
    pub(crate) acquisitions: u32,
    /// Race longer and measure more: some minutes
    #[arg(long)]
    pub(crate) thorough: bool,
    /// Another endpoint of the same store, to be raced together with the store's own; may be repeated (S3)
    #[arg(long, value_name = "URL")]
    pub(crate) endpoint: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct HelpArgs {
    /// A verb, or exit-codes, environment or stores
    #[arg(value_name = "SUBCOMMAND|TOPIC")]
    pub(crate) topic: Option<String>,
}

/// Reads `30s`, `10m`, `1h 30m`.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    humantime::parse_duration(text.trim())
        .map_err(|error| format!("{error}; a duration is like 30s, 10m or 1h 30m"))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_definition_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn durations_are_read_as_people_write_them() {
        assert_eq!(duration("1h 30m").unwrap(), Duration::from_secs(5_400));
        assert_eq!(duration("250ms").unwrap(), Duration::from_millis(250));
        for bad in ["", "5", "-1s", "1y2", "99999999999999999999y", "s"] {
            assert!(duration(bad).unwrap_err().contains("30s"), "{bad}");
        }
    }
}
