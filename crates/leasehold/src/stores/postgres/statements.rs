//! The statements. Each step of a lock is one statement, which the server decides by its own clock.
//!
//! The statements always use `clock_timestamp()`, which PostgreSQL reads again for each use, also after a wait for a
//! row. `now()` would be the time at which the transaction began.

use std::time::Duration;

use tokio_postgres::types::{ToSql, Type};

use super::config::Table;
use super::epoch;
use super::sql::{
    CONTAINS, EQ, GE, GET, GET_TEXT, GT, JOINED, LE, LT, MATCHES, MINUS, NE, NOW, NOW_US, PLUS, TIMES, in_us,
    microseconds, settings,
};
use crate::lease::{LONGEST_PAUSE, MAX_WAITERS, grace};
use crate::stores::notifications::CALLED_BY;

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
            read: format!(
                "SELECT {NOW_US} AS now_us, {} FROM {table} AS l WHERE l.name {EQ} $1",
                columns()
            ),
            names: names(table),
            sweep: format!(
                "WITH {} DELETE FROM {table} AS l USING settings WHERE {} RETURNING true",
                settings("$3"),
                is_old()
            ),
            would_sweep: format!("SELECT true FROM {table} AS l WHERE {}", is_old()),
            touch: format!(
                "WITH {} UPDATE {table} AS l SET past = l.past FROM settings WHERE l.name {EQ} $1",
                settings("$2")
            ),
            join: join(table),
            leave: leave(table),
            note_epoch: epoch::note(table, failover_grace),
            is_shared: format!(
                "SELECT EXISTS (SELECT FROM {table} AS l WHERE NOT {IS_OURS}) OR EXISTS (
                    SELECT FROM pg_catalog.pg_attribute AS a
                    WHERE a.attrelid {EQ} pg_catalog.to_regclass($1) AND a.attname {EQ} 'name'
                        AND a.atttypid {NE} 'pg_catalog.text'::pg_catalog.regtype) AS is_shared"
            ),
            discard: format!(
                "WITH {settings}, gone AS (
                    DELETE FROM {table} AS l USING settings WHERE l.name {EQ} $1 AND {free} RETURNING l.name)
                 SELECT NOT EXISTS (SELECT FROM {table} AS l WHERE l.name {EQ} $1) OR EXISTS (SELECT FROM gone)
                    AS is_gone
                 FROM settings",
                settings = settings("$2"),
                free = is_free(),
            ),
        }
    }

    /// Returns the text of each statement.
    #[cfg(test)]
    pub(super) fn texts(&self) -> [&str; 14] {
        let Self { acquire, renew, release, evict, read, names, sweep, would_sweep, .. } = self;
        let Self { is_shared, discard, touch, join, leave, note_epoch, .. } = self;
        [
            acquire,
            renew,
            release,
            evict,
            read,
            names,
            sweep,
            would_sweep,
            is_shared,
            discard,
            touch,
            join,
            leave,
            note_epoch,
        ]
        .map(String::as_str)
    }
}

/// True for a row that leasehold wrote last.
const IS_OURS: &str = "pg_catalog.starts_with(l.locked_by, 'leasehold:')";

/// Returns the condition that is true for a lock that was released or evicted and has not been taken since.
fn is_free() -> String {
    format!("{IS_OURS} AND l.state {EQ} 'free'")
}

/// Returns the condition that is true for a lock that is held or in a cooldown. A released lock stays free even if the
/// server's clock is set back. Only leasehold writes `lease_until`. Old versions of ShedLock unlock any row, which
/// shortens `lock_until`.
fn is_live() -> String {
    format!(
        "(CASE WHEN {IS_OURS} THEN l.state {NE} 'free' AND greatest(l.lock_until, l.lease_until) {GT} {NOW}
            ELSE l.lock_until {GT} {NOW} END)"
    )
}

/// Returns the SQL of the end of the lease or of the cooldown.
fn until() -> String {
    format!("(CASE WHEN {IS_OURS} THEN greatest(l.lock_until, l.lease_until) ELSE l.lock_until END)")
}

