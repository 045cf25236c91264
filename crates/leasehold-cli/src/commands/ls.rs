//! `leasehold ls [PREFIX]`: lists locks.

use std::io::Write as _;

use futures_util::StreamExt as _;

use crate::args::LsArgs;
use crate::context::{self, Context};
use crate::exit::Failure;
use crate::output::{human, json, print};

/// Number of locks to inspect concurrently.
const CONCURRENCY: usize = 8;

pub(super) async fn ls(context: &Context, args: LsArgs) -> Result<u8, Failure> {
    let prefix = context::prefix(args.prefix.as_deref())?;
    let locker = context::open(&context.store()?).await?;
    let look = |name: leasehold::Result<leasehold::LockName>| async { locker.inspect(&name?).await };
    let mut statuses = locker.list(prefix).map(look).buffered(CONCURRENCY);
    let mut locks = Vec::new();
    while let Some(status) = statuses.next().await {
        let status = status?;
        if context.output.json {
            print(&format!("{}\n", json::lock(&status)))?;
        } else {
            locks.push(status);
        }
    }
    if !locks.is_empty() {
        print(&human::table(&locks))?;
    } else if !context.output.json && !context.output.quiet {
        // Explain the empty output on stderr, because programs read stdout.
        let _ = writeln!(std::io::stderr(), "no locks");
    }
    Ok(0)
}
