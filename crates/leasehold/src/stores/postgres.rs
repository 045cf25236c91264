//! PostgreSQL: one table with a row per lock. A statement writes a record if it has the expected version. ShedLock uses
//! the same rows.
//!
//! `docs/stores/postgres.md` describes the permissions and the limits, `postgres-safety.md` the layout and why this is
//! safe.

mod connect;
mod epoch;
mod errors;
mod examine;
mod listener;
mod row;
mod server;
mod session;
mod sql;
mod statements;
mod store;

use std::sync::Arc;

use self::store::PostgresTable;
use super::table::{self, Kind};
use crate::error::Error;
use crate::lease::{LeaseStore, StoreOptions};
use crate::url::StoreUrl;

const POSTGRES: Kind = Kind {
    name: "PostgreSQL",
    not_primary: "name the primary in the store URL, or all servers: postgres://user@host1,host2/database",
};

/// Opens leases in a table of the database that `url` names:
/// `postgres://user@host,host2:5432/database?table=leasehold`. `docs/stores/postgres.md` lists all options.
///
/// Sends no request. Refuses `store_clock=off`, because the server's clock decides when a lease ends. `margin` is how
/// far that clock may be set ahead without ending a lease early.
///
/// ```no_run
/// # async fn example() -> leasehold::Result<()> {
/// use leasehold::{Locker, lease::StoreOptions, stores::postgres, url::StoreUrl};
///
/// let url = StoreUrl::parse("postgres://deploy@db.example.com/app?password_env=DB_PASSWORD")?;
/// let store = postgres::open(url, StoreOptions::default()).await?;
/// store.init().await?; // creates the table if there is none
/// let guard = Locker::new(store).lock("deploy/prod").acquire().await?;
/// guard.release().await?;
/// # Ok(()) }
/// ```
///
/// # Errors
/// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) for a bad URL and for files that cannot be read.
pub async fn open(url: StoreUrl, options: StoreOptions) -> Result<Arc<dyn LeaseStore>, Error> {
    table::open(url, options, PostgresTable::on).await
}
