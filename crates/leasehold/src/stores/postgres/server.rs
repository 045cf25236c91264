//! Checks a new connection before its first statement: the server must be a primary, and its table must be able to keep
//! locks.

use std::time::Duration;

use tokio_postgres::Row;

use super::config::Table;
use super::connect::{Link, MARK};
use super::errors;
use super::sql::{EQ, GE, LE, NE, NOW_US, OWN_COLUMNS};
use super::statements::text;
use crate::clock::timeout;
use crate::env::Env;
use crate::error::{ErrorKind, Fault, StoreError};
use crate::stores::table::Effect;
use crate::stores::table::{lacks_columns, not_ordinary};

/// The oldest version that supports the SQL of the statements.
const OLDEST: i64 = 120_000;

const LIMIT: Duration = Duration::from_secs(5);

/// The properties of a server and a table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ServerInfo {
    pub(super) is_standby: bool,
    pub(super) is_read_only: bool,
    pub(super) version: i64,
    pub(super) clock_us: i64,
    /// The kind of relation, such as `r` for a table. `None` if there is no relation.
    pub(super) kind: Option<String>,
    /// `p` if the relation survives a crash.
    pub(super) persistence: Option<String>,
    /// The columns for times whose type is unsuitable, with their types.
    pub(super) wrong_times: Option<String>,
    /// The columns of leasehold that the table lacks. PostgreSQL reads `l.token` of a table without that column as a
    /// call of a function `token`, which another user may have created.
    pub(super) missing: Option<String>,
    /// Whether the connection began with the setting [`MARK`], so no pooler is in front of the server.
    pub(super) is_direct: bool,
}

/// Checks that locks are safe on this server, as far as one query shows it.
pub(super) async fn checked(link: &Link, table: &Table, env: &Env) -> Result<ServerInfo, StoreError> {
    let info = query(link, table, env).await?;
    check(&info, &link.host, table).map_err(Fault::not_applied)?;
    Ok(info)
}

/// Returns the query for the properties of a server and of its table $1.
pub(super) fn query_of() -> String {
    let columns: Vec<_> = OWN_COLUMNS.iter().map(|(name, _)| format!("('{name}')")).collect();
    format!(
        "SELECT pg_catalog.pg_is_in_recovery(), pg_catalog.current_setting('transaction_read_only') {EQ} 'on',
            pg_catalog.current_setting('server_version_num')::pg_catalog.int8, {NOW_US}, c.relkind::pg_catalog.text,
            c.relpersistence::pg_catalog.text,
            (SELECT pg_catalog.string_agg(
                    pg_catalog.concat(a.attname, ' ', pg_catalog.format_type(a.atttypid, a.atttypmod)), ', '
                    ORDER BY a.attname)
                FROM pg_catalog.pg_attribute AS a
                WHERE a.attrelid {EQ} c.oid AND NOT a.attisdropped
                    AND (a.attname {EQ} 'lock_until' OR a.attname {EQ} 'locked_at')
                    AND (a.atttypid {NE} 'pg_catalog.timestamp'::pg_catalog.regtype
                        OR (a.atttypmod {GE} 0 AND a.atttypmod {LE} 2))),
            (SELECT pg_catalog.string_agg(own.name, ', ') FROM (VALUES {columns}) AS own (name)
                WHERE c.oid IS NOT NULL AND NOT EXISTS (SELECT FROM pg_catalog.pg_attribute AS a
                    WHERE a.attrelid {EQ} c.oid AND NOT a.attisdropped AND a.attname {EQ} own.name)),
            coalesce(pg_catalog.current_setting('{MARK}', true) {EQ} 'on', false)
         FROM (SELECT pg_catalog.to_regclass($1) AS oid) AS t LEFT JOIN pg_catalog.pg_class AS c ON c.oid {EQ} t.oid",
        columns = columns.join(", ")
    )
}