/// Returns the columns that [`super::record`] reads.
fn columns() -> String {
    let until = until();
    format!(
        "l.locked_by::pg_catalog.text, {is_live} AS is_live,
         CASE WHEN pg_catalog.isfinite({until}) THEN {until_us} END AS until_us,
         CASE WHEN pg_catalog.isfinite(l.locked_at) THEN {from_us} END AS from_us,
         l.token::pg_catalog.int8, l.prev_token::pg_catalog.int8, l.ttl_ms::pg_catalog.int8,
         l.state::pg_catalog.text, l.holder::pg_catalog.text, ({history})::pg_catalog.text AS past, {waiters}::pg_catalog.text AS waiters",
        waiters = waiters(),
        is_live = is_live(),
        until_us = in_us(&until),
        from_us = in_us("l.locked_at"),
        history = history(),
    )
}

/// Returns the history of the row `l`, with its current grant added at the front. `more` are further pairs of a name and
/// a value for that entry.
fn past(end: &str, until_us: &str, more: &str) -> String {
    let first = format!("pg_catalog.substr(l.locked_by, {})", OURS.len() + 1);
    with_front(&first, &in_us("l.locked_at"), until_us, end, more)
}

/// Returns the history of the row `l`. If another client has replaced a grant that had lapsed, that grant is at its front:
/// only the holder still names it.
fn history() -> String {
    format!(
        "CASE WHEN NOT {IS_OURS} AND l.state {EQ} 'held' AND (l.holder {GET_TEXT} 'grant') IS NOT NULL THEN {replaced}
            ELSE coalesce(l.past, '[]') END",
        replaced =
            with_front(&format!("l.holder {GET_TEXT} 'grant'"), "NULL", &in_us("l.lease_until"), "lapsed", "")
    )
}

