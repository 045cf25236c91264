//! The statements. A write of a record is one statement: it writes if the row has the expected version. A read of the row
//! follows it in the same request.
//!
//! All texts are hexadecimal literals, which no `sql_mode` and no character set reads in another way.

use std::fmt::Write as _;
use std::time::Duration;

use crate::clock::micros;
use crate::lease::Token;
use crate::protocol::records::Change;
use crate::protocol::rules::recorded;
use crate::register::Version;
use crate::stores::rows::{EPOCH, EPOCH_BY, OURS, is_ours, locked_by, number};
use crate::stores::table::Writing;

/// The server's clock in microseconds since the Unix epoch, read again after a wait for a row. It does not depend on the
/// session's time zone.
pub(super) const NOW_US: &str = "(TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
    + TIMESTAMPDIFF(MICROSECOND, NOW(6), SYSDATE(6)))";

/// When the lock ends for other clients, in microseconds since the Unix epoch.
const UNTIL_US: &str = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', l.lock_until)";

/// Begins a session: what the statements rely on, whatever the server's defaults are. A wait for a row ends soon, and so
/// does a wait of `leasehold init` for the table.
pub(super) const BEGIN: &str =
    "SET SESSION autocommit = 1, sql_mode = 'STRICT_ALL_TABLES', time_zone = '+00:00',
        innodb_lock_wait_timeout = 1, lock_wait_timeout = 1, wait_timeout = 28800, sql_safe_updates = 0,
        unique_checks = 1, sql_select_limit = 18446744073709551615;
    SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE";

/// The columns, their types, and the rest of their definitions. ShedLock uses the first four. Texts are bytes, so that no
/// two names are equal, and times are without a time zone, so that all sessions read the same.
pub(super) const COLUMNS: &[(&str, &str, &str)] = &[
    ("name", "varbinary", "(256) NOT NULL PRIMARY KEY"),
    ("lock_until", "datetime(6)", " NOT NULL"),
    ("locked_at", "datetime(6)", " NOT NULL"),
    ("locked_by", "varbinary", "(255) NOT NULL"),
    ("version", "varbinary", "(400)"),
    ("token", "bigint", ""),
    ("prev_token", "bigint", ""),
    ("served", "bigint", ""),
    ("size", "bigint", ""),
    ("written_us", "bigint", ""),
    ("is_open", "tinyint", ""),
    ("record", "longblob", ""),
    ("history", "longblob", ""),
    ("line", "longblob", ""),
    ("line_last", "bigint", ""),
];

/// Returns `text` as a literal.
pub(super) fn literal(text: &str) -> String {
    let mut literal = "x'".to_owned();
    for byte in text.bytes() {
        let _ = write!(literal, "{byte:02x}");
    }
    literal + "'"
}

/// Returns the name of a table or a column in SQL.
pub(super) fn quoted(name: &str) -> String {
    format!("`{}`", name.replace('`', "``"))
}

/// Returns the SQL of the time at `us` microseconds since the Unix epoch, in UTC, as ShedLock has it.
fn time(us: &str) -> String {
    format!("TIMESTAMPADD(MICROSECOND, {us}, '1970-01-01')")
}

/// Returns the condition that a row has `version`. `l` is what stands before the names of its columns.
fn has_version(l: &str, version: &Version) -> String {
    let (version, by) = version.as_str().split_once(' ').unwrap_or_default();
    format!("COALESCE({l}version, '') = {} AND {l}locked_by = {}", literal(version), literal(by))
}

/// The condition that no other client has the lock. Old versions of ShedLock unlock any row, which shortens
/// `lock_until`, so it counts only in rows of other clients.
fn is_ended() -> String {
    format!("(l.locked_by LIKE '{OURS}%' OR {UNTIL_US} <= {NOW_US})")
}

