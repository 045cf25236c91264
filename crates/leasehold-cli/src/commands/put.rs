//! `leasehold put OBJECT FILE --fence TOKEN`: writes an object unless a higher token has written it.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use leasehold::register::MAX_OBJECT_BYTES;
use serde_json::json;

use crate::args::PutArgs;
use crate::context::Context;
use crate::exit::{FAILED, Failure};
use crate::object::{Target, token};
use crate::output::print;

pub(super) async fn put(context: &Context, args: PutArgs) -> Result<u8, Failure> {
    let token = token(args.fence)?;
    let Target { object, shown } = Target::open(&args.object).await?;
    let content = content(&args.file)?;
    if content.is_empty() && is_stdin(&args.file) && !args.allow_empty {
        let message = format!("stdin is empty; {shown} was not changed");
        return Err(Failure::new(FAILED, "empty", message)
            .with_help("a broken pipeline can cause this; to write an empty object, add --allow-empty"));
    }
    let bytes = content.len();
    object.write_fenced(token, content).await?;
    let line = match context.output.json {
        true => json!({ "type": "put", "object": shown, "token": token.get(), "bytes": bytes }).to_string(),
        false if context.output.quiet => return Ok(0),
        false => format!("wrote {shown} with token {token}"),
    };
    // The object has been written. An error here would suggest a retry.
    if let Err(failure) = print(&format!("{line}\n")) {
        context.output.warning(&failure.message);
    }
    Ok(0)
}

fn is_stdin(file: &Path) -> bool {
    file.as_os_str() == "-"
}

/// Reads `file` or stdin to the end.
fn content(file: &Path) -> Result<Vec<u8>, Failure> {
    let shown = file.display();
    let unread = |error| Failure::new(FAILED, "failed", format!("cannot read {shown}: {error}"));
    let source: Box<dyn Read> =
        if is_stdin(file) { Box::new(std::io::stdin()) } else { Box::new(File::open(file).map_err(unread)?) };
    let mut content = Vec::new();
    source.take(MAX_OBJECT_BYTES as u64 + 1).read_to_end(&mut content).map_err(unread)?;
    if content.len() > MAX_OBJECT_BYTES {
        let message = format!("{shown} is larger than {MAX_OBJECT_BYTES} bytes; nothing was written");
        return Err(Failure::new(FAILED, "unsupported", message));
    }
    Ok(content)
}
