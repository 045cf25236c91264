//! `leasehold ls [PREFIX]`: lists locks.

use std::io::Write as _;

use futures_util::StreamExt as _;
use leasehold::{ErrorKind, LockName};

use crate::args::LsArgs;
use crate::context::{self, Context};
use crate::exit::{FAILED, Failure};
use crate::output::{human, json, print};

/// Number of locks to inspect concurrently.
const CONCURRENCY: usize = 8;

pub(super) async fn ls(context: &Context, args: LsArgs) -> Result<u8, Failure> {
    let prefix = context::prefix(args.prefix.as_deref())?;
    let locker = context::open(&context.store()?).await?;
    let inspect = async |name: leasehold::Result<LockName>| {
        let name = name?;
        let status = locker.inspect(&name).await;
        leasehold::Result::Ok((name, status))
    };
    let mut statuses = locker.list(prefix).map(inspect).buffered(CONCURRENCY);
    let (mut locks, mut unreadable) = (Vec::new(), 0_u64);
    while let Some(outcome) = statuses.next().await {
        let (name, status) = outcome?;
        match status {
            Ok(status) if context.output.json => print(&format!("{}\n", json::lock(&status)))?,
            Ok(status) => locks.push(status),
            // Skip the record and continue: it is damaged, or a newer version wrote it.
            Err(error) if matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Unsupported) => {
                unreadable += 1;
                context.output.warning(&format!("skipped lock `{name}`: {error}"));
            }
            Err(error) => return Err(error.into()),
        }
    }
    if !locks.is_empty() {
        print(&human::table(&locks))?;
    } else if unreadable == 0 && !context.output.json && !context.output.quiet {
        // Explain the empty output on stderr, because programs read stdout.
        let _ = writeln!(std::io::stderr(), "no locks");
    }
    if unreadable > 0 {
        let message = format!("{unreadable} of the records could not be read");
        return Err(Failure::new(FAILED, ErrorKind::Corrupt.as_str(), message));
    }
    Ok(0)
}
