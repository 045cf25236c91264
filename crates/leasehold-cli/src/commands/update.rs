//! `leasehold update OBJECT -- CMD...`: updates an object with CMD, by optimistic concurrency.

use leasehold::{ErrorKind, Updated};
use serde_json::json;

use crate::args::UpdateArgs;
use crate::child;
use crate::context::Context;
use crate::exit::{FAILED, Failure, LOST};
use crate::filter;
use crate::job::in_shell;
use crate::object::{Target, token};
use crate::output::print;

pub(super) async fn update(context: &Context, args: UpdateArgs) -> Result<u8, Failure> {
    let token = args.fence.map(token).transpose()?;
    let command = if args.shell { in_shell(args.command) } else { args.command };
    child::look_up(&command[0])?;
    let Target { mut object, shown } = Target::open(&args.object).await?;
    if let Some(attempts) = args.attempts {
        object = object.attempts(attempts);
    }
    if let Some(limit) = args.within {
        object = object.within(limit);
    }
    let transformed = async |content: Option<&[u8]>| {
        let transformed = filter::run(&command, content).await?;
        if transformed.is_empty() && !args.allow_empty {
            return Err(empty_output(&command[0].to_string_lossy(), &shown));
        }
        Ok(Some(transformed.into()))
    };
    let updated = match token {
        Some(token) => {
            object.update_fenced(token, async |content| transformed(content.as_deref()).await).await
        }
        None => object.update(async |content| transformed(content.as_deref()).await).await,
    };
    let lost = ErrorKind::Lost.to_string();
    let updated = updated.map_err(|failure| match failure.kind == lost {
        true => Failure { code: LOST, ..failure },
        false => failure,
    })?;
    // The object has been written. An error here would suggest a retry.
    if let Err(failure) = report(context, &shown, &updated) {
        context.output.warning(&failure.message);
    }
    Ok(0)
}

fn empty_output(command: &str, shown: &str) -> Failure {
    Failure::new(FAILED, "empty", format!("the command {command:?} printed nothing; {shown} was not changed"))
        .with_help("a broken pipeline can cause this; to write an empty object, add --allow-empty")
}

fn report(context: &Context, shown: &str, updated: &Updated) -> Result<(), Failure> {
    if context.output.json {
        let bytes = updated.content.as_ref().map(|content| content.len());
        let document = json!({
            "type": "updated",
            "object": shown,
            "written": updated.written,
            "attempts": updated.attempts,
            "bytes": bytes,
        });
        return print(&format!("{document}\n"));
    }
    if context.output.quiet {
        return Ok(());
    }
    print(&if updated.written {
        format!("updated {shown}\n")
    } else {
        format!("{shown} is unchanged; nothing was written\n")
    })
}
