//! The SQLite store: a file on this machine that processes share. It is the embedded default.
//!
//! Times are read from the machine's boot-time clock and stored together with the id of the boot. A step of the wall
//! clock does not affect a lease. A lease of an earlier boot has lapsed. If the process of a holder ends, its lease
//! ends at once, as with flock(1). `docs/stores/sqlite.md` describes the layout, the permissions and the limits.

mod acquire;
mod calls;
mod database;
mod errors;
mod examine;
mod file;
mod file_system;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing;
#[cfg(test)]
mod golden_tests;
mod heartbeats;
mod identity;
mod location;
mod machine;
mod record;
mod requests;
mod rules;
mod schema;
mod sweep;
#[cfg(test)]
mod tests;
mod wait;
mod waiters;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::stream::{self, BoxStream, StreamExt, TryStreamExt};
use rusqlite::Connection;
use tokio::task::spawn_blocking;

use self::database::{Changed, Database, Durability, transact};
use self::heartbeats::Heartbeats;
use self::location::Location;
use self::machine::Machine;
use self::record::Record;
use self::requests::Purpose;
use self::rules::Standing;
use crate::clock::Moment;
use crate::diagnosis::{Diagnose, Examination, Examined};
use crate::env::Env;
use crate::error::{Error, ErrorKind, Fault, StoreError};
use crate::lease::{
    AcquireOutcome, Capabilities, Claim, Evicted, Eviction, Grant, Id, LeaseStore, Loss, LossReason,
    PollInterval, ReleaseRequest, Released, Renewal, Status, StoreOptions, Swept, Token, Ttl, deadline,
};
use crate::types::LockName;
use crate::url::StoreUrl;

/// Polling is cheap, because a poll is one indexed read of a local file.
const POLL_INTERVAL: PollInterval =
    PollInterval { min: Duration::from_millis(2), max: Duration::from_millis(50) };

/// The time limit of operations on a busy file whose caller sets none.
const STORE_TIMEOUT: Duration = Duration::from_secs(10);

/// The number of names that are read at a time.
const PAGE: u32 = 256;

/// Opens `sqlite:path.db`, `sqlite:/path.db` or `sqlite:///path.db`. `sqlite:` opens the user's own file
/// (`$XDG_STATE_HOME/leasehold/locks.db`, else `~/.local/state/leasehold/locks.db`). Creates the file if it is missing.
/// Does not create the folder of a path that was given; [`LeaseStore::init`] does that.
///
/// The common options `store_clock` and `margin` have no effect here, because all processes read one clock.
/// `allow_network=on` permits file systems that are not known to be local to this machine.
///
/// ```
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// use leasehold::{Locker, lease::StoreOptions, stores::sqlite, url::StoreUrl};
///
/// # let folder = tempfile::tempdir().unwrap();
/// # let path = folder.path().join("locks.db");
/// let url = StoreUrl::parse(&format!("sqlite:{}", path.display()))?;
/// let one = Locker::new(sqlite::open(url.clone(), StoreOptions::default()).await?);
/// let two = Locker::new(sqlite::open(url, StoreOptions::default()).await?); // as another process would
/// let guard = one.lock("backup").acquire().await?;
/// assert!(two.lock("backup").try_acquire().await.is_err());
/// guard.release().await?;
/// # Ok::<_, leasehold::Error>(())
/// # }).unwrap();
/// ```
///
/// # Errors
/// Invalid for a URL or a path that cannot be a lock file. Denied without write permission to the file and its folder.
/// Unsupported for a file system that is not known to be local, or a file of a newer version. Corrupt for a file that
/// is damaged or no SQLite database. Files of other programs are never overwritten.
pub async fn open(url: StoreUrl, mut options: StoreOptions) -> Result<Arc<dyn LeaseStore>, Error> {
    let location = Location::from_url(url, &mut options)?;
    let store = SqliteLeases::open(location, Machine::this()?, options.env).await?;
    Ok(Arc::new(store))
}

/// The leases in one file.
#[derive(Debug)]
struct SqliteLeases {
    database: Database,
    machine: Arc<Machine>,
    heartbeats: Arc<Heartbeats>,
    env: Env,
}

impl SqliteLeases {
    async fn open(location: Location, machine: Machine, env: Env) -> Result<Self, StoreError> {
        let store = Self {
            database: Database::new(location),
            machine: Arc::new(machine),
            heartbeats: Arc::default(),
            env,
        };
        let opened = store.touch().await;
        // The next request reports a missing folder, unless that request is `init`, which creates the folder.
        if opened.is_err() && !store.database.location().has_no_folder() {
            opened?;
        }
        Ok(store)
    }

