//! What is reported about the server and the table of the locks.

use std::fmt;

use super::CHECK_LIMIT;
use crate::diagnosis::Finding;
use crate::error::{ErrorKind, Fault, StoreError};
use crate::lease::printable;
use crate::stores::certificates;
use crate::stores::database::innermost;
use crate::stores::hosts::{Host, MAX_SHOWN};

/// Whether a statement changes anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::stores) enum Effect {
    None,
    Writes,
}

/// What an error response means: the kind of the fault, and what helps. In that, `{table}` stands for the name of the
/// table. It may be empty.
pub(in crate::stores) type Meaning = (ErrorKind, &'static str);

/// The meaning of an error response of a server that has no room for another connection.
pub(in crate::stores) const FULL: Meaning = (
    ErrorKind::Unavailable,
    "a process that waits for locks or holds them needs one connection: raise max_connections, or the limit of the user, \
     the database or the pooler",
);

/// What errors say of a kind of server.
#[derive(Clone, Copy, Debug)]
pub(in crate::stores) struct Kind {
    pub(in crate::stores) name: &'static str,
    /// What helps if the server is not the primary.
    pub(in crate::stores) not_primary: &'static str,
}

impl Kind {
    /// Returns the error of a connection that broke. A write that was sent may be carried out nevertheless.
    pub(in crate::stores) fn lost(
        &self,
        error: &(dyn std::error::Error + 'static),
        effect: Effect,
    ) -> StoreError {
        let fault =
            Fault::unavailable(format!("the connection to {} was lost: {}", self.name, innermost(error)));
        match effect {
            Effect::None => fault.not_applied(),
            Effect::Writes => fault.maybe_applied(),
        }
    }

    /// Returns the fault of an error response. If its meaning is unknown, it may be a shutdown, a timeout, an exhausted
    /// resource, or an error of a commit.
    pub(in crate::stores) fn reported(
        &self,
        (said, code): (&str, impl fmt::Display),
        meaning: Option<Meaning>,
        table: &str,
    ) -> Fault {
        let message = format!("{} reports: {} ({code})", self.name, printable(said, MAX_SHOWN));
        let (kind, help) = meaning.unwrap_or((ErrorKind::Unavailable, ""));
        let fault = if meaning == Some(FULL) { Fault::full(message) } else { Fault::new(kind, message) };
        if help.is_empty() { fault } else { fault.with_help(help.replace("{table}", &format!("{table:?}"))) }
    }

    /// Returns the fault of a connection that could not be opened: what the server has `reported`, or else one of the causes
    /// `known` of this client: a part of the text, the kind, and what helps. Settings of the store URL that do not suit the
    /// server are not transient errors.
    pub(in crate::stores) fn no_connection(
        &self,
        error: &(dyn std::error::Error + 'static),
        reported: Option<Fault>,
        (host, is_tls): (&Host, bool),
        known: &[(&str, ErrorKind, &'static str)],
    ) -> Fault {
        if let Some(mut fault) = reported {
            fault.message = format!("{host}: {}", fault.message);
            return fault;
        }
        let why = innermost(error);
        let message = format!("no connection to {} at {host}: {why}", self.name);
        if let Some(help) = certificates::help_for_both(&why).filter(|_| is_tls) {
            return Fault::new(ErrorKind::Invalid, message).with_help(help);
        }
        let refused = (
            "Connection refused",
            ErrorKind::Unavailable,
            "is the server running, and are the host and port right?",
        );
        match known.iter().chain([&refused]).find(|(part, ..)| why.contains(part)) {
            Some((_, kind, help)) => Fault::new(*kind, message).with_help(*help),
            None => Fault::unavailable(message),
        }
    }

    /// Returns the error of a server that has not described itself in time.
    pub(in crate::stores) fn silent(&self, host: &Host) -> StoreError {
        let message = format!("{} at {host} did not respond within {CHECK_LIMIT:.0?}", self.name);
        Fault::unavailable(message).not_applied()
    }

    /// Returns a transient error, because clients also see it during a failover.
    pub(in crate::stores) fn not_primary(&self, what: &str) -> Fault {
        Fault::unavailable(format!("the {} server is not the primary: {what}", self.name))
            .with_help(self.not_primary)
    }

    /// Returns the error for a result of an unexpected form. The statement may have taken effect.
    pub(in crate::stores) fn unreadable(&self, why: &dyn fmt::Display) -> StoreError {
        Fault::new(ErrorKind::Corrupt, format!("{}'s response cannot be read: {why}", self.name))
            .maybe_applied()
    }
}

/// Returns the fault of a table with columns that have `wrong` types.
pub(in crate::stores) fn wrong_types(table: &str, wrong: &[String], help: String) -> Fault {
    let message = format!("the table {table:?} has columns of other types: {}", wrong.join(", "));
    Fault::new(ErrorKind::Unsupported, message).with_help(help)
}

pub(in crate::stores) fn lacks_columns(table: &str, columns: &str) -> Fault {
    let message = format!("the table {table:?} lacks columns that leasehold needs: {columns}");
    Fault::new(ErrorKind::Invalid, message).with_help("add them: leasehold init (other clients ignore them)")
}

/// Returns the fault of something else than a table. `kind` says what it is or can be.
pub(in crate::stores) fn not_ordinary(table: &str, kind: &str) -> Fault {
    Fault::new(ErrorKind::Unsupported, format!("{table:?} is not an ordinary table ({kind})"))
        .with_help("create a separate table with `leasehold init`")
}

/// Returns the error of a sweep of a table that ShedLock uses.
pub(in crate::stores) fn used_by_others(table: &str) -> StoreError {
    Fault::new(ErrorKind::Unsupported, format!("the table {table:?} is used by other clients too, or was created for them"))
        .with_help("ShedLock remembers which names have rows: its job would not run again until its JVM restarts. Keep the rows")
        .not_applied()
}

/// Returns the permissions on the table, whose name in SQL is `sql`, that the doctor recommends.
pub(in crate::stores) fn least_permissions(sql: &str) -> Vec<String> {
    vec![
        "the minimum that leasehold needs:".to_owned(),
        format!("GRANT SELECT, INSERT, UPDATE, DELETE ON {sql} TO ..."),
        "(DELETE is only for `leasehold sweep` and the doctor)".to_owned(),
    ]
}

pub(in crate::stores) fn no_table(check: &'static str, table: &str) -> Finding {
    Finding::failed(check, format!("there is no table {table:?}")).with_help("create it: leasehold init")
}

/// Judges the permissions that the user `lacks`.
pub(in crate::stores) fn permissions(check: &'static str, lacks: &[&str]) -> Finding {
    match lacks {
        [] => Finding::passed(check, "the user may select, insert, update and delete rows"),
        ["DELETE"] => Finding::warning(
            check,
            "the user lacks DELETE on the table: `leasehold sweep` will not work, and the doctor leaves rows",
        ),
        lacks => Finding::failed(check, format!("the user lacks {} on the table", lacks.join(", ")))
            .with_help("GRANT them to the user, as below"),
    }
}
