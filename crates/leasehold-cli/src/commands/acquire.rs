//! `leasehold acquire LOCK`: acquires a lock and prints only its ticket on stdout.

use leasehold::view::ms;
use serde_json::{Value, json};

use crate::acquisition::Request;
use crate::args::AcquireArgs;
use crate::context::{self, Context, Note};
use crate::exit::{FAILED, Failure};
use crate::mode::Mode;
use crate::output::json::object;
use crate::output::print_all;
use crate::shell;
use crate::signals::Signals;

pub(super) async fn acquire(context: &Context, args: AcquireArgs) -> Result<u8, Failure> {
    let name = context::lock_name(&args.lock.lock)?;
    let mode = args.mode.mode();
    if mode == Mode::Exclusive {
        return Err(Failure::usage("--exclusive cannot be used with `acquire`").with_help(format!(
            "an exclusive lock consists of nine locks, and a ticket holds one; instead use: leasehold run --exclusive {} -- ...",
            shell::last_argument(&name)
        )));
    }
    let line = "leasehold acquire".to_owned();
    let note = Note { name: line.clone(), command_line: line };
    let request =
        Request::new(&context.settings, name, &args.claim, (args.ttl, args.max_hold), note, ("acquire", ""))?
            .for_ticket()
            .mode(mode);
    let store = context.store()?;
    let mut signals = Signals::ending().map_err(|error| {
        Failure::new(FAILED, "failed", format!("cannot install signal handlers: {error}"))
    })?;
    let opened = context::open_for(&request.name, &store, request.opening_limit(), &context.output);
    let locker = signals.unless_interrupted(opened).await?;
    let guard = request.acquire(&locker, &store, &context.output, &mut signals).await?;
    let ticket = guard.into_ticket().await.map_err(|error| Failure { code: FAILED, ..error.into() })?;
    let printed = if context.output.json {
        let mut document = object("ticket", ticket.name());
        document.insert("ticket".into(), ticket.to_string().into());
        if locker.capabilities().tokens {
            document.insert("token".into(), json!(ticket.token()));
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
