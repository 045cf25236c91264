//! Acquisitions: `acquire`, `try` and `once`.

use std::sync::Arc;
use std::time::Duration;

use futures_util::{FutureExt as _, TryFutureExt as _};
use leasehold::lease::Ttl;
use leasehold::{Due, Guard, Lock, LockName, Locker, OncePer, RwLock, Semaphore};

use super::fields::{Fields, missing};
use super::message::Answer;
use super::refusal::Refusal;
use super::session::{HoldPlace, Reply, Session, Work};
use super::waiting;
use crate::mode::{Mode, WaitPolicy, acquire_all};

/// An acquisition that the host requests.
#[derive(Debug)]
struct AcquireRequest {
    store: Option<String>,
    /// At least one name, in the order of acquisition.
    locks: Vec<LockName>,
    kind: Kind,
    policy: WaitPolicy,
    settings: LockSettings,
    /// The holds that the host keeps while it waits.
    holding: Vec<u64>,
    report_waiting: bool,
}

#[derive(Debug)]
enum Kind {
    Mode(Mode),
    Leader { value: Option<String> },
    Once { period: Duration },
}

#[derive(Debug)]
struct LockSettings {
    ttl: Option<Duration>,
    lock_delay: Option<Duration>,
    max_hold: Option<Duration>,
    store_timeout: Option<Duration>,
    owner: Option<String>,
    note: Option<String>,
    barge: bool,
    for_ticket: bool,
}

/// Reads the fields of an acquisition and returns its work.
pub(super) fn acquire(
    session: Arc<Session>,
    id: u64,
    operation: &str,
    mut fields: Fields,
) -> Result<Work, Refusal> {
    let place = session.hold_place()?;
    let request = AcquireRequest {
        store: fields.text("store")?,
        locks: if operation == "once" { vec![fields.lock()?] } else { fields.locks()? },
        kind: kind(operation, &mut fields)?,
        policy: policy(operation, &mut fields)?,
        settings: LockSettings::read(&mut fields)?,
        holding: fields.numbers("holding", MAX_HOLDING)?,
        report_waiting: fields.flag("report_waiting")?,
    };
    fields.finish(operation)?;
    if request.locks.len() > 1 && !matches!(request.kind, Kind::Mode(Mode::Lock)) {
        return Err(Refusal::invalid("several locks have no `mode` but `lock`"));
    }
    Ok(request.acquire(session, id, place).boxed())
}

fn kind(operation: &str, fields: &mut Fields) -> Result<Kind, Refusal> {
    let mode = fields.text("mode")?;
    if operation == "once" {
        if mode.is_some() {
            return Err(Refusal::invalid("`once` has no field `mode`"));
        }
        let period = fields.milliseconds("period_ms", 1, OncePer::LONGEST)?;
        return Ok(Kind::Once { period: period.ok_or_else(|| missing("period_ms"))? });
    }
    Ok(match mode.as_deref() {
        None | Some("lock") => Kind::Mode(Mode::Lock),
        Some("permit") => Kind::Mode(Mode::Permit(permits(fields)?)),
        Some("shared") => Kind::Mode(Mode::Shared(readers(fields)?)),
        Some("exclusive") => Kind::Mode(Mode::Exclusive(readers(fields)?)),
        Some("leader") => Kind::Leader { value: fields.text("value")? },
        Some(_) => {
            return Err(Refusal::invalid("`mode` must be lock, permit, shared, exclusive or leader"));
        }
    })
}

fn permits(fields: &mut Fields) -> Result<usize, Refusal> {
    let permits = fields.integer("permits", 1..=Semaphore::MAX_PERMITS as u64)?;
    permits.and_then(|permits| usize::try_from(permits).ok()).ok_or_else(|| missing("permits"))
}

fn readers(fields: &mut Fields) -> Result<usize, Refusal> {
    let readers = fields.integer("readers", 1..=RwLock::MAX_READERS as u64)?;
    Ok(readers.and_then(|readers| usize::try_from(readers).ok()).unwrap_or(RwLock::DEFAULT_READERS))
}

/// Reads the fields of `resize` and returns its work.
pub(super) fn resize(session: Arc<Session>, mut fields: Fields) -> Result<Work, Refusal> {
    let (store, name, mode) = (fields.text("store")?, fields.lock()?, fields.text("mode")?);
    let (size, is_shared) = match mode.as_deref() {
        Some("permit") => (permits(&mut fields)?, false),
        Some("shared") => (readers(&mut fields)?, true),
        _ => return Err(Refusal::invalid("`mode` of `resize` must be permit or shared")),
    };
    let settings = LockSettings::read(&mut fields)?;
    fields.finish("resize")?;
    Ok(async move {
        let locker = session.stores.open_within(store, settings.store_timeout).await?;
        let lock = settings.apply(locker.lock(name.as_str()));
        let before = match is_shared {
            true => lock.rw_lock().readers(size).resize().await?,
            false => lock.semaphore(size).resize().await?,
        };
        Ok(Reply::Answer(Answer::new("resized", serde_json::json!({ "before": before }))))
    }
    .boxed())
}

