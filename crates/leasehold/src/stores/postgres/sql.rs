//! SQL that several statements share.
//!
//! Every function, operator, type and collation is named with the schema `pg_catalog`. Otherwise PostgreSQL would look
//! it up along the session's `search_path`, where another user may have created one of the same name that fits better.
//! Behind a pooler, the path may also be another client's. The keywords `coalesce`, `greatest`, `least`, `extract`,
//! `EXISTS`, `ORDER BY` and the type `interval` do not depend on the path. `IN`, `BETWEEN`, `LIKE`, `IS DISTINCT FROM`,
//! `NULLIF` and `CASE x WHEN` do. A test scans all statements.
//!
//! Operators that are written like this have the same precedence, so each operation is in parentheses unless `AND`, a
//! comma or the like separates it from others.

pub(super) const EQ: &str = "OPERATOR(pg_catalog.=)";
pub(super) const NE: &str = "OPERATOR(pg_catalog.<>)";
pub(super) const LT: &str = "OPERATOR(pg_catalog.<)";
pub(super) const LE: &str = "OPERATOR(pg_catalog.<=)";
pub(super) const GT: &str = "OPERATOR(pg_catalog.>)";
pub(super) const GE: &str = "OPERATOR(pg_catalog.>=)";
pub(super) const PLUS: &str = "OPERATOR(pg_catalog.+)";
pub(super) const MINUS: &str = "OPERATOR(pg_catalog.-)";
pub(super) const TIMES: &str = "OPERATOR(pg_catalog.*)";
/// Joins texts, or JSON arrays or objects.
pub(super) const JOINED: &str = "OPERATOR(pg_catalog.||)";
/// A member of a JSON value, as text.
pub(super) const GET_TEXT: &str = "OPERATOR(pg_catalog.->>)";
/// A member of a JSON value.
pub(super) const GET: &str = "OPERATOR(pg_catalog.->)";
/// The part of a JSON value at a path.
pub(super) const AT: &str = "OPERATOR(pg_catalog.#>)";
/// Whether a JSON value contains another.
pub(super) const CONTAINS: &str = "OPERATOR(pg_catalog.@>)";

/// The columns, their types in the schema `pg_catalog`, and the rest of their definitions. ShedLock uses the first four.
pub(super) const COLUMNS: &[(&str, &str, &str)] = &[
    ("name", "text", " COLLATE pg_catalog.\"C\" PRIMARY KEY"),
    ("lock_until", "timestamp", " NOT NULL"),
    ("locked_at", "timestamp", " NOT NULL"),
    ("locked_by", "text", " NOT NULL"),
    ("version", "text", ""),
    ("token", "int8", ""),
    ("prev_token", "int8", ""),
    ("served", "int8", ""),
    ("size", "int8", ""),
    ("written_us", "int8", ""),
    ("is_open", "bool", ""),
    ("record", "json", ""),
    ("history", "json", ""),
    ("line", "jsonb", ""),
];

/// The schema of a table without one in the URL.
const SCHEMA: &str = "public";

/// Returns the name of a table in SQL. It always names a schema: behind a pooler, the search path may be another client's
/// and lead to another table.
pub(super) fn quoted(table: &str) -> String {
    let (schema, table) = table.split_once('.').unwrap_or((SCHEMA, table));
    format!("\"{schema}\".\"{table}\"")
}

/// The server's clock in the format of ShedLock's columns: UTC without a time zone.
pub(super) const NOW: &str = "pg_catalog.timezone('utc', pg_catalog.clock_timestamp())";

/// The server's clock in microseconds since the Unix epoch.
pub(super) const NOW_US: &str =
    "(extract(epoch FROM pg_catalog.clock_timestamp()) OPERATOR(pg_catalog.*) 1000000)::pg_catalog.int8";

/// Returns the SQL of `time` in microseconds since the Unix epoch.
pub(super) fn in_us(time: &str) -> String {
    format!("(extract(epoch FROM {time}) {TIMES} 1000000)::pg_catalog.int8")
}

/// Returns the SQL of the interval of `us` microseconds.
pub(super) fn microseconds(us: &str) -> String {
    format!("({us} {TIMES} interval '1 microsecond')")
}

