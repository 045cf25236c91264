//! `leasehold elect NAME -- CMD...`: campaigns, runs CMD while leading, and campaigns again.

use std::time::Duration;

use clap::ValueEnum as _;
use futures_util::StreamExt as _;
use leasehold::Election;
use leasehold::lease::Ttl;
use rustix::process::Signal;

use crate::acquisition::Request;
use crate::args::{ClaimArgs, ElectArgs, OnExit, duration};
use crate::context::{self, Context, Note};
use crate::exit::{Exit, Failure};
use crate::job::{Completion, Job, Session};
use crate::leader_page::LeaderListener;
use crate::names::lock_name;
use crate::output::{human, json, print_unless_closed};
use crate::signals::interrupted;

/// Minimum delay before the next campaign, after the command has ended or the store has failed. The delay doubles each
/// time.
const MIN_PAUSE: Duration = Duration::from_secs(1);
/// Maximum delay.
const MAX_PAUSE: Duration = Duration::from_secs(30);
/// A term that lasts this long resets the delay.
const STABLE_AFTER: Duration = Duration::from_secs(10);

pub(super) async fn elect(context: &Context, args: ElectArgs) -> Result<Exit, Failure> {
    let name = lock_name(&args.name)?;
    #[cfg(feature = "serve")]
    let listener =
        args.http.map(|address| crate::leader_page::listen(address, &context.output)).transpose()?;
    #[cfg(not(feature = "serve"))]
    let listener = None;
    if args.observe {
        return observe(context, name.as_str(), args.once, listener).await;
    }
    let value = value(context, args.value)?;
    let on_exit = context.settings.pick(args.on_exit, "on-exit", |text| OnExit::from_str(text, false))?;
    let note = Note::of(&args.command);
    let request = Request::new(
        &context.settings,
        name.clone().into(),
        (&ClaimArgs::default(), &args.client),
        args.command.lease(),
        note,
        ("elect", " -- ..."),
    )?
    .wait_forever();
    let job =
        Job::new(context, (args.command, args.report), &request.names, (request.ttl, request.max_hold))?;
    let on_exit = on_exit.unwrap_or_default();
    let candidate = Candidate { context, request, value, on_exit, once: args.once };
    job.with_report(context, async |job: &mut Job| candidate.run(job, listener).await).await
}

struct Candidate<'a> {
    context: &'a Context,
    request: Request,
    value: Option<String>,
    on_exit: OnExit,
    /// Whether to lead for only one term.
    once: bool,
}

impl Candidate<'_> {
    /// Runs one term after another.
    async fn run(&self, job: &mut Job, listener: Option<LeaderListener>) -> Result<Exit, Failure> {
        let mut session = job.open(self.context, self.request.opening_limit()).await?;
        // If the store is unreachable, fail now instead of retrying forever, so that the user notices.
        let election = session.locker.election(self.request.names.first().as_str());
        session.signals.unless_interrupted(async { Ok(election.leader().await?) }).await?;
        let page = listener.map(|listener| listener.serve(session.clock.clone(), self.request.ttl));
        if let Some(page) = page.clone() {
            tokio::spawn(async move { page.observe(&election).await });
        }
        let mut pause = MIN_PAUSE;
        loop {
            let guard =
                match job.campaign(self.context, &self.request, self.value.as_deref(), &mut session).await {
                    Ok(guard) => guard,
                    Err(failure) if failure.kind == "unavailable" => {
                        self.back_off(&format!("cannot campaign: {}", failure.message), pause, &mut session)
                            .await?;
                        pause = (pause * 2).min(MAX_PAUSE);
                        continue;
                    }
                    Err(failure) => return Err(failure),
                };
            if let Some(page) = &page {
                page.leads(&guard, self.value.as_deref());
            }
            let elected = session.clock.now();
            let ended = job.run_under(self.context, &mut session, guard, Completion::Release).await;
            let signal = session.signals.ending_signal();
            let is_asked_to_end = |exit: Option<Exit>| match signal {
                // Many programs reload their settings on SIGHUP. It ends the candidate only if it ended the command.
                Some(Signal::HUP) => exit.map(Exit::code) == Some(Exit::By(Signal::HUP).code()),
                signal => signal.is_some(),
            };
            let ends = self.once || self.on_exit == OnExit::Exit || is_asked_to_end(None);
            let exit = match ended {
                // The program may be missing only while it is replaced.
                Err(failure) if failure.is_of_execution() && !ends => {
                    job.write_metrics_of(&failure, self.context);
                    self.back_off(&failure.message, pause, &mut session).await?;
                    pause = (pause * 2).min(MAX_PAUSE);
                    continue;
                }
                ended => ended?,
            };
            job.write_metrics(self.context);
            if is_asked_to_end(Some(exit)) || self.once || (self.on_exit == OnExit::Exit && !job.was_lost()) {
                return Ok(exit);
            }
            if session.clock.now().longest_since(elected) >= STABLE_AFTER {
                pause = MIN_PAUSE;
            }
            // After a loss, campaign without a delay, because another candidate already leads or the store is down.
            if !job.was_lost() {
                let why = format!("the command ended with exit code {}", exit.code());
                self.back_off(&why, pause, &mut session).await?;
                pause = (pause * 2).min(MAX_PAUSE);
            }
        }
    }

    async fn back_off(&self, why: &str, pause: Duration, session: &mut Session) -> Result<(), Failure> {
        if !self.context.output.quiet {
            self.context.output.warning(&format!("{why}; campaigning again in {}", human::span(pause)));
        }
        let Session { locker, clock, signals, .. } = session;
        tokio::select! {
            () = clock.sleep(locker.store().env().random.jittered(pause, 0.1)) => Ok(()),
            signal = signals.next_ending() => Err(interrupted(signal)),
        }
    }
}

fn value(context: &Context, flag: Option<String>) -> Result<Option<String>, Failure> {
    let value = context.settings.pick(flag, "value", |text| Ok(text.to_owned()))?;
    let characters = value.as_ref().map_or(0, |value| value.chars().count());
    if characters > Election::MAX_VALUE {
        let most = Election::MAX_VALUE;
        return Err(Failure::usage(format!("the value has {characters} characters (maximum {most})"))
            .with_help("advertise an address and serve larger data from there"));
    }
    Ok(value)
}

/// Prints the current leader, and each change until stdout is closed. With `once`, prints only the current leader.
async fn observe(
    context: &Context,
    name: &str,
    once: bool,
    listener: Option<LeaderListener>,
) -> Result<Exit, Failure> {
    let ttl = context.settings.pick(None, "ttl", duration)?.unwrap_or(Ttl::DEFAULT.get());
    let locker = context::open(&context.store()?).await?;
    let election = locker.election(name);
    let page = listener.map(|listener| listener.serve(context::clock(&locker), ttl));
    let mut read = match &page {
        Some(page) => election.observe_every(page.pause()),
        None => election.observe(),
    };
    let mut printed = None;
    while let Some(leader) = read.next().await {
        let leader = leader?;
        if let Some(page) = &page {
            page.saw(leader.clone());
        }
        if page.is_some() && printed.as_ref() == Some(&leader) {
            continue;
        }
        let line = if context.output.json {
            json::leader(name, leader.as_ref()).to_string()
        } else {
            human::leader(leader.as_ref())
        };
        if !print_unless_closed(&format!("{line}\n"))? || once {
            break;
        }
        printed = Some(leader);
    }
    Ok(Exit::Code(0))
}
