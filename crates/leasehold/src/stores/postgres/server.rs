//! Checks a new connection before its first statement: the server must be a primary, and its table must be able to keep
//! locks.

use std::collections::HashMap;

use tokio_postgres::{Error, Row};

use super::POSTGRES;
use super::connect::MARK;
use super::sql::{COLUMNS, EQ, GE, GT, NOW_US, quoted};
use crate::error::{ErrorKind, Fault};
use crate::stores::table::{Properties, not_ordinary};

/// The oldest version that supports the SQL of the statements.
const OLDEST: i64 = 120_000;

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
    /// The columns and their types. A type of another schema has that schema in its name, and a timestamp its precision.
    pub(super) columns: HashMap<String, String>,
    /// Whether the connection began with the setting [`MARK`], so no pooler is in front of the server.
    pub(super) is_direct: bool,
}

/// Returns the query for the properties of a server and of its table $1. It names the columns, because PostgreSQL reads
/// `l.token` of a table without that column as a call of a function `token`, which another user may have created.
pub(super) fn query() -> String {
    format!(
        "SELECT pg_catalog.pg_is_in_recovery(), pg_catalog.current_setting('transaction_read_only') {EQ} 'on',
            pg_catalog.current_setting('server_version_num')::pg_catalog.int8, {NOW_US}, c.relkind::pg_catalog.text,
            c.relpersistence::pg_catalog.text,
            (SELECT pg_catalog.json_object_agg(a.attname, pg_catalog.concat(
                    CASE WHEN n.nspname {EQ} 'pg_catalog' THEN '' ELSE pg_catalog.concat(n.nspname, '.') END, t.typname,
                    CASE WHEN t.typname {EQ} 'timestamp' AND a.atttypmod {GE} 0
                        THEN pg_catalog.concat('(', a.atttypmod, ')') END))::pg_catalog.text
                FROM pg_catalog.pg_attribute AS a
                    JOIN pg_catalog.pg_type AS t ON t.oid {EQ} a.atttypid
                    JOIN pg_catalog.pg_namespace AS n ON n.oid {EQ} t.typnamespace
                WHERE a.attrelid {EQ} c.oid AND a.attnum {GT} 0 AND NOT a.attisdropped),
            coalesce(pg_catalog.current_setting('{MARK}', true) {EQ} 'on', false)
         FROM (SELECT pg_catalog.to_regclass($1) AS oid) AS t LEFT JOIN pg_catalog.pg_class AS c ON c.oid {EQ} t.oid"
    )
}

impl ServerInfo {
    /// Reads the answer to [`query`].
    pub(super) fn of(row: &Row) -> Result<Self, Error> {
        let columns: Option<String> = row.try_get(6)?;
        Ok(Self {
            is_standby: row.try_get(0)?,
            is_read_only: row.try_get(1)?,
            version: row.try_get(2)?,
            clock_us: row.try_get(3)?,
            kind: row.try_get(4)?,
            persistence: row.try_get(5)?,
            columns: columns.and_then(|json| serde_json::from_str(&json).ok()).unwrap_or_default(),
            is_direct: row.try_get(7)?,
        })
    }
}

