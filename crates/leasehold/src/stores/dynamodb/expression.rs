//! Builds the updates of an item in DynamoDB's expression language. Each update names the attributes that it sets and
//! removes, so the attributes of other clients remain.

use std::collections::HashMap;

use super::AttributeValue;
use super::dialect::Dialect;
use super::item::{
    self, AWAITED, Attributes, HISTORY, Item, RELEASED, RENEWED, SEEN, SERVED, SIZE, TOKEN, n, s,
};
use crate::lease::{Id, Token};
use crate::protocol::record::{FORMAT, Record};
use crate::register::{Precondition, Version};

/// The expressions of a conditional `UpdateItem` or `DeleteItem`.
#[derive(Clone, Debug)]
pub(super) struct Expression {
    /// `None` to change nothing, or to delete the item.
    pub(super) update: Option<String>,
    pub(super) condition: String,
    /// Maps `#name` to `name`, so that the name of an attribute may be a reserved word.
    pub(super) names: HashMap<String, String>,
    pub(super) values: Item,
}

/// Holds if there is no item.
const ABSENT: &str = "attribute_not_exists(#key)";

/// Holds if the item is as it was read. Every write of any client gives the item a new version, except another client's
/// release, which only frees the lock.
const UNCHANGED: &str = "#recordVersionNumber = :seenVersion";

/// The same for a record of ours. See [`item::version_of`].
const OURS_UNCHANGED: &str = "#recordVersionNumber = :seenVersion AND #fencingToken = :seenToken";

/// The same for a record of ours that was not awaited. Does not hold if a waiter has marked the record since.
const OURS_UNCHANGED_AND_UNMARKED: &str = "#recordVersionNumber = :seenVersion AND #fencingToken = :seenToken \
     AND attribute_not_exists(#awaited)";

/// Holds for a free record of ours that has a known format, that no other client has changed, and whose token can be
/// incremented. An unconfirmed record does not qualify, because its token may be lower than earlier tokens. Another
/// client's item does not qualify, because its token may be old. The latest grant must not be that of this claim,
/// because a late copy of the claim's request must not be granted over the claim's own release. No process may wait,
/// because the first in line comes first.
const OUR_FREE_RECORD: &str = "#isReleased = :released AND #leasehold.#version = #recordVersionNumber \
     AND #leasehold.#format = :format AND attribute_not_exists(#leasehold.#unconfirmed) AND #fencingToken < :lastToken \
     AND #leasehold.#grant <> :grant AND attribute_not_exists(#awaited)";

/// Writes `record`, with these `attributes`, over the item that `expect` describes. `before` is the record that was
/// read there. Attributes that the item already has are not sent again: they would change nothing, and the store parses
/// every part of an expression.
pub(super) fn write(
    record: &Record,
    attributes: Attributes,
    expect: Precondition<'_>,
    before: Option<&Record>,
) -> Expression {
    // Only a version of ours shows that no other client has changed the item.
    let ours = matches!(expect, Precondition::Version(version) if item::expected(version).1.is_some());
    let before = before.filter(|_| ours);
    let mut set = attributes;
    set.push((TOKEN, n(record.token.get())));
    // For the same grant, an unchanged field has an unchanged attribute. The attributes of another grant may have been
    // written in another dialect.
    if let Some(before) = before.filter(|before| before.grant == record.grant) {
        set.retain(|(name, _)| !item::stays(name, before, record));
    }
    let mut expression = Draft::default();
    expression.set_or_remove(set, &[RENEWED, RELEASED, SEEN, AWAITED, SERVED]);
    if before.is_some_and(|before| before.size != 0) && record.size == 0 {
        expression.removes.push(format!("#{SIZE}"));
    }
    // The history is half of an item, and most writes do not change it.
    if before.is_none_or(|before| before.history != record.history) {
        let history = item::history_of(record).map(|history| (HISTORY, history));
        expression.set_or_remove(history.into_iter().collect(), &[HISTORY]);
    }
    expression.build_over(expect)
}

/// Grants `record` over any free record of ours. Increments the token of that record and keeps its history and its size.
///
/// Tokens then keep rising even if the record is later deleted by hand. The tokens of a record begin at the store's
/// time in microseconds, and each increment takes longer than a microsecond. So they stay below the store's time, at
/// which the tokens begin again after a deletion.
pub(super) fn claim(record: &Record, dialect: Dialect) -> Expression {
    let mut expression = Draft::default();
    expression.sets.push("#fencingToken = #fencingToken + :one".to_owned());
    expression.value(":one", n(1));
    expression.set_or_remove(item::attributes(record, dialect), &[RENEWED, RELEASED, SEEN]);
    expression.keep("#permits = :permits", "#permits = if_not_exists(#permits, :permits)");
    expression.value(":released", s("1"));
    expression.value(":format", n(FORMAT));
    expression.value(":grant", s(record.grant.to_string()));
    expression.value(":lastToken", n(Token::LIMIT - 1));
    expression.build(OUR_FREE_RECORD)
}

