//! Starts the command of `run`, supervises it, and ends it before the lease ends.

mod cgroup;
mod guardian;
mod processes;
mod program;
mod reaper;
#[cfg(target_os = "linux")]
mod shim;
mod tree;

use std::ffi::OsString;
use std::future::Future;
use std::io::{self, IsTerminal as _};
use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::process::{ExitCode, ExitStatus};
use std::sync::OnceLock;
use std::time::Duration;

use leasehold::clock::{Clock, Moment};
use leasehold::lease::Id;
use leasehold::random::Random;
use rustix::process::{Pid, Signal, getpid, kill_process};

use self::cgroup::Cgroup;
pub(crate) use self::guardian::Dismissed;
use self::guardian::Guardian;
use self::processes::ProcessIdentity;
pub(crate) use self::program::{cannot_run, look_up};
pub(crate) use self::reaper::{Awaited, reap_orphans};
#[cfg(target_os = "linux")]
use self::shim::{Execution, Shim};
use self::tree::Tree;
use crate::args::OnLost;
use crate::exit::{FAILED, Failure};
use crate::output::{Output, human, json};
use crate::signals::Signals;
use crate::wait_progress::announce;

/// The internal subcommand of a guardian.
const GUARDIAN: &str = "__guardian";

/// Returns the executable of this process. On Linux, even after its file has been replaced.
fn own_executable() -> io::Result<PathBuf> {
    if cfg!(target_os = "linux") { Ok("/proc/self/exe".into()) } else { std::env::current_exe() }
}

/// Maximum sleep between checks of the lease, because timers can fire late.
const MAX_SLEEP: Duration = Duration::from_millis(250);
/// Poll interval while waiting for processes to end.
const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// How long to wait for a process after SIGKILL. A process that takes longer hangs in the kernel.
const KILL_TIMEOUT: Duration = Duration::from_secs(2);

/// The lock that a command runs under. Outside tests, it is a [`Guard`](leasehold::Guard).
pub(crate) trait Hold: Sync {
    /// Returns how long the lock is certainly still held; zero after a loss.
    fn remaining(&self) -> Duration;
    /// Completes when the lock is lost. Cancel safe.
    fn lost(&self) -> impl Future<Output = ()> + Send;
    /// Completes when a lock was acquired since the last call of [`remaining`](Self::remaining), on whose result the
    /// caller has acted. Cancel safe.
    fn changed(&self) -> impl Future<Output = ()> + Send {
        std::future::pending()
    }
}

/// The rules for supervising a command.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) on_lost: OnLost,
    /// Send SIGTERM when this much of the lease remains.
    pub(crate) grace: Duration,
    /// The ttl of the lease, or the limit of the hold if that is shorter.
    pub(crate) ttl: Duration,
    /// Whether to run the command in a new cgroup and kill all processes left in it.
    pub(crate) cgroup: bool,
    /// Whether the command gets only one signal that ends it before SIGKILL, and which: SIGINT. Terraform exits at once
    /// on the second, without saving its state, and SIGTERM kills its plugins in the middle of their work.
    pub(crate) one_interrupt: bool,
}

impl Plan {
    /// Returns how much of the lease remains when SIGKILL is sent: a twentieth of the ttl, at most a second. On a busy
    /// machine, scheduling and the exit of a process take time.
    pub(crate) fn margin(&self) -> Duration {
        (self.ttl / 20).min(Duration::from_secs(1))
    }

    /// Returns the signal to send to the command for `signal`. `interrupted` is whether the command got one that ends
    /// it.
    fn passed_on(&self, signal: Signal, interrupted: &mut bool) -> Option<Signal> {
        if !self.one_interrupt || ![Signal::HUP, Signal::INT, Signal::TERM].contains(&signal) {
            return Some(signal);
        }
        (!std::mem::replace(interrupted, true)).then_some(Signal::INT)
    }

    fn protects(&self) -> bool {
        self.on_lost != OnLost::None
    }

