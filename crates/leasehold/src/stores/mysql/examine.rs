//! The doctor's checks of the server and the permissions.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use super::errors;
use super::row::text;
use super::server::ServerInfo;
use super::session::Session;
use super::sql::quoted;
use super::store::MysqlTable;
use crate::diagnosis::{Examined, Finding};
use crate::error::StoreError;
use crate::stores::table::{self, Checks, Effect, Table};

#[async_trait]
impl Checks for MysqlTable {
    async fn examine(
        self: &Arc<Self>,
        session: &mut Session,
        info: &ServerInfo,
        examined: &mut Examined,
    ) -> Result<(), StoreError> {
        examined.push(durability(info));
        examined.push(failover(self.connections().database.failover_grace, info));
        if info.table.is_some() {
            examined.push(permissions(session, self.table()).await?);
        }
        Ok(())
    }
}

fn durability(info: &ServerInfo) -> Finding {
    const CHECK: &str = "durability";
    let mut lost = Vec::new();
    if info.variable("innodb_flush_log_at_trx_commit") != "1" {
        lost.push("innodb_flush_log_at_trx_commit is not 1: a crash of the machine or the server can undo about the last second of grants that were reported");
    }
    if info.is_on("log_bin") && info.variable("sync_binlog") != "1" {
        lost.push("sync_binlog is not 1: a crash of the machine can undo grants that were reported, because the server rolls back what is not in the binary log, and the replicas can lack them");
    }
    if info.variables.contains_key("innodb_doublewrite") && !info.is_on("innodb_doublewrite") {
        lost.push("innodb_doublewrite is off: a crash of the machine can damage the table");
    }
    if lost.is_empty() {
        return Finding::passed(CHECK, "commits are on the disk before they are reported");
    }
    Finding::warning(CHECK, lost.join("; "))
        .with_help("set innodb_flush_log_at_trx_commit=1, sync_binlog=1 and innodb_doublewrite=ON, or protect the resource with fencing tokens; with failover_grace, delete the row //leasehold/epoch after such a crash")
}

/// Sees neither the replicas nor whether they are synchronous.
fn failover(grace: Duration, info: &ServerInfo) -> Finding {
    const CHECK: &str = "failover";
    if !grace.is_zero() {
        let grace = grace.as_secs();
        return Finding::passed(CHECK, format!("after a promotion no lock is granted for {grace} s"));
    }
    if !info.is_on("log_bin") {
        return Finding::passed(CHECK, "the server has no replicas, because it writes no binary log");
    }
    Finding::passed(CHECK, "if a replica is ever promoted, it can lack the latest grants: see failover_grace")
}

/// Tries statements that change nothing, because grants may come from roles, patterns and other levels.
async fn permissions(session: &mut Session, table: &str) -> Result<Finding, StoreError> {
    const CHECK: &str = "permission-table";
    let sql = quoted(table);
    let mut lacks = Vec::new();
    for (name, statement) in [
        ("SELECT", format!("SELECT name FROM {sql} LIMIT 0")),
        (
            "INSERT",
            format!(
                "INSERT INTO {sql} (name, lock_until, locked_at, locked_by) SELECT '', NOW(), NOW(), '' FROM (SELECT 1) AS one WHERE false"
            ),
        ),
        ("UPDATE", format!("UPDATE {sql} SET locked_by = '' WHERE false")),
        ("DELETE", format!("DELETE FROM {sql} WHERE false")),
    ] {
        match session.run(&statement).await {
            Ok(_) => {}
            Err((error, _)) if errors::is(&error, 1142) || errors::is(&error, 1143) => lacks.push(name),
            Err((error, _)) => return Err(errors::of_statement(&error, Effect::None, false, table)),
        }
    }
    let triggers = format!("SHOW TRIGGERS WHERE `Table` = '{}'", table.replace('\'', "''"));
    let has_triggers = match session.run(&triggers).await {
        Ok(answers) => {
            answers.first().and_then(|answer| answer.rows.first()).map(|row| text(row, "Trigger")).is_some()
        }
        Err(_) => false,
    };
    if lacks.is_empty() && has_triggers {
        return Ok(Finding::warning(CHECK, format!("the table {table:?} has triggers")).with_help(
            "they run in the transaction of each grant; leasehold cannot check what they do to the rows",
        ));
    }
    Ok(table::permissions(CHECK, &lacks))
}

#[cfg(test)]
mod tests {
    use super::super::server::tests::{good, with};
    use super::*;
    use crate::diagnosis::CheckStatus;

    #[test]
    fn settings_that_can_lose_grants_are_warnings() {
        assert_eq!(durability(&good()).verdict, CheckStatus::Passed);
        assert_eq!(
            durability(&with(&[("log_bin", "OFF"), ("sync_binlog", "0")])).verdict,
            CheckStatus::Passed
        );
        for (name, value, lost) in [
            ("innodb_flush_log_at_trx_commit", "2", "second of grants"),
            ("sync_binlog", "0", "rolls back"),
            ("innodb_doublewrite", "OFF", "damage"),
        ] {
            let finding = durability(&with(&[(name, value)]));
            assert_eq!(finding.verdict, CheckStatus::Warning);
            assert!(finding.seen.contains(name) && finding.seen.contains(lost), "{finding:?}");
        }
    }

    #[test]
    fn a_table_is_judged_apart_from_the_server() {
        let suits = |info: &ServerInfo| table::suits(info, "t", "").verdict;
        assert_eq!(suits(&with(&[("read_only", "ON")])), CheckStatus::Passed);
        for flaw in [ServerInfo { table: None, ..good() }, ServerInfo { is_unique: false, ..good() }] {
            assert_eq!(suits(&flaw), CheckStatus::Failed);
        }
    }
}