/// Returns a common table expression that changes settings for the transaction of a write. The commit waits for the
/// disk, and for the synchronous standbys if the server has any. A wait for a row ends before the client gives up.
pub(super) fn settings(timeout: &str) -> String {
    const COMMIT: &str = "pg_catalog.current_setting('synchronous_commit')";
    format!(
        "settings AS MATERIALIZED (SELECT
            pg_catalog.set_config('synchronous_commit', CASE WHEN {COMMIT} {EQ} 'off' OR {COMMIT} {EQ} 'local'
                THEN 'on' ELSE {COMMIT} END, true),
            pg_catalog.set_config('client_min_messages', 'warning', true),
            pg_catalog.set_config('lock_timeout', {timeout}, true))"
    )
}

#[cfg(test)]
pub(super) mod tests {
    use std::time::Duration;

    use super::super::server::ServerInfo;
    use super::super::statements::Statements;
    use super::super::{examine, listener, server};
    use super::{COLUMNS, quoted};
    use crate::stores::table::Properties;

    /// Words after which a parenthesis opens something other than the arguments of a function.
    const KEYWORDS: &[&str] = &[
        "and",
        "as",
        "by",
        "coalesce",
        "conflict",
        "else",
        "exists",
        "extract",
        "from",
        "greatest",
        "key",
        "lateral",
        "least",
        "materialized",
        "not",
        "on",
        "operator",
        "or",
        "over",
        "returning",
        "select",
        "set",
        "then",
        "values",
        "when",
        "where",
        "with",
    ];

    /// Words whose operator PostgreSQL looks up along the search path.
    const IMPLICIT: &[&str] = &[
        "all", "any", "between", "distinct", "ilike", "in", "like", "natural", "nullif", "overlaps",
        "similar", "some",
    ];

    /// Words between two operations.
    const SEPARATORS: &[&str] = &[
        "and",
        "or",
        "not",
        "case",
        "when",
        "then",
        "else",
        "end",
        "select",
        "from",
        "where",
        "set",
        "on",
        "order",
        "by",
        "having",
        "limit",
        "returning",
        "is",
        "with",
    ];

    /// Splits SQL into words, strings, quoted names, numbers and other characters. A schema's name and its dot are one
    /// word with what follows.
    fn tokens(sql: &str) -> Vec<String> {
        let (mut tokens, mut rest) = (Vec::new(), sql);
        while let Some(first) = rest.chars().next() {
            let is_word = |c: char| c.is_alphanumeric() || matches!(c, '_' | '.' | '$');
            let length = match first {
                '\'' | '"' => 2 + rest[1..].find(first).unwrap(),
                _ if is_word(first) => rest.find(|c| !is_word(c)).unwrap_or(rest.len()),
                _ if "+-*/<>=~!@#%^&|?:".contains(first) => {
                    rest.find(|c| !"+-*/<>=~!@#%^&|?:".contains(c)).unwrap_or(rest.len())
                }
                _ => first.len_utf8(),
            };
            if !first.is_whitespace() {
                tokens.push(rest[..length].to_lowercase());
            }
            rest = &rest[length..];
        }
        tokens
    }

