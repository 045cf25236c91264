//! A command that runs under a lock: what is run, how it is supervised and with_report, and what becomes of the lock then.

use std::ffi::{OsStr, OsString};
use std::io::Write as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use clap::ValueEnum as _;
use futures_util::poll;
use leasehold::clock::{Clock, timeout};
use leasehold::{AlreadyRan, Due, Error, ErrorKind, Guard, LockName, Locker, Released, Ticket};

use crate::acquisition::{CANCEL_TIMEOUT, Request};
use crate::args::{CommandArgs, OnLost, duration};
use crate::child::{self, Dismissed, Ended, Hold, Plan, Prepared};
use crate::config::{Settings, Store};
use crate::context::{self, Context};
use crate::exit::{FAILED, Failure, LOST, of_child};
use crate::output::{human, json};
use crate::report::{self, EarlierRun, Report, ms};
use crate::signals::Signals;

/// The longest default grace.
const GRACE: Duration = Duration::from_secs(10);

/// Who has waited for a lock for so long no longer keeps a process for its command.
const PREPARED_LIFETIME: Duration = Duration::from_secs(2);

/// A command that is to run under a lock.
#[derive(Debug)]
pub(crate) struct Job {
    command: Vec<OsString>,
    plan: Plan,
    store: Store,
    /// Where the report goes.
    file: Option<PathBuf>,
    report: Report,
}

/// What a job needs to take its lock and to run: the store, and the signals that are meant for it or for its command.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) locker: Locker,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) signals: Signals,
    /// What becomes the command, if it was started already.
    prepared: Option<Prepared>,
    /// The guardian of the command that ran before.
    previous_guardian: Option<Dismissed>,
}

/// What becomes of the lock once the command has ended and the lock was ours until then.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Completion {
    /// It is free.
    Release,
    /// It stays held, by its ticket.
    KeepHeld,
    /// It rests until so long after its grant, if the command has succeeded; or else, too.
    Cooldown { period: Duration, count_failures: bool },
}

