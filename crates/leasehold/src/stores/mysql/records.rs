//! The records of one table.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::stream::BoxStream;

use super::POLL_INTERVAL;
use super::config::Location;
use super::connect::Connector;
use super::row::unreadable;
use super::sql::{self, Writing};
use super::store::MysqlStore;
use crate::clock::StoreTime;
use crate::diagnosis::{Examination, Examined};
use crate::env::Env;
use crate::error::{Error, Fault, StoreError};
use crate::lease::Capabilities;
use crate::protocol::line::Line;
use crate::protocol::record::Record;
use crate::protocol::records::{Change, Claims, Found, Records, Refusal, Written};
use crate::register::{Precondition, Version};
use crate::stores::columns::Columns;
use crate::stores::pages;
use crate::stores::pool::Purpose;
use crate::stores::rows::is_ours;
use crate::stores::table::Effect;
use crate::types::LockName;
use crate::worker::{Job, OnWorker};

/// The records of one table. Each request runs as a job on the store's thread, so that a future that its caller no longer
/// polls does not keep a connection.
#[derive(Debug)]
pub(super) struct MysqlRecords {
    worker: OnWorker<MysqlStore>,
    env: Env,
}

impl MysqlRecords {
    /// Starts the store's thread. Sends no request.
    pub(super) async fn open(location: Location, env: Env, margin: Duration) -> Result<Self, Error> {
        let own_env = env.clone();
        let connect = move || Ok(MysqlStore::new(Connector::to(location)?, own_env, margin));
        Ok(Self { worker: OnWorker::open("MySQL", connect).await?, env })
    }

    /// Runs `work` on the store's thread.
    fn run<T: Send + 'static, F>(&self, work: impl FnOnce(Arc<MysqlStore>) -> F) -> Job<T>
    where
        F: Future<Output = T> + Send + 'static,
    {
        self.worker.run(work)
    }

    /// Sends a statement that changes one row. Returns whether the row was found.
    async fn change(&self, sql: String) -> Result<bool, StoreError> {
        let answers = self.run(|store| async move { store.send(Effect::Writes, &sql).await }).await??;
        Ok(answers.first().is_some_and(|answer| answer.affected > 0))
    }

    fn table(&self) -> &str {
        &self.worker.leases.table
    }
}

impl Drop for MysqlRecords {
    fn drop(&mut self) {
        let store = self.worker.leases.clone();
        self.worker.finish(async move { store.sessions.pool.close_idle() });
    }
}

#[async_trait]
impl Records for MysqlRecords {
    async fn read(&self, name: &LockName) -> Result<Option<Found>, StoreError> {
        let name = name.clone();
        self.run(|store| async move {
            let stored = store.read(&name).await?;
            stored.map(|stored| stored.found(name.as_str(), store.sessions.table())).transpose()
        })
        .await?
    }

    async fn write(
        &self,
        name: &LockName,
        expect: Precondition<'_>,
        before: Option<&Record>,
        record: &Record,
    ) -> Result<Written, StoreError> {
        let expect = expect.version().cloned();
        let (change, prolongs) = (Change::of(before, record), before.map_or(Duration::ZERO, Record::span));
        // After another client's lock, the row lacks what was added to the history that was read.
        let before = before.filter(|_| expect.as_ref().is_some_and(is_ours));
        let columns = Columns::of(record, before).map_err(Fault::not_applied)?;
        let (name, record) = (name.clone(), record.clone());
        let writing = Writing { change, tokens: None, name, expect, record, columns, prolongs };
        self.run(|store| async move { store.write(writing).await }).await?
    }

    async fn claim(
        &self,
        name: &LockName,
        record: &Record,
        tokens: u64,
        _barges: bool,
    ) -> Result<Written, StoreError> {
        // The free record keeps its history.
        let columns = Columns::of(record, Some(record)).map_err(Fault::not_applied)?;
        let (name, record) = (name.clone(), record.clone());
        let (change, tokens, prolongs) = (Change::Grant, Some(tokens), Duration::ZERO);
        let writing = Writing { change, tokens, name, expect: None, record, columns, prolongs };
        self.run(|store| async move { store.write(writing).await }).await?
    }

    fn claims(&self) -> Claims {
        Claims::Free
    }

    /// A failover loses what the new primary did not receive.
    fn loses_writes(&self) -> bool {
        true
    }

    /// The row shows that another client has taken the lock, but a lapsed grant is over in any case.
    fn others_leave_no_trace(&self) -> bool {
        true
    }

    /// Changes nothing, because the line comes with each record.
    async fn mark_awaited(&self, _: &LockName, _: &Version, _: &Record) -> Result<Written, StoreError> {
        Ok(Written::Conflict(Refusal::Unexplained))
    }

    fn has_lines(&self) -> bool {
        true
    }

    async fn read_line(&self, name: &LockName) -> Result<Option<(Bytes, Version)>, StoreError> {
        let name = name.clone();
        let stored = self.run(|store| async move { store.read(&name).await }).await??;
        let line = stored.and_then(|stored| stored.line);
        line.map(|(line, version)| Ok((line.to_bytes().map_err(Fault::not_applied)?, version))).transpose()
    }

    async fn write_line(
        &self,
        name: &LockName,
        expect: Precondition<'_>,
        line: Bytes,
    ) -> Result<bool, StoreError> {
        let back = Line::parse(&line).map_err(Fault::not_applied)?.back();
        let line = String::from_utf8_lossy(&line);
        self.change(sql::write_line(self.table(), name.as_str(), expect.version(), &line, back)).await
    }

    fn list(&self, prefix: &str) -> BoxStream<'_, Result<LockName, StoreError>> {
        let fetch = async |prefix: String, from| {
            self.run(|store| async move { store.names(&prefix, from).await }).await?
        };
        pages::lock_names(&self.env, prefix, fetch, || unreadable(&"a page follows itself"))
    }

    async fn discard(&self, name: &LockName, version: &Version) -> Result<bool, StoreError> {
        self.change(sql::discard(self.table(), name.as_str(), version)).await
    }

    async fn check_sweep(&self) -> Result<(), StoreError> {
        self.run(|store| async move { store.check_unshared().await }).await?
    }

    async fn examine(&self, _: &Examination) -> Examined {
        self.run(|store| async move { store.examined().await }).await.unwrap_or_default()
    }

    /// Also records which server is the primary, because each new connection does.
    async fn init(&self) -> Result<(), StoreError> {
        self.run(|store| async move {
            store.make_table().await?;
            store.sessions.take(Purpose::Contend).await.map(drop)
        })
        .await?
    }

    /// Connects, so that the server's time is known.
    async fn prepare(&self) -> Result<(), StoreError> {
        if self.store_time().is_some() {
            return Ok(());
        }
        self.run(|store| async move { store.sessions.take(Purpose::Contend).await.map(drop) }).await?
    }

    /// Succeeds without a check, because a server that is not MySQL would not understand the statements.
    async fn trust(&self) -> Result<(), StoreError> {
        Ok(())
    }

    async fn trust_deletes(&self) -> Result<(), StoreError> {
        Ok(())
    }

    fn store_time(&self) -> Option<StoreTime> {
        self.worker.leases.sessions.clock.bounds(self.env.now())
    }

    fn env(&self) -> &Env {
        &self.env
    }

    fn capabilities(&self) -> Capabilities {
        let mut capabilities = Capabilities::new("MySQL", POLL_INTERVAL);
        capabilities.sizes = true;
        capabilities.line = Some("the column `line` of a lock's row");
        (capabilities.permits_in_order, capabilities.queues_permits) = (true, true);
        capabilities
    }
}
