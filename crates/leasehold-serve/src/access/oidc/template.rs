//! Texts made of a token's claims, and conditions on claims.

use leasehold::LockName;
use leasehold::lease::printable;
use serde_json::Value;

/// The longest text made of claims, in characters. With the issuer's name, it is not longer than a holder's name may be.
const MOST_TEXT: usize = 160;

/// A text with claims in braces: `ci/{repository}/`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Template(Vec<Part>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Text(String),
    Claim(String),
}

impl Template {
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let flaw = || format!("`{text}` is not a text with claims in braces, such as `ci/{{repository}}/`");
        let mut parts = Vec::new();
        let mut rest = text;
        while !rest.is_empty() {
            let (plain, behind) = rest.split_once('{').map_or((rest, None), |(a, b)| (a, Some(b)));
            if plain.contains('}') {
                return Err(flaw());
            }
            if !plain.is_empty() {
                parts.push(Part::Text(plain.to_owned()));
            }
            let Some(behind) = behind else { break };
            let (claim, behind) = behind.split_once('}').ok_or_else(flaw)?;
            if claim.is_empty() || claim.contains('{') {
                return Err(flaw());
            }
            parts.push(Part::Claim(claim.to_owned()));
            rest = behind;
        }
        Ok(Self(parts))
    }

    /// A template for the prefix of a rule. Each claim is whole segments of it, and it ends with `/`, so that the prefix
    /// of one token covers no name of another: `{a}-{b}/` would be the same for `x-y`, `z` and `x`, `y-z`.
    pub(super) fn prefix(text: &str) -> Result<Self, String> {
        let template = Self::parse(text)?;
        for (at, part) in template.0.iter().enumerate() {
            let Part::Claim(claim) = part else { continue };
            let before = at.checked_sub(1).map(|at| &template.0[at]);
            let begins = before.is_none_or(|part| matches!(part, Part::Text(text) if text.ends_with('/')));
            let after = template.0.get(at + 1);
            let ends = matches!(after, Some(Part::Text(text)) if text.starts_with('/'));
            if !begins || !ends {
                return Err(format!(
                    "in the prefix `{text}`, `{{{claim}}}` must be between `/`, as in `ci/{{{claim}}}/`"
                ));
            }
        }
        if !text.is_empty() && !text.ends_with('/') {
            return Err(format!("the prefix `{text}` of an issuer's rule must end with `/`"));
        }
        Ok(template)
    }

    /// The text with the values of `claims`.
    ///
    /// # Errors
    /// Names a claim that is missing, no text, or not printable. Repeats no value.
    pub(super) fn text(&self, claims: &Value) -> Result<String, String> {
        let mut text = String::new();
        for part in &self.0 {
            text.push_str(match part {
                Part::Text(text) => text,
                Part::Claim(name) => string(claims, name)?,
            });
        }
        if text.is_empty() || printable(&text, MOST_TEXT) != text {
            return Err(format!("its claims do not make a printable text of at most {MOST_TEXT} characters"));
        }
        Ok(text)
    }

    /// The prefix of lock names with the values of `claims`; `None` if they do not make one. A value with `/` counts in
    /// the last place alone: elsewhere `a/b`, `c` and `a`, `b/c` would make the same prefix.
    pub(super) fn prefix_of(&self, claims: &Value) -> Option<String> {
        let last = self.0.iter().rposition(|part| matches!(part, Part::Claim(_)));
        let mut prefix = String::new();
        for (at, part) in self.0.iter().enumerate() {
            match part {
                Part::Text(text) => prefix.push_str(text),
                Part::Claim(name) => {
                    let value = string(claims, name).ok()?;
                    // No empty segment, no `..`, no control character.
                    LockName::new(value).ok()?;
                    if value.contains('/') && Some(at) != last {
                        return None;
                    }
                    prefix.push_str(value);
                }
            }
        }
        Some(prefix)
    }
}

/// What a token's claim must be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Condition {
    claim: String,
    pattern: Pattern,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Pattern {
    /// This value.
    Is(String),
    /// This, and at least one more character.
    Begins(String),
}

impl Condition {
    pub(super) fn parse(claim: String, pattern: String) -> Result<Self, String> {
        let pattern = match pattern.strip_suffix('*') {
            // `my-org*` would let in `my-organisation`.
            Some(begin) if begin.ends_with(['/', ':']) && !begin.contains('*') => {
                Pattern::Begins(begin.to_owned())
            }
            None if !pattern.is_empty() && !pattern.contains('*') => Pattern::Is(pattern),
            _ => {
                return Err(format!(
                    "the claim `{claim}` = `{pattern}` is not a whole value, nor one that ends with `/*` or `:*`"
                ));
            }
        };
        Ok(Self { claim, pattern })
    }

    /// Whether the claim has the value; of a list, whether one of its members has it.
    pub(super) fn holds(&self, claims: &Value) -> bool {
        match claim(claims, &self.claim) {
            Some(Value::String(value)) => self.pattern.matches(value),
            Some(Value::Array(values)) => {
                values.iter().filter_map(Value::as_str).any(|value| self.pattern.matches(value))
            }
            _ => false,
        }
    }
}

