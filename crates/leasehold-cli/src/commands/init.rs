//! `leasehold init`: creates what the store needs.

use crate::context::{self, Context};
use crate::exit::Failure;
use crate::output::print;

pub(super) async fn init(context: &Context) -> Result<u8, Failure> {
    let store = context.store()?;
    let locker = context::open(&store).await?;
    locker.init().await?;
    let (url, kind) = (store.shown(), locker.capabilities().store);
    if context.output.json {
        let document = serde_json::json!({ "type": "ready", "store": url, "kind": kind });
        print(&format!("{document}\n"))?;
    } else if !context.output.quiet {
        print(&format!("{url} is ready ({kind})\n"))?;
    }
    Ok(0)
}
