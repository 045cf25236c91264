//! The arguments of the subcommands that run a command under a lock.

use std::ffi::OsString;
#[cfg(feature = "serve")]
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum, ValueHint};
use clap_complete::engine::ArgValueCompleter;

use super::{ClaimArgs, ClientArgs, ENDING, LockArgs, ModeArgs, REPORTING, TICKETS, duration};
use crate::complete::lock_names;

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:
  leasehold run deploy/prod -- make deploy
  leasehold run nightly -q --try -E 0 -- ./report.sh   # from cron
  leasehold run sync --wait 10m --max-hold 2h -- ./sync
`leasehold help run` says more, and has more examples.",
    after_long_help = "leasehold runs the command without a shell, and stops it before the lease ends: it sends SIGTERM \
when the remaining lease is as short as --grace, and SIGKILL to the command and all its descendants just before the \
lease ends. If the lock is taken away, it sends SIGKILL at once. With --max-hold, it does the same before the limit, \
however often the lease was renewed.

When the command has ended, leasehold terminates the rest of its process group (SIGTERM, then SIGKILL after --grace), \
and then releases the lock. It does not terminate processes that left the group, as daemons do with setsid.

If leasehold itself is killed, a guardian process kills the command and its descendants. On SQLite, the lock becomes \
free when the last of them has ended.

leasehold cannot stop work on other machines or in containers (ssh, kubectl exec, docker run), not even when the lock \
is lost. Without --cgroup, it cannot stop processes of other users (sudo) either, nor, if leasehold was killed, \
daemons that cleared their environment. Let the resource check the token in these cases. --cgroup needs Linux, cgroup \
v2 and permission to create a cgroup below the current one, and takes about ten milliseconds.

The environment of the command contains LEASEHOLD_LOCK, LEASEHOLD_TOKEN, LEASEHOLD_TOKENS, LEASEHOLD_STORE and, with \
--permits, LEASEHOLD_PERMIT (the number of the permit).

With several LOCKs (at most 64), leasehold acquires them in the order of the bytes of their names, so that runs with \
locks in common never wait for each other for ever. While it waits for one, it holds those before it; with --try, and \
when --wait is over, it releases them. If one lock is lost, all are lost. LEASEHOLD_LOCK and LEASEHOLD_TOKEN are then \
unset: LEASEHOLD_TOKENS has the token of each lock, as JSON. --max-hold counts from the grant of the last lock.

With --permits N, LOCK is a semaphore with N permits: the locks LOCK/permit-1 to LOCK/permit-N. The first \
acquisition records N in the store. Others with another N fail; `leasehold resize` changes it. Without --permits, leasehold acquires \
LOCK as a plain lock, and does NOT wait for permits. On some stores, processes that wait for a permit wait for the \
lock LOCK/permit-queue; `show` lists them.

With --shared and --exclusive, LOCK is a readers-writer lock: up to eight readers (LOCK/shared-1 to LOCK/shared-8), \
or one writer. --readers N admits N readers; it is recorded like N of --permits, and a writer holds N + 1 locks. Without these flags, leasehold acquires LOCK as a plain lock and does NOT wait for readers: if some \
processes use --shared, all others must use --exclusive.

With --ticket, the command runs under a lock from `leasehold acquire`. leasehold renews the lease before, during and \
after the run, so that the next step of the script starts with a full lease. If the lock is already lost, it exits \
with 122 without running the command. Pass the ticket in LEASEHOLD_TICKET or on stdin: `ps` shows arguments to all \
users. Several commands can use one ticket at a time; releasing the ticket releases \
the lock for all of them.

