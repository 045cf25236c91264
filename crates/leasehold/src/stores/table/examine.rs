//! The doctor's checks that every database with a table has, and `leasehold init`.

use std::sync::Arc;

use async_trait::async_trait;

use super::reports::{least_permissions, no_table};
use super::{Properties, Servers};
use crate::diagnosis::{Examined, Finding};
use crate::error::{Fault, StoreError};
use crate::retry::RetryBudget;
use crate::stores::pool::Session;

/// The doctor's checks that other databases do not have.
#[async_trait]
pub(in crate::stores) trait Checks: Servers {
    async fn examine(
        self: &Arc<Self>,
        session: &mut Self::Session,
        properties: &Self::Properties,
        examined: &mut Examined,
    ) -> Result<(), StoreError>;
}

/// Runs the doctor's checks.
pub(in crate::stores) async fn examined<T: Checks>(table: &Arc<T>) -> Examined {
    let mut examined = Examined { least_permissions: least_permissions(table.sql()), ..Examined::default() };
    let asking = async {
        let (mut session, properties) = table.any().await?;
        let host = session.host().to_owned();
        let [of_server, of_table] = properties.praise();
        let is_primary = properties.check_server(&host);
        examined.push(Finding::required("primary", is_primary.map(|()| format!("{host} {of_server}"))));
        examined.push(suits(&properties, table.table(), &of_table));
        table.examine(&mut session, &properties, &mut examined).await
    };
    let asked = RetryBudget::of_question(table.env()).request(asking).await;
    if let Err(error) = asked {
        examined.push(Finding::stopped("server", &error));
    }
    examined
}

/// Judges the table apart from the server.
pub(in crate::stores) fn suits(properties: &impl Properties, table: &str, praise: &str) -> Finding {
    const CHECK: &str = "table";
    if !properties.has_table() {
        return no_table(CHECK, table);
    }
    let suits = properties.check_table(table).and_then(|()| properties.check_types(table, None));
    Finding::required(CHECK, suits.map(|()| format!("{table:?} {praise}")))
}

/// Does what [`make`](super::Table::make) says.
pub(in crate::stores) async fn make_once<T: Servers>(table: &T) -> Result<(), StoreError> {
    let (mut session, properties) = table.any().await?;
    let name = table.table();
    properties.check_server(session.host()).map_err(Fault::not_applied)?;
    let work = if properties.has_table() {
        let suits = properties.check_kind(name).and_then(|()| properties.check_types(name, None));
        suits.map_err(Fault::not_applied)?;
        let missing = properties.missing();
        if missing.is_empty() {
            return Ok(());
        }
        T::Properties::extend(table.sql(), &missing)
    } else {
        T::Properties::create(table.sql())
    };
    table.define(&mut session, &work).await?;
    table.look(&mut session).await?.check_table(name).map_err(Fault::not_applied)
}
