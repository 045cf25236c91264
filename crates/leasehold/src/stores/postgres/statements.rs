//! The statements. A write of a record is one statement: it writes if the row has the expected version.
//!
//! The statements always use `clock_timestamp()`, which PostgreSQL reads again for each use, also after a wait for a
//! row. `now()` would be the time at which the transaction began.

use std::time::Duration;

use tokio_postgres::types::{ToSql, Type};

use super::epoch;
use super::sql::{
    AT, CONTAINS, EQ, GE, GET, GET_TEXT, GT, JOINED, LE, LT, NE, NOW, NOW_US, PLUS, TIMES, in_us,
    microseconds, settings,
};
use crate::lease::{MAX_WAITERS, Token};
use crate::stores::notifications::CALLED_BY;
use crate::stores::rows::OURS;

/// True for a row that leasehold wrote last.
const IS_OURS: &str = "pg_catalog.starts_with(l.locked_by, 'leasehold:')";

/// The version of a row. It changes with each write of leasehold, and with each grant of another client.
const VERSION: &str = "pg_catalog.concat(l.version, ' ', l.locked_by)";

/// A parameter of a statement, and its type.
pub(super) type Parameter<'a> = (&'a (dyn ToSql + Sync), Type);

pub(super) fn text<T: ToSql + Sync>(value: &T) -> Parameter<'_> {
    (value, Type::TEXT)
}

pub(super) fn int8<T: ToSql + Sync>(value: &T) -> Parameter<'_> {
    (value, Type::INT8)
}

pub(super) fn boolean<T: ToSql + Sync>(value: &T) -> Parameter<'_> {
    (value, Type::BOOL)
}

/// A statement that is sent often. Connections prepare it under its name.
#[derive(Debug)]
pub(super) struct Sql {
    pub(super) name: &'static str,
    pub(super) text: String,
}

/// The statements for one table.
#[derive(Debug)]
pub(super) struct Statements {
    pub(super) claim: Sql,
    pub(super) write: Sql,
    pub(super) read: Sql,
    pub(super) join: Sql,
    pub(super) leave: Sql,
    /// Writes the row without a change. $1 name, $2 its version or NULL for any, $3 the limit of a wait for the row.
    pub(super) touch: Sql,
    pub(super) names: Sql,
    /// Deletes the row. $1 name, $2 its version, $3 the limit of a wait for the row.
    pub(super) discard: Sql,
    pub(super) is_shared: Sql,
    pub(super) note_epoch: Sql,
}

impl Statements {
    /// Builds the statements for `table`. With `notifies`, writes that free a lock notify the first waiter.
    pub(super) fn on(table: &str, failover_grace: Duration, notifies: bool) -> Self {
        let sql = |name, text| Sql { name, text };
        Self {
            claim: sql("claim", claim(table, failover_grace)),
            write: sql("write", write(table, failover_grace, notifies)),
            read: sql(
                "read",
                format!("SELECT {NOW_US} AS now_us, {} FROM {table} AS l WHERE l.name {EQ} $1", columns()),
            ),
            join: sql("join", join(table)),
            leave: sql("leave", leave(table)),
            touch: sql(
                "touch",
                format!(
                    "WITH {} UPDATE {table} AS l SET served = l.served FROM settings
                     WHERE l.name {EQ} $1 AND ($2 IS NULL OR {VERSION} {EQ} $2) RETURNING true",
                    settings("$3")
                ),
            ),
            names: sql("names", names(table)),
            discard: sql(
                "discard",
                format!(
                    "WITH {} DELETE FROM {table} AS l USING settings WHERE l.name {EQ} $1 AND {VERSION} {EQ} $2
                     RETURNING true",
                    settings("$3")
                ),
            ),
            is_shared: sql(
                "is_shared",
                format!(
                    "SELECT EXISTS (SELECT FROM {table} AS l WHERE NOT {IS_OURS}) OR EXISTS (
                        SELECT FROM pg_catalog.pg_attribute AS a
                        WHERE a.attrelid {EQ} pg_catalog.to_regclass($1) AND a.attname {EQ} 'name'
                            AND a.atttypid {NE} 'pg_catalog.text'::pg_catalog.regtype) AS is_shared"
                ),
            ),
            note_epoch: sql("note_epoch", epoch::note(table, failover_grace)),
        }
    }

    /// Returns the text of each statement.
    #[cfg(test)]
    pub(super) fn texts(&self) -> [&str; 10] {
        let Self { claim, write, read, join, leave, touch, names, discard, is_shared, note_epoch } = self;
        [claim, write, read, join, leave, touch, names, discard, is_shared, note_epoch]
            .map(|sql| sql.text.as_str())
    }
}

