//! `leasehold once LOCK --per 1h -- CMD...`: runs CMD once per period, on one of several machines.

use std::time::Duration;

use leasehold::{Due, OncePer};

use crate::acquisition::Request;
use crate::args::{OnceArgs, duration};
use crate::config::Settings;
use crate::context::{Context, Note};
use crate::exit::{Exit, Failure};
use crate::job::{Completion, Job};
use crate::names::lock_name;
use crate::output::human;

pub(super) async fn once(context: &Context, args: OnceArgs) -> Result<Exit, Failure> {
    let name = lock_name(&args.lock.lock)?;
    let period = period(&context.settings, args.per)?;
    let count_failures = Settings::switch(args.count_failures, "count-failures")?;
    let note = Note::of(&args.command);
    let words = ("once", " --per ... -- ...");
    let request = Request::new(
        &context.settings,
        name.clone().into(),
        (&args.claim, &args.client),
        args.command.lease(),
        note,
        words,
    )?;
    let job =
        Job::new(context, (args.command, args.report), &request.names, (request.ttl, request.max_hold))?;
    let work = async |job: &mut Job| {
        let mut session = job.open_prepared(context, request.opening_limit()).await?;
        match job.acquire_if_due(context, &request, period, &mut session).await? {
            Due::Now(guard) => {
                let completion = Completion::Cooldown { period, count_failures };
                job.run_under(context, &mut session, guard, completion).await
            }
            Due::AlreadyRan(ran) => Ok(job.already_ran(context, &name, ran).into()),
        }
    };
    job.with_report(context, work).await
}

fn period(settings: &Settings, flag: Option<Duration>) -> Result<Duration, Failure> {
    let Some(period) = settings.pick(flag, "per", duration)? else {
        return Err(Failure::usage("--per is missing")
            .with_help("set the period: --per 10m, or --per 12h for a daily job"));
    };
    if period.is_zero() || period > OncePer::LONGEST {
        let shown = human::span(period);
        return Err(Failure::usage(format!(
            "period {shown} is out of range (more than 0, at most 366 days)"
        ))
        .with_help("the period is the minimum time between the grants of two runs, for example --per 10m"));
    }
    Ok(period)
}
