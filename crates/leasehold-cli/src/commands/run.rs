//! `leasehold run LOCK... -- CMD...`: runs CMD while holding all of the locks. With `--ticket`, they stay held by the
//! ticket.

use std::ffi::OsString;

use super::ticket;
use crate::acquisition::Request;
use crate::args::{CommandArgs, IN_VARIABLE, ReportArgs, RunArgs};
use crate::context::{Context, Note};
use crate::exit::{Exit, Failure};
use crate::job::{Completion, Job};
use crate::names::Names;

pub(super) async fn run(context: &Context, args: RunArgs) -> Result<Exit, Failure> {
    if let Some(given) = args.ticket {
        let completion = if args.release { Completion::Release } else { Completion::KeepHeld };
        return by_ticket(context, given, (args.command, args.report), completion).await;
    }
    let names = Names::parse(&args.locks)?;
    let note = Note::of(&args.command);
    let words = ("run", " -- ...");
    let request = Request::new(
        &context.settings,
        names,
        (&args.claim, &args.client),
        args.command.lease(),
        note,
        words,
    )?
    .mode(args.mode.mode())?;
    let job =
        Job::new(context, (args.command, args.report), &request.names, (request.ttl, request.max_hold))?;
    let work = async |job: &mut Job| {
        let mut session = job.open_prepared(context, request.opening_limit()).await?;
        let guard = job.acquire(context, &request, &mut session).await?;
        job.run_under(context, &mut session, guard, Completion::Release).await
    };
    job.with_report(context, work).await
}

async fn by_ticket(
    context: &Context,
    given: OsString,
    command: (CommandArgs, ReportArgs),
    completion: Completion,
) -> Result<Exit, Failure> {
    let (ticket, store) = ticket::read(context, Some(given).filter(|given| given != IN_VARIABLE))?;
    let job = Job::on(context, store, command, &Names::of(&ticket), (ticket.ttl(), ticket.max_hold()))?;
    let work = async |job: &mut Job| {
        let mut session = job.open_prepared(context, None).await?;
        let guard = job.resume(&ticket, &mut session).await?;
        job.run_under(context, &mut session, guard, completion).await
    };
    job.with_report(context, work).await
}
