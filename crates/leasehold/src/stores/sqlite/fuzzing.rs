//! Properties of the rows of a file that hold after any edit.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a property fails by panicking")]

use std::path::Path;
use std::sync::Arc;

use rusqlite::Connection;
use rusqlite::types::Value;
use serde_json::Value as Json;

use super::evidence::Evidence;
use super::location::Location;
use super::machine::Machine;
use super::row::{load, names, store};
use super::schema;
use crate::env::Env;
use crate::error::{ErrorKind, Result};
use crate::fuzzing::{StandingClock, assert_readable, assert_readable_fault, seed};
use crate::lease::{Claim, Holder, StoreOptions, Token, Ttl};
use crate::protocol::record::RecordState;
use crate::protocol::rules::Claimed;
use crate::types::LockName;
use crate::url::StoreUrl;

pub(in crate::stores) fn reading(url: &StoreUrl) -> Result<String> {
    Location::from_url(url.clone(), &mut StoreOptions::default()).map(|location| format!("{location:?}"))
}

thread_local! {
    static FILE: Connection = {
        let connection = Connection::open_in_memory().unwrap();
        connection.execute_batch(schema::TABLES).unwrap();
        // People may edit rows with other tools.
        connection.execute_batch("PRAGMA ignore_check_constraints = ON").unwrap();
        connection
    };
}

/// Asserts that a row is written back as it was read, and that a lock whose row does not parse is neither free nor
/// granted.
///
/// `data` is a JSON object of the columns that are not NULL.
pub fn sqlite_row(data: &[u8]) {
    let Some(Json::Object(columns)) = serde_json::from_slice(data).ok() else { return };
    FILE.with(|file| {
        file.execute("DELETE FROM lock", ()).unwrap();
        let named = columns.iter().filter(|(name, _)| is_column(name) && *name != "name");
        let (mut sql, mut values) = (vec!["name".to_owned()], vec![Value::Text("a".to_owned())]);
        for (name, value) in named {
            sql.push(name.clone());
            values.push(sql_value(value));
        }
        let marks = vec!["?"; values.len()].join(",");
        let insert = format!("INSERT INTO lock ({}) VALUES ({marks})", sql.join(","));
        // The insert may fail. The tables are strict, so not every value fits into every column.
        if file.execute(&insert, rusqlite::params_from_iter(values)).is_ok() {
            judged(file, data);
        }
    });
}

fn judged(file: &Connection, data: &[u8]) {
    let name = LockName::new("a").unwrap();
    assert_eq!(names(file, "", None, 10).unwrap_or_default(), ["a"]);
    let row = match load(file, &name) {
        Ok(row) => row.unwrap(),
        Err(error) => {
            let error = error.at(Path::new("locks.db"));
            assert!(matches!(error.fault().kind, ErrorKind::Corrupt | ErrorKind::Unsupported), "{error:?}");
            return assert_readable_fault(error.fault());
        }
    };
    assert!(row.record.token.get() < Token::LIMIT && row.record.ttl().get() >= Ttl::MIN);
    assert_readable(&row.record.holder.to_string());
    store(file, &name, &row).unwrap();
    assert_eq!(load(file, &name).unwrap().unwrap(), row);
    let env = Env::seeded(Arc::new(StandingClock::default()), seed(data));
    let claim = Claim::new(&env, name, Ttl::DEFAULT, Holder::default());
    let machine = Machine { boot: "container:1".to_owned(), me: None };
    let content = row.content();
    match Evidence::of(Some(&row), &machine, env.clock.now()).judge(&claim, Some(&content)) {
        Claimed::Grantable { over, .. } => assert_eq!(over, Some(&row.record)),
        Claimed::Taken(held) => {
            assert_ne!(row.record.state, RecordState::Free);
            assert_readable(&held.to_string());
        }
        other => panic!("{other:?}"),
    }
}

fn is_column(name: &str) -> bool {
    !name.is_empty()
        && schema::TABLES
            .split_once("counter")
            .is_some_and(|(lock, _)| lock.contains(&format!("    {name} ")))
}

fn sql_value(json: &Json) -> Value {
    match json {
        Json::Null => Value::Null,
        Json::Bool(value) => Value::Integer((*value).into()),
        Json::Number(number) => {
            number.as_i64().map_or(Value::Real(number.as_f64().unwrap_or(0.0)), Value::Integer)
        }
        Json::String(text) => Value::Text(text.clone()),
        // JSON columns contain their JSON as text.
        Json::Array(_) | Json::Object(_) => Value::Text(json.to_string()),
    }
}
