//! Evaluates DynamoDB's expressions on one item, while it parses them: conditions, and the clauses `SET` and `REMOVE`
//! of updates, on attributes of the top level.

use std::cmp::Ordering;
use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::{Item, Refusal};

/// The longest expression, in bytes.
const MOST_BYTES: usize = 4_096;

/// The expressions of a request.
pub(super) struct Expressions<'a> {
    names: &'a Value,
    values: &'a Value,
    item: Option<&'a Item>,
    /// The placeholders that expressions have used.
    used: BTreeSet<String>,
    rest: Vec<String>,
    /// Why the update cannot be applied to the item, although it has a valid form.
    failed: Option<Refusal>,
}

impl<'a> Expressions<'a> {
    /// Reads the placeholders of `request`. Its expressions are about `item`.
    pub(super) fn of(request: &'a Value, item: Option<&'a Item>) -> Self {
        let (names, values) = (&request["ExpressionAttributeNames"], &request["ExpressionAttributeValues"]);
        Self { names, values, item, used: BTreeSet::new(), rest: Vec::new(), failed: None }
    }

    /// Returns whether `condition` holds.
    pub(super) fn holds(&mut self, condition: &str) -> Result<bool, Refusal> {
        self.rest = words(condition)?;
        let holds = self.or()?;
        self.ends()?;
        Ok(holds)
    }

    /// Returns the attributes that `update` sets or removes.
    pub(super) fn changes(&mut self, update: &str) -> Result<Vec<(String, Option<Value>)>, Refusal> {
        self.rest = words(update)?;
        let mut changes: Vec<(String, Option<Value>)> = Vec::new();
        while !self.rest.is_empty() {
            let sets = self.takes("SET");
            if !sets {
                self.expect("REMOVE")?;
            }
            loop {
                let name = self.name()?;
                if changes.iter().any(|(changed, _)| *changed == name) {
                    return Err(Refusal::invalid(format!("two document paths overlap: {name}")));
                }
                let value = if sets { Some(self.assigned()?) } else { None };
                changes.push((name, value));
                if !self.takes(",") {
                    break;
                }
            }
        }
        Ok(changes)
    }

    /// Returns why the update cannot be applied, if it was parsed. The server checks the condition first.
    pub(super) fn failed(&mut self) -> Result<(), Refusal> {
        self.failed.take().map_or(Ok(()), Err)
    }

    /// Refuses placeholders that no expression has used.
    pub(super) fn all_used(&self) -> Result<(), Refusal> {
        for defined in [self.names, self.values].into_iter().filter_map(Value::as_object) {
            if defined.is_empty() || defined.keys().any(|name| !self.used.contains(name)) {
                return Err(Refusal::invalid(format!("unused in expressions: {:?}", defined.keys())));
            }
        }
        Ok(())
    }

    fn or(&mut self) -> Result<bool, Refusal> {
        let mut holds = self.and()?;
        while self.takes("OR") {
            holds |= self.and()?;
        }
        Ok(holds)
    }

    fn and(&mut self) -> Result<bool, Refusal> {
        let mut holds = self.not()?;
        while self.takes("AND") {
            holds &= self.not()?;
        }
        Ok(holds)
    }

    fn not(&mut self) -> Result<bool, Refusal> {
        if self.takes("NOT") {
            return Ok(!self.not()?);
        }
        if self.takes("(") {
            let holds = self.or()?;
            self.expect(")")?;
            return Ok(holds);
        }
        for (function, expected) in [("attribute_exists", true), ("attribute_not_exists", false)] {
            if self.takes(function) {
                self.expect("(")?;
                let exists = self.path()?.is_some();
                self.expect(")")?;
                return Ok(exists == expected);
            }
        }
        let (left, operator, right) = (self.operand()?, self.next()?, self.operand()?);
        let order = order(left.as_ref(), right.as_ref());
        Ok(match operator.as_str() {
            "=" => order == Some(Ordering::Equal),
            "<>" => order != Some(Ordering::Equal),
            "<" => order == Some(Ordering::Less),
            "<=" => order.is_some_and(Ordering::is_le),
            ">" => order == Some(Ordering::Greater),
            ">=" => order.is_some_and(Ordering::is_ge),
            _ => return Err(Refusal::invalid(format!("no comparison: {operator}"))),
        })
    }

    /// Reads `= a`, `= a + b` or `= a - b`.
    fn assigned(&mut self) -> Result<Value, Refusal> {
        self.expect("=")?;
        let first = self.present()?;
        let sign = if self.takes("+") {
            1
        } else if self.takes("-") {
            -1
        } else {
            return Ok(first);
        };
        let second = self.present()?;
        let sum = number(&first).zip(number(&second)).map(|(first, second)| first + sign * second);
        Ok(sum.map_or_else(
            || self.fails("incorrect operand type for + or -"),
            |sum| json!({"N": sum.to_string()}),
        ))
    }

