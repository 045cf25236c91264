//! `leasehold renew TICKET`: renews a lease once.

use leasehold::ErrorKind;
use leasehold::view::ms;
use serde_json::Value;

use super::ticket::open;
use crate::args::TicketArgs;
use crate::context::Context;
use crate::exit::Failure;
use crate::names::Names;
use crate::output::json::{insert_tokens, object};
use crate::output::{human, print};

pub(super) async fn renew(context: &Context, args: TicketArgs) -> Result<u8, Failure> {
    let (ticket, locker) = open(context, args).await?;
    let renewed = locker.renew(&ticket).await.map_err(|error| match error.kind() {
        ErrorKind::Lost => Failure::from(error).with_help("stop the work, and acquire the lock again"),
        _ => error.into(),
    });
    let remaining = renewed?.remaining();
    if context.output.json {
        let mut document = object("renewed", ticket.name());
        if locker.capabilities().tokens {
            insert_tokens(&mut document, &ticket);
        }
        document.insert("remaining_ms".into(), ms(remaining).into());
        print(&format!("{}\n", Value::Object(document)))?;
    } else if !context.output.quiet {
        print(&format!("renewed {}, held for another {}\n", Names::of(&ticket), human::span(remaining)))?;
    }
    Ok(0)
}