    /// Opens the file, and creates it if it is missing.
    async fn touch(&self) -> Result<(), StoreError> {
        self.database.run(&self.env, STORE_TIMEOUT, Purpose::Read, |_| Ok(())).await
    }

    /// Reads one lock.
    async fn read<T, F>(&self, name: &LockName, purpose: Purpose, view: F) -> Result<T, StoreError>
    where
        F: Fn(Option<Record>, &Machine, Moment) -> T + Clone + Send + 'static,
        T: Send + 'static,
    {
        let (name, machine, env) = (name.clone(), Arc::clone(&self.machine), self.env.clone());
        let work = move |connection: &mut Connection| {
            let record = record::load(connection, &name)?;
            Ok(view(record, &machine, env.now()))
        };
        self.database.run(&self.env, STORE_TIMEOUT, purpose, work).await
    }

    /// Changes one lock. `step` returns the result and, if the row changes, the new row.
    async fn change<T, F>(
        &self,
        name: &LockName,
        limit: Duration,
        purpose: Purpose,
        durability: Durability,
        step: F,
    ) -> Result<T, StoreError>
    where
        F: Fn(Option<Record>, &Machine, Moment) -> (T, Option<Record>) + Clone + Send + 'static,
        T: Send + 'static,
    {
        let (name, machine, env) = (name.clone(), Arc::clone(&self.machine), self.env.clone());
        let work = move |connection: &mut Connection| {
            let mut freed = false;
            let output = transact(connection, durability, |transaction| {
                let record = record::load(transaction, &name)?;
                let (output, record) = step(record, &machine, env.now());
                freed = record.as_ref().is_some_and(|record| record.state == record::State::Free);
                let changed = record.map(|record| record::store(transaction, &name, &record)).transpose()?;
                Ok((output, changed.map(|()| Changed)))
            })?;
            if freed {
                calls::call_first(connection, &name);
            }
            Ok(output)
        };
        self.database.run(&self.env, limit, purpose, work).await
    }

    /// Records on behalf of a waiter that the holder was found dead. The lock delay counts from then.
    async fn note_death(&self, name: &LockName) -> Result<(), StoreError> {
        let step = |mut record: Option<Record>, machine: &Machine, now: Moment| {
            let died = record
                .as_ref()
                .is_some_and(|record| rules::standing(record, machine, now) == Standing::JustDied);
            if let Some(record) = &mut record {
                rules::note_death(record, now);
            }
            ((), record.filter(|_| died))
        };
        self.change(name, STORE_TIMEOUT, Purpose::Write, Durability::System, step).await
    }

    /// Gives up the place of `claim` in the line of `name`. The lock may be free for the next waiter.
    async fn leave(&self, name: &LockName, claim: Id) -> Result<(), StoreError> {
        let name = name.clone();
        let work = move |connection: &mut Connection| {
            transact(connection, Durability::System, |transaction| {
                waiters::leave(transaction, claim)?;
                Ok(((), Some(Changed)))
            })?;
            calls::call_first(connection, &name);
            Ok(())
        };
        self.database.run(&self.env, STORE_TIMEOUT, Purpose::Release, work).await
    }

    /// Returns `grant`. If its deadline has already passed, releases it and returns a loss instead.
    async fn in_time(&self, claim: &Claim, mut grant: Grant) -> Result<AcquireOutcome, StoreError> {
        if !grant.deadline.passed(self.env.now()) {
            return Ok(AcquireOutcome::Granted(grant));
        }
        if claim.repeatable {
            // Does not release the grant, because a repetition of the claim may have it by now.
            return Ok(AcquireOutcome::Lost(grant.came_too_late()));
        }
        match self.release(&mut grant, None).await {
            Ok(_) => Ok(AcquireOutcome::Lost(grant.came_too_late())),
            // The grant may still exist, so the caller must learn of it.
            Err(StoreError::NotApplied(fault) | StoreError::MaybeApplied(fault)) => {
                Err(fault.maybe_applied())
            }
        }
    }
}

#[async_trait]
impl LeaseStore for SqliteLeases {
    async fn try_acquire(&self, claim: &Claim) -> Result<AcquireOutcome, StoreError> {
        let (owned, machine, env) = (claim.clone(), Arc::clone(&self.machine), self.env.clone());
        let heartbeats = Arc::clone(&self.heartbeats);
        let work = move |connection: &mut Connection| {
            acquire::acquire(connection, &owned, &machine, &heartbeats, &env)
        };
        match self.database.run(&self.env, claim.store_timeout, Purpose::Write, work).await? {
            AcquireOutcome::Granted(grant) => self.in_time(claim, grant).await,
            verdict => Ok(verdict),
        }
    }

