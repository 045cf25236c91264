//! Runs a command under a lock: setup, acquisition and supervision.

#[cfg(feature = "serve")]
mod beside;
mod completion;

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use clap::ValueEnum as _;
use futures_util::poll;
use leasehold::clock::{Clock, timeout};
use leasehold::view::ms;
use leasehold::{AlreadyRan, Due, ErrorKind, Guard, LockName, Locker, LossReason, Ticket};

pub(crate) use self::completion::Completion;
use self::completion::Ending;
use crate::acquisition::Request;
use crate::args::{CommandArgs, OnLost, ReportArgs, duration};
use crate::child::{self, Dismissed, Ended, Hold, Plan, Prepared};
use crate::config::{Settings, Store};
use crate::context::{self, Context};
use crate::exit::{Exit, FAILED, Failure, LIMIT, LOST};
use crate::names::Names;
use crate::nesting;
use crate::output::{Output, human, json, print_on_stderr};
use crate::report::{self, EarlierRun, MetricsFile, Report};
use crate::signals::Signals;

/// The maximum default grace.
const MAX_DEFAULT_GRACE: Duration = Duration::from_secs(10);

/// How long the prepared processes of the command wait for the lock before they are ended.
const PREPARED_LIFETIME: Duration = Duration::from_secs(2);

/// Settings of one run. The `run`, `once` or `elect` that a command starts must not take them over: it would replace
/// the report and the metrics of this run, or advertise its value.
const OF_ONE_RUN: [&str; 6] = [
    "LEASEHOLD_REPORT",
    "LEASEHOLD_METRICS_FILE",
    "LEASEHOLD_VALUE",
    "LEASEHOLD_ON_EXIT",
    "LEASEHOLD_PER",
    "LEASEHOLD_COUNT_FAILURES",
];

/// A command to run under a lock.
#[derive(Debug)]
pub(crate) struct Job {
    command: Vec<OsString>,
    plan: Plan,
    /// The limit of the hold.
    max_hold: Option<Duration>,
    names: Names,
    store: Store,
    /// The variables that name the store for the command.
    named_store: Vec<(&'static str, Option<String>)>,
    /// The file of the report.
    file: Option<PathBuf>,
    metrics: Option<MetricsFile>,
    report: Report,
    /// Whether the lock is that of a ticket.
    is_by_ticket: bool,
}

/// An open store, with the signals for leasehold or its command.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) locker: Locker,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) signals: Signals,
    /// The prepared process of the command, if it was started early.
    prepared: Option<Prepared>,
    /// The guardian of the previous command.
    previous_guardian: Option<Dismissed>,
}

/// Ends the prepared process of the command, if there is one.
async fn dismiss(prepared: &mut Option<Prepared>) {
    if let Some(prepared) = prepared.take() {
        prepared.dismiss().await;
    }
}

impl Hold for Guard {
    fn remaining(&self) -> Duration {
        Guard::remaining(self)
    }

    async fn lost(&self) {
        Guard::lost(self).await;
    }
}

impl Job {
    /// Creates a job for `args`, with a lease of `ttl`. Checks that its report can be written.
    pub(crate) fn new(
        context: &Context,
        args: (CommandArgs, ReportArgs),
        names: &Names,
        lease: (Duration, Option<Duration>),
    ) -> Result<Self, Failure> {
        Self::on(context, context.store()?, args, names, lease)
    }

