//! The table, and `leasehold init`.

use super::errors;
use super::server::{ServerInfo, check, check_server};
use super::sql::quoted;
use super::store::MysqlStore;
use crate::error::{Fault, StoreError};
use crate::retry::{RetryBudget, repeated};

/// The columns, their types, and the rest of their definitions. ShedLock uses the first four. Texts are bytes, so that no
/// two names are equal, and times are without a time zone, so that all sessions read the same.
pub(super) const COLUMNS: &[(&str, &str, &str)] = &[
    ("name", "varbinary", "(256) NOT NULL PRIMARY KEY"),
    ("lock_until", "datetime(6)", " NOT NULL"),
    ("locked_at", "datetime(6)", " NOT NULL"),
    ("locked_by", "varbinary", "(255) NOT NULL"),
    ("version", "varbinary", "(400)"),
    ("token", "bigint", ""),
    ("prev_token", "bigint", ""),
    ("served", "bigint", ""),
    ("size", "bigint", ""),
    ("written_us", "bigint", ""),
    ("is_open", "tinyint", ""),
    ("record", "longblob", ""),
    ("history", "longblob", ""),
    ("line", "longblob", ""),
    ("line_last", "bigint", ""),
];

/// Returns the statement that creates the table.
pub(super) fn create(table: &str) -> String {
    let columns: Vec<_> = COLUMNS.iter().map(|(name, kind, rest)| format!("`{name}` {kind}{rest}")).collect();
    format!("CREATE TABLE IF NOT EXISTS {} ({}) ENGINE=InnoDB", quoted(table), columns.join(", "))
}

/// Returns the statement that adds the columns that the table lacks.
fn extend(table: &str, missing: &[&str]) -> String {
    let missing = COLUMNS.iter().filter(|(name, ..)| missing.contains(name));
    let added: Vec<_> =
        missing.map(|(name, kind, rest)| format!("ADD COLUMN `{name}` {kind}{rest}")).collect();
    format!("ALTER TABLE {} {}", quoted(table), added.join(", "))
}

impl MysqlStore {
    /// Creates the table or adds the missing columns. Changes nothing if the table is complete.
    pub(super) async fn make_table(&self) -> Result<(), StoreError> {
        let mut budget = RetryBudget::of_question(&self.env);
        repeated(&mut budget, || self.make_once()).await
    }

    async fn make_once(&self) -> Result<(), StoreError> {
        let table = self.sessions.table();
        let (mut session, info) = self.sessions.any().await?;
        check_server(&info, &session.host).map_err(Fault::not_applied)?;
        // Statements that may be repeated.
        let work = match (&info.table, info.flaws()) {
            (None, _) => create(table),
            (Some(_), (missing, wrong)) if wrong.is_empty() && !missing.is_empty() => {
                // The other properties of the table must be right.
                let whole = ServerInfo { columns: good_columns(), ..info.clone() };
                check(&whole, &session.host, table).map_err(Fault::not_applied)?;
                extend(table, &missing)
            }
            _ => return check(&info, &session.host, table).map_err(Fault::not_applied),
        };
        match session.run(&work).await {
            Ok(_) => {}
            // Another process has just added the same columns.
            Err((error, _)) if errors::is(&error, 1060) => {}
            Err((error, _)) => {
                return Err(errors::of_statement(&error, errors::Effect::Writes, false, table));
            }
        }
        let info = session.info(table).await?;
        check(&info, &session.host, table).map_err(Fault::not_applied)
    }
}

fn good_columns() -> std::collections::HashMap<String, String> {
    COLUMNS.iter().map(|(name, kind, _)| ((*name).to_owned(), (*kind).to_owned())).collect()
}
