//! Held locks as tickets: `ticket`, `resume`, `renew_ticket`, `release_ticket`.

use std::sync::Arc;

use futures_util::FutureExt as _;
use leasehold::Ticket;
use leasehold::view::ms;
use serde_json::json;

use super::fields::Fields;
use super::locks::with_host;
use super::message::Answer;
use super::refusal::Refusal;
use super::session::{HoldPlace, Reply, Session, Work};

/// Reads the fields of an operation on a ticket and returns its work.
pub(super) fn read(session: Arc<Session>, operation: &str, mut fields: Fields) -> Result<Work, Refusal> {
    if operation == "ticket" {
        let hold = fields.number("hold")?;
        fields.finish(operation)?;
        return Ok(ticket(session, hold).boxed());
    }
    let (store, ticket) = (fields.text("store")?, fields.ticket()?);
    fields.finish(operation)?;
    Ok(match operation {
        "resume" => {
            let place = session.hold_place()?;
            resume(session, store, ticket, place).boxed()
        }
        "renew_ticket" => renew(session, store, ticket).boxed(),
        _ => release(session, store, ticket).boxed(),
    })
}

async fn ticket(session: Arc<Session>, hold: u64) -> Result<Reply, Refusal> {
    let guard = session.take_guard(hold).await?;
    let guard = guard.ok_or_else(|| Refusal::new("lost", format!("hold {hold} has ended")))?;
    let ticket = guard.into_ticket().await?;
    let fields = json!({ "ticket": ticket.to_string(), "token": ticket.token(), "tokens": ticket.tokens() });
    Ok(Reply::Answer(Answer::new("ticket", fields)))
}

async fn resume(
    session: Arc<Session>,
    store: Option<String>,
    ticket: Ticket,
    place: HoldPlace,
) -> Result<Reply, Refusal> {
    let locker = session.stores.open(store).await?;
    let guard = locker.resume(&ticket).await?;
    with_host(&session, &locker, guard, place).await
}

async fn renew(session: Arc<Session>, store: Option<String>, ticket: Ticket) -> Result<Reply, Refusal> {
    let remaining = session.stores.open(store).await?.renew(&ticket).await?.remaining();
    Ok(Reply::Answer(Answer::new("ticket_renewed", json!({ "remaining_ms": ms(remaining) }))))
}

async fn release(session: Arc<Session>, store: Option<String>, ticket: Ticket) -> Result<Reply, Refusal> {
    let released = session.stores.open(store).await?.release(&ticket).await?;
    Ok(Reply::Answer(Answer::released(released)))
}
