//! The command line. This one definition drives parsing, help, the man page and completions.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::NonEmptyStringValueParser;
use clap::{Args, Parser, Subcommand, ValueEnum, ValueHint};
use clap_complete::engine::ArgValueCompleter;

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
    pub(crate) verb: Verb,
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

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
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

#[derive(Debug, Args)]
#[command(
    after_help = "The command is run without a shell. It is stopped before the lease ends: SIGTERM when what \
remains of the lease is as short as --grace, SIGKILL to it and all that it started just before the end, or at once \
when the lock is taken away.

A command that has ended takes what is left of its process group with it: SIGTERM, then SIGKILL after --grace, and \
only then is the lock released. A program that left the group (setsid, as daemons do) is let alone.

The command finds LEASEHOLD_LOCK, LEASEHOLD_TOKEN and LEASEHOLD_STORE in its environment, and with --permits \
LEASEHOLD_PERMIT, the number of its permit.

With --permits N, LOCK has N permits, which are the locks LOCK/permit-1 to LOCK/permit-N. All who use LOCK must say the \
same N: if not, as many as the greatest N hold it at once.

With --shared and --exclusive, LOCK is a readers-writer lock: eight can hold it shared, as LOCK/shared-1 to \
LOCK/shared-8, or one exclusively. Who runs without any of these flags takes LOCK as a plain lock and does NOT wait for those \
who hold it shared: where some say --shared, all others must say --exclusive.

With --ticket it runs under the lock that `leasehold acquire` took: that is renewed first (exit 122, running nothing, \
when it is lost), while the command runs, and once more afterwards, for the next step of the script. Several may run by one \
ticket at once; whoever releases it ends it for all.

Examples:
  leasehold run deploy/prod -- make deploy
  leasehold run nightly -q --try -E 0 -- ./report.sh    # from cron, on many machines
  leasehold run migrate --wait 10m --report out.json -- ./migrate
  leasehold run render --permits 3 -- ./render.sh    # at most three at once
  leasehold run index --shared -- ./search           # beside others who search
  leasehold run index --exclusive -- ./rebuild       # beside nobody
  leasehold run cache --shell -- 'du -s /cache > size && ls'
  leasehold run --ticket=\"$ticket\" -- ./step-2; leasehold run --ticket=\"$ticket\" --release -- ./step-3"
)]
pub(crate) struct RunArgs {
    /// The lock's name, like deploy/prod
    #[arg(value_name = "LOCK", required_unless_present = "ticket", add = ArgValueCompleter::new(lock_names))]
    pub(crate) lock: Option<OsString>,
    /// Run under the lock of a ticket, which stays valid; - reads it from stdin [default: $LEASEHOLD_TICKET]
    #[arg(
        long,
        value_name = "TICKET|-",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = IN_VARIABLE,
        conflicts_with_all = ["lock", "try_once", "wait", "conflict_exit_code", "HolderArgs", "permits", "shared", "exclusive", "ttl"],
    )]
    pub(crate) ticket: Option<OsString>,
    /// Release the ticket's lock when the command has ended
    #[arg(long, conflicts_with = "lock")]
    pub(crate) release: bool,
    #[command(flatten)]
    pub(crate) sharing: SharingArgs,
    #[command(flatten)]
    pub(crate) claim: ClaimArgs,
    #[command(flatten)]
    pub(crate) command: CommandArgs,
}

/// Stands for a ticket that is to be found in the environment.
pub(crate) const IN_VARIABLE: &str = "$LEASEHOLD_TICKET";

#[derive(Debug, Args)]
#[command(
    mut_arg("command", |command| command.required(false).required_unless_present("observe")),
    after_help = "The command runs while this candidate leads, and is stopped before its lease ends, exactly as by \
`leasehold run`; then it campaigns again. LEASEHOLD_TOKEN is the term: higher than that of every leader before.

When the command ends by itself, the candidate resigns, so that another can lead, and campaigns again after a second; \
after up to 30 s while the command keeps ending within a few seconds. SIGTERM and SIGINT are passed on to the command; when \
it has ended, the candidate resigns at once and exits with the command's exit code.

With --observe nothing is run: a line for who leads now, and one for each change.

