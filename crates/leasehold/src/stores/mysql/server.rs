//! Checks a new connection before its first statement: the server must be the only one that accepts writes, and its table
//! must be able to keep locks.

use std::collections::HashMap;

use mysql_async::Row;

use super::MYSQL;
use super::row::{Answer, cell, text};
use super::sql::{BEGIN, COLUMNS, NOW_US, literal, quoted};
use crate::error::{ErrorKind, Fault, StoreError};
use crate::stores::table::{Properties, not_ordinary};

/// The variables that the checks and the doctor need. A server reports those that it has.
const VARIABLES: &[&str] = &[
    "version",
    "read_only",
    "super_read_only",
    "innodb_read_only",
    "wsrep_on",
    "group_replication_group_name",
    "group_replication_single_primary_mode",
    "server_uuid",
    "server_id",
    "hostname",
    "port",
    "innodb_flush_log_at_trx_commit",
    "innodb_doublewrite",
    "log_bin",
    "sync_binlog",
];

/// The properties of a server and a table.
#[derive(Clone, Debug, Default)]
pub(super) struct ServerInfo {
    pub(super) clock_us: i64,
    /// Variables, and two numbers of the status, by name.
    pub(super) variables: HashMap<String, String>,
    /// The kind of table and its engine. `None` if there is no such table.
    pub(super) table: Option<(String, String)>,
    /// The columns with their types, and with what the server does to them.
    pub(super) columns: HashMap<String, String>,
    /// Whether names are unique.
    pub(super) is_unique: bool,
}

/// Returns the statements that begin a session, and the queries for the properties of the server and of `table`.
pub(super) fn queries(table: &str) -> String {
    let names: Vec<_> = VARIABLES.iter().map(|name| format!("'{name}'")).collect();
    // The server compares this text with names in its own way, as it finds a table.
    let this = format!("TABLE_SCHEMA = DATABASE() AND TABLE_NAME = _utf8mb4 {}", literal(table));
    format!(
        "{BEGIN}; SELECT {NOW_US} AS now_us;
         SHOW GLOBAL VARIABLES WHERE Variable_name IN ({});
         SHOW GLOBAL STATUS WHERE Variable_name IN ('wsrep_cluster_size', 'Slaves_running');
         SELECT TABLE_TYPE AS kind, ENGINE AS engine FROM information_schema.TABLES WHERE {this};
         SELECT COLUMN_NAME AS name, CONCAT_WS(' ', COLUMN_TYPE, NULLIF(EXTRA, '')) AS kind
            FROM information_schema.COLUMNS WHERE {this};
         SELECT 1 FROM information_schema.STATISTICS WHERE {this} GROUP BY INDEX_NAME HAVING MAX(NON_UNIQUE) = 0
            AND COUNT(*) = 1 AND MAX(COLUMN_NAME) = 'name' AND MAX(SUB_PART) IS NULL AND MAX(INDEX_TYPE) = 'BTREE'",
        names.join(", ")
    )
}

impl ServerInfo {
    /// Reads the answers to [`queries`].
    pub(super) fn of(answers: &[Answer]) -> Result<Self, StoreError> {
        let [_, _, now, variables, status, table, columns, keys] = answers else {
            return Err(MYSQL.unreadable(&"results are missing"));
        };
        let pairs = |rows: &[Row], name: &str, value: &str| -> Result<Vec<_>, StoreError> {
            let pair =
                |row: &Row| Ok((text(row, name)?.unwrap_or_default(), text(row, value)?.unwrap_or_default()));
            rows.iter().map(pair).collect()
        };
        let variables = [&variables.rows, &status.rows].map(|rows| pairs(rows, "Variable_name", "Value"));
        Ok(Self {
            clock_us: now.rows.first().map_or(Ok(0), |row| cell(row, "now_us"))?,
            variables: variables.into_iter().collect::<Result<Vec<_>, _>>()?.concat().into_iter().collect(),
            table: pairs(&table.rows, "kind", "engine")?.pop(),
            columns: pairs(&columns.rows, "name", "kind")?
                .into_iter()
                .map(|(name, kind)| (name.to_lowercase(), kind.to_lowercase()))
                .collect(),
            is_unique: !keys.rows.is_empty(),
        })
    }

