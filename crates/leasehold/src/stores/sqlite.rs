//! The SQLite store: a file on this machine that processes share. It is the embedded default.
//!
//! Times are read from the machine's boot-time clock and stored together with the id of the boot. A step of the wall
//! clock does not affect a lease. A lease of an earlier boot has lapsed. If the process of a holder ends, its lease
//! ends at once, as with flock(1). `docs/stores/sqlite.md` describes the layout, the permissions and the limits.

mod acquire;
mod calls;
mod counter;
mod database;
mod errors;
mod evidence;
mod examine;
mod file;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing;
#[cfg(test)]
mod golden_tests;
mod hold;
mod identity;
mod location;
mod machine;
mod mounts;
mod requests;
mod row;
mod schema;
mod sweep;
#[cfg(test)]
mod tests;
mod wait;
mod waiters;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::stream::BoxStream;
use rusqlite::Connection;
use tokio::task::spawn_blocking;

use self::database::{Changed, Database, Durability, transact};
use self::evidence::Evidence;
use self::location::Location;
use self::machine::Machine;
use self::requests::Purpose;
use self::row::Row;
use super::pages::{self, Page};
use crate::clock::{Moment, StoreTime};
use crate::diagnosis::{Diagnose, Examination, Examined};
use crate::env::Env;
use crate::error::{Error, ErrorKind, Fault, StoreError};
use crate::lease::{
    AcquireOutcome, Capabilities, Claim, Evicted, Eviction, Grant, Id, LeaseStore, PollInterval, Released,
    Renewal, Status, StoreOptions, Swept, Token, in_time,
};
use crate::protocol::record::RecordState;
use crate::protocol::rules;
use crate::types::LockName;
use crate::url::StoreUrl;
use crate::worker::program_ends;

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
    env: Env,
}

impl SqliteLeases {
    async fn open(location: Location, machine: Machine, env: Env) -> Result<Self, StoreError> {
        let store = Self { database: Database::new(location), machine: Arc::new(machine), env };
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
        F: Fn(Option<Row>, &Machine, Moment) -> (T, Option<Row>) + Clone + Send + 'static,
        T: Send + 'static,
    {
        let (name, machine, env) = (name.clone(), Arc::clone(&self.machine), self.env.clone());
        let work = move |connection: &mut Connection| {
            let mut freed = false;
            let output = transact(connection, durability, |transaction| {
                let (output, row) = step(row::load(transaction, &name)?, &machine, env.now());
                freed = row.as_ref().is_some_and(|row| row.record.state == RecordState::Free);
                let changed = row.map(|row| row::store(transaction, &name, &row)).transpose()?;
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
        let step = |mut row: Option<Row>, machine: &Machine, now: Moment| {
            let died = Evidence::of(row.as_ref(), machine, now).just_died;
            row.iter_mut().for_each(|row| row.note_death(now));
            ((), row.filter(|_| died))
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
}

#[async_trait]
impl LeaseStore for SqliteLeases {
    async fn try_acquire(&self, claim: &Claim) -> Result<AcquireOutcome, StoreError> {
        let (owned, machine, env) = (claim.clone(), Arc::clone(&self.machine), self.env.clone());
        let work = move |connection: &mut Connection| acquire::acquire(connection, &owned, &machine, &env);
        match self.database.run(&self.env, claim.store_timeout, Purpose::Write, work).await? {
            AcquireOutcome::Granted(grant) => in_time(self, claim, grant).await,
            verdict => Ok(verdict),
        }
    }

    async fn renew(&self, grant: &mut Grant) -> Result<Renewal, StoreError> {
        self.renew_grant(grant).await
    }

    async fn release(&self, grant: &mut Grant, cooldown: Option<Duration>) -> Result<Released, StoreError> {
        self.release_grant(grant, cooldown).await
    }

    async fn detach(&self, grant: &mut Grant) -> Result<(), StoreError> {
        self.detach_grant(grant).await
    }

    async fn add_processes(&self, name: &LockName, pids: &[u32]) -> Result<(), StoreError> {
        let pids = pids.to_vec();
        let step = move |mut row: Option<Row>, machine: &Machine, _| {
            let adds = row.as_mut().is_some_and(|row| row.add_processes(&pids, machine));
            ((), row.filter(|_| adds))
        };
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
        let (why, env) = (why.cloned(), self.env.clone());
        let step = move |row: Option<Row>, machine: &Machine, now: Moment| match row {
            Some(Row { record, .. }) if record.token == token && record.state != RecordState::Free => {
                let wall = Some(StoreTime::exactly(now.wall_us()));
                let record = rules::evicted(&record, why.as_ref(), wall, hold::nonce(&env, now));
                (Evicted::Evicted, Some(Row::written(record, machine, now)))
            }
            _ => (Evicted::Changed, None),
        };
        self.change(name, STORE_TIMEOUT, Purpose::Write, Durability::Disk, step).await
    }

    async fn inspect(&self, name: &LockName) -> Result<Status, StoreError> {
        let (name, machine, env) = (name.clone(), Arc::clone(&self.machine), self.env.clone());
        let work = move |connection: &mut Connection| {
            let (row, now) = (row::load(connection, &name)?, env.now());
            let state = Evidence::of(row.as_ref(), &machine, now).state(row.as_ref());
            let mut status = Status::new(name.clone(), state);
            status.waiters = waiters::all(connection, &name, &machine, now)?;
            if let Some(Row { record, .. }) = row {
                status.size = rules::recorded(record.size);
                (status.token, status.history) = (Some(record.token), record.history);
            }
            Ok(status)
        };
        self.database.run(&self.env, STORE_TIMEOUT, Purpose::Read, work).await
    }

    fn list(&self, prefix: &str) -> BoxStream<'_, Result<LockName, StoreError>> {
        let fetch = async |prefix: String, after: Option<String>| {
            let work =
                move |connection: &mut Connection| row::names(connection, &prefix, after.as_deref(), PAGE);
            let items = self.database.run(&self.env, STORE_TIMEOUT, Purpose::Read, work).await?;
            let next = items.last().filter(|_| items.len() == PAGE as usize).cloned();
            Ok(Page { items, next })
        };
        let endless = || Fault::new(ErrorKind::Corrupt, "the file lists a name twice").not_applied();
        pages::lock_names(&self.env, prefix, fetch, endless)
    }

    async fn init(&self) -> Result<(), StoreError> {
        let location = self.database.location().clone();
        match spawn_blocking(move || location.create_folder()).await {
            Ok(created) => created.map_err(Fault::not_applied)?,
            Err(_) => return Err(program_ends().not_applied()),
        }
        self.touch().await
    }

    async fn sweep(&self, name: &LockName, older_than: Duration, dry_run: bool) -> Result<Swept, StoreError> {
        self.swept(name, older_than, dry_run).await
    }

    fn capabilities(&self) -> Capabilities {
        let mut capabilities = Capabilities::new("SQLite", POLL_INTERVAL);
        capabilities.sizes = true;
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