    /// Returns how long to sleep: until the next threshold, within limits.
    fn pause(&self, stage: Stage, remaining: Duration) -> Duration {
        if !self.protects() {
            // No threshold requires an action. `remaining` is zero after a loss, so do not use it.
            return MAX_SLEEP;
        }
        let next = match stage {
            Stage::Running if self.on_lost == OnLost::Term => self.grace,
            Stage::Running | Stage::Terminated => self.margin(),
            Stage::Killed => return POLL_INTERVAL,
        };
        remaining.saturating_sub(next).clamp(Duration::from_millis(1), MAX_SLEEP.min(self.ttl / 10))
    }
}

/// How a command ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) status: ExitStatus,
    /// Whether it was stopped because the lock was lost or about to be lost.
    pub(crate) stopped: bool,
    /// Whether processes that it left in its group were terminated.
    pub(crate) left_behind: bool,
    /// Its guardian, which must end before the next command starts.
    pub(crate) guardian: Option<Dismissed>,
}

/// A running command.
#[derive(Debug)]
pub(crate) struct Running {
    process: tokio::process::Child,
    #[cfg(target_os = "linux")]
    execution: Execution,
    tree: Tree,
    guardian: Option<Guardian>,
    /// Dropped after all its processes have ended.
    cgroup: Option<Cgroup>,
    plan: Plan,
    interactive: bool,
    /// Whether the command got a signal that ends it.
    interrupted: bool,
}

/// Runs an internal subcommand, if `arguments` name one, and returns its exit code.
pub(crate) fn internal_subcommand(arguments: &[OsString]) -> Option<ExitCode> {
    match arguments.get(1)?.to_str()? {
        #[cfg(target_os = "linux")]
        shim::SUBCOMMAND => Some(shim::main(arguments.get(2..)?)),
        GUARDIAN => Some(guardian::main(arguments.get(2..)?)),
        _ => None,
    }
}

/// The variable that marks all descendants of one `leasehold run`.
pub(crate) const RUN: &str = "LEASEHOLD_RUN";

/// Changes to the environment of the command: a variable with its new value, or `None` to remove it.
pub(crate) type Environment<'a> = [(&'a str, Option<String>)];

/// A command that is ready to start: on Linux, its process already exists and waits.
///
/// The kernel kills that process when the *thread* that started it ends, so the main thread must start it.
#[derive(Debug)]
pub(crate) struct Prepared {
    plan: Plan,
    /// The mark of the command and its descendants.
    run: Id,
    #[cfg(target_os = "linux")]
    shim: Shim,
    guardian: Option<Guardian>,
    cgroup: Option<Cgroup>,
}

impl Prepared {
    /// Starts the waiting process of `command`.
    #[cfg_attr(not(target_os = "linux"), expect(unused_variables))]
    pub(crate) fn start(command: &[OsString], plan: Plan) -> Result<Self, Failure> {
        let run = Id::random(&Random::from_os());
        let cgroup = plan.cgroup.then(|| Cgroup::make(run)).transpose().map_err(no_cgroup)?;
        #[cfg(target_os = "linux")]
        let shim = Shim::start(command, plan.protects()).map_err(cannot_start)?;
        #[cfg(target_os = "linux")]
        if let (Some(cgroup), Some(pid)) = (&cgroup, shim.process.id()) {
            cgroup.add(pid).map_err(no_cgroup)?;
        }
        Ok(Self {
            #[cfg(target_os = "linux")]
            shim,
            guardian: None,
            cgroup,
            run,
            plan,
        })
    }

    /// Starts the guardian early. Otherwise [`prepare`](Self::prepare) starts it.
    pub(crate) fn guard(&mut self) {
        if self.plan.protects() {
            self.guardian = self.new_guardian().ok();
        }
    }

    fn new_guardian(&self) -> io::Result<Guardian> {
        Guardian::start(self.run, self.cgroup.as_ref())
    }

