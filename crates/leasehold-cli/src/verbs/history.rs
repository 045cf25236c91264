//! `leasehold history LOCK`: the latest grants that are over.

use crate::args::LockArgs;
use crate::context::{self, Context};
use crate::exit::Failure;
use crate::output::{human, json, print};

pub(super) async fn history(context: &Context, args: LockArgs) -> Result<u8, Failure> {
    let name = context::lock_name(&args.lock)?;
    let locker = context::open(&context.store()?).await?;
    let status = locker.inspect(&name).await?;
    if context.output.json {
        let lines: String = json::history(&status).iter().map(|grant| format!("{grant}\n")).collect();
        print(&lines)?;
    } else {
        print(&human::history(&status))?;
    }
    Ok(0)
}