impl Properties for ServerInfo {
    const COLUMNS: &'static [(&'static str, &'static str, &'static str)] = COLUMNS;
    /// Times of another type depend on each session's `TimeZone`, or are too coarse.
    const CHECKED_TYPE: Option<&'static str> = Some("timestamp");
    const TYPES: &'static str = "pg_catalog.";
    const ADD: &'static str = "ADD COLUMN IF NOT EXISTS ";
    /// The fill factor leaves room in the pages, so that a renewal updates no index.
    const END: &'static str = " WITH (fillfactor = 70)";

    fn clock_us(&self) -> i64 {
        self.clock_us
    }

    fn has_table(&self) -> bool {
        self.kind.is_some()
    }

    fn praise(&self) -> [String; 2] {
        [
            format!("is a primary, version {}", self.version / 10_000),
            "survives a crash and has the columns and types of leasehold".to_owned(),
        ]
    }

    fn check_server(&self, host: &str) -> Result<(), Fault> {
        if self.version < OLDEST {
            return Err(Fault::new(
                ErrorKind::Unsupported,
                format!("PostgreSQL at {host} is older than version {}", OLDEST / 10_000),
            )
            .with_help("upgrade the server"));
        }
        if self.is_standby {
            return Err(POSTGRES.not_primary(&format!("{host} is a standby")));
        }
        if self.is_read_only {
            let what = format!("{host} is read-only (default_transaction_read_only)");
            return Err(POSTGRES.not_primary(&what));
        }
        Ok(())
    }

    fn check_kind(&self, table: &str) -> Result<(), Fault> {
        match (self.kind.as_deref(), self.persistence.as_deref()) {
            (None, _) | (Some("r"), Some("p")) => Ok(()),
            (Some("r"), Some("u")) => Err(Fault::new(
                ErrorKind::Unsupported,
                format!(
                    "the table {table:?} is UNLOGGED: a crash of the server empties it, with all locks that are held"
                ),
            )
            .with_help(format!("ALTER TABLE {} SET LOGGED", quoted(table)))),
            _ => Err(not_ordinary(table, "a view, a partitioned, foreign or temporary table")),
        }
    }

    fn columns(&self) -> &HashMap<String, String> {
        &self.columns
    }

    /// ShedLock's texts are `varchar`.
    fn fits(is: &str, needs: &str) -> bool {
        match needs {
            "text" => ["text", "varchar"].contains(&is),
            // Without a time zone, and with milliseconds.
            "timestamp" => {
                ["timestamp", "timestamp(3)", "timestamp(4)", "timestamp(5)", "timestamp(6)"].contains(&is)
            }
            _ => is == needs,
        }
    }

    fn remedy(&self, _: &str) -> String {
        "change their types with ALTER TABLE ... ALTER COLUMN ... TYPE, while no lock is held; lock_until and locked_at are \
         in UTC, independent of a session's TimeZone, and not coarser than milliseconds"
            .to_owned()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Returns a server and a table on which locks are safe.
    pub(in super::super) fn good() -> ServerInfo {
        ServerInfo {
            version: 150_000,
            kind: Some("r".into()),
            persistence: Some("p".into()),
            columns: COLUMNS.iter().map(|(name, kind, _)| ((*name).to_owned(), (*kind).to_owned())).collect(),
            ..ServerInfo::default()
        }
    }

    /// Returns the same with a column of another type, or without it.
    pub(in super::super) fn with(column: &str, kind: Option<&str>) -> ServerInfo {
        let mut info = good();
        info.columns.remove(column);
        info.columns.extend(kind.map(|kind| (column.to_owned(), kind.to_owned())));
        info
    }

    fn check(info: &ServerInfo) -> Result<(), Fault> {
        info.check_server("h").and_then(|()| info.check_table("t"))
    }

    #[test]
    fn unsuitable_servers_and_tables_are_refused() {
        for fine in [
            good(),
            ServerInfo { kind: None, persistence: None, columns: HashMap::new(), ..good() },
            with("name", Some("varchar")),
            with("lock_until", Some("timestamp(3)")),
            // The statement that needs it fails.
            with("token", Some("int4")),
        ] {
            check(&fine).unwrap();
        }
        for (flaw, named) in [
            (ServerInfo { is_standby: true, ..good() }, "not the primary"),
            (ServerInfo { is_read_only: true, ..good() }, "not the primary"),
            (ServerInfo { version: 110_022, ..good() }, "older"),
            (ServerInfo { persistence: Some("u".into()), ..good() }, "UNLOGGED"),
            (ServerInfo { persistence: Some("t".into()), ..good() }, "ordinary"),
            (ServerInfo { kind: Some("v".into()), ..good() }, "ordinary"),
            (with("lock_until", Some("timestamptz")), "timestamptz"),
            (with("locked_at", Some("timestamp(2)")), "timestamp(2)"),
            (with("token", None), "token"),
        ] {
            let fault = check(&flaw).unwrap_err();
            assert!(fault.message.contains(named) && fault.help.is_some(), "{fault:?}");
        }
        let why = check(&with("lock_until", Some("timestamptz"))).unwrap_err().help.unwrap();
        assert!(why.contains("TimeZone") && why.contains("coarse"), "{why}");
    }
}