Examples:
  leasehold run deploy/prod -- make deploy
  leasehold run nightly -q --try -E 0 -- ./report.sh   # from cron
  leasehold run sync --max-hold 2h -- ./sync           # kills a hung job
  leasehold run deploy/eu deploy/us -- ./release       # holds both, or waits
  leasehold run migrate --wait 10m --report out.json -- ./migrate
  leasehold run render --permits 3 -- ./render.sh      # at most three at a time
  leasehold run index --shared -- ./search             # with other readers
  leasehold run index --exclusive -- ./rebuild         # alone
  leasehold run cache --shell -- 'du -s /cache > size && ls'
  LEASEHOLD_TICKET=$ticket leasehold run --ticket -- ./step-2
  LEASEHOLD_TICKET=$ticket leasehold run --ticket --release -- ./step-3"
)]
pub(crate) struct RunArgs {
    /// Name of the lock, such as deploy/prod; of several, hold all or none
    #[arg(value_name = "LOCK", required_unless_present = "ticket", add = ArgValueCompleter::new(lock_names))]
    pub(crate) locks: Vec<OsString>,
    #[command(flatten)]
    pub(crate) claim: ClaimArgs,
    #[command(flatten)]
    pub(crate) command: CommandArgs,
    #[command(flatten)]
    pub(crate) mode: ModeArgs,
    /// Run under this lock [default: $LEASEHOLD_TICKET]
    ///
    /// leasehold keeps the ticket valid while the command runs. - reads the ticket from stdin.
    #[arg(
        long,
        help_heading = TICKETS,
        value_name = "TICKET|-",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = IN_VARIABLE,
        conflicts_with_all = ["locks", "try_once", "wait", "barge", "on_deadlock", "conflict_exit_code", "store_timeout", "HolderArgs", "permits", "shared", "exclusive", "readers", "ttl", "max_hold"],
    )]
    pub(crate) ticket: Option<OsString>,
    /// Release that lock when the command has ended
    #[arg(long, help_heading = TICKETS, conflicts_with = "locks")]
    pub(crate) release: bool,
    #[command(flatten)]
    pub(crate) report: ReportArgs,
    #[command(flatten)]
    pub(crate) client: ClientArgs,
}

/// The value of `--ticket` without a ticket, which means that it is read from the environment.
pub(crate) const IN_VARIABLE: &str = "$LEASEHOLD_TICKET";

const ELECT_EXAMPLES: &str = "Examples:
  leasehold elect scheduler --value http://10.0.0.7:8080 -- ./scheduler
  leasehold elect scheduler --on-exit exit -- ./scheduler   # Restart=always
  leasehold elect scheduler --observe --json | jq -r --unbuffered .value
  leasehold elect scheduler --http 127.0.0.1:4040 -- ./scheduler";

#[derive(Debug, Args)]
#[command(
    mut_arg("command", |command| command.required(false).required_unless_present("observe")),
    after_long_help = format!("The command runs while this process is the leader. leasehold stops it before the lease ends, as \
`leasehold run` does, and then campaigns again. LEASEHOLD_TOKEN is the term: it is higher than the term of every \
earlier leader.

When the command ends, the leader resigns, so that another candidate can lead, and campaigns again after one second. \
While the command keeps ending within a few seconds, this delay grows to at most 30 s. leasehold forwards SIGTERM and \
SIGINT to the command. When the command has then ended, it resigns and exits with the exit code of the command.

With --observe, leasehold runs no command. It prints the current leader and each change. With --once, it exits after \
the first line.

With --http, GET / answers {{\"name\": \"VALUE\", \"leader\": true, \"token\": 7}}: the leader's --value or host (null if \
there is none), whether this process leads, and the leader's term. /healthz answers 503 if that is older than the ttl. \
Whoever can reach the address can read this.

{ELECT_EXAMPLES}"),
    after_help = ELECT_EXAMPLES
)]
pub(crate) struct ElectArgs {
    /// Name of the election; also the name of its lock
    #[arg(value_name = "NAME", add = ArgValueCompleter::new(lock_names))]
    pub(crate) name: OsString,
    /// Text that observers see while this process leads, such as an address; at most 1,024 characters
    #[arg(long, value_name = "TEXT")]
    pub(crate) value: Option<String>,
    /// What to do when the command ends [default: campaign]
    #[arg(long, value_name = "ACTION")]
    pub(crate) on_exit: Option<OnExit>,
    /// Exit when the command has ended, for any reason; with --observe: print the current leader and exit
    #[arg(long, conflicts_with = "on_exit")]
    pub(crate) once: bool,
    /// Print the current leader and each change; run no command
    #[arg(long, conflicts_with_all = ["value", "on_exit", "store_timeout", "HolderArgs", "CommandArgs", "ReportArgs"])]
    pub(crate) observe: bool,
    /// Answer over HTTP who leads; port 0: a free port, which leasehold prints
    #[cfg(feature = "serve")]
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub(crate) http: Option<SocketAddr>,
    #[command(flatten)]
    pub(crate) command: CommandArgs,
    #[command(flatten)]
    pub(crate) report: ReportArgs,
    #[command(flatten)]
    pub(crate) client: ClientArgs,
}

const ONCE_EXAMPLES: &str = "Examples:
  leasehold once nightly --per 12h -- ./report.sh           # 0 2 * * *
  leasehold once hourly --per 30m -n -E 0 -- ./refresh.sh   # or skip it
  leasehold once import --per 10m --count-failures -- ./import";

#[derive(Debug, Args)]
#[command(
    after_long_help = format!("The first process to acquire LOCK runs the command. If the command succeeds, LOCK has a cooldown \
until the period is over (state `cooldown`). Processes that start in this time print that the command already ran, and \
exit with 0. If the command fails, LOCK is free at once; if its machine crashes, LOCK is free after --ttl. Another \
process can then run the command in the same period. Processes that start while the command runs wait for its result.

The period starts when the lock is granted, on the store's clock. For a daily job, use --per 12h: longer than the \
machines' clocks differ, and short enough that a late run does not skip the next night. If a run takes longer than \
the period, a process that waits runs the command again.

If the command succeeds but leasehold cannot record this in the store, it exits with 125, and the command may run \
again in the same period. To run the command again early, use `leasehold evict LOCK --token N` with the token from \
`leasehold show LOCK`.

{ONCE_EXAMPLES}"),
    after_help = ONCE_EXAMPLES
)]
pub(crate) struct OnceArgs {
    #[command(flatten)]
    pub(crate) lock: LockArgs,
    /// Minimum time between the grants of two runs
    ///
    /// At most 366 days.
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) per: Option<Duration>,
    /// Do not retry a failed run within the period
    ///
    /// Nor one that --max-hold stopped.
    #[arg(long)]
    pub(crate) count_failures: bool,
    #[command(flatten)]
    pub(crate) claim: ClaimArgs,
    #[command(flatten)]
    pub(crate) command: CommandArgs,
    #[command(flatten)]
    pub(crate) report: ReportArgs,
    #[command(flatten)]
    pub(crate) client: ClientArgs,
}