/// The columns that [`super::row`] reads, and their types.
const COLUMNS: &[(&str, &str)] = &[
    ("locked_by", "text"),
    ("version", "text"),
    ("token", "int8"),
    ("prev_token", "int8"),
    ("served", "int8"),
    ("size", "int8"),
    ("written_us", "int8"),
    ("record", "text"),
    ("history", "text"),
    ("line", "text"),
];

/// Returns the columns that [`super::row`] reads from the row `l`. `until_us` is NULL if another client's lock has no
/// end.
fn columns() -> String {
    let columns = COLUMNS.iter().map(|(name, kind)| format!("l.{name}::pg_catalog.{kind} AS {name}, "));
    format!(
        "{columns}CASE WHEN pg_catalog.isfinite(l.lock_until) THEN {until_us} WHEN l.lock_until {LE} {NOW} THEN 0
            END AS until_us",
        columns = columns.collect::<String>(),
        until_us = in_us("l.lock_until"),
    )
}

/// Returns the end of a write: what it has written, or the row as it was found. `is_right` tells whether the row that
/// was found has what the write requires of it. A row that another statement has just changed is returned as it was
/// before.
fn outcome(table: &str, is_right: &str, of_written: &str) -> String {
    format!(
        "FROM settings LEFT JOIN LATERAL (
            SELECT true AS is_written, true AS is_right, {of_written} FROM written AS l
            UNION ALL
            SELECT false, {is_right}, {columns} FROM {table} AS l
            WHERE l.name {EQ} $1 AND NOT EXISTS (SELECT FROM written)
         ) AS found ON true",
        columns = columns(),
    )
}

/// Returns the SQL of what `function` finds of the waiters in the line of the row `l`. Entries that were served, or cannot
/// be read, do not count.
fn waiting(function: &str) -> String {
    format!(
        "pg_catalog.jsonb_path_query_{function}(l.line, '$[*] ? (@.number > $served && @.number < {most}
            && @.claim like_regex \"^[0-9a-f]{{32}}$\" && @.claim != $grant)', pg_catalog.jsonb_build_object(
                'served', coalesce(l.served, 0), 'grant', pg_catalog.substr(l.locked_by, {id})), true)",
        most = Token::LIMIT,
        id = OURS.len() + 1,
    )
}

/// Returns the SQL of the claim that waits first, or NULL.
fn first() -> String {
    format!("({} {GET_TEXT} 'claim')", waiting("first"))
}