    /// Like [`new`](Self::new), but in `store`.
    pub(crate) fn on(
        context: &Context,
        store: Store,
        (args, files): (CommandArgs, ReportArgs),
        names: &Names,
        (ttl, max_hold): (Duration, Option<Duration>),
    ) -> Result<Self, Failure> {
        let settings = &context.settings;
        let file = settings.pick(files.report, "report", |text| Ok(text.into()))?;
        let on_lost = settings.pick(args.on_lost, "on-lost", |text| OnLost::from_str(text, false))?;
        let grace = grace(settings, args.grace, ttl)?;
        if let Some(limit) = max_hold {
            check_limit(limit, grace)?;
        }
        let cgroup = Settings::switch(args.cgroup, "cgroup")?;
        if cgroup && on_lost == Some(OnLost::None) {
            return Err(Failure::usage(
                "--cgroup cannot be used with --on-lost none: --cgroup kills what --on-lost none keeps running",
            ));
        }
        if let Some(file) = &file {
            report::check(file, &report::REPORT)?;
        }
        let metrics = settings.pick(files.metrics_file, "metrics-file", |text| Ok(text.into()))?;
        let metrics = metrics.map(|file| MetricsFile::new(file, names.to_string())).transpose()?;
        Ok(Self {
            command: if args.shell { in_shell(args.command) } else { args.command },
            plan: Plan {
                on_lost: on_lost.unwrap_or_default(),
                grace,
                ttl: max_hold.map_or(ttl, |limit| limit.min(ttl)),
                cgroup,
                one_interrupt: false,
            },
            max_hold,
            names: names.clone(),
            file,
            metrics,
            report: Report { lock: names.to_string(), store: store.shown(), ..Report::default() },
            named_store: store.for_command(),
            is_by_ticket: false,
            store,
        })
    }

    /// Runs `work`, and writes the report about its outcome.
    pub(crate) async fn with_report(
        mut self,
        context: &Context,
        work: impl AsyncFnOnce(&mut Self) -> Result<Exit, Failure>,
    ) -> Result<Exit, Failure> {
        let outcome = work(&mut self).await;
        if let Err(failure) = &outcome {
            self.report = self.report.failed(failure);
        }
        self.write_metrics(context);
        // The command has run, so a report that cannot be written does not change the outcome.
        if let Some(Err(failure)) = self.file.map(|file| self.report.write(&file)) {
            context.output.warning(&failure.message);
        }
        outcome
    }

    /// Writes the metrics of the latest run.
    pub(crate) fn write_metrics(&self, context: &Context) {
        if let Some(Err(failure)) = self.metrics.as_ref().map(|metrics| metrics.write(&self.report)) {
            context.output.warning(&failure.message);
        }
    }

    /// Writes the metrics of a run that ended with `failure`.
    pub(crate) fn write_metrics_of(&mut self, failure: &Failure, context: &Context) {
        self.report = std::mem::take(&mut self.report).failed(failure);
        self.write_metrics(context);
    }

    /// Checks that the command can be run, and opens the store within `limit`.
    pub(crate) async fn open(&self, context: &Context, limit: Option<Duration>) -> Result<Session, Failure> {
        child::look_up(&self.command[0])?;
        self.start(context, limit, false).await
    }

    /// Like [`open`](Self::open), but also starts the process of the command. For a lock that is likely to be free.
    pub(crate) async fn open_prepared(
        &self,
        context: &Context,
        limit: Option<Duration>,
    ) -> Result<Session, Failure> {
        child::look_up(&self.command[0])?;
        self.start(context, limit, true).await
    }

    async fn start(
        &self,
        context: &Context,
        limit: Option<Duration>,
        prepare: bool,
    ) -> Result<Session, Failure> {
        let mut signals = Signals::ending().map_err(signal_error)?;
        let opened = context::open_for(self.names.first(), &self.store, limit, &context.output);
        let mut opened = std::pin::pin!(opened);
        let mut prepared = None;
        let outcome = poll!(&mut opened);
        if prepare && !matches!(outcome, Poll::Ready(Err(_))) {
            // Start the process in parallel with opening the store.
            prepared = Some(Prepared::start(&self.command, self.plan)?);
        }
        let outcome = match outcome {
            Poll::Ready(outcome) => outcome,
            Poll::Pending => signals.unless_interrupted(opened).await,
        };
        match outcome {
            Ok(locker) => {
                let clock = context::clock(&locker);
                Ok(Session { clock, locker, signals, prepared, previous_guardian: None })
            }
            Err(failure) => {
                dismiss(&mut prepared).await;
                Err(failure)
            }
        }
    }