    /// Starts the processes that are still missing. Returns the ids of all processes. The lock must stay held while
    /// they live.
    pub(crate) fn prepare(&mut self) -> Result<Vec<u32>, Failure> {
        let mut pids = Vec::new();
        if self.plan.protects() {
            // Replace a guardian that was killed, because the command must never run without one.
            let guardian = match self.guardian.take().and_then(Guardian::unless_ended) {
                Some(guardian) => guardian,
                None => self.new_guardian().map_err(cannot_start)?,
            };
            pids.push(guardian.id());
            self.guardian = Some(guardian);
        }
        #[cfg(target_os = "linux")]
        pids.extend(self.shim.process.id());
        Ok(pids)
    }

    /// Starts `command` with `environment` and the mark of this run.
    pub(crate) fn launch(
        self,
        command: &[OsString],
        environment: &Environment<'_>,
    ) -> Result<Running, Failure> {
        let (plan, interactive) = (self.plan, is_interactive());
        let mark = (RUN, Some(self.run.to_string()));
        let environment = &[environment, &[mark]].concat();
        #[cfg(target_os = "linux")]
        if plan.protects() {
            // Adopt orphans, so that they can be found. If the kernel refuses, only the process group can be found.
            let _ = rustix::process::set_child_subreaper(Some(getpid()));
        }
        let mut guardian = self.guardian;
        #[cfg(target_os = "linux")]
        let (process, execution) = self.shim.execute(&command[0], environment).map_err(cannot_start)?;
        #[cfg(not(target_os = "linux"))]
        let process = spawn(command, environment)?;
        let leader = process.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
        let leader = leader.ok_or_else(|| cannot_start(io::Error::other("the process has no id")))?;
        let guardian_pid = guardian.as_ref().and_then(Guardian::pid);
        let tree = Tree {
            root: ProcessIdentity::own_process(getpid()),
            leader: ProcessIdentity::own_process(leader),
            leader_ended: false,
            own_group: !interactive,
            guardian: guardian_pid,
        };
        if let Some(guardian) = &mut guardian {
            guardian.watch(&tree);
        }
        Ok(Running {
            process,
            #[cfg(target_os = "linux")]
            execution,
            tree,
            guardian,
            cgroup: self.cgroup,
            plan,
            interactive,
            interrupted: false,
        })
    }

    /// Ends the prepared processes.
    pub(crate) async fn dismiss(self) {
        if let Some(guardian) = self.guardian {
            guardian.dismiss().end();
        }
        #[cfg(target_os = "linux")]
        self.shim.end().await;
    }
}

fn no_cgroup(error: io::Error) -> Failure {
    Failure::new(FAILED, "failed", format!("--cgroup: cannot create a cgroup for the command: {error}"))
        .with_help(
            "--cgroup needs Linux 5.14, cgroup v2 and permission to create a cgroup below the current one",
        )
}

fn cannot_start(error: io::Error) -> Failure {
    Failure::new(FAILED, "failed", format!("cannot start a process: {error}"))
}

/// Starts `command` as an ordinary child process.
#[cfg(not(target_os = "linux"))]
fn spawn(command: &[OsString], environment: &Environment<'_>) -> Result<tokio::process::Child, Failure> {
    let mut process = tokio::process::Command::new(&command[0]);
    process.args(&command[1..]);
    for (key, value) in environment {
        match value {
            Some(value) => process.env(key, value),
            None => process.env_remove(key),
        };
    }
    if !is_interactive() {
        process.process_group(0);
    }
    process.spawn().map_err(|error| cannot_run(&command[0], &error))
}