fn with_front(grant: &str, from_us: &str, until_us: &str, end: &str, more: &str) -> String {
    format!(
        "pg_catalog.jsonb_path_query_array(pg_catalog.jsonb_build_array(pg_catalog.jsonb_build_object(
                'token', l.token, 'grant', {grant}, 'holder', (l.holder::pg_catalog.jsonb {MINUS} 'value') {MINUS} 'grant',
                'from_us', {from_us}, 'until_us', {until_us}, 'end', '{end}'{more}))
            {JOINED} coalesce(l.past, '[]'), '$[0 to {last}]')",
        last = HISTORY - 1,
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
    let lease = microseconds("$3");
    let is_own = format!("l.locked_by {EQ} $2");
    // A repetition never shortens the lease, because another process may have the same grant with a longer ttl.
    let longest = format!("CASE WHEN {is_own} THEN greatest(l.lease_us, $3) ELSE $3 END");
    let until = format!("{NOW} {PLUS} {}", microseconds(&longest));
    format!(
        "WITH {settings}, turns AS MATERIALIZED (
            SELECT CASE WHEN EXISTS (
                    SELECT FROM {table} AS l WHERE l.name {EQ} $1 AND l.locked_by {NE} $2 AND {is_live})
                THEN false
                ELSE pg_catalog.pg_advisory_xact_lock(pg_catalog.hashtextextended($1, {key}))::pg_catalog.text {EQ} ''
                END AS turn
            FROM settings
         ), {epoch}, granted AS (
            INSERT INTO {table} AS l (name, lock_until, lease_until, locked_at, locked_by, token, lease_us, ttl_ms, state,
                holder, past)
            SELECT $1, {NOW} {PLUS} {lease}, {NOW} {PLUS} {lease}, {NOW}, $2, {NOW_US}, $3, $6, 'held', {holder}, '[]'
            FROM turns WHERE turn AND {NOW_US} {LT} $7
                AND ((SELECT left_us FROM epoch) {EQ} 0
                    OR EXISTS (SELECT FROM {table} AS l WHERE l.name {EQ} $1 AND {is_own}))
            ON CONFLICT (name) DO UPDATE SET
                lock_until = {until}, lease_until = {until},
                locked_at = CASE WHEN {is_own} THEN l.locked_at ELSE {NOW} END,
                locked_by = $2,
                token = CASE WHEN {is_own} THEN l.token
                    ELSE greatest(coalesce(l.token, 0) {PLUS} $4, {NOW_US}) END,
                prev_token = CASE WHEN {is_own} THEN l.prev_token ELSE l.token END,
                lease_us = {longest}, ttl_ms = CASE WHEN {is_own} THEN greatest(l.ttl_ms, $6) ELSE $6 END,
                state = 'held', holder = {holder},
                past = CASE WHEN l.locked_by {NE} $2 AND {IS_OURS} AND l.state {EQ} 'held' THEN {lapsed}
                    ELSE {history} END,
                waiters = CASE WHEN {is_own} OR $10 THEN l.waiters ELSE {behind} END
            WHERE ({is_own}) {EQ} {is_live}
                AND (NOT {IS_OURS} OR (l.token IS NOT NULL AND (l.state {EQ} 'free' OR l.state {EQ} 'resting'
                    OR (l.state {EQ} 'held' AND pg_catalog.jsonb_typeof(l.holder) {EQ} 'object'
                        AND l.holder {MATCHES} '$ ? (@.name.type() == \"string\" && @.host.type() == \"string\"
                            && @.pid >= 0 && @.pid <= 4294967295)'))))
                AND (l.locked_by {NE} $2 OR l.state {EQ} 'held')
                AND NOT (({history}) {CONTAINS}
                    pg_catalog.jsonb_build_array(pg_catalog.jsonb_build_object('grant', $9)))
                AND coalesce(l.token, 0) {LT} ({most} {MINUS} $4)
                AND {NOW_US} {LT} $7
                AND ({is_own} OR $10 OR {is_next})
            RETURNING l.*)
         SELECT {NOW_US} AS now_us, {NOW_US} {GE} $7 AS is_late, (SELECT left_us FROM epoch) AS grace_left_us, found.*
         FROM settings LEFT JOIN LATERAL (
            SELECT true AS is_granted, {columns} FROM granted AS l
            UNION ALL
            SELECT false, {columns} FROM {table} AS l WHERE l.name {EQ} $1 AND NOT EXISTS (SELECT FROM granted)
         ) AS found ON true",
        settings = settings("$8"),
        epoch = epoch::of(table, failover_grace),
        key = key(table),
        is_live = is_live(),
        // Another client that takes over replaces `locked_by`.
        holder = format!("$5::pg_catalog.jsonb {JOINED} pg_catalog.jsonb_build_object('grant', $9)"),
        history = history(),
        lapsed = past("lapsed", &in_us(&self::until()), ""),
        most = crate::lease::Token::LIMIT,
        behind = behind(),
        is_next = is_next(),
        columns = columns(),
    )
}

/// Returns the SQL of the waiters, in the order of their arrival. A value that is not a list counts as an empty one.
/// Entries above [`MAX_WAITERS`], which leasehold does not write, do not count, and the next change of the list removes
/// them.
fn waiters() -> String {
    const { assert!(MAX_WAITERS == 64) };
    format!(
        "(CASE WHEN pg_catalog.jsonb_typeof(l.waiters) {EQ} 'array'
            THEN pg_catalog.jsonb_path_query_array(l.waiters, '$[0 to 63]') ELSE '[]' END)"
    )
}

/// Returns the SQL of the table `name` of the waiters and their places.
fn line(name: &str) -> String {
    format!("pg_catalog.jsonb_array_elements({}) WITH ORDINALITY AS {name} (waiter, place)", waiters())
}

/// Returns the place of the claim $9 among the waiters. A claim without a place is behind all of them.
fn own_place() -> String {
    format!(
        "coalesce((SELECT pg_catalog.min(o.place) FROM {line} WHERE (o.waiter {GET_TEXT} 'claim') {EQ} $9), {last})",
        line = line("o"),
        last = MAX_WAITERS + 1,
    )
}

/// Returns the waiters behind the claim $9.
fn behind() -> String {
    format!(
        "(SELECT pg_catalog.jsonb_agg(w.waiter ORDER BY w.place) FROM {line} WHERE w.place {GT} {own})",
        line = line("w"),
        own = own_place()
    )
}

