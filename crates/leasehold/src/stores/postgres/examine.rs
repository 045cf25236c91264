//! The doctor's checks of the server, the table and the permissions.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use super::errors;
use super::row::{cell, only};
use super::server::ServerInfo;
use super::session::Session;
use super::sql::quoted;
use super::statements::text;
use super::store::PostgresTable;
use crate::diagnosis::{Examined, Finding};
use crate::error::StoreError;
use crate::stores::table::{self, Checks, Effect, Servers, Table};

/// Reads the server's settings.
pub(super) const SETTINGS: &str =
    "SELECT pg_catalog.current_setting('fsync') OPERATOR(pg_catalog.=) 'on' AS has_fsync,
        pg_catalog.current_setting('full_page_writes') OPERATOR(pg_catalog.=) 'on' AS has_full_pages,
        pg_catalog.current_setting('synchronous_standby_names') AS synchronous,
        (SELECT pg_catalog.count(*) FROM pg_catalog.pg_stat_replication) AS standbys,
        (SELECT pg_catalog.count(*) FROM pg_catalog.pg_stat_replication AS r
            WHERE r.sync_state OPERATOR(pg_catalog.<>) 'sync') AS behind";

/// Reads the properties of the table $1.
pub(super) const TABLE: &str = "SELECT
    (SELECT pg_catalog.string_agg(p.name, ' ') FROM (VALUES ('SELECT'), ('INSERT'), ('UPDATE'), ('DELETE')) AS p (name)
        WHERE NOT pg_catalog.has_table_privilege(c.oid, p.name)) AS lacks,
    pg_catalog.row_security_active(c.oid) AS has_row_security,
    EXISTS (SELECT FROM pg_catalog.pg_policy AS p WHERE p.polrelid OPERATOR(pg_catalog.=) c.oid) AS has_policies,
    EXISTS (SELECT FROM pg_catalog.pg_trigger AS t WHERE t.tgrelid OPERATOR(pg_catalog.=) c.oid
        AND NOT t.tgisinternal AND t.tgenabled OPERATOR(pg_catalog.<>) 'D') AS has_triggers,
    EXISTS (SELECT FROM pg_catalog.pg_subscription_rel AS s WHERE s.srrelid OPERATOR(pg_catalog.=) c.oid)
        AS is_subscribed,
    EXISTS (SELECT FROM pg_catalog.pg_index AS i JOIN pg_catalog.pg_attribute AS a
            ON a.attrelid OPERATOR(pg_catalog.=) c.oid AND a.attnum OPERATOR(pg_catalog.=) i.indkey[0]
        WHERE i.indrelid OPERATOR(pg_catalog.=) c.oid AND i.indisunique AND i.indisvalid AND i.indimmediate
            AND i.indnkeyatts OPERATOR(pg_catalog.=) 1 AND i.indpred IS NULL
            AND a.attname OPERATOR(pg_catalog.=) 'name') AS is_unique
    FROM pg_catalog.pg_class AS c WHERE c.oid OPERATOR(pg_catalog.=) pg_catalog.to_regclass($1)";

#[async_trait]
impl Checks for PostgresTable {
    async fn examine(
        self: &Arc<Self>,
        session: &mut Session,
        _: &ServerInfo,
        examined: &mut Examined,
    ) -> Result<(), StoreError> {
        let table = self.table();
        let of_statement = |error| errors::of_statement(&error, Effect::None, table);
        let settings = session.ask(SETTINGS, &[]).await.map_err(of_statement)?;
        let settings = only(&settings)?;
        examined.push(durability(cell(settings, "has_fsync")?, cell(settings, "has_full_pages")?));
        examined.push(failover(
            cell(settings, "synchronous")?,
            cell(settings, "standbys")?,
            cell(settings, "behind")?,
            self.connections().database.failover_grace,
        ));
        let about = session.ask(TABLE, &[text(&self.sql())]).await.map_err(of_statement)?;
        if let Some(row) = about.first() {
            let lacks: Option<&str> = cell(row, "lacks")?;
            let lacks: Vec<_> = lacks.unwrap_or_default().split_whitespace().collect();
            examined.push(table::permissions("permission-table", &lacks));
            examined.push(key(cell(row, "is_unique")?, table));
            examined.push(row_security(cell(row, "has_row_security")?, cell(row, "has_policies")?, table));
            if cell(row, "has_triggers")? {
                examined.push(
                    Finding::warning("triggers", format!("the table {table:?} has triggers"))
                        .with_help(
                            "they run in the transaction of each grant; leasehold cannot check what they do to the rows or how long they take",
                        ),
                );
            }
            if cell(row, "is_subscribed")? {
                examined.push(
                    Finding::warning(
                        "subscription",
                        format!("a subscription of logical replication writes to the table {table:?}"),
                    )
                    .with_help("drop it before clients use this server: it overwrites the rows of grants, and then two processes hold one lock"),
                );
            }
        }
        examined.push(self.notifications().await);
        Ok(())
    }
}