/// Returns whether stdin is a terminal, or this process is in the foreground of one. The command then stays in this
/// process group, where Ctrl-C and Ctrl-Z reach it directly. In another group, the terminal would stop the command when
/// it reads (for example the password in `data | leasehold run x -- sudo ...`), and a stopped command would hold the
/// lock forever.
pub(crate) fn is_interactive() -> bool {
    // Evaluated once: `bg` and `fg` must not change how a running command is treated.
    static INTERACTIVE: OnceLock<bool> = OnceLock::new();
    let in_foreground = || {
        let terminal = std::fs::File::open("/dev/tty").ok()?;
        let group = rustix::termios::tcgetpgrp(terminal).ok()?;
        Some(group.as_raw_nonzero().get() == processes::group_of(getpid()))
    };
    *INTERACTIVE.get_or_init(|| io::stdin().is_terminal() || in_foreground().unwrap_or(false))
}

impl Running {
    /// Supervises the command until it and the processes that must not outlive it have ended.
    pub(crate) async fn supervise(
        mut self,
        hold: &impl Hold,
        signals: &mut Signals,
        clock: &dyn Clock,
        output: &Output,
    ) -> Result<Ended, Failure> {
        let mut stage = Stage::Running;
        let mut lost = false;
        let mut pending: Option<Signal> = None;
        let status = loop {
            let now = clock.now();
            let remaining = if lost { Duration::ZERO } else { hold.remaining() };
            stage = self.enforce(stage, now, remaining);
            // Forward after the check of the lease: SIGCONT after a long stop must not continue a command that has lost
            // its lock.
            if let Some(signal) = pending.take().filter(|_| stage != Stage::Killed) {
                self.forward(signal);
            }
            let pause = self.plan.pause(stage, remaining);
            tokio::select! {
                biased;
                status = self.process.wait() => break status,
                () = hold.lost(), if !lost => lost = true,
                () = hold.changed() => {}
                signal = signals.next() => pending = Some(signal),
                () = clock.sleep(pause) => {}
            }
        };
        let status = status.map_err(|error| {
            Failure::new(FAILED, "failed", format!("cannot wait for the command: {error}"))
        })?;
        #[cfg(target_os = "linux")]
        if let Some(failure) = self.execution.failure() {
            if let Some(guardian) = self.guardian.take() {
                guardian.dismiss().end();
            }
            return Err(failure);
        }
        self.tree.leader_ended = true;
        // If this process was stopped or starved, its guardian may have killed the command.
        let by_guardian = ending_signal(status) == Some(Signal::KILL.as_raw())
            && self.guardian.as_ref().is_some_and(|guardian| guardian.is_due(clock.now()));
        let stopped = stage != Stage::Running || by_guardian;
        let left_behind = self.clean_up(stopped || lost, hold, clock, output).await;
        let guardian = self.guardian.take().map(Guardian::dismiss);
        Ok(Ended { status, stopped, left_behind, guardian })
    }

    /// Stops the command if `remaining` requires it.
    fn enforce(&mut self, stage: Stage, now: Moment, remaining: Duration) -> Stage {
        if !self.plan.protects() {
            return stage;
        }
        let margin = self.plan.margin();
        if let Some(guardian) = &mut self.guardian {
            // If this process does not act, the guardian does: a little later, but before the lease ends.
            guardian.set_end(now, remaining.saturating_sub(margin / 2));
        }
        if remaining <= margin {
            // Repeat this in each round, to kill newly forked processes too.
            self.kill();
            return Stage::Killed;
        }
        if stage == Stage::Running && self.plan.on_lost == OnLost::Term && remaining <= self.plan.grace {
            if let Some(signal) = self.plan.passed_on(Signal::TERM, &mut self.interrupted) {
                self.tree.signal_group(signal);
            }
            // A stopped process cannot act on SIGTERM.
            self.tree.signal_group(Signal::CONT);
            return Stage::Terminated;
        }
        stage
    }

    fn kill(&self) {
        self.tree.kill();
        if let Some(cgroup) = &self.cgroup {
            cgroup.kill();
        }
    }

    /// Returns whether processes remain that must not outlive the command.
    fn has_processes(&self) -> bool {
        self.tree.group_remains() || self.cgroup.as_ref().is_some_and(|cgroup| !cgroup.is_empty())
    }

