//! [`Fields`]: the fields of a request, which are removed one by one. Fields that are left at the end are unknown and
//! refused.
//!
//! Errors name fields but never repeat values, because a value may be a ticket or a URL with a password.

use std::ops::RangeInclusive;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use leasehold::{LockName, Locks, Ticket, Token};
use serde_json::{Map, Value};

use super::refusal::Refusal;
use crate::output::human;

/// The largest integer that every JSON reader reads exactly.
const MAX_INTEGER: u64 = (1 << 53) - 1;
/// The maximum length of a field's name in an error, in characters.
const MAX_SHOWN: usize = 40;

/// The fields of a request that have not been used yet.
#[derive(Debug)]
pub(super) struct Fields(Map<String, Value>);

/// The reason why a line belongs to no request: it is not JSON, is not an object, or has no valid id.
#[derive(Debug)]
pub(super) struct Unassignable(pub(super) &'static str);

impl Fields {
    /// Parses a line. Returns the id of the request and its other fields.
    pub(super) fn parse(line: &[u8]) -> Result<(u64, Self), Unassignable> {
        let value = serde_json::from_slice(line).map_err(|_| Unassignable("a line that is not JSON"))?;
        let Value::Object(mut map) = value else {
            return Err(Unassignable("a line that is not a JSON object"));
        };
        let id = map.remove("id").and_then(|id| id.as_u64()).filter(|id| *id <= MAX_INTEGER);
        let id = id.ok_or(Unassignable("a line without an `id` from 0 to 2^53 - 1"))?;
        map.retain(|_, value| !value.is_null());
        Ok((id, Self(map)))
    }

    /// Takes the field `name`, a string.
    pub(super) fn text(&mut self, name: &str) -> Result<Option<String>, Refusal> {
        match self.0.remove(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => Err(Refusal::invalid(format!("`{name}` is not a string"))),
        }
    }

    /// Takes the field `name`: `true` or `false`, by default `false`.
    pub(super) fn flag(&mut self, name: &str) -> Result<bool, Refusal> {
        match self.0.remove(name) {
            None => Ok(false),
            Some(Value::Bool(flag)) => Ok(flag),
            Some(_) => Err(Refusal::invalid(format!("`{name}` is not true or false"))),
        }
    }

    /// Takes the field `name`, an integer in `range`.
    pub(super) fn integer(&mut self, name: &str, range: RangeInclusive<u64>) -> Result<Option<u64>, Refusal> {
        let Some(value) = self.0.remove(name) else { return Ok(None) };
        match value.as_u64().filter(|number| range.contains(number)) {
            Some(number) => Ok(Some(number)),
            None => {
                let (least, most) = range.into_inner();
                Err(Refusal::invalid(format!("`{name}` is not an integer from {least} to {most}")))
            }
        }
    }

    /// Takes the field `name`, a duration from `least` to `most` in milliseconds. An error about the range names what a
    /// user of a client has written: a `ttl`, in any unit.
    pub(super) fn milliseconds(
        &mut self,
        name: &str,
        least: u64,
        most: Duration,
    ) -> Result<Option<Duration>, Refusal> {
        let Some(value) = self.0.remove(name) else { return Ok(None) };
        let no_number = || Refusal::invalid(format!("`{name}` is not a number of milliseconds"));
        let given = Duration::from_millis(value.as_u64().ok_or_else(no_number)?);
        let least = Duration::from_millis(least);
        if (least..=most).contains(&given) {
            return Ok(Some(given));
        }
        let (argument, [least, most]) = (name.trim_end_matches("_ms"), [least, most].map(human::span));
        Err(Refusal::invalid(format!("`{argument}` is not from {least} to {most}")))
    }

    /// Takes the field `name`, the number of a request or a hold. It is required.
    pub(super) fn number(&mut self, name: &str) -> Result<u64, Refusal> {
        self.integer(name, 0..=MAX_INTEGER)?.ok_or_else(|| missing(name))
    }

    /// Takes the field `name`, a list of at most `most` numbers of holds. By default, it is empty.
    pub(super) fn numbers(&mut self, name: &str, most: usize) -> Result<Vec<u64>, Refusal> {
        let refusal = || Refusal::invalid(format!("`{name}` is not a list of at most {most} holds"));
        match self.0.remove(name) {
            None => Ok(Vec::new()),
            Some(Value::Array(list)) if list.len() <= most => {
                list.iter().map(|number| number.as_u64().ok_or_else(refusal)).collect()
            }
            Some(_) => Err(refusal()),
        }
    }

    /// Takes the field `name`, a fencing token.
    pub(super) fn token(&mut self, name: &str) -> Result<Option<Token>, Refusal> {
        Ok(self.integer(name, 0..=MAX_INTEGER)?.and_then(Token::new))
    }

    /// Takes the field `lock`, the name of a lock. It is required.
    pub(super) fn lock(&mut self) -> Result<LockName, Refusal> {
        let name = self.text("lock")?.ok_or_else(|| missing("lock"))?;
        LockName::new(&name).map_err(|error| leasehold::Error::from(error).into())
    }

    /// Takes the field `lock`, or `locks`, the names of several locks. One of them is required. Returns at least one
    /// name, in the order of acquisition.
    pub(super) fn locks(&mut self) -> Result<Vec<LockName>, Refusal> {
        let Some(given) = self.0.remove("locks") else { return Ok(vec![self.lock()?]) };
        if self.0.contains_key("lock") {
            return Err(Refusal::invalid("`lock` and `locks` are both given"));
        }
        let invalid = || Refusal::invalid("`locks` is not an array of strings");
        let names =
            given.as_array().ok_or_else(invalid)?.iter().map(|name| name.as_str().ok_or_else(invalid));
        let names = names.map(|name| Ok(LockName::new(name?).map_err(leasehold::Error::from)?));
        Ok(Locks::in_order(names.collect::<Result<_, Refusal>>()?)?)
    }

    /// Takes the field `ticket`. It is required.
    pub(super) fn ticket(&mut self) -> Result<Ticket, Refusal> {
        let text = self.text("ticket")?.ok_or_else(|| missing("ticket"))?;
        Ok(text.parse::<Ticket>()?)
    }

    /// Takes the field `name`, bytes in base64.
    pub(super) fn bytes(&mut self, name: &str) -> Result<Option<Vec<u8>>, Refusal> {
        let Some(text) = self.text(name)? else { return Ok(None) };
        STANDARD.decode(text).map(Some).map_err(|_| Refusal::invalid(format!("`{name}` is not base64")))
    }

    /// Returns an error if a field has not been used.
    pub(super) fn finish(self, operation: &str) -> Result<(), Refusal> {
        match self.0.keys().next() {
            None => Ok(()),
            Some(name) => {
                let name: String = name.chars().take(MAX_SHOWN).collect();
                Err(Refusal::invalid(format!("`{operation}` has no field `{name}`")))
            }
        }
    }
}

/// Returns the error for a field that is missing.
pub(super) fn missing(name: &str) -> Refusal {
    Refusal::invalid(format!("`{name}` is missing"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(text: &str) -> Fields {
        Fields::parse(text.as_bytes()).unwrap().1
    }

    #[test]
    fn a_line_without_an_id_belongs_to_no_request() {
        for line in [
            "",
            "7",
            "{",
            "[]",
            "{}",
            r#"{"id":-1}"#,
            r#"{"id":1.5}"#,
            r#"{"id":"1"}"#,
            r#"{"id":9007199254740992}"#,
        ] {
            assert!(Fields::parse(line.as_bytes()).is_err(), "{line}");
        }
        assert_eq!(Fields::parse(br#"{"id":9007199254740991}"#).unwrap().0, MAX_INTEGER);
    }

    #[test]
    fn an_error_names_the_field_and_never_its_value() {
        let text = r#"{"id":1,"a":"hunter2","b":7,"ticket":"lh2_hunter2","d":"hunter2"}"#;
        let second = Duration::from_secs(1);
        let errors = [
            fields(text).flag("a").unwrap_err(),
            fields(text).text("b").unwrap_err(),
            fields(text).milliseconds("a", 1, second).unwrap_err(),
            fields(text).token("a").unwrap_err(),
            fields(text).number("a").unwrap_err(),
            fields(text).numbers("a", 1).unwrap_err(),
            fields(r#"{"id":1,"c":[1,2]}"#).numbers("c", 1).unwrap_err(),
            fields(r#"{"id":1,"c":["hunter2"]}"#).numbers("c", 1).unwrap_err(),
            fields(text).number("c").unwrap_err(),
            fields(text).ticket().unwrap_err(),
            fields(text).finish("status").unwrap_err(),
        ];
        for error in errors {
            assert_eq!(error.kind, "invalid");
            assert!(!format!("{error:?}").contains("hunter2"), "{error:?}");
        }
    }

    #[test]
    fn null_counts_as_absent_and_numbers_keep_their_limits() {
        let mut given = fields(r#"{"id":1,"a":null,"b":5,"t":7,"u":"7","v":9007199254740992}"#);
        assert_eq!(given.text("a").unwrap(), None);
        assert!(fields(r#"{"id":1,"b":5}"#).integer("b", 6..=9).is_err());
        assert_eq!(given.integer("b", 5..=9).unwrap(), Some(5));
        assert_eq!(given.token("t").unwrap(), Token::new(7));
        assert!(given.token("u").is_err() && given.token("v").is_err());
        given.finish("x").unwrap();
    }
}