/// What a candidate does when its command has ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnExit {
    /// Resign, then campaign again after a delay
    #[default]
    Campaign,
    /// Resign, then exit with the exit code of the command
    Exit,
}

// The command to run under a lock, and how to run it.
#[derive(Debug, Default, Args)]
pub(crate) struct CommandArgs {
    /// How long the lease lasts [default: 30s]
    ///
    /// leasehold renews it while the command runs. After a crash, the lock is free when the lease has ended.
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) ttl: Option<Duration>,
    /// Stop the command after this time, and exit with 121
    ///
    /// Counts from the grant, like ShedLock's lockAtMostFor. SIGTERM is sent --grace before that. Then the lock is
    /// released [default: no limit].
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) max_hold: Option<Duration>,
    /// Run the command with /bin/sh -c
    #[arg(long, help_heading = ENDING)]
    pub(crate) shell: bool,
    /// If renewals fail: term, kill or none [default: term]
    ///
    /// How to stop the command if the lease cannot be renewed in time.
    #[arg(long, help_heading = ENDING, hide_possible_values = true, value_name = "ACTION")]
    pub(crate) on_lost: Option<OnLost>,
    /// Send SIGTERM this long before the lease ends
    ///
    /// At most ttl/2 [default: 10s or ttl/3, whichever is less].
    #[arg(long, help_heading = ENDING, value_name = "DURATION", value_parser = duration)]
    pub(crate) grace: Option<Duration>,
    /// Use a new cgroup, and kill everything left in it
    ///
    /// Includes daemons, and processes started by sudo.
    #[arg(long, help_heading = ENDING)]
    pub(crate) cgroup: bool,
    /// Command and its arguments
    #[arg(last = true, required = true, num_args = 1.., value_name = "CMD", value_hint = ValueHint::CommandWithArguments)]
    pub(crate) command: Vec<OsString>,
}

// The files about a run.
#[derive(Debug, Default, Args)]
pub(crate) struct ReportArgs {
    /// Write a JSON report of the outcome to FILE
    #[arg(long, help_heading = REPORTING, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) report: Option<PathBuf>,
    /// Write metrics of this run to FILE, for Prometheus
    ///
    /// For the textfile collector of Prometheus' node_exporter.
    #[arg(long, help_heading = REPORTING, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) metrics_file: Option<PathBuf>,
}

impl CommandArgs {
    /// Returns the ttl and the limit of the hold.
    pub(crate) const fn lease(&self) -> (Option<Duration>, Option<Duration>) {
        (self.ttl, self.max_hold)
    }
}

/// How to stop the command when the lease is about to end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnLost {
    /// Send SIGTERM, then SIGKILL before the lease ends
    #[default]
    Term,
    /// Send SIGKILL before the lease ends
    Kill,
    /// Do not stop it, even if the lock is lost or leasehold is killed
    None,
}