    async fn renew(&self, grant: &mut Grant) -> Result<Renewal, StoreError> {
        let left = grant.deadline.remaining(self.env.now());
        if left.is_zero() {
            return Ok(grant.lost(LossReason::EXPIRED));
        }
        let (name, id, token) = (grant.name.clone(), grant.id, grant.token);
        let (valid, heartbeats) = (grant.deadline, Arc::clone(&self.heartbeats));
        let step = move |mut record: Option<Record>, machine: &Machine, now: Moment| match rules::hold_of(
            record.as_mut().filter(|record| rules::has_token(record, token)),
            id,
        ) {
            // The request waited for the file for so long that the guard was lost.
            Some(_) if valid.passed(now) => {
                let reason = LossReason::EXPIRED;
                (Err(Loss::new(name.clone(), token, reason)), None)
            }
            Some(hold) if heartbeats.is_foreign(id, hold.renewed_ns) => {
                (Err(Loss::new(name.clone(), token, LossReason::RenewedElsewhere)), None)
            }
            Some(hold) => {
                let found_ns = hold.renewed_ns;
                rules::renew(hold, machine, now);
                heartbeats.renew(id, found_ns, hold.renewed_ns);
                (Ok((hold.ttl, now)), record)
            }
            None => (Err(rules::loss(&name, id, token, record.as_ref(), machine, now)), None),
        };
        let (ttl, at): (Ttl, Moment) =
            match self.change(&grant.name, left, Purpose::Renew, Durability::System, step).await {
                Ok(Ok(renewed)) => renewed,
                Ok(Err(loss)) => {
                    self.heartbeats.end(id);
                    return Ok(Renewal::Lost(loss));
                }
                // The request waited for the file for longer than the lease lasted.
                Err(error) if grant.deadline.passed(self.env.now()) => {
                    let last_error = Some(error.to_string());
                    return Ok(grant.lost(LossReason::Expired { last_error }));
                }
                Err(error) => return Err(error),
            };
        let prolonged = deadline(ttl, at);
        let now = self.env.now();
        // A response that arrives after the end of the lease does not extend it.
        if grant.deadline.passed(now) || prolonged.passed(now) {
            return Ok(grant.lost(LossReason::EXPIRED));
        }
        grant.deadline = prolonged;
        Ok(Renewal::Renewed)
    }

    async fn release(&self, grant: &mut Grant, cooldown: Option<Duration>) -> Result<Released, StoreError> {
        if grant.token == Token::default() {
            // The grant stands for a withdrawn claim, which no longer waits.
            self.leave(&grant.name, grant.id).await?;
        }
        let (id, token) = (grant.id, grant.token);
        let asked_before = grant.memo.replace(Box::new(ReleaseRequest)).is_some();
        let heartbeats = Arc::clone(&self.heartbeats);
        let is_a_copys = move |mut record: Option<Record>| {
            let hold = rules::hold_of(record.as_mut(), id);
            hold.is_some_and(|hold| heartbeats.is_foreign(id, hold.renewed_ns))
        };
        let step = move |record: Option<Record>, machine: &Machine, now: Moment| match rules::release(
            record.as_ref().filter(|record| rules::has_token(record, token)),
            id,
            cooldown,
            machine,
            now,
        ) {
            Some(_) if is_a_copys(record.clone()) => (Released::AlreadyLost, None),
            Some(released) => (Released::Released, Some(released)),
            None if asked_before => (rules::was_released(record.as_ref(), id), None),
            None => (Released::AlreadyLost, None),
        };
        // If a power failure undoes a release, the lease still ends with the boot. If it undoes a cooldown, a job could
        // run twice in its period.
        let durability = if cooldown.is_some() { Durability::Disk } else { Durability::System };
        let released = self.change(&grant.name, STORE_TIMEOUT, Purpose::Release, durability, step).await?;
        self.heartbeats.end(id);
        Ok(released)
    }

