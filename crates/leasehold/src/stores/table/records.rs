//! The records of one table.

use std::future::pending;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::stream::BoxStream;

use super::reports::used_by_others;
use super::{AnyFree, Connections, Servers, Table, UNSHARED, Writing};
use crate::clock::StoreTime;
use crate::diagnosis::{Examination, Examined};
use crate::env::Env;
use crate::error::{Error, Fault, StoreError};
use crate::lease::{Capabilities, Id, LeaseStore, PollInterval, StoreOptions};
use crate::protocol::RegisterLeases;
use crate::protocol::line::Waiter;
use crate::protocol::record::Record;
use crate::protocol::records::{Change, Claims, Found, Records, Written};
use crate::register::{Precondition, Version};
use crate::retry::retry;
use crate::stores::columns::Columns;
use crate::stores::database::Database;
use crate::stores::grace;
use crate::stores::notifications::until_first;
use crate::stores::pages::{self, Page};
use crate::stores::pool::Purpose;
use crate::stores::rows::is_ours;
use crate::types::LockName;
use crate::url::{CheckedUrl, StoreUrl};
use crate::worker::{Job, OnWorker};

/// A poll is a read by primary key.
const POLL_INTERVAL: PollInterval =
    PollInterval { min: Duration::from_millis(20), max: Duration::from_millis(500) };

/// The number of names in a page.
const PAGE: usize = 1_000;

/// Opens the leases of the table that `url` names. Sends no request. Reads the files, so that one that cannot be read is an
/// error before anything is locked.
pub(in crate::stores) async fn open<T: Servers>(
    url: StoreUrl,
    mut options: StoreOptions,
    on: impl FnOnce(Connections<T::Session>, &CheckedUrl) -> T + Send + 'static,
) -> Result<Arc<dyn LeaseStore>, Error> {
    let url = url.checked(&mut options)?;
    let connections = Connections::of(Database::of(&url, T::KIND.name)?, &options);
    let connect = move || {
        T::login(&connections.database)?;
        Ok(on(connections, &url))
    };
    let records = TableRecords(OnWorker::open(T::KIND.name, connect).await?);
    Ok(Arc::new(RegisterLeases::on(Arc::new(records), options)))
}

/// Returns the leases of a table whose requests run in the caller's runtime. For the simulation.
#[cfg(feature = "mysql")]
pub(in crate::stores) fn here<T: Table>(
    database: Database,
    options: StoreOptions,
    on: impl FnOnce(Connections<T::Session>) -> T,
) -> Result<RegisterLeases, Error> {
    let records = TableRecords(OnWorker::here(on(Connections::of(database, &options)))?);
    Ok(RegisterLeases::on(Arc::new(records), options))
}

/// The records of one table. Each request runs as a job on the store's thread, so that a future that its caller no longer
/// polls does not keep a connection.
#[derive(Debug)]
struct TableRecords<T: Table>(OnWorker<T>);

impl<T: Table> TableRecords<T> {
    /// Runs `work` on the store's thread.
    fn run<R: Send + 'static, F>(&self, work: impl FnOnce(Arc<T>) -> F) -> Job<R>
    where
        F: Future<Output = R> + Send + 'static,
    {
        self.0.run(work)
    }

    fn connections(&self) -> &Connections<T::Session> {
        self.0.leases.connections()
    }

    async fn written(
        &self,
        change: Change,
        over: Option<AnyFree>,
        name: &LockName,
        expect: Precondition<'_>,
        before: Option<&Record>,
        record: &Record,
    ) -> Result<Written, StoreError> {
        let Connections { database, env, margin, .. } = self.connections();
        let kept = record.kept_for(*margin);
        let prolongs = before.map_or(Duration::ZERO, Record::span) + *margin;
        if change.lengthens(prolongs, kept) {
            grace::check(database.failover_grace, kept, Duration::ZERO)?;
        }
        let expect = expect.version().cloned();
        // After another client's lock, the row lacks what was added to the history that was read.
        let before = before.filter(|_| over.is_some() || expect.as_ref().is_some_and(is_ours));
        let columns = Columns::of(record, before).map_err(Fault::not_applied)?;
        let (name, record, began) = (name.clone(), record.clone(), env.now());
        let writing = Writing { change, over, name, expect, record, columns, kept, prolongs, began };
        self.run(|table| async move { table.write(&writing).await }).await?
    }
}

impl<T: Table> Drop for TableRecords<T> {
    fn drop(&mut self) {
        let table = self.0.leases.clone();
        self.0.finish(async move { table.close() });
    }
}

#[async_trait]
impl<T: Table> Records for TableRecords<T> {
    async fn read(&self, name: &LockName) -> Result<Option<Found>, StoreError> {
        let name = name.clone();
        self.run(|table| async move { table.read(&name).await }).await?
    }

    async fn write(
        &self,
        name: &LockName,
        expect: Precondition<'_>,
        before: Option<&Record>,
        record: &Record,
    ) -> Result<Written, StoreError> {
        self.written(Change::of(before, record), None, name, expect, before, record).await
    }

    async fn claim(
        &self,
        name: &LockName,
        record: &Record,
        tokens: u64,
        barges: bool,
    ) -> Result<Written, StoreError> {
        // The free record keeps its history.
        let over = Some(AnyFree { tokens, barges });
        self.written(Change::Grant, over, name, Precondition::Absent, Some(record), record).await
    }

