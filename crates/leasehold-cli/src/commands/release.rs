//! `leasehold release TICKET`: releases a lock.

use leasehold::Released;
use serde_json::Value;

use super::ticket::open;
use crate::args::TicketArgs;
use crate::context::Context;
use crate::exit::{Failure, NEGATIVE};
use crate::names::Names;
use crate::output::json::{insert_tokens, object};
use crate::output::print;

pub(super) async fn release(context: &Context, args: TicketArgs) -> Result<u8, Failure> {
    let (ticket, locker) = open(context, args).await?;
    if locker.release(&ticket).await? == Released::AlreadyLost {
        let names = Names::of(&ticket);
        let message = if names.are_several() {
            format!("the locks {names} are no longer all held")
        } else {
            format!("lock `{names}` is no longer held with token {}", ticket.token())
        };
        return Err(Failure::new(NEGATIVE, "lost", message).with_help(
            "its lease ended, or it was already released; another process may have held it in the meantime",
        ));
    }
    if context.output.json {
        let mut document = object("released", ticket.name());
        if locker.capabilities().tokens {
            insert_tokens(&mut document, &ticket);
        }
        print(&format!("{}\n", Value::Object(document)))?;
    } else if !context.output.quiet {
        print(&format!("released {}\n", Names::of(&ticket)))?;
    }
    Ok(0)
}