    /// Acquires the lock.
    pub(crate) async fn acquire(
        &mut self,
        context: &Context,
        request: &Request,
        session: &mut Session,
    ) -> Result<Guard, Failure> {
        let start = session.clock.now();
        let Session { locker, signals, clock, prepared, .. } = session;
        let acquired = request.acquire(locker, &self.store, &context.output, signals);
        let acquired = with_prepared(acquired, prepared, &**clock).await;
        self.report.waited_ms = Some(ms(clock.now().longest_since(start)));
        match &acquired {
            Ok(guard) => {
                self.report.permit = request.permit(guard.name());
                if !self.names.are_several() {
                    self.report.lock = guard.name().to_string();
                }
            }
            Err(_) => dismiss(&mut session.prepared).await,
        }
        acquired
    }

    /// Waits until this candidate leads, and advertises `value`. Starts a new report for the term.
    pub(crate) async fn campaign(
        &mut self,
        context: &Context,
        request: &Request,
        value: Option<&str>,
        session: &mut Session,
    ) -> Result<Guard, Failure> {
        self.report =
            Report { lock: request.names.to_string(), store: self.store.shown(), ..Report::default() };
        let start = session.clock.now();
        let Session { locker, signals, clock, .. } = session;
        let elected = request.campaign(value, locker, &self.store, &context.output, signals).await;
        self.report.waited_ms = Some(ms(clock.now().longest_since(start)));
        elected
    }

    /// Resumes and renews the lock of `ticket`.
    pub(crate) async fn resume(&mut self, ticket: &Ticket, session: &mut Session) -> Result<Guard, Failure> {
        self.is_by_ticket = true;
        let Session { locker, signals, .. } = session;
        let resumed = signals.unless_interrupted(async {
            locker.resume(ticket).await.map_err(|error| {
                if error.kind() != ErrorKind::Lost {
                    return Failure { code: FAILED, ..error.into() };
                }
                self.report.lost_reason = error.loss().map(|loss| loss.reason.as_str());
                let (kind, code) = if is_limit(&error) { ("limit", LIMIT) } else { ("lost", LOST) };
                Failure { code, kind: kind.to_owned(), ..error.into() }.with_help("the command was not run")
            })
        });
        let resumed = resumed.await;
        if resumed.is_err() {
            dismiss(&mut session.prepared).await;
        }
        resumed
    }

    /// Returns whether the latest run lost the lock.
    pub(crate) fn was_lost(&self) -> bool {
        self.report.outcome == "lost"
    }

    /// Acquires the lock if the job is due.
    pub(crate) async fn acquire_if_due(
        &mut self,
        context: &Context,
        request: &Request,
        period: Duration,
        session: &mut Session,
    ) -> Result<Due, Failure> {
        let start = session.clock.now();
        let Session { locker, signals, clock, prepared, .. } = session;
        let due = request.acquire_if_due(period, locker, &self.store, &context.output, signals);
        let due = with_prepared(due, prepared, &**clock).await;
        self.report.waited_ms = Some(ms(clock.now().longest_since(start)));
        if !matches!(due, Ok(Due::Now(_))) {
            dismiss(&mut session.prepared).await;
        }
        due
    }

    /// Reports that the command did not run, because it ran before.
    pub(crate) fn already_ran(&mut self, context: &Context, lock: &LockName, ran: AlreadyRan) -> u8 {
        let line = human::already_ran(lock, &ran);
        let ran = EarlierRun::from(ran);
        if !context.output.quiet {
            let line =
                if context.output.json { json::already_ran(lock, &ran).to_string() } else { line.clone() };
            print_on_stderr(&format!("{line}\n"));
        }
        self.report.outcome = "already_ran".to_owned();
        self.report.message = Some(line);
        self.report.already_ran = Some(ran);
        self.report.exit_code
    }

