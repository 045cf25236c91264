//! The statements. Each step of a lock is one statement, which the server decides by its own clock.
//!
//! The statements always use `clock_timestamp()`, which PostgreSQL reads again for each use, also after a wait for a
//! row. `now()` would be the time at which the transaction began.

use std::time::Duration;

use tokio_postgres::types::{ToSql, Type};

use super::config::Table;
use super::epoch;
use super::sql::{NOW, NOW_US, settings};
use crate::lease::{LONGEST_PAUSE, MAX_WAITERS, grace};
use crate::stores::on_server::notifications::CALLED_BY;

/// The prefix of a grant's id in `locked_by`. The other columns of leasehold are valid only in a row with this prefix.
pub(super) const OURS: &str = "leasehold:";

/// How many ended grants a row keeps.
const HISTORY: usize = 8;

/// A parameter of a statement, and its type.
pub(super) type Parameter<'a> = (&'a (dyn ToSql + Sync), Type);

/// The statements for one table.
#[derive(Debug)]
pub(super) struct Statements {
    pub(super) acquire: String,
    pub(super) renew: String,
    pub(super) release: String,
    pub(super) evict: String,
    pub(super) read: String,
    pub(super) names: String,
    pub(super) sweep: String,
    pub(super) would_sweep: String,
    pub(super) is_shared: String,
    pub(super) discard: String,
    /// Writes the row without a change. $1 name, $2 the limit of a wait for the row.
    pub(super) touch: String,
    pub(super) join: String,
    pub(super) leave: String,
    pub(super) note_epoch: String,
}

impl Statements {
    /// Builds the statements for `table`. With `notifies`, releases and evictions notify the first waiter.
    pub(super) fn on(table: &Table, failover_grace: Duration, notifies: bool) -> Self {
        let table = &table.sql;
        let notified = notified(table, notifies);
        Self {
            acquire: acquire(table, failover_grace),
            renew: renew(table),
            release: release(table, &notified),
            evict: evict(table, &notified),
            read: format!("SELECT {NOW_US} AS now_us, {} FROM {table} AS l WHERE l.name = $1", columns()),
            names: names(table),
            sweep: format!(
                "WITH {} DELETE FROM {table} AS l USING settings WHERE {} RETURNING true",
                settings("$3"),
                is_old()
            ),
            would_sweep: format!("SELECT true FROM {table} AS l WHERE {}", is_old()),
            touch: format!(
                "WITH {} UPDATE {table} AS l SET past = l.past FROM settings WHERE l.name = $1",
                settings("$2")
            ),
            join: join(table),
            leave: leave(table),
            note_epoch: epoch::note(table, failover_grace),
            is_shared: format!(
                "SELECT EXISTS (SELECT FROM {table} AS l WHERE NOT {IS_OURS}) OR EXISTS (SELECT FROM pg_attribute
                    WHERE attrelid = to_regclass($1) AND attname = 'name' AND atttypid <> 'text'::regtype) AS is_shared"
            ),
            discard: format!(
                "WITH {}, gone AS (
                    DELETE FROM {table} AS l USING settings WHERE l.name = $1 AND {OURS_FREE} RETURNING l.name)
                 SELECT NOT EXISTS (SELECT FROM {table} AS l WHERE l.name = $1) OR EXISTS (SELECT FROM gone) AS is_gone
                 FROM settings",
                settings("$2")
            ),
        }
    }
}

/// True for a row that leasehold wrote last.
const IS_OURS: &str = "l.locked_by LIKE 'leasehold:%'";

/// True for a lock that was released or evicted and has not been taken since.
const OURS_FREE: &str = "l.locked_by LIKE 'leasehold:%' AND l.state = 'free'";

/// True for a lock that is held or in a cooldown. A released lock stays free even if the server's clock is set back.
/// Only leasehold writes `lease_until`. Old versions of ShedLock unlock any row, which shortens `lock_until`.
const IS_LIVE: &str = "(CASE WHEN l.locked_by LIKE 'leasehold:%'
    THEN l.state <> 'free' AND greatest(l.lock_until, l.lease_until) > timezone('utc', clock_timestamp())
    ELSE l.lock_until > timezone('utc', clock_timestamp()) END)";

