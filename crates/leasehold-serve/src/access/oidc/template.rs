//! Texts that contain claims of a token, and conditions on claims.

use leasehold::LockName;
use leasehold::lease::printable;
use serde_json::Value;

/// Maximum length of a text with claims, in characters. Together with the issuer's name, it fits into a holder's name.
const MAX_PRINCIPAL: usize = 160;

/// A text with claims in braces: `ci/{repository:2}/`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Template(Vec<Part>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Text(String),
    Claim(Claim),
}

/// The place of a claim: `{name}`, or `{name:2}` for a value of exactly two segments, which are separated by `/`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Claim {
    name: String,
    segments: Option<usize>,
}

impl Claim {
    /// Parses the text in the braces. Digits after the last `:` are the number of segments. Any other `:` belongs to
    /// the name of the claim.
    fn parse(text: &str) -> Result<Self, String> {
        let number = text
            .rsplit_once(':')
            .filter(|(_, number)| !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()));
        let Some((name, number)) = number else {
            return Ok(Self { name: text.to_owned(), segments: None });
        };
        match number.as_bytes() {
            [digit @ b'1'..=b'9'] if !name.is_empty() => {
                Ok(Self { name: name.to_owned(), segments: Some(usize::from(digit - b'0')) })
            }
            _ => Err(format!("`{{{text}}}` is not a claim with a number of segments from 1 to 9")),
        }
    }
}

impl Template {
    fn parse(text: &str) -> Result<Self, String> {
        let flaw = || format!("`{text}` must be text with claims in braces, such as `ci/{{repository:2}}/`");
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
            parts.push(Part::Claim(Claim::parse(claim)?));
            rest = behind;
        }
        Ok(Self(parts))
    }

    /// Parses a template for principals. There must be a text between two claims, so that the end of the first claim is
    /// unambiguous.
    pub(super) fn principal(text: &str) -> Result<Self, String> {
        let template = Self::parse(text)?;
        for pair in template.0.windows(2) {
            if let [Part::Claim(one), Part::Claim(other)] = pair {
                return Err(format!(
                    "in the principal `{text}`, there must be text between the claims `{}` and `{}`, as in `{{a}}:{{b}}`",
                    one.name, other.name
                ));
            }
        }
        Ok(template)
    }

    /// Parses a template for the prefix of a rule. It ends with `/`, and each claim is a fixed number of whole
    /// segments. So all its prefixes have the same number of segments, and none begins with another one.
    pub(super) fn prefix(text: &str) -> Result<Self, String> {
        let template = Self::parse(text)?;
        for (at, part) in template.0.iter().enumerate() {
            let Part::Claim(Claim { name, .. }) = part else { continue };
            let before = at.checked_sub(1).map(|at| &template.0[at]);
            let begins = before.is_none_or(|part| matches!(part, Part::Text(text) if text.ends_with('/')));
            let after = template.0.get(at + 1);
            let ends = matches!(after, Some(Part::Text(text)) if text.starts_with('/'));
            if !begins || !ends {
                return Err(format!(
                    "in the prefix `{text}`, `{{{name}}}` must be a whole segment, as in `ci/{{{name}}}/`"
                ));
            }
        }
        if !text.is_empty() && !text.ends_with('/') {
            return Err(format!("the prefix `{text}` of a rule for an issuer must end with `/`"));
        }
        Ok(template)
    }

    /// Returns the principal with the values of `claims`. Different values give different principals.
    ///
    /// # Errors
    /// A claim is missing, is not text, is not printable, or has an ambiguous end. The error names the claim but
    /// repeats no value.
    pub(super) fn principal_of(&self, claims: &Value) -> Result<String, String> {
        let mut principal = String::new();
        for (at, part) in self.0.iter().enumerate() {
            let Claim { name, segments } = match part {
                Part::Claim(claim) => claim,
                Part::Text(text) => {
                    principal.push_str(text);
                    continue;
                }
            };
            let value = string(claims, name)?;
            if segments.is_some_and(|segments| segments != count(value)) {
                return Err(format!("its claim `{name}` has the wrong number of segments"));
            }
            // Otherwise the values `a/b`, `c` and the values `a`, `b/c` would give the same principal for `{x}/{y}`.
            if let [Part::Text(text), Part::Claim(_), ..] = &self.0[at + 1..]
                && let Some(end) = text.chars().next()
                && value.contains(end)
                && !(end == '/' && segments.is_some())
            {
                return Err(format!(
                    "its claim `{name}` contains `{end}`, which separates it from the next claim in `principal`"
                ));
            }
            principal.push_str(value);
        }
        let is_plain = printable(&principal, MAX_PRINCIPAL) == principal && principal.trim() == principal;
        if principal.is_empty() || !is_plain {
            return Err(format!(
                "its claims must give a principal of 1 to {MAX_PRINCIPAL} printable characters, without leading or trailing spaces"
            ));
        }
        Ok(principal)
    }

    /// Returns the prefix of lock names with the values of `claims`, or `None` if they do not form one. A value must
    /// have one segment, or as many as the template requires.
    pub(super) fn prefix_of(&self, claims: &Value) -> Option<String> {
        let mut prefix = String::new();
        for part in &self.0 {
            match part {
                Part::Text(text) => prefix.push_str(text),
                Part::Claim(Claim { name, segments }) => {
                    let value = string(claims, name).ok()?;
                    // This excludes empty segments, `..` and control characters.
                    LockName::new(value).ok()?;
                    if count(value) != segments.unwrap_or(1) {
                        return None;
                    }
                    prefix.push_str(value);
                }
            }
        }
        Some(prefix)
    }
}

