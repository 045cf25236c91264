//! Maps the errors of MySQL and MariaDB: whether the statement may have taken effect, and what the user can do.

use mysql_async::{Error, ServerError};

use super::MYSQL;
use crate::error::{ErrorKind, Fault, StoreError};
use crate::stores::hosts::Host;
use crate::stores::table::{Effect, FULL, Meaning};

/// The server reports this if a row with that name is there.
pub(super) const DUPLICATE: u16 = 1062;

/// Another statement has just added a column.
pub(super) const SAME_COLUMN: u16 = 1060;

/// A column is missing.
const NO_COLUMN: u16 = 1054;

/// Returns the meaning of an error that proves that the statement had no effect, because the server refused it or rolled
/// it back. `None` for any other error. A statement of such an error may have been committed, so a write must be looked
/// for.
fn meaning(code: u16) -> Option<Meaning> {
    Some(match code {
        1146 | 1049 => (
            ErrorKind::Invalid,
            "create the table {table} with `leasehold init`, or name another one with table=NAME in the store URL; the \
             path of the URL is the name of the database",
        ),
        NO_COLUMN | 1364 => (
            ErrorKind::Invalid,
            "add the columns that leasehold needs: leasehold init (other clients ignore them)",
        ),
        1044 | 1142 | 1143 | 1227 => (
            ErrorKind::Denied,
            "the user needs SELECT, INSERT, UPDATE and DELETE on the table {table}; `leasehold init` needs CREATE, or \
             ALTER if the table is there",
        ),
        1045 | 1698 => {
            (ErrorKind::Denied, "check the user, the host that the user may connect from, and the password")
        }
        3159 => {
            (ErrorKind::Denied, "the server accepts only TLS connections: leave out tls=off of the store URL")
        }
        1290 | 1792 | 1836 => (ErrorKind::Unavailable, MYSQL.not_primary),
        1665 => (
            ErrorKind::Unsupported,
            "the server logs statements, which READ COMMITTED does not allow: set binlog_format=ROW or MIXED",
        ),
        1406 | 1264 | 1292 | 1366 => (
            ErrorKind::Invalid,
            "a value does not fit into its column: `leasehold doctor` compares the columns of the table {table}",
        ),
        1048 | 1441 | 1690 => {
            (ErrorKind::Invalid, "the cooldown, or the lease, ends after the year 9999: use a shorter one")
        }
        1040 | 1203 | 1226 => FULL,
        // Another transaction had the row for too long. The statement was rolled back, and with it the transaction, which
        // is the statement.
        1205 => (
            ErrorKind::Unavailable,
            "another transaction keeps the row of the lock: end it (SHOW PROCESSLIST)",
        ),
        // A deadlock, a row that has changed since, or a node that does not accept statements: rolled back.
        1020 | 1047 | 1213 => (ErrorKind::Unavailable, ""),
        DUPLICATE => (ErrorKind::Unavailable, ""),
        _ => return None,
    })
}

/// Returns whether the server's error is `code`.
pub(super) fn is(error: &Error, code: u16) -> bool {
    matches!(error, Error::Server(answer) if answer.code == code)
}

/// Returns whether the connection may not be usable any more.
pub(super) fn is_lost(error: &Error) -> bool {
    !matches!(error, Error::Server(answer) if meaning(answer.code).is_some())
}

/// Returns whether the server reports that it is not the primary.
pub(super) fn is_not_primary(error: &Error) -> bool {
    matches!(error, Error::Server(answer) if meaning(answer.code).is_some_and(|(_, help)| help == MYSQL.not_primary))
}

/// Returns the error of a statement that was sent. `may_be_done` tells whether an earlier statement of the same request
/// has succeeded.
pub(super) fn of_statement(error: &Error, effect: Effect, may_be_done: bool, table: &str) -> StoreError {
    let Error::Server(answer) = error else { return MYSQL.lost(error, effect) };
    let fault = fault(answer, table);
    if effect == Effect::Writes && (may_be_done || meaning(answer.code).is_none()) {
        fault.maybe_applied()
    } else {
        fault.not_applied()
    }
}

/// Returns the error of a connection that could not be opened. No statement was sent.
pub(super) fn of_connection(error: &Error, host: &Host, is_tls: bool, table: &str) -> Fault {
    let no_tls = "the server has no TLS: turn it on; in a network that you trust, add tls=off&plaintext=on";
    let known = [("does not have this capability", ErrorKind::Invalid, no_tls)];
    let reported = if let Error::Server(answer) = error { Some(fault(answer, table)) } else { None };
    MYSQL.no_connection(error, reported, (host, is_tls), &known)
}

fn fault(answer: &ServerError, table: &str) -> Fault {
    MYSQL.reported((&answer.message, answer.code), meaning(answer.code), table)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answered(code: u16, effect: Effect, may_be_done: bool) -> StoreError {
        let answer = ServerError { code, message: "no".into(), state: "HY000".into() };
        of_statement(&Error::Server(answer), effect, may_be_done, "t")
    }

    #[test]
    fn only_known_errors_prove_that_a_write_was_not_applied() {
        let is_certain = |code| matches!(answered(code, Effect::Writes, false), StoreError::NotApplied(_));
        for code in [1205, 1213, 1062, 1290, 1146, 1047] {
            assert!(is_certain(code), "{code}");
        }
        // A kill, a shutdown, an error of the commit, a hook after it, and an unknown error.
        for code in [1317, 1927, 1053, 1180, 3101, 65_000] {
            assert!(!is_certain(code), "{code}");
        }
        assert!(matches!(answered(1317, Effect::None, false), StoreError::NotApplied(_)));
        assert!(matches!(answered(1205, Effect::Writes, true), StoreError::MaybeApplied(_)));
        let lost = Error::Io(std::io::Error::from(std::io::ErrorKind::ConnectionReset).into());
        assert!(matches!(of_statement(&lost, Effect::Writes, false, "t"), StoreError::MaybeApplied(_)));
        assert!(is_lost(&lost));
    }

    #[test]
    fn errors_that_need_an_operator_say_what_to_do() {
        for (code, kind) in [
            (1146, ErrorKind::Invalid),
            (1142, ErrorKind::Denied),
            (1045, ErrorKind::Denied),
            (1665, ErrorKind::Unsupported),
            (1290, ErrorKind::Unavailable),
            (1040, ErrorKind::Unavailable),
        ] {
            let error = answered(code, Effect::Writes, false);
            assert_eq!((error.fault().kind, error.fault().help.is_some()), (kind, true), "{error:?}");
        }
        assert!(answered(1213, Effect::Writes, false).is_transient());
    }
}
