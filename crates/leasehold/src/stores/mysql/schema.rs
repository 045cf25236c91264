//! The table, and `leasehold init`.

use super::errors;
use super::server::{ServerInfo, check, check_server};
use super::sql::{COLUMNS, create, extend};
use super::store::MysqlStore;
use crate::error::{Fault, StoreError};
use crate::retry::{RetryBudget, repeated};
use crate::stores::table::Effect;

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
                return Err(errors::of_statement(&error, Effect::Writes, false, table));
            }
        }
        let info = session.info(table).await?;
        check(&info, &session.host, table).map_err(Fault::not_applied)
    }
}

fn good_columns() -> std::collections::HashMap<String, String> {
    COLUMNS.iter().map(|(name, kind, _)| ((*name).to_owned(), (*kind).to_owned())).collect()
}