/// Queries the properties of a server and its table.
pub(super) async fn query(link: &Link, table: &Table, env: &Env) -> Result<ServerInfo, StoreError> {
    let sql = query_of();
    let parameters = [text(&table.sql)];
    let asked = link.client.query_typed(&sql, &parameters);
    let rows = match timeout(&*env.clock, LIMIT, asked).await {
        Some(rows) => rows.map_err(|error| errors::of_statement(&error, Effect::None, table))?,
        None => {
            link.abort();
            let message = format!("PostgreSQL at {} did not respond within {LIMIT:.0?}", link.host);
            return Err(Fault::unavailable(message).not_applied());
        }
    };
    let info = rows.first().map(parse).transpose().map_err(|error| {
        Fault::new(ErrorKind::Corrupt, format!("PostgreSQL's response cannot be read: {error}")).not_applied()
    })?;
    Ok(info.unwrap_or_default())
}

fn parse(row: &Row) -> Result<ServerInfo, tokio_postgres::Error> {
    Ok(ServerInfo {
        is_standby: row.try_get(0)?,
        is_read_only: row.try_get(1)?,
        version: row.try_get(2)?,
        clock_us: row.try_get(3)?,
        kind: row.try_get(4)?,
        persistence: row.try_get(5)?,
        wrong_times: row.try_get(6)?,
        missing: row.try_get(7)?,
        is_direct: row.try_get(8)?,
    })
}

pub(super) fn check_server(info: &ServerInfo, host: &str) -> Result<(), Fault> {
    if info.version < OLDEST {
        return Err(Fault::new(
            ErrorKind::Unsupported,
            format!("PostgreSQL at {host} is older than version {}", OLDEST / 10_000),
        )
        .with_help("upgrade the server"));
    }
    if info.is_standby {
        return Err(errors::not_primary(&format!("{host} is a standby")));
    }
    if info.is_read_only {
        return Err(errors::not_primary(&format!("{host} is read-only (default_transaction_read_only)")));
    }
    Ok(())
}

/// Refuses servers and tables on which two processes could hold one lock. Accepts a missing table, because the
/// statements then fail.
pub(super) fn check(info: &ServerInfo, host: &str, table: &Table) -> Result<(), Fault> {
    check_server(info, host)?;
    let name = &table.name;
    let refused = |message: String| Fault::new(ErrorKind::Unsupported, message);
    match (info.kind.as_deref(), info.persistence.as_deref()) {
        (None, _) | (Some("r"), Some("p")) => {}
        (Some("r"), Some("u")) => {
            return Err(refused(format!("the table {name:?} is UNLOGGED: a crash of the server empties it, with all locks that are held"))
                .with_help(format!("ALTER TABLE {} SET LOGGED", table.sql)));
        }
        _ => {
            return Err(not_ordinary(name, "a view, a partitioned, foreign or temporary table"));
        }
    }
    match (&info.wrong_times, &info.missing) {
        (None, None) => Ok(()),
        (None, Some(columns)) => Err(lacks_columns(name, columns)),
        (Some(columns), _) => Err(refused(format!(
            "the table {name:?} has the columns {columns}: their times depend on each session's TimeZone, or are too coarse"
        ))
        .with_help(
            "lock_until and locked_at are `timestamp` (without time zone) in UTC, as ShedLock documents them",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unsuitable_servers_and_tables_are_refused() {
        let table = Table { name: "t".into(), sql: "\"t\"".into() };
        let good = ServerInfo {
            version: 150_000,
            kind: Some("r".into()),
            persistence: Some("p".into()),
            ..ServerInfo::default()
        };
        assert!(check(&good, "h", &table).is_ok());
        assert!(check(&ServerInfo { kind: None, persistence: None, ..good.clone() }, "h", &table).is_ok());
        for (flaw, named) in [
            (ServerInfo { is_standby: true, ..good.clone() }, "not the primary"),
            (ServerInfo { is_read_only: true, ..good.clone() }, "not the primary"),
            (ServerInfo { version: 110_022, ..good.clone() }, "older"),
            (ServerInfo { persistence: Some("u".into()), ..good.clone() }, "UNLOGGED"),
            (ServerInfo { persistence: Some("t".into()), ..good.clone() }, "ordinary"),
            (ServerInfo { kind: Some("v".into()), ..good.clone() }, "ordinary"),
            (ServerInfo { wrong_times: Some("lock_until timestamptz".into()), ..good.clone() }, "TimeZone"),
            (ServerInfo { missing: Some("token".into()), ..good.clone() }, "token"),
        ] {
            let fault = check(&flaw, "h", &table).unwrap_err();
            assert!(fault.message.contains(named) && fault.help.is_some(), "{fault:?}");
        }
    }
}
