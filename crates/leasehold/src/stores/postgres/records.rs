//! The records of one table.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::stream::BoxStream;

use super::POLL_INTERVAL;
use super::config::Location;
use super::connect::Connector;
use super::row::{cell, cells, only, unreadable};
use super::statements::{Sql, Statements, int8, text};
use super::store::{AnyFree, PostgresStore, Writing, usual_limit};
use crate::clock::StoreTime;
use crate::diagnosis::{Examination, Examined};
use crate::env::Env;
use crate::error::{Error, Fault, StoreError};
use crate::lease::{Capabilities, Id};
use crate::protocol::line::Waiter;
use crate::protocol::record::Record;
use crate::protocol::records::{Change, Claims, Found, Records, Written};
use crate::register::{Precondition, Version};
use crate::retry::{RetryBudget, repeated};
use crate::stores::columns::Columns;
use crate::stores::notifications::until_first;
use crate::stores::pages;
use crate::stores::pool::Purpose;
use crate::stores::rows::{is_ours, number};
use crate::stores::table::Effect;
use crate::types::LockName;
use crate::worker::{Job, OnWorker};

/// The records of one table. Each request runs as a job on the store's thread, so that a future that its caller no longer
/// polls does not keep a connection.
#[derive(Debug)]
pub(super) struct PostgresRecords {
    worker: OnWorker<PostgresStore>,
    env: Env,
}

impl PostgresRecords {
    /// Starts the store's thread. Sends no request.
    pub(super) async fn open(location: Location, env: Env, margin: Duration) -> Result<Self, Error> {
        let own_env = env.clone();
        let connect = move || Ok(PostgresStore::new(Connector::to(location)?, own_env, margin));
        Ok(Self { worker: OnWorker::open("PostgreSQL", connect).await?, env })
    }

    /// Runs `work` on the store's thread.
    fn run<T: Send + 'static, F>(&self, work: impl FnOnce(Arc<PostgresStore>) -> F) -> Job<T>
    where
        F: Future<Output = T> + Send + 'static,
    {
        self.worker.run(work)
    }

    /// Sends a statement that changes the row of `name`. Its parameters are the name, `which`, and the limit of a wait for
    /// the row. Returns whether it returns a row.
    async fn change(
        &self,
        name: &LockName,
        sql: fn(&Statements) -> &Sql,
        which: Option<String>,
    ) -> Result<bool, StoreError> {
        let name = name.clone();
        self.run(move |store| async move {
            let (name, limit) = (name.as_str(), usual_limit());
            let parameters = [text(&name), text(&which), text(&limit)];
            Ok(!store.rows(Effect::Writes, sql(&store.statements), &parameters).await?.is_empty())
        })
        .await?
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
        let expect = expect.version().cloned().unwrap_or_else(|| Version::new(""));
        let prolongs = before.map_or(Duration::ZERO, Record::span);
        // After another client's lock, the row lacks what was added to the history that was read.
        let before = before.filter(|_| over.is_some() || is_ours(&expect));
        let columns = Columns::of(record, before).map_err(Fault::not_applied)?;
        let (name, record) = (name.clone(), record.clone());
        let writing = Writing { change, over, name, expect, record, columns, prolongs };
        self.run(|store| async move { store.write(&writing).await }).await?
    }
}

impl Drop for PostgresRecords {
    fn drop(&mut self) {
        let store = self.worker.leases.clone();
        self.worker.finish(async move {
            store.listener.end();
            store.sessions.pool.close_idle();
        });
    }
}

