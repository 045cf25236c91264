//! The table, and `leasehold init`.

use tokio_postgres::Error;
use tokio_postgres::error::SqlState;

use super::config::Table;
use super::connect::Link;
use super::errors;
use super::row::cell;
use super::server;
use super::sql::OWN_COLUMNS;
use super::statements::text;
use super::store::PostgresStore;
use crate::error::{ErrorKind, Fault, StoreError};
use crate::retry::RetryBudget;
use crate::stores::table::Effect;

/// The columns that ShedLock also uses, and their types in the schema `pg_catalog`.
const SHARED_COLUMNS: &[(&str, &str)] =
    &[("name", "text"), ("lock_until", "timestamp"), ("locked_at", "timestamp"), ("locked_by", "text")];

/// Returns the statement that creates the table. The fill factor leaves room in the pages, so that a renewal updates no
/// index.
pub(super) fn create(table: &Table) -> String {
    let own: Vec<_> = OWN_COLUMNS.iter().map(|(name, kind)| format!("{name} pg_catalog.{kind}")).collect();
    format!(
        "CREATE TABLE IF NOT EXISTS {} (name pg_catalog.text COLLATE pg_catalog.\"C\" PRIMARY KEY,
            lock_until pg_catalog.timestamp NOT NULL, locked_at pg_catalog.timestamp NOT NULL,
            locked_by pg_catalog.text NOT NULL, {}) WITH (fillfactor = 70)",
        table.sql,
        own.join(", ")
    )
}

/// Returns the statement that adds leasehold's columns to a table of ShedLock.
pub(super) fn extend(table: &Table) -> String {
    let own: Vec<_> = OWN_COLUMNS
        .iter()
        .map(|(name, kind)| format!("ADD COLUMN IF NOT EXISTS {name} pg_catalog.{kind}"))
        .collect();
    format!("ALTER TABLE {} {}", table.sql, own.join(", "))
}

impl PostgresStore {
    /// Creates the table or adds the missing columns. Changes nothing if the table is complete.
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
        let link = self.sessions.separate().await?;
        let info = server::query(&link, table, &self.env).await?;
        if info.kind.is_some() {
            let flaws = flaws(&link, table).await?;
            if !flaws.wrong.is_empty() {
                return Err(wrong_types(&flaws.wrong, table).not_applied());
            }
            if flaws.missing.is_empty() {
                return server::check(&info, &link.host, table).map_err(Fault::not_applied);
            }
        }
        let work = if info.kind.is_some() { extend(table) } else { create(table) };
        // The wait is short, because statements of other clients queue behind one that waits for a lock on the whole
        // table.
        match link.client.batch_execute(&format!("SET LOCAL lock_timeout = '1s'; {work}")).await {
            // Another process has just created the table, perhaps with other columns. PostgreSQL reports the collision
            // despite IF NOT EXISTS.
            Err(error) if is_collision(&error) => {
                return Err(
                    Fault::unavailable("another process created the table at the same time").not_applied()
                );
            }
            made => made.map_err(|error| errors::of_statement(&error, Effect::Writes, table))?,
        }
        let info = server::query(&link, table, &self.env).await?;
        server::check(&info, &link.host, table).map_err(Fault::not_applied)
    }
}

fn is_collision(error: &Error) -> bool {
    let codes = [SqlState::UNIQUE_VIOLATION, SqlState::DUPLICATE_TABLE, SqlState::DUPLICATE_OBJECT];
    error.code().is_some_and(|code| codes.contains(code))
}

/// The flaws of a table's columns.
#[derive(Clone, Debug, Default)]
pub(super) struct Flaws {
    /// The columns that leasehold needs and the table lacks.
    pub(super) missing: Vec<String>,
    /// The columns of a wrong type, each with that type and the one that leasehold needs.
    pub(super) wrong: Vec<String>,
}

/// Reads the columns of the table $1, and their types. A type of another schema has that schema in its name.
pub(super) const COLUMNS: &str = "SELECT a.attname::pg_catalog.text,
        CASE WHEN n.nspname OPERATOR(pg_catalog.=) 'pg_catalog' THEN t.typname::pg_catalog.text
            ELSE pg_catalog.concat(n.nspname, '.', t.typname) END AS kind
    FROM pg_catalog.pg_attribute AS a
        JOIN pg_catalog.pg_type AS t ON t.oid OPERATOR(pg_catalog.=) a.atttypid
        JOIN pg_catalog.pg_namespace AS n ON n.oid OPERATOR(pg_catalog.=) t.typnamespace
    WHERE a.attrelid OPERATOR(pg_catalog.=) pg_catalog.to_regclass($1) AND a.attnum OPERATOR(pg_catalog.>) 0
        AND NOT a.attisdropped";

/// Compares the columns of the table with those that leasehold needs.
pub(super) async fn flaws(link: &Link, table: &Table) -> Result<Flaws, StoreError> {
    let rows = link.client.query_typed(COLUMNS, &[text(&table.sql)]).await;
    let rows = rows.map_err(|error| errors::of_statement(&error, Effect::None, table))?;
    let there = rows.iter().map(|row| Ok((cell(row, "attname")?, cell(row, "kind")?)));
    let there = there.collect::<Result<Vec<(String, String)>, StoreError>>()?;
    let mut flaws = Flaws::default();
    for (name, kind) in SHARED_COLUMNS.iter().chain(OWN_COLUMNS) {
        match there.iter().find(|(there, _)| there == name) {
            None => flaws.missing.push((*name).to_owned()),
            // ShedLock's texts are `varchar`.
            Some((_, is)) if is != kind && (*kind, is.as_str()) != ("text", "varchar") => {
                flaws.wrong.push(format!("{name} {is} (instead of {kind})"));
            }
            Some(_) => {}
        }
    }
    Ok(flaws)
}

pub(super) fn wrong_types(wrong: &[String], table: &Table) -> Fault {
    let message = format!("the table {:?} has columns of other types: {}", table.name, wrong.join(", "));
    Fault::new(ErrorKind::Unsupported, message)
        .with_help("change their types with ALTER TABLE ... ALTER COLUMN ... TYPE, while no lock is held")
}
