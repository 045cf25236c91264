//! `leasehold sweep [PREFIX] --older-than 30d`: deletes the records of locks that have been free for a long time.

use futures_util::StreamExt as _;
use leasehold::{ErrorKind, LockName, Swept};
use serde_json::{Value, json};

use crate::args::SweepArgs;
use crate::context::{self, Context};
use crate::exit::Failure;
use crate::output::json::object;
use crate::output::print;

/// Number of locks to sweep concurrently.
const CONCURRENCY: usize = 8;

pub(super) async fn sweep(context: &Context, args: SweepArgs) -> Result<u8, Failure> {
    let prefix = context::prefix(args.prefix.as_deref())?;
    let locker = context::open(&context.store()?).await?;
    let sweep = async |name: leasehold::Result<LockName>| {
        let name = name?;
        let swept = locker.sweep(&name, args.older_than, args.dry_run).await;
        leasehold::Result::Ok((name, swept))
    };
    let mut outcomes = locker.list(prefix).map(sweep).buffered(CONCURRENCY);
    let (mut inspected, mut deleted) = (0_u64, 0_u64);
    while let Some(outcome) = outcomes.next().await {
        let (name, swept) = outcome?;
        inspected += 1;
        match swept {
            Ok(Swept::Kept) => {}
            Ok(Swept::Deleted) => {
                deleted += 1;
                report(context, &name, args.dry_run)?;
            }
            // Skip the damaged record and continue.
            Err(error) if error.kind() == ErrorKind::Corrupt => {
                context.output.warning(&format!("skipped lock `{name}`: {error}"));
            }
            Err(error) => return Err(error.into()),
        }
    }
    if context.output.json {
        let document = json!({
            "type": "sweep", "looked_at": inspected, "deleted": deleted, "dry_run": args.dry_run
        });
        print(&format!("{document}\n"))?;
    } else if !context.output.quiet {
        let what = if args.dry_run { "would delete" } else { "deleted" };
        print(&format!("{what} {deleted} of {inspected} records\n"))?;
    }
    Ok(0)
}

fn report(context: &Context, name: &LockName, dry_run: bool) -> Result<(), Failure> {
    if context.output.json {
        let mut document = object("swept", name);
        document.insert("dry_run".into(), dry_run.into());
        return print(&format!("{}\n", Value::Object(document)));
    }
    if context.output.quiet {
        return Ok(());
    }
    print(&format!("{} {name}\n", if dry_run { "would delete" } else { "deleted" }))
}
