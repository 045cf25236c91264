//! `failover_grace`: a row of the table records which server is the primary, and since when.
//!
//! A promotion begins a new timeline. A copy of the database in another cluster has another system identifier. If
//! `fsync` is off, a crash of the machine can also lose commits, so each start of the server counts as a new primary.

use std::time::Duration;

use super::sql::{EQ, GE, GET_TEXT, JOINED, LE, MINUS, NOW, NOW_US, PLUS, in_us, settings};
use crate::clock::micros;
use crate::stores::rows::{EPOCH, EPOCH_BY};

/// The server's current timeline. `pg_control_checkpoint` would return the old one until the first checkpoint after a
/// promotion.
const TIMELINE: &str =
    "pg_catalog.left(pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_insert_lsn()), 8)";

/// True if no crash of the machine can lose commits.
const HAS_FSYNC: &str = "pg_catalog.current_setting('fsync') OPERATOR(pg_catalog.=) 'on'";

/// Returns the SQL that identifies the primary as text.
fn identity() -> String {
    format!(
        "pg_catalog.concat((SELECT c.system_identifier FROM pg_catalog.pg_control_system() AS c), ' ', {TIMELINE},
            CASE WHEN NOT {HAS_FSYNC} THEN ' ' {JOINED} {started}::pg_catalog.text END)",
        started = in_us("pg_catalog.pg_postmaster_start_time()")
    )
}

/// Returns the SQL of a number in the row.
fn number(member: &str) -> String {
    format!("(e.record {GET_TEXT} '{member}')::pg_catalog.int8")
}

/// Returns a common table expression `epoch` with `left_us`: for how many microseconds nothing is granted. It is NULL
/// if that is unknown: because the row is missing, is for another server or a shorter grace, or was written before the
/// clock was set back.
pub(super) fn of(table: &str, grace: Duration) -> String {
    if grace.is_zero() {
        return "epoch AS (SELECT 0::pg_catalog.int8 AS left_us)".to_owned();
    }
    format!(
        "epoch AS MATERIALIZED (SELECT (SELECT greatest(({since} {PLUS} {length}) {MINUS} {NOW_US}, 0)
            FROM {table} AS e
            WHERE e.name {EQ} '{EPOCH}' AND (e.record {GET_TEXT} 'epoch') {EQ} {identity} AND {length} {GE} {grace}
                AND {since} {LE} {NOW_US}) AS left_us)",
        since = number("since_us"),
        length = number("grace_us"),
        identity = identity(),
        grace = micros(grace)
    )
}

/// Returns the statement that records which server is the primary, and the longest grace of all clients. $1 is the
/// limit of a wait for the row.
///
/// The grace begins if the row is for another server. It also begins if the row is missing, except on a server that was
/// never promoted and loses no commit: there, the grace was only just turned on, and no grant can have been lost. A
/// grace that began ahead of the clock, because the clock was set back since, begins now.
pub(super) fn note(table: &str, grace: Duration) -> String {
    let grace_us = micros(grace);
    format!(
        "WITH {settings} INSERT INTO {table} AS e (name, lock_until, locked_at, locked_by, record)
         SELECT '{EPOCH}', {NOW}, {NOW}, '{EPOCH_BY}', pg_catalog.json_build_object('epoch', {identity},
            'grace_us', {grace_us}, 'since_us',
            CASE WHEN {TIMELINE} {EQ} '00000001' AND {HAS_FSYNC} THEN 0 ELSE {NOW_US} END)
         FROM settings
         ON CONFLICT (name) DO UPDATE SET lock_until = {NOW}, locked_at = {NOW}, locked_by = '{EPOCH_BY}',
            record = pg_catalog.json_build_object('epoch', excluded.record {GET_TEXT} 'epoch',
                'grace_us', greatest({length}, {grace_us}),
                'since_us', CASE WHEN (e.record {GET_TEXT} 'epoch') {EQ} (excluded.record {GET_TEXT} 'epoch')
                    THEN least({since}, {NOW_US}) ELSE {NOW_US} END)",
        settings = settings("$1"),
        identity = identity(),
        length = number("grace_us"),
        since = number("since_us"),
    )
}
