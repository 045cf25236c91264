//! `leasehold acquire LOCK...`: acquires a lock, or several together, and prints only the ticket on stdout.

use leasehold::view::ms;
use serde_json::Value;

use crate::acquisition::Request;
use crate::args::AcquireArgs;
use crate::context::{self, Context, Note};
use crate::exit::{FAILED, Failure};
use crate::names::Names;
use crate::output::json::{insert_tokens, object};
use crate::output::print_all;
use crate::signals::Signals;

pub(super) async fn acquire(context: &Context, args: AcquireArgs) -> Result<u8, Failure> {
    let names = Names::parse(&args.locks)?;
    let line = "leasehold acquire".to_owned();
    let note = Note { name: line.clone(), command_line: line };
    let request = Request::new(
        &context.settings,
        names,
        (&args.claim, &args.client),
        (args.ttl, args.max_hold),
        note,
        ("acquire", ""),
    )?
    .for_ticket()
    .mode(args.mode.mode())?;
    let store = context.store()?;
    let mut signals = Signals::ending().map_err(|error| {
        Failure::new(FAILED, "failed", format!("cannot install signal handlers: {error}"))
    })?;
    let opened = context::open_for(request.names.first(), &store, request.opening_limit(), &context.output);
    let locker = signals.unless_interrupted(opened).await?;
    let guard = request.acquire(&locker, &store, &context.output, &mut signals).await?;
    let ticket = guard.into_ticket().await.map_err(|error| Failure { code: FAILED, ..error.into() })?;
    let printed = if context.output.json {
        let mut document = object("ticket", ticket.name());
        document.insert("ticket".into(), ticket.to_string().into());
        if locker.capabilities().tokens {
            insert_tokens(&mut document, &ticket);
        }
        if let Some(permit) = request.permit(ticket.name()) {
            document.insert("permit".into(), permit.into());
        }
        document.insert("ttl_ms".into(), ms(ticket.ttl()).into());
        if let Some(limit) = ticket.max_hold() {
            document.insert("max_hold_ms".into(), ms(limit).into());
        }
        print_all(&format!("{}\n", Value::Object(document)))
    } else {
        print_all(&format!("{ticket}\n"))
    };
    if printed.is_err() {
        // The ticket is lost, so release the lock. Otherwise all waiters would wait until its lease ends.
        if let Err(error) = locker.release(&ticket).await {
            context
                .output
                .warning(&format!("the lock was not released and stays held until its lease ends: {error}"));
        }
    }
    printed.map(|()| 0)
}
