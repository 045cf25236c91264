//! What is reported about the table of the locks: MySQL, PostgreSQL.

use crate::diagnosis::Finding;
use crate::error::{ErrorKind, Fault, StoreError};

/// Whether a statement changes anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    None,
    Writes,
}

pub(super) fn lacks_columns(table: &str, columns: &str) -> Fault {
    let message = format!("the table {table:?} lacks columns that leasehold needs: {columns}");
    Fault::new(ErrorKind::Invalid, message).with_help("add them: leasehold init (other clients ignore them)")
}

/// Returns the fault of something else than a table. `kind` says what it is or can be.
pub(super) fn not_ordinary(table: &str, kind: &str) -> Fault {
    Fault::new(ErrorKind::Unsupported, format!("{table:?} is not an ordinary table ({kind})"))
        .with_help("create a separate table with `leasehold init`")
}

/// Returns the error of a sweep of a table that ShedLock uses.
pub(super) fn used_by_others(table: &str) -> StoreError {
    Fault::new(ErrorKind::Unsupported, format!("the table {table:?} is used by other clients too, or was created for them"))
        .with_help("ShedLock remembers which names have rows: its job would not run again until its JVM restarts. Keep the rows")
        .not_applied()
}

/// Returns the permissions on the table, whose name in SQL is `sql`, that the doctor recommends.
pub(super) fn least_permissions(sql: &str) -> Vec<String> {
    vec![
        "the minimum that leasehold needs:".to_owned(),
        format!("GRANT SELECT, INSERT, UPDATE, DELETE ON {sql} TO ..."),
        "(DELETE is only for `leasehold sweep` and the doctor)".to_owned(),
    ]
}

pub(super) fn no_table(check: &'static str, table: &str) -> Finding {
    Finding::failed(check, format!("there is no table {table:?}")).with_help("create it: leasehold init")
}

/// Judges the permissions that the user `lacks`.
pub(super) fn permissions(check: &'static str, lacks: &[&str]) -> Finding {
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