/// Returns the number of segments in `value`.
fn count(value: &str) -> usize {
    value.split('/').count()
}

/// A condition on a claim of a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Condition {
    claim: String,
    pattern: Pattern,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Pattern {
    /// Exactly this value.
    Is(String),
    /// This text, followed by at least one more character.
    Begins(String),
}

impl Condition {
    pub(super) fn parse(claim: String, pattern: String) -> Result<Self, String> {
        let pattern = match pattern.strip_suffix('*') {
            // `my-org*` would also match `my-organisation`.
            Some(begin) if begin.ends_with(['/', ':']) && !begin.contains('*') => {
                Pattern::Begins(begin.to_owned())
            }
            None if !pattern.is_empty() && !pattern.contains('*') => Pattern::Is(pattern),
            _ => {
                return Err(format!(
                    "the claim `{claim}` = `{pattern}` must be a whole value, or end with `/*` or `:*`"
                ));
            }
        };
        Ok(Self { claim, pattern })
    }

    /// Returns whether the claim matches. A list matches if one of its members does.
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

/// Returns the claim `name`. If it begins with `/`, it is a JSON pointer to a nested claim, such as
/// `/kubernetes.io/namespace`.
fn claim<'a>(claims: &'a Value, name: &str) -> Option<&'a Value> {
    if name.starts_with('/') { claims.pointer(name) } else { claims.get(name) }
}

