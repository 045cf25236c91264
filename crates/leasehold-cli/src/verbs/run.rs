//! `leasehold run LOCK -- CMD...`: holds LOCK while CMD runs.

use std::ffi::OsString;
use std::time::Duration;

use clap::ValueEnum as _;
use leasehold::clock::{Clock, Moment, timeout};
use leasehold::lease::Id;
use leasehold::{Guard, Released};

use crate::acquiring::{Request, WITHDRAWAL};
use crate::args::{OnLost, RunArgs, duration};
use crate::child::{self, Ended, Hold, Plan};
use crate::config::{Settings, Store};
use crate::context::{self, Context};
use crate::exit::{FAILED, Failure, LOST, of_child};
use crate::output::json::ms;
use crate::report::{self, Report};
use crate::signals::Signals;

/// The longest default grace.
const GRACE: Duration = Duration::from_secs(10);

pub(super) async fn run(context: &Context, args: RunArgs) -> Result<u8, Failure> {
    let (settings, output) = (&context.settings, &context.output);
    let file = settings.pick(args.report.clone(), "report", |text| Ok(text.into()))?;
    let mut job = Job::new(context, args)?;
    if let Some(file) = &file {
        report::check(file)?;
    }
    let outcome = job.execute(context).await;
    let mut report = std::mem::take(&mut job.report);
    if let Err(failure) = &outcome {
        report = report.failed(failure);
    }
    // What was run was run: a report that cannot be written does not change how it ended.
    if let Some(Err(failure)) = file.map(|file| report.write(&file)) {
        output.warning(&failure.message);
    }
    outcome
}

/// One `run`.
struct Job {
    request: Request,
    plan: Plan,
    command: Vec<OsString>,
    store: Store,
    report: Report,
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
    fn new(context: &Context, args: RunArgs) -> Result<Self, Failure> {
        let settings = &context.settings;
        let name = context::lock_name(&args.lock.lock)?;
        let line = context::line_of(&args.command);
        let words = ("run", " -- ...");
        let request = Request::new(settings, name, &args.claim, args.ttl, line, words)?;
        let on_lost = settings.pick(args.on_lost, "on-lost", |text| OnLost::from_str(text, false))?;
        let grace = grace(settings, args.grace, request.ttl)?;
        let plan = Plan { on_lost: on_lost.unwrap_or_default(), grace, ttl: request.ttl };
        let store = context.store()?;
        let report = Report { lock: request.name.to_string(), store: store.shown(), ..Report::default() };
        let command = if args.shell { in_shell(args.command) } else { args.command };
        Ok(Self { request, plan, command, store, report })
    }

    async fn execute(&mut self, context: &Context) -> Result<u8, Failure> {
        let output = &context.output;
        child::look_up(&self.command[0])?;
        let unable = |error| Failure::new(FAILED, "failed", format!("cannot receive signals: {error}"));
        let mut signals = Signals::ending().map_err(unable)?;
        let locker = signals.unless(context::open(&self.store)).await?;
        let clock = context::clock(&locker);
        let asked = clock.now();
        let acquired = self.request.acquire(&locker, &self.store, output, &mut signals).await;
        let granted = clock.now();
        self.report = std::mem::take(&mut self.report).waited(granted.longest_since(asked));
        let guard = acquired?;
        self.report.token = guard.token().ok();
        // On a terminal Ctrl-Z stops us and the command alike, without our help.
        signals.add_others(!child::is_interactive()).map_err(unable)?;
        let run = Id::random(&locker.store().env().random);
        let ended = self.supervise(&guard, run, &mut signals, &*clock).await;
        // What ended the command was not meant for the release.
        signals.forget();
        self.conclude(context, guard, granted, &*clock, &mut signals, ended).await
    }