impl Completion {
    /// How long the lock rests after a command that ended so.
    fn cooldown(self, ended: &Result<Ended, Failure>) -> Option<Duration> {
        match (self, ended) {
            (Self::Cooldown { period, count_failures }, Ok(ended)) => {
                let counts = ended.status.success() || count_failures;
                Some(period).filter(|_| counts && !ended.stopped)
            }
            (Self::Release | Self::KeepHeld, _) | (_, Err(_)) => None,
        }
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
    /// What `args` describe, to run under a lease of `ttl`. Finds out first whether its report can be written.
    pub(crate) fn new(
        context: &Context,
        args: CommandArgs,
        lock: &LockName,
        ttl: Duration,
    ) -> Result<Self, Failure> {
        Self::on(context, context.store()?, args, lock, ttl)
    }

    /// The same, with the lock in `store`.
    pub(crate) fn on(
        context: &Context,
        store: Store,
        args: CommandArgs,
        lock: &LockName,
        ttl: Duration,
    ) -> Result<Self, Failure> {
        let settings = &context.settings;
        let file = settings.pick(args.report, "report", |text| Ok(text.into()))?;
        let on_lost = settings.pick(args.on_lost, "on-lost", |text| OnLost::from_str(text, false))?;
        let grace = grace(settings, args.grace, ttl)?;
        let cgroup = Settings::switch(args.cgroup, "cgroup")?;
        if cgroup && on_lost == Some(OnLost::None) {
            return Err(Failure::usage(
                "--cgroup cannot be used with --on-lost none: --cgroup kills what --on-lost none keeps running",
            ));
        }
        if let Some(file) = &file {
            report::check(file)?;
        }
        Ok(Self {
            command: if args.shell { in_shell(args.command) } else { args.command },
            plan: Plan { on_lost: on_lost.unwrap_or_default(), grace, ttl, cgroup },
            file,
            report: Report { lock: lock.to_string(), store: store.shown(), ..Report::default() },
            store,
        })
    }

    /// Does `work`, and writes the report of how it ended.
    pub(crate) async fn with_report(
        mut self,
        context: &Context,
        work: impl AsyncFnOnce(&mut Self) -> Result<u8, Failure>,
    ) -> Result<u8, Failure> {
        let outcome = work(&mut self).await;
        let mut report = self.report;
        if let Err(failure) = &outcome {
            report = report.failed(failure);
        }
        // What was run was run: a report that cannot be written does not change how it ended.
        if let Some(Err(failure)) = self.file.map(|file| report.write(&file)) {
            context.output.warning(&failure.message);
        }
        outcome
    }

    /// Finds out whether the command can be run, and opens the store.
    pub(crate) async fn open(&self) -> Result<Session, Failure> {
        child::look_up(&self.command[0])?;
        self.start(false).await
    }

    /// The same for a lock that will mostly be had at once: until then the command's process has the time to start.
    pub(crate) async fn open_prepared(&self) -> Result<Session, Failure> {
        child::look_up(&self.command[0])?;
        self.start(true).await
    }

    async fn start(&self, prepare: bool) -> Result<Session, Failure> {
        let mut signals = Signals::ending().map_err(signal_error)?;
        let mut opened = std::pin::pin!(context::open(&self.store));
        let mut prepared = None;
        let outcome = poll!(&mut opened);
        if prepare && !matches!(outcome, Poll::Ready(Err(_))) {
            // While the store is opened.
            prepared = Some(Prepared::start(&self.command, self.plan)?);
        }
        let locker = match outcome {
            Poll::Ready(outcome) => outcome?,
            Poll::Pending => signals.unless(opened).await?,
        };
        Ok(Session { clock: context::clock(&locker), locker, signals, prepared, previous_guardian: None })
    }

    /// Takes the lock.
    pub(crate) async fn acquire(
        &mut self,
        context: &Context,
        request: &Request,
        session: &mut Session,
    ) -> Result<Guard, Failure> {
        let asked = session.clock.now();
        let Session { locker, signals, clock, prepared, .. } = session;
        let acquired = request.acquire(locker, &self.store, &context.output, signals);
        let acquired = with_prepared(acquired, prepared, &**clock).await;
        self.report.waited_ms = Some(ms(clock.now().longest_since(asked)));
        if let Ok(guard) = &acquired {
            self.report.permit = request.permit(guard.name());
            self.report.lock = guard.name().to_string();
        }
        acquired
    }

    /// Waits until this candidate leads, and advertises `value`. The report is that of the term to come.
    pub(crate) async fn campaign(
        &mut self,
        context: &Context,
        request: &Request,
        value: Option<&str>,
        session: &mut Session,
    ) -> Result<Guard, Failure> {
        self.report =
            Report { lock: request.name.to_string(), store: self.store.shown(), ..Report::default() };
        let asked = session.clock.now();
        let Session { locker, signals, clock, .. } = session;
        let elected = request.campaign(value, locker, &self.store, &context.output, signals).await;
        self.report.waited_ms = Some(ms(clock.now().longest_since(asked)));
        elected
    }

    /// Takes up the lock of `ticket`, which renews it.
    pub(crate) async fn resume(&mut self, ticket: &Ticket, session: &mut Session) -> Result<Guard, Failure> {
        let Session { locker, signals, .. } = session;
        let resumed = signals.unless(async { Ok(locker.resume(ticket).await) }).await?;
        resumed.map_err(|error| {
            if error.kind() != ErrorKind::Lost {
                return Failure { code: FAILED, ..error.into() };
            }
            self.report.lost_reason = error.loss().map(report::reason);
            Failure { code: LOST, ..Failure::from(error) }.with_help("the command was not run")
        })
    }

    /// Whether the lock was lost in the latest run.
    pub(crate) fn was_lost(&self) -> bool {
        self.report.outcome == "lost"
    }

    /// Takes the lock if what is to be done once per `period` is due.
    pub(crate) async fn acquire_if_due(
        &mut self,
        context: &Context,
        request: &Request,
        period: Duration,
        session: &mut Session,
    ) -> Result<Due, Failure> {
        let asked = session.clock.now();
        let Session { locker, signals, clock, prepared, .. } = session;
        let due = request.acquire_if_due(period, locker, &self.store, &context.output, signals);
        let due = with_prepared(due, prepared, &**clock).await;
        self.report.waited_ms = Some(ms(clock.now().longest_since(asked)));
        due
    }

    /// Says that the command was not run, because it `ran` already.
    pub(crate) fn already_ran(&mut self, context: &Context, lock: &LockName, ran: AlreadyRan) -> u8 {
        let line = human::already_ran(lock, &ran);
        let ran = EarlierRun::from(ran);
        if !context.output.quiet {
            let line =
                if context.output.json { json::already_ran(lock, &ran).to_string() } else { line.clone() };
            // Nobody who reads is nobody who is told.
            let _ = writeln!(std::io::stderr(), "{line}");
        }
        self.report.outcome = "already_ran".to_owned();
        self.report.message = Some(line);
        self.report.already_ran = Some(ran);
        self.report.exit_code
    }

    /// Runs the command under `guard`, ends the guard, and says how it all ended.
    pub(crate) async fn run_under(
        &mut self,
        context: &Context,
        session: &mut Session,
        guard: Guard,
        completion: Completion,
    ) -> Result<u8, Failure> {
        let Session { locker, clock, signals, prepared, previous_guardian } = session;
        let granted = clock.now();
        self.report.token = guard.token().ok();
        // On a terminal Ctrl-Z stops us and the command alike, without our help.
        signals.add_others(!child::is_interactive()).map_err(signal_error)?;
        if let Some(previous_guardian) = previous_guardian.take() {
            previous_guardian.end();
        }
        let mut ended = self.supervise(&guard, prepared.take(), locker, signals, &**clock).await;
        *previous_guardian = ended.as_mut().ok().and_then(|ended| ended.guardian.take());
        // What ended the command was not meant for the release.
        signals.discard_pending();
        // The clock decides, before the release ends the guard: work done after the deadline must not look protected.
        let mut loss = guard.check().err();
        self.report.held_ms = Some(ms(clock.now().longest_since(granted)));
        let cooldown = completion.cooldown(&ended).filter(|_| loss.is_none());
        let unrecorded = self.end_lease(context, guard, &mut loss, session, (completion, cooldown)).await;
        let code = self.conclude(context, ended?, loss)?;
        Ok(match unrecorded {
            Some(error) => self.unrecorded(context, &error, code),
            None => code,
        })
    }

    async fn supervise(
        &self,
        guard: &Guard,
        prepared: Option<Prepared>,
        locker: &Locker,
        signals: &mut Signals,
        clock: &dyn Clock,
    ) -> Result<Ended, Failure> {
        let environment = [
            ("LEASEHOLD_LOCK", Some(guard.name().to_string())),
            // Of a store without tokens: absent, so that a script that needs one fails, and is not given another lock's.
            ("LEASEHOLD_TOKEN", guard.token().ok().map(|token| token.to_string())),
            ("LEASEHOLD_PERMIT", self.report.permit.map(|permit| permit.to_string())),
            ("LEASEHOLD_STORE", Some(self.store.shown())),
        ];
        let mut prepared = prepared.map_or_else(|| Prepared::start(&self.command, self.plan), Ok)?;
        // If we are killed, the lock is not free before the command and its guardian have ended.
        let pids = prepared.prepare()?;
        let added = locker.add_processes(guard, &pids).await;
        added.map_err(|error| Failure { code: FAILED, ..error.into() })?;
        // That may have taken longer than the lease lasts.
        guard.check()?;
        prepared.launch(&self.command, &environment)?.supervise(guard, signals, clock).await
    }

    /// Ends the guard, and lets the lock rest; a loss that only the store knows of goes into `loss`. Gives the error when
    /// the store could not be told of the rest.
    async fn end_lease(
        &mut self,
        context: &Context,
        guard: Guard,
        loss: &mut Option<Error>,
        session: &mut Session,
        (completion, cooldown): (Completion, Option<Duration>),
    ) -> Option<Error> {
        let name = guard.name().clone();
        let locker = session.locker.clone();
        let left = guard.remaining();
        let ended = async {
            match (cooldown, completion) {
                (Some(period), _) => guard.rest(period).await,
                (None, Completion::KeepHeld) => renew_ticket(guard, &locker).await,
                (None, _) => guard.release().await,
            }
        };
        let mut unrecorded = None;
        let ours = match within_lease(ended, left, session).await {
            Ok(Released::Released) => true,
            Ok(Released::AlreadyLost) => {
                // The store knows better: ended by somebody else since the last renewal, while the command ran.
                let message = format!("lock `{name}` was lost before the command ended");
                loss.get_or_insert_with(|| Error::new(ErrorKind::Lost, message));
                false
            }
            Err(error) if cooldown.is_some() => {
                unrecorded = Some(error);
                false
            }
            Err(error) => {
                let what = match completion {
                    Completion::KeepHeld => "the lock of the ticket was not renewed",
                    Completion::Release | Completion::Cooldown { .. } => "the lock was not released",
                };
                context.output.warning(&format!("{what} and stays held until its lease ends: {error}"));
                false
            }
        };
        self.report.released = Some(ours && !matches!(completion, Completion::KeepHeld));
        self.report.rests = cooldown.map(|_| ours);
        unrecorded
    }

    /// What to exit with when the command ran, and the store does not know. It is not done once for the period then: one
    /// that succeeded must not look as if it were.
    fn unrecorded(&mut self, context: &Context, error: &Error, code: u8) -> u8 {
        const AGAIN: &str = "the command may run again within its period";
        let result = if code == 0 { "succeeded" } else { "failed" };
        let message = format!(
            "`{}` {result}, but the run could not be recorded in the store: {error}",
            self.report.lock
        );
        if code != 0 {
            context.output.warning(&format!("{message}; {AGAIN}"));
            return code;
        }
        context.output.failure(&Failure::new(FAILED, "not_told", message.clone()).with_help(AGAIN));
        self.report.outcome = "not_told".to_owned();
        self.report.exit_code = FAILED;
        self.report.message = Some(message);
        FAILED
    }

    fn conclude(&mut self, context: &Context, ended: Ended, loss: Option<Error>) -> Result<u8, Failure> {
        let report = &mut self.report;
        report.command_exit_code = ended.status.code();
        report.command_signal = child::ending_signal(ended.status);
        if !ended.stopped && loss.is_none() {
            if ended.left_behind && !context.output.quiet {
                context
                    .output
                    .warning("terminated processes that the command left running in its process group");
            }
            report.outcome = if ended.status.code().is_some() { "exited" } else { "signaled" }.to_owned();
            report.exit_code = of_child(ended.status);
            return Ok(report.exit_code);
        }
        let message = loss.as_ref().map_or_else(
            || {
                // The words of a lease that has ended: which of the two comes first is a matter of milliseconds.
                let token = report.token.map(|token| format!(" (token {token})")).unwrap_or_default();
                format!("lock `{}`{token} was lost: its lease was not renewed in time", report.lock)
            },
            ToString::to_string,
        );
        report.lost_reason = Some(match &loss {
            None => "not_renewed",
            Some(error) => error.loss().map_or("ended", report::reason),
        });
        report.outcome = "lost".to_owned();
        report.exit_code = LOST;
        report.message = Some(message.clone());
        context.output.failure(&Failure::new(LOST, "lost", message).with_help(if ended.stopped {
            "the command was stopped; its last work may be incomplete"
        } else {
            "the last work of the command may have run without the lock"
        }));
        Ok(LOST)
    }
}

/// Stops to renew, and renews by the ticket once: whoever uses it next has a whole ttl, and whether the lock was ours until
/// now is known, as by a release.
async fn renew_ticket(guard: Guard, locker: &Locker) -> leasehold::Result<Released> {
    let renewed = async { locker.renew(&guard.into_ticket().await?).await };
    match renewed.await {
        Ok(_) => Ok(Released::Released),
        Err(error) if error.kind() == ErrorKind::Lost => Ok(Released::AlreadyLost),
        Err(error) => Err(error),
    }
}

/// Waits for `acquired`, and has the command's guardian start meanwhile; if that takes long, without the command's
/// processes.
async fn with_prepared<T>(
    acquired: impl Future<Output = T>,
    prepared: &mut Option<Prepared>,
    clock: &dyn Clock,
) -> T {
    let mut acquired = std::pin::pin!(acquired);
    // The store is asked first: to start a process takes us some tenths of a millisecond.
    if let Poll::Ready(acquired) = poll!(&mut acquired) {
        return acquired;
    }
    if let Some(prepared) = prepared {
        prepared.guard();
    }
    if let Some(acquired) = timeout(clock, PREPARED_LIFETIME, &mut acquired).await {
        return acquired;
    }
    if let Some(prepared) = prepared.take() {
        prepared.dismiss().await;
    }
    acquired.await
}

/// When the store hangs, what ends the guard is broken off by a signal, and at the end of the lease, of which `left` is left:
/// then it changes nothing any more.
async fn within_lease(
    ended: impl Future<Output = leasehold::Result<Released>>,
    left: Duration,
    session: &mut Session,
) -> leasehold::Result<Released> {
    let Session { signals, clock, .. } = session;
    let mut ended = std::pin::pin!(ended);
    tokio::select! {
        biased;
        released = &mut ended => released,
        () = clock.sleep(left) => {
            Err(Error::new(ErrorKind::Unavailable, "the store did not answer before the lease ended"))
        }
        _ = signals.next_ending() => match timeout(&**clock, CANCEL_TIMEOUT, ended).await {
            Some(released) => released,
            None => Err(Error::new(ErrorKind::Unavailable, "interrupted by a signal")),
        },
    }
}

fn grace(settings: &Settings, flag: Option<Duration>, ttl: Duration) -> Result<Duration, Failure> {
    let Some(grace) = settings.pick(flag, "grace", duration)? else { return Ok(GRACE.min(ttl / 3)) };
    if grace > ttl / 2 {
        let [grace, ttl, half] = [grace, ttl, ttl / 2].map(humantime::format_duration);
        return Err(Failure::usage(format!("grace {grace} is too long for ttl {ttl} (maximum {half})")).with_help(
            "leasehold renews the lease after a third of the ttl; with this grace, one slow renewal would stop the \
             command. Increase --ttl or reduce --grace",
        ));
    }
    Ok(grace)
}

/// `command` as a line for a shell.
pub(crate) fn in_shell(command: Vec<OsString>) -> Vec<OsString> {
    vec!["/bin/sh".into(), "-c".into(), command.join(OsStr::new(" "))]
}

fn signal_error(error: std::io::Error) -> Failure {
    Failure::new(FAILED, "failed", format!("cannot install signal handlers: {error}"))
}
