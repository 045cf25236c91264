//! `leasehold history LOCK`: the most recent ended grants.

use leasehold::Error;

use crate::args::LockArgs;
use crate::context::{self, Context};
use crate::exit::Failure;
use crate::names::lock_name;
use crate::output::{human, json, print};

pub(super) async fn history(context: &Context, args: LockArgs) -> Result<u8, Failure> {
    let name = lock_name(&args.lock)?;
    let locker = context::open(&context.store()?).await?;
    let capabilities = locker.capabilities();
    if !capabilities.history {
        // An empty list would look like a lock that was never held.
        let message = format!("locks in {} keep no history of their grants", capabilities.store);
        return Err(Error::unsupported(message)
            .with_help("to see the current holder of a lock, use `leasehold show`")
            .into());
    }
    let status = locker.inspect(&name).await?;
    if context.output.json {
        let lines: String = json::history(&status).map(|grant| format!("{grant}\n")).collect();
        print(&lines)?;
    } else {
        print(&human::history(&status))?;
    }
    Ok(0)
}
