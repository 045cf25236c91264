//! A connection to a server, and the requests on it.

use mysql_async::consts::StatusFlags;
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Error};

use super::row::Answer;
use crate::stores::pool;

/// A connection. It is closed when this is dropped.
pub(super) struct Session {
    conn: Conn,
    host: String,
    /// See [`ServerInfo::guard`](super::server::ServerInfo::guard).
    pub(super) guard: String,
    /// The guard of a grant. With `failover_grace`, see [`is_known`](super::sql::is_known).
    pub(super) guard_of_grants: String,
    /// From when on the server grants locks, on its clock: see `failover_grace`.
    pub(super) grants_from_us: i64,
    pub(super) has_table: bool,
}

impl pool::Session for Session {
    fn host(&self) -> &str {
        &self.host
    }

    fn has_table(&self) -> bool {
        self.has_table
    }

    /// A lost connection shows itself only when it is used.
    fn is_open(&self) -> bool {
        true
    }
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session").field("host", &self.host).finish_non_exhaustive()
    }
}

impl Session {
    pub(super) fn new(conn: Conn, host: String) -> Self {
        let (guard, guard_of_grants) = Default::default();
        Self { conn, host, guard, guard_of_grants, grants_from_us: 0, has_table: false }
    }

    /// Sends a request of one or more statements. With an error, returns whether the first statement had succeeded.
    pub(super) async fn run(&mut self, sql: &str) -> Result<Vec<Answer>, (Error, bool)> {
        let mut answers = Vec::new();
        let mut result = self.conn.query_iter(sql).await.map_err(|error| (error, false))?;
        loop {
            let (affected, mut rows) = (result.affected_rows(), Vec::new());
            while let Some(row) = result.next().await.map_err(|error| (error, true))? {
                rows.push(row);
            }
            answers.push(Answer { affected, rows });
            if result.is_empty() {
                return Ok(answers);
            }
        }
    }

    /// Returns whether the server has committed what the latest request wrote.
    pub(super) fn has_committed(&self) -> bool {
        self.conn.last_ok_packet().is_some_and(|answer| is_committed(answer.status_flags()))
    }
}

/// Returns whether the server commits each statement, and has no transaction open. Without `autocommit`, which a proxy may
/// have lost, a write that succeeds is not committed.
fn is_committed(flags: StatusFlags) -> bool {
    flags.contains(StatusFlags::SERVER_STATUS_AUTOCOMMIT)
        && !flags.contains(StatusFlags::SERVER_STATUS_IN_TRANS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_counts_only_if_it_was_committed() {
        let commits = StatusFlags::SERVER_STATUS_AUTOCOMMIT;
        assert!(is_committed(commits));
        assert!(!is_committed(StatusFlags::empty()));
        assert!(!is_committed(commits | StatusFlags::SERVER_STATUS_IN_TRANS));
    }
}
