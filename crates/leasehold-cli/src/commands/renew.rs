//! `leasehold renew TICKET`: renews a lease once.

use leasehold::view::ms;
use serde_json::Value;

use super::ticket::open;
use crate::args::TicketArgs;
use crate::context::Context;
use crate::exit::Failure;
use crate::output::json::object;
use crate::output::{human, print};

pub(super) async fn renew(context: &Context, args: TicketArgs) -> Result<u8, Failure> {
    let (ticket, locker) = open(context, args).await?;
    let remaining = locker.renew(&ticket).await?.remaining();
    if context.output.json {
        let mut document = object("renewed", ticket.name());
        if locker.capabilities().tokens {
            document.insert("token".into(), ticket.token().get().into());
        }
        document.insert("remaining_ms".into(), ms(remaining).into());
        print(&format!("{}\n", Value::Object(document)))?;
    } else if !context.output.quiet {
        print(&format!("renewed {}, held for another {}\n", ticket.name(), human::span(remaining)))?;
    }
    Ok(0)
}
