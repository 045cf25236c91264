//! MySQL and MariaDB: one InnoDB table with a row per lock. A statement writes a record if the row has the expected
//! version. ShedLock uses the same rows.
//!
//! `docs/stores/mysql.md` describes the permissions, the limits, and why this is safe.

mod connect;
mod errors;
mod examine;
mod row;
mod server;
mod session;
mod sql;
mod store;

use std::sync::Arc;

use self::store::MysqlTable;
use super::table::{self, Kind};
use crate::error::Error;
use crate::lease::{LeaseStore, StoreOptions};
use crate::url::StoreUrl;

const MYSQL: Kind = Kind {
    name: "MySQL",
    not_primary: "name the primary in the store URL, or all servers: mysql://user@host1,host2/database",
};

/// Opens leases in a table of the database that `url` names: `mysql://user@host,host2:3306/database?table=leasehold`.
/// `docs/stores/mysql.md` lists all options.
///
/// Sends no request. Refuses `store_clock=off`, because the server's clock decides when a lease ends. `margin` is how
/// far that clock may be set ahead without ending a lease early.
///
/// ```no_run
/// # async fn example() -> leasehold::Result<()> {
/// use leasehold::{Locker, lease::StoreOptions, stores::mysql, url::StoreUrl};
///
/// let url = StoreUrl::parse("mysql://deploy@db.example.com/app?password_env=DB_PASSWORD")?;
/// let store = mysql::open(url, StoreOptions::default()).await?;
/// store.init().await?; // creates the table if there is none
/// let guard = Locker::new(store).lock("deploy/prod").acquire().await?;
/// guard.release().await?;
/// # Ok(()) }
/// ```
///
/// # Errors
/// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) for a bad URL and for files that cannot be read.
pub async fn open(url: StoreUrl, options: StoreOptions) -> Result<Arc<dyn LeaseStore>, Error> {
    table::open(url, options, MysqlTable::on).await
}