/// The end of the lease or of the cooldown.
const UNTIL: &str = "(CASE WHEN l.locked_by LIKE 'leasehold:%' THEN greatest(l.lock_until, l.lease_until)
    ELSE l.lock_until END)";

/// Returns the columns that [`super::record`] reads.
fn columns() -> String {
    format!(
        "l.locked_by::text, {IS_LIVE} AS is_live,
         CASE WHEN isfinite({UNTIL}) THEN (extract(epoch FROM {UNTIL}) * 1000000)::int8 END AS until_us,
         CASE WHEN isfinite(l.locked_at) THEN (extract(epoch FROM l.locked_at) * 1000000)::int8 END AS from_us,
         l.token::int8, l.prev_token::int8, l.ttl_ms::int8, l.state::text, l.holder::text, l.past::text, {WAITERS}::text AS waiters"
    )
}

/// Returns the history of the row `l`, with its current grant added at the front.
fn past(end: &str, until_us: &str) -> String {
    format!(
        "jsonb_path_query_array(jsonb_build_array(jsonb_build_object('token', l.token,
            'grant', substr(l.locked_by, {}), 'holder', l.holder - 'value',
            'from_us', (extract(epoch FROM l.locked_at) * 1000000)::int8, 'until_us', {until_us}, 'end', '{end}'))
            || coalesce(l.past, '[]'), '$[0 to {}]')",
        OURS.len() + 1,
        HISTORY - 1
    )
}