    async fn supervise(
        &self,
        guard: &Guard,
        run: Id,
        signals: &mut Signals,
        clock: &dyn Clock,
    ) -> Result<Ended, Failure> {
        let environment = [
            ("LEASEHOLD_LOCK", Some(guard.name().to_string())),
            // Of a store without tokens: absent, so that a script that needs one fails, and is not given another lock's.
            ("LEASEHOLD_TOKEN", guard.token().ok().map(|token| token.to_string())),
            ("LEASEHOLD_STORE", Some(self.store.shown())),
            (child::RUN, Some(run.to_string())),
        ];
        child::launch(&self.command, &environment, self.plan)?.supervise(guard, signals, clock).await
    }

    /// Releases the lock, and says how it all ended.
    async fn conclude(
        &mut self,
        context: &Context,
        guard: Guard,
        granted: Moment,
        clock: &dyn Clock,
        signals: &mut Signals,
        ended: Result<Ended, Failure>,
    ) -> Result<u8, Failure> {
        // The clock decides, before the release ends the guard: work done after the deadline must not look protected.
        let mut loss = guard.check().err();
        let name = guard.name().clone();
        self.report.held_ms = Some(ms(clock.now().longest_since(granted)));
        let released = match released(guard, clock, signals).await {
            Ok(Released::Released) => true,
            Ok(Released::AlreadyLost) => {
                // The store knows better: ended by somebody else since the last renewal, while the command ran.
                let message = format!("lock `{name}` was not ours any more when the command had ended");
                loss.get_or_insert_with(|| leasehold::Error::new(leasehold::ErrorKind::Lost, message));
                false
            }
            Err(error) => {
                context.output.warning(&format!("the lock was not released, it lapses by itself: {error}"));
                false
            }
        };
        self.report.released = Some(released);
        let ended = ended?;
        self.judge(context, ended, loss)
    }

    fn judge(
        &mut self,
        context: &Context,
        ended: Ended,
        loss: Option<leasehold::Error>,
    ) -> Result<u8, Failure> {
        let report = &mut self.report;
        report.command_exit_code = ended.status.code();
        report.command_signal = child::ending_signal(ended.status);
        if !ended.stopped && loss.is_none() {
            if ended.left_behind && !context.output.quiet {
                context
                    .output
                    .warning("ended processes that the command had left behind in its process group");
            }
            report.outcome = if ended.status.code().is_some() { "exited" } else { "signaled" }.to_owned();
            report.exit_code = of_child(ended.status);
            return Ok(report.exit_code);
        }
        let message = loss.as_ref().map_or_else(
            || {
                format!(
                    "lock `{}` was not renewed in time: the command was stopped before the lease ended",
                    report.lock
                )
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
            "the command was ended; what it did last may be incomplete"
        } else {
            "what the command did last may have been done without the lock"
        }));
        Ok(LOST)
    }
}

/// Releases the lock; a signal breaks that off, when the store hangs.
async fn released(guard: Guard, clock: &dyn Clock, signals: &mut Signals) -> leasehold::Result<Released> {
    let mut release = std::pin::pin!(guard.release());
    tokio::select! {
        biased;
        released = &mut release => released,
        _ = signals.next_ending() => match timeout(clock, WITHDRAWAL, release).await {
            Some(released) => released,
            None => Err(leasehold::Error::new(leasehold::ErrorKind::Unavailable, "interrupted by a signal")),
        },
    }
}

fn grace(settings: &Settings, flag: Option<Duration>, ttl: Duration) -> Result<Duration, Failure> {
    let Some(grace) = settings.pick(flag, "grace", duration)? else { return Ok(GRACE.min(ttl / 3)) };
    if grace > ttl / 2 {
        let (grace, ttl) = (humantime::format_duration(grace), humantime::format_duration(ttl));
        return Err(Failure::usage(format!("a grace of {grace} is more than half of the ttl of {ttl}")).with_help(
            "the lease is renewed when a third of the ttl has passed; with so long a grace, one slow renewal would \
             already stop the command. Give a longer --ttl or a shorter --grace",
        ));
    }
    Ok(grace)
}

fn in_shell(command: Vec<OsString>) -> Vec<OsString> {
    vec!["/bin/sh".into(), "-c".into(), command.join(std::ffi::OsStr::new(" "))]
}