    /// Runs the command under `guard`, ends the lease, and returns how leasehold ends.
    pub(crate) async fn run_under(
        &mut self,
        context: &Context,
        session: &mut Session,
        guard: Guard,
        completion: Completion,
    ) -> Result<Exit, Failure> {
        let Session { locker, clock, signals, prepared, previous_guardian } = session;
        let granted = clock.now();
        (self.report.token, self.report.tokens) = (guard.token().ok(), guard.tokens().ok());
        // On a terminal, Ctrl-Z stops leasehold and the command directly.
        signals.add_others(!child::is_interactive()).map_err(signal_error)?;
        if let Some(previous_guardian) = previous_guardian.take() {
            previous_guardian.end();
        }
        let supervised = self.supervise(&guard, prepared.take(), locker, signals, &**clock, &context.output);
        let mut ended = supervised.await;
        *previous_guardian = match &mut ended {
            Ok(Some(ended)) => ended.guardian.take(),
            Ok(None) | Err(_) => None,
        };
        // A signal that ended the command must not interrupt the release.
        signals.discard_pending();
        // Check before the release ends the guard, because work done after the deadline must not look protected.
        let mut loss = guard.check().err();
        self.report.held_ms = Some(ms(clock.now().longest_since(granted)));
        let stopped = matches!(&ended, Ok(Some(Ended { stopped: true, .. })));
        let at_limit = self.is_at_limit(&guard, loss.as_ref(), stopped, &**clock);
        let ending = match completion.cooldown(&ended, at_limit).filter(|_| loss.is_none()) {
            Some(period) => Ending::Cooldown(period),
            None if at_limit => Ending::AtLimit,
            None if matches!(completion, Completion::KeepHeld) => Ending::Renewal,
            None => Ending::Release,
        };
        let unrecorded = if at_limit && matches!(completion, Completion::KeepHeld) {
            // Another process may use the ticket. It may see the limit later, because the time of the grant is an
            // estimate on this machine.
            guard.lapse();
            self.report.released = Some(false);
            None
        } else {
            self.end_lease(context, guard, &mut loss, session, ending).await
        };
        let exit = self.conclude(context, ended?, loss, at_limit);
        Ok(match unrecorded {
            Some(error) => self.unrecorded(context, &error, exit),
            None => exit,
        })
    }

    /// Returns whether the hold ended at its limit: by this `loss`, or because the command was `stopped` a little
    /// before.
    fn is_at_limit(
        &self,
        guard: &Guard,
        loss: Option<&leasehold::Error>,
        stopped: bool,
        clock: &dyn Clock,
    ) -> bool {
        let before = self.plan.grace.max(self.plan.margin());
        let is_near = || guard.limit().is_some_and(|limit| limit.remaining(clock.now()) <= before);
        loss.map_or_else(|| stopped && is_near(), is_limit)
    }

    /// Runs the command. Returns `None` if the lock was lost before the command started.
    async fn supervise(
        &self,
        guard: &Guard,
        prepared: Option<Prepared>,
        locker: &Locker,
        signals: &mut Signals,
        clock: &dyn Clock,
        output: &Output,
    ) -> Result<Option<Ended>, Failure> {
        let tokens = guard
            .names()
            .map(|name| (name.as_str(), self.report.tokens.as_ref().and_then(|tokens| tokens.get(name))));
        let tokens: BTreeMap<_, _> = tokens.collect();
        let mut environment = vec![
            // With several locks, unset like the token: a script that knows of one lock must not use the first of them.
            ("LEASEHOLD_LOCK", Some(guard.name().to_string()).filter(|_| tokens.len() == 1)),
            ("LEASEHOLD_TOKENS", serde_json::to_string(&tokens).ok()),
            // Unset for a store without tokens, so that a script that needs a token fails instead of using the token of
            // another lock.
            ("LEASEHOLD_TOKEN", guard.token().ok().map(|token| token.to_string())),
            ("LEASEHOLD_PERMIT", self.report.permit.map(|permit| permit.to_string())),
        ];
        environment.push(nesting::inside(locker, guard, self.is_by_ticket));
        let mut prepared = prepared.map_or_else(|| Prepared::start(&self.command, self.plan), Ok)?;
        match add_processes(&mut prepared, guard, locker).await {
            Ok(true) => self.launch(prepared, environment, guard, signals, clock, output).await.map(Some),
            refused => {
                prepared.dismiss().await;
                refused.map(|_| None)
            }
        }
    }