    /// Returns what PostgreSQL looks up along the search path in `sql`, or might read with another precedence.
    fn unqualified(sql: &str) -> Vec<String> {
        let tokens = tokens(sql);
        let at = |i: usize| tokens.get(i).map_or("", String::as_str);
        let mut found = Vec::new();
        // Whether an operator was seen since the last separator, for each open parenthesis.
        let mut operations = vec![false];
        for (i, token) in tokens.iter().enumerate() {
            let before = |n: usize| i.checked_sub(n).map_or("", at);
            let flaw = match token.as_str() {
                "(" => {
                    operations.push(false);
                    let word = before(1);
                    // The names of columns follow the name of a table or an alias.
                    let names_columns = matches!(before(2), "as" | "add" | "exists") || word.starts_with('"');
                    let calls = word.starts_with(|c: char| c.is_alphabetic()) && !names_columns;
                    calls && !KEYWORDS.contains(&word) && !word.starts_with("pg_catalog.")
                }
                ")" => {
                    operations.pop();
                    false
                }
                "," | ";" => {
                    *operations.last_mut().unwrap() = false;
                    false
                }
                "operator" => {
                    let again = std::mem::replace(operations.last_mut().unwrap(), true);
                    again || at(i + 1) != "(" || !at(i + 2).starts_with("pg_catalog.")
                }
                "::" => !at(i + 1).starts_with("pg_catalog."),
                "*" => !matches!(before(1), "(") && !before(1).ends_with('.'),
                // An assignment or an option.
                "=" if matches!(before(2), "set" | "," | "local" | "(") && !before(1).contains('.') => false,
                "collate" => at(i + 1) != "pg_catalog." && !at(i + 1).starts_with("pg_catalog."),
                "case" => at(i + 1) != "when",
                "using" => at(i + 1) == "(",
                "all" if before(1) == "union" => false,
                "from" | "join" | "into" | "update" if at(i.wrapping_sub(1)) != "do" => {
                    let (relation, mut parts) = (at(i + 1), at(i + 1).split('.'));
                    // `EXTRACT(field FROM time)` and `FROM function()`.
                    let is_table = !matches!(relation, "(" | "lateral") && before(2) != "(";
                    let defined = ["settings", "turns", "epoch", "written"];
                    is_table
                        && !relation.starts_with('"')
                        && parts.next() != Some("pg_catalog")
                        && !defined.contains(&relation)
                }
                word if IMPLICIT.contains(&word) => true,
                word if word.starts_with(|c: char| "+-/<>=~!@#%^&|?:".contains(c)) => {
                    before(2) != "operator" && !before(1).starts_with("pg_catalog.")
                }
                // A typed literal.
                word if at(i + 1).starts_with('\'') => {
                    word.starts_with(|c: char| c.is_alphabetic())
                        && !KEYWORDS.contains(&word)
                        && !SEPARATORS.contains(&word)
                        && word != "interval"
                }
                _ => false,
            };
            if SEPARATORS.contains(&token.as_str()) {
                *operations.last_mut().unwrap() = false;
            }
            if flaw {
                found.push(tokens[i.saturating_sub(3)..(i + 4).min(tokens.len())].join(" "));
            }
        }
        found
    }

    /// Returns all SQL that the store sends.
    fn all() -> Vec<String> {
        let table = quoted("leasehold");
        let names: Vec<_> = COLUMNS.iter().map(|(name, ..)| *name).collect();
        let mut all = vec![
            server::query(),
            ServerInfo::create(&table),
            ServerInfo::extend(&table, &names),
            listener::notify().text,
            examine::SETTINGS.to_owned(),
            examine::TABLE.to_owned(),
        ];
        for (grace, notifies) in [(Duration::ZERO, false), (Duration::from_secs(60), true)] {
            all.extend(Statements::on(&table, grace, notifies).texts().map(str::to_owned));
        }
        all
    }

    #[test]
    fn a_table_in_sql_has_a_schema() {
        assert_eq!([quoted("ops.locks"), quoted("locks")], ["\"ops\".\"locks\"", "\"public\".\"locks\""]);
    }

    #[test]
    fn no_statement_depends_on_the_search_path() {
        for sql in all() {
            assert_eq!(unqualified(&sql), Vec::<String>::new(), "{sql}");
        }
    }

    /// What the scan must find.
    #[test]
    fn the_scan_finds_what_the_search_path_decides() {
        for sql in [
            "SELECT now()",
            "SELECT a.b = c.d",
            "SELECT $3 * interval '1 s'",
            "SELECT l.name IN ('a')",
            "SELECT l.name LIKE 'a'",
            "SELECT CASE l.name WHEN 'a' THEN 1 END",
            "SELECT l.name::text",
            "SELECT jsonb '{}'",
            "SELECT l.name COLLATE \"C\"",
            "SELECT true FROM leasehold",
            "SELECT true FROM pg_class AS c",
            "SELECT a OPERATOR(public.=) b",
            "SELECT a OPERATOR(pg_catalog.+) b OPERATOR(pg_catalog.*) c",
            "SELECT a FROM \"s\".\"t\" JOIN \"s\".\"u\" USING (a)",
            "SELECT l.state IS DISTINCT FROM 'a'",
        ] {
            assert!(!unqualified(sql).is_empty(), "{sql}");
        }
        let good = "SELECT pg_catalog.count(*), (a OPERATOR(pg_catalog.+) b) OPERATOR(pg_catalog.=) c::pg_catalog.int8
            FROM \"s\".\"t\" AS l WHERE l.name COLLATE pg_catalog.\"C\" OPERATOR(pg_catalog.=) $1";
        assert_eq!(unqualified(good), Vec::<String>::new());
    }
}