/// Returns the condition that no waiter is before the claim $9, or that the lock has been available for their
/// [`grace`](crate::lease::grace), with the time that the claim reports. If the clock was set back after the release,
/// that time is unknown, and the lock is kept for no waiter.
fn is_next() -> String {
    let pause = format!(
        "CASE WHEN pg_catalog.jsonb_typeof(w.waiter {GET} 'polls_ms') {EQ} 'number'
            THEN greatest(least((w.waiter {GET_TEXT} 'polls_ms')::pg_catalog.numeric, {longest}), 0)::pg_catalog.int8
            ELSE 0 END",
        longest = LONGEST_PAUSE.as_millis()
    );
    let grace = format!(
        "(((2 {TIMES} pg_catalog.max({pause})) {PLUS} ({each} {TIMES} pg_catalog.count(*))) {TIMES} interval '1 millisecond')",
        each = grace([Duration::ZERO]).as_millis()
    );
    let kept = format!(
        "(CASE WHEN (({waiters} {GET} 0) {GET_TEXT} 'claim') {EQ} $11 THEN {kept} ELSE interval '0' END)",
        waiters = waiters(),
        kept = microseconds("$12"),
    );
    format!(
        "coalesce((SELECT {NOW} {LT} {until} OR (({until} {MINUS} {kept}) {PLUS} {grace}) {LE} {NOW}
            FROM {line} WHERE w.place {LT} {own} HAVING pg_catalog.count(*) {GT} 0), true)",
        until = until(),
        line = line("w"),
        own = own_place(),
    )
}

/// Returns the statement that adds a claim to the waiters, or reads the row. $1 name, $2 the claim's id, $3 the waiter,
/// $4 the pause of a single waiter and $5 its longest pause, both in milliseconds, $6 the limit of a wait for the row.
fn join(table: &str) -> String {
    let waiters = waiters();
    let length = format!("pg_catalog.jsonb_array_length({waiters})");
    let set = format!(
        "waiters = {waiters} {JOINED} pg_catalog.jsonb_build_array($3::pg_catalog.jsonb {JOINED}
            pg_catalog.jsonb_build_object('since_us', {NOW_US},
                'polls_ms', least(({length} {PLUS} 1) {TIMES} $4, $5)))"
    );
    let condition = format!(
        "({is_live} OR {length} {GT} 0) AND {length} {LT} {MAX_WAITERS}
            AND NOT ({waiters} {CONTAINS} pg_catalog.jsonb_build_array(pg_catalog.jsonb_build_object('claim', $2)))
            AND l.locked_by {NE} ('{OURS}' {JOINED} $2)",
        is_live = is_live()
    );
    changed(table, &set, &condition, "$6", NOT_NOTIFIED)
}

/// Returns the statement that removes a claim from the waiters. It always writes the row, so that it waits for a
/// concurrent request to join. $1 name, $2 the claim's id, $3 the limit of a wait for the row.
fn leave(table: &str) -> String {
    format!(
        "WITH {} UPDATE {table} AS l SET waiters = (SELECT pg_catalog.jsonb_agg(w.waiter ORDER BY w.place)
            FROM {} WHERE (w.waiter {GET_TEXT} 'claim') {NE} $2)
         FROM settings WHERE l.name {EQ} $1",
        settings("$3"),
        line("w"),
    )
}

/// Returns the key of a table. Two tables rarely have the same key. Claims of tables with the same key may wait for
/// each other.
fn key(table: &str) -> u64 {
    table.bytes().fold(0, |key: u64, byte| (key * 31 + u64::from(byte)) % (1 << 56))
}

/// Returns the statement of a renewal. $1 name, $2 `locked_by`, $3 token, $4 the limit of a wait for the row.
fn renew(table: &str) -> String {
    let end = format!("{NOW} {PLUS} {}", microseconds("l.lease_us"));
    let set = format!("lock_until = {end}, lease_until = {end}");
    let live = format!(
        "l.locked_by {EQ} $2 AND l.token {EQ} $3 AND l.state {EQ} 'held' AND {until} {GT} {NOW}",
        until = until()
    );
    changed(table, &set, &live, "$4", NOT_NOTIFIED)
}