fn durability(has_fsync: bool, has_full_pages: bool) -> Finding {
    const CHECK: &str = "durability";
    if !has_fsync {
        return Finding::failed(
            CHECK,
            "fsync is off: a crash of the machine can undo grants that were reported, or damage the table",
        )
        .with_help("set fsync = on in postgresql.conf");
    }
    if !has_full_pages {
        return Finding::warning(
            CHECK,
            "full_page_writes is off: a crash of the machine can damage the table",
        )
        .with_help("set full_page_writes = on, unless the file system writes whole pages");
    }
    Finding::passed(
        CHECK,
        "commits are on the disk before they are reported; leasehold overrides synchronous_commit = off",
    )
}

/// Checks the standbys that are connected now. Does not see others, nor those of a storage layer. A commit need not wait
/// for those `behind`.
fn failover(synchronous: &str, standbys: i64, behind: i64, grace: Duration) -> Finding {
    const CHECK: &str = "failover";
    if !synchronous.trim().is_empty() {
        if behind > 0 && grace.is_zero() {
            let message = format!(
                "grants wait for standbys (synchronous_standby_names = {synchronous:?}), but {behind} of {standbys} may lack the latest grants"
            );
            return Finding::warning(CHECK, message)
                .with_help("promote only a standby that has all commits: your failover tool must choose it, as Patroni does with synchronous_mode")
                .with_help("or let commits wait for all standbys: FIRST 2 (a, b) waits for both");
        }
        return Finding::passed(
            CHECK,
            format!("grants wait for standbys: synchronous_standby_names = {synchronous:?}"),
        );
    }
    if !grace.is_zero() {
        let grace = grace.as_secs();
        return Finding::passed(
            CHECK,
            format!("{standbys} asynchronous standbys; after a promotion no lock is granted for {grace} s"),
        );
    }
    if standbys == 0 {
        return Finding::passed(
            CHECK,
            "no standby is connected; if one is ever promoted, see synchronous_standby_names and failover_grace",
        );
    }
    Finding::warning(CHECK, format!("{standbys} asynchronous standbys: a promotion can lose the latest grants, and then two processes hold one lock"))
        .with_help("set synchronous_standby_names, and promote only synchronous standbys")
        .with_help("or add failover_grace=60s to the store URL of every process, and stop the old primary before another one is promoted")
        .with_help("or protect the resource with fencing tokens, in a store that survives the promotion")
}

fn key(is_unique: bool, table: &str) -> Finding {
    const CHECK: &str = "unique-names";
    if is_unique {
        return Finding::passed(CHECK, "a lock has one row");
    }
    Finding::failed(CHECK, format!("the column `name` of the table {:?} has no unique index", table))
        .with_help(format!("ALTER TABLE {} ADD PRIMARY KEY (name)", quoted(table)))
}

fn row_security(is_active: bool, has_policies: bool, table: &str) -> Finding {
    const CHECK: &str = "row-security";
    let off = format!("ALTER TABLE {} DISABLE ROW LEVEL SECURITY", quoted(table));
    match (is_active, has_policies) {
        (false, _) => Finding::passed(CHECK, "every row is visible to the user"),
        (true, false) => Finding::failed(
            CHECK,
            "row security is on without a policy: the user can neither see nor acquire locks",
        )
        .with_help(off),
        (true, true) => Finding::warning(
            CHECK,
            "policies decide which rows the user sees: users that see different rows cannot share a lock",
        )
        .with_help(off),
    }
}

#[cfg(test)]
mod tests {
    use super::super::server::tests::{good, with};
    use super::*;
    use crate::diagnosis::CheckStatus;

    #[test]
    fn unsafe_settings_are_failures_and_doubtful_ones_warnings() {
        let verdict = |finding: Finding| finding.verdict;
        let none = Duration::ZERO;
        assert_eq!(verdict(durability(true, true)), CheckStatus::Passed);
        assert_eq!(verdict(durability(true, false)), CheckStatus::Warning);
        assert_eq!(verdict(durability(false, true)), CheckStatus::Failed);
        assert_eq!(verdict(failover("", 0, 0, none)), CheckStatus::Passed);
        assert_eq!(verdict(failover(" ", 2, 2, none)), CheckStatus::Warning);
        let grace = Duration::from_secs(60);
        assert_eq!(verdict(failover("", 2, 2, grace)), CheckStatus::Passed);
        assert_eq!(verdict(failover("FIRST 2 (a, b)", 2, 0, none)), CheckStatus::Passed);
        assert_eq!(verdict(failover("ANY 1 (a, b)", 2, 2, none)), CheckStatus::Warning);
        assert_eq!(verdict(failover("ANY 1 (a, b)", 2, 2, grace)), CheckStatus::Passed);
        assert_eq!(verdict(row_security(false, false, "t")), CheckStatus::Passed);
        assert_eq!(verdict(row_security(true, false, "t")), CheckStatus::Failed);
        assert_eq!(verdict(row_security(true, true, "t")), CheckStatus::Warning);
        assert_eq!(verdict(key(false, "t")), CheckStatus::Failed);
        let suits = |info: &ServerInfo| table::suits(info, "t", "").verdict;
        assert_eq!(suits(&good()), CheckStatus::Passed);
        assert_eq!(suits(&with("token", Some("int4"))), CheckStatus::Failed);
        assert_eq!(suits(&with("token", None)), CheckStatus::Failed);
        assert_eq!(suits(&ServerInfo { is_standby: true, ..good() }), CheckStatus::Passed);
        assert_eq!(suits(&ServerInfo::default()), CheckStatus::Failed);
    }
}
