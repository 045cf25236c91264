//! `leasehold show LOCK`: the state of one lock.

use crate::args::LockArgs;
use crate::context::{self, Context};
use crate::exit::Failure;
use crate::names::lock_name;
use crate::output::{human, json, print};

pub(super) async fn show(context: &Context, args: LockArgs) -> Result<u8, Failure> {
    let name = lock_name(&args.lock)?;
    let locker = context::open(&context.store()?).await?;
    let status = locker.inspect(&name).await?;
    print(&if context.output.json { format!("{}\n", json::lock(&status)) } else { human::lock(&status) })?;
    Ok(0)
}