/// Returns the statement of a release. $1 name, $2 `locked_by`, $3 the cooldown in microseconds, $4 the limit of a wait
/// for the row, $5 the token if it is known.
fn release(table: &str, notified: &str) -> String {
    let set = format!(
        "lock_until = {NOW} {PLUS} {cooldown}, lease_until = {NOW} {PLUS} {cooldown},
         state = CASE WHEN $3 {GT} 0 THEN 'resting' ELSE 'free' END, past = {past}",
        cooldown = microseconds("$3"),
        past = past("released", NOW_US, ""),
    );
    let condition =
        format!("l.locked_by {EQ} $2 AND l.state {EQ} 'held' AND ($5 IS NULL OR l.token {EQ} $5)");
    changed(table, &set, &condition, "$4", notified)
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
    let first = format!("((l.waiters {GET} 0) {GET_TEXT} 'claim')");
    format!(
        "(SELECT pg_catalog.pg_notify('{}', pg_catalog.left({first}, {CALLED_BY}))::pg_catalog.text
            FROM changed AS l WHERE {first} IS NOT NULL)",
        channel(table)
    )
}

/// Returns the statement that changes the row of the lock $1, or reads the row if `condition` does not hold.
fn changed(table: &str, set: &str, condition: &str, timeout: &str, notified: &str) -> String {
    format!(
        "WITH {settings}, changed AS (
            UPDATE {table} AS l SET {set} FROM settings
            WHERE l.name {EQ} $1 AND {condition}
            RETURNING l.*)
         SELECT {NOW_US} AS now_us, {notified} AS notified, found.*
         FROM settings LEFT JOIN LATERAL (
            SELECT true AS is_changed, {columns} FROM changed AS l
            UNION ALL
            SELECT false, {columns} FROM {table} AS l WHERE l.name {EQ} $1 AND NOT EXISTS (SELECT FROM changed)
         ) AS found ON true",
        settings = settings(timeout),
        columns = columns(),
    )
}

/// Returns the statement of an eviction. $1 name, $2 token, $3 the limit of a wait for the row, $4 who evicts and why, if
/// that is known. The history of a lock in a cooldown already has the grant.
fn evict(table: &str, notified: &str) -> String {
    format!(
        "WITH {settings}, changed AS (
            UPDATE {table} AS l SET lock_until = {NOW}, lease_until = {NOW}, state = 'free',
                past = CASE WHEN l.state {EQ} 'held' THEN {past} ELSE coalesce(l.past, '[]') END
            FROM settings
            WHERE l.name {EQ} $1 AND l.token {EQ} $2 AND {IS_OURS}
                AND (l.state {EQ} 'held' OR l.state {EQ} 'resting')
            RETURNING l.name, l.waiters)
         SELECT {NOW_US} AS now_us, {notified} AS notified, EXISTS (SELECT FROM changed) AS is_changed,
            EXISTS (SELECT FROM {table} AS l WHERE l.name {EQ} $1 AND ((l.token {EQ} $2 AND {free})
                OR l.past {CONTAINS} pg_catalog.jsonb_build_array(
                    pg_catalog.jsonb_build_object('token', $2, 'end', 'evicted')))) AS is_over
         FROM settings",
        settings = settings("$3"),
        past = past("evicted", NOW_US, ", 'evicted', $4::pg_catalog.jsonb"),
        free = is_free(),
    )
}

/// Returns the statement that lists names. $1 prefix, $2 the last name of the previous page, $3 how many. The order is
/// by bytes, whatever the column's collation.
fn names(table: &str) -> String {
    let name = "l.name COLLATE pg_catalog.\"C\"";
    format!(
        "SELECT l.name::pg_catalog.text FROM {table} AS l
         WHERE {name} {GE} $1 AND ($2 IS NULL OR {name} {GT} $2) AND pg_catalog.starts_with(l.name, $1)
         ORDER BY {name} LIMIT $3"
    )
}

/// Returns the condition of a sweep: leasehold wrote the row last, the lock has been free for long enough, and the
/// token is not ahead of the clock, which the next token comes from. $1 name, $2 the age in microseconds. A deletion
/// also has $3, the limit of a wait for the row.
fn is_old() -> String {
    format!(
        "l.name {EQ} $1 AND {IS_OURS} AND (l.state {EQ} 'free' OR l.state {EQ} 'resting') AND l.token {LT} {NOW_US}
            AND {until} {LE} ({NOW} {MINUS} {age})",
        until = until(),
        age = microseconds("$2"),
    )
}