    /// Runs the command with `environment`, and stops it before `hold` ends.
    async fn launch(
        &self,
        prepared: Prepared,
        mut environment: Vec<(&'static str, Option<String>)>,
        hold: &impl Hold,
        signals: &mut Signals,
        clock: &dyn Clock,
        output: &Output,
    ) -> Result<Ended, Failure> {
        environment.extend(OF_ONE_RUN.map(|variable| (variable, None)));
        environment.extend(self.named_store.clone());
        prepared.launch(&self.command, &environment)?.supervise(hold, signals, clock, output).await
    }
}

/// Adds the processes of the command to the lock. Returns whether the lock is still held.
async fn add_processes(prepared: &mut Prepared, guard: &Guard, locker: &Locker) -> Result<bool, Failure> {
    // Even if leasehold is killed, a store that detects dead processes must not free the lock before the command and
    // its guardian have ended.
    let pids = prepared.prepare()?;
    let added = locker.add_processes(guard, &pids).await;
    added.map_err(|error| Failure { code: FAILED, ..error.into() })?;
    // Adding the processes may have taken longer than the lease.
    Ok(guard.check().is_ok())
}

/// Waits for `acquired`, and starts the guardian of the command in the meantime. Ends the prepared processes if the
/// wait is long.
async fn with_prepared<T>(
    acquired: impl Future<Output = T>,
    prepared: &mut Option<Prepared>,
    clock: &dyn Clock,
) -> T {
    let mut acquired = std::pin::pin!(acquired);
    // Send the request first, because starting a process takes some tenths of a millisecond.
    if let Poll::Ready(acquired) = poll!(&mut acquired) {
        return acquired;
    }
    if let Some(prepared) = prepared {
        prepared.guard();
    }
    if let Some(acquired) = timeout(clock, PREPARED_LIFETIME, &mut acquired).await {
        return acquired;
    }
    dismiss(prepared).await;
    acquired.await
}

fn grace(settings: &Settings, flag: Option<Duration>, ttl: Duration) -> Result<Duration, Failure> {
    let Some(grace) = settings.pick(flag, "grace", duration)? else {
        return Ok(MAX_DEFAULT_GRACE.min(ttl / 3));
    };
    if grace > ttl / 2 {
        let [grace, ttl, half] = [grace, ttl, ttl / 2].map(humantime::format_duration);
        return Err(Failure::usage(format!("grace {grace} is too long for ttl {ttl} (maximum {half})")).with_help(
            "leasehold renews the lease after a third of the ttl; with this grace, one slow renewal would stop the \
             command. Increase --ttl or reduce --grace",
        ));
    }
    Ok(grace)
}

/// Checks that there is time for the command between the grant and the first signal.
fn check_limit(limit: Duration, grace: Duration) -> Result<(), Failure> {
    if limit > grace {
        return Ok(());
    }
    let [limit, grace] = [limit, grace].map(humantime::format_duration);
    Err(Failure::usage(format!("max-hold {limit} is not longer than grace {grace}")).with_help(
        "the command gets SIGTERM when --grace is left of --max-hold. Increase --max-hold or reduce --grace",
    ))
}

/// Returns whether `error` is the loss of a lock at the limit of its hold.
fn is_limit(error: &leasehold::Error) -> bool {
    error.loss().is_some_and(|loss| loss.reason == LossReason::Limit)
}

/// Returns `command` as a shell command line.
pub(crate) fn in_shell(command: Vec<OsString>) -> Vec<OsString> {
    vec!["/bin/sh".into(), "-c".into(), command.join(OsStr::new(" "))]
}

fn signal_error(error: std::io::Error) -> Failure {
    Failure::new(FAILED, "failed", format!("cannot install signal handlers: {error}"))
}
