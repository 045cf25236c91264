//! The ticket of `renew`, `release` and `run --ticket`, and its store.

use std::ffi::OsString;
use std::io::Read as _;

use leasehold::url::StoreUrl;
use leasehold::{Locker, Ticket};

use crate::args::TicketArgs;
use crate::config::Store;
use crate::context::{self, Context};
use crate::exit::{FAILED, Failure};

/// The variable that holds the ticket if the command line has none.
const VARIABLE: &str = "LEASEHOLD_TICKET";
/// How many bytes are read from stdin: a ticket, with whitespace around it.
const MAX_BYTES: u64 = Ticket::MAX_BYTES as u64 + 64;

/// Reads the ticket and opens its store.
pub(super) async fn open(context: &Context, args: TicketArgs) -> Result<(Ticket, Locker), Failure> {
    let (ticket, store) = read(context, args.ticket)?;
    let locker = context::open(&store).await?;
    Ok((ticket, locker))
}

/// Reads the ticket from `given` or from the environment, and finds its store.
pub(super) fn read(context: &Context, given: Option<OsString>) -> Result<(Ticket, Store), Failure> {
    let ticket: Ticket = text(given)?.parse().map_err(|error: leasehold::Error| {
        let help = "to end the hold of a process, by the name of its lock: leasehold evict LOCK --token N";
        Failure::bad_argument(error).with_help(help)
    })?;
    match context.explicit_store()? {
        // The store may have a different URL here than where the lock was acquired.
        Some(store) => Ok((ticket.without_store(), store)),
        None => configured(context, &ticket).map(|store| (ticket, store)),
    }
}

/// Returns the configured store or alias that matches `ticket`. Never opens the URL in the ticket, because its author
/// may not be trusted.
fn configured(context: &Context, ticket: &Ticket) -> Result<Store, Failure> {
    let store = context.store()?;
    StoreUrl::parse(&store.url)?;
    let Err(mismatch) = ticket.check_store(&store.url) else { return Ok(store) };
    let fits = |alias: &Store| ticket.check_store(&alias.url).is_ok();
    context.settings.aliases().find(fits).ok_or_else(|| {
        Failure::usage(mismatch.to_string())
            .with_help("leasehold does not open a store just because a ticket names it. If you trust that store, add --store URL")
            .with_help("or configure it in LEASEHOLD_STORE or as an alias in config.toml (see `leasehold help environment`)")
    })
}

fn text(given: Option<OsString>) -> Result<String, Failure> {
    let none = || {
        Failure::usage("no ticket given")
            .with_help(format!("pass it as an argument, in {VARIABLE}, or on stdin with `-`"))
    };
    let given =
        given.or_else(|| std::env::var_os(VARIABLE).filter(|text| !text.is_empty())).ok_or_else(none)?;
    if given != "-" {
        return given.into_string().map_err(|_| Failure::usage("this is not a ticket: invalid UTF-8"));
    }
    let mut bytes = Vec::new();
    std::io::stdin()
        .take(MAX_BYTES)
        .read_to_end(&mut bytes)
        .map_err(|error| Failure::new(FAILED, "failed", format!("cannot read stdin: {error}")))?;
    String::from_utf8(bytes).map_err(|_| Failure::usage("stdin is not a ticket: invalid UTF-8"))
}