fn string<'a>(claims: &'a Value, name: &str) -> Result<&'a str, String> {
    let value = claim(claims, name).ok_or_else(|| format!("it has no claim `{name}`"))?;
    match value.as_str() {
        Some(value) if !value.is_empty() => Ok(value),
        _ => Err(format!("its claim `{name}` is not a string, or is empty")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn principal(template: &str, claims: &Value) -> Result<String, String> {
        Template::principal(template).unwrap().principal_of(claims)
    }

    #[test]
    fn a_template_inserts_the_values_of_claims() {
        let claims = json!({"sub": "x", "repository": "org/app", "kubernetes.io": {"namespace": "ci"}});
        for (template, text) in [
            ("{sub}", "x"),
            ("of {repository} by {sub}", "of org/app by x"),
            ("{/kubernetes.io/namespace}", "ci"),
            ("plain", "plain"),
        ] {
            assert_eq!(principal(template, &claims).unwrap(), text);
        }
        for bad in ["{", "}", "{}", "{a", "a}", "{{a}}", "{a{b}}", "a}{b", "{a:0}", "{a:10}", "{:2}"] {
            assert!(Template::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn an_unprintable_value_is_refused() {
        let template = Template::principal("{a}").unwrap();
        for value in [
            json!(null),
            json!(7),
            json!(true),
            json!(["x"]),
            json!({"x": "y"}),
            json!(""),
            json!("a\nb"),
            json!("a\u{202e}b"),
            json!("a\u{200b}b"),
            json!("\u{feff}a"),
            json!(" a"),
            json!("a\u{a0}"),
            json!("x".repeat(161)),
        ] {
            let refused = template.principal_of(&json!({"a": value, "b": "secret"})).unwrap_err();
            assert!(refused.contains("claim"), "{value}: {refused}");
        }
        assert!(template.principal_of(&json!({})).is_err());
        assert!(template.principal_of(&json!({"a": "x".repeat(160)})).is_ok());
    }

    #[test]
    fn a_prefix_covers_whole_segments() {
        for bad in ["ci", "ci/{a}", "ci{a}/", "{a}-{b}/", "{a}{b}/", "ci/{a}x/", "ci/{a}/prod", "ci/{a"] {
            assert!(Template::prefix(bad).is_err(), "{bad}");
        }
        for good in ["", "ci/", "{a}/", "ci/{a}/", "ci/{a}/{b:2}/", "ci/{a}/prod/"] {
            assert!(Template::prefix(good).is_ok(), "{good}");
        }
    }

    #[test]
    fn two_tokens_do_not_make_the_same_principal() {
        let of = |template: &str, a: &str, b: &str| principal(template, &json!({"a": a, "b": b}));
        assert_eq!(of("{a}/{b}", "x", "y/z").unwrap(), "x/y/z");
        for template in ["{a}/{b}", "{a}/-{b}", "{a:1}/{b}"] {
            assert!(of(template, "x/y", "z").unwrap_err().contains("`a`"), "{template}");
        }
        // Without a number in the template, a claim in a principal may have any number of segments.
        assert_eq!(of("{a}:{b}/", "x/y", "z/z").unwrap(), "x/y:z/z/");
        assert_eq!(of("{a:2}/{b}", "x/y", "z").unwrap(), "x/y/z");
        assert!(of("{a:2}/{b}", "x", "y/z").is_err() && of("{a:2}/{b}", "x/y/z", "z").is_err());
        assert!(of("{a:2}:{b}", "x/y:", "z").is_err());
        assert!(Template::principal("{a}{b}").is_err() && Template::principal("{a}{b}/").is_err());
    }

    #[test]
    fn a_value_with_other_segments_makes_no_prefix() {
        let prefix = |value| Template::prefix("ci/{a:2}/").unwrap().prefix_of(&json!({ "a": value }));
        assert_eq!(prefix(json!("org/app")).unwrap(), "ci/org/app/");
        for bad in ["", "/", "a/..", "./a", "../prod", "/org", "org/", "a/b\nb", "a/b\0b", "a/a\u{200b}b"] {
            assert_eq!(prefix(json!(bad)), None, "{bad:?}");
        }
        assert_eq!(prefix(json!(["org/app"])), None);
        assert_eq!(prefix(json!(null)), None);
        assert_eq!(Template::prefix("ci/{a}/").unwrap().prefix_of(&json!({})), None);
    }

    #[test]
    fn no_prefix_lies_inside_one_of_another_token() {
        let of = |template: &str, a: &str| {
            Template::prefix(template).unwrap().prefix_of(&json!({"a": a, "b": "z", "urn:x:role": a}))
        };
        assert_eq!(of("people/{a}/", "alice").unwrap(), "people/alice/");
        assert_eq!(of("people/{a}/", "alice/deploy"), None);
        assert_eq!(of("ci/{a:2}/", "g/app").unwrap(), "ci/g/app/");
        assert_eq!(of("ci/{a:2}/{b}/", "g/app").unwrap(), "ci/g/app/z/");
        for other in ["g", "g/secret/app"] {
            assert_eq!(of("ci/{a:2}/", other), None, "{other}");
        }
        assert_eq!(of("{a}/{b}/", "x/y"), None);
        // The name of a claim may contain colons.
        assert_eq!(of("{urn:x:role}/", "x").unwrap(), "x/");
        assert_eq!(of("{urn:x:role:2}/", "x/y").unwrap(), "x/y/");
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