Examples:
  leasehold elect scheduler --value http://10.0.0.7:8080 -- ./scheduler
  leasehold elect scheduler --ttl 10s --on-exit exit -- ./scheduler     # under systemd, with Restart=always
  leasehold elect scheduler --observe --json | jq -r --unbuffered .value"
)]
pub(crate) struct ElectArgs {
    /// The election's name, which is that of a lock
    #[arg(value_name = "NAME", add = ArgValueCompleter::new(lock_names))]
    pub(crate) name: OsString,
    /// What to advertise while leading, for those who observe: an address, at most 1,024 characters
    #[arg(long, value_name = "TEXT")]
    pub(crate) value: Option<String>,
    /// What to do when the command ends by itself [default: campaign]
    #[arg(long, value_name = "ACTION")]
    pub(crate) on_exit: Option<OnExit>,
    /// Print who leads, and every change, and run nothing
    #[arg(long, conflicts_with_all = ["value", "on_exit", "HolderArgs", "CommandArgs"])]
    pub(crate) observe: bool,
    #[command(flatten)]
    pub(crate) holder: HolderArgs,
    #[command(flatten)]
    pub(crate) command: CommandArgs,
}

#[derive(Debug, Args)]
#[command(
    after_help = "The first to be granted LOCK runs the command. When that exits with 0, the lock rests until the \
period is over, and whoever comes meanwhile is told that it already ran, and exits with 0. When it fails, the lock is \
free at once, and when its machine dies, after --ttl: another may then run it within the same period. Who comes \
while it runs waits for how it ends.

The period counts from the grant, on the store's clock. What cron starts daily says --per 23h and not 1d: the next \
tick comes a day after this one, which is a little less than a day after the grant.

A command that succeeded but could not be noted in the store makes 125: it may run again within its period. To run it \
again before its time: leasehold break LOCK --token N, with the token that `leasehold show LOCK` tells.

Examples:
  leasehold once nightly --per 23h -- ./report.sh             # 0 2 * * * on all machines
  leasehold once hourly --per 55m -n -E 0 -- ./refresh.sh     # content when another runs it now
  leasehold once import --per 10m --count-failures -- ./import"
)]
pub(crate) struct OnceArgs {
    #[command(flatten)]
    pub(crate) lock: LockArgs,
    /// The period: the shortest time from the grant of one run to that of the next, at most 366 days
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) per: Option<Duration>,
    /// Let a run that failed count as well: it is not tried again within its period
    #[arg(long)]
    pub(crate) count_failures: bool,
    #[command(flatten)]
    pub(crate) claim: ClaimArgs,
    #[command(flatten)]
    pub(crate) command: CommandArgs,
}

/// What a candidate does when its command has ended by itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnExit {
    /// Resign, and campaign again after a pause
    #[default]
    Campaign,
    /// Resign, and exit with the command's exit code
    Exit,
}

/// What is run under a lock, and how.
#[derive(Debug, Args)]
pub(crate) struct CommandArgs {
    /// How long the lease lasts unless it is renewed; it is renewed while the command runs [default: 30s]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) ttl: Option<Duration>,
    /// What to do with the command when the lease is about to end without having been renewed [default: term]
    #[arg(long, value_name = "ACTION")]
    pub(crate) on_lost: Option<OnLost>,
    /// SIGTERM when so much of the lease remains; at most half of the ttl [default: 10s or a third of the ttl]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) grace: Option<Duration>,
    /// Write the outcome to FILE as JSON
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) report: Option<PathBuf>,
    /// Run the command with /bin/sh -c
    #[arg(long)]
    pub(crate) shell: bool,
    /// The command and its arguments
    #[arg(last = true, required = true, num_args = 1.., value_name = "CMD", value_hint = ValueHint::CommandWithArguments)]
    pub(crate) command: Vec<OsString>,
}

/// What happens to the command when the lock is about to be lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnLost {
    /// SIGTERM first, SIGKILL before the lease ends
    #[default]
    Term,
    /// SIGKILL before the lease ends
    Kill,
    /// Let it run, whatever happens to the lock or to leasehold
    None,
}

/// With whom a lock is held.
#[derive(Debug, Args)]
#[group(multiple = false)]
pub(crate) struct SharingArgs {
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

/// How a lock is asked for.
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
    pub(crate) holder: HolderArgs,
}