    pub(super) fn variable(&self, name: &str) -> &str {
        self.variables.get(name).map_or("", String::as_str)
    }

    pub(super) fn is_on(&self, name: &str) -> bool {
        !matches!(self.variable(name).to_ascii_uppercase().as_str(), "" | "OFF" | "0")
    }

    /// Returns the name of the server, which no other server has: its UUID, or, on MariaDB, its id and its address.
    pub(super) fn identity(&self) -> String {
        match self.variable("server_uuid") {
            "" => ["server_id", "hostname", "port"].map(|name| self.variable(name)).join(" "),
            uuid => uuid.to_owned(),
        }
    }

    /// Returns the SQL condition that a statement reaches this server, and that the server accepts writes. A proxy may
    /// send it to another one, such as a replica or a new primary.
    pub(super) fn guard(&self) -> String {
        let same = match self.variable("server_uuid") {
            "" => "CONCAT_WS(' ', @@global.server_id, @@hostname, @@port)",
            _ => "@@server_uuid",
        };
        format!(
            "CAST({same} AS BINARY) = {} AND CAST(@@global.read_only AS CHAR) IN ('0', 'OFF')",
            literal(&self.identity())
        )
    }
}

fn refused<H: Into<String>>(message: String, help: H) -> Result<(), Fault> {
    Err(Fault::new(ErrorKind::Unsupported, message).with_help(help))
}