    /// Reads an operand of an update.
    fn present(&mut self) -> Result<Value, Refusal> {
        let value = if self.takes("if_not_exists") {
            self.expect("(")?;
            let there = self.path()?;
            self.expect(",")?;
            let value = Some(self.present()?);
            self.expect(")")?;
            there.or(value)
        } else {
            self.operand()?
        };
        Ok(value.unwrap_or_else(|| self.fails("an attribute that does not exist in the item")))
    }

    fn fails(&mut self, why: &str) -> Value {
        self.failed.get_or_insert_with(|| Refusal::invalid(why));
        Value::Null
    }

    fn operand(&mut self) -> Result<Option<Value>, Refusal> {
        if !self.rest.first().is_some_and(|word| word.starts_with(':')) {
            return self.path();
        }
        let name = self.next()?;
        let value = self.values.get(&name).cloned();
        let value = value.ok_or_else(|| Refusal::invalid(format!("the value {name} is not defined")))?;
        self.used.insert(name);
        Ok(Some(value))
    }

    /// Reads a path, and returns the attribute there.
    fn path(&mut self) -> Result<Option<Value>, Refusal> {
        let name = self.name()?;
        let mut found = self.item.and_then(|item| item.get(&name)).cloned();
        while self.takes(".") {
            let name = self.name()?;
            found = found.and_then(|map| map["M"].get(&name).cloned());
        }
        Ok(found)
    }

    fn name(&mut self) -> Result<String, Refusal> {
        let word = self.next()?;
        if !word.starts_with('#') {
            let is_name = word.starts_with(|c: char| c.is_ascii_alphabetic());
            return if is_name { Ok(word) } else { Err(Refusal::invalid(format!("no name: {word}"))) };
        }
        let name = self.names[&word].as_str().map(str::to_owned);
        let name = name.ok_or_else(|| Refusal::invalid(format!("the name {word} is not defined")))?;
        self.used.insert(word);
        Ok(name)
    }

    fn takes(&mut self, word: &str) -> bool {
        let takes = self.rest.first().is_some_and(|next| next.eq_ignore_ascii_case(word));
        if takes {
            self.rest.remove(0);
        }
        takes
    }

    fn expect(&mut self, word: &str) -> Result<(), Refusal> {
        let found = self.rest.first().cloned();
        if self.takes(word) {
            Ok(())
        } else {
            Err(Refusal::invalid(format!("{word} is expected, not {found:?}")))
        }
    }

    fn next(&mut self) -> Result<String, Refusal> {
        if self.rest.is_empty() {
            return Err(Refusal::invalid("the expression ends too early"));
        }
        Ok(self.rest.remove(0))
    }

    fn ends(&self) -> Result<(), Refusal> {
        self.rest.first().map_or(Ok(()), |word| Err(Refusal::invalid(format!("{word} is not expected"))))
    }
}

/// Splits an expression into names, placeholders and signs.
fn words(text: &str) -> Result<Vec<String>, Refusal> {
    if text.is_empty() || text.len() > MOST_BYTES {
        return Err(Refusal::invalid("the expression is empty or too long"));
    }
    let (mut rest, mut words) = (text.trim_start(), Vec::new());
    while let Some(first) = rest.chars().next() {
        let is_word = |c: char| c.is_ascii_alphanumeric() || "_#:".contains(c);
        let length = match rest.find(|c| !is_word(c)).unwrap_or(rest.len()) {
            0 if ["<>", "<=", ">="].iter().any(|sign| rest.starts_with(sign)) => 2,
            0 => first.len_utf8(),
            length => length,
        };
        let (word, after) = rest.split_at(length);
        words.push(word.to_owned());
        rest = after.trim_start();
    }
    Ok(words)
}

fn number(value: &Value) -> Option<i128> {
    value["N"].as_str()?.parse().ok()
}

/// Returns how two attributes compare. `None` if one is missing, or if they differ and have no order.
fn order(left: Option<&Value>, right: Option<&Value>) -> Option<Ordering> {
    let (left, right) = (left?, right?);
    let text = |value: &Value| value["S"].as_str().map(str::to_owned);
    let by_number = number(left).zip(number(right)).map(|(left, right)| left.cmp(&right));
    let by_text = text(left).zip(text(right)).map(|(left, right)| left.cmp(&right));
    by_number.or(by_text).or_else(|| (left == right).then_some(Ordering::Equal))
}