/// Returns the statement of a grant over a row that was not read. $1 name, $2 `locked_by`, $3 version, $4 how many
/// tokens, $5 the lease in microseconds, $6 the record, $7 the time on the server's clock from which on the claim is too
/// late, $8 the limit of a wait for the row, $9 whether the claim ignores the line,
/// $10 the size for a row that has none, or NULL.
///
/// The row must be free, must have a version and a token, must not contain this claim, and no other claim must be the first that waits. A lock that
/// another client has had may be granted if leasehold never had it. PostgreSQL evaluates the conditions after it has
/// locked the row. The statement does not lock other rows. Grants of one lock take turns, so that no other grant happens
/// between reading the clock, which becomes the token in a new row, and writing that row. A claim that arrives after its
/// client gave up is not granted, because no process would release it.
fn claim(table: &str, failover_grace: Duration) -> String {
    let own = format!("pg_catalog.substr($2, {})", OURS.len() + 1);
    let is_right = format!(
        "coalesce(((l.is_open AND l.version IS NOT NULL AND l.token {GT} 0) OR (l.version IS NULL AND NOT {IS_OURS}))
            AND {is_ended}
            AND pg_catalog.strpos(pg_catalog.concat(l.record, l.history), {own}) {EQ} 0
            AND coalesce($9 OR {first} {EQ} {own}, true) AND (coalesce(l.token, 0) {PLUS} $4) {LT} {most}, false)",
        is_ended = is_ended(),
        first = first(),
        most = Token::LIMIT,
    );
    let until = format!("{NOW} {PLUS} {}", microseconds("$5"));
    format!(
        "WITH {settings}, turns AS MATERIALIZED (
            SELECT CASE WHEN EXISTS (SELECT FROM {table} AS l WHERE l.name {EQ} $1 AND NOT {is_right})
                THEN false ELSE {turn} END AS turn
            FROM settings
         ), {epoch}, written AS (
            INSERT INTO {table} AS l (name, lock_until, locked_at, locked_by, version, token, served, size,
                written_us, is_open, record, history)
            SELECT $1, {until}, {NOW}, $2, $3, {NOW_US}, 0, $10, {NOW_US}, false, $6::pg_catalog.json, '[]'
            FROM turns WHERE turn AND {NOW_US} {LT} $7 AND (SELECT left_us FROM epoch) {EQ} 0
            ON CONFLICT (name) DO UPDATE SET
                lock_until = {until}, locked_at = {NOW}, locked_by = $2, version = $3,
                token = greatest(coalesce(l.token, 0) {PLUS} $4, {NOW_US}), prev_token = l.token,
                served = CASE WHEN {first} {EQ} {own} THEN ({entry} {GET} 'number')::pg_catalog.int8
                    ELSE coalesce(l.served, 0) END, size = coalesce(l.size, $10), written_us = {NOW_US}, is_open = false,
                record = $6::pg_catalog.json, history = coalesce(l.history, '[]')
            WHERE {is_right} AND {NOW_US} {LT} $7
            RETURNING l.*)
         SELECT {NOW_US} AS now_us, (SELECT left_us FROM epoch) AS left_us, found.* {outcome}",
        settings = settings("$8"),
        turn = turn(table),
        epoch = epoch::of(table, failover_grace),
        first = first(),
        entry = waiting("first"),
        outcome = outcome(table, &is_right, &columns()),
    )
}

/// Returns the condition that no other client has the lock. Old versions of ShedLock unlock any row, which shortens
/// `lock_until`, so it counts only in rows of other clients.
fn is_ended() -> String {
    format!("({IS_OURS} OR l.lock_until {LE} {NOW})")
}

/// Returns the SQL that waits for other grants of the lock $1.
fn turn(table: &str) -> String {
    format!(
        "pg_catalog.pg_advisory_xact_lock(pg_catalog.hashtextextended($1, {}))::pg_catalog.text {EQ} ''",
        key(table)
    )
}

/// Returns the key of a table. Two tables rarely have the same key. Grants of tables with the same key may wait for
/// each other.
fn key(table: &str) -> u64 {
    table.bytes().fold(0, |key: u64, byte| (key * 31 + u64::from(byte)) % (1 << 56))
}

/// Returns the statement that writes a row which was read. $1 name, $2 its version, $3 the step, $4 `locked_by`, $5 the
/// new version, $6 token, $7 served, $8 the record, $9 the history or NULL if it is unchanged, $10 whether the lock is
/// free, $11 for how many microseconds other clients are kept out, $12 the time on the server's clock from
/// which on the write is too late, $13 the limit of a wait for the row, $14 for a renewal, how many microseconds the lease
/// that it prolongs lasts, $15 the size or NULL.
///
/// The version shows that the row is as it was read. In addition, a grant requires that no other client has the lock, and
/// that the failover grace is over. A renewal requires that the lease has not ended. Otherwise a renewal that arrives late
/// would take back a lock that the holder no longer uses.
fn write(table: &str, failover_grace: Duration, notifies: bool) -> String {
    let step = |name: &str| format!("$3 {EQ} '{name}'");
    let is_right = format!(
        "coalesce({VERSION} {EQ} $2 AND CASE WHEN {grants} THEN {is_ended}
            WHEN {renews} THEN (l.written_us {PLUS} $14) {GT} {NOW_US} ELSE true END, false)",
        grants = step("grant"),
        renews = step("renew"),
        is_ended = is_ended(),
    );
    let left_us = format!("CASE WHEN {} THEN (SELECT left_us FROM epoch) ELSE 0 END", step("grant"));
    let nothing = COLUMNS.iter().map(|(name, kind)| match *name {
        "written_us" => "l.written_us, ".to_owned(),
        name => format!("NULL::pg_catalog.{kind} AS {name}, "),
    });
    format!(
        "WITH {settings}, turns AS MATERIALIZED (
            SELECT CASE WHEN {grants} THEN {turn} ELSE true END AS turn FROM settings
         ), {epoch}, written AS (
            UPDATE {table} AS l SET locked_by = $4, version = $5, token = $6, served = $7, size = $15,
                record = $8::pg_catalog.json, history = coalesce($9::pg_catalog.json, l.history), is_open = $10,
                locked_at = CASE WHEN {grants} THEN {NOW} ELSE l.locked_at END,
                prev_token = CASE WHEN {grants} THEN l.token ELSE l.prev_token END,
                lock_until = {NOW} {PLUS} {span}, written_us = {NOW_US}
            FROM turns
            WHERE turn AND l.name {EQ} $1 AND {is_right} AND {NOW_US} {LT} $12 AND ({left_us}) {EQ} 0
            RETURNING l.*)
         SELECT {NOW_US} AS now_us, {left_us} AS left_us, {notified} AS notified, found.* {outcome}",
        settings = settings("$13"),
        turn = turn(table),
        epoch = epoch::of(table, failover_grace),
        grants = step("grant"),
        span = microseconds("$11"),
        notified = notified(table, notifies, &step("free")),
        outcome = outcome(
            table,
            &is_right,
            &format!("{}NULL::pg_catalog.int8 AS until_us", nothing.collect::<String>())
        ),
    )
}

