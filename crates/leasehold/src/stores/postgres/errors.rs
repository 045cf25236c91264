//! Maps PostgreSQL's errors: whether the statement may have taken effect, and what the user can do.

use tokio_postgres::Error;
use tokio_postgres::error::{DbError, Severity, SqlState};

use super::POSTGRES;
use crate::error::{ErrorKind, Fault, StoreError};
use crate::stores::hosts::Host;
use crate::stores::table::{Effect, FULL, Meaning};

/// Returns the error of a statement that was sent.
pub(super) fn of_statement(error: &Error, effect: Effect, table: &str) -> StoreError {
    // If the connection broke, the statement may still be running.
    let Some(answer) = error.as_db_error() else { return POSTGRES.lost(error, effect) };
    let fault = fault(answer, table);
    if effect == Effect::Writes && may_be_applied(answer) {
        fault.maybe_applied()
    } else {
        fault.not_applied()
    }
}

/// Returns whether the statement may have been committed. Errors roll it back, but the session may also end after the
/// commit.
fn may_be_applied(answer: &DbError) -> bool {
    let code = answer.code().code();
    !matches!(answer.parsed_severity(), Some(Severity::Error))
        || code.starts_with("08")
        || code.starts_with("57P")
        || *answer.code() == SqlState::T_R_STATEMENT_COMPLETION_UNKNOWN
}

/// Returns the error of a connection that could not be opened. No statement was sent.
pub(super) fn of_connection(error: &Error, host: &Host, is_tls: bool, table: &str) -> Fault {
    const KNOWN: [(&str, ErrorKind, &str); 2] = [
        (
            "password missing",
            ErrorKind::Denied,
            "the server requires a password: add password_file=/PATH or password_env=NAME to the store URL, or set PGPASSWORD",
        ),
        (
            "server does not support TLS",
            ErrorKind::Invalid,
            "the server has no TLS (ssl=off): turn it on; in a network that you trust, add tls=off&plaintext=on",
        ),
    ];
    let reported = error.as_db_error().map(|answer| fault(answer, table));
    POSTGRES.no_connection(error, reported, (host, is_tls), &KNOWN)
}

fn fault(answer: &DbError, table: &str) -> Fault {
    let (code, said) = (answer.code().code(), answer.message());
    POSTGRES.reported((said, code), meaning(code, said), table)
}

/// Returns the meaning of an error. `None` for transaction conflicts, timeouts, exhausted resources and restarts.
fn meaning(code: &str, said: &str) -> Option<Meaning> {
    Some(match code {
        "42P01" | "3F000" => (
            ErrorKind::Invalid,
            "create the table {table} with `leasehold init`, or name another one with table=NAME in the store URL",
        ),
        "42703" => (
            ErrorKind::Invalid,
            "the table {table} lacks columns that leasehold needs: `leasehold init` adds them, and other clients of the \
             table ignore them",
        ),
        "42P10" => (
            ErrorKind::Unsupported,
            "the column `name` of the table {table} needs a primary key or a unique index",
        ),
        "42501" => (
            ErrorKind::Denied,
            "the user needs SELECT, INSERT, UPDATE and DELETE on the table {table} and USAGE on its schema; `leasehold \
             init` needs CREATE on the schema, or must own the table",
        ),
        "22008" => (
            ErrorKind::Invalid,
            "the cooldown, or the lease, ends later than PostgreSQL's timestamps reach: use a shorter one",
        ),
        "42804" | "42883" | "42846" | "22003" => (
            ErrorKind::Unsupported,
            "columns of the table {table} have other types than leasehold needs: `leasehold doctor` names them",
        ),
        "28000" if said.contains("no encryption") => (
            ErrorKind::Denied,
            "if the server accepts only TLS connections: leave out tls=off of the store URL (or check pg_hba.conf on the \
             server)",
        ),
        "28000" | "28P01" => {
            (ErrorKind::Denied, "check the user and the password, and pg_hba.conf on the server")
        }
        "3D000" => (ErrorKind::Invalid, "the path of the store URL is the name of the database"),
        // Another server has become the primary.
        "25006" => (ErrorKind::Unavailable, POSTGRES.not_primary),
        "22001" => (
            ErrorKind::Invalid,
            "a column of the table {table} is too short for the value: ALTER TABLE ... ALTER COLUMN name TYPE text",
        ),
        "53300" => FULL,
        // Of pgbouncer.
        "08P01" if ["no more connections", "too many"].iter().any(|words| said.contains(words)) => FULL,
        "08P01" if said.contains("startup parameter") => {
            (ErrorKind::Unsupported, "a pooler responded, and not the server itself")
        }
        "22021" | "22P05" => (
            ErrorKind::Invalid,
            "the encoding of the database lacks a character of the lock's name or holder: use a database with UTF8",
        ),
        _ if code.starts_with("22") => (
            ErrorKind::Corrupt,
            "a row of the table {table} was edited by hand: delete it while the lock is free; tokens keep rising",
        ),
        _ if ["23", "42", "0A"].iter().any(|class| code.starts_with(class)) => (
            ErrorKind::Unsupported,
            "the table {table} differs from the one that `leasehold init` creates: `leasehold doctor` shows the details",
        ),
        _ => return None,
    })
}

/// Returns whether `notice` reports a commit that did not wait for the standbys. A failover may lose such a commit,
/// although PostgreSQL then reports success.
pub(super) fn is_commit_in_doubt(notice: &DbError) -> bool {
    matches!(notice.parsed_severity(), Some(Severity::Warning) | None)
        && (notice.routine() == Some("SyncRepWaitForLSN")
            || notice.message().contains("synchronous replication"))
}

pub(super) fn commit_in_doubt() -> StoreError {
    Fault::unavailable(
        "PostgreSQL stopped waiting for its synchronous standbys: the commit is on the primary only",
    )
    .with_help("a standby is gone, or an operator canceled the wait; see synchronous_standby_names")
    .maybe_applied()
}
