//! `leasehold run LOCK -- CMD...`: holds LOCK while CMD runs. With `--ticket`, the lock of a ticket, which stays held.

use std::ffi::OsString;

use super::ticket;
use crate::acquiring::Request;
use crate::args::{CommandArgs, IN_VARIABLE, RunArgs};
use crate::context::{self, Context, Note};
use crate::exit::Failure;
use crate::job::{Afterwards, Job};
use crate::sharing::Sharing;

pub(super) async fn run(context: &Context, args: RunArgs) -> Result<u8, Failure> {
    if let Some(given) = args.ticket {
        let afterwards = if args.release { Afterwards::Release } else { Afterwards::HandOn };
        return by_ticket(context, given, args.command, afterwards).await;
    }
    let lock = args.lock.ok_or_else(|| Failure::usage("there is no lock to run under"))?;
    let name = context::lock_name(&lock)?;
    let note = Note::of(&args.command);
    let words = ("run", " -- ...");
    let request = Request::new(&context.settings, name, &args.claim, args.command.ttl, note, words)?
        .sharing(Sharing::of(&args.sharing));
    let job = Job::new(context, args.command, &request.name, request.ttl)?;
    let work = async |job: &mut Job| {
        let mut session = job.begin_at_once().await?;
        let guard = job.acquire(context, &request, &mut session).await?;
        job.run_under(context, &mut session, guard, Afterwards::Release).await
    };
    job.reported(context, work).await
}

async fn by_ticket(
    context: &Context,
    given: OsString,
    command: CommandArgs,
    afterwards: Afterwards,
) -> Result<u8, Failure> {
    let (ticket, store) = ticket::read(context, Some(given).filter(|given| given != IN_VARIABLE))?;
    let job = Job::on(context, store, command, ticket.name(), ticket.ttl())?;
    let work = async |job: &mut Job| {
        let mut session = job.begin_at_once().await?;
        let guard = job.resume(&ticket, &mut session).await?;
        job.run_under(context, &mut session, guard, afterwards).await
    };
    job.reported(context, work).await
}
