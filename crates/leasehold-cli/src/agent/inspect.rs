//! Operations that hold no lock: `status`, `list`, `wait_free`, `evict`, `sweep`, `init`, `capabilities`, `doctor`,
//! `leader`, `observe`.

use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::{FutureExt as _, StreamExt as _};
use leasehold::clock::timeout;
use leasehold::doctor::Examination;
use leasehold::lease::{Claim, Evicted, Ttl};
use leasehold::view::LockDetail;
use leasehold::{Eviction, HolderInfo, Leader, LockName, OncePer, State, Swept};
use serde_json::{Value, json};

use super::fields::{Fields, missing};
use super::message::Answer;
use super::refusal::Refusal;
use super::session::{Reply, Session, Work};
use super::waiting;
use crate::output::doctor;

/// Maximum number of names in a message.
const NAMES_PER_MESSAGE: usize = 100;

/// Reads the fields of an operation and returns its work, or `None` if there is no such operation.
pub(super) fn read(
    session: Arc<Session>,
    id: u64,
    operation: &str,
    mut fields: Fields,
) -> Result<Option<Work>, Refusal> {
    let store = fields.text("store")?;
    Ok(Some(match operation {
        "status" => {
            let lock = fields.lock()?;
            fields.finish(operation)?;
            async move {
                let status = session.stores.open(store).await?.inspect(&lock).await?;
                answer("status", json!(LockDetail::of(&status)))
            }
            .boxed()
        }
        "list" => {
            let prefix = fields.text("prefix")?.unwrap_or_default();
            fields.finish(operation)?;
            list(session, id, store, prefix).boxed()
        }
        "wait_free" => {
            let lock = fields.lock()?;
            let limit = fields.milliseconds("wait_ms", 0, OncePer::LONGEST)?;
            let report = fields.flag("report_waiting")?;
            fields.finish(operation)?;
            wait_free(session, id, store, lock, limit, report).boxed()
        }
        "evict" => {
            let (lock, token, reason) = (fields.lock()?, fields.token("token")?, fields.text("reason")?);
            fields.finish(operation)?;
            let token = token.ok_or_else(|| missing("token"))?;
            let why = Eviction::by_this_process(reason.as_deref().unwrap_or_default());
            async move {
                let evicted = session.stores.open(store).await?.evict_for(&lock, token, &why).await?;
                answer("evicted", json!({ "was_held": evicted == Evicted::Evicted }))
            }
            .boxed()
        }
        "sweep" => {
            let (lock, age) = (fields.lock()?, fields.milliseconds("older_than_ms", 0, OncePer::LONGEST)?);
            let dry_run = fields.flag("dry_run")?;
            fields.finish(operation)?;
            let age = age.ok_or_else(|| missing("older_than_ms"))?;
            async move {
                let swept = session.stores.open(store).await?.sweep(&lock, age, dry_run).await?;
                answer("swept", json!({ "deleted": swept == Swept::Deleted }))
            }
            .boxed()
        }
        "init" => {
            fields.finish(operation)?;
            async move {
                session.stores.open(store).await?.init().await?;
                Ok(Reply::Answer(Answer::done()))
            }
            .boxed()
        }
        "capabilities" => {
            fields.finish(operation)?;
            capabilities(session, store).boxed()
        }
        "doctor" => {
            let mut examination = Examination::default();
            if let Some(ttl) = fields.milliseconds("ttl_ms", 0, Ttl::MAX)? {
                examination.ttl = Ttl::new(ttl).map_err(leasehold::Error::from)?;
            }
            examination.thorough = fields.flag("thorough")?;
            fields.finish(operation)?;
            examine(session, store, examination).boxed()
        }
        "leader" => {
            let lock = fields.lock()?;
            fields.finish(operation)?;
            async move {
                let election = session.stores.open(store).await?.election(lock.as_str());
                Ok(Reply::Answer(leader(election.leader().await?.as_ref())))
            }
            .boxed()
        }
        "observe" => {
            let lock = fields.lock()?;
            fields.finish(operation)?;
            observe(session, id, store, lock).boxed()
        }
        _ => return Ok(None),
    }))
}

