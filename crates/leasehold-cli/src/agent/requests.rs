//! The operations: each reads its fields and returns the work to do.

use std::sync::Arc;

use futures_util::FutureExt as _;
use futures_util::future::ready;
use leasehold::{OncePer, Released};
use tokio::sync::oneshot;

use super::fields::Fields;
use super::message::Answer;
use super::refusal::Refusal;
use super::session::{Reply, Session, Work};
use super::{inspect, locks, objects, tickets};

/// Reads the fields of a request and returns its work.
pub(super) fn begin(session: &Arc<Session>, id: u64, operation: &str, fields: Fields) -> Work {
    read(session, id, operation, fields).unwrap_or_else(|refusal| ready(Err(refusal)).boxed())
}

fn read(session: &Arc<Session>, id: u64, operation: &str, mut fields: Fields) -> Result<Work, Refusal> {
    let session = session.clone();
    match operation {
        "acquire" | "try" | "once" => locks::acquire(session, id, operation, fields),
        "resize" => locks::resize(session, fields),
        "release" => {
            let hold = fields.number("hold")?;
            let cooldown = fields.milliseconds("cooldown_ms", 1, OncePer::LONGEST)?;
            fields.finish(operation)?;
            Ok(release(session.release(hold, cooldown)?).boxed())
        }
        "renew" => {
            let hold = fields.number("hold")?;
            fields.finish(operation)?;
            Ok(renew(session, hold).boxed())
        }
        "ticket" | "resume" | "renew_ticket" | "release_ticket" => tickets::read(session, operation, fields),
        "get" | "put" | "update" | "answer" => objects::read(session, id, operation, fields),
        "cancel" => {
            let request = fields.number("request")?;
            fields.finish(operation)?;
            session.cancel(request);
            Ok(ready(Ok(Reply::Answer(Answer::done()))).boxed())
        }
        "hello" => Err(Refusal::invalid("`hello` is allowed only as the first request")),
        _ => inspect::read(session, id, operation, fields)?.ok_or_else(|| {
            let shown: String = operation.chars().take(40).collect();
            Refusal::invalid(format!("there is no operation `{shown}`"))
        }),
    }
}

async fn release(released: oneshot::Receiver<leasehold::Result<Released>>) -> Result<Reply, Refusal> {
    // There is no result if the agent ends first.
    let released = released.await.map_err(|_| Refusal::cancelled())??;
    Ok(Reply::Answer(Answer::released(released)))
}

async fn renew(session: Arc<Session>, hold: u64) -> Result<Reply, Refusal> {
    match session.renew(hold).await? {
        Some(renewed) => Ok(Reply::Answer(Answer::new("renewed", renewed))),
        None => Err(Refusal::new("lost", format!("hold {hold} has ended"))),
    }
}