/// Records that `version` existed at `at_us`.
pub(super) fn stamp(version: &Version, at_us: u64) -> Expression {
    let (number, _) = item::expected(version);
    let seen = Item::from([("version".to_owned(), s(number)), ("at".to_owned(), n(at_us))]);
    let mut expression = Draft::default();
    expression.set_or_remove(vec![(SEEN, AttributeValue::M(seen))], &[]);
    expression.build_over(Precondition::Version(version))
}

/// Marks the lock of `version` as awaited.
pub(super) fn mark(version: &Version) -> Expression {
    let mut expression = Draft::default();
    expression.set_or_remove(vec![(AWAITED, AttributeValue::Bool(true))], &[]);
    expression.build_over(Precondition::Version(version))
}

/// Writes a line of waiters.
pub(super) fn line(line: Attributes, expect: Precondition<'_>) -> Expression {
    let mut expression = Draft::default();
    expression.set_or_remove(line, &[]);
    expression.build_over(expect)
}

/// Writes a token beside a line of waiters. Expects the token `seen` there, or none. Keeps the line, if there is one.
pub(super) fn token(attributes: Attributes, seen: Option<u64>) -> Expression {
    let mut expression = Draft::default();
    expression.set_or_remove(attributes, &[]);
    expression.keep("#line = :line", "#line = if_not_exists(#line, :line)");
    match seen {
        Some(seen) => {
            expression.value(":seenToken", n(seen));
            expression.build("#fencingToken = :seenToken")
        }
        None => expression.build("attribute_not_exists(#fencingToken)"),
    }
}

/// Returns the condition for deleting exactly `version`.
pub(super) fn discard(version: &Version) -> Expression {
    Draft::default().build_over(Precondition::Version(version))
}

/// The number of attributes in a racing write. With more attributes, a non-atomic server takes longer between its check
/// and its write, and other writes are more likely to come in between.
const RACE_ATTRIBUTES: usize = 50;

/// Writes `nonce` in a race. Expects the nonce `seen` or, if it is `None`, no item.
pub(super) fn racing(nonce: Id, seen: Option<&str>) -> Expression {
    let mut expression = Draft::default();
    expression.value(":nonce", s(nonce.to_string()));
    expression.sets = (0..RACE_ATTRIBUTES).map(|n| format!("#p{n} = :nonce")).collect();
    expression.sets.push("#nonce = :nonce".to_owned());
    match seen {
        Some(seen) => {
            expression.value(":seen", s(seen));
            expression.build(SAME_NONCE)
        }
        None => {
            let absent = (0..RACE_ATTRIBUTES).map(|n| format!(" AND attribute_not_exists(#p{n})"));
            expression.build(&format!("{ABSENT}{}", absent.collect::<String>()))
        }
    }
}

/// Holds if the item still has the nonce that was seen.
const SAME_NONCE: &str = "#nonce = :seen";

/// Returns the condition for deleting an item that was written to prove the server, if it has the nonce `seen`.
pub(super) fn proven(seen: &str) -> Expression {
    let mut expression = Draft::default();
    expression.value(":seen", s(seen));
    expression.build(SAME_NONCE)
}

/// Writes `marker`. Expects the nonce `seen` or, if it is `None`, no marker.
pub(super) fn marker(marker: String, nonce: Id, seen: Option<&str>) -> Expression {
    let mut expression = Draft::default();
    expression.sets.extend(["#marker = :marker", "#nonce = :nonce"].map(str::to_owned));
    expression.value(":marker", s(marker));
    expression.value(":nonce", s(nonce.to_string()));
    match seen {
        Some(seen) => {
            expression.value(":seen", s(seen));
            expression.build(SAME_NONCE)
        }
        None => expression.build("attribute_not_exists(#nonce)"),
    }
}

#[derive(Default)]
struct Draft {
    sets: Vec<String>,
    removes: Vec<String>,
    values: Item,
}