fn answer(event: &'static str, fields: Value) -> Result<Reply, Refusal> {
    Ok(Reply::Answer(Answer::new(event, fields)))
}

async fn list(
    session: Arc<Session>,
    id: u64,
    store: Option<String>,
    prefix: String,
) -> Result<Reply, Refusal> {
    let locker = session.stores.open(store).await?;
    let mut names = locker.list(&prefix).ready_chunks(NAMES_PER_MESSAGE);
    while let Some(chunk) = names.next().await {
        let chunk = chunk.into_iter().collect::<leasehold::Result<Vec<LockName>>>()?;
        session.outbox.send(Answer::new("names", json!({ "names": chunk })).to(id)).await;
    }
    Ok(Reply::Answer(Answer::done()))
}

fn still_held(lock: &LockName, held: HolderInfo) -> Refusal {
    let held_by = Some(Box::new(held));
    Refusal { held_by, ..Refusal::new("held", format!("lock `{lock}` is still held")) }
}

async fn wait_free(
    session: Arc<Session>,
    id: u64,
    store: Option<String>,
    lock: LockName,
    limit: Option<Duration>,
    report: bool,
) -> Result<Reply, Refusal> {
    let locker = session.stores.open(store).await?;
    if limit == Some(Duration::ZERO) {
        // Do not wait with a limit of zero, because the store would have no time to respond.
        return match locker.inspect(&lock).await?.state {
            State::Held(held) => Err(still_held(&lock, held)),
            State::Free | State::Lapsed(_) => Ok(Reply::Answer(Answer::done())),
        };
    }
    let (see, reports) = waiting::reports(id, &session.outbox);
    let last = Mutex::new(None);
    let on_wait = |held: &HolderInfo| {
        *last.lock().unwrap_or_else(PoisonError::into_inner) = Some(held.clone());
        if report {
            see(&lock, held);
        }
    };
    let mut free = pin!(reports.during(locker.wait_free(&lock, &on_wait)));
    let clock = locker.store().env().clock.clone();
    let is_unknown = || last.lock().unwrap_or_else(PoisonError::into_inner).is_none();
    let free = match limit {
        Some(limit) => match timeout(&*clock, limit, free.as_mut()).await {
            None if is_unknown() => timeout(&*clock, Claim::FIRST_RESPONSE.saturating_sub(limit), free).await,
            free => free,
        },
        None => Some(free.await),
    };
    match free {
        Some(free) => free.map(|()| Reply::Answer(Answer::done())).map_err(Refusal::from),
        None => Err(match last.lock().unwrap_or_else(PoisonError::into_inner).take() {
            Some(held) => still_held(&lock, held),
            None => Refusal::new(
                "unavailable",
                format!("lock `{lock}`: no response from the store before the time limit"),
            ),
        }),
    }
}

async fn capabilities(session: Arc<Session>, store: Option<String>) -> Result<Reply, Refusal> {
    let found = session.stores.open(store).await?.capabilities();
    answer(
        "capabilities",
        json!({
            "store": found.store,
            "tokens": found.tokens,
            "cooldowns": found.cooldowns,
            "fifo": found.fifo(),
            "watches": found.watches,
            "sees_dead_processes": found.sees_dead_processes,
        }),
    )
}

async fn examine(
    session: Arc<Session>,
    store: Option<String>,
    examination: Examination,
) -> Result<Reply, Refusal> {
    let locker = session.stores.open(store).await?;
    let report = locker.examine(&examination).await;
    answer("report", doctor::json(locker.url().unwrap_or_default(), &report))
}

async fn observe(
    session: Arc<Session>,
    id: u64,
    store: Option<String>,
    lock: LockName,
) -> Result<Reply, Refusal> {
    let mut changes = session.stores.open(store).await?.election(lock.as_str()).observe();
    while let Some(found) = changes.next().await {
        let place = session.outbox.place().await;
        place.send(leader(found?.as_ref()).to(id));
    }
    Ok(Reply::Answer(Answer::done()))
}

fn leader(leader: Option<&Leader>) -> Answer {
    let leader =
        leader.map(|leader| json!({ "value": leader.value, "term": leader.term, "holder": leader.holder }));
    Answer::new("leader", json!({ "leader": leader }))
}