/// Returns the statement of a claim. $1 name, $2 `locked_by`, $3 the lease in microseconds, $4 how many tokens, $5 the
/// holder, $6 the ttl in milliseconds, $7 the time on the server's clock from which on the claim is too late, $8 the
/// limit of a wait for the row, $9 the id, $10 whether the claim ignores the waiters, $11 and $12 the first waiter, and
/// for how many microseconds the lock was kept for it before it was last taken.
///
/// The statement does not write the row of a held lock. Otherwise, the claims of one lock take turns, so that no other
/// grant happens between reading the clock, which becomes the token in a new row, and writing that row. PostgreSQL
/// evaluates the conditions after it has locked the row. The row must have the claim's own grant, which has not ended,
/// or another grant that has ended. A claim whose grant has ended is never granted again. Neither is a claim that
/// arrives after its client gave up, because no process would release it. A free lock is kept for the waiters before
/// the claim until their grace is over. Then they lose their places. During the failover grace, a claim is granted only
/// if the row already has its grant.
fn acquire(table: &str, failover_grace: Duration) -> String {
    let lease = "$3 * interval '1 microsecond'";
    // A repetition never shortens the lease, because another process may have the same grant with a longer ttl.
    let longest = "CASE WHEN l.locked_by = $2 THEN greatest(l.lease_us, $3) ELSE $3 END";
    let until = format!("{NOW} + {longest} * interval '1 microsecond'");
    let lapsed = past("lapsed", &format!("(extract(epoch FROM {UNTIL}) * 1000000)::int8"));
    format!(
        "WITH {settings}, turns AS MATERIALIZED (
            SELECT CASE WHEN EXISTS (SELECT FROM {table} AS l WHERE l.name = $1 AND l.locked_by <> $2 AND {IS_LIVE})
                THEN false ELSE pg_advisory_xact_lock(hashtextextended($1, {key}))::text = '' END AS turn
            FROM settings
         ), {epoch}, granted AS (
            INSERT INTO {table} AS l (name, lock_until, lease_until, locked_at, locked_by, token, lease_us, ttl_ms, state,
                holder, past)
            SELECT $1, {NOW} + {lease}, {NOW} + {lease}, {NOW}, $2, {NOW_US}, $3, $6, 'held', $5::jsonb, '[]'
            FROM turns WHERE turn AND {NOW_US} < $7
                AND ((SELECT left_us FROM epoch) = 0 OR EXISTS (SELECT FROM {table} AS l WHERE l.name = $1 AND l.locked_by = $2))
            ON CONFLICT (name) DO UPDATE SET
                lock_until = {until}, lease_until = {until},
                locked_at = CASE WHEN l.locked_by = $2 THEN l.locked_at ELSE {NOW} END,
                locked_by = $2,
                token = CASE WHEN l.locked_by = $2 THEN l.token
                    ELSE greatest(coalesce(l.token, 0) + $4, {NOW_US}) END,
                prev_token = CASE WHEN l.locked_by = $2 THEN l.prev_token ELSE l.token END,
                lease_us = {longest}, ttl_ms = CASE WHEN l.locked_by = $2 THEN greatest(l.ttl_ms, $6) ELSE $6 END,
                state = 'held', holder = $5::jsonb,
                past = CASE WHEN l.locked_by <> $2 AND {IS_OURS} AND l.state = 'held' THEN {lapsed}
                    ELSE coalesce(l.past, '[]') END,
                waiters = CASE WHEN l.locked_by = $2 OR $10 THEN l.waiters ELSE {behind} END
            WHERE (l.locked_by = $2) = {IS_LIVE}
                AND (NOT {IS_OURS} OR (l.token IS NOT NULL AND (l.state IN ('free', 'resting')
                    OR (l.state = 'held' AND jsonb_typeof(l.holder) = 'object' AND l.holder @? '$ ? (
                        @.name.type() == \"string\" && @.host.type() == \"string\" && @.pid >= 0 && @.pid <= 4294967295)'))))
                AND (l.locked_by <> $2 OR l.state = 'held')
                AND NOT coalesce(l.past, '[]') @> jsonb_build_array(jsonb_build_object('grant', $9))
                AND coalesce(l.token, 0) < {most} - $4
                AND {NOW_US} < $7
                AND (l.locked_by = $2 OR $10 OR {is_next})
            RETURNING l.*)
         SELECT {NOW_US} AS now_us, {NOW_US} >= $7 AS is_late, (SELECT left_us FROM epoch) AS grace_left_us, found.*
         FROM settings LEFT JOIN LATERAL (
            SELECT true AS is_granted, {columns} FROM granted AS l
            UNION ALL
            SELECT false, {columns} FROM {table} AS l WHERE l.name = $1 AND NOT EXISTS (SELECT FROM granted)
         ) AS found ON true",
        settings = settings("$8"),
        epoch = epoch::of(table, failover_grace),
        key = key(table),
        most = crate::lease::Token::LIMIT,
        behind = behind(),
        is_next = is_next(),
        columns = columns(),
    )
}

/// The waiters, in the order of their arrival. A value that is not a list counts as an empty one. Entries above
/// [`MAX_WAITERS`], which leasehold does not write, do not count, and the next change of the list removes them.
const WAITERS: &str = "(CASE WHEN pg_catalog.jsonb_typeof(l.waiters) OPERATOR(pg_catalog.=) 'array'
    THEN pg_catalog.jsonb_path_query_array(l.waiters, '$[0 to 63]') ELSE '[]' END)";
const _: () = assert!(MAX_WAITERS == 64);

/// Returns the place of the claim $9 among the waiters. A claim without a place is behind all of them.
fn own_place() -> String {
    format!(
        "coalesce((SELECT min(o.place) FROM jsonb_array_elements({WAITERS}) WITH ORDINALITY AS o(waiter, place)
            WHERE o.waiter->>'claim' = $9), {MAX_WAITERS} + 1)"
    )
}

/// Returns the waiters behind the claim $9.
fn behind() -> String {
    format!(
        "(SELECT jsonb_agg(w.waiter ORDER BY w.place)
            FROM jsonb_array_elements({WAITERS}) WITH ORDINALITY AS w(waiter, place) WHERE w.place > {})",
        own_place()
    )
}