    fn forward(&mut self, signal: Signal) {
        // The terminal sends these to the command directly. Do not send them twice.
        let direct = [Signal::INT, Signal::QUIT, Signal::WINCH, Signal::CONT];
        let is_direct = self.interactive && direct.contains(&signal);
        let Some(signal) = self.plan.passed_on(signal, &mut self.interrupted).filter(|_| !is_direct) else {
            return;
        };
        // These end most programs, so send them only to the command itself.
        if [Signal::USR1, Signal::USR2].contains(&signal) {
            return self.tree.signal_leader(signal);
        }
        self.tree.signal_group(signal);
        if signal == Signal::TSTP {
            // SIGTSTP is meant for the whole job, so this process stops too. If the job stays stopped longer than the
            // lease, the guardian kills the command.
            let _ = kill_process(getpid(), Signal::STOP);
        }
    }

    /// Terminates the processes that the command left in its group, or after a loss all its descendants. Returns
    /// whether there were any.
    ///
    /// They must end before the release, because they would run without the lock after it. Processes that left the
    /// group, as daemons do, are killed only after a loss or if they are in the cgroup of the command.
    async fn clean_up(&self, lost: bool, hold: &impl Hold, clock: &dyn Clock, output: &Output) -> bool {
        if !self.plan.protects() || (!lost && !self.has_processes()) {
            return false;
        }
        if lost {
            self.kill();
        } else {
            self.tree.signal_group(Signal::TERM);
            self.tree.signal_group(Signal::CONT);
            let timeout = self.plan.grace.min(hold.remaining().saturating_sub(self.plan.margin()));
            let ended = await_end(|| self.tree.group_remains(), timeout, clock);
            let notice = |passed| {
                let left = timeout.saturating_sub(passed);
                (human::leftovers(left), json::leftovers(passed, left))
            };
            announce(output, clock, ended, notice).await;
            self.tree.signal_group(Signal::KILL);
            if let Some(cgroup) = &self.cgroup {
                cgroup.kill();
            }
        }
        await_end(|| self.has_processes(), KILL_TIMEOUT, clock).await;
        true
    }
}

async fn await_end(has_processes: impl Fn() -> bool, limit: Duration, clock: &dyn Clock) {
    let start = clock.now();
    while has_processes() && clock.now().longest_since(start) < limit {
        clock.sleep(POLL_INTERVAL).await;
    }
}

/// How far the stopping of the command has progressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Running,
    Terminated,
    Killed,
}

/// Returns the number of the signal that ended a command, if one did.
pub(crate) fn ending_signal(status: ExitStatus) -> Option<i32> {
    status.signal()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn with_on_lost_none_a_loss_does_not_shorten_the_pause() {
        let pause = |on_lost| plan(on_lost, false).pause(Stage::Running, Duration::ZERO);
        assert_eq!(pause(OnLost::None), MAX_SLEEP);
        assert!(pause(OnLost::Term) < POLL_INTERVAL && pause(OnLost::Kill) < POLL_INTERVAL);
    }

    #[test]
    fn terraform_gets_one_interrupt_other_commands_each_signal() {
        let sent = |one_interrupt| {
            let (plan, mut interrupted) = (plan(OnLost::Term, one_interrupt), false);
            let signals = [Signal::USR1, Signal::TERM, Signal::INT, Signal::HUP, Signal::TERM, Signal::CONT];
            signals.map(|signal| plan.passed_on(signal, &mut interrupted))
        };
        let each = [Signal::USR1, Signal::TERM, Signal::INT, Signal::HUP, Signal::TERM, Signal::CONT];
        assert_eq!(sent(false), each.map(Some));
        assert_eq!(sent(true), [Some(Signal::USR1), Some(Signal::INT), None, None, None, Some(Signal::CONT)]);
    }

    fn plan(on_lost: OnLost, one_interrupt: bool) -> Plan {
        Plan { on_lost, grace: MAX_SLEEP, ttl: MAX_SLEEP * 100, cgroup: false, one_interrupt }
    }
}