/// Returns the query for the row of `name`. It always returns a row, with the time. `guard`: see
/// [`ServerInfo::guard`](super::server::ServerInfo::guard).
pub(super) fn read(table: &str, name: &str, guard: &str) -> String {
    format!(
        "SELECT {NOW_US} AS now_us, ({guard}) AS is_same, l.name IS NOT NULL AS is_there, SHA1(l.line) AS line_version,
            l.locked_by, {UNTIL_US} AS until_us, l.version, l.token, l.prev_token, l.served, l.size, l.written_us,
            l.record, l.history, l.line
         FROM (SELECT 1) AS one LEFT JOIN {table} AS l ON l.name = {}",
        literal(name)
    )
}

/// Returns the statement that writes a record, without the read that follows. Nothing is granted or renewed from
/// `too_late_us` on, when the caller no longer waits for the response.
///
/// MySQL assigns from left to right, so `prev_token` comes before `token`, and no other value depends on a column. A token
/// is never below the clock of its grant, so it is above those of a record that was deleted before.
///
/// The version shows that the row is as it was read. In addition, a grant requires that no other client has the lock. A
/// renewal requires that the lease has not ended. Otherwise a renewal that arrives late would take back a lock that the
/// holder no longer uses.
pub(super) fn write(table: &str, guard: &str, writing: &Writing, too_late_us: i64) -> String {
    let Writing { change, over, name, expect, record, columns, kept, prolongs, .. } = writing;
    let tokens = over.map(|over| over.tokens);
    let grants = *change == Change::Grant;
    let by = locked_by(record.grant);
    let until = time(&format!("{NOW_US} + {}", number(micros(*kept))));
    let size = recorded(record.size).map_or("NULL".to_owned(), |size| size.to_string());
    let token = match tokens {
        Some(tokens) => format!("GREATEST(l.token + {tokens}, {NOW_US})"),
        None if grants => format!("GREATEST({}, {NOW_US})", record.token.get()),
        None => record.token.get().to_string(),
    };
    let mut values = Vec::new();
    if grants {
        let before = if expect.is_some() || tokens.is_some() { "l.token" } else { "NULL" };
        values.extend([("prev_token", before.to_owned()), ("locked_at", time(NOW_US))]);
    }
    values.extend([
        ("token", token),
        ("lock_until", until),
        ("locked_by", literal(&by)),
        ("version", literal(columns.version.as_str())),
        ("size", if tokens.is_some() { format!("COALESCE(l.size, {size})") } else { size }),
        ("written_us", NOW_US.to_owned()),
        ("is_open", u8::from(columns.is_open).to_string()),
        ("record", literal(&columns.record)),
    ]);
    // A grant over a record that was not read keeps what was served, and the history.
    if tokens.is_none() {
        values.push(("served", record.served.to_string()));
        values.extend(columns.history.as_deref().map(|history| ("history", literal(history))));
    }
    let right = match (tokens, expect) {
        (Some(tokens), _) => format!(
            "l.is_open AND l.version IS NOT NULL AND l.token > 0 AND l.token + {tokens} < {limit} AND {ended}
                AND COALESCE(l.line_last, 0) <= COALESCE(l.served, 0)
                AND INSTR(CONCAT(l.record, COALESCE(l.history, '')), {own}) = 0",
            limit = Token::LIMIT,
            ended = is_ended(),
            own = literal(&record.grant.to_string()),
        ),
        (None, Some(version)) if grants && !is_ours(version) => {
            format!("{} AND {}", has_version("l.", version), is_ended())
        }
        (None, Some(version)) if *change == Change::Renew => {
            format!(
                "{} AND l.written_us + {} > {NOW_US}",
                has_version("l.", version),
                number(micros(*prolongs))
            )
        }
        (None, Some(version)) => has_version("l.", version),
        (None, None) => "true".to_owned(),
    };
    let condition = format!("{guard} AND {right} AND {NOW_US} < {too_late_us}");
    if tokens.is_none() && expect.is_none() {
        let (columns, values): (Vec<_>, Vec<_>) = values.into_iter().unzip();
        let (columns, values) = (columns.join(", "), values.join(", "));
        let name = literal(name.as_str());
        return format!(
            "INSERT INTO {table} (name, {columns}) SELECT {name}, {values} FROM (SELECT 1) AS one WHERE {condition}"
        );
    }
    let values: Vec<_> = values.into_iter().map(|(column, value)| format!("l.{column} = {value}")).collect();
    let name = literal(name.as_str());
    format!("UPDATE {table} AS l SET {} WHERE l.name = {name} AND {condition}", values.join(", "))
}