#[async_trait]
impl Records for PostgresRecords {
    async fn read(&self, name: &LockName) -> Result<Option<Found>, StoreError> {
        let name = name.clone();
        self.run(|store| async move {
            match store.read(&name).await? {
                Some(cells) => cells.found(name.as_str(), &store.sessions.table().name),
                None => Ok(None),
            }
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
        Claims::InTurn
    }

    async fn join(
        &self,
        name: &LockName,
        waiter: &Waiter,
        most_ms: u64,
    ) -> Result<Option<Found>, StoreError> {
        // PostgreSQL stores no NUL characters in such JSON.
        let entry = waiter.to_json().map_err(Fault::not_applied)?.replace("\\u0000", "\\ufffd");
        let (name, claim) = (name.clone(), waiter.claim.to_string());
        let (single, most) = (number(waiter.polls_ms), number(most_ms));
        self.run(move |store| async move {
            let (name, limit) = (name.as_str(), usual_limit());
            let parameters =
                [text(&name), text(&claim), text(&entry), int8(&single), int8(&most), text(&limit)];
            let rows = store.rows(Effect::Writes, &store.statements.join, &parameters).await?;
            let row = only(&rows)?;
            match cell::<Option<bool>>(row, "is_written")? {
                Some(_) => cells(row)?.found(name, &store.sessions.table().name),
                None => Ok(None),
            }
        })
        .await?
    }

    async fn leave(&self, name: &LockName, claim: Id) -> Result<(), StoreError> {
        self.change(name, |statements| &statements.leave, Some(claim.to_string())).await.map(drop)
    }

    /// A failover loses what the new primary did not receive.
    fn loses_writes(&self) -> bool {
        true
    }

    /// The row shows that another client has taken the lock, but a lapsed grant is over in any case.
    fn others_leave_no_trace(&self) -> bool {
        true
    }

    /// Waits until the standbys have all commits to the row of `name`, because an earlier commit may have stopped
    /// waiting for them. Writes the row again, because that commit also waits for the earlier one. The version shows that
    /// this server has the earlier commit: a standby that lacks it may have been promoted since the read.
    async fn settle(&self, name: &LockName, version: Option<&Version>) -> Result<bool, StoreError> {
        let version = version.map(|version| version.as_str().to_owned());
        self.change(name, |statements| &statements.touch, version).await
    }

    async fn freed(&self, name: &LockName, claim: Option<Id>) {
        let listener = &self.worker.leases.listener;
        let Some(claim) = claim.filter(|_| listener.is_on()) else { return pending().await };
        // Registers before the read, so that no call is missed.
        let call = listener.calls.expect(claim);
        // A listener that begins now calls all claims once it listens.
        let missed = !self.run(|store| async move { store.listener.begin() }).await.unwrap_or_default();
        until_first(self, name, claim, call, missed).await;
    }

    fn calls_the_first(&self) -> bool {
        true
    }

    fn list(&self, prefix: &str) -> BoxStream<'_, Result<LockName, StoreError>> {
        let fetch = async |prefix: String, from| {
            self.run(|store| async move { store.names(&prefix, from).await }).await?
        };
        pages::lock_names(&self.env, prefix, fetch, || unreadable(&"a page follows itself"))
    }

    async fn discard(&self, name: &LockName, version: &Version) -> Result<bool, StoreError> {
        self.change(name, |statements| &statements.discard, Some(version.as_str().to_owned())).await
    }

    async fn check_sweep(&self) -> Result<(), StoreError> {
        self.run(|store| async move { store.check_unshared().await }).await?
    }

    async fn examine(&self, _: &Examination) -> Examined {
        self.run(|store| async move { store.examined().await }).await.unwrap_or_default()
    }

    async fn init(&self) -> Result<(), StoreError> {
        self.run(|store| async move {
            store.make_table().await?;
            if store.sessions.failover_grace().is_zero() {
                return Ok(());
            }
            let mut budget = RetryBudget::of_question(&store.env);
            repeated(&mut budget, || store.note_epoch()).await
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

    /// Succeeds without a check, because a server that is not PostgreSQL would not understand the statements.
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
        let mut capabilities = Capabilities::new("PostgreSQL", POLL_INTERVAL);
        capabilities.sizes = true;
        capabilities.line = Some("the column `line` of a lock's row");
        capabilities.permits_in_order = true;
        capabilities
    }
}