/// Returns the channel of the notifications for a table. All waiters share it, because PostgreSQL wakes every listening
/// connection of the database, whatever its channel.
pub(super) fn channel(table: &str) -> String {
    format!("leasehold_{:x}", key(table))
}

/// Returns the SQL that notifies the first waiter for the lock that was freed. It does not notify if there is no waiter,
/// because transactions that notify commit one at a time. A line that cannot be read counts as empty.
fn notified(table: &str, notifies: bool, frees: &str) -> String {
    if !notifies {
        return "NULL".to_owned();
    }
    let first = first();
    format!(
        "(SELECT pg_catalog.pg_notify('{}', pg_catalog.left({first}, {CALLED_BY}))::pg_catalog.text
            FROM written AS l WHERE {frees} AND {first} IS NOT NULL)",
        channel(table)
    )
}

/// Returns the statement that adds a claim to the end of the line, and returns the row. $1 name, $2 the claim's id, $3 the
/// waiter, $4 the pause of a single waiter and $5 its longest pause, both in milliseconds, $6 the limit of a wait for the
/// row.
fn join(table: &str) -> String {
    let waiting = format!("coalesce({}, '[]')", waiting("array"));
    let length = format!("pg_catalog.jsonb_array_length({waiting})");
    let last = format!("({waiting} {AT} '{{-1,number}}')::pg_catalog.int8");
    format!(
        "WITH {settings}, written AS (
            UPDATE {table} AS l SET line = {waiting} {JOINED} pg_catalog.jsonb_build_array($3::pg_catalog.jsonb {JOINED}
                pg_catalog.jsonb_build_object('number', greatest(coalesce(l.served, 0), {last}) {PLUS} 1,
                    'since_us', {NOW_US}, 'polls_ms', least(({length} {PLUS} 1) {TIMES} $4, $5)))
            FROM settings
            WHERE l.name {EQ} $1 AND {length} {LT} {MAX_WAITERS} AND l.locked_by {NE} ('{OURS}' {JOINED} $2)
                AND NOT ({waiting} {CONTAINS}
                    pg_catalog.jsonb_build_array(pg_catalog.jsonb_build_object('claim', $2)))
            RETURNING l.*)
         SELECT {NOW_US} AS now_us, found.* {outcome}",
        settings = settings("$6"),
        outcome = outcome(table, "false", &columns()),
    )
}

/// Returns the statement that removes a claim from the line. It always writes the row, so that it waits for a concurrent
/// request to join. $1 name, $2 the claim's id, $3 the limit of a wait for the row.
fn leave(table: &str) -> String {
    format!(
        "WITH {} UPDATE {table} AS l SET line = pg_catalog.jsonb_path_query_array(l.line, '$[*] ? (@.claim != $claim)',
            pg_catalog.jsonb_build_object('claim', $2), true)
         FROM settings WHERE l.name {EQ} $1",
        settings("$3")
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
