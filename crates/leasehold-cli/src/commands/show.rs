//! `leasehold show LOCK`: the state of one lock.

use futures_util::StreamExt as _;
use leasehold::{Locker, State, Status};

use crate::args::LockArgs;
use crate::context::{self, Context};
use crate::exit::Failure;
use crate::names::lock_name;
use crate::output::{human, json, print};
use crate::shell;

pub(super) async fn show(context: &Context, args: LockArgs) -> Result<u8, Failure> {
    let name = lock_name(&args.lock)?;
    let store = context.store()?;
    let locker = context::open(&store).await?;
    let status = locker.inspect(&name).await?;
    print(&if context.output.json {
        format!("{}\n", json::lock(&status))
    } else if is_unknown(&locker, &status) {
        let below = format!("{name}/");
        let flag = context::store_flag(&store);
        // A caller may have no permission to list, which `show` does not need.
        let state = match locker.list(&below).next().await {
            Some(Ok(_)) => {
                format!(
                    "no record as a plain lock; locks below it: leasehold{flag} ls {}",
                    shell::quoted(&below)
                )
            }
            _ => human::NO_RECORD.to_owned(),
        };
        human::lock(&status, Some(&state))
    } else {
        human::lock(&status, None)
    })?;
    Ok(0)
}

/// Returns whether the store, which keeps the records of free locks, has none of this one.
fn is_unknown(locker: &Locker, status: &Status) -> bool {
    let is_free = matches!(status.state, State::Free) && status.waiters.is_empty();
    is_free && status.token.is_none() && status.history.is_empty() && locker.capabilities().history
}
