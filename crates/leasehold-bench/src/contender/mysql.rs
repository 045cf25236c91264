//! Contenders on MySQL and MariaDB without leasehold: the server's own locks, and a baseline of the two writes that any
//! lock needs.

use std::sync::{Mutex, MutexGuard, PoisonError};

use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Opts, OptsBuilder};

use super::Options;
use super::conditional::{RECORD_BYTES, Replace, text};

/// The bytes of a record without its history, which only a release changes.
const BARE_BYTES: usize = 250;

/// Connections to a server. As a client, it calls `GET_LOCK` and `RELEASE_LOCK`. A connection holds or awaits one lock.
/// The server releases the locks of a connection that ends.
pub(super) struct Connections {
    options: Opts,
    idle: Mutex<Vec<Conn>>,
}

impl Connections {
    pub(super) async fn open(options: &Options) -> Result<Self, String> {
        let options = Opts::from_url(options.store()?).map_err(|error| error.to_string())?;
        // As in leasehold: without these, the client would send more requests for each connection.
        let options = OptsBuilder::from_opts(options).prefer_socket(false);
        let options = options.max_allowed_packet(Some(16 << 20)).wait_timeout(Some(0)).into();
        let all = Self { options, idle: Mutex::default() };
        let table = "CREATE TABLE IF NOT EXISTS conditional \
            (name VARBINARY(256) PRIMARY KEY, version VARBINARY(400), record LONGBLOB, history LONGBLOB)";
        let mut conn = all.take().await?;
        conn.query_drop(table).await.map_err(|error| error.to_string())?;
        all.idle().push(conn);
        Ok(all)
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Conn>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn take(&self) -> Result<Conn, String> {
        let idle = self.idle().pop();
        match idle {
            Some(conn) => Ok(conn),
            None => Conn::new(self.options.clone()).await.map_err(|error| error.to_string()),
        }
    }
}

/// Calls a function of the server, which returns 1 if it succeeds.
async fn call(conn: &mut Conn, function: &str) -> Result<(), String> {
    let answer: Option<Option<u8>> =
        conn.query_first(format!("SELECT {function}")).await.map_err(|error| error.to_string())?;
    if answer == Some(Some(1)) { Ok(()) } else { Err(format!("{function} returned {answer:?}")) }
}

impl super::Client for Connections {
    type Held = (Conn, String);

    async fn acquire(&self, lock: &str) -> Result<Self::Held, String> {
        let mut conn = self.take().await?;
        // For at most a day.
        call(&mut conn, &format!("GET_LOCK('{lock}', 86400)")).await?;
        Ok((conn, lock.to_owned()))
    }

    async fn release(&self, (mut conn, lock): Self::Held) -> Result<(), String> {
        call(&mut conn, &format!("RELEASE_LOCK('{lock}')")).await?;
        self.idle().push(conn);
        Ok(())
    }

    fn is_held(&self, _: &Self::Held) -> Option<bool> {
        None
    }
}

impl Replace for Connections {
    type Version = String;

    async fn replace(&self, lock: &str, held: bool, seen: Option<String>) -> Result<String, String> {
        let version = text(36);
        let mut values = format!("version = '{version}', record = '{}'", text(BARE_BYTES));
        if !held {
            values += &format!(", history = '{}'", text(RECORD_BYTES - BARE_BYTES));
        }
        let sql = match seen {
            Some(seen) => {
                format!("UPDATE conditional SET {values} WHERE name = '{lock}' AND version = '{seen}'")
            }
            None => format!(
                "INSERT INTO conditional SET name = '{lock}', {values} ON DUPLICATE KEY UPDATE {values}"
            ),
        };
        let mut conn = self.take().await?;
        conn.query_drop(sql).await.map_err(|error| error.to_string())?;
        let written = conn.affected_rows() > 0;
        self.idle().push(conn);
        written.then_some(version).ok_or_else(|| "another process has written".to_owned())
    }
}