/// Returns the statement that replaces the line of `name`, of which `back` is the last number. `expect` is the version of
/// the line, or `None` for no line.
pub(super) fn write_line(table: &str, name: &str, expect: Option<&Version>, line: &str, back: u64) -> String {
    let expected = match expect {
        Some(version) => format!("SHA1(l.line) = {}", literal(version.as_str())),
        None => "l.line IS NULL".to_owned(),
    };
    format!(
        "UPDATE {table} AS l SET l.line = {}, l.line_last = {back} WHERE l.name = {} AND {expected}",
        literal(line),
        literal(name)
    )
}

/// Returns the statement that deletes the row of `name` if it has `version`.
pub(super) fn discard(table: &str, name: &str, version: &Version) -> String {
    // Without an alias, because MySQL and MariaDB differ in where one is written.
    format!("DELETE FROM {table} WHERE name = {} AND {}", literal(name), has_version("", version))
}

/// Returns the query that says whether other clients have rows.
pub(super) fn is_shared(table: &str) -> String {
    format!("SELECT EXISTS (SELECT 1 FROM {table} AS l WHERE l.locked_by NOT LIKE '{OURS}%') AS is_shared")
}

/// Returns the query for the next `count` names after `from` that begin with `prefix`, in the order of their bytes. The
/// query for the time follows, because there may be no names.
pub(super) fn names(table: &str, guard: &str, prefix: &str, from: Option<&str>, count: usize) -> String {
    let after = from.map_or(String::new(), |from| format!("AND l.name > {}", literal(from)));
    format!(
        "SELECT l.name FROM {table} AS l WHERE l.name >= {prefix} AND LEFT(l.name, {length}) = {prefix} {after}
         ORDER BY l.name LIMIT {count};
         SELECT {NOW_US} AS now_us, ({guard}) AS is_same",
        length = prefix.len(),
        prefix = literal(prefix),
    )
}

/// Returns the statements that record which server is the primary and the longest grace of all clients, and the query for
/// the time from which on locks are granted. The grace begins if the row is missing or names another server. A grace that
/// began ahead of the clock, because the clock was set back since, begins now.
///
/// The row has the server as its version, the beginning of the grace as `written_us`, and its length as its token.
pub(super) fn note_epoch(table: &str, identity: &str, grace: Duration) -> String {
    let (name, by, identity) = (literal(EPOCH), literal(EPOCH_BY), literal(identity));
    let (now, grace_us) = (time(NOW_US), number(micros(grace)));
    format!(
        "INSERT INTO {table} (name, lock_until, locked_at, locked_by, version, written_us, token)
            VALUES ({name}, {now}, {now}, {by}, {identity}, {NOW_US}, {grace_us})
         ON DUPLICATE KEY UPDATE
            written_us = IF(version = {identity}, LEAST(written_us, {NOW_US}), {NOW_US}),
            token = GREATEST(token, {grace_us}), version = {identity};
         SELECT l.written_us + l.token AS grants_from_us FROM {table} AS l WHERE l.name = {name}"
    )
}

/// Returns the condition that the row names this server, that its grace is as long as `grace` and over, and that the clock
/// was not set back since. Each grant contains it, because another server may have been the primary while the connection
/// was unused. MySQL reads the table of an update only through a table like `e`, which `LIMIT` keeps apart.
pub(super) fn is_known(table: &str, identity: &str, grace: Duration) -> String {
    format!(
        "COALESCE((SELECT e.version = {} AND e.token >= {} AND e.written_us + e.token <= {NOW_US}
            FROM (SELECT version, token, written_us FROM {table} WHERE name = {} LIMIT 1) AS e), 0)",
        literal(identity),
        number(micros(grace)),
        literal(EPOCH)
    )
}