impl Pattern {
    fn matches(&self, value: &str) -> bool {
        match self {
            Self::Is(text) => value == text,
            Self::Begins(text) => value.strip_prefix(text.as_str()).is_some_and(|rest| !rest.is_empty()),
        }
    }
}

/// The claim `name`. With `/` in front, it is a JSON pointer to one inside another: `/kubernetes.io/namespace`.
fn claim<'a>(claims: &'a Value, name: &str) -> Option<&'a Value> {
    if name.starts_with('/') { claims.pointer(name) } else { claims.get(name) }
}

fn string<'a>(claims: &'a Value, name: &str) -> Result<&'a str, String> {
    let value = claim(claims, name).ok_or_else(|| format!("it has no claim `{name}`"))?;
    match value.as_str() {
        Some(value) if !value.is_empty() => Ok(value),
        _ => Err(format!("its claim `{name}` is no text, or empty")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_text_has_the_values_of_claims() {
        let claims = json!({"sub": "x", "repository": "org/app", "kubernetes.io": {"namespace": "ci"}});
        for (template, text) in [
            ("{sub}", "x"),
            ("of {repository} by {sub}", "of org/app by x"),
            ("{/kubernetes.io/namespace}", "ci"),
            ("plain", "plain"),
        ] {
            assert_eq!(Template::parse(template).unwrap().text(&claims).unwrap(), text);
        }
        for bad in ["{", "}", "{}", "{a", "a}", "{{a}}", "{a{b}}", "a}{b"] {
            assert!(Template::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_value_that_is_no_printable_text_makes_no_text() {
        let template = Template::parse("{a}").unwrap();
        for value in [
            json!(null),
            json!(7),
            json!(true),
            json!(["x"]),
            json!({"x": "y"}),
            json!(""),
            json!("a\nb"),
            json!("a\u{202e}b"),
            json!("x".repeat(161)),
        ] {
            let refused = template.text(&json!({"a": value, "b": "secret"})).unwrap_err();
            assert!(refused.contains("claim"), "{value}: {refused}");
        }
        assert!(template.text(&json!({})).is_err());
        assert!(template.text(&json!({"a": "x".repeat(160)})).is_ok());
    }

    #[test]
    fn a_prefix_covers_whole_segments() {
        for bad in ["ci", "ci/{a}", "ci{a}/", "{a}-{b}/", "{a}{b}/", "ci/{a}x/", "ci/{a}/prod", "ci/{a"] {
            assert!(Template::prefix(bad).is_err(), "{bad}");
        }
        for good in ["", "ci/", "{a}/", "ci/{a}/", "ci/{a}/{b}/", "ci/{a}/prod/"] {
            assert!(Template::prefix(good).is_ok(), "{good}");
        }
    }

    #[test]
    fn a_value_that_leaves_its_place_makes_no_prefix() {
        let prefix = |value| Template::prefix("ci/{a}/").unwrap().prefix_of(&json!({ "a": value }));
        assert_eq!(prefix(json!("org/app")).unwrap(), "ci/org/app/");
        for bad in [
            "",
            "/",
            "..",
            ".",
            "org/..",
            "../prod",
            "/org",
            "org/",
            "org//app",
            "a\nb",
            "a\0b",
            "a\u{200b}b",
        ] {
            assert_eq!(prefix(json!(bad)), None, "{bad:?}");
        }
        assert_eq!(prefix(json!(["org"])), None);
        assert_eq!(prefix(json!(null)), None);
        assert_eq!(Template::prefix("ci/{a}/").unwrap().prefix_of(&json!({})), None);
    }

    #[test]
    fn two_tokens_do_not_make_the_same_prefix() {
        let template = Template::prefix("{a}/{b}/").unwrap();
        assert_eq!(template.prefix_of(&json!({"a": "x/y", "b": "z"})), None);
        assert_eq!(template.prefix_of(&json!({"a": "x", "b": "y/z"})).unwrap(), "x/y/z/");
    }

    #[test]
    fn a_condition_is_a_value_or_a_beginning() {
        let holds = |pattern: &str, value: Value| {
            let condition = Condition::parse("a".to_owned(), pattern.to_owned()).unwrap();
            condition.holds(&json!({ "a": value }))
        };
        assert!(holds("my-org/*", json!("my-org/app")) && holds("repo:*", json!("repo:x")));
        assert!(!holds("my-org/*", json!("my-org/")) && !holds("my-org/*", json!("my-organisation/app")));
        assert!(
            holds("main", json!("main")) && !holds("main", json!("main2")) && !holds("main", json!("Main"))
        );
        assert!(holds("admins", json!(["users", "admins"])) && !holds("admins", json!(["users", 7])));
        assert!(!holds("true", json!(true)) && !holds("7", json!(7)) && !holds("x", json!(null)));
        assert!(!Condition::parse("a".into(), "x".into()).unwrap().holds(&json!({"b": "x"})));
        for bad in ["", "*", "my-org*", "*/app", "my-*/app", "a/**"] {
            assert!(Condition::parse("a".to_owned(), bad.to_owned()).is_err(), "{bad}");
        }
    }
}
