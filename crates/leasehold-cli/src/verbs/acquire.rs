//! `leasehold acquire LOCK`: prints a ticket, and nothing else, on stdout.

use serde_json::{Value, json};

use crate::acquiring::Request;
use crate::args::AcquireArgs;
use crate::context::{self, Context};
use crate::exit::{FAILED, Failure};
use crate::output::json::{ms, object};
use crate::output::print_all;
use crate::signals::Signals;

pub(super) async fn acquire(context: &Context, args: AcquireArgs) -> Result<u8, Failure> {
    let name = context::lock_name(&args.lock.lock)?;
    let line = "leasehold acquire".to_owned();
    let request =
        Request::new(&context.settings, name, &args.claim, args.ttl, line, ("acquire", ""))?.for_ticket();
    let store = context.store()?;
    let mut signals = Signals::ending()
        .map_err(|error| Failure::new(FAILED, "failed", format!("cannot receive signals: {error}")))?;
    let locker = signals.unless(context::open(&store)).await?;
    let guard = request.acquire(&locker, &store, &context.output, &mut signals).await?;
    let ticket = guard.into_ticket().await.map_err(|error| Failure { code: FAILED, ..error.into() })?;
    let told = if context.output.json {
        let mut document = object("ticket", ticket.name());
        document.insert("ticket".into(), ticket.to_string().into());
        if locker.capabilities().tokens {
            document.insert("token".into(), json!(ticket.token()));
        }
        document.insert("ttl_ms".into(), ms(ticket.ttl()).into());
        print_all(&format!("{}\n", Value::Object(document)))
    } else {
        print_all(&format!("{ticket}\n"))
    };
    if told.is_err() {
        // Nobody has the ticket: nobody could release the lock, and everybody would wait for its lease to end.
        if let Err(error) = locker.release(&ticket).await {
            context.output.warning(&format!("the lock was not released, it lapses by itself: {error}"));
        }
    }
    told.map(|()| 0)
}