    async fn detach(&self, grant: &mut Grant) -> Result<(), StoreError> {
        let (name, id, token) = (grant.name.clone(), grant.id, grant.token);
        let heartbeats = self.heartbeats.clone();
        let step = move |mut record: Option<Record>, machine: &Machine, now: Moment| match rules::hold_of(
            record.as_mut(),
            id,
        ) {
            Some(hold) if heartbeats.is_foreign(id, hold.renewed_ns) => {
                (Err(Loss::new(name.clone(), token, LossReason::RenewedElsewhere)), None)
            }
            Some(hold) => {
                hold.process = None;
                (Ok(()), record)
            }
            None => (Err(rules::loss(&name, id, token, record.as_ref(), machine, now)), None),
        };
        let detached =
            self.change(&grant.name, STORE_TIMEOUT, Purpose::Release, Durability::System, step).await?;
        // From now on any process with the ticket may renew the grant.
        self.heartbeats.end(id);
        detached.map_err(|loss| Fault::new(ErrorKind::Lost, loss.to_string()).not_applied())
    }

    async fn add_processes(&self, name: &LockName, pids: &[u32]) -> Result<(), StoreError> {
        let pids = pids.to_vec();
        let step = move |record, machine: &Machine, _| ((), rules::add_processes(record, &pids, machine));
        self.change(name, STORE_TIMEOUT, Purpose::Release, Durability::System, step).await
    }

    async fn stop_waiting(&self, claim: &Claim) -> Result<(), StoreError> {
        self.leave(&claim.name, claim.id).await
    }

    fn may_have_place(&self, claim: &Claim) -> bool {
        claim.waits && !claim.barges
    }

    async fn evict(
        &self,
        name: &LockName,
        token: Token,
        why: Option<&Eviction>,
    ) -> Result<Evicted, StoreError> {
        let why = why.cloned();
        let step = move |record, _: &Machine, now: Moment| rules::evict(record, token, why.as_ref(), now);
        self.change(name, STORE_TIMEOUT, Purpose::Write, Durability::System, step).await
    }

    async fn inspect(&self, name: &LockName) -> Result<Status, StoreError> {
        let (name, machine, env) = (name.clone(), Arc::clone(&self.machine), self.env.clone());
        let work = move |connection: &mut Connection| {
            let (record, now) = (record::load(connection, &name)?, env.now());
            let mut status = rules::status(name.clone(), record, &machine, now);
            status.waiters = waiters::all(connection, &name, &machine, now)?;
            Ok(status)
        };
        self.database.run(&self.env, STORE_TIMEOUT, Purpose::Read, work).await
    }

    fn list(&self, prefix: &str) -> BoxStream<'_, Result<LockName, StoreError>> {
        let prefix = prefix.to_owned();
        // The last name of the previous page. `None` after the last page.
        let pages = stream::try_unfold(Some(None), move |after: Option<Option<String>>| {
            let prefix = prefix.clone();
            async move {
                let Some(after) = after else { return Ok(None) };
                let work = move |connection: &mut Connection| {
                    record::names(connection, &prefix, after.as_deref(), PAGE)
                };
                let names = self.database.run(&self.env, STORE_TIMEOUT, Purpose::Read, work).await?;
                let more = names.len() == PAGE as usize;
                let next = if more { Some(names.last().cloned()) } else { None };
                Ok(Some((names, next)))
            }
        });
        // Skips names that are not lock names. leasehold did not write them.
        let names = pages.map_ok(|names| {
            stream::iter(names).map(LockName::new).filter_map(async |name| name.ok().map(Ok))
        });
        names.try_flatten().boxed()
    }

    async fn init(&self) -> Result<(), StoreError> {
        let location = self.database.location().clone();
        match spawn_blocking(move || location.create_folder()).await {
            Ok(created) => created.map_err(Fault::not_applied)?,
            Err(_) => return Err(Fault::unavailable("the program is ending").not_applied()),
        }
        self.touch().await
    }

    async fn sweep(&self, name: &LockName, older_than: Duration, dry_run: bool) -> Result<Swept, StoreError> {
        self.swept(name, older_than, dry_run).await
    }

    fn capabilities(&self) -> Capabilities {
        let mut capabilities = Capabilities::new("SQLite", POLL_INTERVAL);
        capabilities.sees_dead_processes = self.machine.me.is_some();
        capabilities.line = Some("the table `waiter` of the file");
        capabilities.permits_in_order = true;
        capabilities
    }

    fn env(&self) -> &Env {
        &self.env
    }
}

#[async_trait]
impl Diagnose for SqliteLeases {
    async fn discard(&self, name: &LockName) -> Result<bool, StoreError> {
        self.deleted(name).await
    }

    async fn examine(&self, _: &Examination) -> Examined {
        self.examined().await
    }
}