/// What others are shown of who holds a lock.
#[derive(Debug, Default, Args)]
pub(crate) struct HolderArgs {
    /// Who holds it, for others to see [default: the user]
    #[arg(long, value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    pub(crate) owner: Option<String>,
    /// What it is held for, for others to see [default: the command line]
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
    pub(crate) sharing: SharingArgs,
    #[command(flatten)]
    pub(crate) claim: ClaimArgs,
    /// How long the lease lasts unless it is renewed [default: 30s]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) ttl: Option<Duration>,
}

#[derive(Debug, Args)]
#[command(after_help = "The ticket says in which store its lock lives; --store overrides it.

Examples:
  leasehold renew \"$ticket\"
  printf %s \"$ticket\" | leasehold release -           # other users cannot see it in the list of processes
  LEASEHOLD_TICKET=$ticket leasehold release")]
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
#[command(
    after_help = "The command finds the object's content on stdin and prints the new one on stdout. It runs again, on the new \
content, when another wrote the object meanwhile: nobody's change is lost, and none is made twice. Where there is no object, \
stdin is empty and LEASEHOLD_OBJECT_EXISTS is 0 instead of 1; the object is then created.

A command that fails aborts: nothing is written, and leasehold exits as the command did. Nothing is written either when the \
output is what was there, and it is an error when the output is empty, but with --allow-empty.

Exits 124 when others changed the object each time, 122 when a higher token than --fence wrote it.

Examples:
  leasehold update s3://my-bucket/counter.json -- jq '.n += 1'
  leasehold update gs://my-bucket/hosts.txt --shell -- 'cat; echo \"$HOSTNAME\"'
  leasehold update s3://my-bucket/state.json --fence \"$LEASEHOLD_TOKEN\" -- ./next-state"
)]
pub(crate) struct UpdateArgs {
    #[command(flatten)]
    pub(crate) object: ObjectArgs,
    /// Refuse to write when a higher token than this wrote before; like $LEASEHOLD_TOKEN under `leasehold run`
    #[arg(long, value_name = "TOKEN")]
    pub(crate) fence: Option<u64>,
    /// How often the command runs at most [default: 256]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) attempts: Option<u32>,
    /// How long it is tried, without the time that the command takes [default: 1m]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) within: Option<Duration>,
    /// Write it also when the output is empty
    #[arg(long)]
    pub(crate) allow_empty: bool,
    /// Run the command with /bin/sh -c
    #[arg(long)]
    pub(crate) shell: bool,
    /// The command and its arguments
    #[arg(last = true, required = true, num_args = 1.., value_name = "CMD", value_hint = ValueHint::CommandWithArguments)]
    pub(crate) command: Vec<OsString>,
}

#[derive(Debug, Args)]
#[command(
    after_help = "The object keeps the highest token that wrote it. A lower one is refused: nothing is written, and \
leasehold exits 1. So a job that was paused until its lock was another's does no harm.

Example:
  leasehold -s s3://my-bucket/locks run report --shell -- \\
    './report > out.html && leasehold put s3://my-bucket/out.html out.html --fence $LEASEHOLD_TOKEN --content-type text/html'"
)]
pub(crate) struct PutArgs {
    #[command(flatten)]
    pub(crate) object: ObjectArgs,
    /// What to write; - reads stdin
    #[arg(value_name = "FILE|-", value_hint = ValueHint::FilePath)]
    pub(crate) file: PathBuf,
    /// The token to write with; like $LEASEHOLD_TOKEN under `leasehold run`
    #[arg(long, value_name = "TOKEN", required = true)]
    pub(crate) fence: u64,
    /// Write it also when there is nothing on stdin
    #[arg(long)]
    pub(crate) allow_empty: bool,
}

/// Which object, and as what it is written.
#[derive(Debug, Args)]
pub(crate) struct ObjectArgs {
    /// The object's URL, like s3://my-bucket/path/counter.json?region=eu-west-1
    #[arg(value_name = "OBJECT")]
    pub(crate) object: OsString,
    /// The object's content type [default: as it is; application/octet-stream for a new object]
    #[arg(long, value_name = "TYPE", value_parser = NonEmptyStringValueParser::new())]
    pub(crate) content_type: Option<String>,
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
    pub(crate) verb: Option<String>,
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
    /// Race longer and measure more: half a minute
    #[arg(long)]
    pub(crate) thorough: bool,
}

#[derive(Debug, Args)]
pub(crate) struct HelpArgs {
    /// A verb, or exit-codes, environment or stores
    #[arg(value_name = "VERB|TOPIC")]
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
