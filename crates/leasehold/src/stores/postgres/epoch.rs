//! `failover_grace`: a row of the table records which server is the primary, and since when.
//!
//! A promotion begins a new timeline. A copy of the database in another cluster has another system identifier. If
//! `fsync` is off, a crash of the machine can also lose commits, so each start of the server counts as a new primary.

use std::time::Duration;

use super::sql::{NOW, NOW_US, settings};
use crate::clock::micros;

/// The name of the row. No lock has this name.
pub(super) const NAME: &str = "//leasehold/epoch";

/// The value of `locked_by` in that row. It tells other clients that leasehold wrote the row.
const BY: &str = "leasehold:epoch";

/// The server's current timeline. `pg_control_checkpoint` would return the old one until the first checkpoint after a
/// promotion.
const TIMELINE: &str = "left(pg_walfile_name(pg_current_wal_insert_lsn()), 8)";

/// Returns the SQL that identifies the primary as text.
fn identity() -> String {
    format!(
        "((SELECT c.system_identifier::text FROM pg_control_system() AS c) || ' ' || {TIMELINE}
            || CASE current_setting('fsync') WHEN 'on' THEN ''
                ELSE ' ' || (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::int8::text END)"
    )
}

/// Returns a common table expression `epoch` with `left_us`: for how many microseconds nothing is granted. It is NULL
/// if that is unknown, because the row is missing, or is for another server or a shorter grace.
pub(super) fn of(table: &str, grace: Duration) -> String {
    if grace.is_zero() {
        return "epoch AS (SELECT 0::int8 AS left_us)".to_owned();
    }
    format!(
        "epoch AS MATERIALIZED (SELECT (SELECT greatest(
                least((e.holder->>'since_us')::int8, {NOW_US}) + (e.holder->>'grace_us')::int8 - {NOW_US}, 0)
            FROM {table} AS e
            WHERE e.name = '{NAME}' AND e.holder->>'epoch' = {} AND (e.holder->>'grace_us')::int8 >= {}) AS left_us)",
        identity(),
        micros(grace)
    )
}

/// Returns the statement that records which server is the primary, and the longest grace of all clients. $1 is the
/// limit of a wait for the row.
///
/// The grace begins if the row is for another server. It also begins if the row is missing, except on a server that was
/// never promoted and loses no commit: there, the grace was only just turned on, and no grant can have been lost.
pub(super) fn note(table: &str, grace: Duration) -> String {
    let grace_us = micros(grace);
    format!(
        "WITH {settings} INSERT INTO {table} AS e (name, lock_until, locked_at, locked_by, holder)
         SELECT '{NAME}', {NOW}, {NOW}, '{BY}', jsonb_build_object('epoch', {identity}, 'grace_us', {grace_us}, 'since_us',
            CASE WHEN {TIMELINE} = '00000001' AND current_setting('fsync') = 'on' THEN 0 ELSE {NOW_US} END)
         FROM settings
         ON CONFLICT (name) DO UPDATE SET lock_until = {NOW}, locked_at = {NOW}, locked_by = '{BY}',
            holder = jsonb_build_object('epoch', excluded.holder->>'epoch',
                'grace_us', greatest((e.holder->>'grace_us')::int8, {grace_us}),
                'since_us', CASE WHEN e.holder->>'epoch' = excluded.holder->>'epoch'
                    THEN coalesce((e.holder->>'since_us')::int8, {NOW_US}) ELSE {NOW_US} END)",
        settings = settings("$1"),
        identity = identity(),
    )
}
