//! The statements: each step of a lock is one, and the server decides it by its own clock.
//!
//! The clock is always `clock_timestamp()`, which is read again for each use, also after the wait for a row. `now()`
//! would be the time at which the statement began.

use std::time::Duration;

use tokio_postgres::types::{ToSql, Type};

use super::config::Table;
use super::epoch;
use super::sql::{NOW, NOW_US, settings};
use crate::lease::{LONGEST_PAUSE, MOST_WAITERS, grace};
use crate::stores::on_server::notifications::CALLED_BY;

/// The prefix of the id of a grant in `locked_by`. The other columns of leasehold count only in a row with this prefix.
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
    /// Writes the row as it is. $1 name, $2 the limit of a wait for the row.
    pub(super) touch: String,
    pub(super) join: String,
    pub(super) leave: String,
    pub(super) note_epoch: String,
}

impl Statements {
    /// With `notifies`, what frees a lock notifies its first waiter.
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

/// A row that leasehold wrote last.
const IS_OURS: &str = "l.locked_by LIKE 'leasehold:%'";

/// A lock that was released or evicted, and not taken since.
const OURS_FREE: &str = "l.locked_by LIKE 'leasehold:%' AND l.state = 'free'";

/// A lock that is held or in a cooldown. A free one is free even if the server's clock was set back since.
/// `lease_until` is written by leasehold alone: old versions of ShedLock unlock any row, and so shorten `lock_until`.
const IS_LIVE: &str = "(CASE WHEN l.locked_by LIKE 'leasehold:%'
    THEN l.state <> 'free' AND greatest(l.lock_until, l.lease_until) > timezone('utc', clock_timestamp())
    ELSE l.lock_until > timezone('utc', clock_timestamp()) END)";

/// The end of the lease or of the cooldown.
const UNTIL: &str = "(CASE WHEN l.locked_by LIKE 'leasehold:%' THEN greatest(l.lock_until, l.lease_until)
    ELSE l.lock_until END)";

/// The columns that [`super::record`] reads.
fn columns() -> String {
    format!(
        "l.locked_by::text, {IS_LIVE} AS is_live,
         CASE WHEN isfinite({UNTIL}) THEN (extract(epoch FROM {UNTIL}) * 1000000)::int8 END AS until_us,
         CASE WHEN isfinite(l.locked_at) THEN (extract(epoch FROM l.locked_at) * 1000000)::int8 END AS from_us,
         l.token::int8, l.prev_token::int8, l.ttl_ms::int8, l.state::text, l.holder::text, l.past::text, l.waiters::text"
    )
}

/// The history with the grant that the row `l` has in front of it.
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

/// $1 name, $2 `locked_by`, $3 the lease in microseconds, $4 how many tokens, $5 the holder, $6 the ttl in
/// milliseconds, $7 when it is too late, on the server's clock, $8 the limit of a wait for the row, $9 the id, $10
/// whether it ignores the waiters.
///
/// The row of a held lock is not written. Otherwise claims of one lock take turns, so that no other grant comes
/// between the clock that gives a new row its token, and the row. The conditions are evaluated once the row is locked:
/// the row is the claim's own grant, which has not ended, or another one's that has ended. A claim whose grant ended is
/// never granted again, and neither is one that arrives after its client gave up: no process would release it. A free
/// lock is kept for the waiters before the claim, until their grace is over. Then they lose their places. During the
/// failover grace, only a grant that the server still knows is granted again.
fn acquire(table: &str, failover_grace: Duration) -> String {
    let lease = "$3 * interval '1 microsecond'";
    // A repetition shortens no lease: another process may have the same grant with a longer ttl.
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
                AND (NOT {IS_OURS} OR (l.token IS NOT NULL
                    AND (l.state IN ('free', 'resting') OR (l.state = 'held' AND jsonb_typeof(l.holder) = 'object'))))
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

/// The waiters, in the order of their arrival. A value that is not a list counts as an empty one.
const WAITERS: &str = "(CASE WHEN jsonb_typeof(l.waiters) = 'array' THEN l.waiters ELSE '[]' END)";

/// The place of the claim $9 among them. Without a place it is behind all.
fn own_place() -> String {
    format!(
        "coalesce((SELECT min(o.place) FROM jsonb_array_elements({WAITERS}) WITH ORDINALITY AS o(waiter, place)
            WHERE o.waiter->>'claim' = $9), {MOST_WAITERS} + 1)"
    )
}

/// The waiters behind the claim $9.
fn behind() -> String {
    format!(
        "(SELECT jsonb_agg(w.waiter ORDER BY w.place)
            FROM jsonb_array_elements({WAITERS}) WITH ORDINALITY AS w(waiter, place) WHERE w.place > {})",
        own_place()
    )
}