impl Properties for ServerInfo {
    const COLUMNS: &'static [(&'static str, &'static str, &'static str)] = COLUMNS;
    const CHECKED_TYPE: Option<&'static str> = None;
    const TYPES: &'static str = "";
    const ADD: &'static str = "ADD COLUMN ";
    const END: &'static str = " ENGINE=InnoDB";

    fn clock_us(&self) -> i64 {
        self.clock_us
    }

    fn has_table(&self) -> bool {
        self.table.is_some()
    }

    fn praise(&self) -> [String; 2] {
        [
            format!("accepts writes, version {}", self.variable("version")),
            "is an InnoDB table with the columns and types of leasehold".to_owned(),
        ]
    }

    /// Refuses servers beside which another one accepts writes, and those that accept none.
    fn check_server(&self, host: &str) -> Result<(), Fault> {
        for name in ["read_only", "super_read_only", "innodb_read_only"] {
            if self.is_on(name) {
                return Err(MYSQL.not_primary(&format!("{host} is read-only ({name})")));
            }
        }
        // Only MariaDB reports this.
        if self.is_on("Slaves_running") {
            return Err(MYSQL.not_primary(&format!("{host} is a replica (Slaves_running)")));
        }
        let members = self.variable("wsrep_cluster_size");
        if self.is_on("wsrep_on") && members != "1" {
            return refused(
                format!(
                    "{host} is one of {members} members of a Galera cluster: such clusters have lost committed writes \
                     even without a failure, so two processes could hold one lock"
                ),
                "use a server with ordinary replication, or another store, for example etcd",
            );
        }
        let in_group = !self.variable("group_replication_group_name").is_empty();
        if in_group && !self.is_on("group_replication_single_primary_mode") {
            return refused(
                format!("{host} replicates in a group with several primaries, which may both grant a lock"),
                "set group_replication_single_primary_mode=ON on all members",
            );
        }
        Ok(())
    }

    fn check_kind(&self, table: &str) -> Result<(), Fault> {
        let Some((kind, engine)) = &self.table else { return Ok(()) };
        if kind != "BASE TABLE" {
            return Err(not_ordinary(table, kind));
        }
        if !engine.eq_ignore_ascii_case("InnoDB") {
            return refused(
                format!("the table {table:?} has the engine {engine}, which has no transactions"),
                format!("ALTER TABLE `{table}` ENGINE=InnoDB"),
            );
        }
        if !self.is_unique {
            return refused(
                format!("the table {table:?} has no unique index on the column `name` alone"),
                self.remedy(table),
            );
        }
        Ok(())
    }

    fn columns(&self) -> &HashMap<String, String> {
        &self.columns
    }

    /// A change of the line must not change a time.
    fn fits(is: &str, needs: &str) -> bool {
        is.starts_with(needs) && !is.contains("on update")
    }

    fn remedy(&self, table: &str) -> String {
        format!(
            "while no lock is held, change it with ALTER TABLE to what `leasehold init` creates; it has bytes, so that \
             names differ by case and accents, and times without a time zone: {}",
            Self::create(&quoted(table))
        )
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Returns a server and a table on which locks are safe.
    pub(in super::super) fn good() -> ServerInfo {
        let pairs = |pairs: &[(&str, &str)]| {
            pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
        };
        ServerInfo {
            clock_us: 1,
            variables: pairs(&[
                ("version", "10.11.6-MariaDB"),
                ("read_only", "OFF"),
                ("wsrep_on", "OFF"),
                ("innodb_flush_log_at_trx_commit", "1"),
                ("log_bin", "ON"),
                ("sync_binlog", "1"),
            ]),
            table: Some(("BASE TABLE".into(), "InnoDB".into())),
            columns: COLUMNS.iter().map(|(name, kind, _)| ((*name).to_owned(), (*kind).to_owned())).collect(),
            is_unique: true,
        }
    }

    pub(in super::super) fn with(variables: &[(&str, &str)]) -> ServerInfo {
        let mut info = good();
        for (name, value) in variables {
            info.variables.insert((*name).to_owned(), (*value).to_owned());
        }
        info
    }

    fn check(info: &ServerInfo) -> Result<(), Fault> {
        info.check_server("h").and_then(|()| info.check_table("t"))
    }

    #[test]
    fn unsuitable_servers_and_tables_are_refused() {
        let column = |name: &str, kind: Option<&str>| {
            let mut info = good();
            info.columns.remove(name);
            info.columns.extend(kind.map(|kind| (name.to_owned(), kind.to_owned())));
            info
        };
        let group = ("group_replication_group_name", "a");
        for fine in [
            good(),
            ServerInfo { table: None, ..good() },
            with(&[("wsrep_on", "ON"), ("wsrep_cluster_size", "1")]),
            with(&[("Slaves_running", "0")]),
            with(&[group, ("group_replication_single_primary_mode", "ON")]),
            with(&[("group_replication_group_name", ""), ("group_replication_single_primary_mode", "OFF")]),
        ] {
            check(&fine).unwrap();
        }
        for (flaw, named) in [
            (with(&[("read_only", "ON")]), "not the primary"),
            (with(&[("super_read_only", "ON")]), "not the primary"),
            (with(&[("innodb_read_only", "ON")]), "not the primary"),
            (with(&[("Slaves_running", "1")]), "not the primary"),
            (with(&[("wsrep_on", "ON"), ("wsrep_cluster_size", "3")]), "Galera"),
            (with(&[("wsrep_on", "ON")]), "Galera"),
            (with(&[group, ("group_replication_single_primary_mode", "OFF")]), "several primaries"),
            (ServerInfo { table: Some(("BASE TABLE".into(), "MyISAM".into())), ..good() }, "MyISAM"),
            (ServerInfo { table: Some(("BASE TABLE".into(), "Aria".into())), ..good() }, "Aria"),
            (ServerInfo { table: Some(("VIEW".into(), String::new())), ..good() }, "ordinary"),
            (ServerInfo { is_unique: false, ..good() }, "unique"),
            (column("token", None), "token"),
            (column("name", Some("varchar(64)")), "varchar(64)"),
            (column("lock_until", Some("timestamp(3)")), "timestamp(3)"),
            (column("lock_until", Some("datetime(3)")), "datetime(3)"),
            (column("lock_until", Some("datetime(6) on update current_timestamp(6)")), "on update"),
        ] {
            let fault = check(&flaw).unwrap_err();
            assert!(fault.message.contains(named) && fault.help.is_some(), "{fault:?}");
        }
    }

    #[test]
    fn a_promotion_changes_the_identity() {
        let of = |host| with(&[("server_id", "1"), ("hostname", host), ("port", "3306")]);
        assert_ne!(of("a").identity(), of("b").identity());
        assert_ne!(of("a").guard(), of("b").guard());
        let uuid = |uuid| ServerInfo { ..with(&[("server_uuid", uuid), ("hostname", "a")]) };
        assert_ne!(uuid("1").identity(), uuid("2").identity());
    }
}
