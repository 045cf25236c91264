//! The verbs that run a command under a lock.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum, ValueHint};
use clap_complete::engine::ArgValueCompleter;

use super::{ClaimArgs, HolderArgs, LockArgs, ModeArgs, TimeoutArgs, duration};
use crate::complete::lock_names;

#[derive(Debug, Args)]
#[command(
    after_help = "The command is run without a shell. It is stopped before the lease ends: SIGTERM when what \
remains of the lease is as short as --grace, SIGKILL to it and all that it started just before the end, or at once \
when the lock is taken away.

A command that has ended takes what is left of its process group with it: SIGTERM, then SIGKILL after --grace, and \
only then is the lock released. A program that left the group (setsid, as daemons do) is let alone.

When leasehold itself is killed, a guardian kills the command and what it started; on SQLite the lock is free when the last of \
these has ended.

Nobody ends what runs elsewhere, also not when the lock is lost: containers (docker run), remote commands (ssh, kubectl exec). \
Without --cgroup nobody ends what runs as another user (sudo) either, nor, when leasehold was killed, daemons that cleared their \
environment. Let these check the token. --cgroup takes Linux, cgroups of version 2 and the permission to make one below our own, \
and some ten milliseconds.

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
        conflicts_with_all = ["lock", "try_once", "wait", "conflict_exit_code", "store_timeout", "HolderArgs", "permits", "shared", "exclusive", "ttl"],
    )]
    pub(crate) ticket: Option<OsString>,
    /// Release the ticket's lock when the command has ended
    #[arg(long, conflicts_with = "lock")]
    pub(crate) release: bool,
    #[command(flatten)]
    pub(crate) mode: ModeArgs,
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

With --observe nothing is run: a line for who leads now, and one for each change. With --once it ends after the first.

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
    /// Lead once: exit when the command has ended, for whatever reason; with --observe: print who leads now, and exit
    #[arg(long, conflicts_with = "on_exit")]
    pub(crate) once: bool,
    /// Print who leads, and every change, and run nothing
    #[arg(long, conflicts_with_all = ["value", "on_exit", "store_timeout", "HolderArgs", "CommandArgs"])]
    pub(crate) observe: bool,
    #[command(flatten)]
    pub(crate) timeout: TimeoutArgs,
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

// What is run under a lock, and how.
#[derive(Debug, Default, Args)]
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
    /// Run the command in a cgroup of its own, and let nothing in it outlive the command: neither daemons nor what sudo starts
    #[arg(long)]
    pub(crate) cgroup: bool,
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