/// Returns the condition that no waiter is before the claim $9, or that the lock has been available for their
/// [`grace`](crate::lease::grace), with the time that the claim reports. If the clock was set back after the release,
/// that time is unknown, and the lock is kept for no waiter.
fn is_next() -> String {
    format!(
        "coalesce((SELECT {NOW} < {UNTIL} OR ({UNTIL} OPERATOR(pg_catalog.-) CASE
                WHEN ({WAITERS} OPERATOR(pg_catalog.->) 0 OPERATOR(pg_catalog.->>) 'claim') OPERATOR(pg_catalog.=) $11
                THEN $12 OPERATOR(pg_catalog.*) interval '1 microsecond' ELSE interval '0' END) + interval '1 millisecond'
                * (2 * max(CASE WHEN jsonb_typeof(w.waiter->'polls_ms') = 'number'
                    THEN greatest(least((w.waiter->>'polls_ms')::numeric, {longest}), 0)::int8 ELSE 0 END) + {each} * count(*)) <= {NOW}
            FROM jsonb_array_elements({WAITERS}) WITH ORDINALITY AS w(waiter, place)
            WHERE w.place < {own} HAVING count(*) > 0), true)",
        longest = LONGEST_PAUSE.as_millis(),
        each = grace([Duration::ZERO]).as_millis(),
        own = own_place(),
    )
}

/// Returns the statement that adds a claim to the waiters, or reads the row. $1 name, $2 the claim's id, $3 the waiter,
/// $4 the pause of a single waiter and $5 its longest pause, both in milliseconds, $6 the limit of a wait for the row.
fn join(table: &str) -> String {
    let set = format!(
        "waiters = {WAITERS} || jsonb_build_array($3::jsonb || jsonb_build_object('since_us', {NOW_US},
            'polls_ms', least((jsonb_array_length({WAITERS}) + 1) * $4, $5)))"
    );
    let condition = format!(
        "({IS_LIVE} OR jsonb_array_length({WAITERS}) > 0) AND jsonb_array_length({WAITERS}) < {MAX_WAITERS}
            AND NOT {WAITERS} @> jsonb_build_array(jsonb_build_object('claim', $2))
            AND l.locked_by <> '{OURS}' || $2"
    );
    changed(table, &set, &condition, "$6", NOT_NOTIFIED)
}

/// Returns the statement that removes a claim from the waiters. It always writes the row, so that it waits for a
/// concurrent request to join. $1 name, $2 the claim's id, $3 the limit of a wait for the row.
fn leave(table: &str) -> String {
    format!(
        "WITH {} UPDATE {table} AS l SET waiters = (SELECT jsonb_agg(w.waiter ORDER BY w.place)
            FROM jsonb_array_elements({WAITERS}) WITH ORDINALITY AS w(waiter, place) WHERE w.waiter->>'claim' <> $2)
         FROM settings WHERE l.name = $1",
        settings("$3")
    )
}

/// Returns the key of a table. Two tables rarely have the same key. Claims of tables with the same key may wait for
/// each other.
fn key(table: &str) -> u64 {
    table.bytes().fold(0, |key: u64, byte| (key * 31 + u64::from(byte)) % (1 << 56))
}

/// Returns the statement of a renewal. $1 name, $2 `locked_by`, $3 token, $4 the limit of a wait for the row.
fn renew(table: &str) -> String {
    let until = format!("{NOW} + l.lease_us * interval '1 microsecond'");
    let set = format!("lock_until = {until}, lease_until = {until}");
    let live = format!("l.locked_by = $2 AND l.token = $3 AND l.state = 'held' AND {UNTIL} > {NOW}");
    changed(table, &set, &live, "$4", NOT_NOTIFIED)
}

/// Returns the statement of a release. $1 name, $2 `locked_by`, $3 the cooldown in microseconds, $4 the limit of a wait
/// for the row, $5 the token if it is known.
fn release(table: &str, notified: &str) -> String {
    let set = format!(
        "lock_until = {NOW} + $3 * interval '1 microsecond', lease_until = {NOW} + $3 * interval '1 microsecond',
         state = CASE WHEN $3 > 0 THEN 'resting' ELSE 'free' END, past = {}",
        past("released", NOW_US)
    );
    let condition = "l.locked_by = $2 AND l.state = 'held' AND ($5 IS NULL OR l.token = $5)";
    changed(table, &set, condition, "$4", notified)
}