impl Draft {
    /// Sets `attributes`, and removes those of `removable` that are not among them.
    fn set_or_remove(&mut self, attributes: Attributes, removable: &[&'static str]) {
        let absent = removable.iter().filter(|name| attributes.iter().all(|(set, _)| set != *name));
        self.removes.extend(absent.map(|name| format!("#{name}")));
        for (name, value) in attributes {
            self.sets.push(format!("#{name} = :{name}"));
            self.value(&format!(":{name}"), value);
        }
    }

    /// Replaces the update `set`, if there is one, by `instead`, which keeps what the item has.
    fn keep(&mut self, set: &str, instead: &str) {
        for found in self.sets.iter_mut().filter(|found| *found == set) {
            instead.clone_into(found);
        }
    }

    /// Returns the condition that the item still has `version`.
    fn expect(&mut self, version: &Version) -> &'static str {
        let (number, token) = item::expected(version);
        self.value(":seenVersion", s(number));
        match token {
            Some((token, awaited)) => {
                self.value(":seenToken", n(token.get()));
                if awaited { OURS_UNCHANGED } else { OURS_UNCHANGED_AND_UNMARKED }
            }
            None => UNCHANGED,
        }
    }

    fn value(&mut self, name: &str, value: AttributeValue) {
        self.values.insert(name.to_owned(), value);
    }

    /// Builds the expression, on the condition that the item is as expected.
    fn build_over(mut self, expect: Precondition<'_>) -> Expression {
        let condition = match expect {
            Precondition::Absent => ABSENT,
            Precondition::Version(version) => self.expect(version),
        };
        self.build(condition)
    }

    fn build(self, condition: &str) -> Expression {
        let clause = |word: &str, parts: &[String]| match parts {
            [] => None,
            parts => Some(format!("{word} {}", parts.join(", "))),
        };
        let clauses: Vec<String> =
            [clause("SET", &self.sets), clause("REMOVE", &self.removes)].into_iter().flatten().collect();
        let update = (!clauses.is_empty()).then(|| clauses.join(" "));
        let text = format!("{} {condition}", update.as_deref().unwrap_or(""));
        let names = text
            .split(|c: char| !c.is_ascii_alphanumeric() && c != '#')
            .filter_map(|word| Some((word.to_owned(), word.strip_prefix('#')?.to_owned())))
            .collect();
        Expression { update, condition: condition.to_owned(), names, values: self.values }
    }
}

#[cfg(test)]
mod tests {
    use super::super::item::tests::record;
    use super::super::item::{OURS, VERSION};
    use super::*;
    use crate::lease::Holder;
    use crate::protocol::record::RecordState;

    /// Returns what a write of `record` over `version` sets and removes, if `before` was read at that version.
    fn written(version: &Version, before: Option<&Record>, record: &Record) -> (String, String) {
        let attributes = item::attributes(record, Dialect::Java);
        let update = write(record, attributes, Precondition::Version(version), before).update.unwrap();
        let (set, remove) = update.split_once(" REMOVE ").unwrap();
        (set.to_owned(), remove.to_owned())
    }

    /// Returns a nonce that no record has.
    fn another() -> Id {
        "0123456789abcdef0123456789abcdef".parse().unwrap()
    }

    /// The history is half of an item, and most writes do not change it.
    #[test]
    fn a_history_is_sent_when_it_has_changed() {
        let before = record();
        let mut longer = Record { nonce: another(), ..before.clone() };
        longer.remember(before.history[0].clone());
        let none = Record { history: Vec::new(), ..longer.clone() };
        let ours = item::version_of(&before);
        for (seen, record, sets, removes) in [
            (Some(&before), &before, false, false),
            (Some(&before), &longer, true, false),
            (Some(&before), &none, false, true),
            (None, &before, true, false),
        ] {
            let (set, remove) = written(&ours, seen, record);
            assert_eq!((set.contains("#history"), remove.contains("#history")), (sets, removes), "{set}");
        }
    }

    /// The number of permits stays, whoever is granted the lock. Only the holder changes it.
    #[test]
    fn a_claim_keeps_the_size_and_a_write_sets_or_removes_it() {
        let (plain, sized) = (record(), Record { size: 3, ..record() });
        let claim = |record| claim(record, Dialect::Java).update.unwrap();
        assert!(claim(&sized).contains("#permits = if_not_exists(#permits, :permits)"));
        assert!(!claim(&plain).contains("#permits"));
        let version = item::version_of(&sized);
        assert!(written(&version, None, &sized).0.contains("#permits = :permits"));
        assert!(!written(&version, Some(&sized), &sized).0.contains("#permits"), "it is the same");
        assert!(written(&version, Some(&sized), &plain).1.contains("#permits"));
    }

