//! `leasehold run LOCK -- CMD...`: holds LOCK while CMD runs.

use crate::acquiring::Request;
use crate::args::RunArgs;
use crate::context::{self, Context};
use crate::exit::Failure;
use crate::job::{Afterwards, Job};

pub(super) async fn run(context: &Context, args: RunArgs) -> Result<u8, Failure> {
    let name = context::lock_name(&args.lock.lock)?;
    let line = context::line_of(&args.command.command);
    let words = ("run", " -- ...");
    let request = Request::new(&context.settings, name, &args.claim, args.command.ttl, line, words)?;
    let job = Job::new(context, args.command, &request.name, request.ttl)?;
    let work = async |job: &mut Job| {
        let mut session = job.begin().await?;
        let guard = job.acquire(context, &request, &mut session).await?;
        job.run_under(context, &mut session, guard, Afterwards::Release).await
    };
    job.reported(context, work).await
}
