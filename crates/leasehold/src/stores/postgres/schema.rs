//! The table, and `leasehold init`.

use std::sync::Arc;

use tokio_postgres::Error;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::Type;

use super::config::Table;
use super::connect::Link;
use super::errors::{self, Effect};
use super::leases::{PostgresLeases, cell};
use super::server;
use crate::error::{Fault, StoreError};
use crate::retry::RetryBudget;

/// The columns of leasehold, beside those of ShedLock.
pub(super) const OWN_COLUMNS: &[(&str, &str)] = &[
    ("lease_until", "timestamp"),
    ("token", "bigint"),
    ("prev_token", "bigint"),
    ("lease_us", "bigint"),
    ("ttl_ms", "bigint"),
    ("state", "text"),
    ("holder", "jsonb"),
    ("past", "jsonb"),
];

/// The statement that makes the table. It has room in its pages, so that a renewal touches no index.
fn create(table: &Table) -> String {
    let own: Vec<_> = OWN_COLUMNS.iter().map(|(name, kind)| format!("{name} {kind}")).collect();
    format!(
        "CREATE TABLE IF NOT EXISTS {} (name text COLLATE \"C\" PRIMARY KEY, lock_until timestamp NOT NULL,
            locked_at timestamp NOT NULL, locked_by text NOT NULL, {}) WITH (fillfactor = 70)",
        table.sql,
        own.join(", ")
    )
}

/// The statement that adds leasehold's columns to a table of ShedLock.
fn extend(table: &Table) -> String {
    let own: Vec<_> =
        OWN_COLUMNS.iter().map(|(name, kind)| format!("ADD COLUMN IF NOT EXISTS {name} {kind}")).collect();
    format!("ALTER TABLE {} {}", table.sql, own.join(", "))
}

impl PostgresLeases {
    /// Creates the table, or adds what it lacks. Changes nothing if everything is there.
    pub(super) async fn make_table(&self) -> Result<(), StoreError> {
        let table = self.sessions.table();
        let mut budget = RetryBudget::of_question(&self.env);
        loop {
            match budget.request(self.make_once(table)).await {
                Ok(()) => return Ok(()),
                Err(error) => budget.pause_after(error).await?,
            }
        }
    }

    async fn make_once(&self, table: &Table) -> Result<(), StoreError> {
        let link = self.sessions.separate(Arc::new(|_| {})).await?;
        let found = server::find(&link, table, &self.env).await?;
        if found.kind.is_some() && missing_columns(&link, table).await?.is_empty() {
            return server::check(&found, &link.host, table).map_err(Fault::not_applied);
        }
        let work = if found.kind.is_some() { extend(table) } else { create(table) };
        match link.client.batch_execute(&work).await {
            // Another process has just made the table, and may have made it otherwise. PostgreSQL reports the collision
            // although the statement says IF NOT EXISTS.
            Err(error) if is_collision(&error) => {
                return Err(Fault::unavailable("another process made the table at once").not_applied());
            }
            made => made.map_err(|error| errors::of_statement(&error, Effect::Writes, table))?,
        }
        let found = server::find(&link, table, &self.env).await?;
        server::check(&found, &link.host, table).map_err(Fault::not_applied)
    }
}

fn is_collision(error: &Error) -> bool {
    let codes = [SqlState::UNIQUE_VIOLATION, SqlState::DUPLICATE_TABLE, SqlState::DUPLICATE_OBJECT];
    error.code().is_some_and(|code| codes.contains(code))
}

/// The columns that leasehold needs and the table lacks.
pub(super) async fn missing_columns(link: &Link, table: &Table) -> Result<Vec<String>, StoreError> {
    let sql = "SELECT attname::text FROM pg_attribute WHERE attrelid = to_regclass($1) AND attnum > 0 AND NOT attisdropped";
    let rows = link.client.query_typed(sql, &[(&table.sql, Type::TEXT)]).await;
    let rows = rows.map_err(|error| errors::of_statement(&error, Effect::None, table))?;
    let there = rows.iter().map(|row| cell(row, "attname")).collect::<Result<Vec<String>, _>>()?;
    let needed = ["name", "lock_until", "locked_at", "locked_by"].into_iter();
    let needed = needed.chain(OWN_COLUMNS.iter().map(|(name, _)| *name));
    Ok(needed.filter(|name| !there.iter().any(|there| there == name)).map(str::to_owned).collect())
}