fn policy(operation: &str, fields: &mut Fields) -> Result<WaitPolicy, Refusal> {
    // Fields that do not belong to the operation are not taken here, so they are refused later.
    if operation == "try" || (operation == "once" && fields.flag("nowait")?) {
        return Ok(WaitPolicy::Try);
    }
    let limit = fields.milliseconds("wait_ms", 0, OncePer::LONGEST)?;
    Ok(match limit {
        None => WaitPolicy::Forever,
        Some(Duration::ZERO) => WaitPolicy::Try, // A limit of zero would leave the store no time to respond.
        Some(limit) => WaitPolicy::Within(limit),
    })
}

impl LockSettings {
    fn read(fields: &mut Fields) -> Result<Self, Refusal> {
        Ok(Self {
            ttl: fields.milliseconds("ttl_ms", MIN_TTL_MS, MAX_TTL)?,
            lock_delay: fields.milliseconds("lock_delay_ms", 0, MAX_TTL)?,
            max_hold: fields.milliseconds("max_hold_ms", MIN_TTL_MS, OncePer::LONGEST)?,
            store_timeout: fields.milliseconds("store_timeout_ms", 1, MAX_TTL)?,
            owner: fields.text("owner")?.filter(|owner| !owner.is_empty()),
            note: fields.text("note")?.filter(|note| !note.is_empty()),
            barge: fields.flag("barge")?,
            for_ticket: fields.flag("for_ticket")?,
        })
    }

    fn apply(self, mut lock: Lock) -> Lock {
        let Self { ttl, lock_delay, max_hold, store_timeout, owner, note, barge, for_ticket } = self;
        lock = ttl.into_iter().fold(lock, Lock::ttl);
        lock = lock_delay.into_iter().fold(lock, Lock::lock_delay);
        lock = max_hold.into_iter().fold(lock, Lock::max_hold);
        lock = store_timeout.into_iter().fold(lock, Lock::store_timeout);
        lock = owner.into_iter().fold(lock, Lock::owner);
        lock = note.into_iter().fold(lock, Lock::note);
        lock = if barge { lock.barge() } else { lock };
        if for_ticket { lock.for_ticket() } else { lock }
    }
}

impl AcquireRequest {
    async fn acquire(self, session: Arc<Session>, id: u64, place: HoldPlace) -> Result<Reply, Refusal> {
        let Self { store, locks, kind, policy, settings, holding, report_waiting } = self;
        let locker = session.stores.open_within(store, settings.store_timeout).await?;
        let Some((first, others)) = locks.split_first() else { return Err(missing("lock")) };
        let lock = settings.apply(locker.lock(first.as_str()));
        let mut lock = session.nested(lock, holding).await?;
        let (seen, reports) = waiting::reports(id, &session.outbox);
        let acquisition = if others.is_empty() {
            if report_waiting {
                let name = first.clone();
                lock = lock.on_wait(move |held| seen(&name, held));
            }
            acquired(lock, kind, policy).boxed()
        } else {
            let locks = lock.and(others.iter().map(LockName::as_str));
            let locks = if report_waiting { locks.on_wait_for(seen) } else { locks };
            acquire_all(locks, policy).map_ok(Due::Now).boxed()
        };
        let due = if report_waiting { reports.during(acquisition).await? } else { acquisition.await? };
        match due {
            Due::AlreadyRan(ran) => Ok(Reply::Answer(Answer::already_ran(ran))),
            Due::Now(guard) => with_host(&session, &locker, guard, place).await,
        }
    }
}

async fn acquired(lock: Lock, kind: Kind, policy: WaitPolicy) -> leasehold::Result<Due> {
    match kind {
        Kind::Mode(mode) => mode.acquire(lock, policy).await.map(Due::Now),
        Kind::Leader { value } => {
            let election = lock.election();
            let election = value.into_iter().fold(election, leasehold::Election::value);
            let leadership = match policy {
                WaitPolicy::Try => election.try_campaign().await,
                WaitPolicy::Within(limit) => election.campaign_within(limit).await,
                WaitPolicy::Forever => election.campaign().await,
            };
            leadership.map(|leadership| Due::Now(leadership.into()))
        }
        Kind::Once { period } => {
            let once = lock.once_per(period);
            match policy {
                WaitPolicy::Try => once.try_acquire().await,
                WaitPolicy::Within(limit) => once.acquire_within(limit).await,
                WaitPolicy::Forever => once.acquire().await,
            }
        }
    }
}

/// Adds the host to the holder's processes. Otherwise a store that detects the death of this process would grant the
/// lock to others while the host still works under it.
pub(super) async fn with_host(
    session: &Session,
    locker: &Locker,
    guard: Guard,
    place: HoldPlace,
) -> Result<Reply, Refusal> {
    if let Some(host) = session.host().filter(|_| locker.capabilities().sees_dead_processes) {
        // On an error the guard is dropped, which releases the lock.
        locker.add_processes(&guard, &[host]).await?;
    }
    Ok(Reply::Held(guard, place))
}

/// The longest list of holds. The library shows the first eight.
const MAX_HOLDING: usize = 64;
const MIN_TTL_MS: u64 = Ttl::MIN.as_millis() as u64;
const MAX_TTL: Duration = Ttl::MAX;