/// Returns the channel of the notifications for a table. All waiters share it, because PostgreSQL wakes every listening
/// connection of the database, whatever its channel.
pub(super) fn channel(table: &str) -> String {
    format!("leasehold_{:x}", key(table))
}

const NOT_NOTIFIED: &str = "NULL";

/// Returns the SQL that notifies the first waiter of the row that the common table expression `changed` returns. It
/// does not notify if there is no waiter, because transactions that notify commit one at a time.
fn notified(table: &str, notifies: bool) -> String {
    if !notifies {
        return NOT_NOTIFIED.to_owned();
    }
    let first = "l.waiters->0->>'claim'";
    format!(
        "(SELECT pg_notify('{}', left({first}, {CALLED_BY}))::text FROM changed AS l WHERE {first} IS NOT NULL)",
        channel(table)
    )
}

/// Returns the statement that changes the row of the lock $1, or reads the row if `condition` does not hold.
fn changed(table: &str, set: &str, condition: &str, timeout: &str, notified: &str) -> String {
    format!(
        "WITH {settings}, changed AS (
            UPDATE {table} AS l SET {set} FROM settings
            WHERE l.name = $1 AND {condition}
            RETURNING l.*)
         SELECT {NOW_US} AS now_us, {notified} AS notified, found.*
         FROM settings LEFT JOIN LATERAL (
            SELECT true AS is_changed, {columns} FROM changed AS l
            UNION ALL
            SELECT false, {columns} FROM {table} AS l WHERE l.name = $1 AND NOT EXISTS (SELECT FROM changed)
         ) AS found ON true",
        settings = settings(timeout),
        columns = columns(),
    )
}

/// Returns the statement of an eviction. $1 name, $2 token, $3 the limit of a wait for the row. The history of a lock
/// in a cooldown already has the grant.
fn evict(table: &str, notified: &str) -> String {
    format!(
        "WITH {settings}, changed AS (
            UPDATE {table} AS l SET lock_until = {NOW}, lease_until = {NOW}, state = 'free',
                past = CASE WHEN l.state = 'held' THEN {past} ELSE coalesce(l.past, '[]') END
            FROM settings
            WHERE l.name = $1 AND l.token = $2 AND {IS_OURS} AND l.state IN ('held', 'resting')
            RETURNING l.name, l.waiters)
         SELECT {NOW_US} AS now_us, {notified} AS notified, EXISTS (SELECT FROM changed) AS is_changed,
            EXISTS (SELECT FROM {table} AS l WHERE l.name = $1 AND ((l.token = $2 AND {OURS_FREE})
                OR l.past @> jsonb_build_array(jsonb_build_object('token', $2, 'end', 'evicted')))) AS is_over
         FROM settings",
        settings = settings("$3"),
        past = past("evicted", NOW_US),
    )
}

/// Returns the statement that lists names. $1 prefix, $2 the last name of the previous page, $3 how many. The order is
/// by bytes, whatever the column's collation.
fn names(table: &str) -> String {
    format!(
        "SELECT l.name::text FROM {table} AS l
         WHERE l.name COLLATE \"C\" >= $1 AND ($2 IS NULL OR l.name COLLATE \"C\" > $2) AND starts_with(l.name, $1)
         ORDER BY l.name COLLATE \"C\" LIMIT $3"
    )
}

/// Returns the condition of a sweep: leasehold wrote the row last, the lock has been free for long enough, and the
/// token is not ahead of the clock, which the next token comes from. $1 name, $2 the age in microseconds. A deletion
/// also has $3, the limit of a wait for the row.
fn is_old() -> String {
    format!(
        "l.name = $1 AND {IS_OURS} AND l.state IN ('free', 'resting') AND l.token < {NOW_US}
            AND {UNTIL} <= {NOW} - $2 * interval '1 microsecond'"
    )
}