    /// Renewals and the release of a grant leave most of the item unchanged.
    #[test]
    fn unchanged_fields_of_a_grant_are_not_sent_again() {
        let before = record();
        let nonce = another();
        let renewed = Record { heartbeat: before.heartbeat + 1, nonce, ..before.clone() };
        let holder = Holder { note: Some("another".to_owned()), ..before.holder.clone() };
        let in_cooldown =
            Record { state: RecordState::Cooldown, cooldown_ms: Some(9_000), ..renewed.clone() };
        let ours = item::version_of(&before);
        let all = ["ownerName", "leaseDuration", "holder", "fencingToken"];
        for (version, seen, record, sent) in [
            (&ours, Some(&before), renewed.clone(), &[][..]),
            (&ours, Some(&before), Record { holder, ..renewed.clone() }, &["ownerName", "holder"]),
            (&ours, Some(&before), Record { lock_delay_ms: 7, ..renewed.clone() }, &["leaseDuration"]),
            (&ours, Some(&before), in_cooldown.clone(), &["leaseDuration"]),
            (&item::version_of(&in_cooldown), Some(&in_cooldown), renewed.clone(), &["leaseDuration"]),
            (
                &item::version_of(&in_cooldown),
                Some(&in_cooldown),
                Record { cooldown_ms: Some(9_001), ..in_cooldown.clone() },
                &["leaseDuration"],
            ),
            (
                &ours,
                Some(&before),
                Record { token: Token::new(7).unwrap(), ..renewed.clone() },
                &["fencingToken"],
            ),
            (&ours, Some(&before), Record { grant: nonce, ..renewed.clone() }, &all),
            (&ours, None, renewed.clone(), &all),
            // Another client's version: our attributes in that item may be old.
            (&Version::new("v1"), Some(&before), renewed.clone(), &all),
        ] {
            let (set, _) = written(version, seen, &record);
            for name in all {
                assert_eq!(set.contains(&format!("#{name} =")), sent.contains(&name), "{name}: {set}");
            }
            for name in ["recordVersionNumber", "leasehold", "renewedAt"] {
                assert!(set.contains(&format!("#{name} =")), "{name}: {set}");
            }
        }
    }

    #[test]
    fn a_claim_counts_on_tokens_that_have_a_next_one() {
        let claim = claim(&record(), Dialect::Java);
        assert_eq!(claim.values[":lastToken"], n(Token::LIMIT - 1));
    }

    /// The constants above contain the names of attributes.
    #[test]
    fn conditions_name_attributes_that_exist() {
        for name in [item::KEY, VERSION] {
            assert!(format!("{ABSENT} {UNCHANGED}").contains(&format!("#{name}")), "{name}");
        }
        for name in [VERSION, TOKEN] {
            assert!(OURS_UNCHANGED.contains(&format!("#{name}")), "{name}");
        }
        for name in [VERSION, TOKEN, AWAITED] {
            assert!(OURS_UNCHANGED_AND_UNMARKED.contains(&format!("#{name}")), "{name}");
        }
        for name in [RELEASED, OURS, VERSION, TOKEN, AWAITED] {
            assert!(OUR_FREE_RECORD.contains(&format!("#{name}")), "{name}");
        }
    }

    /// One of AWS's clients that holds the lock must find its version unchanged.
    #[test]
    fn a_mark_sets_one_attribute() {
        for version in [Version::new("v"), item::version_of(&record())] {
            let mark = mark(&version);
            assert_eq!(mark.update.as_deref(), Some("SET #awaited = :awaited"));
            assert!(mark.condition.starts_with(UNCHANGED), "{}", mark.condition);
        }
    }

    #[test]
    fn a_write_does_not_remove_a_mark_that_it_has_not_seen() {
        for awaited in [false, true] {
            let before = Record { awaited, ..record() };
            let version = item::version_of(&before);
            let attributes = item::attributes(&before, Dialect::Java);
            let write = write(&before, attributes, Precondition::Version(&version), Some(&before));
            assert_eq!(write.condition.contains("attribute_not_exists(#awaited)"), !awaited);
            let update = write.update.unwrap();
            assert_eq!(update.contains("#awaited = :awaited"), awaited, "{update}");
        }
    }

    /// The limit is 4,096 bytes for each expression.
    #[test]
    fn racing_writes_stay_within_dynamodbs_limits() {
        let nonce = record().nonce;
        for seen in [None, Some(nonce)] {
            let racing = racing(nonce, seen.map(|nonce: Id| nonce.to_string()).as_deref());
            assert!(racing.condition.len() <= 4_096 && racing.update.unwrap().len() <= 4_096);
        }
    }

    #[test]
    fn an_expression_names_exactly_what_it_uses() {
        let stamp = stamp(&Version::new("v"), 7);
        assert_eq!(stamp.update.as_deref(), Some("SET #lastSeen = :lastSeen"));
        let mut names: Vec<_> = stamp.names.values().map(String::as_str).collect();
        names.sort_unstable();
        assert_eq!(names, ["lastSeen", "recordVersionNumber"]);
        assert_eq!(stamp.values.len(), 2);
    }
}