    fn claims(&self) -> Claims {
        T::CLAIMS
    }

    async fn join(
        &self,
        name: &LockName,
        waiter: &Waiter,
        most_ms: u64,
    ) -> Result<Option<Found>, StoreError> {
        let (name, waiter) = (name.clone(), waiter.clone());
        self.run(move |table| async move { table.join(&name, &waiter, most_ms).await }).await?
    }

    async fn leave(&self, name: &LockName, claim: Id) -> Result<(), StoreError> {
        let name = name.clone();
        self.run(move |table| async move { table.leave(&name, claim).await }).await?
    }

    /// A failover loses what the new primary did not receive.
    fn loses_writes(&self) -> bool {
        true
    }

    /// The row shows that another client has taken the lock, but a lapsed grant is over in any case.
    fn others_leave_no_trace(&self) -> bool {
        true
    }

    async fn settle(&self, name: &LockName, version: Option<&Version>) -> Result<bool, StoreError> {
        let (name, version) = (name.clone(), version.cloned());
        self.run(|table| async move { table.settle(&name, version.as_ref()).await }).await?
    }

    /// The line comes with each record.
    fn marks_awaited(&self) -> bool {
        false
    }

    async fn freed(&self, name: &LockName, claim: Option<Id>) {
        let Some((calls, claim)) = self.0.leases.calls().zip(claim) else { return pending().await };
        // Registers before the read, so that no call is missed.
        let call = calls.expect(claim);
        // A listener that begins now calls all claims once it listens.
        let missed = !self.run(|table| async move { table.listen() }).await.unwrap_or_default();
        until_first(self, name, claim, call, missed).await;
    }

    fn calls_the_first(&self) -> bool {
        T::CLAIMS == Claims::InTurn
    }

    fn has_lines(&self) -> bool {
        true
    }

    async fn read_line(&self, name: &LockName) -> Result<Option<(Bytes, Version)>, StoreError> {
        let name = name.clone();
        self.run(|table| async move { table.read_line(&name).await }).await?
    }

    async fn write_line(
        &self,
        name: &LockName,
        expect: Precondition<'_>,
        line: Bytes,
    ) -> Result<bool, StoreError> {
        let (name, expect) = (name.clone(), expect.version().cloned());
        self.run(|table| async move { table.write_line(&name, expect.as_ref(), &line).await }).await?
    }

    fn list(&self, prefix: &str) -> BoxStream<'_, Result<LockName, StoreError>> {
        let fetch = async |prefix: String, from: Option<String>| {
            let names = |table: Arc<T>| async move { table.names(&prefix, from.as_deref(), PAGE).await };
            Ok(Page::of_at_most(PAGE, self.run(names).await??))
        };
        pages::lock_names(self.env(), prefix, fetch, || T::KIND.unreadable(&"a page follows itself"))
    }

    async fn discard(&self, name: &LockName, version: &Version) -> Result<bool, StoreError> {
        let (name, version) = (name.clone(), version.clone());
        self.run(|table| async move { table.discard(&name, &version).await }).await?
    }

    /// Keeps the result for a while, because the query reads the whole table.
    async fn check_sweep(&self) -> Result<(), StoreError> {
        let Connections { database, env, unshared, .. } = self.connections();
        let now = env.now();
        let found = *unshared.lock().unwrap_or_else(PoisonError::into_inner);
        if found.is_some_and(|found| now.longest_since(found) < UNSHARED) {
            return Ok(());
        }
        if self.run(|table| async move { table.is_shared().await }).await?? {
            return Err(used_by_others(&database.table));
        }
        *unshared.lock().unwrap_or_else(PoisonError::into_inner) = Some(now);
        Ok(())
    }

    async fn examine(&self, _: &Examination) -> Examined {
        self.run(|table| async move { table.examined().await }).await.unwrap_or_default()
    }

    /// Also records which server is the primary.
    async fn init(&self) -> Result<(), StoreError> {
        self.run(|table| async move {
            retry(table.env(), || table.make()).await?;
            retry(table.env(), || table.note_primary()).await
        })
        .await?
    }

    /// Connects, so that the server's time is known.
    async fn prepare(&self) -> Result<(), StoreError> {
        if self.store_time().is_some() {
            return Ok(());
        }
        self.run(|table| async move { table.take(Purpose::Contend).await.map(drop) }).await?
    }

    /// Succeeds without a check, because another kind of server would not understand the statements.
    async fn trust(&self) -> Result<(), StoreError> {
        Ok(())
    }

    async fn trust_deletes(&self) -> Result<(), StoreError> {
        Ok(())
    }

    fn store_time(&self) -> Option<StoreTime> {
        self.connections().clock.bounds(self.env().now())
    }

    fn env(&self) -> &Env {
        &self.connections().env
    }

    fn capabilities(&self) -> Capabilities {
        let mut capabilities = Capabilities::new(T::KIND.name, POLL_INTERVAL);
        capabilities.sizes = true;
        capabilities.line = Some("the column `line` of a lock's row");
        capabilities.permits_in_order = true;
        capabilities.queues_permits = T::QUEUES_PERMITS;
        capabilities
    }
}