/// Whether no waiter is before the claim $9, or the lock has been available for their grace: see
/// [`grace`](crate::lease::grace). If the clock was set back since the lock was released, this is not known, and the
/// lock is kept for no waiter.
fn is_next() -> String {
    format!(
        "coalesce((SELECT {NOW} < {UNTIL} OR {UNTIL} + interval '1 millisecond'
                * (2 * max(CASE WHEN jsonb_typeof(w.waiter->'polls_ms') = 'number'
                    THEN greatest(least((w.waiter->>'polls_ms')::numeric, {longest}), 0)::int8 ELSE 0 END) + {each} * count(*)) <= {NOW}
            FROM jsonb_array_elements({WAITERS}) WITH ORDINALITY AS w(waiter, place)
            WHERE w.place < {own} HAVING count(*) > 0), true)",
        longest = LONGEST_PAUSE.as_millis(),
        each = grace([Duration::ZERO]).as_millis(),
        own = own_place(),
    )
}

/// Adds a claim to the waiters, or reads the row. $1 name, $2 its id, $3 the waiter, $4 the pause of a single waiter
/// and $5 its longest pause in milliseconds, $6 the limit of a wait for the row.
fn join(table: &str) -> String {
    let set = format!(
        "waiters = {WAITERS} || jsonb_build_array($3::jsonb || jsonb_build_object('since_us', {NOW_US},
            'polls_ms', least((jsonb_array_length({WAITERS}) + 1) * $4, $5)))"
    );
    let condition = format!(
        "({IS_LIVE} OR jsonb_array_length({WAITERS}) > 0) AND jsonb_array_length({WAITERS}) < {MOST_WAITERS}
            AND NOT {WAITERS} @> jsonb_build_array(jsonb_build_object('claim', $2))
            AND l.locked_by <> '{OURS}' || $2"
    );
    changed(table, &set, &condition, "$6", NOT_NOTIFIED)
}

/// Removes a claim from the waiters. Always writes the row, so that it waits for a request to join that is under way.
/// $1 name, $2 its id, $3 the limit of a wait for the row.
fn leave(table: &str) -> String {
    format!(
        "WITH {} UPDATE {table} AS l SET waiters = (SELECT jsonb_agg(w.waiter ORDER BY w.place)
            FROM jsonb_array_elements({WAITERS}) WITH ORDINALITY AS w(waiter, place) WHERE w.waiter->>'claim' <> $2)
         FROM settings WHERE l.name = $1",
        settings("$3")
    )
}

/// Claims of other tables usually have another key. Those with the same one wait for each other.
fn key(table: &str) -> u64 {
    table.bytes().fold(0, |key: u64, byte| (key * 31 + u64::from(byte)) % (1 << 56))
}

/// $1 name, $2 `locked_by`, $3 token, $4 the limit of a wait for the row.
fn renew(table: &str) -> String {
    let until = format!("{NOW} + l.lease_us * interval '1 microsecond'");
    let set = format!("lock_until = {until}, lease_until = {until}");
    let live = format!("l.locked_by = $2 AND l.token = $3 AND l.state = 'held' AND {UNTIL} > {NOW}");
    changed(table, &set, &live, "$4", NOT_NOTIFIED)
}

/// $1 name, $2 `locked_by`, $3 the cooldown in microseconds, $4 the limit of a wait for the row, $5 the token if it is
/// known.
fn release(table: &str, notified: &str) -> String {
    let set = format!(
        "lock_until = {NOW} + $3 * interval '1 microsecond', lease_until = {NOW} + $3 * interval '1 microsecond',
         state = CASE WHEN $3 > 0 THEN 'resting' ELSE 'free' END, past = {}",
        past("released", NOW_US)
    );
    let condition = "l.locked_by = $2 AND l.state = 'held' AND ($5 IS NULL OR l.token = $5)";
    changed(table, &set, condition, "$4", notified)
}

/// The channel of the notifications for a table. All waiters listen to it: PostgreSQL wakes every connection of the
/// database that listens, whatever the channel.
pub(super) fn channel(table: &str) -> String {
    format!("leasehold_{:x}", key(table))
}

const NOT_NOTIFIED: &str = "NULL";

/// Notifies the first waiter of the row that the common table expression `changed` returns. Nothing without one: a
/// transaction that notifies excludes all others that do from its commit on, until that is complete.
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

/// Changes the row of the lock $1, or reads what is there instead.
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

/// $1 name, $2 token, $3 the limit of a wait for the row. A lock in a cooldown has its grant in the history already.
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

/// $1 prefix, $2 the last name of the page before, $3 how many. In the order of bytes, whatever the column's collation.
fn names(table: &str) -> String {
    format!(
        "SELECT l.name::text FROM {table} AS l
         WHERE l.name COLLATE \"C\" >= $1 AND ($2 IS NULL OR l.name COLLATE \"C\" > $2) AND starts_with(l.name, $1)
         ORDER BY l.name COLLATE \"C\" LIMIT $3"
    )
}

/// $1 name, $2 microseconds; for a deletion $3, the limit of a wait for the row. Only what leasehold wrote last, and
/// only if its token is not ahead of the clock, from which the next token comes.
fn is_old() -> String {
    format!(
        "l.name = $1 AND {IS_OURS} AND l.state IN ('free', 'resting') AND l.token < {NOW_US}
            AND {UNTIL} <= {NOW} - $2 * interval '1 microsecond'"
    )
}
